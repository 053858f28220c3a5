//! Getting back what a takeover or an adoption gave up: a new volume is made of what was taken over and of what the old
//! journal holds.
//!
//! A takeover goes on with what the store holds, and the journal that it went on without may turn up later, with
//! acknowledged writes. Replaying it over what was written since would be wrong; so would be throwing either away. So a
//! taker keeps its first map as a snapshot, before it acknowledges anything, and the old journal is replayed onto a
//! clone of that. An adoption of a copied journal is the same: what the taker has is the store's prefix and what the
//! copy holds, and the original may have taken more after it was copied.
//!
//! Invariants
//!  G1. The version that owns sequences after a takeover names the journal that was given up. Before the first
//!      acknowledgement, here or in a later opening, a snapshot of the map as of then counts.
//!  G2. The record goes when the journal that it names was opened or given up by its own host, or the snapshot deleted.
//!      A copy of that journal settles nothing: the original may hold more.
//!  G3. The snapshot of a record holds every write up to its `after_write`, and beyond that nothing but writes of the
//!      journal that it names, in order. So replaying what that journal holds behind `after_write` gives its state,
//!      also where the snapshot holds some of it.

use weir_device::{Env, VolumeId};
use weir_journal::{FileMatch, RecoveredPiece, WriteNumber};
use weir_store::Store;

use crate::error::LogError;
use crate::format::manifest::{HexId, Manifest, SalvageRecord};
use crate::ids::WriteMark;
use crate::own::manifests;
use crate::recover::evidence::JournalHere;
use crate::recover::evidence::{Decision, JournalView};

/// What an opening gives up that does not go on with the journal of the newest opening that owns sequences, or with a
/// copy of it, unless that was closed. An opening that took over and ended before it owned sequences leaves this to the
/// next one.
pub(crate) fn given_up(
    manifest: &Manifest,
    journal: Option<&JournalView>,
    decision: &Decision,
) -> Option<SalvageRecord> {
    let is_copy = journal.is_some_and(|journal| journal.file == FileMatch::Other);
    let is_copy = is_copy && !weir_device::mutant("adoption_keeps_nothing");
    let goes_on = matches!(decision, Decision::Replay(_)) && !is_copy;
    if goes_on || manifest.holder.is_none() {
        return None;
    }
    let owner = manifest.newest_owner()?;
    let closed = manifest.closed.map(|closed| closed.opening);
    (owner.opening.is_none() || owner.opening != closed).then_some(SalvageRecord {
        epoch: owner.epoch,
        opening: owner.opening,
        journal: owner.journal,
        after_write: WriteMark::default().into(),
        taken_at: 0,
        snapshot: None,
    })
}

/// The last write up to which an opening has everything, without a gap and undamaged: what the store holds, and of the
/// journal that it goes on with what follows.
pub(crate) fn whole_through(
    committed: WriteMark,
    pieces: &[RecoveredPiece],
    decision: &Decision,
) -> WriteMark {
    if !matches!(decision, Decision::Replay(_)) {
        return committed;
    }
    let mut through = committed;
    for found in pieces.iter().filter(|found| mark_of(found) > committed) {
        if found.poisoned || found.piece.write != through.write.next() {
            break;
        }
        through = mark_of(found);
    }
    through
}

/// G3, for an opening that has everything `through` a write: what the records say that wait for its first map. An
/// opening before it that went on with more may be gone, with its journal.
pub(crate) fn first_map_holds(records: &mut [SalvageRecord], through: WriteMark) {
    if weir_device::mutant("first_map_holds_too_much") {
        return;
    }
    for record in records.iter_mut().filter(|record| record.snapshot.is_none()) {
        record.after_write = WriteMark::from(record.after_write).min(through).into();
    }
}

/// The last write of a journal that the volume went on without and that its history holds all the same: the snapshot
/// that was taken holds it, and so did the volume.
pub(crate) fn held_through(manifest: &Manifest, journal: &JournalView) -> Option<WriteMark> {
    let counts = !weir_device::mutant("adopted_writes_asked_about");
    let taken = manifest.salvage.iter().filter(|record| counts && record.snapshot.is_some());
    taken.filter(|record| is_of(record, journal)).map(|record| record.after_write.into()).max()
}

pub(crate) fn mark_of(found: &RecoveredPiece) -> WriteMark {
    WriteMark { epoch: found.piece.epoch, write: found.piece.write }
}

/// How many of the numbers from the one after `held` to `last` are not among these, which go up.
pub(crate) fn count_missing(
    held: WriteNumber,
    numbers: impl Iterator<Item = WriteNumber>,
    last: WriteNumber,
) -> u64 {
    let mut next = held.next();
    let mut missing = 0;
    for number in numbers.chain([last.next()]) {
        missing += number.0.saturating_sub(next.0);
        next = next.max(number.next());
    }
    missing
}

/// Whether a record names this journal.
pub(crate) fn is_of(record: &SalvageRecord, journal: &JournalView) -> bool {
    match record.opening {
        Some(opening) => journal.knows(opening),
        None => record.journal == journal.journal && record.epoch == journal.epoch,
    }
}

/// Whether a volume went on without this journal and keeps what a salvage needs. The superblock says it: neither the
/// key nor what the journal holds is needed.
///
/// # Errors
/// What the store says.
pub async fn went_on_without(
    store: &Store,
    env: &Env,
    volume: VolumeId,
    journal: &JournalHere,
) -> Result<bool, LogError> {
    let manifest = manifests::newest(store, env, volume).await?;
    let mut kept = manifest.snapshots.iter().filter(|snapshot| !snapshot.deleting);
    let record = manifest.salvage.iter().find(|record| is_of(record, &journal.0));
    Ok(record.is_some_and(|record| kept.any(|snapshot| record.snapshot == Some(snapshot.id))))
}

/// G2: drops the records that are settled by an opening with this journal; the snapshots that are not needed any more.
pub(crate) fn settle(manifest: &mut Manifest, journal: Option<&JournalView>) -> Vec<HexId> {
    let there: Vec<HexId> =
        manifest.snapshots.iter().filter(|s| !s.deleting).map(|s| s.id).collect();
    let mut unneeded = Vec::new();
    manifest.salvage.retain(|record| {
        let settled = journal.is_some_and(|journal| {
            let is_itself =
                journal.file != FileMatch::Other || weir_device::mutant("copy_settles_original");
            is_itself && is_of(record, journal)
        });
        if settled {
            unneeded.extend(record.snapshot);
        }
        !settled && record.snapshot.is_none_or(|id| there.contains(&id))
    });
    unneeded
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_that_are_missing_are_counted_wherever_they_are() {
        let missing = |held, numbers: &[u64], last| {
            let numbers = numbers.iter().map(|number| WriteNumber(*number));
            count_missing(WriteNumber(held), numbers, WriteNumber(last))
        };
        assert_eq!(missing(10, &[11, 12], 12), 0);
        assert_eq!(missing(89, &[101, 102], 102), 11, "in front");
        assert_eq!(missing(10, &[11, 15, 17], 17), 4, "in the middle");
        assert_eq!(missing(10, &[11], 13), 2, "behind");
        assert_eq!(missing(10, &[], 20), 10, "all");
        assert_eq!(missing(10, &[], 10), 0);
        assert_eq!(missing(10, &[], 5), 0, "the snapshot is ahead");
    }
}
