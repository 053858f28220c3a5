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

use std::collections::BTreeSet;
use std::fmt;

use weir_journal::{Epoch, FileMatch, ManifestSeen, WriteNumber};

use crate::format::manifest::{EpochEntry, HexId, Manifest};
use crate::ids::WriteMark;
use crate::recover::salvage;

#[cfg(test)]
mod tests;

/// A write, or a part of one, that a journal holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct HeldWrite {
    pub(crate) mark: WriteMark,
    pub(crate) bytes: u64,
}

/// What a journal says of itself.
#[derive(Clone, Debug)]
pub(crate) struct JournalView {
    pub(crate) journal: HexId,
    /// Epoch of the opening in force; 0 before the first.
    pub(crate) epoch: u64,
    /// The opening in force. None before the first, and where a program wrote it that knew no openings.
    pub(crate) opening: Option<HexId>,
    /// Openings that were announced since, oldest first. Nothing was acknowledged under any of them.
    pub(crate) announced: Vec<HexId>,
    /// The newest version of the manifest that it knows to have been in the store.
    pub(crate) manifest: Option<ManifestSeen>,
    pub(crate) file: FileMatch,
    /// The last write that it is known to hold, or to have held.
    pub(crate) last_write: WriteNumber,
    /// What it holds, in order. Some of it may be in objects already.
    pub(crate) held: Vec<HeldWrite>,
}

/// Somebody who saw an opening flush a write: a renewal of a lease, or the manifest version that closed the volume.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Witness {
    pub(crate) opening: HexId,
    pub(crate) write: WriteNumber,
    pub(crate) who: WitnessKind,
}

/// What kind of record a witness is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum WitnessKind {
    Lease,
    Objects,
    /// Everything of the opening is in the store, up to the write that it names and none after it.
    Close,
}

impl WitnessKind {
    fn phrase(self) -> &'static str {
        match self {
            Self::Lease => "a renewal of its lease",
            Self::Close => "the manifest version that closed the volume",
            Self::Objects => "the objects in the store",
        }
    }
}

/// What the store says of a volume.
#[derive(Clone, Copy, Debug)]
pub(crate) struct StoreView<'a> {
    pub(crate) manifest: &'a Manifest,
    pub(crate) witnesses: &'a [Witness],
    /// Sequence and epoch of every object behind the published checkpoint.
    pub(crate) listed: &'a BTreeSet<(u64, u64)>,
    /// The last write that the published checkpoint holds.
    pub(crate) sent: WriteMark,
}

/// What the operator allowed.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Consent {
    /// Give up what the journal holds.
    pub(crate) discard_journal: bool,
    /// The file is a copy, and the journal to go on with.
    pub(crate) adopt_journal: bool,
    /// Go on though flushed writes are missing.
    pub(crate) accept_loss: bool,
}

/// What has to be waited for before the volume may be opened.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Wait {
    /// Nothing: the holder is this journal, or there is none.
    Nothing,
    /// The end of the holder's lease. Nothing is lost with the holder.
    Lease,
    /// The end of the holder's lease, and somebody's consent: the holder's journal may hold acknowledged writes.
    LeaseAndConsent,
}

/// What becomes of a journal.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Decision {
    /// Go on with it and with what it holds.
    Replay(Wait),
    /// It holds nothing: go on with the file. Openings that it announced stay its own, should they be published late.
    ReuseEmpty(Wait),
    /// Nothing is lost with it, or it was given up: make a new one.
    SetAside(Wait),
    /// It must not be replayed, and something would be lost without it.
    Refuse(Box<Refusal>),
}

/// Why a journal is not gone on with.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RefusalReason {
    /// The volume went on under another opening.
    Superseded,
    /// The volume's manifest does not know the journal's opening: one of them was set back to a backup, or is a copy.
    OtherHistory,
    /// The journal ends before a write that it had flushed: it was set back to a backup.
    SetBack {
        /// The write that was seen.
        seen: u64,
        /// Who saw it.
        by: &'static str,
    },
    /// The store's newest version of the manifest is not the one that the journal knows of, nor one after it.
    StoreSetBack {
        /// Number of the version that the journal knows of.
        known: u64,
        /// Number of the newest version in the store.
        newest: u64,
    },
    /// The journal's file is a copy of the one that its superblock names.
    Copied,
}

/// A journal that is not gone on with, with what an operator needs to decide.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Refusal {
    /// Why.
    pub reason: RefusalReason,
    /// The journal.
    pub journal: HexId,
    /// The opening that it is of, if it says.
    pub opening: Option<HexId>,
    /// Epoch of that opening.
    pub epoch: u64,
    /// The opening that the volume is at, if it has one.
    pub newest: Option<HexId>,
    /// Epoch of that opening.
    pub newest_epoch: u64,
    /// Last write that the journal is known to hold or to have held.
    pub last_write: u64,
    /// Writes that it holds and that are in no object of this history, as far as is known.
    pub writes: u64,
    /// Bytes of them.
    pub bytes: u64,
}

impl fmt::Display for Refusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let name = |opening: Option<HexId>| match opening {
            Some(opening) => format!("opening {}", String::from(opening)),
            None => "an opening without a name".to_owned(),
        };
        let journal = String::from(self.journal);
        let own = format!("{} (epoch {})", name(self.opening), self.epoch);
        let newest = format!("{} (epoch {})", name(self.newest), self.newest_epoch);
        let (writes, bytes) = (self.writes, self.bytes);
        let holds = format!("{writes} writes of {bytes} bytes");
        match self.reason {
            RefusalReason::Superseded => write!(
                f,
                "the local journal {journal} of {own} holds {holds} that are not known to be in the store, and the \
                 volume went on without them under {newest}; weir volume salvage makes a volume of them, \
                 --discard-journal gives them up"
            ),
            RefusalReason::OtherHistory => write!(
                f,
                "the local journal {journal} is of {own}, which the volume in this store does not know: it is at \
                 {newest}, so that the store or the data directory was set back to a backup, or is a copy of another; \
                 the journal holds {holds}; bring back what belongs together, or pass --discard-journal to give them up"
            ),
            RefusalReason::SetBack { seen, by } => write!(
                f,
                "the local journal {journal} of {own} ends at write {}, and {by} of the volume, which is at {newest}, \
                 knew write {seen} of the same opening: the data directory was set back to a backup, or is an old \
                 copy, or the end of the journal is damaged; the journal holds {holds}; bring back the newest one, or \
                 pass --accept-loss to go on without the writes that are missing, or --discard-journal to go on with \
                 what the store holds",
                self.last_write
            ),
            RefusalReason::StoreSetBack { known, newest } => write!(
                f,
                "the local journal {journal} of {own} knows version {known} of the volume's manifest, and the store, \
                 whose newest one is {}, lacks it: the store was set back to a backup; the journal holds {holds}; \
                 bring back the newest store, or pass --accept-loss to go on without the rollbacks, new sizes and \
                 snapshots that are missing, and with what the journal holds, or --discard-journal to go on with \
                 what the store holds",
                if newest == known {
                    format!("another version {newest}")
                } else {
                    newest.to_string()
                }
            ),
            RefusalReason::Copied => write!(
                f,
                "the local journal {journal} of {own} is a copy of the file that it was written to, and holds {holds} \
                 that may not be in the store, which is at {newest}; if the other file is not used any more, pass \
                 --adopt-journal to go on with this one, or --discard-journal to give up what it holds"
            ),
        }
    }
}

impl Decision {
    /// What has to be waited for.
    pub(crate) fn wait(&self) -> Wait {
        match self {
            Self::Replay(wait) | Self::ReuseEmpty(wait) | Self::SetAside(wait) => *wait,
            Self::Refuse(_) => Wait::Nothing,
        }
    }
}

impl JournalView {
    /// Whether an opening is this journal's.
    pub(crate) fn is_ours(&self, entry: &EpochEntry) -> bool {
        match entry.opening {
            Some(opening) => self.knows(opening),
            None => {
                self.opening.is_none()
                    && self.epoch > 0
                    && entry.journal == self.journal
                    && entry.epoch == self.epoch
            }
        }
    }

    /// Whether it is of a program that names openings.
    pub(crate) fn has_openings(&self) -> bool {
        self.opening.is_some() || !self.announced.is_empty()
    }

    /// Whether an opening of that name is this journal's.
    pub(crate) fn knows(&self, opening: HexId) -> bool {
        self.opening == Some(opening) || self.announced.contains(&opening)
    }

    fn at_stake(&self, beyond: WriteMark) -> (u64, u64) {
        let rest = self.held.iter().filter(|held| held.mark > beyond);
        rest.fold((0, 0), |(writes, bytes), held| (writes + 1, bytes + held.bytes))
    }
}

impl StoreView<'_> {
    fn owners(&self) -> impl DoubleEndedIterator<Item = &EpochEntry> {
        self.manifest.epochs.iter().filter(|entry| entry.first_sequence.is_some())
    }

    /// Whether an object of an opening is among the sequences that it owns.
    fn has_objects(&self, entry: &EpochEntry) -> bool {
        let Some(first) = entry.first_sequence else { return false };
        let later = |other: &&EpochEntry| other.epoch > entry.epoch;
        let end = self.owners().find(later).and_then(|next| next.first_sequence);
        let end = end.unwrap_or(u64::MAX);
        let as_of = self.manifest.checkpoint.map_or(0, |checkpoint| checkpoint.as_of);
        let in_checkpoint = first < end && first <= as_of;
        let owned = |(seq, epoch): &(u64, u64)| *epoch == entry.epoch && (first..end).contains(seq);
        in_checkpoint || self.listed.iter().any(owned)
    }
}

/// What becomes of a journal, given what the store says.
pub(crate) fn decide(journal: &JournalView, store: &StoreView<'_>, consent: Consent) -> Decision {
    let decision = decide_by_openings(journal, store, consent);
    let Some(reason) = forgotten(journal, store.manifest) else { return decision };
    // Another reason says more.
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
    if is_heir(journal, store) || weir_device::mutant("replay_superseded_journal") {
        return decide_heir(journal, store, consent);
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
    let (writes, bytes) = journal.at_stake(beyond.unwrap_or_default());
    if writes == 0 || consent.discard_journal || weir_device::mutant("set_aside_what_is_at_stake") {
        return Decision::SetAside(wait);
    }
    let reason = match successor {
        Some(_) => RefusalReason::Superseded,
        None => RefusalReason::OtherHistory,
    };
    Decision::Refuse(refusal(journal, store, reason, (writes, bytes)))
}

/// H1.
fn is_heir(journal: &JournalView, store: &StoreView<'_>) -> bool {
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

fn decide_heir(journal: &JournalView, store: &StoreView<'_>, consent: Consent) -> Decision {
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
            return Decision::Replay(wait_of_heir(journal, store));
        }
        let reason = RefusalReason::SetBack { seen, by: by.phrase() };
        return Decision::Refuse(refusal(journal, store, reason, unsent));
    }
    if journal.file != FileMatch::Other || weir_device::mutant("copied_journal_replayed") {
        return Decision::Replay(wait_of_heir(journal, store));
    }
    if consent.adopt_journal {
        // The original may be in use.
        let held = store.manifest.holder.is_some();
        return Decision::Replay(if held { Wait::Lease } else { Wait::Nothing });
    }
    if unsent.0 == 0 || consent.discard_journal {
        return Decision::SetAside(wait_without_journal(store));
    }
    Decision::Refuse(refusal(journal, store, RefusalReason::Copied, unsent))
}

/// H3: a write of the journal's own opening that was flushed and that it does not know, and who says so.
fn set_back(journal: &JournalView, store: &StoreView<'_>) -> Option<(u64, WitnessKind)> {
    let seen = store.witnesses.iter().filter(|witness| journal.knows(witness.opening));
    // Of two that saw the same write, the one that closed the volume knows more.
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

fn wait_of_heir(journal: &JournalView, store: &StoreView<'_>) -> Wait {
    match wait_for_others(journal, store) {
        // H1: whoever holds it owns nothing.
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
    (writes, bytes): (u64, u64),
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
