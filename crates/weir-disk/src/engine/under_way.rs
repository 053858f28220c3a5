//! Calls of this process that are with the kernel, so that whoever must not leave one behind can ask which have not
//! ended: the kernel executes no new program, and ends no process, before every thread has come back from its file
//! system.
//!
//! Blocking calls of helper threads are in a table of the process. Operations of a ring are in its slots, with the
//! number that counted when they began, so that nothing is shared by them.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// The number of the next call or question.
static NEXT: AtomicU64 = AtomicU64::new(0);

static CALLS: Mutex<Vec<(u64, Arc<str>)>> = Mutex::new(Vec::new());

fn calls() -> MutexGuard<'static, Vec<(u64, Arc<str>)>> {
    CALLS.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The number of a call that begins now and is not in the table.
pub(crate) fn number() -> u64 {
    NEXT.load(Ordering::Relaxed)
}

/// A blocking call, in the table as long as this lives.
pub(crate) struct Call(u64);

impl Call {
    /// Begins one that asks the file system of this file.
    pub(crate) fn begin(path: &Arc<str>) -> Self {
        let number = NEXT.fetch_add(1, Ordering::Relaxed);
        calls().push((number, Arc::clone(path)));
        Self(number)
    }
}

impl Drop for Call {
    fn drop(&mut self) {
        let mut calls = calls();
        if let Some(at) = calls.iter().position(|(number, _)| *number == self.0) {
            calls.swap_remove(at);
        }
    }
}

/// Asks which of the calls that this process had begun by then have not come back. Does not block.
#[derive(Clone, Copy, Debug)]
pub struct Question(u64);

impl Question {
    /// Asks of those that have begun by now.
    #[must_use]
    pub fn ask() -> Self {
        Self(NEXT.fetch_add(1, Ordering::Relaxed))
    }

    /// Whether a call with this number had begun by then.
    pub(crate) fn is_of(self, number: u64) -> bool {
        number <= self.0
    }

    /// The files whose helper threads have not come back, wherever in this process they are; each once. Operations of
    /// a ring are asked for with [`crate::Disks::unanswered`].
    #[must_use]
    pub fn unanswered(self) -> Vec<Arc<str>> {
        let mut files: Vec<_> =
            calls().iter().filter(|one| self.is_of(one.0)).map(|one| Arc::clone(&one.1)).collect();
        files.sort();
        files.dedup();
        files
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc::channel;

    use super::*;
    use crate::engine::threads::ThreadEngine;

    #[tokio::test]
    async fn what_had_begun_and_not_come_back_is_named_and_nothing_else() {
        let path: Arc<str> = Arc::from("/of/the/test/that/hangs");
        let hangs = |question: Question| question.unanswered().contains(&path);
        let before = Question::ask();
        let (answer, file) = channel::<()>();
        let engine = ThreadEngine::unjoined(1);
        let (began, begun) = channel();
        let called = path.clone();
        let job = engine.run(move || {
            let _call = Call::begin(&called);
            began.send(()).unwrap();
            let _ = file.recv();
        });
        let mut job = Box::pin(job);
        assert!(futures_util::FutureExt::now_or_never(&mut job).is_none());
        begun.recv().unwrap();
        let after = Question::ask();
        assert!(!hangs(before), "it began later");
        assert!(hangs(after) && hangs(Question::ask()));
        drop(answer);
        job.await.unwrap();
        assert!(!hangs(after));
    }
}
