//! For how long a disk has not answered: requests that are under way.

use std::cell::RefCell;
use std::time::Duration;

use crate::env::Clock;

/// When each request that is under way began. No more than a queue of requests is deep.
#[derive(Debug, Default)]
pub struct DiskWaits {
    since: RefCell<Vec<Duration>>,
}

/// A request that is under way, until this is dropped.
#[derive(Debug)]
pub struct DiskWait<'a> {
    waits: &'a DiskWaits,
    since: Duration,
}

impl DiskWaits {
    /// Notes one that begins now.
    pub fn begin(&self, clock: &dyn Clock) -> DiskWait<'_> {
        let since = clock.boottime();
        self.since.borrow_mut().push(since);
        DiskWait { waits: self, since }
    }

    /// How long the oldest one has taken.
    #[must_use]
    pub fn longest(&self, clock: &dyn Clock) -> Option<Duration> {
        let oldest = self.since.borrow().iter().min().copied();
        oldest.map(|since| clock.boottime().saturating_sub(since))
    }
}

impl Drop for DiskWait<'_> {
    fn drop(&mut self) {
        let mut since = self.waits.since.borrow_mut();
        if let Some(at) = since.iter().position(|since| *since == self.since) {
            since.swap_remove(at);
        }
    }
}
