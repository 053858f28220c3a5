//! The remote volume: a device whose bytes are those of an export of another host, reached over NBD.
//!
//! * [`RemoteVolume`] is the device. Its calls become requests (`volume.rs`), in the units of the server (`blocks.rs`).
//! * One task has the connections (`task.rs`, `link.rs`): it makes them anew when one is lost, sends again what was not
//!   answered, and what was acknowledged and not flushed (`unflushed.rs`), where that is safe.
//! * [`shake_hands`] is the client's side of the handshake over any connection, TLS included.
//!
//! Callers above see a pause while there is no connection, not an error, up to a deadline.

mod answer;
mod blocks;
mod error;
mod exported;
mod flush;
mod handshake;
mod link;
mod session;
mod status;
mod task;
mod ticket;
mod unflushed;
mod url;
mod volume;

pub use error::RemoteError;
pub use exported::RemoteArgs;
pub use handshake::{Greeted, shake_hands};
pub use status::RemoteStatus;
pub use url::{RemoteUrl, Security, Wanted};
pub use volume::RemoteVolume;
