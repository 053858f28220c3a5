//! The file volume: a device whose bytes are those of a file or a block device of this host, at the same offsets.
//!
//! It has no journal and no cache of its own. A write is in the file when it returns, and survives a loss of power once
//! a flush succeeded. Through the page cache any bytes can be written; past it (`O_DIRECT`) the device reads the blocks
//! at the edges of a change that is no whole number of them, and writes them again.

mod finish;
mod status;
mod volume;

pub use status::FileStatus;
pub use volume::FileVolume;
