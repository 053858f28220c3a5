//! Reading payloads back: from the copy in memory, or from disk in whole pieces, verified before a byte is handed out.

use std::rc::Rc;
use std::sync::Arc;

use futures_util::StreamExt;
use smallvec::SmallVec;
use weir_device::{SharedBuf, mutant};

use crate::error::JournalError;
use crate::format::{to_u64, to_usize};
use crate::ids::JournalPos;
use crate::inner::Inner;
use crate::limits::{BLOCK_BYTES, READ_BYTES_MAX, READ_GAP_BYTES_MAX, READS_IN_FLIGHT};
use crate::pieces::{FoundPiece, PieceEntry};
use crate::seal::{PiecePlace, PieceSeal};
use crate::state::JournalState;

type Entries = SmallVec<[(PieceEntry, Option<PieceSeal>); 2]>;

/// What to do for the next bytes of a read.
enum Next {
    /// Copy them out of memory.
    Copy(SharedBuf),
    /// Read them from disk.
    Fetch(Fetch),
}

/// One read from disk: pieces of a segment in their order, with the little that lies between them.
struct Fetch {
    entries: Entries,
    file_start: u64,
    segment_start: JournalPos,
}

/// Fills `buf` from `position`.
pub(crate) async fn read(
    inner: &Rc<Inner>,
    position: JournalPos,
    buf: &mut [u8],
) -> Result<(), JournalError> {
    let mut done = 0;
    while done < buf.len() {
        let bytes = part(inner, position.plus(to_u64(done)), buf.len() - done).await?;
        buf[done..done + bytes.len()].copy_from_slice(&bytes);
        done += bytes.len();
    }
    Ok(())
}

/// `len` bytes from `position`, in as many parts as they lie in, none of them copied.
pub(crate) async fn read_parts(
    inner: &Rc<Inner>,
    position: JournalPos,
    len: usize,
) -> Result<Vec<SharedBuf>, JournalError> {
    let mut parts: Vec<SharedBuf> = Vec::new();
    let mut done = 0;
    while done < len {
        let part = part(inner, position.plus(to_u64(done)), len - done).await?;
        done += part.len();
        // The pieces of one write lie in the buffer that it came in.
        if !parts.last_mut().is_some_and(|last| last.join(&part)) {
            parts.push(part);
        }
    }
    Ok(parts)
}

/// The first of `wanted` bytes from `position`: as many as memory has there in one place, or as one read fetches.
async fn part(
    inner: &Inner,
    position: JournalPos,
    wanted: usize,
) -> Result<SharedBuf, JournalError> {
    let (bytes, start) = match next(inner, position, to_u64(wanted))? {
        Next::Copy(bytes) => (bytes, position),
        Next::Fetch(fetch) => (fetch.read(inner).await?, fetch.start()),
    };
    let skip = to_usize(position.0 - start.0);
    Ok(bytes.slice(skip, wanted.min(bytes.len() - skip)))
}

/// The parts of each of `ranges`, which lie in this order, or why there are none. What memory has no copy of comes with
/// one read for many of them, and with several reads at once.
pub(crate) async fn read_ranges(
    inner: &Rc<Inner>,
    ranges: &[(JournalPos, u64)],
) -> Vec<Result<Vec<SharedBuf>, JournalError>> {
    let reads = stretches(inner, ranges).into_iter().map(|stretch| stretch.read(inner));
    futures_util::stream::iter(reads).buffered(READS_IN_FLIGHT).concat().await
}

/// Ranges that one read fetches, or a single one that memory has, several reads fetch, or nothing.
struct Stretch<'a> {
    ranges: &'a [(JournalPos, u64)],
    fetch: Option<Fetch>,
}

fn stretches<'a>(inner: &Inner, mut ranges: &'a [(JournalPos, u64)]) -> Vec<Stretch<'a>> {
    let mut stretches = Vec::new();
    while let [first, others @ ..] = ranges {
        let mut fetch = whole(inner, *first);
        let joined = others.iter().take_while(|&&range| {
            let (Some(fetch), Some(more)) = (&mut fetch, whole(inner, range)) else { return false };
            fetch.join(more)
        });
        let (together, rest) = ranges.split_at(1 + joined.count());
        stretches.push(Stretch { ranges: together, fetch });
        ranges = rest;
    }
    stretches
}

/// The read that fetches all of a range, if there is one.
fn whole(inner: &Inner, (position, len): (JournalPos, u64)) -> Option<Fetch> {
    let Ok(Next::Fetch(fetch)) = next(inner, position, len) else { return None };
    (fetch.end() >= position.plus(len)).then_some(fetch)
}

impl Stretch<'_> {
    async fn read(self, inner: &Rc<Inner>) -> Vec<Result<Vec<SharedBuf>, JournalError>> {
        if let Some(fetch) = &self.fetch
            && let Ok(bytes) = fetch.read(inner).await
        {
            let skip = |position: JournalPos| to_usize(position.0 - fetch.start().0);
            let part = |&(position, len)| Ok(vec![bytes.slice(skip(position), to_usize(len))]);
            return self.ranges.iter().map(part).collect();
        }
        // Where a read of many ranges fails, each range is read alone, so that damage in one does not fail the others.
        let mut found = Vec::with_capacity(self.ranges.len());
        for &(position, len) in self.ranges {
            found.push(read_parts(inner, position, to_usize(len)).await);
        }
        found
    }
}

/// The piece at a position, and where its segment and the position in it are.
struct Located {
    piece: FoundPiece,
    logical: u64,
    segment_start: JournalPos,
    within: u64,
}

impl Located {
    fn at(state: &JournalState, position: JournalPos) -> Option<Self> {
        let logical = state.ring.segment_of(position);
        let segment_start = state.ring.start_of(logical);
        let within = position.0 - segment_start.0;
        let piece = state.pieces.find(logical, within)?;
        Some(Self { piece, logical, segment_start, within })
    }

    /// The copy in memory, from the position on.
    fn resident(&self) -> Option<SharedBuf> {
        let bytes = self.piece.resident.as_ref()?;
        let skip = to_usize(self.within - u64::from(self.piece.entry.at));
        Some(bytes.slice(skip, bytes.len() - skip))
    }
}

/// The copy in memory of the piece at `position`, from there on.
pub(crate) fn resident(inner: &Inner, position: JournalPos) -> Option<SharedBuf> {
    Located::at(&inner.state.borrow(), position)?.resident()
}

fn next(inner: &Inner, position: JournalPos, wanted: u64) -> Result<Next, JournalError> {
    let state = inner.state.borrow();
    let missing = || JournalError::NoSuchPosition { file: Arc::clone(&inner.file_name), position };
    let located = Located::at(&state, position).ok_or_else(missing)?;
    if let Some(bytes) = located.resident() {
        return Ok(Next::Copy(bytes));
    }
    let Located { piece: FoundPiece { entry, seal, .. }, logical, segment_start, within } = located;
    let file_start = state.ring.file_offset(segment_start).ok_or_else(missing)?;
    let mut entries = Entries::from_iter([(entry, seal)]);
    let mut end = entry.end();
    while end < within + wanted && end - u64::from(entry.at) < READ_BYTES_MAX {
        match state.pieces.find(logical, end) {
            Some(FoundPiece { entry, seal, resident: None }) if u64::from(entry.at) == end => {
                end = entry.end();
                entries.push((entry, seal));
            }
            _ => break,
        }
    }
    Ok(Next::Fetch(Fetch { entries, file_start, segment_start }))
}

impl Fetch {
    fn first(&self) -> &PieceEntry {
        &self.entries[0].0
    }

    fn last(&self) -> &PieceEntry {
        &self.entries[self.entries.len() - 1].0
    }

    fn start(&self) -> JournalPos {
        self.segment_start.plus(u64::from(self.first().at))
    }

    fn end(&self) -> JournalPos {
        self.segment_start.plus(self.last().end())
    }

    /// Adds what lies behind it, if one read should fetch both.
    fn join(&mut self, more: Self) -> bool {
        let follows = more.segment_start == self.segment_start && more.first().at >= self.last().at;
        let is_near = || more.start().0 <= self.end().0 + READ_GAP_BYTES_MAX;
        if !(follows && is_near() && more.end().0 - self.start().0 <= READ_BYTES_MAX) {
            return false;
        }
        let known = usize::from(more.first().at == self.last().at);
        self.entries.extend(more.entries.into_iter().skip(known));
        true
    }

    /// The bytes from the first piece to the last, read, verified and opened.
    async fn read(&self, inner: &Inner) -> Result<SharedBuf, JournalError> {
        let (begin, end) = (u64::from(self.first().at), self.last().end());
        let block_begin = begin / BLOCK_BYTES * BLOCK_BYTES;
        let block_end = end.next_multiple_of(BLOCK_BYTES);
        let buf = inner.state.borrow().pool.alloc(to_usize(block_end - block_begin));
        let (mut buf, result) = inner.file.read_at(buf, self.file_start + block_begin).await;
        result?;
        for (entry, seal) in &self.entries {
            let at = to_usize(u64::from(entry.at) - block_begin);
            let piece = &mut buf[at..at + to_usize(u64::from(entry.len))];
            if !open(&inner.state.borrow(), entry, seal.as_ref(), piece) {
                return Err(JournalError::Corrupt {
                    file: Arc::clone(&inner.file_name),
                    offset: entry.offset,
                    end: entry.offset + u64::from(entry.len),
                    record: entry.record,
                    position: self.segment_start.plus(u64::from(entry.at)),
                });
            }
        }
        Ok(buf.freeze().slice(to_usize(begin - block_begin), to_usize(end - begin)))
    }
}

/// Verifies and decrypts `piece` in its place. Whether it is what was written.
fn open(
    state: &JournalState,
    entry: &PieceEntry,
    seal: Option<&PieceSeal>,
    piece: &mut [u8],
) -> bool {
    let computed = state.checksum().of(entry.record, entry.offset, [piece, &[]]);
    if computed != entry.crc && !mutant("no_piece_crc") {
        return false;
    }
    let (Some(seal), Some(seals)) = (seal, &state.seals) else { return true };
    let len = u64::from(entry.len);
    let place = PiecePlace { record: entry.record, offset: entry.offset, len };
    seals.open(seal, &place, piece).is_ok()
}
