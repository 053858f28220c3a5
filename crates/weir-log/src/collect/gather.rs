//! From the sources to objects of the collector: their headers, what lives of them, its bytes, the PUT.

use std::collections::BTreeMap;
use std::rc::Rc;

use bytes::Bytes;
use futures_util::StreamExt;
use futures_util::stream;
use weir_device::DeviceError;

use crate::collect::garbage::ReadPin;
use crate::collect::runs::{self, Run};
use crate::format::object::ObjectHeader;
use crate::ids::ObjectId;
use crate::map::table::LiveObject;
use crate::read::fetch;
use crate::volume::Shared;
use crate::write::upload;

/// Headers of sources read at a time: small, mostly known, and nobody feels them.
const HEADERS_AT_A_TIME: usize = 3;

/// Copies what lives of `sources` and sends it. Sources that cannot be read are left alone from here on.
pub(super) async fn move_objects(shared: &Rc<Shared>, sources: Vec<LiveObject>) {
    // What lives now stays until it is read, whatever becomes of it meanwhile.
    let _pin = ReadPin::new(shared, &mut shared.state.borrow_mut().garbage);
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
        runs::plug_holes(&state.objects, &state.collector.stuck, runs, plugs_min)
    };
    let mut cuts = runs::cut(&runs, shared.options.batch.bytes).into_iter().peekable();
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
    shared.state.borrow_mut().collector.release(readable);
}

fn give_up(shared: &Shared, id: ObjectId, error: &DeviceError) {
    tracing::error!(volume = %shared.id, object = %id, %error, "the collector cannot read an object and leaves it");
    let mut state = shared.state.borrow_mut();
    state.collector.release([id]);
    state.collector.stuck.insert(id);
}

/// The parts of an object that the map points at: its header says where on the volume they can be.
async fn live_runs(shared: &Shared, header: &ObjectHeader, found: &mut Vec<Run>) {
    let mut payload_offset = 0;
    for extents in header.extents.chunks(shared.options.map.apply_step_extents) {
        {
            let state = shared.state.borrow();
            payload_offset = runs::live(&state.objects, header.id, extents, payload_offset, found);
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
    let store = shared.collector_store();
    let reads = by_object.into_iter().map(|(object, places)| {
        let pieces = places.iter().map(|at| (runs[*at].payload_offset, runs[*at].len)).collect();
        let read = fetch::pieces(&shared.fetcher, &store, object, pieces);
        async move { (object, read.await, places) }
    });
    let mut reads = stream::iter(reads).buffer_unordered(shared.collector_pace());
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
    let spec = upload::moving_object(shared, runs::describe(runs));
    shared.state.borrow_mut().collector.on_the_way.insert(spec.id.seq, sources);
    upload::send(shared, shared.collector_store(), spec, || payload);
}
