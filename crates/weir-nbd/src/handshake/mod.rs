//! The handshake: greeting, options, and what both sides agree on at its end.

mod client;
mod context;
mod option;
mod reply;
mod server;
#[cfg(test)]
mod tests;

pub use client::{Agreement, ClientHandshake, ClientProgress, ClientStep, ClientWish};
pub use context::{ALLOCATION_CONTEXT, ChosenContext, Context};
pub use option::{OptionFault, OptionRequest, decode_option, encode_option};
pub use reply::{BlockSizes, Fact, OptionReply, decode_option_reply, encode_option_reply};
pub use server::{Catalog, ExportInfo, HandshakeProgress, HandshakeStep, ServerHandshake, Wanted};

/// Bytes of the server's greeting.
pub(crate) const GREETING_BYTES: usize = 18;

/// Bytes of zeroes that follow an `EXPORT_NAME` answer, unless both sides agreed to leave them out.
pub(crate) const EXPORT_NAME_ZEROES: usize = 124;
