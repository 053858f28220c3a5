//! Damage at the end of a seed: objects of every kind are changed, cut off or taken away under an open volume. A check
//! names them, a repair gives up what cannot be read and nothing else, and the store alone shows the same afterwards.

use std::cell::RefCell;
use std::collections::{BTreeMap, BTreeSet};
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use tokio::task::LocalSet;
use tokio::time::timeout;
use weir_device::{DeviceExt, Env, SharedBuf, VolumeId};
use weir_log::catalog::VolumeName;
use weir_log::format::object::{ObjectHeader, ObjectKind};
use weir_log::{
    CheckOptions, CheckReport, Damage, GivenUp, LogVolume, MemoryFrameCache, ObjectId, SnapshotView,
};

use crate::dice::Dice;
use crate::elsewhere;
use crate::env::HANG;
use crate::snapshots;
use crate::world::World;

/// Bytes that are compared at a time.
const BLOCK: u64 = 512;

/// The volume at a host that has nothing but the store.
struct Host {
    tasks: Rc<LocalSet>,
    env: Env,
    volume: Rc<LogVolume>,
}

/// What a block is expected to read as.
#[derive(Clone)]
enum Expected {
    Bytes(Vec<u8>),
    /// It cannot be read, and need not be.
    Lost,
}

/// What clients wrote, block by block.
#[derive(Clone)]
struct Model {
    blocks: Vec<Expected>,
    /// Written in full after the damage: they must be there.
    fresh: BTreeSet<usize>,
}

/// Objects that were damaged.
struct Damaged {
    /// Whether each of them belongs to a map.
    objects: BTreeMap<ObjectId, bool>,
}

impl Damaged {
    /// Whether a map is damaged: only a node that has it in memory can mend it.
    fn map(&self) -> bool {
        self.objects.values().any(|of_map| *of_map)
    }
}

/// Damages the volume, which nobody else has open, and repairs it.
pub(crate) async fn run(world: &World, dice: &mut Dice) -> Result<(), String> {
    let host = Host::open(world, dice).await?;
    let model = host.show(world).await;
    // A checkpoint, behind which nothing is: what is damaged after it was acknowledged is not missed by the log.
    let closed = host.tasks.run_until(timeout(HANG, host.volume.close())).await;
    closed.map_err(|_| "closing hangs")?.map_err(|error| format!("closing fails: {error}"))?;
    drop(host);
    let mut host = Host::open(world, dice).await?;
    let damaged = damage(world, dice).await?;
    world.note("objects damaged", [damaged.objects.len() as u64, u64::from(damaged.map()), 0]);
    let given_up = if dice.percent(50) { GivenUp::Error } else { GivenUp::Zero };
    let mut report = host.check(world).await?;
    let mut lost = judge(&report, &damaged)?;
    let names_none = report.damage.iter().all(|d| ObjectId::parse_key(&d.place).is_none());
    if names_none && let Some(name) = host.unreadable_snapshot(world).await {
        return Err(format!("snapshot {name} cannot be read, and the check says nothing"));
    }
    tracing::debug!(damage = ?report.damage, islands = ?world.profile.islands, "lost, by the check");
    host.expect(world, &model, &lost, None).await?;
    let model = Rc::new(RefCell::new(model));
    if !damaged.map() && dice.percent(50) {
        let patience = Duration::from_micros(dice.below(100_000));
        let objects = named(world, &report, dice).await;
        let repaired = host.volume.repair(&objects, given_up, |_| {});
        let _ = host.tasks.run_until(timeout(patience, Box::pin(repaired))).await;
        world.note("crash: while repairing", [0; 3]);
        drop(host);
        host = Host::open(world, dice).await?;
        report = host.check(world).await?;
        lost.extend(judge(&report, &damaged)?);
    }
    // What the map hid shows once it is whole again.
    let mut rounds = if damaged.map() { 3 } else { 1 };
    while !report.damage.is_empty() {
        if rounds == 0 {
            let Some(left) = left_over(world.id.get(), &damaged, &report) else { break };
            let Damage { place, problem, ranges, .. } = left;
            return Err(format!("after its repair: {place}: {problem}: {ranges:?}"));
        }
        rounds -= 1;
        host.repair(world, &model, &named(world, &report, dice).await, given_up, dice).await?;
        report = host.check(world).await?;
        lost.extend(judge(&report, &damaged)?);
    }
    let model = model.borrow().clone();
    host.expect(world, &model, &lost, Some(given_up)).await?;
    let shown = host.show(world).await;
    let flushed = host.tasks.run_until(timeout(HANG, host.volume.flush_remote())).await;
    flushed.map_err(|_| "a remote flush hangs")?.map_err(|error| format!("flush: {error}"))?;
    drop(host);
    let host = Host::open(world, dice).await?;
    host.expect(world, &shown, &[], None).await
}

/// Damage that a repair must not leave. An object may stay damaged while a snapshot needs it; then no byte of the
/// volume is lost by it.
fn left_over<'a>(id: VolumeId, damaged: &Damaged, report: &'a CheckReport) -> Option<&'a Damage> {
    let lost_in_journal = ObjectId::prefix(id);
    let of_snapshots = |left: &Damage| {
        let id = ObjectId::parse_key(&left.place);
        match id.and_then(|id| damaged.objects.get(&id)) {
            // Whether the map of the volume itself is whole again shows at its next opening.
            // A takeover keeps one, whatever the seed.
            Some(_) => left.lost_bytes == 0,
            None => false,
        }
    };
    report.damage.iter().find(|left| left.place != lost_in_journal && !of_snapshots(left))
}

/// Turns a bit of up to three objects, cuts their end off, or takes them away.
async fn damage(world: &World, dice: &mut Dice) -> Result<Damaged, String> {
    let store = &world.bare_store;
    let failed = |error: weir_store::StoreError| format!("the bare store: {error}");
    let mut damaged = Damaged { objects: BTreeMap::new() };
    let listed = store.list(&ObjectId::prefix(world.id.get()), None).await.map_err(failed)?;
    for _ in 0..dice.within(1..4) {
        if listed.is_empty() {
            break;
        }
        let at = usize::try_from(dice.below(listed.len() as u64)).expect("an index");
        let key = &listed[at].key;
        let Some(id) = ObjectId::parse_key(key) else { continue };
        if damaged.objects.contains_key(&id) {
            continue;
        }
        let bytes = store.get(key).await.map_err(failed)?;
        let header = ObjectHeader::decode(&bytes).map_err(|error| format!("{key}: {error}"))?;
        damaged.objects.insert(id, header.kind == ObjectKind::Checkpoint);
        let place = usize::try_from(dice.below(bytes.len() as u64)).expect("an index");
        let changed = match dice.below(3) {
            0 => {
                let mut changed = bytes.to_vec();
                changed[place] ^= 1 << dice.below(8);
                Some(changed)
            }
            1 => Some(bytes[..place].to_vec()),
            _ => None,
        };
        store.delete(key).await.map_err(failed)?;
        if let Some(changed) = changed {
            store.put_create(key, vec![changed.into()]).await.map_err(failed)?;
        }
    }
    Ok(damaged)
}

/// What a check says must be what was damaged; the ranges of the volume that it names.
fn judge(report: &CheckReport, damaged: &Damaged) -> Result<Vec<(u64, u64)>, String> {
    // Without its map nobody can say where on the volume an object's bytes belong.
    let mut lost = if damaged.map() { vec![(0, i64::MAX as u64)] } else { Vec::new() };
    for found in &report.damage {
        match ObjectId::parse_key(&found.place) {
            Some(id) if !damaged.objects.contains_key(&id) => {
                return Err(format!(
                    "{} is whole, and the check says: {}",
                    found.place, found.problem
                ));
            }
            _ => {}
        }
        lost.extend(&found.ranges);
        if found.more_ranges > 0 {
            lost.push((0, i64::MAX as u64));
        }
    }
    Ok(lost)
}

/// What somebody asks to repair: what the check named, and something that is whole.
async fn named(world: &World, report: &CheckReport, dice: &mut Dice) -> Vec<ObjectId> {
    let damaged = report.damage.iter().filter_map(|d| ObjectId::parse_key(&d.place));
    let mut objects: Vec<ObjectId> = damaged.chain(report.orphans.iter().copied()).collect();
    let listed = world.bare_store.list(&ObjectId::prefix(world.id.get()), None).await;
    if let Some(other) = listed.ok().filter(|listed| !listed.is_empty()).and_then(|listed| {
        let at = usize::try_from(dice.below(listed.len() as u64)).expect("an index");
        ObjectId::parse_key(&listed[at].key)
    }) {
        objects.push(other);
    }
    objects
}

impl Host {
    async fn open(world: &World, dice: &mut Dice) -> Result<Self, String> {
        let place = (&world.bare_store, world.id.get());
        let (tasks, env, volume) = elsewhere::open(world, dice, place, "a damaged volume").await?;
        Ok(Self { tasks, env, volume })
    }

    async fn check(&self, world: &World) -> Result<CheckReport, String> {
        let (options, volume) = (CheckOptions::default(), (world.id.get(), &world.keys));
        let checked = weir_log::check(&world.bare_store, &self.env, volume, &options, |_| {});
        let checked = self.tasks.run_until(checked).await;
        checked.map_err(|error| format!("the store cannot be checked: {error}"))
    }

    /// A snapshot that cannot be read.
    async fn unreadable_snapshot(&self, world: &World) -> Option<VolumeName> {
        let known: Vec<VolumeName> = {
            let snapshots = world.snapshots.borrow();
            snapshots.iter().filter(|k| k.is_seen()).map(|k| k.name.clone()).collect()
        };
        let look = async {
            for name in known {
                let cache = Arc::new(MemoryFrameCache::new(world.profile.volume_bytes));
                let (store, volume) = (&world.bare_store, (world.id.get(), &world.keys));
                let patience = Duration::from_secs(5);
                let opened =
                    SnapshotView::open(store, &self.env, volume, &name, cache.into(), patience)
                        .await;
                let Ok(view) = opened else { return Some(name) };
                if snapshots::read(world, &*view).await.is_err() {
                    return Some(name);
                }
            }
            None
        };
        self.tasks.run_until(look).await
    }

    /// Repairs, while a client writes.
    async fn repair(
        &self,
        world: &World,
        model: &Rc<RefCell<Model>>,
        objects: &[ObjectId],
        given_up: GivenUp,
        dice: &mut Dice,
    ) -> Result<(), String> {
        let writes: Vec<(usize, Vec<u8>)> = (0..dice.within(0..30))
            .map(|_| {
                let block = dice.below(world.bytes_within(self.volume.size()) / BLOCK);
                let byte = u8::try_from(dice.within(1..256)).expect("a byte");
                let len = usize::try_from(BLOCK).expect("small");
                (usize::try_from(block).expect("small"), vec![byte; len])
            })
            .collect();
        let islands = world.profile.islands;
        let (volume, noted) = (Rc::clone(&self.volume), Rc::clone(model));
        let writing = self.tasks.spawn_local(async move {
            for (block, data) in writes {
                let at = block as u64 * BLOCK;
                if islands.end(at) < at + BLOCK {
                    continue;
                }
                let buf = SharedBuf::copy_of(&data);
                volume.write(islands.place(at), buf).await?;
                let mut model = noted.borrow_mut();
                model.blocks[block] = Expected::Bytes(data);
                model.fresh.insert(block);
            }
            Ok::<_, weir_device::DeviceError>(())
        });
        let work = async {
            let repaired = self.volume.repair(objects, given_up, |_| {}).await;
            (repaired, writing.await)
        };
        match self.tasks.run_until(timeout(HANG, Box::pin(work))).await {
            Ok((Ok(_), Ok(Ok(())))) => Ok(()),
            Ok((Err(error), _)) => Err(format!("the repair fails: {error}")),
            Ok((_, Ok(Err(error)))) => Err(format!("a write beside a repair fails: {error}")),
            Ok((_, Err(error))) => Err(format!("the writer beside a repair: {error}")),
            Err(_) => Err("a repair hangs".to_owned()),
        }
    }

    /// A block, if it can be read. The last one may be short.
    async fn block(&self, world: &World, block: usize) -> Result<Option<Vec<u8>>, String> {
        let (start, islands) = (block as u64 * BLOCK, &world.profile.islands);
        let last = (start + BLOCK).min(world.profile.volume_bytes);
        // What lies beyond the end shows as zeroes.
        let end = last.min(world.bytes_within(self.volume.size())).max(start);
        let mut bytes = Vec::new();
        let mut at = start;
        while at < end {
            let to = end.min(islands.end(at));
            let mut part = vec![0; usize::try_from(to - at).expect("small")];
            let read = self.volume.read(islands.place(at), &mut part);
            match self.tasks.run_until(timeout(HANG, read)).await {
                Ok(Ok(_)) => bytes.extend(part),
                Ok(Err(error)) => {
                    tracing::debug!(at, %error, "a block cannot be read");
                    return Ok(None);
                }
                Err(_) => return Err("a read of a damaged volume hangs".to_owned()),
            }
            at = to;
        }
        bytes.resize(usize::try_from(last - start).expect("small"), 0);
        Ok(Some(bytes))
    }

    async fn show(&self, world: &World) -> Model {
        let mut model = Model { blocks: Vec::new(), fresh: BTreeSet::new() };
        for block in 0..blocks(world) {
            let shown = self.block(world, block).await.ok().flatten();
            model.blocks.push(shown.map_or(Expected::Lost, Expected::Bytes));
        }
        model
    }

    /// Every block is right, or it is one of those that are `lost`, and fails or reads as zeroes where a repair gave
    /// it up.
    async fn expect(
        &self,
        world: &World,
        model: &Model,
        lost: &[(u64, u64)],
        given_up: Option<GivenUp>,
    ) -> Result<(), String> {
        self.volume.check_invariants();
        for block in 0..blocks(world) {
            let wrong = |what: &str| Err(format!("block {block} of a damaged volume: {what}"));
            let excused = !model.fresh.contains(&block) && is_lost(world, block, lost);
            match (self.block(world, block).await?, &model.blocks[block]) {
                (None, Expected::Bytes(_)) if !excused => {
                    return wrong("it fails, and was not named");
                }
                (None, Expected::Bytes(_)) if given_up == Some(GivenUp::Zero) => {
                    return wrong("it fails, and was to be zeroes");
                }
                (Some(bytes), Expected::Bytes(model)) if bytes != *model => {
                    let zeroed = bytes.iter().zip(model).all(|(is, was)| is == was || *is == 0);
                    if !(excused && zeroed && given_up == Some(GivenUp::Zero)) {
                        return wrong("it shows other bytes");
                    }
                }
                _ => {}
            }
        }
        Ok(())
    }
}

fn blocks(world: &World) -> usize {
    usize::try_from(world.profile.volume_bytes.div_ceil(BLOCK)).expect("small")
}

/// Whether a part of a block lies in one of these ranges of the volume.
fn is_lost(world: &World, block: usize, lost: &[(u64, u64)]) -> bool {
    let (start, islands) = (block as u64 * BLOCK, &world.profile.islands);
    let end = (start + BLOCK).min(world.profile.volume_bytes);
    let mut at = start;
    while at < end {
        let to = end.min(islands.end(at));
        let (from, until) = (islands.place(at), islands.place(at) + (to - at));
        if lost.iter().any(|(offset, len)| *offset < until && from < offset + len) {
            return true;
        }
        at = to;
    }
    false
}
