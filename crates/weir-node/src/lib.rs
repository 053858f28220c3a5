//! A node of Weir: its threads, the volumes it serves, and how verbs reach them.
//!
//! This crate joins rooms that do not know each other: a volume and its local files, a front end and its sockets. It
//! starts and ends things; the data path runs between a front end and a device without it.
#![allow(
    clippy::disallowed_methods,
    reason = "the node is where threads, clocks and files of the host come from, see clippy.toml"
)]

pub mod control;
mod data_directory;
mod endpoint;
mod env;
mod error;
mod leases;
mod node;
mod serve;
mod shard;
mod sockets;
mod volumes;

pub use data_directory::DataDirectory;
pub use endpoint::Endpoint;
pub use error::NodeError;
pub use node::{Node, NodeConfig};
pub use serve::{EndpointKind, NbdAddress, ServeOptions, Served, ServedInfo, Stopped};
pub use shard::ShardContext;
pub use volumes::{Consent, Home, Listed, Shown};
pub use weir_disk::EngineChoice;
pub use weir_log::LeaseSettings;
