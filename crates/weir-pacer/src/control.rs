//! The law of the pacer, without clocks and threads: samples and asks in, verdicts out (vStore III-B, equations 2
//! to 4).
//!
//! Time is cut into windows. At the end of a window that had clients the rate moves towards what keeps their requests
//! at the target: `s = (1 - gamma) s + gamma (M / M_t) s`, where M is the target and M_t the average of what they saw,
//! both as multiples of the baseline. (Read literally, the average of the paper runs over targets; it can only be the
//! observed latency.) A window may use `u = s tau - P`, where P is what clients have on their way.

use std::time::Duration;

use crate::baseline::Baseline;
use crate::limits::{
    BETWEEN_PAUSES, GAMMA, PAUSE_WINDOWS_MAX, PAUSED_AT_FIRST, PAUSED_ONE_IN,
    PAUSED_ONE_IN_AT_FIRST, PAUSES_OF_REST, PAUSES_REMEMBERED, RATE_MAX, RATE_MIN, REST, REST_MIN,
    SAMPLES_MIN, SHARE_MIN, SLACK, SLACK_OF_PRESSURE, SMOOTHING, SPIKE, STANDS_STILL, WARM_UP,
    WINDOW,
};
use crate::{Class, Sample, Seen, mutant};

/// Whether an ask may go.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Verdict {
    /// It may, and is taken off what its class has.
    Granted,
    /// It may, and costs its class nothing: nobody is there to feel it, or clients wait for it.
    Free,
    /// Not before this moment; then ask again.
    NotBefore(Duration),
}

/// What clients felt, and what asked, since the rate was moved last.
#[derive(Clone, Copy, Debug, Default)]
struct Found {
    /// Sum of times, and of the baselines of the same requests, in seconds.
    took: f64,
    usual: f64,
    samples: u32,
    /// Greatest pressure of those that asked.
    pressure: f64,
    /// Somebody had to wait, so that the rate is what bounds the work.
    bounded: bool,
}

/// What happened in a window so far.
#[derive(Debug, Default)]
struct Window {
    number: u64,
    /// Clients have it alone.
    paused: bool,
    /// Requests without a baseline.
    unknown: u32,
    /// Requests with one.
    known: u32,
    /// The greatest pressure of each class that asked.
    asked: [Option<f64>; Class::COUNT],
}

impl Window {
    /// The share of each class in the next budget: all that asked have one, and the more they are pressed the larger.
    fn shares(&self) -> [f64; Class::COUNT] {
        let least = if mutant("unpressed_class_starves") { 1e-9 } else { SHARE_MIN };
        let weights = self.asked.map(|asked| asked.map_or(0.0, |pressure| least + pressure));
        let sum: f64 = weights.iter().sum();
        weights.map(|weight| if sum > 0.0 { weight / sum } else { 0.0 })
    }

    fn pressure(&self) -> f64 {
        self.asked.iter().flatten().copied().fold(0.0, f64::max)
    }
}

/// The state of the law. Moments are durations since any fixed moment.
#[derive(Debug)]
pub(crate) struct Control {
    baseline: Baseline,
    window: Window,
    found: Found,
    /// Bytes per second.
    rate: f64,
    /// M_t: what clients see, as a multiple of the baseline.
    seen: f64,
    /// Bytes that each class may still move in this window; below zero what is to be saved first.
    credit: [f64; Class::COUNT],
    /// Requests of clients on their way, and their bytes.
    requests: usize,
    pending: u64,
    last_client: Option<Duration>,
    /// The longest pause of clients that are there, in this period and in the one before; and when this one began.
    longest_pauses: [Duration; 2],
    pauses_since: Duration,
    last_pause: u64,
    /// First of the paused windows that follow each other.
    paused_from: u64,
    /// Requests that the baseline has had of these.
    paused_samples: u32,
    /// Windows that are still to be paused for a client that came back.
    pauses_due: u64,
    /// Before this window a paused one says nothing.
    warm_from: u64,
    spikes: u32,
}

impl Default for Control {
    fn default() -> Self {
        Self {
            baseline: Baseline::default(),
            window: Window::default(),
            found: Found::default(),
            rate: RATE_MIN,
            seen: 1.0,
            credit: [0.0; Class::COUNT],
            requests: 0,
            pending: 0,
            last_client: None,
            longest_pauses: [Duration::ZERO; 2],
            pauses_since: Duration::ZERO,
            last_pause: 0,
            paused_from: 0,
            paused_samples: 0,
            pauses_due: 0,
            warm_from: 0,
            spikes: 0,
        }
    }
}

#[allow(clippy::cast_precision_loss, reason = "bytes below 2^53")]
fn to_f64(bytes: u64) -> f64 {
    bytes as f64
}

fn window_of(now: Duration) -> u64 {
    u64::try_from(now.as_nanos() / WINDOW.as_nanos()).unwrap_or(u64::MAX)
}

fn begin_of(number: u64) -> Duration {
    let nanoseconds = u64::try_from(WINDOW.as_nanos()).unwrap_or(u64::MAX);
    Duration::from_nanos(nanoseconds.saturating_mul(number))
}

/// How long clients' requests may take under that pressure, as a multiple of the baseline.
fn target(pressure: f64) -> f64 {
    1.0 + SLACK + SLACK_OF_PRESSURE * pressure
}

impl Control {
    /// A client's request begins.
    pub(crate) fn on_begin(&mut self, now: Duration, bytes: u64) {
        self.advance(now);
        if self.is_free(now) {
            // The rate of other times says nothing of this client.
            self.rate = RATE_MIN;
            self.seen = 1.0;
            self.found = Found::default();
            self.credit = [0.0; Class::COUNT];
            self.pauses_due = PAUSED_AT_FIRST;
            self.warm_from = self.window.number + WARM_UP;
            self.pause(false);
        }
        self.note_pause(now);
        self.requests += 1;
        self.pending += bytes;
        self.last_client = Some(now);
    }

    /// A request begins: how long had there been none?
    fn note_pause(&mut self, now: Duration) {
        if now.saturating_sub(self.pauses_since) >= PAUSES_REMEMBERED {
            self.longest_pauses = [Duration::ZERO, self.longest_pauses[0]];
            self.pauses_since = now;
        }
        let pause = self.last_client.map(|last| now.saturating_sub(last));
        // One that is longer is the end of a client, and not a pause of it.
        if let Some(pause) = pause.filter(|pause| self.requests == 0 && *pause < REST) {
            self.longest_pauses[0] = self.longest_pauses[0].max(pause);
        }
    }

    /// Requests of clients on their way.
    pub(crate) fn requests(&self) -> usize {
        self.requests
    }

    /// A client's request ended.
    pub(crate) fn on_end(&mut self, now: Duration, sample: &Sample) {
        self.advance(now);
        self.on_abandoned(sample.bytes);
        self.last_client = Some(now);
        if self.window.paused {
            // What began before the pause had company.
            let had_company = now.saturating_sub(sample.took) < begin_of(self.paused_from);
            let is_alone = !had_company || mutant("baseline_takes_what_had_company");
            if is_alone && self.window.number >= self.warm_from {
                self.baseline.add(sample);
                self.paused_samples += 1;
            }
            return;
        }
        match self.baseline.of(sample) {
            Some(usual) => {
                self.found.took += sample.took.as_secs_f64();
                self.found.usual += usual;
                self.found.samples += 1;
                self.window.known += 1;
            }
            None => self.window.unknown += 1,
        }
    }

    /// A client's request ended without a time that means anything.
    pub(crate) fn on_abandoned(&mut self, bytes: u64) {
        self.requests = self.requests.saturating_sub(1);
        self.pending = self.pending.saturating_sub(bytes);
    }

    /// Asks for leave for so many bytes. Pressure is 0 to 1; at 1 clients wait for this work, and it may go.
    pub(crate) fn ask(
        &mut self,
        now: Duration,
        class: Class,
        bytes: u64,
        pressure: f64,
    ) -> Verdict {
        self.advance(now);
        // What is not regulated has no part of the budget, and is no reason for others to take more from clients.
        if pressure >= 1.0 && !mutant("awaited_work_steers") {
            return Verdict::Free;
        }
        let asked = &mut self.window.asked[class.index()];
        *asked = Some(asked.map_or(pressure, |before| before.max(pressure)));
        self.found.pressure = self.found.pressure.max(pressure);
        if self.is_free(now) {
            return Verdict::Free;
        }
        let credit = &mut self.credit[class.index()];
        if !self.window.paused && *credit > 0.0 {
            *credit -= to_f64(bytes);
            return Verdict::Granted;
        }
        self.found.bounded |= !self.window.paused;
        Verdict::NotBefore(begin_of(self.window.number + 1))
    }

    /// Leave that was granted and not used comes back.
    pub(crate) fn give_back(&mut self, class: Class, bytes: u64) {
        self.credit[class.index()] += to_f64(bytes);
    }

    /// No client for a while: nobody feels what goes on. One that waits for its answer is there, unless the disk stands
    /// still.
    fn is_free(&self, now: Duration) -> bool {
        let is_waiting = self.requests > 0 && !mutant("waiting_client_counts_as_none");
        let longest = self.longest_pauses[0].max(self.longest_pauses[1]);
        let rest = (PAUSES_OF_REST * longest).clamp(REST_MIN, REST);
        let rest = if is_waiting { STANDS_STILL } else { rest };
        self.last_client.is_none_or(|last| now.saturating_sub(last) >= rest)
    }

    /// `goes_on`: the window before was paused as well. What lies between two that were looked at had no leave.
    fn pause(&mut self, goes_on: bool) {
        if !goes_on {
            (self.paused_from, self.paused_samples) = (self.window.number, 0);
        }
        self.window.paused = true;
        self.last_pause = self.window.number;
        self.pauses_due = self.pauses_due.saturating_sub(1);
    }

    /// Ends windows that are over.
    fn advance(&mut self, now: Duration) {
        let number = window_of(now);
        if number <= self.window.number {
            return;
        }
        let ended = std::mem::replace(&mut self.window, Window { number, ..Window::default() });
        if ended.paused {
            self.baseline.end_window();
        } else {
            self.regulate();
        }
        self.share_out(&ended, number - ended.number);
        let since = number - self.last_pause;
        let is_early = number < self.warm_from + PAUSED_ONE_IN;
        let is_turn = since >= if is_early { PAUSED_ONE_IN_AT_FIRST } else { PAUSED_ONE_IN };
        let is_unknown = ended.unknown > ended.known && since >= BETWEEN_PAUSES;
        // Requests that take longer than a window are waited for, or they would never have a baseline.
        let is_awaited = ended.paused
            && self.paused_samples == 0
            && self.requests > 0
            && number - self.paused_from < PAUSE_WINDOWS_MAX;
        if !self.is_free(now) && (self.pauses_due > 0 || is_turn || is_unknown || is_awaited) {
            self.pause(ended.paused);
        }
    }

    /// Gives every class its part of what the next window may move. A debt is paid window by window; what was not used
    /// is not kept, since clients come in bursts.
    fn share_out(&mut self, ended: &Window, windows: u64) {
        let pending = to_f64(self.pending) * (1.0 - ended.pressure());
        let tau = WINDOW.as_secs_f64();
        let budget = (self.rate * tau - pending).max(RATE_MIN * tau);
        for (credit, share) in self.credit.iter_mut().zip(ended.shares()) {
            let part = budget * share;
            let most = if mutant("unused_credit_is_kept") { f64::MAX } else { part };
            *credit = (*credit + part * to_f64(windows)).min(most);
        }
    }

    /// Moves the rate by what clients felt, once that is more than chance.
    fn regulate(&mut self) {
        if self.found.samples < SAMPLES_MIN || self.found.usual <= 0.0 {
            return;
        }
        let found = std::mem::take(&mut self.found);
        let seen = found.took / found.usual;
        self.seen += SMOOTHING * (seen - self.seen);
        let target = target(found.pressure);
        // Faster than the baseline is chance: it is no reason to grow faster.
        let factor = 1.0 - GAMMA + GAMMA * (target / self.seen.max(1.0));
        if factor < 1.0 || found.bounded {
            self.rate *= factor;
        }
        let calm = if mutant("spikes_are_never_forgotten") { self.spikes } else { 0 };
        self.spikes = if seen > SPIKE * target { self.spikes + 1 } else { calm };
        if self.spikes >= 2 {
            self.rate /= 2.0;
        }
        self.rate = self.rate.clamp(RATE_MIN, RATE_MAX);
    }

    /// What there is to be seen of it.
    pub(crate) fn seen(&self, now: Duration) -> Seen {
        Seen {
            bytes_per_second: (!self.is_free(now)).then_some(self.rate),
            latency: self.seen,
            target: target(self.window.pressure()),
        }
    }
}

#[cfg(test)]
mod tests;
