//! From the outcome of an operation to its reply: the error table and the block-status table.

use weir_device::{ErrorKind, Extent, ExtentState};
use weir_nbd::{AllocationFlags, Command, ErrorCode, ExtentStatus};

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

/// Descriptors of the extents that a device reported for `length` bytes, cut to that length. `None` if the device broke
/// its contract and reported nothing.
pub(super) fn extent_statuses(extents: &[Extent], length: u64) -> Option<Vec<ExtentStatus>> {
    let mut left = length;
    let mut statuses = Vec::with_capacity(extents.len());
    for extent in extents {
        let bytes = extent.len.min(left);
        if bytes == 0 {
            break;
        }
        left -= bytes;
        let flags = match extent.state {
            ExtentState::Data => AllocationFlags::default(),
            ExtentState::Zero => AllocationFlags::ZERO,
            ExtentState::Hole => AllocationFlags::ZERO.with(AllocationFlags::HOLE),
        };
        statuses.push(ExtentStatus { length: bytes, flags: u64::from(flags.0) });
    }
    (!statuses.is_empty()).then_some(statuses)
}
