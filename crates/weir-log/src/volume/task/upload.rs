//! From closed batches to objects in the store: gather, number, encode, PUT; several in flight.

use std::collections::BTreeMap;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use tokio::time::Instant;
use weir_device::SharedBuf;
use weir_journal::{JournalError, JournalPos};
use weir_pacer::Class;
use weir_store::Store;

use crate::collect::runs::Described;
use crate::error::LogError;
use crate::format::object::{self, ExtentKind, ObjectExtent, ObjectHeader, ObjectKind, ObjectSpec};
use crate::ids::{ObjectId, WriteMark};
use crate::map::checkpoint::CheckpointChunk;
use crate::volume::shared::{Shared, State};
use crate::write::batch::{Batch, MergedExtent};
use crate::write::overlay::OverlayPlace;
use crate::write::put::put_until_stored;
use crate::write::state::NextBatch;

/// Share of the journal above which the open batch is closed as soon as no object is on its way, whatever its size:
/// space comes back only as objects commit.
pub(crate) const CLOSE_FROM_PERCENT: u64 = 50;

/// Times that a damaged piece of the journal is read again before its range is given up as lost.
const JOURNAL_READ_ATTEMPTS: u32 = 3;

/// Pause between two attempts to read a journal that answers with I/O errors.
const JOURNAL_READ_PAUSE: Duration = Duration::from_millis(500);

/// Pause before the store is asked for room again.
const ROOM_PAUSE: Duration = Duration::from_millis(500);

/// Shortest time between two warnings that the store has no room.
const ROOM_WARNING_INTERVAL: Duration = Duration::from_secs(60);

/// How often it is said anew how much presses, while data is on its way and nothing else happens.
const PRESS_INTERVAL: Duration = Duration::from_secs(1);

enum Upload {
    Batch(Batch),
    Chunk(CheckpointChunk),
}

enum Next {
    Upload(Upload),
    WaitUntil(Option<Instant>),
    Stop,
}

/// The uploader task of a volume. It alone waits for `work`, in one place at a time: what is notified while it does
/// something else is kept for its next wait.
pub(crate) async fn run(shared: Rc<Shared>) {
    loop {
        match next(&shared) {
            Next::Stop => return,
            Next::Upload(Upload::Batch(batch)) => match room_for(&shared, &batch).await {
                Ok(()) => send_batch(&shared, batch).await,
                Err(note) => wait_for_room(&shared, batch, note).await,
            },
            Next::Upload(Upload::Chunk(chunk)) => send_chunk(&shared, chunk),
            Next::WaitUntil(due) => wait_for_work(&shared, due).await,
        }
    }
}

/// Waits for `work` until `due`, and no longer than until what presses should be said anew: data on its way grows
/// older, and a load ends, though nothing happens.
async fn wait_for_work(shared: &Shared, due: Option<Instant>) {
    let is_on_its_way = shared.state.borrow().writes.unsent.closed_oldest_age().is_some();
    let changes = (is_on_its_way || shared.pressures.uploads_follow())
        && !weir_device::mutant("pressure_said_only_with_work");
    let again = changes.then(|| Instant::now() + PRESS_INTERVAL);
    let Some(until) = due.into_iter().chain(again).min() else {
        return shared.work.notified().await;
    };
    tokio::select! {
        biased;
        () = shared.work.notified() => {}
        () = tokio::time::sleep_until(until) => {}
    }
}

fn next(shared: &Shared) -> Next {
    let mut guard = shared.state.borrow_mut();
    let state = &mut *guard;
    shared.press(state);
    if shared.stopped.get() || state.failure.is_some() {
        return Next::Stop;
    }
    let has_slot = shared.has_slot(state);
    // What is closed is gathered before there is a slot for it; what a checkpoint waits for goes first.
    if !has_slot && (state.writes.closed.is_empty() || !state.head.chunks.is_empty()) {
        return Next::WaitUntil(None);
    }
    if let Some(chunk) = state.head.chunks.pop_front() {
        return Next::Upload(Upload::Chunk(chunk));
    }
    let State { collector, head, .. } = state;
    // After a failure of the journal what was flushed before must reach the store, so it does not wait for the
    // collector.
    let failed = shared.journal.is_poisoned();
    let hurries = shared.is_closing_or_frozen() || failed;
    let limits = &shared.options;
    if !hurries && let Some(until) = collector.holds_data_until(&head.objects, &limits.collect) {
        return Next::WaitUntil(Some(until));
    }
    let nearly_full = shared.journal_percent_full() >= CLOSE_FROM_PERCENT;
    match state.writes.next_batch(&limits.batch, nearly_full, failed) {
        NextBatch::Ready(batch) => Next::Upload(Upload::Batch(batch)),
        NextBatch::NotBefore(due) => Next::WaitUntil(due),
    }
}

/// Whether the store has room for the object of a batch, beside those on their way.
async fn room_for(shared: &Shared, batch: &Batch) -> Result<(), String> {
    let on_their_way = shared.state.borrow().writes.pipeline.in_flight() as u64;
    let bytes = batch.payload_bytes.saturating_add(on_their_way * shared.options.batch.bytes);
    shared.store.has_room(bytes, 100).await
}

/// Keeps a batch for which the store has no room, and comes back in a while. No object has its number yet, so that a
/// checkpoint can follow those that are stored: what died by then is deleted with it.
async fn wait_for_room(shared: &Shared, batch: Batch, note: String) {
    {
        let mut state = shared.state.borrow_mut();
        match weir_device::mutant("batch_put_back_behind") {
            true => state.writes.closed.push_back(batch),
            false => state.writes.closed.push_front(batch),
        }
        state.writes.gathering = false;
        // Room comes and goes while deletions go on.
        if state.writes.no_room_said.is_none_or(|said| said.elapsed() >= ROOM_WARNING_INTERVAL) {
            tracing::warn!(volume = %shared.id, note, "uploads wait");
            state.writes.no_room_said = Some(Instant::now());
        }
        state.writes.upload_note = Some(note);
        state.head.checkpoint.wanted |= state.head.checkpoint.objects_since > 0;
    }
    shared.stored.notify_one();
    tokio::select! {
        biased;
        () = shared.work.notified() => {}
        () = tokio::time::sleep(ROOM_PAUSE) => {}
    }
}

impl Shared {
    /// Whether one more object may be on its way.
    fn has_slot(&self, state: &State) -> bool {
        state.writes.pipeline.in_flight() < self.options.puts_in_flight_max
    }
}

/// A batch is gathered while those before it are on their way, and follows the first that is in the store.
async fn wait_for_slot(shared: &Shared) {
    while !shared.stopped.get() && !shared.has_slot(&shared.state.borrow()) {
        wait_for_work(shared, None).await;
        shared.press(&shared.state.borrow());
    }
}

/// Adds the journal's copies in memory of a merged extent to `payload`, as they are. Whether it has them all.
fn gather_resident(shared: &Shared, extent: &MergedExtent, payload: &mut Vec<SharedBuf>) -> bool {
    let before = payload.len();
    let mut done = 0;
    while done < extent.len {
        let Some(bytes) = shared.journal.resident(extent.position.plus(done)) else {
            payload.truncate(before);
            return false;
        };
        let rest = usize::try_from(extent.len - done).unwrap_or(usize::MAX);
        let part = bytes.slice(0, rest.min(bytes.len()));
        done += part.len() as u64;
        // The pieces of one write lie in the buffer that it came in.
        if payload.len() == before || !payload.last_mut().is_some_and(|last| last.join(&part)) {
            payload.push(part);
        }
    }
    true
}

/// Reads what memory has no copy of any more, by the offset of its extent. What cannot be read so is left to
/// [`gather_pieces`], which finds out what is damaged.
async fn gather_from_disk(
    shared: &Shared,
    merged: &[MergedExtent],
) -> BTreeMap<u64, Vec<SharedBuf>> {
    let is_missing = |extent: &&MergedExtent| {
        extent.kind == ExtentKind::Data && shared.journal.resident(extent.position).is_none()
    };
    let mut missing: Vec<_> = merged.iter().filter(is_missing).collect();
    missing.sort_unstable_by_key(|extent| extent.position);
    let ranges: Vec<_> = missing.iter().map(|extent| (extent.position, extent.len)).collect();
    let found = shared.journal.read_ranges(&ranges).await;
    let of_extent =
        |(extent, parts): (&&MergedExtent, Result<_, _>)| Some((extent.offset, parts.ok()?));
    missing.iter().zip(found).filter_map(of_extent).collect()
}

/// Reads the bytes of a merged extent back from the journal; or says which piece is damaged there: where it begins, and
/// where the next one does.
async fn gather_extent(
    shared: &Shared,
    extent: &MergedExtent,
) -> Result<Vec<SharedBuf>, (JournalPos, JournalPos)> {
    let len = usize::try_from(extent.len).expect("data extents of a batch fit in memory");
    let mut attempt = 0;
    loop {
        if shared.stopped.get() {
            return Ok(Vec::new());
        }
        match shared.journal.read_parts(extent.position, len).await {
            Ok(parts) => return Ok(parts),
            Err(JournalError::Corrupt { offset, end, position, .. })
                if attempt + 1 == JOURNAL_READ_ATTEMPTS =>
            {
                return Err((position, position.plus(end - offset)));
            }
            Err(JournalError::Corrupt { .. }) => attempt += 1,
            // The disk may give them yet, so they are not given up here: only an opening does that, which reads all of
            // the journal and says what is lost.
            Err(error) => {
                let note = format!(
                    "uploads wait for the journal to be readable again: {error}; if it stays so, detach the volume and \
                     attach it again: the ranges that cannot be read are given up then, and named"
                );
                tracing::warn!(volume = %shared.id, %error, "reading the journal for upload");
                shared.state.borrow_mut().writes.upload_note = Some(note);
                tokio::time::sleep(JOURNAL_READ_PAUSE).await;
            }
        }
    }
}

/// Adds a merged extent that cannot be read in one: pieces of it that are damaged in the journal become poison, and no
/// others.
async fn gather_pieces(
    shared: &Shared,
    extent: MergedExtent,
    (extents, payload): (&mut Vec<ObjectExtent>, &mut Vec<SharedBuf>),
) {
    let mut waiting = vec![extent];
    while let Some(mut extent) = waiting.pop() {
        match gather_extent(shared, &extent).await {
            Ok(parts) => payload.extend(parts),
            Err((from, _)) if from > extent.position => {
                waiting.push(extent.split_off(from));
                waiting.push(extent);
                continue;
            }
            Err((_, to)) => {
                if to < extent.position.plus(extent.len) && !weir_device::mutant("damage_spreads") {
                    waiting.push(extent.split_off(to));
                }
                tracing::error!(
                    volume = %shared.id, offset = extent.offset, len = extent.len,
                    "journal bytes are damaged before they were uploaded; reads of this range fail"
                );
                poison_overlay(shared, &extent);
                extent.kind = ExtentKind::Poison;
            }
        }
        extents.push(ObjectExtent { offset: extent.offset, len: extent.len, kind: extent.kind });
    }
}

/// Makes reads fail where the overlay still points at the damaged bytes of `extent`.
fn poison_overlay(shared: &Shared, extent: &MergedExtent) {
    let mut state = shared.state.borrow_mut();
    let damaged: Vec<_> = state
        .writes
        .overlay
        .runs(extent.offset, extent.len)
        .filter(|run| {
            let delta = run.offset - extent.offset;
            matches!(run.place, OverlayPlace::Journal(at) if at.0 == extent.position.0 + delta)
        })
        .collect();
    for run in damaged {
        state.writes.overlay.poison(run.offset, run.len, extent.position);
    }
}

/// The extents of an object and its payload. What cannot be read is poison.
async fn gather(shared: &Shared, merged: Vec<MergedExtent>) -> (Vec<ObjectExtent>, Vec<SharedBuf>) {
    let mut from_disk = gather_from_disk(shared, &merged).await;
    let mut payload = Vec::new();
    let mut extents = Vec::new();
    for merged in merged {
        if merged.kind == ExtentKind::Data {
            if let Some(parts) = from_disk.remove(&merged.offset) {
                payload.extend(parts);
            } else if !gather_resident(shared, &merged, &mut payload) {
                gather_pieces(shared, merged, (&mut extents, &mut payload)).await;
                continue;
            }
        }
        extents.push(ObjectExtent { offset: merged.offset, len: merged.len, kind: merged.kind });
    }
    (extents, payload)
}

/// Waits until the journal survives a loss of power up to the last write of a batch, so that the objects are a witness
/// of what the journal holds: one that lacks a write of its opening that was sent was set back.
async fn make_durable(shared: &Shared, last: WriteMark) -> Result<(), LogError> {
    if shared.journal.flushed_write() >= last.write || weir_device::mutant("send_before_flush") {
        return Ok(());
    }
    shared.flush_journal_for_upkeep().await
}

async fn send_batch(shared: &Rc<Shared>, batch: Batch) {
    let Some((merged, batch)) = merge(shared, batch).await else { return };
    let gathered = gather(shared, merged);
    let (gathered, durable) = futures_util::join!(gathered, make_durable(shared, batch.last));
    match durable {
        Ok(()) => send_gathered(shared, &batch, gathered).await,
        Err(error) => {
            send_flushed(shared, batch).await;
            shared.fail(error);
        }
    }
}

/// Thousands of small writes take milliseconds to merge: not on the volume's thread. `None` where the process ends.
async fn merge(shared: &Shared, batch: Batch) -> Option<(Vec<MergedExtent>, Batch)> {
    shared.env.background(async move { (batch.merge(), batch) }).await
}

/// The journal failed, and `batch` is the first that it does not hold durably as a whole. What was flushed of it is the
/// last that is sent: the objects stay a prefix of what was acknowledged, and a witness of what the journal holds.
/// Returns once everything that was sent is committed, since a volume that failed commits nothing.
async fn send_flushed(shared: &Rc<Shared>, batch: Batch) {
    if weir_device::mutant("flushed_stays_with_failed_journal") {
        return;
    }
    let flushed = shared.journal.flushed_write();
    let cut = if weir_device::mutant("unflushed_sent_of_failed_journal") {
        Some(batch)
    } else {
        batch.up_to(flushed)
    };
    if let Some(batch) = cut {
        shared.state.borrow_mut().writes.unsent.on_cut(&batch);
        let Some((merged, batch)) = merge(shared, batch).await else { return };
        let gathered = gather(shared, merged).await;
        send_gathered(shared, &batch, gathered).await;
    }
    let last = shared.state.borrow().writes.pipeline.last_assigned();
    let is_committed =
        |state: &mut State| (state.writes.pipeline.committed() >= last).then_some(Ok(()));
    // The result does not matter: the volume fails in any case.
    let _ = shared.wait_while_open(is_committed).await;
}

/// Sends what was gathered of a batch as the next object, once there is a slot for it.
async fn send_gathered(
    shared: &Rc<Shared>,
    batch: &Batch,
    (extents, payload): (Vec<ObjectExtent>, Vec<SharedBuf>),
) {
    wait_for_slot(shared).await;
    if shared.stopped.get() {
        return;
    }
    let (id, salt) = name_object(shared);
    shared.state.borrow_mut().writes.gathering = false;
    let spec = ObjectSpec {
        id,
        opening: Some(shared.opening),
        kind: ObjectKind::Data,
        first_write: batch.first,
        last_write: batch.last,
        volume_size: batch.volume_size,
        salt,
        root: None,
        extents,
        streams: Vec::new(),
        sources: Vec::new(),
    };
    let store = shared.background_store(Class::Upload);
    send(shared, store, spec, || payload.into_iter().map(Bytes::from_owner).collect(), Wanted::All);
}

fn send_chunk(shared: &Rc<Shared>, mut chunk: CheckpointChunk) {
    let (id, salt) = name_object(shared);
    let page_entries = shared.options.map.index_page_entries;
    let root = shared.state.borrow_mut().head.checkpoint.place(&mut chunk, id, page_entries);
    if root.is_some() && weir_device::mutant("publish_before_stored") {
        crate::volume::task::commit::publish_root(shared, id);
    }
    let volume_size = shared.state.borrow().size;
    let spec = ObjectSpec {
        id,
        opening: Some(shared.opening),
        kind: ObjectKind::Checkpoint,
        first_write: WriteMark::default(),
        last_write: WriteMark::default(),
        volume_size,
        salt,
        root,
        extents: Vec::new(),
        streams: Vec::new(),
        sources: Vec::new(),
    };
    send(
        shared,
        shared.background_store(Class::Upload),
        spec,
        || vec![Bytes::from(chunk.payload)],
        Wanted::All,
    );
}

/// The next object of the stream, which moves or gives up what is stored already: no write of a client is in it.
pub(crate) fn moving_object(shared: &Shared, described: Described) -> ObjectSpec {
    let Described { extents, streams, sources } = described;
    let (id, salt) = name_object(shared);
    ObjectSpec {
        id,
        opening: Some(shared.opening),
        kind: ObjectKind::Gc,
        first_write: WriteMark::default(),
        last_write: WriteMark::default(),
        volume_size: shared.state.borrow().size,
        salt,
        root: None,
        extents,
        streams,
        sources,
    }
}

/// Hands out the next name of the stream.
pub(crate) fn name_object(shared: &Shared) -> (ObjectId, [u8; 16]) {
    let seq = shared.state.borrow_mut().writes.pipeline.assign();
    let mut salt = [0; 16];
    shared.env.random.fill(&mut salt);
    (ObjectId { stream: shared.id, seq, epoch: shared.epoch }, salt)
}

/// Which frames of an object the cache on the local disk is given once the store has it.
pub(crate) enum Wanted {
    /// All: they were written just now.
    All,
    /// Those that are `true` here, by their number.
    Some(Vec<bool>),
}

impl Wanted {
    fn of(&self, frames: Vec<Vec<Bytes>>) -> Vec<(u32, Vec<Bytes>)> {
        let is_wanted = |index: u32| match self {
            Self::All => true,
            Self::Some(wanted) => wanted.get(index as usize).is_some_and(|wanted| *wanted),
        };
        (0..).zip(frames).filter(|(index, _)| is_wanted(*index)).collect()
    }
}

/// Encodes on the worker threads and PUTs to `store`, which is the volume's at some pace; the result comes back to the
/// volume's thread. A closed volume sends nothing more: once it is opened again, nobody would know of the object.
pub(crate) fn send(
    shared: &Rc<Shared>,
    store: Store,
    spec: ObjectSpec,
    payload: impl FnOnce() -> Vec<Bytes> + Send + 'static,
    wanted: Wanted,
) {
    let encoding = shared.options.encoding(&store, shared.key.is_some());
    let key = shared.key.clone();
    let seed = shared.env.random.next_u64();
    let is_cached = spec.kind != ObjectKind::Checkpoint && shared.fetcher.disk.is_there();
    let sent = shared.env.background_while_awaited(async move {
        let object = spec.id;
        let encoded = object::encode(spec, &payload(), encoding, key.as_ref())
            .map_err(|source| LogError::NotSent { object, source })?;
        // Without a cache they need not stay in memory until the store has them.
        let frames = is_cached.then(|| wanted.of(encoded.frames));
        put_until_stored(&store, &encoded.header, &encoded.parts, seed).await?;
        Ok::<_, LogError>((Arc::new(encoded.header), frames))
    });
    let sender = Rc::clone(shared);
    shared.spawn(async move {
        match sent.await {
            Some(Ok((header, frames))) => {
                if let Some(frames) = frames {
                    sender.fetcher.disk.offer_object(&header, frames);
                }
                on_stored(&sender, header);
            }
            Some(Err(error)) => sender.fail(error),
            None => {}
        }
    });
}

fn on_stored(shared: &Rc<Shared>, header: Arc<ObjectHeader>) {
    if header.root.is_some() && weir_device::mutant("publish_outside_prefix") {
        crate::volume::task::commit::publish_root(shared, header.id);
    }
    if weir_device::mutant("release_at_put") && header.kind == ObjectKind::Data {
        shared.journal.release(header.last_write.write);
    }
    let is_held = shared.holds_lease() || weir_device::mutant("release_without_lease");
    {
        let mut state = shared.state.borrow_mut();
        // Whoever takes the volume over may not see this object any more: the journal keeps what it holds.
        state.writes.keeps_journal |= !is_held;
        state.writes.upload_note = None;
        state.writes.pipeline.on_stored(header);
    }
    shared.stored.notify_one();
    shared.work.notify_one();
}
