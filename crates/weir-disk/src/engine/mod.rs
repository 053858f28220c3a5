//! The engines that run reads, writes and syncs of real files, behind one enum.

pub(crate) mod image;
pub(crate) mod metadata;
pub(crate) mod open_file;
pub(crate) mod sync_gate;
pub(crate) mod threads;
mod transfer;
pub(crate) mod under_way;
pub(crate) mod uring;
pub(crate) mod whose;

use std::sync::Arc;

use weir_device::{AlignedBuf, SharedBuf};

use crate::engine::open_file::OpenFile;
use crate::engine::sync_gate::SyncKind;
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

    pub(crate) async fn read_pieces(
        &self,
        file: &Arc<OpenFile>,
        pieces: Vec<AlignedBuf>,
        offset: u64,
    ) -> (Vec<AlignedBuf>, Result<(), DiskError>) {
        match self {
            Self::Threads(threads) => threads.read_pieces(file, pieces, offset).await,
            Self::Uring(uring, _) => uring.read_pieces(file, pieces, offset).await,
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
