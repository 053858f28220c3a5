//! A limit on operations and bytes per second.
//!
//! Each of the two is a bucket that is full after a pause: so many seconds' worth, the burst, pass at once. A request
//! passes when both hold what it costs. One that costs more than the burst passes when the bucket is full, and the rest
//! is owed: the next one waits for it.
//!
//! A bucket is kept as the time at which it will be full again: it is empty where that is one burst away.
//!
//! Invariants
//!  L1. Requests pass in the order in which they came.
//!  L2. The first of those that wait looks again at the time that it was told, and whenever the settings change.

use std::cell::Cell;
use std::num::NonZeroU64;
use std::rc::Rc;
use std::task::{Context, Poll};
use std::time::Duration;

use tokio::sync::{Mutex, Notify};
use tokio::time::{Instant, sleep_until};
use weir_device::{
    Admission, Change, Device, DeviceError, DeviceInfo, ErrorKind, Event, IoHeader, Operation,
    Reply, mutant,
};

use crate::layer::Stage;
use crate::status::StageStatus;

/// The burst unless told otherwise. One percent of ten seconds.
pub const BURST_DEFAULT: Duration = Duration::from_millis(100);

/// Least burst: timers are exact to a few milliseconds, and what a late one lets pass must fit.
pub const BURST_MIN: Duration = Duration::from_millis(10);

/// Longest burst.
pub const BURST_MAX: Duration = Duration::from_secs(3600);

/// Longest time that one request can owe.
const DEBT_MAX: Duration = Duration::from_secs(365 * 24 * 3600);

/// How much may pass.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LimitSettings {
    /// Operations per second: reads, writes, zeroes, discards, and each piece of a batch.
    pub iops: Option<NonZeroU64>,
    /// Bytes per second that are read or written.
    pub bytes_per_second: Option<NonZeroU64>,
    /// After a pause, what these rates let through in this time passes at once.
    pub burst: Duration,
}

impl Default for LimitSettings {
    fn default() -> Self {
        Self { iops: None, bytes_per_second: None, burst: BURST_DEFAULT }
    }
}

impl LimitSettings {
    /// Settings from numbers of a user.
    ///
    /// # Errors
    /// [`ErrorKind::Invalid`]: a rate of zero, or a burst out of bounds.
    pub fn checked(
        iops: Option<u64>,
        bytes_per_second: Option<u64>,
        burst: Option<Duration>,
    ) -> Result<Self, DeviceError> {
        let rate = |limit: Option<u64>, what: &'static str| {
            let none = || {
                let message = format!(
                    "a limit of 0 {what} per second lets nothing through: give a larger one, or leave it away"
                );
                DeviceError::new(ErrorKind::Invalid, message)
            };
            limit.map(|limit| NonZeroU64::new(limit).ok_or_else(none)).transpose()
        };
        let (iops, bytes_per_second) =
            (rate(iops, "operations")?, rate(bytes_per_second, "bytes")?);
        let burst = burst.unwrap_or(BURST_DEFAULT);
        if !(BURST_MIN..=BURST_MAX).contains(&burst) {
            let (least, most) = (BURST_MIN.as_secs_f64(), BURST_MAX.as_secs());
            let message =
                format!("a burst of {} s is none of {least} to {most} s", burst.as_secs_f64());
            return Err(DeviceError::new(ErrorKind::Invalid, message));
        }
        Ok(Self { iops, bytes_per_second, burst })
    }

    /// Whether nothing is limited.
    #[must_use]
    pub fn is_unlimited(&self) -> bool {
        self.iops.is_none() && self.bytes_per_second.is_none()
    }
}

/// How long `amount` takes at a rate.
fn time_for(amount: u64, rate: NonZeroU64) -> Duration {
    let nanoseconds = u128::from(amount) * 1_000_000_000 / u128::from(rate.get());
    u64::try_from(nanoseconds).map_or(DEBT_MAX, |ns| Duration::from_nanos(ns).min(DEBT_MAX))
}

/// How much passes in a time at a rate.
fn amount_in(time: Duration, rate: NonZeroU64) -> u64 {
    let amount = time.as_nanos() * u128::from(rate.get()) / 1_000_000_000;
    u64::try_from(amount).unwrap_or(u64::MAX)
}

/// As much of `all` as `part` is of `whole`, of which it is at most all.
fn part_of(all: Duration, part: Duration, whole: Duration) -> Duration {
    let nanoseconds = all.as_nanos() * part.as_nanos() / whole.as_nanos().max(1);
    u64::try_from(nanoseconds).map_or(all, Duration::from_nanos).min(all)
}

/// What has passed, and who waits.
#[derive(Debug)]
pub struct Rate {
    settings: Cell<LimitSettings>,
    operations_full_at: Cell<Instant>,
    bytes_full_at: Cell<Instant>,
    /// L1: whoever has it is the first.
    turn: Mutex<()>,
    changed: Notify,
    waiting: Cell<usize>,
    delayed: Cell<u64>,
    /// Nobody waits any more, and nobody passes.
    is_shut: Cell<bool>,
}

/// One that waits.
struct Waiting<'a>(&'a Cell<usize>);

impl<'a> Waiting<'a> {
    fn new(count: &'a Cell<usize>) -> Self {
        count.set(count.get() + 1);
        Self(count)
    }
}

impl Drop for Waiting<'_> {
    fn drop(&mut self) {
        self.0.set(self.0.get() - 1);
    }
}

impl Rate {
    /// Nothing has passed yet: the burst is there.
    #[must_use]
    pub fn new(settings: LimitSettings) -> Self {
        let now = Instant::now();
        Self {
            settings: Cell::new(settings),
            operations_full_at: Cell::new(now),
            bytes_full_at: Cell::new(now),
            turn: Mutex::new(()),
            changed: Notify::new(),
            waiting: Cell::new(0),
            delayed: Cell::new(0),
            is_shut: Cell::new(false),
        }
    }

    /// What is set.
    #[must_use]
    pub fn settings(&self) -> LimitSettings {
        self.settings.get()
    }

    /// Sets other limits, at once, for those who wait already, too. What is owed stays the same amount. What was used
    /// of the burst is not owed: the same part of the new one counts as used.
    pub fn set(&self, settings: LimitSettings) {
        let old = self.settings.replace(settings);
        let (now, old_burst) = (Instant::now(), old.burst);
        for (full_at, old, new) in [
            (&self.operations_full_at, old.iops, settings.iops),
            (&self.bytes_full_at, old.bytes_per_second, settings.bytes_per_second),
        ] {
            let missing = full_at.get().saturating_duration_since(now);
            let owed = missing.saturating_sub(old_burst);
            let again = match (old, new) {
                (Some(old), Some(new)) => {
                    part_of(settings.burst, missing - owed, old_burst)
                        + time_for(amount_in(owed, old), new)
                }
                _ => Duration::ZERO,
            };
            full_at.set(now + again);
        }
        // L2. It is kept for the first one that waits, if there is none yet.
        if !mutant("limit_loses_wakeup") {
            self.changed.notify_one();
        }
    }

    /// Requests that wait now.
    #[must_use]
    pub fn waiting(&self) -> usize {
        self.waiting.get()
    }

    /// Requests that have waited.
    #[must_use]
    pub fn delayed(&self) -> u64 {
        self.delayed.get()
    }

    /// Takes what a request costs, or says when to look again.
    fn take(&self, operations: u64, bytes: u64) -> Result<(), Instant> {
        let (settings, now) = (self.settings.get(), Instant::now());
        let buckets = [
            (&self.operations_full_at, settings.iops, operations),
            (&self.bytes_full_at, settings.bytes_per_second, bytes),
        ];
        for (full_at, rate, cost) in buckets {
            let Some(rate) = rate.filter(|_| cost > 0) else { continue };
            let full_at_most = now + settings.burst;
            let full_then = full_at.get().max(now) + time_for(cost, rate).min(settings.burst);
            if full_then > full_at_most {
                return Err(now + (full_then - full_at_most));
            }
        }
        for (full_at, rate, cost) in buckets {
            if let Some(rate) = rate {
                full_at.set(full_at.get().max(now) + time_for(cost, rate));
            }
        }
        Ok(())
    }

    /// Those who wait go on at once, and everybody who comes after them.
    fn shut(&self) {
        self.is_shut.set(true);
        self.changed.notify_one();
    }

    /// Waits until a request may pass.
    pub async fn pass(&self, operations: u64, bytes: u64) {
        if operations == 0 && bytes == 0 {
            return;
        }
        let is_first = self.waiting.get() == 0 || mutant("limit_lets_small_overtake");
        if is_first && self.take(operations, bytes).is_ok() {
            return;
        }
        self.delayed.set(self.delayed.get().wrapping_add(1));
        let _waiting = Waiting::new(&self.waiting);
        let _turn = self.turn.lock().await;
        while !self.is_shut.get()
            && let Err(until) = self.take(operations, bytes)
        {
            tokio::select! {
                biased;
                () = self.changed.notified() => {}
                () = sleep_until(until) => {}
            }
        }
    }
}

/// Operations and bytes that an operation counts as. A flush is never held up, and what gives bytes up costs no
/// bandwidth.
fn cost(operation: &Operation) -> (u64, u64) {
    match operation {
        Operation::Read { .. } | Operation::Write { .. } => (1, operation.bytes()),
        Operation::WriteZeroes { .. } | Operation::Discard { .. } => (1, 0),
        Operation::Batch { segments, .. } => {
            let data = |change: &Change| match change {
                Change::Data(data) => data.len() as u64,
                Change::Zeroes(_) | Change::Discard(_) => 0,
            };
            let bytes = segments.iter().map(|segment| data(&segment.change)).sum();
            (segments.len() as u64, bytes)
        }
        Operation::Flush(_) | Operation::Extents { .. } => (0, 0),
    }
}

/// Holds the operations of clients up. What comes from inside the process, such as a copier, passes: its pace is set
/// elsewhere.
#[derive(Debug)]
pub struct Limit<D> {
    below: D,
    rate: Rc<Rate>,
}

impl<D: Device> Limit<D> {
    /// A limit over a device.
    #[must_use]
    pub fn new(below: D, rate: Rc<Rate>) -> Self {
        Self { below, rate }
    }
}

impl<D: Device> Stage for Limit<D> {
    fn status(&self) -> StageStatus {
        StageStatus::Limit {
            settings: self.rate.settings(),
            waiting: self.rate.waiting() as u64,
            delayed: self.rate.delayed(),
        }
    }

    fn shut(&self) {
        self.rate.shut();
    }
}

impl<D: Device> Device for Limit<D> {
    fn info(&self) -> DeviceInfo {
        self.below.info()
    }

    async fn call(&self, io: IoHeader, operation: Operation) -> Result<Reply, DeviceError> {
        if io.admission != Admission::Internal {
            let (operations, bytes) = cost(&operation);
            self.rate.pass(operations, bytes).await;
            if self.rate.is_shut.get() {
                return Err(DeviceError::new(ErrorKind::Unavailable, "the volume is closed"));
            }
        }
        self.below.call(io, operation).await
    }

    fn poll_event(&self, cx: &mut Context<'_>) -> Poll<Event> {
        self.below.poll_event(cx)
    }
}

#[cfg(test)]
mod tests;
