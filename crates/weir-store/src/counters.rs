//! What a store was asked to do, counted for metrics and status.

use std::sync::atomic::{AtomicU64, Ordering};

/// A count of everything a [`crate::Store`] did since it was opened, attempts that failed included.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct StoreCounters {
    /// PUT attempts.
    pub puts: u64,
    /// GET attempts, ranged or whole.
    pub gets: u64,
    /// LIST attempts.
    pub lists: u64,
    /// DELETE attempts.
    pub deletes: u64,
    /// Bytes of the objects created.
    pub bytes_up: u64,
    /// Bytes returned to readers.
    pub bytes_down: u64,
    /// Attempts that ended in an error; "no such object" is an answer, not an error.
    pub failures: u64,
    /// Attempts that [`crate::Store::retry`] made after a failed one.
    pub retries: u64,
    /// Milliseconds that PUTs waited for the limits of uploads, added up.
    pub upload_wait_ms: u64,
}

/// The live counters. Relaxed: they are read for display and order nothing.
#[derive(Debug, Default)]
pub(crate) struct Counters {
    pub(crate) puts: Count,
    pub(crate) gets: Count,
    pub(crate) lists: Count,
    pub(crate) deletes: Count,
    pub(crate) bytes_up: Count,
    pub(crate) bytes_down: Count,
    pub(crate) failures: Count,
    pub(crate) retries: Count,
    pub(crate) upload_wait_ms: Count,
}

#[derive(Debug, Default)]
pub(crate) struct Count(AtomicU64);

impl Count {
    pub(crate) fn add(&self, more: u64) {
        self.0.fetch_add(more, Ordering::Relaxed);
    }

    fn get(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }
}

impl Counters {
    pub(crate) fn snapshot(&self) -> StoreCounters {
        StoreCounters {
            puts: self.puts.get(),
            gets: self.gets.get(),
            lists: self.lists.get(),
            deletes: self.deletes.get(),
            bytes_up: self.bytes_up.get(),
            bytes_down: self.bytes_down.get(),
            failures: self.failures.get(),
            retries: self.retries.get(),
            upload_wait_ms: self.upload_wait_ms.get(),
        }
    }
}
