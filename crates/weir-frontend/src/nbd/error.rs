//! What ends a connection against someone's wish.

use std::io;

use weir_device::{DeviceError, ErrorKind};
use weir_nbd::ProtocolError;

/// Why a connection ended, or a listener could not start.
#[derive(Debug, thiserror::Error)]
pub enum NbdError {
    /// The client broke the protocol.
    #[error("protocol error: {source}")]
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
    /// TLS did not come about.
    #[error(transparent)]
    Tls(#[from] weir_net::tls::TlsError),
    /// The client sent something in the clear behind its request for TLS: somebody on the way may have.
    #[error("the client sent something in the clear behind its request for TLS")]
    SentBeforeTls,
    /// The client left in the middle of a message.
    #[error("the client left in the middle of a message")]
    Truncated,
    /// The device was superseded before replies could be sent.
    #[error("the device was superseded before the client took its replies")]
    Stale,
    /// The client stopped in the middle of something.
    #[error(
        "the client neither took its replies nor sent the rest of a request for {seconds} s: cut off"
    )]
    Stalled {
        /// The time it had.
        seconds: u64,
    },
    /// A reply that had begun could not be ended: it has no place for an error.
    #[error("a read of which a part was sent failed: {source}")]
    ReadFailed {
        /// How.
        #[source]
        source: DeviceError,
    },
    /// Who was given exclusive access could not be written down: nothing may be written.
    #[error("who has exclusive access could not be written down: {source}")]
    AccessNotKept {
        /// Why.
        #[source]
        source: DeviceError,
    },
    /// A newer connection of the same client is there.
    #[error("it is to be made anew, or a newer connection of the same client has taken its place")]
    Replaced,
    /// The client did not finish its handshake.
    #[error("the client did not finish its handshake within {seconds} s")]
    HandshakeTimeout {
        /// The time it had.
        seconds: u64,
    },
    /// Too many handshakes were in progress.
    #[error("too many handshakes at a time: the oldest one of the peer with the most is cut off")]
    HandshakesFull,
    /// An address cannot be listened on.
    #[error("listening on {address}")]
    Listen {
        /// The address.
        address: String,
        /// Why not.
        #[source]
        source: io::Error,
    },
}

impl NbdError {
    /// What the caller can do.
    #[must_use]
    pub fn kind(&self) -> ErrorKind {
        match self {
            Self::Protocol { source } => source.kind(),
            Self::Truncated
            | Self::SentBeforeTls
            | Self::Tls(_)
            | Self::HandshakeTimeout { .. }
            | Self::Stalled { .. } => ErrorKind::Invalid,
            Self::ReadFailed { source } | Self::AccessNotKept { source } => source.kind(),
            Self::HandshakesFull => ErrorKind::Busy,
            Self::Stale | Self::Replaced => ErrorKind::Fenced,
            Self::Connection { .. } => ErrorKind::Unavailable,
            Self::Listen { source, .. } => match source.kind() {
                io::ErrorKind::AddrInUse => ErrorKind::Exists,
                io::ErrorKind::NotFound => ErrorKind::NotFound,
                _ => ErrorKind::Unavailable,
            },
        }
    }
}
