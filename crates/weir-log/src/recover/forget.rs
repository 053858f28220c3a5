//! Which openings a manifest need not name any more, so that openings that store nothing do not make every later
//! version longer. A pure function of the manifest: what objects there are is not asked.
//!
//! An entry serves two purposes. A sequence belongs to the last entry whose `first_sequence` is at or below it. And the
//! entries tell `judge` what became of the opening of a local journal.
//!
//! Invariants
//!  F1. Every sequence has the same owner as before, also for objects that land late.
//!  F2. The newest owner, and so whose journal is replayed, is the same as before.
//!  F3. Dropping an entry never makes a journal look as if the store held its writes. A journal whose opening was
//!      followed by a dropped entry finds no successor, so everything in it counts as unsent, and it is refused instead
//!      of set aside.
//!
//! Entries without a name stay: journals of programs that knew no openings are known by them, and no more are added.

use std::collections::BTreeSet;

use crate::format::manifest::{EpochEntry, Manifest};
use crate::limits::OPENINGS_KEPT;

/// Drops what is not needed from the version that an opening publishes to become the holder. Call before its own entry
/// is added.
///
/// An entry without a first sequence goes. Its writer would have to publish a version to own any, and the next version
/// is ours: it is fenced, and neither acknowledged nor sent anything. F2 and F3 ask owners alone.
///
/// Of two owners in a row with the same first sequence the earlier one has none: for no sequence is it the last one at
/// or below (F1). The newest [`OPENINGS_KEPT`] owners stay whatever they own (F2), so that a host that was away for so
/// many openings is told what became of its journal. For an older one it is as if the store did not know it (F3): a
/// later owner whose `previous` the journal knows is not mistaken for the one that went, because a journal that was
/// followed by another owner announces and owns again only when it holds nothing.
pub(crate) fn forget_openings(manifest: &mut Manifest) {
    let is_owner = |entry: &&EpochEntry| entry.first_sequence.is_some();
    let owners: Vec<EpochEntry> = manifest.epochs.iter().filter(is_owner).copied().collect();
    let old = owners.len().saturating_sub(OPENINGS_KEPT);
    let empty = owners.iter().zip(owners.iter().skip(1)).take(old);
    let empty = empty.filter(|(entry, next)| entry.first_sequence == next.first_sequence);
    let empty: BTreeSet<u64> = empty.map(|(entry, _)| entry.epoch).collect();
    manifest.epochs.retain(|entry| {
        let needed = entry.first_sequence.is_some() && !empty.contains(&entry.epoch);
        needed || entry.opening.is_none()
    });
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::format::manifest::HexId;
    use crate::ids::ObjectSeq;

    fn manifest(entries: impl IntoIterator<Item = (Option<u64>, bool)>) -> Manifest {
        let text = include_str!("../../testdata/v3/manifest.json");
        let mut manifest: Manifest = serde_json::from_str(text).expect("a manifest");
        let entry = |(epoch, (first_sequence, named)): (u64, (Option<u64>, bool))| {
            let mut id = [0; 16];
            id[..8].copy_from_slice(&epoch.to_le_bytes());
            let opening = named.then_some(HexId(id));
            let (after_write, previous, journal) = (None, None, HexId([7; 16]));
            EpochEntry { epoch, first_sequence, after_write, journal, opening, previous }
        };
        manifest.epochs = (1..).zip(entries).map(entry).collect();
        manifest
    }

    fn epochs(manifest: &Manifest) -> Vec<u64> {
        manifest.epochs.iter().map(|entry| entry.epoch).collect()
    }

    #[test]
    fn every_sequence_keeps_its_owner() {
        // Three openings in a row begin at each sequence, and one in five never owned any.
        let count = 6 * OPENINGS_KEPT as u64;
        let first = |n: u64| (n % 5 != 3).then_some(1 + n / 3);
        let mut forgot = manifest((0..count).map(|n| (first(n), true)));
        let before = forgot.clone();
        forget_openings(&mut forgot);
        for seq in (0..=count).map(ObjectSeq) {
            assert_eq!(forgot.owner_of(seq), before.owner_of(seq), "{seq:?}");
        }
        assert_eq!(forgot.newest_owner(), before.newest_owner());
        assert!(forgot.epochs.len() < before.epochs.len() / 2, "{} stay", forgot.epochs.len());
        let once = forgot.clone();
        forget_openings(&mut forgot);
        assert_eq!(forgot, once, "there is nothing more to forget");
    }

    #[test]
    fn an_opening_that_owns_nothing_goes_once_another_comes() {
        let mut forgot = manifest([(None, true), (Some(1), true), (None, true), (None, true)]);
        forget_openings(&mut forgot);
        assert_eq!(epochs(&forgot), [2]);
    }

    #[test]
    fn the_newest_owners_stay_though_they_stored_nothing() {
        let newest = OPENINGS_KEPT as u64;
        let mut forgot = manifest((0..newest + 3).map(|_| (Some(9), true)));
        forget_openings(&mut forgot);
        assert_eq!(epochs(&forgot), (4..=newest + 3).collect::<Vec<_>>());
    }

    #[test]
    fn openings_without_a_name_stay() {
        let old = [(Some(1), false), (None, false), (Some(1), false)];
        let new = (0..2 * OPENINGS_KEPT).map(|_| (Some(1), true));
        let mut forgot = manifest(old.into_iter().chain(new));
        forget_openings(&mut forgot);
        assert_eq!(epochs(&forgot)[..3], [1, 2, 3]);
        assert_eq!(forgot.epochs.len(), 3 + OPENINGS_KEPT);
    }
}
