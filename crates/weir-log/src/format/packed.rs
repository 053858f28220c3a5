//! Frames whose blocks are compressed one by one, from version 4 of an object on, so that a part of a compressed frame
//! can be read without the rest. A block that does not shrink is stored as it is; how many bytes each takes is in the
//! header. Not in encrypted objects, whose headers anybody may read: the lengths of the blocks of a file tell which
//! file it is. Page: `docs/formats/object.md`.

use bytes::Bytes;
use lz4_flex::block::{
    CompressTable, compress_into_with_table, decompress_into, get_maximum_output_size,
};
use smallvec::SmallVec;

use crate::format::DecodeError;
use crate::format::blocks::{self, BLOCK, BLOCKS_PER_FRAME, BlockRange, Identity, WHAT};
use crate::format::frame::{Frame, shrinks_enough};
use crate::limits::BLOCK_BYTES;

/// What is known of the blocks of a frame that are compressed one by one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Packed<'a> {
    /// Bytes that each takes. One of as many as it decodes to is stored as it is.
    pub lens: &'a [u16],
    /// A checksum for each.
    pub sums: &'a [u32],
}

/// What is stored of each of some blocks.
type Cut<'a> = SmallVec<[&'a [u8]; BLOCKS_PER_FRAME as usize]>;

/// The blocks of a frame whose bytes are `raw`, compressed, one behind the other. How many bytes each takes is added to
/// `lens`. Nothing where the frame does not shrink by an eighth.
pub(super) fn pack(raw: &[u8], lens: &mut Vec<u16>) -> Option<Vec<u8>> {
    let before = lens.len();
    let mut bytes = Vec::with_capacity(raw.len());
    let mut table = CompressTable::small();
    let mut room = [0; get_maximum_output_size(BLOCK)];
    for block in raw.chunks(BLOCK) {
        let stored = match compress_into_with_table(block, &mut room, &mut table) {
            Ok(len) if shrinks_enough(len, block.len()) => &room[..len],
            _ => block,
        };
        bytes.extend_from_slice(stored);
        lens.push(u16::try_from(stored.len()).expect("at most 4 KiB"));
    }
    if shrinks_enough(bytes.len(), raw.len()) {
        return Some(bytes);
    }
    lens.truncate(before);
    None
}

/// Adds the checksums of all blocks of a frame, which take so many of `bytes` each.
pub(super) fn sums_of(frame: &Identity, lens: &[u16], bytes: &[u8], sums: &mut Vec<u32>) {
    let mut rest = bytes;
    for (block, len) in (0..).zip(lens) {
        let (own, behind) = rest.split_at((*len).into());
        sums.push(blocks::sum_of(frame, block, own));
        rest = behind;
    }
}

impl Packed<'_> {
    /// Whether the blocks take what a header says that their frame takes, and none more than it decodes to.
    pub(super) fn fits(self, frame: &Frame) -> bool {
        let raw_len = |block| frame.raw_len.saturating_sub(block * BLOCK_BYTES).min(BLOCK_BYTES);
        let each = (0..).zip(self.lens).all(|(block, len)| {
            let len = u32::from(*len);
            len > 0 && (len <= raw_len(block) || weir_device::mutant("long_blocks_accepted"))
        });
        each && self.stored(BlockRange::all(frame.raw_len)) == Some((0, frame.stored_len))
    }

    /// Where some of the blocks are in what is stored of the frame, from and to.
    pub(super) fn stored(self, range: BlockRange) -> Option<(u32, u32)> {
        let own = self.lens.get(range.first as usize..=range.last as usize)?;
        let before = match weir_device::mutant("packed_block_from_begin") {
            true => &[],
            false => &self.lens[..range.first as usize],
        };
        let len_of = |lens: &[u16]| lens.iter().map(|len| u32::from(*len)).sum::<u32>();
        let from = len_of(before);
        Some((from, from + len_of(own)))
    }

    /// What is stored of each of the blocks of `range`, which is all that `stored` holds.
    fn cut(self, range: BlockRange, stored: &[u8]) -> Result<Cut<'_>, DecodeError> {
        let (from, to) = self.stored(range).ok_or_else(|| outside(range))?;
        let (have, need) = (stored.len() as u64, u64::from(to - from));
        if have != need {
            return Err(DecodeError::Short { what: WHAT, have, need });
        }
        let mut rest = stored;
        let lens = &self.lens[range.first as usize..=range.last as usize];
        let cut = lens.iter().map(|len| {
            let (block, behind) = rest.split_at((*len).into());
            rest = behind;
            block
        });
        Ok(cut.collect())
    }

    /// Verifies the checksums of the blocks of `range`.
    pub(super) fn verify(
        self,
        frame: &Identity,
        range: BlockRange,
        stored: &[u8],
    ) -> Result<(), DecodeError> {
        let cut = self.cut(range, stored)?;
        if weir_device::mutant("packed_blocks_unverified") {
            return Ok(());
        }
        let sums = self.sums.get(range.first as usize..=range.last as usize);
        let sums = sums.ok_or_else(|| outside(range))?;
        blocks::verify_each(frame, range.first, sums, cut.into_iter())
    }

    /// What the blocks of `range` decode to. Their checksums have been verified.
    pub(super) fn decode(
        self,
        (index, frame): (u32, &Frame),
        range: BlockRange,
        stored: &[u8],
    ) -> Result<Bytes, DecodeError> {
        let (from, to) = range.raw(frame.raw_len);
        let mut out = vec![0; to.saturating_sub(from) as usize];
        let mut rest = &mut out[..];
        for block in self.cut(range, stored)? {
            let (target, behind) = rest.split_at_mut(rest.len().min(BLOCK));
            unpack(index, block, target)?;
            rest = behind;
        }
        Ok(Bytes::from(out))
    }
}

/// There are no such blocks.
fn outside(range: BlockRange) -> DecodeError {
    DecodeError::Field { what: WHAT, field: "index", value: range.last.into() }
}

/// Decompresses a block, unless it is stored as it is.
fn unpack(index: u32, stored: &[u8], target: &mut [u8]) -> Result<(), DecodeError> {
    if stored.len() == target.len() && !weir_device::mutant("stored_blocks_decompressed") {
        target.copy_from_slice(stored);
        return Ok(());
    }
    match decompress_into(stored, target) {
        Ok(len) if len == target.len() => Ok(()),
        _ => Err(DecodeError::Decompress { index }),
    }
}
