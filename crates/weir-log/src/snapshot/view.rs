//! A snapshot as a device of its own, which takes no writes. Needs nothing but the store: any number of nodes can show
//! it, whoever holds the volume.

use std::fmt;
use std::rc::Rc;
use std::time::Duration;

use weir_device::{
    Body, ByteRange, ChangedRun, Device, DeviceError, DeviceInfo, Env, ErrorKind, History,
    IoHeader, LocalBoxFuture, Operation, OperationKind, Reply, VolumeId, check_range,
};
use weir_store::Store;

use crate::catalog::names::VolumeName;
use crate::error::LogError;
use crate::format::manifest::SnapshotRecord;
use crate::keys::Keys;
use crate::map::load;
use crate::map::objects::ObjectMap;
use crate::own::manifests;
use crate::read;
use crate::read::block_store::BlockStore;
use crate::read::fetch::Fetcher;
use crate::read::history::Histories;
use crate::snapshot::history::Comparisons;

/// A snapshot that is open for reading.
pub struct SnapshotView {
    record: SnapshotRecord,
    pub(crate) objects: ObjectMap,
    pub(crate) fetcher: Rc<Fetcher>,
    comparisons: Comparisons,
}

impl SnapshotView {
    /// Opens the snapshot `name` of a volume. Reads wait for a failing store up to `read_deadline`. Once the snapshot
    /// is deleted, reads of what is not cached fail.
    ///
    /// # Errors
    /// [`LogError::NoSuchSnapshot`], or what the store says.
    pub async fn open(
        store: &Store,
        env: &Env,
        (volume, keys): (VolumeId, &Keys),
        name: &VolumeName,
        blocks: BlockStore,
        read_deadline: Duration,
    ) -> Result<Rc<Self>, LogError> {
        let manifest = manifests::newest(store, env, volume).await?;
        let Some(record) = manifest.snapshot(name.as_str()).cloned() else {
            let (snapshot, volume) = (name.to_string(), manifest.name);
            return Err(LogError::NoSuchSnapshot { snapshot, volume });
        };
        let key = keys.open(volume, manifest.encryption.as_ref()).await?;
        let root = record.root(volume);
        let loaded = load::checkpoint(store, env, volume, key.as_ref(), root).await?;
        let (store, env) = (store.clone(), env.clone());
        let comparisons = Comparisons::of(&manifest, name.as_str(), key.clone());
        let histories = Histories::of(&manifest);
        let fetcher = Fetcher::new((volume, key), histories, store, env, blocks, read_deadline);
        Ok(Rc::new(Self { record, objects: loaded.objects, fetcher, comparisons }))
    }

    /// Opens what a replica shows now, under the name `replica`. Once the replica goes on and what this view shows is
    /// superseded, reads of what is not cached may fail: open it again.
    ///
    /// # Errors
    /// [`LogError::NoReplica`] where it is none, or has no root yet; what the store says.
    pub async fn open_replica(
        store: &Store,
        env: &Env,
        (volume, keys): (VolumeId, &Keys),
        blocks: BlockStore,
        read_deadline: Duration,
    ) -> Result<Rc<Self>, LogError> {
        let mut manifest = manifests::newest(store, env, volume).await?;
        let key = keys.open(volume, manifest.encryption.as_ref()).await?;
        loop {
            let root = crate::replica::root_of(store, &manifest)?;
            let loaded = load::checkpoint(store, env, volume, key.as_ref(), root).await;
            // The replica may have gone on meanwhile.
            let newest = manifests::newest(store, env, volume).await?;
            let loaded = match loaded {
                Err(error)
                    if error.kind() == ErrorKind::NotFound && newest.root() != Some(root) =>
                {
                    manifest = newest;
                    continue;
                }
                other => other?,
            };
            let record = SnapshotRecord {
                name: "replica".to_owned(),
                id: manifest.nonce,
                created_at: manifest.replica.as_ref().map_or(0, |replica| replica.written_at),
                size: loaded.size.unwrap_or(manifest.size),
                last_write: loaded.committed.into(),
                checkpoint: root.checkpoint,
                stream: Some(root.stream),
                deleting: false,
            };
            let (store, env) = (store.clone(), env.clone());
            let comparisons = Comparisons::default();
            let histories = Histories::of(&manifest);
            let volume = (volume, key);
            let fetcher = Fetcher::new(volume, histories, store, env, blocks, read_deadline);
            return Ok(Rc::new(Self { record, objects: loaded.objects, fetcher, comparisons }));
        }
    }

    /// What the manifest says of it.
    #[must_use]
    pub fn record(&self) -> &SnapshotRecord {
        &self.record
    }

    fn refuse(&self) -> DeviceError {
        let message = format!("{self:?} is a snapshot and takes no writes");
        DeviceError::new(ErrorKind::ReadOnly, message)
    }
}

impl Device for SnapshotView {
    fn info(&self) -> DeviceInfo {
        DeviceInfo {
            is_slow_to_seek: true,
            is_exclusive: false,
            is_read_only: true,
            ..DeviceInfo::local(self.record.size)
        }
    }

    async fn call(&self, _io: IoHeader, operation: Operation) -> Result<Reply, DeviceError> {
        operation.check_bounds(self.record.size)?;
        let body = match operation {
            Operation::Read { offset, len } => {
                Body::Data(read::read_objects(&self.fetcher, &self.objects, offset, len).await?)
            }
            Operation::Extents { offset, len, extents_max } => {
                Body::Extents(read::object_extents(&self.objects, offset, len, extents_max))
            }
            Operation::Flush(_) => Body::Done,
            Operation::Write { .. }
            | Operation::WriteZeroes { .. }
            | Operation::Discard { .. }
            | Operation::Batch { .. } => return Err(self.refuse()),
        };
        Ok(Reply::new(body))
    }
}

/// Its earlier states are the snapshots that its volume had when it was taken.
impl History for SnapshotView {
    fn earlier(&self) -> Vec<String> {
        self.comparisons.names()
    }

    fn changed<'a>(
        &'a self,
        since: &'a str,
        range: ByteRange,
        runs_max: usize,
    ) -> LocalBoxFuture<'a, Result<Vec<ChangedRun>, DeviceError>> {
        Box::pin(async move {
            check_range(OperationKind::Extents, range.start, range.len(), self.record.size)?;
            let from = (&self.fetcher.store, &self.fetcher.env);
            self.comparisons.changed(from, since, range, runs_max).await
        })
    }
}

impl fmt::Debug for SnapshotView {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}@{}", self.fetcher.volume, self.record.name)
    }
}
