//! `weir volume warm`.

use std::rc::Rc;

use axum::http::Method;
use clap::Args;
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;
use weir_device::{ByteRange, DeviceError, DeviceExt, ErrorKind};
use weir_log::catalog::VolumeName;
use weir_log::{SnapshotView, VolumeOptions};
use weir_store::Access;

use super::command::{Bar, Command, Subject, Told};
use super::place::{Place, Served, Serving};
use super::verb::{Answer, By, OnProgress, Route, Verb};
use super::words::byte_span;
use crate::api::types::{CacheReport, WarmReport};
use crate::error::NodeError;
use crate::size::{counted, human};

/// Bring what a served volume, or a snapshot of it, has in the store to the cache on the local disk
#[derive(Args, Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields, default)]
pub struct WarmVolume {
    /// The snapshot that is meant; the volume itself if none is given
    #[arg(skip)]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub snapshot: Option<String>,
    /// Only these bytes of the volume, as 0..20G or 1T.. [default: all]
    #[arg(long, value_name = "FROM..TO")]
    #[arg(value_parser = byte_span)]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub range: Option<ByteSpan>,
}

/// Bytes of a volume.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields, default)]
pub struct ByteSpan {
    /// The first one
    pub from: u64,
    /// The one behind the last; the end of the volume if none is given
    #[serde(skip_serializing_if = "Option::is_none")]
    pub to: Option<u64>,
}

impl ByteSpan {
    fn within(self, size: u64) -> ByteRange {
        // What is wrong with it, the volume says.
        ByteRange { start: self.from, end: self.to.unwrap_or(size) }
    }
}

impl WarmVolume {
    fn snapshot(&self) -> Result<Option<VolumeName>, NodeError> {
        let name = self.snapshot.as_deref().map(VolumeName::new).transpose();
        name.map_err(|error| NodeError::SnapshotName(error.into()))
    }

    /// The snapshot, open for this alone.
    async fn view(&self, place: &Place) -> Result<Option<Rc<SnapshotView>>, NodeError> {
        let Some(snapshot) = self.snapshot()? else { return Ok(None) };
        let (store, id) = place.find(Access::Read).await?;
        let (context, volume) = (&place.context, (id, &place.home.keys));
        let (blocks, deadline) = (context.blocks.clone(), VolumeOptions::default().read_deadline);
        let view = SnapshotView::open(&store, &context.env, volume, &snapshot, blocks, deadline);
        Ok(Some(view.await?))
    }
}

/// Refuses where this process has no cache: the way out depends on why.
fn check_cache(by: Option<&Serving>) -> Result<(), NodeError> {
    let report = by.map(|Serving(core)| core.cache.report()).unwrap_or_default();
    match report {
        CacheReport { changing: Some(doing), .. } => {
            let message =
                format!("the cache on the local disk {doing}: try again once that is done");
            Err(DeviceError::new(ErrorKind::Busy, message).into())
        }
        // One that failed is said by the volume.
        CacheReport { none_because: Some(why), failed: false, .. } => {
            let message = format!(
                "this process has no cache on its local disk, because {why}; where no other process of the data \
                 directory has one, `weir cache resize SIZE` gives it one now, and --cache SIZE or `cache` in the \
                 configuration at the next start"
            );
            Err(DeviceError::new(ErrorKind::Unsupported, message).into())
        }
        _ => Ok(()),
    }
}

/// The work goes on when its command is interrupted, and must not be begun again each time.
fn is_warming() -> NodeError {
    let message = "this process warms a volume already, whose command may have been interrupted: try again later";
    DeviceError::new(ErrorKind::Busy, message).into()
}

impl Verb for WarmVolume {
    type Report = WarmReport;
    const ROUTE: Option<Route> = Some(Route {
        method: Method::POST,
        path: "/v1/volumes/{name}/warm",
        id: "warm_volume",
        answer: Answer::Lines,
    });
    const BY: By = By::Holder;

    fn admit(&self, _by: &Serving, _name: Option<&VolumeName>) -> Result<(), NodeError> {
        self.snapshot().map(drop)
    }

    async fn on_served(
        self,
        volume: Served,
        on_progress: OnProgress<'_>,
    ) -> Result<WarmReport, NodeError> {
        let stack = volume.log("has no objects")?;
        check_cache(volume.place.serving.as_ref())?;
        let serving = volume.place.serving.clone();
        let turn = serving.as_ref().map(|Serving(core)| core.cache.warming.try_lock());
        let _turn = turn.transpose().map_err(|_| is_warming())?;
        let view = self.view(&volume.place).await?;
        let size = view.as_ref().map_or_else(|| stack.size(), |view| view.size());
        let range = self.range.unwrap_or_default().within(size);
        Ok(stack.warm(view.as_deref(), range, on_progress).await?.into())
    }

    async fn on_store(self, place: Place, _: OnProgress<'_>) -> Result<WarmReport, NodeError> {
        // The cache is of a process: one that ends at once leaves nothing warm that the next one could not read itself.
        Err(NodeError::NotServedHere { name: place.name()?.to_string() })
    }
}

impl Command for WarmVolume {
    type Verb = Self;
    const WORDS: [&'static str; 2] = ["volume", "warm"];
    const SUBJECT: Subject = Subject::VolumeOrSnapshot;
    const BAR: Option<Bar> = Some(Bar { doing: "warming", shows: "{bytes} of {total_bytes}" });

    fn verb(self, snapshot: Option<VolumeName>) -> Self {
        Self { snapshot: snapshot.map(|name| name.to_string()), ..self }
    }

    fn tell(name: &str, verb: &Self, report: &WarmReport) -> Told {
        let of = verb.snapshot.as_ref().map_or_else(String::new, |name| format!("@{name}"));
        let [warmed, there] = [report.warmed_bytes, report.there_bytes].map(human);
        let mut text = format!("{name}{of}: {warmed} warmed, {there} were there already");
        if report.journal_bytes > 0 {
            let journal = human(report.journal_bytes);
            text.push_str(&format!(
                ", {journal} are read from the journal, as long as that has them"
            ));
        }
        let [objects, requests] = [(report.objects, "object"), (report.requests, "request")]
            .map(|(n, one)| counted(n, one));
        text.push_str(&format!("; {objects} read in {requests}\n"));
        Told::text(text).but(report.obstacle.as_ref())
    }
}
