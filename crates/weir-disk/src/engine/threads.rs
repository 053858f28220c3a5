//! The thread-pool engine: blocking calls on a few threads, for kernels and containers without
//! io_uring, and for the calls that io_uring is not used for (opening, listing, locking).
//!
//! A job owns its buffers and a reference to its file, so that nothing dies under a blocking call
//! when the future that waits for it is dropped.

use std::collections::VecDeque;
use std::fmt;
use std::io::{IoSlice, IoSliceMut};
use std::rc::Rc;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::{self, JoinHandle};

use rustix::io::Errno;
use tokio::sync::oneshot;
use weir_device::{AlignedBuf, SharedBuf};

use crate::engine::open_file::OpenFile;
use crate::engine::sync_gate::{SyncGroup, SyncKind};
use crate::engine::transfer::{Next, after_read, after_write, remaining, remaining_mut, total_len};
use crate::engine::under_way::Call;
use crate::error::{DiskError, DiskOperation};

/// Most threads of one pool: a journal write, a sync, and a few reads beside them.
pub(crate) const THREADS_MAX: usize = 4;

type Job = Box<dyn FnOnce() + Send>;

struct Queue {
    /// As long as the callers' own queues. Jobs wait here and not in their futures, so that an
    /// operation goes on when its future is not polled, or dropped.
    jobs: VecDeque<Job>,
    idle_threads: usize,
    closed: bool,
}

struct Shared {
    queue: Mutex<Queue>,
    job_added: Condvar,
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, Queue> {
        self.queue.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The life of one thread: runs jobs until the pool closes and the queue is empty.
    fn work(&self) {
        let mut queue = self.lock();
        loop {
            if let Some(job) = queue.jobs.pop_front() {
                drop(queue);
                job();
                queue = self.lock();
            } else if queue.closed {
                return;
            } else {
                queue.idle_threads += 1;
                queue = self.job_added.wait(queue).unwrap_or_else(PoisonError::into_inner);
                queue.idle_threads -= 1;
            }
        }
    }
}

/// Owns the threads; the last clone of the engine joins them, unless they are left to end by themselves.
struct Pool {
    shared: Arc<Shared>,
    threads: std::cell::RefCell<Vec<JoinHandle<()>>>,
    threads_max: usize,
    is_joined: bool,
}

impl Drop for Pool {
    fn drop(&mut self) {
        self.shared.lock().closed = true;
        self.shared.job_added.notify_all();
        if !self.is_joined {
            return;
        }
        for thread in self.threads.get_mut().drain(..) {
            // A job that panicked has already told whoever waited, by dropping its sender.
            let _ = thread.join();
        }
    }
}

/// A pool of threads that run blocking calls. Threads start when they are first needed.
#[derive(Clone)]
pub(crate) struct ThreadEngine {
    pool: Rc<Pool>,
}

impl fmt::Debug for ThreadEngine {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "ThreadEngine({} threads at most)", self.pool.threads_max)
    }
}

impl ThreadEngine {
    pub(crate) fn new() -> Self {
        Self::with_threads(THREADS_MAX)
    }

    pub(crate) fn with_threads(threads_max: usize) -> Self {
        Self::start(threads_max, true)
    }

    /// Whose last clone waits for no thread: jobs that hang keep their thread and their file, and nobody else.
    pub(crate) fn unjoined(threads_max: usize) -> Self {
        Self::start(threads_max, false)
    }

    fn start(threads_max: usize, is_joined: bool) -> Self {
        let queue = Queue { jobs: VecDeque::new(), idle_threads: 0, closed: false };
        let shared = Arc::new(Shared { queue: Mutex::new(queue), job_added: Condvar::new() });
        Self { pool: Rc::new(Pool { shared, threads: Vec::new().into(), threads_max, is_joined }) }
    }

    /// Runs `job` on a thread, to its end even if the future is dropped. `None` if no thread could
    /// be started, or the job panicked.
    pub(crate) async fn run<T: Send + 'static>(
        &self,
        job: impl FnOnce() -> T + Send + 'static,
    ) -> Option<T> {
        let (sender, receiver) = oneshot::channel();
        self.enqueue(Box::new(move || {
            // A receiver that went away wanted the work done, not the answer.
            let _ = sender.send(job());
        }));
        receiver.await.ok()
    }

    fn enqueue(&self, job: Job) {
        let mut queue = self.pool.shared.lock();
        queue.jobs.push_back(job);
        let short_of_threads = queue.jobs.len() > queue.idle_threads;
        drop(queue);
        self.pool.shared.job_added.notify_one();
        let mut threads = self.pool.threads.borrow_mut();
        if short_of_threads && threads.len() < self.pool.threads_max {
            let shared = Arc::clone(&self.pool.shared);
            match thread::Builder::new().name("weir-disk".into()).spawn(move || shared.work()) {
                Ok(thread) => threads.push(thread),
                Err(error) => {
                    tracing::warn!(%error, running = threads.len(), "cannot start a disk thread");
                    if threads.is_empty() {
                        // Nobody will ever run them: dropping a job tells its caller.
                        self.pool.shared.lock().jobs.clear();
                    }
                }
            }
        }
    }

    pub(crate) async fn read(
        &self,
        file: &Arc<OpenFile>,
        mut buf: AlignedBuf,
        offset: u64,
    ) -> (AlignedBuf, Result<(), DiskError>) {
        let len = buf.len();
        let open = Arc::clone(file);
        let job = move || {
            let _call = Call::begin(&open.path);
            let result = read_blocking(&open, &mut buf, offset);
            (buf, result)
        };
        match self.run(job).await {
            Some(answer) => answer,
            None => (AlignedBuf::zeroed(len), Err(stopped(file, DiskOperation::Read))),
        }
    }

    pub(crate) async fn read_pieces(
        &self,
        file: &Arc<OpenFile>,
        mut pieces: Vec<AlignedBuf>,
        offset: u64,
    ) -> (Vec<AlignedBuf>, Result<(), DiskError>) {
        let open = Arc::clone(file);
        let job = move || {
            let _call = Call::begin(&open.path);
            let result = read_pieces_blocking(&open, &mut pieces, offset);
            (pieces, result)
        };
        match self.run(job).await {
            Some(answer) => answer,
            None => (Vec::new(), Err(stopped(file, DiskOperation::Read))),
        }
    }

    pub(crate) async fn write(
        &self,
        file: &Arc<OpenFile>,
        pieces: Vec<SharedBuf>,
        offset: u64,
    ) -> (Vec<SharedBuf>, Result<(), DiskError>) {
        let open = Arc::clone(file);
        let job = move || {
            let _call = Call::begin(&open.path);
            let result = write_blocking(&open, &pieces, offset);
            (pieces, result)
        };
        match self.run(job).await {
            Some(answer) => answer,
            None => (Vec::new(), Err(stopped(file, DiskOperation::Write))),
        }
    }

    /// Runs the sync of a group, and of all groups that form meanwhile.
    pub(crate) fn start_sync(&self, file: &Arc<OpenFile>, group: SyncGroup) {
        let mut job = SyncJob { file: Arc::clone(file), group: Some(group) };
        self.enqueue(Box::new(move || {
            let _call = Call::begin(&job.file.path);
            while let Some(group) = job.group.take() {
                let result = sync_blocking(&job.file, group.kind);
                job.group = job.file.syncs.finish(group, result);
            }
        }));
    }
}

/// Syncs to be run; tells the file when they never are.
struct SyncJob {
    file: Arc<OpenFile>,
    group: Option<SyncGroup>,
}

impl Drop for SyncJob {
    fn drop(&mut self) {
        if let Some(group) = self.group.take() {
            self.file.syncs.give_up(group);
        }
    }
}

fn stopped(file: &OpenFile, operation: DiskOperation) -> DiskError {
    DiskError::Stopped { operation, path: Arc::clone(&file.path) }
}

fn read_blocking(file: &OpenFile, buf: &mut [u8], offset: u64) -> Result<(), DiskError> {
    read_all(file, offset, buf.len(), |done| {
        rustix::io::pread(&file.fd, &mut buf[done..], offset + done as u64)
    })
}

fn read_pieces_blocking(
    file: &OpenFile,
    pieces: &mut [AlignedBuf],
    offset: u64,
) -> Result<(), DiskError> {
    read_all(file, offset, total_len(pieces), |done| {
        let mut slices: Vec<_> = remaining_mut(pieces, done).map(IoSliceMut::new).collect();
        rustix::io::preadv(&file.fd, &mut slices, offset + done as u64)
    })
}

/// Reads on, from as many bytes as were read, until it has all that is wanted.
fn read_all(
    file: &OpenFile,
    offset: u64,
    wanted: usize,
    mut read: impl FnMut(usize) -> Result<usize, Errno>,
) -> Result<(), DiskError> {
    let mut done = 0;
    while done < wanted {
        let moved = match read(done) {
            Ok(moved) => moved,
            Err(Errno::INTR) => continue,
            Err(errno) => return Err(file.error(DiskOperation::Read, Some(offset), errno)),
        };
        match after_read(done, moved, wanted, file.alignment) {
            Next::Done => break,
            Next::Continue(next) => done = next,
            Next::Stuck(moved) => {
                return Err(file.short(DiskOperation::Read, offset, wanted, moved));
            }
        }
    }
    Ok(())
}

fn write_blocking(file: &OpenFile, pieces: &[SharedBuf], offset: u64) -> Result<(), DiskError> {
    let wanted = total_len(pieces);
    let mut done = 0;
    while done < wanted {
        let slices: Vec<IoSlice<'_>> = remaining(pieces, done).map(IoSlice::new).collect();
        let moved = match rustix::io::pwritev(&file.fd, &slices, offset + done as u64) {
            Ok(moved) => moved,
            Err(Errno::INTR) => continue,
            Err(errno) => return Err(file.error(DiskOperation::Write, Some(offset), errno)),
        };
        match after_write(done, moved, wanted, file.alignment) {
            Next::Done => break,
            Next::Continue(next) => done = next,
            Next::Stuck(moved) => {
                return Err(file.short(DiskOperation::Write, offset, wanted, moved));
            }
        }
    }
    Ok(())
}

/// An interrupted sync is not repeated: a second one could succeed without the failure of the
/// first.
fn sync_blocking(file: &OpenFile, kind: SyncKind) -> Result<(), Errno> {
    match kind {
        SyncKind::Data => rustix::fs::fdatasync(&file.fd),
        SyncKind::DataAndMetadata => rustix::fs::fsync(&file.fd),
    }
}
