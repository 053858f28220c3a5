//! The engines that run reads, writes and syncs of real files, behind one enum.

pub(crate) mod metadata;
mod sync_gate;
pub(crate) mod threads;
mod transfer;
pub(crate) mod uring;
pub(crate) mod whose;

use std::os::fd::OwnedFd;
use std::sync::Arc;

use rustix::io::Errno;
use weir_device::{AlignedBuf, SharedBuf};

use crate::engine::sync_gate::SyncGate;
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

/// What a sync covers; a later one covers more.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum SyncKind {
    /// `fdatasync`: data, and what is needed to find it.
    Data,
    /// `fsync`.
    DataAndMetadata,
}

/// An open descriptor and what every engine has to know about it. Operations in flight hold a
/// reference, so that the descriptor outlives them.
#[derive(Debug)]
pub(crate) struct OpenFile {
    pub(crate) fd: OwnedFd,
    pub(crate) path: Arc<str>,
    /// 1 where the file goes through the page cache.
    pub(crate) alignment: usize,
    pub(crate) syncs: SyncGate,
}

impl OpenFile {
    pub(crate) fn new(fd: OwnedFd, path: Arc<str>, alignment: usize) -> Self {
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
        let (answered, group) = file.syncs.join(kind);
        if let Some(group) = group {
            match self {
                Self::Threads(threads) => threads.start_sync(file, group),
                Self::Uring(uring, _) => uring.start_sync(file, group),
            }
        }
        match answered.await {
            Ok(result) => result.map_err(|errno| file.error(DiskOperation::Sync, None, errno)),
            Err(_) => {
                let path = Arc::clone(&file.path);
                Err(DiskError::Stopped { operation: DiskOperation::Sync, path })
            }
        }
    }
}
