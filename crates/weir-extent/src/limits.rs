//! Sizes and limits of the map, with where each comes from.

/// The largest address or constant a [`crate::Target`] can hold: 56 bits, what an 8-byte slot has
/// left beside its tag. A linear address counts bytes, so this is 64 PiB of log.
pub const TARGET_MAX: u64 = (1 << 56) - 1;

/// The end of the address space: volumes of up to 8 EiB, so that offsets stay positive as `i64`.
pub const ADDRESS_END: u64 = 1 << 63;

/// The block of a dense region, and of [`crate::ExtentMap::take_crowded`]: what most file systems write.
pub const BLOCK_BYTES: u64 = 4096;

/// One lower directory slot. Measured: 512 KiB beats 1 and 4 MiB in look-up and update time at
/// 10 million extents, because a sorted list stays within a few cache lines.
pub const REGION_BYTES: u64 = 512 << 10;

/// One upper directory slot and one unit of checkpointing: 1024 regions, 8 KiB of directory, and
/// an encoded size of 1-4 MiB when it is full of small extents.
pub const PIECE_BYTES: u64 = 512 << 20;

/// A dense block or a list with more extents than this inside one block is reported as crowded.
pub const CROWDED_EXTENTS: u32 = 16;

/// A budget for the `_step` calls that stays under about one millisecond.
pub const STEP_BUDGET: usize = 8192;

/// One table of the root: 1024 pieces.
pub(crate) const TABLE_BYTES: u64 = PIECE_BYTES * 1024;

/// Slots of a root table.
pub(crate) const TABLE_SLOTS: usize = 1024;

/// Slots of a lower directory.
pub(crate) const DIRECTORY_SLOTS: usize = 1024;

/// Blocks of a region.
pub(crate) const REGION_BLOCKS: usize = 128;

/// 32-bit bytes of a region, for offsets inside it.
pub(crate) const REGION_SPAN: u32 = 512 << 10;

/// 32-bit bytes of a block.
pub(crate) const BLOCK_SPAN: u32 = 4096;

/// Most extents in a region's list before it turns dense whatever that costs: moving half of
/// 512 twelve-byte entries still takes less time than one cache miss per sub-list.
pub(crate) const REGION_LIST_MAX: usize = 512;

/// A list that grows past this turns dense if that is smaller: 80 entries of 12 bytes fill the
/// 1 KiB that a dense region takes.
pub(crate) const REGION_LIST_EASY: usize = 80;

/// A dense region with this few extents becomes a list again; well below
/// [`REGION_LIST_EASY`] so that no region flips back and forth.
pub(crate) const DENSE_MIN: u32 = 56;

/// A dense region with more extents than this is replaced block by block, so that one unit of a
/// `_step` call stays bounded.
pub(crate) const DENSE_WHOLE_MAX: u32 = 2048;

/// 32-bit words of one chunk of a node pool: 64 KiB, small enough that a pool's last chunk wastes
/// little and large enough that the chunk table stays in the cache.
pub(crate) const CHUNK_WORDS: usize = 16 << 10;

const _: () = {
    assert!(PIECE_BYTES == REGION_BYTES * 1024);
    assert!(REGION_BYTES == BLOCK_BYTES * 128);
    assert!(TABLE_BYTES == 1 << 39);
    assert!(usize::BITS == 64);
};
