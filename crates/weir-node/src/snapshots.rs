//! Snapshots of a volume: taken, deleted and gone back to by the process that serves it, or by opening it.

use std::rc::Rc;

use weir_log::catalog::{self, VolumeName};
use weir_log::{Change, Changes, LogVolume, SnapshotRecord};
use weir_store::Access;

use crate::api::types::{ChangeSnapshots, Snapshot, SnapshotAction, SnapshotSpace};
use crate::error::NodeError;
use crate::host::Hosted;
use crate::node::Node;
use crate::shard::ShardContext;
use crate::volumes::{Home, with_open};

impl From<SnapshotRecord> for Snapshot {
    fn from(record: SnapshotRecord) -> Self {
        Self {
            name: record.name,
            created_at: record.created_at,
            size_bytes: record.size,
            last_write: record.last_write.write,
            as_of: record.checkpoint.as_of,
            deleting: record.deleting,
        }
    }
}

impl From<weir_log::SnapshotSpace> for SnapshotSpace {
    fn from(space: weir_log::SnapshotSpace) -> Self {
        Self {
            name: space.name,
            reached_bytes: space.reached_bytes,
            shared_bytes: space.shared_bytes,
            reclaimable_bytes: space.reclaimable_bytes,
            clones: space.clones,
            deleting: space.deleting,
        }
    }
}

impl Node {
    /// What each snapshot of a volume takes in the store, oldest first.
    ///
    /// # Errors
    /// When there is no such volume, or what the store says.
    pub async fn snapshot_space(
        &self,
        home: Home,
        name: VolumeName,
    ) -> Result<Vec<SnapshotSpace>, NodeError> {
        self.run(0, move |context| async move { space(&context, &home, &name).await }).await?
    }

    /// The snapshots of a volume, oldest first, from the store.
    ///
    /// # Errors
    /// When there is no such volume, or what the store says.
    pub async fn list_snapshots(
        &self,
        home: Home,
        name: VolumeName,
    ) -> Result<Vec<Snapshot>, NodeError> {
        self.run(0, move |context| async move { list(&context, &home, &name).await }).await?
    }

    /// Gives `on_change` every run that differs between the snapshots `from` and `to`, in order, from the store.
    ///
    /// # Errors
    /// When there is no such volume or snapshot, or what the store says; what was reported until then is not all.
    pub async fn diff_snapshots(
        &self,
        home: Home,
        volume: VolumeName,
        (from, to): (VolumeName, VolumeName),
        on_change: impl AsyncFnMut(Change) + Send + 'static,
    ) -> Result<Changes, NodeError> {
        self.run(0, move |context| async move {
            let store = home.open_store(&context, Access::Read).await?;
            let id = catalog::find(&store, &context.env, &volume).await?;
            Ok(weir_log::changes(&store, &context.env, (id, &home.keys), (&from, &to), on_change)
                .await?)
        })
        .await?
    }

    /// Takes, deletes or goes back to a snapshot: through the process that serves the volume, otherwise by opening it
    /// and closing it again. Waits for the store.
    ///
    /// # Errors
    /// When there is no such volume or snapshot, it exists already, or clients are connected to a volume that is to go
    /// back; or why the volume could not be opened.
    pub async fn change_snapshots(
        &self,
        home: Home,
        volume: VolumeName,
        snapshot: VolumeName,
        action: SnapshotAction,
    ) -> Result<(), NodeError> {
        self.run(0, move |context| async move {
            let store = home.open_store(&context, Access::Write).await?;
            let id = catalog::find(&store, &context.env, &volume).await?;
            if let Some(mut process) = home.holder(&store, id).await? {
                let path = format!("/v1/volumes/{volume}/snapshots");
                let body = ChangeSnapshots { action, snapshot: snapshot.to_string() };
                return process.client.work(&path, &body, |_, _| {}).await.map(drop);
            }
            with_open(&context, &home, store, id, &volume, move |opened| async move {
                apply(&opened, &snapshot, action).await
            })
            .await
        })
        .await?
    }
}

/// The snapshots of a volume, from the store.
pub(crate) async fn list(
    context: &ShardContext,
    home: &Home,
    name: &VolumeName,
) -> Result<Vec<Snapshot>, NodeError> {
    let store = home.open_store(context, Access::Read).await?;
    let listed = catalog::snapshots(&store, &context.env, name).await?;
    Ok(listed.into_iter().map(Snapshot::from).collect())
}

/// What the snapshots of a volume take, from the store.
pub(crate) async fn space(
    context: &ShardContext,
    home: &Home,
    name: &VolumeName,
) -> Result<Vec<SnapshotSpace>, NodeError> {
    let store = home.open_store(context, Access::Read).await?;
    let id = catalog::find(&store, &context.env, name).await?;
    let spaces = weir_log::snapshot_space(&store, &context.env, (id, &home.keys)).await?;
    Ok(spaces.into_iter().map(SnapshotSpace::from).collect())
}

/// Changes the snapshots of a served volume. It goes back to one while no client is there.
pub(crate) async fn change(
    hosted: Rc<Hosted>,
    snapshot: VolumeName,
    action: SnapshotAction,
) -> Result<(), NodeError> {
    let name = hosted.name.to_string();
    let Some(volume) = hosted.log().cloned() else {
        return Err(NodeError::InMemory { name, reason: "has no snapshots" });
    };
    match action {
        SnapshotAction::Take | SnapshotAction::Delete => apply(&volume, &snapshot, action).await,
        SnapshotAction::RollBack => {
            hosted.without_clients(async move { apply(&volume, &snapshot, action).await }).await
        }
    }
}

async fn apply(
    volume: &LogVolume,
    snapshot: &VolumeName,
    action: SnapshotAction,
) -> Result<(), NodeError> {
    match action {
        SnapshotAction::Take => volume.snapshot(snapshot).await.map(drop)?,
        SnapshotAction::Delete => volume.delete_snapshot(snapshot).await?,
        SnapshotAction::RollBack => volume.rollback(snapshot).await?,
    }
    Ok(())
}
