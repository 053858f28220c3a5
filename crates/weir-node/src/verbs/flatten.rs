//! `weir volume flatten`.

use axum::http::Method;
use clap::Args;
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;
use weir_log::catalog::VolumeName;

use super::command::{Bar, Command, Subject, Told};
use super::place::{Place, Served};
use super::verb::{Answer, By, OnProgress, Route, Verb};
use crate::api::types::FlattenReport;
use crate::error::NodeError;
use crate::size::human;

/// Copy what a clone shares with the volume it was made of, so that it does not need it any more
#[derive(Args, Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(default)]
pub struct FlattenVolume {}

impl Verb for FlattenVolume {
    type Report = FlattenReport;
    const ROUTE: Option<Route> = Some(Route {
        method: Method::POST,
        path: "/v1/volumes/{name}/flatten",
        id: "flatten_volume",
        answer: Answer::Lines,
    });
    const BY: By = By::Holder;

    async fn on_served(
        self,
        volume: Served,
        on_progress: OnProgress<'_>,
    ) -> Result<FlattenReport, NodeError> {
        Ok(volume.log("is no clone")?.flatten(on_progress).await?.into())
    }

    async fn on_store(
        self,
        place: Place,
        on_progress: OnProgress<'_>,
    ) -> Result<FlattenReport, NodeError> {
        place.with_open(async |volume| Ok(volume.flatten(on_progress).await?.into())).await
    }
}

impl Command for FlattenVolume {
    type Verb = Self;
    const WORDS: [&'static str; 2] = ["volume", "flatten"];
    const SUBJECT: Subject = Subject::Volume;
    const BAR: Option<Bar> =
        Some(Bar { doing: "flattening", shows: "{bytes} of {total_bytes} copied" });

    fn verb(self, _snapshot: Option<VolumeName>) -> Self {
        self
    }

    fn tell(name: &str, _verb: &Self, report: &FlattenReport) -> Told {
        let copied = human(report.flattened_bytes);
        let origins = match report.origins.as_slice() {
            [] => "it needs no other volume".to_owned(),
            names => format!("it needs {} still", names.join(", ")),
        };
        Told::text(format!("{name}: {copied} copied, {origins}\n")).but(report.obstacle.as_ref())
    }
}
