//! What a caller means: a request may say which store and which volume it is about, and goes no further here if this
//! process has another one under that name.
//!
//! The command line finds a volume in the store that it was given, and the process that serves it by its identity.
//! Replicas and copies of stores have the identities of their sources, and a process may end and another begin between
//! the question and the request: so the request says what it means, and the process that acts on it compares.

use std::sync::Arc;

use axum::extract::{Request, State};
use axum::middleware::Next;
use axum::response::{IntoResponse, Response};

use crate::api::client::{STORE_HEADER, VOLUME_HEADER};
use crate::api::refusal::Refusal;
use crate::error::{NodeError, ProcessId};
use crate::serve::core::Core;

const VOLUMES: &str = "/v1/volumes/";

/// Refuses a request that is about another store or another volume than this process has.
pub(super) async fn check(State(core): State<Arc<Core>>, request: Request, next: Next) -> Response {
    match compare(&core, &request) {
        Ok(()) => next.run(request).await,
        Err(error) => Refusal::from(error).into_response(),
    }
}

fn compare(core: &Core, request: &Request) -> Result<(), NodeError> {
    let header = |name| request.headers().get(name).map(|value| value.as_bytes());
    let name = request.uri().path().strip_prefix(VOLUMES).unwrap_or_default();
    let name = name.split('/').next().unwrap_or_default();
    // A process without a store has nothing of any: its volumes are files and exports of other servers.
    if let Some(store) = &core.store
        && header(STORE_HEADER).is_some_and(|meant| meant != store.location().as_bytes())
    {
        let served = store.url().to_owned();
        let process = ProcessId::own();
        return Err(NodeError::OtherStore { name: name.to_owned(), process, served });
    }
    let (Some(meant), Some(entry)) = (header(VOLUME_HEADER), core.entry(name)) else {
        return Ok(());
    };
    let found = entry.id.to_string();
    if meant == found.as_bytes() {
        return Ok(());
    }
    let meant = String::from_utf8_lossy(meant).into_owned();
    Err(NodeError::OtherVolume { name: name.to_owned(), meant, found })
}
