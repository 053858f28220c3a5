//! A snapshot as a device of its own, which takes no writes. Needs nothing but the store: any number of nodes can show
//! it, whoever holds the volume.

use std::fmt;
use std::future::Future;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use weir_device::{
    ChangedRun, Device, DeviceError, Env, ErrorKind, Extent, History, IoHeader, LocalBoxFuture,
    SharedBuf, VolumeId, WriteFlags, WriteZeroesFlags, check_bounds,
};
use weir_store::Store;

use crate::cache::FrameCache;
use crate::catalog::VolumeName;
use crate::error::LogError;
use crate::fetch::{Fetcher, Histories};
use crate::format::manifest::SnapshotRecord;
use crate::history::Comparisons;
use crate::keys::Keys;
use crate::load;
use crate::manifests;
use crate::objects::ObjectMap;
use crate::read;

/// A snapshot that is open for reading.
pub struct SnapshotView {
    record: SnapshotRecord,
    objects: ObjectMap,
    fetcher: Rc<Fetcher>,
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
        cache: Arc<dyn FrameCache>,
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
        let fetcher = Fetcher::new((volume, key), histories, store, env, cache, read_deadline);
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
        cache: Arc<dyn FrameCache>,
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
            let fetcher = Fetcher::new(volume, histories, store, env, cache, read_deadline);
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
    fn size(&self) -> u64 {
        self.record.size
    }

    async fn read(&self, io: IoHeader, buf: &mut [u8]) -> Result<(), DeviceError> {
        check_bounds(&io, self.size())?;
        assert_eq!(io.len, buf.len() as u64, "the header describes the buffer");
        read::read_objects(&self.fetcher, &self.objects, io.offset, buf).await
    }

    async fn write(&self, _: IoHeader, _: SharedBuf, _: WriteFlags) -> Result<(), DeviceError> {
        Err(self.refuse())
    }

    async fn write_zeroes(&self, _: IoHeader, _: WriteZeroesFlags) -> Result<(), DeviceError> {
        Err(self.refuse())
    }

    async fn discard(&self, _: IoHeader) -> Result<(), DeviceError> {
        Err(self.refuse())
    }

    fn flush(&self, _: IoHeader) -> impl Future<Output = Result<(), DeviceError>> {
        std::future::ready(Ok(()))
    }

    async fn extents(&self, io: IoHeader, extents_max: usize) -> Result<Vec<Extent>, DeviceError> {
        check_bounds(&io, self.size())?;
        Ok(read::object_extents(&self.objects, io.offset, io.len, extents_max))
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
        io: IoHeader,
        runs_max: usize,
    ) -> LocalBoxFuture<'a, Result<Vec<ChangedRun>, DeviceError>> {
        Box::pin(async move {
            let range = check_bounds(&io, self.size())?;
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
