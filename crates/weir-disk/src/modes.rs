//! How a file is opened.

/// Whether a file is there already.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OpenMode {
    /// The file exists.
    Existing,
    /// The file does not exist yet; it is there durably, and empty, when the call returns.
    CreateNew,
}

/// Whether files are opened past the page cache.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum DirectIo {
    /// `O_DIRECT` where the file system has it; through the page cache elsewhere, with one warning.
    #[default]
    WherePossible,
    /// Always through the page cache.
    Never,
}

/// What becomes of the space of a range that is zeroed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Zeroing {
    /// It stays: a later write needs no new space.
    Provisioned,
    /// It is given back.
    Hole,
}
