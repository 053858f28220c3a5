//! What the tasks of an open journal share, and whom it tells.

use std::cell::RefCell;
use std::future::Future;
use std::rc::Rc;
use std::sync::Arc;
use std::task::Waker;

use tokio::sync::{Mutex, Notify};
use weir_device::{DiskWaits, Env, LocalBoxFuture};
use weir_disk::File;

use crate::error::JournalError;
use crate::group_commit::PlacedPiece;
use crate::ids::{JournalPos, RecordSeq};
use crate::limits::RECORDS_IN_FLIGHT_MAX;
use crate::state::{JournalState, Phase};

/// What the volume does when a record is durable, when positions are about to be reused, and when the journal fails.
pub trait RecordSink {
    /// `record` and all earlier ones are on disk. Called strictly in the order of records, before their writers are
    /// answered: from here on reads must see these pieces.
    fn on_durable(&self, record: RecordSeq, pieces: &[PlacedPiece]);

    /// The released positions `start..end` are about to be written over: forget everything that points into them.
    /// Once this has returned, no new pin into them may be taken.
    fn forget(&self, start: JournalPos, end: JournalPos) -> LocalBoxFuture<'_, ()>;

    /// A write or a sync failed: nothing becomes durable any more. What was flushed before still is, and can be read as
    /// far as memory or the disk has it.
    fn on_failed(&self) {}

    /// The file cannot grow for want of space: writers soon wait until what it holds is released.
    fn on_no_space(&self) {}
}

/// What the tasks of a journal share.
pub(crate) struct Inner {
    pub(crate) file: File,
    pub(crate) file_name: Arc<str>,
    pub(crate) env: Env,
    pub(crate) state: RefCell<JournalState>,
    pub(crate) sink: RefCell<Option<Rc<dyn RecordSink>>>,
    /// Wakers of answered appends on their way from the state to their tasks.
    pub(crate) woken: RefCell<Vec<Waker>>,
    /// Something to write, room to write it, or the end.
    pub(crate) work: Notify,
    /// A flush wants a sync, or the end.
    pub(crate) flush_work: Notify,
    /// The segment list may have to change, or the end.
    pub(crate) ring_work: Notify,
    /// A sync has ended, or the journal is poisoned.
    pub(crate) flushed: Notify,
    /// Anything else that somebody may wait for has happened.
    pub(crate) progress: Notify,
    pub(crate) disk_waits: DiskWaits,
    /// Held while a superblock of an open journal is made and written, so that they reach the file in their order.
    pub(crate) superblocks: Mutex<()>,
}

impl Inner {
    pub(crate) fn new(file: File, env: Env, state: JournalState) -> Self {
        let file_name = Arc::clone(&state.file_name);
        Self {
            file,
            file_name,
            env,
            state: RefCell::new(state),
            sink: RefCell::new(None),
            woken: RefCell::default(),
            work: Notify::new(),
            flush_work: Notify::new(),
            ring_work: Notify::new(),
            flushed: Notify::new(),
            progress: Notify::new(),
            disk_waits: DiskWaits::default(),
            superblocks: Mutex::new(()),
        }
    }

    /// Wakes every task, and everybody who waits.
    pub(crate) fn wake_all(&self) {
        for _ in 0..RECORDS_IN_FLIGHT_MAX {
            self.work.notify_one();
        }
        self.work.notify_waiters();
        self.flush_work.notify_one();
        self.ring_work.notify_one();
        self.flushed.notify_waiters();
        self.progress.notify_waiters();
    }

    /// Refuses everything from here on (J4): after a failed write or sync nobody knows what the disk holds.
    pub(crate) fn poison(&self, cause: weir_disk::DiskError) {
        tracing::error!(file = %self.file_name, %cause, "journal takes no more writes");
        let woken = self.state.borrow_mut().poison(cause);
        for waker in woken {
            waker.wake();
        }
        self.wake_all();
        let sink = self.sink.borrow().clone();
        if let Some(sink) = sink {
            sink.on_failed();
        }
    }

    pub(crate) fn check_poison(&self) -> Result<(), JournalError> {
        match &self.state.borrow().poisoned {
            Some(cause) => Err(JournalError::Poisoned {
                file: Arc::clone(&self.file_name),
                cause: cause.clone(),
            }),
            None => Ok(()),
        }
    }

    pub(crate) fn is_stopping(&self) -> bool {
        self.state.borrow().phase == Phase::Stopping
    }

    pub(crate) fn task_ended(&self) {
        self.state.borrow_mut().tasks -= 1;
        self.progress.notify_waiters();
    }

    pub(crate) fn spawn<F: Future<Output = ()> + 'static>(
        self: &Rc<Self>,
        task: impl FnOnce(Rc<Self>) -> F,
    ) {
        self.state.borrow_mut().tasks += 1;
        let inner = Rc::clone(self);
        let task = task(Rc::clone(self));
        self.env.spawn_local(async move {
            task.await;
            inner.task_ended();
        });
    }
}
