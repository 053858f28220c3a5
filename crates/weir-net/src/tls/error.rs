//! What may be wrong with certificates, and with a peer.

use std::io;
use std::path::Path;

use super::certificate::NoHolder;

/// Why there is no connection under TLS.
#[derive(Debug, thiserror::Error)]
pub enum TlsError {
    /// A file of the directory is wrong.
    #[error("{path}: {reason}")]
    File {
        /// The file.
        path: String,
        /// What is wrong.
        reason: String,
    },
    /// A file that must be there is not.
    #[error("{path} is missing; `weir pki issue` makes a directory with everything that is needed")]
    Missing {
        /// The file.
        path: String,
    },
    /// The list of what is revoked is gone.
    #[error(
        "{path} is missing, and those that it revoked would be let in again: put it back, or restart to go on without"
    )]
    ListGone {
        /// The file.
        path: String,
    },
    /// The list of one authority is gone.
    #[error(
        "{path} has no list of {issuer} any more, and those that it revoked would be let in again: add it, or restart \
         to go on without"
    )]
    ListDropped {
        /// The file.
        path: String,
        /// The authority.
        issuer: String,
    },
    /// The list of an authority was made before the one that is in use.
    #[error(
        "{path}: the list of {issuer} is older than the one that is in use, and those that were revoked since would be \
         let in again: copy the newest one there, or restart to go on with this one"
    )]
    ListOlder {
        /// The file.
        path: String,
        /// The authority.
        issuer: String,
    },
    /// There is no certificate for a server.
    #[error("{directory} has no certificate for a server; `weir pki issue NAME` makes one")]
    NoServer {
        /// The directory.
        directory: String,
    },
    /// The peer did not speak TLS, or its certificate was not accepted, or it did not accept ours.
    #[error("TLS with the peer: {source}")]
    Handshake {
        /// What the connection said.
        source: io::Error,
    },
    /// The peer's certificate is in order, and names nobody.
    #[error("TLS with the peer: {0}")]
    Nobody(#[from] NoHolder),
}

impl TlsError {
    pub(super) fn file(path: &Path, reason: impl Into<String>) -> Self {
        Self::File { path: path.display().to_string(), reason: reason.into() }
    }

    pub(super) fn missing(path: &Path) -> Self {
        Self::Missing { path: path.display().to_string() }
    }
}
