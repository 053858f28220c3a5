//! Objects of more extents than one step applies, and ranges of more mappings than one step looks at, against a map
//! of one entry per unit of the volume. At the real limits: smaller ones are the business of the simulation.

use super::*;
use crate::collect::runs::Described;
use crate::format::object::{ObjectExtent, ObjectKind};
use crate::limits::{APPLY_STEP_EXTENTS, MAP_STEP_BUDGET};
use crate::replay::header_of;

/// Everything here lies on borders of this many bytes.
const UNIT: u64 = 512;

/// What a unit of the volume shows: an object, by its sequence, and the unit of its payload; or zeroes, or nothing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Cell {
    Hole,
    Zero,
    Stored(u64, u64),
}

/// The map, and what it should say.
struct Pair {
    objects: ObjectMap,
    cells: Vec<Cell>,
    seq: u64,
    /// Steps that the last object took.
    steps: usize,
}

fn extent(unit: u64, units: u64, kind: ExtentKind) -> ObjectExtent {
    ObjectExtent { offset: unit * UNIT, len: units * UNIT, kind }
}

fn to_usize(value: u64) -> usize {
    usize::try_from(value).expect("small")
}

impl Pair {
    fn new(units: u64) -> Self {
        let cells = vec![Cell::Hole; to_usize(units)];
        Self { objects: ObjectMap::new(), cells, seq: 0, steps: 0 }
    }

    fn range(extent: &ObjectExtent) -> std::ops::Range<usize> {
        to_usize(extent.offset / UNIT)..to_usize((extent.offset + extent.len) / UNIT)
    }

    /// Applies an object of a client.
    fn write(&mut self, extents: Vec<ObjectExtent>) {
        let (seq, mut payload) = (self.seq + 1, 0);
        for extent in &extents {
            for cell in &mut self.cells[Self::range(extent)] {
                *cell = match extent.kind {
                    ExtentKind::Data => Cell::Stored(seq, payload),
                    ExtentKind::Zero => Cell::Zero,
                    _ => Cell::Hole,
                };
                payload += u64::from(extent.kind == ExtentKind::Data);
            }
        }
        let described = Described { extents, streams: Vec::new(), sources: Vec::new() };
        self.apply(ObjectKind::Data, described);
    }

    /// Applies an object of the collector: copies of `from`, whose payload these extents were from its begin on.
    fn copy(&mut self, from: u64, extents: Vec<ObjectExtent>) {
        let (seq, mut payload) = (self.seq + 1, 0);
        let id = header_of(ObjectKind::Data, empty(), ObjectSeq(from)).id;
        let mut sources = Vec::new();
        for extent in &extents {
            let payload_offset = u32::try_from(payload * UNIT).expect("26 bits");
            sources.push(GcSource { stream: 0, payload_offset, seq: id.seq, epoch: id.epoch });
            for cell in &mut self.cells[Self::range(extent)] {
                if *cell == Cell::Stored(from, payload) {
                    *cell = Cell::Stored(seq, payload);
                }
                payload += 1;
            }
        }
        self.apply(ObjectKind::Gc, Described { extents, streams: vec![id.stream], sources });
    }

    fn apply(&mut self, kind: ObjectKind, described: Described) {
        self.seq += 1;
        let header = header_of(kind, described, ObjectSeq(self.seq));
        let (mut cursor, limits) = (ApplyCursor::default(), MapLimits::default());
        self.steps = 1;
        while !self.objects.apply_step(&header, &mut cursor, &limits, |_, _, _| {}) {
            self.steps += 1;
        }
        self.check();
    }

    fn check(&self) {
        self.objects.check_invariants();
        let mut found = vec![Cell::Hole; self.cells.len()];
        for run in self.objects.runs(0, self.cells.len() as u64 * UNIT) {
            let first = run.offset / UNIT;
            for unit in first..first + run.len / UNIT {
                found[to_usize(unit)] = match run.place {
                    ObjectPlace::Object { index, payload_offset } => {
                        let at = u64::from(payload_offset) / UNIT + unit - first;
                        Cell::Stored(self.objects.object(index).seq.0, at)
                    }
                    _ => Cell::Zero,
                };
            }
        }
        let differs = (0..found.len()).find(|unit| found[*unit] != self.cells[*unit]);
        if let Some(unit) = differs {
            let (found, expected) = (found[unit], self.cells[unit]);
            panic!("object {}: unit {unit} is {found:?}, not {expected:?}", self.seq);
        }
    }
}

fn empty() -> Described {
    Described { extents: Vec::new(), streams: Vec::new(), sources: Vec::new() }
}

/// Every other unit from `first` on.
fn scattered(first: u64, count: usize) -> Vec<ObjectExtent> {
    (0..count as u64).map(|n| extent(first + 2 * n, 1, ExtentKind::Data)).collect()
}

#[test]
fn an_object_of_more_extents_than_a_step_is_applied_whole() {
    let count = 3 * APPLY_STEP_EXTENTS + 5;
    let mut pair = Pair::new(2 * count as u64 + 2);
    pair.write(scattered(0, count));
    assert_eq!(pair.steps, 4);
    // Exactly a step, and one more than that.
    pair.write(scattered(1, APPLY_STEP_EXTENTS));
    pair.write(scattered(1, APPLY_STEP_EXTENTS + 1));
}

#[test]
fn zeroes_and_discards_go_over_more_mappings_than_a_step_looks_at() {
    let count = 2 * MAP_STEP_BUDGET + 7;
    let units = 2 * count as u64;
    for kind in [ExtentKind::Zero, ExtentKind::Discard] {
        let mut pair = Pair::new(units);
        pair.write(scattered(0, count));
        let behind = extent(units - 3, 2, ExtentKind::Data);
        pair.write(vec![extent(5, units - 11, kind), behind]);
        assert!(pair.steps > 1, "{kind:?} in one step");
    }
}

#[test]
fn a_copy_goes_on_where_its_last_step_ended_and_follows_only_what_is_still_there() {
    let count = 2 * MAP_STEP_BUDGET;
    let units = 4 * count as u64;
    let mut pair = Pair::new(units);
    pair.write(vec![
        extent(0, units - 100, ExtentKind::Data),
        extent(units - 100, 100, ExtentKind::Data),
    ]);
    // Written while the copy was on its way.
    pair.write(scattered(3, count));
    pair.copy(
        1,
        vec![extent(0, units - 100, ExtentKind::Data), extent(units - 100, 100, ExtentKind::Data)],
    );
    assert!(pair.steps > 1, "in one step");
    let gone = pair.objects.table.take_dead(ObjectSeq(3));
    let gone: Vec<u64> = gone.iter().map(|id| id.seq.0).collect();
    assert_eq!(gone, [1], "all that lived of it has moved");
}
