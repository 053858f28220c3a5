//! `weir volume rename`.

use axum::http::Method;
use clap::Args;
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;
use weir_device::mutant;
use weir_log::LogError;
use weir_log::catalog::{self, VolumeName};
use weir_store::Access;

use super::attach::AttachVolume;
use super::command::{Command, Subject, Told};
use super::place::{Place, Served, Serving};
use super::show;
use super::verb::{Answer, By, OnProgress, Route, Verb};
use super::words::volume_name;
use crate::api::types::Shown;
use crate::error::NodeError;
use crate::home::known_stores;
use crate::serve::events::EventKind;

/// Give a volume another name. One that is served is detached meanwhile, and must have no clients; they find it under
/// its new name
#[derive(Args, Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct RenameVolume {
    /// The new name, which no other volume has
    #[arg(value_parser = volume_name)]
    pub to: String,
}

impl Verb for RenameVolume {
    type Report = Shown;
    const ROUTE: Option<Route> = Some(Route {
        method: Method::POST,
        path: "/v1/volumes/{name}/rename",
        id: "rename_volume",
        answer: Answer::Lines,
    });
    const BY: By = By::Holder;
    const IS_OF_STORE: bool = true;

    fn admit(&self, by: &Serving, _name: Option<&VolumeName>) -> Result<(), NodeError> {
        VolumeName::new(&self.to)?;
        by.refuse_if_single()
    }

    async fn on_served(
        self,
        served: Served,
        on_progress: OnProgress<'_>,
    ) -> Result<Shown, NodeError> {
        // A file or an export of another server has the name that the settings give it.
        served.log("keeps its name")?;
        let Served { place, hosted } = served;
        let (env, to) = (&place.context.env, VolumeName::new(&self.to)?);
        place.of(to.clone()).refuse_if_taken().await?;
        let (store, _) = place.find(Access::Write).await?;
        match catalog::find(&store, env, &to).await {
            Err(LogError::NoSuchVolume { .. }) => {}
            Err(error) => return Err(error.into()),
            Ok(_) => {
                return Err(
                    LogError::Exists { name: self.to, store: store.url().to_owned() }.into()
                );
            }
        }
        known_stores::check_not_lost(&place.context, &place.home, &store, &to).await?;
        let read_only = hosted.read_only && !mutant("rename_forgets_read_only");
        let as_before = AttachVolume { read_only, ..AttachVolume::default() };
        drop(hosted);
        let from = place.of(place.name()?);
        let detached = place.detach_if_served(false).await;
        let renamed = match detached {
            Ok(was_served) => {
                let renamed = self.on_store(place, on_progress).await;
                renamed.map(|_| was_served.and_then(|was| was.note))
            }
            Err(error) => Err(error),
        };
        match renamed {
            Ok(note) => {
                let now = from.of(to);
                now.attach(as_before).await?;
                Ok(Shown { note, ..now.show().await? })
            }
            Err(error) => {
                from.serve_again(as_before).await;
                Err(error)
            }
        }
    }

    async fn on_store(self, place: Place, _: OnProgress<'_>) -> Result<Shown, NodeError> {
        let (from, to) = (place.name()?, VolumeName::new(&self.to)?);
        place.of(to.clone()).refuse_if_taken().await?;
        let store = place.home.open_store(&place.context, Access::Write).await?;
        known_stores::check_not_lost(&place.context, &place.home, &store, &to).await?;
        catalog::rename(&store, &place.context.env, &from, &to).await?;
        place.note(EventKind::VolumeRenamed, to.to_string());
        place.of(to).show().await
    }
}

impl Command for RenameVolume {
    type Verb = Self;
    const WORDS: [&'static str; 2] = ["volume", "rename"];
    const SUBJECT: Subject = Subject::Volume;

    fn verb(self, _snapshot: Option<VolumeName>) -> Self {
        self
    }

    fn tell(_name: &str, _verb: &Self, shown: &Shown) -> Told {
        show::tell_shown(shown).warned(shown.note.as_ref())
    }
}
