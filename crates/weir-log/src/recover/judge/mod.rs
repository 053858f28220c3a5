//! Whose journal a local journal is: whether it may be replayed into the volume that a manifest describes.
//!
//! Epochs order the openings of one history only. Backups, copies and machines that were cloned make several histories
//! of one volume, and a journal of one must never be replayed into another. So every opening has a random id, which the
//! journal, the manifest and every object name.
//!
//! Invariants
//!  H1. A journal is replayed without being asked for only if the newest opening that owns sequences is its own, by its
//!      id, or one that it announced.
//!  H2. What a journal holds is given up without a question only if it is certain that objects of this history hold it.
//!  H3. A journal that ends before a write that a witness has seen flushed under the same opening is not the one that
//!      the witness saw.
//!  H4. A store whose manifest is older than the version that a journal knows of was set back. What a version changed
//!      is in no journal: nobody goes on without being asked.
//!
//! Everything here is a pure function of what was read.

use weir_journal::{Epoch, FileMatch, WriteNumber};

use crate::format::manifest::{EpochEntry, Manifest};
use crate::ids::WriteMark;
use crate::recover::evidence::{
    AtStake, Consent, Decision, JournalView, StoreView, Wait, WitnessKind,
};
use crate::recover::refusal::{Refusal, RefusalReason};
use crate::recover::salvage;

#[cfg(test)]
mod tests;

/// What becomes of a journal, given what the store says.
pub(crate) fn decide(journal: &JournalView, store: &StoreView<'_>, consent: Consent) -> Decision {
    let decision = decide_by_openings(journal, store, consent);
    let Some(reason) = forgotten(journal, store.manifest) else { return decision };
    // A refusal for another reason tells the operator more than this one.
    if consent.accept_loss || matches!(decision, Decision::Refuse(_)) {
        return decision;
    }
    if consent.discard_journal {
        return Decision::SetAside(wait_without_journal(store));
    }
    Decision::Refuse(refusal(journal, store, reason, journal.at_stake(store.sent)))
}

/// H4. That the store was set back, if the journal knows a version of the manifest that it lacks.
fn forgotten(journal: &JournalView, newest: &Manifest) -> Option<RefusalReason> {
    let known = journal.manifest?;
    let is_there = known.number < newest.number
        || (known.number == newest.number && known.nonce == newest.nonce.0);
    let is_there = is_there || weir_device::mutant("manifest_forgotten_by_journal");
    (!is_there)
        .then_some(RefusalReason::StoreSetBack { known: known.number, newest: newest.number })
}

fn decide_by_openings(journal: &JournalView, store: &StoreView<'_>, consent: Consent) -> Decision {
    if is_continuation(journal, store) || weir_device::mutant("replay_superseded_journal") {
        return decide_continuation(journal, store, consent);
    }
    let wait = wait_for_others(journal, store);
    if journal.held.is_empty() {
        // A copy must not go on as the journal that it is a copy of.
        return match journal.file {
            FileMatch::Other => Decision::SetAside(wait),
            FileMatch::Same | FileMatch::Unknown => Decision::ReuseEmpty(wait),
        };
    }
    let successor = successor(journal, store);
    let beyond = successor.and_then(|entry| entry.after_write).map(WriteMark::from);
    // Whoever adopted a copy of it went on with what the copy held.
    let beyond = beyond.max(salvage::held_through(store.manifest, journal));
    let at_stake = journal.at_stake(beyond.unwrap_or_default());
    if at_stake.writes == 0
        || consent.discard_journal
        || weir_device::mutant("set_aside_what_is_at_stake")
    {
        return Decision::SetAside(wait);
    }
    let reason = match successor {
        Some(_) => RefusalReason::Superseded,
        None => RefusalReason::OtherHistory,
    };
    Decision::Refuse(refusal(journal, store, reason, at_stake))
}

/// H1.
fn is_continuation(journal: &JournalView, store: &StoreView<'_>) -> bool {
    let Some(newest) = store.manifest.newest_owner() else { return false };
    if journal.is_ours(newest) {
        return true;
    }
    if journal.opening.is_some() || journal.epoch == 0 {
        return false;
    }
    // Its program knew no openings, and may have died between owning sequences and saying so in the superblock. Under
    // such an opening no object was ever made.
    let known = store.manifest.epochs.iter().any(|entry| journal.is_ours(entry));
    let mut later = store.owners().filter(|entry| entry.epoch > journal.epoch);
    known
        && later.all(|entry| {
            entry.opening.is_none()
                && entry.journal == journal.journal
                && (!store.has_objects(entry)
                    || weir_device::mutant("objects_of_later_epoch_ignored"))
        })
}

fn decide_continuation(journal: &JournalView, store: &StoreView<'_>, consent: Consent) -> Decision {
    let unsent = journal.at_stake(store.sent.max(closed_at(journal, store)));
    if let Some((seen, by)) = set_back(journal, store)
        && !weir_device::mutant("witnesses_ignored")
    {
        // What was closed is all in the store, and a copy of its journal from before holds nothing else.
        if by == WitnessKind::Close || consent.discard_journal {
            return Decision::SetAside(wait_without_journal(store));
        }
        if consent.accept_loss {
            // What it holds goes on where the objects end: a prefix, without what it lacks.
            return Decision::Replay(wait_of_continuation(journal, store));
        }
        let reason = RefusalReason::SetBack { seen, by: by.phrase() };
        return Decision::Refuse(refusal(journal, store, reason, unsent));
    }
    if journal.file != FileMatch::Other || weir_device::mutant("copied_journal_replayed") {
        return Decision::Replay(wait_of_continuation(journal, store));
    }
    if consent.adopt_journal {
        // The original may be in use.
        let held = store.manifest.holder.is_some();
        return Decision::Replay(if held { Wait::Lease } else { Wait::Nothing });
    }
    if unsent.writes == 0 || consent.discard_journal {
        return Decision::SetAside(wait_without_journal(store));
    }
    Decision::Refuse(refusal(journal, store, RefusalReason::Copied, unsent))
}

/// H3: a write of the journal's own opening that was flushed and that it does not know, and who says so.
fn set_back(journal: &JournalView, store: &StoreView<'_>) -> Option<(u64, WitnessKind)> {
    let seen = store.witnesses.iter().filter(|witness| journal.knows(witness.opening));
    // Where a lease renewal and a clean close name the same write, the close is reported: it also says that nothing
    // came after it.
    if let Some(witness) = seen.max_by_key(|witness| (witness.write, witness.who))
        && witness.write > journal.last_write
    {
        return Some((witness.write.0, witness.who));
    }
    // Nothing is sent before the superblock names the opening.
    let begun_elsewhere = |entry: &&EpochEntry| {
        entry.opening.is_some_and(|opening| journal.announced.contains(&opening))
            && store.has_objects(entry)
    };
    let entry = store.owners().find(begun_elsewhere)?;
    let after = entry.after_write.map_or(0, |mark| mark.write);
    Some((after + 1, WitnessKind::Objects))
}

/// H3 for the committed prefix, which is known once it was rolled forward: batches are sent only once an `fdatasync`
/// covers them, so a journal under whose opening the last write was sent holds or held that write.
pub(crate) fn check_prefix(
    journal: &JournalView,
    store: &StoreView<'_>,
    committed: WriteMark,
) -> Result<(), Box<Refusal>> {
    let sent_by_it = journal.opening.is_some() && committed.epoch.0 == journal.epoch;
    if !sent_by_it
        || committed.write <= journal.last_write
        || weir_device::mutant("witnesses_ignored")
    {
        return Ok(());
    }
    let by = WitnessKind::Objects.phrase();
    let reason = RefusalReason::SetBack { seen: committed.write.0, by };
    Err(refusal(journal, store, reason, journal.at_stake(committed)))
}

/// The last write that objects must hold because a journal that holds nothing once held it. Unknown where the volume
/// went on after the journal's opening: whoever opened it then was told what was missing.
pub(crate) fn sent_last(journal: &JournalView, store: &StoreView<'_>) -> Option<WriteNumber> {
    let holds_nothing = journal.opening.is_some() && journal.held.is_empty();
    (holds_nothing && successor(journal, store).is_none()).then_some(journal.last_write)
}

/// The opening that the volume went on with after the journal's last one, if the manifest knows that one.
fn successor<'a>(journal: &JournalView, store: &'a StoreView<'_>) -> Option<&'a EpochEntry> {
    let by_id = store.owners().find(|entry| {
        let previous = entry.previous;
        previous.is_some_and(|previous| journal.knows(previous) && !journal.is_ours(entry))
    });
    if by_id.is_some() || journal.opening.is_some() {
        return by_id;
    }
    let known = store.manifest.epochs.iter().any(|entry| journal.is_ours(entry));
    known.then(|| store.owners().find(|entry| entry.epoch > journal.epoch))?
}

/// What an opening waits for that goes on with the journal, or in its place.
fn wait_for_others(journal: &JournalView, store: &StoreView<'_>) -> Wait {
    // The holder's opening is the last one that was published.
    let holder = store.manifest.holder.as_ref().and(store.manifest.epochs.last());
    match holder {
        None => wait_without_journal(store),
        Some(entry) if journal.file != FileMatch::Other && is_holder(journal, store, entry) => {
            Wait::Nothing
        }
        Some(_) => Wait::LeaseAndConsent,
    }
}

/// Whether a volume is held with this journal, by what its superblock and the manifest say: the journal's own opening
/// is the last one that was published, and its file is the one that was written to. A copy has the names of both, and
/// its lock keeps nobody out.
pub(crate) fn is_held_with(journal: &JournalView, manifest: &Manifest) -> bool {
    let Some(entry) = manifest.holder.as_ref().and(manifest.epochs.last()) else { return false };
    let published_only = entry.opening.is_none()
        && !journal.has_openings()
        && entry.journal == journal.journal
        && entry.epoch >= journal.epoch;
    journal.file != FileMatch::Other && (journal.is_ours(entry) || published_only)
}

/// Whether the entry of the holder is the journal's: nobody else has its lock then.
fn is_holder(journal: &JournalView, store: &StoreView<'_>, entry: &EpochEntry) -> bool {
    let published_only = entry.opening.is_none()
        && journal.opening.is_none()
        && entry.journal == journal.journal
        && entry.epoch >= journal.epoch
        && !store.has_objects(entry);
    journal.is_ours(entry) || published_only
}

fn wait_of_continuation(journal: &JournalView, store: &StoreView<'_>) -> Wait {
    match wait_for_others(journal, store) {
        // H1: the holder's opening owns no sequences, so it has acknowledged nothing.
        Wait::LeaseAndConsent => Wait::Lease,
        wait => wait,
    }
}

/// The last write that a clean close of the journal's opening put into the store.
fn closed_at(journal: &JournalView, store: &StoreView<'_>) -> WriteMark {
    let closed = store.witnesses.iter().filter(|witness| {
        witness.who == WitnessKind::Close && journal.opening == Some(witness.opening)
    });
    let write = closed.map(|witness| witness.write).max();
    write.map_or(WriteMark::default(), |write| WriteMark { epoch: Epoch(journal.epoch), write })
}

/// An opening without a journal, or with one that was never finished.
pub(crate) fn decide_without_journal(manifest: &Manifest) -> Decision {
    match manifest.holder {
        Some(_) => Decision::SetAside(Wait::LeaseAndConsent),
        None => Decision::SetAside(Wait::Nothing),
    }
}

fn wait_without_journal(store: &StoreView<'_>) -> Wait {
    match store.manifest.holder {
        Some(_) => Wait::LeaseAndConsent,
        None => Wait::Nothing,
    }
}

fn refusal(
    journal: &JournalView,
    store: &StoreView<'_>,
    reason: RefusalReason,
    AtStake { writes, bytes }: AtStake,
) -> Box<Refusal> {
    let newest = store.manifest.newest_owner();
    Box::new(Refusal {
        reason,
        journal: journal.journal,
        opening: journal.opening,
        epoch: journal.epoch,
        newest: newest.and_then(|entry| entry.opening),
        newest_epoch: newest.map_or(0, |entry| entry.epoch),
        last_write: journal.last_write.0,
        writes,
        bytes,
    })
}
