//! The object map: where every byte of the committed prefix is, and how much of each object still lives.
//!
//! Invariants
//!  O1. The map describes exactly the objects up to the committed sequence: only [`ObjectMap::apply_step`] changes it.
//!  O2. The live bytes of an object are the bytes of the map that point at it.

use smallvec::SmallVec;
use weir_device::VolumeId;
use weir_extent::{ExtentMap, Mapping, PIECE_BYTES, Target};

use crate::format::checkpoint::TableRecord;
use crate::format::object::{ExtentKind, GcSource, ObjectHeader};
use crate::format::placement::Placement;
use crate::ids::{ObjectId, ObjectSeq};
use crate::limits::PAYLOAD_BITS;
use crate::map::lost::{LostLook, LostRanges};
use crate::map::table::{ObjectTable, TableIndex};
use crate::options::MapLimits;

/// Where bytes of the committed prefix are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ObjectPlace {
    /// In the payload of an object, from this offset on.
    Object { index: TableIndex, payload_offset: u32 },
    /// Zeroes, provisioned.
    Zero,
    /// Lost to damage.
    Poison,
}

/// A run of the volume that the object map knows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct ObjectRun {
    pub(crate) offset: u64,
    pub(crate) len: u64,
    pub(crate) place: ObjectPlace,
}

const ZERO: u64 = 1;
pub(super) const POISON: u64 = 2;

fn target_of(index: TableIndex, payload_offset: u64) -> Target {
    Target::Linear(u64::from(index.0) << PAYLOAD_BITS | payload_offset)
}

fn split(address: u64) -> (TableIndex, u32) {
    let index = u32::try_from(address >> PAYLOAD_BITS).expect("30 bits");
    let offset = u32::try_from(address & ((1 << PAYLOAD_BITS) - 1)).expect("26 bits");
    (TableIndex(index), offset)
}

/// What a mapping of an object map says.
pub(crate) fn run_of(mapping: Mapping) -> ObjectRun {
    let Mapping { offset, len, target } = mapping;
    ObjectRun { offset, len, place: place_of(target) }
}

/// Whether anything in a range is lost.
pub(crate) fn is_lost(map: &ExtentMap, offset: u64, len: u64) -> bool {
    map.iter_range(offset, len).any(|mapping| mapping.target == Target::Fixed(POISON))
}

fn place_of(target: Target) -> ObjectPlace {
    match target {
        Target::Linear(address) => {
            let (index, payload_offset) = split(address);
            ObjectPlace::Object { index, payload_offset }
        }
        Target::Fixed(ZERO) => ObjectPlace::Zero,
        Target::Fixed(_) => ObjectPlace::Poison,
    }
}

/// How far the extents of an object have been applied.
#[derive(Debug, Default)]
pub(crate) struct ApplyCursor {
    extent: usize,
    within: u64,
    /// Where the data of the current extent begins, once that is known.
    begin: Option<u64>,
    placement: Option<Placement>,
    index: Option<TableIndex>,
}

/// Bytes in an object.
#[derive(Clone, Copy, Debug)]
struct Stored {
    index: TableIndex,
    payload_offset: u64,
}

/// Bytes that are in two objects.
#[derive(Clone, Copy, Debug)]
struct Moved {
    /// Where they were copied from.
    from: Stored,
    to: Stored,
}

impl Stored {
    fn target(self) -> Target {
        target_of(self.index, self.payload_offset)
    }

    fn advance(self, bytes: u64) -> Self {
        Self { payload_offset: self.payload_offset + bytes, ..self }
    }
}

/// The map and the table of objects it names.
#[derive(Debug)]
pub(crate) struct ObjectMap {
    pub(crate) map: ExtentMap,
    pub(crate) table: ObjectTable,
    lost: LostRanges,
}

impl ObjectMap {
    pub(crate) fn new() -> Self {
        Self { map: ExtentMap::new(), table: ObjectTable::default(), lost: LostRanges::default() }
    }

    /// The map of the volume whose stream this is.
    pub(crate) fn of(stream: VolumeId) -> Self {
        Self { map: ExtentMap::new(), table: ObjectTable::of(stream), lost: LostRanges::default() }
    }

    /// What is known to be lost.
    pub(crate) fn lost(&self) -> &LostRanges {
        &self.lost
    }

    /// Looks on for what is lost ([`LostRanges::look`]).
    pub(crate) fn look_for_lost(&mut self, look: &mut LostLook, steps: usize) -> bool {
        self.lost.look(&self.map, look, steps)
    }

    pub(crate) fn object(&self, index: TableIndex) -> ObjectId {
        self.table.object(index)
    }

    /// O2 for pieces that were decoded in bulk: counts the live bytes of a range of the map that was just loaded.
    pub(crate) fn count_live(&mut self, offset: u64, len: u64) -> Result<(), u64> {
        for mapping in self.map.iter_range(offset, len) {
            match mapping.target {
                Target::Linear(address) => {
                    let (index, payload_offset) = split(address);
                    if !self.table.gain(index, payload_offset, mapping.len) {
                        return Err(mapping.offset);
                    }
                }
                Target::Fixed(POISON) => self.lost.note(&self.map, mapping.offset, mapping.len),
                Target::Fixed(_) => {}
            }
        }
        Ok(())
    }

    /// Applies the extents of the next object of the prefix, about a step's worth; `true` when all are applied.
    /// `before_change` sees every range before it changes (a running checkpoint encodes it as it was).
    pub(crate) fn apply_step(
        &mut self,
        header: &ObjectHeader,
        cursor: &mut ApplyCursor,
        limits: &MapLimits,
        mut before_change: impl FnMut(&ExtentMap, u64, u64),
    ) -> bool {
        let index = *cursor.index.get_or_insert_with(|| {
            let payload_len = u32::try_from(header.payload_len()).expect("checked when decoded");
            self.table.add(TableRecord { id: header.id, payload_len })
        });
        let ApplyCursor { placement, begin, .. } = cursor;
        let placement = placement.get_or_insert_with(|| header.placement());
        for _ in 0..limits.apply_step_extents {
            let Some(extent) = header.extents.get(cursor.extent) else { break };
            let (offset, len) = (extent.offset + cursor.within, extent.len - cursor.within);
            before_change(&self.map, offset, len);
            let begin_at = *begin.get_or_insert_with(|| placement.place(extent));
            let forgets = weir_device::mutant("copy_resumed_elsewhere");
            let within = if forgets { 0 } else { cursor.within };
            let to = Stored { index, payload_offset: begin_at + within };
            let done = match header.sources.get(cursor.extent) {
                None => self.set(header.id.seq, extent.kind, to, (offset, len), limits),
                Some(source) => match self.place_of_source(header, source) {
                    Some(from) => {
                        let from = from.advance(cursor.within);
                        let moved = Moved { from, to };
                        self.move_live(header.id.seq, extent.kind, moved, (offset, len), limits)
                    }
                    // The source is dead, so nothing in the map points at it any more.
                    None => len,
                },
            };
            if done < len {
                cursor.within += done;
                return false;
            }
            cursor.within = 0;
            *begin = None;
            cursor.extent += 1;
        }
        if weir_device::mutant("extent_lost_between_steps")
            && let Some(lost) = header.extents.get(cursor.extent)
        {
            placement.place(lost);
            cursor.extent += 1;
        }
        let all = cursor.extent == header.extents.len();
        if all {
            self.table.on_applied(index);
        }
        all
    }

    /// Sets a range as the object `by` says; about a step's worth. Returns the bytes done.
    fn set(
        &mut self,
        by: ObjectSeq,
        kind: ExtentKind,
        to: Stored,
        (offset, len): (u64, u64),
        limits: &MapLimits,
    ) -> u64 {
        let Self { map, table, lost } = self;
        let budget = limits.map_step_budget;
        let displaced = |old: Mapping| {
            if let Target::Linear(address) = old.target {
                table.lose(split(address).0, old.len, to.index, by);
            }
        };
        match kind {
            ExtentKind::Data => {
                map.insert(offset, len, to.target(), displaced);
                let payload_offset = u32::try_from(to.payload_offset).expect("26 bits");
                let fits = table.gain(to.index, payload_offset, len);
                assert!(fits, "extents and payload agree: checked when decoded");
                len
            }
            // Whole pieces of zeroes are holes: a checkpoint refers to each piece that has anything in it, so that one
            // request for the zeroes of a huge volume would fill memory and store. Both read as zeroes, and space is
            // kept for neither.
            ExtentKind::Zero => match offset.next_multiple_of(PIECE_BYTES) - offset {
                0 if len >= PIECE_BYTES => {
                    map.remove_step(offset, len - len % PIECE_BYTES, budget, displaced)
                }
                0 => map.insert_step(offset, len, Target::Fixed(ZERO), budget, displaced),
                before => {
                    let len = len.min(before);
                    map.insert_step(offset, len, Target::Fixed(ZERO), budget, displaced)
                }
            },
            ExtentKind::Poison => {
                let done = map.insert_step(offset, len, Target::Fixed(POISON), budget, displaced);
                lost.note(map, offset, done);
                done
            }
            ExtentKind::Discard => map.remove_step(offset, len, budget, displaced),
        }
    }

    fn place_of_source(&self, header: &ObjectHeader, source: &GcSource) -> Option<Stored> {
        let stream = header.streams[source.stream as usize];
        let id = ObjectId { stream, seq: source.seq, epoch: source.epoch };
        let index = self.table.find(&id)?;
        Some(Stored { index, payload_offset: source.payload_offset.into() })
    }

    /// Bytes that the collector copied, or that a repair gave up: the map follows where it still points at the place
    /// that they were copied from, and nowhere else. About a step's worth; returns the bytes done.
    fn move_live(
        &mut self,
        by: ObjectSeq,
        kind: ExtentKind,
        moved: Moved,
        (offset, len): (u64, u64),
        limits: &MapLimits,
    ) -> u64 {
        let Moved { from, to } = moved;
        let mut live: SmallVec<[(u64, u64); 8]> = SmallVec::new();
        let mut done = len;
        for (seen, mapping) in self.map.iter_range(offset, len).enumerate() {
            if seen == limits.map_step_budget {
                done = mapping.offset - offset;
                break;
            }
            let still_there = mapping.target == from.advance(mapping.offset - offset).target();
            if still_there || weir_device::mutant("copy_applied_unconditionally") {
                live.push((mapping.offset, mapping.len));
            }
        }
        for (mut at, mut len) in live {
            while len > 0 {
                let set = self.set(by, kind, to.advance(at - offset), (at, len), limits);
                (at, len) = (at + set, len - set);
            }
        }
        done
    }

    /// The runs known within a range, in order; gaps are holes.
    pub(crate) fn runs(&self, offset: u64, len: u64) -> impl Iterator<Item = ObjectRun> + '_ {
        self.map.iter_range(offset, len).map(run_of)
    }

    /// O2, checked against a full walk; for tests and the simulation.
    pub(crate) fn check_invariants(&self) {
        let entries = usize::try_from(self.table.len()).expect("the table is in memory");
        let mut counted = vec![0_u64; entries];
        for mapping in self.map.iter_range(0, i64::MAX as u64) {
            if let Target::Linear(address) = mapping.target {
                counted[split(address).0.0 as usize] += mapping.len;
            }
        }
        self.table.check_invariants(&counted);
    }
}

#[cfg(test)]
mod tests;
