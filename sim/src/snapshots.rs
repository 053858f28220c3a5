//! Snapshots in a simulated life: taken, deleted and gone back to while clients work, and looked at after every
//! opening.

use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use tokio::task::LocalSet;
use weir_device::{Device, Env, ErrorKind, IoHeader, Operation};
use weir_log::catalog::VolumeName;
use weir_log::{Change, MemoryFrameCache, SnapshotView};

use crate::client::Life;
use crate::dice::Dice;
use crate::env::{Hidden, env};
use crate::oracle::{Moment, Observation, Oracle, Point};
use crate::profile::DiskTrouble;
use crate::world::World;

/// Snapshots that are kept at a time.
const KEPT_MAX: usize = 4;

/// A snapshot that was asked for.
pub(crate) struct Known {
    pub(crate) name: VolumeName,
    /// When it was asked for.
    begun: Moment,
    /// It was answered: it must be there.
    pub(crate) taken: bool,
    /// It may be gone.
    deleting: bool,
    /// What it may show, as of the end of the call; once it was seen, what it does show.
    pub(crate) oracle: Option<Oracle>,
    seen: Option<Vec<u8>>,
}

impl Known {
    /// What it shows, if that is known and it is to stay.
    pub(crate) fn shown(&self) -> Option<Vec<u8>> {
        self.seen.clone().filter(|_| !self.deleting)
    }

    /// Whether it can be gone back to: what it shows is known.
    pub(crate) fn is_seen(&self) -> bool {
        self.seen.is_some() && !self.deleting
    }
}

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
    // As a reader: what was on top at some moment of the call may show in it.
    let begun = world.oracle.borrow_mut().begin_read();
    let name = VolumeName::new(&format!("s{begun}")).expect("a valid name");
    let (taken, deleting) = (false, false);
    let known = Known { name: name.clone(), begun, taken, deleting, oracle: None, seen: None };
    world.snapshots.borrow_mut().push(known);
    world.note("snapshot", [begun, 0, 0]);
    let result = life.volume.snapshot(&name).await;
    let done = result.is_ok();
    {
        let mut oracle = world.oracle.borrow_mut();
        oracle.abandon_read(begun);
        let oracle = oracle.clone();
        let mut snapshots = world.snapshots.borrow_mut();
        let known = snapshots.iter_mut().find(|k| k.name == name).expect("pushed above");
        known.taken = done;
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
        let mut snapshots = world.snapshots.borrow_mut();
        let at = usize::try_from(dice.below(snapshots.len() as u64)).expect("an index");
        snapshots[at].deleting = true;
        snapshots[at].name.clone()
    };
    world.note("snapshot to be deleted", [0; 3]);
    if life.volume.delete_snapshot(&name).await.is_ok() {
        world.snapshots.borrow_mut().retain(|known| known.name != name);
        world.note("  snapshot deleted", [0; 3]);
    }
}

/// A snapshot is being deleted.
pub(crate) fn mark_deleting(world: &World, name: &VolumeName) {
    for known in world.snapshots.borrow_mut().iter_mut().filter(|known| known.name == *name) {
        known.deleting = true;
    }
}

/// A snapshot was deleted.
pub(crate) fn forget(world: &World, name: &VolumeName) {
    world.snapshots.borrow_mut().retain(|known| known.name != *name);
}

/// The process dies: what was being asked for may have come about.
pub(crate) fn on_crash(world: &World) {
    for known in world.snapshots.borrow_mut().iter_mut() {
        if known.oracle.is_none() {
            let mut oracle = world.oracle.borrow_mut();
            oracle.abandon_read(known.begun);
            known.oracle = Some(oracle.clone());
        }
    }
}

/// Looks at every snapshot; what is wrong with one, if anything is.
pub(crate) async fn look(world: &World, dice: &mut Dice) -> Option<String> {
    let mut known = std::mem::take(&mut *world.snapshots.borrow_mut());
    let mut wrong = None;
    let tasks = Rc::new(LocalSet::new());
    let (boot_id, scheduling) = (world.disk().boot_id(), world.profile.scheduling);
    let env = env(dice, boot_id, scheduling, &tasks, Hidden::default());
    let mut kept = Vec::new();
    for mut snapshot in known.drain(..) {
        let cache = Arc::new(MemoryFrameCache::new(world.profile.volume_bytes));
        let (store, deadline) = (&world.bare_store, Duration::from_secs(9));
        let volume = (world.id.get(), &world.keys);
        let opened = SnapshotView::open(store, &env, volume, &snapshot.name, cache, deadline);
        let view = match tasks.run_until(opened).await {
            Ok(view) => view,
            Err(weir_log::LogError::NoSuchSnapshot { .. })
                if !snapshot.taken || snapshot.deleting =>
            {
                continue;
            }
            Err(error) => {
                wrong.get_or_insert(format!("snapshot {}: {error}", snapshot.name));
                break;
            }
        };
        match tasks.run_until(read(world, &*view)).await {
            Ok(bytes) => wrong = wrong.or(snapshot.judge(bytes)),
            // What the disk lost, it lost to the snapshot too.
            Err(error)
                if error.kind() == ErrorKind::Corrupt
                    && world.profile.trouble != DiskTrouble::None =>
            {
                continue;
            }
            Err(error) => wrong = Some(format!("snapshot {}: {error}", snapshot.name)),
        }
        kept.push(snapshot);
    }
    for pair in kept.windows(2) {
        let compared = Box::pin(compare(world, &env, &pair[0], &pair[1]));
        wrong = wrong.or(tasks.run_until(compared).await);
    }
    *world.snapshots.borrow_mut() = kept;
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
    let missed =
        before.iter().zip(&after).enumerate().filter(|(_, (was, is))| was != is).find(|(at, _)| {
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

/// All bytes that the oracle knows of.
pub(crate) async fn read(
    world: &World,
    view: &impl Device,
) -> Result<Vec<u8>, weir_device::DeviceError> {
    let (size, islands) = (world.profile.volume_bytes, &world.profile.islands);
    let mut bytes = vec![0; usize::try_from(size).expect("small")];
    let mut at = 0;
    while at < size {
        let end = size.min(islands.end(at));
        let index = |at: u64| usize::try_from(at).expect("small");
        let io = IoHeader::internal(Operation::Read, islands.place(at), end - at);
        view.read(io, &mut bytes[index(at)..index(end)]).await?;
        at = end;
    }
    Ok(bytes)
}
