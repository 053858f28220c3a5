//! What can go wrong with a local file, and what the caller should do about it.

use std::fmt;
use std::sync::Arc;

use rustix::io::Errno;
use weir_device::ErrorKind;

/// The operation that an error belongs to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DiskOperation {
    /// Opening a file or a directory.
    Open,
    /// Creating a file or a directory.
    Create,
    /// Reading bytes.
    Read,
    /// Writing bytes.
    Write,
    /// Making written bytes durable.
    Sync,
    /// Asking for the length of a file.
    Length,
    /// Listing a directory.
    List,
    /// Removing a file.
    Remove,
    /// Locking a file.
    Lock,
    /// Asking which file it is, and on what file system.
    Identify,
}

impl fmt::Display for DiskOperation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Open => "open",
            Self::Create => "create",
            Self::Read => "read",
            Self::Write => "write",
            Self::Sync => "sync",
            Self::Length => "length of file",
            Self::List => "list",
            Self::Remove => "remove",
            Self::Lock => "lock",
            Self::Identify => "identification",
        })
    }
}

/// An error of a local file. Cheap to clone: one failed write answers everyone who waited for it.
#[derive(Clone, Debug, thiserror::Error)]
pub enum DiskError {
    /// The kernel refused.
    #[error("{path}: {operation}{} failed: {source}", At(*.offset))]
    Io {
        /// What was tried.
        operation: DiskOperation,
        /// The file or directory.
        path: Arc<str>,
        /// Where in the file, for reads and writes.
        offset: Option<u64>,
        /// What the kernel said.
        source: Errno,
    },
    /// The file ended inside the range of a read, or a write made no progress.
    #[error("{path}: {operation} at {offset} moved {moved_bytes} of {wanted_bytes} bytes")]
    Short {
        /// What was tried.
        operation: DiskOperation,
        /// The file.
        path: Arc<str>,
        /// Where the range begins.
        offset: u64,
        /// Length of the range.
        wanted_bytes: u64,
        /// How much of it was read or written.
        moved_bytes: u64,
    },
    /// Another process, or another handle of this one, holds the lock.
    #[error("{path} is locked{}", Holder(*.holder_pid))]
    Locked {
        /// The lock file.
        path: Arc<str>,
        /// The process that wrote its id into the lock file, if it is readable.
        holder_pid: Option<u32>,
    },
    /// A file that must be on a disk of this machine is on another one.
    #[error(
        "{path} is on {name}, a network file system: a write of a killed process could land there after the next \
         opening and destroy a newer one; move it to a disk of this machine"
    )]
    NetworkFileSystem {
        /// The file.
        path: Arc<str>,
        /// What the file system is called.
        name: String,
    },
    /// The file would have taken room that has to stay free on its file system.
    #[error(
        "{path} does not grow: its file system has {} MiB free, and {} MiB are needed so that what the journals hold \
         can be uploaded and Weir can start and end; free {} MiB on it, or give it more",
        .free >> 20, .needed.div_ceil(1 << 20), (.needed - .free).div_ceil(1 << 20)
    )]
    NoRoom {
        /// The file.
        path: Arc<str>,
        /// Bytes that are free.
        free: u64,
        /// Bytes that would have to be, the growth included.
        needed: u64,
    },
    /// An image that another process, or another volume of this one, has open.
    #[error(
        "{path} is in use: another process, or another volume, has it open, or still closes it"
    )]
    ImageInUse {
        /// The file or device.
        path: Arc<str>,
    },
    /// Something else than an image.
    #[error("{path} is neither a file nor a block device")]
    NoImage {
        /// What it is.
        path: Arc<str>,
    },
    /// A file that cannot be used past the page cache.
    #[error("{path} cannot be used past the page cache (O_DIRECT)")]
    NoDirectIo {
        /// The file.
        path: Arc<str>,
    },
    /// A name that is not a plain file name.
    #[error("{directory}: {name:?} is not a file name")]
    Name {
        /// The directory.
        directory: Arc<str>,
        /// The name.
        name: String,
    },
    /// The engine is shutting down, or could not start its threads; the operation may or may not
    /// have happened.
    #[error("{path}: {operation} was given up: the disk engine has no threads")]
    Stopped {
        /// What was tried.
        operation: DiskOperation,
        /// The file or directory.
        path: Arc<str>,
    },
    /// The kernel offers no io_uring here, and nothing else was allowed.
    #[error(
        "io_uring is not available (see sysctl kernel.io_uring_disabled and the container's \
         seccomp profile): {source}"
    )]
    UringRefused {
        /// What the kernel said.
        source: Errno,
    },
}

impl DiskError {
    /// What the caller can do.
    #[must_use]
    pub fn kind(&self) -> ErrorKind {
        match self {
            Self::Io { source, .. } => kind_of_errno(*source),
            Self::Short { operation: DiskOperation::Read, .. } => ErrorKind::Corrupt,
            Self::Short { .. } | Self::Stopped { .. } => ErrorKind::Unavailable,
            Self::NoRoom { .. } => ErrorKind::NoSpace,
            Self::Locked { .. } | Self::ImageInUse { .. } => ErrorKind::Busy,
            Self::Name { .. } | Self::NoImage { .. } => ErrorKind::Invalid,
            Self::UringRefused { .. }
            | Self::NetworkFileSystem { .. }
            | Self::NoDirectIo { .. } => ErrorKind::Unsupported,
        }
    }

    /// What the kernel said, if it was the kernel.
    #[must_use]
    pub fn errno(&self) -> Option<Errno> {
        match self {
            Self::Io { source, .. } | Self::UringRefused { source } => Some(*source),
            _ => None,
        }
    }
}

/// The one table from errno to what a caller can do.
fn kind_of_errno(errno: Errno) -> ErrorKind {
    match errno {
        Errno::NOSPC | Errno::DQUOT | Errno::FBIG => ErrorKind::NoSpace,
        Errno::ROFS | Errno::ACCESS | Errno::PERM => ErrorKind::ReadOnly,
        Errno::NOENT | Errno::NOTDIR => ErrorKind::NotFound,
        Errno::EXIST => ErrorKind::Exists,
        Errno::MFILE | Errno::NFILE | Errno::BUSY | Errno::TXTBSY => ErrorKind::Busy,
        Errno::AGAIN | Errno::INTR | Errno::NOMEM => ErrorKind::Retry,
        Errno::INVAL | Errno::ISDIR | Errno::NAMETOOLONG => ErrorKind::Invalid,
        Errno::NOTSUP | Errno::NOSYS => ErrorKind::Unsupported,
        Errno::BADF | Errno::FAULT => ErrorKind::Bug,
        _ => ErrorKind::Unavailable,
    }
}

/// " at OFFSET", or nothing.
struct At(Option<u64>);

impl fmt::Display for At {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0 {
            Some(offset) => write!(f, " at {offset}"),
            None => Ok(()),
        }
    }
}

/// " by process PID", or nothing.
struct Holder(Option<u32>);

impl fmt::Display for Holder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0 {
            Some(pid) => write!(f, " by process {pid}"),
            None => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn io(source: Errno) -> DiskError {
        DiskError::Io {
            operation: DiskOperation::Write,
            path: Arc::from("/data/j"),
            offset: Some(4096),
            source,
        }
    }

    #[test]
    fn kinds_tell_the_caller_what_to_do() {
        for (errno, kind) in [
            (Errno::NOSPC, ErrorKind::NoSpace),
            (Errno::DQUOT, ErrorKind::NoSpace),
            (Errno::ROFS, ErrorKind::ReadOnly),
            (Errno::ACCESS, ErrorKind::ReadOnly),
            (Errno::IO, ErrorKind::Unavailable),
            (Errno::NOENT, ErrorKind::NotFound),
            (Errno::EXIST, ErrorKind::Exists),
            (Errno::INVAL, ErrorKind::Invalid),
        ] {
            assert_eq!(io(errno).kind(), kind, "{errno:?}");
        }
        let locked = DiskError::Locked { path: Arc::from("/data/lock"), holder_pid: Some(12) };
        assert_eq!(locked.kind(), ErrorKind::Busy);
        assert_eq!(locked.to_string(), "/data/lock is locked by process 12");
    }

    #[test]
    fn messages_name_the_file_the_operation_and_the_offset() {
        assert!(io(Errno::IO).to_string().starts_with("/data/j: write at 4096 failed: "));
    }

    #[test]
    fn errors_can_travel_between_threads() {
        fn travels<T: Send + Sync + 'static>() {}
        travels::<DiskError>();
    }
}
