//! Option replies: what a server answers during the handshake.

use super::attachment::{Attached, put_attached, read_attached};
use crate::bytes::{Decoded, Reader, len_u32, put_u16, put_u32, put_u64, string};
use crate::error::ProtocolError;
use crate::limits::OPTION_REPLY_BYTES_MAX;
use crate::numbers::{
    InfoCode, OPTION_REPLY_MAGIC, OptionCode, OptionReplyCode, TransmissionFlags,
};

/// Bytes of an option reply header.
const HEADER_BYTES: usize = 20;

/// The sizes that requests must keep to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BlockSizes {
    /// Offsets and lengths are multiples of this, in bytes.
    pub minimum: u32,
    /// Requests of multiples of this cost least, in bytes.
    pub preferred: u32,
    /// Largest payload in bytes.
    pub payload_max: u32,
}

/// One fact about an export.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fact<'a> {
    /// What every client needs.
    Export {
        /// Size in bytes.
        size: u64,
        /// What is offered.
        flags: TransmissionFlags,
    },
    /// Canonical name.
    Name(&'a str),
    /// A line for a person.
    Description(&'a str),
    /// Block sizes.
    BlockSize(BlockSizes),
    /// A fact that this implementation does not know; clients pass over it.
    Other(InfoCode),
}

/// The answer to an option, or a part of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OptionReply<'a> {
    /// Done.
    Ack,
    /// One export of a list.
    Server {
        /// Its name.
        name: &'a str,
        /// A line for a person, possibly empty.
        description: &'a str,
    },
    /// A fact about an export.
    Info(Fact<'a>),
    /// A metadata context.
    MetaContext {
        /// Its number in this session; zero in lists.
        id: u32,
        /// Its name.
        name: &'a str,
    },
    /// Which opening of the export answers.
    Attached(Attached),
    /// The option failed.
    Error {
        /// How.
        code: OptionReplyCode,
        /// A line for a person, possibly empty.
        message: &'a str,
    },
}

impl OptionReply<'_> {
    /// Its number.
    #[must_use]
    pub fn code(&self) -> OptionReplyCode {
        match self {
            Self::Ack => OptionReplyCode::ACK,
            Self::Server { .. } => OptionReplyCode::SERVER,
            Self::Info(_) => OptionReplyCode::INFO,
            Self::MetaContext { .. } => OptionReplyCode::META_CONTEXT,
            Self::Attached(_) => OptionReplyCode::WEIR_ATTACHED,
            Self::Error { code, .. } => *code,
        }
    }

    fn put_data(&self, out: &mut Vec<u8>) {
        match self {
            Self::Ack => {}
            Self::Server { name, description } => {
                put_u32(out, len_u32(name.len()));
                out.extend_from_slice(name.as_bytes());
                out.extend_from_slice(description.as_bytes());
            }
            Self::Info(fact) => put_fact(out, fact),
            Self::MetaContext { id, name } => {
                put_u32(out, *id);
                out.extend_from_slice(name.as_bytes());
            }
            Self::Attached(attached) => put_attached(out, attached),
            Self::Error { message, .. } => out.extend_from_slice(message.as_bytes()),
        }
    }
}

fn put_fact(out: &mut Vec<u8>, fact: &Fact<'_>) {
    match fact {
        Fact::Export { size, flags } => {
            put_u16(out, InfoCode::EXPORT.0);
            put_u64(out, *size);
            put_u16(out, flags.0);
        }
        Fact::Name(name) => {
            put_u16(out, InfoCode::NAME.0);
            out.extend_from_slice(name.as_bytes());
        }
        Fact::Description(text) => {
            put_u16(out, InfoCode::DESCRIPTION.0);
            out.extend_from_slice(text.as_bytes());
        }
        Fact::BlockSize(sizes) => {
            put_u16(out, InfoCode::BLOCK_SIZE.0);
            put_u32(out, sizes.minimum);
            put_u32(out, sizes.preferred);
            put_u32(out, sizes.payload_max);
        }
        Fact::Other(code) => put_u16(out, code.0),
    }
}

/// Appends a reply to `option` to `out`.
pub fn encode_option_reply(option: OptionCode, reply: &OptionReply<'_>, out: &mut Vec<u8>) {
    put_u64(out, OPTION_REPLY_MAGIC);
    put_u32(out, option.0);
    put_u32(out, reply.code().0);
    let length_at = out.len();
    put_u32(out, 0);
    let data_at = out.len();
    reply.put_data(out);
    let length = len_u32(out.len() - data_at);
    out[length_at..data_at].copy_from_slice(&length.to_be_bytes());
}

/// Reads the next option reply: the option it answers, and what it says.
///
/// # Errors
/// A wrong magic, data beyond [`OPTION_REPLY_BYTES_MAX`], or data that does not fit its type.
pub fn decode_option_reply(
    input: &[u8],
) -> Result<Decoded<(OptionCode, OptionReply<'_>)>, ProtocolError> {
    let mut reader = Reader::new(input);
    let need = Decoded::NeedMore(HEADER_BYTES.saturating_sub(input.len()));
    let Some(magic) = reader.u64() else { return Ok(need) };
    if magic != OPTION_REPLY_MAGIC {
        return Err(ProtocolError::Magic {
            message: "option reply",
            found: magic,
            expected: OPTION_REPLY_MAGIC,
        });
    }
    let (Some(option), Some(code), Some(length)) = (reader.u32(), reader.u32(), reader.u32())
    else {
        return Ok(need);
    };
    let bytes = usize::try_from(length).ok().filter(|bytes| *bytes <= OPTION_REPLY_BYTES_MAX);
    let Some(bytes) = bytes else {
        return Err(ProtocolError::TooLong {
            field: "data of an option reply",
            value: u64::from(length),
            limit: OPTION_REPLY_BYTES_MAX as u64,
        });
    };
    let Some(data) = reader.bytes(length) else {
        return Ok(Decoded::NeedMore(bytes - reader.rest().len()));
    };
    let reply = decode_data(OptionReplyCode(code), data).ok_or(ProtocolError::Unexpected {
        message: "option reply",
        reason: "its data does not fit its type, or its type is unknown",
    })?;
    Ok(Decoded::Message { message: (OptionCode(option), reply), consumed: HEADER_BYTES + bytes })
}

fn decode_data(code: OptionReplyCode, data: &[u8]) -> Option<OptionReply<'_>> {
    let mut reader = Reader::new(data);
    match code {
        OptionReplyCode::ACK => data.is_empty().then_some(OptionReply::Ack),
        OptionReplyCode::SERVER => {
            let length = reader.u32()?;
            let name = string(reader.bytes(length)?)?;
            Some(OptionReply::Server { name, description: string(reader.rest())? })
        }
        OptionReplyCode::INFO => decode_fact(reader).map(OptionReply::Info),
        OptionReplyCode::META_CONTEXT => {
            let id = reader.u32()?;
            Some(OptionReply::MetaContext { id, name: string(reader.rest())? })
        }
        OptionReplyCode::WEIR_ATTACHED => read_attached(reader).map(OptionReply::Attached),
        // A message that is not text is dropped; the error it came with is what matters.
        _ if code.is_error() => {
            Some(OptionReply::Error { code, message: string(data).unwrap_or_default() })
        }
        _ => None,
    }
}

fn decode_fact(mut reader: Reader<'_>) -> Option<Fact<'_>> {
    let fact = match InfoCode(reader.u16()?) {
        InfoCode::EXPORT => {
            let (size, flags) = (reader.u64()?, TransmissionFlags(reader.u16()?));
            reader.is_empty().then_some(Fact::Export { size, flags })?
        }
        InfoCode::NAME => Fact::Name(string(reader.rest())?),
        InfoCode::DESCRIPTION => Fact::Description(string(reader.rest())?),
        InfoCode::BLOCK_SIZE => {
            let (minimum, preferred) = (reader.u32()?, reader.u32()?);
            let sizes = BlockSizes { minimum, preferred, payload_max: reader.u32()? };
            reader.is_empty().then_some(Fact::BlockSize(sizes))?
        }
        other => Fact::Other(other),
    };
    Some(fact)
}
