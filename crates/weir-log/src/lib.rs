//! The log volume (LSVD): a virtual disk whose bytes live, in the order they were written, first in a journal on a
//! local disk and then in immutable objects in an object store.
//!
//! Two maps: the *object map* describes exactly the committed prefix of the object stream, the *overlay* describes what
//! is newer and still local. With a single map, a write still in the journal would already have hidden the older
//! object data that a checkpoint must keep, and losing the local disk would then lose it.
//!
//! This crate must not know front ends, sockets, configuration files or how threads are made.

pub mod catalog;
mod check;
mod collect;
mod error;
pub mod format;
mod ids;
mod keys;
pub mod limits;
mod lineage;
mod map;
mod options;
mod own;
mod random;
mod read;
mod recover;
mod replay;
pub mod replica;
mod snapshot;
mod volume;
mod write;

pub use check::opens::{Obstacle, Reopening, obstacle_to_opening};
pub use check::space::{SnapshotSpace, snapshot_space};
pub use check::{CheckOptions, CheckReport, CheckStep, Damage, GIVEN_UP, check};
pub use error::LogError;
pub use format::blocks::BlockRange;
pub use format::frame::Compression;
pub use format::manifest::{Encryption, SnapshotRecord, Takeover, VolumeState};
pub use ids::{ObjectId, ObjectSeq, WriteMark};
pub use keys::{FixedKeys, KeyError, KeySource, Keys, WrappingKeys};
pub use map::load::Awaited;
pub use options::{CheckpointLimits, CollectLimits, CollectPolicy, MapLimits, VolumeOptions};
pub use own::chain::Retention;
pub use own::lease::{LeaseSettings, LeaseStatus, NodeLease};
pub use read::block_store::BlockStore;
pub use read::cache::{FrameCache, FrameKey, FrameResult, Look, MemoryFrameCache, ObjectKey, Part};
pub use read::table::FrameTable;
pub use read::warm::WarmReport;
pub use recover::args::{JOURNAL_FILE, LOCK_FILE, OnWait, OpenArgs};
pub use recover::refusal::{Refusal, RefusalReason};
pub use replay::{Merging, Replay, ReplayReport};
pub use snapshot::changes::{Change, Changes, changes};
pub use snapshot::snapshots::SNAPSHOTS_MAX;
pub use snapshot::view::SnapshotView;
pub use volume::LogVolume;
pub use volume::verb::close::{Closed, PutError, VolumeStatus};
pub use volume::verb::compact::CompactReport;
pub use volume::verb::flatten::FlattenReport;
pub use volume::verb::open::OpenReport;
pub use volume::verb::repair::{GivenUp, RepairReport};
pub use volume::verb::salvage::{DamagedWrite, Salvage, SalvageArgs, SalvageReport};
pub use write::batch::BatchLimits;
