//! What ends a conversation. Faults that the protocol can answer are replies, not errors.

use weir_device::ErrorKind;

/// A breach after which the stream cannot be trusted any further: the connection must be closed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ProtocolError {
    /// A message begins with the wrong magic.
    #[error("{message} begins with {found:#x} instead of {expected:#x}")]
    Magic {
        /// Which message.
        message: &'static str,
        /// What was received.
        found: u64,
        /// What the protocol asks for.
        expected: u64,
    },
    /// The client set flags in the handshake that nobody offered.
    #[error("the client answers the greeting with unknown flags {flags:#x}")]
    ClientFlags {
        /// All flags received.
        flags: u32,
    },
    /// A client without fixed newstyle may only send `EXPORT_NAME`.
    #[error("option {option} from a client that did not agree on fixed newstyle")]
    NotFixedNewstyle {
        /// Number of the option.
        option: u32,
    },
    /// The client asked by `EXPORT_NAME`, which has no error reply, for something it cannot have.
    #[error("the client asks for an export by EXPORT_NAME, which cannot be refused: {reason}")]
    ExportRefused {
        /// Why.
        reason: &'static str,
    },
    /// A length beyond its limit.
    #[error("{field} of {value} bytes exceeds the limit of {limit}")]
    TooLong {
        /// What is too long.
        field: &'static str,
        /// The length received.
        value: u64,
        /// The limit.
        limit: u64,
    },
    /// More options than a handshake may have.
    #[error("more than {limit} options in one handshake")]
    TooManyOptions {
        /// The limit.
        limit: u32,
    },
    /// The peer sent a message that has no place here.
    #[error("unexpected {message}: {reason}")]
    Unexpected {
        /// Which message.
        message: &'static str,
        /// What is wrong with it.
        reason: &'static str,
    },
    /// The server refused what the client cannot do without.
    #[error("the server refuses: {}", words(*.option, *.reply, message))]
    Refused {
        /// Number of the option.
        option: u32,
        /// Type of the reply.
        reply: u32,
        /// The server's words, possibly none.
        message: String,
    },
}

/// The server's words, or the numbers where it has none.
fn words(option: u32, reply: u32, message: &str) -> String {
    match message {
        "" => format!("option {option}, reply {reply:#x}"),
        message => message.to_owned(),
    }
}

impl ProtocolError {
    /// What the caller can do: nothing but talk to another peer, or say something else.
    #[must_use]
    pub fn kind(&self) -> ErrorKind {
        match self {
            Self::Refused { .. } => ErrorKind::Unavailable,
            _ => ErrorKind::Invalid,
        }
    }
}
