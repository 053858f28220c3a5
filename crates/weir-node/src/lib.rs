//! A node of Weir: its threads, the volumes it serves, and how verbs reach them.
//!
//! This crate joins rooms that do not know each other: a volume and its local files, a front end and its sockets. It
//! starts and ends things; the data path runs between a front end and a device without it.
#![allow(
    clippy::disallowed_methods,
    reason = "the node is where threads, clocks and files of the host come from, see clippy.toml"
)]

pub mod api;
mod attach;
mod clients;
pub mod config;
mod copy_record;
mod data_directory;
mod deletion;
mod env;
mod error;
mod events;
mod gate;
mod host;
mod keys;
mod known_stores;
mod leases;
mod left;
mod limits;
mod marks;
mod nbd_place;
mod node;
mod opened;
mod processes;
mod replicas;
mod salvage;
mod service;
mod shard;
pub mod size;
mod snapshots;
mod sockets;
mod stages;
mod status;
mod unsent;
mod unserved;
pub mod verbs;
mod views;
mod volumes;
mod watch;

pub use attach::Reloaded;
pub use copy_record::{CopyRecord, CopyRecordError};
pub use data_directory::DataDirectory;
pub use error::{NodeError, ProcessId};
pub use events::Event;
pub use host::{Closing, EndpointKind, Stopped, VolumeSpec};
pub use keys::KeyPlace;
pub use marks::Mark;
pub use nbd_place::{NbdAccess, NbdAddress};
pub use node::{Node, NodeConfig};
pub use processes::Process;
pub use replicas::{ReplicateTo, Replication, ReplicationProgress, TARGET_VARIABLES};
pub use salvage::{SalvageWish, Salvaged};
pub use service::{ApiPlace, HandedOver, ServedInfo, Service, ServiceOptions, VolumeSet};
pub use shard::ShardContext;
pub use sockets::{HANDED_OVER_FIRST, HANDED_OVER_MAX, Inherited};
pub use stages::Stages;
pub use unsent::Unsent;
pub use unserved::Unserved;
pub use volumes::{Consent, Home};
pub use weir_disk::EngineChoice;
pub use weir_log::LeaseSettings;
pub use weir_stack::LimitSettings;
