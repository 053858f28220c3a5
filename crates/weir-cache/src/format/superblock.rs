//! The superblock: the shape of the cache, and whether it was closed in order.
//! Layout: docs/formats/cache.md#superblock.

use std::mem::{offset_of, size_of};

use zerocopy::byteorder::little_endian::{U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

use super::run::RunPlace;
use super::{BLOCK_LEN, CRC_END, CRC_OFFSET, CacheId, DecodeError, checksum, verified, within};
use crate::geometry::{BAND_BLOCKS, BLOCK_BYTES, Geometry, ROWS};

/// First bytes of a superblock.
pub const MAGIC: [u8; 8] = *b"WEIR-CSB";
/// Format version.
pub const VERSION: u32 = 2;
/// The two copies.
pub const SLOT_OFFSETS: [u64; 2] = [0, BLOCK_BYTES];
/// Where bands begin.
pub const BANDS_OFFSET: u64 = 1 << 20;

/// Bits of the number of an opening. A file that was opened more often is as good as none.
pub const OPENING_BITS: u32 = 24;

/// Most columns: 64 rows of so many bands are 256 TiB.
pub const COLUMNS_MAX: u32 = 1 << 24;

/// Bytes of a superblock.
#[derive(Clone, Debug, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
struct SuperblockV1 {
    magic: [u8; 8],
    version: U32,
    crc: U32,
    generation: U64,
    cache: [u8; 16],
    rows: U32,
    columns: U32,
    band_blocks: U32,
    run_blocks: U32,
    opening: U64,
    opening_salt: [u8; 16],
    index_bytes: U64,
    index_digest: [u8; 32],
    reserved: [u8; 3976],
}

const _: () = {
    assert!(size_of::<SuperblockV1>() == BLOCK_LEN);
    assert!(offset_of!(SuperblockV1, crc) == CRC_OFFSET);
    assert!(offset_of!(SuperblockV1, generation) == CRC_END);
    assert!(offset_of!(SuperblockV1, index_digest) == 88);
};

/// The index that a clean stop leaves behind the last band.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SavedIndex {
    /// Its length; not 0.
    pub bytes: u64,
    /// BLAKE3 of it.
    pub digest: [u8; 32],
}

/// A superblock as values.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Superblock {
    /// Rises with every superblock written; of two valid copies the higher one counts.
    pub generation: u64,
    /// Which cache this is.
    pub cache: CacheId,
    /// Its rows and columns.
    pub geometry: Geometry,
    /// Blocks of a run: 1 to 32, a power of two.
    pub run_blocks: u32,
    /// Counts the openings of this file.
    pub opening: u64,
    /// Random, new with each opening; keys of what is sealed in it are derived from it.
    pub opening_salt: [u8; 16],
    /// What a clean stop left; `None` while the cache is open.
    pub index: Option<SavedIndex>,
}

impl Superblock {
    /// Bytes of a band with the headers of its runs.
    #[must_use]
    pub fn band_bytes(&self) -> u64 {
        let runs = BAND_BLOCKS / self.run_blocks;
        u64::from(runs) * u64::from(1 + self.run_blocks) * BLOCK_BYTES
    }

    /// Where a run begins, with its header.
    #[must_use]
    pub fn run_offset(&self, at: RunPlace) -> u64 {
        let in_band = u64::from(at.run) * u64::from(1 + self.run_blocks) * BLOCK_BYTES;
        BANDS_OFFSET + self.geometry.disk_index(at.place) * self.band_bytes() + in_band
    }

    /// Where a block of a run begins.
    #[must_use]
    pub fn block_offset(&self, at: RunPlace, block: u32) -> u64 {
        self.run_offset(at) + u64::from(1 + block) * BLOCK_BYTES
    }

    /// Where the saved index begins: behind the last band.
    #[must_use]
    pub fn index_offset(&self) -> u64 {
        BANDS_OFFSET + self.geometry.bands() * self.band_bytes()
    }

    /// The block that stores it.
    #[must_use]
    pub fn encode(&self) -> Box<[u8]> {
        let index = self.index.unwrap_or(SavedIndex { bytes: 0, digest: [0; 32] });
        let mut block = SuperblockV1 {
            magic: MAGIC,
            version: U32::new(VERSION),
            crc: U32::ZERO,
            generation: U64::new(self.generation),
            cache: self.cache.0,
            rows: U32::new(self.geometry.rows),
            columns: U32::new(self.geometry.columns),
            band_blocks: U32::new(BAND_BLOCKS),
            run_blocks: U32::new(self.run_blocks),
            opening: U64::new(self.opening),
            opening_salt: self.opening_salt,
            index_bytes: U64::new(index.bytes),
            index_digest: index.digest,
            reserved: [0; 3976],
        };
        block.crc.set(checksum(block.as_bytes()));
        block.as_bytes().into()
    }

    /// Reads one copy.
    ///
    /// # Errors
    /// What is wrong with it.
    pub fn decode(input: &[u8]) -> Result<Self, DecodeError> {
        let block = verified(input, MAGIC, VERSION)?;
        let block = SuperblockV1::ref_from_bytes(block).expect("it has the length of a block");
        let run_blocks = block.run_blocks.get();
        within("rows", block.rows.get().into(), 1..=ROWS.into())?;
        within("columns", block.columns.get().into(), 1..=COLUMNS_MAX.into())?;
        within(
            "band_blocks",
            block.band_blocks.get().into(),
            BAND_BLOCKS.into()..=BAND_BLOCKS.into(),
        )?;
        within("run_blocks", run_blocks.into(), 1..=super::run::BLOCKS_MAX as u64)?;
        // One more of each can be counted.
        within("generation", block.generation.get(), 0..=1 << 62)?;
        within("opening", block.opening.get(), 0..=(1 << OPENING_BITS) - 2)?;
        if !run_blocks.is_power_of_two() {
            return Err(DecodeError::Field { field: "run_blocks", value: run_blocks.into() });
        }
        if block.reserved != [0; 3976] {
            return Err(DecodeError::Field { field: "reserved", value: 1 });
        }
        let saved = SavedIndex { bytes: block.index_bytes.get(), digest: block.index_digest };
        if saved.bytes == 0 && saved.digest != [0; 32] {
            return Err(DecodeError::Field { field: "index_digest", value: 1 });
        }
        Ok(Self {
            generation: block.generation.get(),
            cache: CacheId(block.cache),
            geometry: Geometry { rows: block.rows.get(), columns: block.columns.get() },
            run_blocks,
            opening: block.opening.get(),
            opening_salt: block.opening_salt,
            index: (saved.bytes > 0).then_some(saved),
        })
    }
}
