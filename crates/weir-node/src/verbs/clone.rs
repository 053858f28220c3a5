//! `weir volume clone`.

use axum::http::Method;
use clap::Args;
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;
use weir_log::catalog::{self, VolumeName};
use weir_store::Access;

use super::command::{Command, Subject, Told};
use super::place::Place;
use super::show;
use super::verb::{Answer, By, OnProgress, Route, Verb};
use super::words::volume_name;
use crate::api::types::{Shown, Takeover};
use crate::error::NodeError;
use crate::home::known_stores;
use crate::serve::events::EventKind;

/// Create a volume that begins as a snapshot and shares its bytes. Copies nothing
#[derive(Args, Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct CloneVolume {
    /// The snapshot that the clone begins as
    #[arg(skip)]
    pub snapshot: String,
    /// Name of the clone
    #[arg(value_parser = volume_name)]
    pub name: String,
    /// What happens when the lease of the node that holds the clone runs out
    #[arg(long, value_name = "KIND", env = "WEIR_TAKEOVER", default_value = "manual")]
    #[arg(hide_env_values = true)]
    #[serde(default)]
    pub takeover: Takeover,
}

impl Verb for CloneVolume {
    type Report = Shown;
    const ROUTE: Option<Route> = Some(Route {
        method: Method::POST,
        path: "/v1/volumes/{name}/clones",
        id: "clone_volume",
        answer: Answer::Report(201),
    });
    const BY: By = By::Anyone;

    async fn on_store(self, place: Place, _: OnProgress<'_>) -> Result<Shown, NodeError> {
        let (volume, snapshot) = (place.name()?, VolumeName::new(&self.snapshot)?);
        let clone = VolumeName::new(&self.name)?;
        place.home.data.prepare()?;
        place.of(clone.clone()).refuse_if_taken().await?;
        let store = place.home.open_store(&place.context, Access::Write).await?;
        known_stores::check_not_lost(&place.context, &place.home, &store, &clone).await?;
        let (env, from) = (&place.context.env, (&volume, &snapshot));
        // A clone shares the bytes of its parent, and so its key or the lack of one.
        if place.home.encrypt && catalog::encryption(&store, env, &volume).await?.is_none() {
            return Err(NodeError::PlainParent { snapshot: format!("{volume}@{snapshot}") });
        }
        catalog::create_clone(&store, env, from, &clone, self.takeover.into()).await?;
        let shown = Shown::new(catalog::show(&store, env, &clone).await?, None);
        place.of(clone).note(EventKind::VolumeCloned, format!("{volume}@{snapshot}"));
        Ok(shown)
    }
}

impl Command for CloneVolume {
    type Verb = Self;
    const WORDS: [&'static str; 2] = ["volume", "clone"];
    const SUBJECT: Subject = Subject::Snapshot;

    fn verb(self, snapshot: Option<VolumeName>) -> Self {
        Self { snapshot: snapshot.map_or_else(String::new, |name| name.to_string()), ..self }
    }

    fn tell(_name: &str, _verb: &Self, shown: &Shown) -> Told {
        show::tell_shown(shown)
    }
}
