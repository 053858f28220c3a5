//! Objects that nothing reaches any more, from their death to their deletion.
//!
//! An object may go only when the published checkpoint is as of its own sequence and of the one that took its last live
//! byte, and when a manifest version of ours lists it as pending. Deletions go on after a crash where they stopped.
//!
//! Invariants
//!  G1. What is deleted is listed in the newest manifest version that counts, which is ours.
//!  G2. What is listed is reached neither by the checkpoint of the same version nor by any object after it.
//!  G3. A read that has resolved its bytes finds them: what it may have resolved goes after it.
//!  G4. What a replicator copies, by a note that is young, goes after its note.
//!  G5. A manifest version lists so many objects at most ([`PENDING_LISTED_MAX`], and what one deleted snapshot needed
//!      besides): a store that denies deletions does not make every version longer without end. More of them wait in
//!      memory until others are gone. What waits when the process ends is found by `weir volume check` and deleted by
//!      `weir volume repair`.

use std::collections::{BTreeMap, BTreeSet};
use std::pin::pin;
use std::rc::Rc;
use std::time::Duration;

use futures_util::StreamExt;
use futures_util::stream;
use weir_device::VolumeId;
use weir_store::{Store, StoreError};

use crate::format::manifest::Manifest;
use crate::ids::{ObjectId, ObjectSeq};
use crate::limits::PENDING_LISTED_MAX;
use crate::replica::NoteWatch;
use crate::volume::{Shared, State};

/// Deletions in flight: they hide each other's latency, and are cheap for a store.
const DELETES_IN_FLIGHT_MAX: usize = 4;

/// Objects waiting for their deletion above which it is not slowed down for the sake of others any more: half a
/// gigabyte with objects of 8 MiB. Clients that overwrite the same bytes again and again make garbage faster than it is
/// deleted in the background.
const DELETIONS_PACED_MAX: u64 = 64;

/// Deletions that fail one after another before the others of a version are left for the next one.
const DELETES_FAILED_MAX: usize = 16;

/// How long after a deletion that failed, or that the lease left no time for, it is tried again while nothing else is
/// listed.
const DELETION_PAUSE: Duration = Duration::from_secs(60);

/// What waits for its deletion.
#[derive(Debug, Default)]
pub(crate) struct Garbage {
    /// Objects that an opening found unneeded: beyond the prefix, of a checkpoint that was never published, or dead in
    /// the published one. Listed with the next version, though some are gone already.
    pub(crate) found: BTreeSet<ObjectId>,
    /// What the newest version had no room for (G5).
    beyond: Vec<ObjectId>,
    /// Listed, and not known to be gone; with the reads that G3 waits for: those before this one.
    pending: BTreeMap<ObjectId, ReadNumber>,
    reads: BTreeSet<ReadNumber>,
    next_read: ReadNumber,
    /// Something waits for a read.
    waits_for_read: bool,
    /// Objects deleted by this opening.
    pub(crate) deleted: u64,
}

/// Reads of objects, in the order of their begins.
type ReadNumber = u64;

/// A read of objects that is under way.
pub(crate) struct ReadPin {
    shared: Rc<Shared>,
    number: ReadNumber,
}

impl ReadPin {
    /// Call before anything can run that changes the map the read resolved its bytes with.
    pub(crate) fn new(shared: &Rc<Shared>, garbage: &mut Garbage) -> Self {
        let number = garbage.next_read;
        garbage.next_read += 1;
        garbage.reads.insert(number);
        Self { shared: Rc::clone(shared), number }
    }
}

impl Drop for ReadPin {
    fn drop(&mut self) {
        let mut state = self.shared.state.borrow_mut();
        let garbage = &mut state.garbage;
        let was_oldest = garbage.reads.first() == Some(&self.number);
        garbage.reads.remove(&self.number);
        if was_oldest && std::mem::take(&mut garbage.waits_for_read) {
            self.shared.listed.notify_one();
        }
    }
}

/// How a manifest names an object of the volume's own stream.
pub(crate) fn name_of(id: &ObjectId) -> String {
    let key = id.key();
    key.rsplit('/').next().expect("a key has parts").to_owned()
}

impl Garbage {
    /// Goes on where the last opening stopped: `manifest` made us the holder.
    pub(crate) fn new(manifest: &Manifest, found: Vec<ObjectId>) -> Self {
        let found = found.into_iter().collect();
        let pending = if weir_device::mutant("garbage_forgotten_at_opening") {
            BTreeSet::new()
        } else {
            Self::listed(manifest)
        };
        let pending = pending.into_iter().map(|id| (id, 0)).collect();
        Self { found, pending, ..Self::default() }
    }

    /// The objects that a manifest lists.
    pub(crate) fn listed(manifest: &Manifest) -> BTreeSet<ObjectId> {
        let prefix = ObjectId::prefix(VolumeId(manifest.volume.0));
        let parse = |name: &String| ObjectId::parse_key(&format!("{prefix}{name}"));
        manifest.pending_deletions.iter().filter_map(parse).collect()
    }

    /// Objects that nothing needs and that are not known to be gone.
    pub(crate) fn pending(&self) -> u64 {
        (self.pending.len() + self.beyond.len()) as u64
    }

    /// Whether all that was listed is gone, and more waits to be listed.
    fn wants_listing(&self) -> bool {
        self.pending.is_empty() && !self.beyond.is_empty()
    }

    /// G5: what the next version lists of `garbage`. The rest waits.
    fn fit(&mut self, mut garbage: Vec<ObjectId>, most: usize) -> Vec<ObjectId> {
        garbage.append(&mut self.beyond);
        let room = most.saturating_sub(self.pending.len());
        self.beyond = garbage.split_off(room.min(garbage.len()));
        garbage
    }

    /// G3: what may go now.
    fn free_of_reads(&mut self) -> Vec<ObjectId> {
        let mut oldest = self.reads.first().copied().unwrap_or(ReadNumber::MAX);
        if weir_device::mutant("deletion_ignores_reads") {
            oldest = ReadNumber::MAX;
        }
        let free = self.pending.iter().filter(|(_, before)| **before <= oldest);
        let free: Vec<ObjectId> = free.map(|(id, _)| *id).collect();
        self.waits_for_read = free.len() < self.pending.len();
        free
    }

    /// All that a manifest version lists which adds `more`.
    pub(crate) fn names_with(&self, more: &[ObjectId]) -> Vec<String> {
        self.pending.keys().chain(more).map(name_of).collect()
    }
}

impl State {
    /// A checkpoint as of `as_of` is about to be published: what may go once it is.
    pub(crate) fn garbage_as_of(&mut self, as_of: ObjectSeq) -> Vec<ObjectId> {
        if !self.snapshots.pins_known() {
            // What snapshots reach is still being read: everything waits for the next checkpoint.
            return Vec::new();
        }
        let stream = self.stream;
        let all = weir_device::mutant("delete_dead_after_checkpoint");
        let died_by = if all { ObjectSeq(u64::MAX) } else { as_of };
        let mut garbage = self.objects.table.take_dead(died_by);
        if weir_device::mutant("clones_keep_garbage") && !self.origins.is_empty() {
            garbage.clear();
        }
        let superseded = self.checkpoint.take_superseded(as_of).into_iter();
        garbage.extend(superseded.map(|(seq, epoch)| ObjectId { stream, seq, epoch }));
        garbage.extend(std::mem::take(&mut self.garbage.found));
        // What died of other streams is not ours to delete, and a manifest has names of this one only.
        garbage.retain(|id| id.stream == stream || weir_device::mutant("shared_dead_listed"));
        garbage.retain(|id| !self.objects.table.is_pinned(id));
        self.garbage.fit(garbage, PENDING_LISTED_MAX)
    }

    /// The version that lists `garbage` counts.
    pub(crate) fn on_garbage_listed(&mut self, garbage: Vec<ObjectId>) {
        let before = self.garbage.next_read;
        self.garbage.pending.extend(garbage.into_iter().map(|id| (id, before)));
    }
}

/// The deleter task of a volume.
pub(crate) async fn run(shared: Rc<Shared>) {
    let mut notes = NoteWatch::default();
    loop {
        let mut listed = pin!(shared.listed.notified());
        listed.as_mut().enable();
        if shared.stopped.get() || shared.state.borrow().failure.is_some() {
            return;
        }
        let mut pending = shared.state.borrow_mut().garbage.free_of_reads();
        let held_back = hold_back(&shared, &mut notes, &mut pending).await;
        delete_all(&shared, pending.clone()).await;
        let is_left = {
            let left = &shared.state.borrow().garbage.pending;
            pending.iter().any(|id| left.contains_key(id))
                && !weir_device::mutant("deletions_given_up")
        };
        if shared.state.borrow().garbage.wants_listing() {
            shared.state.borrow_mut().checkpoint.wanted = true;
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

/// Where deletions go: in the background, unless so much waits that a writer fills the store with what nothing needs.
fn deleter_store(shared: &Shared) -> Store {
    if shared.state.borrow().garbage.pending() > DELETIONS_PACED_MAX {
        return shared.store.clone();
    }
    shared.collector_store()
}

async fn delete(shared: &Rc<Shared>, id: ObjectId) -> Result<(), (ObjectId, StoreError)> {
    // G1: without its lease a volume does not know whether the newest version is still its own.
    match shared.delete_key(deleter_store(shared), id.key()).await {
        Some(Ok(())) => {
            let mut state = shared.state.borrow_mut();
            state.garbage.pending.remove(&id);
            state.garbage.deleted += 1;
            Ok(())
        }
        Some(Err(error)) => Err((id, error)),
        None => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use weir_journal::Epoch;

    use super::*;

    fn ids(numbers: std::ops::Range<u64>) -> Vec<ObjectId> {
        let id = |n| ObjectId { stream: VolumeId([0; 16]), seq: ObjectSeq(n), epoch: Epoch(1) };
        numbers.map(id).collect()
    }

    #[test]
    fn a_version_lists_no_more_than_fits_and_the_rest_once_others_are_gone() {
        let mut garbage = Garbage::default();
        let listed = garbage.fit(ids(0..3), 8);
        assert_eq!(listed, ids(0..3));
        garbage.pending.extend(listed.into_iter().map(|id| (id, 0)));
        let listed = garbage.fit(ids(3..13), 8);
        assert_eq!(listed, ids(3..8));
        garbage.pending.extend(listed.into_iter().map(|id| (id, 0)));
        assert_eq!((garbage.pending(), garbage.wants_listing()), (13, false));
        assert_eq!(garbage.fit(ids(13..14), 8), [], "the store denies deletions");
        garbage.pending.clear();
        assert!(garbage.wants_listing());
        let mut listed = garbage.fit(Vec::new(), 8);
        listed.sort();
        assert_eq!(listed, ids(8..14));
        assert_eq!((garbage.pending(), garbage.wants_listing()), (0, false));
    }
}
