//! Reads everything a volume has in its store, from the manifest to the last checksum, and says what is damaged or
//! missing and which bytes of the volume are lost by it. Changes nothing.

pub(crate) mod late;
pub(crate) mod opens;
pub(crate) mod space;

use std::collections::{BTreeMap, BTreeSet};
use std::num::NonZeroU64;
use std::time::Duration;

use bytes::Bytes;
use futures_util::StreamExt;
use futures_util::stream;
use weir_device::{Env, VolumeId};
use weir_seal::DataKey;
use weir_store::{RetryPolicy, Store, StoreError};

use crate::collect::garbage::Garbage;
use crate::error::LogError;
use crate::format::frame::{self, Look};
use crate::format::manifest::{Manifest, Origin, VolumeState};
use crate::format::object::ObjectHeader;
use crate::ids::{ObjectId, ObjectSeq};
use crate::keys::{KeyError, Keys};
use crate::limits::{DAMAGED_ATTEMPTS_MAX, FRAME_BYTES};
use crate::map::load::{self, Awaited, Loaded};
use crate::map::objects::{ObjectMap, ObjectPlace};
use crate::options::MapLimits;
use crate::own::manifests;
use crate::random::splitmix;

/// Objects read at a time: hides the latency of a remote store, and bounds the memory to a few full objects.
const READS_MAX: usize = 4;

/// Looks at a volume that goes on meanwhile, each finding something else wrong, before that is an error.
const VIEWS_MAX: u32 = 10;

/// Ranges that are listed per damaged object; the rest is counted.
const RANGES_LISTED_MAX: usize = 64;

/// How a check goes about it.
#[derive(Clone, Debug, Default)]
pub struct CheckOptions {
    /// Bytes read per second at most, on average.
    pub bytes_per_second: Option<NonZeroU64>,
    /// Objects that an earlier run found whole: they are not read again, only looked for.
    pub known_whole: BTreeSet<ObjectId>,
}

/// What a check says while it goes on, once for each object.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CheckStep {
    /// Objects read so far.
    pub done: u64,
    /// Objects to be read.
    pub total: u64,
    /// The one that was just found whole, if it was.
    pub whole: Option<ObjectId>,
}

/// What a check found.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct CheckReport {
    /// Objects read, from header to checksums.
    pub objects: u64,
    /// Bytes of them.
    pub bytes: u64,
    /// Objects that were not read because an earlier run found them whole.
    pub known_objects: u64,
    /// Objects that belong to no reading of the volume: a crash or a takeover left them, and the next opening deletes
    /// them.
    pub void_objects: u64,
    /// Objects that nothing needs any more and that the volume is about to delete.
    pub pending_objects: u64,
    /// Objects that nothing needs and nobody will delete: a late PUT of the store brought them back, for one.
    pub orphans: Vec<ObjectId>,
    /// In the log of a volume that was not closed: the first object that is not there though later ones are.
    pub awaited: Option<Awaited>,
    /// Why the key of an encrypted volume was not at hand. Then checksums are all that was checked, no bytes of the
    /// volume can be named for what is damaged, and objects that nothing needs are not told from those that are missed.
    pub without_key: Option<String>,
    /// Why this is no whole volume, though everything that there is of it may be.
    pub incomplete: Option<&'static str>,
    /// What is damaged or missing; nothing when the volume is whole.
    pub damage: Vec<Damage>,
}

/// One thing that is damaged or missing.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Damage {
    /// Its key in the store.
    pub place: String,
    /// What is wrong with it.
    pub problem: String,
    /// Bytes of the volume that cannot be read because of it.
    pub lost_bytes: u64,
    /// Offset and length on the volume, the first of them.
    pub ranges: Vec<(u64, u64)>,
    /// Ranges that are not listed.
    pub more_ranges: u64,
}

/// The problem with what fails to be read though no object is wrong: it was given up before.
pub const GIVEN_UP: &str = "bytes that were lost to damage in a journal, or given up by a repair: reads fail until \
     they are written anew; weir volume repair --zero makes zeroes of them";

impl Damage {
    fn new(place: impl Into<String>, problem: impl Into<String>) -> Self {
        Self { place: place.into(), problem: problem.into(), ..Self::default() }
    }

    fn add_range(&mut self, offset: u64, len: u64) {
        self.lost_bytes += len;
        let has_room = self.ranges.len() < RANGES_LISTED_MAX;
        match self.ranges.last_mut() {
            Some((last, length)) if *last + *length == offset && self.more_ranges == 0 => {
                *length += len;
            }
            _ if has_room => self.ranges.push((offset, len)),
            _ => self.more_ranges += 1,
        }
    }
}

/// What is wrong with one object.
#[derive(Debug)]
pub(crate) struct Wrong {
    problem: String,
    /// Payload ranges that cannot be read, as first byte and end.
    pub(crate) payload: Vec<(u64, u64)>,
}

impl Wrong {
    fn whole(problem: impl Into<String>) -> Self {
        Self { problem: problem.into(), payload: vec![(0, u64::MAX)] }
    }
}

/// Checks volume `id`, whether or not it is open somewhere. `on_step` hears of each object that was read. Runs on the
/// calling thread but for the reading; keep it away from a thread that serves clients. Without the key of an encrypted
/// volume it checks what can be checked.
///
/// # Errors
/// What the store says where it does not answer at all. What is damaged or missing is no error: it is in the report.
pub async fn check(
    store: &Store,
    env: &Env,
    (id, keys): (VolumeId, &Keys),
    options: &CheckOptions,
    mut on_step: impl FnMut(CheckStep),
) -> Result<CheckReport, LogError> {
    let mut report = CheckReport::default();
    let mut wrong: BTreeMap<ObjectId, Wrong> = BTreeMap::new();
    let opened = open_key(store, env, (id, keys)).await;
    let view = match view(store, env, id, &opened, &mut wrong).await? {
        Ok(view) => Some(view),
        Err(problem) => {
            report.damage.push(Damage::new(Manifest::prefix(id), problem));
            None
        }
    };
    let of_map: BTreeSet<ObjectId> = wrong.keys().copied().collect();
    // Listed after the map was loaded: everything that the map needs was in the store by then, and what is collected
    // from now on is left out below.
    let listed = list_all(store, env, id, view.as_ref()).await?;
    let mut wanted = sort_out(id, &listed, view.as_ref(), &mut report);
    report.incomplete = view.as_ref().and_then(|view| why_incomplete(&view.manifest));
    let all = wanted.len();
    wanted.retain(|object| !options.known_whole.contains(object));
    report.known_objects = (all - wanted.len()) as u64;
    let started = tokio::time::Instant::now();
    let total = wanted.len() as u64;
    let reads = wanted.iter().map(|object| {
        let seed = env.random.next_u64();
        let read = env.background(examine(store.clone(), *object, opened.key.clone(), seed));
        async move { (*object, read.await) }
    });
    let mut reads = stream::iter(reads).buffered(READS_MAX);
    while let Some((object, read)) = reads.next().await {
        let (bytes, found) = read.ok_or(LogError::ShuttingDown)??;
        report.objects += 1;
        report.bytes += bytes;
        let whole = found.is_none().then_some(object);
        if let Some(found) = found {
            wrong.insert(object, found);
        }
        on_step(CheckStep { done: report.objects, total, whole });
        if let Some(limit) = options.bytes_per_second {
            let due = started + Duration::from_millis(report.bytes.saturating_mul(1000) / limit);
            tokio::time::sleep_until(due).await;
        }
    }
    drop(reads);
    if let Some(View { manifest, loaded: Some(loaded), held }) = &view {
        let there: BTreeSet<ObjectId> = listed.into_iter().collect();
        find_missing(&loaded.objects, &held.objects, &there, &mut wrong);
        report.awaited = find_gap(manifest, loaded, &mut wrong);
        Box::pin(forget_collected(store, env, id, &opened, manifest, &mut wrong)).await?;
    } else {
        // An object that disappeared during the check was deleted by the volume, as far as can be told without a map.
        let there: BTreeSet<_> =
            list_all(store, env, id, view.as_ref()).await?.into_iter().collect();
        wrong.retain(|object, _| of_map.contains(object) || there.contains(object));
    }
    if let Some(error) = &opened.error {
        report.without_key = Some(error.to_string());
        if error.kind() == weir_device::ErrorKind::Corrupt {
            report.damage.push(Damage::new(Manifest::prefix(id), error.to_string()));
        }
    }
    let objects = view.as_ref().and_then(|view| view.loaded.as_ref()).map(|l| &l.objects);
    add_damage(&mut report, objects, wrong, id);
    Ok(report)
}

/// Why what a store has under the name of a volume is none, or not all of one.
fn why_incomplete(manifest: &Manifest) -> Option<&'static str> {
    match manifest.state {
        VolumeState::Incomplete => {
            Some("the import, copy or salvage that fills it has not come to its end")
        }
        VolumeState::Replica if manifest.root().is_none() => {
            Some("it is a replica in which nothing is complete yet")
        }
        VolumeState::Deleted => Some("its deletion has not come to its end"),
        VolumeState::Active | VolumeState::Replica => None,
    }
}

/// The key of the volume, if it has one, or why it is not at hand.
struct Opened {
    key: Option<DataKey>,
    error: Option<KeyError>,
}

async fn open_key(store: &Store, env: &Env, (id, keys): (VolumeId, &Keys)) -> Opened {
    // What is wrong with the manifest is found by the look at the volume.
    let Ok(manifest) = manifests::newest(store, env, id).await else {
        return Opened { key: None, error: None };
    };
    match keys.open(id, manifest.encryption.as_ref()).await {
        Ok(key) => Opened { key, error: None },
        Err(error) => Opened { key: None, error: Some(error) },
    }
}

/// A volume as an opening would see it.
struct View {
    manifest: Manifest,
    /// The map, as far as it can be loaded.
    loaded: Option<Loaded>,
    /// What snapshots reach.
    held: Held,
}

/// What snapshots reach, as far as they can be read.
#[derive(Default)]
struct Held {
    objects: BTreeSet<ObjectId>,
    /// A snapshot cannot be read: it may need whatever nothing else does.
    may_be_more: bool,
}

impl View {
    fn needs(&self, object: &ObjectId) -> bool {
        let own = object.stream.0 == self.manifest.volume.0;
        let needs = |loaded: &Loaded| {
            loaded.objects.table.find(object).is_some() || (own && loaded.needs(object))
        };
        let head = self.loaded.as_ref().is_none_or(needs);
        head || self.held.objects.contains(object)
    }
}

/// The streams that hold anything of the volume: its own, and those that it descends from.
fn streams(id: VolumeId, view: Option<&View>) -> BTreeSet<VolumeId> {
    let named = view.and_then(|view| view.loaded.as_ref());
    let named = named.into_iter().flat_map(|loaded| loaded.objects.table.objects());
    let held = view.into_iter().flat_map(|view| view.held.objects.iter().copied());
    let others = named.chain(held).map(|object| object.stream);
    others.chain([id]).collect()
}

/// All objects of these streams.
async fn list_all(
    store: &Store,
    env: &Env,
    id: VolumeId,
    view: Option<&View>,
) -> Result<Vec<ObjectId>, LogError> {
    let mut listed = Vec::new();
    for stream in streams(id, view) {
        listed.extend(list(store, env, stream).await?);
    }
    Ok(listed)
}

/// Loads what an opening would see, and notes what is in the way of it; or says what is wrong with the manifest.
///
/// An open volume may publish a checkpoint meanwhile and delete what the one before needed. So only what two looks in a
/// row find counts: the second one begins with a version that does not need what was collected during the first.
async fn view(
    store: &Store,
    env: &Env,
    id: VolumeId,
    opened: &Opened,
    wrong: &mut BTreeMap<ObjectId, Wrong>,
) -> Result<Result<View, String>, LogError> {
    for _ in 0..VIEWS_MAX {
        let before = std::mem::take(wrong);
        let manifest = match manifests::newest(store, env, id).await {
            Ok(manifest) => manifest,
            Err(error) => return Ok(Err(damage_of(error)?.1)),
        };
        if opened.error.is_some() {
            return Ok(Ok(View { manifest, loaded: None, held: Held::default() }));
        }
        let at = (id, opened.key.as_ref());
        let loaded = load_map(store, env, at, &manifest, wrong).await?;
        let held = load_held(store, env, at, &manifest, wrong).await?;
        if wrong.keys().all(|object| before.contains_key(object)) {
            return Ok(Ok(View { manifest, loaded, held }));
        }
    }
    let what =
        "something else was wrong with its map in each look: check it again while less is written";
    Err(LogError::Inconsistent { volume: id, what: what.to_owned() })
}

async fn load_held(
    store: &Store,
    env: &Env,
    (id, key): (VolumeId, Option<&DataKey>),
    manifest: &Manifest,
    wrong: &mut BTreeMap<ObjectId, Wrong>,
) -> Result<Held, LogError> {
    let mut held = Held::default();
    let unseen = weir_device::mutant("check_ignores_snapshots");
    let snapshots = manifest.snapshots.iter().filter(|_| !unseen);
    let snapshots = snapshots.map(|s| (s.root(id), format!("snapshot {} needs it", s.name)));
    // What the head begins with is in no checkpoint of its own.
    let origin = manifest.root().filter(|_| manifest.checkpoint.is_none());
    let origin = origin.map(|root| (root, "the map needs it".to_owned()));
    for (root, whose) in snapshots.chain(origin) {
        // What its own holder keeps with a snapshot is more than what others copied.
        let is_copy = manifest.state == VolumeState::Replica || root.stream.0 != id.0;
        let reached = if is_copy {
            load::live(store, env, key, root).await
        } else {
            load::reach(store, env, key, root).await
        };
        match reached {
            Ok(reached) => held.objects.extend(reached),
            Err(error) => {
                let (object, problem) = damage_of(error)?;
                let object = object.unwrap_or_else(|| root_of(root));
                let problem = format!("{whose}: {problem}");
                wrong.insert(object, Wrong::whole(problem));
                held.may_be_more = true;
            }
        }
    }
    Ok(held)
}

fn root_of(Origin { stream, checkpoint }: Origin) -> ObjectId {
    let stream = VolumeId(stream.0);
    let (seq, epoch) = (ObjectSeq(checkpoint.sequence), weir_journal::Epoch(checkpoint.epoch));
    ObjectId { stream, seq, epoch }
}

/// The listed objects that the volume needs; the others are counted in the report.
fn sort_out(
    id: VolumeId,
    listed: &[ObjectId],
    view: Option<&View>,
    report: &mut CheckReport,
) -> Vec<ObjectId> {
    let Some(view) = view else { return listed.to_vec() };
    let View { manifest, loaded, .. } = view;
    let pending = Garbage::listed(manifest);
    let void: BTreeSet<ObjectId> = loaded.iter().flat_map(|l| l.void.iter().copied()).collect();
    let as_of = manifest.checkpoint.map_or(0, |c| c.as_of);
    let mut wanted = Vec::new();
    let is_replica = manifest.state == VolumeState::Replica;
    let is_void = |id: &ObjectId| void.contains(id) || manifest.owner_of(id.seq) != Some(id.epoch);
    for object in listed {
        let reached = view.needs(object);
        let after = object.seq.0 > as_of && !is_replica;
        let needed = reached || view.held.may_be_more || after;
        if object.stream != id {
            // What the volume does not need of another stream is not its own.
            wanted.extend(reached.then_some(*object));
        } else if pending.contains(object) {
            report.pending_objects += 1;
        } else if is_replica && !needed {
            // It belongs to a root that is being copied to the replica: the replicator's next run either needs it or
            // deletes it.
            report.void_objects += 1;
        } else if !reached && is_void(object) {
            report.void_objects += 1;
        } else if needed {
            wanted.push(*object);
        } else {
            report.orphans.push(*object);
        }
    }
    wanted
}

/// What was missing because an open volume collected it meanwhile is no damage.
async fn forget_collected(
    store: &Store,
    env: &Env,
    id: VolumeId,
    opened: &Opened,
    seen: &Manifest,
    wrong: &mut BTreeMap<ObjectId, Wrong>,
) -> Result<(), LogError> {
    if wrong.is_empty() || manifests::newest(store, env, id).await?.number == seen.number {
        return Ok(());
    }
    // Whatever was deleted before the look that missed it is unneeded in every version since. What a damaged snapshot
    // needs is not known, but for its root: what is still there may be.
    let mut wrong_now = BTreeMap::new();
    if let Ok(now) = view(store, env, id, opened, &mut wrong_now).await? {
        let there = if now.held.may_be_more { list(store, env, id).await? } else { Vec::new() };
        let there: BTreeSet<ObjectId> = there.into_iter().collect();
        wrong.retain(|object, _| {
            now.needs(object) || there.contains(object) || wrong_now.contains_key(object)
        });
    }
    Ok(())
}

/// What a damaged object says; errors of the store itself go up.
fn damage_of(error: LogError) -> Result<(Option<ObjectId>, String), LogError> {
    let message = error.to_string();
    match error {
        LogError::Object { object, source } => Ok((Some(object), source.to_string())),
        LogError::Store(StoreError::NotFound { place, .. }) => {
            Ok((ObjectId::parse_key(&place.key), "it is missing".to_owned()))
        }
        LogError::Inconsistent { .. } | LogError::Json { .. } => Ok((None, message)),
        LogError::Origin { origin, source, .. } => {
            let (object, problem) = damage_of(*source)?;
            Ok((object, format!("it begins as {origin}: {problem}")))
        }
        // What a newer program wrote is not damaged.
        other => Err(other),
    }
}

async fn list(store: &Store, env: &Env, id: VolumeId) -> Result<Vec<ObjectId>, LogError> {
    let prefix = ObjectId::prefix(id);
    let mut random = || env.random.next_u64();
    let list = || store.list(&prefix, None);
    let listed = store.retry(&RetryPolicy::reads(), &mut random, None, list).await?;
    Ok(listed.iter().filter_map(|l| ObjectId::parse_key(&l.key)).collect())
}

/// The map as an opening would see it, as far as it can be loaded.
async fn load_map(
    store: &Store,
    env: &Env,
    (id, key): (VolumeId, Option<&DataKey>),
    manifest: &Manifest,
    wrong: &mut BTreeMap<ObjectId, Wrong>,
) -> Result<Option<Loaded>, LogError> {
    let mut note = |error| -> Result<(), LogError> {
        let (object, problem) = damage_of(error)?;
        let root = manifest.root().map(root_of);
        if let Some(object) = object.or(root) {
            wrong.insert(object, Wrong::whole(format!("the map needs it: {problem}")));
        }
        Ok(())
    };
    let mut loaded = match load::head(store, env, key, manifest).await {
        Ok(loaded) => loaded,
        Err(error) => return note(error).map(|()| None),
    };
    if manifest.state == VolumeState::Replica {
        // It shows its root and nothing after it.
        return Ok(Some(loaded));
    }
    let limits = MapLimits::default();
    let rolled = load::roll_forward(store, env, (id, key), manifest, &mut loaded, &limits).await;
    if let Err(error) = rolled {
        note(error)?;
    }
    Ok(Some(loaded))
}

/// Reads one object with retries and looks at every byte of it.
pub(crate) async fn examine(
    store: Store,
    id: ObjectId,
    volume_key: Option<DataKey>,
    seed: u64,
) -> Result<(u64, Option<Wrong>), LogError> {
    let mut random = splitmix(seed);
    let key = id.key();
    let mut attempt = 0;
    loop {
        attempt += 1;
        let read = store.retry(&RetryPolicy::reads(), &mut random, None, || store.get(&key)).await;
        let bytes = match read {
            Ok(bytes) => bytes,
            Err(StoreError::NotFound { .. }) => {
                return Ok((0, Some(Wrong::whole("it is missing"))));
            }
            Err(error) => return Err(error.into()),
        };
        match verify(id, volume_key.as_ref(), &bytes, Depth::Decode)? {
            // What was damaged on its way only is whole the next time.
            Some(_) if attempt < DAMAGED_ATTEMPTS_MAX => {}
            found => return Ok((bytes.len() as u64, found)),
        }
    }
}

/// What is wrong with the bytes of an object, if anything is, as far as its checksums say.
pub(crate) fn problem_of(id: ObjectId, bytes: &Bytes) -> Option<String> {
    match verify(id, None, bytes, Depth::Checksums) {
        Ok(wrong) => wrong.map(|wrong| wrong.problem),
        Err(error) => Some(error.to_string()),
    }
}

/// How closely the frames of an object are looked at.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Depth {
    Checksums,
    /// Whether they decode, unless they are encrypted and there is no key.
    Decode,
}

/// What is wrong with the bytes of an object, if anything is. What a newer program wrote is not: it is an error.
fn verify(
    id: ObjectId,
    key: Option<&DataKey>,
    bytes: &Bytes,
    depth: Depth,
) -> Result<Option<Wrong>, LogError> {
    let opened = match key {
        Some(key) => ObjectHeader::open(bytes, Some(key)),
        None => ObjectHeader::decode(bytes).map(|header| (header, None)),
    };
    let (header, key) = match opened {
        Ok((header, key)) if header.id == id => (header, key),
        Ok((header, _)) => {
            return Ok(Some(Wrong::whole(format!("it is object {}", header.id.key()))));
        }
        Err(source) if ObjectHeader::is_of_newer_version(bytes) => {
            return Err(LogError::Object { object: id, source });
        }
        Err(error) => return Ok(Some(Wrong::whole(error.to_string()))),
    };
    let look = match depth {
        Depth::Decode if key.is_some() || header.sealed.is_none() => Look::Decode(key.as_ref()),
        Depth::Decode | Depth::Checksums => Look::Checksums,
    };
    let mut wrong = Wrong { problem: String::new(), payload: Vec::new() };
    let mut at = header.header_len();
    for ((number, entry), blocks) in (0..).zip(&header.frames).zip(header.all_blocks()) {
        let end = at + u64::from(entry.stored_len);
        let to_usize = |v: u64| usize::try_from(v).unwrap_or(usize::MAX);
        let there = |at: u64| to_usize(at).min(bytes.len());
        let stored = bytes.slice(there(at)..there(end));
        let damage = frame::damage(&id, (number, entry), blocks, look, &stored);
        let start = u64::from(number) * u64::from(FRAME_BYTES);
        for ((from, to), problem) in damage {
            wrong.payload.push((start + u64::from(from), start + u64::from(to)));
            wrong.problem = problem.to_string();
        }
        at = end;
    }
    if wrong.payload.is_empty() && at != bytes.len() as u64 {
        // Readable all the same, but not what was stored.
        wrong.problem = format!("it has {} bytes, and its header says {at}", bytes.len());
    }
    Ok((!wrong.problem.is_empty()).then_some(wrong))
}

/// Objects that the map points at, or a snapshot reaches, and the store does not have.
fn find_missing(
    objects: &ObjectMap,
    held: &BTreeSet<ObjectId>,
    there: &BTreeSet<ObjectId>,
    wrong: &mut BTreeMap<ObjectId, Wrong>,
) {
    let live = objects.table.live_objects().map(|o| o.id);
    for id in live.chain(held.iter().copied()).filter(|id| !there.contains(id)) {
        wrong.entry(id).or_insert_with(|| Wrong::whole("it is missing"));
    }
}

/// A volume that was closed has no gap in its log: an object behind one was part of the volume. In that of an open one
/// the first missing object may be on its way: it is returned.
fn find_gap(
    manifest: &Manifest,
    loaded: &Loaded,
    wrong: &mut BTreeMap<ObjectId, Wrong>,
) -> Option<Awaited> {
    let awaited = loaded.awaited(manifest)?;
    if manifest.holder.is_some() {
        return Some(awaited);
    }
    let Awaited { object, behind } = awaited;
    let problem = format!("it is missing, and {behind} objects of the log come after it");
    wrong.entry(object).or_insert_with(|| Wrong::whole(problem));
    None
}

/// Names what is wrong, with the bytes of the volume that cannot be read because of it.
fn add_damage(
    report: &mut CheckReport,
    objects: Option<&ObjectMap>,
    wrong: BTreeMap<ObjectId, Wrong>,
    id: VolumeId,
) {
    let mut damage: BTreeMap<ObjectId, Damage> = wrong
        .iter()
        .map(|(object, wrong)| (*object, Damage::new(object.key(), wrong.problem.clone())))
        .collect();
    let mut poison = Damage::new(ObjectId::prefix(id), GIVEN_UP);
    let runs = objects.into_iter().flat_map(|objects| {
        let place = |run: crate::map::objects::ObjectRun| match run.place {
            ObjectPlace::Object { index, payload_offset } => {
                Some((run, Some((objects.object(index), u64::from(payload_offset)))))
            }
            ObjectPlace::Poison => Some((run, None)),
            ObjectPlace::Zero => None,
        };
        objects.runs(0, i64::MAX as u64).filter_map(place)
    });
    for (run, place) in runs {
        let Some((object, start)) = place else {
            poison.add_range(run.offset, run.len);
            continue;
        };
        let Some(wrong) = wrong.get(&object) else { continue };
        let entry = damage.get_mut(&object).expect("made from the same keys");
        for (from, to) in &wrong.payload {
            let (from, to) = (start.max(*from), (start + run.len).min(*to));
            if from < to {
                entry.add_range(run.offset + (from - start), to - from);
            }
        }
    }
    report.damage.extend(damage.into_values());
    if poison.lost_bytes > 0 {
        report.damage.push(poison);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn neighbouring_ranges_are_one_and_the_list_is_bounded() {
        let mut damage = Damage::new("x", "y");
        damage.add_range(0, 10);
        damage.add_range(10, 10);
        for n in 1..100 {
            damage.add_range(n * 100, 1);
        }
        assert_eq!(damage.ranges[..2], [(0, 20), (100, 1)]);
        assert_eq!(damage.ranges.len(), RANGES_LISTED_MAX);
        assert_eq!(damage.more_ranges, 100 - RANGES_LISTED_MAX as u64);
        assert_eq!(damage.lost_bytes, 20 + 99);
    }
}
