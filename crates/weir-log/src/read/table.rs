//! Where the frames of an object are, without its header.

use weir_seal::SealKey;

use crate::format::blocks::{self, BlockRange, Blocks};
use crate::format::frame::{Codec, Frame};
use crate::format::object::{ObjectHeader, ObjectVersion};
use crate::limits::FRAME_BYTES;

/// Where the frames of one object are, and what they are verified by: 28 bytes per frame; 4 per block of one that is
/// read in blocks and not encrypted; and 2 per block of one whose blocks are compressed. That makes 1.4 GiB for a TiB
/// of full objects, and 1.9 where everything is compressed.
#[derive(Debug)]
pub struct FrameTable {
    frames: Box<[Entry]>,
    sums: Box<[u32]>,
    lens: Box<[u16]>,
    version: ObjectVersion,
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
    /// Its first length of a block in the table, if its blocks are compressed one by one.
    first_len: u32,
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
        Self {
            frames: Box::default(),
            sums: Box::default(),
            lens: Box::default(),
            version: ObjectVersion::V1,
            key: None,
        }
    }

    pub(super) fn of(header: &ObjectHeader, key: Option<SealKey>) -> Self {
        let mut at = u32::try_from(header.header_len()).expect("a header has at most 4 MiB");
        let (mut first_sum, mut first_len) = (0, 0);
        let version = match header.version {
            ObjectVersion::V2 if weir_device::mutant("version_2_read_in_blocks") => {
                ObjectVersion::V3
            }
            version => version,
        };
        let all_sums = weir_device::mutant("sums_counted_for_compressed_frames");
        let all_lens = weir_device::mutant("lengths_counted_for_raw_frames");
        let place = |frame: &Frame| {
            let Frame { stored_len, raw_len, crc, codec } = *frame;
            let entry = Entry { at, stored_len, raw_len, crc, codec, first_sum, first_len };
            at += stored_len;
            let (sums, lens) = version.in_tables(frame, key.is_some());
            let all = blocks::count(raw_len);
            first_sum += if all_sums { all } else { sums };
            first_len += if all_lens { all } else { lens };
            entry
        };
        Self {
            frames: header.frames.iter().map(place).collect(),
            sums: header.sums.as_slice().into(),
            lens: header.lens.as_slice().into(),
            version,
            key,
        }
    }

    pub(super) fn frame(&self, index: u32) -> Option<FramePlace<'_>> {
        let entry = self.frames.get(index as usize)?;
        let Entry { at, stored_len, raw_len, crc, codec, first_sum, first_len } = *entry;
        let frame = Frame { stored_len, raw_len, crc, codec };
        let (sums, lens) = self.version.in_tables(&frame, self.key.is_some());
        let sums = part_of(&self.sums, first_sum, sums)?;
        let lens = part_of(&self.lens, first_len, lens)?;
        let blocks = Blocks::of(self.version, codec, sums, lens);
        Some(FramePlace { index, at: at.into(), frame, blocks })
    }

    /// Frames that follow each other; nothing where the object has not all of them.
    pub(super) fn run(&self, first: u32, last: u32) -> Option<Vec<FramePlace<'_>>> {
        (first..=last).map(|index| self.frame(index)).collect()
    }

    /// Bytes of memory that it takes.
    pub(super) fn bytes(&self) -> u64 {
        let tables =
            size_of_val(&*self.frames) + size_of_val(&*self.sums) + size_of_val(&*self.lens);
        (size_of::<Self>() + tables) as u64
    }
}

fn part_of<T>(table: &[T], first: u32, count: u32) -> Option<&[T]> {
    table.get(first as usize..(first + count) as usize)
}

const _: () = assert!(size_of::<Entry>() == 28 && FRAME_BYTES <= 64 << 10);

#[cfg(test)]
mod tests {
    use bytes::Bytes;

    use super::*;
    use crate::format::frame::{self, Compression};
    use crate::format::golden::{OPENING, spec_of};
    use crate::format::object::{self, Encoding, ExtentKind, ObjectExtent, ObjectKind};
    use crate::random::splitmix;
    use crate::read::to_usize;

    /// Index of the raw one.
    const RAW: u32 = 7;

    /// The one behind it.
    const LAST: u32 = RAW + 1;

    /// Frames that compress, one that does not, and one more that does.
    fn payload() -> Bytes {
        let mut random = splitmix(7);
        let zeroes = vec![0; (RAW * FRAME_BYTES) as usize];
        let noise = (0..FRAME_BYTES / 8).flat_map(|_| random().to_le_bytes());
        let after = vec![1; FRAME_BYTES as usize];
        let mut bytes: Vec<u8> = zeroes.into_iter().chain(noise).chain(after).collect();
        // No two blocks take as many bytes.
        for (number, block) in (1..).zip(bytes.chunks_mut(4096)) {
            block[..number * 19 % 3000].fill_with(|| random().to_le_bytes()[0]);
        }
        Bytes::from(bytes)
    }

    fn of_version(version: ObjectVersion) -> (ObjectHeader, Bytes) {
        let mut spec = spec_of(ObjectKind::Data, Some(OPENING));
        let len = u64::from((LAST + 1) * FRAME_BYTES);
        spec.extents = vec![ObjectExtent { offset: 0, len, kind: ExtentKind::Data }];
        let encoding = Encoding { compression: Compression::Lz4, version };
        let encoded = object::encode(spec, &[payload()], encoding, None).expect("encoded");
        let bytes = Bytes::from(encoded.parts.concat());
        (ObjectHeader::decode(&bytes).expect("readable"), bytes)
    }

    /// The blocks of a frame, one by one, are what the frame is.
    fn read_in_blocks(table: &FrameTable, header: &ObjectHeader, bytes: &Bytes, index: u32) {
        let place = table.frame(index).expect("nine frames");
        for block in 0..16 {
            let range = BlockRange { first: block, last: block };
            let part = place.part(range).expect("in blocks");
            let stored = bytes.slice(to_usize(part.start)..to_usize(part.end));
            let of = (index, &place.frame);
            let decoded = blocks::decode(&header.id, of, place.blocks, range, None, stored);
            let begin = (index * FRAME_BYTES + block * 4096) as usize;
            assert_eq!(decoded.expect("intact"), payload()[begin..begin + 4096], "{block}");
        }
    }

    #[test]
    fn raw_frames_of_version_3_are_read_in_blocks_and_no_others() {
        let (header, bytes) = of_version(ObjectVersion::V3);
        let table = FrameTable::of(&header, None);
        let packed = table.frame(0).expect("nine frames");
        assert_eq!((packed.blocks, packed.frame.codec), (Blocks::None, Codec::Lz4));
        read_in_blocks(&table, &header, &bytes, RAW);
    }

    #[test]
    fn all_frames_of_version_4_are_read_in_blocks() {
        let (header, bytes) = of_version(ObjectVersion::V4);
        let table = FrameTable::of(&header, None);
        let codecs =
            [0, RAW, LAST].map(|index| table.frame(index).expect("nine frames").frame.codec);
        assert_eq!(codecs, [Codec::Lz4Blocks, Codec::Raw, Codec::Lz4Blocks]);
        for index in 0..=LAST {
            read_in_blocks(&table, &header, &bytes, index);
        }
    }

    #[test]
    fn all_memory_of_a_table_is_counted() {
        let (header, _) = of_version(ObjectVersion::V4);
        let (frames, blocks) = (u64::from(LAST) + 1, 16);
        let tables = frames * 28 + frames * blocks * 4 + (frames - 1) * blocks * 2;
        let own = size_of::<FrameTable>() as u64;
        assert_eq!(FrameTable::of(&header, None).bytes(), own + tables);
    }

    #[test]
    fn frames_of_version_2_are_read_as_a_whole() {
        let (header, bytes) = of_version(ObjectVersion::V2);
        let table = FrameTable::of(&header, None);
        for index in [0, RAW] {
            let place = table.frame(index).expect("nine frames");
            assert_eq!(place.blocks, Blocks::None);
            let stored = bytes.slice(to_usize(place.at)..to_usize(place.end()));
            let whole = frame::decode(&header.id, index, &place.frame, place.blocks, None, stored);
            let begin = (index * FRAME_BYTES) as usize;
            assert_eq!(whole.expect("intact"), payload()[begin..begin + FRAME_BYTES as usize]);
        }
    }
}
