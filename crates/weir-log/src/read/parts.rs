//! Parts of frames: the blocks that a read needs, each fetched once at a time, verified before anybody sees it, and
//! kept by itself. What the store has in memory is read on the thread that asks.

use std::cell::Cell;
use std::collections::BTreeSet;
use std::ops::Range;
use std::rc::Rc;
use std::sync::Arc;

use bytes::Bytes;
use smallvec::SmallVec;
use tokio::sync::oneshot;
use weir_device::{Data, DeviceError, ErrorKind, Slice};
use weir_store::StoreError;

use crate::error::LogError;
use crate::format::DecodeError;
use crate::format::blocks::{self, BlockRange, Blocks};
use crate::ids::ObjectId;
use crate::limits::{BLOCK_BYTES, FRAME_BYTES};
use crate::read::cache::{FrameKey, FrameResult, Part};
use crate::read::fetch::{self, Fetcher, Reader};
use crate::read::history;
use crate::read::table::{FramePlace, FrameTable};
use crate::read::to_usize;

/// Reads that do not ask what the store has in memory, after one that did in vain.
const READS_AFTER_MISS: u32 = 7;

const BLOCK: usize = BLOCK_BYTES as usize;

/// Bytes of one frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Span {
    index: u32,
    /// Within the frame.
    from: u32,
    to: u32,
}

impl Span {
    /// Those of payload bytes, frame by frame.
    fn all(payload_offset: u32, len: u64) -> SmallVec<[Self; 2]> {
        let frame_bytes = u64::from(FRAME_BYTES);
        let (mut at, end) = (u64::from(payload_offset), u64::from(payload_offset) + len);
        let mut spans = SmallVec::new();
        let to_u32 = |bytes: u64| u32::try_from(bytes).expect("within one object");
        while at < end {
            let index = at / frame_bytes;
            let next = end.min((index + 1) * frame_bytes);
            let within = |offset| to_u32(offset - index * frame_bytes);
            spans.push(Self { index: to_u32(index), from: within(at), to: within(next) });
            at = next;
        }
        spans
    }

    fn blocks(self) -> BlockRange {
        BlockRange { first: self.from / BLOCK_BYTES, last: (self.to - 1) / BLOCK_BYTES }
    }

    /// Where they are in bytes that begin with their first block.
    fn within_blocks(self) -> Range<usize> {
        let begin = self.blocks().first * BLOCK_BYTES;
        (self.from - begin) as usize..(self.to - begin) as usize
    }

    /// Nothing where the frame is shorter than a map says.
    fn of_frame(self, frame: &Bytes) -> Option<Bytes> {
        let (from, to) = (self.from as usize, self.to as usize);
        (to <= frame.len()).then(|| frame.slice(from..to))
    }

    /// The bytes in blocks that begin with its first one.
    fn of_blocks(self, blocks: &[Bytes]) -> Option<Data> {
        let mut data = Data::default();
        let Range { start: mut skip, end } = self.within_blocks();
        let mut left = end - skip;
        for block in blocks {
            let take = block.len().checked_sub(skip)?.min(left);
            data.push(Slice::Cached(block.slice(skip..skip + take)));
            (left, skip) = (left - take, 0);
        }
        (left == 0).then_some(data)
    }
}

/// Whether it is worth asking what the store has in memory. A kernel that has not answers late: it begins to read, by
/// itself and by one at a time, what the ring would have begun together with other reads.
#[derive(Debug, Default)]
pub(super) struct InMemory {
    /// Reads before the next that asks.
    skip: Cell<u32>,
}

impl InMemory {
    fn look<T>(&self, ask: impl FnOnce() -> Option<T>) -> Option<T> {
        if let Some(skip) = self.skip.get().checked_sub(1) {
            self.skip.set(skip);
            return None;
        }
        let found = ask();
        if found.is_none() {
            self.skip.set(READS_AFTER_MISS);
        }
        found
    }

    /// The last look asked, in vain: what follows comes from the disk.
    fn missed_just_now(&self) -> bool {
        self.skip.get() == READS_AFTER_MISS
    }
}

fn block_key(frame: FrameKey, block: u32) -> FrameKey {
    FrameKey { block: Some(0), ..frame }.at(block)
}

/// Blocks that stand behind each other, one by one. Each has memory of its own, so that one that is kept does not keep
/// the others.
pub(super) fn split(blocks: &Bytes) -> Vec<Bytes> {
    if blocks.len() <= BLOCK {
        return vec![blocks.clone()];
    }
    blocks.chunks(BLOCK).map(Bytes::copy_from_slice).collect()
}

/// What is there of a span at once.
enum Found {
    All(Data),
    /// The whole frame is on its way.
    Coming(oneshot::Receiver<FrameResult>),
    /// Nothing. Where the frames of the object are, if that is known.
    None(Option<Arc<FrameTable>>),
}

impl Found {
    fn of(data: Option<Data>) -> Self {
        data.map_or(Self::None(None), Self::All)
    }
}

/// Bytes of one frame, if cache or store have them in memory.
pub(super) fn read_at_once(
    fetcher: &Fetcher,
    object: ObjectId,
    payload_offset: u32,
    len: u64,
) -> Result<Data, Missing> {
    let spans = Span::all(payload_offset, len);
    let [span] = spans[..] else { return Err(Missing(None)) };
    match find(fetcher, object, span) {
        Found::All(data) => Ok(data),
        found => Err(Missing(Some((span, found)))),
    }
}

/// What [`read_at_once`] found out where it found no bytes.
pub(super) struct Missing(Option<(Span, Found)>);

impl Missing {
    /// Waits for the bytes that were asked for.
    pub(super) async fn read(
        self,
        fetcher: &Rc<Fetcher>,
        object: ObjectId,
        payload_offset: u32,
        len: u64,
    ) -> Result<Data, DeviceError> {
        match self.0 {
            Some((span, found)) => read_span(fetcher, object, span, found, None).await,
            None => read(fetcher, object, payload_offset, len, None).await,
        }
    }
}

/// Bytes of an object by the blocks of its frames, or by whole frames where these have none: unless that was tried for
/// one frame alone, and `failed`.
pub(super) async fn read(
    fetcher: &Rc<Fetcher>,
    object: ObjectId,
    payload_offset: u32,
    len: u64,
    failed: Option<DeviceError>,
) -> Result<Data, DeviceError> {
    let spans = Span::all(payload_offset, len);
    let read = spans.iter().map(|span| {
        let found = find(fetcher, object, *span);
        read_span(fetcher, object, *span, found, failed.as_ref().filter(|_| spans.len() == 1))
    });
    let mut data = Data::default();
    for part in futures_util::future::try_join_all(read).await? {
        data.append(part);
    }
    Ok(data)
}

fn find(fetcher: &Fetcher, object: ObjectId, span: Span) -> Found {
    if fetcher.is_of_unknown_history(object) {
        return Found::None(None);
    }
    let (frame, range) = (fetcher.frame_key(object, span.index), span.blocks());
    let table = match fetcher.cache.part(&frame, range) {
        Part::Frame(bytes) => return Found::of(span.of_frame(&bytes).map(Data::from)),
        Part::Blocks(blocks) => return Found::of(span.of_blocks(&blocks)),
        Part::Coming(frame) => return Found::Coming(frame),
        Part::Missing(table) => table,
    };
    let readable = table.as_ref().filter(|_| fetcher.in_parts());
    let Some(blocks) = readable.and_then(|table| read_now(fetcher, object, table, span)) else {
        return Found::None(table);
    };
    let is_wrong = weir_device::mutant("block_kept_for_first_frame");
    let frame = if is_wrong { FrameKey { index: 0, ..frame } } else { frame };
    for (block, bytes) in (range.first..).zip(split(&blocks)) {
        fetcher.cache.keep(block_key(frame, block), bytes);
    }
    Found::of(span.of_blocks(&[blocks]))
}

async fn read_span(
    fetcher: &Rc<Fetcher>,
    object: ObjectId,
    span: Span,
    found: Found,
    failed: Option<&DeviceError>,
) -> Result<Data, DeviceError> {
    let short = || no_bytes(object, span.to);
    let mut failed = failed.cloned();
    let found = match fetcher.is_of_unknown_history(object) {
        true => {
            history::know_history(fetcher, object).await?;
            find(fetcher, object, span)
        }
        false => found,
    };
    let known = match found {
        Found::All(data) => return Ok(data),
        // Read ahead. Where it does not come, the blocks say why.
        Found::Coming(frame) => match frame.await {
            Ok(Ok(frame)) => return Ok(span.of_frame(&frame).ok_or_else(short)?.into()),
            Ok(Err(error)) => {
                failed = Some(error);
                None
            }
            Err(_) => None,
        },
        Found::None(table) => table,
    };
    if fetcher.disk.is_there() {
        history::learn(fetcher, object).await?;
        if let Some(data) = read_disk(fetcher, object, span).await {
            return Ok(data);
        }
    }
    if !fetcher.in_parts() && failed.is_none() {
        match fetch::frames(fetcher, object, span.index, span.index).await {
            Ok(frames) => return Ok(span.of_frame(&frames[0]).ok_or_else(short)?.into()),
            // What is damaged may be a block that nobody asked for.
            Err(error) if error.kind() == ErrorKind::Corrupt => failed = Some(error),
            Err(error) => return Err(error),
        }
    }
    let table = match known {
        Some(table) => table,
        None => fetch::table_of(fetcher, object).await?,
    };
    let place = table.frame(span.index).ok_or_else(|| no_frame(object, span.index))?;
    if span.to > place.frame.raw_len {
        return Err(short().into());
    }
    if place.blocks == Blocks::None {
        if let Some(error) = failed {
            return Err(error);
        }
        let frames = fetch::frames(fetcher, object, span.index, span.index).await?;
        return Ok(span.of_frame(&frames[0]).ok_or_else(short)?.into());
    }
    let (frame, range) = (fetcher.frame_key(object, span.index), span.blocks());
    let first = block_key(frame, range.first);
    let blocks = fetch::blocks(fetcher, &table, first, range.last).await?;
    Ok(span.of_blocks(&blocks).ok_or_else(short)?)
}

/// Bytes of a frame, if the local disk has their blocks.
async fn read_disk(fetcher: &Fetcher, object: ObjectId, span: Span) -> Option<Data> {
    let (frame, range) = (fetcher.frame_key(object, span.index), span.blocks());
    let blocks = fetcher.disk.blocks(object, span.index, range).await?;
    for (block, bytes) in (range.first..).zip(split(&blocks)) {
        fetcher.cache.keep(block_key(frame, block), bytes);
    }
    span.of_blocks(&[blocks])
}

/// Blocks of a frame, if the store has them in memory. Whatever is wrong with them, the way through [`fetch::blocks`]
/// finds out, and says.
fn read_now(fetcher: &Fetcher, object: ObjectId, table: &FrameTable, span: Span) -> Option<Bytes> {
    let range = span.blocks();
    let (place, part) = place_of(table, span.index, range)?;
    let stored = fetcher.in_memory.look(|| fetcher.store.get_now(&object.key(), part))?;
    match decode(object, table, &place, range, stored.clone()) {
        Err(_) if weir_device::mutant("damaged_block_answered") => Some(stored),
        got => got.ok(),
    }
}

/// A map says more of an object than it has.
pub(super) fn no_bytes(object: ObjectId, end: u32) -> LogError {
    let source = DecodeError::Field { what: "frame", field: "end", value: end.into() };
    LogError::Object { object, source }
}

fn no_frame(object: ObjectId, index: u32) -> LogError {
    let source = DecodeError::Field { what: "frame", field: "index", value: index.into() };
    LogError::Object { object, source }
}

/// One attempt at some blocks of a frame. The outer error is the store's, the inner one says that bytes came but are
/// not what was written.
pub(super) async fn get_blocks(
    reader: &Reader,
    table: &FrameTable,
    index: u32,
    range: BlockRange,
) -> Result<Result<Bytes, DecodeError>, StoreError> {
    let object = reader.object;
    let Some((place, part)) = place_of(table, index, range) else {
        let value = range.last.into();
        return Ok(Err(DecodeError::Field { what: "frame", field: "block", value }));
    };
    let stored = reader.store.get_range(&object.key(), part).await?;
    Ok(decode(object, table, &place, range, stored))
}

/// The blocks from `first` to `last`, read by this thread, where it can: the way to another one and back costs more
/// than the read. Whatever is wrong with them, [`get_blocks`] finds out.
pub(super) async fn get_here(
    fetcher: &Fetcher,
    table: &FrameTable,
    first: FrameKey,
    last: u32,
) -> Option<Vec<Bytes>> {
    let (object, range) = (first.object.id, BlockRange { first: first.number(), last });
    let (place, part) = place_of(table, first.index, range)?;
    let (key, files) = (object.key(), &*fetcher.env.files);
    // Others may be in memory, and say nothing about the disk.
    let is_of_disk = fetcher.in_memory.missed_just_now();
    let store = if is_of_disk { &fetcher.reads } else { &fetcher.store };
    let stored = store.get_here(&key, part, files, &fetcher.env.buffers).await?;
    let blocks = decode(object, table, &place, range, stored).ok()?;
    Some(split(&blocks))
}

fn place_of(
    table: &FrameTable,
    index: u32,
    range: BlockRange,
) -> Option<(FramePlace<'_>, Range<u64>)> {
    let place = table.frame(index)?;
    Some((place, place.part(range)?))
}

fn decode(
    object: ObjectId,
    table: &FrameTable,
    place: &FramePlace<'_>,
    range: BlockRange,
    stored: Bytes,
) -> Result<Bytes, DecodeError> {
    let of = (place.index, &place.frame);
    blocks::decode(&object, of, place.blocks, range, table.key.as_ref(), stored)
}

/// The blocks of a frame that hold some payload bytes, given as offset and length.
pub(super) fn blocks_of(pieces: &[(u32, u64)], index: u32) -> BTreeSet<u32> {
    let spans = pieces.iter().flat_map(|(offset, len)| Span::all(*offset, *len));
    let ours = spans.filter(|span| span.index == index);
    ours.flat_map(|span| span.blocks().first..=span.blocks().last).collect()
}

/// A frame that does not verify as a whole, with the blocks that are needed of it, and zeroes in place of the others.
///
/// # Errors
/// `failed` where it has no blocks; what is wrong with one that is needed.
pub(super) async fn patched(
    reader: &Reader,
    table: &FrameTable,
    index: u32,
    needed: &BTreeSet<u32>,
    failed: LogError,
) -> Result<Bytes, LogError> {
    let Some(place) = table.frame(index).filter(|place| place.blocks != Blocks::None) else {
        return Err(failed);
    };
    let mut frame = vec![0; to_usize(place.frame.raw_len.into())];
    for block in needed {
        let range = BlockRange { first: *block, last: *block };
        let bytes = reader.retry(|| get_blocks(reader, table, index, range)).await?;
        let begin = *block as usize * BLOCK;
        frame[begin..begin + bytes.len()].copy_from_slice(&bytes);
    }
    Ok(Bytes::from(frame))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes_are_cut_into_frames_and_these_into_blocks() {
        let spans = Span::all(FRAME_BYTES - 100, 200);
        let [first, second] = spans[..] else { panic!("two frames") };
        assert_eq!(first, Span { index: 0, from: FRAME_BYTES - 100, to: FRAME_BYTES });
        assert_eq!(second, Span { index: 1, from: 0, to: 100 });
        assert_eq!(first.blocks(), BlockRange { first: 15, last: 15 });
        assert_eq!(first.within_blocks(), BLOCK - 100..BLOCK);
        let [odd] = Span::all(4000, 200)[..] else { panic!("one frame") };
        assert_eq!(odd.blocks(), BlockRange { first: 0, last: 1 });
        let blocks = split(&Bytes::from([vec![1; BLOCK], vec![2; 300]].concat()));
        let data = odd.of_blocks(&blocks).expect("all of it");
        assert!(odd.of_blocks(&blocks[..1]).is_none() && odd.of_blocks(&[]).is_none());
        assert!(odd.of_frame(&Bytes::from(vec![0; 4100])).is_none());
        assert_eq!(data.to_vec(), [vec![1; 96], vec![2; 104]].concat());
        assert_eq!(blocks_of(&[(4000, 200), (FRAME_BYTES, 1)], 0), BTreeSet::from([0, 1]));
    }
}
