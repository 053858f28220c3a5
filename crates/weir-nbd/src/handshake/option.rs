//! Options: what a client asks for during the handshake.

use super::attachment::{Attachment, put_attachment, read_attachment};
use crate::bytes::{Decoded, Reader, len_u32, put_u16, put_u32, put_u64, string};
use crate::error::ProtocolError;
use crate::limits::{META_QUERIES_MAX, OPTION_BYTES_MAX};
use crate::numbers::{InfoCode, OPTION_MAGIC, OptionCode};

/// Bytes of an option header.
pub(crate) const OPTION_HEADER_BYTES: usize = 16;

/// The header of an option; `length` bytes of data follow.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct OptionHeader {
    pub(crate) code: OptionCode,
    pub(crate) length: u32,
}

pub(crate) fn decode_option_header(input: &[u8]) -> Result<Decoded<OptionHeader>, ProtocolError> {
    let mut reader = Reader::new(input);
    let need = Decoded::NeedMore(OPTION_HEADER_BYTES.saturating_sub(input.len()));
    let Some(magic) = reader.u64() else { return Ok(need) };
    if magic != OPTION_MAGIC {
        return Err(ProtocolError::Magic {
            message: "option",
            found: magic,
            expected: OPTION_MAGIC,
        });
    }
    let (Some(code), Some(length)) = (reader.u32(), reader.u32()) else { return Ok(need) };
    let message = OptionHeader { code: OptionCode(code), length };
    Ok(Decoded::Message { message, consumed: OPTION_HEADER_BYTES })
}

/// An option with its data.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum OptionRequest<'a> {
    /// Start with this export, or close.
    ExportName(&'a str),
    /// Goodbye.
    Abort,
    /// List the exports.
    List,
    /// Start TLS.
    StartTls,
    /// Describe an export.
    Info {
        /// Its name.
        name: &'a str,
        /// Facts wanted beside size and flags.
        facts: Vec<InfoCode>,
    },
    /// Start with an export.
    Go {
        /// Its name.
        name: &'a str,
        /// Facts wanted beside size and flags.
        facts: Vec<InfoCode>,
    },
    /// Use structured replies.
    StructuredReply,
    /// List the metadata contexts of an export.
    ListMetaContext {
        /// Its name.
        name: &'a str,
        /// What to list; nothing means everything.
        queries: Vec<&'a str>,
    },
    /// Choose metadata contexts of an export.
    SetMetaContext {
        /// Its name.
        name: &'a str,
        /// What to choose; nothing means none.
        queries: Vec<&'a str>,
    },
    /// Use extended headers.
    ExtendedHeaders,
    /// This connection is one of a client's use of an export.
    Attach {
        /// Name of the export.
        name: &'a str,
        /// Which use, and how new the connection is.
        attachment: Attachment,
    },
}

/// Why an option cannot be read. Each has its answer in the protocol.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OptionFault {
    /// Not an option of this implementation.
    Unknown,
    /// The data is not what the option asks for; the reason is for a person.
    Invalid(&'static str),
    /// Too many of something.
    TooBig(&'static str),
}

const LENGTHS: OptionFault = OptionFault::Invalid("the lengths inside the option do not add up");
const TEXT: OptionFault = OptionFault::Invalid("a string is too long, has a NUL or is not UTF-8");

/// Reads the data of an option.
///
/// # Errors
/// An [`OptionFault`], which the server answers with its reply; the stream stays in step.
pub fn decode_option(code: OptionCode, data: &[u8]) -> Result<OptionRequest<'_>, OptionFault> {
    let empty = |request| {
        let fault = OptionFault::Invalid("the option takes no data");
        if data.is_empty() { Ok(request) } else { Err(fault) }
    };
    match code {
        OptionCode::EXPORT_NAME => string(data).map(OptionRequest::ExportName).ok_or(TEXT),
        // The protocol asks servers to ignore whatever data comes with it.
        OptionCode::ABORT => Ok(OptionRequest::Abort),
        OptionCode::LIST => empty(OptionRequest::List),
        OptionCode::STARTTLS => empty(OptionRequest::StartTls),
        OptionCode::STRUCTURED_REPLY => empty(OptionRequest::StructuredReply),
        OptionCode::EXTENDED_HEADERS => empty(OptionRequest::ExtendedHeaders),
        OptionCode::INFO => {
            let (name, facts) = name_and_facts(data)?;
            Ok(OptionRequest::Info { name, facts })
        }
        OptionCode::GO => {
            let (name, facts) = name_and_facts(data)?;
            Ok(OptionRequest::Go { name, facts })
        }
        OptionCode::LIST_META_CONTEXT => {
            let (name, queries) = name_and_queries(data)?;
            Ok(OptionRequest::ListMetaContext { name, queries })
        }
        OptionCode::SET_META_CONTEXT => {
            let (name, queries) = name_and_queries(data)?;
            Ok(OptionRequest::SetMetaContext { name, queries })
        }
        OptionCode::WEIR_ATTACH => {
            let mut reader = Reader::new(data);
            // A client of another version learns that its option is not known, and goes on without it.
            let attachment = read_attachment(&mut reader).ok_or(OptionFault::Unknown)?;
            let name = counted_string(&mut reader)?;
            match reader.is_empty() {
                true => Ok(OptionRequest::Attach { name, attachment }),
                false => Err(LENGTHS),
            }
        }
        _ => Err(OptionFault::Unknown),
    }
}

fn counted_string<'a>(reader: &mut Reader<'a>) -> Result<&'a str, OptionFault> {
    let length = reader.u32().ok_or(LENGTHS)?;
    string(reader.bytes(length).ok_or(LENGTHS)?).ok_or(TEXT)
}

fn name_and_facts(data: &[u8]) -> Result<(&str, Vec<InfoCode>), OptionFault> {
    let mut reader = Reader::new(data);
    let name = counted_string(&mut reader)?;
    let count = usize::from(reader.u16().ok_or(LENGTHS)?);
    if reader.rest().len() != 2 * count {
        return Err(LENGTHS);
    }
    let facts = std::iter::from_fn(|| reader.u16().map(InfoCode)).collect();
    Ok((name, facts))
}

fn name_and_queries(data: &[u8]) -> Result<(&str, Vec<&str>), OptionFault> {
    let mut reader = Reader::new(data);
    let name = counted_string(&mut reader)?;
    let count = reader.u32().ok_or(LENGTHS)?;
    if count > META_QUERIES_MAX {
        return Err(OptionFault::TooBig("too many metadata queries in one option"));
    }
    let mut queries = Vec::new();
    for _ in 0..count {
        let query = counted_string(&mut reader)?;
        if query.split_once(':').is_none_or(|(namespace, _)| namespace.is_empty()) {
            return Err(OptionFault::Invalid("a metadata query lacks its namespace"));
        }
        queries.push(query);
    }
    if reader.is_empty() { Ok((name, queries)) } else { Err(LENGTHS) }
}

impl OptionRequest<'_> {
    /// Its number.
    #[must_use]
    pub fn code(&self) -> OptionCode {
        match self {
            Self::ExportName(_) => OptionCode::EXPORT_NAME,
            Self::Abort => OptionCode::ABORT,
            Self::List => OptionCode::LIST,
            Self::StartTls => OptionCode::STARTTLS,
            Self::Info { .. } => OptionCode::INFO,
            Self::Go { .. } => OptionCode::GO,
            Self::StructuredReply => OptionCode::STRUCTURED_REPLY,
            Self::ListMetaContext { .. } => OptionCode::LIST_META_CONTEXT,
            Self::SetMetaContext { .. } => OptionCode::SET_META_CONTEXT,
            Self::ExtendedHeaders => OptionCode::EXTENDED_HEADERS,
            Self::Attach { .. } => OptionCode::WEIR_ATTACH,
        }
    }
}

/// Appends an option with its header to `out`.
///
/// # Errors
/// [`ProtocolError::TooLong`] for an option that no server need take; `out` is unchanged then.
pub fn encode_option(request: &OptionRequest<'_>, out: &mut Vec<u8>) -> Result<(), ProtocolError> {
    let mut data = Vec::new();
    match request {
        OptionRequest::ExportName(name) => data.extend_from_slice(name.as_bytes()),
        OptionRequest::Info { name, facts } | OptionRequest::Go { name, facts } => {
            put_string(&mut data, name)?;
            put_u16(&mut data, u16::try_from(facts.len()).map_err(|_| too_long(facts.len()))?);
            facts.iter().for_each(|fact| put_u16(&mut data, fact.0));
        }
        OptionRequest::ListMetaContext { name, queries }
        | OptionRequest::SetMetaContext { name, queries } => {
            put_string(&mut data, name)?;
            put_u32(&mut data, u32::try_from(queries.len()).map_err(|_| too_long(queries.len()))?);
            for query in queries {
                put_string(&mut data, query)?;
            }
        }
        OptionRequest::Attach { name, attachment } => {
            put_attachment(&mut data, attachment);
            put_string(&mut data, name)?;
        }
        OptionRequest::Abort
        | OptionRequest::List
        | OptionRequest::StartTls
        | OptionRequest::StructuredReply
        | OptionRequest::ExtendedHeaders => {}
    }
    if data.len() > OPTION_BYTES_MAX {
        return Err(too_long(data.len()));
    }
    put_u64(out, OPTION_MAGIC);
    put_u32(out, request.code().0);
    put_u32(out, len_u32(data.len()));
    out.extend_from_slice(&data);
    Ok(())
}

fn too_long(bytes: usize) -> ProtocolError {
    ProtocolError::TooLong {
        field: "data of an option",
        value: bytes as u64,
        limit: OPTION_BYTES_MAX as u64,
    }
}

fn put_string(out: &mut Vec<u8>, text: &str) -> Result<(), ProtocolError> {
    put_u32(out, u32::try_from(text.len()).map_err(|_| too_long(text.len()))?);
    out.extend_from_slice(text.as_bytes());
    Ok(())
}
