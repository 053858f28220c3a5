//! The root of a checkpoint and its index pages. Page: `docs/formats/checkpoint.md`.
//!
//! A root names index pages, an index page names pieces (of the map, or of the object table), and a piece is a run
//! of payload bytes in some checkpoint object. Only what changed is written again.

use weir_device::VolumeId;
use weir_journal::{Epoch, WriteNumber};

use crate::format::{DecodeError, Reader};
use crate::ids::{ObjectId, ObjectSeq, WriteMark};

const ROOT: &str = "checkpoint root";
const PAGE: &str = "checkpoint index page";
const TABLE: &str = "object table piece";
const ROOT_MAGIC: [u8; 4] = *b"WCKR";
const PAGE_MAGIC: [u8; 4] = *b"WCKP";
const TABLE_MAGIC: [u8; 4] = *b"WCKT";
const VERSION: u32 = 1;
const REF_BYTES: usize = 32;

/// A run of payload bytes in a checkpoint object of the volume's own stream.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct PieceRef {
    /// Number of the piece, or of the index page.
    pub number: u64,
    /// Sequence of the object.
    pub seq: ObjectSeq,
    /// Epoch of the object.
    pub epoch: Epoch,
    /// First payload byte.
    pub offset: u32,
    /// Payload bytes.
    pub len: u32,
}

/// The root: everything needed to load the map as of one sequence.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CheckpointRoot {
    /// The map is as of this sequence.
    pub as_of: ObjectSeq,
    /// Last write that the objects up to `as_of` hold.
    pub committed: WriteMark,
    /// Size of the volume in bytes.
    pub volume_size: u64,
    /// Entries of the object table.
    pub table_entries: u64,
    /// Index pages of the map's pieces.
    pub map_pages: Vec<PieceRef>,
    /// Index pages of the object table's pieces.
    pub table_pages: Vec<PieceRef>,
}

/// One object that the map can name, by its place in the object table.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TableRecord {
    /// What names it.
    pub id: ObjectId,
    /// Bytes of payload.
    pub payload_len: u32,
}

impl TableRecord {
    /// An entry whose object is gone, and that the next object may take.
    pub const FREE: Self = Self {
        id: ObjectId { stream: VolumeId([0; 16]), seq: ObjectSeq(0), epoch: Epoch(0) },
        payload_len: 0,
    };

    /// Whether no object has this entry: no object has sequence 0.
    #[must_use]
    pub fn is_free(&self) -> bool {
        self.id.seq == ObjectSeq(0)
    }
}

fn put_refs(out: &mut Vec<u8>, refs: &[PieceRef]) {
    out.extend_from_slice(&u32::try_from(refs.len()).expect("few pages").to_le_bytes());
    for piece in refs {
        out.extend_from_slice(&piece.number.to_le_bytes());
        out.extend_from_slice(&piece.seq.0.to_le_bytes());
        out.extend_from_slice(&piece.epoch.0.to_le_bytes());
        out.extend_from_slice(&piece.offset.to_le_bytes());
        out.extend_from_slice(&piece.len.to_le_bytes());
    }
}

fn read_refs(reader: &mut Reader<'_>) -> Result<Vec<PieceRef>, DecodeError> {
    let count = reader.count("piece count", REF_BYTES)?;
    let mut refs: Vec<PieceRef> = Vec::with_capacity(count);
    for _ in 0..count {
        let piece = PieceRef {
            number: reader.u64()?,
            seq: ObjectSeq(reader.u64()?),
            epoch: Epoch(reader.u64()?),
            offset: reader.u32()?,
            len: reader.u32()?,
        };
        if refs.last().is_some_and(|last| last.number >= piece.number) {
            return Err(reader.field("piece number", piece.number));
        }
        refs.push(piece);
    }
    Ok(refs)
}

fn check_magic(
    reader: &mut Reader<'_>,
    what: &'static str,
    magic: [u8; 4],
) -> Result<(), DecodeError> {
    if reader.array::<4>()? != magic {
        return Err(DecodeError::Magic { what });
    }
    let found = reader.u32()?;
    if found != VERSION {
        return Err(DecodeError::Version { what, found, known: VERSION });
    }
    Ok(())
}

impl CheckpointRoot {
    /// Encodes the root. Checksums are those of the frames that hold it.
    #[must_use]
    pub fn encode(&self) -> Vec<u8> {
        let mut out = Vec::new();
        out.extend_from_slice(&ROOT_MAGIC);
        out.extend_from_slice(&VERSION.to_le_bytes());
        out.extend_from_slice(&self.as_of.0.to_le_bytes());
        out.extend_from_slice(&self.committed.epoch.0.to_le_bytes());
        out.extend_from_slice(&self.committed.write.0.to_le_bytes());
        out.extend_from_slice(&self.volume_size.to_le_bytes());
        out.extend_from_slice(&self.table_entries.to_le_bytes());
        put_refs(&mut out, &self.map_pages);
        put_refs(&mut out, &self.table_pages);
        out
    }

    /// Decodes a root.
    ///
    /// # Errors
    /// Where it is cut short, of an unknown version or beyond its bounds.
    pub fn decode(bytes: &[u8]) -> Result<Self, DecodeError> {
        let mut reader = Reader::new(ROOT, bytes);
        check_magic(&mut reader, ROOT, ROOT_MAGIC)?;
        let root = Self {
            as_of: ObjectSeq(reader.u64()?),
            committed: WriteMark { epoch: Epoch(reader.u64()?), write: WriteNumber(reader.u64()?) },
            volume_size: reader.u64()?,
            table_entries: reader.u64()?,
            map_pages: read_refs(&mut reader)?,
            table_pages: read_refs(&mut reader)?,
        };
        if reader.remaining() != 0 {
            return Err(reader.field("trailing bytes", reader.remaining() as u64));
        }
        Ok(root)
    }
}

/// Encodes an index page.
#[must_use]
pub fn encode_page(pieces: &[PieceRef]) -> Vec<u8> {
    let mut out = Vec::new();
    out.extend_from_slice(&PAGE_MAGIC);
    out.extend_from_slice(&VERSION.to_le_bytes());
    put_refs(&mut out, pieces);
    out
}

/// Decodes an index page.
///
/// # Errors
/// Where it is cut short, of an unknown version or beyond its bounds.
pub fn decode_page(bytes: &[u8]) -> Result<Vec<PieceRef>, DecodeError> {
    let mut reader = Reader::new(PAGE, bytes);
    check_magic(&mut reader, PAGE, PAGE_MAGIC)?;
    let refs = read_refs(&mut reader)?;
    if reader.remaining() != 0 {
        return Err(reader.field("trailing bytes", reader.remaining() as u64));
    }
    Ok(refs)
}

/// Encodes a piece of the object table.
#[must_use]
pub fn encode_table(records: &[TableRecord]) -> Vec<u8> {
    let mut streams: Vec<VolumeId> = records.iter().map(|r| r.id.stream).collect();
    streams.sort_unstable();
    streams.dedup();
    let mut out = Vec::new();
    out.extend_from_slice(&TABLE_MAGIC);
    out.extend_from_slice(&VERSION.to_le_bytes());
    out.extend_from_slice(&u32::try_from(streams.len()).expect("few streams").to_le_bytes());
    for stream in &streams {
        out.extend_from_slice(&stream.0);
    }
    out.extend_from_slice(&u32::try_from(records.len()).expect("one piece").to_le_bytes());
    for record in records {
        let stream = streams.binary_search(&record.id.stream).expect("collected above");
        out.extend_from_slice(&u32::try_from(stream).expect("few streams").to_le_bytes());
        out.extend_from_slice(&record.payload_len.to_le_bytes());
        out.extend_from_slice(&record.id.seq.0.to_le_bytes());
        out.extend_from_slice(&record.id.epoch.0.to_le_bytes());
    }
    out
}

/// Decodes a piece of the object table.
///
/// # Errors
/// Where it is cut short, of an unknown version or beyond its bounds.
pub fn decode_table(bytes: &[u8]) -> Result<Vec<TableRecord>, DecodeError> {
    let mut reader = Reader::new(TABLE, bytes);
    check_magic(&mut reader, TABLE, TABLE_MAGIC)?;
    let stream_count = reader.count("stream count", 16)?;
    let mut streams = Vec::with_capacity(stream_count);
    for _ in 0..stream_count {
        streams.push(VolumeId(reader.array()?));
    }
    let count = reader.count("record count", 24)?;
    let mut records = Vec::with_capacity(count);
    for _ in 0..count {
        let index = reader.u32()?;
        let Some(stream) = streams.get(index as usize) else {
            return Err(reader.field("stream", index.into()));
        };
        let payload_len = reader.u32()?;
        let (seq, epoch) = (ObjectSeq(reader.u64()?), Epoch(reader.u64()?));
        records.push(TableRecord { id: ObjectId { stream: *stream, seq, epoch }, payload_len });
    }
    if reader.remaining() != 0 {
        return Err(reader.field("trailing bytes", reader.remaining() as u64));
    }
    Ok(records)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn piece(number: u64) -> PieceRef {
        PieceRef { number, seq: ObjectSeq(5), epoch: Epoch(2), offset: 10, len: 20 }
    }

    #[test]
    fn roots_pages_and_tables_read_back_and_refuse_every_truncation() {
        let root = CheckpointRoot {
            as_of: ObjectSeq(4),
            committed: WriteMark { epoch: Epoch(2), write: WriteNumber(77) },
            volume_size: 1 << 40,
            table_entries: 3,
            map_pages: vec![piece(0), piece(7)],
            table_pages: vec![piece(0)],
        };
        let bytes = root.encode();
        assert_eq!(CheckpointRoot::decode(&bytes).unwrap(), root);
        assert!((0..bytes.len()).all(|n| CheckpointRoot::decode(&bytes[..n]).is_err()));

        let page = encode_page(&[piece(1), piece(2)]);
        assert_eq!(decode_page(&page).unwrap(), [piece(1), piece(2)]);
        assert!((0..page.len()).all(|n| decode_page(&page[..n]).is_err()));
        assert!(decode_page(&encode_page(&[piece(2), piece(1)])).is_err());

        let id = |seq| ObjectId { stream: VolumeId([3; 16]), seq: ObjectSeq(seq), epoch: Epoch(1) };
        let records =
            [TableRecord { id: id(1), payload_len: 5 }, TableRecord { id: id(2), payload_len: 6 }];
        let table = encode_table(&records);
        assert_eq!(decode_table(&table).unwrap(), records);
        assert!((0..table.len()).all(|n| decode_table(&table[..n]).is_err()));
    }
}
