//! Where every payload piece lies, what its checksum is, and the copies that are still in memory.
//!
//! Sorted by position because that is how it grows, so a lookup is one binary search and nothing is ever moved. Copies
//! in memory are dropped oldest first.

use std::collections::{BTreeMap, VecDeque};

use weir_device::SharedBuf;

use crate::format::to_u64;
use crate::ids::RecordSeq;
use crate::seal::PieceSeal;

/// A payload piece in the file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct PieceEntry {
    /// Offset in its segment.
    pub(crate) at: u32,
    pub(crate) len: u32,
    pub(crate) crc: u32,
    /// First byte on the volume: part of what the checksum covers.
    pub(crate) offset: u64,
    pub(crate) record: RecordSeq,
}

impl PieceEntry {
    pub(crate) fn end(&self) -> u64 {
        u64::from(self.at) + u64::from(self.len)
    }
}

/// The bytes of a piece in memory, and how much memory that holds.
#[derive(Clone, Debug)]
pub(crate) struct Resident {
    pub(crate) bytes: SharedBuf,
    pub(crate) charge_bytes: usize,
}

#[derive(Debug, Default)]
struct SegmentPieces {
    entries: Vec<PieceEntry>,
    /// One per entry where the payload is sealed.
    seals: Vec<PieceSeal>,
    /// Copies of the last `resident.len()` entries.
    resident: VecDeque<Resident>,
}

impl SegmentPieces {
    fn resident_from(&self) -> usize {
        self.entries.len() - self.resident.len()
    }
}

#[derive(Debug)]
pub(crate) struct PieceTable {
    /// By logical segment.
    segments: BTreeMap<u64, SegmentPieces>,
    /// First logical segment that may hold a copy in memory.
    resident_from: u64,
    resident_bytes: usize,
    resident_bytes_max: usize,
}

/// What a lookup found.
#[derive(Clone, Debug)]
pub(crate) struct FoundPiece {
    pub(crate) entry: PieceEntry,
    pub(crate) seal: Option<PieceSeal>,
    pub(crate) resident: Option<SharedBuf>,
}

impl PieceTable {
    pub(crate) fn new(resident_bytes_max: usize) -> Self {
        Self { segments: BTreeMap::new(), resident_from: 0, resident_bytes: 0, resident_bytes_max }
    }

    /// Adds a piece behind all others of its segment.
    pub(crate) fn push(
        &mut self,
        logical: u64,
        entry: PieceEntry,
        seal: Option<PieceSeal>,
        resident: Option<Resident>,
    ) {
        let segment = self.segments.entry(logical).or_default();
        if let Some(last) = segment.entries.last() {
            assert!(u64::from(entry.at) >= last.end(), "pieces are added in the order of position");
        }
        segment.entries.push(entry);
        segment.seals.extend(seal);
        match resident {
            Some(resident) => {
                self.resident_bytes += resident.charge_bytes;
                segment.resident.push_back(resident);
            }
            None => {
                // Copies belong to the newest entries: an entry without one ends the run.
                let dropped = std::mem::take(&mut segment.resident);
                self.resident_bytes -= charge(&dropped);
            }
        }
        self.evict();
    }

    fn evict(&mut self) {
        while self.resident_bytes > self.resident_bytes_max {
            let mut later = self.segments.range_mut(self.resident_from..);
            let Some((logical, segment)) = later.next() else { return };
            self.resident_from = *logical;
            match segment.resident.pop_front() {
                Some(resident) => self.resident_bytes -= resident.charge_bytes,
                None => self.resident_from += 1,
            }
        }
    }

    /// The piece that holds byte `at` of a logical segment.
    pub(crate) fn find(&self, logical: u64, at: u64) -> Option<FoundPiece> {
        let segment = self.segments.get(&logical)?;
        let index = segment.entries.partition_point(|entry| u64::from(entry.at) <= at);
        let index = index.checked_sub(1)?;
        let entry = segment.entries[index];
        if at >= entry.end() {
            return None;
        }
        let resident = index
            .checked_sub(segment.resident_from())
            .map(|resident| segment.resident[resident].bytes.clone());
        let seal = segment.seals.get(index).copied();
        Some(FoundPiece { entry, seal, resident })
    }

    /// Forgets a segment: its place is about to be written over.
    pub(crate) fn remove(&mut self, logical: u64) {
        if let Some(segment) = self.segments.remove(&logical) {
            self.resident_bytes -= charge(&segment.resident);
        }
    }

    /// Drops the copies in memory of a segment's records up to `through`: they were released.
    pub(crate) fn drop_resident(&mut self, logical: u64) {
        if let Some(segment) = self.segments.get_mut(&logical) {
            let dropped = std::mem::take(&mut segment.resident);
            self.resident_bytes -= charge(&dropped);
        }
    }

    pub(crate) fn resident_bytes(&self) -> usize {
        self.resident_bytes
    }

    /// O(n) check, for tests and the simulation.
    pub(crate) fn check_invariants(&self) {
        let total: usize = self.segments.values().map(|segment| charge(&segment.resident)).sum();
        assert!(total == self.resident_bytes, "charges add up");
        for segment in self.segments.values() {
            assert!(segment.resident.len() <= segment.entries.len(), "a copy has an entry");
            let seals = segment.seals.len();
            assert!(seals == 0 || seals == segment.entries.len(), "all are sealed, or none");
            for pair in segment.entries.windows(2) {
                assert!(pair[0].end() <= u64::from(pair[1].at), "sorted by position");
            }
        }
    }

    pub(crate) fn pieces(&self) -> u64 {
        self.segments.values().map(|segment| to_u64(segment.entries.len())).sum()
    }
}

fn charge(resident: &VecDeque<Resident>) -> usize {
    resident.iter().map(|resident| resident.charge_bytes).sum()
}
