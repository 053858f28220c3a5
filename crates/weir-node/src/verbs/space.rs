//! What the snapshots of a volume take.

use axum::http::Method;
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;
use weir_store::Access;

use super::place::Place;
use super::verb::{Answer, By, OnProgress, Route, Verb};
use crate::api::types::SnapshotSpace;
use crate::error::NodeError;

/// Say what each snapshot of a volume takes in the store, served or not, oldest first. Reads the map of the volume
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(default)]
pub struct ShowSpace {}

/// What the snapshots of a volume take, oldest first.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(transparent)]
pub struct SpaceList(pub Vec<SnapshotSpace>);

impl Verb for ShowSpace {
    type Report = SpaceList;
    const ROUTE: Option<Route> = Some(Route {
        method: Method::GET,
        path: "/v1/volumes/{name}/space",
        id: "snapshot_space",
        answer: Answer::Report(200),
    });
    const BY: By = By::Anyone;

    async fn on_store(self, place: Place, _: OnProgress<'_>) -> Result<SpaceList, NodeError> {
        of(&place).await.map(SpaceList)
    }
}

pub(super) async fn of(place: &Place) -> Result<Vec<SnapshotSpace>, NodeError> {
    let (store, id) = place.find(Access::Read).await?;
    let (env, keys) = (&place.context.env, &place.home.keys);
    let spaces = weir_log::snapshot_space(&store, env, (id, keys)).await?;
    Ok(spaces.into_iter().map(SnapshotSpace::from).collect())
}
