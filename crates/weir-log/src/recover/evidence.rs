//! What is known of a local journal and of the store when it is judged, and what can come of it.

use std::collections::BTreeSet;

use weir_journal::{FileMatch, Identified, ManifestSeen, WriteNumber};

use crate::format::manifest::{EpochEntry, HexId, Manifest};
use crate::ids::WriteMark;
use crate::recover::refusal::Refusal;

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

/// A record that says that an opening had flushed a write: a renewal of a lease, objects in the store, or the manifest
/// version that closed the volume.
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
    pub(crate) fn phrase(self) -> &'static str {
        match self {
            Self::Lease => "a renewal of its lease",
            Self::Close => "the manifest version that closed the volume",
            Self::Objects => "the objects in the store",
        }
    }
}

/// Writes that would be lost without a journal.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct AtStake {
    pub(crate) writes: u64,
    pub(crate) bytes: u64,
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

    /// What it holds beyond a write.
    pub(crate) fn at_stake(&self, beyond: WriteMark) -> AtStake {
        let rest = self.held.iter().filter(|held| held.mark > beyond);
        rest.fold(AtStake::default(), |sum, held| AtStake {
            writes: sum.writes + 1,
            bytes: sum.bytes + held.bytes,
        })
    }
}

impl StoreView<'_> {
    pub(crate) fn owners(&self) -> impl DoubleEndedIterator<Item = &EpochEntry> {
        self.manifest.epochs.iter().filter(|entry| entry.first_sequence.is_some())
    }

    /// Whether an object of an opening is among the sequences that it owns.
    pub(crate) fn has_objects(&self, entry: &EpochEntry) -> bool {
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

/// A whole journal of a volume that lies in a directory, as its superblock tells it.
#[derive(Clone, Debug)]
pub struct JournalHere(pub(crate) JournalView);

impl From<Identified> for JournalHere {
    fn from(found: Identified) -> Self {
        Self(JournalView {
            journal: found.identity.journal.into(),
            epoch: found.epoch.0,
            opening: found.opening.map(HexId::from),
            announced: found.announced.iter().map(|known| known.opening.into()).collect(),
            manifest: found.manifest,
            file: found.file,
            // What it holds is not asked: it goes with the volume.
            last_write: WriteNumber(0),
            held: Vec::new(),
        })
    }
}
