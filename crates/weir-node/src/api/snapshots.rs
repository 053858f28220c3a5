//! The routes of snapshots.

use std::rc::Rc;
use std::sync::Arc;

use axum::Json;
use axum::extract::{Path, State};
use axum::response::Response;
use weir_log::catalog::VolumeName;

use crate::api::routes::{Answer, Body, Here, begin, find, volume_name};
use crate::api::types::{
    ChangeSnapshots, ErrorBody, Progress, Snapshot, SnapshotAction, SnapshotSpace,
};
use crate::error::NodeError;
use crate::host::Hosted;
use crate::service::{Core, Entry};
use crate::{snapshots, status};

/// The snapshots of a volume, served or not, oldest first.
#[utoipa::path(get, path = "/v1/volumes/{name}/snapshots", tag = "volumes",
    params(("name" = String, Path)),
    responses((status = 200, body = Vec<Snapshot>), (status = 404, body = ErrorBody)))]
pub(super) async fn list_snapshots(
    State(core): State<Arc<Core>>,
    Path(name): Path<String>,
) -> Answer<Json<Vec<Snapshot>>> {
    let name = volume_name(&name)?;
    let home = core.home.clone();
    let list = move |context: Here| async move { snapshots::list(&context, &home, &name).await };
    Ok(Json(core.node.run(0, list).await.flatten()?))
}

/// What each snapshot of a volume takes in the store, served or not, oldest first. Reads the map of the volume.
#[utoipa::path(get, path = "/v1/volumes/{name}/space", tag = "volumes",
    params(("name" = String, Path)),
    responses((status = 200, body = Vec<SnapshotSpace>), (status = 404, body = ErrorBody)))]
pub(super) async fn snapshot_space(
    State(core): State<Arc<Core>>,
    Path(name): Path<String>,
) -> Answer<Json<Vec<SnapshotSpace>>> {
    let name = volume_name(&name)?;
    let home = core.home.clone();
    let sum_up = move |context: Here| async move { snapshots::space(&context, &home, &name).await };
    Ok(Json(core.node.run(0, sum_up).await.flatten()?))
}

/// Takes, deletes or goes back to a snapshot of a served volume. Waits for the store. Going back needs a volume without
/// clients.
#[utoipa::path(post, path = "/v1/volumes/{name}/snapshots", tag = "volumes",
    params(("name" = String, Path)), request_body = ChangeSnapshots,
    responses((status = 200, body = Progress, content_type = "application/x-ndjson"),
        (status = 404, body = ErrorBody)))]
pub(super) async fn change_snapshots(
    State(core): State<Arc<Core>>,
    Path(name): Path<String>,
    body: Body<ChangeSnapshots>,
) -> Answer<Response> {
    let Json(ChangeSnapshots { action, snapshot }) = body?;
    let snapshot = volume_name(&snapshot)?;
    let entry = find(&core, &name)?;
    let (_reporter, done, response) = begin();
    tokio::spawn(async move {
        let changed = change(&core, &entry, &snapshot, action).await;
        if changed.is_ok() {
            let kind = match action {
                SnapshotAction::Take => "snapshot_taken",
                SnapshotAction::Delete => "snapshot_deleted",
                SnapshotAction::RollBack => "volume_rolled_back",
            };
            core.events.note(kind, Some(entry.name.as_str()), snapshot.to_string());
        }
        // Whoever asked may be gone.
        let _ = done.send(changed.map(|()| None));
    });
    Ok(response)
}

async fn change(
    core: &Core,
    entry: &Entry,
    snapshot: &VolumeName,
    action: SnapshotAction,
) -> Result<(), NodeError> {
    let export = format!("{}@{snapshot}", entry.name);
    let _unopened = match action {
        SnapshotAction::Delete => Some(core.views.keep_closed(&export).await?),
        SnapshotAction::Take | SnapshotAction::RollBack => None,
    };
    let name = snapshot.clone();
    let change =
        move |hosted: Rc<Hosted>| async move { snapshots::change(hosted, name, action).await };
    status::on_volume(core, entry, change).await
}
