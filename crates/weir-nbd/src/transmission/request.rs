//! Request headers, compact and extended.

use super::style::ReplyStyle;
use crate::bytes::{Decoded, Reader, put_u16, put_u32, put_u64};
use crate::error::ProtocolError;
use crate::numbers::{CommandCode, CommandFlags, EXTENDED_REQUEST_MAGIC, REQUEST_MAGIC};

/// The client's mark on a request, given back in every reply to it. Opaque to the server.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Cookie(pub u64);

/// Bytes of a compact request header.
const COMPACT_BYTES: usize = 28;
/// Bytes of an extended request header.
const EXTENDED_BYTES: usize = 32;

/// A request as it stands on the wire; nothing in it has been checked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RequestHeader {
    /// Flags of the command.
    pub flags: CommandFlags,
    /// What is asked.
    pub command: CommandCode,
    /// The client's mark.
    pub cookie: Cookie,
    /// First byte on the export.
    pub offset: u64,
    /// Length of the payload or of the effect, in bytes.
    pub length: u64,
}

/// Reads the next request header. Its payload, if [`crate::Session::judge`] says that it has one, follows it.
///
/// # Errors
/// [`ProtocolError::Magic`]: the stream is out of step and must be closed.
pub fn decode_request(
    style: ReplyStyle,
    input: &[u8],
) -> Result<Decoded<RequestHeader>, ProtocolError> {
    let (magic, size) = match style {
        ReplyStyle::Extended => (EXTENDED_REQUEST_MAGIC, EXTENDED_BYTES),
        ReplyStyle::Simple | ReplyStyle::Structured => (REQUEST_MAGIC, COMPACT_BYTES),
    };
    let mut reader = Reader::new(input);
    let Some(found) = reader.u32() else { return Ok(Decoded::NeedMore(size - input.len())) };
    if found != magic {
        return Err(ProtocolError::Magic {
            message: "request",
            found: u64::from(found),
            expected: u64::from(magic),
        });
    }
    let header = read_fields(style, reader);
    Ok(match header {
        Some(message) => Decoded::Message { message, consumed: size },
        None => Decoded::NeedMore(size - input.len()),
    })
}

fn read_fields(style: ReplyStyle, mut reader: Reader<'_>) -> Option<RequestHeader> {
    Some(RequestHeader {
        flags: CommandFlags(reader.u16()?),
        command: CommandCode(reader.u16()?),
        cookie: Cookie(reader.u64()?),
        offset: reader.u64()?,
        length: match style {
            ReplyStyle::Extended => reader.u64()?,
            ReplyStyle::Simple | ReplyStyle::Structured => u64::from(reader.u32()?),
        },
    })
}

impl RequestHeader {
    /// Appends the header to `out`.
    ///
    /// # Errors
    /// [`ProtocolError::TooLong`] for a length that the compact header cannot carry.
    pub fn encode(&self, style: ReplyStyle, out: &mut Vec<u8>) -> Result<(), ProtocolError> {
        let compact_length = u32::try_from(self.length);
        let (magic, compact) = match (style, compact_length) {
            (ReplyStyle::Extended, _) => (EXTENDED_REQUEST_MAGIC, None),
            (_, Ok(length)) => (REQUEST_MAGIC, Some(length)),
            (_, Err(_)) => {
                return Err(ProtocolError::TooLong {
                    field: "length of a compact request",
                    value: self.length,
                    limit: u64::from(u32::MAX),
                });
            }
        };
        put_u32(out, magic);
        put_u16(out, self.flags.0);
        put_u16(out, self.command.0);
        put_u64(out, self.cookie.0);
        put_u64(out, self.offset);
        match compact {
            Some(length) => put_u32(out, length),
            None => put_u64(out, self.length),
        }
        Ok(())
    }
}
