//! The transmission phase: requests one way, replies the other, in any order.

mod client;
#[cfg(test)]
mod client_tests;
mod judge;
mod reply;
mod request;
#[cfg(test)]
mod tests;

pub use client::{Failure, ReplyProgress, ReplyStep, Requests};
pub use judge::{Command, Refusal, Session, Verdict};
pub use reply::{
    Chunk, ContextStatus, ExtentStatus, ReplyHeader, ReplyTo, decode_chunk, decode_reply,
};
pub use request::{RequestHeader, decode_request};

/// The client's mark on a request, given back in every reply to it. Opaque to the server.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Cookie(pub u64);

/// Which headers both sides agreed on.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum ReplyStyle {
    /// 28-byte requests; replies of one piece.
    #[default]
    Simple,
    /// 28-byte requests; replies in chunks, simple ones where nothing but success is said.
    Structured,
    /// 32-byte requests with 64-bit lengths; replies in chunks with 32-byte headers.
    Extended,
}
