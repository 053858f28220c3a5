//! Names and bounds of a cache.

/// File name of the blocks in the cache's directory.
pub const BLOCKS_FILE: &str = "blocks";

/// File name of the lock in the cache's directory.
pub const LOCK_FILE: &str = "lock";

/// Smallest cache.
pub const CACHE_BYTES_MIN: u64 = 8 << 20;
