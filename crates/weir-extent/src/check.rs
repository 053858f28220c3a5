//! The invariants of the whole map, in one pass. Tests, the simulation and the fuzz targets call it.

use crate::ExtentMap;
use crate::bits::{index, wide};
use crate::cell::{Level, Site, inline_extent};
use crate::limits::{
    BLOCK_BYTES, DENSE_MIN, DIRECTORY_SLOTS, PIECE_BYTES, REGION_BLOCKS, REGION_BYTES, TABLE_BYTES,
};
use crate::list::CAPACITIES;
use crate::mapping::{Extent, Target};
use crate::pool::Owner;
use crate::root::Kind;
use crate::slot::{Cell, DenseRef, ListRef, Piece, Slot};

/// Nodes met, per pool.
struct Tally {
    lists: Vec<u32>,
    dense: u32,
    directories: u32,
    extents: u64,
}

impl ExtentMap {
    /// Panics unless every invariant holds. O(n).
    #[doc(hidden)]
    pub fn check_invariants(&self) {
        let lists = vec![0; self.pools.lists.len()];
        let mut tally = Tally { lists, dense: 0, directories: 0, extents: 0 };
        let mut covered = 0;
        for entry in &self.root.entries {
            assert!(entry.tables > 0 && entry.first >= covered, "R1: entries are sorted");
            covered = entry.end();
            assert!(covered <= (1 << 63) / TABLE_BYTES, "R1: entries end in the address space");
            match &entry.kind {
                Kind::Uniform { target, dirty } => {
                    assert!(target.is_some() || *dirty, "R3: an unmapped entry is dirty");
                    self.check_target(*target, entry.tables * TABLE_BYTES);
                }
                Kind::Table(slots) => {
                    assert!(entry.tables == 1, "R2: a table entry covers one table");
                    let mut base = entry.first * TABLE_BYTES;
                    for slot in slots.iter() {
                        self.check_piece(base, slot.piece(), &mut tally);
                        base += PIECE_BYTES;
                    }
                }
            }
        }
        assert!(tally.extents == self.extents, "the extent count is exact");
        assert!(tally.directories == self.pools.directories.count(), "P1: directories");
        assert!(tally.dense == self.pools.dense.count(), "P1: dense nodes");
        for (pool, met) in self.pools.lists.iter().zip(&tally.lists) {
            assert!(*met == pool.count(), "P1: list nodes");
            pool.check();
        }
        self.pools.dense.check();
        self.pools.directories.check();
    }

    fn check_target(&self, target: Option<Target>, len: u64) {
        assert!(target.is_none_or(|target| target.fits(len)), "targets stay within 56 bits");
    }

    fn check_piece(&self, base: u64, piece: Piece, tally: &mut Tally) {
        let node = match piece {
            Piece::Uniform(target) => {
                self.check_target(target, PIECE_BYTES);
                tally.extents += u64::from(target.is_some());
                return;
            }
            Piece::Directory(node) => node,
        };
        tally.directories += 1;
        assert!(self.pools.directories.owner(node) == Owner::Piece(base), "P1: directory owner");
        for region in 0..DIRECTORY_SLOTS {
            let slot = Slot(self.pools.directories.slot(node, region));
            let base = base + wide(region) * REGION_BYTES;
            tally.extents += slot.extents();
            match slot.cell() {
                Cell::Dense(dense) => self.check_dense(base, dense, tally),
                cell => {
                    self.check_cell(Site::region(base), cell, tally);
                }
            }
        }
    }

    fn check_cell(&self, site: Site, cell: Cell, tally: &mut Tally) -> Vec<Extent> {
        let extents = match cell {
            Cell::List(list) => self.check_list(site, list, tally),
            cell => inline_extent(cell, site.span()).into_iter().collect(),
        };
        for extent in &extents {
            assert!(extent.len > 0 && extent.end() <= site.span(), "L1: inside the cell");
            self.check_target(Some(extent.target), extent.len.into());
        }
        for pair in extents.windows(2) {
            assert!(pair[0].end() <= pair[1].start, "L1: sorted, no overlap");
            assert!(!pair[0].joins(&pair[1]), "L2: joined where possible");
        }
        extents
    }

    fn check_list(&self, site: Site, held: ListRef, tally: &mut Tally) -> Vec<Extent> {
        tally.lists[held.class] += 1;
        let owner = match site.level {
            Level::Region => Owner::Region(site.base),
            Level::Block => Owner::Block(site.base),
        };
        assert!(self.pools.lists[held.class].owner(held.node) == owner, "P1: list owner");
        assert!(held.count > 0 && index(held.count) <= CAPACITIES[held.class], "list fits");
        let extents: Vec<Extent> = self.list(held).iter().collect();
        if let [one] = extents[..] {
            assert!(one.len < site.span(), "a full run is inline");
        }
        extents
    }

    fn check_dense(&self, base: u64, dense: DenseRef, tally: &mut Tally) {
        tally.dense += 1;
        assert!(self.pools.dense.owner(dense.node) == Owner::Region(base), "P1: dense owner");
        assert!(dense.count > DENSE_MIN, "a dense region has more than DENSE_MIN extents");
        let mut count = 0;
        let mut before: Option<Extent> = None;
        for block in 0..REGION_BLOCKS {
            let start = wide(block) * BLOCK_BYTES;
            let slot = Slot(self.pools.dense.slot(dense.node, block));
            assert!(!matches!(slot.cell(), Cell::Dense(_) | Cell::Block { .. }), "block slot");
            for extent in self.check_cell(Site::block(base + start), slot.cell(), tally) {
                let start = u32::try_from(start).expect("inside a region");
                let extent = Extent { start: extent.start + start, ..extent };
                count += u32::from(!before.is_some_and(|before| before.joins(&extent)));
                before = Some(extent);
            }
        }
        assert!(count == dense.count, "a dense region's count is exact");
    }
}
