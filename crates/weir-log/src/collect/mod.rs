//! The collector: copies what still lives of objects that mostly died into new objects, so that the old ones can go
//! (LSVD sections 3.4 and 4.6).
//!
//! An extent of its objects names where it was copied from, and is applied only where the map still points there. So
//! clients never wait for it, and what they overwrite meanwhile stays overwritten, at run time and in recovery. The old
//! objects go by the rules of [`crate::collect::garbage`].

mod backpressure;
mod choose;
pub(crate) mod garbage;
pub(crate) mod runs;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use tokio::time::Instant;
use weir_device::VolumeId;
use weir_pacer::Pressure;

use crate::collect::backpressure::Backpressure;
use crate::format::object::{ObjectHeader, ObjectKind};
use crate::ids::{ObjectId, ObjectSeq};
use crate::map::objects::ObjectMap;
use crate::map::table::{LiveObject, Usage};
use crate::options::CollectLimits;

/// Pace of what somebody waits for: a compaction, or a flatten.
const PACE_WANTED: usize = 2;

/// Committed objects between two looks for small ones.
const SMALL_LOOK_OBJECTS: u64 = 64;

/// What the collector knows.
#[derive(Debug, Default)]
pub(crate) struct Collector {
    /// A collection is under way: it began when the live share fell below `start_percent` and ends at `stop_percent`.
    active: bool,
    /// Sources of objects that are gathered or on their way.
    claimed: BTreeSet<ObjectId>,
    /// Sources by the object of the collector that is on its way and will replace them.
    on_the_way: BTreeMap<ObjectSeq, Vec<ObjectId>>,
    /// Objects that cannot be read; left alone by this opening.
    unreadable: BTreeSet<ObjectId>,
    objects_since_look: u64,
    /// Objects of other volumes are copied, whatever lives of them.
    pub(crate) flattens: bool,
    /// Live share, in percent, that a compaction wants.
    pub(crate) wanted_percent: Option<u64>,
    /// Nothing was left to choose, and nothing was committed since.
    found_nothing: bool,
    backpressure: Backpressure,
    /// Objects written by the collector of this opening.
    pub(crate) objects_written: u64,
    /// Payload bytes in them.
    pub(crate) bytes_written: u64,
    /// Payload bytes of data objects committed by this opening.
    pub(crate) data_bytes: u64,
}

impl Collector {
    /// An object of clients or of the collector is in the committed prefix.
    pub(crate) fn on_committed(
        &mut self,
        header: &Arc<ObjectHeader>,
        objects: &ObjectMap,
        limits: &CollectLimits,
    ) {
        self.objects_since_look += 1;
        self.found_nothing = false;
        let bytes = header.payload_len();
        if header.kind == ObjectKind::Data {
            self.data_bytes += bytes;
            self.backpressure.on_data(bytes, self.live_percent(objects), limits.kept_percent());
            return;
        }
        self.objects_written += 1;
        self.bytes_written += bytes;
        self.backpressure.on_copied(bytes);
        let moved = self.on_the_way.remove(&header.id.seq);
        self.release(moved.unwrap_or_default());
    }

    /// A compaction begins.
    pub(crate) fn want(&mut self, percent: u64) {
        self.wanted_percent = Some(percent);
        self.found_nothing = false;
    }

    /// A flatten begins.
    pub(crate) fn flatten(&mut self) {
        self.flattens = true;
        self.found_nothing = false;
    }

    /// Whether nothing is on its way.
    pub(crate) fn is_settled(&self) -> bool {
        self.claimed.is_empty()
    }

    /// Live share in percent, while nothing is on its way.
    pub(crate) fn settled_percent(&self, objects: &ObjectMap) -> Option<u64> {
        self.claimed.is_empty().then(|| self.live_percent(objects))
    }

    /// Objects that cannot be read.
    pub(crate) fn unreadable_count(&self) -> usize {
        self.unreadable.len()
    }

    /// Whether there is nothing to choose from any more.
    pub(crate) fn found_nothing(&self) -> bool {
        self.found_nothing
    }

    /// Objects on their way, and sources that are read, at a time.
    pub(crate) fn objects_at_a_time(&self, objects: &ObjectMap, limits: &CollectLimits) -> usize {
        let pace = backpressure::pace(self.live_percent(objects), limits.kept_percent());
        if self.is_wanted() { pace.max(PACE_WANTED) } else { pace }
    }

    /// How much presses it, in thousandths.
    pub(crate) fn pressure(&self, objects: &ObjectMap, limits: &CollectLimits) -> u32 {
        let pressure = backpressure::pressure(self.live_percent(objects), limits.kept_percent());
        if self.is_wanted() { Pressure::FULL } else { pressure }
    }

    /// Whether somebody waits for a compaction, or a flatten.
    fn is_wanted(&self) -> bool {
        self.flattens || self.wanted_percent.is_some()
    }

    /// Until when the next object of clients' data waits for the collector, at most.
    pub(crate) fn holds_data_until(
        &mut self,
        objects: &ObjectMap,
        limits: &CollectLimits,
    ) -> Option<Instant> {
        if self.found_nothing && self.claimed.is_empty() {
            self.backpressure = Backpressure::default();
            return None;
        }
        let live_percent = self.live_percent(objects);
        self.backpressure.holds_until(Instant::now(), live_percent, limits.kept_percent())
    }

    /// Whether clients' data waits for the collector.
    pub(crate) fn holds_data(&self) -> bool {
        self.backpressure.holds()
    }

    /// Live share, of what no snapshot holds, in percent once what is claimed has moved.
    pub(crate) fn live_percent(&self, objects: &ObjectMap) -> u64 {
        let Usage { collectable_live_bytes, mut collectable_bytes, .. } = objects.table.usage();
        for object in self.claimed.iter().filter_map(|id| objects.table.collectable_object(id)) {
            collectable_bytes -= object.payload_bytes - object.live_bytes;
        }
        (collectable_live_bytes * 100).checked_div(collectable_bytes).unwrap_or(100)
    }

    /// Whether there may be something to do; cheap enough for every object that is committed.
    pub(crate) fn is_due(&mut self, objects: &ObjectMap, limits: &CollectLimits) -> bool {
        let (start, stop) = match (limits.start_percent, self.wanted_percent) {
            (0, None) => return self.flattens,
            (0, Some(wanted)) => (wanted, wanted),
            (start, None) => (start, limits.stop_percent),
            (start, Some(wanted)) => (start.max(wanted), limits.stop_percent.max(wanted)),
        };
        let percent = self.live_percent(objects);
        self.active = percent < if self.active { stop } else { start };
        self.active || self.flattens || self.objects_since_look >= SMALL_LOOK_OBJECTS
    }

    /// Chooses and claims the objects of `stream` whose live bytes make the next object of about `batch_bytes`; none
    /// beyond `newest`, the last one that is applied.
    pub(crate) fn next_sources(
        &mut self,
        objects: &ObjectMap,
        limits: &CollectLimits,
        stream: VolumeId,
        newest: ObjectSeq,
        batch_bytes: u64,
    ) -> Vec<LiveObject> {
        if !self.is_due(objects, limits) {
            return Vec::new();
        }
        if self.flattens {
            let free =
                |o: &LiveObject| !self.claimed.contains(&o.id) && !self.unreadable.contains(&o.id);
            let sources =
                choose::up_to_a_batch(objects.table.shared_objects().filter(free), batch_bytes);
            self.found_nothing = sources.is_empty();
            self.claimed.extend(sources.iter().map(|o| o.id));
            if !sources.is_empty() {
                return sources;
            }
        }
        let looks_for_small = self.objects_since_look >= SMALL_LOOK_OBJECTS;
        if looks_for_small {
            self.objects_since_look = 0;
        }
        // Of an object that is being applied in steps, what it overwrites is live in older objects until its last step:
        // chosen together with one of them, it would be moved twice. Once all of them are applied, a range is live in
        // one of them at most, because what changes later goes to newer objects. Taken alone, such an object seems half
        // dead while it is applied, so it would be copied whole, and so would its copy, again and again.
        let ours = |o: &LiveObject| {
            o.id.stream == stream
                && o.id.seq <= newest
                && !self.claimed.contains(&o.id)
                && !self.unreadable.contains(&o.id)
        };
        let order = choose::Order {
            policy: limits.policy,
            newest,
            small_bytes: batch_bytes / 8,
            looks_for_small,
            collects: self.active,
            live_bytes_max: batch_bytes,
        };
        let sources = order.choose(objects.table.collectable_objects().filter(ours));
        self.found_nothing = sources.is_empty();
        self.claimed.extend(sources.iter().map(|o| o.id));
        sources
    }

    /// Claims those of these objects that the map alone needs, readable before or not.
    pub(crate) fn claim(&mut self, objects: &ObjectMap, ids: &[ObjectId]) -> Vec<LiveObject> {
        let free = |id: &&ObjectId| !self.claimed.contains(id) && !objects.table.is_pinned(id);
        let free = ids.iter().filter(free).filter_map(|id| objects.table.live_object(id));
        let sources: Vec<LiveObject> = free.collect();
        for source in &sources {
            self.unreadable.remove(&source.id);
            self.claimed.insert(source.id);
        }
        sources
    }

    /// Whether an object is a source of one that is gathered or on its way.
    pub(crate) fn is_claimed(&self, id: &ObjectId) -> bool {
        self.claimed.contains(id)
    }

    /// Objects of the collector on their way.
    pub(crate) fn in_flight(&self) -> usize {
        self.on_the_way.len()
    }

    /// The object `seq` goes on its way; with its commit `sources` are moved.
    pub(crate) fn on_sent(&mut self, seq: ObjectSeq, sources: Vec<ObjectId>) {
        self.on_the_way.insert(seq, sources);
    }

    /// Objects that cannot be read; left alone by this opening.
    pub(crate) fn unreadable(&self) -> &BTreeSet<ObjectId> {
        &self.unreadable
    }

    /// An object cannot be read: it is left alone from here on.
    pub(crate) fn give_up(&mut self, id: ObjectId) {
        self.release([id]);
        self.unreadable.insert(id);
    }

    /// What was claimed may be chosen again, if anything of it is left.
    pub(crate) fn release(&mut self, sources: impl IntoIterator<Item = ObjectId>) {
        for id in sources {
            self.claimed.remove(&id);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::collect::runs::Described;
    use crate::format::object::{ExtentKind, ObjectExtent};
    use crate::map::objects::ApplyCursor;
    use crate::options::MapLimits;
    use crate::replay::header_of;

    #[test]
    fn an_object_that_is_being_applied_is_not_chosen() {
        let data = |offset| ObjectExtent { offset, len: 4096, kind: ExtentKind::Data };
        let object = |seq, extents| {
            let described = Described { extents, streams: Vec::new(), sources: Vec::new() };
            header_of(ObjectKind::Data, described, ObjectSeq(seq))
        };
        let mut objects = ObjectMap::new();
        let limits = MapLimits { apply_step_extents: 1, ..MapLimits::default() };
        let older = object(1, vec![data(0), data(4096), data(8192)]);
        let newer = object(2, vec![data(0), data(4096)]);
        let mut cursor = ApplyCursor::default();
        while !objects.apply_step(&older, &mut cursor, &limits, |_, _, _| {}) {}
        let mut cursor = ApplyCursor::default();
        assert!(!objects.apply_step(&newer, &mut cursor, &limits, |_, _, _| {}), "one of two");
        let choose = |objects: &ObjectMap, applied| {
            let limits = CollectLimits { start_percent: 100, ..CollectLimits::default() };
            let mut collector = Collector::default();
            let stream = older.id.stream;
            let chosen =
                collector.next_sources(objects, &limits, stream, ObjectSeq(applied), 1 << 20);
            chosen.iter().map(|object| object.id.seq.0).collect::<Vec<_>>()
        };
        assert_eq!(choose(&objects, 1), [1]);
        while !objects.apply_step(&newer, &mut cursor, &limits, |_, _, _| {}) {}
        let mut cursor = ApplyCursor::default();
        let third = object(3, vec![data(0)]);
        while !objects.apply_step(&third, &mut cursor, &limits, |_, _, _| {}) {}
        assert_eq!(choose(&objects, 3), [1, 2], "once it is applied");
    }
}
