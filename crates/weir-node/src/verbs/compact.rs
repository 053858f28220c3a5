//! `weir volume compact`.

use axum::http::Method;
use clap::Args;
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;
use weir_log::catalog::VolumeName;

use super::command::{Bar, Command, Subject, Told};
use super::place::{Place, Served};
use super::verb::{Answer, By, OnProgress, Route, Verb};
use super::words::percent;
use crate::api::types::CompactReport;
use crate::error::NodeError;
use crate::size::human;

/// Copy together what lives of a volume's objects, so that the rest can be deleted
#[derive(Args, Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct CompactVolume {
    /// Live share at which it ends
    #[arg(long = "to", value_name = "PERCENT")]
    #[arg(default_value = "95", value_parser = percent)]
    pub percent: u64,
}

impl Verb for CompactVolume {
    type Report = CompactReport;
    const ROUTE: Option<Route> = Some(Route {
        method: Method::POST,
        path: "/v1/volumes/{name}/compact",
        id: "compact_volume",
        answer: Answer::Lines,
    });
    const BY: By = By::Holder;

    async fn on_served(
        self,
        volume: Served,
        on_progress: OnProgress<'_>,
    ) -> Result<CompactReport, NodeError> {
        Ok(volume.log("has no objects")?.compact(self.percent, on_progress).await?.into())
    }

    async fn on_store(
        self,
        place: Place,
        on_progress: OnProgress<'_>,
    ) -> Result<CompactReport, NodeError> {
        let opened = place
            .with_open(async |volume| Ok(volume.compact(self.percent, on_progress).await?.into()));
        opened.await
    }
}

impl Command for CompactVolume {
    type Verb = Self;
    const WORDS: [&'static str; 2] = ["volume", "compact"];
    const SUBJECT: Subject = Subject::Volume;
    const BAR: Option<Bar> =
        Some(Bar { doing: "compacting", shows: "{bytes} of {total_bytes} given up" });

    fn verb(self, _snapshot: Option<VolumeName>) -> Self {
        self
    }

    fn tell(name: &str, _verb: &Self, report: &CompactReport) -> Told {
        let [copied, gone] = [report.copied_bytes, report.reclaimed_bytes].map(human);
        let (before, after) = (report.live_percent_before, report.live_percent_after);
        let objects = report.copied_objects;
        let done = format!("{copied} copied into {objects} objects, {gone} given up");
        Told::text(format!("{name}: {before} % lived, {after} % live now; {done}\n"))
            .but(report.obstacle.as_ref())
    }
}
