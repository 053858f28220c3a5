//! Snapshots of a volume, as the API tells them, and what differs between two of them.

use weir_device::LocalBoxFuture;
use weir_log::catalog::{self, VolumeName};
use weir_log::{Change, Changes, SnapshotRecord};
use weir_store::Access;

use crate::api::types::{Snapshot, SnapshotSpace};
use crate::error::NodeError;
use crate::home::Home;
use crate::node::Node;

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
    /// Gives `on_change` every run that differs between the snapshots `from` and `to`, in order, from the store.
    ///
    /// # Errors
    /// When there is no such volume or snapshot, or when the store fails; then the runs reported so far are not all.
    #[inline(never)]
    pub fn diff_snapshots<'a>(
        &'a self,
        home: Home,
        volume: VolumeName,
        (from, to): (VolumeName, VolumeName),
        on_change: impl AsyncFnMut(Change) + Send + 'static,
    ) -> LocalBoxFuture<'a, Result<Changes, NodeError>> {
        Box::pin(async move {
            self.run(0, move |context| async move {
                let store = home.open_store(&context, Access::Read).await?;
                let id = catalog::find(&store, &context.env, &volume).await?;
                Ok(weir_log::changes(
                    &store,
                    &context.env,
                    (id, &home.keys),
                    (&from, &to),
                    on_change,
                )
                .await?)
            })
            .await?
        })
    }
}
