//! From the sources to objects of the collector: find what lives, plug small holes, read, send.

use std::collections::BTreeMap;
use std::rc::Rc;

use bytes::Bytes;
use futures_util::StreamExt;
use futures_util::stream;
use weir_device::DeviceError;

use crate::fetch;
use crate::format::object::{
    ExtentKind, GcSource, ObjectExtent, ObjectHeader, ObjectKind, ObjectSpec,
};
use crate::garbage::ReadPin;
use crate::ids::{ObjectId, WriteMark};
use crate::limits::{APPLY_STEP_EXTENTS, EXTENTS_PER_OBJECT_MAX, PAYLOAD_BYTES_MAX};
use crate::objects::ObjectPlace;
use crate::table::LiveObject;
use crate::upload;
use crate::volume::{Shared, State};

/// Sources read at a time: hides the latency of a store, and bounds the memory to a few objects.
const READS_MAX: usize = 3;

/// Longest hole between two live runs that is plugged with the bytes of whatever object has them, in bytes: two runs
/// and their hole become one extent of the map (LSVD section 4.6).
const PLUG_BYTES_MAX: u64 = 8 << 10;

/// Runs that plug holes per round: each may take a read of its own.
const PLUGS_MAX: usize = 256;

/// Bytes of the volume that lie together in one object.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Run {
    offset: u64,
    len: u64,
    object: ObjectId,
    payload_offset: u32,
}

/// Copies what lives of `sources` and sends it. Sources that cannot be read are left alone from here on.
pub(super) async fn move_objects(shared: &Rc<Shared>, sources: Vec<LiveObject>) {
    // What lives now stays until it is read, whatever becomes of it meanwhile.
    let _pin = ReadPin::new(shared, &mut shared.state.borrow_mut().garbage);
    let mut runs = Vec::new();
    let headers = sources.iter().map(|source| fetch::header(&shared.fetcher, source.id));
    let mut headers = stream::iter(headers).buffered(READS_MAX);
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
    runs.sort_unstable_by_key(|run| run.offset);
    let runs = plug_holes(&shared.state.borrow(), runs);
    let mut cuts = cut(&runs, shared.options.batch.bytes).into_iter().peekable();
    while let Some(runs) = cuts.next() {
        super::wait_for_room(shared).await;
        let Some(payload) = read(shared, runs).await else { break };
        if shared.collector_is_held() {
            break;
        }
        let sources =
            if cuts.peek().is_none() { std::mem::take(&mut readable) } else { Vec::new() };
        send(shared, runs, payload, sources);
    }
    // What did not get on its way may be chosen again.
    let mut state = shared.state.borrow_mut();
    for id in readable {
        state.collector.claimed.remove(&id);
    }
}

fn give_up(shared: &Shared, id: ObjectId, error: &DeviceError) {
    tracing::error!(volume = %shared.id, object = %id, %error, "the collector cannot read an object and leaves it");
    let mut state = shared.state.borrow_mut();
    state.collector.claimed.remove(&id);
    state.collector.stuck.insert(id);
}

/// The parts of an object that the map points at: its header says where on the volume they can be.
async fn live_runs(shared: &Shared, header: &ObjectHeader, runs: &mut Vec<Run>) {
    for extents in header.extents.chunks(APPLY_STEP_EXTENTS) {
        {
            let state = shared.state.borrow();
            let Some(index) = state.objects.table.find(&header.id) else { return };
            for extent in extents.iter().filter(|e| e.kind == ExtentKind::Data) {
                for run in state.objects.runs(extent.offset, extent.len) {
                    match run.place {
                        ObjectPlace::Object { index: there, payload_offset } if there == index => {
                            let (offset, len, object) = (run.offset, run.len, header.id);
                            runs.push(Run { offset, len, object, payload_offset });
                        }
                        _ => {}
                    }
                }
            }
        }
        tokio::task::yield_now().await;
    }
}

/// Adds what lies in small holes between runs, where it lies in objects too.
fn plug_holes(state: &State, runs: Vec<Run>) -> Vec<Run> {
    let mut plugged: Vec<Run> = Vec::with_capacity(runs.len());
    let mut plugs = 0;
    for run in runs {
        if let Some(last) = plugged.last() {
            let end = last.offset + last.len;
            let hole = run.offset.saturating_sub(end);
            if (1..=PLUG_BYTES_MAX).contains(&hole) && plugs < PLUGS_MAX {
                let found = fill(state, end, hole);
                plugs += found.len();
                plugged.extend(found);
            }
        }
        plugged.push(run);
    }
    plugged
}

/// What fills a hole wholly; nothing if it cannot be filled.
fn fill(state: &State, offset: u64, len: u64) -> Vec<Run> {
    let mut found = Vec::new();
    let mut filled = 0;
    for run in state.objects.runs(offset, len) {
        let ObjectPlace::Object { index, payload_offset } = run.place else { break };
        let object = state.objects.object(index);
        if state.collector.stuck.contains(&object) {
            // It would fail again, and keep what lies around the hole from being moved for ever.
            break;
        }
        found.push(Run { offset: run.offset, len: run.len, object, payload_offset });
        filled += run.len;
    }
    if filled == len { found } else { Vec::new() }
}

/// Cuts sorted runs into objects of about `bytes`.
fn cut(runs: &[Run], bytes: u64) -> Vec<&[Run]> {
    let mut cuts = Vec::new();
    let (mut first, mut payload) = (0, 0);
    for (at, run) in runs.iter().enumerate() {
        let full = payload >= bytes
            || payload + run.len > PAYLOAD_BYTES_MAX.into()
            || at - first == EXTENTS_PER_OBJECT_MAX;
        if full {
            cuts.push(&runs[first..at]);
            (first, payload) = (at, 0);
        }
        payload += run.len;
    }
    if first < runs.len() {
        cuts.push(&runs[first..]);
    }
    cuts
}

/// The bytes of runs, in their order. `None` where a source cannot be read; it is left alone from here on.
async fn read(shared: &Rc<Shared>, runs: &[Run]) -> Option<Vec<Bytes>> {
    let mut by_object: BTreeMap<ObjectId, Vec<usize>> = BTreeMap::new();
    for (at, run) in runs.iter().enumerate() {
        by_object.entry(run.object).or_default().push(at);
    }
    let reads = by_object.into_iter().map(|(object, places)| {
        let pieces = places.iter().map(|at| (runs[*at].payload_offset, runs[*at].len)).collect();
        async move { (object, fetch::pieces(&shared.fetcher, object, pieces).await, places) }
    });
    let mut reads = stream::iter(reads).buffer_unordered(READS_MAX);
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

fn send(shared: &Rc<Shared>, runs: &[Run], payload: Vec<Bytes>, sources: Vec<ObjectId>) {
    let mut streams = Vec::new();
    let mut source_of = |run: &Run| {
        let stream = streams.iter().position(|s| *s == run.object.stream).unwrap_or_else(|| {
            streams.push(run.object.stream);
            streams.len() - 1
        });
        GcSource {
            stream: u32::try_from(stream).expect("few streams"),
            payload_offset: run.payload_offset,
            seq: run.object.seq,
            epoch: run.object.epoch,
        }
    };
    let gc_sources = runs.iter().map(&mut source_of).collect();
    let extent =
        |run: &Run| ObjectExtent { offset: run.offset, len: run.len, kind: ExtentKind::Data };
    let (id, salt) = upload::name_object(shared);
    let spec = ObjectSpec {
        id,
        kind: ObjectKind::Gc,
        first_write: WriteMark::default(),
        last_write: WriteMark::default(),
        volume_size: shared.state.borrow().size,
        salt,
        root: None,
        extents: runs.iter().map(extent).collect(),
        streams,
        sources: gc_sources,
    };
    shared.state.borrow_mut().collector.on_the_way.insert(id.seq, sources);
    upload::send(shared, spec, || payload);
}

#[cfg(test)]
mod tests {
    use weir_device::VolumeId;
    use weir_journal::Epoch;

    use super::*;
    use crate::ids::ObjectSeq;

    fn run(offset: u64, len: u64) -> Run {
        let object = ObjectId { stream: VolumeId([1; 16]), seq: ObjectSeq(1), epoch: Epoch(1) };
        Run { offset, len, object, payload_offset: 0 }
    }

    #[test]
    fn runs_are_cut_by_bytes_and_by_count() {
        let lens = |cuts: Vec<&[Run]>| cuts.iter().map(|c| c.len()).collect::<Vec<_>>();
        let runs: Vec<Run> = (0..10).map(|n| run(n * 100, 10)).collect();
        assert_eq!(lens(cut(&runs, 30)), [3, 3, 3, 1]);
        assert!(cut(&[], 30).is_empty());
        let most = u64::from(PAYLOAD_BYTES_MAX);
        assert_eq!(lens(cut(&[run(0, most - 5), run(most, 10)], u64::MAX)), [1, 1]);
        let many: Vec<Run> =
            (0..EXTENTS_PER_OBJECT_MAX as u64 + 1).map(|n| run(n * 2, 1)).collect();
        assert_eq!(lens(cut(&many, u64::MAX)), [EXTENTS_PER_OBJECT_MAX, 1]);
    }
}
