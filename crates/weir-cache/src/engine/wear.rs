//! How much the cache may be written to in a day, for disks that bear only so many writes.
//!
//! What may be written comes evenly, and at most a day's worth of it is kept for later. A cache begins with what comes
//! in an hour: if it were a day's worth, a process that is started again and again would write that much each time.

use std::time::Duration;

use tokio::time::Instant;

use super::block::RunAddress;
use super::state::{Filling, State};
use crate::format::BLOCK_LEN;

const DAY: Duration = Duration::from_secs(86_400);

/// Part of a day, as a divisor, whose worth there is at first.
const FIRST_DIVISOR: u64 = 24;

/// What may be written.
#[derive(Debug, Default)]
pub(super) struct Wear(Option<Budget>);

#[derive(Debug)]
struct Budget {
    bytes_per_day: u64,
    left: u64,
    /// Until when what comes is in `left`.
    since: Instant,
}

impl Budget {
    fn earn(&mut self, now: Instant) {
        let per_day = u128::from(self.bytes_per_day);
        let earned = now.duration_since(self.since).as_nanos() * per_day / DAY.as_nanos();
        if earned == 0 {
            return;
        }
        // The time that these bytes took, and not what is left of it.
        let took = u64::try_from(earned * DAY.as_nanos() / per_day).map(Duration::from_nanos);
        self.since = took.map_or(now, |took| self.since + took);
        let earned = u64::try_from(earned).unwrap_or(u64::MAX);
        self.left = self.left.saturating_add(earned).min(self.bytes_per_day);
    }
}

impl Wear {
    /// So many bytes a day from now on, of which so many at once; `None` for as many as come.
    pub(super) fn limit(&mut self, bytes_per_day: Option<u64>, left: Option<u64>) {
        self.0 = bytes_per_day.map(|bytes_per_day| Budget {
            bytes_per_day,
            left: left.unwrap_or(bytes_per_day / FIRST_DIVISOR).min(bytes_per_day),
            since: Instant::now(),
        });
    }

    /// Bytes that may be written now, and in a day; nothing without a limit.
    pub(super) fn left(&mut self) -> Option<(u64, u64)> {
        let budget = self.0.as_mut()?;
        budget.earn(Instant::now());
        Some((budget.left, budget.bytes_per_day))
    }

    fn take(&mut self, bytes: u64) {
        if let Some(budget) = &mut self.0 {
            budget.left = budget.left.saturating_sub(bytes);
        }
    }
}

impl State {
    /// [`State::begin_fill`] of a run of so many bytes, if they may be written now.
    pub(super) fn begin_fill_of(&mut self, address: &RunAddress, len: usize) -> Option<Filling> {
        let bytes = ((1 + len.div_ceil(BLOCK_LEN)) * BLOCK_LEN) as u64;
        let may_not = |left: u64| left < bytes && !weir_device::mutant("cache_wear_not_limited");
        if self.wear.left().is_some_and(|(left, _)| may_not(left)) {
            self.counts.worn += 1;
            return None;
        }
        let filling = self.begin_fill(address)?;
        self.wear.take(bytes);
        Some(filling)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn what_may_be_written_comes_evenly_and_is_kept_for_a_day() {
        let mut wear = Wear::default();
        assert_eq!(wear.left(), None);
        wear.limit(Some(2400), None);
        assert_eq!(wear.left(), Some((100, 2400)), "an hour's worth at first");
        wear.take(100);
        // In steps that each come to less than a byte.
        for _ in 0..3600 {
            tokio::time::advance(Duration::from_secs(1)).await;
            let _ = wear.left();
        }
        let (left, _) = wear.left().unwrap();
        assert!((99..=100).contains(&left), "{left}");
        tokio::time::advance(10 * DAY).await;
        assert_eq!(wear.left(), Some((2400, 2400)), "no more than a day's worth");
        wear.take(5000);
        assert_eq!(wear.left(), Some((0, 2400)));
        wear.limit(Some(2400), Some(7));
        assert_eq!(wear.left(), Some((7, 2400)), "what another cache had left");
        wear.limit(None, None);
        assert_eq!(wear.left(), None);
    }
}
