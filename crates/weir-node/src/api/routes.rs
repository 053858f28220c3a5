//! The routes of the API, and the document that describes them.

use std::sync::Arc;

use axum::extract::rejection::{JsonRejection, QueryRejection};
use axum::extract::{Query, State};
use axum::http::{StatusCode, header};
use axum::response::{IntoResponse, Response};
use axum::{Json, Router};
use serde::Deserialize;
use utoipa::{IntoParams, OpenApi};
use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;
use weir_device::ErrorKind;

use crate::api::meant;
use crate::api::named::Named;
use crate::api::refusal::Refusal;
use crate::api::types::{ErrorBody, Limits, NodeStatus};
use crate::serve::core::Core;
use crate::serve::events::{Event, EventKind};
use crate::status::{self, metrics};
use crate::verbs::route::add_verbs;

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
    let of_node = OpenApiRouter::with_openapi(Document::openapi())
        .routes(routes!(node_status))
        .routes(routes!(events))
        .routes(routes!(limits, set_limits))
        .routes(routes!(cache_map))
        .routes(routes!(metrics_text));
    add_verbs(of_node)
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

async fn no_route() -> Refusal {
    let message = "there is no such route; GET /v1/openapi.json describes them all";
    Refusal::new(StatusCode::NOT_FOUND, ErrorKind::NotFound, message)
}

async fn no_method() -> Refusal {
    let message = "this route takes other methods; GET /v1/openapi.json describes them all";
    Refusal::new(StatusCode::METHOD_NOT_ALLOWED, ErrorKind::Invalid, message)
}

type Answer<T> = Result<T, Refusal>;
type Body<T> = Result<Json<T>, JsonRejection>;

/// How the process is: what it serves, what is wrong, and what would be lost if the host died now.
#[utoipa::path(get, path = "/v1/node", tag = "node", responses((status = 200, body = NodeStatus)))]
async fn node_status(State(core): State<Arc<Core>>) -> Json<NodeStatus> {
    Json(status::of_node(&core).await)
}

#[derive(Debug, Deserialize, IntoParams)]
#[into_params(parameter_in = Query)]
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

/// Limits on uploads, and whether work in the background yields to clients.
#[utoipa::path(get, path = "/v1/limits", tag = "node", responses((status = 200, body = Limits)))]
async fn limits(State(core): State<Arc<Core>>) -> Json<Limits> {
    Json(core.limits())
}

/// Sets the limits on uploads, and whether work in the background yields to clients: at once, until the process ends.
#[utoipa::path(put, path = "/v1/limits", tag = "node", request_body = Limits,
    responses((status = 200, body = Limits), (status = 400, body = ErrorBody),
        (status = 422, body = ErrorBody)))]
async fn set_limits(
    State(core): State<Arc<Core>>,
    body: Body<Named<Limits>>,
) -> Answer<Json<Limits>> {
    let Json(Named(limits)) = body?;
    core.set_limits(limits)?;
    core.events.note(EventKind::LimitsChanged, None, limits.to_string());
    Ok(Json(core.limits()))
}

/// A picture of the cache on the local disk: a pixel for each band, in the colour of the volume that wrote it; black
/// where there is none. Of a cache with more than 4096 columns every so many are shown.
#[utoipa::path(get, path = "/v1/cache/map", tag = "node",
    responses((status = 200, body = Vec<u8>, content_type = "image/png"),
        (status = 404, body = ErrorBody)))]
async fn cache_map(State(core): State<Arc<Core>>) -> Answer<Response> {
    let Some(cache) = core.cache.get() else {
        let why = core.cache.report().none_because.unwrap_or_default();
        let message = format!("there is no cache: {why}");
        return Err(Refusal::new(StatusCode::NOT_FOUND, ErrorKind::NotFound, message));
    };
    let picture = status::cache::picture(&cache);
    Ok(([(header::CONTENT_TYPE, "image/png")], picture).into_response())
}

/// Metrics as Prometheus reads them.
#[utoipa::path(get, path = "/metrics", tag = "node",
    responses((status = 200, body = String, content_type = "application/openmetrics-text")))]
async fn metrics_text(State(core): State<Arc<Core>>) -> Response {
    const TYPE: &str = "application/openmetrics-text; version=1.0.0; charset=utf-8";
    ([(header::CONTENT_TYPE, TYPE)], metrics::render(&core).await).into_response()
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
