//! Blocks of 4 KiB of frames, from version 3 of an object on, so that a part of a frame can be read and verified
//! without the rest. In a plain object each block has a checksum in the header's table; in an encrypted one each is
//! sealed by itself, with its tag behind it. Both cover object, frame, block and length, so that a block of another
//! place never verifies. Those of compressed frames: `packed.rs`. Page: `docs/formats/object.md`.

use bytes::Bytes;
use weir_seal::{NONCE_BYTES, SealKey, TAG_BYTES, counter_nonce};

use crate::format::DecodeError;
use crate::format::frame::{Codec, Frame, identity};
use crate::format::packed::Packed;
use crate::format::version::ObjectVersion;
use crate::ids::ObjectId;
use crate::limits::{BLOCK_BYTES, FRAME_BYTES};

pub(super) const WHAT: &str = "a block of a frame";
pub(super) const BLOCK: usize = BLOCK_BYTES as usize;
/// Bytes of a sealed block: the last one of an object may be shorter.
const SEALED_BLOCK: usize = BLOCK + TAG_BYTES;

/// Blocks of a full frame.
pub(crate) const BLOCKS_PER_FRAME: u32 = FRAME_BYTES / BLOCK_BYTES;
const _: () = assert!(FRAME_BYTES.is_multiple_of(BLOCK_BYTES) && BLOCKS_PER_FRAME <= 255);

/// What is known of the blocks of a frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Blocks<'a> {
    /// The frame is verified as a whole: it is compressed as a whole, or its object is older than version 3.
    None,
    /// A checksum for each.
    Plain(&'a [u32]),
    /// Each is sealed.
    Sealed,
    /// Each is compressed by itself, and has a checksum.
    Packed(Packed<'a>),
}

impl<'a> Blocks<'a> {
    /// Of a frame, by what the header of its object has of them ([`ObjectVersion::in_tables`]).
    pub(crate) fn of(
        version: ObjectVersion,
        codec: Codec,
        sums: &'a [u32],
        lens: &'a [u16],
    ) -> Self {
        match codec {
            _ if !version.has_blocks(codec) => Self::None,
            Codec::Lz4Blocks => Self::Packed(Packed { lens, sums }),
            _ if sums.is_empty() => Self::Sealed,
            _ => Self::Plain(sums),
        }
    }
}

/// Blocks of a frame of so many bytes.
#[must_use]
pub fn count(raw_len: u32) -> u32 {
    raw_len.div_ceil(BLOCK_BYTES)
}

/// Bytes that a sealed frame takes.
pub(super) fn sealed_len(raw_len: u32) -> u32 {
    raw_len + count(raw_len) * u32::try_from(TAG_BYTES).expect("16")
}

pub(super) type Identity = [u8; 41];

/// What checksum and tag of a block cover besides its bytes.
fn block_identity(frame: &Identity, block: u32, len: usize) -> [u8; 49] {
    let block = if weir_device::mutant("block_index_not_covered") { 0 } else { block };
    let mut bytes = [0; 49];
    bytes[..41].copy_from_slice(frame);
    bytes[41..45].copy_from_slice(&block.to_le_bytes());
    bytes[45..].copy_from_slice(&u32::try_from(len).expect("at most 4 KiB").to_le_bytes());
    bytes
}

fn digest() -> crc_fast::Digest {
    crc_fast::Digest::new(crc_fast::CrcAlgorithm::Crc32Iscsi)
}

fn finished(digest: &crc_fast::Digest) -> u32 {
    u32::try_from(digest.finalize()).expect("a CRC of 32 bits")
}

/// The checksum of a block, of what is stored of it.
pub(super) fn sum_of(frame: &Identity, block: u32, stored: &[u8]) -> u32 {
    let mut digest = digest();
    digest.update(&block_identity(frame, block, stored.len()));
    digest.update(stored);
    finished(&digest)
}

/// Adds the checksums of all blocks of a frame, whose bytes are `raw` read as one run.
pub(super) fn sums_of(frame: &Identity, raw: &[Bytes], sums: &mut Vec<u32>) {
    let len: usize = raw.iter().map(Bytes::len).sum();
    let mut parts = raw.iter();
    let mut rest: &[u8] = &[];
    for (block, start) in (0..).zip((0..len).step_by(BLOCK)) {
        let mut missing = (len - start).min(BLOCK);
        let mut digest = digest();
        digest.update(&block_identity(frame, block, missing));
        while missing > 0 {
            if rest.is_empty() {
                rest = parts.next().expect("the parts are as long as all of them");
            }
            let (taken, behind) = rest.split_at(missing.min(rest.len()));
            digest.update(taken);
            (rest, missing) = (behind, missing - taken.len());
        }
        sums.push(finished(&digest));
    }
}

/// The checksum of a frame whose blocks have these.
pub(super) fn crc_of_sums(frame: &Identity, sums: &[u32]) -> u32 {
    let mut digest = digest();
    digest.update(frame);
    sums.iter().for_each(|sum| digest.update(&sum.to_le_bytes()));
    finished(&digest)
}

/// Verifies blocks that stand behind each other, the first of them the block `first` of its frame. There is a checksum
/// for each.
pub(super) fn verify(
    frame: &Identity,
    first: u32,
    sums: &[u32],
    bytes: &[u8],
) -> Result<(), DecodeError> {
    if bytes.len().div_ceil(BLOCK) != sums.len() {
        let (have, need) = (bytes.len() as u64, (sums.len() * BLOCK) as u64);
        return Err(DecodeError::Short { what: WHAT, have, need });
    }
    verify_each(frame, first, sums, bytes.chunks(BLOCK))
}

/// Verifies what is stored of some blocks, the first of them the block `first` of its frame. There is a checksum for
/// each.
pub(super) fn verify_each<'a>(
    frame: &Identity,
    first: u32,
    sums: &[u32],
    stored: impl Iterator<Item = &'a [u8]>,
) -> Result<(), DecodeError> {
    for ((block, bytes), stored) in (first..).zip(stored).zip(sums) {
        let (stored, computed) = (*stored, sum_of(frame, block, bytes));
        // The fuzzer must get behind the checksum.
        if stored != computed && !cfg!(fuzzing) && !weir_device::mutant("no_block_crc") {
            return Err(DecodeError::Checksum { what: WHAT, stored, computed });
        }
        if weir_device::mutant("first_block_vouches_for_all") {
            break;
        }
    }
    Ok(())
}

/// K1 of `weir_seal`: whole frames have 0 in the first counter, and blocks never.
fn nonce(index: u32, block: u32) -> [u8; NONCE_BYTES] {
    let block = if weir_device::mutant("block_nonce_used_again") { 0 } else { block };
    counter_nonce(1 + u64::from(block), index)
}

/// The blocks of a frame sealed one by one, each with its tag behind it.
pub(super) fn seal(key: &SealKey, index: u32, frame: &Identity, raw: &[Bytes]) -> Bytes {
    let len: usize = raw.iter().map(Bytes::len).sum();
    let mut out = Vec::with_capacity(len + len.div_ceil(BLOCK) * TAG_BYTES);
    let mut start = 0;
    let mut block = 0;
    let mut close = |out: &mut Vec<u8>| {
        let context = block_identity(frame, block, out.len() - start);
        let tag = key.seal(nonce(index, block), &context, &mut out[start..]);
        out.extend_from_slice(&tag);
        (start, block) = (out.len(), block + 1);
    };
    let mut room = BLOCK;
    for part in raw {
        let mut rest = &part[..];
        while !rest.is_empty() {
            let (taken, behind) = rest.split_at(room.min(rest.len()));
            out.extend_from_slice(taken);
            (rest, room) = (behind, room - taken.len());
            if room == 0 {
                close(&mut out);
                room = BLOCK;
            }
        }
    }
    if room < BLOCK {
        close(&mut out);
    }
    Bytes::from(out)
}

/// Opens sealed blocks that stand behind each other, the first of them the block `first` of its frame.
pub(super) fn open(
    key: &SealKey,
    index: u32,
    frame: &Identity,
    first: u32,
    stored: &[u8],
) -> Result<Vec<u8>, DecodeError> {
    let forged = || DecodeError::Forged { what: WHAT };
    let mut out =
        vec![0; stored.len().saturating_sub(stored.len().div_ceil(SEALED_BLOCK) * TAG_BYTES)];
    let mut rest = &mut out[..];
    for (block, stored) in (first..).zip(stored.chunks(SEALED_BLOCK)) {
        let (sealed, tag) = stored.split_last_chunk::<TAG_BYTES>().ok_or_else(forged)?;
        let (target, behind) = rest.split_at_mut_checked(sealed.len()).ok_or_else(forged)?;
        let context = block_identity(frame, block, sealed.len());
        key.open_into(nonce(index, block), &context, (sealed, tag), target)
            .map_err(|_| forged())?;
        rest = behind;
    }
    Ok(out)
}

/// Blocks of one frame, from the first to the last.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BlockRange {
    /// The first.
    pub first: u32,
    /// The last.
    pub last: u32,
}

impl BlockRange {
    /// Those of a frame of so many bytes.
    pub(super) fn all(raw_len: u32) -> Self {
        Self { first: 0, last: count(raw_len).saturating_sub(1) }
    }

    /// Bytes of the payload, from and to, within a frame of `raw_len` bytes.
    #[must_use]
    pub fn raw(self, raw_len: u32) -> (u32, u32) {
        (self.first * BLOCK_BYTES, ((self.last + 1) * BLOCK_BYTES).min(raw_len))
    }

    /// Bytes of what is stored of the frame, from and to; nothing where they cannot be read without the others.
    #[must_use]
    pub fn stored(self, frame: &Frame, blocks: Blocks<'_>) -> Option<(u32, u32)> {
        let (from, to) = self.raw(frame.raw_len);
        if from >= to {
            return None;
        }
        let tag = u32::try_from(TAG_BYTES).expect("16");
        match blocks {
            Blocks::None => None,
            Blocks::Plain(_) => Some((from, to)),
            Blocks::Sealed => Some((from + self.first * tag, to + (self.last + 1) * tag)),
            Blocks::Packed(packed) => packed.stored(self),
        }
    }
}

/// Verifies and decodes some blocks of a frame, which stand behind each other.
///
/// # Errors
/// [`DecodeError::Checksum`], [`DecodeError::Forged`], [`DecodeError::Short`] or [`DecodeError::Decompress`] when the
/// stored bytes are not those that were written.
pub fn decode(
    object: &ObjectId,
    (index, frame): (u32, &Frame),
    blocks: Blocks<'_>,
    range: BlockRange,
    key: Option<&SealKey>,
    stored: Bytes,
) -> Result<Bytes, DecodeError> {
    let identity = identity(object, index, frame.raw_len, frame.codec);
    let (from, to) = range.raw(frame.raw_len);
    if from >= to {
        return Err(DecodeError::Field { what: WHAT, field: "index", value: range.first.into() });
    }
    let raw = match (blocks, key) {
        (Blocks::Plain(sums), None) => {
            let sums = sums.get(range.first as usize..=range.last as usize);
            let wrong = DecodeError::Field { what: WHAT, field: "index", value: range.last.into() };
            verify(&identity, range.first, sums.ok_or(wrong)?, &stored)?;
            stored
        }
        (Blocks::Sealed, Some(key)) => {
            Bytes::from(open(key, index, &identity, range.first, &stored)?)
        }
        (Blocks::Packed(packed), None) => {
            packed.verify(&identity, range, &stored)?;
            packed.decode((index, frame), range, &stored)?
        }
        _ => return Err(DecodeError::Forged { what: WHAT }),
    };
    let (have, need) = (raw.len() as u64, u64::from(to - from));
    if have == need { Ok(raw) } else { Err(DecodeError::Short { what: WHAT, have, need }) }
}

#[cfg(test)]
mod tests {
    use weir_device::VolumeId;
    use weir_journal::Epoch;
    use weir_seal::{DataKey, Purpose};

    use super::*;
    use crate::format::frame::{self, BlockTables, Compression, Look, Making};
    use crate::ids::ObjectSeq;

    /// Three blocks and a bit, all blocks equal.
    const LEN: u32 = 3 * BLOCK_BYTES + 100;

    fn id(seq: u64) -> ObjectId {
        ObjectId { stream: VolumeId([1; 16]), seq: ObjectSeq(seq), epoch: Epoch(1) }
    }

    fn text() -> Bytes {
        Bytes::from([0x5a; LEN as usize].to_vec())
    }

    /// Three blocks that shrink, with one between them that does not, and a bit of one that does.
    fn mixed() -> Bytes {
        let mut random = crate::random::splitmix(1);
        let mut bytes = text().to_vec();
        bytes[BLOCK..2 * BLOCK].fill_with(|| random().to_le_bytes()[0]);
        Bytes::from(bytes)
    }

    fn key() -> SealKey {
        DataKey::draw(|bytes| bytes.fill(1)).derive(Purpose::Object, &[b"blocks"])
    }

    /// A frame, what the header has of its blocks, and what is stored of it.
    struct Made {
        frame: Frame,
        tables: BlockTables,
        key: Option<SealKey>,
        stored: Bytes,
    }

    impl Made {
        /// From parts of odd lengths.
        fn new(index: u32, raw: &Bytes, compression: Compression, key: Option<SealKey>) -> Self {
            let (mut stored, mut tables) = (Vec::new(), BlockTables::default());
            let raw: Vec<Bytes> = raw.chunks(3001).map(Bytes::copy_from_slice).collect();
            let making =
                Making { compression, key: key.as_ref(), in_blocks: true, packs: key.is_none() };
            let frame = frame::encode(&id(1), index, &raw, making, &mut stored, &mut tables);
            Self { frame, tables, key, stored: Bytes::from(stored.concat()) }
        }

        /// A raw and a sealed one, and one that is compressed.
        fn all(index: u32, raw: &Bytes) -> impl Iterator<Item = Self> {
            let kinds = [
                (Compression::None, None),
                (Compression::None, Some(key())),
                (Compression::Lz4, None),
            ];
            kinds.into_iter().map(move |(kind, key)| Self::new(index, raw, kind, key))
        }

        fn blocks(&self) -> Blocks<'_> {
            let BlockTables { sums, lens } = &self.tables;
            Blocks::of(ObjectVersion::V4, self.frame.codec, sums, lens)
        }

        fn whole(&self, stored: Bytes) -> Result<Bytes, DecodeError> {
            frame::decode(&id(1), 3, &self.frame, self.blocks(), self.key.as_ref(), stored)
        }

        /// The blocks of a range, out of these bytes of the frame.
        fn part(&self, range: BlockRange, stored: &Bytes) -> Result<Bytes, DecodeError> {
            let (from, to) = range.stored(&self.frame, self.blocks()).expect("in blocks");
            let stored = stored.slice(from as usize..to as usize);
            let of = (3, &self.frame);
            decode(&id(1), of, self.blocks(), range, self.key.as_ref(), stored)
        }
    }

    fn all_ranges() -> impl Iterator<Item = BlockRange> {
        (0..4).flat_map(|first| (first..4).map(move |last| BlockRange { first, last }))
    }

    #[test]
    fn every_run_of_blocks_is_read_alone_and_fails_for_its_own_bytes_only() {
        let mut packed = 0;
        for raw in [text(), mixed()] {
            for made in Made::all(3, &raw) {
                packed += usize::from(made.frame.codec == Codec::Lz4Blocks);
                read_alone(&made, &raw);
            }
        }
        assert_eq!(packed, 2);
    }

    #[test]
    fn blocks_behind_the_frame_are_refused() {
        for made in Made::all(3, &text()) {
            for (first, last) in [(4, 4), (255, 255), (2, 1)] {
                let (of, range) = ((3, &made.frame), BlockRange { first, last });
                let (blocks, key) = (made.blocks(), made.key.as_ref());
                let none = decode(&id(1), of, blocks, range, key, Bytes::new());
                assert!(matches!(none, Err(DecodeError::Field { field: "index", .. })), "{none:?}");
            }
        }
    }

    fn read_alone(made: &Made, raw: &Bytes) {
        let Made { frame, stored, .. } = made;
        assert_eq!((frame.raw_len, frame.stored_len as usize), (LEN, stored.len()));
        assert_eq!(made.whole(stored.clone()).as_ref(), Ok(raw));
        for range in all_ranges() {
            let (from, to) = range.raw(LEN);
            assert_eq!(made.part(range, stored), Ok(raw.slice(from as usize..to as usize)));
        }
        for block in 0..4 {
            let own = BlockRange { first: block, last: block };
            let (from, to) = own.stored(frame, made.blocks()).expect("in blocks");
            for at in [from, to - 1] {
                let mut bytes = stored.to_vec();
                bytes[at as usize] ^= 1;
                let bytes = Bytes::from(bytes);
                for range in all_ranges() {
                    let holds = (range.first..=range.last).contains(&block);
                    assert_eq!(made.part(range, &bytes).is_err(), holds, "{block} in {range:?}");
                }
                let look = Look::Decode(made.key.as_ref());
                let damage = frame::damage(&id(1), (3, frame), made.blocks(), look, &bytes);
                let ranges: Vec<_> = damage.into_iter().map(|(range, _)| range).collect();
                assert_eq!(ranges, [own.raw(LEN)], "and a check says so");
                made.whole(bytes.clone()).unwrap_err();
                // Checksums alone find it as well: of blocks, or of the frame where blocks have none.
                let found =
                    frame::damage(&id(1), (3, frame), made.blocks(), Look::Checksums, &bytes);
                assert!(!found.is_empty());
                // Cut short within the block.
                let short = stored.slice(..to as usize - 1);
                let found = frame::damage(&id(1), (3, frame), made.blocks(), look, &short);
                let ranges: Vec<_> = found.into_iter().map(|(range, _)| range).collect();
                let lost = (block..4).map(|first| BlockRange { first, last: first }.raw(LEN));
                assert_eq!(ranges, lost.collect::<Vec<_>>());
            }
        }
    }

    #[test]
    fn blocks_are_compressed_one_by_one_and_stay_as_they_are_where_they_do_not_shrink() {
        let made = Made::new(3, &mixed(), Compression::Lz4, None);
        let [first, noise, third, bit] = made.tables.lens[..] else { panic!("four blocks") };
        assert_eq!((made.frame.codec, noise as usize), (Codec::Lz4Blocks, BLOCK));
        assert!(first < 100 && first == third && bit < 100);
        let sum: u32 = made.tables.lens.iter().map(|len| u32::from(*len)).sum();
        assert_eq!(made.frame.stored_len, sum, "nothing lies between them");
        let sealed = Made::new(3, &mixed(), Compression::Lz4, Some(key()));
        assert_eq!((sealed.frame.codec, sealed.tables.lens), (Codec::Lz4, vec![]));
        // A frame that shrinks by less than an eighth is raw, and has no lengths.
        let noise = mixed().slice(BLOCK..2 * BLOCK);
        let little = Bytes::from([&noise[..], &noise, &noise, &text()[..100]].concat());
        let raw = Made::new(3, &little, Compression::Lz4, None);
        assert_eq!((raw.frame.codec, raw.tables.lens), (Codec::Raw, vec![]));
    }

    /// The blocks are equal, and one may not stand for another.
    #[test]
    fn a_block_of_another_object_frame_place_or_length_does_not_verify() {
        for mut made in Made::all(3, &text()) {
            let range = |first| BlockRange { first, last: first };
            let (from, to) = range(1).stored(&made.frame, made.blocks()).expect("in blocks");
            let block = made.stored.slice(from as usize..to as usize);
            // The checksum at its place, as if the table had been changed along with it.
            if let Some(moved) = made.tables.sums.get(1).copied() {
                made.tables.sums.fill(moved);
            }
            let read = |seq, index, range, bytes: &Bytes| {
                let of = (index, &made.frame);
                decode(&id(seq), of, made.blocks(), range, made.key.as_ref(), bytes.clone())
            };
            read(1, 3, range(1), &block).unwrap();
            read(2, 3, range(1), &block).unwrap_err();
            read(1, 2, range(1), &block).unwrap_err();
            read(1, 3, range(2), &block).unwrap_err();
            read(1, 3, range(1), &block.slice(1..)).unwrap_err();
            read(1, 3, range(1), &Bytes::new()).unwrap_err();
            let longer = Bytes::from([&block[..], &block[..]].concat());
            read(1, 3, range(1), &longer).unwrap_err();
            // Cut where another version of the format, or another kind, would cut it, and taken for it.
            let of = (3, &made.frame);
            let lens = [block.len().try_into().expect("at most 4 KiB and a tag"); 4];
            let others = [
                Blocks::Plain(&[0; 4]),
                Blocks::Sealed,
                Blocks::Packed(Packed { lens: &lens, sums: &[0; 4] }),
                Blocks::None,
            ];
            for other in others {
                let kind = std::mem::discriminant(&other);
                if kind != std::mem::discriminant(&made.blocks()) {
                    let key = made.key.as_ref();
                    decode(&id(1), of, other, range(1), key, block.clone()).unwrap_err();
                }
            }
            let Made { frame, key, stored, .. } = &made;
            frame::decode(&id(1), 3, frame, Blocks::None, key.as_ref(), stored.clone())
                .unwrap_err();
            // A block that is stored as it is, as another codec has it, is none of this one.
            let codec = if frame.codec == Codec::Raw { Codec::Lz4Blocks } else { Codec::Raw };
            let frame = Frame { codec, ..*frame };
            let key = key.as_ref();
            decode(&id(1), (3, &frame), made.blocks(), range(1), key, block).unwrap_err();
        }
    }

    /// Lengths come out of a header, whose checksum anybody can make.
    #[test]
    fn lengths_that_are_not_those_of_the_blocks_are_refused() {
        let made = Made::new(3, &mixed(), Compression::Lz4, None);
        let changes: [fn(&mut Vec<u16>); 9] = [
            |lens| lens[0] -= 1,
            |lens| lens[0] += 1,
            |lens| lens[0] = 0,
            |lens| lens.swap(0, 1),
            |lens| (lens[0], lens[2]) = (lens[0] + 1, lens[2] - 1),
            |lens| lens[3] = 101,
            |lens| lens[1] += 1,
            |lens| (lens[0], lens[1]) = (lens[0] - 1, lens[1] + 1),
            |lens| lens.truncate(3),
        ];
        let Blocks::Packed(packed) = made.blocks() else { panic!("compressed") };
        assert!(packed.fits(&made.frame));
        let mut refused = 0;
        for change in changes {
            let mut lens = made.tables.lens.clone();
            change(&mut lens);
            let packed = Packed { lens: &lens, ..packed };
            let (blocks, stored) = (Blocks::Packed(packed), made.stored.clone());
            frame::decode(&id(1), 3, &made.frame, blocks, None, stored).unwrap_err();
            refused += usize::from(!packed.fits(&made.frame));
        }
        assert_eq!(refused, 7, "what adds up is found by the checksums");
    }

    /// Stored as it is, or as what it is compressed to: only the length tells.
    #[test]
    fn a_block_that_is_compressed_to_its_own_length_comes_back() {
        let packed = |block: &[u8]| lz4_flex::block::compress(block).len();
        let noise = mixed().slice(BLOCK..2 * BLOCK);
        let mut found = 0;
        for len in [100, 1000, BLOCK] {
            let block = (0..len).map(|zeroes| {
                let mut block = noise[..len].to_vec();
                block[len - zeroes..].fill(0);
                block
            });
            for block in block.filter(|block| packed(block) == block.len()) {
                let raw = Bytes::from([&text()[..3 * BLOCK], &block].concat());
                for made in Made::all(3, &raw) {
                    assert_eq!(made.whole(made.stored.clone()).as_ref(), Ok(&raw));
                }
                found += 1;
            }
        }
        assert!(found > 0);
    }

    /// A checksum says what is stored, not what it decodes to. A check finds that out.
    #[test]
    fn a_block_that_decodes_to_too_few_bytes_is_refused() {
        let block = vec![0x5a; BLOCK];
        for (len, is_whole) in [(BLOCK, true), (BLOCK - 1, false)] {
            let stored = Bytes::from(lz4_flex::block::compress(&block[..len]));
            let lens = [u16::try_from(stored.len()).unwrap()];
            let identity = identity(&id(1), 3, BLOCK_BYTES, Codec::Lz4Blocks);
            let sums = [sum_of(&identity, 0, &stored)];
            let stored_len = u32::try_from(stored.len()).unwrap();
            let frame = Frame { stored_len, raw_len: BLOCK_BYTES, crc: 0, codec: Codec::Lz4Blocks };
            let packed = Packed { lens: &lens, sums: &sums };
            assert!(packed.fits(&frame));
            let blocks = Blocks::Packed(packed);
            let read = frame::decode(&id(1), 3, &frame, blocks, None, stored.clone());
            assert_eq!(read.is_ok(), is_whole, "{read:?}");
            let damage = |look| frame::damage(&id(1), (3, &frame), blocks, look, &stored);
            assert!(damage(Look::Checksums).is_empty());
            assert_eq!(damage(Look::Decode(None)).is_empty(), is_whole);
        }
    }

    #[test]
    fn equal_blocks_of_an_object_are_sealed_into_different_bytes() {
        let mut seen = std::collections::BTreeSet::new();
        for index in 0..4 {
            let made = Made::new(index, &text(), Compression::None, Some(key()));
            let whole = |block: &&[u8]| block.len() == SEALED_BLOCK;
            for block in made.stored.chunks(SEALED_BLOCK).filter(whole) {
                assert!(seen.insert(block[..BLOCK].to_vec()), "a nonce sealed two texts");
            }
        }
        assert_eq!(seen.len(), 12);
    }
}
