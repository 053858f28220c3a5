//! The overlay: what the journal holds and the object map may not know yet.
//!
//! It always wins over the object map. An entry stays after its bytes reached the committed prefix, as a cache on
//! the local disk, and goes when the journal wants to reuse the segment that holds it ([`Overlay::forget_step`]).

use weir_extent::{ExtentMap, Mapping, Target};
use weir_journal::{JournalPos, PieceKind, PlacedPiece};

/// Where the newest bytes of a range are, as far as the journal knows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum OverlayPlace {
    /// From this position of the journal on.
    Journal(JournalPos),
    /// Zeroes, provisioned.
    Zero,
    /// Given up: zeroes, a hole.
    Discard,
    /// Lost to damage.
    Poison,
}

/// A run of the volume that the overlay knows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct OverlayRun {
    pub(crate) offset: u64,
    pub(crate) len: u64,
    pub(crate) place: OverlayPlace,
}

const ZERO: u64 = 1;
const DISCARD: u64 = 2;
const POISON: u64 = 3;

/// Codes of the places without bytes take the low bits; the record's position, which says when an entry goes, the rest.
const CODE_BITS: u32 = 2;

fn target_of(piece: &PlacedPiece) -> Target {
    let fixed = |code| {
        assert!(piece.position.0 < 1 << (56 - CODE_BITS), "54 bits of journal outlast any disk");
        Target::Fixed(piece.position.0 << CODE_BITS | code)
    };
    match piece.kind {
        PieceKind::Data => Target::Linear(piece.position.0),
        PieceKind::Zero => fixed(ZERO),
        PieceKind::Discard => fixed(DISCARD),
        PieceKind::Poison => fixed(POISON),
    }
}

fn place_of(target: Target) -> (OverlayPlace, JournalPos) {
    match target {
        Target::Linear(position) => {
            (OverlayPlace::Journal(JournalPos(position)), JournalPos(position))
        }
        Target::Fixed(value) => {
            let position = JournalPos(value >> CODE_BITS);
            match value & ((1 << CODE_BITS) - 1) {
                ZERO => (OverlayPlace::Zero, position),
                DISCARD => (OverlayPlace::Discard, position),
                _ => (OverlayPlace::Poison, position),
            }
        }
    }
}

/// The map from volume offsets to the journal.
#[derive(Debug)]
pub(crate) struct Overlay {
    map: ExtentMap,
}

impl Overlay {
    pub(crate) fn new() -> Self {
        Self { map: ExtentMap::new() }
    }

    /// Makes a durable piece visible.
    pub(crate) fn insert(&mut self, piece: &PlacedPiece) {
        if piece.len > 0 {
            self.map.insert(piece.offset, piece.len, target_of(piece), |_| {});
        }
    }

    /// Makes a range fail to read: its bytes in the journal are damaged.
    pub(crate) fn poison(&mut self, offset: u64, len: u64, position: JournalPos) {
        self.map.insert(offset, len, Target::Fixed(position.0 << CODE_BITS | POISON), |_| {});
    }

    /// The runs known within a range, in order; gaps belong to the object map.
    pub(crate) fn runs(&self, offset: u64, len: u64) -> impl Iterator<Item = OverlayRun> + '_ {
        self.map.iter_range(offset, len).map(|mapping: Mapping| OverlayRun {
            offset: mapping.offset,
            len: mapping.len,
            place: place_of(mapping.target).0,
        })
    }

    /// Drops entries that point into the journal positions `start..end`, looking at up to `budget` entries from volume
    /// offset `from` on. Returns where to go on, or `None` at the end of the map.
    pub(crate) fn forget_step(
        &mut self,
        start: JournalPos,
        end: JournalPos,
        from: u64,
        budget: usize,
    ) -> Option<u64> {
        let mut gone = Vec::new();
        let mut next = None;
        for (seen, mapping) in self.map.iter_range(from, i64::MAX as u64 - from).enumerate() {
            if seen == budget {
                next = Some(mapping.offset);
                break;
            }
            let (_, position) = place_of(mapping.target);
            if position >= start && position < end {
                gone.push((mapping.offset, mapping.len));
            }
        }
        for (offset, len) in gone {
            self.map.remove(offset, len, |_| {});
        }
        next
    }

    pub(crate) fn extents(&self) -> u64 {
        self.map.extents()
    }

    pub(crate) fn heap_bytes(&self) -> usize {
        self.map.heap_bytes()
    }
}
