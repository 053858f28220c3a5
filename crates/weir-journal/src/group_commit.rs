//! Group commit: what arrived while the last record was being written becomes one record.
//!
//! Two pure steps. [`Queue::gather`] takes waiting operations from the front until the record or its segment is full;
//! [`build`] numbers, checksums and lays out the record. Payloads in suitable memory are written from where they are;
//! the rest is copied behind the header. Copied payloads come first in the record, so that everything that is not
//! copied stays aligned.

use std::collections::VecDeque;

use weir_device::{AlignedBuf, BufferPool, SharedBuf};

use crate::format::record::{Piece, PieceChecksum, PieceKind, RecordHeader, header_bytes};
use crate::format::{to_u64, to_usize};
use crate::ids::{Epoch, Identity, JournalPos, RecordSeq, WriteNumber};
use crate::limits::{
    BLOCK_BYTES, BLOCK_LEN, MEMORY_FACTOR_MAX, PIECES_PER_RECORD_MAX, RECORDS_IN_FLIGHT_MAX,
};
use crate::pieces::{PieceEntry, Resident};
use crate::seal::{PiecePlace, PieceSeal, Sealer};

/// What an append does to its range of the volume.
#[derive(Clone, Debug)]
pub enum Payload {
    /// Writes bytes.
    Data(SharedBuf),
    /// Makes it read as zeroes and keeps it provisioned.
    Zero,
    /// Gives it up; it reads as zeroes.
    Discard,
    /// Its bytes are lost: it reads as an error until it is written again.
    Poison,
}

impl Payload {
    pub(crate) fn kind(&self) -> PieceKind {
        match self {
            Self::Data(_) => PieceKind::Data,
            Self::Zero => PieceKind::Zero,
            Self::Discard => PieceKind::Discard,
            Self::Poison => PieceKind::Poison,
        }
    }
}

/// A piece that is on disk, as the volume learns of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PlacedPiece {
    /// The opening that wrote it.
    pub epoch: Epoch,
    /// Its record.
    pub record: RecordSeq,
    /// Its number.
    pub write: WriteNumber,
    /// First byte on the volume.
    pub offset: u64,
    /// Bytes on the volume.
    pub len: u64,
    /// What it does.
    pub kind: PieceKind,
    /// Where its payload is; where its record is, if it has none.
    pub position: JournalPos,
}

/// An append that is not wholly in a record yet.
#[derive(Debug)]
struct Waiting {
    offset: u64,
    payload: Payload,
    len: u64,
    /// Bytes that are in a record already.
    done: u64,
}

/// Appends that wait for a record, in order.
#[derive(Debug, Default)]
pub(crate) struct Queue {
    waiting: VecDeque<Waiting>,
    bytes: u64,
}

/// How pieces are cut and laid out.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Shape {
    /// What memory of an uncopied payload must be aligned to.
    pub(crate) alignment: usize,
    pub(crate) piece_bytes_max: u64,
    pub(crate) record_bytes_max: u64,
    /// Whether tables have room for tags.
    pub(crate) sealed: bool,
}

/// A piece on its way into a record.
#[derive(Debug)]
struct Cut {
    kind: PieceKind,
    offset: u64,
    len: u64,
    /// Empty unless it is data.
    bytes: SharedBuf,
    /// Memory that `bytes` keeps alive, shared fairly among the pieces of its append.
    memory_bytes: usize,
    copied: bool,
}

/// Sum of what goes into a record.
#[derive(Clone, Copy, Debug, Default)]
struct Totals {
    sealed: bool,
    pieces: usize,
    copied_bytes: usize,
    direct_bytes: usize,
}

impl Totals {
    fn head_len(&self) -> usize {
        (header_bytes(self.pieces, self.sealed) + self.copied_bytes).next_multiple_of(BLOCK_LEN)
    }

    fn record_len(&self) -> usize {
        self.head_len() + self.direct_bytes
    }

    fn plus(mut self, cut: &Cut) -> Self {
        self.pieces += 1;
        if cut.copied {
            self.copied_bytes += cut.bytes.len();
        } else {
            self.direct_bytes += cut.bytes.len();
        }
        self
    }
}

/// What one record will hold.
#[derive(Debug, Default)]
pub(crate) struct Gathered {
    cuts: Vec<Cut>,
    totals: Totals,
    /// Appends whose last piece is in this record.
    pub(crate) appends_ended: u64,
}

impl Gathered {
    pub(crate) fn record_bytes(&self) -> u64 {
        to_u64(self.totals.record_len())
    }

    pub(crate) fn pieces(&self) -> usize {
        self.cuts.len()
    }
}

impl Queue {
    pub(crate) fn push(&mut self, offset: u64, payload: Payload, len: u64) {
        if let Payload::Data(bytes) = &payload {
            assert!(to_u64(bytes.len()) == len, "a payload is as long as its range");
            self.bytes += len;
        }
        self.waiting.push_back(Waiting { offset, payload, len, done: 0 });
    }

    /// Payload bytes that wait.
    pub(crate) fn bytes(&self) -> u64 {
        self.bytes
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.waiting.is_empty()
    }

    pub(crate) fn clear(&mut self) {
        self.waiting.clear();
        self.bytes = 0;
    }

    /// Takes from the front what fits a record of at most `room` bytes; `None` if not even one piece does, or if the
    /// first append is to begin in a segment that has more room.
    ///
    /// An append is split only where it is larger than a record.
    pub(crate) fn gather(
        &mut self,
        shape: &Shape,
        room: u64,
        spare: &mut Spare,
    ) -> Option<Gathered> {
        let mut limit = to_usize(room.min(shape.record_bytes_max));
        if weir_device::mutant("writes_split_early") {
            limit = limit.min(64 << 10);
        }
        let totals = Totals { sealed: shape.sealed, ..Totals::default() };
        let cuts = std::mem::take(&mut spare.cuts);
        let mut gathered = Gathered { cuts, totals, ..Gathered::default() };
        while let Some(waiting) = self.waiting.front_mut() {
            let before = (gathered.cuts.len(), gathered.totals);
            let done_before = waiting.done;
            while waiting.done < waiting.len {
                let cut = waiting.cut(shape);
                let totals = gathered.totals.plus(&cut);
                if totals.pieces > PIECES_PER_RECORD_MAX || totals.record_len() > limit {
                    break;
                }
                waiting.done += cut.len;
                gathered.totals = totals;
                gathered.cuts.push(cut);
            }
            if waiting.done < waiting.len {
                let may_split = done_before > 0
                    || room >= shape.record_bytes_max
                    || weir_device::mutant("split_at_segment_end");
                if before.0 > 0 || !may_split {
                    // It waits, whole, for the next record.
                    waiting.done = done_before;
                    gathered.cuts.truncate(before.0);
                    gathered.totals = before.1;
                } else if matches!(waiting.payload, Payload::Data(_)) {
                    self.bytes -= waiting.done - done_before;
                }
                break;
            }
            if matches!(waiting.payload, Payload::Data(_)) {
                self.bytes -= waiting.done - done_before;
            }
            gathered.appends_ended += 1;
            self.waiting.pop_front();
        }
        (!gathered.cuts.is_empty()).then_some(gathered)
    }
}

impl Waiting {
    /// The next piece of this append.
    fn cut(&self, shape: &Shape) -> Cut {
        let offset = self.offset + self.done;
        let rest = self.len - self.done;
        let Payload::Data(bytes) = &self.payload else {
            let bytes = SharedBuf::default();
            let kind = self.payload.kind();
            return Cut { kind, offset, len: rest, bytes, memory_bytes: 0, copied: true };
        };
        let len = rest.min(shape.piece_bytes_max);
        let bytes_of_piece = bytes.slice(to_usize(self.done), to_usize(len));
        let keeps_little = bytes.memory_bytes() / MEMORY_FACTOR_MAX <= bytes.len();
        let direct = len.is_multiple_of(BLOCK_BYTES)
            && bytes_of_piece.is_aligned_to(shape.alignment)
            && keeps_little;
        Cut {
            kind: PieceKind::Data,
            offset,
            len,
            memory_bytes: share(bytes.memory_bytes(), bytes_of_piece.len(), bytes.len()),
            bytes: bytes_of_piece,
            copied: !direct,
        }
    }
}

/// Where a record stands, and what it tells recovery.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Place {
    pub(crate) epoch: Epoch,
    pub(crate) record: RecordSeq,
    pub(crate) position: JournalPos,
    /// Begin of its segment.
    pub(crate) segment_start: JournalPos,
    pub(crate) first_write: WriteNumber,
    pub(crate) acked_through: RecordSeq,
    pub(crate) flushed_through: RecordSeq,
}

/// Lists of records that are done with, kept for their memory: a steady state allocates nothing.
#[derive(Debug, Default)]
pub(crate) struct Spare {
    cuts: Vec<Cut>,
    pieces: Vec<Piece>,
    buffers: Vec<Vec<SharedBuf>>,
    placed: Vec<Vec<PlacedPiece>>,
    payloads: Vec<Vec<(PieceEntry, Option<PieceSeal>, Resident)>>,
}

impl Spare {
    /// Takes back the buffers of a record that was written.
    pub(crate) fn keep_buffers(&mut self, buffers: Vec<SharedBuf>) {
        keep(&mut self.buffers, buffers);
    }

    /// Takes back the lists of a record that was acknowledged.
    pub(crate) fn keep_lists(
        &mut self,
        placed: Vec<PlacedPiece>,
        payloads: Vec<(PieceEntry, Option<PieceSeal>, Resident)>,
    ) {
        keep(&mut self.placed, placed);
        keep(&mut self.payloads, payloads);
    }
}

fn keep<T>(lists: &mut Vec<Vec<T>>, mut list: Vec<T>) {
    if lists.len() < RECORDS_IN_FLIGHT_MAX {
        list.clear();
        lists.push(list);
    }
}

/// A record ready to be written.
#[derive(Debug)]
pub(crate) struct Built {
    /// Its bytes, in order: the header's buffer, then the payloads that are written from where they are, or sealed
    /// copies of them.
    pub(crate) buffers: Vec<SharedBuf>,
    /// Its pieces, in the order of their numbers.
    pub(crate) placed: Vec<PlacedPiece>,
    /// Its payloads, in the order of their positions.
    pub(crate) payloads: Vec<(PieceEntry, Option<PieceSeal>, Resident)>,
}

/// What the records of an opening have in common.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Builder<'a> {
    pub(crate) identity: &'a Identity,
    pub(crate) checksum: &'a PieceChecksum,
    /// None where the volume is not encrypted.
    pub(crate) sealer: Option<&'a Sealer>,
}

/// Who seals a piece, its index, and its place.
type Seal<'a> = (&'a Sealer, u32, PiecePlace);

/// Memory that a record is put together in.
struct Memory {
    /// Header, table, copied payloads.
    head: AlignedBuf,
    /// Where it is sealed: copies of the payloads that would be written from where they are.
    body: Option<AlignedBuf>,
    /// Where it is sealed: copied payloads as they were, for reads.
    kept: Option<AlignedBuf>,
}

impl Memory {
    fn new(totals: &Totals, pool: &BufferPool) -> Self {
        let sealed = |bytes| (totals.sealed && bytes > 0).then(|| pool.alloc(bytes));
        Self {
            head: pool.alloc(totals.head_len()),
            body: sealed(totals.direct_bytes),
            kept: sealed(totals.copied_bytes),
        }
    }

    /// Puts a payload behind the table, which ends at `table_end`; what is stored of it.
    fn copy(
        &mut self,
        begin: usize,
        table_end: usize,
        bytes: &[u8],
        seal: Option<Seal<'_>>,
    ) -> (&[u8], Option<PieceSeal>) {
        let stored = &mut self.head[begin..begin + bytes.len()];
        stored.copy_from_slice(bytes);
        if let Some(kept) = &mut self.kept {
            kept[begin - table_end..][..bytes.len()].copy_from_slice(bytes);
        }
        let seal = seal.map(|(sealer, index, place)| sealer.seal(index, &place, stored));
        (stored, seal)
    }

    /// What is stored of a payload behind the head: itself, or a sealed copy at `begin` there.
    fn direct<'a>(
        &'a mut self,
        begin: usize,
        bytes: &'a [u8],
        seal: Option<Seal<'_>>,
    ) -> (&'a [u8], Option<PieceSeal>) {
        let (Some(body), Some((sealer, index, place))) = (&mut self.body, seal) else {
            return (bytes, None);
        };
        let stored = &mut body[begin..begin + bytes.len()];
        stored.copy_from_slice(bytes);
        let seal = sealer.seal(index, &place, stored);
        (stored, Some(seal))
    }
}

/// Lays a record out.
pub(crate) fn build(
    gathered: Gathered,
    builder: &Builder<'_>,
    place: &Place,
    pool: &BufferPool,
    spare: &mut Spare,
) -> Built {
    let totals = gathered.totals;
    assert!(totals.sealed == builder.sealer.is_some(), "a journal is sealed, or it is not");
    let mut memory = Memory::new(&totals, pool);
    let mut pieces = std::mem::take(&mut spare.pieces);
    let mut placed = spare.placed.pop().unwrap_or_default();
    let mut seals = Vec::new();
    let copied_end = lay_out(&gathered, builder, place, &mut memory, (&mut pieces, &mut seals));
    for (write, (cut, piece)) in (place.first_write.0..).zip(gathered.cuts.iter().zip(&pieces)) {
        placed.push(PlacedPiece {
            epoch: place.epoch,
            record: place.record,
            write: WriteNumber(write),
            offset: cut.offset,
            len: cut.len,
            kind: cut.kind,
            position: place.position.plus(u64::from(piece.payload)),
        });
    }
    // The memory may hold bytes of an earlier record.
    memory.head[copied_end..].fill(0);
    let header = RecordHeader {
        epoch: place.epoch,
        record: place.record,
        position: place.position,
        first_write: place.first_write,
        acked_through: place.acked_through,
        flushed_through: place.flushed_through,
        record_bytes: to_u32(to_u64(totals.record_len())),
        salt: builder.sealer.map(|sealer| sealer.salt),
        pieces,
    };
    header.encode(builder.identity, &mut memory.head);
    let Memory { head, body, kept } = memory;
    let head = head.freeze();
    let copies = match kept {
        Some(kept) => Copies { from: header_bytes(totals.pieces, true), bytes: kept.freeze() },
        None => Copies { from: 0, bytes: head.clone() },
    };
    let mut payloads = spare.payloads.pop().unwrap_or_default();
    list_payloads(&mut payloads, &gathered, &header, (place, &seals), &copies);
    let mut buffers = spare.buffers.pop().unwrap_or_default();
    buffers.push(head);
    match body {
        Some(body) => buffers.push(body.freeze()),
        None => list_direct(&mut buffers, &gathered),
    }
    spare.pieces = header.pieces;
    spare.pieces.clear();
    spare.cuts = gathered.cuts;
    spare.cuts.clear();
    Built { buffers, placed, payloads }
}

/// Copies, seals and checksums payloads into their places; the table entries, with what opens each if it is sealed. The
/// end of what was copied behind the table.
fn lay_out(
    gathered: &Gathered,
    builder: &Builder<'_>,
    place: &Place,
    memory: &mut Memory,
    (pieces, seals): (&mut Vec<Piece>, &mut Vec<Option<PieceSeal>>),
) -> usize {
    let totals = gathered.totals;
    let (table_end, head_len) = (header_bytes(totals.pieces, totals.sealed), totals.head_len());
    let (mut copied_at, mut direct_at) = (table_end, head_len);
    for (index, cut) in gathered.cuts.iter().enumerate() {
        let (kind, offset, len) = (cut.kind, cut.offset, cut.len);
        let mut piece = Piece { kind, offset, len, payload: 0, payload_crc: 0, tag: [0; 16] };
        if cut.kind == PieceKind::Data {
            let at = if cut.copied { &mut copied_at } else { &mut direct_at };
            let begin = *at;
            *at += cut.bytes.len();
            let place = PiecePlace { record: place.record, offset, len };
            let seal = builder.sealer.map(|sealer| (sealer, to_u32(to_u64(index)), place));
            let (stored, seal) = match cut.copied {
                true => memory.copy(begin, table_end, &cut.bytes, seal),
                false => memory.direct(begin - head_len, &cut.bytes, seal),
            };
            if let Some(seal) = seal {
                piece.tag = seal.tag;
                seals.resize(index, None);
                seals.push(Some(seal));
            }
            piece.payload = to_u32(to_u64(begin));
            piece.payload_crc = builder.checksum.of(place.record, offset, [stored, &[]]);
        }
        pieces.push(piece);
    }
    copied_at
}

/// The payloads that are written from where they are.
fn list_direct(buffers: &mut Vec<SharedBuf>, gathered: &Gathered) {
    for cut in gathered.cuts.iter().filter(|cut| !cut.copied) {
        // The pieces of one append lie in the buffer that it came in: one entry of the kernel's list for all of them.
        if !buffers.last_mut().is_some_and(|last| last.join(&cut.bytes)) {
            buffers.push(cut.bytes.clone());
        }
    }
}

/// Copied payloads, as reads may have them.
struct Copies {
    /// Where in the record the memory begins.
    from: usize,
    bytes: SharedBuf,
}

/// The table entries of a record's payloads, with the bytes that stay in memory.
fn list_payloads(
    payloads: &mut Vec<(PieceEntry, Option<PieceSeal>, Resident)>,
    gathered: &Gathered,
    header: &RecordHeader,
    (place, seals): (&Place, &[Option<PieceSeal>]),
    copies: &Copies,
) {
    let base = place.position.0 - place.segment_start.0;
    for copied in [true, false] {
        for (index, (cut, piece)) in gathered.cuts.iter().zip(&header.pieces).enumerate() {
            if cut.kind != PieceKind::Data || cut.copied != copied {
                continue;
            }
            let entry = PieceEntry {
                at: to_u32(base + u64::from(piece.payload)),
                len: to_u32(piece.len),
                crc: piece.payload_crc,
                offset: piece.offset,
                record: header.record,
            };
            let len = cut.bytes.len();
            let resident = if copied {
                let at = to_usize(u64::from(piece.payload)) - copies.from;
                // Every copied piece carries its share of the memory it keeps alive.
                let memory = copies.bytes.memory_bytes();
                let charge_bytes = share(memory, len, gathered.totals.copied_bytes);
                Resident { bytes: copies.bytes.slice(at, len), charge_bytes }
            } else {
                Resident { bytes: cut.bytes.clone(), charge_bytes: cut.memory_bytes }
            };
            payloads.push((entry, seals.get(index).copied().flatten(), resident));
        }
    }
}

fn share(memory: usize, len: usize, total: usize) -> usize {
    let share = u128::from(to_u64(memory)) * u128::from(to_u64(len)) / u128::from(to_u64(total));
    usize::try_from(share).expect("a share is at most the whole")
}

fn to_u32(value: u64) -> u32 {
    u32::try_from(value).expect("records and segments are below 4 GiB")
}
