//! The object map: where every byte of the committed prefix is, and how much of each object still lives.
//!
//! Invariants
//!  O1. The map describes exactly the objects up to the committed sequence: only [`ObjectMap::apply_step`] changes it.
//!  O2. The live bytes of an object are the bytes of the map that point at it.

use weir_extent::{ExtentMap, Mapping, Target};

use crate::format::checkpoint::TableRecord;
use crate::format::object::{ExtentKind, ObjectHeader};
use crate::ids::ObjectId;
use crate::limits::{MAP_STEP_BUDGET, OBJECTS_MAX, PAYLOAD_BITS};

/// Index of an object in the table that map targets name.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct TableIndex(pub(crate) u32);

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

#[derive(Clone, Copy, Debug)]
struct TableEntry {
    record: TableRecord,
    live_bytes: u64,
}

const ZERO: u64 = 1;
const POISON: u64 = 2;

fn target_of(index: TableIndex, payload_offset: u64) -> Target {
    Target::Linear(u64::from(index.0) << PAYLOAD_BITS | payload_offset)
}

fn split(address: u64) -> (usize, u32) {
    let index = usize::try_from(address >> PAYLOAD_BITS).expect("30 bits");
    let offset = u32::try_from(address & ((1 << PAYLOAD_BITS) - 1)).expect("26 bits");
    (index, offset)
}

fn place_of(target: Target) -> ObjectPlace {
    match target {
        Target::Linear(address) => {
            let (index, payload_offset) = split(address);
            let index = TableIndex(u32::try_from(index).expect("30 bits"));
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
    payload_offset: u64,
    index: Option<TableIndex>,
}

/// The map and the table of objects it names.
#[derive(Debug)]
pub(crate) struct ObjectMap {
    pub(crate) map: ExtentMap,
    table: Vec<TableEntry>,
}

impl ObjectMap {
    pub(crate) fn new() -> Self {
        Self { map: ExtentMap::new(), table: Vec::new() }
    }

    pub(crate) fn object(&self, index: TableIndex) -> ObjectId {
        self.table[index.0 as usize].record.id
    }

    pub(crate) fn table_len(&self) -> u64 {
        self.table.len() as u64
    }

    /// Records of the table from `first` on, at most `count`.
    pub(crate) fn table_records(&self, first: u64, count: u64) -> Vec<TableRecord> {
        let to_usize = |v: u64| usize::try_from(v).expect("the table is in memory");
        let end = self.table_len().min(first + count);
        self.table[to_usize(first)..to_usize(end)].iter().map(|e| e.record).collect()
    }

    /// Adds an object to the table, none of it live yet.
    pub(crate) fn add_object(&mut self, record: TableRecord) -> TableIndex {
        assert!(self.table_len() < OBJECTS_MAX, "30 bits name every object of a volume");
        self.table.push(TableEntry { record, live_bytes: 0 });
        TableIndex(u32::try_from(self.table.len() - 1).expect("30 bits"))
    }

    /// O2 for pieces that were decoded in bulk: counts the live bytes of a range of the map that was just loaded.
    pub(crate) fn count_live(&mut self, offset: u64, len: u64) -> Result<(), u64> {
        for mapping in self.map.iter_range(offset, len) {
            if let Target::Linear(address) = mapping.target {
                let (index, payload_offset) = split(address);
                match self.table.get_mut(index) {
                    Some(e)
                        if u64::from(payload_offset) + mapping.len
                            <= e.record.payload_len.into() =>
                    {
                        e.live_bytes += mapping.len;
                    }
                    _ => return Err(mapping.offset),
                }
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
        extents_max: usize,
        mut before_change: impl FnMut(&ExtentMap, u64, u64),
    ) -> bool {
        let index = *cursor.index.get_or_insert_with(|| {
            let payload_len = u32::try_from(header.payload_len()).expect("checked when decoded");
            self.add_object(TableRecord { id: header.id, payload_len })
        });
        for _ in 0..extents_max {
            let Some(extent) = header.extents.get(cursor.extent) else { return true };
            let (offset, len) = (extent.offset + cursor.within, extent.len - cursor.within);
            before_change(&self.map, offset, len);
            let table = &mut self.table;
            let displaced = |old: Mapping| {
                if let Target::Linear(address) = old.target {
                    let entry = &mut table[split(address).0];
                    assert!(
                        entry.live_bytes >= old.len,
                        "O2: an object cannot lose more than lives"
                    );
                    entry.live_bytes -= old.len;
                }
            };
            let done = match extent.kind {
                ExtentKind::Data => {
                    self.map.insert(
                        offset,
                        len,
                        target_of(index, cursor.payload_offset),
                        displaced,
                    );
                    self.table[index.0 as usize].live_bytes += len;
                    cursor.payload_offset += len;
                    len
                }
                ExtentKind::Zero => self.map.insert_step(
                    offset,
                    len,
                    Target::Fixed(ZERO),
                    MAP_STEP_BUDGET,
                    displaced,
                ),
                ExtentKind::Poison => self.map.insert_step(
                    offset,
                    len,
                    Target::Fixed(POISON),
                    MAP_STEP_BUDGET,
                    displaced,
                ),
                ExtentKind::Discard => {
                    self.map.remove_step(offset, len, MAP_STEP_BUDGET, displaced)
                }
            };
            if done < len {
                cursor.within += done;
                return false;
            }
            cursor.within = 0;
            cursor.extent += 1;
        }
        cursor.extent == header.extents.len()
    }

    /// The runs known within a range, in order; gaps are holes.
    pub(crate) fn runs(&self, offset: u64, len: u64) -> impl Iterator<Item = ObjectRun> + '_ {
        self.map.iter_range(offset, len).map(|mapping| ObjectRun {
            offset: mapping.offset,
            len: mapping.len,
            place: place_of(mapping.target),
        })
    }

    /// Objects that the map points at.
    pub(crate) fn live_objects(&self) -> impl Iterator<Item = ObjectId> + '_ {
        self.table.iter().filter(|entry| entry.live_bytes > 0).map(|entry| entry.record.id)
    }

    /// Live bytes and payload bytes over all objects.
    pub(crate) fn live(&self) -> (u64, u64) {
        self.table.iter().fold((0, 0), |(live, total), entry| {
            (live + entry.live_bytes, total + u64::from(entry.record.payload_len))
        })
    }

    /// O2, checked against a full walk; for tests and the simulation.
    pub(crate) fn check_invariants(&self) {
        let mut counted = vec![0_u64; self.table.len()];
        for mapping in self.map.iter_range(0, i64::MAX as u64) {
            if let Target::Linear(address) = mapping.target {
                counted[split(address).0] += mapping.len;
            }
        }
        for (entry, counted) in self.table.iter().zip(counted) {
            assert_eq!(entry.live_bytes, counted, "O2: live bytes of object {}", entry.record.id);
        }
    }
}
