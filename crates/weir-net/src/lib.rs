//! What is behind [`weir_device::Network`]: the sockets of the host, and a network that exists in memory only.
#![allow(
    clippy::disallowed_methods,
    reason = "the files of unix sockets belong to this crate, which is the outside world"
)]

mod host;
pub mod sim;
mod socket;

pub use host::{HostNetwork, Listening, listen_on};
