//! What a byte of a journal on a simulated disk means for the volume.

use weir_device::VolumeId;
use weir_disk::sim::SimDisk;
use weir_journal::format::record::{Piece, RecordHeader, header_bytes};
use weir_journal::limits::{BLOCK_BYTES, DATA_START};
use weir_journal::{Identity, JournalId, JournalPos};

/// Where a record's header says whose it is, and where it is in the journal.
const VOLUME_AT: usize = 16;
const JOURNAL_AT: usize = 32;
const POSITION_AT: usize = 64;

/// Bytes of the volume that cannot be read once a byte of the journal is wrong.
#[derive(Debug, Default)]
pub(crate) struct Reach {
    /// From and to.
    pub(crate) ranges: Vec<(u64, u64)>,
    /// The byte is in the header of a record.
    pub(crate) header: bool,
}

/// What the byte at `offset` of the journal at `path` reaches, now: nothing, where no record covers it.
pub(crate) fn reach(disk: &SimDisk, path: &str, offset: u64, segment_bytes: u64) -> Reach {
    let Some(within) = offset.checked_sub(DATA_START) else { return Reach::default() };
    let segment = DATA_START + within / segment_bytes * segment_bytes;
    let mut bytes = vec![0; index(segment_bytes)];
    disk.peek(path, segment, &mut bytes);
    let mut block = (offset - segment) / BLOCK_BYTES;
    loop {
        let start = block * BLOCK_BYTES;
        if let Some(header) = header_at(&bytes[index(start)..]) {
            // A whole record that ends before it was written over whatever was there.
            let place = offset - segment - start;
            return if place < u64::from(header.record_bytes) {
                reach_in(&header, place)
            } else {
                Reach::default()
            };
        }
        match block.checked_sub(1) {
            Some(before) => block = before,
            None => return Reach::default(),
        }
    }
}

fn index(n: u64) -> usize {
    usize::try_from(n).expect("small")
}

/// A record's header, whosever it is.
fn header_at(bytes: &[u8]) -> Option<RecordHeader> {
    let volume = VolumeId(bytes.get(VOLUME_AT..)?.first_chunk().copied()?);
    let journal = JournalId(bytes.get(JOURNAL_AT..)?.first_chunk().copied()?);
    let position = u64::from_le_bytes(bytes.get(POSITION_AT..)?.first_chunk().copied()?);
    RecordHeader::decode(&Identity { volume, journal }, JournalPos(position), bytes).ok()
}

fn reach_in(header: &RecordHeader, place: u64) -> Reach {
    let sealed = header.salt.is_some();
    let in_header = place < header_bytes(header.pieces.len(), sealed) as u64;
    let payload = |piece: &&Piece| {
        let payload = u64::from(piece.payload)..u64::from(piece.payload) + piece.len;
        piece.payload > 0 && payload.contains(&place)
    };
    let pieces = header.pieces.iter().filter(|piece| in_header || payload(piece));
    let ranges = pieces.map(|piece| (piece.offset, piece.offset + piece.len)).collect();
    Reach { ranges, header: in_header }
}
