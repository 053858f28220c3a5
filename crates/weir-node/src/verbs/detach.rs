//! `weir volume detach`.

use axum::http::Method;
use clap::Args;
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;
use weir_device::ErrorKind;
use weir_log::catalog::VolumeName;
use weir_store::Access;

use super::command::{Command, Subject, Told};
use super::place::{Place, Serving};
use super::verb::{Answer, By, Named, OnProgress, Route, Verb};
use crate::error::NodeError;
use crate::serve::attach;
use crate::serve::spec::Stopped;

/// Serve a volume no more, and close it with everything in the store, so that any node can open it
#[derive(Args, Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields, default)]
pub struct DetachVolume {
    /// Disconnect its clients, if it has any
    #[arg(long, env = "WEIR_DISCONNECT", hide_env_values = true)]
    pub disconnect: bool,
}

impl Verb for DetachVolume {
    type Report = Named;
    const ROUTE: Option<Route> = Some(Route {
        method: Method::POST,
        path: "/v1/volumes/{name}/detach",
        id: "detach_volume",
        answer: Answer::Lines,
    });
    const BY: By = By::Server;

    fn admit(&self, by: &Serving, _name: Option<&VolumeName>) -> Result<(), NodeError> {
        by.refuse_if_single()
    }

    async fn on_store(self, place: Place, _: OnProgress<'_>) -> Result<Named, NodeError> {
        let name = place.name()?;
        let Some(Serving(core)) = &place.serving else {
            return Err(NodeError::NotServedHere { name: name.to_string() });
        };
        if attach::take_back(core, &name).await? {
            return Ok(Named { name: name.to_string() });
        }
        match attach::detach(core, name.clone(), self.disconnect).await? {
            Stopped::Clean => Ok(Named { name: name.to_string() }),
            Stopped::LocalOnly => Err(NodeError::KeptInJournal { name: name.to_string() }),
        }
    }
}

impl Place {
    /// Has the volume served no more, if this process serves it, or one from this data directory that serves many.
    pub(crate) async fn detach_if_served(&self) -> Result<(), NodeError> {
        let name = self.name()?;
        if let Some(Serving(core)) = &self.serving {
            return match attach::detach(core, name, false).await {
                Ok(_) | Err(NodeError::NotServedHere { .. }) => Ok(()),
                Err(error) => Err(error),
            };
        }
        let Ok((store, id)) = self.find(Access::Write).await else { return Ok(()) };
        let Some(mut process) = self.home.holder(&store, id).await? else { return Ok(()) };
        if process.status.is_err() {
            // What comes next names it.
            return Ok(());
        }
        match process.client.call(Some(&name), &DetachVolume::default(), &|_, _| {}).await {
            // One that serves nothing else is named by what comes next.
            Err(NodeError::Remote { kind: ErrorKind::Unsupported, .. }) => Ok(()),
            Ok(_) => Ok(()),
            // What its journal keeps is in the way of nothing here, as in the process itself.
            Err(error) => match self.home.holder(&store, id).await? {
                None => Ok(()),
                Some(_) => Err(error),
            },
        }
    }
}

impl Command for DetachVolume {
    type Verb = Self;
    const WORDS: [&'static str; 2] = ["volume", "detach"];
    const SUBJECT: Subject = Subject::Volume;

    fn verb(self, _snapshot: Option<VolumeName>) -> Self {
        self
    }

    fn tell(_name: &str, _verb: &Self, _report: &Named) -> Told {
        Told::default()
    }
}
