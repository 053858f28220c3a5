//! Time, randomness, tasks and connections as arguments: what makes a node deterministic under simulation.

use std::fmt;
use std::fs::File;
use std::future::Future;
use std::io;
use std::pin::{Pin, pin};
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use futures_util::future::{Either, select};
use tokio::sync::oneshot;
use weir_pacer::Pacer;

use crate::buffer::{AlignedBuf, BufferPool};
use crate::device::LocalBoxFuture;
use crate::network::Network;

/// Clocks of the host. Sleeping and measuring use `tokio::time`, which the simulation controls by itself.
pub trait Clock {
    /// Wall clock, since the Unix epoch. May jump; for humans and file names only.
    fn wall(&self) -> Duration;
    /// Time since boot, suspended time included (`CLOCK_BOOTTIME`). Never jumps back; for leases.
    fn boottime(&self) -> Duration;
    /// Identity of this boot of the host. Changes exactly when memory and volatile disk caches were lost.
    fn boot_id(&self) -> [u8; 16];
}

/// A source of random bytes; the operating system's in the product, a seeded one in the simulation.
pub trait Random {
    /// Fills `bytes`.
    fn fill(&self, bytes: &mut [u8]);

    /// A random number of 64 bits.
    fn next_u64(&self) -> u64 {
        let mut bytes = [0; 8];
        self.fill(&mut bytes);
        u64::from_le_bytes(bytes)
    }
}

/// Where tasks run.
pub trait Spawn {
    /// Runs a task on the volume's own thread.
    fn local(&self, task: Pin<Box<dyn Future<Output = ()>>>);
    /// Runs a task that burns CPU or waits on HTTP on the shared worker threads.
    fn background(&self, task: Pin<Box<dyn Future<Output = ()> + Send>>);
}

/// A read on its way: the buffer comes back, and after an error its content is unspecified.
pub type FileRead = LocalBoxFuture<'static, (AlignedBuf, io::Result<()>)>;

/// Reads files that others have opened, without another thread.
pub trait FileReads {
    /// Fills all of `buf` from `offset`. The file stays open until the read has ended, also where the future was
    /// dropped. Nothing if so many reads are running that this one would hold up the thread's own files, or where only
    /// other threads can read.
    fn read(&self, file: &Arc<File>, buf: AlignedBuf, offset: u64) -> Option<FileRead>;
}

/// Reads nothing: where only threads can, and where there are no files.
#[derive(Clone, Copy, Debug)]
pub struct NoFileReads;

impl FileReads for NoFileReads {
    fn read(&self, _file: &Arc<File>, _buf: AlignedBuf, _offset: u64) -> Option<FileRead> {
        None
    }
}

/// What a volume's thread works with.
#[derive(Clone)]
pub struct Env {
    /// Clocks.
    pub clock: Rc<dyn Clock>,
    /// Randomness.
    pub random: Rc<dyn Random>,
    /// Tasks.
    pub spawn: Rc<dyn Spawn>,
    /// Connections to other processes.
    pub network: Rc<dyn Network>,
    /// Memory for payloads.
    pub buffers: BufferPool,
    /// Reads of files.
    pub files: Rc<dyn FileReads>,
    /// Says how fast background work may go; one for all threads of a node.
    pub pacer: Pacer,
}

impl Env {
    /// Spawns a task on this thread.
    pub fn spawn_local(&self, task: impl Future<Output = ()> + 'static) {
        self.spawn.local(Box::pin(task));
    }

    /// Runs `task` on the worker threads and hands its result back; `None` if the workers shut down before it ended.
    /// The task runs to its end even if the returned future is dropped.
    pub fn background<T: Send + 'static>(
        &self,
        task: impl Future<Output = T> + Send + 'static,
    ) -> impl Future<Output = Option<T>> + 'static {
        let (sender, receiver) = oneshot::channel();
        self.spawn.background(Box::pin(async move {
            // A receiver that went away wanted the work done, not the answer.
            let _ = sender.send(task.await);
        }));
        async move { receiver.await.ok() }
    }

    /// As [`Env::background`], but the task is dropped where it waits once the returned future is: nobody wants its
    /// work any more.
    pub fn background_while_awaited<T: Send + 'static>(
        &self,
        task: impl Future<Output = T> + Send + 'static,
    ) -> impl Future<Output = Option<T>> + 'static {
        let (mut sender, receiver) = oneshot::channel();
        self.spawn.background(Box::pin(async move {
            let done = match select(pin!(task), pin!(sender.closed())).await {
                Either::Left((done, _)) => Some(done),
                Either::Right(_) => None,
            };
            if let Some(done) = done {
                // It may be dropped in this moment.
                let _ = sender.send(done);
            }
        }));
        async move { receiver.await.ok() }
    }
}

impl fmt::Debug for Env {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Env")
    }
}
