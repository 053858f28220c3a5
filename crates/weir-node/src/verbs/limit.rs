//! `weir volume limit`.

use std::time::Duration;

use axum::http::Method;
use clap::Args;
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;
use weir_device::{DeviceError, ErrorKind};
use weir_log::catalog::VolumeName;
use weir_stack::LimitSettings;

use super::command::{Command, Subject, Told};
use super::place::{Place, Served, Serving};
use super::verb::{Answer, By, OnProgress, Route, Verb};
use super::words::{count, milliseconds, percent, size_bytes};
use crate::api::types::VolumeLimit;
use crate::error::NodeError;
use crate::serve::events::EventKind;
use crate::size::human;

/// Limit what clients of a served volume ask for, at once and until it is not served any more
#[derive(Args, Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[group(id = "limits", required = true, multiple = true, args = ["iops", "bytes_per_second", "cache_share", "none"])]
#[serde(deny_unknown_fields, default)]
pub struct LimitVolume {
    /// Operations per second at most; no limit where it is not given
    #[arg(long, value_name = "COUNT", env = "WEIR_IOPS", hide_env_values = true)]
    #[arg(value_parser = count)]
    pub iops: Option<u64>,
    /// Bytes per second read and written at most, as 20M; no limit where it is not given
    #[arg(long = "bandwidth", value_name = "SIZE", env = "WEIR_BANDWIDTH")]
    #[arg(hide_env_values = true, value_parser = size_bytes)]
    pub bytes_per_second: Option<u64>,
    /// Seconds' worth of that which pass at once after a pause [default: 0.1]
    #[arg(long = "burst", value_name = "SECONDS", env = "WEIR_BURST")]
    #[arg(hide_env_values = true, value_parser = milliseconds)]
    pub burst_ms: Option<u64>,
    /// Share of the cache on the local disk at most, as 20%, counted by what the volume wrote; no limit where it is not
    /// given
    #[arg(long, value_name = "PERCENT", env = "WEIR_CACHE_SHARE")]
    #[arg(hide_env_values = true, value_parser = percent)]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cache_share: Option<u64>,
    /// Take every limit away
    #[arg(long, env = "WEIR_NONE", hide_env_values = true)]
    #[arg(conflicts_with_all = ["iops", "bytes_per_second", "burst_ms", "cache_share"])]
    #[serde(skip)]
    pub none: bool,
}

impl LimitVolume {
    fn settings(&self) -> Result<LimitSettings, NodeError> {
        if self.burst_ms.is_some() && self.iops.is_none() && self.bytes_per_second.is_none() {
            let message = "a burst is one of a limit: give operations or bytes per second as well";
            return Err(DeviceError::new(ErrorKind::Invalid, message).into());
        }
        if self.cache_share.is_some_and(|percent| !(1..=100).contains(&percent)) {
            let message = "a share of the cache is 1 to 100 percent";
            return Err(DeviceError::new(ErrorKind::Invalid, message).into());
        }
        let burst = self.burst_ms.map(Duration::from_millis);
        Ok(LimitSettings::checked(self.iops, self.bytes_per_second, burst)?)
    }
}

impl Verb for LimitVolume {
    type Report = VolumeLimit;
    const ROUTE: Option<Route> = Some(Route {
        method: Method::PUT,
        path: "/v1/volumes/{name}/limit",
        id: "limit_volume",
        answer: Answer::Report(200),
    });
    const BY: By = By::Holder;

    async fn on_served(self, volume: Served, _: OnProgress<'_>) -> Result<VolumeLimit, NodeError> {
        let settings = self.settings()?;
        if self.cache_share.is_some() {
            volume.log("nothing of it is cached")?;
        }
        let stack = &volume.hosted.stack;
        stack.set_limit(settings);
        if let Some(Serving(core)) = &volume.place.serving {
            core.cache.limit_share(volume.hosted.id, self.cache_share);
        }
        let limit =
            VolumeLimit { cache_share: self.cache_share, ..VolumeLimit::from(stack.limit()) };
        volume.place.note(EventKind::VolumeLimited, told(&limit));
        Ok(limit)
    }

    async fn on_store(self, place: Place, _: OnProgress<'_>) -> Result<VolumeLimit, NodeError> {
        self.settings()?;
        Err(NodeError::NotServedHere { name: place.name()?.to_string() })
    }
}

fn told(limit: &VolumeLimit) -> String {
    let none = || "none".to_owned();
    let iops = limit.iops.map_or_else(none, |count| format!("{count}/s"));
    let bytes = limit.bytes_per_second.map_or_else(none, |bytes| format!("{}/s", human(bytes)));
    let share =
        limit.cache_share.map_or_else(String::new, |share| format!(", {share} % of the cache"));
    format!("operations {iops}, bytes {bytes}, burst {} ms{share}", limit.burst_ms)
}

impl Command for LimitVolume {
    type Verb = Self;
    const WORDS: [&'static str; 2] = ["volume", "limit"];
    const SUBJECT: Subject = Subject::Volume;

    fn verb(self, _snapshot: Option<VolumeName>) -> Self {
        self
    }

    fn tell(name: &str, _verb: &Self, report: &VolumeLimit) -> Told {
        Told::note(format!("volume {name}: {}", told(report)))
    }
}
