//! The local ring journal of Weir: where a write is on disk before it is acknowledged.
//!
//! A journal is one file of equal segments, used as a ring of records. Writes that arrive together go into one record
//! (group commit); a record is acknowledged when it and all earlier ones are on disk; a flush is one barrier for all.
//! Every payload piece has a checksum of its own, so that it can be read back and verified alone, and recovery tells
//! damage from an end.
//!
//! This crate must not know volumes, object streams, maps or batches: it hears what was released, and tells a
//! [`RecordSink`] what is durable and what is to be forgotten. Layout of the file: `docs/formats/journal.md`.
//!
//! | module | job |
//! | --- | --- |
//! | `format` | bytes of superblock and record, pure |
//! | `seal` | sealed payload of encrypted volumes, and why no nonce comes twice |
//! | `ring` | which segment holds what, pure |
//! | `group_commit` | group commit: gather and lay out a record, pure |
//! | `pieces` | where every payload is, and what is in memory |
//! | `state` | everything an open journal knows; every change that needs no waiting |
//! | `inner` | what the tasks share: the state, and who is woken |
//! | `write`, `flush`, `prepare` | the tasks: record lanes, syncs, segments |
//! | `read` | reading back, verified |
//! | `recover` | scan (reads and verifies) and verdict (pure) |

mod config;
mod error;
mod flush;
#[doc(hidden)]
pub mod format;
mod group_commit;
mod ids;
mod inner;
mod journal;
pub mod limits;
mod pieces;
mod prepare;
mod read;
mod recover;
mod ring;
mod seal;
mod state;
mod write;

pub use config::JournalConfig;
pub use error::JournalError;
pub use format::DecodeError;
pub use format::record::PieceKind;
pub use group_commit::{Payload, PlacedPiece};
pub use ids::{
    Announced, Epoch, Identity, JournalId, JournalPos, ManifestSeen, OpeningId, RecordSeq,
    WriteNumber,
};
pub use inner::RecordSink;
pub use journal::{Journal, JournalStatus, Pin};
pub use recover::{
    AcceptLoss, Damage, DamageKind, FileMatch, Identified, Recovered, RecoveredPiece,
    RecoveryReport,
};
