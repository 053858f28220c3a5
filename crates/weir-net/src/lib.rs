//! What is behind [`weir_device::Network`]: the sockets of the host, TLS over them, and a network that exists in memory
//! only.
#![allow(
    clippy::disallowed_methods,
    reason = "files of sockets and certificates belong to this crate, which is the outside world"
)]

mod host;
mod outgoing;
pub mod pki;
mod refusals;
mod relay;
pub mod sim;
mod socket;
pub mod tls;

pub use host::{HostNetwork, Listening, listen_on};
pub use outgoing::Outgoing;
pub use refusals::{Refusals, origin, shown, shown_error};
pub use relay::relay;
pub use socket::connected;
