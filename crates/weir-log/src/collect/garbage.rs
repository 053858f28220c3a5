//! Objects that nothing reaches any more, from their death to their deletion.
//!
//! An object may go only when the published checkpoint is as of its own sequence and of the one that took its last live
//! byte, and when a manifest version of ours lists it as pending. Deletions go on after a crash where they stopped.
//!
//! Invariants
//!  G1. What is deleted is listed in the newest manifest version that counts, which is ours.
//!  G2. What is listed is reached neither by the checkpoint of the same version nor by any object after it.
//!  G3. An object is deleted only after every read has ended that may have resolved to it.
//!  G4. While a replicator's note is younger than the replica's patience, no object up to the sequence in the note is
//!      deleted.
//!  G5. A manifest version lists so many objects at most (`PENDING_LISTED_MAX`, and what one deleted snapshot needed
//!      besides): a store that denies deletions does not make every version longer without end. More of them wait in
//!      memory until others are gone. What waits when the process ends is found by `weir volume check` and deleted by
//!      `weir volume repair`.

use std::cell::{Cell, RefCell};
use std::collections::{BTreeMap, BTreeSet};
use std::rc::Rc;

use tokio::sync::Notify;
use weir_device::VolumeId;

use crate::format::manifest::Manifest;
use crate::ids::ObjectId;

/// What waits for its deletion, and the reads that it waits for. Owned by the deleter; it has a cell of its own, so
/// that a read may end whatever part of the volume is borrowed.
#[derive(Debug, Default)]
pub(crate) struct Garbage {
    waiting: RefCell<Waiting>,
    /// Something waits for a replicator (G4), which takes as long as that copies.
    pub(crate) held_back: Cell<bool>,
    /// Wakes the deleter: a version that lists garbage counts, a read that garbage waited for has ended, the lease is
    /// held again, or the volume stops.
    pub(crate) listed: Notify,
}

#[derive(Debug, Default)]
struct Waiting {
    /// Objects that an opening found unneeded: beyond the prefix, of a checkpoint that was never published, or dead in
    /// the published one. Listed with the next version, though some are gone already.
    found: BTreeSet<ObjectId>,
    /// What the newest version had no room for (G5).
    beyond: Vec<ObjectId>,
    /// Listed, and not known to be gone; with the reads that G3 waits for: those before this one.
    pending: BTreeMap<ObjectId, ReadNumber>,
    reads: BTreeSet<ReadNumber>,
    next_read: ReadNumber,
    /// Something waits for a read.
    waits_for_read: bool,
    /// Objects deleted by this opening.
    deleted: u64,
}

/// Number of a read of objects; reads that began later have higher numbers.
type ReadNumber = u64;

/// A read of objects that is under way: what was listed after it began is deleted after it ends (G3).
///
/// Its end borrows the garbage and nothing else. It may end while the volume's state is borrowed.
pub(crate) struct ReadPin {
    garbage: Rc<Garbage>,
    number: ReadNumber,
}

impl ReadPin {
    /// Call before anything can run that changes the map the read resolved its bytes with.
    pub(crate) fn new(garbage: &Rc<Garbage>) -> Self {
        let number = {
            let mut waiting = garbage.waiting.borrow_mut();
            let number = waiting.next_read;
            waiting.next_read += 1;
            waiting.reads.insert(number);
            number
        };
        Self { garbage: Rc::clone(garbage), number }
    }
}

impl Drop for ReadPin {
    fn drop(&mut self) {
        let mut waiting = self.garbage.waiting.borrow_mut();
        let was_oldest = waiting.reads.first() == Some(&self.number);
        waiting.reads.remove(&self.number);
        if was_oldest && std::mem::take(&mut waiting.waits_for_read) {
            self.garbage.listed.notify_one();
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
        let waiting = Waiting { found, pending, ..Waiting::default() };
        Self { waiting: RefCell::new(waiting), ..Self::default() }
    }

    /// The objects that a manifest lists.
    pub(crate) fn listed(manifest: &Manifest) -> BTreeSet<ObjectId> {
        let prefix = ObjectId::prefix(VolumeId(manifest.volume.0));
        let parse = |name: &String| ObjectId::parse_key(&format!("{prefix}{name}"));
        manifest.pending_deletions.iter().filter_map(parse).collect()
    }

    /// Nothing needs these objects: the next version lists them.
    pub(crate) fn add_found(&self, found: impl IntoIterator<Item = ObjectId>) {
        self.waiting.borrow_mut().found.extend(found);
    }

    /// What was found unneeded, for the version that is about to list it.
    pub(crate) fn take_found(&self) -> BTreeSet<ObjectId> {
        std::mem::take(&mut self.waiting.borrow_mut().found)
    }

    /// Objects that nothing needs and that are not known to be gone.
    pub(crate) fn pending(&self) -> u64 {
        let waiting = self.waiting.borrow();
        (waiting.pending.len() + waiting.beyond.len()) as u64
    }

    /// Objects deleted by this opening.
    pub(crate) fn deleted(&self) -> u64 {
        self.waiting.borrow().deleted
    }

    /// Whether all that was listed is gone, and more waits to be listed.
    pub(crate) fn wants_listing(&self) -> bool {
        let waiting = self.waiting.borrow();
        waiting.pending.is_empty() && !waiting.beyond.is_empty()
    }

    /// G5: what the next version lists of `garbage`. The rest waits.
    pub(crate) fn fit(&self, mut garbage: Vec<ObjectId>, most: usize) -> Vec<ObjectId> {
        let mut waiting = self.waiting.borrow_mut();
        garbage.append(&mut waiting.beyond);
        let room = most.saturating_sub(waiting.pending.len());
        waiting.beyond = garbage.split_off(room.min(garbage.len()));
        garbage
    }

    /// G3: what may go now.
    pub(crate) fn free_of_reads(&self) -> Vec<ObjectId> {
        let mut waiting = self.waiting.borrow_mut();
        let mut oldest = waiting.reads.first().copied().unwrap_or(ReadNumber::MAX);
        if weir_device::mutant("deletion_ignores_reads") {
            oldest = ReadNumber::MAX;
        }
        let free = waiting.pending.iter().filter(|(_, before)| **before <= oldest);
        let free: Vec<ObjectId> = free.map(|(id, _)| *id).collect();
        waiting.waits_for_read = free.len() < waiting.pending.len();
        free
    }

    /// All that a manifest version lists which adds `more`.
    pub(crate) fn names_with(&self, more: &[ObjectId]) -> Vec<String> {
        self.waiting.borrow().pending.keys().chain(more).map(name_of).collect()
    }

    /// The version that lists `garbage` counts.
    pub(crate) fn on_listed(&self, garbage: Vec<ObjectId>) {
        let mut waiting = self.waiting.borrow_mut();
        let before = waiting.next_read;
        waiting.pending.extend(garbage.into_iter().map(|id| (id, before)));
    }

    /// Whether any of these is listed and not known to be gone.
    pub(crate) fn has_any(&self, ids: &[ObjectId]) -> bool {
        let waiting = self.waiting.borrow();
        ids.iter().any(|id| waiting.pending.contains_key(id))
    }

    /// An object is gone from the store.
    pub(crate) fn on_deleted(&self, id: &ObjectId) {
        let mut waiting = self.waiting.borrow_mut();
        waiting.pending.remove(id);
        waiting.deleted += 1;
    }
}

#[cfg(test)]
mod tests {
    use weir_journal::Epoch;

    use super::*;
    use crate::ids::ObjectSeq;

    fn ids(numbers: std::ops::Range<u64>) -> Vec<ObjectId> {
        let id = |n| ObjectId { stream: VolumeId([0; 16]), seq: ObjectSeq(n), epoch: Epoch(1) };
        numbers.map(id).collect()
    }

    #[test]
    fn a_version_lists_no_more_than_fits_and_the_rest_once_others_are_gone() {
        let garbage = Garbage::default();
        let listed = garbage.fit(ids(0..3), 8);
        assert_eq!(listed, ids(0..3));
        garbage.on_listed(listed);
        let listed = garbage.fit(ids(3..13), 8);
        assert_eq!(listed, ids(3..8));
        garbage.on_listed(listed);
        assert_eq!((garbage.pending(), garbage.wants_listing()), (13, false));
        assert_eq!(garbage.fit(ids(13..14), 8), [], "the store denies deletions");
        ids(0..8).iter().for_each(|id| garbage.on_deleted(id));
        assert!(garbage.wants_listing());
        let mut listed = garbage.fit(Vec::new(), 8);
        listed.sort();
        assert_eq!(listed, ids(8..14));
        assert_eq!((garbage.pending(), garbage.wants_listing()), (0, false));
    }
}
