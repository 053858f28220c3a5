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
    #[error("{}", no_room(directory, (*bytes, *left), (*free, *there)))]
    NoRoom {
        /// Its directory.
        directory: String,
        /// Bytes of the cache.
        bytes: u64,
        /// Bytes that are left to journals, where they are on the same file system.
        left: u64,
        /// Bytes that are free, with those of the cache that is there.
        free: u64,
        /// Bytes of the cache that is there.
        there: u64,
    },
    /// Somebody else changes the cache, and does not come to an end.
    #[error("the cache on the local disk {doing}")]
    Changing {
        /// What is done with it, and for how long.
        doing: String,
    },
    /// The disk of the cache hangs.
    #[error("the file system of the cache, {directory}, does not answer")]
    Hangs {
        /// Its directory.
        directory: String,
    },
    /// Nobody waits for it any more.
    #[error("the cache on the local disk stays as it is: whoever asked has gone")]
    Left,
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
    #[error("process {process} has the cache of {data_dir} open{}", says(doing.as_deref()))]
    InUse {
        /// The data directory.
        data_dir: String,
        /// The process.
        process: ProcessId,
        /// What it says that it does with it, if it does not come to an end.
        doing: Option<String>,
    },
}

/// Why a cache of some bytes has no room.
fn no_room(directory: &str, (bytes, left): (u64, u64), (free, there): (u64, u64)) -> String {
    let mut told = match left {
        0 => format!(
            "a cache of {} has no room: the file system of {directory} has {}",
            human(bytes),
            human(free)
        ),
        left => format!(
            "a cache of {} leaves less than {} to journals: the file system of {directory} has {} for both",
            human(bytes),
            human(left),
            human(free)
        ),
    };
    if there > 0 {
        told.push_str(&format!(", with the {} of the cache that is there", human(there)));
    }
    told
}

fn says(doing: Option<&str>) -> String {
    doing.map_or_else(String::new, |doing| format!(": it {doing}"))
}

impl CacheCommandError {
    /// What a caller can do about it.
    pub(crate) fn kind(&self) -> ErrorKind {
        match self {
            Self::None { .. } | Self::Left => ErrorKind::Invalid,
            Self::NoRoom { .. } => ErrorKind::NoSpace,
            Self::NoFile { .. } | Self::NoProcess { .. } => ErrorKind::NotFound,
            Self::Exists { .. } => ErrorKind::Exists,
            Self::InUse { .. } | Self::Changing { .. } | Self::Hangs { .. } => ErrorKind::Busy,
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
            Self::Changing { .. } => {
                "it goes on once its disk answers, and so can this then; volumes are served from the store meanwhile, \
                 and the next start is without it with --cache off, WEIR_CACHE=off or `cache = \"off\"`"
            }
            Self::Hangs { .. } => {
                "`weir cache resize off` goes on without it, and without asking its disk; ask again once that answers"
            }
            Self::Left => "ask again, and wait for the answer",
            Self::InUse { doing: Some(_), .. } => {
                "nothing else can be done with it before its disk answers or that process has ended"
            }
            Self::InUse { doing: None, .. } => {
                "`weir cache resize off` has it closed, or end that process with SIGTERM first"
            }
        }
    }
}
