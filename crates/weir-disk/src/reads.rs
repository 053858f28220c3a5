//! Reads of files that other crates have opened, on the ring of the thread that asks.

use std::fs::File;
use std::io;
use std::sync::Arc;

use weir_device::{AlignedBuf, FileRead, FileReads, mutant};

use crate::engine::open_file::{Descriptor, OpenFile};
use crate::engine::uring::UringEngine;

/// Most of them at a time: a quarter of the ring. Where their disk hangs, the thread's own files must go on.
const READS_MAX: usize = 32;

/// What messages call such a file: whoever opened it knows its path.
const PATH: &str = "a file of another owner";

pub(crate) struct RingReads {
    engine: UringEngine,
    path: Arc<str>,
    /// Held once by each read that has not ended, whatever became of its future.
    places: Arc<()>,
}

impl RingReads {
    pub(crate) fn new(engine: UringEngine) -> Self {
        Self { engine, path: Arc::from(PATH), places: Arc::default() }
    }
}

impl FileReads for RingReads {
    fn read(&self, file: &Arc<File>, buf: AlignedBuf, offset: u64) -> Option<FileRead> {
        let is_full = Arc::strong_count(&self.places) > READS_MAX;
        if is_full && !mutant("reads_take_the_whole_ring") {
            return None;
        }
        let place = Arc::clone(&self.places);
        let (place, of_future) = match mutant("dropped_read_frees_its_place") {
            true => (Arc::default(), Some(place)),
            false => (place, None),
        };
        let descriptor = Descriptor::Shared { file: Arc::clone(file), _place: place };
        let open = Arc::new(OpenFile::new(descriptor, Arc::clone(&self.path), 1));
        let engine = self.engine.clone();
        Some(Box::pin(async move {
            let _place = of_future;
            let (buf, read) = engine.read(&open, buf, offset).await;
            (buf, read.map_err(io::Error::other))
        }))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    async fn with_ring(test: impl AsyncFnOnce(RingReads)) {
        let Ok(engine) = UringEngine::new() else {
            println!("skipped: this kernel allows no io_uring");
            return;
        };
        test(RingReads::new(engine)).await;
    }

    fn file(bytes: &[u8]) -> (tempfile::TempDir, Arc<File>) {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("object");
        std::fs::write(&path, bytes).unwrap();
        (directory, Arc::new(File::open(path).unwrap()))
    }

    #[tokio::test(flavor = "local")]
    async fn a_file_of_somebody_else_is_read_at_any_offset() {
        with_ring(async |reads| {
            let bytes: Vec<u8> = (0..10_000_u32).map(|at| (at % 251) as u8).collect();
            let (_directory, file) = file(&bytes);
            let (buf, read) = reads.read(&file, AlignedBuf::zeroed(4000), 77).unwrap().await;
            read.unwrap();
            assert_eq!(buf[..], bytes[77..4077]);
            let (_, past_its_end) =
                reads.read(&file, AlignedBuf::zeroed(4000), 7000).unwrap().await;
            assert!(past_its_end.is_err());
            assert_eq!(Arc::strong_count(&file), 1, "a read that ended holds nothing");
        })
        .await;
    }

    #[tokio::test(flavor = "local")]
    async fn a_read_keeps_its_place_until_it_ends_and_there_are_few() {
        with_ring(async |reads| {
            let (_directory, file) = file(&[7; 4096]);
            let read = || reads.read(&file, AlignedBuf::zeroed(4096), 0);
            let mut running: Vec<_> = (0..READS_MAX).map(|_| read().unwrap()).collect();
            assert!(read().is_none());
            running.pop();
            let again = read().expect("one that was never begun gives its place back");
            let (_, done) = again.await;
            done.unwrap();
            for read in running {
                read.await.1.unwrap();
            }
            assert_eq!(Arc::strong_count(&reads.places), 1);
        })
        .await;
    }

    #[tokio::test(flavor = "local")]
    async fn a_read_that_nobody_waits_for_keeps_its_place_until_the_kernel_answers() {
        with_ring(async |reads| {
            let (nothing_yet, writer) = io::pipe().unwrap();
            let pipe = Arc::new(File::from(std::os::fd::OwnedFd::from(nothing_yet)));
            for _ in 0..READS_MAX {
                let mut read = reads.read(&pipe, AlignedBuf::zeroed(4096), 0).expect("a place");
                assert!(futures_util::poll!(&mut read).is_pending());
                drop(read);
                // The driver hands it to the kernel.
                tokio::task::yield_now().await;
            }
            assert!(reads.read(&pipe, AlignedBuf::zeroed(4096), 0).is_none());
            drop(writer);
            while Arc::strong_count(&reads.places) > 1 {
                tokio::task::yield_now().await;
                tokio::time::sleep(std::time::Duration::from_millis(1)).await;
            }
        })
        .await;
    }
}
