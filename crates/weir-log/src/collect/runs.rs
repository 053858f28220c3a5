//! Runs of live bytes: found in the map, plugged, cut into objects, described in a header. Works on the map alone, so
//! that the replay of a trace collects as a volume does.

use std::collections::{BTreeMap, BTreeSet};

use weir_device::VolumeId;

use crate::format::object::{ExtentKind, GcSource, ObjectExtent};
use crate::format::placement::Placement;
use crate::ids::ObjectId;
use crate::limits::{EXTENTS_PER_OBJECT_MAX, PAYLOAD_BYTES_MAX};
use crate::map::objects::{ObjectMap, ObjectPlace};
use crate::read::fetch;

/// Longest hole between two live runs that is plugged with the bytes of whatever object has them, in bytes: two runs
/// and their hole become one extent of the map (LSVD section 4.6).
const PLUG_BYTES_MAX: u64 = 8 << 10;

/// Runs that plug holes per round.
const PLUGS_MAX: usize = 1024;

/// Bytes of the volume that lie together in one object.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Run {
    pub(crate) offset: u64,
    pub(crate) len: u64,
    pub(crate) object: ObjectId,
    pub(crate) payload_offset: u32,
}

/// Finds the parts of some extents of an object that the map points at. `placement` comes from before the first of
/// these, and ends behind the last.
pub(crate) fn live(
    objects: &ObjectMap,
    object: ObjectId,
    extents: &[ObjectExtent],
    placement: &mut Placement,
    found: &mut Vec<Run>,
) {
    let Some(index) = objects.table.find(&object) else { return };
    for extent in extents.iter().filter(|e| e.kind == ExtentKind::Data) {
        let begin = placement.place(extent);
        for run in objects.runs(extent.offset, extent.len) {
            let ours = begin + (run.offset - extent.offset);
            match run.place {
                ObjectPlace::Object { index: there, payload_offset }
                    if there == index && u64::from(payload_offset) == ours =>
                {
                    let (offset, len) = (run.offset, run.len);
                    found.push(Run { offset, len, object, payload_offset });
                }
                _ => {}
            }
        }
    }
}

/// Sorts runs by offset and leaves out each one that overlaps an earlier one. An object that is applied in steps while
/// the map is looked at, source by source, shows one range as live in two of them. The map still points at one of the
/// two only, and what is left out stays where it is.
pub(crate) fn sort_disjoint(runs: &mut Vec<Run>) {
    runs.sort_unstable_by_key(|run| run.offset);
    if weir_device::mutant("collect_overlapping_runs") {
        return;
    }
    let mut end = 0;
    runs.retain(|run| {
        let disjoint = run.offset >= end;
        if disjoint {
            end = run.offset + run.len;
        }
        disjoint
    });
}

/// Adds what lies in small holes between runs, where it lies in objects too and a read of them plugs enough.
pub(crate) fn plug_holes(
    objects: &ObjectMap,
    unreadable: &BTreeSet<ObjectId>,
    runs: Vec<Run>,
    plugs_min: usize,
) -> Vec<Run> {
    let mut plugs: Vec<Vec<Run>> = Vec::new();
    let mut count = 0;
    for pair in runs.windows(2) {
        let end = pair[0].offset + pair[0].len;
        let hole = pair[1].offset.saturating_sub(end);
        if (1..=PLUG_BYTES_MAX).contains(&hole) && count < PLUGS_MAX {
            let found = fill(objects, unreadable, end, hole);
            count += found.len();
            plugs.extend((!found.is_empty()).then_some(found));
        }
    }
    let worth = frames_worth_reading(plugs.iter().flatten(), plugs_min);
    plugs.retain(|plug| plug.iter().flat_map(frames_of).all(|frame| worth.contains(&frame)));
    let mut plugged = runs;
    plugged.extend(plugs.into_iter().flatten());
    plugged.sort_unstable_by_key(|run| run.offset);
    plugged
}

/// A frame of an object.
type Frame = (ObjectId, u32);

fn frames_of(run: &Run) -> impl Iterator<Item = Frame> + use<> {
    let object = run.object;
    let (first, last) = fetch::frame_span(run.payload_offset, run.len);
    (first..=last).map(move |index| (object, index))
}

/// The frames of plugs whose reads bring enough of them: `plugs_min`, and one per frame.
fn frames_worth_reading<'a>(
    plugs: impl Iterator<Item = &'a Run>,
    plugs_min: usize,
) -> BTreeSet<Frame> {
    let mut by_object: BTreeMap<ObjectId, Vec<u32>> = BTreeMap::new();
    for plug in plugs {
        let (first, _) = fetch::frame_span(plug.payload_offset, plug.len);
        by_object.entry(plug.object).or_default().push(first);
    }
    let mut worth = BTreeSet::new();
    for (object, mut firsts) in by_object {
        firsts.sort_unstable();
        for (first, last) in fetch::collected_runs_of(&firsts) {
            let plugs = firsts.iter().filter(|index| (first..=last).contains(*index)).count();
            let frames = (last - first + 1) as usize;
            if plugs >= frames.max(plugs_min) {
                // The last plug may reach into the next frame.
                worth.extend((first..=last + 1).map(|index| (object, index)));
            }
        }
    }
    worth
}

/// What fills a hole wholly; nothing if it cannot be filled.
fn fill(objects: &ObjectMap, unreadable: &BTreeSet<ObjectId>, offset: u64, len: u64) -> Vec<Run> {
    let mut found = Vec::new();
    let mut filled = 0;
    for run in objects.runs(offset, len) {
        let ObjectPlace::Object { index, payload_offset } = run.place else { break };
        let object = objects.object(index);
        if unreadable.contains(&object) {
            // It would fail again, and keep what lies around the hole from being moved for ever.
            break;
        }
        found.push(Run { offset: run.offset, len: run.len, object, payload_offset });
        filled += run.len;
    }
    if filled == len { found } else { Vec::new() }
}

/// Cuts sorted runs into objects of about `bytes`.
pub(crate) fn cut(runs: &[Run], bytes: u64) -> Vec<&[Run]> {
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

/// What a header says of an object of runs.
pub(crate) struct Described {
    pub(crate) extents: Vec<ObjectExtent>,
    pub(crate) streams: Vec<VolumeId>,
    pub(crate) sources: Vec<GcSource>,
}

/// Describes an object whose payload is these runs.
pub(crate) fn describe(runs: &[Run]) -> Described {
    let mut streams = Vec::new();
    let mut sources = Vec::with_capacity(runs.len());
    for run in runs {
        let stream = streams.iter().position(|s| *s == run.object.stream).unwrap_or_else(|| {
            streams.push(run.object.stream);
            streams.len() - 1
        });
        sources.push(GcSource {
            stream: u32::try_from(stream).expect("few streams"),
            payload_offset: run.payload_offset,
            seq: run.object.seq,
            epoch: run.object.epoch,
        });
    }
    let extent =
        |run: &Run| ObjectExtent { offset: run.offset, len: run.len, kind: ExtentKind::Data };
    Described { extents: runs.iter().map(extent).collect(), streams, sources }
}

#[cfg(test)]
mod tests {
    use weir_device::VolumeId;
    use weir_journal::Epoch;

    use super::*;
    use crate::ids::ObjectSeq;
    use crate::limits::FRAME_BYTES;

    fn run(offset: u64, len: u64) -> Run {
        let object = ObjectId { stream: VolumeId([1; 16]), seq: ObjectSeq(1), epoch: Epoch(1) };
        Run { offset, len, object, payload_offset: 0 }
    }

    #[test]
    fn holes_are_plugged_where_a_read_brings_many() {
        let plugs = |count: u32, apart: u32| -> Vec<Run> {
            (0..count).map(|n| Run { payload_offset: n * apart, ..run(0, 4096) }).collect()
        };
        let worth = |plugs: &[Run]| frames_worth_reading(plugs.iter(), 16).len();
        assert_eq!(worth(&plugs(16, 4096)), 2, "a frame, and where the last one may end");
        assert_eq!(worth(&plugs(15, 4096)), 0);
        assert_eq!(worth(&plugs(64, FRAME_BYTES)), 65, "one per frame");
        assert_eq!(worth(&plugs(64, FRAME_BYTES + 4096)), 0, "fewer than frames");
    }

    #[test]
    fn a_range_that_was_found_in_two_objects_is_moved_once() {
        let mut runs = vec![run(300, 50), run(0, 100), run(90, 20), run(100, 10), run(120, 200)];
        sort_disjoint(&mut runs);
        let places: Vec<_> = runs.iter().map(|run| (run.offset, run.len)).collect();
        assert_eq!(places, [(0, 100), (100, 10), (120, 200)]);
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
