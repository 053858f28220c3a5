//! NBD: a thin driver between a byte stream, the codec of `weir-nbd` and a device.
//!
//! One connection is one task. It reads many requests with one system call into a window, runs them concurrently in a
//! slab of reusable slots, and sends many replies with one system call. Nothing is allocated per request once the slots
//! exist, and nothing is buffered for a client that does not read: its requests wait in its own socket.

mod access;
mod answer;
mod attachments;
mod connection;
mod error;
mod export;
mod hand_off;
mod handshake;
mod identity;
mod keep;
mod listener;
mod memory;
mod operation;
mod options;
mod places;
mod security;
mod session;
mod slots;
mod status;
mod tls_rate;
mod watch;
mod window;

pub use access::{Access, Given};
pub use answer::error_code;
pub use attachments::Attachments;
pub use error::NbdError;
pub use export::{Export, Exports};
pub use hand_off::{ExportDirectory, HandOff, HandedOff, WeakHandOff, go_on};
pub use identity::{Identity, Sources};
pub use keep::{Keeper, Kept, KeptState};
pub use listener::{ListenerOptions, Server, hand_off_clients, serve, serve_handed_off};
pub use memory::RequestMemory;
pub use options::{
    ConnectionOptions, HANDSHAKE_SILENCE, HANDSHAKE_TIMEOUT, IN_FLIGHT_BYTES_MAX, IN_FLIGHT_MAX,
    LINGER,
};
pub use places::{HANDSHAKES_MAX, Handshakes, NoPlace, Places};
pub use security::Security;
pub use session::serve_connection;
pub use weir_nbd::{ExportInfo, Instance, NotOffered};
