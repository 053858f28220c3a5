//! Clones in a simulated life: made of snapshots while these are being deleted, written to, snapshotted, cloned again,
//! flattened and deleted, with a crash of the node between any two steps; all looked at in the end.
//!
//! Each has a disk of its own that loses nothing but what was on its way, so that its bytes are known exactly.

use std::cell::RefCell;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use tokio::task::LocalSet;
use tokio::time::{Instant, timeout};
use weir_device::{DeviceError, DeviceExt, Env, ErrorKind, SharedBuf, VolumeId};
use weir_disk::DiskError;
use weir_disk::sim::{SimDisk, SimDiskOptions};
use weir_log::catalog::{self, DeleteConsent, VolumeName};
use weir_log::{
    BlockStore, CheckOptions, Closed, LogError, LogVolume, MemoryFrameCache, NodeLease, ObjectId,
    OpenArgs, Takeover, VolumeOptions,
};
use weir_store::Fault;

use crate::client::Life;
use crate::dice::Dice;
use crate::env::{HANG, Hidden, env};
use crate::known::KnownClone;
use crate::nemesis::DIRECTORY;
use crate::snapshots::read;
use crate::world::World;

/// Clones that are kept at a time.
const KEPT_MAX: usize = 3;

/// Attempts to look at a clone in the end: a manifest that lands late fences one.
const LOOKS_MAX: u64 = 6;

/// Tries, 5 s apart, of opening a clone whose last opening has requests on their way: for as long as they may take.
const LOCKED_TRIES_MAX: u64 = 36;

type Shared = Rc<RefCell<KnownClone>>;

/// Lease and cache of a node that has another volume open already.
type Place = (NodeLease, BlockStore);

/// Makes and uses clones until the life ends.
pub(crate) async fn run(life: Rc<Life>, env: Env, mut dice: Dice) {
    let world = Rc::clone(&life.world);
    if !world.profile.snapshots || !dice.percent(60) {
        return;
    }
    loop {
        tokio::time::sleep(Duration::from_millis(dice.within(5..300))).await;
        if life.stopping.get() || life.closing.get() || world.is_violated() {
            return;
        }
        let clones = world.clones.borrow().clone();
        if clones.len() < KEPT_MAX && (clones.is_empty() || dice.percent(50)) {
            make(&life, &env, &mut dice).await;
            continue;
        }
        let clone = &clones[index(dice.below(clones.len() as u64))];
        if dice.percent(15) {
            delete(&world, &env, clone, life.host).await;
            continue;
        }
        let place = dice.percent(50).then(|| (life.lease.clone(), life.blocks.clone()));
        let beside = place.is_some();
        let started = Instant::now();
        let mut opened = open(&world, &env, &mut dice, clone, place.clone()).await;
        // Requests that a close did not wait for keep it locked until they end.
        for _ in 0..LOCKED_TRIES_MAX {
            if !matches!(&opened, Err(LogError::Disk(DiskError::Locked { .. }))) {
                break;
            }
            tokio::time::sleep(Duration::from_secs(5)).await;
            opened = open(&world, &env, &mut dice, clone, place.clone()).await;
        }
        match opened {
            Ok(volume) => {
                if beside {
                    world.note("clone beside its volume", [0; 3]);
                }
                if let Err(error) = work(&world, &volume, &mut dice, clone).await
                    && !world.excuses_store(error.kind())
                    && error.kind() != ErrorKind::Fenced
                {
                    world.violate(format!("work with a clone failed without a reason: {error:?}"));
                }
                // What the store does not take in time stays in its journal.
                let closed = volume.close_within(Duration::from_secs(5)).await;
                if !matches!(closed, Ok(Closed::Clean)) {
                    clone.borrow_mut().puts_left = true;
                }
            }
            Err(error) => {
                tracing::info!(%error, "a clone cannot be opened");
                judge_opening(&world, clone, started, &error);
            }
        }
    }
}

/// A clone did not open: was there a reason?
fn judge_opening(world: &World, clone: &Shared, started: Instant, error: &LogError) {
    let (made, deleting) = (clone.borrow().made, clone.borrow().deleting);
    match error {
        LogError::NoSuchVolume { .. } if !made => {
            lose(world, clone);
        }
        LogError::NoSuchVolume { .. } | LogError::Deleted { .. } if deleting => {}
        LogError::InUse { .. } if world.has_late_puts() => {}
        _ if world.excuses_store(error.kind()) => {}
        _ if world.excuses_healed(started, error.kind()) => {}
        _ => {
            let name = &clone.borrow().name;
            world.violate(format!("clone {name} did not open without a reason: {error}"));
        }
    }
}

fn index(n: u64) -> usize {
    usize::try_from(n).expect("small")
}

fn name(text: &str) -> VolumeName {
    VolumeName::new(text).expect("a valid name")
}

fn volume() -> VolumeName {
    name("simulated")
}

/// It is not there, but may have left something behind that stands for a clone that may come, for an hour.
fn lose(world: &World, clone: &Shared) {
    world.clones_lost.borrow_mut().push(clone.borrow().ancestors.clone());
    forget(world, clone);
}

fn forget(world: &World, clone: &Shared) {
    world.clones.borrow_mut().retain(|known| !Rc::ptr_eq(known, clone));
}

/// A clone of a snapshot of the volume, which may be deleted meanwhile, or of one of a clone.
async fn make(life: &Rc<Life>, env: &Env, dice: &mut Dice) {
    let world = &life.world;
    let mut origins: Vec<(Vec<VolumeName>, VolumeName, Vec<u8>)> = Vec::new();
    for known in world.snapshots.borrow().iter() {
        origins.extend(known.shown().map(|s| (vec![], known.name.clone(), s)));
    }
    let of_volume = origins.len();
    for clone in world.clones.borrow().iter() {
        let clone = clone.borrow();
        let snapshots = clone.snapshots.iter().filter(|_| !clone.deleting);
        let mut ancestors = vec![clone.name.clone()];
        ancestors.extend(clone.ancestors.iter().cloned());
        origins.extend(snapshots.map(|(s, shown)| (ancestors.clone(), s.clone(), shown.clone())));
    }
    if origins.is_empty() {
        return;
    }
    let at = index(dice.below(origins.len() as u64));
    let (ancestors, snapshot, content) = origins.swap_remove(at);
    let parent = ancestors.first().cloned().unwrap_or_else(volume);
    let clone_name = name(&format!("c{}", dice.next()));
    let known = KnownClone {
        name: clone_name.clone(),
        id: None,
        ancestors,
        disk: SimDisk::new(dice.next(), SimDiskOptions::default()),
        made: false,
        deleting: false,
        content,
        unanswered: None,
        puts_left: false,
        snapshots: Vec::new(),
    };
    let known = Rc::new(RefCell::new(known));
    world.clones.borrow_mut().push(Rc::clone(&known));
    world.note("clone", [at as u64, 0, 0]);
    let from = (&parent, &snapshot);
    let doing = world.begin(life.host, "clone");
    let is_of_volume = at < of_volume;
    let made = async {
        let made = catalog::create_clone(&world.store, env, from, &clone_name, Takeover::Manual);
        let made = made.await;
        drop(doing);
        judge_making(world, &known, (&snapshot, is_of_volume), made);
    };
    if is_of_volume && dice.percent(40) {
        let pause = Duration::from_micros(dice.below(150_000));
        let deleted = async {
            tokio::time::sleep(pause).await;
            crate::snapshots::remove(life, &snapshot).await;
        };
        futures_util::join!(made, deleted);
    } else {
        made.await;
    }
}

/// A clone was made or refused: was there a reason?
fn judge_making(
    world: &World,
    known: &Shared,
    (snapshot, is_of_volume): (&VolumeName, bool),
    made: Result<VolumeId, LogError>,
) {
    let error = match made {
        Ok(id) => {
            let known = &mut *known.borrow_mut();
            (known.made, known.id) = (true, Some(id));
            return world.note("  clone made", [0; 3]);
        }
        Err(error) => error,
    };
    tracing::info!(%error, "no clone");
    world.note("  clone refused", [0; 3]);
    let is_leaving = || {
        let snapshots = world.snapshots.borrow();
        !snapshots.iter().any(|known| known.name == *snapshot && known.shown().is_some())
    };
    let excused = match &error {
        LogError::NoSuchSnapshot { .. } => is_of_volume && is_leaving(),
        _ => world.excuses_store(error.kind()),
    };
    if !excused {
        world.violate(format!("a clone was refused without a reason: {error}"));
    }
}

/// Whether some clone may need one.
fn may_be_needed(world: &World, name: &VolumeName) -> bool {
    let clones = world.clones.borrow();
    clones.iter().any(|clone| clone.borrow().ancestors.contains(name))
        || world.clones_lost.borrow().iter().any(|ancestors| ancestors.contains(name))
}

/// Deletes a clone; whether it is gone.
async fn delete(world: &Rc<World>, env: &Env, clone: &Shared, host: usize) -> bool {
    let (name, disk) = (clone.borrow().name.clone(), clone.borrow().disk.clone());
    let may_be_gone = std::mem::replace(&mut clone.borrow_mut().deleting, true);
    let may_be_gone = may_be_gone || !clone.borrow().made;
    let doing = world.begin(host, "deletion of a clone");
    let deleted = delete_with_journal(world, env, (&name, disk.directory())).await;
    drop(doing);
    match deleted {
        Ok(()) => {
            world.note("clone deleted", [0; 3]);
            let known = clone.borrow();
            world.deleted.borrow_mut().extend(known.id.filter(|_| !known.puts_left));
            drop(known);
            forget(world, clone);
            return true;
        }
        Err(LogError::NoSuchVolume { .. }) if may_be_gone => {
            lose(world, clone);
            return true;
        }
        Err(LogError::Dependants { .. }) if may_be_needed(world, &name) => {
            world.note("clone needed by clones", [0; 3]);
            clone.borrow_mut().deleting = false;
        }
        Err(error) if world.excuses_store(error.kind()) => {
            tracing::info!(%error, "deleting a clone");
        }
        Err(error) => {
            world.violate(format!("deleting clone {name} failed without a reason: {error}"));
        }
    }
    false
}

/// A clone that was not closed is deleted where its journal is.
async fn delete_with_journal(
    world: &World,
    env: &Env,
    (name, directory): (&VolumeName, weir_disk::Directory),
) -> Result<(), LogError> {
    let id = catalog::find(&world.store, env, name).await?;
    let journal = catalog::journal_in(&directory, id).await?;
    let consent = DeleteConsent { ours: journal, ..DeleteConsent::default() };
    catalog::delete(&world.store, env, name, consent, |_, _| {}).await
}

async fn open(
    world: &World,
    env: &Env,
    dice: &mut Dice,
    clone: &Shared,
    place: Option<Place>,
) -> Result<Rc<LogVolume>, LogError> {
    let (name, disk) = (clone.borrow().name.clone(), clone.borrow().disk.clone());
    let id = catalog::find(&world.store, env, &name).await?;
    let options = VolumeOptions {
        close_deadline: Duration::from_secs(60),
        ..world.profile.draw_options(dice)
    };
    let (lease, blocks) = place.unwrap_or_else(|| {
        let settings = world.profile.lease_settings(dice);
        let lease = NodeLease::start(world.store.clone(), env, id.0, "clone", settings);
        (lease, Arc::new(MemoryFrameCache::new(world.profile.volume_bytes / 3)).into())
    });
    let args = OpenArgs {
        store: world.store.clone(),
        id,
        directory: disk.directory(),
        env: env.clone(),
        keys: world.keys.clone(),
        options,
        blocks,
        lease,
        accept_loss: false,
        take_over: false,
        discard_journal: false,
        adopt_journal: false,
        incomplete: false,
        on_wait: None,
    };
    let (volume, _) = Box::pin(LogVolume::open(args)).await?;
    let known = &mut *clone.borrow_mut();
    (known.made, known.id) = (true, Some(id));
    Ok(volume)
}

/// Looks at the clone, and does a few things to it.
async fn work(
    world: &World,
    volume: &Rc<LogVolume>,
    dice: &mut Dice,
    clone: &Shared,
) -> Result<(), DeviceError> {
    look(world, volume, clone).await?;
    world.note("clone used", [0; 3]);
    for _ in 0..dice.within(1..12) {
        write(world, volume, dice, clone).await?;
    }
    if dice.percent(40) && clone.borrow().snapshots.len() < 2 {
        let snapshot = name(&format!("m{}", dice.next()));
        let shown = clone.borrow().content.clone();
        volume.snapshot(&snapshot).await?;
        clone.borrow_mut().snapshots.push((snapshot, shown));
        world.note("clone snapshotted", [0; 3]);
    } else if dice.percent(30) {
        let gone = clone.borrow_mut().snapshots.pop();
        if let Some((snapshot, _)) = gone {
            volume.delete_snapshot(&snapshot).await?;
        }
    }
    if dice.percent(40) {
        let report = volume.flatten(|_, _| {}).await?;
        world.note("clone flattened", [report.copied_bytes, report.origins.len() as u64, 0]);
        if dice.percent(50) {
            write(world, volume, dice, clone).await?;
        }
    }
    if dice.percent(50) {
        volume.flush_remote().await?;
        volume.check_invariants();
    }
    look(world, volume, clone).await
}

async fn write(
    world: &World,
    volume: &LogVolume,
    dice: &mut Dice,
    clone: &Shared,
) -> Result<(), DeviceError> {
    let islands = &world.profile.islands;
    let size = world.bytes_within(volume.size());
    let at = dice.below(size);
    let end = islands.end(at).min(size).min(at + dice.within(1..30_000));
    let (from, byte) = (index(at), u8::try_from(dice.within(1..256)).expect("a byte"));
    let data: Vec<u8> = (from..index(end)).map(|n| byte ^ n.to_le_bytes()[0]).collect();
    clone.borrow_mut().unanswered = Some((from, data.clone()));
    volume.write(islands.place(at), SharedBuf::copy_of(&data)).await?;
    let mut clone = clone.borrow_mut();
    clone.unanswered = None;
    clone.content[from..from + data.len()].copy_from_slice(&data);
    Ok(())
}

/// Compares what the clone shows with what it must.
async fn look(world: &World, volume: &LogVolume, clone: &Shared) -> Result<(), DeviceError> {
    let seen = read(world, volume).await?;
    let mut clone = clone.borrow_mut();
    let unanswered = clone.unanswered.take();
    let may_be = |at: usize| {
        let (from, data) = unanswered.as_ref()?;
        at.checked_sub(*from).and_then(|n| data.get(n)).copied()
    };
    let wrong = |at: &usize| seen[*at] != clone.content[*at] && may_be(*at) != Some(seen[*at]);
    if let Some(at) = (0..seen.len()).find(wrong) {
        world.violate(format!(
            "clone {}: byte {at} is {:#x}, not {:#x}",
            clone.name, seen[at], clone.content[at]
        ));
    }
    clone.content = seen;
    Ok(())
}

/// The process dies.
pub(crate) fn on_crash(world: &World) {
    for clone in world.clones.borrow().iter() {
        clone.borrow().disk.crash_process();
    }
}

/// Looks at every clone in the end, with a store that works, and deletes some; what is wrong, if anything is.
pub(crate) async fn audit(world: &Rc<World>, dice: &mut Dice) -> Option<String> {
    let mut clones = world.clones.borrow().clone();
    // Those that others were made of come last.
    clones.reverse();
    for clone in clones {
        let mut last = String::new();
        for attempt in 0..LOOKS_MAX {
            let tasks = Rc::new(LocalSet::new());
            let (boot_id, scheduling) = (clone.borrow().disk.boot_id(), world.profile.scheduling);
            let env = env(dice, boot_id, scheduling, &tasks, Hidden::default());
            let looking = Box::pin(look_at(world, &env, dice, &clone));
            let looked = tasks.run_until(timeout(HANG, looking)).await;
            clone.borrow().disk.crash_process();
            drop(tasks);
            match looked {
                Ok(Ok(wrong)) if wrong.is_some() => return wrong,
                Ok(Ok(_)) => {
                    last.clear();
                    break;
                }
                Ok(Err(error)) => last = error,
                Err(_) => last = "looking at it hangs".to_owned(),
            }
            tokio::time::sleep(Duration::from_secs(10 * attempt)).await;
        }
        if !last.is_empty() {
            return Some(format!("clone {}: {last}", clone.borrow().name));
        }
        if world.is_violated() {
            return None;
        }
    }
    left_of_deleted(world).await
}

/// Deletes every clone and the volume; what is left of them, if anything is.
pub(crate) async fn delete_everything(world: &Rc<World>, dice: &mut Dice) -> Option<String> {
    let tasks = Rc::new(LocalSet::new());
    let env = env(dice, [8; 16], world.profile.scheduling, &tasks, Hidden::default());
    let work = async {
        let mut clones = world.clones.borrow().clone();
        clones.reverse();
        for clone in clones {
            delete(world, &env, &clone, world.host.get()).await;
        }
        let directory = match world.disk().directory().subdirectory(DIRECTORY).await {
            Ok(directory) => directory,
            Err(error) => return Some(format!("the volume's directory: {error}")),
        };
        let deleted = delete_with_journal(world, &env, (&volume(), directory)).await;
        let is_needed =
            || !world.clones.borrow().is_empty() || !world.clones_lost.borrow().is_empty();
        match deleted {
            Ok(()) => world.deleted.borrow_mut().push(world.id.get()),
            Err(LogError::Dependants { .. }) if is_needed() => {}
            Err(error) => return Some(format!("the volume cannot be deleted: {error}")),
        }
        world.note("everything deleted", [0; 3]);
        left_of_deleted(world).await
    };
    match tasks.run_until(timeout(HANG, Box::pin(work))).await {
        Ok(wrong) => wrong,
        Err(_) => Some("deleting everything hangs".to_owned()),
    }
}

/// Nothing is left of what was deleted, but for PUTs that landed later.
async fn left_of_deleted(world: &World) -> Option<String> {
    let deleted = world.deleted.borrow().clone();
    for id in deleted {
        let listed = world.bare_store.list(&ObjectId::prefix(id), None).await;
        let left = listed.map(|listed| listed.len()).unwrap_or_default();
        if left > 0 && world.faults.counts().of(Fault::LatePutLanded) == 0 {
            return Some(format!("{left} objects are left of volume {id}, which was deleted"));
        }
    }
    None
}

async fn look_at(
    world: &Rc<World>,
    env: &Env,
    dice: &mut Dice,
    clone: &Shared,
) -> Result<Option<String>, String> {
    if clone.borrow().deleting {
        // What was begun comes to its end.
        delete(world, env, clone, world.host.get()).await;
        return Ok(None);
    }
    let volume = match open(world, env, dice, clone, None).await {
        Ok(volume) => volume,
        Err(LogError::NoSuchVolume { .. }) if !clone.borrow().made => return Ok(None),
        Err(error) => return Err(error.to_string()),
    };
    look(world, &volume, clone).await.map_err(|error| error.to_string())?;
    volume.check_invariants();
    volume.flush_remote().await.map_err(|error| error.to_string())?;
    while volume.status().pending_deletions > 0 {
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
    volume.close().await.map_err(|error| error.to_string())?;
    let options = CheckOptions::default();
    let of = (volume.id(), &world.keys);
    let checked = weir_log::check(&world.bare_store, env, of, &options, |_| {}).await;
    let report = checked.map_err(|error| error.to_string())?;
    world.note("clone judged", [report.objects, 0, 0]);
    let (name, orphans) = (clone.borrow().name.clone(), report.orphans.len());
    if orphans > 0 && !world.may_have_orphans() {
        return Ok(Some(format!("clone {name}: {orphans} objects are left that nobody deletes")));
    }
    if let Some(damage) = report.damage.first() {
        return Ok(Some(format!("clone {name}: {}: {}", damage.place, damage.problem)));
    }
    drop(volume);
    if dice.percent(40) {
        delete(world, env, clone, world.host.get()).await;
    }
    Ok(None)
}
