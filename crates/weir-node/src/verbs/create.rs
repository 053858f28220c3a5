//! `weir volume create`.

use axum::http::Method;
use clap::Args;
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;
use weir_log::catalog::{self, VolumeName};
use weir_store::Access;

use super::attach::AttachVolume;
use super::command::{Command, Subject, Told};
use super::place::Place;
use super::show;
use super::verb::{Answer, By, OnProgress, Route, Verb};
use super::words::{size_bytes, volume_name};
use crate::api::types::{Shown, Takeover};
use crate::error::NodeError;
use crate::home::known_stores;
use crate::serve::events::EventKind;

/// Create a volume. A process that serves all volumes of its store serves it at once where it is asked for it
#[derive(Args, Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[command(about = "Create a volume", long_about = None)]
#[serde(deny_unknown_fields)]
pub struct CreateVolume {
    /// Name: 1 to 64 letters, digits, `.`, `_` and `-`, beginning with a letter or digit
    #[arg(value_parser = volume_name)]
    pub name: String,
    /// Size in bytes, or with K, M, G, T, as 10G
    #[arg(long = "size", value_name = "SIZE", env = "WEIR_SIZE", value_parser = size_bytes)]
    #[arg(hide_env_values = true)]
    pub size_bytes: u64,
    /// What happens when the lease of the node that holds it runs out
    #[arg(long, value_name = "KIND", env = "WEIR_TAKEOVER", default_value = "manual")]
    #[arg(hide_env_values = true)]
    #[serde(default)]
    pub takeover: Takeover,
    /// Serve it at once, by the `weir serve` of this data directory
    #[arg(long, env = "WEIR_ATTACH", hide_env_values = true)]
    #[serde(default)]
    pub attach: bool,
}

impl Verb for CreateVolume {
    type Report = Shown;
    const ROUTE: Option<Route> = Some(Route {
        method: Method::POST,
        path: "/v1/volumes",
        id: "create_volume",
        answer: Answer::Report(201),
    });
    const BY: By = By::Anyone;

    async fn on_store(self, place: Place, _: OnProgress<'_>) -> Result<Shown, NodeError> {
        let (name, size) = (VolumeName::new(&self.name)?, self.size_bytes);
        let (home, context) = (&place.home, &place.context);
        home.data.prepare()?;
        let created = place.of(name.clone());
        created.refuse_if_taken().await?;
        let store = home.open_or_make_store(context).await?;
        known_stores::check_not_emptied(context, home, &store).await?;
        known_stores::check_not_lost(context, home, &store, &name).await?;
        let encryption = home.encryption(context).await?;
        let takeover = self.takeover.into();
        catalog::create_as(&store, &context.env, &name, size, takeover, encryption).await?;
        let shown = Shown::new(catalog::show(&store, &context.env, &name).await?, None);
        created.note(EventKind::VolumeCreated, format!("{size} bytes"));
        let serves_all = place.serving.as_ref().is_some_and(|by| by.0.serves_all());
        if !self.attach && !serves_all {
            return Ok(Shown { note: created.not_served().await, ..shown });
        }
        created.attach(AttachVolume::default()).await?;
        if self.attach { created.show().await } else { Ok(shown) }
    }
}

impl Place {
    /// What a person has to know who made a volume beside a process that serves volumes of the same store.
    async fn not_served(&self) -> Option<String> {
        let (name, mut client) = (self.name().ok()?, self.home.serving_client().await.ok()?);
        let status = client.status().await.ok()?;
        let store = self.home.open_store(&self.context, Access::Read).await.ok()?;
        let is_its_store = status.store_location == Some(store.location());
        let process = status.process;
        is_its_store.then(|| {
            format!(
                "process {process} does not serve it yet: `weir volume attach {name}` has it do so, and --attach does \
                 both at once"
            )
        })
    }
}

impl Command for CreateVolume {
    type Verb = Self;
    const WORDS: [&'static str; 2] = ["volume", "create"];
    const SUBJECT: Subject = Subject::Store;

    fn verb(self, _snapshot: Option<VolumeName>) -> Self {
        self
    }

    fn tell(_name: &str, _verb: &Self, shown: &Shown) -> Told {
        let mut told = show::tell_shown(shown);
        told.notes.extend(shown.note.clone());
        told
    }
}
