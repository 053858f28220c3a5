//! Where the frames of an object are, without its header.

use weir_seal::SealKey;

use crate::format::blocks::{self, BlockRange, Blocks};
use crate::format::frame::{Codec, Frame};
use crate::format::object::{ObjectHeader, ObjectVersion};
use crate::limits::FRAME_BYTES;

/// Where the frames of one object are, and what they are verified by: 24 bytes per frame, and 4 per block of a raw one
/// that is not encrypted, which makes 1.4 GiB for a TiB of full objects.
#[derive(Debug)]
pub struct FrameTable {
    frames: Box<[Entry]>,
    sums: Box<[u32]>,
    /// Whether raw frames are read in blocks.
    in_blocks: bool,
    /// Of the object, if it is encrypted.
    pub(super) key: Option<SealKey>,
}

#[derive(Clone, Copy, Debug)]
struct Entry {
    /// First byte in the object, which has less than 4 GiB.
    at: u32,
    stored_len: u32,
    raw_len: u32,
    crc: u32,
    codec: Codec,
    /// Its first checksum in the table, if its blocks have any.
    first_sum: u32,
}

/// A frame: where it is, and what it is verified by.
#[derive(Clone, Copy, Debug)]
pub(super) struct FramePlace<'a> {
    pub(super) index: u32,
    /// First byte in the object.
    pub(super) at: u64,
    pub(super) frame: Frame,
    pub(super) blocks: Blocks<'a>,
}

impl FramePlace<'_> {
    /// The byte behind it in the object.
    pub(super) fn end(&self) -> u64 {
        self.at + u64::from(self.frame.stored_len)
    }

    /// Where some of its blocks are in the object; nothing where they cannot be read without the others.
    pub(super) fn part(&self, range: BlockRange) -> Option<std::ops::Range<u64>> {
        let (from, to) = range.stored(&self.frame, self.blocks)?;
        Some(self.at + u64::from(from)..self.at + u64::from(to))
    }
}

impl FrameTable {
    /// Of an object without frames.
    #[cfg(test)]
    pub(crate) fn empty() -> Self {
        Self { frames: Box::default(), sums: Box::default(), in_blocks: false, key: None }
    }

    pub(super) fn of(header: &ObjectHeader, key: Option<SealKey>) -> Self {
        let mut at = u32::try_from(header.header_len()).expect("a header has at most 4 MiB");
        let mut sum = 0;
        let has_sums = !header.sums.is_empty();
        let place = |frame: &Frame| {
            let Frame { stored_len, raw_len, crc, codec } = *frame;
            let entry = Entry { at, stored_len, raw_len, crc, codec, first_sum: sum };
            at += stored_len;
            if has_sums && codec == Codec::Raw {
                sum += blocks::count(raw_len);
            }
            entry
        };
        Self {
            frames: header.frames.iter().map(place).collect(),
            sums: header.sums.as_slice().into(),
            in_blocks: header.version >= ObjectVersion::V3,
            key,
        }
    }

    pub(super) fn frame(&self, index: u32) -> Option<FramePlace<'_>> {
        let entry = self.frames.get(index as usize)?;
        let Entry { at, stored_len, raw_len, crc, codec, first_sum } = *entry;
        let blocks = match (&self.key, codec) {
            (_, Codec::Lz4 | Codec::Zstd) => Blocks::None,
            _ if !self.in_blocks => Blocks::None,
            (Some(_), Codec::Raw) => Blocks::Sealed,
            (None, Codec::Raw) => {
                let first = first_sum as usize;
                let count = blocks::count(raw_len) as usize;
                Blocks::Plain(self.sums.get(first..first + count)?)
            }
        };
        let frame = Frame { stored_len, raw_len, crc, codec };
        Some(FramePlace { index, at: at.into(), frame, blocks })
    }

    /// Frames that follow each other; nothing where the object has not all of them.
    pub(super) fn run(&self, first: u32, last: u32) -> Option<Vec<FramePlace<'_>>> {
        (first..=last).map(|index| self.frame(index)).collect()
    }

    /// Bytes of memory that it takes.
    pub(super) fn bytes(&self) -> u64 {
        let bytes = size_of::<Self>() + size_of_val(&*self.frames) + size_of_val(&*self.sums);
        bytes as u64
    }
}

const _: () = assert!(size_of::<Entry>() == 24 && FRAME_BYTES <= 64 << 10);
