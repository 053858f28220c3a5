//! References between an open volume and its clones and origins: releases deleted snapshots that no clone needs any
//! more, and takes away the volume's own notes at origins that it needs no object of. Runs after an opening, with
//! every published checkpoint, and once a minute while a deleted snapshot waits for its clones: a volume that nobody
//! writes to publishes none.

use std::pin::pin;
use std::rc::Rc;
use std::time::Duration;

use weir_device::{DeviceError, ErrorKind};
use weir_store::RetryPolicy;

use crate::error::LogError;
use crate::format::dependant::Dependant;
use crate::format::manifest::{HexId, OriginRecord};
use crate::limits::REFERENCES_LOOK_INTERVAL;
use crate::lineage::clones::note_of;
use crate::lineage::dependants::{self, Standing};
use crate::volume::shared::{Shared, State};
use crate::volume::task::pins;

/// Pause before a store that fails is asked again while somebody waits for the answer.
const LOOK_PAUSE: Duration = Duration::from_secs(1);

/// The task that looks after clone references.
pub(crate) async fn run(shared: Rc<Shared>) {
    let mut thorough = true;
    loop {
        let mut due = pin!(shared.references.notified());
        due.as_mut().enable();
        if shared.stopped.get() || shared.state.borrow().failure.is_some() {
            return;
        }
        match look(&shared, thorough).await {
            Ok(()) => thorough = false,
            Err(error) => {
                // Nothing is released; the next look tries again.
                tracing::debug!(volume = %shared.id, %error, "looking at clones and origins");
            }
        }
        if shared.state.borrow().snapshots.listed.iter().any(|snapshot| snapshot.deleting) {
            let _ = tokio::time::timeout(REFERENCES_LOOK_INTERVAL, due).await;
        } else {
            due.await;
        }
    }
}

async fn look(shared: &Rc<Shared>, thorough: bool) -> Result<(), DeviceError> {
    let deleting: Vec<HexId> = {
        let state = shared.state.borrow();
        state.snapshots.listed.iter().filter(|s| s.deleting).map(|s| s.id).collect()
    };
    if !deleting.is_empty() {
        let mut notes = notes_of(shared).await?;
        notes.retain(|note| deleting.iter().any(|id| is_about(note, *id)));
        if thorough {
            let (asked, mut needed) = (std::mem::take(&mut notes), Vec::new());
            for note in asked {
                if is_needed(shared, &note).await? {
                    needed.push(note);
                }
            }
            notes = needed;
        }
        for id in deleting {
            if !notes.iter().any(|note| is_about(note, id)) {
                pins::release(shared, id).await?;
            }
        }
    }
    drop_unused_origins(shared).await
}

async fn notes_of(shared: &Shared) -> Result<Vec<Dependant>, DeviceError> {
    if weir_device::mutant("dependants_ignored") {
        return Ok(Vec::new());
    }
    Ok(dependants::list(&shared.store, &shared.env, shared.id).await.map_err(LogError::Store)?)
}

/// Whether what left the note may need that snapshot: a replica may need any.
fn is_about(note: &Dependant, snapshot: HexId) -> bool {
    note.snapshot.is_none_or(|id| id == snapshot)
}

/// Whether anybody needs a snapshot that is being deleted, as of a version that counts. Waits for a failing store.
pub(crate) async fn is_depended_on(shared: &Shared, snapshot: HexId) -> Result<bool, DeviceError> {
    loop {
        match notes_of(shared).await {
            Ok(notes) => return Ok(notes.iter().any(|note| is_about(note, snapshot))),
            Err(error) if error.kind() == ErrorKind::Unavailable => {
                tracing::warn!(volume = %shared.id, %error, "asking for the clones of a snapshot");
                shared.check_failure()?;
                tokio::time::sleep(LOOK_PAUSE).await;
            }
            Err(error) => return Err(error),
        }
    }
}

/// Whether the clone of a note needs it; takes away one that does not stand for anything.
async fn is_needed(shared: &Shared, note: &Dependant) -> Result<bool, DeviceError> {
    match dependants::standing(&shared.store, &shared.env, note).await? {
        Standing::Needed(_) | Standing::Unfinished => Ok(true),
        Standing::Void => {
            let removed = dependants::remove(&shared.store, &shared.env, note).await;
            removed.map_err(LogError::Store)?;
            tracing::info!(volume = %shared.id, clone = %note.clone, "the note of a clone that needs nothing goes");
            Ok(false)
        }
    }
}

impl State {
    /// The origins that neither the head as published nor any snapshot names an object of.
    pub(crate) fn unused_origins(&self) -> Vec<OriginRecord> {
        if self.origins.is_empty() || self.head.published.is_none() || !self.snapshots.pins_known()
        {
            return Vec::new();
        }
        let mut named = self.head.objects.table.shared_streams();
        if weir_device::mutant("note_dropped_early")
            && self.head.objects.table.usage().shared_live_bytes == 0
        {
            named.clear();
        }
        let is_unused = |origin: &&OriginRecord| !named.iter().any(|s| s.0 == origin.stream.0);
        self.origins.iter().filter(is_unused).cloned().collect()
    }
}

/// Takes unused origins out of the manifest, and then takes away the notes left with them. A note that a crash leaves
/// behind counts for nothing, because the manifest does not name its origin any more.
async fn drop_unused_origins(shared: &Rc<Shared>) -> Result<(), DeviceError> {
    if shared.state.borrow().unused_origins().is_empty() {
        return Ok(());
    }
    let gone = {
        let mut manifest = shared.manifest.lock().await;
        shared.check_failure()?;
        shared.check_not_closing()?;
        // Under the lock no checkpoint is between its listing of what died and the version that counts.
        let gone = shared.state.borrow().unused_origins();
        if gone.is_empty() {
            return Ok(());
        }
        let is_gone = |origin: &OriginRecord| gone.iter().any(|g| g.id == origin.id);
        let forever = RetryPolicy::forever();
        let published = manifest.publish(&shared.env, &forever, |m| {
            m.origins.retain(|origin| !is_gone(origin));
        });
        if let Err(error) = published.await {
            return Err(shared.fail_publishing(error));
        }
        shared.state.borrow_mut().origins.clone_from(&manifest.current().origins);
        gone
    };
    shared.progress.notify_waiters();
    for origin in gone {
        tracing::info!(volume = %shared.id, origin = origin.volume, "nothing is shared with an origin any more");
        let note = note_of(&origin, shared.id);
        dependants::remove(&shared.store, &shared.env, &note).await.map_err(LogError::Store)?;
    }
    Ok(())
}
