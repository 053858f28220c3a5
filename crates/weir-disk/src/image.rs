//! The image of a disk: a file that somebody named, or a block device, whose bytes are the disk.

use crate::file::File;

/// How an image is opened.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ImageMode {
    /// Nothing is written to it.
    pub read_only: bool,
    /// Past the page cache. Where that is not possible the opening fails.
    pub direct: bool,
    /// Length in bytes of a file that is created where there is none, or that is given to one of no length.
    pub create: Option<u64>,
}

/// An image that is open, and locked against other openers that lock it, too.
#[derive(Clone, Debug)]
pub struct Image {
    /// Its bytes.
    pub file: File,
    /// Length in bytes.
    pub size: u64,
    /// Ranges that [`File::zero`] takes begin and end at multiples of it.
    pub zero_bytes: u64,
    /// Whether [`File::zero`] may be called. Not on a block device through the page cache: where the device cannot
    /// zero, the kernel says so only after it has dropped what was written to the range and is not on the device yet.
    pub can_zero: bool,
    /// Whether it was created just now.
    pub created: bool,
}
