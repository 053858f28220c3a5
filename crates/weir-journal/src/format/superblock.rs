//! The superblock: which segments hold the journal, where this epoch began, what is known to be durable.
//! Layout: docs/formats/journal.md#superblock.

use std::mem::{offset_of, size_of};

use weir_device::VolumeId;
use weir_seal::KeyId;
use zerocopy::byteorder::little_endian::{U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

use super::{DecodeError, crc32c, to_u64, to_usize};
use crate::ids::{Epoch, Identity, JournalId, JournalPos, RecordSeq, WriteNumber};
use crate::limits::{BLOCK_BYTES, BLOCK_LEN, SEGMENT_BYTES_MAX, SEGMENT_BYTES_MIN, SEGMENTS_LIMIT};

/// First bytes of a superblock.
pub const MAGIC: [u8; 8] = *b"WEIR-JSB";
/// Format version of a journal whose payload is plain.
pub const VERSION: u32 = 1;
/// Format version of a journal whose payload is sealed; the newest that is understood.
pub const SEALED_VERSION: u32 = 2;
/// The two copies.
pub const SLOT_OFFSETS: [u64; 2] = [0, BLOCK_BYTES];

const FLAG_CLEAN: u32 = 1;
const CRC_OFFSET: usize = 12;
const CRC_END: usize = 16;

/// Bytes of a superblock, format versions 1 and 2. In version 2 the first 16 reserved bytes are the name of the key.
#[derive(Clone, Debug, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub struct SuperblockV1 {
    magic: [u8; 8],
    version: U32,
    crc: U32,
    generation: U64,
    volume: [u8; 16],
    journal: [u8; 16],
    boot_id: [u8; 16],
    epoch: U64,
    first_record: U64,
    first_position: U64,
    first_write: U64,
    segment_bytes: U64,
    tail_position: U64,
    tail_record: U64,
    tail_write: U64,
    end_position: U64,
    flushed_through: U64,
    loss_accepted_through: U64,
    flags: U32,
    segments_physical: U32,
    segment_count: U32,
    reserved: [u8; 84],
    segments: [U32; SEGMENTS_LIMIT],
}

const _: () = {
    assert!(size_of::<SuperblockV1>() == BLOCK_LEN);
    assert!(offset_of!(SuperblockV1, crc) == CRC_OFFSET);
    assert!(offset_of!(SuperblockV1, generation) == CRC_END);
    assert!(offset_of!(SuperblockV1, epoch) == 72);
    assert!(offset_of!(SuperblockV1, tail_position) == 112);
    assert!(offset_of!(SuperblockV1, flags) == 160);
    assert!(offset_of!(SuperblockV1, segments) == 256);
};

/// A superblock as values.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Superblock {
    /// Rises with every superblock written; of two valid copies the higher one counts.
    pub generation: u64,
    /// Whose journal this is.
    pub identity: Identity,
    /// Boot of the host that opened this epoch.
    pub boot_id: [u8; 16],
    /// The opening that wrote this.
    pub epoch: Epoch,
    /// First record of the epoch.
    pub first_record: RecordSeq,
    /// Where it is: nothing of an older epoch counts from here on.
    pub first_position: JournalPos,
    /// First write of the epoch.
    pub first_write: WriteNumber,
    /// Size of every segment.
    pub segment_bytes: u64,
    /// Begin of the first listed segment.
    pub tail_position: JournalPos,
    /// First record in it, or the next one to be written if there is none.
    pub tail_record: RecordSeq,
    /// Number of the first write in it, or of the next one.
    pub tail_write: WriteNumber,
    /// End of the last record when the journal was closed cleanly; `None` while it is open.
    pub clean_end: Option<JournalPos>,
    /// Last record known to be durable when this was written.
    pub flushed_through: RecordSeq,
    /// Records up to here whose loss an operator has accepted.
    pub loss_accepted_through: RecordSeq,
    /// Name of the volume's key that the payload is sealed under, unless it is plain.
    pub key: Option<KeyId>,
    /// Segments in the file, listed or not.
    pub segments_physical: u32,
    /// Physical index of the listed segments; their logical numbers are consecutive, from the tail's.
    pub segments: Vec<u32>,
}

impl Superblock {
    /// Logical number of the first listed segment.
    #[must_use]
    pub fn tail_segment(&self) -> u64 {
        self.tail_position.0 / self.segment_bytes
    }

    /// The block that stores this superblock.
    ///
    /// # Panics
    /// If more segments are listed than fit, or none.
    #[must_use]
    pub fn encode(&self) -> Box<[u8]> {
        assert!(!self.segments.is_empty(), "a journal lists at least one segment");
        assert!(self.segments.len() <= SEGMENTS_LIMIT, "the segment list fits its block");
        let mut segments = [U32::ZERO; SEGMENTS_LIMIT];
        for (slot, physical) in segments.iter_mut().zip(&self.segments) {
            slot.set(*physical);
        }
        let count = u32::try_from(self.segments.len()).expect("at most SEGMENTS_LIMIT");
        let mut reserved = [0; 84];
        reserved[..16].copy_from_slice(&self.key.map_or([0; 16], |key| key.0));
        let version = if self.key.is_some() { SEALED_VERSION } else { VERSION };
        let block = SuperblockV1 {
            magic: MAGIC,
            version: U32::new(version),
            crc: U32::ZERO,
            generation: U64::new(self.generation),
            volume: self.identity.volume.0,
            journal: self.identity.journal.0,
            boot_id: self.boot_id,
            epoch: U64::new(self.epoch.0),
            first_record: U64::new(self.first_record.0),
            first_position: U64::new(self.first_position.0),
            first_write: U64::new(self.first_write.0),
            segment_bytes: U64::new(self.segment_bytes),
            tail_position: U64::new(self.tail_position.0),
            tail_record: U64::new(self.tail_record.0),
            tail_write: U64::new(self.tail_write.0),
            end_position: U64::new(self.clean_end.map_or(0, |end| end.0)),
            flushed_through: U64::new(self.flushed_through.0),
            loss_accepted_through: U64::new(self.loss_accepted_through.0),
            flags: U32::new(if self.clean_end.is_some() { FLAG_CLEAN } else { 0 }),
            segments_physical: U32::new(self.segments_physical),
            segment_count: U32::new(count),
            reserved,
            segments,
        };
        let mut bytes: Box<[u8]> = block.as_bytes().into();
        let crc = block_crc(&bytes);
        bytes[CRC_OFFSET..CRC_END].copy_from_slice(&crc.to_le_bytes());
        bytes
    }

    /// Reads a superblock out of its block.
    ///
    /// # Errors
    /// Whatever is wrong with the bytes. Identity is for the caller to compare: a wrong one deserves a message of its
    /// own.
    pub fn decode(bytes: &[u8]) -> Result<Self, DecodeError> {
        let Ok((block, _rest)) = SuperblockV1::ref_from_prefix(bytes) else {
            return Err(DecodeError::Short { have: to_u64(bytes.len()), need: BLOCK_BYTES });
        };
        let bytes = &bytes[..BLOCK_LEN];
        if block.magic != MAGIC {
            let zeroes = bytes.iter().all(|byte| *byte == 0);
            return Err(if zeroes { DecodeError::Zeroes } else { DecodeError::Magic });
        }
        let version = block.version.get();
        let computed = block_crc(bytes);
        // A version is believed before the checksum: a newer format may check itself differently.
        if version > SEALED_VERSION {
            return Err(DecodeError::Version { found: version, known: SEALED_VERSION });
        }
        // The fuzzer must get behind the checksum.
        if block.crc.get() != computed && !cfg!(fuzzing) {
            return Err(DecodeError::Checksum { stored: block.crc.get(), computed });
        }
        if version != VERSION && version != SEALED_VERSION {
            return Err(DecodeError::Version { found: version, known: SEALED_VERSION });
        }
        block.check()?;
        Ok(block.to_memory())
    }
}

impl SuperblockV1 {
    fn check(&self) -> Result<(), DecodeError> {
        let segment_bytes = self.segment_bytes.get();
        let sized = (SEGMENT_BYTES_MIN..=SEGMENT_BYTES_MAX).contains(&segment_bytes);
        require(
            sized && segment_bytes.is_multiple_of(BLOCK_BYTES),
            "segment_bytes",
            segment_bytes,
        )?;
        let count = u64::from(self.segment_count.get());
        require(count >= 1 && count <= to_u64(SEGMENTS_LIMIT), "segment_count", count)?;
        let physical = u64::from(self.segments_physical.get());
        let bounded = physical >= count && physical <= to_u64(SEGMENTS_LIMIT);
        require(bounded, "segments_physical", physical)?;
        let flags = self.flags.get();
        require(flags & !FLAG_CLEAN == 0, "flags", u64::from(flags))?;
        let (key, reserved) = self.reserved.split_first_chunk::<16>().expect("84 bytes");
        require(reserved == [0; 68], "reserved", 1)?;
        let sealed = self.version.get() == SEALED_VERSION;
        require(sealed == (*key != [0; 16]), "key", u64::from(sealed))?;

        let tail = self.tail_position.get();
        let listed_bytes = count * segment_bytes;
        let tail_fits =
            tail.is_multiple_of(segment_bytes) && tail.checked_add(listed_bytes).is_some();
        require(tail_fits, "tail_position", tail)?;
        let listed = tail..=tail + listed_bytes;
        let end = self.end_position.get();
        if flags & FLAG_CLEAN == 0 {
            require(end == 0, "end_position", end)?;
        } else {
            let aligned = end.is_multiple_of(BLOCK_BYTES);
            require(aligned && listed.contains(&end), "end_position", end)?;
        }
        let first = self.first_position.get();
        require(
            first.is_multiple_of(BLOCK_BYTES) && first <= *listed.end(),
            "first_position",
            first,
        )?;

        let (used, unused) = self.segments.split_at(to_usize(count));
        let mut seen = [false; SEGMENTS_LIMIT];
        for index in used {
            let value = u64::from(index.get());
            require(value < physical, "segments", value)?;
            let slot = &mut seen[to_usize(value)];
            require(!*slot, "segments", value)?;
            *slot = true;
        }
        require(unused.iter().all(|index| index.get() == 0), "segments", count)
    }

    fn key(&self) -> Option<KeyId> {
        let (key, _) = self.reserved.split_first_chunk::<16>().expect("84 bytes");
        (self.version.get() == SEALED_VERSION).then_some(KeyId(*key))
    }

    fn to_memory(&self) -> Superblock {
        let clean = self.flags.get() & FLAG_CLEAN != 0;
        let count = to_usize(u64::from(self.segment_count.get()));
        Superblock {
            generation: self.generation.get(),
            identity: Identity { volume: VolumeId(self.volume), journal: JournalId(self.journal) },
            boot_id: self.boot_id,
            epoch: Epoch(self.epoch.get()),
            first_record: RecordSeq(self.first_record.get()),
            first_position: JournalPos(self.first_position.get()),
            first_write: WriteNumber(self.first_write.get()),
            segment_bytes: self.segment_bytes.get(),
            tail_position: JournalPos(self.tail_position.get()),
            tail_record: RecordSeq(self.tail_record.get()),
            tail_write: WriteNumber(self.tail_write.get()),
            clean_end: clean.then(|| JournalPos(self.end_position.get())),
            flushed_through: RecordSeq(self.flushed_through.get()),
            loss_accepted_through: RecordSeq(self.loss_accepted_through.get()),
            key: self.key(),
            segments_physical: self.segments_physical.get(),
            segments: self.segments[..count].iter().map(|index| index.get()).collect(),
        }
    }
}

fn require(holds: bool, field: &'static str, value: u64) -> Result<(), DecodeError> {
    if holds { Ok(()) } else { Err(DecodeError::Field { field, value }) }
}

fn block_crc(bytes: &[u8]) -> u32 {
    crc32c(&[&bytes[..CRC_OFFSET], &bytes[CRC_END..]])
}
