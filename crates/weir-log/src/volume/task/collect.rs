//! The collector's task: chooses sources, reads what lives of them, and sends it as objects of the collector.

use std::collections::BTreeMap;
use std::pin::pin;
use std::rc::Rc;
use std::time::Duration;

use bytes::Bytes;
use futures_util::StreamExt;
use futures_util::stream;
use weir_device::DeviceError;
use weir_pacer::Class;

use crate::collect::garbage::ReadPin;
use crate::collect::runs::{self, Run};
use crate::format::object::ObjectHeader;
use crate::ids::ObjectId;
use crate::limits::FRAME_BYTES;
use crate::map::table::LiveObject;
use crate::read::{bulk, fetch, to_usize};
use crate::volume::shared::{Shared, State};
use crate::volume::task::upload::{self, Wanted};

/// Pause before a store without room is asked again.
const STORE_PAUSE: Duration = Duration::from_millis(500);

/// Headers of sources read at a time. They are small and mostly cached, so three of them disturb no client.
const HEADERS_AT_A_TIME: usize = 3;

impl Shared {
    /// Live share in percent.
    pub(crate) fn live_percent(&self) -> u64 {
        let state = self.state.borrow();
        state.collector.live_percent(&state.head.objects)
    }

    /// Wakes the collector where it has something to do.
    pub(crate) fn wake_collector(&self) {
        let mut state = self.state.borrow_mut();
        let State { collector, head, .. } = &mut *state;
        if collector.is_due(&head.objects, &self.options.collect) {
            self.collect.notify_one();
        }
    }

    fn objects_at_a_time(&self) -> usize {
        let state = self.state.borrow();
        state.collector.objects_at_a_time(&state.head.objects, &self.options.collect)
    }

    fn is_over(&self) -> bool {
        self.stopped.get() || self.state.borrow().failure.is_some()
    }

    /// Whether the collector must keep still: the volume has ended, is being closed, or is being set back.
    fn collector_is_held(&self) -> bool {
        self.is_over() || self.is_closing_or_frozen()
    }

    /// Whether the volume is being closed or set back: the collector keeps still, and all data goes to the store.
    pub(crate) fn is_closing_or_frozen(&self) -> bool {
        self.closing.get() || self.frozen.get()
    }
}

/// The collector task of a volume.
pub(crate) async fn run(shared: Rc<Shared>) {
    loop {
        let mut work = pin!(shared.collect.notified());
        work.as_mut().enable();
        while !shared.collector_is_held() {
            wait_for_room(&shared).await;
            let sources = next_sources(&shared);
            if sources.is_empty() {
                shared.progress.notify_waiters();
                shared.work.notify_one();
                break;
            }
            wait_for_store(&shared).await;
            move_objects(&shared, sources).await;
        }
        if shared.is_over() {
            return;
        }
        work.await;
    }
}

/// Moves what lives of these objects into others, however much that is, and waits until the map says so.
pub(crate) async fn evacuate(shared: &Rc<Shared>, ids: &[ObjectId]) -> Result<(), DeviceError> {
    let is_free = |state: &State| {
        let (stream, applied) = (state.stream, state.writes.pipeline.committed());
        let is_applied = |id: &ObjectId| id.stream != stream || id.seq <= applied;
        ids.iter().all(|id| is_applied(id) && !state.collector.is_claimed(id))
    };
    // What the collector has begun with it may give up halfway, when it meets what cannot be read.
    shared.wait_while_open(|state| is_free(state).then_some(Ok(()))).await?;
    let sources = {
        let state = &mut *shared.state.borrow_mut();
        state.collector.claim(&state.head.objects, ids)
    };
    if sources.is_empty() {
        return Ok(());
    }
    let moved = shared.awaited();
    move_objects(shared, sources).await;
    drop(moved);
    shared.wait_while_open(|state| is_free(state).then_some(Ok(()))).await
}

/// Chooses and claims the objects whose live bytes make the next object.
fn next_sources(shared: &Shared) -> Vec<LiveObject> {
    let mut guard = shared.state.borrow_mut();
    let State { collector, head, writes, stream, .. } = &mut *guard;
    let options = &shared.options;
    let newest = writes.pipeline.committed();
    collector.next_sources(&head.objects, &options.collect, *stream, newest, options.batch.bytes)
}

/// Waits until the store has room for a copy; half of its reserve may be used for one.
async fn wait_for_store(shared: &Shared) {
    while !shared.collector_is_held()
        && shared.store.has_room(shared.options.batch.bytes, 50).await.is_err()
    {
        tokio::time::sleep(STORE_PAUSE).await;
    }
}

async fn wait_for_room(shared: &Shared) {
    let over = || shared.collector_is_held();
    loop {
        let mut progress = pin!(shared.progress.notified());
        progress.as_mut().enable();
        if over() || shared.state.borrow().collector.in_flight() < shared.objects_at_a_time() {
            return;
        }
        progress.await;
    }
}

/// Copies what lives of `sources` and sends it. Sources that cannot be read are left alone from here on.
async fn move_objects(shared: &Rc<Shared>, sources: Vec<LiveObject>) {
    // Pins the objects: what lives in them now stays readable though it may be overwritten before it is copied.
    let _pin = ReadPin::new(&shared.garbage);
    let mut runs = Vec::new();
    let headers = sources.iter().map(|source| fetch::header(&shared.fetcher, source.id));
    let mut headers = stream::iter(headers).buffered(HEADERS_AT_A_TIME);
    let mut readable = Vec::new();
    for source in &sources {
        match headers.next().await.expect("one for each source") {
            Ok(header) => {
                live_runs(shared, &header, &mut runs).await;
                readable.push(source.id);
            }
            Err(error) => give_up(shared, source.id, &error),
        }
    }
    drop(headers);
    runs::sort_disjoint(&mut runs);
    let runs = {
        let state = shared.state.borrow();
        let plugs_min = shared.options.collect.plugs_per_read_min;
        runs::plug_holes(&state.head.objects, state.collector.unreadable(), runs, plugs_min)
    };
    let mut cuts = runs::cut(&runs, shared.options.batch.bytes).into_iter().peekable();
    while let Some(runs) = cuts.next() {
        wait_for_room(shared).await;
        let Some(payload) = read(shared, runs).await else { break };
        if shared.collector_is_held() {
            break;
        }
        let sources =
            if cuts.peek().is_none() { std::mem::take(&mut readable) } else { Vec::new() };
        send(shared, runs, payload, sources);
    }
    // What did not get on its way may be chosen again.
    shared.state.borrow_mut().collector.release(readable);
}

fn give_up(shared: &Shared, id: ObjectId, error: &DeviceError) {
    tracing::error!(volume = %shared.id, object = %id, %error, "the collector cannot read an object and leaves it");
    shared.state.borrow_mut().collector.give_up(id);
}

/// The parts of an object that the map points at: its header says where on the volume they can be.
async fn live_runs(shared: &Shared, header: &ObjectHeader, found: &mut Vec<Run>) {
    let mut placement = header.placement();
    for extents in header.extents.chunks(shared.options.map.apply_step_extents) {
        {
            let state = shared.state.borrow();
            runs::live(&state.head.objects, header.id, extents, &mut placement, found);
        }
        tokio::task::yield_now().await;
    }
}

/// The bytes of runs, in their order. `None` where a source cannot be read; it is left alone from here on.
async fn read(shared: &Rc<Shared>, runs: &[Run]) -> Option<Vec<Bytes>> {
    let mut by_object: BTreeMap<ObjectId, Vec<usize>> = BTreeMap::new();
    for (at, run) in runs.iter().enumerate() {
        by_object.entry(run.object).or_default().push(at);
    }
    let pace = shared.pace(Class::Copy);
    let reads = by_object.into_iter().map(|(object, places)| {
        let pieces = places.iter().map(|at| (runs[*at].payload_offset, runs[*at].len)).collect();
        let read = bulk::pieces(&shared.fetcher, &pace, object, pieces);
        async move { (object, read.await, places) }
    });
    let mut reads = stream::iter(reads).buffer_unordered(shared.objects_at_a_time());
    let mut payload = vec![Bytes::new(); runs.len()];
    let mut whole = true;
    while let Some((object, pieces, places)) = reads.next().await {
        match pieces {
            Ok(pieces) => {
                for (at, piece) in places.into_iter().zip(pieces) {
                    payload[at] = piece;
                }
            }
            Err(error) => {
                give_up(shared, object, &error);
                whole = false;
            }
        }
    }
    whole.then_some(payload)
}

/// Which frames of a copy go into the cache on the local disk: those of which at least half comes from frames that it
/// has. All of them would push out what clients read, and wear the disk, for bytes that nobody asked for; none would
/// lose what it has with each object that is collected.
fn cached_frames(shared: &Shared, runs: &[Run]) -> Vec<bool> {
    let disk = &shared.fetcher.disk;
    if !disk.is_there() {
        return Vec::new();
    }
    if weir_device::mutant("copies_always_cached") {
        return vec![true; runs.len()];
    }
    let frame_bytes = u64::from(FRAME_BYTES);
    // Bytes of each frame, and those of them that are cached now. Where the copy has gaps between extents, a few count
    // for the frame before.
    let mut frames: Vec<(u64, u64)> = Vec::new();
    let mut looked = None;
    let mut at = 0;
    for run in runs {
        let (mut from, end) =
            (u64::from(run.payload_offset), u64::from(run.payload_offset) + run.len);
        while from < end {
            let next = end.min((from / frame_bytes + 1) * frame_bytes);
            let frame = u32::try_from(from / frame_bytes).expect("within one object");
            let is_there = match looked {
                Some((object, of, is_there)) if (object, of) == (run.object, frame) => is_there,
                _ => disk.has(run.object, frame),
            };
            looked = Some((run.object, frame, is_there));
            let target = to_usize(at / frame_bytes);
            if frames.len() <= target {
                frames.resize(target + 1, (0, 0));
            }
            let (all, cached) = &mut frames[target];
            *all += next - from;
            *cached += if is_there { next - from } else { 0 };
            at += next - from;
            from = next;
        }
    }
    frames.into_iter().map(|(all, cached)| 2 * cached >= all).collect()
}

fn send(shared: &Rc<Shared>, runs: &[Run], payload: Vec<Bytes>, sources: Vec<ObjectId>) {
    let wanted = Wanted::Some(cached_frames(shared, runs));
    let spec = upload::moving_object(shared, runs::describe(runs));
    shared.state.borrow_mut().collector.on_sent(spec.id.seq, sources);
    upload::send(shared, shared.background_store(Class::Copy), spec, || payload, wanted);
}
