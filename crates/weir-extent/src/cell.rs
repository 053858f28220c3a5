//! Editing one cell that is not dense: a region, or a block of a dense region.
//!
//! Every edit takes the cell's slot and returns the slot that replaces it; the caller stores it. Nodes move when
//! others are freed, so: an edit frees before it takes, or frees in another class than it took
//! from, and a slot that still owns nodes stays stored until they are gone.

use crate::ExtentMap;
use crate::bits::{index, narrow};
use crate::limits::{BLOCK_SPAN, CROWDED_EXTENTS, REGION_LIST_EASY, REGION_LIST_MAX, REGION_SPAN};
use crate::list::{self, CAPACITIES, List, Splice, class_bytes, class_for};
use crate::mapping::{Extent, Sink, Target};
use crate::pool::Owner;
use crate::slot::{Cell, ListRef, Slot};

/// Where a cell lies: its first volume byte and which level its slot is on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Site {
    pub(crate) base: u64,
    pub(crate) level: Level,
}

/// The level of a cell.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Level {
    Region,
    Block,
}

impl Site {
    pub(crate) fn region(base: u64) -> Self {
        Self { base, level: Level::Region }
    }

    pub(crate) fn block(base: u64) -> Self {
        Self { base, level: Level::Block }
    }

    /// Bytes of the cell.
    pub(crate) fn span(self) -> u32 {
        match self.level {
            Level::Region => REGION_SPAN,
            Level::Block => BLOCK_SPAN,
        }
    }

    fn owner(self) -> Owner {
        match self.level {
            Level::Region => Owner::Region(self.base),
            Level::Block => Owner::Block(self.base),
        }
    }
}

/// The part of a cell that is mapped anew, and to what.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Edit {
    pub(crate) first: u32,
    pub(crate) end: u32,
    pub(crate) target: Option<Target>,
}

/// The single extent of a slot without a node.
pub(crate) fn inline_extent(cell: Cell, span: u32) -> Option<Extent> {
    match cell {
        Cell::Empty => None,
        Cell::Run(target) => Some(Extent::new(0, span, target)),
        Cell::Block { block, address } => {
            let start = block * BLOCK_SPAN;
            Some(Extent::new(start, start + BLOCK_SPAN, Target::Linear(address)))
        }
        Cell::List(_) | Cell::Dense(_) => unreachable!("lists and dense regions have nodes"),
    }
}

impl ExtentMap {
    /// The list behind a slot.
    #[inline]
    pub(crate) fn list(&self, list: ListRef) -> List<'_> {
        List::new(self.pools.lists[list.class].node(list.node), list.class, list.count)
    }

    /// Maps part of a cell that is not dense, and returns its new slot.
    #[inline]
    pub(crate) fn edit_cell(
        &mut self,
        site: Site,
        slot: Slot,
        edit: Edit,
        sink: &mut Sink<'_>,
    ) -> Slot {
        let wanted = (edit.first, edit.end, edit.target);
        let cell = slot.cell();
        let Cell::List(held) = cell else {
            let old = inline_extent(cell, site.span());
            let found = usize::from(old.is_some_and(|old| old.end() <= edit.first));
            let get = |_| old.expect("the only index is that of the only extent");
            let count = usize::from(old.is_some());
            let splice = Splice::plan(count, get, found, wanted, |gone| {
                sink.push(gone.placed(site.base));
            });
            return self.build_small(site, old, &splice);
        };
        let list = self.list(held);
        let found = list.find(edit.first);
        let splice = Splice::plan(
            list.len(),
            |at| list.get(at),
            found,
            wanted,
            |gone| {
                sink.push(gone.placed(site.base));
            },
        );
        let slot = self.splice_list(site, held, &splice);
        if splice.cut || !(edit.first | edit.end).is_multiple_of(BLOCK_SPAN) {
            self.note_crowded(site, slot, edit);
        }
        slot
    }

    /// The slot of a cell that had at most one extent, after `splice`.
    fn build_small(&mut self, site: Site, old: Option<Extent>, splice: &Splice) -> Slot {
        let kept = old.filter(|_| splice.removed == 0);
        let mut extents = [None; 4];
        let mut count = 0;
        let (before, after) = if splice.at == 0 { (None, kept) } else { (kept, None) };
        let fresh = splice.fresh().iter().copied();
        for extent in before.into_iter().chain(fresh).chain(after) {
            extents[count] = Some(extent);
            count += 1;
        }
        let filler = Extent { start: 0, len: 0, target: Target::Fixed(0) };
        let extents = extents.map(|extent| extent.unwrap_or(filler));
        self.build_list(site, &extents[..count])
    }

    #[inline]
    fn splice_list(&mut self, site: Site, held: ListRef, splice: &Splice) -> Slot {
        let count = index(held.count);
        let after = splice.count_after(count);
        let shrink_at = held.class.checked_sub(2).map_or(1, |class| CAPACITIES[class]);
        if after <= CAPACITIES[held.class] && after > shrink_at {
            let node = self.pools.lists[held.class].node_mut(held.node);
            splice.apply(node, held.class, count);
            return Slot::list(ListRef { count: narrow(after), ..held });
        }
        self.resize_list(site, held, splice)
    }

    /// A list that changes its class, or stops being a list.
    #[cold]
    fn resize_list(&mut self, site: Site, held: ListRef, splice: &Splice) -> Slot {
        let after = splice.count_after(index(held.count));
        let region = site.level == Level::Region;
        let grows = after > CAPACITIES[held.class];
        if after <= 1 || (region && grows && after > REGION_LIST_EASY) {
            let mut extents = std::mem::take(&mut self.scratch);
            extents.clear();
            let list = self.list(held);
            extents.extend(list.iter().take(splice.at));
            extents.extend(splice.fresh());
            extents.extend(list.iter().skip(splice.at + splice.removed));
            self.free_list(held);
            let slot = self.build(site, &extents);
            self.scratch = extents;
            return slot;
        }
        let class = class_for(after);
        if class == held.class {
            let node = self.pools.lists[class].node_mut(held.node);
            splice.apply(node, class, index(held.count));
            return Slot::list(ListRef { count: narrow(after), ..held });
        }
        let node = self.pools.lists[class].take(site.owner());
        let [from, into] =
            self.pools.lists.get_disjoint_mut([held.class, class]).expect("two different classes");
        let old = List::new(from.node(held.node), held.class, held.count);
        splice.copy(old, into.node_mut(node), class);
        self.free_list(held);
        Slot::list(ListRef { class, count: narrow(after), node })
    }

    /// Gives a list node back.
    pub(crate) fn free_list(&mut self, list: ListRef) {
        if let Some(moved) = self.pools.lists[list.class].give(list.node) {
            self.relocate(moved);
        }
    }

    /// The slot for sorted, joined extents of a cell without nodes.
    pub(crate) fn build(&mut self, site: Site, extents: &[Extent]) -> Slot {
        let region = site.level == Level::Region;
        if region && extents.len() > REGION_LIST_EASY && self.prefers_dense(extents) {
            return self.build_dense(site.base, extents);
        }
        self.build_list(site, extents)
    }

    /// As [`Self::build`], never dense.
    pub(crate) fn build_list(&mut self, site: Site, extents: &[Extent]) -> Slot {
        match extents {
            [] => return Slot::EMPTY,
            [one] if one.start == 0 && one.len == site.span() => return Slot::run(one.target),
            [one] if site.level == Level::Region => {
                if let Target::Linear(address) = one.target
                    && one.start % BLOCK_SPAN == 0
                    && one.len == BLOCK_SPAN
                {
                    return Slot::block(one.start / BLOCK_SPAN, address);
                }
            }
            _ => {}
        }
        let class = class_for(extents.len());
        let node = self.pools.lists[class].take(site.owner());
        let count = list::fill(self.pools.lists[class].node_mut(node), class, extents);
        Slot::list(ListRef { class, count, node })
    }

    fn prefers_dense(&self, extents: &[Extent]) -> bool {
        extents.len() > REGION_LIST_MAX
            || crate::dense::bytes(extents) <= class_bytes(class_for(extents.len()))
    }

    /// Remembers the blocks at both ends of an edit if they hold too many extents now.
    fn note_crowded(&mut self, site: Site, slot: Slot, edit: Edit) {
        let Cell::List(held) = slot.cell() else { return };
        if held.count <= CROWDED_EXTENTS {
            return;
        }
        for offset in [edit.first, edit.end.min(site.span() - 1)] {
            let block = offset - offset % BLOCK_SPAN;
            if self.list(held).touching(block, block + BLOCK_SPAN) > index(CROWDED_EXTENTS) {
                self.crowded.insert(site.base + u64::from(block));
            }
        }
    }

    /// Reports every extent of a slot inside `first..end` of its cell, in order.
    pub(crate) fn report(
        &self,
        site: Site,
        slot: Slot,
        range: (u32, u32),
        visit: &mut dyn FnMut(Extent),
    ) {
        let (first, end) = range;
        match slot.cell() {
            Cell::List(held) => {
                let list = self.list(held);
                let found = if first == 0 { 0 } else { list.find(first) };
                for extent in list.iter().skip(found) {
                    if extent.start >= end {
                        break;
                    }
                    visit(extent.clip(first, end));
                }
            }
            Cell::Dense(dense) => {
                let blocks = first / BLOCK_SPAN..end.div_ceil(BLOCK_SPAN);
                for block in blocks {
                    let start = block * BLOCK_SPAN;
                    let inside = (first.max(start) - start, end.min(start + BLOCK_SPAN) - start);
                    let held = Slot(self.pools.dense.slot(dense.node, index(block)));
                    let site = Site::block(site.base + u64::from(start));
                    self.report(site, held, inside, &mut |extent| {
                        visit(Extent { start: extent.start + start, ..extent });
                    });
                }
            }
            cell => {
                if let Some(extent) = inline_extent(cell, site.span())
                    && extent.start < end
                    && extent.end() > first
                {
                    visit(extent.clip(first, end));
                }
            }
        }
    }
}
