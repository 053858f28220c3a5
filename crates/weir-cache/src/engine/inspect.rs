//! What the file of a cache says of itself, whether or not a process uses it.

use weir_disk::{Directory, DiskError, Errno, OpenMode};

use super::block::RUN_BLOCKS;
use super::limits::BLOCKS_FILE;
use super::opening::read_superblock;
use crate::format::superblock::VERSION;
use crate::geometry::BAND_BYTES;

/// A cache by its superblock.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CacheFile {
    /// Version of its format.
    pub version: u32,
    /// Bytes of blocks that it can hold.
    pub capacity_bytes: u64,
    /// It was closed in order, and is known at once at the next opening. While a process uses it, it is not.
    pub is_closed: bool,
    /// Times that it was opened.
    pub openings: u64,
}

/// The cache in a directory; why it is of no use; nothing where there is none.
///
/// # Errors
/// When the disk refuses.
pub async fn inspect(
    directory: &Directory,
) -> Result<Option<Result<CacheFile, String>>, DiskError> {
    let file = match directory.open(BLOCKS_FILE, OpenMode::Existing).await {
        Err(DiskError::Io { source: Errno::NOENT, .. }) => return Ok(None),
        opened => opened?,
    };
    Ok(Some(read_superblock(&file).await?.and_then(|found| {
        if found.run_blocks != RUN_BLOCKS {
            return Err(format!("its runs have {} blocks", found.run_blocks));
        }
        Ok(CacheFile {
            version: VERSION,
            capacity_bytes: found.geometry.bands() * BAND_BYTES,
            is_closed: found.index.is_some(),
            openings: found.opening,
        })
    })))
}
