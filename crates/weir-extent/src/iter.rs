//! Reading the map: one descent per cell, a cursor inside lists.

use crate::ExtentMap;
use crate::bits::{low32, size, wide};
use crate::cell::{Site, inline_extent};
use crate::limits::{
    ADDRESS_END, BLOCK_BYTES, DIRECTORY_SLOTS, PIECE_BYTES, REGION_BLOCKS, REGION_BYTES,
    TABLE_BYTES, TABLE_SLOTS,
};
use crate::list::List;
use crate::mapping::Mapping;
use crate::root::{Found, Kind};
use crate::slot::{Cell, Piece, Slot, Upper};

/// What a descent to an offset meets.
#[derive(Clone, Copy, Debug)]
enum Met<'a> {
    /// Nothing is mapped before this offset.
    Gap(u64),
    /// A whole extent without a list.
    One(Mapping),
    /// The list of the cell that begins at `base` and ends before `end`.
    List { base: u64, end: u64, list: List<'a> },
}

impl ExtentMap {
    #[inline]
    fn descend(&self, offset: u64) -> Met<'_> {
        let table = offset / TABLE_BYTES;
        let entry = match self.root.find(table) {
            Found::Gap { next } => {
                let end = self.root.gap_end(next).saturating_mul(TABLE_BYTES);
                return Met::Gap(end.min(ADDRESS_END));
            }
            Found::Entry(at) => &self.root.entries[at],
        };
        let slots = match &entry.kind {
            Kind::Table(slots) => slots,
            Kind::Uniform { target, .. } => {
                let (first, len) = (entry.first * TABLE_BYTES, entry.tables * TABLE_BYTES);
                return match *target {
                    None => Met::Gap(first + len),
                    Some(target) => Met::One(Mapping { offset: first, len, target }),
                };
            }
        };
        let base = offset - offset % PIECE_BYTES;
        match slots[size(offset / PIECE_BYTES) % TABLE_SLOTS].piece() {
            Piece::Uniform(None) => Met::Gap(base + PIECE_BYTES),
            Piece::Uniform(Some(target)) => {
                Met::One(Mapping { offset: base, len: PIECE_BYTES, target })
            }
            Piece::Directory(node) => {
                let region = size(offset / REGION_BYTES) % DIRECTORY_SLOTS;
                let slot = Slot(self.pools.directories.slot(node, region));
                self.descend_region(offset, slot)
            }
        }
    }

    #[inline]
    fn descend_region(&self, offset: u64, slot: Slot) -> Met<'_> {
        let base = offset - offset % REGION_BYTES;
        match slot.cell() {
            Cell::Dense(dense) => {
                let block = size(offset / BLOCK_BYTES) % REGION_BLOCKS;
                let slot = Slot(self.pools.dense.slot(dense.node, block));
                let base = offset - offset % BLOCK_BYTES;
                self.meet(offset, Site::block(base), slot)
            }
            _ => self.meet(offset, Site::region(base), slot),
        }
    }

    #[inline]
    fn meet(&self, offset: u64, site: Site, slot: Slot) -> Met<'_> {
        let end = site.base + u64::from(site.span());
        if let Cell::List(list) = slot.cell() {
            return Met::List { base: site.base, end, list: self.list(list) };
        }
        let Some(one) = inline_extent(slot.cell(), site.span()) else { return Met::Gap(end) };
        let one = one.placed(site.base);
        if offset < one.offset {
            Met::Gap(one.offset)
        } else if offset < one.end() {
            Met::One(one)
        } else {
            Met::Gap(end)
        }
    }

    /// Where a walk that met a gap goes on: past the empty slots that follow, without a descent
    /// for each of them.
    fn skip_gaps(&self, offset: u64) -> u64 {
        if !offset.is_multiple_of(REGION_BYTES) {
            return offset;
        }
        let Found::Entry(at) = self.root.find(offset / TABLE_BYTES) else { return offset };
        let Kind::Table(slots) = &self.root.entries[at].kind else { return offset };
        let piece = size(offset / PIECE_BYTES) % TABLE_SLOTS;
        match slots[piece].piece() {
            Piece::Uniform(None) => {
                let empty = slots[piece..].iter().take_while(|slot| slot.clean() == Upper::EMPTY);
                offset - offset % PIECE_BYTES + wide(empty.count()) * PIECE_BYTES
            }
            Piece::Uniform(Some(_)) => offset,
            Piece::Directory(node) => {
                let region = size(offset / REGION_BYTES) % DIRECTORY_SLOTS;
                let slots = self.pools.directories.node(node).as_chunks::<2>().0;
                let slots = &slots[region..DIRECTORY_SLOTS];
                let empty = slots.iter().take_while(|slot| **slot == [0, 0]);
                offset + wide(empty.count()) * REGION_BYTES
            }
        }
    }

    /// What holds `offset`: the stored extent from `offset` on. It ends at a region border at the
    /// latest where the map has any detail; [`Self::iter_range`] joins across such borders.
    #[inline]
    #[must_use]
    pub fn lookup(&self, offset: u64) -> Option<Mapping> {
        match self.descend(offset.min(ADDRESS_END)) {
            Met::Gap(_) => None,
            Met::One(mapping) => Some(mapping.clip(offset, mapping.end())),
            Met::List { base, list, .. } => {
                let at = list.find(low32(offset - base));
                let mapping = (at < list.len()).then(|| list.get(at).placed(base))?;
                (mapping.offset <= offset).then(|| mapping.clip(offset, mapping.end()))
            }
        }
    }

    /// What is mapped in `offset..offset + len`, in order, clipped, and joined where one extent
    /// continues another. Unmapped bytes are skipped.
    ///
    /// # Panics
    ///
    /// If the range ends past [`ADDRESS_END`].
    #[inline]
    pub fn iter_range(&self, offset: u64, len: u64) -> Extents<'_> {
        let end = crate::map::range_end(offset, len);
        Extents { map: self, at: offset, end, pending: None, cursor: None }
    }
}

#[derive(Clone, Copy, Debug)]
struct Cursor<'a> {
    base: u64,
    end: u64,
    list: List<'a>,
    next: usize,
}

/// The mappings of a range, in order; see [`ExtentMap::iter_range`].
#[derive(Clone, Debug)]
pub struct Extents<'a> {
    map: &'a ExtentMap,
    at: u64,
    end: u64,
    pending: Option<Mapping>,
    cursor: Option<Cursor<'a>>,
}

impl Extents<'_> {
    /// The next stored extent, clipped, not joined.
    #[inline]
    fn step(&mut self) -> Option<Mapping> {
        while self.at < self.end {
            if let Some(cursor) = &mut self.cursor {
                if cursor.next < cursor.list.len() {
                    let mapping = cursor.list.get(cursor.next).placed(cursor.base);
                    cursor.next += 1;
                    if mapping.offset >= self.end {
                        self.at = self.end;
                        return None;
                    }
                    let mapping = mapping.clip(self.at, self.end);
                    self.at = mapping.end();
                    return Some(mapping);
                }
                self.at = cursor.end;
                self.cursor = None;
                continue;
            }
            match self.map.descend(self.at) {
                Met::Gap(end) if end < self.end => self.at = self.map.skip_gaps(end),
                Met::Gap(end) => self.at = end,
                Met::One(mapping) => {
                    let mapping = mapping.clip(self.at, self.end);
                    self.at = mapping.end();
                    return Some(mapping);
                }
                Met::List { base, end, list } => {
                    let next = list.find(low32(self.at - base));
                    self.cursor = Some(Cursor { base, end, list, next });
                }
            }
        }
        None
    }
}

impl Iterator for Extents<'_> {
    type Item = Mapping;

    #[inline]
    fn next(&mut self) -> Option<Mapping> {
        let mut held = match self.pending.take() {
            Some(mapping) => mapping,
            None => self.step()?,
        };
        while let Some(mapping) = self.step() {
            if !held.joins(&mapping) {
                self.pending = Some(mapping);
                break;
            }
            held.len += mapping.len;
        }
        Some(held)
    }
}

impl std::iter::FusedIterator for Extents<'_> {}
