//! `weir snapshot list`.

use std::time::{Duration, UNIX_EPOCH};

use axum::http::Method;
use clap::Args;
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;
use weir_log::catalog::{self, VolumeName};
use weir_store::Access;

use super::command::{Command, Subject, Told};
use super::place::Place;
use super::verb::{Answer, By, OnProgress, Route, Verb};
use crate::api::types::Snapshot;
use crate::error::NodeError;
use crate::size::human;

/// List the snapshots of a volume, oldest first
#[derive(Args, Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(default)]
pub struct ListSnapshots {}

/// The snapshots of a volume, oldest first.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(transparent)]
pub struct SnapshotList(pub Vec<Snapshot>);

impl Verb for ListSnapshots {
    type Report = SnapshotList;
    const ROUTE: Option<Route> = Some(Route {
        method: Method::GET,
        path: "/v1/volumes/{name}/snapshots",
        id: "list_snapshots",
        answer: Answer::Report(200),
    });
    const BY: By = By::Anyone;

    async fn on_store(self, place: Place, _: OnProgress<'_>) -> Result<SnapshotList, NodeError> {
        let store = place.home.open_store(&place.context, Access::Read).await?;
        let listed = catalog::snapshots(&store, &place.context.env, &place.name()?).await?;
        Ok(SnapshotList(listed.into_iter().map(Snapshot::from).collect()))
    }
}

impl Command for ListSnapshots {
    type Verb = Self;
    const WORDS: [&'static str; 2] = ["snapshot", "list"];
    const SUBJECT: Subject = Subject::Volume;

    fn verb(self, _snapshot: Option<VolumeName>) -> Self {
        self
    }

    fn tell(_name: &str, _verb: &Self, SnapshotList(snapshots): &SnapshotList) -> Told {
        let row = |snapshot: &Snapshot| {
            let name = match snapshot.deleting {
                true => format!("{} (deleted, needed by clones)", snapshot.name),
                false => snapshot.name.clone(),
            };
            let (taken, size) = (date(snapshot.created_at), human(snapshot.size_bytes));
            vec![name, taken, size, snapshot.last_write.to_string()]
        };
        let headings = vec!["NAME", "TAKEN", "SIZE", "LAST WRITE"];
        Told::table(headings, snapshots.iter().map(row).collect())
    }
}

/// Seconds since 1970 as a date and a time of day, UTC.
fn date(seconds: u64) -> String {
    let time = UNIX_EPOCH.checked_add(Duration::from_secs(seconds)).unwrap_or(UNIX_EPOCH);
    humantime::format_rfc3339_seconds(time).to_string()
}
