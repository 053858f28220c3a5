//! The deleter: deletes what the newest manifest version lists, while the lease is held.

use std::pin::pin;
use std::rc::Rc;
use std::time::Duration;

use futures_util::StreamExt;
use futures_util::stream;
use weir_pacer::Class;
use weir_store::StoreError;

use crate::collect::garbage::Garbage;
use crate::ids::{ObjectId, ObjectSeq};
use crate::limits::PENDING_LISTED_MAX;
use crate::replica::NoteWatch;
use crate::volume::shared::{Shared, State};

/// Deletions in flight: they hide each other's latency, and are cheap for a store.
const DELETES_IN_FLIGHT_MAX: usize = 4;

/// Deletions that fail one after another before the others of a version are left for the next one.
const DELETES_FAILED_MAX: usize = 16;

/// How long after a deletion that failed, or that the lease left no time for, it is tried again while nothing else is
/// listed.
const DELETION_PAUSE: Duration = Duration::from_secs(60);

impl State {
    /// A checkpoint as of `as_of` is about to be published: what may go once it is.
    pub(crate) fn garbage_as_of(
        &mut self,
        garbage_of: &Garbage,
        as_of: ObjectSeq,
    ) -> Vec<ObjectId> {
        if !self.snapshots.pins_known() {
            // What snapshots reach is still being read: everything waits for the next checkpoint.
            return Vec::new();
        }
        let stream = self.stream;
        let all = weir_device::mutant("delete_dead_after_checkpoint");
        let died_by = if all { ObjectSeq(u64::MAX) } else { as_of };
        let mut garbage = self.head.objects.table.take_dead(died_by);
        if weir_device::mutant("clones_keep_garbage") && !self.origins.is_empty() {
            garbage.clear();
        }
        let superseded = self.head.checkpoint.take_superseded(as_of).into_iter();
        garbage.extend(superseded.map(|(seq, epoch)| ObjectId { stream, seq, epoch }));
        garbage.extend(garbage_of.take_found());
        // What died of other streams is not ours to delete, and a manifest has names of this one only.
        garbage.retain(|id| id.stream == stream || weir_device::mutant("shared_dead_listed"));
        garbage.retain(|id| !self.head.objects.table.is_pinned(id));
        garbage_of.fit(garbage, PENDING_LISTED_MAX)
    }
}

/// The deleter task of a volume.
pub(crate) async fn run(shared: Rc<Shared>) {
    let mut notes = NoteWatch::default();
    let garbage = &shared.garbage;
    loop {
        let mut listed = pin!(garbage.listed.notified());
        listed.as_mut().enable();
        if shared.stopped.get() || shared.state.borrow().failure.is_some() {
            return;
        }
        let mut pending = garbage.free_of_reads();
        let held_back = hold_back(&shared, &mut notes, &mut pending).await;
        garbage.held_back.set(held_back);
        delete_all(&shared, pending.clone()).await;
        let is_left = garbage.has_any(&pending) && !weir_device::mutant("deletions_given_up");
        if garbage.wants_listing() {
            shared.state.borrow_mut().head.checkpoint.wanted = true;
            shared.stored.notify_one();
        }
        shared.progress.notify_waiters();
        // What could not be deleted is tried again with what is listed next, and after a while: a volume may be idle.
        let patience = shared.options.replica_patience;
        let pause = if held_back { patience / 4 } else { DELETION_PAUSE };
        tokio::select! {
            biased;
            () = listed => {}
            () = tokio::time::sleep(pause), if held_back || is_left => {}
        }
    }
}

/// G4: leaves out what replicators copy; whether there is any.
async fn hold_back(
    shared: &Rc<Shared>,
    notes: &mut NoteWatch,
    pending: &mut Vec<ObjectId>,
) -> bool {
    if pending.is_empty() {
        return false;
    }
    // After the version that lists them: a replicator that does not see this version has left its note before.
    let patience = shared.options.replica_patience;
    let held = notes.held_through(&shared.store, &shared.env, shared.id, patience).await;
    let before = pending.len();
    match held {
        Ok(Some(through)) => pending.retain(|id| id.seq > through),
        Ok(None) => {}
        Err(error) => {
            tracing::warn!(volume = %shared.id, %error, "looking for replicas: nothing is deleted for now");
            pending.clear();
        }
    }
    pending.len() < before
}

/// Deletes what it can. Where the store denies one deletion after another, the others wait for the next version.
async fn delete_all(shared: &Rc<Shared>, pending: Vec<ObjectId>) {
    let count = pending.len();
    let deletions = pending.into_iter().map(|id| delete(shared, id));
    let mut deletions = stream::iter(deletions).buffer_unordered(DELETES_IN_FLIGHT_MAX);
    let (mut failed, mut in_a_row) = (None, 0);
    while let Some(deleted) = deletions.next().await {
        match deleted {
            Ok(()) => in_a_row = 0,
            Err(error) => {
                failed = Some(error);
                in_a_row += 1;
            }
        }
        if in_a_row == DELETES_FAILED_MAX {
            break;
        }
    }
    if let Some((object, error)) = failed {
        let volume = shared.id;
        tracing::warn!(%volume, %object, %error, of = count, "objects that nothing needs stay for now");
    }
}

async fn delete(shared: &Rc<Shared>, id: ObjectId) -> Result<(), (ObjectId, StoreError)> {
    // G1: without its lease a volume does not know whether the newest version is still its own.
    match shared.delete_key(shared.background_store(Class::Delete), id.key()).await {
        Some(Ok(())) => {
            shared.garbage.on_deleted(&id);
            Ok(())
        }
        Some(Err(error)) => Err((id, error)),
        None => Ok(()),
    }
}
