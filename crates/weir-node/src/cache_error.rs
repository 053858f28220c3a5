//! Why the cache on the local disk is not shown or changed.

use weir_device::ErrorKind;

use crate::error::ProcessId;
use crate::size::human;

/// Why the cache is not shown or changed. It is as it was.
#[derive(Debug, thiserror::Error)]
pub enum CacheCommandError {
    /// The cache is not what was asked for.
    #[error("the cache on the local disk stays as it is: {why}")]
    None {
        /// Why not.
        why: String,
    },
    /// The cache has no room.
    #[error(
        "a cache of {} leaves less than {} to journals: the file system of {directory} has {} for both",
        human(*bytes),
        human(*left),
        human(*free)
    )]
    NoRoom {
        /// The data directory.
        directory: String,
        /// Bytes of the cache.
        bytes: u64,
        /// Bytes that are left to journals.
        left: u64,
        /// Bytes that are free, with those of the cache that is there.
        free: u64,
    },
    /// There is no file of a cache.
    #[error("there is no cache in {directory}")]
    NoFile {
        /// Its directory.
        directory: String,
    },
    /// There is one already.
    #[error("{path} is there already")]
    Exists {
        /// The file.
        path: String,
    },
    /// Only a process that serves changes the size of the cache.
    #[error("no process has a cache in {data_dir} whose size could be changed")]
    NoProcess {
        /// The data directory.
        data_dir: String,
    },
    /// A process has the cache.
    #[error("process {process} has the cache of {data_dir} open")]
    InUse {
        /// The data directory.
        data_dir: String,
        /// The process.
        process: ProcessId,
    },
}

impl CacheCommandError {
    /// What a caller can do about it.
    pub(crate) fn kind(&self) -> ErrorKind {
        match self {
            Self::None { .. } => ErrorKind::Invalid,
            Self::NoRoom { .. } => ErrorKind::NoSpace,
            Self::NoFile { .. } | Self::NoProcess { .. } => ErrorKind::NotFound,
            Self::Exists { .. } => ErrorKind::Exists,
            Self::InUse { .. } => ErrorKind::Busy,
        }
    }

    /// What to do next.
    pub(crate) fn help(&self) -> &'static str {
        match self {
            Self::None { .. } => "give a size, as 20G, or \"off\"",
            Self::NoRoom { .. } => "give a smaller size, or free some space there",
            Self::NoFile { .. } => {
                "`weir cache create SIZE` makes one, and so does a process that serves a store on another disk, or is \
                 given a --cache SIZE"
            }
            Self::Exists { .. } => {
                "`weir cache resize SIZE` changes the one that a process uses; `weir cache destroy` removes one that \
                 none uses"
            }
            Self::NoProcess { .. } => {
                "the next start goes by --cache SIZE, WEIR_CACHE or `cache = \"SIZE\"` in the configuration: set it \
                 there"
            }
            Self::InUse { .. } => {
                "`weir cache resize off` has it closed, or end that process with SIGTERM first"
            }
        }
    }
}
