//! Why a local journal is not replayed, as the operator reads it.

use std::fmt;

use crate::format::manifest::HexId;

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
    /// Pieces of writes that it holds and that are in no object of this history, as far as is known: a write has one
    /// for each 4 KiB, at least one.
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
        let holds = format!("{writes} written blocks ({bytes} bytes)");
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
                 snapshots that are missing, and with what the journal holds: writes that were flushed after the \
                 backup and before the journal's first one are missing then, although later ones are there; or pass \
                 --discard-journal to go on with what the store holds",
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
