//! What can go wrong with a journal, and what to do about it.

use std::sync::Arc;

use weir_device::{ErrorKind, VolumeId};
use weir_disk::DiskError;

use crate::format::DecodeError;
use crate::ids::{Epoch, JournalPos, RecordSeq};

/// An error of a journal. Cheap to clone: one failed record answers everyone who wrote into it.
#[derive(Clone, Debug, thiserror::Error)]
pub enum JournalError {
    /// The file could not be opened, made, read or measured.
    #[error(transparent)]
    Disk(#[from] DiskError),
    /// A write or a sync failed. Nothing is known about what the disk holds since, so nothing more is promised.
    #[error(
        "journal {file} takes no more writes, because {cause}; what was flushed before goes to the store. Check the \
         disk, then restart the node, which recovers what the journal holds; if the disk fails, copy the data \
         directory to another one and open it there with --adopt-journal"
    )]
    Poisoned {
        /// The journal.
        file: Arc<str>,
        /// What failed.
        cause: DiskError,
    },
    /// The journal was closed.
    #[error("journal {file} is closed")]
    Closed {
        /// The journal.
        file: Arc<str>,
    },
    /// Written to before its epoch was begun.
    #[error("journal {file} takes no writes before an epoch is begun")]
    NotBegun {
        /// The journal.
        file: Arc<str>,
    },
    /// Every opening needs a higher epoch than the one before.
    #[error("journal {file} is at epoch {current}, so epoch {asked} cannot begin")]
    EpochNotHigher {
        /// The journal.
        file: Arc<str>,
        /// Of the file.
        current: Epoch,
        /// By the caller.
        asked: Epoch,
    },
    /// So many openings were announced and none of them counted that the list is full.
    #[error(
        "journal {file} announces {count} openings, which is all it can: the newest of them has to be used again"
    )]
    AnnouncementsFull {
        /// The file.
        file: Arc<str>,
        /// How many.
        count: usize,
    },
    /// Another volume's journal.
    #[error("{file} is the journal of volume {found}, not of volume {expected}")]
    WrongVolume {
        /// The file.
        file: Arc<str>,
        /// Whose journal was wanted.
        expected: VolumeId,
        /// Whose it is.
        found: VolumeId,
    },
    /// The journal was begun under another key than the volume's, or under none.
    #[error(
        "journal {file} is sealed under {found}, and its volume has {expected}: the manifest or the journal is another \
         volume's"
    )]
    OtherKey {
        /// The file.
        file: Arc<str>,
        /// What it is sealed under.
        found: String,
        /// What it should be sealed under.
        expected: String,
    },
    /// Neither copy of the superblock can be read.
    #[error(
        "{file} is not a journal, or both copies of its superblock are damaged \
         (first: {first}; second: {second})"
    )]
    NotAJournal {
        /// The file.
        file: Arc<str>,
        /// What is wrong with the first copy.
        first: DecodeError,
        /// What is wrong with the second copy.
        second: DecodeError,
    },
    /// The superblock was never written: making the journal was interrupted.
    #[error("{file} was never finished, so it holds nothing and can be deleted")]
    NeverFinished {
        /// The file.
        file: Arc<str>,
    },
    /// Written by a newer program.
    #[error("{file} has journal format version {found}; this program reads up to {known}")]
    NewerVersion {
        /// The file.
        file: Arc<str>,
        /// Of the file.
        found: u32,
        /// Newest that is understood.
        known: u32,
    },
    /// Holds records that a newer program wrote.
    #[error("{file} may hold records of format version {found}; this program reads up to {known}")]
    NewerRecords {
        /// The file.
        file: Arc<str>,
        /// In the file.
        found: u32,
        /// Newest that is understood.
        known: u32,
    },
    /// The file is shorter than its superblock says.
    #[error(
        "journal {file} has {len} bytes of {needed}: its end is missing, and up to {lost_bytes} \
         bytes of acknowledged writes with it (--accept-loss opens it without them)"
    )]
    Truncated {
        /// The file.
        file: Arc<str>,
        /// What it has.
        len: u64,
        /// What it should have.
        needed: u64,
        /// How much data may be gone.
        lost_bytes: u64,
    },
    /// Records that were promised cannot be read, and it is unknown which ranges of the volume they wrote.
    #[error(
        "journal {file} is damaged: records {first} to {last} at position {position} cannot be read \
         ({reason}), up to {lost_bytes} bytes of acknowledged writes are lost with them \
         (--accept-loss opens it without them)"
    )]
    Damaged {
        /// The file.
        file: Arc<str>,
        /// First record that cannot be read.
        first: RecordSeq,
        /// Last record that cannot be read.
        last: RecordSeq,
        /// Where the first one begins.
        position: JournalPos,
        /// How much data may be gone.
        lost_bytes: u64,
        /// How it is known that they existed.
        reason: &'static str,
    },
    /// A payload does not match its checksum.
    #[error(
        "journal {file}: bytes {offset}..{end} of the volume, record {record} at position \
         {position}, do not match their checksum"
    )]
    Corrupt {
        /// The file.
        file: Arc<str>,
        /// First byte on the volume.
        offset: u64,
        /// One past the last byte on the volume.
        end: u64,
        /// The record.
        record: RecordSeq,
        /// Where its payload begins.
        position: JournalPos,
    },
    /// A read of a position that holds no payload (any more).
    #[error("journal {file} holds no payload at position {position}")]
    NoSuchPosition {
        /// The file.
        file: Arc<str>,
        /// What was asked for.
        position: JournalPos,
    },
    /// A configuration that cannot work.
    #[error("journal configuration: {0}")]
    Config(&'static str),
}

impl JournalError {
    /// What the caller can do.
    #[must_use]
    pub fn kind(&self) -> ErrorKind {
        match self {
            Self::Disk(error) => error.kind(),
            Self::Poisoned { .. } => ErrorKind::Poisoned,
            Self::Closed { .. } => ErrorKind::Unavailable,
            Self::NotBegun { .. }
            | Self::NoSuchPosition { .. }
            | Self::AnnouncementsFull { .. } => ErrorKind::Bug,
            Self::EpochNotHigher { .. } => ErrorKind::Fenced,
            Self::WrongVolume { .. } | Self::OtherKey { .. } | Self::Config(_) => {
                ErrorKind::Invalid
            }
            Self::NeverFinished { .. } => ErrorKind::NotFound,
            Self::NewerVersion { .. } | Self::NewerRecords { .. } => ErrorKind::Unsupported,
            Self::NotAJournal { .. }
            | Self::Truncated { .. }
            | Self::Damaged { .. }
            | Self::Corrupt { .. } => ErrorKind::Corrupt,
        }
    }
}
