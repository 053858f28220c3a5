//! The disk engine of one shard thread: which one it is, and the directories it opens.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::rc::Rc;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use rustix::io::Errno;
use tokio::time::Instant;
use weir_device::{FileReads, NoFileReads, mutant};

use crate::directory::{Directory, RealDirectory};
use crate::engine::Engine;
use crate::engine::image::{self, OpenImage};
use crate::engine::metadata::{self, MetadataJob};
use crate::engine::threads::{THREADS_MAX, ThreadEngine};
use crate::engine::under_way::Question;
use crate::engine::uring::UringEngine;
use crate::error::{DiskError, DiskOperation};
use crate::file::File;
use crate::image::{Image, ImageMode};
use crate::modes::DirectIo;
use crate::reads::RingReads;

/// Threads for opening, listing and locking beside a ring: two, so that one slow directory does not
/// hold up the rest.
const HELPER_THREADS_MAX: usize = 2;

/// Threads that open images: more than there are images on file systems that hang at a time. An image has one of them
/// at most, and they start when they are needed.
const OPENING_THREADS_MAX: usize = 128;

/// Threads of an image whose file system is kept by a program or another machine: as many as a queue of requests is
/// deep that such a one answers beside each other. They start when they are needed.
const SERVED_THREADS_MAX: usize = 32;

/// How long an image that is locked is waited for: longer than requests of a killed process take, if their disk is not
/// hung.
const IMAGE_LOCK_MAX: Duration = Duration::from_secs(2);

/// Pause before a locked image is tried again.
const IMAGE_LOCK_RETRY: Duration = Duration::from_millis(20);

/// Which engine to use.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum EngineChoice {
    /// io_uring where the kernel allows it, else threads.
    #[default]
    Auto,
    /// io_uring or an error.
    Uring,
    /// A few threads with blocking calls.
    Threads,
}

/// The disk engine of one shard. Belongs to the thread that made it; cheap to clone.
#[derive(Clone, Debug)]
pub struct Disks {
    engine: Engine,
    /// Threads that open images: what users name may hang without the journals.
    opening: Engine,
    /// What they are opening.
    being_opened: Arc<Mutex<BTreeSet<PathBuf>>>,
    /// And for what is of use only while its disk answers.
    apart: Engine,
    direct: DirectIo,
}

impl Disks {
    /// Starts an engine. Call it inside a tokio `LocalSet` on a runtime with I/O enabled, on the
    /// thread that will use it. Dropping the last handle waits for operations in flight.
    pub fn new(choice: EngineChoice) -> Result<Self, DiskError> {
        let engine = Engine::start(choice)?;
        let opening = Engine::Threads(ThreadEngine::unjoined(OPENING_THREADS_MAX));
        let apart = engine.with_own_helpers(ThreadEngine::with_threads);
        let being_opened = Arc::default();
        Ok(Self { engine, opening, being_opened, apart, direct: DirectIo::default() })
    }

    /// The same engine, opening files as `direct` says.
    #[must_use]
    pub fn with_direct_io(mut self, direct: DirectIo) -> Self {
        self.direct = direct;
        self
    }

    /// Name of the engine in use: `io_uring` or `threads`.
    #[must_use]
    pub fn engine_name(&self) -> &'static str {
        self.engine.name()
    }

    /// The files of the operations of this thread's ring that had begun when it was asked and have not ended. Those of
    /// helper threads are in [`Question::unanswered`]. Does not block.
    #[must_use]
    pub fn unanswered(&self, question: Question) -> Vec<Arc<str>> {
        match &self.engine {
            Engine::Threads(_) => Vec::new(),
            Engine::Uring(ring, _) => ring.unanswered(question),
        }
    }

    /// Reads files that others have opened; none where the engine in use is threads.
    #[must_use]
    pub fn file_reads(&self) -> Rc<dyn FileReads> {
        match &self.engine {
            Engine::Threads(_) => Rc::new(NoFileReads),
            Engine::Uring(ring, _) => Rc::new(RingReads::new(ring.clone())),
        }
    }

    /// Opens a directory; creates it and its parents (mode 0700, durably) where they are missing.
    /// Blocks: meant for start-up.
    pub fn directory(&self, path: impl AsRef<Path>) -> Result<Directory, DiskError> {
        let directory = RealDirectory::open(path.as_ref(), self.engine.clone(), self.direct)?;
        Ok(Directory::real(directory))
    }

    /// The same for a directory whose file system may stop answering while others are in use: nothing that asks it runs
    /// on this thread, the closing of what is opened there included, nor on a thread that other files need.
    ///
    /// # Errors
    /// What the kernel says.
    pub async fn directory_apart(&self, path: impl AsRef<Path>) -> Result<Directory, DiskError> {
        let apart = self.apart.clone();
        let directory = RealDirectory::open_apart(path.as_ref(), apart, self.direct).await?;
        Ok(Directory::real(directory))
    }
}

impl Disks {
    /// Opens a file or a block device whose bytes are a disk, and locks it.
    ///
    /// # Errors
    /// [`DiskError::ImageInUse`], [`DiskError::NoImage`], [`DiskError::NoDirectIo`]; what the kernel says otherwise.
    pub async fn image(&self, path: impl AsRef<Path>, mode: ImageMode) -> Result<Image, DiskError> {
        let path = path.as_ref().to_owned();
        let began = Instant::now();
        let opened = loop {
            // A thread that hangs there is the only one: whoever gave its opening up and tries again waits for it.
            let Some(alone) = BeingOpened::begin(&self.being_opened, &path) else {
                tokio::time::sleep(IMAGE_LOCK_RETRY).await;
                continue;
            };
            let (path, shown) = (path.clone(), Arc::from(path.to_string_lossy()));
            let job = move || {
                let _alone = alone;
                image::open(&path, mode)
            };
            let job = MetadataJob { operation: DiskOperation::Open, path: shown, job };
            match metadata::run(&self.opening, job).await {
                // Requests in flight of a process that was killed hold the lock as well, so that no write of theirs
                // lands behind one that is made now.
                Err(DiskError::ImageInUse { .. }) if began.elapsed() < IMAGE_LOCK_MAX => {
                    tokio::time::sleep(IMAGE_LOCK_RETRY).await;
                }
                opened => break opened?,
            }
        };
        let OpenImage { file, size, zero_bytes, can_zero, created } = opened;
        // The others, and its end, do not wait for what hangs in it. What a program or another machine answers, which
        // may stop with everything that was asked, has no part of the ring either: the kernel would use threads for it,
        // and has a number of them for all files of the ring.
        let engine = match file.blocks_callers {
            true => Engine::Threads(ThreadEngine::unjoined(SERVED_THREADS_MAX)),
            false => self.engine.with_own_helpers(ThreadEngine::unjoined),
        };
        let file = File::real(file, engine);
        Ok(Image { file, size, zero_bytes, can_zero, created })
    }
}

/// An image that a thread is opening, until this is dropped: when the thread comes back.
struct BeingOpened {
    path: PathBuf,
    all: Arc<Mutex<BTreeSet<PathBuf>>>,
}

impl BeingOpened {
    /// `None` if a thread is opening it already.
    fn begin(all: &Arc<Mutex<BTreeSet<PathBuf>>>, path: &Path) -> Option<Self> {
        let is_first = all.lock().unwrap_or_else(PoisonError::into_inner).insert(path.to_owned());
        let is_first = is_first || mutant("image_opened_by_many_threads");
        is_first.then(|| Self { path: path.to_owned(), all: Arc::clone(all) })
    }
}

impl Drop for BeingOpened {
    fn drop(&mut self) {
        self.all.lock().unwrap_or_else(PoisonError::into_inner).remove(&self.path);
    }
}

impl Engine {
    fn start(choice: EngineChoice) -> Result<Self, DiskError> {
        let engine = match choice {
            EngineChoice::Threads => Self::Threads(ThreadEngine::new()),
            EngineChoice::Uring => {
                Self::uring().map_err(|source| DiskError::UringRefused { source })?
            }
            EngineChoice::Auto => match Self::uring() {
                Ok(engine) => engine,
                Err(errno) => {
                    tracing::warn!(
                        error = %errno,
                        "io_uring is not available (see sysctl kernel.io_uring_disabled and the \
                         container's seccomp profile); using threads"
                    );
                    Self::Threads(ThreadEngine::new())
                }
            },
        };
        tracing::info!(engine = engine.name(), ?choice, "disk engine started");
        Ok(engine)
    }

    /// The same with threads of its own, started as `pool` does.
    fn with_own_helpers(&self, pool: impl FnOnce(usize) -> ThreadEngine) -> Self {
        match self {
            Self::Threads(_) => Self::Threads(pool(THREADS_MAX)),
            Self::Uring(ring, _) => Self::Uring(ring.clone(), pool(HELPER_THREADS_MAX)),
        }
    }

    fn uring() -> Result<Self, Errno> {
        Ok(Self::Uring(UringEngine::new()?, ThreadEngine::with_threads(HELPER_THREADS_MAX)))
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc::channel;

    use super::*;

    #[tokio::test]
    async fn what_hangs_in_a_directory_apart_keeps_no_image_and_no_journal() {
        tokio::task::LocalSet::new()
            .run_until(async {
                let disks = Disks::new(EngineChoice::Threads).unwrap();
                let (hung, answer) = channel::<()>();
                let answer = Arc::new(std::sync::Mutex::new(answer));
                // More than there are threads for.
                let asked: Vec<_> = (0..32)
                    .map(|_| {
                        let (apart, answer) = (disks.apart.clone(), Arc::clone(&answer));
                        let job = move || drop(answer.lock().map(|answer| answer.recv()));
                        tokio::task::spawn_local(async move { apart.helpers().run(job).await })
                    })
                    .collect();
                tokio::task::yield_now().await;
                for others in [&disks.opening, &disks.engine] {
                    let answered = others.helpers().run(|| ());
                    let answered = tokio::time::timeout(Duration::from_secs(10), answered).await;
                    assert_eq!(answered.ok(), Some(Some(())), "it waits for what hangs");
                }
                drop(hung);
                for one in asked {
                    one.await.unwrap();
                }
            })
            .await;
    }

    /// Nor is the end of an image waited for, on whose thread other volumes are.
    #[tokio::test]
    async fn what_hangs_in_an_image_keeps_no_other_image() {
        tokio::task::LocalSet::new()
            .run_until(async {
                for choice in [EngineChoice::Threads, EngineChoice::Auto] {
                    let disks = Disks::new(choice).unwrap();
                    let of_image = || disks.engine.with_own_helpers(ThreadEngine::unjoined);
                    let (one, other) = (of_image(), of_image());
                    let (hung, answer) = channel::<()>();
                    let answer = Arc::new(std::sync::Mutex::new(answer));
                    for _ in 0..32 {
                        let answer = Arc::clone(&answer);
                        let job =
                            one.helpers().run(move || drop(answer.lock().map(|one| one.recv())));
                        assert!(futures_util::FutureExt::now_or_never(job).is_none());
                    }
                    drop(one);
                    let answered =
                        tokio::time::timeout(Duration::from_secs(10), other.helpers().run(|| ()));
                    assert_eq!(answered.await.ok(), Some(Some(())), "it waits for what hangs");
                    drop(hung);
                }
            })
            .await;
    }

    /// Whoever gives up an opening that hangs, and tries again, takes no other thread, of which others need some.
    #[tokio::test]
    async fn an_image_is_opened_by_one_thread_at_a_time() {
        tokio::task::LocalSet::new()
            .run_until(async {
                let disks = Disks::new(EngineChoice::Threads).unwrap();
                let directory = tempfile::TempDir::new().unwrap();
                let path = |name: &str| directory.path().join(name);
                let mode = ImageMode { create: Some(4096), direct: false, read_only: false };
                let hangs = BeingOpened::begin(&disks.being_opened, &path("one")).unwrap();
                let mut again = Box::pin(disks.image(path("one"), mode));
                let at_once = tokio::time::timeout(Duration::from_millis(100), &mut again).await;
                assert!(at_once.is_err(), "another thread opens it");
                disks.image(path("other"), mode).await.expect("nothing of it hangs");
                drop(hangs);
                assert!(again.await.expect("it opens").created);
                disks.image(path("one"), mode).await.expect("it is closed by now");
            })
            .await;
    }

    /// The thread of an opening that somebody gave up is still with it.
    #[tokio::test]
    async fn an_opening_that_was_given_up_is_under_way_until_its_thread_comes_back() {
        tokio::task::LocalSet::new()
            .run_until(async {
                let mut disks = Disks::new(EngineChoice::Threads).unwrap();
                disks.opening = Engine::Threads(ThreadEngine::unjoined(1));
                let directory = tempfile::TempDir::new().unwrap();
                let path = directory.path().join("one");
                let mode = ImageMode { create: Some(4096), direct: false, read_only: false };
                let (hung, answer) = channel::<()>();
                let hangs = disks.opening.helpers().run(move || answer.recv());
                assert!(futures_util::FutureExt::now_or_never(hangs).is_none());
                let given_up = futures_util::FutureExt::now_or_never(disks.image(&path, mode));
                assert!(given_up.is_none(), "its thread hangs");
                let another = BeingOpened::begin(&disks.being_opened, &path);
                assert!(another.is_none(), "it would take another thread");
                drop(hung);
                disks.image(&path, mode).await.expect("its thread has come back");
            })
            .await;
    }
}
