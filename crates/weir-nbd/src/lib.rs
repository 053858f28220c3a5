//! NBD messages: one sans-I/O codec for server and client.
//!
//! Everything here takes bytes and values and returns bytes and values: no socket, no clock, no task. That is what lets
//! one codec serve the server, the remote volume, the tests and the fuzzer. The subset spoken, its limits and its error
//! table are in `docs/formats/nbd.md`.
//!
//! * [`ServerHandshake`] and [`ClientHandshake`] turn received bytes into bytes to send, until an export is agreed on.
//! * [`Session::judge`] says what a request means: a [`Command`] to run, a refusal to answer, or goodbye.
//! * [`ReplyTo`] encodes the answers. On the client's side [`Requests`] encodes requests and says what the answers
//!   mean; below it, [`decode_reply`] and [`decode_chunk`] read them.

mod bytes;
mod error;
mod handshake;
pub mod limits;
mod numbers;
#[cfg(test)]
mod testing;
mod transmission;

pub use bytes::Decoded;
pub use error::ProtocolError;
pub use handshake::{
    ALLOCATION_CONTEXT, Admission, Agreement, Attached, Attachment, BlockSizes, Catalog,
    ChosenContext, ClientHandshake, ClientProgress, ClientStep, ClientWish, Context, Exclusive,
    ExportInfo, Fact, HandshakeProgress, HandshakeStep, Instance, NotAttached, NotOffered,
    OptionFault, OptionReply, OptionRequest, ServerHandshake, Tag, TlsOffer, Wanted, decode_option,
    decode_option_reply, encode_option, encode_option_reply,
};
pub use numbers::{
    AllocationFlags, ChunkCode, ChunkFlags, ClientFlags, CommandCode, CommandFlags, DirtyFlags,
    ErrorCode, HandshakeFlags, InfoCode, OptionCode, OptionReplyCode, TransmissionFlags,
};
pub use transmission::{
    Chunk, Command, ContextStatus, Cookie, ExtentStatus, Failure, Refusal, ReplyHeader,
    ReplyProgress, ReplyStep, ReplyStyle, ReplyTo, RequestHeader, Requests, Session, Verdict,
    decode_chunk, decode_reply, decode_request,
};
