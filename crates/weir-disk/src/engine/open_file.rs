//! An open file as every engine knows it.

use std::fs::File;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::AtomicU32;
use std::thread;

use rustix::io::Errno;

use crate::engine::sync_gate::SyncGate;
use crate::engine::under_way::Call;
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
    /// `apart` is the path of a file, or of its directory, that is to be closed on a thread of its own.
    pub(crate) fn new(fd: OwnedFd, apart: Option<&Arc<str>>) -> Self {
        match apart {
            Some(path) => Self::Apart(Apart(Some((fd, Arc::clone(path))))),
            None => Self::Own(fd),
        }
    }

    /// The same descriptor, to be closed on a thread of its own.
    pub(crate) fn apart(self, path: &Arc<str>) -> Self {
        match self {
            Self::Own(fd) => Self::new(fd, Some(path)),
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
pub(crate) struct Apart<T: Send + 'static>(Option<(T, Arc<str>)>);

impl AsFd for Apart<OwnedFd> {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_ref().expect("it is open until it is dropped").0.as_fd()
    }
}

impl<T: Send + 'static> Drop for Apart<T> {
    fn drop(&mut self) {
        let Some((inner, path)) = self.0.take() else { return };
        if weir_device::mutant("disk_closes_apart_inline") {
            return drop(inner);
        }
        // Before the thread runs: whoever asks what is under way finds it from now on.
        let call = Call::begin(&path);
        let close = move || {
            drop(inner);
            drop(call);
        };
        // Where no thread can be started, it is dropped here.
        let _ = thread::Builder::new().name("weir-close".into()).spawn(close);
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
    /// Most entries of a ring that its operations have at once.
    pub(crate) entries_max: u32,
    /// Those that they have now.
    pub(crate) entries: AtomicU32,
}

impl OpenFile {
    pub(crate) fn new(fd: Descriptor, path: Arc<str>, alignment: usize) -> Self {
        let (syncs, entries) = (SyncGate::default(), AtomicU32::new(0));
        Self { fd, path, alignment, syncs, blocks_callers: false, entries_max: u32::MAX, entries }
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
    use crate::engine::under_way::Question;

    /// Says on which thread it ends, and whether that is seen to be under way.
    struct Ending(Sender<(thread::ThreadId, bool)>);

    impl Drop for Ending {
        fn drop(&mut self) {
            let named = Question::ask().unanswered().iter().any(|path| &**path == "/of/Ending");
            self.0.send((thread::current().id(), named)).unwrap();
        }
    }

    #[test]
    fn what_is_apart_ends_on_a_thread_of_its_own() {
        let (sender, receiver) = channel();
        drop(Apart(Some((Ending(sender.clone()), Arc::from("/of/Ending")))));
        let (thread, named) = receiver.recv().unwrap();
        assert_ne!(thread, thread::current().id());
        assert!(named, "whoever asks what has not ended is told of it");
    }
}
