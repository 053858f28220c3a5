//! Reads every listed segment, several large reads at a time, and verifies what comes while more is on its way.
//!
//! The scan judges nothing: it reports every record whose header is whole and in its place, which of its payloads are
//! not, and which blocks could not be read at all. After something that is no record it goes on at the next block, so
//! that records behind a damaged one are found.

use std::collections::VecDeque;

use futures_util::stream::{FuturesOrdered, StreamExt};
use weir_device::AlignedBuf;
use weir_disk::{DiskError, File};

use crate::format::record::{PieceChecksum, PieceKind, RecordHeader, header_bytes};
use crate::format::{to_u64, to_usize};
use crate::ids::{Identity, JournalPos};
use crate::limits::{
    BLOCK_BYTES, BLOCK_LEN, PIECES_PER_RECORD_MAX, SCAN_CHUNK_BYTES, SCAN_READS_IN_FLIGHT,
};

/// A record whose header is whole.
#[derive(Clone, Debug)]
pub(crate) struct Found {
    pub(crate) header: RecordHeader,
    /// Pieces (by index) whose payload does not match its checksum.
    pub(crate) bad_pieces: Vec<usize>,
}

/// All that the scan saw, in the order of positions.
#[derive(Debug, Default)]
pub(crate) struct Scan {
    pub(crate) found: Vec<Found>,
    /// Blocks that the disk could not read.
    pub(crate) unreadable: Vec<JournalPos>,
    pub(crate) bytes_read: u64,
}

/// A listed segment, or the part of it that can hold records.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Stretch {
    pub(crate) position: JournalPos,
    pub(crate) file_offset: u64,
    pub(crate) bytes: u64,
}

/// One read.
#[derive(Debug)]
struct Chunk {
    position: JournalPos,
    bytes: AlignedBuf,
    unreadable: Vec<JournalPos>,
}

/// Reads and verifies `stretches`.
pub(crate) async fn scan(
    file: &File,
    identity: &Identity,
    sealed: bool,
    stretches: &[Stretch],
) -> Result<Scan, DiskError> {
    let chunks: Vec<Stretch> = stretches.iter().flat_map(chunks_of).collect();
    let mut reads = FuturesOrdered::new();
    let mut next_chunk = 0;
    let mut spare: Vec<AlignedBuf> = Vec::new();
    let mut parser = Parser::new(identity, sealed);
    let mut scan = Scan::default();
    for stretch in stretches {
        parser.enter(stretch);
        for _ in 0..chunks_of(stretch).count() {
            while reads.len() < SCAN_READS_IN_FLIGHT && next_chunk < chunks.len() {
                let chunk = chunks[next_chunk];
                next_chunk += 1;
                let buf = match spare.pop() {
                    Some(mut buf) if buf.capacity() >= to_usize(chunk.bytes) => {
                        buf.set_len(to_usize(chunk.bytes));
                        buf
                    }
                    _ => AlignedBuf::zeroed(to_usize(chunk.bytes)),
                };
                reads.push_back(read_chunk(file, chunk, buf));
            }
            let chunk = reads.next().await.expect("one read per chunk of the stretches")?;
            scan.bytes_read += to_u64(chunk.bytes.len());
            scan.unreadable.extend_from_slice(&chunk.unreadable);
            parser.take(chunk);
            parser.parse(&mut scan.found);
            spare.extend(parser.give_back());
        }
        parser.leave(&mut scan.found);
        spare.extend(parser.give_back());
    }
    Ok(scan)
}

fn chunks_of(stretch: &Stretch) -> impl Iterator<Item = Stretch> + use<> {
    let stretch = *stretch;
    let count = stretch.bytes.div_ceil(SCAN_CHUNK_BYTES);
    (0..count).map(move |index| {
        let begin = index * SCAN_CHUNK_BYTES;
        Stretch {
            position: stretch.position.plus(begin),
            file_offset: stretch.file_offset + begin,
            bytes: SCAN_CHUNK_BYTES.min(stretch.bytes - begin),
        }
    })
}

async fn read_chunk(file: &File, chunk: Stretch, buf: AlignedBuf) -> Result<Chunk, DiskError> {
    let (bytes, result) = file.read_at(buf, chunk.file_offset).await;
    let position = chunk.position;
    match result {
        Ok(()) => Ok(Chunk { position, bytes, unreadable: Vec::new() }),
        Err(DiskError::Io { .. } | DiskError::Short { .. }) => {
            read_blocks(file, chunk, bytes).await
        }
        Err(error) => Err(error),
    }
}

/// Reads block by block what could not be read at once; what still fails counts as zeroes.
async fn read_blocks(file: &File, chunk: Stretch, mut buf: AlignedBuf) -> Result<Chunk, DiskError> {
    let mut unreadable = Vec::new();
    let mut block = AlignedBuf::zeroed(BLOCK_LEN);
    for (index, target) in buf.chunks_exact_mut(BLOCK_LEN).enumerate() {
        let begin = to_u64(index) * BLOCK_BYTES;
        let (bytes, result) = file.read_at(block, chunk.file_offset + begin).await;
        block = bytes;
        match result {
            Ok(()) => target.copy_from_slice(&block),
            Err(DiskError::Io { .. } | DiskError::Short { .. }) => {
                target.fill(0);
                unreadable.push(chunk.position.plus(begin));
            }
            Err(error) => return Err(error),
        }
    }
    Ok(Chunk { position: chunk.position, bytes: buf, unreadable })
}

/// Finds records in chunks as they come.
struct Parser<'a> {
    identity: &'a Identity,
    /// Records of the other kind are none of this journal: anybody could have put them there.
    sealed: bool,
    checksum: PieceChecksum,
    /// Chunks that are not wholly behind `at`.
    window: VecDeque<Chunk>,
    done: Vec<AlignedBuf>,
    at: JournalPos,
    end: JournalPos,
    /// End of what has come.
    have: JournalPos,
}

/// What is at the parser's position.
enum Outcome {
    Record(Found),
    NoRecord,
    /// It cannot be told before more has come.
    More,
}

impl<'a> Parser<'a> {
    fn new(identity: &'a Identity, sealed: bool) -> Self {
        Self {
            identity,
            sealed,
            checksum: PieceChecksum::new(identity),
            window: VecDeque::new(),
            done: Vec::new(),
            at: JournalPos(0),
            end: JournalPos(0),
            have: JournalPos(0),
        }
    }

    fn enter(&mut self, stretch: &Stretch) {
        self.at = stretch.position;
        self.have = stretch.position;
        self.end = stretch.position.plus(stretch.bytes);
    }

    fn take(&mut self, chunk: Chunk) {
        self.have = chunk.position.plus(to_u64(chunk.bytes.len()));
        self.window.push_back(chunk);
    }

    fn give_back(&mut self) -> Vec<AlignedBuf> {
        std::mem::take(&mut self.done)
    }

    fn parse(&mut self, found: &mut Vec<Found>) {
        while self.at.plus(BLOCK_BYTES) <= self.have {
            match self.look() {
                Outcome::Record(record) => {
                    self.at = record.header.end();
                    found.push(record);
                }
                Outcome::NoRecord => self.at = self.at.plus(BLOCK_BYTES),
                Outcome::More => break,
            }
        }
        self.retire();
    }

    /// The stretch is over: nothing more will come of it.
    fn leave(&mut self, found: &mut Vec<Found>) {
        self.parse(found);
        assert!(self.at == self.end, "a stretch is parsed to its end");
        self.retire();
    }

    fn retire(&mut self) {
        while let Some(chunk) = self.window.front() {
            if chunk.position.plus(to_u64(chunk.bytes.len())) > self.at {
                break;
            }
            self.done.extend(self.window.pop_front().map(|chunk| chunk.bytes));
        }
    }

    /// `len` bytes from `position`, in two parts where a chunk ends between.
    fn bytes(&self, position: JournalPos, len: usize) -> [&[u8]; 2] {
        let mut parts: [&[u8]; 2] = [&[], &[]];
        let (mut position, mut rest) = (position, len);
        let mut filled = 0;
        for chunk in &self.window {
            let chunk_end = chunk.position.plus(to_u64(chunk.bytes.len()));
            if rest == 0 || position >= chunk_end {
                continue;
            }
            let begin = to_usize(position.0 - chunk.position.0);
            let take = rest.min(chunk.bytes.len() - begin);
            parts[filled] = &chunk.bytes[begin..begin + take];
            filled += 1;
            position = position.plus(to_u64(take));
            rest -= take;
        }
        assert!(rest == 0, "only what has come is looked at");
        parts
    }

    fn look(&self) -> Outcome {
        let first = self.bytes(self.at, BLOCK_LEN);
        let Ok(need) = RecordHeader::peek_bytes(self.identity, self.at, first[0]) else {
            return Outcome::NoRecord;
        };
        assert!(need <= header_bytes(PIECES_PER_RECORD_MAX, true), "the decoder bounds the table");
        if self.at.plus(to_u64(need)) > self.end {
            return Outcome::NoRecord;
        }
        if self.at.plus(to_u64(need)) > self.have {
            return Outcome::More;
        }
        let parts = self.bytes(self.at, need);
        let joined;
        let bytes = if parts[1].is_empty() {
            parts[0]
        } else {
            joined = parts.concat();
            &joined
        };
        let Ok(header) = RecordHeader::decode(self.identity, self.at, bytes) else {
            return Outcome::NoRecord;
        };
        if header.salt.is_some() != self.sealed || header.end() > self.end {
            return Outcome::NoRecord;
        }
        if header.end() > self.have {
            return Outcome::More;
        }
        let bad_pieces = self.verify(&header);
        Outcome::Record(Found { header, bad_pieces })
    }

    fn verify(&self, header: &RecordHeader) -> Vec<usize> {
        let mut bad = Vec::new();
        for (index, piece) in header.pieces.iter().enumerate() {
            if piece.kind != PieceKind::Data {
                continue;
            }
            let at = self.at.plus(u64::from(piece.payload));
            let payload = self.bytes(at, to_usize(piece.len));
            if self.checksum.of(header.record, piece.offset, payload) != piece.payload_crc {
                bad.push(index);
            }
        }
        bad
    }
}
