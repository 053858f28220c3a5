//! The superblock: which segments hold the journal, which opening is in force and where it began, which are announced,
//! and what is known to be durable. Layout: docs/formats/journal.md#superblock.

use std::mem::{offset_of, size_of};

use weir_device::VolumeId;
use weir_disk::FileIdentity;
use weir_seal::KeyId;
use zerocopy::byteorder::little_endian::{U16, U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

use super::{DecodeError, crc32c, to_u64, to_usize};
use crate::ids::{
    Announced, Epoch, Identity, JournalId, JournalPos, ManifestSeen, OpeningId, RecordSeq,
    WriteNumber,
};
use crate::limits::{
    ANNOUNCED_MAX, BLOCK_BYTES, BLOCK_LEN, SEGMENT_BYTES_MAX, SEGMENT_BYTES_MIN, SEGMENTS_LIMIT,
};

/// First bytes of a superblock.
pub const MAGIC: [u8; 8] = *b"WEIR-JSB";
/// Format version that is written, and the newest that is understood.
pub const VERSION: u32 = 3;
/// Version of a journal of plain payload, before openings had names.
pub const PLAIN_VERSION: u32 = 1;
/// Version of a journal of sealed payload, before openings had names.
pub const SEALED_VERSION: u32 = 2;
/// Version of records whose payload is plain.
pub const PLAIN_RECORDS: u32 = 1;
/// Version of records whose payload is sealed; the newest that is understood.
pub const SEALED_RECORDS: u32 = 2;
/// The two copies.
pub const SLOT_OFFSETS: [u64; 2] = [0, BLOCK_BYTES];

const FLAG_CLEAN: u32 = 1;
const CRC_OFFSET: usize = 12;
const CRC_END: usize = 16;

/// What superblocks of all versions begin with.
#[derive(Clone, Debug, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
struct Head {
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
    /// Name of the key that the payload is sealed under; zero where it is plain.
    key: [u8; 16],
}

/// Bytes of a superblock, format versions 1 and 2.
#[derive(Clone, Debug, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
struct SuperblockV1 {
    head: Head,
    reserved: [u8; 68],
    segments: [U32; SEGMENTS_LIMIT],
}

/// An announced opening.
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
struct AnnouncedV3 {
    opening: [u8; 16],
    epoch: U64,
}

/// Bytes of a superblock, format version 3.
#[derive(Clone, Debug, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
struct SuperblockV3 {
    head: Head,
    opening: [u8; 16],
    records_version: U32,
    file_kind: U32,
    file: [u8; 16],
    announced_count: U32,
    manifest_number: U64,
    manifest_nonce: [u8; 16],
    segments: [U16; SEGMENTS_LIMIT],
    announced: [AnnouncedV3; ANNOUNCED_MAX],
    reserved_end: [u8; 1152],
}

const _: () = {
    assert!(size_of::<SuperblockV1>() == BLOCK_LEN);
    assert!(size_of::<SuperblockV3>() == BLOCK_LEN);
    assert!(offset_of!(Head, crc) == CRC_OFFSET);
    assert!(offset_of!(Head, generation) == CRC_END);
    assert!(offset_of!(Head, epoch) == 72);
    assert!(offset_of!(Head, tail_position) == 112);
    assert!(offset_of!(Head, flags) == 160);
    assert!(offset_of!(SuperblockV1, segments) == 256);
    assert!(offset_of!(SuperblockV3, opening) == 188);
    assert!(offset_of!(SuperblockV3, file) == 212);
    assert!(offset_of!(SuperblockV3, manifest_number) == 232);
    assert!(offset_of!(SuperblockV3, segments) == 256);
    assert!(offset_of!(SuperblockV3, announced) == 2176);
    assert!(offset_of!(SuperblockV3, reserved_end) == 2944);
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
    /// Epoch of the opening in force.
    pub epoch: Epoch,
    /// The opening in force; `None` before the first, and where it was one of a program that did not name them.
    pub opening: Option<OpeningId>,
    /// Openings that may be published and were not in force yet, the oldest first.
    pub announced: Vec<Announced>,
    /// The version of the manifest that the store is known to have had; no older one is the newest since. `None` before
    /// the first opening, and where a program wrote this that did not note versions.
    pub manifest: Option<ManifestSeen>,
    /// The file that the opening in force wrote to, if it has a name that lasts.
    pub file: Option<FileIdentity>,
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

    /// The block that stores this superblock, in the newest version.
    ///
    /// # Panics
    /// If more segments are listed or openings announced than fit, or no segment.
    #[must_use]
    pub fn encode(&self) -> Box<[u8]> {
        assert!(self.segments.len() <= SEGMENTS_LIMIT, "the segment list fits its block");
        assert!(self.announced.len() <= ANNOUNCED_MAX, "the announcements fit their block");
        let mut segments = [U16::ZERO; SEGMENTS_LIMIT];
        for (slot, physical) in segments.iter_mut().zip(&self.segments) {
            slot.set(u16::try_from(*physical).expect("below SEGMENTS_LIMIT"));
        }
        let none = AnnouncedV3 { opening: [0; 16], epoch: U64::ZERO };
        let mut announced = [none; ANNOUNCED_MAX];
        for (slot, Announced { opening, epoch }) in announced.iter_mut().zip(&self.announced) {
            *slot = AnnouncedV3 { opening: opening.0, epoch: U64::new(epoch.0) };
        }
        let (file_kind, file) = self.file.map_or((0, [0; 16]), FileIdentity::to_parts);
        let records = if self.key.is_some() { SEALED_RECORDS } else { PLAIN_RECORDS };
        let count = u32::try_from(self.announced.len()).expect("at most ANNOUNCED_MAX");
        let block = SuperblockV3 {
            head: self.head(VERSION),
            opening: self.opening.map_or([0; 16], |opening| opening.0),
            records_version: U32::new(records),
            file_kind: U32::new(file_kind),
            file,
            announced_count: U32::new(count),
            manifest_number: U64::new(self.manifest.map_or(0, |seen| seen.number)),
            manifest_nonce: self.manifest.map_or([0; 16], |seen| seen.nonce),
            segments,
            announced,
            reserved_end: [0; 1152],
        };
        with_crc(block.as_bytes())
    }

    /// The block as programs before version 3 wrote it. For tests of the upgrade.
    ///
    /// # Panics
    /// If it names openings, a version of the manifest or a file, which it could not, or more segments are listed than
    /// fit, or none.
    #[must_use]
    pub fn encode_before_openings(&self) -> Box<[u8]> {
        let nameless = self.opening.is_none() && self.announced.is_empty() && self.file.is_none();
        assert!(nameless && self.manifest.is_none(), "older versions have no room for names");
        let mut segments = [U32::ZERO; SEGMENTS_LIMIT];
        for (slot, physical) in segments.iter_mut().zip(&self.segments) {
            slot.set(*physical);
        }
        let version = if self.key.is_some() { SEALED_VERSION } else { PLAIN_VERSION };
        let block = SuperblockV1 { head: self.head(version), reserved: [0; 68], segments };
        with_crc(block.as_bytes())
    }

    fn head(&self, version: u32) -> Head {
        assert!(!self.segments.is_empty(), "a journal lists at least one segment");
        let count = u32::try_from(self.segments.len()).expect("at most SEGMENTS_LIMIT");
        Head {
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
            key: self.key.map_or([0; 16], |key| key.0),
        }
    }

    /// Reads a superblock out of its block, of any version.
    ///
    /// # Errors
    /// Whatever is wrong with the bytes. Identity is for the caller to compare: a wrong one deserves a message of its
    /// own.
    pub fn decode(bytes: &[u8]) -> Result<Self, DecodeError> {
        let Ok((head, _rest)) = Head::ref_from_prefix(bytes) else {
            return Err(short(bytes));
        };
        let Some(bytes) = bytes.get(..BLOCK_LEN) else { return Err(short(bytes)) };
        if head.magic != MAGIC {
            let zeroes = bytes.iter().all(|byte| *byte == 0);
            return Err(if zeroes { DecodeError::Zeroes } else { DecodeError::Magic });
        }
        let found = head.version.get();
        let computed = block_crc(bytes);
        // A version is believed before the checksum: a newer format may check itself differently.
        if found > VERSION {
            return Err(DecodeError::Version { found, known: VERSION });
        }
        // The fuzzer must get behind the checksum.
        if head.crc.get() != computed && !cfg!(fuzzing) {
            return Err(DecodeError::Checksum { stored: head.crc.get(), computed });
        }
        match found {
            PLAIN_VERSION | SEALED_VERSION => {
                SuperblockV1::ref_from_bytes(bytes).expect("a whole block").to_memory()
            }
            VERSION => SuperblockV3::ref_from_bytes(bytes).expect("a whole block").to_memory(),
            _ => Err(DecodeError::Version { found, known: VERSION }),
        }
    }
}

fn short(bytes: &[u8]) -> DecodeError {
    DecodeError::Short { have: to_u64(bytes.len()), need: BLOCK_BYTES }
}

impl Head {
    /// What is in the head, if that and the list of segments are in range.
    fn to_memory(&self, segments: &[u32]) -> Result<Superblock, DecodeError> {
        let count = u64::from(self.segment_count.get());
        require(count >= 1 && count <= to_u64(SEGMENTS_LIMIT), "segment_count", count)?;
        self.check(count)?;
        let (used, unused) = segments.split_at(to_usize(count));
        let mut seen = [false; SEGMENTS_LIMIT];
        for index in used {
            let value = u64::from(*index);
            require(value < u64::from(self.segments_physical.get()), "segments", value)?;
            let slot = &mut seen[to_usize(value)];
            require(!*slot, "segments", value)?;
            *slot = true;
        }
        require(unused.iter().all(|index| *index == 0), "segments", count)?;
        let clean = self.flags.get() & FLAG_CLEAN != 0;
        Ok(Superblock {
            generation: self.generation.get(),
            identity: Identity { volume: VolumeId(self.volume), journal: JournalId(self.journal) },
            boot_id: self.boot_id,
            epoch: Epoch(self.epoch.get()),
            opening: None,
            announced: Vec::new(),
            manifest: None,
            file: None,
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
            key: (self.key != [0; 16]).then_some(KeyId(self.key)),
            segments_physical: self.segments_physical.get(),
            segments: used.to_vec(),
        })
    }

    fn check(&self, count: u64) -> Result<(), DecodeError> {
        let segment_bytes = self.segment_bytes.get();
        let sized = (SEGMENT_BYTES_MIN..=SEGMENT_BYTES_MAX).contains(&segment_bytes);
        require(
            sized && segment_bytes.is_multiple_of(BLOCK_BYTES),
            "segment_bytes",
            segment_bytes,
        )?;
        let physical = u64::from(self.segments_physical.get());
        let bounded = physical >= count && physical <= to_u64(SEGMENTS_LIMIT);
        require(bounded, "segments_physical", physical)?;
        let flags = self.flags.get();
        require(flags & !FLAG_CLEAN == 0, "flags", u64::from(flags))?;

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
        let placed = first.is_multiple_of(BLOCK_BYTES) && first <= *listed.end();
        require(placed, "first_position", first)
    }
}

impl SuperblockV1 {
    fn to_memory(&self) -> Result<Superblock, DecodeError> {
        require(self.reserved == [0; 68], "reserved", 1)?;
        let sealed = self.head.version.get() == SEALED_VERSION;
        require(sealed == (self.head.key != [0; 16]), "key", u64::from(sealed))?;
        self.head.to_memory(&self.segments.map(U32::get))
    }
}

impl SuperblockV3 {
    fn to_memory(&self) -> Result<Superblock, DecodeError> {
        let records = self.records_version.get();
        // Behind the checksum, and before all that a newer program may mean otherwise.
        if records > SEALED_RECORDS {
            return Err(DecodeError::RecordsVersion { found: records, known: SEALED_RECORDS });
        }
        let expected = if self.head.key == [0; 16] { PLAIN_RECORDS } else { SEALED_RECORDS };
        require(records == expected, "records_version", u64::from(records))?;
        require(self.reserved_end == [0; 1152], "reserved", 1)?;
        let mut superblock = self.head.to_memory(&self.segments.map(|index| index.get().into()))?;
        superblock.opening = (self.opening != [0; 16]).then_some(OpeningId(self.opening));
        let file_kind = self.file_kind.get();
        require(file_kind != 0 || self.file == [0; 16], "file_kind", u64::from(file_kind))?;
        // A kind that a newer program knows is as good as none.
        superblock.file = FileIdentity::from_parts(file_kind, self.file);
        superblock.announced = self.announced()?;
        let (number, nonce) = (self.manifest_number.get(), self.manifest_nonce);
        require(number != 0 || nonce == [0; 16], "manifest_number", number)?;
        superblock.manifest = (number != 0).then_some(ManifestSeen { number, nonce });
        Ok(superblock)
    }

    fn announced(&self) -> Result<Vec<Announced>, DecodeError> {
        let count = u64::from(self.announced_count.get());
        require(count <= to_u64(ANNOUNCED_MAX), "announced_count", count)?;
        let (used, unused) = self.announced.split_at(to_usize(count));
        let named = used.iter().all(|entry| entry.opening != [0; 16]);
        let empty = unused.iter().all(|entry| entry.opening == [0; 16] && entry.epoch.get() == 0);
        require(named && empty, "announced", count)?;
        let entry = |entry: &AnnouncedV3| Announced {
            opening: OpeningId(entry.opening),
            epoch: Epoch(entry.epoch.get()),
        };
        Ok(used.iter().map(entry).collect())
    }
}

fn require(holds: bool, field: &'static str, value: u64) -> Result<(), DecodeError> {
    if holds { Ok(()) } else { Err(DecodeError::Field { field, value }) }
}

fn with_crc(block: &[u8]) -> Box<[u8]> {
    let mut bytes: Box<[u8]> = block.into();
    let crc = block_crc(&bytes);
    bytes[CRC_OFFSET..CRC_END].copy_from_slice(&crc.to_le_bytes());
    bytes
}

fn block_crc(bytes: &[u8]) -> u32 {
    crc32c(&[&bytes[..CRC_OFFSET], &bytes[CRC_END..]])
}
