//! The routes of the API, and the document that describes them.

use std::rc::Rc;
use std::sync::Arc;

use axum::extract::rejection::{JsonRejection, QueryRejection};
use axum::extract::{Path, Query, State};
use axum::http::{StatusCode, header};
use axum::response::{IntoResponse, Response};
use axum::{Json, Router};
use serde::Deserialize;
use tokio::sync::{oneshot, watch};
use utoipa::{IntoParams, OpenApi};
use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;
use weir_device::ErrorKind;
use weir_log::catalog::VolumeName;
use weir_log::{CheckOptions, CheckStep};

use crate::api::attach::{
    __path_attach_volume, __path_detach_volume, attach_volume, detach_volume,
};
use crate::api::clones::{
    __path_clone_volume, __path_flatten_volume, clone_volume, flatten_volume,
};
use crate::api::progress::{self, Outcome, Reporter};
use crate::api::repair::{__path_repair_volume, repair_volume};
use crate::api::snapshots::{
    __path_change_snapshots, __path_list_snapshots, __path_snapshot_space, change_snapshots,
    list_snapshots, snapshot_space,
};
use crate::api::types::{
    CompactVolume, CreateVolume, ErrorBody, FlushVolume, Limits, Listed, NodeStatus, Problem,
    Progress, ResizeVolume, SetTakeover, Shown,
};
use crate::api::{meant, metrics, types};
use crate::error::NodeError;
use crate::events::Event;
use crate::host::Hosted;
use crate::service::{Core, Entry};
use crate::shard::ShardContext;
use crate::{attach, deletion, status, volumes};

#[derive(OpenApi)]
#[openapi(
    info(
        title = "Weir",
        description = "The API of a process that serves volumes. On the unix socket `api.sock` in its data directory, \
                       and over TCP where that is configured, with a token."
    ),
    tags(
        (name = "node", description = "The process"),
        (name = "volumes", description = "Volumes of the store, served or not")
    )
)]
struct Document;

fn described() -> OpenApiRouter<Arc<Core>> {
    OpenApiRouter::with_openapi(Document::openapi())
        .routes(routes!(node_status))
        .routes(routes!(events))
        .routes(routes!(limits, set_limits))
        .routes(routes!(metrics_text))
        .routes(routes!(list_volumes, create_volume))
        .routes(routes!(show_volume, delete_volume))
        .routes(routes!(attach_volume))
        .routes(routes!(detach_volume))
        .routes(routes!(flush_volume))
        .routes(routes!(resize_volume))
        .routes(routes!(compact_volume))
        .routes(routes!(clone_volume))
        .routes(routes!(flatten_volume))
        .routes(routes!(set_takeover))
        .routes(routes!(check_volume))
        .routes(routes!(repair_volume))
        .routes(routes!(list_snapshots, change_snapshots))
        .routes(routes!(snapshot_space))
}

/// The API of one process.
pub(crate) fn router(core: Arc<Core>) -> Router {
    let (router, document) = described().split_for_parts();
    let document = document.to_pretty_json().expect("the document has only string keys");
    let json = [(header::CONTENT_TYPE, "application/json")];
    router
        .route("/v1/openapi.json", axum::routing::get(move || async move { (json, document) }))
        .fallback(no_route)
        .method_not_allowed_fallback(no_method)
        .layer(axum::middleware::from_fn_with_state(Arc::clone(&core), meant::check))
        .with_state(core)
}

/// The description of the API as it is committed in `docs/api/openapi.json`.
#[must_use]
pub fn openapi_json() -> String {
    let document = described().split_for_parts().1;
    let mut text = document.to_pretty_json().expect("the document has only string keys");
    text.push('\n');
    text
}

/// An answer that is no success.
#[derive(Debug)]
pub(crate) struct Refusal {
    status: StatusCode,
    problem: Problem,
}

impl Refusal {
    pub(crate) fn new(status: StatusCode, kind: ErrorKind, message: impl Into<String>) -> Self {
        let kind = format!("{kind:?}");
        Self { status, problem: Problem { kind, message: message.into(), help: None } }
    }
}

impl From<&NodeError> for Problem {
    fn from(error: &NodeError) -> Self {
        let kind = format!("{:?}", error.kind());
        Self { kind, message: error.to_string(), help: error.help() }
    }
}

impl From<NodeError> for Refusal {
    fn from(error: NodeError) -> Self {
        let status = match error.kind() {
            ErrorKind::Invalid => StatusCode::BAD_REQUEST,
            ErrorKind::NotFound => StatusCode::NOT_FOUND,
            ErrorKind::Exists | ErrorKind::Busy | ErrorKind::Fenced | ErrorKind::ReadOnly => {
                StatusCode::CONFLICT
            }
            ErrorKind::Unsupported => StatusCode::UNPROCESSABLE_ENTITY,
            ErrorKind::NoSpace => StatusCode::INSUFFICIENT_STORAGE,
            ErrorKind::Retry | ErrorKind::Unavailable => StatusCode::SERVICE_UNAVAILABLE,
            ErrorKind::Corrupt | ErrorKind::Poisoned | ErrorKind::Bug => {
                StatusCode::INTERNAL_SERVER_ERROR
            }
        };
        Self { status, problem: Problem::from(&error) }
    }
}

impl From<JsonRejection> for Refusal {
    fn from(rejection: JsonRejection) -> Self {
        Self::new(rejection.status(), ErrorKind::Invalid, rejection.body_text())
    }
}

impl From<QueryRejection> for Refusal {
    fn from(rejection: QueryRejection) -> Self {
        Self::new(rejection.status(), ErrorKind::Invalid, rejection.body_text())
    }
}

impl IntoResponse for Refusal {
    fn into_response(self) -> Response {
        (self.status, Json(ErrorBody { error: self.problem })).into_response()
    }
}

async fn no_route() -> Refusal {
    let message = "there is no such route; GET /v1/openapi.json describes them all";
    Refusal::new(StatusCode::NOT_FOUND, ErrorKind::NotFound, message)
}

async fn no_method() -> Refusal {
    let message = "this route takes other methods; GET /v1/openapi.json describes them all";
    Refusal::new(StatusCode::METHOD_NOT_ALLOWED, ErrorKind::Invalid, message)
}

pub(super) type Answer<T> = Result<T, Refusal>;
pub(super) type Here = Rc<ShardContext>;
pub(super) type Body<T> = Result<Json<T>, JsonRejection>;

pub(super) fn volume_name(name: &str) -> Answer<VolumeName> {
    VolumeName::new(name).map_err(|error| NodeError::from(error).into())
}

/// How the process is: what it serves, what is wrong, and what would be lost if the host died now.
#[utoipa::path(get, path = "/v1/node", tag = "node", responses((status = 200, body = NodeStatus)))]
async fn node_status(State(core): State<Arc<Core>>) -> Json<NodeStatus> {
    Json(status::of_node(&core).await)
}

#[derive(Debug, Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
struct EventsQuery {
    /// Only events with a higher number.
    #[serde(default)]
    after: u64,
}

/// What happened, oldest first: the newest 1024 events of this process.
#[utoipa::path(get, path = "/v1/events", tag = "node", params(EventsQuery),
    responses((status = 200, body = Vec<Event>), (status = 400, body = ErrorBody)))]
async fn events(
    State(core): State<Arc<Core>>,
    query: Result<Query<EventsQuery>, QueryRejection>,
) -> Answer<Json<Vec<Event>>> {
    Ok(Json(core.events.after(query?.after)))
}

/// Limits on uploads.
#[utoipa::path(get, path = "/v1/limits", tag = "node", responses((status = 200, body = Limits)))]
async fn limits(State(core): State<Arc<Core>>) -> Json<Limits> {
    Json(core.limits())
}

/// Sets the limits on uploads, at once and until the process ends.
#[utoipa::path(put, path = "/v1/limits", tag = "node", request_body = Limits,
    responses((status = 200, body = Limits), (status = 400, body = ErrorBody),
        (status = 422, body = ErrorBody)))]
async fn set_limits(State(core): State<Arc<Core>>, body: Body<Limits>) -> Answer<Json<Limits>> {
    let Json(limits) = body?;
    core.set_limits(limits)?;
    core.events.note("limits_changed", None, format!("{limits:?}"));
    Ok(Json(core.limits()))
}

/// Metrics as Prometheus reads them.
#[utoipa::path(get, path = "/metrics", tag = "node",
    responses((status = 200, body = String, content_type = "application/openmetrics-text")))]
async fn metrics_text(State(core): State<Arc<Core>>) -> Response {
    const TYPE: &str = "application/openmetrics-text; version=1.0.0; charset=utf-8";
    ([(header::CONTENT_TYPE, TYPE)], metrics::render(&core).await).into_response()
}

/// All volumes of the store.
#[utoipa::path(get, path = "/v1/volumes", tag = "volumes",
    responses((status = 200, body = Vec<Listed>), (status = 503, body = ErrorBody)))]
async fn list_volumes(State(core): State<Arc<Core>>) -> Answer<Json<Vec<Listed>>> {
    let home = core.home.clone();
    let list = |context: Here| async move { volumes::list(&context, &home).await };
    Ok(Json(core.node.run(0, list).await??))
}

/// Creates a volume. A process that serves all volumes of its store serves it at once; attach it otherwise.
#[utoipa::path(post, path = "/v1/volumes", tag = "volumes", request_body = CreateVolume,
    responses((status = 201, body = Shown), (status = 400, body = ErrorBody),
        (status = 409, body = ErrorBody), (status = 503, body = ErrorBody)))]
async fn create_volume(
    State(core): State<Arc<Core>>,
    body: Body<CreateVolume>,
) -> Answer<(StatusCode, Json<Shown>)> {
    let Json(CreateVolume { name, size_bytes, takeover }) = body?;
    let name = volume_name(&name)?;
    let (home, created) = (core.home.clone(), name.clone());
    let create = move |context: Here| async move {
        volumes::create(&context, &home, &created, size_bytes, takeover.into()).await
    };
    let shown = core.node.run(0, create).await??;
    core.events.note("volume_created", Some(name.as_str()), format!("{size_bytes} bytes"));
    if core.serves_all() {
        attach::attach(&core, core.spec_of(&name)).await?;
    }
    Ok((StatusCode::CREATED, Json(shown)))
}

/// One volume.
#[utoipa::path(get, path = "/v1/volumes/{name}", tag = "volumes", params(("name" = String, Path)),
    responses((status = 200, body = Shown), (status = 404, body = ErrorBody)))]
async fn show_volume(
    State(core): State<Arc<Core>>,
    Path(name): Path<String>,
) -> Answer<Json<Shown>> {
    let name = volume_name(&name)?;
    let home = core.home.clone();
    let show = |context: Here| async move { volumes::show(&context, &home, &name).await };
    Ok(Json(core.node.run(0, show).await??))
}

#[derive(Debug, Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
struct DeleteQuery {
    /// Delete it although a node did not close it.
    #[serde(default)]
    take_over: bool,
    /// Give up what a journal on the node holds and the volume went on without.
    #[serde(default)]
    discard_journal: bool,
    /// Detach it first if it is served here, unless it has clients.
    #[serde(default)]
    detach: bool,
}

/// Begins work that reports how far it is, and the answer that reports it.
pub(super) fn begin() -> (Reporter, oneshot::Sender<Outcome>, Response) {
    let (reporter, reports) = watch::channel((0, 0));
    let (done, outcome) = oneshot::channel();
    (reporter, done, progress::answer(reports, outcome))
}

/// Deletes a volume with everything in it. One that is served here is refused, or detached first where that is asked
/// for.
#[utoipa::path(delete, path = "/v1/volumes/{name}", tag = "volumes",
    params(("name" = String, Path), DeleteQuery),
    responses((status = 200, body = Progress, content_type = "application/x-ndjson"),
        (status = 409, body = ErrorBody)))]
async fn delete_volume(
    State(core): State<Arc<Core>>,
    Path(name): Path<String>,
    query: Result<Query<DeleteQuery>, QueryRejection>,
) -> Answer<Response> {
    let (name, query) = (volume_name(&name)?, query?);
    let consent = (query.take_over, query.discard_journal);
    if (core.is_single || !query.detach)
        && let Some(entry) = core.entry(name.as_str())
    {
        return Err(served_here(&core, &entry).into());
    }
    if let Some(export) = core.views.open_of(name.as_str()).pop() {
        return Err(NodeError::SnapshotOpen { export }.into());
    }
    let (reporter, done, response) = begin();
    let home = core.home.clone();
    let events = Arc::clone(&core);
    core.node.submit(0, move |context| async move {
        let report = move |done, total| {
            reporter.send_replace((done, total));
        };
        let deleted = match attach::detach(&events, name.clone(), false).await {
            Ok(_) | Err(NodeError::NotServedHere { .. }) => {
                deletion::delete(&context, &home, &name, consent, report).await
            }
            Err(error) => Err(error),
        };
        if deleted.is_ok() {
            events.events.note("volume_deleted", Some(name.as_str()), "with everything in it");
        }
        // Whoever asked may be gone.
        let _ = done.send(deleted.map(|()| None));
    })?;
    Ok(response)
}

fn served_here(core: &Core, entry: &Entry) -> NodeError {
    NodeError::Served {
        name: entry.name.to_string(),
        process: crate::error::ProcessId(i32::try_from(std::process::id()).ok()),
        place: format!(" at {}", core.uri(entry.name.as_str())),
    }
}

/// Makes acknowledged writes of a served volume survive: power loss, or with `remote` the loss of the local disk.
#[utoipa::path(post, path = "/v1/volumes/{name}/flush", tag = "volumes",
    params(("name" = String, Path)), request_body = FlushVolume,
    responses((status = 200, body = Progress, content_type = "application/x-ndjson"),
        (status = 404, body = ErrorBody)))]
async fn flush_volume(
    State(core): State<Arc<Core>>,
    Path(name): Path<String>,
    body: Body<FlushVolume>,
) -> Answer<Response> {
    let Json(FlushVolume { remote, wait }) = body?;
    let entry = find(&core, &name)?;
    let (reporter, done, response) = begin();
    let mut done = Some(done);
    if !wait && let Some(done) = done.take() {
        let _ = done.send(Ok(None));
    }
    tokio::spawn(async move {
        let flushed = status::on_volume(&core, &entry, move |hosted| async move {
            volumes::flush_reporting(&hosted, remote, &reporter).await
        });
        let flushed = flushed.await;
        match (done, flushed) {
            // Whoever asked may be gone.
            (Some(done), flushed) => drop(done.send(flushed.map(|()| None))),
            (None, Err(error)) => {
                tracing::error!(%error, remote, "a flush that nobody waits for failed");
            }
            (None, Ok(())) => {}
        }
    });
    Ok(response)
}

pub(super) fn find(core: &Core, name: &str) -> Answer<Arc<Entry>> {
    let name = volume_name(name)?;
    core.entry(name.as_str()).ok_or_else(|| {
        let message = format!("volume {name} is not served by this process");
        Refusal::new(StatusCode::NOT_FOUND, ErrorKind::NotFound, message)
    })
}

/// Grows a served volume without interrupting its clients, or shrinks one that has none. Waits for the store.
#[utoipa::path(post, path = "/v1/volumes/{name}/resize", tag = "volumes",
    params(("name" = String, Path)), request_body = ResizeVolume,
    responses((status = 200, body = Progress, content_type = "application/x-ndjson"),
        (status = 404, body = ErrorBody)))]
async fn resize_volume(
    State(core): State<Arc<Core>>,
    Path(name): Path<String>,
    body: Body<ResizeVolume>,
) -> Answer<Response> {
    let Json(asked) = body?;
    let entry = find(&core, &name)?;
    let (_reporter, done, response) = begin();
    tokio::spawn(async move {
        let resize =
            move |hosted: Rc<Hosted>| async move { volumes::resize_hosted(hosted, asked).await };
        let resized = status::on_volume(&core, &entry, resize).await;
        if let Ok(size_bytes) = resized {
            let message = format!("{size_bytes} bytes");
            core.events.note("volume_resized", Some(entry.name.as_str()), message);
        }
        // Whoever asked may be gone.
        let _ = done.send(resized.map(|_| None));
    });
    Ok(response)
}

/// Collects the objects of a served volume until a share of them lives, and waits until the rest is deleted.
#[utoipa::path(post, path = "/v1/volumes/{name}/compact", tag = "volumes",
    params(("name" = String, Path)), request_body = CompactVolume,
    responses((status = 200, body = Progress, content_type = "application/x-ndjson"),
        (status = 404, body = ErrorBody)))]
async fn compact_volume(
    State(core): State<Arc<Core>>,
    Path(name): Path<String>,
    body: Body<CompactVolume>,
) -> Answer<Response> {
    let Json(CompactVolume { percent }) = body?;
    let entry = find(&core, &name)?;
    let (reporter, done, response) = begin();
    tokio::spawn(async move {
        let compact = move |hosted: Rc<Hosted>| async move {
            let report = |done, total| {
                reporter.send_replace((done, total));
            };
            match hosted.log() {
                Some(volume) => Ok(volume.compact(percent, report).await?),
                None => Err(in_memory(&hosted, "has no objects")),
            }
        };
        let compacted = status::on_volume(&core, &entry, compact).await;
        // Whoever asked may be gone.
        let _ = done.send(compacted.map(|report| Some(types::Report::Compact(report.into()))));
    });
    Ok(response)
}

pub(super) fn in_memory(hosted: &Hosted, reason: &'static str) -> NodeError {
    NodeError::InMemory { name: hosted.name.to_string(), reason }
}

/// Sets what happens when the lease of the node that holds a volume runs out, without interrupting its clients. A
/// volume that is not served here must be closed. Waits for the lease and for the store.
#[utoipa::path(post, path = "/v1/volumes/{name}/takeover", tag = "volumes",
    params(("name" = String, Path)), request_body = SetTakeover,
    responses((status = 200, body = Progress, content_type = "application/x-ndjson"),
        (status = 400, body = ErrorBody)))]
async fn set_takeover(
    State(core): State<Arc<Core>>,
    Path(name): Path<String>,
    body: Body<SetTakeover>,
) -> Answer<Response> {
    let Json(SetTakeover { takeover }) = body?;
    let name = volume_name(&name)?;
    let (_reporter, done, response) = begin();
    tokio::spawn(async move {
        let set = match core.entry(name.as_str()) {
            Some(entry) => {
                let set = move |hosted: Rc<Hosted>| async move {
                    match hosted.log() {
                        Some(volume) => Ok(volume.set_takeover(takeover.into()).await?),
                        None => Err(in_memory(&hosted, "nobody takes it over")),
                    }
                };
                status::on_volume(&core, &entry, set).await
            }
            None => {
                let (home, name) = (core.home.clone(), name.clone());
                let set = move |context: Here| async move {
                    volumes::set_takeover(&context, &home, &name, takeover.into()).await
                };
                core.node.run(0, set).await.flatten()
            }
        };
        if set.is_ok() {
            core.events.note("takeover_changed", Some(name.as_str()), takeover.to_string());
        }
        // Whoever asked may be gone.
        let _ = done.send(set.map(|()| None));
    });
    Ok(response)
}

/// Reads everything a volume has in the store, and reports what is damaged or missing.
#[utoipa::path(post, path = "/v1/volumes/{name}/check", tag = "volumes",
    params(("name" = String, Path)),
    responses((status = 200, body = Progress, content_type = "application/x-ndjson"),
        (status = 404, body = ErrorBody)))]
async fn check_volume(State(core): State<Arc<Core>>, Path(name): Path<String>) -> Answer<Response> {
    let name = volume_name(&name)?;
    let (reporter, done, response) = begin();
    let home = core.home.clone();
    // Decoding a large map takes its time: on a thread of its own, away from clients.
    core.node.aside(move |context| async move {
        let report = move |step: CheckStep| {
            reporter.send_replace((step.done, step.total));
        };
        let options = CheckOptions::default();
        let checked = volumes::check(&context, &home, &name, &options, report).await;
        // Whoever asked may be gone.
        let _ = done.send(checked.map(|report| Some(types::Report::Check(report.into()))));
    })?;
    Ok(response)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// `WEIR_WRITE_OPENAPI=1 cargo test -p weir-node openapi` writes it anew.
    #[test]
    fn the_committed_openapi_document_is_current() {
        let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/api/openapi.json");
        if std::env::var_os("WEIR_WRITE_OPENAPI").is_some() {
            std::fs::write(path, openapi_json()).unwrap();
        }
        let committed = std::fs::read_to_string(path).unwrap_or_default();
        assert!(
            committed == openapi_json(),
            "docs/api/openapi.json is out of date: WEIR_WRITE_OPENAPI=1 cargo test -p weir-node openapi"
        );
    }
}
