//! What outlives the node: store, disks, oracle, and what is known of the faults in force.

use std::cell::{Cell, RefCell};
use std::collections::{BTreeSet, VecDeque};
use std::rc::Rc;
use std::sync::Arc;

use tokio::time::Instant;
use weir_device::{Env, VolumeId};
use weir_disk::sim::SimDisk;
use weir_journal::format::record::header_bytes;
use weir_journal::limits::{BLOCK_BYTES, PIECE_BYTES};
use weir_log::catalog::{self, VolumeName};
use weir_log::{FixedKeys, Keys, LogError, Takeover, VolumeOptions};
use weir_net::sim::SimNetwork;
use weir_seal::WrappingKey;
use weir_stack::StageSpec;
use weir_store::{Faults, Store};

use crate::dice::Dice;
use crate::events::Events;
use crate::harm::{FaultsBefore, Harm, Outages};
use crate::known::{Known, KnownClone, Replica};
use crate::oracle::{Oracle, Violation};
use crate::profile::{DiskTrouble, NbdProfile, Profile};
use crate::sizes::Sizes;
use crate::stages::StagesProfile;
use crate::under_way::{Rule, Verbs};

/// Key of an object that is damaged or hidden, and the ranges it holds as offset and length.
pub(crate) type Damaged = (String, Vec<(u64, u64)>);

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
    /// Between clients and hosts.
    pub(crate) network: SimNetwork,
    /// Two hosts.
    pub(crate) disks: [SimDisk; 2],
    /// For the stages of every opening.
    pub(crate) stages_dice: RefCell<Dice>,
    pub(crate) host: Cell<usize>,
    pub(crate) id: Cell<VolumeId>,
    /// Whether this seed is about an encrypted volume.
    pub(crate) encrypted: bool,
    /// The operator's.
    pub(crate) keys: Keys,
    /// The same, the other one first.
    pub(crate) new_keys: Keys,
    pub(crate) operations: Cell<u64>,
    pub(crate) outages: RefCell<Outages>,
    /// When the process of each host was stopped.
    pub(crate) stops: [RefCell<Outages>; 2],
    /// Ranges held by an object that is damaged or hidden, and its key.
    pub(crate) damaged: RefCell<Option<Damaged>>,
    pub(crate) harm: Harm,
    pub(crate) verbs: Verbs,
    pub(crate) sizes: Sizes,
    pub(crate) rule: Rule,
    /// Faults at the begin of late reads.
    pub(crate) faults_seen: RefCell<VecDeque<(Instant, FaultsBefore)>>,
    /// Writes of owners that were superseded.
    pub(crate) foreign_writes: Cell<u32>,
    /// Keys that owners stored after the opening had begun that superseded them.
    pub(crate) late_puts: RefCell<BTreeSet<String>>,
    pub(crate) snapshots: RefCell<Vec<Known>>,
    pub(crate) replica: Replica,
    pub(crate) clones: RefCell<Vec<Rc<RefCell<KnownClone>>>>,
    /// Clones whose making was cut off before they had a name, each by those it was to be made of.
    pub(crate) clones_lost: RefCell<Vec<Vec<VolumeName>>>,
    /// Volumes that were deleted.
    pub(crate) deleted: RefCell<Vec<VolumeId>>,
    /// What the volume shows if a rollback that was cut off came about.
    pub(crate) set_back: RefCell<Option<Oracle>>,
}

impl World {
    /// Bytes of the oracle that a device of `size` bytes has.
    pub(crate) fn bytes_within(&self, size: u64) -> u64 {
        self.profile.bytes_within(size)
    }

    pub(crate) fn new(seed: u64, nodes: u64) -> Rc<Self> {
        let mut dice = Dice::new(seed, 0);
        let mut profile = Profile::draw(&mut dice);
        if nodes == 2 {
            profile = profile.with_two_nodes(&mut dice);
        }
        // Streams of their own: seeds in which nothing is served keep their course.
        let mut network_dice = Dice::new(seed, 40);
        profile.nbd = NbdProfile::draw(&mut network_dice);
        let network_options = profile.nbd.clone().map(|nbd| nbd.network).unwrap_or_default();
        let mut stages_dice = Dice::new(seed, 60);
        profile.stages = StagesProfile::draw(&mut stages_dice);
        // A stage that fails to write what it acknowledged says so at the next flush, which the oracle does not know.
        profile.stages.holds_writes &= nodes == 1 && profile.trouble == DiskTrouble::None;
        let network = SimNetwork::new(network_dice.next(), network_options);
        let faults = Faults::new(dice.next());
        faults.let_requests_cost(dice.percent(30));
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
        let all = [0x0f, 0xf0].map(|byte| WrappingKey::of([byte; 32]));
        let keys = |first: usize| {
            let mut keys = all.to_vec();
            keys.rotate_left(first);
            Keys::from(Arc::new(FixedKeys(keys)))
        };
        Rc::new(Self {
            encrypted: seed.is_multiple_of(ENCRYPTED_ONE_IN),
            keys: keys(0),
            new_keys: keys(1),
            oracle: RefCell::new(oracle),
            events: RefCell::new(Events::new()),
            violation: RefCell::new(None),
            faults,
            bare_store,
            store,
            network,
            disks,
            stages_dice: RefCell::new(stages_dice),
            host: Cell::new(0),
            id: Cell::new(VolumeId([0; 16])),
            operations: Cell::new(0),
            outages: RefCell::new(Outages::with_tail(profile.attempt_timeout)),
            stops: Default::default(),
            damaged: RefCell::new(None),
            harm: Harm::default(),
            verbs: Verbs::default(),
            rule: Rule::default(),
            sizes: Sizes::new(profile.device_bytes()),
            faults_seen: RefCell::default(),
            foreign_writes: Cell::new(0),
            late_puts: RefCell::default(),
            snapshots: RefCell::default(),
            replica: Replica::new(&mut dice, profile.attempt_timeout),
            clones: RefCell::default(),
            clones_lost: RefCell::default(),
            deleted: RefCell::default(),
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
        self.rule.settle(takeover);
        Ok(())
    }

    /// The stages of an opening.
    pub(crate) fn describe_stages(&self) -> Vec<StageSpec> {
        let stages = self.profile.stages.describe(&mut self.stages_dice.borrow_mut());
        let is_limited = stages.iter().any(|stage| matches!(stage, StageSpec::Limit(_)));
        self.events.borrow_mut().count("opened with a limit", u64::from(is_limited));
        stages
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
        let (before, now) = (self.faults.plan(), outage || silence);
        self.faults.change(|plan| {
            plan.outage = outage;
            plan.silence = silence;
        });
        match (before.outage || before.silence, now) {
            (false, true) => self.outages.borrow_mut().begin(),
            (true, false) => self.outages.borrow_mut().end(),
            _ => {}
        }
    }

    /// Ends an outage, if there is one.
    pub(crate) fn end_outage(&self) {
        let plan = self.faults.plan();
        if plan.outage || plan.silence {
            self.set_outage(false, false);
        }
    }

    /// The chance faults of the profile, no outage.
    pub(crate) fn usual_faults(&self) {
        self.end_outage();
        let plan = self.profile.plan.clone();
        self.replica.faults.change(|now| now.clone_from(&plan));
        self.faults.change(|now| *now = plan);
    }

    /// The store works.
    pub(crate) fn calm_store(&self) {
        self.end_outage();
        let latency = self.profile.plan.latency.clone();
        self.faults.change(|plan| *plan = weir_store::FaultPlan { latency, ..Default::default() });
    }

    /// Longest write that one record of the journal takes, with these settings.
    pub(crate) fn whole_bytes_max(&self, options: &VolumeOptions) -> u64 {
        let record = options.journal.record_bytes_max as u64;
        let limit = record.min(options.journal.segment_bytes);
        let mut pieces = limit / PIECE_BYTES;
        let bytes = |pieces: u64| {
            let header = header_bytes(usize::try_from(pieces).expect("few"), self.encrypted) as u64;
            header.next_multiple_of(BLOCK_BYTES) + pieces * PIECE_BYTES
        };
        while bytes(pieces) > limit {
            pieces -= 1;
        }
        pieces * PIECE_BYTES
    }

    /// Undoes the damage to an object.
    pub(crate) fn heal_object(&self) {
        if let Some((key, _)) = self.damaged.borrow_mut().take() {
            self.faults.heal(&key);
            self.harm.object_healed.set(Some(Instant::now()));
            self.note("object healed", [0; 3]);
        }
    }

    /// The disk takes and returns everything again.
    pub(crate) fn calm_disk(&self) {
        for host in [0, 1] {
            self.calm_disk_of(host);
        }
    }

    pub(crate) fn calm_disk_of(&self, host: usize) {
        self.harm.reads_fail[host].set(false);
        let disk = &self.disks[host];
        {
            disk.change_options(|options| {
                options.read_errors_per_million = 0;
                options.write_errors_per_million = 0;
                options.sync_errors_per_million = 0;
                options.capacity_bytes = None;
            });
            disk.fail_next_syncs(0);
        }
    }
}
