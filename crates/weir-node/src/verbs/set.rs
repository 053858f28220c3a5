//! `weir volume set`.

use axum::http::Method;
use clap::Args;
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;
use weir_log::catalog::{self, VolumeName};
use weir_store::Access;

use super::command::{Command, Subject, Told};
use super::place::{Place, Served};
use super::verb::{Answer, By, OnProgress, Route, Verb};
use crate::api::types::Takeover;
use crate::error::NodeError;
use crate::serve::events::EventKind;

/// Change a setting of a volume, without interrupting its clients
#[derive(Args, Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct SetTakeover {
    /// What happens when the lease of the node that holds it runs out
    #[arg(long, value_name = "KIND")]
    pub takeover: Takeover,
}

/// A volume with another setting.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(default)]
pub struct TakeoverSet {
    /// What happens from now on.
    pub takeover: Takeover,
}

impl Verb for SetTakeover {
    type Report = TakeoverSet;
    const ROUTE: Option<Route> = Some(Route {
        method: Method::POST,
        path: "/v1/volumes/{name}/takeover",
        id: "set_takeover",
        answer: Answer::Lines,
    });
    const BY: By = By::Holder;

    async fn on_served(self, volume: Served, _: OnProgress<'_>) -> Result<TakeoverSet, NodeError> {
        volume.log("nobody takes it over")?.set_takeover(self.takeover.into()).await?;
        volume.place.note(EventKind::TakeoverChanged, self.takeover.to_string());
        Ok(TakeoverSet { takeover: self.takeover })
    }

    async fn on_store(self, place: Place, _: OnProgress<'_>) -> Result<TakeoverSet, NodeError> {
        let (name, env) = (place.name()?, &place.context.env);
        let (store, id) = place.find(Access::Write).await?;
        place.home.refuse_if_served(&store, &name, id).await?;
        catalog::set_takeover(&store, env, &name, self.takeover.into()).await?;
        place.note(EventKind::TakeoverChanged, self.takeover.to_string());
        Ok(TakeoverSet { takeover: self.takeover })
    }
}

impl Command for SetTakeover {
    type Verb = Self;
    const WORDS: [&'static str; 2] = ["volume", "set"];
    const SUBJECT: Subject = Subject::Volume;

    fn verb(self, _snapshot: Option<VolumeName>) -> Self {
        self
    }

    fn tell(_name: &str, _verb: &Self, _report: &TakeoverSet) -> Told {
        Told::default()
    }
}
