//! For how long the disk has not answered: writes of records and syncs that are under way.

use std::cell::RefCell;
use std::time::Duration;

use weir_device::Clock;

/// When each request that is under way began. There are only a few: a lane has one, and the syncer.
#[derive(Debug, Default)]
pub(crate) struct DiskWaits {
    since: RefCell<Vec<Duration>>,
}

/// A request that is under way, until this is dropped.
pub(crate) struct DiskWait<'a> {
    waits: &'a DiskWaits,
    since: Duration,
}

impl DiskWaits {
    pub(crate) fn begin(&self, clock: &dyn Clock) -> DiskWait<'_> {
        let since = clock.boottime();
        self.since.borrow_mut().push(since);
        DiskWait { waits: self, since }
    }

    /// How long the oldest one has taken.
    pub(crate) fn longest(&self, clock: &dyn Clock) -> Option<Duration> {
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
