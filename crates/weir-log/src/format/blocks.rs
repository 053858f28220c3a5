//! Blocks of 4 KiB of raw frames, from version 3 of an object on, so that a part of a frame can be read and verified
//! without the rest. In a plain object each block has a checksum in the header's table; in an encrypted one each is
//! sealed by itself, with its tag behind it. Both cover object, frame, block and length, so that a block of another
//! place never verifies. Page: `docs/formats/object.md`.

use bytes::Bytes;
use weir_seal::{NONCE_BYTES, SealKey, TAG_BYTES, counter_nonce};

use crate::format::DecodeError;
use crate::format::frame::{Codec, Frame, identity};
use crate::ids::ObjectId;
use crate::limits::{BLOCK_BYTES, FRAME_BYTES};

const WHAT: &str = "a block of a frame";
const BLOCK: usize = BLOCK_BYTES as usize;
/// Bytes of a sealed block: the last one of an object may be shorter.
const SEALED_BLOCK: usize = BLOCK + TAG_BYTES;

/// Blocks of a full frame.
pub(crate) const BLOCKS_PER_FRAME: u32 = FRAME_BYTES / BLOCK_BYTES;
const _: () = assert!(FRAME_BYTES.is_multiple_of(BLOCK_BYTES) && BLOCKS_PER_FRAME <= 255);

/// What is known of the blocks of a frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Blocks<'a> {
    /// The frame is verified as a whole: it is compressed, or its object is older than version 3.
    None,
    /// A checksum for each.
    Plain(&'a [u32]),
    /// Each is sealed.
    Sealed,
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

type Identity = [u8; 41];

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
    for ((block, bytes), stored) in (first..).zip(bytes.chunks(BLOCK)).zip(sums) {
        let mut digest = digest();
        digest.update(&block_identity(frame, block, bytes.len()));
        digest.update(bytes);
        let (stored, computed) = (*stored, finished(&digest));
        if stored != computed && !weir_device::mutant("no_block_crc") {
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

/// Blocks of one raw frame, from the first to the last.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BlockRange {
    /// The first.
    pub first: u32,
    /// The last.
    pub last: u32,
}

impl BlockRange {
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
        }
    }
}

/// Verifies and decodes some blocks of a raw frame, which stand behind each other.
///
/// # Errors
/// [`DecodeError::Checksum`], [`DecodeError::Forged`], [`DecodeError::Short`] when the stored bytes are not those that
/// were written.
pub fn decode(
    object: &ObjectId,
    (index, frame): (u32, &Frame),
    blocks: Blocks<'_>,
    range: BlockRange,
    key: Option<&SealKey>,
    stored: Bytes,
) -> Result<Bytes, DecodeError> {
    let identity = identity(object, index, frame.raw_len, Codec::Raw);
    let (from, to) = range.raw(frame.raw_len);
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
        _ => return Err(DecodeError::Forged { what: WHAT }),
    };
    let (have, need) = (raw.len() as u64, u64::from(to.saturating_sub(from)));
    if have == need { Ok(raw) } else { Err(DecodeError::Short { what: WHAT, have, need }) }
}

#[cfg(test)]
mod tests {
    use weir_device::VolumeId;
    use weir_journal::Epoch;
    use weir_seal::{DataKey, Purpose};

    use super::*;
    use crate::format::frame::{self, Compression, Making};
    use crate::ids::ObjectSeq;

    /// Three blocks and a bit, all blocks equal.
    const LEN: u32 = 3 * BLOCK_BYTES + 100;

    fn id(seq: u64) -> ObjectId {
        ObjectId { stream: VolumeId([1; 16]), seq: ObjectSeq(seq), epoch: Epoch(1) }
    }

    fn text() -> Bytes {
        Bytes::from([0x5a; LEN as usize].to_vec())
    }

    fn key() -> SealKey {
        DataKey::draw(|bytes| bytes.fill(1)).derive(Purpose::Object, &[b"blocks"])
    }

    /// A frame in parts of odd lengths, its checksums, and what is stored of it.
    fn made(index: u32, key: Option<&SealKey>) -> (Frame, Vec<u32>, Bytes) {
        let (mut stored, mut sums) = (Vec::new(), Vec::new());
        let raw: Vec<Bytes> = text().chunks(3001).map(Bytes::copy_from_slice).collect();
        let making = Making { compression: Compression::None, key, in_blocks: true };
        let frame = frame::encode(&id(1), index, &raw, making, &mut stored, &mut sums);
        (frame, sums, Bytes::from(stored.concat()))
    }

    fn blocks_of(sums: &[u32]) -> Blocks<'_> {
        if sums.is_empty() { Blocks::Sealed } else { Blocks::Plain(sums) }
    }

    fn all_ranges() -> impl Iterator<Item = BlockRange> {
        (0..4).flat_map(|first| (first..4).map(move |last| BlockRange { first, last }))
    }

    #[test]
    fn every_run_of_blocks_is_read_alone_and_fails_for_its_own_bytes_only() {
        let key = key();
        for key in [None, Some(&key)] {
            let (frame, sums, stored) = made(3, key);
            let blocks = blocks_of(&sums);
            assert_eq!(frame.raw_len, LEN);
            assert_eq!(stored.len(), frame.stored_len as usize);
            assert_eq!(key.is_some(), frame.stored_len == sealed_len(LEN));
            let whole = frame::decode(&id(1), 3, &frame, blocks, key, stored.clone());
            assert_eq!(whole.unwrap(), text());
            let part = |range: BlockRange, stored: &Bytes| {
                let (from, to) = range.stored(&frame, blocks).unwrap();
                let stored = stored.slice(from as usize..to as usize);
                decode(&id(1), (3, &frame), blocks, range, key, stored)
            };
            for range in all_ranges() {
                let (from, to) = range.raw(LEN);
                assert_eq!(part(range, &stored).unwrap(), text().slice(from as usize..to as usize));
            }
            for block in 0..4 {
                let own = BlockRange { first: block, last: block };
                let (from, to) = own.stored(&frame, blocks).unwrap();
                for at in [from, to - 1] {
                    let mut bytes = stored.to_vec();
                    bytes[at as usize] ^= 1;
                    let bytes = Bytes::from(bytes);
                    for range in all_ranges() {
                        let holds = (range.first..=range.last).contains(&block);
                        assert_eq!(part(range, &bytes).is_err(), holds, "{block} in {range:?}");
                    }
                    let damage = frame::damage(&id(1), (3, &frame), blocks, key, &bytes);
                    let ranges: Vec<_> = damage.into_iter().map(|(range, _)| range).collect();
                    assert_eq!(ranges, [own.raw(LEN)], "and a check says so");
                    frame::decode(&id(1), 3, &frame, blocks, key, bytes).unwrap_err();
                }
            }
        }
    }

    /// The blocks are equal, and one may not stand for another.
    #[test]
    fn a_block_of_another_object_frame_place_or_length_does_not_verify() {
        let key = key();
        for key in [None, Some(&key)] {
            let (frame, sums, stored) = made(3, key);
            let blocks = blocks_of(&sums);
            let range = |first| BlockRange { first, last: first };
            let (from, to) = range(1).stored(&frame, blocks).unwrap();
            let block = stored.slice(from as usize..to as usize);
            let read = |seq, index, range, bytes: &Bytes| {
                // The checksum at its place, as if the table had been changed along with it.
                let moved = [sums.get(1).copied().unwrap_or_default(); 4];
                let blocks = blocks_of(&moved[..sums.len()]);
                decode(&id(seq), (index, &frame), blocks, range, key, bytes.clone())
            };
            read(1, 3, range(1), &block).unwrap();
            read(2, 3, range(1), &block).unwrap_err();
            read(1, 2, range(1), &block).unwrap_err();
            read(1, 3, range(2), &block).unwrap_err();
            read(1, 3, range(1), &block.slice(1..)).unwrap_err();
            read(1, 3, range(1), &Bytes::new()).unwrap_err();
            let longer = Bytes::from([&block[..], &block[..]].concat());
            read(1, 3, range(1), &longer).unwrap_err();
            // Cut where another version of the format, or the other kind, would cut it.
            let other = if key.is_some() { Blocks::Plain(&[0; 4]) } else { Blocks::Sealed };
            decode(&id(1), (3, &frame), other, range(1), key, block.clone()).unwrap_err();
            frame::decode(&id(1), 3, &frame, Blocks::None, key, stored.clone()).unwrap_err();
        }
    }

    #[test]
    fn equal_blocks_of_an_object_are_sealed_into_different_bytes() {
        let key = key();
        let mut seen = std::collections::BTreeSet::new();
        for index in 0..4 {
            let (_, _, stored) = made(index, Some(&key));
            for block in stored.chunks(SEALED_BLOCK).filter(|block| block.len() == SEALED_BLOCK) {
                assert!(seen.insert(block[..BLOCK].to_vec()), "a nonce sealed two texts");
            }
        }
        assert_eq!(seen.len(), 12);
    }
}
