//! The map itself: construction, the public operations, dirty pieces, crowded blocks.

use std::collections::BTreeSet;
use std::ops::Range;

use crate::limits::{
    ADDRESS_END, BLOCK_BYTES, CROWDED_EXTENTS, DIRECTORY_SLOTS, PIECE_BYTES, REGION_BLOCKS,
    TABLE_SLOTS,
};
use crate::list;
use crate::mapping::{Extent, Mapping, Target};
use crate::pool::{Pool, Pools};
use crate::root::{Kind, Root};

/// The extent map of a volume; see the crate documentation.
#[derive(Debug)]
pub struct ExtentMap {
    pub(crate) root: Root,
    pub(crate) pools: Pools,
    /// Stored extents below tables; uniform root entries are counted when asked.
    pub(crate) extents: u64,
    /// Blocks that were crowded when they were last edited.
    pub(crate) crowded: BTreeSet<u64>,
    /// Kept between edits so that conversions do not allocate.
    pub(crate) scratch: Vec<Extent>,
}

/// The end of a range.
///
/// # Panics
///
/// If it lies past [`ADDRESS_END`].
#[inline]
pub(crate) fn range_end(offset: u64, len: u64) -> u64 {
    let end = offset.checked_add(len).filter(|end| *end <= ADDRESS_END);
    end.expect("a range must end inside the address space; callers check it against the volume")
}

#[inline]
fn check_target(target: Target, len: u64) {
    assert!(target.fits(len), "a target must not pass TARGET_MAX");
}

impl Default for ExtentMap {
    fn default() -> Self {
        Self::new()
    }
}

impl ExtentMap {
    /// An empty map. It takes memory as it fills.
    #[must_use]
    pub fn new() -> Self {
        let pools = Pools {
            lists: list::pools(),
            dense: Pool::new(REGION_BLOCKS * 2),
            directories: Pool::new(DIRECTORY_SLOTS * 2),
        };
        let root = Root::default();
        Self { root, pools, extents: 0, crowded: BTreeSet::new(), scratch: Vec::new() }
    }

    /// Maps `offset..offset + len` to `target` and reports what was mapped there before, in order
    /// and exactly.
    ///
    /// # Panics
    ///
    /// If the range ends past [`ADDRESS_END`], or the target past [`crate::TARGET_MAX`].
    #[inline]
    pub fn insert(
        &mut self,
        offset: u64,
        len: u64,
        target: Target,
        mut displaced: impl FnMut(Mapping),
    ) {
        self.insert_step(offset, len, target, usize::MAX, &mut displaced);
    }

    /// As [`Self::insert`], but stops after about `budget` units of work (a directory slot or an
    /// extent each, see [`crate::STEP_BUDGET`]). Returns the bytes done, more than zero unless
    /// `len` is zero; the caller goes on with the rest and the target advanced by as much.
    ///
    /// # Panics
    ///
    /// As [`Self::insert`].
    pub fn insert_step(
        &mut self,
        offset: u64,
        len: u64,
        target: Target,
        budget: usize,
        mut displaced: impl FnMut(Mapping),
    ) -> u64 {
        range_end(offset, len);
        check_target(target, len);
        self.replace(offset, len, Some(target), budget, &mut displaced)
    }

    /// Unmaps `offset..offset + len` and reports what was mapped there, in order and exactly.
    ///
    /// # Panics
    ///
    /// If the range ends past [`ADDRESS_END`].
    pub fn remove(&mut self, offset: u64, len: u64, mut displaced: impl FnMut(Mapping)) {
        self.remove_step(offset, len, usize::MAX, &mut displaced);
    }

    /// As [`Self::remove`], but stops after about `budget` units of work; see
    /// [`Self::insert_step`].
    ///
    /// # Panics
    ///
    /// If the range ends past [`ADDRESS_END`].
    pub fn remove_step(
        &mut self,
        offset: u64,
        len: u64,
        budget: usize,
        mut displaced: impl FnMut(Mapping),
    ) -> u64 {
        range_end(offset, len);
        self.replace(offset, len, None, budget, &mut displaced)
    }

    /// Stored extents. Where the map has detail an extent is counted once per region it touches.
    #[must_use]
    pub fn extents(&self) -> u64 {
        let uniform = self
            .root
            .entries
            .iter()
            .filter(|entry| matches!(entry.kind, Kind::Uniform { target: Some(_), .. }));
        self.extents + crate::bits::wide(uniform.count())
    }

    /// Bytes taken from the heap.
    #[must_use]
    pub fn heap_bytes(&self) -> usize {
        let lists: usize = self.pools.lists.iter().map(Pool::heap_bytes).sum();
        let pools = lists + self.pools.dense.heap_bytes() + self.pools.directories.heap_bytes();
        pools
            + self.root.heap_bytes()
            + self.pools.lists.capacity() * size_of::<Pool>()
            + self.scratch.capacity() * size_of::<Extent>()
            // A BTreeSet of u64 takes about 12 bytes a key.
            + self.crowded.len() * 12
    }

    /// The number of the piece that holds `offset`.
    #[inline]
    #[must_use]
    pub fn piece_of(offset: u64) -> u64 {
        offset / PIECE_BYTES
    }

    /// Whether anything changed since the last [`Self::take_dirty`].
    #[must_use]
    pub fn is_dirty(&self) -> bool {
        self.root.entries.iter().any(|entry| match &entry.kind {
            Kind::Uniform { dirty, .. } => *dirty,
            Kind::Table(slots) => slots.iter().any(|slot| slot.is_dirty()),
        })
    }

    /// The numbers of the pieces changed since the last call, in order.
    ///
    /// A run over whole tables of 512 GiB marks each of its pieces: an exabyte of zeroes is two
    /// million of them. Where that can happen, use [`Self::take_dirty_ranges`].
    pub fn take_dirty(&mut self) -> Vec<u64> {
        self.take_dirty_ranges().into_iter().flatten().collect()
    }

    /// As [`Self::take_dirty`], as ranges of piece numbers.
    pub fn take_dirty_ranges(&mut self) -> Vec<Range<u64>> {
        let slots_per_table = crate::bits::wide(TABLE_SLOTS);
        let mut ranges: Vec<Range<u64>> = Vec::new();
        let mut add = |first: u64, end: u64| match ranges.last_mut() {
            Some(last) if last.end == first => last.end = end,
            _ => ranges.push(first..end),
        };
        for entry in &mut self.root.entries {
            let first = entry.first * slots_per_table;
            match &mut entry.kind {
                Kind::Uniform { dirty, .. } => {
                    if std::mem::take(dirty) {
                        add(first, first + entry.tables * slots_per_table);
                    }
                }
                Kind::Table(slots) => {
                    for (piece, slot) in (first..).zip(slots.iter_mut()) {
                        if slot.is_dirty() {
                            *slot = slot.clean();
                            add(piece, piece + 1);
                        }
                    }
                }
            }
        }
        // R3: an unmapped entry only carried its mark.
        self.root.entries.retain(|entry| !matches!(entry.kind, Kind::Uniform { target: None, .. }));
        ranges
    }

    /// Marks a piece changed, as when writing its checkpoint failed after [`Self::take_dirty`].
    ///
    /// # Panics
    ///
    /// If the piece lies past [`ADDRESS_END`].
    pub fn mark_dirty(&mut self, piece: u64) {
        let (entry, slot) = self.table_of(piece);
        let upper = &mut self.root.table_mut(entry)[slot];
        *upper = upper.dirty();
    }

    /// How many blocks wait in [`Self::take_crowded`].
    #[must_use]
    pub fn crowded_blocks(&self) -> usize {
        self.crowded.len()
    }

    /// Offsets of up to `limit` blocks of [`BLOCK_BYTES`] that now hold more than
    /// [`CROWDED_EXTENTS`] extents, forgetting them. Such a block should be rewritten as one extent;
    /// the map stays right, only slower and larger, if nobody does. A block that gets another edit while
    /// still crowded is reported again.
    pub fn take_crowded(&mut self, limit: usize) -> Vec<u64> {
        let mut blocks = Vec::new();
        while blocks.len() < limit {
            let Some(block) = self.crowded.pop_first() else { break };
            let extents = self.iter_range(block, BLOCK_BYTES).count();
            if extents > crate::bits::index(CROWDED_EXTENTS) {
                blocks.push(block);
            }
        }
        blocks
    }

    /// The root entry and slot of a piece, as a table that is made if need be.
    pub(crate) fn table_of(&mut self, piece: u64) -> (usize, usize) {
        range_end(piece.saturating_mul(PIECE_BYTES), PIECE_BYTES);
        let slots_per_table = crate::bits::wide(TABLE_SLOTS);
        let table = piece / slots_per_table;
        let entry = match self.root.find(table) {
            crate::root::Found::Gap { next } => self.root.insert_table(next, table),
            crate::root::Found::Entry(at) => match self.root.entries[at].kind {
                Kind::Table(_) => at,
                Kind::Uniform { target, .. } => {
                    self.extents += if target.is_some() { slots_per_table } else { 0 };
                    self.root.split_table(at, table)
                }
            },
        };
        (entry, crate::bits::size(piece % slots_per_table))
    }
}
