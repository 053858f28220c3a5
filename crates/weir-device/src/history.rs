//! What changed on a device since earlier states of it, beside the contract of [`Device`](crate::Device).

use crate::{ByteRange, DeviceError, LocalBoxFuture};

/// A run of bytes, as [`History::changed`] reports it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ChangedRun {
    /// Length in bytes.
    pub len: u64,
    /// Whether the bytes may differ from what they were.
    pub changed: bool,
}

/// The earlier states that a device can be compared with.
///
/// # Contract
/// 1. Bytes that differ are always reported as changed. Bytes that do not may be.
/// 2. What cannot be compared is an error, never a run.
pub trait History {
    /// Names of the earlier states, oldest first. One may be gone by the time it is asked for, which is an error.
    fn earlier(&self) -> Vec<String>;

    /// Reports what changed in the range since the state `since`, as at most `runs_max` consecutive runs from
    /// its start. The reported length may fall short of the range, but is never zero for a non-empty one, and never
    /// goes beyond it.
    fn changed<'a>(
        &'a self,
        since: &'a str,
        range: ByteRange,
        runs_max: usize,
    ) -> LocalBoxFuture<'a, Result<Vec<ChangedRun>, DeviceError>>;
}
