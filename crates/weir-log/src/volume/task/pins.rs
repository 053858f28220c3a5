//! What snapshots keep: learned after an opening, pinned as they are taken, given up as they go.

use std::rc::Rc;
use std::time::Duration;

use futures_util::StreamExt;
use futures_util::stream;
use weir_device::{DeviceError, ErrorKind, with_causes};
use weir_store::RetryPolicy;

use crate::error::LogError;
use crate::format::manifest::{CheckpointRef, HexId, Manifest, SnapshotRecord};
use crate::ids::ObjectId;
use crate::map::load;
use crate::map::table::Dead;
use crate::own::manifests::ManifestWriter;
use crate::snapshot::snapshots::Pins;
use crate::volume::shared::{Shared, State};

/// Pause before the checkpoint of a snapshot is read again from a store that fails.
const READ_PAUSE: Duration = Duration::from_secs(1);

/// Checkpoints of snapshots that are read at a time after an opening.
const READS_MAX: usize = 4;

impl State {
    /// S1: a checkpoint begins, which becomes every snapshot that is wanted by now.
    pub(crate) fn begin_snapshots(&mut self, env: &weir_device::Env, dead: Dead) {
        let wanted = std::mem::take(&mut self.snapshots.wanted);
        if wanted.is_empty() {
            return;
        }
        // What its table names: it is read when the snapshot goes.
        let table = &self.head.objects.table;
        let reached: Vec<ObjectId> = match dead {
            Dead::Hidden => table.live_objects().map(|object| object.id).collect(),
            Dead::Named => table.objects().collect(),
        };
        for name in wanted {
            let mut id = [0; 16];
            env.random.fill(&mut id);
            if !weir_device::mutant("snapshot_not_pinned") {
                self.head.objects.table.pin(&reached);
            }
            self.snapshots.taking.push(SnapshotRecord {
                name: name.as_str().to_owned(),
                id: HexId(id),
                created_at: env.clock.wall().as_secs(),
                size: self.size,
                last_write: self.writes.committed.into(),
                // Known once its root is stored.
                checkpoint: CheckpointRef { sequence: 0, epoch: 0, as_of: 0 },
                stream: None,
                deleting: false,
            });
        }
    }

    /// The checkpoint is about to be published: the snapshots that it is, with what it stands in pinned.
    pub(crate) fn snapshots_of(&mut self, checkpoint: CheckpointRef) -> Vec<SnapshotRecord> {
        let mut taking = std::mem::take(&mut self.snapshots.taking);
        let stream = self.stream;
        let reached: Vec<ObjectId> = self.head.checkpoint.objects(stream).collect();
        for record in &mut taking {
            record.checkpoint = checkpoint;
            self.head.objects.table.pin(&reached);
        }
        taking
    }
}

/// Learns what the snapshots of the manifest reach, for S2. Runs once, in the background of an opening.
pub(crate) async fn learn_pins(shared: Rc<Shared>) {
    let listed = shared.state.borrow().snapshots.listed.clone();
    let reads = listed.iter().map(|snapshot| reach(&shared, snapshot));
    let mut reads = stream::iter(reads).buffered(READS_MAX);
    while let Some(reached) = reads.next().await {
        if shared.stopped.get() {
            return;
        }
        match reached {
            Ok(reached) => shared.state.borrow_mut().head.objects.table.pin(&reached),
            Err(error) => {
                // What the damaged snapshot reaches is unknown, so nothing is deleted at all from here on. That costs
                // space and no data.
                tracing::error!(volume = %shared.id, %error, "a snapshot cannot be read: nothing is deleted");
                shared.state.borrow_mut().snapshots.pins = Pins::Lost(with_causes(&error));
                shared.progress.notify_waiters();
                return;
            }
        }
    }
    drop(reads);
    shared.state.borrow_mut().snapshots.pins = Pins::Known;
    shared.references.notify_one();
    shared.progress.notify_waiters();
}

/// What a snapshot reaches. Waits for a failing store, for ever.
async fn reach(shared: &Shared, snapshot: &SnapshotRecord) -> Result<Vec<ObjectId>, LogError> {
    loop {
        let (store, env, key) = (&shared.store, &shared.env, shared.key.as_ref());
        let read = load::reach(store, env, key, snapshot.root(shared.id)).await;
        match read {
            Err(LogError::Store(error)) if error.kind() == ErrorKind::Unavailable => {
                tracing::warn!(volume = %shared.id, %error, "reading a snapshot");
                shared.check_failure().map_err(|_| LogError::ShuttingDown)?;
                tokio::time::sleep(READ_PAUSE).await;
            }
            other => return other,
        }
    }
}

/// Publishes a change to the snapshots of a volume, which fails if that does.
pub(crate) async fn publish(
    shared: &Shared,
    manifest: &mut ManifestWriter,
    change: impl FnOnce(&mut Manifest),
) -> Result<(), DeviceError> {
    if let Err(error) = manifest.publish(&shared.env, &RetryPolicy::forever(), change).await {
        return Err(shared.fail_publishing(error));
    }
    let listed = &mut shared.state.borrow_mut().snapshots.listed;
    listed.clone_from(&manifest.current().snapshots);
    Ok(())
}

/// Gives up what a snapshot reaches that is being deleted and that no clone needs.
pub(crate) async fn release(shared: &Rc<Shared>, id: HexId) -> Result<(), DeviceError> {
    let find = || shared.state.borrow().snapshots.listed.iter().find(|s| s.id == id).cloned();
    let Some(snapshot) = find() else { return Ok(()) };
    let mut reached = match reach(shared, &snapshot).await {
        Ok(reached) => reached,
        Err(LogError::ShuttingDown) => return Err(LogError::ShuttingDown.into()),
        // It must be possible to delete a damaged snapshot. What it reached is unknown, so it is not deleted.
        Err(error) => {
            let (volume, name) = (shared.id, &snapshot.name);
            tracing::error!(%volume, snapshot = name, %error, "the space of a damaged snapshot stays");
            Vec::new()
        }
    };
    let known = |state: &mut State| state.snapshots.pins_are_settled().then_some(Ok(()));
    shared.wait_while_open(known).await?;
    // A rollback puts another map in the place of the head's before a checkpoint that counts says so: until then the
    // published one needs what only the old map named.
    let is_free = || !shared.frozen.get() || weir_device::mutant("release_during_rollback");
    let mut manifest = loop {
        shared.wait_while_open(|_| is_free().then_some(Ok(()))).await?;
        let manifest = shared.manifest.lock().await;
        // With the lock none can begin: it takes the lock itself before it changes anything.
        if is_free() {
            break manifest;
        }
    };
    // Somebody else may have done it meanwhile.
    if find().is_none() {
        return Ok(());
    }
    let (garbage, names) = {
        let state = shared.state.borrow();
        if !state.snapshots.pins_known() {
            // What the other snapshots reach is not known, so nothing that this one reaches may be deleted.
            reached.clear();
        }
        let mut garbage = state.head.objects.table.held_once(&reached);
        // What is in other streams is not ours to delete.
        garbage.retain(|id| id.stream == state.stream);
        // Where head and snapshot share pieces of a checkpoint, the head has them still.
        if !weir_device::mutant("shared_checkpoint_deleted") {
            garbage.retain(|id| !state.head.checkpoint.knows(id));
        }
        let names = shared.garbage.names_with(&garbage);
        (garbage, names)
    };
    let gone = |m: &mut Manifest| {
        m.snapshots.retain(|s| s.id != id);
        m.pending_deletions = names;
    };
    publish(shared, &mut manifest, gone).await?;
    {
        let mut state = shared.state.borrow_mut();
        state.head.objects.table.unpin(&reached);
        shared.garbage.on_listed(garbage);
        shared.garbage.listed.notify_one();
    }
    drop(manifest);
    shared.references.notify_one();
    shared.wake_collector();
    Ok(())
}
