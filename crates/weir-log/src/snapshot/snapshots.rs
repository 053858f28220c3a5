//! Snapshots: names for checkpoints (LSVD section 3.5).
//!
//! A snapshot reaches the objects that its checkpoint's table names and those that the checkpoint itself is in.
//! Reachability alone decides what may be deleted: an object goes when neither the head nor any snapshot reaches it.
//!
//! Invariants
//!  S1. What a snapshot reaches is pinned from the moment its sequence is chosen until a manifest version without the
//!      snapshot counts.
//!  S2. Nothing is listed for deletion before the pins of every snapshot are known.

use std::rc::Rc;
use std::time::Duration;

use futures_util::StreamExt;
use futures_util::stream;
use weir_device::{DeviceError, ErrorKind, Event};
use weir_store::RetryPolicy;

use crate::catalog::VolumeName;
use crate::error::LogError;
use crate::format::manifest::{CheckpointRef, HexId, Manifest, SnapshotRecord};
use crate::ids::ObjectId;
use crate::lineage::references;
use crate::map::load;
use crate::map::table::Dead;
use crate::own::manifests::ManifestWriter;
use crate::volume::{Frozen, LogVolume, Shared, State};
use crate::write::commit;
use crate::write::overlay::Overlay;

/// Most snapshots of a volume: the manifest lists them all, in some 300 bytes each.
pub const SNAPSHOTS_MAX: usize = 4096;

/// Pause before the checkpoint of a snapshot is read again from a store that fails.
const READ_PAUSE: Duration = Duration::from_secs(1);

/// Checkpoints of snapshots that are read at a time after an opening.
const READS_MAX: usize = 4;

/// What an open volume knows of its snapshots.
#[derive(Debug, Default)]
pub(crate) struct Snapshots {
    /// Those of the newest manifest version that counts.
    pub(crate) listed: Vec<SnapshotRecord>,
    /// Names that wait for the next checkpoint.
    wanted: Vec<VolumeName>,
    /// Those that the checkpoint under way becomes.
    taking: Vec<SnapshotRecord>,
    pins: Pins,
}

/// What is known of the objects that snapshots reach (S2).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum Pins {
    /// Their checkpoints are being read. No checkpoint is published meanwhile, so that it can list what it supersedes.
    #[default]
    Unknown,
    Known,
    /// A checkpoint of a snapshot is damaged: nothing is deleted.
    Lost,
}

impl Snapshots {
    /// Of a volume whose manifest lists these.
    pub(crate) fn new(listed: Vec<SnapshotRecord>) -> Self {
        let pins = if listed.is_empty() { Pins::Known } else { Pins::Unknown };
        Self { pins, listed, ..Self::default() }
    }

    pub(crate) fn pins_known(&self) -> bool {
        self.pins == Pins::Known || weir_device::mutant("pins_not_awaited")
    }

    /// Whether a checkpoint may be published.
    pub(crate) fn pins_are_settled(&self) -> bool {
        self.pins_known() || self.pins == Pins::Lost
    }

    /// Whether every snapshot that was asked for is taken.
    pub(crate) fn are_taken(&self) -> bool {
        self.wanted.is_empty() && self.taking.is_empty()
    }

    fn find(&self, name: &str) -> Option<&SnapshotRecord> {
        self.listed.iter().find(|s| s.name == name && !s.deleting)
    }

    fn is_taken(&self, name: &str) -> bool {
        let on_the_way = self.taking.iter().map(|s| s.name.as_str());
        let mut wanted = self.wanted.iter().map(VolumeName::as_str).chain(on_the_way);
        self.find(name).is_some() || wanted.any(|n| n == name)
    }
}

impl State {
    /// S1: a checkpoint begins, which becomes every snapshot that is wanted by now.
    pub(crate) fn begin_snapshots(&mut self, env: &weir_device::Env, dead: Dead) {
        let wanted = std::mem::take(&mut self.snapshots.wanted);
        if wanted.is_empty() {
            return;
        }
        // What its table names: it is read when the snapshot goes.
        let table = &self.objects.table;
        let reached: Vec<ObjectId> = match dead {
            Dead::Hidden => table.live_objects().map(|object| object.id).collect(),
            Dead::Named => table.objects().collect(),
        };
        for name in wanted {
            let mut id = [0; 16];
            env.random.fill(&mut id);
            if !weir_device::mutant("snapshot_not_pinned") {
                self.objects.table.pin(&reached);
            }
            self.snapshots.taking.push(SnapshotRecord {
                name: name.as_str().to_owned(),
                id: HexId(id),
                created_at: env.clock.wall().as_secs(),
                size: self.size,
                last_write: self.committed.into(),
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
        let reached: Vec<ObjectId> = self.checkpoint.objects(stream).collect();
        for record in &mut taking {
            record.checkpoint = checkpoint;
            self.objects.table.pin(&reached);
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
            Ok(reached) => shared.state.borrow_mut().objects.table.pin(&reached),
            Err(error) => {
                // Whatever it reaches stays, with everything else: space is lost, and nothing more.
                tracing::error!(volume = %shared.id, %error, "a snapshot cannot be read: nothing is deleted");
                shared.state.borrow_mut().snapshots.pins = Pins::Lost;
                shared.progress.notify_waiters();
                return;
            }
        }
    }
    drop(reads);
    shared.state.borrow_mut().snapshots.pins = Pins::Known;
    shared.ties.notify_one();
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

impl LogVolume {
    /// The snapshots, oldest first.
    #[must_use]
    pub fn snapshots(&self) -> Vec<SnapshotRecord> {
        self.shared.state.borrow().snapshots.listed.clone()
    }

    /// Takes a snapshot: every write acknowledged before the call is in it, and what it shows is a prefix of all
    /// acknowledged writes. Returns once a manifest that counts names it. Blocks no client, and goes on
    /// if the caller goes away.
    ///
    /// # Errors
    /// A name that is taken ([`ErrorKind::Exists`]), too many snapshots ([`ErrorKind::NoSpace`]), or the failure that
    /// stopped the volume.
    pub async fn snapshot(&self, name: &VolumeName) -> Result<SnapshotRecord, DeviceError> {
        let (shared, name) = (Rc::clone(&self.shared), name.clone());
        self.shared.to_its_end(async move { take(&shared, &name).await }).await
    }

    /// Deletes a snapshot; the space of what nothing else reaches comes back. Where its checkpoint is damaged the
    /// snapshot goes all the same, and the space of what it reached stays.
    ///
    /// # Errors
    /// No such snapshot ([`ErrorKind::NotFound`]), or the failure that stopped the volume.
    pub async fn delete_snapshot(&self, name: &VolumeName) -> Result<(), DeviceError> {
        let (shared, name) = (Rc::clone(&self.shared), name.clone());
        self.shared.to_its_end(async move { delete(&shared, &name).await }).await
    }

    /// Sets the volume back to a snapshot: what was written since is given up, its size included. Later snapshots stay.
    /// The caller sees to it that no client is connected: what clients cached would be wrong.
    ///
    /// # Errors
    /// No such snapshot ([`ErrorKind::NotFound`]), a snapshot that cannot be read, with the volume as it was; or the
    /// failure that stopped the volume.
    pub async fn rollback(&self, name: &VolumeName) -> Result<(), DeviceError> {
        let (shared, name) = (Rc::clone(&self.shared), name.clone());
        self.shared.to_its_end(async move { roll_back(&shared, &name).await }).await
    }
}

impl Shared {
    fn find_snapshot(&self, name: &VolumeName) -> Result<SnapshotRecord, DeviceError> {
        let state = self.state.borrow();
        state.snapshots.find(name.as_str()).cloned().ok_or_else(|| {
            let message = format!("volume {} has no snapshot {name}", self.id);
            DeviceError::new(ErrorKind::NotFound, message)
        })
    }
}

pub(crate) async fn take(
    shared: &Rc<Shared>,
    name: &VolumeName,
) -> Result<SnapshotRecord, DeviceError> {
    shared.check_failure()?;
    shared.check_owned()?;
    shared.check_not_closing()?;
    if weir_device::mutant("snapshots_refused") {
        return Err(DeviceError::new(ErrorKind::NoSpace, "no snapshot is ever taken"));
    }
    shared.upload_all().await?;
    // It may be on its way to another state.
    shared.check_not_closing()?;
    {
        let state = &mut *shared.state.borrow_mut();
        let snapshots = &mut state.snapshots;
        if snapshots.is_taken(name.as_str()) {
            let message = format!("volume {} has a snapshot {name} already", shared.id);
            return Err(DeviceError::new(ErrorKind::Exists, message));
        }
        if snapshots.listed.len() >= SNAPSHOTS_MAX {
            let message =
                format!("volume {} has {SNAPSHOTS_MAX} snapshots: delete one first", shared.id);
            return Err(DeviceError::new(ErrorKind::NoSpace, message));
        }
        snapshots.wanted.push(name.clone());
        state.checkpoint.wanted = true;
    }
    shared.stored.notify_one();
    let find = |state: &mut State| state.snapshots.find(name.as_str()).cloned().map(Ok);
    let record = shared.wait_while_open(find).await?;
    shared.note_newest_manifest().await?;
    shared.wait_for_lease().await?;
    Ok(record)
}

pub(crate) async fn delete(shared: &Rc<Shared>, name: &VolumeName) -> Result<(), DeviceError> {
    shared.check_failure()?;
    shared.check_not_closing()?;
    let id = {
        let mut manifest = shared.manifest.lock().await;
        let id = shared.find_snapshot(name)?.id;
        let deleting = |m: &mut Manifest| {
            m.snapshots.iter_mut().filter(|s| s.id == id).for_each(|s| s.deleting = true);
        };
        publish(shared, &mut manifest, deleting).await?;
        shared.note_manifest(&manifest).await?;
        id
    };
    // As of that version no clone is made of it any more; those that there are have left their notes.
    if references::is_depended_on(shared, id).await? {
        tracing::info!(volume = %shared.id, snapshot = %name, "a deleted snapshot stays for its clones");
        return Ok(());
    }
    release(shared, id).await
}

/// Publishes a change to the snapshots of a volume, which fails if that does.
async fn publish(
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
        // A damaged snapshot must not be there for ever.
        Err(error) => {
            let (volume, name) = (shared.id, &snapshot.name);
            tracing::error!(%volume, snapshot = name, %error, "the space of a damaged snapshot stays");
            Vec::new()
        }
    };
    let known = |state: &mut State| state.snapshots.pins_are_settled().then_some(Ok(()));
    shared.wait_while_open(known).await?;
    let mut manifest = shared.manifest.lock().await;
    // Somebody else may have done it meanwhile.
    if find().is_none() {
        return Ok(());
    }
    let (garbage, names) = {
        let state = shared.state.borrow();
        if !state.snapshots.pins_known() {
            // Others reach nobody knows what.
            reached.clear();
        }
        let mut garbage = state.objects.table.held_once(&reached);
        // What is in other streams is not ours to delete.
        garbage.retain(|id| id.stream == state.stream);
        // Where head and snapshot share pieces of a checkpoint, the head has them still.
        if !weir_device::mutant("shared_checkpoint_deleted") {
            garbage.retain(|id| !state.checkpoint.knows(id.seq));
        }
        let names = state.garbage.names_with(&garbage);
        (garbage, names)
    };
    let gone = |m: &mut Manifest| {
        m.snapshots.retain(|s| s.id != id);
        m.pending_deletions = names;
    };
    publish(shared, &mut manifest, gone).await?;
    {
        let mut state = shared.state.borrow_mut();
        state.objects.table.unpin(&reached);
        state.on_garbage_listed(garbage);
    }
    drop(manifest);
    shared.listed.notify_one();
    shared.ties.notify_one();
    shared.wake_collector();
    Ok(())
}

async fn roll_back(shared: &Rc<Shared>, name: &VolumeName) -> Result<(), DeviceError> {
    shared.check_failure()?;
    shared.check_owned()?;
    shared.check_not_closing()?;
    let _frozen = Frozen::new(shared);
    shared.settle().await?;
    let snapshot = shared.find_snapshot(name)?;
    let (store, env, key) = (&shared.store, &shared.env, shared.key.as_ref());
    let loaded = load::checkpoint(store, env, shared.id, key, snapshot.root(shared.id)).await?;
    loop {
        // Reading took its time; nothing was written meanwhile, but a checkpoint may have begun.
        shared.settle().await?;
        // It may have been deleted; with the lock it is not being deleted now.
        let manifest = shared.manifest.lock().await;
        let found = shared.find_snapshot(name)?;
        drop(manifest);
        if found.id != snapshot.id {
            let message = format!("snapshot {name} of volume {} was replaced meanwhile", shared.id);
            return Err(DeviceError::new(ErrorKind::NotFound, message));
        }
        // Waiting for the lock took its time as well. Nothing can begin between this look and the change below.
        if shared.state.borrow().is_settled() || weir_device::mutant("rollback_looks_once") {
            break;
        }
    }
    set_back(&mut shared.state.borrow_mut(), loaded, &snapshot);
    let generation = shared.generation.get() + 1;
    shared.generation.set(generation);
    shared.events.push(Event::ContentReplaced { generation });
    shared.events.push(Event::Resized(snapshot.size));
    commit::begin_checkpoint(shared);
    shared.settle().await?;
    // Before another write is taken: on the state before the rollback it must not be replayed.
    shared.note_newest_manifest().await?;
    shared.wake_collector();
    shared.wait_for_lease().await
}

/// Puts the map of a snapshot in the place of the head's, all of it to be written with the next checkpoint.
fn set_back(state: &mut State, mut loaded: load::Loaded, snapshot: &SnapshotRecord) {
    let gone = loaded.objects.table.replace(&state.objects.table);
    let ours = |id: &ObjectId| id.stream == state.stream;
    state.garbage.found.extend(gone.into_iter().filter(ours));
    // What changed since the head's checkpoint and is in neither of the two was never written, and is not written now.
    for piece in state.checkpoint.map_pieces().chain(loaded.checkpoint.map_pieces()) {
        loaded.objects.map.mark_dirty(piece);
    }
    state.objects = loaded.objects;
    state.overlay = Overlay::new();
    state.size = snapshot.size;
}
