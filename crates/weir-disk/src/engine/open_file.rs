//! An open file as every engine knows it.

use std::fs::File;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;

use rustix::io::Errno;

use crate::engine::sync_gate::SyncGate;
use crate::error::{DiskError, DiskOperation};

/// A descriptor, and whose it is.
#[derive(Debug)]
pub(crate) enum Descriptor {
    Own(OwnedFd),
    /// Of a file that somebody else opened, with a place among the reads of such files.
    Shared {
        file: Arc<File>,
        _place: Arc<()>,
    },
}

impl AsFd for Descriptor {
    fn as_fd(&self) -> BorrowedFd<'_> {
        match self {
            Self::Own(fd) => fd.as_fd(),
            Self::Shared { file, .. } => file.as_fd(),
        }
    }
}

/// An open descriptor and what every engine has to know about it. Operations in flight hold a
/// reference, so that the descriptor outlives them.
#[derive(Debug)]
pub(crate) struct OpenFile {
    pub(crate) fd: Descriptor,
    pub(crate) path: Arc<str>,
    /// 1 where the file goes through the page cache.
    pub(crate) alignment: usize,
    pub(crate) syncs: SyncGate,
}

impl OpenFile {
    pub(crate) fn new(fd: Descriptor, path: Arc<str>, alignment: usize) -> Self {
        Self { fd, path, alignment, syncs: SyncGate::default() }
    }

    pub(crate) fn error(
        &self,
        operation: DiskOperation,
        offset: Option<u64>,
        source: Errno,
    ) -> DiskError {
        DiskError::Io { operation, path: Arc::clone(&self.path), offset, source }
    }

    pub(crate) fn short(
        &self,
        operation: DiskOperation,
        offset: u64,
        wanted: usize,
        moved: usize,
    ) -> DiskError {
        let (wanted_bytes, moved_bytes) = (wanted as u64, moved as u64);
        let path = Arc::clone(&self.path);
        DiskError::Short { operation, path, offset, wanted_bytes, moved_bytes }
    }
}
