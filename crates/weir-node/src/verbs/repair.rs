//! A repair of a volume: by the process that serves it, or by opening it.

use axum::http::Method;
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;
use weir_device::{DeviceError, ErrorKind};
use weir_log::{GivenUp, ObjectId};
use weir_stack::Stack;

use super::place::{Place, Served};
use super::verb::{Answer, By, OnProgress, Route, Verb};
use crate::api::types::RepairReport;
use crate::error::NodeError;
use crate::serve::events::EventKind;

/// Keys in one request: its body has at most 64 KiB.
const KEYS_AT_A_TIME: usize = 500;

const VIEWED: &str = "it is served read-only: what is damaged is given up where the volume is written, and a replica \
                      gets it with the next checkpoint that is published and sent";

/// Give up what cannot be read of objects that a check named, and delete those of them that nobody needs. Clients go on
/// meanwhile
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct RepairVolume {
    /// Keys of objects that a check named. Each is looked at once more
    pub objects: Vec<String>,
    /// Whether lost bytes read as zeroes from then on; otherwise reads of them fail until they are written again
    #[serde(default)]
    pub zero: bool,
}

impl Verb for RepairVolume {
    type Report = RepairReport;
    const ROUTE: Option<Route> = Some(Route {
        method: Method::POST,
        path: "/v1/volumes/{name}/repair",
        id: "repair_volume",
        answer: Answer::Lines,
    });
    const BY: By = By::Holder;

    async fn on_served(
        self,
        volume: Served,
        on_progress: OnProgress<'_>,
    ) -> Result<RepairReport, NodeError> {
        if volume.hosted.stack.view().is_some() {
            // Nothing to mend is what a repair says of one that nobody serves, too.
            return match self.objects.is_empty() && !self.zero {
                true => Ok(RepairReport::default()),
                false => Err(DeviceError::new(ErrorKind::ReadOnly, VIEWED).into()),
            };
        }
        let report = repair(&*volume.log("has no objects")?, &self, on_progress).await?;
        let pending_deletions = report.pending_deletions;
        if report != (RepairReport { pending_deletions, ..RepairReport::default() }) {
            let given_up = format!("{} bytes given up", report.lost_bytes);
            volume.place.note(EventKind::VolumeRepaired, given_up);
        }
        Ok(report)
    }

    async fn on_store(
        self,
        place: Place,
        on_progress: OnProgress<'_>,
    ) -> Result<RepairReport, NodeError> {
        place.with_open(async |volume| repair(&volume, &self, on_progress).await).await
    }

    fn parts(self) -> Vec<Self> {
        let objects = self.objects.chunks(KEYS_AT_A_TIME).map(<[String]>::to_vec);
        let mut parts: Vec<Self> = objects.map(|objects| Self { objects, ..self }).collect();
        if parts.is_empty() {
            // What was given up before is found without a name.
            parts.push(self);
        }
        parts
    }

    fn size(&self) -> u64 {
        self.objects.len() as u64
    }

    fn join(so_far: &mut RepairReport, next: RepairReport) {
        so_far.add(&next);
    }
}

async fn repair(
    volume: &Stack,
    asked: &RepairVolume,
    on_progress: OnProgress<'_>,
) -> Result<RepairReport, NodeError> {
    let parse = |key: &String| {
        ObjectId::parse_key(key).ok_or_else(|| {
            let way_out = "weir volume check names those that are damaged";
            let message = format!("{key:?} is not the key of an object; {way_out}");
            DeviceError::new(ErrorKind::Invalid, message)
        })
    };
    let objects =
        asked.objects.iter().map(parse).collect::<Result<Vec<ObjectId>, DeviceError>>()?;
    let given_up = if asked.zero { GivenUp::Zero } else { GivenUp::Error };
    let total = objects.len() as u64;
    let mut done = 0;
    let repaired = volume.repair(&objects, given_up, |looked_at| {
        done += looked_at;
        on_progress(done, total);
    });
    Ok(repaired.await?.into())
}
