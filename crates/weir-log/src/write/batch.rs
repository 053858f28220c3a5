//! Batches: writes in acknowledgement order, gathered until they make an object.

use std::time::Duration;

use tokio::time::Instant;
use weir_extent::{ExtentMap, Target};
use weir_journal::{JournalPos, PieceKind, PlacedPiece, WriteNumber};

use crate::format::object::ExtentKind;
use crate::ids::WriteMark;
use crate::limits::{
    BATCH_BYTES_MAX, BLOCK_BYTES, EXTENT_BYTES_MAX, EXTENTS_PER_OBJECT_MAX, PIECES_PER_BATCH_MAX,
    RPO_DEFAULT, WHOLE_BLOCKS_BYTES_MIN,
};

/// When a batch is closed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BatchLimits {
    /// Payload bytes that make an object.
    pub bytes: u64,
    /// Longest time a write waits for its object to be closed, unless the volume only makes small objects.
    pub age: Duration,
    /// How old the oldest acknowledged byte that is not in the store may become. Batches are closed so much earlier as
    /// their way to the store takes.
    pub rpo: Duration,
    /// What a small object is, in bytes of payload.
    pub small_bytes: u64,
}

impl Default for BatchLimits {
    fn default() -> Self {
        Self {
            bytes: 8 << 20,
            age: Duration::from_secs(5),
            rpo: RPO_DEFAULT,
            small_bytes: 256 << 10,
        }
    }
}

#[derive(Clone, Copy, Debug)]
struct BatchPiece {
    offset: u64,
    len: u64,
    target: Target,
    /// The last write in it.
    last: WriteMark,
}

/// A range of the volume after merging, and where its bytes are in the journal.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct MergedExtent {
    pub(crate) offset: u64,
    pub(crate) len: u64,
    pub(crate) kind: ExtentKind,
    /// Of its first byte, for data.
    pub(crate) position: JournalPos,
}

impl MergedExtent {
    /// Cuts off what is in the journal from `position` on, which is within it.
    pub(crate) fn split_off(&mut self, position: JournalPos) -> Self {
        let kept = position.0 - self.position.0;
        let (offset, len) = (self.offset + kept, self.len - kept);
        self.len = kept;
        Self { offset, len, kind: self.kind, position }
    }
}

/// Writes that will be one object.
#[derive(Debug)]
pub(crate) struct Batch {
    pieces: Vec<BatchPiece>,
    pub(crate) payload_bytes: u64,
    journal_bytes: u64,
    pub(crate) first: WriteMark,
    pub(crate) last: WriteMark,
    pub(crate) opened_at: Instant,
    pub(crate) volume_size: u64,
}

/// Journal bytes per payload byte of a batch before it is closed anyway: tiny writes and discards take journal space
/// without filling a batch.
const JOURNAL_SHARE_MAX: u64 = 8;

/// Journal bytes that a piece costs beyond its payload: its entry in the record's extent table.
const PIECE_JOURNAL_BYTES: u64 = 64;

impl Batch {
    /// A batch that begins with `piece`, or with a run of pieces that ends with the write `last`.
    pub(crate) fn begin(piece: &PlacedPiece, last: WriteNumber, volume_size: u64) -> Self {
        let first = WriteMark { epoch: piece.epoch, write: piece.write };
        let mut batch = Self {
            pieces: Vec::new(),
            payload_bytes: 0,
            journal_bytes: 0,
            first,
            last: first,
            opened_at: Instant::now(),
            volume_size,
        };
        batch.push(piece, last);
        batch
    }

    /// Adds the next acknowledged piece, or run of pieces that ends with the write `last`.
    pub(crate) fn push(&mut self, piece: &PlacedPiece, last: WriteNumber) {
        let mark = WriteMark { epoch: piece.epoch, write: last };
        assert!(mark >= self.last, "a batch takes writes in acknowledgement order");
        self.last = mark;
        self.journal_bytes += PIECE_JOURNAL_BYTES;
        let target = match piece.kind {
            PieceKind::Data => {
                self.payload_bytes += piece.len;
                self.journal_bytes += piece.len;
                Target::Linear(piece.position.0)
            }
            PieceKind::Zero => Target::Fixed(ExtentKindCode::ZERO),
            PieceKind::Discard => Target::Fixed(ExtentKindCode::DISCARD),
            PieceKind::Poison => Target::Fixed(ExtentKindCode::POISON),
        };
        if piece.len > 0 {
            self.pieces.push(BatchPiece {
                offset: piece.offset,
                len: piece.len,
                target,
                last: mark,
            });
        }
    }

    /// The part of it that ends with a write, or before it; a batch of its own, if there is anything in it. Where that
    /// write ends a record, so does the part.
    pub(crate) fn up_to(mut self, write: WriteNumber) -> Option<Self> {
        let kept = self.pieces.partition_point(|piece| piece.last.write <= write);
        self.pieces.truncate(kept);
        self.last = self.pieces.last()?.last;
        let data = self.pieces.iter().filter(|piece| matches!(piece.target, Target::Linear(_)));
        self.payload_bytes = data.map(|piece| piece.len).sum();
        Some(self)
    }

    /// Whether the batch must not grow any further.
    pub(crate) fn is_full(&self, limits: &BatchLimits) -> bool {
        self.payload_bytes >= limits.bytes.min(BATCH_BYTES_MAX)
            || self.pieces.len() >= PIECES_PER_BATCH_MAX
            || self.journal_bytes >= limits.bytes.saturating_mul(JOURNAL_SHARE_MAX)
    }

    /// When the batch has waited long enough, given whether the last object was small, and the time that objects take
    /// to the store.
    pub(crate) fn due_at(
        &self,
        limits: &BatchLimits,
        last_was_small: bool,
        lead_time: Duration,
    ) -> Instant {
        let stretch = last_was_small && self.payload_bytes < limits.small_bytes;
        let age_max = limits.rpo - lead_time.min(limits.rpo / 2);
        self.opened_at + if stretch { age_max } else { limits.age.min(age_max) }
    }

    /// The extents of an object that keeps every write: in order, the last one winning.
    pub(crate) fn unmerged(&self) -> Vec<MergedExtent> {
        let pieces = self.pieces.iter();
        pieces.flat_map(|piece| extents_of(piece.offset, piece.len, piece.target)).collect()
    }

    /// The extents of the object: sorted, without overlap, each byte once.
    pub(crate) fn merge(&self) -> Vec<MergedExtent> {
        self.merge_until(|| false)
    }

    /// The same of the pieces before the one at which `is_over` says so: it is asked before each.
    pub(crate) fn merge_until(&self, mut is_over: impl FnMut() -> bool) -> Vec<MergedExtent> {
        let mut map = ExtentMap::new();
        for piece in self.pieces.iter().take_while(|_| !is_over()) {
            map.insert(piece.offset, piece.len, piece.target, |_| {});
        }
        let mappings = map.iter_range(0, i64::MAX as u64);
        let merged =
            mappings.flat_map(|mapping| extents_of(mapping.offset, mapping.len, mapping.target));
        with_whole_blocks(merged.collect())
    }
}

/// Extents that an object keeps for pieces of the journal that cannot be read: each splits one in three.
const EXTENTS_SPARE: usize = 512;

/// Cuts long runs of data at the first and the last multiple of 4 KiB in them, so that what lies between keeps its
/// place modulo 4 KiB in the payload, where an odd write cut them: [`crate::format::placement`]. An object has room for
/// so many extents more; the rest stays as it is.
fn with_whole_blocks(merged: Vec<MergedExtent>) -> Vec<MergedExtent> {
    let block = u64::from(BLOCK_BYTES);
    let mut room = (EXTENTS_PER_OBJECT_MAX - EXTENTS_SPARE).saturating_sub(merged.len());
    let mut cut = Vec::with_capacity(merged.len());
    for mut extent in merged {
        let end = extent.offset + extent.len;
        let (first, last) = (extent.offset.next_multiple_of(block), end - end % block);
        let is_long = last.saturating_sub(first) >= WHOLE_BLOCKS_BYTES_MIN;
        if extent.kind != ExtentKind::Data || !is_long || room < 2 {
            cut.push(extent);
            continue;
        }
        for at in [first, last] {
            if extent.offset < at && at < end {
                let position = JournalPos(extent.position.0 + (at - extent.offset));
                let behind = extent.split_off(position);
                cut.push(std::mem::replace(&mut extent, behind));
                room -= 1;
            }
        }
        cut.push(extent);
    }
    cut
}

/// A range as extents that are not longer than an object can say.
fn extents_of(offset: u64, len: u64, target: Target) -> impl Iterator<Item = MergedExtent> {
    let (kind, position) = match target {
        Target::Linear(position) => (ExtentKind::Data, position),
        Target::Fixed(ExtentKindCode::ZERO) => (ExtentKind::Zero, 0),
        Target::Fixed(ExtentKindCode::DISCARD) => (ExtentKind::Discard, 0),
        Target::Fixed(_) => (ExtentKind::Poison, 0),
    };
    let position = JournalPos(position);
    (0..len.div_ceil(EXTENT_BYTES_MAX)).map(move |index| {
        let done = index * EXTENT_BYTES_MAX;
        let len = (len - done).min(EXTENT_BYTES_MAX);
        MergedExtent { offset: offset + done, len, kind, position }
    })
}

struct ExtentKindCode;

impl ExtentKindCode {
    const ZERO: u64 = 1;
    const DISCARD: u64 = 2;
    const POISON: u64 = 3;
}

#[cfg(test)]
mod tests {
    use super::*;
    use weir_journal::{Epoch, RecordSeq, WriteNumber};

    fn piece(write: u64, offset: u64, len: u64, kind: PieceKind) -> PlacedPiece {
        PlacedPiece {
            epoch: Epoch(1),
            record: RecordSeq(write),
            write: WriteNumber(write),
            offset,
            len,
            kind,
            position: JournalPos(write * 100_000),
        }
    }

    #[tokio::test]
    async fn an_overwritten_byte_is_sent_once_and_extents_are_sorted() {
        let mut batch =
            Batch::begin(&piece(1, 8192, 4096, PieceKind::Data), WriteNumber(1), 1 << 20);
        batch.push(&piece(2, 0, 4096, PieceKind::Data), WriteNumber(2));
        batch.push(&piece(3, 9000, 100, PieceKind::Data), WriteNumber(3));
        batch.push(&piece(4, 0, 10, PieceKind::Discard), WriteNumber(4));
        let merged = batch.merge();
        let shape: Vec<_> = merged.iter().map(|m| (m.offset, m.len, m.kind)).collect();
        assert_eq!(
            shape,
            [
                (0, 10, ExtentKind::Discard),
                (10, 4086, ExtentKind::Data),
                (8192, 808, ExtentKind::Data),
                (9000, 100, ExtentKind::Data),
                (9100, 3188, ExtentKind::Data),
            ]
        );
        assert_eq!(merged[1].position, JournalPos(200_010));
        assert_eq!(batch.last.write, WriteNumber(4));
    }

    #[tokio::test]
    async fn an_odd_write_cuts_a_long_run_into_whole_blocks_and_the_rest() {
        let long = piece(1, 0, 128 << 10, PieceKind::Data);
        let mut batch = Batch::begin(&long, WriteNumber(1), 1 << 20);
        batch.push(&piece(2, 50_000, 512, PieceKind::Data), WriteNumber(2));
        let merged = batch.merge();
        let shape: Vec<_> = merged.iter().map(|m| (m.offset, m.len, m.position.0)).collect();
        let begin = long.position.0;
        assert_eq!(
            shape,
            [
                (0, 49_152, begin),
                (49_152, 848, begin + 49_152),
                (50_000, 512, 200_000),
                (50_512, 2736, begin + 50_512),
                (53_248, 77_824, begin + 53_248),
            ]
        );
        let extent = |at: u64| MergedExtent {
            offset: at * 100_000 + 1,
            len: 50_000,
            kind: ExtentKind::Data,
            position: JournalPos(at * 100_000),
        };
        let most = EXTENTS_PER_OBJECT_MAX - EXTENTS_SPARE;
        let many: Vec<_> = (0..most as u64 - 3).map(extent).collect();
        assert_eq!(with_whole_blocks(many).len(), most - 1, "no more than fit, with some to spare");
    }

    #[tokio::test]
    async fn a_discard_of_the_largest_volume_is_cut_to_what_an_extent_can_say() {
        let all = crate::limits::VOLUME_BYTES_MAX;
        let merged =
            Batch::begin(&piece(1, 0, all, PieceKind::Discard), WriteNumber(1), all).merge();
        assert_eq!(merged.iter().map(|m| m.len).sum::<u64>(), all);
        assert!(merged.iter().all(|m| m.len <= EXTENT_BYTES_MAX));
        assert!(merged.len() < 300);
    }

    #[tokio::test]
    async fn a_part_ends_with_a_write_and_has_nothing_behind_it() {
        let batch = || {
            let mut batch =
                Batch::begin(&piece(2, 0, 4096, PieceKind::Data), WriteNumber(3), 1 << 20);
            batch.push(&piece(4, 8192, 100, PieceKind::Discard), WriteNumber(4));
            batch.push(&piece(5, 0, 10, PieceKind::Data), WriteNumber(6));
            batch
        };
        assert!(batch().up_to(WriteNumber(2)).is_none(), "a run is there whole or not at all");
        for (write, last, payload_bytes, extents) in
            [(3, 3, 4096, 1), (5, 4, 4096, 2), (6, 6, 4106, 3), (9, 6, 4106, 3)]
        {
            let part = batch().up_to(WriteNumber(write)).unwrap();
            let is = (part.first.write.0, part.last.write.0, part.payload_bytes);
            assert_eq!(is, (2, last, payload_bytes), "up to {write}");
            assert_eq!(part.merge().len(), extents, "up to {write}");
        }
    }

    #[tokio::test]
    #[should_panic(expected = "acknowledgement order")]
    async fn a_batch_refuses_writes_out_of_order() {
        let mut batch = Batch::begin(&piece(2, 0, 1, PieceKind::Data), WriteNumber(2), 10);
        batch.push(&piece(1, 0, 1, PieceKind::Data), WriteNumber(1));
    }
}
