//! The cache on the local disk.

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

/// The cache of objects on the local disk, of all volumes together. Counts are since the process began.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct CacheReport {
    /// Why there is none, or why it is left out.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub none_because: Option<String>,
    /// Its disk failed while it was in use: it holds nothing until the next start.
    #[serde(default)]
    pub failed: bool,
    /// Bytes of objects that it can hold, and bytes that it holds.
    pub capacity_bytes: u64,
    /// See there.
    pub bytes: u64,
    /// Bytes of memory that it takes.
    pub memory_bytes: u64,
    /// Share of it that is known, in thousandths, while it is read after a crash.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub recovered_permille: Option<u64>,
    /// Looks that found all that they asked for, and looks that did not.
    pub hits: u64,
    /// See there.
    pub misses: u64,
    /// Frames that were written to it.
    pub fills: u64,
    /// Bytes of those: what it wears its disk by.
    pub filled_bytes: u64,
    /// Frames that came faster than they could be written beside clients, and were left out.
    pub dropped: u64,
    /// Bands of 256 KiB that made room for others.
    pub evictions: u64,
    /// Blocks that were not what they should be; they were read from the store.
    pub damaged: u64,
    /// Reads that failed or took longer than a second; the store was read instead.
    pub failed_reads: u64,
}
