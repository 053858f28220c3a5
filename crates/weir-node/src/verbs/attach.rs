//! `weir volume attach`.

use axum::http::Method;
use clap::Args;
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;
use weir_log::catalog::VolumeName;

use super::words::size_bytes;
use super::{Answer, By, Command, OnProgress, Place, Route, Serving, Subject, Told, Verb, show};
use crate::api::types::Shown;
use crate::error::NodeError;

/// Serve a volume from now on, by the `weir serve` that runs in this data directory, until it is detached or the
/// process ends. Returns once clients can connect
#[derive(Args, Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields, default)]
pub struct AttachVolume {
    /// Create it with this size if it is missing, as 10G
    #[arg(long = "size", value_name = "SIZE", env = "WEIR_SIZE", value_parser = size_bytes)]
    #[arg(hide_env_values = true)]
    pub size_bytes: Option<u64>,
    /// Refuse writes of clients
    #[arg(long, env = "WEIR_READ_ONLY", hide_env_values = true)]
    pub read_only: bool,
    /// Take it from a node that did not close it and whose lease ran out, without what only that node has
    #[arg(long, env = "WEIR_TAKE_OVER", hide_env_values = true)]
    pub take_over: bool,
}

impl Verb for AttachVolume {
    type Report = Shown;
    const ROUTE: Option<Route> = Some(Route {
        method: Method::POST,
        path: "/v1/volumes/{name}/attach",
        id: "attach_volume",
        answer: Answer::Lines,
    });
    const BY: By = By::Server;

    fn admit(&self, by: &Serving, _name: Option<&VolumeName>) -> Result<(), NodeError> {
        by.refuse_if_single()
    }

    async fn on_store(self, place: Place, _: OnProgress<'_>) -> Result<Shown, NodeError> {
        place.attach(self).await?;
        place.show().await
    }
}

impl Command for AttachVolume {
    type Verb = Self;
    const WORDS: [&'static str; 2] = ["volume", "attach"];
    const SUBJECT: Subject = Subject::Volume;

    fn verb(self, _snapshot: Option<VolumeName>) -> Self {
        self
    }

    fn tell(_name: &str, _verb: &Self, shown: &Shown) -> Told {
        show::tell(shown)
    }
}
