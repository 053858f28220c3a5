//! Which errors have a reason: what was done to store, disk and objects, and how far each of it reaches.

use std::time::Duration;

use tokio::time::Instant;
use weir_device::{DeviceError, ErrorKind};
use weir_log::limits::DAMAGED_ATTEMPTS_MAX;
use weir_store::Fault;

use crate::harm::FaultsBefore;
use crate::oracle::{Oracle, Point};
use crate::world::World;

/// How long a fetch that a read joins may have been under way, for the counts of faults: five attempts of two slow
/// GETs.
const JOINED_FETCH_AGE_MAX: Duration = Duration::from_secs(10);

/// Shortest time for which any verb tries again what the store refuses.
pub(crate) const VERB_PATIENCE: Duration = Duration::from_secs(30);

impl World {
    /// Whether the store could not be reached for most of the time that a request is tried again: only then may it be
    /// given up. One that had half of it to succeed in should have.
    pub(crate) fn store_was_away(&self, patience: Duration) -> bool {
        let from = Instant::now().checked_sub(patience);
        from.is_some_and(|from| self.outages.borrow().reachable_since(from) <= patience / 2)
    }

    /// The same for what a process asked for that may have been stopped itself.
    pub(crate) fn host_was_away(&self, host: usize, patience: Duration) -> bool {
        let Some(from) = Instant::now().checked_sub(patience) else { return false };
        let reachable = self.outages.borrow().reachable_since(from);
        let stopped = patience.saturating_sub(self.stops[host].borrow().reachable_since(from));
        reachable.saturating_sub(stopped) <= patience / 2
    }

    /// Whether a rotted byte may hide how much a journal holds.
    pub(crate) fn header_rotted(&self) -> bool {
        self.harm.rot.borrow().as_ref().is_some_and(|rot| rot.header)
    }

    /// Whether the store was out of reach at some moment since `from`.
    pub(crate) fn outage_since(&self, from: Instant) -> bool {
        let outages = self.outages.borrow();
        outages.since.is_some() || outages.over.iter().any(|(_, end)| *end >= from)
    }

    /// Whether the process of a host was stopped at some moment since `from`: clients stop with it here, and the server
    /// runs out of patience with them.
    pub(crate) fn stopped_since(&self, host: usize, from: Instant) -> bool {
        let stops = self.stops[host].borrow();
        stops.since.is_some() || stops.over.iter().any(|(_, end)| *end >= from)
    }

    /// Whether a PUT may land late, which holds up or fences who comes after it.
    pub(crate) fn has_late_puts(&self) -> bool {
        self.faults.counts().of(Fault::LatePutQueued) > 0
    }

    /// Whether what began at `from` may have met a damaged object that is whole again by now: of two openings that are
    /// refused for it, the judgement of the first heals it before that of the second.
    pub(crate) fn excuses_healed(&self, from: Instant, kind: ErrorKind) -> bool {
        let healed = self.harm.object_healed.get().is_some_and(|at| at >= from);
        healed && matches!(kind, ErrorKind::Corrupt | ErrorKind::NotFound)
    }

    /// Whether what works on the store alone may fail like this.
    pub(crate) fn excuses_store(&self, kind: ErrorKind) -> bool {
        let damaged = || self.damaged.borrow().is_some();
        match kind {
            ErrorKind::Unavailable => self.store_was_away(VERB_PATIENCE),
            ErrorKind::Fenced => self.has_late_puts(),
            ErrorKind::Corrupt => damaged() || self.many_flips(),
            ErrorKind::NotFound => damaged(),
            _ => false,
        }
    }

    /// Whether objects may be left that nobody deletes: a PUT that lands after the deletion of its object is one, and
    /// where a snapshot could not be read nothing is deleted, and what should have been is forgotten.
    pub(crate) fn may_have_orphans(&self) -> bool {
        let late = self.faults.counts().of(Fault::LatePutLanded) > 0;
        late || self.harm.object_damaged.get()
    }

    /// A bit may have flipped each time that something was fetched.
    pub(crate) fn many_flips(&self) -> bool {
        self.faults.counts().of(Fault::FlippedBit) >= u64::from(DAMAGED_ATTEMPTS_MAX)
    }

    /// Faults so far, for a read that begins now. A fetch that it joins may have begun a while ago.
    pub(crate) fn faults_before_read(&self) -> FaultsBefore {
        let (now, counts) = (Instant::now(), self.faults.counts());
        let mut seen = self.faults_seen.borrow_mut();
        while seen.len() > 1 && seen[1].0 + JOINED_FETCH_AGE_MAX < now {
            seen.pop_front();
        }
        if seen.back().is_none_or(|(at, _)| *at < now) {
            seen.push_back((now, FaultsBefore::of(&counts)));
        }
        seen.front().map_or_else(|| FaultsBefore::of(&counts), |(_, before)| *before)
    }

    /// Whether a read of a range may fail with `error`, after what was done to disk and store.
    pub(crate) fn excuses_read(&self, read: &FailedRead, error: &DeviceError) -> bool {
        match error.kind() {
            ErrorKind::Corrupt => {
                let now = FaultsBefore::of(&self.faults.counts());
                let flips_min = u64::from(DAMAGED_ATTEMPTS_MAX);
                let range = (read.offset, read.len);
                self.is_damaged(range)
                    || self.is_lost(&self.oracle.borrow(), read.point, range)
                    || now.flips >= read.faults_before.flips + flips_min
            }
            // The fetch that it joined may be older than the read, but no older than the deadline of both.
            ErrorKind::Unavailable => {
                self.harm.reads_fail[read.host].get()
                    || self.host_was_away(read.host, read.deadline)
            }
            _ => false,
        }
    }

    /// Whether an object that held bytes of a range of the oracle is damaged or hidden.
    fn is_damaged(&self, (offset, len): (u64, u64)) -> bool {
        let start = self.profile.islands.place(offset);
        let end = start + len;
        let damaged = self.damaged.borrow();
        let hit = |(from, to): &(u64, u64)| *from < end && start < *to;
        damaged.as_ref().is_some_and(|(_, ranges)| ranges.iter().any(hit))
    }

    /// Whether the disk may have lost bytes of a range, of what `oracle` says may show there.
    pub(crate) fn is_lost(&self, oracle: &Oracle, point: Point, range: (u64, u64)) -> bool {
        let place = self.profile.islands.place(range.0);
        self.harm.reaches(oracle, point, range, place)
    }
}

/// A read that failed, and what was known when it began.
pub(crate) struct FailedRead {
    /// As of when writes are certainly applied.
    pub(crate) point: Point,
    pub(crate) faults_before: FaultsBefore,
    pub(crate) offset: u64,
    pub(crate) len: u64,
    pub(crate) deadline: Duration,
    pub(crate) host: usize,
}
