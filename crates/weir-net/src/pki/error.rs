//! What may be wrong with an authority, or with what it is asked for.

use std::io;
use std::path::Path;

/// Why an authority does not do what it is asked for.
#[derive(Debug, thiserror::Error)]
pub enum PkiError {
    /// There is none.
    #[error("{directory} holds no certificate authority; make one with `weir pki init`")]
    NoAuthority {
        /// Where it was looked for.
        directory: String,
    },
    /// There is one already.
    #[error("{path} is there already; an authority is never replaced: name another directory")]
    AlreadyThere {
        /// The file.
        path: String,
    },
    /// The name has a certificate.
    #[error("{name} has a certificate; renew it with `weir pki renew {name}`, or revoke it first")]
    AlreadyIssued {
        /// Whose.
        name: String,
    },
    /// The name has no certificate.
    #[error("{name} has no certificate that is in force; `weir pki list` shows all")]
    NotIssued {
        /// Whose.
        name: String,
    },
    /// The authority has expired.
    #[error("the authority in {directory} has expired; make a new one with `weir pki init`")]
    Expired {
        /// Where it is.
        directory: String,
    },
    /// A name that cannot be one.
    #[error(
        "{name:?} is no name for a certificate: take up to 64 letters, digits, dots, dashes and underscores, and a \
         letter or digit first"
    )]
    BadName {
        /// The name.
        name: String,
    },
    /// A host that cannot be one.
    #[error("{host:?} is neither a host name nor an address")]
    BadHost {
        /// The host.
        host: String,
    },
    /// Too long, or none at all.
    #[error("a certificate is valid for 1 to {limit} days, not for {days}")]
    Days {
        /// What was asked for.
        days: u32,
        /// The most.
        limit: u32,
    },
    /// A file could not be read or written.
    #[error("{path}: {source}")]
    Io {
        /// The file.
        path: String,
        /// What the system said.
        source: io::Error,
    },
    /// A file holds something else.
    #[error("{path}: {reason}")]
    Wrong {
        /// The file.
        path: String,
        /// What is wrong with it.
        reason: String,
    },
    /// The system gave no random numbers.
    #[error("random numbers of the system: {source}")]
    Random {
        /// What it said.
        source: io::Error,
    },
    /// A certificate could not be made.
    #[error("making a certificate: {0}")]
    Making(#[from] rcgen::Error),
}

impl PkiError {
    pub(super) fn io(path: &Path, source: io::Error) -> Self {
        Self::Io { path: path.display().to_string(), source }
    }

    pub(super) fn wrong(path: &Path, reason: &dyn std::fmt::Display) -> Self {
        Self::Wrong { path: path.display().to_string(), reason: reason.to_string() }
    }
}
