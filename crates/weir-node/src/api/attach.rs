//! The routes that attach volumes to a running process and detach them.

use std::sync::Arc;

use axum::Json;
use axum::extract::{Path, State};
use axum::response::Response;

use crate::api::routes::{Answer, Body, begin, volume_name};
use crate::api::types::{AttachVolume, DetachVolume, ErrorBody, Progress};
use crate::attach;
use crate::error::NodeError;
use crate::host::Stopped;
use crate::service::Core;

/// Serves a volume from here on, until it is detached or the process ends. Waits until it is open: for recovery, and
/// for another node that did not close it. One that is served already is no error.
#[utoipa::path(post, path = "/v1/volumes/{name}/attach", tag = "volumes",
    params(("name" = String, Path)), request_body = AttachVolume,
    responses((status = 200, body = Progress, content_type = "application/x-ndjson"),
        (status = 409, body = ErrorBody)))]
pub(super) async fn attach_volume(
    State(core): State<Arc<Core>>,
    Path(name): Path<String>,
    body: Body<AttachVolume>,
) -> Answer<Response> {
    let Json(AttachVolume { size_bytes, read_only, take_over }) = body?;
    let name = volume_name(&name)?;
    refuse_if_single(&core)?;
    let mut spec = core.spec_of(&name);
    spec.read_only |= read_only;
    spec.consent.take_over |= take_over;
    if size_bytes.is_some() {
        (spec.size, spec.size_must_match) = (size_bytes, true);
    }
    let (_reporter, done, response) = begin();
    tokio::spawn(async move {
        let attached = attach::attach(&core, spec).await;
        // Whoever asked may be gone.
        let _ = done.send(attached.map(|()| None));
    });
    Ok(response)
}

/// Serves a volume no more, and closes it with everything in the store, so that any node can open it. Refused while it
/// has clients, unless they are to be disconnected.
#[utoipa::path(post, path = "/v1/volumes/{name}/detach", tag = "volumes",
    params(("name" = String, Path)), request_body = DetachVolume,
    responses((status = 200, body = Progress, content_type = "application/x-ndjson"),
        (status = 409, body = ErrorBody)))]
pub(super) async fn detach_volume(
    State(core): State<Arc<Core>>,
    Path(name): Path<String>,
    body: Body<DetachVolume>,
) -> Answer<Response> {
    let Json(DetachVolume { disconnect }) = body?;
    let name = volume_name(&name)?;
    refuse_if_single(&core)?;
    let (_reporter, done, response) = begin();
    tokio::spawn(async move {
        let detached = match attach::detach(&core, name.clone(), disconnect).await {
            Ok(Stopped::Clean) => Ok(None),
            Ok(Stopped::LocalOnly) => Err(NodeError::KeptInJournal { name: name.to_string() }),
            Err(error) => Err(error),
        };
        // Whoever asked may be gone.
        let _ = done.send(detached);
    });
    Ok(response)
}

/// A process of `weir up` serves one volume, and nothing else.
fn refuse_if_single(core: &Core) -> Result<(), NodeError> {
    if core.is_single {
        let process = crate::error::ProcessId(i32::try_from(std::process::id()).ok());
        return Err(NodeError::SingleVolume { process });
    }
    Ok(())
}
