//! What was done to store, disk and objects.

use std::cell::{Cell, RefCell};
use std::time::Duration;

use tokio::time::Instant;
use weir_store::{Fault, FaultCounts};

use crate::oracle::{Moment, Oracle, Point, Write};

/// When the store could not be reached.
#[derive(Debug, Default)]
pub(crate) struct Outages {
    /// Reasons in force: with two nodes each may have its own.
    pub(crate) depth: u64,
    pub(crate) since: Option<Instant>,
    pub(crate) over: Vec<(Instant, Instant)>,
    /// How long a request that was sent meanwhile is waited for after the end.
    pub(crate) tail: Duration,
}

impl Outages {
    pub(crate) fn with_tail(tail: Duration) -> Self {
        Self { tail, ..Self::default() }
    }

    pub(crate) fn begin(&mut self) {
        self.depth += 1;
        self.since.get_or_insert_with(Instant::now);
    }

    pub(crate) fn end(&mut self) {
        self.depth = self.depth.saturating_sub(1);
        if self.depth == 0
            && let Some(since) = self.since.take()
        {
            self.over.push((since, Instant::now()));
        }
    }

    /// Whether it cannot be reached now.
    pub(crate) fn is_now(&self) -> bool {
        self.since.is_some()
    }

    /// How much of the time since `from` the store could be reached.
    pub(crate) fn reachable_since(&self, from: Instant) -> Duration {
        let now = Instant::now();
        let current = self.since.map(|since| (since, now));
        let (mut reachable, mut counted) = (Duration::ZERO, from);
        for (begin, end) in self.over.iter().copied().chain(current) {
            reachable += begin.saturating_duration_since(counted);
            counted = counted.max(end + self.tail);
        }
        reachable + now.saturating_duration_since(counted)
    }
}

/// A byte of the journal that rotted, and what it reaches.
#[derive(Clone, Debug)]
pub(crate) struct Rot {
    /// Nothing that was written later.
    pub(crate) at: Moment,
    /// Ranges of the volume, from and to.
    pub(crate) ranges: Vec<(u64, u64)>,
    /// It is in the header of a record: without it nobody can say what was lost.
    pub(crate) header: bool,
}

/// What a failed sync reaches: writes that were issued before `until`, and that no earlier sync made durable.
#[derive(Clone, Copy, Debug)]
struct LostSync {
    pub(crate) durable: Moment,
    pub(crate) until: Moment,
}

impl LostSync {
    fn reaches(&self, write: &Write) -> bool {
        let safe = write.fua || write.acked.is_some_and(|acked| acked <= self.durable);
        write.issued < self.until && !safe
    }
}

/// What was done to the disks and to objects.
#[derive(Debug, Default)]
pub(crate) struct Harm {
    pub(crate) rot: RefCell<Option<Rot>>,
    /// A sync was made to fail on a host, and it has not restarted since.
    pub(crate) sync_failing: [Cell<bool>; 2],
    lost_syncs: RefCell<Vec<LostSync>>,
    /// The disk fails reads by chance.
    pub(crate) reads_fail: [Cell<bool>; 2],
    /// An object of the store was damaged or hidden at some time.
    pub(crate) object_damaged: Cell<bool>,
    /// When the last of them became whole again.
    pub(crate) object_healed: Cell<Option<Instant>>,
}

impl Harm {
    /// A sync failed in this seed: nobody knows what a page cache holds after that, so the host restarts.
    pub(crate) fn any_sync_failed(&self) -> bool {
        self.sync_failing.iter().any(Cell::get) || !self.lost_syncs.borrow().is_empty()
    }

    pub(crate) fn sync_failed_on(&self, host: usize) -> bool {
        self.sync_failing[host].get()
    }

    /// The host restarts: what the failed sync reaches is settled.
    pub(crate) fn settle_syncs(&self, host: usize, oracle: &mut Oracle) {
        if self.sync_failing[host].take() {
            let lost = LostSync { durable: oracle.flushed(), until: oracle.tick() };
            self.lost_syncs.borrow_mut().push(lost);
        }
    }

    /// Whether some byte of a range of the oracle, at `place` on the volume, may be lost.
    pub(crate) fn reaches(
        &self,
        oracle: &Oracle,
        point: Point,
        (offset, len): (u64, u64),
        place: u64,
    ) -> bool {
        let mut lost = self.lost_syncs.borrow().clone();
        if self.sync_failing.iter().any(Cell::get) {
            lost.push(LostSync { durable: oracle.flushed(), until: Moment::MAX });
        }
        let unsynced = |write: &Write| lost.iter().any(|lost| lost.reaches(write));
        if !lost.is_empty() && oracle.may_show(point, offset, len, unsynced) {
            return true;
        }
        let rot = self.rot.borrow();
        let Some(rot) = &*rot else { return false };
        rot.ranges.iter().any(|(from, to)| {
            let (from, to) = ((*from).max(place), (*to).min(place + len));
            from < to
                && oracle.may_show(point, offset + (from - place), to - from, |write| {
                    write.issued < rot.at
                })
        })
    }
}

/// Counts of faults that can make a read fail.
#[derive(Clone, Copy, Debug)]
pub(crate) struct FaultsBefore {
    /// Wrong bits in bodies.
    pub(crate) flips: u64,
}

impl FaultsBefore {
    pub(crate) fn of(counts: &FaultCounts) -> Self {
        Self { flips: counts.of(Fault::FlippedBit) }
    }
}
