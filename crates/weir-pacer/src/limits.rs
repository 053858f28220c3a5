//! Every constant of the pacer.

use std::time::Duration;

/// Length of a window: the budget of background work is counted out window by window (tau in vStore, III-B).
pub(crate) const WINDOW: Duration = Duration::from_millis(20);

/// One window in so many belongs to clients alone. What they see in it is the baseline.
pub(crate) const PAUSED_ONE_IN: u64 = 50;

/// One in so many during the first [`PAUSED_ONE_IN`] windows after a client came back: what was learned at first is
/// soon learned anew.
pub(crate) const PAUSED_ONE_IN_AT_FIRST: u64 = 10;

/// Windows that a client has alone when it comes back after a rest: a rate is worth nothing without a baseline.
pub(crate) const PAUSED_AT_FIRST: u64 = 4;

/// Of them, those at the begin that say nothing: memory is not there yet, and CPUs and disk wake up. With them in the
/// baseline, a burst of 0.8 s took 0.7 to 0.95 of it, and uploads got 16 to 65 MiB/s instead of the lowest rate.
pub(crate) const WARM_UP: u64 = 2;

/// Windows between two pauses that are made because a baseline is missing, so that clients whose requests are of ever
/// new kinds do not stop background work.
pub(crate) const BETWEEN_PAUSES: u64 = 5;

/// Without a request of a client for so long, background work goes at full speed.
pub(crate) const REST: Duration = Duration::from_millis(300);

/// The same for a client that made no pauses lately: a burst has ended long before.
pub(crate) const REST_MIN: Duration = Duration::from_millis(60);

/// Without an answer for so long, background work goes at full speed though a request is on its way: a disk that
/// answers nobody must not hold up what could free it.
pub(crate) const STANDS_STILL: Duration = Duration::from_secs(10);

/// A client is there for so many times the longest of its pauses.
pub(crate) const PAUSES_OF_REST: u32 = 4;

/// Pauses of clients are remembered for at least so long, and at most twice as long while requests come.
pub(crate) const PAUSES_REMEMBERED: Duration = Duration::from_secs(5);

/// Windows in a row that are paused at most until a request that began in them has ended.
pub(crate) const PAUSE_WINDOWS_MAX: u64 = 10;

/// How far one window moves the rate (gamma in vStore, III-B).
pub(crate) const GAMMA: f64 = 0.2;

/// How far one window moves the average of what clients see.
pub(crate) const SMOOTHING: f64 = 0.3;

/// By how much clients' requests may take longer than the baseline while nothing presses: a share.
pub(crate) const SLACK: f64 = 0.05;

/// By how much more under the greatest pressure.
pub(crate) const SLACK_OF_PRESSURE: f64 = 8.0;

/// Times the target that two windows in a row must exceed to halve the rate at once.
pub(crate) const SPIKE: f64 = 2.0;

/// Samples of a window below which nothing follows from it.
pub(crate) const SAMPLES_MIN: u32 = 3;

/// Lowest rate in bytes per second: background work never stands still for long, and an object that is written piece by
/// piece is done long before its attempt times out.
pub(crate) const RATE_MIN: f64 = (4 << 20) as f64;

/// Highest rate that is regulated, in bytes per second.
pub(crate) const RATE_MAX: f64 = (8_u64 << 30) as f64;

/// Bytes that one operation without bytes stands for, as a deletion: it takes a disk as long as a write of so many.
pub(crate) const BYTES_PER_OPERATION: u64 = 1 << 20;

/// Weight of a new paused window in the baseline: one in so many.
pub(crate) const BASELINE_WINDOWS: f64 = 4.0;

/// The same where it is faster than the baseline: that clients are held up in a paused window has many reasons, that
/// they are fast has one.
pub(crate) const FASTER_WINDOWS: f64 = 2.0;

/// Part of the budget that a class gets which nothing presses, beside one that is pressed by 1.
pub(crate) const SHARE_MIN: f64 = 0.1;
