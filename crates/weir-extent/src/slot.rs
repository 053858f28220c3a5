//! The 8-byte tagged slots of the directory.
//!
//! Cell slot (a region, or a block of a dense region), from the high bit down:
//! - `1 | block:7 | address:56`: one aligned block, the rest unmapped. This is what makes a
//!   sparse volume of 4 KiB writes cost its directory and nothing more.
//! - `0 | tag:3 | ...`: empty, one linear or fixed run over the whole cell, a list, a dense region.
//!
//! List and dense slots carry the number of extents, so that nodes need no header.

use crate::bits::{index, low32};
use crate::limits::TARGET_MAX;
use crate::mapping::Target;

const BLOCK_FLAG: u64 = 1 << 63;
const TAG_SHIFT: u32 = 60;
const TAG_LINEAR: u64 = 1;
const TAG_FIXED: u64 = 2;
const TAG_LIST: u64 = 3;
const TAG_DENSE: u64 = 4;
const TAG_DIRECTORY: u64 = 3;
const CLASS_SHIFT: u32 = 52;
const CLASS_MASK: u64 = 0x3f;
const COUNT_SHIFT: u32 = 32;
const COUNT_MASK: u64 = 0xf_ffff;
const DIRTY: u64 = 1 << 63;

/// A list node: its size class, how many extents it holds, and its place in the class's pool.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct ListRef {
    pub(crate) class: usize,
    pub(crate) count: u32,
    pub(crate) node: u32,
}

/// A dense node: how many extents it holds (joined over block borders) and its place in the pool.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct DenseRef {
    pub(crate) count: u32,
    pub(crate) node: u32,
}

/// What a cell slot means.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Cell {
    Empty,
    Run(Target),
    Block { block: u32, address: u64 },
    List(ListRef),
    Dense(DenseRef),
}

/// A packed [`Cell`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Slot(pub(crate) u64);

impl Slot {
    pub(crate) const EMPTY: Self = Self(0);

    #[inline]
    pub(crate) fn run(target: Target) -> Self {
        Self(pack_target(target))
    }

    #[inline]
    pub(crate) fn uniform(target: Option<Target>) -> Self {
        target.map_or(Self::EMPTY, Self::run)
    }

    #[inline]
    pub(crate) fn block(block: u32, address: u64) -> Self {
        Self(BLOCK_FLAG | (u64::from(block) << 56) | address)
    }

    #[inline]
    pub(crate) fn list(list: ListRef) -> Self {
        let class = u64::try_from(list.class).expect("a class number is small");
        let count = u64::from(list.count) << COUNT_SHIFT;
        let tag = TAG_LIST << TAG_SHIFT;
        Self(tag | (class << CLASS_SHIFT) | count | u64::from(list.node))
    }

    #[inline]
    pub(crate) fn dense(dense: DenseRef) -> Self {
        let count = u64::from(dense.count) << COUNT_SHIFT;
        Self((TAG_DENSE << TAG_SHIFT) | count | u64::from(dense.node))
    }

    #[inline]
    pub(crate) fn cell(self) -> Cell {
        let word = self.0;
        if word & BLOCK_FLAG != 0 {
            let block = low32((word >> 56) & 0x7f);
            return Cell::Block { block, address: word & TARGET_MAX };
        }
        let node = low32(word);
        let count = low32((word >> COUNT_SHIFT) & COUNT_MASK);
        match word >> TAG_SHIFT {
            0 => Cell::Empty,
            TAG_LINEAR => Cell::Run(Target::Linear(word & TARGET_MAX)),
            TAG_FIXED => Cell::Run(Target::Fixed(word & TARGET_MAX)),
            TAG_LIST => {
                let class = index(low32((word >> CLASS_SHIFT) & CLASS_MASK));
                Cell::List(ListRef { class, count, node })
            }
            TAG_DENSE => Cell::Dense(DenseRef { count, node }),
            _ => unreachable!("slots are only made by this type"),
        }
    }

    /// Stored extents below this slot.
    #[inline]
    pub(crate) fn extents(self) -> u64 {
        match self.cell() {
            Cell::Empty => 0,
            Cell::Run(_) | Cell::Block { .. } => 1,
            Cell::List(list) => u64::from(list.count),
            Cell::Dense(dense) => u64::from(dense.count),
        }
    }

    /// The same slot after its node moved. Everything rests on this: it is checked in release.
    pub(crate) fn moved(self, from: u32, to: u32) -> Self {
        assert!(low32(self.0) == from, "a moved node's owner must point at it");
        Self((self.0 & !0xffff_ffff) | u64::from(to))
    }
}

/// What an upper slot (a piece) means.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Piece {
    Uniform(Option<Target>),
    Directory(u32),
}

/// A packed [`Piece`] with its dirty mark.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Upper(pub(crate) u64);

impl Upper {
    pub(crate) const EMPTY: Self = Self(0);

    #[inline]
    pub(crate) fn new(piece: Piece) -> Self {
        match piece {
            Piece::Uniform(target) => Self(target.map_or(0, pack_target)),
            Piece::Directory(node) => Self((TAG_DIRECTORY << TAG_SHIFT) | u64::from(node)),
        }
    }

    #[inline]
    pub(crate) fn piece(self) -> Piece {
        let word = self.0 & !DIRTY;
        match word >> TAG_SHIFT {
            0 => Piece::Uniform(None),
            TAG_LINEAR => Piece::Uniform(Some(Target::Linear(word & TARGET_MAX))),
            TAG_FIXED => Piece::Uniform(Some(Target::Fixed(word & TARGET_MAX))),
            TAG_DIRECTORY => Piece::Directory(low32(word)),
            _ => unreachable!("slots are only made by this type"),
        }
    }

    #[inline]
    pub(crate) fn is_dirty(self) -> bool {
        self.0 & DIRTY != 0
    }

    #[inline]
    pub(crate) fn dirty(self) -> Self {
        Self(self.0 | DIRTY)
    }

    #[inline]
    pub(crate) fn clean(self) -> Self {
        Self(self.0 & !DIRTY)
    }

    /// The same meaning as `piece` with this slot's dirty mark.
    #[inline]
    pub(crate) fn with(self, piece: Piece) -> Self {
        Self(Self::new(piece).0 | (self.0 & DIRTY))
    }
}

#[inline]
fn pack_target(target: Target) -> u64 {
    match target {
        Target::Linear(address) => (TAG_LINEAR << TAG_SHIFT) | address,
        Target::Fixed(value) => (TAG_FIXED << TAG_SHIFT) | value,
    }
}
