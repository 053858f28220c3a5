//! A replica in another store: moved while the source lives and dies, cut off anywhere, looked at again and again, and
//! promoted in the end beside a source that goes on.

use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use tokio::task::LocalSet;
use tokio::time::{Instant, timeout};
use weir_device::{DeviceExt, Env, ErrorKind, SharedBuf, VolumeId};
use weir_log::catalog::VolumeName;
use weir_log::limits::DAMAGED_ATTEMPTS_MAX;
use weir_log::replica::{ReplicateArgs, Replicator};
use weir_log::{CheckOptions, LogError, LogVolume, MemoryFrameCache, NodeLease, SnapshotView};
use weir_store::Fault;

use crate::client::Life;
use crate::dice::Dice;
use crate::elsewhere;
use crate::env::{HANG, Hidden, env};
use crate::excuses::VERB_PATIENCE;
use crate::oracle::Point;
use crate::snapshots::{look_through, read};
use crate::world::World;

/// A process with a replicator.
struct Process {
    tasks: Rc<LocalSet>,
    env: Env,
    args: ReplicateArgs,
}

/// The first of two nodes of the replicators that each host runs.
const NODES: [u8; 2] = [70, 72];

/// Attempts to begin in the end: a renewal of the one before, which was killed, may land late and hold one up.
const ATTEMPTS_MAX: u32 = 3;

fn name() -> VolumeName {
    VolumeName::new("simulated").expect("a valid name")
}

/// A new process; two nodes take turns.
fn process(world: &World, node: u8, dice: &mut Dice) -> Process {
    let tasks = Rc::new(LocalSet::new());
    let scheduling = world.profile.scheduling;
    let env = env(dice, [9; 16], scheduling, &tasks, Hidden::default());
    let settings = world.profile.lease_settings(dice);
    let node = if dice.percent(80) { [node; 16] } else { [node + 1; 16] };
    let target = world.replica.store.clone();
    let lease = NodeLease::start(target.clone(), &env, node, "replicator", settings);
    let args = ReplicateArgs {
        source: world.store.clone(),
        target,
        volume: world.id.get(),
        name: name(),
        env: env.clone(),
        keys: world.keys.clone(),
        lease,
        on_progress: Rc::new(|_| {}),
    };
    Process { tasks, env, args }
}

/// Replicates until the life of the source ends, in processes that come and go.
pub(crate) async fn run(life: Rc<Life>, mut dice: Dice) {
    let world = Rc::clone(&life.world);
    if !world.profile.replicas {
        return;
    }
    loop {
        tokio::time::sleep(Duration::from_millis(dice.within(5..600))).await;
        let over = life.stopping.get() || life.closing.get() || life.refused_since.get().is_some();
        if over || world.is_violated() {
            return;
        }
        some_rounds(&world, life.host, &mut dice).await;
        if let Some(wrong) = look(&world, &mut dice).await {
            world.violate(wrong);
        }
    }
}

/// One process: it moves roots until it is killed, or ends in order.
async fn some_rounds(world: &Rc<World>, host: usize, dice: &mut Dice) {
    let Process { tasks, args, .. } = process(world, NODES[host], dice);
    let patience = Duration::from_millis(dice.pick(&[50, 300, 1000, 5000, 60_000]));
    let patience = patience.mul_f64(dice.pick(&[0.1, 0.3, 0.5, 0.7, 1.0]));
    let rounds = dice.within(1..4);
    let work = async {
        let mut replicator = Replicator::begin(args).await?;
        for _ in 0..rounds {
            replicator.look().await?;
            if replicator.move_root().await? {
                world.note("  root moved", [0; 3]);
            }
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
        replicator.end().await
    };
    world.note("replicator", [0; 3]);
    let began = Instant::now();
    let doing = world.begin(host, "replication");
    let killed = world.replica.killed.replace(true);
    match tasks.run_until(timeout(patience, Box::pin(work))).await {
        Ok(Ok(())) => {
            world.replica.killed.set(killed);
            world.note("  replicator ended", [0; 3]);
        }
        Ok(Err(error)) => {
            tracing::info!(%error, "replicator failed");
            world.note("  replicator failed", [0; 3]);
            if let Some(wrong) = judge_failure(world, (host, began), &error) {
                world.violate(wrong);
            }
        }
        Err(_) => world.note("crash: replicator", [0; 3]),
    }
    drop(doing);
    drop(tasks);
}

/// A replicator may fail for want of a store, and for another replicator.
fn judge_failure(
    world: &World,
    (host, began): (usize, Instant),
    error: &LogError,
) -> Option<String> {
    let replica = &world.replica;
    let flips = replica.faults.counts().of(Fault::FlippedBit);
    let late = replica.faults.counts().of(Fault::LatePutQueued) > 0;
    // Each node has its own, and one may wake up late.
    let two = world.profile.nodes == 2;
    let excused = match error.kind() {
        // One that was killed keeps its lease for a while.
        ErrorKind::Busy => late || replica.killed.get() || two,
        ErrorKind::Fenced => late || two || world.excuses_store(error.kind()),
        // Names have no checksum.
        ErrorKind::Exists => flips > 0,
        // Damage at the source must not travel, and a bit may flip again and again.
        ErrorKind::Corrupt if flips >= u64::from(DAMAGED_ATTEMPTS_MAX) => true,
        ErrorKind::Unavailable => world.host_was_away(host, VERB_PATIENCE),
        // Between an object that it did not find and the error there may be requests that the store does not answer.
        kind => world.excuses_store(kind) || world.excuses_healed(began, kind),
    };
    (!excused).then(|| format!("a replicator failed without a reason: {error}"))
}

/// What is wrong with a replica.
struct Wrong {
    what: String,
    /// An object was not there.
    gone: bool,
}

impl Wrong {
    fn new(what: impl Into<String>) -> Self {
        Self { what: what.into(), gone: false }
    }

    fn failed(what: String, kind: ErrorKind) -> Self {
        Self { what, gone: kind == ErrorKind::NotFound }
    }
}

/// Looks at the replica as anybody may at any moment; what is wrong with it, if anything is. Where the replica goes on
/// meanwhile, objects may go, and it is looked at again.
pub(crate) async fn look(world: &World, dice: &mut Dice) -> Option<String> {
    let tasks = Rc::new(LocalSet::new());
    let env = env(dice, [9; 16], world.profile.scheduling, &tasks, Hidden::default());
    let prefix = format!("{}/manifest/", world.id.get());
    let newest = async || {
        let listed = world.replica.bare_store.list(&prefix, None).await.unwrap_or_default();
        listed.last().map(|listed| listed.key.clone())
    };
    loop {
        let before = newest().await;
        match look_once(world, &env, &tasks).await {
            Ok(()) => return None,
            Err(wrong) if wrong.gone && newest().await != before => {
                world.note("  replica went on meanwhile", [0; 3]);
            }
            Err(wrong) => return Some(wrong.what),
        }
    }
}

async fn look_once(world: &World, env: &Env, tasks: &LocalSet) -> Result<(), Wrong> {
    let replica = &world.replica;
    let cache = || Arc::new(MemoryFrameCache::new(world.profile.volume_bytes));
    let (store, patience) = (&replica.bare_store, Duration::from_secs(9));
    let volume = (world.id.get(), &world.keys);
    // The other host may look meanwhile, and see more than this look, which may have been stopped.
    let floor = Point::at(replica.floor.get());
    let opened = SnapshotView::open_replica(store, env, volume, cache().into(), patience);
    let view = match tasks.run_until(opened).await {
        Ok(view) => view,
        Err(LogError::NoReplica { .. } | LogError::Inconsistent { .. }) if !replica.seen.get() => {
            return Ok(());
        }
        Err(error) => return Err(Wrong::failed(format!("the replica: {error}"), error.kind())),
    };
    replica.seen.set(true);
    if !world.sizes.ever(view.size()) {
        return Err(Wrong::new(format!("the replica has {} bytes", view.size())));
    }
    let mut oracle = world.oracle.borrow().clone();
    let seen = look_through(world, &*view, &oracle, floor);
    let seen = tasks.run_until(seen).await;
    let seen =
        seen.map_err(|error| Wrong::failed(format!("the replica: {error}"), error.kind()))?;
    match oracle.recovered(floor, true, &seen) {
        Ok(recovery) => replica.floor.set(recovery.through.max(replica.floor.get())),
        Err(violation) => return Err(Wrong::new(format!("the replica: {}", violation.0))),
    }
    // What the disk lost, it lost to the replica too.
    let lost = !seen.unreadable.is_empty();
    *replica.bytes.borrow_mut() = if lost { Vec::new() } else { seen.bytes };
    world.note("  replica looked at", [replica.floor.get(), 0, 0]);
    look_at_snapshots(world, env, tasks).await?;
    let options = CheckOptions::default();
    let checked = weir_log::check(&replica.bare_store, env, volume, &options, |_| {});
    match tasks.run_until(checked).await {
        Ok(report) => {
            let lost_in_journal = format!("{}/log/", volume.0);
            let damage = report.damage.iter().find(|d| d.place != lost_in_journal);
            damage.map_or(Ok(()), |d| {
                // It may be an object that is missing.
                Err(Wrong { what: format!("the replica: {}: {}", d.place, d.problem), gone: true })
            })
        }
        Err(error) => {
            Err(Wrong::failed(format!("the replica cannot be checked: {error}"), error.kind()))
        }
    }
}

/// Snapshots show at the replica what they show at the source.
async fn look_at_snapshots(world: &World, env: &Env, tasks: &LocalSet) -> Result<(), Wrong> {
    let known: Vec<_> = world
        .snapshots
        .borrow()
        .iter()
        .filter_map(|k| Some((k.name.clone(), k.shown()?)))
        .collect();
    for (name, shown) in known {
        let cache = Arc::new(MemoryFrameCache::new(world.profile.volume_bytes));
        let (store, volume) = (&world.replica.bare_store, (world.id.get(), &world.keys));
        let opened =
            SnapshotView::open(store, env, volume, &name, cache.into(), Duration::from_secs(9));
        let failed = |error: &dyn std::fmt::Display, kind| {
            Wrong::failed(format!("snapshot {name} of the replica: {error}"), kind)
        };
        let view = match tasks.run_until(opened).await {
            Ok(view) => view,
            // It came after the root, or was deleted meanwhile.
            Err(LogError::NoSuchSnapshot { .. }) => continue,
            Err(error) => return Err(failed(&error, error.kind())),
        };
        match tasks.run_until(read(world, &*view)).await {
            Ok(bytes) if bytes == shown => {}
            Ok(_) => {
                let what = format!("snapshot {name} of the replica shows other bytes");
                return Err(Wrong::new(what));
            }
            Err(error) => return Err(failed(&error, error.kind())),
        }
    }
    Ok(())
}

/// The end of a replica: with stores that work the newest root gets there; then it is promoted, while its source goes
/// on and a replicator still works.
pub(crate) struct Ending {
    tasks: Rc<LocalSet>,
    env: Env,
    replicator: Replicator,
}

impl Ending {
    /// Brings the replica up to its source.
    pub(crate) async fn begin(world: &World, dice: &mut Dice) -> Result<Self, String> {
        world.replica.faults.calm();
        let mut attempts = 0;
        let (tasks, env, replicator) = loop {
            let Process { tasks, env, args } = process(world, NODES[0], dice);
            let work = async {
                let mut replicator = Replicator::begin(args).await?;
                while replicator.look().await? {
                    replicator.move_root().await?;
                }
                Ok::<_, LogError>(replicator)
            };
            attempts += 1;
            match tasks.run_until(timeout(HANG, Box::pin(work))).await {
                Ok(Ok(replicator)) => break (tasks, env, replicator),
                Ok(Err(LogError::InUse { .. })) if attempts < ATTEMPTS_MAX => {}
                Ok(Err(error)) => {
                    return Err(format!("replication fails with stores that work: {error}"));
                }
                Err(_) => return Err("replication hangs with stores that work".to_owned()),
            }
        };
        match look(world, dice).await {
            Some(wrong) => Err(wrong),
            None => Ok(Self { tasks, env, replicator }),
        }
    }

    /// The replicator wakes: it must be told.
    pub(crate) async fn wake(&mut self) -> Option<String> {
        match self.tasks.run_until(timeout(HANG, self.replicator.move_root())).await {
            Ok(Ok(true)) => Some("a root was moved to a promoted replica".to_owned()),
            Ok(_) => None,
            Err(_) => Some("a replicator of a promoted replica hangs".to_owned()),
        }
    }

    /// Promotes the replica, cut off on the way as the dice say.
    pub(crate) async fn promote(&self, world: &World, dice: &mut Dice) -> Result<VolumeId, String> {
        let (store, env, name) = (&world.replica.store, &self.env, name());
        for _ in 0..dice.below(3) {
            let patience = Duration::from_micros(dice.below(60_000));
            let cut = weir_log::replica::promote(store, env, &name);
            let _ = self.tasks.run_until(timeout(patience, cut)).await;
        }
        let promotion = weir_log::replica::promote(store, env, &name);
        match self.tasks.run_until(timeout(HANG, promotion)).await {
            Ok(Ok(id)) => Ok(id),
            Ok(Err(error)) => Err(format!("promotion fails: {error}")),
            Err(_) => Err("promotion hangs".to_owned()),
        }
    }
}

/// The promoted volume, in a process and on a disk of its own, without faults.
struct Promoted {
    tasks: Rc<LocalSet>,
    volume: Rc<LogVolume>,
    env: Env,
}

impl Promoted {
    async fn open(world: &World, id: VolumeId, dice: &mut Dice) -> Result<Self, String> {
        let place = (&world.replica.bare_store, id);
        let (tasks, env, volume) =
            elsewhere::open(world, dice, place, "the promoted volume").await?;
        Ok(Self { tasks, volume, env })
    }

    /// Writes here and there, and into `model` as well, until the store has it.
    async fn write(&self, world: &World, model: &mut [u8], dice: &mut Dice) -> Result<(), String> {
        let islands = &world.profile.islands;
        let work = async {
            for _ in 0..dice.within(5..40) {
                let size = world.bytes_within(self.volume.size());
                let at = dice.below(size);
                let end = islands.end(at).min(size);
                let len = (end - at).min(dice.within(1..20_000));
                let byte = u8::try_from(dice.within(1..256)).expect("a byte");
                let data = vec![byte; usize::try_from(len).expect("small")];
                let buf = SharedBuf::copy_of(&data);
                self.volume.write(islands.place(at), buf).await?;
                let at = usize::try_from(at).expect("small");
                model[at..at + data.len()].copy_from_slice(&data);
            }
            self.volume.flush_remote().await
        };
        let written = self.tasks.run_until(timeout(HANG, Box::pin(work))).await;
        let written = written.map_err(|_| "writes to the promoted volume hang".to_owned())?;
        written.map_err(|error| format!("writing to the promoted volume: {error}"))
    }

    async fn expect(&self, world: &World, model: &[u8], when: &str) -> Result<(), String> {
        self.volume.check_invariants();
        match self.tasks.run_until(read(world, &*self.volume)).await {
            Ok(bytes) if bytes == model => Ok(()),
            Ok(bytes) => {
                let at = bytes.iter().zip(model).position(|(a, b)| a != b);
                Err(format!("the promoted volume, {when}, shows a wrong byte at {at:?}"))
            }
            Err(error) => Err(format!("the promoted volume, {when}: {error}")),
        }
    }
}

/// Promotes the replica and works on it while its old replicator wakes; the source has gone on meanwhile.
pub(crate) async fn take_over(
    world: &World,
    mut ending: Ending,
    dice: &mut Dice,
) -> Result<(), String> {
    let mut model = world.replica.bytes.borrow().clone();
    if model.is_empty() {
        // The source never published a root, or lost bytes to its disk.
        return Ok(());
    }
    let id = ending.promote(world, dice).await?;
    world.note("promoted", [0; 3]);
    let promoted = Promoted::open(world, id, dice).await?;
    promoted.expect(world, &model, "at first").await?;
    promoted.write(world, &mut model, dice).await?;
    if let Some(wrong) = ending.wake().await {
        return Err(wrong);
    }
    promoted.write(world, &mut model, dice).await?;
    promoted.expect(world, &model, "after writes").await?;
    drop(promoted);
    // From the store alone.
    let again = Promoted::open(world, id, dice).await?;
    again.expect(world, &model, "from its store").await?;
    let options = CheckOptions::default();
    let store = &world.replica.bare_store;
    let checked = weir_log::check(store, &again.env, (id, &world.keys), &options, |_| {});
    let report = again.tasks.run_until(checked).await;
    let report = report.map_err(|error| format!("the promoted volume: {error}"))?;
    match report.damage.first() {
        Some(damage) => Err(format!("the promoted volume: {}: {}", damage.place, damage.problem)),
        None => Ok(()),
    }
}
