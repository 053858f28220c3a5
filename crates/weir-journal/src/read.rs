//! Reading payloads back: from the copy in memory, or from disk in whole pieces, verified before a byte is handed out.

use std::rc::Rc;
use std::sync::Arc;

use smallvec::SmallVec;
use weir_device::{SharedBuf, mutant};

use crate::error::JournalError;
use crate::format::{to_u64, to_usize};
use crate::ids::JournalPos;
use crate::journal::Inner;
use crate::limits::{BLOCK_BYTES, READ_BYTES_MAX, READ_GAP_BYTES_MAX};
use crate::pieces::{FoundPiece, PieceEntry};
use crate::seal::{PiecePlace, PieceSeal};
use crate::state::State;

type Entries = SmallVec<[(PieceEntry, Option<PieceSeal>); 2]>;

/// What to do for the next bytes of a read.
enum Next {
    /// Copy them out of memory.
    Copy(SharedBuf),
    /// Read these pieces, which lie one behind the other.
    Fetch { entries: Entries, file_start: u64, within: u64, segment_start: JournalPos },
}

/// Fills `buf` from `position`.
pub(crate) async fn read(
    inner: &Rc<Inner>,
    position: JournalPos,
    buf: &mut [u8],
) -> Result<(), JournalError> {
    let mut done = 0;
    while done < buf.len() {
        let at = position.plus(to_u64(done));
        let rest = buf.len() - done;
        match next(inner, at, to_u64(rest))? {
            Next::Copy(bytes) => {
                let len = bytes.len().min(rest);
                buf[done..done + len].copy_from_slice(&bytes[..len]);
                done += len;
            }
            Next::Fetch { entries, file_start, within, segment_start } => {
                let bytes = fetch(inner, &entries, file_start, segment_start).await?;
                let skip = to_usize(within - u64::from(entries[0].0.at));
                let len = (bytes.len() - skip).min(rest);
                buf[done..done + len].copy_from_slice(&bytes[skip..skip + len]);
                done += len;
            }
        }
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
        let rest = len - done;
        let (bytes, skip) = match next(inner, position.plus(to_u64(done)), to_u64(rest))? {
            Next::Copy(bytes) => (bytes, 0),
            Next::Fetch { entries, file_start, within, segment_start } => {
                let bytes = fetch(inner, &entries, file_start, segment_start).await?;
                (bytes, to_usize(within - u64::from(entries[0].0.at)))
            }
        };
        let part = bytes.slice(skip, rest.min(bytes.len() - skip));
        done += part.len();
        // The pieces of one write lie in the buffer that it came in.
        if !parts.last_mut().is_some_and(|last| last.join(&part)) {
            parts.push(part);
        }
    }
    Ok(parts)
}

/// The parts of each of `ranges`, which lie in this order; what memory has no copy of comes with one read for many of
/// them, and with the little that lies between.
pub(crate) async fn read_ranges(
    inner: &Rc<Inner>,
    ranges: &[(JournalPos, u64)],
) -> Result<Vec<Vec<SharedBuf>>, JournalError> {
    let mut found = Vec::with_capacity(ranges.len());
    while let [(position, len), ..] = ranges[found.len()..] {
        let Some(mut stretch) = Stretch::of(next(inner, position, len)?, len) else {
            // It is in memory, or lies in several reads.
            found.push(read_parts(inner, position, to_usize(len)).await?);
            continue;
        };
        for &(position, len) in &ranges[found.len() + 1..] {
            let more = Stretch::of(next(inner, position, len)?, len);
            if !more.is_some_and(|more| stretch.join(more)) {
                break;
            }
        }
        let Stretch { entries, file_start, segment_start, wanted } = stretch;
        let begin = u64::from(entries[0].0.at);
        let bytes = fetch(inner, &entries, file_start, segment_start).await?;
        found.extend(
            wanted
                .iter()
                .map(|&(within, len)| vec![bytes.slice(to_usize(within - begin), to_usize(len))]),
        );
    }
    Ok(found)
}

/// Ranges of one segment that one read fetches.
struct Stretch {
    entries: Entries,
    file_start: u64,
    segment_start: JournalPos,
    /// Where in the segment, and how long.
    wanted: Vec<(u64, u64)>,
}

impl Stretch {
    /// A single range of `len` bytes, if one read fetches it all.
    fn of(next: Next, len: u64) -> Option<Self> {
        let Next::Fetch { entries, file_start, within, segment_start } = next else { return None };
        let is_whole = entries[entries.len() - 1].0.end() >= within + len;
        let wanted = vec![(within, len)];
        is_whole.then_some(Self { entries, file_start, segment_start, wanted })
    }

    /// Adds the next range, if one read should fetch both.
    fn join(&mut self, more: Self) -> bool {
        let (first, last) = (self.entries[0].0, self.entries[self.entries.len() - 1].0);
        let (next, end) = (more.entries[0].0, more.entries[more.entries.len() - 1].0.end());
        let follows = more.segment_start == self.segment_start && next.at >= last.at;
        let is_near = || u64::from(next.at) <= last.end() + READ_GAP_BYTES_MAX;
        if !(follows && is_near() && end - u64::from(first.at) <= READ_BYTES_MAX) {
            return false;
        }
        let known = usize::from(next.at == last.at);
        self.entries.extend(more.entries.into_iter().skip(known));
        self.wanted.extend(more.wanted);
        true
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
    fn at(state: &State, position: JournalPos) -> Option<Self> {
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
    Ok(Next::Fetch { entries, file_start, within, segment_start })
}

/// The bytes from the first of `entries` to the last, which lie in this order, read, verified and opened.
async fn fetch(
    inner: &Inner,
    entries: &[(PieceEntry, Option<PieceSeal>)],
    file_start: u64,
    segment_start: JournalPos,
) -> Result<SharedBuf, JournalError> {
    let begin = u64::from(entries[0].0.at);
    let end = entries[entries.len() - 1].0.end();
    let block_begin = begin / BLOCK_BYTES * BLOCK_BYTES;
    let block_end = end.next_multiple_of(BLOCK_BYTES);
    let buf = inner.state.borrow().pool.alloc(to_usize(block_end - block_begin));
    let (mut buf, result) = inner.file.read_at(buf, file_start + block_begin).await;
    result?;
    let state = inner.state.borrow();
    let checksum = *state.checksum();
    for (entry, seal) in entries {
        let at = to_usize(u64::from(entry.at) - block_begin);
        let piece = &mut buf[at..at + to_usize(u64::from(entry.len))];
        let computed = checksum.of(entry.record, entry.offset, [piece, &[]]);
        let whole = computed == entry.crc || mutant("no_piece_crc");
        let place =
            PiecePlace { record: entry.record, offset: entry.offset, len: u64::from(entry.len) };
        let opened = match (seal, &state.seals) {
            (Some(seal), Some(seals)) if whole => seals.open(seal, &place, piece).is_ok(),
            _ => true,
        };
        if !whole || !opened {
            return Err(JournalError::Corrupt {
                file: Arc::clone(&inner.file_name),
                offset: entry.offset,
                end: entry.offset + u64::from(entry.len),
                record: entry.record,
                position: segment_start.plus(u64::from(entry.at)),
            });
        }
    }
    drop(state);
    Ok(buf.freeze().slice(to_usize(begin - block_begin), to_usize(end - begin)))
}
