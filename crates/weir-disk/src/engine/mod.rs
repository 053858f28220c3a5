//! The engines that run reads, writes and syncs of real files, behind one enum.

pub(crate) mod metadata;
pub(crate) mod threads;
mod transfer;
pub(crate) mod uring;

use std::os::fd::OwnedFd;
use std::sync::{Arc, OnceLock};

use rustix::io::Errno;
use weir_device::{AlignedBuf, SharedBuf};

use crate::engine::threads::ThreadEngine;
use crate::engine::uring::UringEngine;
use crate::error::{DiskError, DiskOperation};

/// An engine of one shard. Cheap to clone.
#[derive(Clone, Debug)]
pub(crate) enum Engine {
    Threads(ThreadEngine),
    /// The ring, and threads for the calls that it is not used for.
    Uring(UringEngine, ThreadEngine),
}

/// What a sync covers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum SyncKind {
    /// `fdatasync`: data, and what is needed to find it.
    Data,
    /// `fsync`.
    DataAndMetadata,
}

/// An open descriptor and what every engine has to know about it. Operations in flight hold a reference, so that the
/// descriptor outlives them.
#[derive(Debug)]
pub(crate) struct OpenFile {
    pub(crate) fd: OwnedFd,
    pub(crate) path: Arc<str>,
    /// 1 where the file goes through the page cache.
    pub(crate) alignment: usize,
    /// The first sync that failed. The kernel tells of lost writes once, perhaps to a future that was dropped; from then
    /// on no sync of this descriptor may succeed.
    failed_sync: OnceLock<Errno>,
}

impl OpenFile {
    pub(crate) fn new(fd: OwnedFd, path: Arc<str>, alignment: usize) -> Self {
        Self { fd, path, alignment, failed_sync: OnceLock::new() }
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

    /// What to answer to a sync for which the kernel said `result`. Called where the sync ends, whether or not anybody
    /// still waits for it.
    pub(crate) fn after_sync(&self, result: Result<(), Errno>) -> Result<(), DiskError> {
        if let Err(errno) = result {
            // An error is there already if another sync failed first: that one is told.
            let _ = self.failed_sync.set(errno);
        }
        match self.failed_sync.get() {
            Some(errno) => Err(self.error(DiskOperation::Sync, None, *errno)),
            None => Ok(()),
        }
    }
}

impl Engine {
    pub(crate) fn name(&self) -> &'static str {
        match self {
            Self::Threads(_) => "threads",
            Self::Uring(..) => "io_uring",
        }
    }

    /// The threads that run calls which io_uring does not do for us.
    pub(crate) fn helpers(&self) -> &ThreadEngine {
        match self {
            Self::Threads(threads) | Self::Uring(_, threads) => threads,
        }
    }

    pub(crate) async fn read(
        &self,
        file: &Arc<OpenFile>,
        buf: AlignedBuf,
        offset: u64,
    ) -> (AlignedBuf, Result<(), DiskError>) {
        match self {
            Self::Threads(threads) => threads.read(file, buf, offset).await,
            Self::Uring(uring, _) => uring.read(file, buf, offset).await,
        }
    }

    pub(crate) async fn write(
        &self,
        file: &Arc<OpenFile>,
        pieces: Vec<SharedBuf>,
        offset: u64,
    ) -> (Vec<SharedBuf>, Result<(), DiskError>) {
        match self {
            Self::Threads(threads) => threads.write(file, pieces, offset).await,
            Self::Uring(uring, _) => uring.write(file, pieces, offset).await,
        }
    }

    pub(crate) async fn sync(&self, file: &Arc<OpenFile>, kind: SyncKind) -> Result<(), DiskError> {
        match self {
            Self::Threads(threads) => threads.sync(file, kind).await,
            Self::Uring(uring, _) => uring.sync(file, kind).await,
        }
    }
}
