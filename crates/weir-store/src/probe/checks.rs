//! What a probe tries. Each check is some requests and a judgement; a request that fails for a reason that may pass is
//! made again, so that a busy store is not taken for a bad one.

use std::sync::atomic::{AtomicU32, Ordering};

use bytes::Bytes;
use futures_util::future::join_all;
use tokio::time::Instant;

use super::ProbeCheck;
use crate::limits::{PROBE_DEADLINE, PROBE_LISTED, PROBE_ROUNDS, PROBE_WRITERS};
use crate::{Put, Refusal, RetryPolicy, Store, StoreError};

pub(super) const CREATE: &str = "create-only";
pub(super) const RACE: &str = "race";
const LISTING: &str = "listing";
const RANGES: &str = "ranges";
const DELETE: &str = "delete";

/// A body that is large enough to take a store more than one step.
const LARGE_BODY_BYTES: usize = 64 << 10;
const SMALL_BODY_BYTES: usize = 100;

/// Why a check did not pass.
enum Failure {
    /// The store does something wrong.
    Broken(String),
    /// The store could not be asked.
    Unasked(StoreError),
}

type Outcome = Result<String, Failure>;

impl From<StoreError> for Failure {
    fn from(error: StoreError) -> Self {
        let last = match &error {
            StoreError::GaveUp { source: Some(last), .. } => last,
            error => error,
        };
        match last {
            StoreError::Refused { refusal: Refusal::NoConditions, .. }
            | StoreError::Short { .. }
            | StoreError::NotFound { .. } => Self::Broken(last.to_string()),
            _ => Self::Unasked(error),
        }
    }
}

pub(super) struct Checker<'a> {
    store: &'a Store,
    /// Prefix of everything that is created.
    root: String,
    seed: u64,
    policy: RetryPolicy,
    checks: Vec<ProbeCheck>,
}

impl<'a> Checker<'a> {
    pub(super) fn new(store: &'a Store, root: String, seed: u64) -> Self {
        let policy = RetryPolicy { deadline: Some(PROBE_DEADLINE), ..RetryPolicy::opening() };
        Self { store, root, seed, policy, checks: Vec::new() }
    }

    pub(super) fn into_checks(self) -> Vec<ProbeCheck> {
        self.checks
    }

    /// All checks in order; those after a broken one as well.
    pub(super) async fn run(&mut self) -> Result<(), StoreError> {
        let started = Instant::now();
        let outcome = self.create_only().await;
        self.note(CREATE, started, outcome)?;
        let started = Instant::now();
        let outcome = self.race().await;
        self.note(RACE, started, outcome)?;
        let started = Instant::now();
        let outcome = self.listing().await;
        self.note(LISTING, started, outcome)?;
        let started = Instant::now();
        let outcome = self.ranges().await;
        self.note(RANGES, started, outcome)?;
        let started = Instant::now();
        let outcome = self.delete().await;
        self.note(DELETE, started, outcome)
    }

    fn note(
        &mut self,
        name: &'static str,
        started: Instant,
        outcome: Outcome,
    ) -> Result<(), StoreError> {
        let (passed, detail) = match outcome {
            Ok(detail) => (true, detail),
            Err(Failure::Broken(detail)) => (false, detail),
            Err(Failure::Unasked(error)) => return Err(error),
        };
        let time_ms = u64::try_from(started.elapsed().as_millis()).unwrap_or(u64::MAX);
        self.checks.push(ProbeCheck { name, passed, detail, time_ms });
        Ok(())
    }

    /// Deletes what was created; says how much could not be.
    pub(super) async fn clean_up(&self) -> u64 {
        let Ok(listed) = self.list("", None).await else { return 1 };
        let delete = async |key: String| {
            let mut random = jitter(self.seed);
            self.store.retry(&self.policy, &mut random, None, || self.store.delete(&key)).await
        };
        let mut left = 0;
        for some in listed.chunks(PROBE_WRITERS) {
            let deleted = join_all(some.iter().map(|key| delete(format!("{}{key}", self.root))));
            left += deleted.await.iter().filter(|deleted| deleted.is_err()).count();
        }
        u64::try_from(left).unwrap_or(u64::MAX)
    }

    /// Creates an object; also says whether more than one attempt was needed, so that an earlier one may have been
    /// done without an answer.
    async fn put(&self, key: &str, body: Bytes) -> Result<(Put, bool), StoreError> {
        let attempts = AtomicU32::new(0);
        let key = format!("{}{key}", self.root);
        let mut random = jitter(self.seed);
        let put = || {
            attempts.fetch_add(1, Ordering::Relaxed);
            self.store.put_create(&key, vec![body.clone()])
        };
        let put = self.store.retry(&self.policy, &mut random, None, put).await?;
        Ok((put, attempts.into_inner() > 1))
    }

    async fn create(&self, key: &str, body: Bytes) -> Result<(), Failure> {
        match self.put(key, body).await? {
            (Put::Created, _) | (Put::Exists, true) => Ok(()),
            (Put::Exists, false) => broken("a key that nobody used was reported as taken"),
        }
    }

    async fn get(&self, key: &str) -> Result<Bytes, StoreError> {
        let key = format!("{}{key}", self.root);
        let mut random = jitter(self.seed);
        self.store.retry(&self.policy, &mut random, None, || self.store.get(&key)).await
    }

    /// Keys below the probe's own prefix.
    async fn list(&self, prefix: &str, after: Option<&str>) -> Result<Vec<String>, StoreError> {
        let prefix = format!("{}{prefix}", self.root);
        let after = after.map(|after| format!("{}{after}", self.root));
        let mut random = jitter(self.seed);
        let list = || self.store.list(&prefix, after.as_deref());
        let listed = self.store.retry(&self.policy, &mut random, None, list).await?;
        let own = |key: String| key.strip_prefix(&self.root).map(str::to_owned);
        Ok(listed.into_iter().filter_map(|object| own(object.key)).collect())
    }

    /// A key that is taken stays as it is, and whoever wants it is told.
    async fn create_only(&self) -> Outcome {
        let first = Bytes::from_static(b"first");
        self.create("create", first.clone()).await?;
        if self.get("create").await? != first {
            return broken("an object was not there as it was written");
        }
        let (again, _) = self.put("create", Bytes::from_static(b"second")).await?;
        let now = self.get("create").await?;
        if again == Put::Created || now != first {
            return broken(
                "If-None-Match is ignored: an object was written over by a create-only PUT",
            );
        }
        Ok("a second create-only PUT of a key is refused".to_owned())
    }

    /// Of writers that want the same key at the same time, one gets it, and knows.
    async fn race(&self) -> Outcome {
        if self.checks.iter().any(|check| !check.passed) {
            return broken("racing writers were not tried, since a single one is not kept off");
        }
        for round in 0..PROBE_ROUNDS {
            let key = format!("race/{round}");
            let bytes = if round % 2 == 0 { SMALL_BODY_BYTES } else { LARGE_BODY_BYTES };
            let body = |racer: usize| Bytes::from(vec![racer.to_le_bytes()[0]; bytes]);
            let racers = (0..PROBE_WRITERS).map(|racer| self.put(&key, body(racer)));
            let mut created = Vec::new();
            let mut unsure = Vec::new();
            for (racer, put) in join_all(racers).await.into_iter().enumerate() {
                match put? {
                    (Put::Created, _) => created.push(racer),
                    (Put::Exists, true) => unsure.push(racer),
                    (Put::Exists, false) => {}
                }
            }
            let there = self.get(&key).await?;
            match created[..] {
                [winner] if there == body(winner) => {}
                // An answer was lost, and the PUT was done.
                [] if unsure.iter().any(|racer| there == body(*racer)) => {}
                [_] => return broken("of racing writers, another than the winner was stored"),
                [] => return broken("of racing writers, none was told that it won"),
                _ => {
                    let (won, of) = (created.len(), PROBE_WRITERS);
                    return broken(format!(
                        "{won} of {of} racing writers were told that they created the same object"
                    ));
                }
            }
        }
        Ok(format!("{PROBE_ROUNDS} times {PROBE_WRITERS} writers raced, and one won each time"))
    }

    /// What was created is listed at once, what was deleted is not, and `after` means what it says.
    async fn listing(&self) -> Outcome {
        let mut expected = Vec::new();
        for number in 0..PROBE_LISTED {
            let key = format!("list/{number:04}");
            self.create(&key, Bytes::from(key.clone())).await?;
            expected.push(key);
            // The last ones together, as a volume makes them.
            if number < PROBE_LISTED / 2 && self.list("list/", None).await? != expected {
                return broken("a listing did not show what had just been created");
            }
        }
        if self.list("list/", None).await? != expected {
            return broken("a listing did not show what had just been created");
        }
        let (middle, last) = (&expected[PROBE_LISTED / 2], &expected[PROBE_LISTED - 1]);
        if self.list("list/", Some(middle)).await? != expected[PROBE_LISTED / 2 + 1..] {
            return broken("a listing from a key on did not show what comes after it");
        }
        if !self.list("list/", Some(last)).await?.is_empty()
            || !self.list("lis/", None).await?.is_empty()
        {
            return broken("a listing showed what does not belong to it");
        }
        Ok(format!("{PROBE_LISTED} objects, each listed as soon as it was there"))
    }

    /// A ranged GET returns exactly the bytes asked for.
    async fn ranges(&self) -> Outcome {
        let content: Vec<u8> =
            (0..LARGE_BODY_BYTES + 1).map(|i| (i % 251).to_le_bytes()[0]).collect();
        let key = format!("{}ranges", self.root);
        self.create("ranges", Bytes::from(content.clone())).await?;
        let end = content.len();
        for range in [0..1, 0..end, end - 1..end, 4096..8192, 1000..LARGE_BODY_BYTES] {
            let mut random = jitter(self.seed);
            let wide = |at: usize| u64::try_from(at).expect("an offset of 64 bits");
            let asked = wide(range.start)..wide(range.end);
            let get = || self.store.get_range(&key, asked.clone());
            let got = self.store.retry(&self.policy, &mut random, None, get).await?;
            if got != content[range.clone()] {
                return broken(format!("a GET of bytes {range:?} returned others"));
            }
        }
        Ok("ranged GETs return exactly what was asked for".to_owned())
    }

    /// What is deleted is gone at once, and its key is free.
    async fn delete(&self) -> Outcome {
        self.create("delete", Bytes::from_static(b"one")).await?;
        let key = format!("{}delete", self.root);
        // The second finds nothing, which is no error.
        for _ in 0..2 {
            let mut random = jitter(self.seed);
            self.store.retry(&self.policy, &mut random, None, || self.store.delete(&key)).await?;
        }
        match self.get("delete").await {
            Err(StoreError::NotFound { .. }) => {}
            Ok(_) => return broken("a deleted object could still be read"),
            Err(error) => return Err(error.into()),
        }
        if self.list("", None).await?.iter().any(|key| key == "delete") {
            return broken("a deleted object was still listed");
        }
        self.create("delete", Bytes::from_static(b"two")).await?;
        Ok("a deleted object is gone at once, and its key is free".to_owned())
    }
}

fn broken<T>(detail: impl Into<String>) -> Result<T, Failure> {
    Err(Failure::Broken(detail.into()))
}

/// Random enough for the pauses between attempts (SplitMix64); each operation has its own.
fn jitter(seed: u64) -> impl FnMut() -> u64 + Send {
    let mut state = seed;
    move || {
        state = state.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = state;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z ^ (z >> 27)
    }
}
