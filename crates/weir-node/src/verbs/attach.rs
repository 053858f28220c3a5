//! `weir volume attach`.

use axum::http::Method;
use clap::Args;
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;
use weir_log::catalog::VolumeName;

use super::command::{Command, Subject, Told};
use super::place::{Place, Serving};
use super::show;
use super::verb::{Answer, By, OnProgress, Route, Verb};
use super::words::size_bytes;
use crate::api::types::Shown;
use crate::error::NodeError;
use crate::serve::attach;
use crate::serve::spec::VolumeSpec;

/// Serve a volume from now on, by the `weir serve` that runs in this data directory, until it is detached or the
/// process ends. Returns once clients can connect
#[derive(Args, Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields, default)]
pub struct AttachVolume {
    /// Create it with this size if it is missing, as 10G
    #[arg(long = "size", value_name = "SIZE", value_parser = size_bytes)]
    pub size_bytes: Option<u64>,
    /// Refuse writes of clients
    #[arg(long)]
    pub read_only: bool,
    /// Take it from a node that did not close it and whose lease ran out, without what only that node has
    #[arg(long)]
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

impl Place {
    /// Has the volume served, by this process or by the one that serves this data directory.
    pub(crate) async fn attach(&self, asked: AttachVolume) -> Result<(), NodeError> {
        let name = self.name()?;
        let Some(Serving(core)) = &self.serving else {
            let mut client = self.home.serving_client().await?;
            return client.call(Some(&name), &asked, &|_, _| {}).await.map(drop);
        };
        let as_asked = |spec: &mut VolumeSpec| {
            spec.read_only |= asked.read_only;
            spec.consent.take_over |= asked.take_over;
            if asked.size_bytes.is_some() {
                (spec.size, spec.size_must_match) = (asked.size_bytes, true);
            }
        };
        attach::attach(core, &name, as_asked).await
    }

    /// Has a volume served again that was detached for a verb that failed.
    pub(crate) async fn serve_again(&self, as_before: AttachVolume) {
        let Err(error) = self.attach(as_before).await else { return };
        let volume = self.name().map_or_else(|_| String::new(), |name| name.to_string());
        let way_out = format!("weir volume attach {volume} serves it");
        tracing::error!(volume, %error, way_out, "a volume is not served any more");
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
        show::tell_shown(shown)
    }
}
