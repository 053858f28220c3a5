//! A node of Weir: its threads, the volumes it serves, and how verbs reach them.
//!
//! This crate joins rooms that do not know each other: a volume and its local files, a front end and its sockets. It
//! starts and ends things; the data path runs between a front end and a device without it.
//!
//! What another crate awaits here is a function that is not inlined and returns a boxed future: an `async fn` would be
//! compiled again in that crate, with all that it awaits (`docs/decisions/0017-build-profiles.md`).
#![allow(
    clippy::disallowed_methods,
    reason = "the node is where threads, clocks and files of the host come from, see clippy.toml"
)]

pub mod api;
mod cache_error;
pub mod config;
mod data_directory;
mod error;
mod home;
mod node;
mod serve;
pub mod size;
mod status;
pub mod verbs;
mod volumes;

pub use cache_error::CacheCommandError;
pub use config::ReplicateTo;
pub use data_directory::DataDirectory;
pub use error::{NodeError, ProcessId};
pub use home::cache_file::KnownCache;
pub use home::keys::KeyPlace;
pub use home::processes::Process;
pub use home::{Consent, Home};
pub use node::shard::ShardContext;
pub use node::{Node, NodeConfig};
pub use serve::cache_setting::CacheSetting;
pub use serve::events::Event;
pub use serve::handed_over::{HandedOver, Parting, Was};
pub use serve::nbd_place::{NbdAccess, NbdAddress};
pub use serve::reload::Reloaded;
pub use serve::replaceable::Next;
pub use serve::service::{ApiPlace, ServedInfo, Service, ServiceOptions};
pub use serve::sessions::{KeptSession, Passed, Relayed, fuzz_session_records};
pub use serve::sockets::{HANDED_OVER_FIRST, HANDED_OVER_MAX, Inherited};
pub use serve::spec::{Allowed, Closing, EndpointKind, Stopped, VolumeSet, VolumeSpec};
pub use serve::stages::Stages;
pub use serve::unsent::Unsent;
pub use status::resident_bytes;
pub use volumes::copy_record::{CopyRecord, CopyRecordError};
pub use volumes::marks::Mark;
pub use volumes::replicate::{Replication, ReplicationProgress, TARGET_VARIABLES};
pub use volumes::salvage::{SalvageWish, Salvaged};
pub use volumes::unserved::{Beside, Unserved};
pub use weir_disk::EngineChoice;
pub use weir_log::LeaseSettings;
pub use weir_stack::LimitSettings;
