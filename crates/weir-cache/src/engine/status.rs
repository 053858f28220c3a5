//! What is said of a cache.

use std::time::Duration;

/// What happened since the cache was opened.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CacheCounts {
    /// Looks that found all blocks, and looks that did not.
    pub hits: u64,
    /// See there.
    pub misses: u64,
    /// Runs that were moved from here into other objects, without a look into the store.
    pub copied: u64,
    /// Runs that were written.
    pub fills: u64,
    /// Bytes of those, with their headers.
    pub filled_bytes: u64,
    /// Runs that were offered and not taken, because too many were waiting.
    pub dropped: u64,
    /// Bands that the policy did not take in.
    pub refused: u64,
    /// Bands that were not taken in, because their owner has its share and none in their set.
    pub over_share: u64,
    /// Runs that were not written, because the disk was written to enough for now.
    pub worn: u64,
    /// Bands that made room.
    pub evictions: u64,
    /// Reads of blocks that were not what they should be.
    pub damaged: u64,
    /// Reads that failed, or took too long.
    pub failed_reads: u64,
    /// Writes that failed, or took too long, once for each time that they were waited for.
    pub failed_fills: u64,
}

impl CacheCounts {
    /// These and those of another cache, together.
    #[must_use]
    pub fn plus(&self, other: &Self) -> Self {
        Self {
            hits: self.hits + other.hits,
            misses: self.misses + other.misses,
            copied: self.copied + other.copied,
            fills: self.fills + other.fills,
            filled_bytes: self.filled_bytes + other.filled_bytes,
            dropped: self.dropped + other.dropped,
            refused: self.refused + other.refused,
            over_share: self.over_share + other.over_share,
            worn: self.worn + other.worn,
            evictions: self.evictions + other.evictions,
            damaged: self.damaged + other.damaged,
            failed_reads: self.failed_reads + other.failed_reads,
            failed_fills: self.failed_fills + other.failed_fills,
        }
    }
}

/// The state of a cache.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CacheStatus {
    /// Bytes of blocks that it can hold.
    pub capacity_bytes: u64,
    /// Bytes of its file.
    pub file_bytes: u64,
    /// Bytes of blocks that it holds.
    pub bytes: u64,
    /// Bands that have a place in it, and how many places there are.
    pub bands: u64,
    /// See there.
    pub band_places: u64,
    /// How long it is open: the time of the counts.
    pub open_for: Duration,
    /// Sets that are known, and all of them: while it is read after a crash.
    pub recovery: Option<(u32, u32)>,
    /// Time since a read last was damaged or failed, or a write failed.
    pub bad_for: Option<Duration>,
    /// Why it is left out.
    pub left_out: Option<String>,
    /// Bytes of memory that it takes.
    pub memory_bytes: u64,
    /// Bytes that may be written now, and in a day, where that is limited.
    pub wear: Option<(u64, u64)>,
    /// What happened.
    pub counts: CacheCounts,
}
