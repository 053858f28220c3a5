//! Why there is no cache.

use weir_disk::DiskError;

use super::limits::CACHE_BYTES_MIN;

/// Why a cache cannot be opened, or not be closed in order. Nothing is lost by it.
#[derive(Debug, thiserror::Error)]
pub enum CacheError {
    /// The disk says so.
    #[error(transparent)]
    Disk(#[from] DiskError),
    /// Too small a size.
    #[error("a cache of {bytes} bytes is too small: give it at least {CACHE_BYTES_MIN}")]
    TooSmall {
        /// What was asked for.
        bytes: u64,
    },
    /// Something still reads or writes.
    #[error("requests of the cache do not end; the next start reads it anew")]
    Busy,
}
