//! What a file volume says of itself.

use std::time::Duration;

/// How a file volume is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FileStatus {
    /// The file or block device.
    pub path: String,
    /// Whether it is used past the page cache.
    pub is_direct: bool,
    /// Why it takes no writes any more.
    pub refuses_writes: Option<String>,
    /// For how long the oldest request that is with the file has not been answered.
    pub unanswered: Option<Duration>,
}
