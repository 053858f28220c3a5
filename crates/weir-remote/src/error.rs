//! What goes wrong on the way to an export.

use std::io;

use weir_device::{DeviceError, ErrorKind, with_causes};
use weir_nbd::{ErrorCode, Failure, OptionCode, OptionReplyCode, ProtocolError};
use weir_net::tls::TlsError;

/// Why there is no connection, or none any more.
#[derive(Debug, thiserror::Error)]
pub enum RemoteError {
    /// The address of an export cannot be understood.
    #[error("\"{url}\" is no address of an export: {reason}")]
    Url {
        /// What was given.
        url: String,
        /// What is wrong with it.
        reason: String,
    },
    /// TLS is asked for and there is no certificate to show.
    #[error("it needs TLS, and there are no certificates: give --tls-certificates DIR")]
    NoCertificates,
    /// The server cannot be reached.
    #[error("connecting: {source}: is the server running, and is this its address?")]
    Connect {
        /// Why.
        #[source]
        source: io::Error,
    },
    /// TLS did not come about.
    #[error(transparent)]
    Tls(#[from] TlsError),
    /// The server begins TLS, for which it was not asked.
    #[error("the server begins TLS, for which it was not asked")]
    UnwishedTls,
    /// The server sent something in the clear behind its answer about TLS: somebody on the way may have.
    #[error("the server sent something in the clear behind its answer about TLS")]
    SentBeforeTls,
    /// The server broke the protocol, or refused the export.
    #[error("{source}")]
    Protocol {
        /// How.
        #[from]
        source: ProtocolError,
    },
    /// The connection failed.
    #[error("the connection failed: {source}")]
    Connection {
        /// How.
        #[source]
        source: io::Error,
    },
    /// The server ended the connection.
    #[error("the server ended the connection")]
    Ended,
    /// The server is going away.
    #[error("the server is shutting down")]
    ShuttingDown,
    /// The server said nothing for too long.
    #[error("nothing was heard from the server for {seconds} s")]
    Silent {
        /// How long.
        seconds: u64,
    },
    /// Another client has, or may have, the export.
    #[error("{reason}")]
    NotExclusive {
        /// What the server says.
        reason: String,
    },
    /// What the server offers cannot be used.
    #[error("{reason}")]
    Unusable {
        /// Why, and what to do.
        reason: String,
    },
}

impl RemoteError {
    /// As it is where the server may have refused the attachment.
    pub(crate) fn of_attachment(self) -> Self {
        match self {
            Self::Protocol { source: ProtocolError::Refused { option, reply, message } }
                if option == OptionCode::WEIR_ATTACH.0 =>
            {
                match OptionReplyCode(reply) {
                    OptionReplyCode::ERR_WEIR_TAKEN => Self::NotExclusive { reason: message },
                    OptionReplyCode::ERR_UNSUP => Self::Unusable {
                        reason: "the server cannot give exclusive access: it is no Weir, or the export is a snapshot. \
                                 Leave remote.exclusive (--remote-exclusive) out to share the export"
                            .to_owned(),
                    },
                    _ => Self::Protocol {
                        source: ProtocolError::Refused { option, reply, message },
                    },
                }
            }
            other => other,
        }
    }

    /// As an error of a device at `url`.
    #[must_use]
    pub fn of_device(self, url: &str) -> DeviceError {
        let kind = match &self {
            Self::Url { .. } | Self::NoCertificates => ErrorKind::Invalid,
            Self::Unusable { .. } => ErrorKind::Unsupported,
            Self::NotExclusive { .. } => ErrorKind::Fenced,
            Self::Protocol { source: ProtocolError::Refused { reply, .. } }
                if *reply == OptionReplyCode::ERR_UNKNOWN.0 =>
            {
                ErrorKind::NotFound
            }
            _ => ErrorKind::Unavailable,
        };
        match self {
            // It names itself.
            Self::Url { .. } => DeviceError::from_source(kind, self),
            other => DeviceError::new(kind, format!("{url}: {}", with_causes(&other))),
        }
    }
}

/// What a server says of a request, as an error of the device.
pub(crate) fn failed(url: &str, what: &str, failure: &Failure) -> DeviceError {
    let kind = match failure.code {
        ErrorCode::NotPermitted => ErrorKind::ReadOnly,
        ErrorCode::Io | ErrorCode::Shutdown => ErrorKind::Unavailable,
        ErrorCode::NoMemory => ErrorKind::Busy,
        ErrorCode::Invalid | ErrorCode::Overflow => ErrorKind::Invalid,
        ErrorCode::NoSpace => ErrorKind::NoSpace,
        ErrorCode::NotSupported => ErrorKind::Unsupported,
    };
    let said = match failure.message.as_str() {
        "" => format!("{:?}", failure.code),
        message => message.to_owned(),
    };
    DeviceError::new(kind, format!("{url}: the server answers {what}: {said}"))
}
