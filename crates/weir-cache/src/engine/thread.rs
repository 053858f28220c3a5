//! A thread's way to the cache of its node: the file, as the thread has it open, and what it is about to write.

use std::cell::{Cell, RefCell};
use std::fmt;
use std::rc::Rc;

use weir_device::Env;
use weir_disk::{Directory, File, LockGuard};

use super::cache::Cache;
use super::error::CacheError;
use super::limits::BLOCKS_FILE;
use super::queue::Queue;
use super::state::Ended;

/// The way of one thread to the cache of its node, which may come and go.
#[derive(Debug, Default)]
pub struct ThreadCache {
    open: RefCell<Option<Rc<Open>>>,
    was_there: Cell<bool>,
    /// Keeps other processes out, on the thread that opened the cache.
    lock: RefCell<Option<LockGuard>>,
}

/// What a thread reads and writes the cache with.
pub(super) struct Open {
    pub(super) cache: Cache,
    pub(super) file: File,
    pub(super) env: Env,
    pub(super) queue: Queue,
}

impl fmt::Debug for Open {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Open")
    }
}

impl ThreadCache {
    /// Uses a cache from now on that another thread opened. `directory` is the cache's, opened by this thread.
    ///
    /// # Errors
    /// When its file cannot be opened.
    pub async fn attach(
        &self,
        cache: &Cache,
        directory: &Directory,
        env: &Env,
    ) -> Result<(), CacheError> {
        let file = directory.open(BLOCKS_FILE, weir_disk::OpenMode::Existing).await?;
        let open = Open { cache: cache.clone(), file, env: env.clone(), queue: Queue::default() };
        *self.open.borrow_mut() = Some(Rc::new(open));
        self.was_there.set(true);
        Ok(())
    }

    /// Uses no cache any more. What is on its way ends by itself.
    pub fn detach(&self) {
        self.take();
    }

    /// The same on the thread that opened it, once no other uses it: nothing of it is saved, and its disk is not asked
    /// for anything, as one that does not answer. The next opening reads it anew.
    pub fn abandon(&self) {
        if let Some(open) = self.take() {
            open.cache.state().ended.get_or_insert(Ended::Closing);
        }
        self.hold(None);
    }

    /// Whether there is a cache.
    #[must_use]
    pub fn is_there(&self) -> bool {
        self.open.borrow().is_some()
    }

    /// Whether there is one, or was since the process began: what it answered may still be in memory.
    #[must_use]
    pub fn was_there(&self) -> bool {
        self.was_there.get()
    }

    /// Ends its use of the cache; what it was used with.
    pub(super) fn take(&self) -> Option<Rc<Open>> {
        self.open.borrow_mut().take()
    }

    /// Lets the lock of the cache go, and returns once another process may have it.
    pub(super) async fn release(&self) {
        if let Some(lock) = self.held() {
            lock.release().await;
        }
    }

    /// Holds the lock of the cache, or lets it go.
    pub(super) fn hold(&self, lock: Option<LockGuard>) {
        *self.lock.borrow_mut() = lock;
    }

    /// The lock of the cache, if this thread holds it; it is the caller's from now on.
    pub(super) fn held(&self) -> Option<LockGuard> {
        self.lock.borrow_mut().take()
    }

    pub(super) fn current(&self) -> Option<Rc<Open>> {
        self.open.borrow().clone()
    }
}
