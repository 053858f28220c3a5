//! Replies: the server encodes them, the client decodes them.

use super::request::Cookie;
use super::style::ReplyStyle;
use crate::bytes::{Decoded, Reader, len_u32, put_u16, put_u32, put_u64};
use crate::error::ProtocolError;
use crate::limits::{
    CHUNK_BYTES_MAX, EXTENTS_MAX, EXTENTS_RECEIVED_MAX, MESSAGE_BYTES_MAX, PAYLOAD_BYTES_MAX,
};
use crate::numbers::{
    CHUNK_ERROR_BIT, ChunkCode, ChunkFlags, EXTENDED_REPLY_MAGIC, ErrorCode, SIMPLE_REPLY_MAGIC,
    STRUCTURED_REPLY_MAGIC,
};

/// Bytes of a simple reply header.
const SIMPLE_BYTES: usize = 16;
/// Bytes of a structured chunk header.
const STRUCTURED_BYTES: usize = 20;
/// Bytes of an extended chunk header.
const EXTENDED_BYTES: usize = 32;
/// Bytes of a block-status chunk before its extents, at most.
pub(super) const STATUS_HEAD_BYTES_MAX: u64 = EXTENDED_BYTES as u64 + 8;

/// Which request a reply answers, and in which form.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ReplyTo {
    /// Headers in use.
    pub style: ReplyStyle,
    /// The request's mark.
    pub cookie: Cookie,
    /// The request's offset; extended headers repeat it.
    pub offset: u64,
}

/// One extent of a block-status reply.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ExtentStatus {
    /// Bytes, never zero.
    pub length: u64,
    /// Flags of the context; see [`crate::Context`].
    pub flags: u64,
}

/// The extents of one context in a block-status reply.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ContextStatus {
    /// Number of the context.
    pub context: u32,
    /// From the offset asked for, at least one.
    pub extents: Vec<ExtentStatus>,
}

/// The longest prefix of `message` that an error reply carries, cut between characters.
fn message_prefix(message: &str) -> &str {
    let message = message.split('\0').next().unwrap_or_default();
    &message[..message.floor_char_boundary(MESSAGE_BYTES_MAX)]
}

impl ReplyTo {
    fn simple(&self, out: &mut Vec<u8>, error: u32) {
        put_u32(out, SIMPLE_REPLY_MAGIC);
        put_u32(out, error);
        put_u64(out, self.cookie.0);
    }

    fn chunk(&self, out: &mut Vec<u8>, flags: ChunkFlags, code: ChunkCode, length: u32) {
        let extended = self.style == ReplyStyle::Extended;
        put_u32(out, if extended { EXTENDED_REPLY_MAGIC } else { STRUCTURED_REPLY_MAGIC });
        put_u16(out, flags.0);
        put_u16(out, code.0);
        put_u64(out, self.cookie.0);
        if extended {
            put_u64(out, self.offset);
            put_u64(out, u64::from(length));
        } else {
            put_u32(out, length);
        }
    }

    /// Appends the answer to a request that succeeded and has nothing to send.
    pub fn success(&self, out: &mut Vec<u8>) {
        match self.style {
            // Allowed beside chunks wherever no payload follows, and four bytes shorter than an empty chunk.
            ReplyStyle::Simple | ReplyStyle::Structured => self.simple(out, 0),
            ReplyStyle::Extended => self.done(out),
        }
    }

    /// Appends the empty chunk that ends a reply of chunks.
    pub fn done(&self, out: &mut Vec<u8>) {
        self.chunk(out, ChunkFlags::DONE, ChunkCode::NONE, 0);
    }

    /// Appends the answer to a request that failed. `message` is for a person; simple replies have no room for it.
    pub fn error(&self, out: &mut Vec<u8>, code: ErrorCode, message: &str) {
        if self.style == ReplyStyle::Simple {
            return self.simple(out, code.number());
        }
        let message = message_prefix(message);
        let length = 6 + len_u32(message.len());
        self.chunk(out, ChunkFlags::DONE, ChunkCode::ERROR, length);
        self.error_fields(out, code, message);
    }

    /// Appends the answer to a request that failed at `offset`. Only in styles with chunks.
    pub fn error_at(&self, out: &mut Vec<u8>, code: ErrorCode, message: &str, offset: u64) {
        assert!(self.style != ReplyStyle::Simple, "simple replies have no chunks");
        let message = message_prefix(message);
        let length = 14 + len_u32(message.len());
        self.chunk(out, ChunkFlags::DONE, ChunkCode::ERROR_OFFSET, length);
        self.error_fields(out, code, message);
        put_u64(out, offset);
    }

    fn error_fields(&self, out: &mut Vec<u8>, code: ErrorCode, message: &str) {
        put_u32(out, code.number());
        put_u16(out, u16::try_from(message.len()).expect("a message is at most 256 bytes"));
        out.extend_from_slice(message.as_bytes());
    }

    /// Appends what goes before the `length` bytes of a read, which the caller sends next. This ends the reply: the
    /// bytes must be at hand, for no error can follow. A read of nothing has no bytes to announce.
    pub fn read_head(&self, out: &mut Vec<u8>, length: u32) {
        match self.style {
            ReplyStyle::Simple => self.simple(out, 0),
            ReplyStyle::Structured | ReplyStyle::Extended if length == 0 => self.done(out),
            ReplyStyle::Structured | ReplyStyle::Extended => {
                self.chunk(out, ChunkFlags::DONE, ChunkCode::OFFSET_DATA, 8 + length);
                put_u64(out, self.offset);
            }
        }
    }

    /// Appends what goes before `length` bytes of a read from `offset`, one of many chunks; the last one is `DONE`.
    /// Only in styles with chunks.
    pub fn read_chunk(&self, out: &mut Vec<u8>, offset: u64, length: u32, flags: ChunkFlags) {
        assert!(self.style != ReplyStyle::Simple, "simple replies have no chunks");
        assert!(length <= PAYLOAD_BYTES_MAX, "a chunk is at most as long as what is advertised");
        self.chunk(out, flags, ChunkCode::OFFSET_DATA, 8 + length);
        put_u64(out, offset);
    }

    /// Appends a chunk of a read that holds zeroes only, without sending them. Only in styles with chunks.
    pub fn read_hole(&self, out: &mut Vec<u8>, offset: u64, length: u32, flags: ChunkFlags) {
        assert!(self.style != ReplyStyle::Simple, "simple replies have no chunks");
        self.chunk(out, flags, ChunkCode::OFFSET_HOLE, 12);
        put_u64(out, offset);
        put_u32(out, length);
    }

    /// Appends the whole answer to a block-status request, one chunk for each context. Only in styles with chunks.
    ///
    /// # Panics
    /// Without contexts, with one without extents, with more than [`EXTENTS_MAX`] in all, or with lengths beyond what
    /// the style can carry.
    pub fn block_status(&self, out: &mut Vec<u8>, statuses: &[ContextStatus]) {
        let all: usize = statuses.iter().map(|status| status.extents.len()).sum();
        assert!(all <= EXTENTS_MAX, "a block-status reply is bounded");
        let (last, others) =
            statuses.split_last().expect("block status is refused without contexts");
        for status in others {
            self.status_chunk(out, ChunkFlags::default(), status);
        }
        self.status_chunk(out, ChunkFlags::DONE, last);
    }

    fn status_chunk(&self, out: &mut Vec<u8>, flags: ChunkFlags, status: &ContextStatus) {
        let ContextStatus { context, extents } = status;
        assert!(!extents.is_empty(), "a block-status chunk holds at least one extent");
        let count = len_u32(extents.len());
        match self.style {
            ReplyStyle::Simple => unreachable!("block status is refused without chunks"),
            ReplyStyle::Structured => {
                self.chunk(out, flags, ChunkCode::BLOCK_STATUS, 4 + 8 * count);
                put_u32(out, *context);
                for extent in extents {
                    let fits =
                        "a compact request asks for less than 4 GiB, and its flags are 32 bits";
                    put_u32(out, u32::try_from(extent.length).expect(fits));
                    put_u32(out, u32::try_from(extent.flags).expect(fits));
                }
            }
            ReplyStyle::Extended => {
                self.chunk(out, flags, ChunkCode::BLOCK_STATUS_EXT, 8 + 16 * count);
                put_u32(out, *context);
                put_u32(out, count);
                for extent in extents {
                    put_u64(out, extent.length);
                    put_u64(out, extent.flags);
                }
            }
        }
    }
}

/// The header of a reply, as the client reads it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ReplyHeader {
    /// A simple reply. After a read that succeeded without chunks, the bytes asked for follow.
    Simple {
        /// The request's mark.
        cookie: Cookie,
        /// The error, if the request failed.
        error: Option<ErrorCode>,
    },
    /// A chunk, whose payload follows.
    Chunk {
        /// The request's mark.
        cookie: Cookie,
        /// Whether this ends the reply.
        flags: ChunkFlags,
        /// What the payload is.
        code: ChunkCode,
        /// The request's offset, in extended headers.
        offset: Option<u64>,
        /// Bytes of payload, at most [`CHUNK_BYTES_MAX`].
        length: u32,
    },
}

/// Reads the next reply header.
///
/// # Errors
/// A wrong magic, or a payload beyond [`CHUNK_BYTES_MAX`]: the connection must be closed.
pub fn decode_reply(
    style: ReplyStyle,
    input: &[u8],
) -> Result<Decoded<ReplyHeader>, ProtocolError> {
    let mut reader = Reader::new(input);
    let shortest = if style == ReplyStyle::Extended { EXTENDED_BYTES } else { SIMPLE_BYTES };
    let Some(magic) = reader.u32() else { return Ok(Decoded::NeedMore(shortest - input.len())) };
    let (size, header) = match (style, magic) {
        (ReplyStyle::Simple | ReplyStyle::Structured, SIMPLE_REPLY_MAGIC) => {
            (SIMPLE_BYTES, simple_fields(reader).map(Ok))
        }
        (ReplyStyle::Structured, STRUCTURED_REPLY_MAGIC) => {
            (STRUCTURED_BYTES, chunk_fields(style, reader))
        }
        (ReplyStyle::Extended, EXTENDED_REPLY_MAGIC) => {
            (EXTENDED_BYTES, chunk_fields(style, reader))
        }
        _ => {
            let expected = match style {
                ReplyStyle::Simple => SIMPLE_REPLY_MAGIC,
                ReplyStyle::Structured => STRUCTURED_REPLY_MAGIC,
                ReplyStyle::Extended => EXTENDED_REPLY_MAGIC,
            };
            return Err(ProtocolError::Magic {
                message: "reply",
                found: u64::from(magic),
                expected: u64::from(expected),
            });
        }
    };
    match header {
        None => Ok(Decoded::NeedMore(size - input.len())),
        Some(header) => Ok(Decoded::Message { message: header?, consumed: size }),
    }
}

fn simple_fields(mut reader: Reader<'_>) -> Option<ReplyHeader> {
    let error = match reader.u32()? {
        0 => None,
        number => Some(ErrorCode::from_number(number)),
    };
    Some(ReplyHeader::Simple { cookie: Cookie(reader.u64()?), error })
}

fn chunk_fields(
    style: ReplyStyle,
    mut reader: Reader<'_>,
) -> Option<Result<ReplyHeader, ProtocolError>> {
    let flags = ChunkFlags(reader.u16()?);
    let code = ChunkCode(reader.u16()?);
    let cookie = Cookie(reader.u64()?);
    let (offset, length) = if style == ReplyStyle::Extended {
        (Some(reader.u64()?), reader.u64()?)
    } else {
        (None, u64::from(reader.u32()?))
    };
    let bounded = u32::try_from(length).ok().filter(|length| u64::from(*length) <= CHUNK_BYTES_MAX);
    Some(match bounded {
        Some(length) => Ok(ReplyHeader::Chunk { cookie, flags, code, offset, length }),
        None => Err(ProtocolError::TooLong {
            field: "payload of a reply",
            value: length,
            limit: CHUNK_BYTES_MAX,
        }),
    })
}

/// The payload of a chunk.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Chunk<'a> {
    /// Nothing.
    None,
    /// Bytes of a read.
    Data {
        /// Where on the export.
        offset: u64,
        /// The bytes, at least one.
        data: &'a [u8],
    },
    /// Zeroes of a read.
    Hole {
        /// Where on the export.
        offset: u64,
        /// How many, at least one.
        length: u32,
    },
    /// Extents of one metadata context.
    Status {
        /// Which context.
        context: u32,
        /// The extents, at least one.
        extents: Vec<ExtentStatus>,
    },
    /// The request failed, or part of it.
    Error {
        /// How.
        code: ErrorCode,
        /// The server's words, possibly none.
        message: &'a str,
        /// Where, if the server says so.
        offset: Option<u64>,
    },
}

/// Reads the payload of a chunk of type `code`.
///
/// # Errors
/// [`ProtocolError::Unexpected`] for a payload that is not what its type says, or a type that is not known.
pub fn decode_chunk(code: ChunkCode, payload: &[u8]) -> Result<Chunk<'_>, ProtocolError> {
    let reader = Reader::new(payload);
    let chunk = match code {
        ChunkCode::NONE => payload.is_empty().then_some(Chunk::None),
        ChunkCode::OFFSET_DATA => data_chunk(reader),
        ChunkCode::OFFSET_HOLE => hole_chunk(reader),
        ChunkCode::BLOCK_STATUS => status_chunk(reader),
        ChunkCode::BLOCK_STATUS_EXT => status_ext_chunk(reader),
        _ if code.0 & CHUNK_ERROR_BIT != 0 => error_chunk(code, reader),
        _ => None,
    };
    chunk.ok_or(ProtocolError::Unexpected {
        message: "reply chunk",
        reason: "its payload does not fit its type, or its type is unknown",
    })
}

fn data_chunk(mut reader: Reader<'_>) -> Option<Chunk<'_>> {
    let offset = reader.u64()?;
    (!reader.is_empty()).then(|| Chunk::Data { offset, data: reader.rest() })
}

fn hole_chunk(mut reader: Reader<'_>) -> Option<Chunk<'_>> {
    let (offset, length) = (reader.u64()?, reader.u32()?);
    (reader.is_empty() && length > 0).then_some(Chunk::Hole { offset, length })
}

/// Descriptors of `bytes_each` in the rest of a chunk, if they are whole and not too many.
fn checked_count(reader: Reader<'_>, bytes_each: usize) -> Option<usize> {
    let bytes = reader.rest().len();
    let count = bytes / bytes_each;
    (bytes.is_multiple_of(bytes_each) && count <= EXTENTS_RECEIVED_MAX).then_some(count)
}

fn status_chunk(mut reader: Reader<'_>) -> Option<Chunk<'_>> {
    let context = reader.u32()?;
    let mut extents = Vec::with_capacity(checked_count(reader, 8)?);
    while !reader.is_empty() {
        let (length, flags) = (u64::from(reader.u32()?), u64::from(reader.u32()?));
        extents.push(ExtentStatus { length, flags });
    }
    checked_status(context, extents)
}

fn status_ext_chunk(mut reader: Reader<'_>) -> Option<Chunk<'_>> {
    let (context, count) = (reader.u32()?, reader.u32()?);
    let mut extents = Vec::with_capacity(checked_count(reader, 16)?);
    while !reader.is_empty() {
        let (length, flags) = (reader.u64()?, reader.u64()?);
        extents.push(ExtentStatus { length, flags });
    }
    if u32::try_from(extents.len()) != Ok(count) {
        return None;
    }
    checked_status(context, extents)
}

fn checked_status(context: u32, extents: Vec<ExtentStatus>) -> Option<Chunk<'static>> {
    let sound = !extents.is_empty() && extents.iter().all(|extent| extent.length > 0);
    sound.then_some(Chunk::Status { context, extents })
}

fn error_chunk(code: ChunkCode, mut reader: Reader<'_>) -> Option<Chunk<'_>> {
    let number = reader.u32().filter(|number| *number != 0)?;
    let message_bytes = u32::from(reader.u16()?);
    // A message that is not text is dropped; the error it came with is what matters.
    let message = crate::bytes::string(reader.bytes(message_bytes)?).unwrap_or_default();
    let offset = match code {
        ChunkCode::ERROR_OFFSET => Some(reader.u64()?),
        _ => None,
    };
    Some(Chunk::Error { code: ErrorCode::from_number(number), message, offset })
}
