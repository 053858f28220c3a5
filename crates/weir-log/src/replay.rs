//! What a stream of writes would come to as objects, without a journal, a store or bytes: the batches and the object
//! map of a volume, driven by offsets alone.
//!
//! For `weir trace sim`. It uses what a volume uses ([`Batch`], [`ObjectMap`]), so that its figures are those of a
//! volume; only the journal's part is made up: every piece lies behind the one before it, with a header in between.
//! The collector chooses, plugs and cuts as that of a volume does ([`Collector`], [`runs`]), after every object, and
//! always keeps up.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::{self, Debug, Formatter};
use std::rc::Rc;
use std::sync::Arc;

use weir_device::VolumeId;
use weir_extent::{Mapping, Target};
use weir_journal::{Epoch, JournalPos, PieceKind, PlacedPiece, RecordSeq, WriteNumber};

use crate::collect::Collector;
use crate::collect::runs::{self, Described};
use crate::format::frame::{Codec, Frame};
use crate::format::object::{ExtentKind, ObjectExtent, ObjectHeader, ObjectKind, ObjectVersion};
use crate::format::placement::Placement;
use crate::ids::{ObjectId, ObjectSeq, WriteMark};
use crate::limits::VOLUME_BYTES_MAX;
use crate::map::objects::{ApplyCursor, ObjectMap};
use crate::options::{CollectLimits, MapLimits};
use crate::write::batch::{Batch, BatchLimits, MergedExtent};

/// Longest piece in bytes: a record of a journal with default settings holds no longer one.
const PIECE_BYTES_MAX: u64 = 4 << 20;

/// Journal bytes between two pieces: the header of a record.
const RECORD_HEADER_BYTES: u64 = 4096;

const EPOCH: Epoch = Epoch(1);

const STREAM: VolumeId = VolumeId([0; 16]);

/// What is spared (LSVD table 5).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Merging {
    /// Every write is sent, in order: what merging is measured against.
    Off,
    /// Bytes that are written again in the same batch are sent once.
    On,
    /// The same, and the collector plugs small holes: as a volume does it.
    Plugging,
}

/// Extents that a map takes between two questions whether the replay goes on: each may need a table and a node, of
/// 8 KiB each.
const STEP_EXTENTS: usize = 128;

/// Whether a replay ends early.
#[derive(Clone)]
struct End(Rc<dyn Fn() -> bool>);

impl Debug for End {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        f.write_str("End")
    }
}

/// Batches and object map of a volume that is only written.
#[derive(Debug)]
pub struct Replay {
    limits: BatchLimits,
    merging: Merging,
    batch: Option<Batch>,
    objects: ObjectMap,
    journal_end: u64,
    writes: u64,
    object_count: u64,
    written_bytes: u64,
    stored_bytes: u64,
    collect: CollectLimits,
    collector: Collector,
    /// Of the objects that live: where on the volume they can be.
    headers: BTreeMap<ObjectId, Vec<ObjectExtent>>,
    end: Option<End>,
    has_ended: bool,
}

/// What came of it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ReplayReport {
    /// Writes.
    pub writes: u64,
    /// Bytes that they wrote.
    pub written_bytes: u64,
    /// Objects.
    pub objects: u64,
    /// Payload bytes in them.
    pub stored_bytes: u64,
    /// Payload bytes that the collector copied, which come on top.
    pub collected_bytes: u64,
    /// Payload bytes that the map points at in the end.
    pub live_bytes: u64,
    /// Extents of the map in the end.
    pub extents: u64,
    /// Bytes of memory of the map in the end.
    pub map_bytes: u64,
}

impl std::ops::AddAssign for ReplayReport {
    fn add_assign(&mut self, other: Self) {
        self.writes += other.writes;
        self.written_bytes += other.written_bytes;
        self.objects += other.objects;
        self.stored_bytes += other.stored_bytes;
        self.collected_bytes += other.collected_bytes;
        self.live_bytes += other.live_bytes;
        self.extents += other.extents;
        self.map_bytes += other.map_bytes;
    }
}

impl Replay {
    /// A blank volume whose batches are closed at `batch_bytes`.
    #[must_use]
    pub fn new(batch_bytes: u64, merging: Merging) -> Self {
        Self {
            limits: BatchLimits { bytes: batch_bytes, ..BatchLimits::default() },
            merging,
            batch: None,
            objects: ObjectMap::new(),
            journal_end: 0,
            writes: 0,
            object_count: 0,
            written_bytes: 0,
            stored_bytes: 0,
            collect: CollectLimits::default(),
            collector: Collector::default(),
            headers: BTreeMap::new(),
            end: None,
            has_ended: false,
        }
    }

    /// Ends where `end` says so, and then does nothing more: what came of it says nothing. It is asked again and again
    /// while objects are applied.
    #[must_use]
    pub fn until(mut self, end: Rc<dyn Fn() -> bool>) -> Self {
        self.end = Some(End(end));
        self
    }

    /// Writes a range. What lies past the largest volume is left out.
    pub fn write(&mut self, offset: u64, len: u64) {
        self.writes += 1;
        self.written_bytes += len;
        self.in_pieces(PieceKind::Data, offset, len, PIECE_BYTES_MAX);
    }

    /// Gives a range up.
    pub fn discard(&mut self, offset: u64, len: u64) {
        self.in_pieces(PieceKind::Discard, offset, len, u64::MAX);
    }

    fn in_pieces(&mut self, kind: PieceKind, offset: u64, len: u64, piece_max: u64) {
        let end = offset.saturating_add(len).min(VOLUME_BYTES_MAX);
        let mut offset = offset;
        while offset < end {
            let len = (end - offset).min(piece_max);
            self.push(kind, offset, len);
            offset += len;
        }
    }

    fn push(&mut self, kind: PieceKind, offset: u64, len: u64) {
        if self.has_ended {
            return;
        }
        let write = WriteNumber(self.writes);
        self.journal_end += RECORD_HEADER_BYTES;
        let position = JournalPos(self.journal_end);
        let record = RecordSeq(self.writes);
        let piece = PlacedPiece { epoch: EPOCH, record, write, offset, len, kind, position };
        if kind == PieceKind::Data {
            self.journal_end += len;
        }
        match &mut self.batch {
            Some(batch) => batch.push(&piece, write),
            None => self.batch = Some(Batch::begin(&piece, write, VOLUME_BYTES_MAX)),
        }
        if self.batch.as_ref().is_some_and(|batch| batch.is_full(&self.limits)) {
            self.close();
        }
    }

    /// Makes an object of the open batch and applies it to the map, as the committer of a volume does.
    pub fn close(&mut self) {
        let Some(batch) = self.batch.take() else { return };
        let extents = match self.merging {
            Merging::On | Merging::Plugging => {
                let mut pieces = 0;
                batch.merge_until(|| {
                    pieces += 1;
                    pieces % STEP_EXTENTS == 0 && self.is_to_end()
                })
            }
            Merging::Off => batch.unmerged(),
        };
        if self.has_ended {
            return;
        }
        let extent = |e: &MergedExtent| ObjectExtent { offset: e.offset, len: e.len, kind: e.kind };
        let extents = extents.iter().map(extent).collect();
        let described = Described { extents, streams: Vec::new(), sources: Vec::new() };
        self.stored_bytes += self.apply(ObjectKind::Data, described);
        if !self.has_ended {
            self.collect();
        }
    }

    fn is_to_end(&mut self) -> bool {
        self.has_ended = self.end.as_ref().is_some_and(|End(end)| end());
        self.has_ended
    }

    /// Applies the next object; its payload bytes.
    fn apply(&mut self, kind: ObjectKind, described: Described) -> u64 {
        self.object_count += 1;
        let header = header_of(kind, described, ObjectSeq(self.object_count));
        let mut cursor = ApplyCursor::default();
        let limits = MapLimits { apply_step_extents: STEP_EXTENTS, ..MapLimits::default() };
        while !self.objects.apply_step(&header, &mut cursor, &limits, |_, _, _| {}) {
            if self.is_to_end() {
                return 0;
            }
        }
        let payload_bytes = header.payload_len();
        let header = Arc::new(header);
        self.collector.on_committed(&header, &self.objects, &self.collect);
        self.headers.insert(header.id, header.extents.clone());
        for dead in self.objects.table.take_dead(ObjectSeq(u64::MAX)) {
            self.headers.remove(&dead);
        }
        payload_bytes
    }

    /// Collects until enough of the objects lives, as the collector of a volume that keeps up.
    fn collect(&mut self) {
        loop {
            let newest = ObjectSeq(self.object_count);
            let sources = self.collector.next_sources(
                &self.objects,
                &self.collect,
                STREAM,
                newest,
                self.limits.bytes,
            );
            if sources.is_empty() {
                return;
            }
            let mut found = Vec::new();
            for source in &sources {
                let extents = &self.headers[&source.id];
                let mut placement = Placement::of(ObjectVersion::V3, extents);
                runs::live(&self.objects, source.id, extents, &mut placement, &mut found);
            }
            found.sort_unstable_by_key(|run| run.offset);
            if self.merging == Merging::Plugging {
                let plugs_min = self.collect.plugs_per_read_min;
                found = runs::plug_holes(&self.objects, &BTreeSet::new(), found, plugs_min);
            }
            for run in runs::cut(&found, self.limits.bytes) {
                self.apply(ObjectKind::Gc, runs::describe(run));
                if self.has_ended {
                    return;
                }
            }
            self.collector.release(sources.iter().map(|o| o.id));
        }
    }

    /// Closes the batch that is left, and says what came of it all.
    #[must_use]
    pub fn finish(mut self) -> ReplayReport {
        self.close();
        self.objects.check_invariants();
        let in_objects = |mapping: &Mapping| matches!(mapping.target, Target::Linear(_));
        let mappings = self.objects.map.iter_range(0, VOLUME_BYTES_MAX).filter(in_objects);
        let live_bytes = mappings.map(|mapping| mapping.len).sum();
        ReplayReport {
            writes: self.writes,
            written_bytes: self.written_bytes,
            objects: self.object_count,
            stored_bytes: self.stored_bytes,
            collected_bytes: self.collector.bytes_written,
            live_bytes,
            extents: self.objects.map.extents(),
            map_bytes: self.objects.map.heap_bytes() as u64,
        }
    }
}

/// The header that an object would have, as far as map and collector need it.
pub(crate) fn header_of(kind: ObjectKind, described: Described, seq: ObjectSeq) -> ObjectHeader {
    let Described { extents, streams, sources } = described;
    let data = extents.iter().filter(|extent| extent.kind == ExtentKind::Data);
    let payload: u64 = data.map(|extent| extent.len).sum();
    let raw_len = u32::try_from(payload).expect("a batch is far below 4 GiB");
    let frame = Frame { stored_len: raw_len, raw_len, crc: 0, codec: Codec::Raw };
    ObjectHeader {
        version: ObjectVersion::V3,
        opening: None,
        id: ObjectId { stream: STREAM, seq, epoch: EPOCH },
        kind,
        first_write: WriteMark::default(),
        last_write: WriteMark::default(),
        volume_size: VOLUME_BYTES_MAX,
        salt: [0; 16],
        digest: [0; 32],
        sealed: None,
        root: None,
        frames: vec![frame],
        extents,
        streams,
        sources,
        sums: Vec::new(),
        lens: Vec::new(),
    }
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;

    use super::*;

    const BLOCK: u64 = 4096;

    /// Writes of 4 KiB at these blocks, in batches of four.
    fn of_blocks(blocks: &[u64], merging: Merging) -> ReplayReport {
        let mut replay = Replay::new(4 * BLOCK, merging);
        for block in blocks {
            replay.write(block * BLOCK, BLOCK);
        }
        replay.finish()
    }

    #[test]
    fn what_is_written_again_in_a_batch_is_stored_once() {
        let blocks = [1, 1, 1, 2, /* next batch */ 1, 2, 3, 4, /* and the rest */ 9];
        let merged = of_blocks(&blocks, Merging::On);
        assert_eq!((merged.writes, merged.objects), (9, 3));
        assert_eq!(merged.written_bytes, 9 * BLOCK);
        assert_eq!(merged.stored_bytes, (2 + 4 + 1) * BLOCK);
        assert_eq!(merged.live_bytes, 5 * BLOCK);
        let plain = of_blocks(&blocks, Merging::Off);
        assert_eq!(plain.stored_bytes, 9 * BLOCK);
        assert_eq!(plain.live_bytes, 5 * BLOCK);
        // 1..=4 lie in one run of the second object, 9 alone.
        assert_eq!((merged.extents, plain.extents), (2, 2));
    }

    #[test]
    fn a_replay_that_is_to_end_ends_within_an_object() {
        for merging in [Merging::Off, Merging::On] {
            let asked = Rc::new(Cell::new(0));
            let count = Rc::clone(&asked);
            let end = Rc::new(move || {
                count.set(count.get() + 1);
                count.get() == 3
            });
            let mut replay = Replay::new(2048 * BLOCK, merging).until(end);
            for block in 0..4096 {
                replay.write(2 * block * BLOCK, BLOCK);
            }
            replay.close();
            assert_eq!(asked.get(), 3, "it is not asked again");
            let applied = if merging == Merging::Off { 3 * STEP_EXTENTS as u64 } else { 0 };
            assert_eq!(replay.objects.map.extents(), applied);
        }
    }

    #[test]
    fn merging_sorts_a_batch_into_fewer_extents() {
        let blocks = [4, 3, 2, 1];
        assert_eq!(of_blocks(&blocks, Merging::On).extents, 1);
        assert_eq!(of_blocks(&blocks, Merging::Off).extents, 4);
    }

    #[test]
    fn merged_bytes_are_those_of_the_distinct_blocks_of_every_batch() {
        let mut state = 7_u64;
        let mut next = || {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            state >> 33
        };
        let blocks: Vec<u64> = (0..5000).map(|_| (next() % 64).min(next() % 64)).collect();
        let mut replay = Replay::new(100 * BLOCK, Merging::On);
        blocks.iter().for_each(|block| replay.write(block * BLOCK, BLOCK));
        let distinct: usize =
            blocks.chunks(100).map(|batch| batch.iter().collect::<BTreeSet<_>>().len()).sum();
        assert_eq!(replay.finish().stored_bytes, distinct as u64 * BLOCK);
    }

    #[test]
    fn discards_free_and_large_writes_are_cut_into_pieces() {
        let mut replay = Replay::new(32 << 20, Merging::On);
        replay.write(0, 100 << 20);
        replay.discard(1 << 20, 98 << 20);
        let report = replay.finish();
        // Three full objects, and what the discard left of the last 4 MiB.
        assert_eq!(report.stored_bytes, (96 << 20) + (1 << 20));
        assert_eq!(report.live_bytes, 2 << 20);
        // The fourth is what the collector made of the rest of the first three.
        assert_eq!(report.objects, 5);
        let mut replay = Replay::new(8 << 20, Merging::On);
        replay.write(u64::MAX - 5, 5);
        assert_eq!(replay.finish().stored_bytes, 0, "past the largest volume");
    }
}
