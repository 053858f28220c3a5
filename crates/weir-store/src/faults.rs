//! A store that misbehaves on purpose, from a seed.
//!
//! It sits below the checks of [`crate::Store`], where a real store is. Nothing here spawns a task: PUTs that are to
//! happen later wait in a queue, and each operation first does those that are due. Whoever looks at the store through
//! its operations cannot tell the difference, and the queue survives the crash of the simulated node that began them.

mod faulty;
mod plan;

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::fmt;
use std::ops::RangeInclusive;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use bytes::Bytes;
use tokio::time::Instant;

pub use self::plan::{Chance, FaultPlan, OperationFaults};
use crate::backend::{Backend, Put};

/// A fault that happened.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[non_exhaustive]
pub enum Fault {
    /// An operation was answered with HTTP 5xx and not done.
    ServerError,
    /// An operation was answered with HTTP 429 and not done.
    Throttled,
    /// An operation was not answered.
    TimedOut,
    /// A PUT or DELETE was done, and answered with an error.
    LostReply,
    /// A PUT was put off: its caller got an error, or went away.
    LatePutQueued,
    /// A PUT that was put off created its object.
    LatePutLanded,
    /// A PUT that was put off found its key taken.
    LatePutRefused,
    /// A GET returned too few bytes.
    ShortBody,
    /// A GET returned a wrong bit.
    FlippedBit,
    /// A GET of an object was answered "no such object".
    MissingKey,
    /// A LIST left out at least one object.
    StaleList,
    /// An operation failed in an outage.
    Outage,
    /// An operation was swallowed by silence.
    Silence,
}

impl Fault {
    /// All of them, in the order of their declaration.
    pub const ALL: [Self; 13] = [
        Self::ServerError,
        Self::Throttled,
        Self::TimedOut,
        Self::LostReply,
        Self::LatePutQueued,
        Self::LatePutLanded,
        Self::LatePutRefused,
        Self::ShortBody,
        Self::FlippedBit,
        Self::MissingKey,
        Self::StaleList,
        Self::Outage,
        Self::Silence,
    ];

    /// Its name in tables.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::ServerError => "store: server error",
            Self::Throttled => "store: throttled",
            Self::TimedOut => "store: timed out",
            Self::LostReply => "store: lost reply",
            Self::LatePutQueued => "store: late PUT queued",
            Self::LatePutLanded => "store: late PUT landed",
            Self::LatePutRefused => "store: late PUT refused",
            Self::ShortBody => "store: short body",
            Self::FlippedBit => "store: flipped bit",
            Self::MissingKey => "store: missing key",
            Self::StaleList => "store: stale list",
            Self::Outage => "store: outage",
            Self::Silence => "store: silence",
        }
    }
}

/// How often each fault happened.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct FaultCounts(BTreeMap<Fault, u64>);

impl FaultCounts {
    /// How often `fault` happened.
    #[must_use]
    pub fn of(&self, fault: Fault) -> u64 {
        self.0.get(&fault).copied().unwrap_or(0)
    }

    /// Every fault with its count, zeros included.
    pub fn iter(&self) -> impl Iterator<Item = (Fault, u64)> + '_ {
        Fault::ALL.into_iter().map(|fault| (fault, self.of(fault)))
    }
}

/// One operation in the trace.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TraceEntry {
    /// When it was answered, since the first operation.
    pub at: Duration,
    /// `put`, `get`, `list`, `delete`, or `late put`.
    pub operation: &'static str,
    /// Its key, or prefix.
    pub key: String,
    /// What came of it.
    pub outcome: String,
}

/// What a store with faults was asked for, and when. See [`Faults::watch`].
#[derive(Clone, Debug, Default)]
pub struct Watched {
    /// Keys of PUTs that reached the store, every attempt of each, when it was answered or given up.
    pub puts: Vec<(Instant, String)>,
    /// Keys whose deletion was asked for, every attempt of each, when it was sent.
    pub deletes: Vec<(Instant, String)>,
}

/// The handle on the faults of one or more stores; clones share everything.
#[derive(Clone)]
pub struct Faults {
    state: Arc<Mutex<State>>,
}

/// SplitMix64: a few lines, the same on every machine.
struct Dice(u64);

struct LatePut {
    backend: Arc<dyn Backend>,
    key: String,
    parts: Vec<Bytes>,
}

struct State {
    dice: Dice,
    plan: FaultPlan,
    counts: FaultCounts,
    /// How often in a row chance let an operation fail, by its name and key.
    in_a_row: BTreeMap<(&'static str, String), u32>,
    flipped: BTreeMap<String, u64>,
    missing: BTreeSet<String>,
    late: BTreeMap<(Instant, u64), LatePut>,
    late_number: u64,
    /// What was created lately, oldest first; kept only while lists may be stale.
    created: VecDeque<(Instant, String)>,
    costly_requests: bool,
    trace: VecDeque<TraceEntry>,
    trace_entries_max: usize,
    /// When each DELETE was sent, while somebody wants to know.
    watched: Option<Watched>,
    first: Option<Instant>,
}

impl Dice {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    fn below(&mut self, bound: u64) -> u64 {
        self.next() % bound
    }

    /// A duration in `range`, to the microsecond; no random number is taken where there is no choice.
    fn duration(&mut self, range: &RangeInclusive<Duration>) -> Duration {
        let spread = range.end().saturating_sub(*range.start());
        match u64::try_from(spread.as_micros()).unwrap_or(u64::MAX - 1) {
            0 => *range.start(),
            spread_us => *range.start() + Duration::from_micros(self.below(spread_us + 1)),
        }
    }
}

impl Faults {
    /// No faults yet; those that are switched on later follow from `seed`.
    #[must_use]
    pub fn new(seed: u64) -> Self {
        let state = State {
            dice: Dice(seed),
            plan: FaultPlan::default(),
            counts: FaultCounts::default(),
            in_a_row: BTreeMap::new(),
            flipped: BTreeMap::new(),
            missing: BTreeSet::new(),
            late: BTreeMap::new(),
            late_number: 0,
            created: VecDeque::new(),
            costly_requests: false,
            trace: VecDeque::new(),
            trace_entries_max: 0,
            watched: None,
            first: None,
        };
        Self { state: Arc::new(Mutex::new(state)) }
    }

    /// The plan in force.
    #[must_use]
    pub fn plan(&self) -> FaultPlan {
        self.lock().plan.clone()
    }

    /// Changes the plan, for operations that reach the store from now on.
    pub fn change(&self, change: impl FnOnce(&mut FaultPlan)) {
        change(&mut self.lock().plan);
    }

    /// Ends all faults that come by chance, outage and silence. Damage to keys and late PUTs stay.
    pub fn calm(&self) {
        self.change(|plan| *plan = FaultPlan::default());
    }

    /// What happened so far.
    #[must_use]
    pub fn counts(&self) -> FaultCounts {
        self.lock().counts.clone()
    }

    /// Damages the object `key` where it lies: every read of the byte at `offset` returns a wrong bit.
    pub fn flip_bit(&self, key: &str, offset: u64) {
        self.lock().flipped.insert(key.to_owned(), offset);
    }

    /// Hides the object `key` from reads. Listings still show it, and its key stays taken.
    pub fn hide(&self, key: &str) {
        self.lock().missing.insert(key.to_owned());
    }

    /// Takes back [`Faults::flip_bit`] and [`Faults::hide`].
    pub fn heal(&self, key: &str) {
        let mut state = self.lock();
        state.flipped.remove(key);
        state.missing.remove(key);
    }

    /// Whether a request costs more than bytes, as over a network, whatever the store says. It counts for what is
    /// opened from now on.
    pub fn let_requests_cost(&self, costly: bool) {
        self.lock().costly_requests = costly;
    }

    /// How many PUTs are still to happen.
    #[must_use]
    pub fn late_puts(&self) -> usize {
        self.lock().late.len()
    }

    /// Makes all late PUTs happen now, in their order.
    pub async fn land_late_puts(&self) {
        self.land(None).await;
    }

    /// Keeps the last `entries_max` operations for [`Faults::trace`].
    pub fn keep_trace(&self, entries_max: usize) {
        self.lock().trace_entries_max = entries_max;
    }

    /// The last operations, oldest first.
    #[must_use]
    pub fn trace(&self) -> Vec<TraceEntry> {
        self.lock().trace.iter().cloned().collect()
    }

    /// Keeps what is asked to be stored and deleted from now on, for [`Faults::take_watched`].
    pub fn watch(&self) {
        self.lock().watched.get_or_insert_default();
    }

    /// What was asked for since the last call.
    #[must_use]
    pub fn take_watched(&self) -> Watched {
        self.lock().watched.as_mut().map(std::mem::take).unwrap_or_default()
    }

    /// A backend that misbehaves as this handle says.
    pub(crate) fn wrap(&self, url: Arc<str>, inner: Arc<dyn Backend>) -> Arc<dyn Backend> {
        Arc::new(faulty::Faulty::new(url, inner, self.clone()))
    }

    /// A panic elsewhere must not hide its own message behind a poisoned lock.
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Does the late PUTs that are due at `now`; all of them, if `None`.
    async fn land(&self, now: Option<Instant>) {
        loop {
            let next = self.lock().next_late(now);
            let Some(LatePut { backend, key, parts }) = next else { return };
            let put = backend.put_create(&key, parts).await;
            let mut state = self.lock();
            match put {
                Ok(Put::Created) => {
                    state.count(Fault::LatePutLanded);
                    state.note_created(&key);
                }
                Ok(Put::Exists) | Err(_) => state.count(Fault::LatePutRefused),
            }
            state.note("late put", &key, || format!("{put:?}"));
        }
    }
}

impl State {
    fn count(&mut self, fault: Fault) {
        *self.counts.0.entry(fault).or_default() += 1;
    }

    fn next_late(&mut self, now: Option<Instant>) -> Option<LatePut> {
        let first = self.late.first_entry()?;
        now.is_none_or(|now| first.key().0 <= now).then(|| first.remove())
    }

    fn put_off(&mut self, put: LatePut) {
        self.count(Fault::LatePutQueued);
        let due = Instant::now() + self.dice.duration(&self.plan.late_put_delay);
        self.late_number += 1;
        self.late.insert((due, self.late_number), put);
    }

    fn note_created(&mut self, key: &str) {
        if self.plan.stale_list == Chance::NEVER {
            self.created.clear();
            return;
        }
        let now = Instant::now();
        self.created.push_back((now, key.to_owned()));
        let age_max = self.plan.stale_list_age_max;
        while self.created.front().is_some_and(|(at, _)| now - *at > age_max) {
            self.created.pop_front();
        }
    }

    fn note(&mut self, operation: &'static str, key: &str, outcome: impl FnOnce() -> String) {
        if self.trace_entries_max == 0 {
            return;
        }
        while self.trace.len() >= self.trace_entries_max {
            self.trace.pop_front();
        }
        let now = Instant::now();
        let at = now - *self.first.get_or_insert(now);
        self.trace.push_back(TraceEntry { at, operation, key: key.to_owned(), outcome: outcome() });
    }
}

impl fmt::Debug for Faults {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Faults").field("counts", &self.lock().counts).finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests;
