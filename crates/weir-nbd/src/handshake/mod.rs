//! The handshake: greeting, options, and what both sides agree on at its end.

mod attachment;
mod client;
pub(crate) mod context;
mod export;
mod layout;
mod option;
mod reply;
mod server;
#[cfg(test)]
mod tests;

pub use attachment::{Attached, Attachment, Exclusive, Instance, NotAttached, Tag};
pub use client::{Agreement, ClientHandshake, ClientProgress, ClientStep, ClientWish};
pub use context::{ALLOCATION_CONTEXT, ChosenContext, Context};
pub use export::ExportInfo;
pub use option::{OptionFault, OptionRequest, decode_option, encode_option};
pub use reply::{BlockSizes, Fact, OptionReply, decode_option_reply, encode_option_reply};
pub use server::{
    Admission, Catalog, HandshakeProgress, HandshakeStep, NotOffered, ServerHandshake, TlsOffer,
    Wanted,
};
