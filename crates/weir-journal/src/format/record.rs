//! The record: one group commit, with a checksum over its header and one over every piece of payload.
//! Layout: docs/formats/journal.md#record.

use std::mem::{offset_of, size_of};

use crc_fast::{CrcAlgorithm, Digest};
use weir_seal::TAG_BYTES;
use zerocopy::byteorder::little_endian::{U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

use super::{DecodeError, crc32c, low_half, to_u64};
use crate::ids::{Epoch, Identity, JournalPos, RecordSeq, WriteNumber};
use crate::limits::{BLOCK_BYTES, PIECE_BYTES_MAX, PIECES_PER_RECORD_MAX, RECORD_BYTES_LIMIT};

/// First bytes of a record.
pub const MAGIC: [u8; 8] = *b"WEIR-JRC";
/// Format version of a record whose payload is plain.
pub const VERSION: u32 = 1;
/// Format version of a record whose payload is sealed.
pub const SEALED_VERSION: u32 = 2;
/// Bytes of the header without its table.
pub const HEADER_BYTES: usize = 128;
/// Bytes of one entry of the table.
pub const ENTRY_BYTES: usize = 32;
/// Bytes of one entry of the table of a sealed record.
pub const SEALED_ENTRY_BYTES: usize = ENTRY_BYTES + TAG_BYTES;

const CRC_OFFSET: usize = 12;
const CRC_END: usize = 16;

/// What the openings of an encrypted volume draw their keys with.
pub type Salt = [u8; 16];

/// What a piece does to its range of the volume.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum PieceKind {
    /// Writes bytes.
    Data,
    /// Makes it read as zeroes and keeps it provisioned.
    Zero,
    /// Gives it up; it reads as zeroes.
    Discard,
    /// Its bytes are lost: it reads as an error until it is written again.
    Poison,
}

impl PieceKind {
    fn code(self) -> u8 {
        match self {
            Self::Data => 1,
            Self::Zero => 2,
            Self::Discard => 3,
            Self::Poison => 4,
        }
    }

    fn of_code(code: u8) -> Option<Self> {
        Some(match code {
            1 => Self::Data,
            2 => Self::Zero,
            3 => Self::Discard,
            4 => Self::Poison,
            _ => return None,
        })
    }
}

/// Bytes of a record's header, format versions 1 and 2. In version 2 the first 16 reserved bytes are the salt.
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub struct RecordV1 {
    magic: [u8; 8],
    version: U32,
    header_crc: U32,
    volume: [u8; 16],
    journal: [u8; 16],
    epoch: U64,
    record: U64,
    position: U64,
    first_write: U64,
    acked_through: U64,
    flushed_through: U64,
    record_bytes: U32,
    piece_count: U32,
    reserved: [u8; 24],
}

/// Bytes of one entry of a record's table, format version 1.
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub struct PieceV1 {
    offset: U64,
    len: U64,
    payload: U32,
    payload_crc: U32,
    kind: u8,
    reserved: [u8; 7],
}

/// Bytes of one entry of a record's table, format version 2.
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub struct PieceV2 {
    piece: PieceV1,
    tag: [u8; TAG_BYTES],
}

const _: () = {
    assert!(size_of::<PieceV2>() == SEALED_ENTRY_BYTES);
    assert!(offset_of!(RecordV1, reserved) == 104);
    assert!(size_of::<RecordV1>() == HEADER_BYTES);
    assert!(size_of::<PieceV1>() == ENTRY_BYTES);
    assert!(offset_of!(RecordV1, header_crc) == CRC_OFFSET);
    assert!(offset_of!(RecordV1, volume) == CRC_END);
    assert!(offset_of!(RecordV1, epoch) == 48);
    assert!(offset_of!(RecordV1, record_bytes) == 96);
    assert!(offset_of!(PieceV1, payload) == 16);
    assert!(offset_of!(PieceV1, kind) == 24);
    assert!(RECORD_BYTES_LIMIT <= u32::MAX as u64);
};

/// One entry of a record's table.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Piece {
    /// What it does.
    pub kind: PieceKind,
    /// First byte on the volume.
    pub offset: u64,
    /// Bytes on the volume.
    pub len: u64,
    /// Where the payload begins, from the begin of the record; 0 if there is none.
    pub payload: u32,
    /// Checksum of identity and payload; 0 if there is none.
    pub payload_crc: u32,
    /// Tag of a sealed payload; 0 if there is none.
    pub tag: [u8; TAG_BYTES],
}

/// A record's header and table as values.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RecordHeader {
    /// The opening that wrote it.
    pub epoch: Epoch,
    /// Its number.
    pub record: RecordSeq,
    /// Where it belongs.
    pub position: JournalPos,
    /// Number of its first piece; the others follow.
    pub first_write: WriteNumber,
    /// Last record acknowledged when this one was built.
    pub acked_through: RecordSeq,
    /// Last record covered by a good `fdatasync` when this one was built.
    pub flushed_through: RecordSeq,
    /// Length of the whole record.
    pub record_bytes: u32,
    /// What the key of its opening was drawn with, if its payload is sealed.
    pub salt: Option<Salt>,
    /// Its table.
    pub pieces: Vec<Piece>,
}

/// Bytes of header and table for `pieces` entries.
#[must_use]
pub fn header_bytes(pieces: usize, sealed: bool) -> usize {
    HEADER_BYTES + pieces * entry_bytes(sealed)
}

fn entry_bytes(sealed: bool) -> usize {
    if sealed { SEALED_ENTRY_BYTES } else { ENTRY_BYTES }
}

impl RecordHeader {
    /// Writes header and table to the begin of `bytes`.
    ///
    /// # Panics
    /// If they do not fit, or the record is empty or has more pieces than a record may have.
    pub fn encode(&self, identity: &Identity, bytes: &mut [u8]) {
        assert!(!self.pieces.is_empty(), "a record has at least one piece");
        assert!(self.pieces.len() <= PIECES_PER_RECORD_MAX, "the table has its limit");
        let mut reserved = [0; 24];
        reserved[..16].copy_from_slice(&self.salt.unwrap_or_default());
        let version = if self.salt.is_some() { SEALED_VERSION } else { VERSION };
        let header = RecordV1 {
            magic: MAGIC,
            version: U32::new(version),
            header_crc: U32::ZERO,
            volume: identity.volume.0,
            journal: identity.journal.0,
            epoch: U64::new(self.epoch.0),
            record: U64::new(self.record.0),
            position: U64::new(self.position.0),
            first_write: U64::new(self.first_write.0),
            acked_through: U64::new(self.acked_through.0),
            flushed_through: U64::new(self.flushed_through.0),
            record_bytes: U32::new(self.record_bytes),
            piece_count: U32::new(u32::try_from(self.pieces.len()).expect("limited above")),
            reserved,
        };
        let sealed = self.salt.is_some();
        let bytes = &mut bytes[..header_bytes(self.pieces.len(), sealed)];
        let (head, table) = bytes.split_at_mut(HEADER_BYTES);
        head.copy_from_slice(header.as_bytes());
        for (slot, piece) in table.chunks_exact_mut(entry_bytes(sealed)).zip(&self.pieces) {
            let entry = PieceV1 {
                offset: U64::new(piece.offset),
                len: U64::new(piece.len),
                payload: U32::new(piece.payload),
                payload_crc: U32::new(piece.payload_crc),
                kind: piece.kind.code(),
                reserved: [0; 7],
            };
            slot[..ENTRY_BYTES].copy_from_slice(entry.as_bytes());
            if sealed {
                slot[ENTRY_BYTES..].copy_from_slice(&piece.tag);
            }
        }
        let crc = crc32c(&[&bytes[..CRC_OFFSET], &bytes[CRC_END..]]);
        bytes[CRC_OFFSET..CRC_END].copy_from_slice(&crc.to_le_bytes());
    }

    /// How many bytes header and table take, from the first block. Nothing is verified but the bounds.
    ///
    /// # Errors
    /// If this is no record of `identity` at `position`.
    pub fn peek_bytes(
        identity: &Identity,
        position: JournalPos,
        bytes: &[u8],
    ) -> Result<usize, DecodeError> {
        let header = Self::peek(bytes)?;
        header.check_identity(identity, position)?;
        let count = header.piece_count.get();
        match usize::try_from(count) {
            Ok(count @ 1..=PIECES_PER_RECORD_MAX) => Ok(header_bytes(count, header.is_sealed())),
            _ => Err(DecodeError::Field { field: "piece_count", value: u64::from(count) }),
        }
    }

    /// Reads and verifies header and table, which must say that they belong to `identity` at `position`.
    ///
    /// # Errors
    /// Whatever is wrong with the bytes.
    pub fn decode(
        identity: &Identity,
        position: JournalPos,
        bytes: &[u8],
    ) -> Result<Self, DecodeError> {
        let need = Self::peek_bytes(identity, position, bytes)?;
        let Some(bytes) = bytes.get(..need) else {
            return Err(DecodeError::Short { have: to_u64(bytes.len()), need: to_u64(need) });
        };
        let header = Self::peek(bytes)?;
        let computed = crc32c(&[&bytes[..CRC_OFFSET], &bytes[CRC_END..]]);
        // The fuzzer must get behind the checksum.
        if header.header_crc.get() != computed && !cfg!(fuzzing) {
            return Err(DecodeError::Checksum { stored: header.header_crc.get(), computed });
        }
        let sealed = header.is_sealed();
        if header.version.get() != VERSION && !sealed {
            let found = header.version.get();
            return Err(DecodeError::Version { found, known: SEALED_VERSION });
        }
        let (salt, reserved) = header.reserved.split_first_chunk::<16>().expect("24 bytes");
        require(reserved == [0; 8] && (sealed || *salt == [0; 16]), "reserved", 1)?;
        let record_bytes = u64::from(header.record_bytes.get());
        let sized = record_bytes >= to_u64(need) && record_bytes <= RECORD_BYTES_LIMIT;
        require(sized && record_bytes.is_multiple_of(BLOCK_BYTES), "record_bytes", record_bytes)?;
        let room = to_u64(need)..record_bytes;
        let table = bytes[HEADER_BYTES..].chunks_exact(entry_bytes(sealed));
        let mut pieces = Vec::with_capacity(table.len());
        for entry in table {
            pieces.push(PieceV1::decode_entry(entry, &room)?);
        }
        require(are_disjoint(&pieces), "payload", 0)?;
        let first_write = header.first_write.get();
        let numbered = first_write.checked_add(to_u64(pieces.len())).is_some();
        require(numbered, "first_write", first_write)?;
        Ok(Self {
            epoch: Epoch(header.epoch.get()),
            record: RecordSeq(header.record.get()),
            position,
            first_write: WriteNumber(first_write),
            acked_through: RecordSeq(header.acked_through.get()),
            flushed_through: RecordSeq(header.flushed_through.get()),
            record_bytes: header.record_bytes.get(),
            salt: sealed.then_some(*salt),
            pieces,
        })
    }

    fn peek(bytes: &[u8]) -> Result<&RecordV1, DecodeError> {
        let Ok((header, _rest)) = RecordV1::ref_from_prefix(bytes) else {
            return Err(DecodeError::Short {
                have: to_u64(bytes.len()),
                need: to_u64(HEADER_BYTES),
            });
        };
        if header.magic != MAGIC {
            return Err(DecodeError::Magic);
        }
        Ok(header)
    }

    /// Where the record after this one begins, in the same segment.
    #[must_use]
    pub fn end(&self) -> JournalPos {
        self.position.plus(u64::from(self.record_bytes))
    }

    /// Number of its last piece.
    #[must_use]
    pub fn last_write(&self) -> WriteNumber {
        self.first_write.plus(to_u64(self.pieces.len()) - 1)
    }
}

impl RecordV1 {
    fn is_sealed(&self) -> bool {
        self.version.get() == SEALED_VERSION
    }

    fn check_identity(&self, identity: &Identity, position: JournalPos) -> Result<(), DecodeError> {
        let field = if self.volume != identity.volume.0 {
            "volume"
        } else if self.journal != identity.journal.0 {
            "journal"
        } else if self.position.get() != position.0 {
            "position"
        } else {
            return Ok(());
        };
        Err(DecodeError::Identity { field })
    }
}

impl PieceV1 {
    /// An entry of version 1, or of version 2 if it is as long as one of those.
    fn decode_entry(entry: &[u8], room: &std::ops::Range<u64>) -> Result<Piece, DecodeError> {
        if let Ok(entry) = PieceV2::ref_from_bytes(entry) {
            let piece = Piece { tag: entry.tag, ..entry.piece.decode(room)? };
            let needless = piece.kind != PieceKind::Data && piece.tag != [0; TAG_BYTES];
            require(!needless, "tag", 1)?;
            return Ok(piece);
        }
        Self::ref_from_bytes(entry).expect("chunks of one of the two sizes").decode(room)
    }

    fn decode(&self, room: &std::ops::Range<u64>) -> Result<Piece, DecodeError> {
        let kind = PieceKind::of_code(self.kind)
            .ok_or(DecodeError::Field { field: "kind", value: u64::from(self.kind) })?;
        require(self.reserved == [0; 7], "piece reserved", 1)?;
        let (offset, len) = (self.offset.get(), self.len.get());
        require(len > 0 && offset.checked_add(len).is_some(), "len", len)?;
        let payload = u64::from(self.payload.get());
        if kind == PieceKind::Data {
            require(len <= PIECE_BYTES_MAX, "len", len)?;
            let inside = payload >= room.start && payload + len <= room.end;
            require(inside, "payload", payload)?;
        } else {
            require(payload == 0, "payload", payload)?;
            let crc = u64::from(self.payload_crc.get());
            require(crc == 0, "payload_crc", crc)?;
        }
        Ok(Piece {
            kind,
            offset,
            len,
            payload: self.payload.get(),
            payload_crc: self.payload_crc.get(),
            tag: [0; TAG_BYTES],
        })
    }
}

/// Whether no two payloads share a byte.
fn are_disjoint(pieces: &[Piece]) -> bool {
    let data = pieces.iter().filter(|piece| piece.kind == PieceKind::Data);
    let mut ranges: Vec<(u64, u64)> =
        data.map(|piece| (u64::from(piece.payload), piece.len)).collect();
    ranges.sort_unstable();
    ranges.windows(2).all(|pair| pair[0].0 + pair[0].1 <= pair[1].0)
}

fn require(holds: bool, field: &'static str, value: u64) -> Result<(), DecodeError> {
    if holds { Ok(()) } else { Err(DecodeError::Field { field, value }) }
}

/// Computes checksums of pieces; keeps the part of the computation that all pieces of a journal share.
#[derive(Clone, Copy, Debug)]
pub struct PieceChecksum {
    shared: Digest,
}

impl PieceChecksum {
    /// For pieces of one journal.
    #[must_use]
    pub fn new(identity: &Identity) -> Self {
        let mut shared = Digest::new(CrcAlgorithm::Crc32Iscsi);
        shared.update(&identity.volume.0);
        shared.update(&identity.journal.0);
        Self { shared }
    }

    /// CRC32C of volume, journal, record, offset, length and payload, the payload given in parts.
    #[must_use]
    pub fn of(&self, record: RecordSeq, offset: u64, payload: [&[u8]; 2]) -> u32 {
        let len = to_u64(payload[0].len() + payload[1].len());
        let mut place = [0; 24];
        place[..8].copy_from_slice(&record.0.to_le_bytes());
        place[8..16].copy_from_slice(&offset.to_le_bytes());
        place[16..].copy_from_slice(&len.to_le_bytes());
        let mut digest = self.shared;
        digest.update(&place);
        digest.update(payload[0]);
        if !payload[1].is_empty() {
            digest.update(payload[1]);
        }
        low_half(digest.finalize())
    }
}
