//! `weir volume limit`.

use std::num::NonZeroU64;
use std::time::Duration;

use axum::http::Method;
use clap::Args;
use serde::{Deserialize, Deserializer, Serialize};
use utoipa::ToSchema;
use weir_device::{DeviceError, ErrorKind};
use weir_log::catalog::VolumeName;
use weir_stack::LimitSettings;

use super::command::{Command, Subject, Told};
use super::place::{Place, Served, Serving};
use super::verb::{Answer, By, OnProgress, Route, Verb};
use super::words::{burst, count, percent, size_bytes};
use crate::api::types::VolumeLimit;
use crate::error::NodeError;
use crate::serve::events::EventKind;

/// Limit what clients of a served volume ask for, at once and until it is not served any more; what is not given stays
/// as it is
#[derive(Args, Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[group(id = "limits", required = true, multiple = true)]
#[group(args = ["iops", "bytes_per_second", "burst_ms", "cache_share", "none"])]
#[serde(deny_unknown_fields, default)]
pub struct LimitVolume {
    /// Operations per second at most; or none
    #[arg(long, value_name = "COUNT", value_parser = or_none(count))]
    #[serde(deserialize_with = "given", skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<u64>)]
    pub iops: Option<Change>,
    /// Bytes per second read and written at most, as 20M; or none
    #[arg(long = "bandwidth", value_name = "SIZE", value_parser = or_none(size_bytes))]
    #[serde(deserialize_with = "given", skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<u64>)]
    pub bytes_per_second: Option<Change>,
    /// Seconds' worth of these that pass at once after a pause [default: 0.1]
    #[arg(long = "burst", value_name = "SECONDS", value_parser = burst)]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub burst_ms: Option<u64>,
    /// Share of the cache on the local disk at most, as 20%, counted by what the volume wrote; or none
    #[arg(long, value_name = "PERCENT", value_parser = or_none(percent))]
    #[serde(deserialize_with = "given", skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<u64>)]
    pub cache_share: Option<Change>,
    /// Take every limit away
    #[arg(long)]
    #[arg(conflicts_with_all = ["iops", "bytes_per_second", "burst_ms", "cache_share"])]
    #[serde(skip)]
    pub none: bool,
}

/// Another limit, or none any more.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Change(pub Option<u64>);

/// What is not there is not changed; `null` takes a limit away.
fn given<'de, D: Deserializer<'de>>(value: D) -> Result<Option<Change>, D::Error> {
    Change::deserialize(value).map(Some)
}

/// A value, or "none".
fn or_none(
    value: fn(&str) -> Result<u64, String>,
) -> impl Fn(&str) -> Result<Change, String> + Clone + Send + Sync {
    move |text| match text {
        "none" => Ok(Change(None)),
        text => value(text).map(|value| Change(Some(value))),
    }
}

impl LimitVolume {
    /// What counts from now on, where `now` counted until now.
    fn changed(&self, now: LimitSettings) -> Result<LimitSettings, NodeError> {
        let or_now = |change: Option<Change>, now: Option<NonZeroU64>| {
            change.map_or(now.map(NonZeroU64::get), |Change(limit)| limit)
        };
        let iops = or_now(self.iops, now.iops);
        let bytes = or_now(self.bytes_per_second, now.bytes_per_second);
        let is_limited = iops.is_some() || bytes.is_some();
        if self.burst_ms.is_some() && !is_limited {
            let message = "a burst is one of a limit: give operations or bytes per second as well";
            return Err(DeviceError::new(ErrorKind::Invalid, message).into());
        }
        let burst = self.burst_ms.map(Duration::from_millis);
        let burst = burst.or_else(|| is_limited.then_some(now.burst));
        Ok(LimitSettings::checked(iops, bytes, burst)?)
    }

    fn check(&self) -> Result<(), NodeError> {
        match self.cache_share {
            Some(Change(Some(percent))) if !(1..=100).contains(&percent) => {
                let message = "a share of the cache is 1 to 100 percent";
                Err(DeviceError::new(ErrorKind::Invalid, message).into())
            }
            _ => Ok(()),
        }
    }
}

impl Verb for LimitVolume {
    type Report = VolumeLimit;
    const ROUTE: Option<Route> = Some(Route {
        method: Method::PATCH,
        path: "/v1/volumes/{name}/limit",
        id: "limit_volume",
        answer: Answer::Report(200),
    });
    const BY: By = By::Holder;

    fn is_local(&self) -> bool {
        true
    }

    async fn on_served(self, volume: Served, _: OnProgress<'_>) -> Result<VolumeLimit, NodeError> {
        self.check()?;
        let stack = &volume.hosted.stack;
        let settings = self.changed(stack.limit())?;
        if matches!(self.cache_share, Some(Change(Some(_)))) {
            volume.log("nothing of it is cached")?;
        }
        stack.set_limit(settings);
        let id = volume.hosted.id;
        let mut cache_share = None;
        if let Some(Serving(core)) = &volume.place.serving {
            if let Some(Change(share)) = self.cache_share {
                core.cache.limit_share(id, share);
            }
            cache_share = core.cache.share_of(id);
        }
        let limit = VolumeLimit { cache_share, ..VolumeLimit::from(stack.limit()) };
        volume.place.note(EventKind::VolumeLimited, limit.to_string());
        Ok(limit)
    }

    async fn on_store(self, place: Place, _: OnProgress<'_>) -> Result<VolumeLimit, NodeError> {
        self.check()?;
        Err(NodeError::NotServedHere { name: place.name()?.to_string() })
    }
}

impl Command for LimitVolume {
    type Verb = Self;
    const WORDS: [&'static str; 2] = ["volume", "limit"];
    const SUBJECT: Subject = Subject::Volume;

    fn verb(self, _snapshot: Option<VolumeName>) -> Self {
        let none = Some(Change(None));
        match self.none {
            true => Self { iops: none, bytes_per_second: none, cache_share: none, ..self },
            false => self,
        }
    }

    fn tell(name: &str, _verb: &Self, report: &VolumeLimit) -> Told {
        Told::note(format!("volume {name}: {report}"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_not_given_stays_as_it_is() {
        let limit = |json: &str| serde_json::from_str::<LimitVolume>(json).unwrap();
        let now = LimitSettings::checked(Some(500), Some(9), Some(Duration::from_secs(2))).unwrap();
        let share = limit(r#"{"cache_share": 20}"#);
        assert_eq!(share.cache_share, Some(Change(Some(20))));
        assert_eq!(share.changed(now).unwrap(), now);
        let bytes = limit(r#"{"bytes_per_second": 7}"#).changed(now).unwrap();
        assert_eq!(VolumeLimit::from(bytes).bytes_per_second, Some(7));
        assert_eq!((bytes.iops, bytes.burst), (now.iops, now.burst));
        let without = limit(r#"{"iops": null}"#).changed(now).unwrap();
        assert_eq!((without.iops, without.bytes_per_second), (None, now.bytes_per_second));
        let longer = limit(r#"{"burst_ms": 3000}"#);
        assert_eq!(longer.changed(now).unwrap().burst, Duration::from_secs(3));
        assert!(longer.changed(LimitSettings::default()).is_err(), "there is nothing to burst");
        let none = LimitVolume { none: true, ..LimitVolume::default() }.verb(None);
        assert_eq!(none.changed(now).unwrap(), LimitSettings::default());
        assert_eq!(none.cache_share, Some(Change(None)));
        let sent = serde_json::to_string(&none).unwrap();
        assert_eq!(sent, r#"{"iops":null,"bytes_per_second":null,"cache_share":null}"#);
        assert_eq!(limit(&sent), LimitVolume { none: false, ..none });
    }
}
