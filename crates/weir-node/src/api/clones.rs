//! The routes of clones.

use std::rc::Rc;
use std::sync::Arc;

use axum::Json;
use axum::extract::{Path, State};
use axum::http::StatusCode;
use axum::response::Response;

use crate::api::routes::{Answer, Body, Here, begin, find, in_memory, volume_name};
use crate::api::types::{CloneVolume, ErrorBody, Progress, Report, Shown};
use crate::clones;
use crate::host::Hosted;
use crate::service::Core;
use crate::status;

/// Creates a clone of a snapshot of a volume, served or not. Attach it to serve it.
#[utoipa::path(post, path = "/v1/volumes/{name}/clones", tag = "volumes",
    params(("name" = String, Path)), request_body = CloneVolume,
    responses((status = 201, body = Shown), (status = 404, body = ErrorBody),
        (status = 409, body = ErrorBody), (status = 503, body = ErrorBody)))]
pub(super) async fn clone_volume(
    State(core): State<Arc<Core>>,
    Path(name): Path<String>,
    body: Body<CloneVolume>,
) -> Answer<(StatusCode, Json<Shown>)> {
    let Json(CloneVolume { snapshot, name: clone, takeover }) = body?;
    let (volume, snapshot) = (volume_name(&name)?, volume_name(&snapshot)?);
    let clone = volume_name(&clone)?;
    let (home, created) = (core.home.clone(), clone.clone());
    let from = format!("{volume}@{snapshot}");
    let create = move |context: Here| async move {
        clones::create(&context, &home, (&volume, &snapshot), &created, takeover.into()).await
    };
    let shown = core.node.run(0, create).await??;
    core.events.note("volume_cloned", Some(clone.as_str()), from);
    Ok((StatusCode::CREATED, Json(shown)))
}

/// Copies what a served clone shares with the volumes that it descends from, and lets go of them.
#[utoipa::path(post, path = "/v1/volumes/{name}/flatten", tag = "volumes",
    params(("name" = String, Path)),
    responses((status = 200, body = Progress, content_type = "application/x-ndjson"),
        (status = 404, body = ErrorBody)))]
pub(super) async fn flatten_volume(
    State(core): State<Arc<Core>>,
    Path(name): Path<String>,
) -> Answer<Response> {
    let entry = find(&core, &name)?;
    let (reporter, done, response) = begin();
    tokio::spawn(async move {
        let flatten = move |hosted: Rc<Hosted>| async move {
            let report = |done, total| {
                reporter.send_replace((done, total));
            };
            match hosted.log() {
                Some(volume) => Ok(volume.flatten(report).await?),
                None => Err(in_memory(&hosted, "is no clone")),
            }
        };
        let flattened = status::on_volume(&core, &entry, flatten).await;
        // Whoever asked may be gone.
        let _ = done.send(flattened.map(|report| Some(Report::Flatten(report.into()))));
    });
    Ok(response)
}
