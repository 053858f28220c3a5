//! Dense regions: one slot per 4 KiB block.
//!
//! A block of several extents points at a list of its own. The region's slot counts extents as a
//! list would hold them, joined over block borders, so the region notices when it has become
//! simple again; the count is kept by looking at the edited blocks and their two neighbours.

use crate::ExtentMap;
use crate::bits::{index, narrow};
use crate::cell::{Edit, Site, inline_extent};
use crate::limits::{BLOCK_SPAN, CROWDED_EXTENTS, DENSE_MIN, REGION_BLOCKS};
use crate::list::{class_bytes, class_for};
use crate::mapping::{Extent, Sink};
use crate::pool::Owner;
use crate::slot::{Cell, DenseRef, Slot};

/// Bytes a dense region for these extents takes, its sub-lists included.
pub(crate) fn bytes(extents: &[Extent]) -> usize {
    let mut total = REGION_BLOCKS * 8 + 8;
    let mut block = u32::MAX;
    let mut pieces = 0;
    let mut partial = false;
    let mut close = |pieces: usize, partial: bool| {
        if partial {
            total += class_bytes(class_for(pieces));
        }
    };
    for extent in extents {
        let first = extent.start / BLOCK_SPAN;
        let last = (extent.end() - 1) / BLOCK_SPAN;
        if first != block {
            close(pieces, partial);
            (block, pieces, partial) = (first, 0, false);
        }
        pieces += 1;
        partial |=
            extent.start % BLOCK_SPAN != 0 || (last == first && extent.end() % BLOCK_SPAN != 0);
        if last != first {
            close(pieces, partial);
            (block, pieces, partial) = (last, 1, extent.end() % BLOCK_SPAN != 0);
        }
    }
    close(pieces, partial);
    total
}

/// What is counted in a window of blocks.
#[derive(Clone, Copy, Debug)]
struct Census {
    pieces: u32,
    joins: u32,
}

impl ExtentMap {
    fn dense_slot(&self, node: u32, block: u32) -> Slot {
        Slot(self.pools.dense.slot(node, index(block)))
    }

    /// Builds a dense region from sorted, joined extents.
    pub(crate) fn build_dense(&mut self, base: u64, extents: &[Extent]) -> Slot {
        let node = self.pools.dense.take(Owner::Region(base));
        let mut inside = Vec::new();
        let mut next = 0;
        for block in 0..narrow(REGION_BLOCKS) {
            let start = block * BLOCK_SPAN;
            let end = start + BLOCK_SPAN;
            inside.clear();
            while let Some(extent) = extents.get(next).filter(|extent| extent.start < end) {
                let part = extent.clip(start, end);
                inside.push(Extent { start: part.start - start, ..part });
                if extent.end() > end {
                    break;
                }
                next += 1;
            }
            let site = Site::block(base + u64::from(start));
            if narrow(inside.len()) > CROWDED_EXTENTS {
                self.crowded.insert(site.base);
            }
            let slot = self.build_list(site, &inside);
            self.pools.dense.set_slot(node, index(block), slot.0);
        }
        Slot::dense(DenseRef { count: narrow(extents.len()), node })
    }

    /// Maps part of a dense region, and returns its new slot.
    pub(crate) fn edit_dense(
        &mut self,
        base: u64,
        dense: DenseRef,
        edit: Edit,
        sink: &mut Sink<'_>,
    ) -> Slot {
        let blocks = (edit.first / BLOCK_SPAN, (edit.end - 1) / BLOCK_SPAN);
        let before = self.census(dense.node, blocks);
        for block in blocks.0..=blocks.1 {
            let start = block * BLOCK_SPAN;
            let first = edit.first.max(start);
            let end = edit.end.min(start + BLOCK_SPAN);
            let target = edit.target.map(|target| target.advance(u64::from(first - edit.first)));
            let inside = Edit { first: first - start, end: end - start, target };
            self.edit_block(dense.node, block, Site::block(base + u64::from(start)), inside, sink);
        }
        let after = self.census(dense.node, blocks);
        let count = dense.count + before.joins + after.pieces - before.pieces - after.joins;
        let dense = DenseRef { count, node: dense.node };
        if count > DENSE_MIN {
            return Slot::dense(dense);
        }
        self.simplify(base, dense)
    }

    fn edit_block(&mut self, node: u32, block: u32, site: Site, edit: Edit, sink: &mut Sink<'_>) {
        let old = self.dense_slot(node, block);
        let slot = if edit.end - edit.first == BLOCK_SPAN {
            let range = (edit.first, edit.end);
            self.report(site, old, range, &mut |extent| sink.push(extent.placed(site.base)));
            if let Cell::List(list) = old.cell() {
                self.free_list(list);
            }
            Slot::uniform(edit.target)
        } else {
            self.edit_cell(site, old, edit, sink)
        };
        self.pools.dense.set_slot(node, index(block), slot.0);
    }

    /// Turns a dense region with few extents into a list or less.
    #[cold]
    fn simplify(&mut self, base: u64, dense: DenseRef) -> Slot {
        let mut extents = std::mem::take(&mut self.scratch);
        extents.clear();
        let site = Site::region(base);
        self.report(site, Slot::dense(dense), (0, site.span()), &mut |extent| match extents
            .last_mut()
        {
            Some(last) if last.joins(&extent) => last.len += extent.len,
            _ => extents.push(extent),
        });
        assert!(narrow(extents.len()) == dense.count, "a dense region's count is exact");
        self.free_dense(dense);
        let slot = self.build(site, &extents);
        self.scratch = extents;
        slot
    }

    /// Gives a dense region and its sub-lists back. Its slot must still be stored, because a
    /// sub-list that moves into another's place is found through it.
    pub(crate) fn free_dense(&mut self, dense: DenseRef) {
        for block in 0..REGION_BLOCKS {
            let slot = Slot(self.pools.dense.slot(dense.node, block));
            if let Cell::List(list) = slot.cell() {
                self.pools.dense.set_slot(dense.node, block, Slot::EMPTY.0);
                self.free_list(list);
            }
        }
        if let Some(moved) = self.pools.dense.give(dense.node) {
            self.relocate(moved);
        }
    }

    /// Pieces in the blocks `first..=last`, and joins at every border of those blocks.
    fn census(&self, node: u32, (first, last): (u32, u32)) -> Census {
        let mut census = Census { pieces: 0, joins: 0 };
        let end = narrow(REGION_BLOCKS);
        let mut before =
            first.checked_sub(1).and_then(|block| self.last_of(self.dense_slot(node, block)));
        for block in first..=(last + 1).min(end - 1) {
            let slot = self.dense_slot(node, block);
            if let (Some(before), Some(after)) = (before, self.first_of(slot)) {
                let shifted = Extent { start: after.start + BLOCK_SPAN, ..after };
                census.joins += u32::from(before.joins(&shifted));
            }
            if block <= last {
                census.pieces += match slot.cell() {
                    Cell::Empty => 0,
                    Cell::List(list) => list.count,
                    _ => 1,
                };
                before = self.last_of(slot);
            }
        }
        census
    }

    fn first_of(&self, slot: Slot) -> Option<Extent> {
        match slot.cell() {
            Cell::List(list) => Some(self.list(list).get(0)),
            cell => inline_extent(cell, BLOCK_SPAN),
        }
    }

    fn last_of(&self, slot: Slot) -> Option<Extent> {
        match slot.cell() {
            Cell::List(held) => {
                let list = self.list(held);
                Some(list.get(list.len() - 1))
            }
            cell => inline_extent(cell, BLOCK_SPAN),
        }
    }
}
