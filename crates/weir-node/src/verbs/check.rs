//! A check of a volume.

use std::fmt;
use std::sync::Arc;

use axum::http::Method;
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;
use weir_log::{CheckOptions, CheckStep, ObjectId};
use weir_store::Access;

use super::place::Place;
use super::verb::{Answer, By, OnProgress, Route, Verb};
use crate::api::types::CheckReport;
use crate::error::NodeError;

/// Who hears of each object that was found whole.
#[derive(Clone, Default)]
pub struct OnWhole(pub Option<Arc<dyn Fn(ObjectId) + Send + Sync>>);

impl fmt::Debug for OnWhole {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "OnWhole({})", self.0.is_some())
    }
}

/// Read everything a volume has in the store, and report what is damaged or missing
#[derive(Clone, Debug, Default, Serialize, Deserialize, ToSchema)]
#[serde(default)]
pub struct CheckVolume {
    /// How it goes about it.
    #[serde(skip)]
    pub options: CheckOptions,
    /// Who hears of what is whole.
    #[serde(skip)]
    pub on_whole: OnWhole,
}

impl Verb for CheckVolume {
    type Report = CheckReport;
    const ROUTE: Option<Route> = Some(Route {
        method: Method::POST,
        path: "/v1/volumes/{name}/check",
        id: "check_volume",
        answer: Answer::Lines,
    });
    // Decoding a large map takes its time.
    const BY: By = By::Aside;

    async fn on_store(
        self,
        place: Place,
        on_progress: OnProgress<'_>,
    ) -> Result<CheckReport, NodeError> {
        let (store, id) = place.find(Access::Read).await?;
        let (env, keys) = (&place.context.env, &place.home.keys);
        let on_step = |step: CheckStep| {
            on_progress(step.done, step.total);
            if let (Some(on_whole), Some(whole)) = (&self.on_whole.0, step.whole) {
                on_whole(whole);
            }
        };
        let checked = weir_log::check(&store, env, (id, keys), &self.options, on_step);
        Ok(checked.await?.into())
    }
}
