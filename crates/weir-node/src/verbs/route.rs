//! The routes of the verbs, and what the OpenAPI document says of them.

use std::borrow::Cow;
use std::marker::PhantomData;
use std::rc::Rc;
use std::sync::Arc;

use axum::Json;
use axum::body::{Body, Bytes};
use axum::extract::{FromRequest, Query, RawPathParams, Request, State};
use axum::http::{Method, StatusCode};
use axum::response::{IntoResponse, Response};
use axum::routing::{MethodFilter, on};
use tokio::sync::{oneshot, watch};
use utoipa::openapi::path::{HttpMethod, OperationBuilder, ParameterBuilder, ParameterIn};
use utoipa::openapi::request_body::RequestBodyBuilder;
use utoipa::openapi::schema::Schema;
use utoipa::openapi::{Content, Ref, RefOr, Required, ResponseBuilder};
use utoipa::{PartialSchema, ToSchema};
use utoipa_axum::router::OpenApiRouter;
use weir_device::ErrorKind;
use weir_log::catalog::VolumeName;
use weir_store::Access;

use super::place::{Place, Served, Serving};
use super::verb::{Answer, By, Route, Verb};
use super::{EachVerb, each_verb};
use crate::api::named::Named;
use crate::api::progress;
use crate::api::refusal::{Refusal, volume_name};
use crate::api::server::BODY_BYTES_MAX;
use crate::api::types::{ErrorBody, Progress};
use crate::error::NodeError;
use crate::node::shard::ShardContext;
use crate::serve::core::{Core, Entry};

const JSON: &str = "application/json";
const LINES: &str = "application/x-ndjson";

/// Adds the routes of all verbs.
pub(crate) fn add_verbs(router: OpenApiRouter<Arc<Core>>) -> OpenApiRouter<Arc<Core>> {
    struct Router(OpenApiRouter<Arc<Core>>);
    impl EachVerb for Router {
        fn verb<V: Verb>(&mut self) {
            if let Some(route) = V::ROUTE {
                let router = std::mem::take(&mut self.0);
                let method = MethodFilter::try_from(route.method.clone());
                let method = method.expect("the methods of verbs are those of HTTP");
                let mut router = router.route(route.path, on(method, handle::<V>));
                describe::<V>(&route, router.get_openapi_mut());
                self.0 = router;
            }
        }
    }
    let mut verbs = Router(router);
    each_verb(&mut verbs);
    verbs.0
}

/// Handles a request: decodes the verb, starts it, and answers.
async fn handle<V: Verb>(
    State(core): State<Arc<Core>>,
    path: RawPathParams,
    request: Request,
) -> Result<Response, Refusal> {
    let name = path.iter().find(|(key, _)| *key == "name");
    let name = name.map(|(_, name)| volume_name(name)).transpose()?;
    let verb = received::<V>(request).await?;
    verb.admit(&Serving(Arc::clone(&core)), name.as_ref())?;
    let answer = V::ROUTE.map_or(Answer::Lines, |route| route.answer);
    let begun = verb.begun();
    let (reporter, mut reports) = watch::channel((0, 0));
    let (done, mut outcome) = oneshot::channel();
    submit(&core, name, verb, reporter, done)?;
    match answer {
        Answer::Report(code) => {
            let report = outcome.await.unwrap_or(Err(NodeError::ShuttingDown))?;
            let code = StatusCode::from_u16(code).unwrap_or(StatusCode::OK);
            Ok((code, Json(report)).into_response())
        }
        Answer::Lines => {
            let Some(report) = begun else { return Ok(progress::answer(reports, outcome)) };
            let ended = tokio::select! {
                biased;
                ended = &mut outcome => ended.unwrap_or(Err(NodeError::ShuttingDown)),
                Ok(()) = reports.changed() => {
                    tokio::spawn(log_failure::<V>(outcome));
                    Ok(report)
                }
            };
            let (done, outcome) = oneshot::channel();
            let _ = done.send(ended);
            Ok(progress::answer(reports, outcome))
        }
    }
}

/// Logs a failure of what its caller does not wait for.
async fn log_failure<V: Verb>(outcome: oneshot::Receiver<Result<V::Report, NodeError>>) {
    if let Ok(Err(error)) = outcome.await {
        tracing::error!(%error, verb = V::name().as_ref(), "what nobody waits for failed");
    }
}

/// The verb in the body of a request, or in its parameters if it has none. An empty body stands for the defaults.
async fn received<V: Verb>(request: Request) -> Result<V, Refusal> {
    if matches!(*request.method(), Method::GET | Method::DELETE) {
        return Ok(Query::<V>::try_from_uri(request.uri())?.0);
    }
    let (parts, body) = request.into_parts();
    let too_long = |error: axum::Error| {
        Refusal::new(StatusCode::BAD_REQUEST, ErrorKind::Invalid, error.to_string())
    };
    let body: Bytes = axum::body::to_bytes(body, BODY_BYTES_MAX).await.map_err(too_long)?;
    if body.is_empty() {
        return Ok(Json::<V>::from_bytes(b"{}")?.0);
    }
    let request = Request::from_parts(parts, Body::from(body));
    let Json(Named(verb)) = Json::<Named<V>>::from_request(request, &()).await?;
    Ok(verb)
}

/// Begins a verb on the thread that it belongs to. It runs to its end, even if its caller goes away.
fn submit<V: Verb>(
    core: &Arc<Core>,
    name: Option<VolumeName>,
    verb: V,
    reporter: watch::Sender<(u64, u64)>,
    done: oneshot::Sender<Result<V::Report, NodeError>>,
) -> Result<(), NodeError> {
    let entry = name.as_ref().and_then(|name| core.entry(name.as_str()));
    let elsewhere = entry.as_ref().filter(|entry| entry.is_elsewhere());
    let elsewhere = elsewhere.map(|entry| entry.name.clone());
    let entry = entry.filter(|_| V::BY == By::Holder);
    let shard = entry.as_ref().map_or(0, |entry| entry.shard);
    let serving = Serving(Arc::clone(core));
    let place_of_verb = core.node.verb_place()?;
    let job = move |context: Rc<ShardContext>| async move {
        let reporter = Rc::new(reporter);
        let on_progress = |done, total| {
            reporter.send_replace((done, total));
        };
        let home = serving.0.home.clone();
        let (serving, reporter) = (Some(serving), Some(Rc::clone(&reporter)));
        let place = Place { context, home, serving, name, found: Rc::default(), reporter };
        let by_name = place.by_name();
        if let Some(entry) = &entry
            && let Some(Serving(core)) = &place.serving
            && let Some(store) = &core.store
        {
            drop(place.found.set((Access::Write, store.clone(), entry.id)));
        }
        let outcome = match entry {
            Some(entry) => match served(place, &entry) {
                Ok(volume) => verb.on_served(volume, &on_progress).await,
                Err(error) => Err(error),
            },
            None => verb.on_store(place, &on_progress).await,
        };
        let outcome = outcome.map_err(|error| match elsewhere {
            Some(name) if error.is_of_no_volume() => NodeError::not_in_store(&name),
            _ => by_name(error),
        });
        // The caller may be gone.
        drop(done.send(outcome));
        drop(place_of_verb);
    };
    match V::BY {
        By::Aside => core.node.aside(job),
        By::Holder | By::Anyone | By::Server => core.node.submit(shard, job).map(drop),
    }
}

/// The volume that is served, on its thread.
fn served(place: Place, entry: &Entry) -> Result<Served, NodeError> {
    let hosted = place.context.hosted.borrow().get(&entry.id).cloned();
    let gone = || match &place.serving {
        Some(Serving(core)) => core.gone(&entry.name),
        None => NodeError::ShuttingDown,
    };
    let hosted = hosted.ok_or_else(gone)?;
    Ok(Served { place, hosted })
}

/// Adds a verb to the document.
fn describe<V: Verb>(route: &Route, document: &mut utoipa::openapi::OpenApi) {
    let mut schemas = Vec::new();
    V::Report::schemas(&mut schemas);
    ErrorBody::schemas(&mut schemas);
    schemas.push((ErrorBody::name().into_owned(), ErrorBody::schema()));
    let mut operation = OperationBuilder::new()
        .tag(if route.path.starts_with("/v1/volumes") { "volumes" } else { "node" })
        .summary(Some(about::<V>()))
        .operation_id(Some(route.id));
    if route.path.contains("{name}") {
        let name = ParameterBuilder::new().name("name").parameter_in(ParameterIn::Path);
        operation =
            operation.parameter(name.required(Required::True).schema(Some(String::schema())));
    }
    let has_body = !matches!(route.method, Method::GET | Method::DELETE);
    if let RefOr::T(Schema::Object(asked)) = V::schema() {
        if has_body && !asked.properties.is_empty() {
            V::schemas(&mut schemas);
            schemas.push((V::name().into_owned(), V::schema()));
            let required = if asked.required.is_empty() { Required::False } else { Required::True };
            let content = Content::new(Some(Ref::from_schema_name(V::name())));
            let body = RequestBodyBuilder::new().content(JSON, content).required(Some(required));
            operation = operation.request_body(Some(body.build()));
        } else if !has_body {
            for (name, schema) in asked.properties {
                operation = operation.parameter(parameter(&name, schema));
            }
        }
    }
    schemas.push((V::Report::name().into_owned(), V::Report::schema()));
    let (status, kind, name) = match route.answer {
        Answer::Report(status) => (status.to_string(), JSON, V::Report::name().into_owned()),
        Answer::Lines => {
            let name = format!("Progress_{}", V::Report::name());
            <Progress<Referenced<V::Report>>>::schemas(&mut schemas);
            schemas.push((name.clone(), <Progress<Referenced<V::Report>>>::schema()));
            ("200".to_owned(), LINES, name)
        }
    };
    let schema = Ref::from_schema_name(name);
    let success = ResponseBuilder::new().content(kind, Content::new(Some(schema)));
    let refused = Content::new(Some(Ref::from_schema_name(ErrorBody::name())));
    let refused = ResponseBuilder::new()
        .description("Why it was not done; the status is that of its kind")
        .content(JSON, refused);
    let operation = operation.response(status, success).response("default", refused);
    let method = match route.method {
        Method::GET => HttpMethod::Get,
        Method::DELETE => HttpMethod::Delete,
        Method::PUT => HttpMethod::Put,
        Method::PATCH => HttpMethod::Patch,
        _ => HttpMethod::Post,
    };
    document.paths.add_path_operation(route.path, vec![method], operation.build());
    let components = document.components.get_or_insert_default();
    components.schemas.extend(schemas);
}

/// A type whose schema is a reference to its name.
struct Referenced<R>(PhantomData<R>);

impl<R: ToSchema> PartialSchema for Referenced<R> {
    fn schema() -> RefOr<Schema> {
        Ref::from_schema_name(R::name()).into()
    }
}

impl<R: ToSchema> ToSchema for Referenced<R> {
    fn name() -> Cow<'static, str> {
        R::name()
    }
}

/// The comment on the type of a verb.
fn about<V: Verb>() -> String {
    let description = match V::schema() {
        RefOr::T(Schema::Object(object)) => object.description,
        _ => None,
    };
    description.unwrap_or_default().replace('\n', " ")
}

/// A field of a request without a body.
fn parameter(name: &str, schema: RefOr<Schema>) -> utoipa::openapi::path::Parameter {
    let description = match &schema {
        RefOr::T(Schema::Object(object)) => object.description.clone(),
        _ => None,
    };
    let parameter = ParameterBuilder::new()
        .name(name)
        .parameter_in(ParameterIn::Query)
        .required(Required::False)
        .schema(Some(schema))
        .description(description);
    parameter.build()
}
