//! An open file as every engine knows it.

use std::fs::File;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::thread;

use rustix::io::Errno;

use crate::engine::sync_gate::SyncGate;
use crate::error::{DiskError, DiskOperation};

/// A descriptor, and whose it is.
#[derive(Debug)]
pub(crate) enum Descriptor {
    Own(OwnedFd),
    /// Of a file system that may not answer.
    Apart(Apart<OwnedFd>),
    /// Of a file that somebody else opened, with a place among the reads of such files.
    Shared {
        file: Arc<File>,
        _place: Arc<()>,
    },
}

impl Descriptor {
    pub(crate) fn new(fd: OwnedFd, is_apart: bool) -> Self {
        if is_apart { Self::Apart(Apart(Some(fd))) } else { Self::Own(fd) }
    }

    /// The same descriptor, to be closed on a thread of its own.
    pub(crate) fn apart(self) -> Self {
        match self {
            Self::Own(fd) => Self::new(fd, true),
            Self::Apart(_) | Self::Shared { .. } => self,
        }
    }

    /// Closes it on this thread, whatever that takes.
    pub(crate) fn close_here(self) {
        if let Self::Apart(mut apart) = self {
            drop(apart.0.take());
        }
    }
}

/// What asks a file system that may not answer when it is dropped, as to close a file does. A thread of its own does
/// that, whoever lets go of it.
#[derive(Debug)]
pub(crate) struct Apart<T: Send + 'static>(Option<T>);

impl AsFd for Apart<OwnedFd> {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_ref().expect("it is open until it is dropped").as_fd()
    }
}

impl<T: Send + 'static> Drop for Apart<T> {
    fn drop(&mut self) {
        let Some(inner) = self.0.take() else { return };
        if weir_device::mutant("disk_closes_apart_inline") {
            return drop(inner);
        }
        // Where no thread can be started, it is dropped here.
        let _ = thread::Builder::new().name("weir-close".into()).spawn(move || drop(inner));
    }
}

impl AsFd for Descriptor {
    fn as_fd(&self) -> BorrowedFd<'_> {
        match self {
            Self::Own(fd) => fd.as_fd(),
            Self::Apart(fd) => fd.as_fd(),
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
    /// Its file system blocks whoever asks it, though it was told not to: a ring has a thread of the kernel ask.
    pub(crate) blocks_callers: bool,
}

impl OpenFile {
    pub(crate) fn new(fd: Descriptor, path: Arc<str>, alignment: usize) -> Self {
        Self { fd, path, alignment, syncs: SyncGate::default(), blocks_callers: false }
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

#[cfg(test)]
mod tests {
    use std::sync::mpsc::{Sender, channel};

    use super::*;

    /// Says on which thread it ends.
    struct Ending(Sender<thread::ThreadId>);

    impl Drop for Ending {
        fn drop(&mut self) {
            self.0.send(thread::current().id()).unwrap();
        }
    }

    #[test]
    fn what_is_apart_ends_on_a_thread_of_its_own() {
        let (sender, receiver) = channel();
        drop(Apart(Some(Ending(sender.clone()))));
        assert_ne!(receiver.recv().unwrap(), thread::current().id());
    }
}
