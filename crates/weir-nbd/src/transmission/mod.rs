//! The transmission phase: requests one way, replies the other, in any order.

mod client;
#[cfg(test)]
mod client_tests;
pub(crate) mod judge;
mod reply;
mod request;
pub(crate) mod style;
#[cfg(test)]
mod tests;

pub use client::{Failure, ReplyProgress, ReplyStep, Requests};
pub use judge::{Command, Refusal, Session, Verdict};
pub use reply::{
    Chunk, ContextStatus, ExtentStatus, ReplyHeader, ReplyTo, decode_chunk, decode_reply,
};
pub use request::{Cookie, RequestHeader, decode_request};
pub use style::ReplyStyle;
