//! What can go wrong with a log volume, with the fields an operator needs and what to do next.

use weir_device::{DeviceError, ErrorKind, VolumeId};
use weir_disk::DiskError;
use weir_journal::{Epoch, JournalError, JournalId};
use weir_store::StoreError;

use crate::format::DecodeError;
use crate::ids::ObjectId;
use crate::keys::KeyError;
use crate::recover::refusal::Refusal;

/// An error of the log volume or of the catalog of a store.
#[derive(Debug, thiserror::Error)]
pub enum LogError {
    /// A name outside the rules.
    #[error("volume name {name:?} is not valid: {reason}")]
    Name {
        /// The name as given.
        name: String,
        /// Which rule it breaks.
        reason: &'static str,
    },
    /// A size outside the rules.
    #[error("a volume of {size} bytes is not possible: {reason}")]
    Size {
        /// The size as given, in bytes.
        size: u64,
        /// Which rule it breaks.
        reason: &'static str,
    },
    /// No volume of that name.
    #[error("there is no volume {name:?} in {store}")]
    NoSuchVolume {
        /// The name as given.
        name: String,
        /// URL of the store.
        store: String,
    },
    /// No snapshot of that name.
    #[error("volume {volume} has no snapshot {snapshot:?}; weir snapshot list {volume} names them")]
    NoSuchSnapshot {
        /// The name as given.
        snapshot: String,
        /// Name of the volume.
        volume: String,
    },
    /// The name is taken.
    #[error("volume {name:?} exists already in {store}")]
    Exists {
        /// The name as given.
        name: String,
        /// URL of the store.
        store: String,
    },
    /// The volume was deleted.
    #[error("volume {volume} was deleted")]
    Deleted {
        /// The volume.
        volume: VolumeId,
    },
    /// An import, a copy or a salvage into the volume has not come to its end.
    #[error(
        "volume {volume} is incomplete: what was being imported, copied or salvaged into it is not all there"
    )]
    Incomplete {
        /// The volume.
        volume: VolumeId,
    },
    /// The volume is a replica, which takes no writes.
    #[error(
        "{name} is a replica and takes no writes; weir volume promote {name} makes a volume of it"
    )]
    Replica {
        /// Name of the volume.
        name: String,
    },
    /// What should be a replica is none.
    #[error("{name} in {store} is no replica: {reason}")]
    NoReplica {
        /// Name of the volume.
        name: String,
        /// URL of the store.
        store: String,
        /// What it is instead, and what to do.
        reason: String,
    },
    /// The replica was promoted: it goes on as a volume of its own.
    #[error(
        "the replica of volume {volume} in {store} was promoted and goes on as volume {to}; nothing is moved there any \
         more; replicate into another store, or the other way round"
    )]
    Promoted {
        /// The source.
        volume: VolumeId,
        /// URL of the replica's store.
        store: String,
        /// What it was promoted to.
        to: VolumeId,
    },
    /// Another writer has taken the volume over.
    #[error(
        "volume {volume}: epoch {ours} was replaced by another writer ({evidence}); this one stopped"
    )]
    Fenced {
        /// The volume.
        volume: VolumeId,
        /// Our epoch.
        ours: Epoch,
        /// What showed it.
        evidence: String,
    },
    /// The store has lost what this writer published.
    #[error(
        "volume {volume}: epoch {ours} stopped, because {store} was emptied or set back ({evidence}); bring it back as \
         it was: the journal keeps what it holds, and a replica is made again from its volume"
    )]
    StoreSetBack {
        /// The volume.
        volume: VolumeId,
        /// Our epoch.
        ours: Epoch,
        /// URL of the store.
        store: String,
        /// What showed it.
        evidence: String,
    },
    /// Our node did not renew its lease in time.
    #[error(
        "volume {volume}: epoch {ours} missed the deadline of its node's lease, so that another node may own the \
         volume now; this one stopped, open it again"
    )]
    LeaseMissed {
        /// The volume.
        volume: VolumeId,
        /// Our epoch.
        ours: Epoch,
    },
    /// Our node has no lease, which an opening needs.
    #[error("{name} cannot renew its lease: {note}")]
    NoLease {
        /// Name of our node.
        name: String,
        /// What the store said last.
        note: String,
    },
    /// Another node has the volume open.
    #[error(
        "volume {volume} is open on {node}, which renews its lease of {lease_s} s; close it there first"
    )]
    InUse {
        /// The volume.
        volume: VolumeId,
        /// Name of the holder's node.
        node: String,
        /// Length of its lease in seconds.
        lease_s: u64,
    },
    /// Another node, or a journal that is gone, holds the volume and may hold acknowledged writes.
    #[error(
        "volume {volume} is held by journal {holder} of {node}, which was not closed and may hold {may_hold}; start \
         it there, or pass --take-over to go on with what the store holds (a prefix of the acknowledged writes)"
    )]
    Held {
        /// The volume.
        volume: VolumeId,
        /// The journal of the holder.
        holder: JournalId,
        /// Name of the holder's node.
        node: String,
        /// What its journal may hold.
        may_hold: String,
    },
    /// The local journal must not be replayed, and something would be lost without it.
    #[error("volume {volume}: {refusal}")]
    JournalRefused {
        /// The volume.
        volume: VolumeId,
        /// Why, and what is at stake.
        refusal: Box<Refusal>,
    },
    /// There is no journal to salvage.
    #[error("volume {volume}: nothing is salvaged: {why}")]
    NothingToSalvage {
        /// The volume.
        volume: VolumeId,
        /// Why not.
        why: String,
    },
    /// What a takeover found could not be kept.
    #[error("volume {volume}: the snapshot of what was taken over could not be taken: {source}")]
    NotKept {
        /// The volume.
        volume: VolumeId,
        /// Why not.
        #[source]
        source: DeviceError,
    },
    /// The store lacks objects that the journal was already allowed to forget.
    #[error(
        "volume {volume}: the store holds the log up to {committed}, but the journal begins with write {first_kept}: \
         objects are missing from {store}, the first of them {missing}; restore them, or pass --accept-loss to go on \
         without their writes{}", also_behind(*behind)
    )]
    ObjectsMissing {
        /// The volume.
        volume: VolumeId,
        /// Last write found in the store.
        committed: String,
        /// First write that the journal holds, or would.
        first_kept: u64,
        /// Key of the first that is missing, but for its epoch.
        missing: String,
        /// Objects behind it that the store has. They are no part of a prefix, and go as well.
        behind: u64,
        /// URL of the store.
        store: String,
    },
    /// An object does not decode or fails a checksum.
    #[error(
        "object {object}: {source}; restore it from a copy of the store, or run `weir volume check`"
    )]
    Object {
        /// The object.
        object: ObjectId,
        /// What is wrong with it.
        #[source]
        source: DecodeError,
    },
    /// An object was made that no reader would take.
    #[error(
        "object {object} was not sent, because nobody could read it ({source}): this is a bug in Weir, please report \
         it; the volume stopped, and the journal keeps what it holds: open it again"
    )]
    NotSent {
        /// The object.
        object: ObjectId,
        /// What a reader would say.
        #[source]
        source: DecodeError,
    },
    /// A manifest or name record does not decode.
    #[error("{key} in {store} cannot be read as {what}: {source}")]
    Json {
        /// Key of the record.
        key: String,
        /// URL of the store.
        store: String,
        /// What it should be.
        what: &'static str,
        /// The parser's finding.
        #[source]
        source: serde_json::Error,
    },
    /// Written by a newer Weir.
    #[error(
        "volume {volume}: {key} has format {found}, this Weir reads up to {known}; use a newer Weir"
    )]
    FormatTooNew {
        /// The volume.
        volume: VolumeId,
        /// Key of the record.
        key: String,
        /// Version found.
        found: u32,
        /// Newest version known here.
        known: u32,
    },
    /// A record in the store contradicts itself.
    #[error("volume {volume}: {what}")]
    Inconsistent {
        /// The volume.
        volume: VolumeId,
        /// The contradiction.
        what: String,
    },
    /// The snapshot that a clone began as cannot be read.
    #[error("volume {volume} begins as {origin}, which cannot be read: {source}")]
    Origin {
        /// The volume.
        volume: VolumeId,
        /// The snapshot, as it was called then.
        origin: String,
        /// Why not.
        #[source]
        source: Box<LogError>,
    },
    /// Clones, or replicas of clones, need the volume.
    #[error(
        "volume {name:?} is needed by {clones} for data in its objects; `weir volume flatten` makes a clone \
         independent of it, and the replica of a clone has to be deleted first"
    )]
    Dependants {
        /// The volume.
        name: String,
        /// Their names.
        clones: String,
    },
    /// The key of an encrypted volume.
    #[error(transparent)]
    Key(#[from] KeyError),
    /// The store failed.
    #[error(transparent)]
    Store(#[from] StoreError),
    /// The journal failed.
    #[error(transparent)]
    Journal(#[from] JournalError),
    /// A local file failed.
    #[error(transparent)]
    Disk(#[from] DiskError),
    /// The worker threads went away in the middle of the work.
    #[error("the node is shutting down")]
    ShuttingDown,
}

/// What goes with missing objects whose loss is accepted.
fn also_behind(objects: u64) -> String {
    match objects {
        0 => String::new(),
        1 => " and without the object behind it, which the store has".to_owned(),
        more => format!(" and without the {more} objects behind it, which the store has"),
    }
}

impl LogError {
    /// What a caller can do about it.
    #[must_use]
    pub fn kind(&self) -> ErrorKind {
        match self {
            Self::Name { .. } | Self::Size { .. } => ErrorKind::Invalid,
            Self::NoSuchVolume { .. } | Self::NoSuchSnapshot { .. } | Self::Deleted { .. } => {
                ErrorKind::NotFound
            }
            Self::Exists { .. } => ErrorKind::Exists,
            Self::Fenced { .. } | Self::StoreSetBack { .. } | Self::LeaseMissed { .. } => {
                ErrorKind::Fenced
            }
            Self::NoLease { .. } => ErrorKind::Unavailable,
            Self::Held { .. }
            | Self::InUse { .. }
            | Self::JournalRefused { .. }
            | Self::Incomplete { .. } => ErrorKind::Busy,
            Self::Replica { .. } => ErrorKind::ReadOnly,
            Self::NoReplica { .. } => ErrorKind::Invalid,
            Self::Promoted { .. } => ErrorKind::Fenced,
            Self::ObjectsMissing { .. }
            | Self::Object { .. }
            | Self::Json { .. }
            | Self::Inconsistent { .. } => ErrorKind::Corrupt,
            Self::NotSent { .. } => ErrorKind::Bug,
            Self::FormatTooNew { .. } => ErrorKind::Unsupported,
            Self::Dependants { .. } => ErrorKind::Busy,
            Self::Origin { source, .. } => source.kind(),
            Self::NothingToSalvage { .. } => ErrorKind::NotFound,
            Self::NotKept { source, .. } => source.kind(),
            Self::Key(source) => source.kind(),
            Self::Store(source) => source.kind(),
            Self::Journal(source) => source.kind(),
            Self::Disk(source) => source.kind(),
            Self::ShuttingDown => ErrorKind::Unavailable,
        }
    }
}

impl From<LogError> for DeviceError {
    fn from(error: LogError) -> Self {
        Self::from_source(error.kind(), error)
    }
}
