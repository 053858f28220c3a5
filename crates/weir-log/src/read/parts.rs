//! Parts of raw frames: the blocks that a read needs, each fetched once at a time, verified before anybody sees it, and
//! kept by itself. What the store has in memory is read on the thread that asks.

use std::collections::BTreeSet;
use std::ops::Range;
use std::rc::Rc;
use std::sync::Arc;

use bytes::Bytes;
use smallvec::SmallVec;
use weir_device::{Data, DeviceError, Slice};
use weir_store::StoreError;

use crate::error::LogError;
use crate::format::DecodeError;
use crate::format::blocks::{self, BlockRange, Blocks};
use crate::ids::ObjectId;
use crate::limits::{BLOCK_BYTES, FRAME_BYTES};
use crate::read::cache::{FrameKey, Part};
use crate::read::fetch::{self, Fetcher, Reader};
use crate::read::table::FrameTable;
use crate::read::to_usize;

const BLOCK: usize = BLOCK_BYTES as usize;

/// Bytes of one frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Span {
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

    fn of_frame(self, frame: &Bytes) -> Bytes {
        frame.slice(self.from as usize..self.to as usize)
    }

    /// The bytes in blocks that begin with its first one.
    fn push_blocks(self, blocks: &[Bytes], data: &mut Data) {
        let Range { start: mut skip, end } = self.within_blocks();
        let mut left = end - skip;
        for block in blocks {
            let take = (block.len() - skip).min(left);
            data.push(Slice::Cached(block.slice(skip..skip + take)));
            (left, skip) = (left - take, 0);
        }
        assert_eq!(left, 0, "the blocks hold what the map says");
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

/// Bytes of one frame, if cache or store have them in memory. Whatever is wrong with them, the way through [`read`]
/// finds out, and says.
pub(super) fn read_now(
    fetcher: &Fetcher,
    object: ObjectId,
    payload_offset: u32,
    len: u64,
) -> Option<Data> {
    let spans = Span::all(payload_offset, len);
    let [span] = spans[..] else { return None };
    let range = span.blocks();
    let frame = fetcher.frame_key(object, span.index);
    let mut data = Data::default();
    match fetcher.cache.part(&frame, range) {
        Part::Frame(bytes) => data.push(Slice::Cached(span.of_frame(&bytes))),
        Part::Blocks(blocks) => span.push_blocks(&blocks, &mut data),
        Part::Missing(table) => {
            let table = table?;
            let place = table.frame(span.index)?;
            let stored = fetcher.store.get_now(&object.key(), place.part(range)?)?;
            let key = table.key.as_ref();
            let of = (span.index, &place.frame);
            let got = match blocks::decode(&object, of, place.blocks, range, key, stored.clone()) {
                Err(_) if weir_device::mutant("damaged_block_answered") => stored,
                got => got.ok()?,
            };
            for (block, bytes) in (range.first..).zip(split(&got)) {
                fetcher.cache.keep(block_key(frame, block), bytes);
            }
            data.push(Slice::Cached(got.slice(span.within_blocks())));
        }
    }
    Some(data)
}

/// Bytes of an object by the blocks of its frames, or by whole frames where these have none: unless that was tried, and
/// `failed`.
pub(super) async fn read(
    fetcher: &Rc<Fetcher>,
    object: ObjectId,
    payload_offset: u32,
    len: u64,
    failed: Option<DeviceError>,
) -> Result<Data, DeviceError> {
    let table = fetch::table_of(fetcher, object).await?;
    let spans = Span::all(payload_offset, len);
    let read = spans.iter().map(|span| read_span(fetcher, object, &table, *span, failed.as_ref()));
    let mut data = Data::default();
    for part in futures_util::future::try_join_all(read).await? {
        data.append(part);
    }
    Ok(data)
}

async fn read_span(
    fetcher: &Rc<Fetcher>,
    object: ObjectId,
    table: &Arc<FrameTable>,
    span: Span,
    failed: Option<&DeviceError>,
) -> Result<Data, DeviceError> {
    let frame = fetcher.frame_key(object, span.index);
    let place = table.frame(span.index).ok_or_else(|| no_frame(object, span.index))?;
    if place.blocks == Blocks::None {
        if let Some(error) = failed {
            return Err(error.clone());
        }
        let frames = fetch::frames(fetcher, object, span.index, span.index).await?;
        return Ok(span.of_frame(&frames[0]).into());
    }
    if let Some(frame) = fetcher.cached(object, span.index) {
        return Ok(span.of_frame(&frame).into());
    }
    // Read ahead, it is on its way. Where it does not come, the blocks say why.
    if let Some(coming) = fetcher.cache.join(&frame)
        && let Ok(Ok(frame)) = coming.await
    {
        return Ok(span.of_frame(&frame).into());
    }
    let range = span.blocks();
    let blocks = fetch::run(fetcher, block_key(frame, range.first), range.last).await?;
    let mut data = Data::default();
    span.push_blocks(&blocks, &mut data);
    Ok(data)
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
    let object = &reader.object;
    let found = table.frame(index).and_then(|place| Some((place, place.part(range)?)));
    let Some((place, part)) = found else {
        let value = range.last.into();
        return Ok(Err(DecodeError::Field { what: "frame", field: "block", value }));
    };
    let stored = reader.store.get_range(&object.key(), part).await?;
    let key = table.key.as_ref();
    Ok(blocks::decode(object, (index, &place.frame), place.blocks, range, key, stored))
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
        let mut data = Data::default();
        odd.push_blocks(&blocks, &mut data);
        assert_eq!(data.to_vec(), [vec![1; 96], vec![2; 104]].concat());
        assert_eq!(blocks_of(&[(4000, 200), (FRAME_BYTES, 1)], 0), BTreeSet::from([0, 1]));
    }
}
