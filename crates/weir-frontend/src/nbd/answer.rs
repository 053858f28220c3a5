//! From the outcome of an operation to its reply: the error table.

use weir_device::ErrorKind;
use weir_nbd::{Command, ErrorCode};

/// The protocol's error for a device error. The one table; the protocol allows `ENOTSUP` for fast zeroes only.
#[must_use]
pub fn error_code(kind: ErrorKind, command: &Command) -> ErrorCode {
    match kind {
        ErrorKind::Invalid => ErrorCode::Invalid,
        ErrorKind::NoSpace => ErrorCode::NoSpace,
        ErrorKind::ReadOnly => ErrorCode::NotPermitted,
        ErrorKind::Fenced => ErrorCode::Shutdown,
        ErrorKind::Unsupported => match command {
            Command::WriteZeroes { fast: true, .. } => ErrorCode::NotSupported,
            _ => ErrorCode::Invalid,
        },
        // The protocol has no "later"; clients that retry, retry on EIO.
        ErrorKind::Retry | ErrorKind::Busy => ErrorCode::Io,
        ErrorKind::Corrupt
        | ErrorKind::Poisoned
        | ErrorKind::NotFound
        | ErrorKind::Exists
        | ErrorKind::Unavailable
        | ErrorKind::Bug => ErrorCode::Io,
    }
}
