//! The log volume (LSVD): a virtual disk whose bytes live, in the order they were written, first in a journal on a
//! local disk and then in immutable objects in an object store.
//!
//! Two maps: the *object map* describes exactly the committed prefix of the object stream, the *overlay* describes what
//! is newer and still local. With a single map, a write still in the journal would already have hidden the older
//! object data that a checkpoint must keep, and losing the local disk would then lose it.
//!
//! This crate must not know front ends, sockets, configuration files or how threads are made.

mod batch;
mod begin;
mod cache;
pub mod catalog;
mod chain;
mod changes;
mod check;
mod checkpoint;
mod clones;
mod close;
mod collect;
mod commit;
mod compact;
mod deletion;
mod dependants;
mod device;
mod error;
mod fetch;
mod flatten;
mod forget;
pub mod format;
mod garbage;
mod heir;
mod history;
mod ids;
mod keys;
mod lease;
pub mod limits;
mod load;
mod local;
mod manifests;
mod names;
mod objects;
mod open;
mod options;
mod overlay;
mod ownership;
mod pieces;
mod pipeline;
mod read;
mod rename;
mod repair;
mod replay;
pub mod replica;
mod resize;
mod salvage;
mod snapshots;
mod space;
mod strays;
mod survey;
mod table;
mod takeover;
mod ties;
mod unsent;
mod upload;
mod view;
mod volume;

pub use batch::BatchLimits;
pub use cache::{FrameCache, FrameKey, FrameResult, FrameTable, Look, MemoryFrameCache, ObjectKey};
pub use chain::Retention;
pub use changes::{Change, Changes, changes};
pub use check::{Awaited, CheckOptions, CheckReport, CheckStep, Damage, GIVEN_UP, check};
pub use close::{Closed, PutError, VolumeStatus};
pub use compact::CompactReport;
pub use error::LogError;
pub use flatten::FlattenReport;
pub use format::frame::Compression;
pub use format::manifest::{Encryption, SnapshotRecord, Takeover, VolumeState};
pub use heir::{Refusal, RefusalReason};
pub use ids::{ObjectId, ObjectSeq, WriteMark};
pub use keys::{FixedKeys, KeyError, KeySource, Keys, WrappingKeys};
pub use lease::{LeaseSettings, LeaseStatus, NodeLease};
pub use open::{JOURNAL_FILE, LOCK_FILE, OnWait, OpenArgs, OpenReport};
pub use options::{CheckpointLimits, CollectLimits, CollectPolicy, MapLimits, VolumeOptions};
pub use repair::{GivenUp, RepairReport};
pub use replay::{Merging, Replay, ReplayReport};
pub use salvage::{DamagedWrite, Salvage, SalvageArgs, SalvageReport};
pub use snapshots::SNAPSHOTS_MAX;
pub use space::{SnapshotSpace, snapshot_space};
pub use view::SnapshotView;
pub use volume::LogVolume;
