//! The verbs on the cache of a process: `weir cache show` and `weir cache resize`.

use axum::http::Method;
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;
use weir_device::{DeviceError, ErrorKind};
use weir_log::catalog::VolumeName;

use super::place::{Place, Serving};
use super::verb::{Answer, By, OnProgress, Route, Verb};
use crate::api::types::{CacheResized, CacheShown};
use crate::cache_error::CacheCommandError;
use crate::error::NodeError;
use crate::serve::cache_setting::CacheSetting;
use crate::serve::events::EventKind;
use crate::status;

/// How the cache on the local disk is, and what the volumes have of it
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields, default)]
pub struct ShowCache {}

impl Verb for ShowCache {
    type Report = CacheShown;
    const ROUTE: Option<Route> = Some(Route {
        method: Method::GET,
        path: "/v1/cache",
        id: "show_cache",
        answer: Answer::Report(200),
    });
    const BY: By = By::Server;

    async fn on_store(self, place: Place, _: OnProgress<'_>) -> Result<CacheShown, NodeError> {
        let Serving(core) = serving(&place)?;
        Ok(status::cache::shown(core).await)
    }
}

/// Gives the cache on the local disk another size, at once. It begins empty: where a block lies depends on the size
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct ResizeCache {
    /// The size, as `20G`; `auto` for the default of now; `off` to close it, with what is in its file
    pub size: String,
}

impl ResizeCache {
    fn setting(&self) -> Result<CacheSetting, NodeError> {
        let wrong = |message: String| DeviceError::new(ErrorKind::Invalid, message);
        Ok(self.size.parse().map_err(wrong)?)
    }
}

impl Verb for ResizeCache {
    type Report = CacheResized;
    const ROUTE: Option<Route> = Some(Route {
        method: Method::PUT,
        path: "/v1/cache",
        id: "resize_cache",
        answer: Answer::Lines,
    });
    const BY: By = By::Server;

    fn admit(&self, by: &Serving, _name: Option<&VolumeName>) -> Result<(), NodeError> {
        self.setting()?;
        if by.0.store.is_none() {
            let why = "this process serves no volume of a store".to_owned();
            return Err(CacheCommandError::None { why }.into());
        }
        Ok(())
    }

    async fn on_store(self, place: Place, _: OnProgress<'_>) -> Result<CacheResized, NodeError> {
        let Serving(core) = serving(&place)?;
        let setting = self.setting()?;
        let home = (&core.home, core.store_shares_disk);
        let is_wanted = || place.is_wanted();
        let next_start = core.cache.resize(&core.node, setting, home, &is_wanted).await?;
        core.events.note(EventKind::CacheResized, None, setting.to_string());
        Ok(CacheResized { cache: core.cache.report(), next_start })
    }
}

fn serving(place: &Place) -> Result<&Serving, NodeError> {
    let data_dir = || place.home.data.path().display().to_string();
    place.serving.as_ref().ok_or_else(|| NodeError::NothingServed { data_dir: data_dir() })
}
