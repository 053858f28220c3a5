//! The header of a run: whose blocks lie behind it, and what each of them must be. Layout: docs/formats/cache.md#run.

use std::mem::{offset_of, size_of};

use zerocopy::byteorder::little_endian::{U16, U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

use super::{BLOCK_LEN, CRC_END, CRC_OFFSET, CacheId, DecodeError, checksum, verified, within};
use crate::geometry::{BAND_BLOCKS, BAND_BYTES, DEVICE_BYTES_MAX, Place};

/// First bytes of a header.
pub const MAGIC: [u8; 8] = *b"WEIR-CRH";
/// Format version.
pub const VERSION: u32 = 1;

/// Most blocks of a run.
pub const BLOCKS_MAX: usize = 32;

/// Ranges of a block that may be valid without the rest of it.
pub const RANGES_MAX: usize = 4;

/// What a cached device is, whatever it is called now. Who uses the cache says what the bytes mean.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct DeviceIdentity(pub [u8; 32]);

/// Bytes of what is said of a block.
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
struct EntryV1 {
    hash: [u8; 16],
    tag: [u8; 16],
    version: U64,
    ranges: [[U16; 2]; RANGES_MAX],
    used: U32,
    reads: U16,
    writes: U16,
}

/// Bytes of a header.
#[derive(Clone, Debug, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
struct HeaderV1 {
    magic: [u8; 8],
    version: U32,
    crc: U32,
    cache: [u8; 16],
    row: U32,
    column: U32,
    run: U32,
    blocks: U32,
    device: [u8; 32],
    band: U64,
    fill: U64,
    opening_salt: [u8; 16],
    key: [u8; 16],
    attached: [u8; 16],
    present: U32,
    dirty: U32,
    reserved: [u8; 1896],
    entries: [EntryV1; BLOCKS_MAX],
}

const _: () = {
    assert!(size_of::<EntryV1>() == 64);
    assert!(size_of::<HeaderV1>() == BLOCK_LEN);
    assert!(offset_of!(HeaderV1, crc) == CRC_OFFSET);
    assert!(offset_of!(HeaderV1, cache) == CRC_END);
    assert!(offset_of!(HeaderV1, entries) == 2048);
};

/// Where a run lies.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct RunPlace {
    /// Of its band.
    pub place: Place,
    /// Which run of the band.
    pub run: u32,
}

/// What is said of a block that is there.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Entry {
    /// Of the block as it lies on the disk, and of its address.
    pub hash: [u8; 16],
    /// Tag of the sealed block; zero where it is plain.
    pub tag: [u8; 16],
    /// Of two copies of a block the higher one counts.
    pub version: u64,
    /// First and last byte and one of what is valid, in order; none where the whole block is.
    pub ranges: [(u16, u16); RANGES_MAX],
    /// When it was last used, in seconds since 2020; 0 where it is not known.
    pub used: u32,
    /// Times that it was read and written.
    pub reads: u16,
    /// See there.
    pub writes: u16,
}

/// A header as values.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RunHeader {
    /// Where it lies.
    pub at: RunPlace,
    /// Whose blocks they are.
    pub device: DeviceIdentity,
    /// The band on the device.
    pub band: u64,
    /// Number of the fill that wrote it; never used twice in an opening. Nonces are made of it.
    pub fill: u64,
    /// Salt of the opening that wrote it.
    pub opening_salt: [u8; 16],
    /// Name of the key that the blocks are sealed under; zero where they are plain.
    pub key: [u8; 16],
    /// Tag of the attachment at the device below; zero where its content never changes.
    pub attached: [u8; 16],
    /// What is there, by its number in the run; `None` where nothing is.
    pub entries: Vec<Option<Entry>>,
    /// Blocks that the device below does not have yet, a bit each.
    pub dirty: u32,
}

impl EntryV1 {
    const NONE: Self = Self {
        hash: [0; 16],
        tag: [0; 16],
        version: U64::ZERO,
        ranges: [[U16::ZERO; 2]; RANGES_MAX],
        used: U32::ZERO,
        reads: U16::ZERO,
        writes: U16::ZERO,
    };

    fn new(entry: &Entry) -> Self {
        Self {
            hash: entry.hash,
            tag: entry.tag,
            version: U64::new(entry.version),
            ranges: entry.ranges.map(|(from, to)| [U16::new(from), U16::new(to)]),
            used: U32::new(entry.used),
            reads: U16::new(entry.reads),
            writes: U16::new(entry.writes),
        }
    }

    fn decode(&self) -> Result<Entry, DecodeError> {
        let ranges = self.ranges.map(|[from, to]| (from.get(), to.get()));
        // In order and apart; what is not used is behind the others and zero.
        let mut end = None;
        let mut is_over = false;
        for (from, to) in ranges {
            let value = u64::from(from) << 16 | u64::from(to);
            let is_none = (from, to) == (0, 0);
            let follows =
                from < to && usize::from(to) <= BLOCK_LEN && end.is_none_or(|end| from > end);
            if !is_none && (is_over || !follows) {
                return Err(DecodeError::Field { field: "ranges", value });
            }
            (is_over, end) = (is_none, if is_none { end } else { Some(to) });
        }
        Ok(Entry {
            hash: self.hash,
            tag: self.tag,
            version: self.version.get(),
            ranges,
            used: self.used.get(),
            reads: self.reads.get(),
            writes: self.writes.get(),
        })
    }
}

impl RunHeader {
    /// The block that stores it.
    ///
    /// # Panics
    /// If there are more entries than fit, or a block is dirty that is not there.
    #[must_use]
    pub fn encode(&self, cache: CacheId) -> Box<[u8]> {
        assert!(self.entries.len() <= BLOCKS_MAX, "the entries fit their block");
        let mut entries = [EntryV1::NONE; BLOCKS_MAX];
        let mut present = 0_u32;
        for (number, (slot, entry)) in entries.iter_mut().zip(&self.entries).enumerate() {
            if let Some(entry) = entry {
                present |= 1 << number;
                *slot = EntryV1::new(entry);
            }
        }
        assert!(self.dirty & !present == 0, "what is dirty is there");
        let mut block = HeaderV1 {
            magic: MAGIC,
            version: U32::new(VERSION),
            crc: U32::ZERO,
            cache: cache.0,
            row: U32::new(self.at.place.row),
            column: U32::new(self.at.place.column),
            run: U32::new(self.at.run),
            blocks: U32::new(u32::try_from(self.entries.len()).expect("at most BLOCKS_MAX")),
            device: self.device.0,
            band: U64::new(self.band),
            fill: U64::new(self.fill),
            opening_salt: self.opening_salt,
            key: self.key,
            attached: self.attached,
            present: U32::new(present),
            dirty: U32::new(self.dirty),
            reserved: [0; 1896],
            entries,
        };
        block.crc.set(checksum(block.as_bytes()));
        block.as_bytes().into()
    }

    /// Reads the header of a run of `blocks` blocks at a place.
    ///
    /// # Errors
    /// What is wrong with it; that it is another cache's or another place's.
    pub fn decode(
        input: &[u8],
        cache: CacheId,
        at: RunPlace,
        blocks: u32,
    ) -> Result<Self, DecodeError> {
        let block = verified(input, MAGIC, VERSION)?;
        let block = HeaderV1::ref_from_bytes(block).expect("it has the length of a block");
        let another = |field| Err(DecodeError::Identity { field });
        if block.cache != cache.0 {
            return another("the cache");
        }
        let place = Place { row: block.row.get(), column: block.column.get() };
        if (RunPlace { place, run: block.run.get() }) != at {
            return another("the place");
        }
        within("blocks", block.blocks.get().into(), u64::from(blocks)..=u64::from(blocks))?;
        within("band", block.band.get(), 0..=DEVICE_BYTES_MAX / BAND_BYTES)?;
        let (present, dirty) = (block.present.get(), block.dirty.get());
        let all =
            u32::try_from((1_u64 << blocks.min(BAND_BLOCKS / 2)) - 1).expect("32 bits at most");
        if present & !all != 0 {
            return Err(DecodeError::Field { field: "present", value: present.into() });
        }
        if dirty & !present != 0 {
            return Err(DecodeError::Field { field: "dirty", value: dirty.into() });
        }
        if block.reserved != [0; 1896] {
            return Err(DecodeError::Field { field: "reserved", value: 1 });
        }
        let entries = block.entries.iter().enumerate().map(|(number, entry)| {
            if present & (1 << number) != 0 {
                return entry.decode().map(Some);
            }
            if entry.as_bytes() != EntryV1::NONE.as_bytes() {
                return Err(DecodeError::Field { field: "entry", value: number as u64 });
            }
            Ok(None)
        });
        let mut entries = entries.collect::<Result<Vec<_>, _>>()?;
        entries.truncate(blocks as usize);
        Ok(Self {
            at,
            device: DeviceIdentity(block.device),
            band: block.band.get(),
            fill: block.fill.get(),
            opening_salt: block.opening_salt,
            key: block.key,
            attached: block.attached,
            entries,
            dirty,
        })
    }
}
