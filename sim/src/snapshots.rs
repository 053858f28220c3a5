//! Snapshots in a simulated life: taken, deleted and gone back to while clients work, and looked at after every
//! opening.

use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use tokio::task::LocalSet;
use weir_device::{Device, DeviceError, DeviceExt, Env, ErrorKind};
use weir_log::catalog::VolumeName;
use weir_log::{Change, MemoryFrameCache, SnapshotView};
use weir_stack::QUIESCE_MAX;

use crate::client::Life;
use crate::dice::Dice;
use crate::env::{Hidden, env};
use crate::known::Known;
use crate::oracle::{Observation, Oracle, Point};
use crate::world::World;

/// Bytes that are read at a time where some of them cannot be.
const PROBED_BYTES: u64 = 512;

/// Snapshots that are kept at a time.
const KEPT_MAX: usize = 4;

/// Takes and deletes snapshots until the life ends.
pub(crate) async fn run(life: Rc<Life>, mut dice: Dice) {
    let world = Rc::clone(&life.world);
    if !world.profile.snapshots {
        return;
    }
    loop {
        tokio::time::sleep(Duration::from_millis(dice.within(5..400))).await;
        let over = life.stopping.get() || life.closing.get() || life.refused_since.get().is_some();
        if over || world.is_violated() {
            return;
        }
        let kept = world.snapshots.borrow().len();
        if kept == KEPT_MAX || (kept > 0 && dice.percent(30)) {
            delete(&life, &mut dice).await;
        } else {
            take(&life).await;
        }
    }
}

async fn take(life: &Rc<Life>) {
    let world = &life.world;
    if life.superseded.get() {
        return;
    }
    // As a reader: what was on top at some moment of the call may show in it.
    let begun = world.oracle.borrow_mut().begin_read();
    let name = VolumeName::new(&format!("s{begun}")).expect("a valid name");
    let (taken, deletions) = (false, 0);
    let known = Known {
        name: name.clone(),
        host: life.host,
        begun,
        taken,
        deletions,
        oracle: None,
        seen: None,
        sizes: world.sizes.begin(),
        size: 0,
    };
    world.snapshots.borrow_mut().push(known);
    world.note("snapshot", [begun, 0, 0]);
    let doing = world.begin(life.host, "snapshot");
    life.meets_waiting("snapshot");
    life.meets_dirty("snapshot");
    if let Some(nbd) = life.nbd() {
        nbd.meets("snapshot");
    }
    let result = life.stack.snapshot(&name, QUIESCE_MAX).await;
    drop(doing);
    let mut done = life.judge_verb("a snapshot", &result, |error| {
        // Operations in flight wait for a limit, or for a store that is away.
        error.kind() == ErrorKind::Busy && world.profile.stages.holds_writes
    });
    if done && life.superseded.get() {
        if life.honest.get() {
            world.violate("a snapshot of a superseded owner succeeded");
        }
        done = false;
    }
    {
        let mut oracle = world.oracle.borrow_mut();
        oracle.abandon_read(begun);
        let oracle = oracle.clone();
        let mut snapshots = world.snapshots.borrow_mut();
        let known = snapshots.iter_mut().find(|k| k.name == name).expect("pushed above");
        known.taken = done;
        world.sizes.end(&mut known.sizes);
        known.oracle = Some(oracle);
    }
    if done {
        world.oracle.borrow_mut().end_remote_flush(begun);
        world.note("  snapshot taken", [begun, 0, 0]);
    } else {
        world.note("  snapshot refused", [begun, 0, 0]);
    }
}

async fn delete(life: &Rc<Life>, dice: &mut Dice) {
    let world = &life.world;
    let name = {
        let snapshots = world.snapshots.borrow();
        // Not one that another process still asks for.
        let settled: Vec<&Known> = snapshots.iter().filter(|k| k.oracle.is_some()).collect();
        if settled.is_empty() {
            return;
        }
        settled[index(dice.below(settled.len() as u64))].name.clone()
    };
    remove(life, &name).await;
}

/// Deletes all of them, and waits until the store has deleted what only they needed.
pub(crate) async fn remove_all(life: &Life) {
    let names: Vec<VolumeName> =
        life.world.snapshots.borrow().iter().map(|known| known.name.clone()).collect();
    for name in names {
        remove(life, &name).await;
    }
    while life.status().pending_deletions > 0 && !life.world.is_violated() {
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
}

/// Deletes another snapshot than `spared`, if it is to be and there is one.
pub(crate) async fn remove_beside(life: &Life, spared: &VolumeName, is_to_be: bool) {
    let other = {
        let snapshots = life.world.snapshots.borrow();
        let mut others = snapshots.iter().filter(|k| k.oracle.is_some() && k.name != *spared);
        others.next_back().map(|known| known.name.clone())
    };
    if let Some(other) = other.filter(|_| is_to_be) {
        remove(life, &other).await;
    }
}

/// Deletes a snapshot. One that is there must go.
pub(crate) async fn remove(life: &Life, name: &VolumeName) {
    let world = &life.world;
    if life.superseded.get() {
        return;
    }
    let may_be_gone = {
        let mut snapshots = world.snapshots.borrow_mut();
        let known = snapshots.iter_mut().find(|known| known.name == *name);
        known.is_none_or(|known| {
            let may_be_gone = !known.taken || known.deletions > 0;
            known.deletions += 1;
            may_be_gone
        })
    };
    world.note("snapshot to be deleted", [0; 3]);
    let doing = world.begin(life.host, "deletion of a snapshot");
    let result = life.stack.delete_snapshot(name).await;
    drop(doing);
    // Of two that delete it at the same time, the one that asked first may be the one that comes too late.
    let may_be_gone = may_be_gone || {
        let snapshots = world.snapshots.borrow();
        snapshots.iter().find(|known| known.name == *name).is_none_or(|known| known.deletions > 1)
    };
    let is_excused = |error: &DeviceError| error.kind() == ErrorKind::NotFound && may_be_gone;
    if life.judge_verb("the deletion of a snapshot", &result, is_excused) {
        world.snapshots.borrow_mut().retain(|known| known.name != *name);
        world.note("  snapshot deleted", [0; 3]);
    }
}

/// The process dies: what was being asked for may have come about.
pub(crate) fn on_crash(world: &World, host: usize) {
    for known in world.snapshots.borrow_mut().iter_mut() {
        if known.host == host && known.oracle.is_none() {
            let mut oracle = world.oracle.borrow_mut();
            oracle.abandon_read(known.begun);
            known.oracle = Some(oracle.clone());
            world.sizes.end(&mut known.sizes);
        }
    }
}

/// Looks at every snapshot; what is wrong with one, if anything is.
pub(crate) async fn look(world: &World, dice: &mut Dice) -> Option<String> {
    // Those that another process still asks for stay where they are.
    let all = std::mem::take(&mut *world.snapshots.borrow_mut());
    let (mut known, asked): (Vec<Known>, Vec<Known>) =
        all.into_iter().partition(|known| known.oracle.is_some());
    *world.snapshots.borrow_mut() = asked;
    let mut wrong = None;
    let tasks = Rc::new(LocalSet::new());
    let (boot_id, scheduling) = (world.disk().boot_id(), world.profile.scheduling);
    let env = env(dice, boot_id, scheduling, &tasks, Hidden::default());
    let mut kept = Vec::new();
    for mut snapshot in known.drain(..) {
        let cache = Arc::new(MemoryFrameCache::new(world.profile.volume_bytes));
        let (store, deadline) = (&world.bare_store, Duration::from_secs(9));
        let volume = (world.id.get(), &world.keys);
        let opened =
            SnapshotView::open(store, &env, volume, &snapshot.name, cache.into(), deadline);
        let view = match tasks.run_until(opened).await {
            Ok(view) => view,
            Err(weir_log::LogError::NoSuchSnapshot { .. })
                if !snapshot.taken || snapshot.deletions > 0 =>
            {
                continue;
            }
            Err(error) => {
                wrong.get_or_insert(format!("snapshot {}: {error}", snapshot.name));
                break;
            }
        };
        let size = view.size();
        let fits = match &snapshot.seen {
            Some(_) => snapshot.size == size,
            None => snapshot.sizes.contains(size),
        };
        if !fits {
            wrong.get_or_insert(format!("snapshot {} has {size} bytes", snapshot.name));
        }
        snapshot.size = size;
        let oracle =
            snapshot.oracle.as_ref().expect("set at the end of the call or of the process");
        let seen = look_through(world, &*view, oracle, Point::at(snapshot.begun));
        match tasks.run_until(seen).await {
            // What the disk lost, it lost to the snapshot too.
            Ok(seen) if !seen.unreadable.is_empty() => {
                world.note("  snapshot with bytes that the disk lost", [0; 3]);
                continue;
            }
            Ok(seen) => wrong = wrong.or(snapshot.judge(seen.bytes)),
            Err(error) => wrong = Some(format!("snapshot {}: {error}", snapshot.name)),
        }
        kept.push(snapshot);
    }
    for pair in kept.windows(2) {
        let compared = Box::pin(compare(world, &env, &pair[0], &pair[1]));
        wrong = wrong.or(tasks.run_until(compared).await);
    }
    let asked = std::mem::replace(&mut *world.snapshots.borrow_mut(), kept);
    world.snapshots.borrow_mut().extend(asked);
    wrong
}

/// Every byte that differs between two snapshots must be in the difference that the product gives.
async fn compare(world: &World, env: &Env, from: &Known, to: &Known) -> Option<String> {
    let (Some(before), Some(after)) = (from.shown(), to.shown()) else { return None };
    let volume = (world.id.get(), &world.keys);
    let mut said: Vec<(u64, u64)> = Vec::new();
    let on_change = async |change: Change| said.push((change.offset, change.offset + change.len));
    let names = (&from.name, &to.name);
    let given = weir_log::changes(&world.bare_store, env, volume, names, on_change).await;
    if let Err(error) = given {
        return Some(format!("from snapshot {} to {}: {error}", from.name, to.name));
    }
    let islands = &world.profile.islands;
    // What lies beyond its end is no difference.
    let after = &after[..index(world.bytes_within(to.size))];
    let missed =
        before.iter().zip(after).enumerate().filter(|(_, (was, is))| was != is).find(|(at, _)| {
            let place = islands.place(*at as u64);
            let next = said.partition_point(|(_, end)| *end <= place);
            said.get(next).is_none_or(|(start, _)| *start > place)
        });
    world.note("  snapshots compared", [said.len() as u64, 0, 0]);
    missed.map(|(at, _)| {
        format!("from snapshot {} to {}: byte {at} differs, unsaid", from.name, to.name)
    })
}

impl Known {
    /// It is there: for good, showing the same bytes at every look.
    fn judge(&mut self, bytes: Vec<u8>) -> Option<String> {
        self.taken = true;
        if let Some(seen) = &self.seen {
            let differs = seen.iter().zip(&bytes).position(|(a, b)| a != b);
            return differs.map(|at| format!("snapshot {} changed at {at}", self.name));
        }
        let seen = Observation { bytes, unreadable: Vec::new() };
        let oracle = self.oracle.as_mut().expect("set at the end of the call or of the process");
        let judged = oracle.recovered(Point::at(self.begun), true, &seen);
        self.seen = Some(seen.bytes);
        judged.err().map(|violation| format!("snapshot {}: {}", self.name, violation.0))
    }
}

/// All bytes that the oracle knows of, where those that the disk may have lost may be unreadable. `oracle` knows what
/// may show as of `point`.
pub(crate) async fn look_through(
    world: &World,
    view: &impl Device,
    oracle: &Oracle,
    point: Point,
) -> Result<Observation, DeviceError> {
    match read(world, view).await {
        Ok(bytes) => return Ok(Observation { bytes, unreadable: Vec::new() }),
        Err(error) if error.kind() != ErrorKind::Corrupt => return Err(error),
        Err(_) => {}
    }
    let (size, islands) = (world.profile.volume_bytes, &world.profile.islands);
    let mut seen = Observation { bytes: vec![0; index(size)], unreadable: Vec::new() };
    let (mut at, size) = (0, world.bytes_within(view.size()));
    while at < size {
        let end = size.min(islands.end(at)).min(at + PROBED_BYTES);
        match view.read(islands.place(at), &mut seen.bytes[index(at)..index(end)]).await {
            Ok(()) => {}
            Err(error)
                if error.kind() == ErrorKind::Corrupt
                    && world.is_lost(oracle, point, (at, end - at)) =>
            {
                seen.unreadable.push((at, end));
            }
            Err(error) => return Err(error),
        }
        at = end;
    }
    Ok(seen)
}

fn index(at: u64) -> usize {
    usize::try_from(at).expect("small")
}

/// All bytes that the oracle knows of.
pub(crate) async fn read(
    world: &World,
    view: &impl Device,
) -> Result<Vec<u8>, weir_device::DeviceError> {
    let (size, islands) = (world.profile.volume_bytes, &world.profile.islands);
    let mut bytes = vec![0; index(size)];
    // What lies beyond the end shows as zeroes.
    let (mut at, size) = (0, world.bytes_within(view.size()));
    while at < size {
        let end = size.min(islands.end(at));
        view.read(islands.place(at), &mut bytes[index(at)..index(end)]).await?;
        at = end;
    }
    Ok(bytes)
}
