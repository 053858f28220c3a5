//! The lease of a node process in a store: a chain of renewals that others watch, and the deadline that follows.
//!
//! Invariants
//!  L1. The deadline is boot time read *before* the first attempt of the renewal that counts, plus the length, less a
//!      margin. Others count a whole length from when they first *see* that renewal, so they act later than that.
//!  L2. A renewal that counts at or after the deadline before it revives nothing: the run of renewals is over, and the
//!      next one has another generation and another incarnation. So whoever compares generation and deadline sees every
//!      deadline that was missed, also one that passed while nobody looked.
//!  L3. A renewal counts by the rule of `own::chain`. One that does not means that somebody else writes this chain
//!      (a copied data directory, a pruned number): the node takes another name and begins anew.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use bytes::Bytes;
use serde::Serialize;
use tokio::sync::Notify;
use tokio::sync::futures::Notified;
use tokio::time::timeout;
use weir_device::{Clock, Env, VolumeId};
use weir_journal::WriteNumber;
use weir_store::{RetryPolicy, RetryScope, Store, StoreError};

use crate::error::LogError;
use crate::format::json::read_whole;
use crate::format::lease::{
    FlushedRecord, LEASE_FORMAT_1, LeaseIdentity, LeaseRecord, LeasedVolume,
};
use crate::format::manifest::HexId;
use crate::limits::{LEASE_LENGTH, LEASE_LENGTH_PER_MARGIN, LEASE_RENEWALS_PER_LENGTH};
use crate::own::chain::{self, CreateRules, Created, Pruner, Retention};

/// How a node's lease is kept.
#[derive(Clone, Copy, Debug)]
pub struct LeaseSettings {
    /// How long others wait before they act.
    pub length: Duration,
    /// Time between two renewals.
    pub renew_every: Duration,
    /// How much earlier than that the node itself stops: clocks differ in speed, and a reply takes its time.
    pub margin: Duration,
    /// Which old renewals are kept.
    pub retention: Retention,
}

impl LeaseSettings {
    /// The usual proportions for a lease of `length`.
    #[must_use]
    pub fn of_length(length: Duration) -> Self {
        Self {
            length,
            renew_every: length / LEASE_RENEWALS_PER_LENGTH,
            margin: length / LEASE_LENGTH_PER_MARGIN,
            retention: Retention::default(),
        }
    }
}

impl Default for LeaseSettings {
    fn default() -> Self {
        Self::of_length(LEASE_LENGTH)
    }
}

/// A lease at a glance.
#[derive(Clone, Debug, Serialize)]
pub struct LeaseStatus {
    /// The node, 32 hex digits.
    pub node: String,
    /// The unbroken run of renewals, 32 hex digits.
    pub incarnation: String,
    /// Milliseconds until the deadline; 0 once it has passed.
    pub left_ms: u64,
    /// Renewals that counted.
    pub renewals: u64,
    /// Deadlines that were missed.
    pub missed: u64,
    /// What renewing struggles with, if it does.
    pub note: Option<String>,
}

/// One unbroken run of renewals, as whoever relies on it remembers it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Run {
    pub(crate) generation: u64,
    pub(crate) identity: LeaseIdentity,
}

/// The lease of this process in one store. Cheap to clone, for use from all threads.
#[derive(Clone)]
pub struct NodeLease {
    inner: Arc<Inner>,
}

struct Inner {
    settings: LeaseSettings,
    name: Arc<str>,
    /// Boot time in nanoseconds; 0 where there is none.
    deadline_ns: AtomicU64,
    generation: AtomicU64,
    known: Mutex<Known>,
    /// Somebody needs the lease.
    wanted: Notify,
    /// A volume is being opened: the lease is kept from here on, though it may be held for a while yet.
    opened: Notify,
    /// Told of renewals and misses. Wakes in the order in which they began to wait: a simulated run stays the same.
    changed: Notify,
}

struct Known {
    identity: LeaseIdentity,
    /// Number of the newest version of the chain; `None` until it was listed.
    newest: Option<u64>,
    renewals: u64,
    missed: u64,
    /// The last deadline that was counted as missed.
    missed_ns: u64,
    note: Option<String>,
    openings: BTreeMap<u64, Arc<Opening>>,
    openings_begun: u64,
}

struct Opening {
    volume: VolumeId,
    dirty_bytes: AtomicU64,
    /// What names it, once it has begun.
    id: Mutex<Option<HexId>>,
    flushed_write: AtomicU64,
}

impl Known {
    /// Counts a deadline that has passed while a volume was open, once. A lease that is not held has none.
    fn count_missed(&mut self, deadline_ns: u64, now_ns: u64) {
        let has_passed = deadline_ns != 0 && deadline_ns <= now_ns;
        if has_passed && deadline_ns != self.missed_ns && !self.openings.is_empty() {
            self.missed += 1;
            self.missed_ns = deadline_ns;
        }
    }
}

impl Opening {
    fn flushed(&self) -> Option<FlushedRecord> {
        let opening = (*self.id.lock().unwrap_or_else(PoisonError::into_inner))?;
        Some(FlushedRecord { opening, write: self.flushed_write.load(Ordering::SeqCst) })
    }
}

/// A volume that is open under a lease: it is renewed as long as this lives.
pub(crate) struct LeaseHold {
    lease: NodeLease,
    number: u64,
    opening: Arc<Opening>,
}

fn to_ns(time: Duration) -> u64 {
    u64::try_from(time.as_nanos()).unwrap_or(u64::MAX)
}

impl Inner {
    fn known(&self) -> MutexGuard<'_, Known> {
        // A poisoned lock is used all the same: every change under it is one assignment, so a panic leaves nothing half
        // changed.
        self.known.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn is_before_deadline(&self, clock: &dyn Clock) -> bool {
        to_ns(clock.boottime()) < self.deadline_ns.load(Ordering::SeqCst)
    }
}

impl NodeLease {
    /// Starts keeping a lease of node `node` in `store`: one task, on this thread. Nothing is written before a volume
    /// is opened, and nothing is renewed while none is open. `node` must be used by one process at a time.
    #[must_use]
    pub fn start(
        store: Store,
        env: &Env,
        node: [u8; 16],
        name: &str,
        settings: LeaseSettings,
    ) -> Self {
        let identity = LeaseIdentity { node: HexId(node), incarnation: HexId([0; 16]) };
        let known = Known {
            identity,
            newest: None,
            renewals: 0,
            missed: 0,
            missed_ns: 0,
            note: None,
            openings: BTreeMap::new(),
            openings_begun: 0,
        };
        let inner = Arc::new(Inner {
            settings,
            name: name.into(),
            deadline_ns: AtomicU64::new(0),
            generation: AtomicU64::new(0),
            known: Mutex::new(known),
            wanted: Notify::new(),
            opened: Notify::new(),
            changed: Notify::new(),
        });
        let renewer = Renewer {
            store,
            env: env.clone(),
            inner: Arc::clone(&inner),
            pruner: Pruner::default(),
        };
        env.spawn_local(renewer.run());
        Self { inner }
    }

    /// How it is kept.
    #[must_use]
    pub fn settings(&self) -> &LeaseSettings {
        &self.inner.settings
    }

    /// Name of the node, for messages of others.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.inner.name
    }

    /// The lease at a glance.
    #[must_use]
    pub fn status(&self, clock: &dyn Clock) -> LeaseStatus {
        let mut known = self.inner.known();
        let deadline = self.inner.deadline_ns.load(Ordering::SeqCst);
        // One that has passed counts at once, and not only with the run that follows it.
        known.count_missed(deadline, to_ns(clock.boottime()));
        LeaseStatus {
            node: known.identity.node.into(),
            incarnation: known.identity.incarnation.into(),
            left_ms: deadline.saturating_sub(to_ns(clock.boottime())) / 1_000_000,
            renewals: known.renewals,
            missed: known.missed,
            note: known.note.clone(),
        }
    }

    /// Registers a volume that is about to be opened: the lease is renewed for it from here on.
    pub(crate) fn hold(&self, volume: VolumeId) -> LeaseHold {
        let opening = Arc::new(Opening {
            volume,
            dirty_bytes: AtomicU64::new(0),
            id: Mutex::new(None),
            flushed_write: AtomicU64::new(0),
        });
        let mut known = self.inner.known();
        known.openings_begun += 1;
        let number = known.openings_begun;
        known.openings.insert(number, Arc::clone(&opening));
        drop(known);
        if !weir_device::mutant("opening_wakes_no_renewer") {
            self.inner.opened.notify_one();
        }
        LeaseHold { lease: self.clone(), number, opening }
    }
}

impl fmt::Debug for NodeLease {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "NodeLease({}, {:?})", self.inner.name, self.inner.known().identity)
    }
}

impl LeaseHold {
    /// The run of renewals in force, if the lease is held now.
    pub(crate) fn current(&self, clock: &dyn Clock) -> Option<Run> {
        let generation = self.lease.inner.generation.load(Ordering::SeqCst);
        let held = self.lease.inner.is_before_deadline(clock);
        let identity = self.lease.inner.known().identity;
        // Another run may have begun in between.
        let same = self.lease.inner.generation.load(Ordering::SeqCst) == generation;
        (held && same).then_some(Run { generation, identity })
    }

    /// Whether `run` is unbroken to this moment.
    pub(crate) fn is_held(&self, generation: u64, clock: &dyn Clock) -> bool {
        // The deadline first: that of a later run is set after its generation.
        self.lease.inner.is_before_deadline(clock)
            && (self.lease.inner.generation.load(Ordering::SeqCst) == generation
                || weir_device::mutant("missed_deadline_forgiven"))
    }

    /// Waits until the lease is held.
    ///
    /// # Errors
    /// [`LogError::NoLease`] after `patience`.
    pub(crate) async fn acquire(
        &self,
        clock: &dyn Clock,
        patience: Duration,
    ) -> Result<Run, LogError> {
        let held = async {
            loop {
                let changed = self.changed();
                if let Some(run) = self.current(clock) {
                    return run;
                }
                self.lease.inner.wanted.notify_one();
                changed.await;
            }
        };
        timeout(patience, held).await.map_err(|_| LogError::NoLease {
            name: self.lease.inner.name.to_string(),
            note: self.lease.inner.known().note.clone().unwrap_or_else(|| "no answer".into()),
        })
    }

    /// Hears of every renewal and every miss after this call.
    pub(crate) fn changed(&self) -> Notified<'_> {
        self.lease.inner.changed.notified()
    }

    /// Whether `store`, which the lease is kept in, has the newest renewal of it, and `node` is its name: a store that
    /// was set back has lost it, and the node takes another name once it notices. One attempt.
    pub(crate) async fn is_in(&self, store: &Store, node: HexId) -> Result<bool, StoreError> {
        let (ours, newest) = {
            let known = self.lease.inner.known();
            (known.identity.node, known.newest)
        };
        let Some(newest) = newest.filter(|_| ours == node) else { return Ok(false) };
        let prefix = LeaseRecord::prefix(node);
        let before = chain::key(&prefix, newest.saturating_sub(1));
        let listed = store.list(&prefix, Some(&before)).await?;
        Ok(listed.iter().any(|found| chain::parse_key(&found.key) == Some(newest)))
    }

    /// What would be lost with this node's disk; others see it with the next renewal.
    pub(crate) fn set_dirty(&self, bytes: u64) {
        self.opening.dirty_bytes.store(bytes, Ordering::Relaxed);
    }

    /// The opening has begun: from here on each renewal is a witness of what it has flushed.
    pub(crate) fn set_opening(&self, opening: HexId) {
        *self.opening.id.lock().unwrap_or_else(PoisonError::into_inner) = Some(opening);
    }

    /// The last write that survives a loss of power; others see it with the next renewal.
    pub(crate) fn set_flushed(&self, write: WriteNumber) {
        self.opening.flushed_write.fetch_max(write.0, Ordering::SeqCst);
    }

    /// Name of the node, for messages of others.
    pub(crate) fn name(&self) -> &str {
        self.lease.name()
    }

    /// Time until the deadline passes, for a watcher; `None` once it has.
    pub(crate) fn left(&self, clock: &dyn Clock) -> Option<Duration> {
        let deadline = self.lease.inner.deadline_ns.load(Ordering::SeqCst);
        let left = deadline.checked_sub(to_ns(clock.boottime()))?;
        (left > 0).then(|| Duration::from_nanos(left))
    }
}

impl Drop for LeaseHold {
    fn drop(&mut self) {
        self.lease.inner.known().openings.remove(&self.number);
    }
}

impl fmt::Debug for LeaseHold {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "LeaseHold({})", self.opening.volume)
    }
}

/// The task that renews.
struct Renewer {
    store: Store,
    env: Env,
    inner: Arc<Inner>,
    pruner: Pruner,
}

impl Renewer {
    /// Renews until the process ends.
    async fn run(mut self) {
        loop {
            let wanted = !self.inner.known().openings.is_empty();
            if !wanted {
                self.wait_until_wanted().await;
                continue;
            }
            match self.renew().await {
                Ok(()) => {
                    self.inner.known().note = None;
                    // The pause ends as soon as somebody waits for the lease: after the host was suspended the lease
                    // may have ended although the next renewal is not due yet.
                    tokio::select! {
                        biased;
                        () = self.inner.wanted.notified() => {}
                        () = tokio::time::sleep(self.inner.settings.renew_every) => {}
                    }
                }
                Err(error) => {
                    tracing::warn!(node = &*self.inner.name, %error, "the lease is not renewed");
                    self.inner.known().note = Some(error.to_string());
                    self.inner.changed.notify_waiters();
                    tokio::time::sleep(self.inner.settings.renew_every / 4).await;
                }
            }
        }
    }

    /// Nothing is written for an opening that may be refused yet; it asks for the lease when it needs it. Where the
    /// lease lasts it need not ask, and the lease is kept from here on.
    async fn wait_until_wanted(&self) {
        loop {
            let is_wanted = tokio::select! {
                biased;
                () = self.inner.wanted.notified() => true,
                () = self.inner.opened.notified() => false,
            };
            let lasts = self.inner.is_before_deadline(&*self.env.clock);
            if !lasts {
                // It ended while nobody held it: no deadline was missed.
                self.inner.deadline_ns.store(0, Ordering::SeqCst);
            }
            if is_wanted || lasts {
                return;
            }
        }
    }

    fn policy(&self) -> RetryPolicy {
        let slowest = self.inner.settings.renew_every / 4;
        RetryPolicy {
            first_delay: Duration::from_millis(50).min(slowest),
            max_delay: slowest.min(Duration::from_secs(2)),
            deadline: None,
            scope: RetryScope::Everything,
        }
    }

    fn new_id(&self) -> HexId {
        let mut id = [0; 16];
        self.env.random.fill(&mut id);
        HexId(id)
    }

    /// L2: whatever relied on the run before finds its generation gone.
    fn begin_run(&self, node: Option<HexId>) {
        let incarnation = self.new_id();
        let deadline = self.inner.deadline_ns.load(Ordering::SeqCst);
        let mut known = self.inner.known();
        known.count_missed(deadline, to_ns(self.env.clock.boottime()));
        self.inner.deadline_ns.store(0, Ordering::SeqCst);
        self.inner.generation.fetch_add(1, Ordering::SeqCst);
        known.identity.incarnation = incarnation;
        known.identity.node = node.unwrap_or(known.identity.node);
        drop(known);
        self.inner.changed.notify_waiters();
    }

    /// One renewal that extends the lease.
    async fn renew(&mut self) -> Result<(), StoreError> {
        loop {
            if !self.inner.is_before_deadline(&*self.env.clock) {
                self.begin_run(None);
            }
            let before = self.inner.deadline_ns.load(Ordering::SeqCst);
            let mut sent_at = self.env.clock.boottime();
            let Some(listed) = self.write_version().await? else { continue };
            let now = self.env.clock.boottime();
            if weir_device::mutant("deadline_after_request") {
                sent_at = now;
            }
            let settings = &self.inner.settings;
            let deadline = to_ns(sent_at + settings.length.saturating_sub(settings.margin));
            let in_time = before == 0 || to_ns(now) < before;
            if in_time && to_ns(now) < deadline {
                self.inner.deadline_ns.store(deadline, Ordering::SeqCst);
                self.inner.known().renewals += 1;
                self.inner.changed.notify_waiters();
                self.prune(&listed).await;
                return Ok(());
            }
            // L2: it took so long that the run is over.
        }
    }

    /// Creates the next version; what the listing after it showed. `None` if it does not count, and the node has
    /// another name now.
    async fn write_version(&mut self) -> Result<Option<Vec<u64>>, StoreError> {
        let (policy, env) = (self.policy(), self.env.clone());
        let mut random = || env.random.next_u64();
        let record = self.record();
        let prefix = LeaseRecord::prefix(record.node);
        let newest = self.inner.known().newest;
        let newest = match newest {
            Some(newest) => newest,
            None => {
                let list = || chain::numbers(&self.store, &prefix);
                let listed = self.store.retry(&policy, &mut random, None, list).await?;
                listed.last().copied().unwrap_or(0)
            }
        };
        let record = LeaseRecord { number: newest + 1, ..record };
        let body = Bytes::from(record.encode());
        let is_whole = |bytes: &[u8]| read_whole(bytes, LeaseRecord::is_intact).is_some();
        let without_list = weir_device::mutant("renew_without_list");
        let rules = CreateRules {
            asks_for_last: false,
            lost: &chain::nothing_lost,
            is_whole,
            without_list,
        };
        let (store, number) = (&self.store, record.number);
        let created = chain::create(store, &policy, &mut random, &prefix, number, &body, rules);
        let (evidence, what) = match created.await? {
            Created::Counts(listed) => {
                self.inner.known().newest = Some(number);
                return Ok(Some(listed));
            }
            Created::Refused(evidence) => (
                evidence,
                "another process renews this node's lease: was the data directory copied?",
            ),
            Created::Lost(evidence) => {
                (evidence, "the store has lost this node's renewals: was it emptied or set back?")
            }
        };
        tracing::warn!(node = &*self.inner.name, evidence, "{what}");
        self.inner.known().newest = None;
        self.pruner = Pruner::default();
        self.begin_run(Some(self.new_id()));
        Ok(None)
    }

    /// The next version, without its number.
    fn record(&self) -> LeaseRecord {
        let nonce = self.new_id();
        let known = self.inner.known();
        let volume = |opening: &Arc<Opening>| LeasedVolume {
            volume: opening.volume.into(),
            dirty_bytes: opening.dirty_bytes.load(Ordering::Relaxed),
            flushed: opening.flushed(),
        };
        let mut record = LeaseRecord {
            format: LEASE_FORMAT_1,
            number: 0,
            nonce,
            node: known.identity.node,
            incarnation: known.identity.incarnation,
            name: self.inner.name.to_string(),
            length_ms: u64::try_from(self.inner.settings.length.as_millis()).unwrap_or(u64::MAX),
            written_at: self.env.clock.wall().as_secs(),
            volumes: known.openings.values().map(volume).collect(),
            checksum: String::new(),
        };
        record.format = record.format_needed();
        record
    }

    /// Deletes old versions in the background, while the lease is held.
    async fn prune(&mut self, listed: &[u64]) {
        let retention = self.inner.settings.retention;
        let prefix = LeaseRecord::prefix(self.inner.known().identity.node);
        let now = self.env.clock.boottime();
        let mut old = self.pruner.on_listing(listed, now, &retention);
        if old.is_empty()
            && let Some(number) = self.pruner.worth_reading(listed, &retention)
        {
            // Pruning can wait: one attempt.
            let record = read_record(&self.store, &chain::key(&prefix, number)).await;
            let (age_s, wall_s) = (retention.age_min.as_secs(), self.env.clock.wall().as_secs());
            if record.is_ok_and(|r| r.is_some_and(|r| r.written_at + age_s <= wall_s)) {
                self.pruner.note_old(number);
                old = self.pruner.on_listing(listed, now, &retention);
            }
        }
        if old.is_empty() {
            return;
        }
        let (store, inner, env) = (self.store.clone(), Arc::clone(&self.inner), self.env.clone());
        self.env.spawn_local(async move {
            for number in old {
                if !inner.is_before_deadline(&*env.clock) {
                    return;
                }
                let (store, key) = (store.clone(), chain::key(&prefix, number));
                // What fails is found again by the next renewal.
                drop(env.background(async move { store.delete(&key).await }).await);
            }
        });
    }
}

/// Reads one version; `None` if it does not decode. One attempt.
pub(crate) async fn read_record(
    store: &Store,
    key: &str,
) -> Result<Option<LeaseRecord>, StoreError> {
    Ok(read_whole(&store.get(key).await?, LeaseRecord::is_intact))
}
