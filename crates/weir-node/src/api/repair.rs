//! The route of repairs.

use std::rc::Rc;
use std::sync::Arc;

use axum::Json;
use axum::extract::{Path, State};
use axum::response::Response;

use crate::api::routes::{Answer, Body, begin, find};
use crate::api::types::{ErrorBody, Progress, RepairVolume, Report};
use crate::host::Hosted;
use crate::service::Core;
use crate::{repair, status};

/// Gives up what cannot be read of objects that a check of a served volume named, and deletes those of them that nobody
/// needs. Clients go on meanwhile.
#[utoipa::path(post, path = "/v1/volumes/{name}/repair", tag = "volumes",
    params(("name" = String, Path)), request_body = RepairVolume,
    responses((status = 200, body = Progress, content_type = "application/x-ndjson"),
        (status = 404, body = ErrorBody)))]
pub(super) async fn repair_volume(
    State(core): State<Arc<Core>>,
    Path(name): Path<String>,
    body: Body<RepairVolume>,
) -> Answer<Response> {
    let Json(asked) = body?;
    let entry = find(&core, &name)?;
    let (reporter, done, response) = begin();
    tokio::spawn(async move {
        let work = move |hosted: Rc<Hosted>| async move {
            let report = |done, total| {
                reporter.send_replace((done, total));
            };
            repair::of_hosted(&hosted, &asked, report).await
        };
        let repaired = status::on_volume(&core, &entry, work).await;
        if let Ok(report) = &repaired {
            let message = format!("{} bytes given up", report.lost_bytes);
            core.events.note("volume_repaired", Some(entry.name.as_str()), message);
        }
        // Whoever asked may be gone.
        let _ = done.send(repaired.map(|report| Some(Report::Repair(report))));
    });
    Ok(response)
}
