//! `weir volume detach`.

use axum::http::Method;
use clap::Args;
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;
use weir_log::catalog::VolumeName;

use super::{Answer, By, Command, Named, OnProgress, Place, Route, Serving, Subject, Told, Verb};
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
        match attach::detach(core, name.clone(), self.disconnect).await? {
            Stopped::Clean => Ok(Named { name: name.to_string() }),
            Stopped::LocalOnly => Err(NodeError::KeptInJournal { name: name.to_string() }),
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
