//! Mapping ranges anew: the walk over the directory that insert and remove share.
//!
//! A range is cut where the directory cuts it, and each part costs one unit of work plus one per
//! extent displaced. That is what lets a caller stop between parts.

use crate::ExtentMap;
use crate::bits::{low32, size};
use crate::cell::{Edit, Site};
use crate::limits::{
    BLOCK_SPAN, DENSE_WHOLE_MAX, DIRECTORY_SLOTS, PIECE_BYTES, REGION_BYTES, REGION_SPAN,
    TABLE_BYTES, TABLE_SLOTS,
};
use crate::mapping::{Mapping, Sink, Target};
use crate::pool::{Moved, Owner};
use crate::root::{Found, Kind};
use crate::slot::{Cell, Piece, Slot};

/// A range still to be mapped.
#[derive(Clone, Copy, Debug)]
struct Rest {
    at: u64,
    end: u64,
    target: Option<Target>,
}

impl Rest {
    fn covers(&self, first: u64, bytes: u64) -> bool {
        self.at <= first && self.end - first >= bytes
    }
}

/// A region's place in the directory.
#[derive(Clone, Copy, Debug)]
pub(crate) struct RegionPlace {
    pub(crate) entry: usize,
    pub(crate) piece: usize,
    pub(crate) directory: u32,
    pub(crate) region: usize,
    pub(crate) base: u64,
}

impl ExtentMap {
    /// Maps `offset..offset + len` until `budget` units are spent; returns the bytes done.
    pub(crate) fn replace(
        &mut self,
        offset: u64,
        len: u64,
        target: Option<Target>,
        budget: usize,
        displaced: &mut dyn FnMut(Mapping),
    ) -> u64 {
        let mut sink = Sink::new(displaced);
        let mut rest = Rest { at: offset, end: offset + len, target };
        while rest.at < rest.end {
            let next = self.replace_part(rest, &mut sink);
            rest.target = rest.target.map(|target| target.advance(next - rest.at));
            rest.at = next;
            sink.work(1);
            if sink.units() >= budget {
                break;
            }
        }
        sink.finish();
        rest.at - offset
    }

    /// Maps the first part of a range; returns where the next begins.
    fn replace_part(&mut self, rest: Rest, sink: &mut Sink<'_>) -> u64 {
        let table = rest.at / TABLE_BYTES;
        let base = table * TABLE_BYTES;
        let entry = match self.root.find(table) {
            Found::Gap { next } => {
                let gap_end = self.root.gap_end(next);
                let Some(target) = rest.target else {
                    return rest.end.min(gap_end.saturating_mul(TABLE_BYTES));
                };
                if rest.covers(base, TABLE_BYTES) {
                    let tables = (rest.end / TABLE_BYTES).min(gap_end) - table;
                    self.root.insert_uniform(next, table, tables, target);
                    return base + tables * TABLE_BYTES;
                }
                self.root.insert_table(next, table)
            }
            Found::Entry(at) => {
                let entry = &self.root.entries[at];
                match entry.kind {
                    Kind::Table(_) => at,
                    Kind::Uniform { .. } => match self.replace_uniform(at, rest, sink) {
                        Ok(next) => return next,
                        Err(at) => at,
                    },
                }
            }
        };
        self.replace_in_table(entry, rest, sink)
    }

    /// Maps the part of a range that lies in the uniform entry `at`, if that takes no table;
    /// otherwise gives the index of the table made for it.
    fn replace_uniform(
        &mut self,
        at: usize,
        rest: Rest,
        sink: &mut Sink<'_>,
    ) -> Result<u64, usize> {
        let table = rest.at / TABLE_BYTES;
        let base = table * TABLE_BYTES;
        let entry = &self.root.entries[at];
        let Kind::Uniform { target: old, .. } = entry.kind else {
            unreachable!("the caller looked at the kind");
        };
        if old.is_none() && rest.target.is_none() {
            return Ok(rest.end.min(entry.end() * TABLE_BYTES));
        }
        if !rest.covers(base, TABLE_BYTES) {
            let at = self.root.split_table(at, table);
            self.extents += if old.is_some() { 1024 } else { 0 };
            return Err(at);
        }
        let tables = entry.end().min(rest.end / TABLE_BYTES) - table;
        let len = tables * TABLE_BYTES;
        if let Some(old) = old {
            let target = old.advance((table - entry.first) * TABLE_BYTES);
            sink.push(Mapping { offset: base, len, target });
        }
        self.root.replace_uniform(at, table, tables, rest.target);
        Ok(base + len)
    }

    /// Maps the part of a range that lies in one piece.
    fn replace_in_table(&mut self, entry: usize, rest: Rest, sink: &mut Sink<'_>) -> u64 {
        let base = rest.at - rest.at % PIECE_BYTES;
        let piece = size(rest.at / PIECE_BYTES) % TABLE_SLOTS;
        let upper = self.root.table(entry)[piece];
        let directory = match upper.piece() {
            Piece::Directory(node) => node,
            Piece::Uniform(old) => {
                if old.is_none() && rest.target.is_none() {
                    return rest.end.min(base + PIECE_BYTES);
                }
                if rest.covers(base, PIECE_BYTES) {
                    if let Some(target) = old {
                        sink.push(Mapping { offset: base, len: PIECE_BYTES, target });
                    }
                    let new = upper.with(Piece::Uniform(rest.target)).dirty();
                    self.root.table_mut(entry)[piece] = new;
                    self.extents += u64::from(rest.target.is_some());
                    self.extents -= u64::from(old.is_some());
                    return base + PIECE_BYTES;
                }
                self.expand_piece(entry, base)
            }
        };
        let region = size(rest.at / REGION_BYTES) % DIRECTORY_SLOTS;
        let base = rest.at - rest.at % REGION_BYTES;
        self.replace_in_region(RegionPlace { entry, piece, directory, region, base }, rest, sink)
    }

    /// Gives a uniform piece a directory; returns it.
    pub(crate) fn expand_piece(&mut self, entry: usize, base: u64) -> u32 {
        let node = self.pools.directories.take(Owner::Piece(base));
        let piece = size(base / PIECE_BYTES) % TABLE_SLOTS;
        let upper = self.root.table(entry)[piece];
        let Piece::Uniform(old) = upper.piece() else {
            unreachable!("only uniform pieces are expanded");
        };
        if let Some(target) = old {
            let mut moved = 0;
            for region in 0..DIRECTORY_SLOTS {
                let slot = Slot::run(target.advance(moved));
                self.pools.directories.set_slot(node, region, slot.0);
                moved += REGION_BYTES;
            }
            self.extents += 1024 - 1;
        }
        self.root.table_mut(entry)[piece] = upper.with(Piece::Directory(node));
        node
    }

    /// Maps the part of a range that lies in one region.
    fn replace_in_region(&mut self, place: RegionPlace, rest: Rest, sink: &mut Sink<'_>) -> u64 {
        let slot = Slot(self.pools.directories.slot(place.directory, place.region));
        let first = low32(rest.at - place.base);
        let mut end = low32((rest.end - place.base).min(REGION_BYTES));
        if let Cell::Dense(dense) = slot.cell()
            && dense.count > DENSE_WHOLE_MAX
        {
            end = end.min(first - first % BLOCK_SPAN + BLOCK_SPAN);
        }
        let next = place.base + u64::from(end);
        let edit = Edit { first, end, target: rest.target };
        let units = sink.units();
        let new = self.replace_cell(place.base, slot, edit, sink);
        if new == slot && rest.target.is_none() && sink.units() == units {
            return next;
        }
        self.pools.directories.set_slot(place.directory, place.region, new.0);
        self.extents = self.extents + new.extents() - slot.extents();
        let upper = &mut self.root.table_mut(place.entry)[place.piece];
        *upper = upper.dirty();
        if matches!(new.cell(), Cell::Empty | Cell::Run(_)) {
            self.collapse(place, new);
        }
        next
    }

    #[inline]
    fn replace_cell(&mut self, base: u64, slot: Slot, edit: Edit, sink: &mut Sink<'_>) -> Slot {
        let site = Site::region(base);
        let cell = slot.cell();
        if edit.end - edit.first < REGION_SPAN {
            return match cell {
                Cell::Dense(dense) => self.edit_dense(base, dense, edit, sink),
                _ => self.edit_cell(site, slot, edit, sink),
            };
        }
        let range = (edit.first, edit.end);
        self.report(site, slot, range, &mut |extent| sink.push(extent.placed(base)));
        match cell {
            Cell::List(list) => self.free_list(list),
            Cell::Dense(dense) => self.free_dense(dense),
            _ => {}
        }
        Slot::uniform(edit.target)
    }

    /// Drops a directory that has become one run, or empty. Looks from the changed region on, so
    /// that a pass over a piece in order pays for one full look only.
    pub(crate) fn collapse(&mut self, place: RegionPlace, slot: Slot) {
        let first = match slot.cell() {
            Cell::Run(Target::Linear(address)) => {
                let region = u64::try_from(place.region).expect("below 1024");
                let Some(first) = address.checked_sub(region * REGION_BYTES) else { return };
                Some(Target::Linear(first))
            }
            Cell::Run(fixed) => Some(fixed),
            _ => None,
        };
        let directories = &self.pools.directories;
        let fits = |region: usize, moved: u64| {
            let wanted = Slot::uniform(first.map(|target| target.advance(moved)));
            directories.slot(place.directory, region) == wanted.0
        };
        let moved = |region: usize| crate::bits::wide(region) * REGION_BYTES;
        let end = DIRECTORY_SLOTS;
        if !(place.region + 1..end).all(|region| fits(region, moved(region)))
            || !(0..place.region).all(|region| fits(region, moved(region)))
        {
            return;
        }
        let upper = &mut self.root.table_mut(place.entry)[place.piece];
        *upper = upper.with(Piece::Uniform(first));
        if first.is_some() {
            self.extents -= 1024 - 1;
        }
        if let Some(moved) = self.pools.directories.give(place.directory) {
            self.relocate(moved);
        }
    }

    /// Tells the owner of a moved node where it is now.
    #[cold]
    pub(crate) fn relocate(&mut self, moved: Moved) {
        let (Owner::Piece(offset) | Owner::Region(offset) | Owner::Block(offset)) = moved.owner;
        let Found::Entry(entry) = self.root.find(offset / TABLE_BYTES) else {
            unreachable!("P1: a live node's piece is mapped");
        };
        let piece = size(offset / PIECE_BYTES) % TABLE_SLOTS;
        let upper = self.root.table(entry)[piece];
        let Piece::Directory(directory) = upper.piece() else {
            unreachable!("P1: a live node's piece has a directory");
        };
        if let Owner::Piece(_) = moved.owner {
            assert!(directory == moved.from, "P1: a directory belongs to its piece");
            self.root.table_mut(entry)[piece] = upper.with(Piece::Directory(moved.to));
            return;
        }
        let region = size(offset / REGION_BYTES) % DIRECTORY_SLOTS;
        let slot = Slot(self.pools.directories.slot(directory, region));
        if let Owner::Region(_) = moved.owner {
            let slot = slot.moved(moved.from, moved.to);
            self.pools.directories.set_slot(directory, region, slot.0);
            return;
        }
        let Cell::Dense(dense) = slot.cell() else {
            unreachable!("P1: a sub-list belongs to a dense region");
        };
        let block = size(offset / u64::from(BLOCK_SPAN)) % crate::limits::REGION_BLOCKS;
        let slot = Slot(self.pools.dense.slot(dense.node, block));
        let slot = slot.moved(moved.from, moved.to);
        self.pools.dense.set_slot(dense.node, block, slot.0);
    }
}
