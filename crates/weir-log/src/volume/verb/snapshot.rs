//! Taking and deleting snapshots, and setting a volume back to one.

use std::rc::Rc;

use weir_device::{DeviceError, ErrorKind, Event};

use crate::catalog::names::VolumeName;
use crate::format::manifest::{Manifest, SnapshotRecord};
use crate::ids::ObjectId;
use crate::map::load;
use crate::snapshot::snapshots::SNAPSHOTS_MAX;
use crate::volume::LogVolume;
use crate::volume::shared::{Frozen, Shared, State};
use crate::volume::task::commit;
use crate::volume::task::pins::{publish, release};
use crate::volume::task::references;
use crate::write::overlay::Overlay;

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
        state.head.checkpoint.wanted = true;
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

async fn roll_back(shared: &Rc<Shared>, name: &VolumeName) -> Result<(), DeviceError> {
    shared.check_failure()?;
    shared.check_owned()?;
    shared.check_not_closing()?;
    let _frozen = Frozen::new(shared);
    shared.settle().await?;
    let snapshot = shared.find_snapshot(name)?;
    let (store, env, key) = (&shared.store, &shared.env, shared.key.as_ref());
    let loaded = load::checkpoint(store, env, shared.id, key, snapshot.root(shared.id)).await?;
    // Reading took its time; nothing was written meanwhile, but a checkpoint may have begun.
    shared.settle_alone().await?;
    // It may have been deleted, or may be on the way to it.
    let found = shared.find_snapshot(name)?;
    if found.id != snapshot.id {
        let message = format!("snapshot {name} of volume {} was replaced meanwhile", shared.id);
        return Err(DeviceError::new(ErrorKind::NotFound, message));
    }
    set_back(shared, loaded, &snapshot);
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
fn set_back(shared: &Shared, mut loaded: load::Loaded, snapshot: &SnapshotRecord) {
    let state = &mut *shared.state.borrow_mut();
    let gone = loaded.objects.table.replace(&state.head.objects.table);
    let ours = |id: &ObjectId| id.stream == state.stream;
    shared.garbage.add_found(gone.into_iter().filter(ours));
    // What changed since the head's checkpoint and is in neither of the two was never written, and is not written now.
    for piece in state.head.checkpoint.map_pieces().chain(loaded.checkpoint.map_pieces()) {
        loaded.objects.map.mark_dirty(piece);
    }
    state.head.objects = loaded.objects;
    state.writes.overlay = Overlay::new();
    state.size = snapshot.size;
}
