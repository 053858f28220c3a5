//! How much a volume is written to: a burst that its journal takes in, or a load that goes on and that uploads follow.

use std::time::Duration;

use tokio::time::Instant;

use crate::volume::pressure::CALM_UP_TO_PERCENT;

/// Share of the journal, in percent, from which uploads follow a load that goes on, and from which its fill presses.
/// Below it, a load is a burst until its data gets old: with headers, a quarter of the journal in writes of 4 KiB takes
/// up half of it.
const FOLLOW_LOAD_FROM_PERCENT: u64 = CALM_UP_TO_PERCENT;

/// Share of the journal, in percent, from which uploads follow any load: what is left is for writers meanwhile.
const FOLLOW_FROM_PERCENT: u64 = 60;

/// Seconds in a row with more than a light load after which a load goes on; the first may have begun before it. Where
/// the disk writes a fifth of the journal per second, bursts that fit it have ended before.
const GOES_ON_AFTER_SECONDS: u32 = 3;

/// Part of the journal that a light load writes per second at most. Large writes take minutes to fill the journal then.
const LIGHT_LOAD_PART: u64 = 160;

const SECOND: Duration = Duration::from_secs(1);

/// Whether a load is light again is said of its mean over so long: file systems write every few seconds.
const LIGHT_LOAD_TIME: Duration = Duration::from_secs(10);

/// The load of a volume, and whether uploads follow it: closed batches are sent while memory has their bytes. What it
/// does not have is read from the journal's disk, a third transfer of every byte, and a load that goes on gains nothing
/// from waiting.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Load {
    second: Span,
    /// Seconds in a row that were not light, up to now.
    heavy_seconds: u32,
    long: Span,
    /// The mean of the last [`LIGHT_LOAD_TIME`] was light.
    is_light: bool,
    is_followed: bool,
}

/// Some time of a load.
#[derive(Clone, Copy, Debug)]
struct Span {
    began: Instant,
    /// Bytes that had been written by then.
    bytes: u64,
}

impl Span {
    fn new(bytes: u64) -> Self {
        Self { began: Instant::now(), bytes }
    }

    /// How long it took and the bytes per second in it, once so much time has passed; then the next span begins.
    fn end_after(&mut self, length: Duration, bytes: u64) -> Option<(Duration, u64)> {
        let elapsed = self.began.elapsed();
        if elapsed < length {
            return None;
        }
        let written = u128::from(bytes.saturating_sub(self.bytes));
        *self = Self::new(bytes);
        let rate = u64::try_from(written * 1000 / elapsed.as_millis()).unwrap_or(u64::MAX);
        Some((elapsed, rate))
    }
}

impl Load {
    /// One of which nothing is known. `bytes` were written to the volume so far.
    pub(crate) fn new(bytes: u64) -> Self {
        let (second, long) = (Span::new(bytes), Span::new(bytes));
        Self { second, heavy_seconds: 0, long, is_light: false, is_followed: false }
    }

    /// Looks at it again: so many bytes were written so far, and the journal may hold so many.
    pub(crate) fn look(&mut self, bytes: u64, journal_bytes: u64) {
        let is_light = |rate: u64| rate <= journal_bytes / LIGHT_LOAD_PART;
        if let Some((took, rate)) = self.second.end_after(SECOND, bytes) {
            // Nobody looks at a volume that nobody uses: in a longer span there was a pause.
            let goes_on = !is_light(rate) && took < 2 * SECOND;
            self.heavy_seconds = if goes_on { self.heavy_seconds + 1 } else { 0 };
        }
        if let Some((_, rate)) = self.long.end_after(LIGHT_LOAD_TIME, bytes) {
            self.is_light = is_light(rate);
        }
    }

    /// Whether it has become light since uploads follow it, and still is.
    pub(crate) fn is_light(&self) -> bool {
        self.is_light && self.heavy_seconds == 0
    }

    /// Whether uploads follow it.
    pub(crate) fn is_followed(&self) -> bool {
        self.is_followed
    }

    /// From a part of the journal on uploads follow, until clients rest; a load that goes on also from when the age of
    /// its data presses (`is_old`), since it would settle there. An empty journal alone is no end of it: where uploads
    /// keep up with a load that goes on, it is empty now and then. Nor are clients of other volumes a reason to go on.
    pub(crate) fn follow(&mut self, percent_full: u64, is_old: bool, rests: bool) {
        let goes_on = self.heavy_seconds >= GOES_ON_AFTER_SECONDS
            && !weir_device::mutant("load_that_goes_on_is_a_burst");
        let begins = percent_full >= FOLLOW_FROM_PERCENT
            || goes_on && (percent_full >= FOLLOW_LOAD_FROM_PERCENT || is_old);
        if begins && !self.is_followed {
            (self.long, self.is_light) = (self.second, false);
        }
        let stays = self.is_followed && !rests && !weir_device::mutant("uploads_never_follow");
        self.is_followed = begins || stays;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const JOURNAL_BYTES: u64 = 160 << 20;

    /// Lets a second pass, in which so many MiB are written.
    async fn second(load: &mut Load, bytes: &mut u64, mib: u64) {
        tokio::time::advance(SECOND).await;
        *bytes += mib << 20;
        load.look(*bytes, JOURNAL_BYTES);
    }

    #[tokio::test(start_paused = true)]
    async fn uploads_follow_a_full_journal_and_sooner_a_load_that_goes_on() {
        let (mut load, mut bytes) = (Load::new(0), 0);
        let follows = |mut load: Load, percent_full, is_old| {
            load.follow(percent_full, is_old, false);
            load.is_followed()
        };
        assert!(!follows(load, 59, true) && follows(load, 60, false));
        for mib in [2, 2, 1, 50, 2] {
            second(&mut load, &mut bytes, mib).await;
            assert!(
                !follows(load, 59, true),
                "two seconds in a row are a burst, and one may be light"
            );
        }
        second(&mut load, &mut bytes, 2).await;
        assert!(!follows(load, 49, false) && follows(load, 50, false) && follows(load, 1, true));
        second(&mut load, &mut bytes, 0).await;
        assert!(!follows(load, 59, true), "it has ended");
        for _ in 0..5 {
            tokio::time::advance(3 * SECOND).await;
            second(&mut load, &mut bytes, 50).await;
            assert!(!follows(load, 59, true), "bursts with pauses, in which nobody looks");
        }
    }

    #[tokio::test(start_paused = true)]
    async fn uploads_follow_until_clients_rest() {
        let mut load = Load::new(0);
        load.follow(60, false, true);
        assert!(load.is_followed(), "the journal is not empty");
        load.follow(1, false, false);
        assert!(load.is_followed());
        load.follow(1, false, true);
        assert!(!load.is_followed());
    }

    #[tokio::test(start_paused = true)]
    async fn a_load_is_light_by_its_mean_since_uploads_follow() {
        let (mut load, mut bytes) = (Load::new(0), 0);
        for _ in 0..10 {
            second(&mut load, &mut bytes, 0).await;
        }
        assert!(load.is_light());
        load.follow(60, false, false);
        assert!(!load.is_light(), "that was before");
        for (mib, is_light) in [(10, true), (11, false)] {
            second(&mut load, &mut bytes, mib).await;
            for _ in 1..10 {
                second(&mut load, &mut bytes, 0).await;
            }
            assert_eq!(load.is_light(), is_light, "{mib} MiB in ten seconds");
        }
        for _ in 0..5 {
            second(&mut load, &mut bytes, 0).await;
        }
        second(&mut load, &mut bytes, 50).await;
        load.follow(1, false, true);
        load.follow(60, false, false);
        for _ in 0..10 {
            assert!(!load.is_light(), "ten seconds have not passed");
            second(&mut load, &mut bytes, 1).await;
        }
        assert!(load.is_light(), "what came before does not count");
        second(&mut load, &mut bytes, 2).await;
        assert!(!load.is_light(), "it is heavy again, whatever its mean was");
    }
}
