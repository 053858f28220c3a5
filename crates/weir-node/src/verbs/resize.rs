//! `weir volume resize`.

use std::rc::Rc;

use axum::http::Method;
use clap::Args;
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;
use weir_device::{DeviceError, DeviceExt, ErrorKind};
use weir_log::catalog::VolumeName;
use weir_stack::{QUIESCE_MAX, Stack};

use super::command::{Command, Question, Subject, Told};
use super::place::{Place, Served};
use super::verb::{Answer, By, OnProgress, Route, Verb};
use super::words::size_bytes;
use crate::error::NodeError;
use crate::serve::events::EventKind;
use crate::size::human;

/// Grow a volume, without interrupting its clients; or shrink one that has none
#[derive(Args, Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct ResizeVolume {
    /// The new size: bytes, or 20G
    #[arg(value_name = "SIZE", value_parser = size_bytes)]
    pub size_bytes: u64,
    /// Give up what lies beyond a smaller size, for ever but for what snapshots show
    #[arg(long)]
    #[serde(default)]
    pub shrink: bool,
}

/// A volume with another size.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(default)]
pub struct ResizedVolume {
    /// Its size from now on.
    pub size_bytes: u64,
}

impl Verb for ResizeVolume {
    type Report = ResizedVolume;
    const ROUTE: Option<Route> = Some(Route {
        method: Method::POST,
        path: "/v1/volumes/{name}/resize",
        id: "resize_volume",
        answer: Answer::Lines,
    });
    const BY: By = By::Holder;

    async fn on_served(
        self,
        served: Served,
        _: OnProgress<'_>,
    ) -> Result<ResizedVolume, NodeError> {
        let volume = served.log("keeps its size")?;
        if self.shrink && self.size_bytes < volume.size() {
            let shrunk = Rc::clone(&volume);
            let shrink = async move { self.resize(&shrunk).await.map(drop) };
            served.hosted.without_clients(shrink).await?;
        } else {
            let resized = self.resize(&volume).await;
            served.hosted.gate.set_size(volume.size());
            resized?;
        }
        served.place.note(EventKind::VolumeResized, format!("{} bytes", volume.size()));
        Ok(ResizedVolume { size_bytes: volume.size() })
    }

    async fn on_store(self, place: Place, _: OnProgress<'_>) -> Result<ResizedVolume, NodeError> {
        place.with_open(async |volume| self.resize(&volume).await).await
    }
}

impl ResizeVolume {
    async fn resize(self, volume: &Rc<Stack>) -> Result<ResizedVolume, NodeError> {
        if self.shrink && self.size_bytes > volume.size() {
            let message = format!(
                "{} is no smaller size: the volume has {}; without --shrink it grows",
                human(self.size_bytes),
                human(volume.size())
            );
            return Err(DeviceError::new(ErrorKind::Invalid, message).into());
        }
        volume.resize(self.size_bytes, self.shrink, QUIESCE_MAX).await?;
        Ok(ResizedVolume { size_bytes: volume.size() })
    }
}

impl Command for ResizeVolume {
    type Verb = Self;
    const WORDS: [&'static str; 2] = ["volume", "resize"];
    const SUBJECT: Subject = Subject::Volume;
    const ASKS: bool = true;

    fn verb(self, _snapshot: Option<VolumeName>) -> Self {
        self
    }

    /// What lies beyond a smaller size is given up, so a person types the name.
    async fn question(verb: &Self, place: Place) -> Result<Option<Question>, NodeError> {
        if !verb.shrink {
            return Ok(None);
        }
        let shown = place.show().await?;
        let (name, size) = (shown.name, human(verb.size_bytes));
        let Some(lost) = shown.size_bytes.checked_sub(verb.size_bytes).filter(|lost| *lost > 0)
        else {
            return Ok(None);
        };
        let lost = human(lost);
        Ok(Some(Question {
            asked: format!(
                "Give up the last {lost} of {name}, which has {size} then? Type its name"
            ),
            doing: format!("shrinking {name} by {lost}"),
            without_asking: "pass --yes to shrink it without being asked".to_owned(),
            otherwise: format!("{name} keeps its size"),
            name,
        }))
    }

    fn tell(name: &str, verb: &Self, _report: &ResizedVolume) -> Told {
        let size = human(verb.size_bytes);
        Told::note(format!("volume {name} has {size} now; clients that ask for its size see it"))
    }
}
