//! From the outcome of an operation to its reply: the error table and the block-status table.

use weir_device::{ChangedRun, ErrorKind, Extent, ExtentState};
use weir_nbd::{AllocationFlags, Command, DirtyFlags, ErrorCode, ExtentStatus};

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
    let flags = |state| match state {
        ExtentState::Data => AllocationFlags::default(),
        ExtentState::Zero => AllocationFlags::ZERO,
        ExtentState::Hole => AllocationFlags::ZERO.with(AllocationFlags::HOLE),
    };
    cut(extents.iter().map(|extent| (extent.len, flags(extent.state).0)), length)
}

/// The same for what changed in the range.
pub(super) fn changed_statuses(runs: &[ChangedRun], length: u64) -> Option<Vec<ExtentStatus>> {
    let flags = |changed| if changed { DirtyFlags::DIRTY } else { DirtyFlags::default() };
    cut(runs.iter().map(|run| (run.len, flags(run.changed).0)), length)
}

fn cut(runs: impl ExactSizeIterator<Item = (u64, u32)>, length: u64) -> Option<Vec<ExtentStatus>> {
    let mut left = length;
    let mut statuses = Vec::with_capacity(runs.len());
    for (len, flags) in runs {
        let bytes = len.min(left);
        if bytes == 0 {
            break;
        }
        left -= bytes;
        statuses.push(ExtentStatus { length: bytes, flags: u64::from(flags) });
    }
    (!statuses.is_empty()).then_some(statuses)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn extent(len: u64, state: ExtentState) -> Extent {
        Extent { len, state }
    }

    fn status(length: u64, flags: u64) -> ExtentStatus {
        ExtentStatus { length, flags }
    }

    #[test]
    fn each_state_has_its_flags() {
        let extents = [
            extent(1, ExtentState::Data),
            extent(2, ExtentState::Zero),
            extent(3, ExtentState::Hole),
        ];
        let expected = vec![status(1, 0), status(2, 2), status(3, 3)];
        assert_eq!(extent_statuses(&extents, 6), Some(expected));
    }

    #[test]
    fn extents_never_reach_beyond_the_range_asked_for() {
        let extents = [extent(10, ExtentState::Data), extent(u64::MAX, ExtentState::Hole)];
        let expected = vec![status(10, 0), status(5, 3)];
        assert_eq!(extent_statuses(&extents, 15), Some(expected));
        assert_eq!(extent_statuses(&extents, 10), Some(vec![status(10, 0)]));
        assert_eq!(extent_statuses(&extents, 4), Some(vec![status(4, 0)]));
    }

    #[test]
    fn what_changed_is_dirty() {
        let run = |len, changed| ChangedRun { len, changed };
        let expected = vec![status(5, 0), status(2, 1)];
        assert_eq!(changed_statuses(&[run(5, false), run(3, true)], 7), Some(expected));
        assert_eq!(changed_statuses(&[], 7), None);
    }

    #[test]
    fn nothing_reported_is_no_answer() {
        assert_eq!(extent_statuses(&[], 4), None);
        assert_eq!(extent_statuses(&[extent(0, ExtentState::Data)], 4), None);
    }
}
