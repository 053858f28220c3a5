//! `weir volume promote`.

use clap::Args;
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;
use weir_log::catalog::VolumeName;
use weir_log::replica;
use weir_store::Access;

use super::command::{Command, Subject, Told};
use super::place::Place;
use super::verb::{By, OnProgress, Route, Verb};
use crate::error::NodeError;

/// Make a volume of a replica, in the store of the replica: nothing is replicated to it any more, and what it was a
/// replica of cannot change it
#[derive(Args, Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct PromoteVolume {}

/// A replica that is a volume of its own now.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct PromotedVolume {
    /// Its name.
    pub name: String,
    /// Its new identity, 32 hex digits.
    pub id: String,
}

impl Verb for PromoteVolume {
    type Report = PromotedVolume;
    const ROUTE: Option<Route> = None;
    const BY: By = By::Anyone;

    async fn on_store(self, place: Place, _: OnProgress<'_>) -> Result<PromotedVolume, NodeError> {
        let (name, env) = (place.name()?, &place.context.env);
        place.refuse_if_taken().await?;
        let store = place.home.open_store(&place.context, Access::Write).await?;
        let id = replica::promote(&store, env, &name).await?;
        Ok(PromotedVolume { name: name.to_string(), id: id.to_string() })
    }
}

impl Command for PromoteVolume {
    type Verb = Self;
    const WORDS: [&'static str; 2] = ["volume", "promote"];
    const SUBJECT: Subject = Subject::Volume;

    fn verb(self, _snapshot: Option<VolumeName>) -> Self {
        self
    }

    fn tell(name: &str, _verb: &Self, report: &PromotedVolume) -> Told {
        Told::note(format!("{name} is a volume of its own now, {}", report.id))
    }
}
