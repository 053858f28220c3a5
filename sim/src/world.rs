//! What outlives the node: store, disks, oracle, and what is known of the faults in force.

use std::cell::{Cell, RefCell};
use std::collections::VecDeque;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use tokio::time::Instant;
use weir_device::{DeviceError, Env, ErrorKind, VolumeId};
use weir_disk::sim::SimDisk;
use weir_log::catalog::{self, VolumeName};
use weir_log::{FixedKeys, Keys, LogError, Takeover};
use weir_seal::WrappingKey;
use weir_store::{Fault, FaultCounts, Faults, Store};

use crate::clones::KnownClone;
use crate::dice::Dice;
use crate::events::Events;
use crate::oracle::{Moment, Oracle, Point, Violation};
use crate::profile::Profile;
use crate::replicas::Replica;
use crate::snapshots::Known;

/// Key of an object that is damaged or hidden, and the ranges it holds as offset and length.
pub(crate) type Damaged = (String, Vec<(u64, u64)>);

/// How long a fetch that a read joins may have been under way: three attempts of two slow GETs.
const JOINED_FETCH_AGE_MAX: Duration = Duration::from_secs(5);

/// One seed in so many is about an encrypted volume.
const ENCRYPTED_ONE_IN: u64 = 3;

/// The world of one seed.
pub(crate) struct World {
    pub(crate) profile: Profile,
    pub(crate) oracle: RefCell<Oracle>,
    pub(crate) events: RefCell<Events>,
    violation: RefCell<Option<Violation>>,
    pub(crate) faults: Faults,
    /// Below the faults: what the store holds.
    pub(crate) bare_store: Store,
    pub(crate) store: Store,
    /// Two hosts.
    pub(crate) disks: [SimDisk; 2],
    pub(crate) host: Cell<usize>,
    pub(crate) id: Cell<VolumeId>,
    /// Whether this seed is about an encrypted volume.
    encrypted: bool,
    /// The operator's.
    pub(crate) keys: Keys,
    pub(crate) operations: Cell<u64>,
    /// When the store last failed or swallowed everything.
    outage_seen: Cell<Option<Instant>>,
    /// Ranges held by an object that is damaged or hidden, and its key.
    pub(crate) damaged: RefCell<Option<Damaged>>,
    /// When a byte of the journal rotted: writes issued before may be unreadable.
    pub(crate) rotted: Cell<Option<Moment>>,
    /// A sync failed: what was written before may be gone from the disk, though it was answered.
    pub(crate) sync_failed: Cell<Option<Moment>>,
    /// Faults at the begin of late reads.
    faults_seen: RefCell<VecDeque<(Instant, FaultsBefore)>>,
    /// The disk fails reads by chance.
    pub(crate) reads_fail: Cell<bool>,
    /// Writes of owners that were superseded.
    pub(crate) foreign_writes: Cell<u32>,
    pub(crate) snapshots: RefCell<Vec<Known>>,
    pub(crate) replica: Replica,
    pub(crate) clones: RefCell<Vec<Rc<RefCell<KnownClone>>>>,
    /// What the volume shows if a rollback that was cut off came about.
    pub(crate) set_back: RefCell<Option<Oracle>>,
}

impl World {
    pub(crate) fn new(seed: u64, nodes: u64) -> Rc<Self> {
        let mut dice = Dice::new(seed, 0);
        let mut profile = Profile::draw(&mut dice);
        if nodes == 2 {
            profile = profile.with_two_nodes(&mut dice);
        }
        let faults = Faults::new(dice.next());
        let bare_store = Store::open("memory://").expect("a store in memory");
        let store = bare_store
            .clone()
            .with_faults(faults.clone())
            .with_attempt_timeout(profile.attempt_timeout);
        let mut disk = || SimDisk::new(dice.next(), profile.disk.clone());
        let disks = [disk(), disk()];
        let mut oracle = Oracle::new(profile.volume_bytes);
        if profile.replicas {
            // A replica may show any past: for a reader that never ends nothing is forgotten.
            oracle.begin_read();
        }
        let keys = FixedKeys(vec![WrappingKey::of([0x0f; 32])]);
        Rc::new(Self {
            encrypted: seed.is_multiple_of(ENCRYPTED_ONE_IN),
            keys: Keys::from(Arc::new(keys)),
            oracle: RefCell::new(oracle),
            events: RefCell::new(Events::new()),
            violation: RefCell::new(None),
            faults,
            bare_store,
            store,
            disks,
            host: Cell::new(0),
            id: Cell::new(VolumeId([0; 16])),
            operations: Cell::new(0),
            outage_seen: Cell::new(None),
            damaged: RefCell::new(None),
            rotted: Cell::new(None),
            sync_failed: Cell::new(None),
            faults_seen: RefCell::default(),
            reads_fail: Cell::new(false),
            foreign_writes: Cell::new(0),
            snapshots: RefCell::default(),
            replica: Replica::new(&mut dice, profile.attempt_timeout),
            clones: RefCell::default(),
            set_back: RefCell::default(),
            profile,
        })
    }

    /// Creates the volume.
    pub(crate) async fn create(&self, env: &Env, takeover: Takeover) -> Result<(), LogError> {
        let name = VolumeName::new("simulated")?;
        let encryption = match self.encrypted {
            true => Some(self.keys.encryption(env).await?),
            false => None,
        };
        let (store, size) = (&self.store, self.profile.device_bytes());
        let id = catalog::create_as(store, env, &name, size, takeover, encryption).await?;
        self.id.set(id);
        Ok(())
    }

    pub(crate) fn disk(&self) -> &SimDisk {
        &self.disks[self.host.get()]
    }

    pub(crate) fn note(&self, what: &'static str, numbers: [u64; 3]) {
        self.events.borrow_mut().note(what, numbers);
    }

    pub(crate) fn detail(&self, what: &'static str, numbers: [u64; 3]) {
        self.events.borrow_mut().detail(what, numbers);
    }

    /// The first violation counts.
    pub(crate) fn violate(&self, message: impl Into<String>) {
        let mut violation = self.violation.borrow_mut();
        if violation.is_none() {
            *violation = Some(Violation(message.into()));
        }
    }

    pub(crate) fn check<T>(&self, result: Result<T, Violation>) -> Option<T> {
        result.map_err(|Violation(message)| self.violate(message)).ok()
    }

    pub(crate) fn violation(&self) -> Option<Violation> {
        self.violation.borrow().clone()
    }

    pub(crate) fn is_violated(&self) -> bool {
        self.violation.borrow().is_some()
    }

    pub(crate) fn set_outage(&self, outage: bool, silence: bool) {
        self.faults.change(|plan| {
            plan.outage = outage;
            plan.silence = silence;
        });
        self.see_outage();
    }

    /// From now on, for a while, reads may fail for want of the store.
    pub(crate) fn see_outage(&self) {
        self.outage_seen.set(Some(Instant::now()));
    }

    /// Ends an outage, if there is one.
    pub(crate) fn end_outage(&self) {
        let plan = self.faults.plan();
        if plan.outage || plan.silence {
            self.set_outage(false, false);
        }
    }

    /// Whether the store failed altogether within `before` the moment `since`, or later.
    pub(crate) fn outage_since(&self, since: Instant, before: Duration) -> bool {
        let plan = self.faults.plan();
        if plan.outage || plan.silence {
            return true;
        }
        self.outage_seen.get().is_some_and(|seen| seen + before >= since)
    }

    /// Faults so far, for a read that begins now. A fetch that it joins may have begun a while ago.
    pub(crate) fn faults_before_read(&self) -> FaultsBefore {
        let (now, counts) = (Instant::now(), self.faults.counts());
        let mut seen = self.faults_seen.borrow_mut();
        while seen.len() > 1 && seen[1].0 + JOINED_FETCH_AGE_MAX < now {
            seen.pop_front();
        }
        if seen.back().is_none_or(|(at, _)| *at < now) {
            seen.push_back((now, FaultsBefore::of(&counts)));
        }
        seen.front().map_or_else(|| FaultsBefore::of(&counts), |(_, before)| *before)
    }

    /// The chance faults of the profile, no outage.
    pub(crate) fn usual_faults(&self) {
        let plan = self.profile.plan.clone();
        self.replica.faults.change(|now| now.clone_from(&plan));
        self.faults.change(|now| *now = plan);
    }

    /// The store works.
    pub(crate) fn calm_store(&self) {
        if self.faults.plan().outage || self.faults.plan().silence {
            self.see_outage();
        }
        let latency = self.profile.plan.latency.clone();
        self.faults.change(|plan| *plan = weir_store::FaultPlan { latency, ..Default::default() });
    }

    /// Undoes the damage to an object.
    pub(crate) fn heal_object(&self) {
        if let Some((key, _)) = self.damaged.borrow_mut().take() {
            self.faults.heal(&key);
            self.note("object healed", [0; 3]);
        }
    }

    /// The disk takes and returns everything again.
    pub(crate) fn calm_disk(&self) {
        self.reads_fail.set(false);
        for disk in &self.disks {
            disk.change_options(|options| {
                options.read_errors_per_million = 0;
                options.write_errors_per_million = 0;
                options.sync_errors_per_million = 0;
                options.capacity_bytes = None;
            });
            disk.fail_next_syncs(0);
        }
    }

    /// Whether a read of a range may fail with `error`, after what was done to disk and store.
    pub(crate) fn excuses_read(&self, read: &FailedRead, error: &DeviceError) -> bool {
        let start = self.profile.islands.place(read.offset);
        let end = start + read.len;
        let now = FaultsBefore::of(&self.faults.counts());
        match error.kind() {
            ErrorKind::Corrupt => {
                let damaged = self.damaged.borrow();
                let hit = |(from, to): &(u64, u64)| *from < end && start < *to;
                let damaged = damaged.as_ref().is_some_and(|(_, ranges)| ranges.iter().any(hit));
                let bad_before = self.rotted.get().max(self.sync_failed.get());
                let rotten = bad_before.is_some_and(|moment| {
                    let oracle = self.oracle.borrow();
                    oracle.may_be_older(read.point, read.offset, read.len, moment)
                });
                // A frame is fetched three times before it counts as damaged.
                damaged || rotten || now.flips >= read.faults_before.flips + 3
            }
            ErrorKind::Unavailable => {
                // Nothing but bad luck: a dozen attempts in a row that failed by chance.
                let unlucky = now.failures >= read.faults_before.failures + 12;
                unlucky || self.outage_since(read.started, read.deadline) || self.reads_fail.get()
            }
            _ => false,
        }
    }
}

/// Counts of faults that can make a read fail.
#[derive(Clone, Copy, Debug)]
pub(crate) struct FaultsBefore {
    /// Wrong bits in bodies.
    flips: u64,
    /// GETs that returned an error or too little.
    failures: u64,
}

impl FaultsBefore {
    fn of(counts: &FaultCounts) -> Self {
        let failing = [Fault::ServerError, Fault::Throttled, Fault::TimedOut, Fault::ShortBody];
        let failures = failing.into_iter().map(|fault| counts.of(fault)).sum();
        Self { flips: counts.of(Fault::FlippedBit), failures }
    }
}

/// A read that failed, and what was known when it began.
pub(crate) struct FailedRead {
    /// As of when writes are certainly applied.
    pub(crate) point: Point,
    pub(crate) started: Instant,
    pub(crate) faults_before: FaultsBefore,
    pub(crate) offset: u64,
    pub(crate) len: u64,
    pub(crate) deadline: Duration,
}
