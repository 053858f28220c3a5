//! The pace of the collector, and the backpressure of a collector that has fallen behind on the upload of clients'
//! data. Without it the store would fill with dead objects.
//!
//! The collector takes its bandwidth from clients, so it runs slowly as long as that keeps the live share where it
//! should be. The further the live share falls, the faster it runs, and below a limit the upload of data waits for it.
//!
//! Uploads wait, not clients: the journal takes the writes meanwhile, and slows writers only as it fills. The further
//! the live share falls, the more bytes must be copied for each byte of data that goes to the store. So a share that
//! fell for a while, or that was asked for only now, costs bandwidth but never all of it.

use std::time::Duration;

use tokio::time::Instant;
use weir_pacer::Pressure;

use crate::limits::PUTS_IN_FLIGHT_MAX;

/// Points of the live share below the start of the collection at which data begins to wait for it.
const BEHIND_FROM_POINTS: u64 = 1;

/// Points further down at which a byte must be copied for each byte of data. Random overwriting at the default shares
/// needs a little less than that to stay where it is.
const POINTS_PER_COPIED_BYTE: u64 = 2;

/// Most bytes that must be copied for a byte of data, however low the share is.
const COPIED_PER_BYTE_MAX: u64 = 4;

/// Objects of the collector on their way, and sources that are read, at a time: first while it keeps up, then by the
/// points further down. At its fastest it sends as many objects at a time as clients do.
const PACES: [usize; 4] = [1, 2, 3, PUTS_IN_FLIGHT_MAX];

/// Points of the live share above that at which data waits where nothing presses the collector: the default shares end
/// a collection five points above the share that is kept.
const PRESSED_WITHIN_POINTS: u32 = 6;

/// How long an object of data waits for the collector: far longer than a copy takes over a slow link (25 MiB of
/// requests). A collector that takes longer fails for another reason, which waiting does not help.
const PATIENCE: Duration = Duration::from_secs(10);

/// Points of the live share that data waits for.
fn points_behind(live_percent: u64, kept_percent: u64) -> u64 {
    kept_percent.saturating_sub(BEHIND_FROM_POINTS).saturating_sub(live_percent)
}

/// Objects on their way, and sources that are read, at a time.
pub(super) fn pace(live_percent: u64, kept_percent: u64) -> usize {
    let points = usize::try_from(points_behind(live_percent, kept_percent)).unwrap_or(usize::MAX);
    PACES[points.min(PACES.len() - 1)]
}

/// How much presses it, in thousandths: the less lives the more, so that it settles at the share where it copies as
/// fast as clients overwrite. Fully where data is about to wait for it.
pub(super) fn pressure(live_percent: u64, kept_percent: u64) -> u32 {
    let above = live_percent.saturating_sub(kept_percent.saturating_sub(BEHIND_FROM_POINTS));
    let above = u32::try_from(above).unwrap_or(u32::MAX).min(PRESSED_WITHIN_POINTS);
    Pressure::FULL * (PRESSED_WITHIN_POINTS - above) / PRESSED_WITHIN_POINTS
}

/// How many bytes the collector has to copy before the next object of data may go to the store.
#[derive(Debug, Default)]
pub(crate) struct Backpressure {
    /// Bytes to be copied before the next object of data.
    owed: u64,
    /// Whether an object of data waits for them.
    holds: bool,
    /// Since when the object that waits has seen nothing copied.
    since: Option<Instant>,
    /// An object has waited as long as it may without a copy: none waits again before the collector has copied
    /// something.
    stands_still: bool,
}

impl Backpressure {
    /// An object of data went to the store at this live share.
    pub(super) fn on_data(&mut self, bytes: u64, live_percent: u64, kept_percent: u64) {
        let points = points_behind(live_percent, kept_percent)
            .min(COPIED_PER_BYTE_MAX * POINTS_PER_COPIED_BYTE);
        self.owed += bytes * points / POINTS_PER_COPIED_BYTE;
        // A volume that is being closed sends its data without asking whether it has to wait.
        self.holds = false;
    }

    pub(super) fn on_copied(&mut self, bytes: u64) {
        self.owed = self.owed.saturating_sub(bytes);
        // The collector has copied something: the time of what waits begins anew.
        self.since = None;
        self.stands_still = false;
    }

    /// Whether an object of data waits.
    pub(super) fn holds(&self) -> bool {
        self.holds
    }

    /// Until when the next object of data waits, at most, while so little lives.
    pub(super) fn holds_until(
        &mut self,
        now: Instant,
        live_percent: u64,
        kept_percent: u64,
    ) -> Option<Instant> {
        let since = *self.since.get_or_insert(now);
        self.stands_still |= now >= since + PATIENCE;
        let is_behind = self.owed > 0 && points_behind(live_percent, kept_percent) > 0;
        self.holds = is_behind && !self.stands_still;
        if self.holds {
            return Some(since + PATIENCE);
        }
        (self.owed, self.since) = (0, None);
        None
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MIB: u64 = 1 << 20;

    #[test]
    fn the_further_behind_the_faster() {
        assert_eq!([75, 69, 68, 67, 66, 0].map(|live| pace(live, 70)), [1, 1, 2, 3, 4, 4]);
        assert_eq!(pace(0, 0), 1);
    }

    #[test]
    fn the_less_lives_the_more_it_is_pressed() {
        let found = [100, 75, 74, 72, 70, 69, 0].map(|live| pressure(live, 70));
        assert_eq!(found, [0, 0, 166, 500, 833, 1000, 1000]);
        assert_eq!(pressure(3, 0), 500, "never collected, but asked for");
    }

    #[test]
    fn the_further_behind_the_more_is_owed() {
        let owed = |live_percent| {
            let mut backpressure = Backpressure::default();
            backpressure.on_data(8 * MIB, live_percent, 70);
            backpressure.owed / MIB
        };
        assert_eq!([75, 70, 69, 68, 67, 63, 61, 10].map(owed), [0, 0, 0, 4, 8, 24, 32, 32]);
    }

    #[test]
    fn data_waits_until_what_is_owed_is_copied() {
        let now = Instant::now();
        let mut backpressure = Backpressure::default();
        backpressure.on_data(8 * MIB, 67, 70);
        backpressure.on_data(8 * MIB, 67, 70);
        assert_eq!(backpressure.holds_until(now, 67, 70), Some(now + PATIENCE));
        backpressure.on_copied(10 * MIB);
        assert!(backpressure.holds(), "it still waits for the rest");
        let later = now + PATIENCE / 2;
        let until = backpressure.holds_until(later, 67, 70);
        assert_eq!(until, Some(later + PATIENCE), "the collector gets on");
        assert!(backpressure.holds());
        backpressure.on_copied(10 * MIB);
        assert_eq!(backpressure.holds_until(later, 67, 70), None);
        assert!(!backpressure.holds());
    }

    #[test]
    fn a_share_that_is_back_owes_nothing() {
        let now = Instant::now();
        let mut backpressure = Backpressure::default();
        backpressure.on_data(8 * MIB, 60, 70);
        assert_eq!(backpressure.holds_until(now, 69, 70), None);
        assert_eq!(backpressure.holds_until(now, 60, 70), None);
    }

    #[test]
    fn a_collector_that_does_not_get_on_is_not_waited_for() {
        let now = Instant::now();
        let mut backpressure = Backpressure::default();
        backpressure.on_data(8 * MIB, 60, 70);
        assert!(backpressure.holds_until(now, 60, 70).is_some());
        assert_eq!(backpressure.holds_until(now + PATIENCE, 60, 70), None);
        backpressure.on_data(8 * MIB, 60, 70);
        assert_eq!(backpressure.holds_until(now + PATIENCE, 60, 70), None, "nor is the next one");
        backpressure.on_copied(MIB);
        backpressure.on_data(8 * MIB, 60, 70);
        assert!(backpressure.holds_until(now + PATIENCE, 60, 70).is_some(), "until it gets on");
    }
}
