//! What happened in a run: counters for the table, the last events for a failure, a hash for the determinism check.

use std::collections::{BTreeMap, VecDeque};
use std::fmt;
use std::sync::{Mutex, PoisonError};

use tokio::time::Instant;

use crate::dice::mix;

/// Events kept for the message of a failure.
const KEPT_MAX: usize = 80;

/// An event: what, and three numbers that mean what the event's name says.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Event {
    at_us: u64,
    what: &'static str,
    numbers: [u64; 3],
}

impl fmt::Display for Event {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (seconds, micros) = (self.at_us / 1_000_000, self.at_us % 1_000_000);
        write!(f, "{seconds:6}.{micros:06} {:<32}", self.what)?;
        self.numbers.iter().try_for_each(|number| write!(f, " {number:>9}"))
    }
}

/// The name of a pair. Those who count one are few, so that all names ever made are kept.
pub(crate) fn pair(one: &'static str, other: &'static str) -> &'static str {
    type Names = Mutex<BTreeMap<(&'static str, &'static str), &'static str>>;
    static NAMES: Names = Mutex::new(BTreeMap::new());
    let mut names = NAMES.lock().unwrap_or_else(PoisonError::into_inner);
    names.entry((one, other)).or_insert_with(|| format!("pair: {one} x {other}").leak())
}

/// Collects the events of one seed.
pub(crate) struct Events {
    started: Instant,
    kept: VecDeque<Event>,
    hash: u64,
    pub(crate) counts: BTreeMap<&'static str, u64>,
}

impl Events {
    pub(crate) fn new() -> Self {
        Self {
            started: Instant::now(),
            kept: VecDeque::with_capacity(KEPT_MAX),
            hash: 0,
            counts: BTreeMap::new(),
        }
    }

    /// Notes an event and counts it.
    pub(crate) fn note(&mut self, what: &'static str, numbers: [u64; 3]) {
        self.count(what, 1);
        self.detail(what, numbers);
    }

    /// Notes an event without counting it.
    pub(crate) fn detail(&mut self, what: &'static str, numbers: [u64; 3]) {
        let elapsed = self.started.elapsed();
        let at_us = u64::try_from(elapsed.as_micros()).expect("short runs");
        tracing::debug!(target: "weir_sim", at_us, ?numbers, "{what}");
        let step = |hash: u64, byte| hash * 31 % 0xffff_fffb + u64::from(byte);
        let name = what.bytes().fold(0, step);
        for number in [at_us, name].into_iter().chain(numbers) {
            self.hash = mix(self.hash ^ number).wrapping_add(0x9e37_79b9_7f4a_7c15);
        }
        if self.kept.len() == KEPT_MAX {
            self.kept.pop_front();
        }
        self.kept.push_back(Event { at_us, what, numbers });
    }

    pub(crate) fn count(&mut self, what: &'static str, by: u64) {
        if by > 0 {
            *self.counts.entry(what).or_default() += by;
        }
    }

    /// Counts that two things fell together.
    pub(crate) fn count_pair(&mut self, one: &'static str, other: &'static str) {
        self.count(pair(one, other), 1);
    }

    /// A number that differs when anything noted differs, its time included.
    pub(crate) fn hash(&self) -> u64 {
        self.counts.iter().fold(self.hash, |hash, (what, count)| {
            mix(hash ^ *count ^ u64::try_from(what.len()).expect("short names"))
        })
    }

    /// The last events, one per line.
    pub(crate) fn tail(&self) -> String {
        self.kept.iter().map(|event| format!("  {event}\n")).collect()
    }
}
