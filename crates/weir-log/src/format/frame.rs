//! Frames: the payload of an object in runs of 64 KiB, each raw or compressed, each with a checksum that covers its
//! identity, so that a frame of another object, place or length never verifies. In an encrypted object each is sealed,
//! and its tag, which covers the same identity, is behind it. From version 3 on a raw frame is verified, or sealed,
//! block by block (`blocks.rs`), and from version 4 on it may be compressed so (`packed.rs`). Page:
//! `docs/formats/object.md`.

use bytes::Bytes;
use weir_seal::{SealKey, TAG_BYTES, counter_nonce};

use crate::format::DecodeError;
use crate::format::blocks::{self, BlockRange, Blocks};
use crate::format::packed;
use crate::ids::ObjectId;
use crate::limits::FRAME_BYTES;

/// How a frame's bytes are stored.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Codec {
    /// As they are.
    Raw,
    /// One LZ4 block.
    Lz4,
    /// One Zstandard frame.
    Zstd,
    /// LZ4, each block of 4 KiB by itself. From version 4 of an object on.
    Lz4Blocks,
}

impl Codec {
    /// Number on disk.
    #[must_use]
    pub fn code(self) -> u8 {
        match self {
            Self::Raw => 0,
            Self::Lz4 => 1,
            Self::Zstd => 2,
            Self::Lz4Blocks => 3,
        }
    }

    /// From the number on disk.
    #[must_use]
    pub fn from_code(code: u8) -> Option<Self> {
        match code {
            0 => Some(Self::Raw),
            1 => Some(Self::Lz4),
            2 => Some(Self::Zstd),
            3 => Some(Self::Lz4Blocks),
            _ => None,
        }
    }
}

/// What the sealing of an object tries on its frames.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub enum Compression {
    /// Store raw.
    None,
    /// LZ4 where a sample shrinks by an eighth.
    #[default]
    Lz4,
    /// Zstandard at level 1 where a sample shrinks by an eighth.
    Zstd,
}

/// An entry of the frame table.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Frame {
    /// Bytes in the object.
    pub stored_len: u32,
    /// Bytes of payload; [`FRAME_BYTES`] but for the last frame.
    pub raw_len: u32,
    /// CRC32C of identity and stored bytes; of a frame whose blocks have checksums, of identity and these.
    pub crc: u32,
    /// How it is stored.
    pub codec: Codec,
}

/// What checksum and tag cover besides the bytes.
pub(super) fn identity(object: &ObjectId, index: u32, raw_len: u32, codec: Codec) -> [u8; 41] {
    let mut bytes = [0; 41];
    bytes[..16].copy_from_slice(&object.stream.0);
    bytes[16..24].copy_from_slice(&object.seq.0.to_le_bytes());
    bytes[24..32].copy_from_slice(&object.epoch.0.to_le_bytes());
    bytes[32..36].copy_from_slice(&index.to_le_bytes());
    bytes[36..40].copy_from_slice(&raw_len.to_le_bytes());
    bytes[40] = codec.code();
    bytes
}

fn frame_crc(identity: &[u8; 41], stored: &[impl AsRef<[u8]>]) -> u32 {
    let mut digest = crc_fast::Digest::new(crc_fast::CrcAlgorithm::Crc32Iscsi);
    digest.update(identity);
    for part in stored {
        digest.update(part.as_ref());
    }
    u32::try_from(digest.finalize()).expect("a CRC of 32 bits")
}

/// The checksum of a frame whose blocks have these.
pub(super) fn crc_of_sums(object: &ObjectId, index: u32, frame: &Frame, sums: &[u32]) -> u32 {
    blocks::crc_of_sums(&identity(object, index, frame.raw_len, frame.codec), sums)
}

pub(super) fn shrinks_enough(stored: usize, raw: usize) -> bool {
    stored < raw && stored <= raw - raw / 8
}

/// Bytes of all parts together.
pub(super) fn len_of(parts: &[Bytes]) -> usize {
    parts.iter().map(Bytes::len).sum()
}

/// The bytes as one run.
fn joined(raw: &[Bytes]) -> Bytes {
    match raw {
        [one] => one.clone(),
        many => Bytes::from(many.concat()),
    }
}

/// What a frame is compressed to, unless it does not shrink by an eighth. How many bytes each of its blocks takes is
/// added to `lens`, where they are compressed one by one.
fn compress(making: Making<'_>, raw: &[Bytes], lens: &mut Vec<u16>) -> Option<(Codec, Vec<u8>)> {
    let (codec, stored) = match making.compression {
        Compression::None => return None,
        Compression::Lz4 if making.packs => {
            return Some((Codec::Lz4Blocks, packed::pack(&joined(raw), lens)?));
        }
        Compression::Lz4 => (Codec::Lz4, lz4_flex::block::compress(&joined(raw))),
        Compression::Zstd => (Codec::Zstd, zstd::bulk::compress(&joined(raw), 1).ok()?),
    };
    shrinks_enough(stored.len(), len_of(raw)).then_some((codec, stored))
}

/// `bytes` sealed under the key of their object, with their tag behind them.
fn seal(key: &SealKey, index: u32, identity: &[u8; 41], mut bytes: Vec<u8>) -> Bytes {
    let tag = key.seal(nonce(index), identity, &mut bytes);
    bytes.extend_from_slice(&tag);
    Bytes::from(bytes)
}

/// K1 of `weir_seal`: the key is of this object alone, by its random salt, and an object is encoded once.
fn nonce(index: u32) -> [u8; weir_seal::NONCE_BYTES] {
    counter_nonce(0, if weir_device::mutant("frame_nonce_used_again") { 0 } else { index })
}

/// What frames become.
#[derive(Clone, Copy, Debug)]
pub struct Making<'a> {
    /// What is tried on them.
    pub compression: Compression,
    /// The key of their object, if it is encrypted.
    pub key: Option<&'a SealKey>,
    /// Whether raw ones are verified, or sealed, block by block.
    pub in_blocks: bool,
    /// Whether LZ4 compresses each block by itself, which it does in no encrypted object.
    pub packs: bool,
}

/// What the header has of the blocks of frames, frame by frame.
#[derive(Debug, Default)]
pub struct BlockTables {
    /// Checksums, of frames whose blocks have any.
    pub sums: Vec<u32>,
    /// Bytes that each takes, of frames whose blocks are compressed one by one.
    pub lens: Vec<u16>,
}

/// Encodes the frame whose bytes are `raw`, read as one run, and adds what is stored of it to `stored`: the parts as
/// they are, unless it shrinks or is sealed. What the header has of its blocks goes to `tables`.
pub fn encode(
    object: &ObjectId,
    index: u32,
    raw: &[Bytes],
    making: Making<'_>,
    stored: &mut Vec<Bytes>,
    tables: &mut BlockTables,
) -> Frame {
    let Making { key, in_blocks, .. } = making;
    let raw_len = u32::try_from(len_of(raw)).expect("a frame is at most 64 KiB");
    assert!(raw_len <= FRAME_BYTES, "a frame is at most 64 KiB");
    let (before, sums, lens) = (stored.len(), tables.sums.len(), tables.lens.len());
    let compressed = compress(making, raw, &mut tables.lens);
    let codec = compressed.as_ref().map_or(Codec::Raw, |(codec, _)| *codec);
    let identity = identity(object, index, raw_len, codec);
    match (compressed, key) {
        (Some((Codec::Lz4Blocks, bytes)), None) => {
            packed::sums_of(&identity, &tables.lens[lens..], &bytes, &mut tables.sums);
            stored.push(Bytes::from(bytes));
        }
        (Some((_, bytes)), None) => stored.push(Bytes::from(bytes)),
        (Some((_, bytes)), Some(key)) => stored.push(seal(key, index, &identity, bytes)),
        (None, None) => {
            stored.extend_from_slice(raw);
            if in_blocks {
                blocks::sums_of(&identity, raw, &mut tables.sums);
            }
        }
        (None, Some(key)) if in_blocks => stored.push(blocks::seal(key, index, &identity, raw)),
        (None, Some(key)) => {
            let mut bytes = Vec::with_capacity(raw_len as usize + TAG_BYTES);
            raw.iter().for_each(|part| bytes.extend_from_slice(part));
            stored.push(seal(key, index, &identity, bytes));
        }
    }
    let stored = &stored[before..];
    let stored_len = u32::try_from(len_of(stored)).expect("stored only where it shrinks");
    let crc = match &tables.sums[sums..] {
        [] => frame_crc(&identity, stored),
        sums => blocks::crc_of_sums(&identity, sums),
    };
    Frame { stored_len, raw_len, crc, codec }
}

/// Whether a sample of the payload shrinks by an eighth: most of the frames at its begin, middle and end. Of fewer
/// than three frames each is tried by itself.
#[must_use]
pub fn sample_shrinks(frames: &[Vec<Bytes>], making: Making<'_>) -> bool {
    if making.compression == Compression::None {
        return false;
    }
    if frames.len() < 3 {
        return true;
    }
    let picks = [0, frames.len() / 2, frames.len() - 1];
    let shrinks = |index: &&usize| compress(making, &frames[**index], &mut Vec::new()).is_some();
    picks.iter().filter(shrinks).count() >= 2
}

/// Verifies the checksums of one frame, which needs no key. `blocks` says what is known of its blocks.
///
/// # Errors
/// [`DecodeError::Checksum`] when the stored bytes are not those that were written.
pub fn verify(
    object: &ObjectId,
    index: u32,
    frame: &Frame,
    blocks: Blocks<'_>,
    stored: &[u8],
) -> Result<(), DecodeError> {
    let identity = identity(object, index, frame.raw_len, frame.codec);
    match blocks {
        Blocks::Plain(sums) => return blocks::verify(&identity, 0, sums, stored),
        Blocks::Packed(packed) => {
            return packed.verify(&identity, BlockRange::all(frame.raw_len), stored);
        }
        Blocks::None | Blocks::Sealed => {}
    }
    let computed = frame_crc(&identity, &[stored]);
    // The fuzzer must get behind the checksum.
    if computed != frame.crc && !cfg!(fuzzing) && !weir_device::mutant("no_frame_crc") {
        return Err(DecodeError::Checksum { what: "a frame", stored: frame.crc, computed });
    }
    Ok(())
}

/// The bytes that were sealed.
fn open(
    key: &SealKey,
    object: &ObjectId,
    index: u32,
    frame: &Frame,
    stored: &Bytes,
) -> Result<Bytes, DecodeError> {
    let forged = DecodeError::Forged { what: "a frame" };
    let (sealed, tag) = stored.split_last_chunk::<TAG_BYTES>().ok_or_else(|| forged.clone())?;
    let mut bytes = vec![0; sealed.len()];
    let identity = identity(object, index, frame.raw_len, frame.codec);
    key.open_into(nonce(index), &identity, (sealed, tag), &mut bytes).map_err(|_| forged)?;
    Ok(Bytes::from(bytes))
}

/// Verifies and decodes one frame, with the key of its object if that is encrypted.
///
/// # Errors
/// [`DecodeError::Checksum`], [`DecodeError::Forged`] or [`DecodeError::Decompress`] when the stored bytes are not
/// those that were written.
pub fn decode(
    object: &ObjectId,
    index: u32,
    frame: &Frame,
    blocks: Blocks<'_>,
    key: Option<&SealKey>,
    stored: Bytes,
) -> Result<Bytes, DecodeError> {
    verify(object, index, frame, blocks, &stored)?;
    if let Blocks::Packed(packed) = blocks {
        return packed.decode((index, frame), BlockRange::all(frame.raw_len), &stored);
    }
    let stored = match key {
        Some(key) if matches!(blocks, Blocks::Sealed) => {
            let identity = identity(object, index, frame.raw_len, frame.codec);
            Bytes::from(blocks::open(key, index, &identity, 0, &stored)?)
        }
        Some(key) => open(key, object, index, frame, &stored)?,
        None => stored,
    };
    let raw_len = usize::try_from(frame.raw_len).expect("at most 64 KiB");
    let raw = match frame.codec {
        Codec::Raw => stored,
        // Without what the header says of its blocks it cannot be decoded.
        Codec::Lz4Blocks => return Err(DecodeError::Decompress { index }),
        Codec::Lz4 => Bytes::from(
            lz4_flex::block::decompress(&stored, raw_len)
                .map_err(|_| DecodeError::Decompress { index })?,
        ),
        Codec::Zstd => Bytes::from(
            zstd::bulk::decompress(&stored, raw_len)
                .map_err(|_| DecodeError::Decompress { index })?,
        ),
    };
    if raw.len() == raw_len { Ok(raw) } else { Err(DecodeError::Decompress { index }) }
}

/// How closely a frame is looked at.
#[derive(Clone, Copy, Debug)]
pub enum Look<'a> {
    /// Its checksums: all that can be told of an encrypted one without a key.
    Checksums,
    /// Whether it decodes, with the key of its object if that is encrypted.
    Decode(Option<&'a SealKey>),
}

/// What of a frame cannot be read, as ranges of its bytes with what is wrong there: blocks where it has any, else all
/// of it. `stored` is what there is of it, which may be cut short.
pub fn damage(
    object: &ObjectId,
    (index, frame): (u32, &Frame),
    blocks: Blocks<'_>,
    look: Look<'_>,
    stored: &Bytes,
) -> Vec<((u32, u32), DecodeError)> {
    let (have, need) = (stored.len() as u64, u64::from(frame.stored_len));
    let short = DecodeError::Short { what: "a frame", have, need };
    let found = match look {
        _ if have < need => Err(short.clone()),
        Look::Checksums => verify(object, index, frame, blocks, stored),
        Look::Decode(key) => decode(object, index, frame, blocks, key, stored.clone()).map(drop),
    };
    let Err(whole) = found else { return Vec::new() };
    let key = match look {
        Look::Checksums => None,
        Look::Decode(key) => key,
    };
    let in_blocks = match blocks {
        Blocks::None => 0,
        Blocks::Sealed if key.is_none() => 0,
        Blocks::Plain(_) | Blocks::Sealed | Blocks::Packed(_) => blocks::count(frame.raw_len),
    };
    let mut damaged = Vec::new();
    for block in 0..in_blocks {
        let range = BlockRange { first: block, last: block };
        let Some((from, to)) = range.stored(frame, blocks) else { continue };
        let error = if u64::from(to) > have {
            Some(short.clone())
        } else {
            let stored = stored.slice(from as usize..to as usize);
            blocks::decode(object, (index, frame), blocks, range, key, stored).err()
        };
        damaged.extend(error.map(|error| (range.raw(frame.raw_len), error)));
    }
    if damaged.is_empty() {
        damaged.push(((0, frame.raw_len), whole));
    }
    damaged
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ids::ObjectSeq;
    use weir_device::VolumeId;
    use weir_journal::Epoch;

    fn object(seq: u64) -> ObjectId {
        ObjectId { stream: VolumeId([1; 16]), seq: ObjectSeq(seq), epoch: Epoch(1) }
    }

    /// A frame of the object 1 as version 2 knows it.
    fn whole(
        index: u32,
        raw: &[Bytes],
        compression: Compression,
        key: Option<&SealKey>,
        stored: &mut Vec<Bytes>,
    ) -> Frame {
        let making = Making { compression, key, in_blocks: false, packs: false };
        let mut tables = BlockTables::default();
        let frame = encode(&object(1), index, raw, making, stored, &mut tables);
        assert!(tables.sums.is_empty() && tables.lens.is_empty());
        frame
    }

    #[test]
    fn frames_come_back_under_every_compression() {
        let text = Bytes::from(b"weir holds the water back ".repeat(1000));
        for compression in [Compression::None, Compression::Lz4, Compression::Zstd] {
            for cut in [0, 1, 20_000] {
                let raw = [text.slice(..cut), text.slice(cut..)];
                let mut stored = Vec::new();
                let frame = whole(3, &raw, compression, None, &mut stored);
                assert_eq!(compression == Compression::None, frame.codec == Codec::Raw);
                let stored = Bytes::from(stored.concat());
                let decoded = decode(&object(1), 3, &frame, Blocks::None, None, stored);
                assert_eq!(decoded.unwrap(), text);
            }
        }
    }

    #[test]
    fn bytes_that_do_not_shrink_stay_raw() {
        let mut next = crate::random::splitmix(1);
        let noise: Vec<u8> = (0..4096).map(|_| next().to_le_bytes()[0]).collect();
        let frame = whole(0, &[Bytes::from(noise)], Compression::Lz4, None, &mut Vec::new());
        assert_eq!(frame.codec, Codec::Raw);
    }

    #[test]
    fn compression_is_tried_where_two_of_three_frames_shrink() {
        let mut next = crate::random::splitmix(1);
        let noise: Vec<u8> = (0..FRAME_BYTES).map(|_| next().to_le_bytes()[0]).collect();
        let (noise, zeroes) = (Bytes::from(noise), Bytes::from(vec![0; FRAME_BYTES as usize]));
        let frames = |shrink: [bool; 3]| {
            shrink.map(|shrinks| vec![if shrinks { zeroes.clone() } else { noise.clone() }])
        };
        for packs in [false, true] {
            let compression = Compression::Lz4;
            let making = Making { compression, key: None, in_blocks: true, packs };
            assert!(sample_shrinks(&frames([true, false, true]), making));
            assert!(!sample_shrinks(&frames([true, false, false]), making));
        }
    }

    #[test]
    fn a_frame_of_another_object_or_place_does_not_verify() {
        let mut stored = Vec::new();
        let raw = [Bytes::from_static(b"data")];
        let frame = whole(0, &raw, Compression::None, None, &mut stored);
        let stored = stored.remove(0);
        let decode = |id, index, stored| decode(&id, index, &frame, Blocks::None, None, stored);
        assert!(decode(object(2), 0, stored.clone()).is_err());
        assert!(decode(object(1), 1, stored.clone()).is_err());
        assert!(decode(object(1), 0, Bytes::from_static(b"Data")).is_err());
        assert!(decode(object(1), 0, stored).is_ok());
    }

    #[test]
    fn a_sealed_frame_opens_under_its_key_in_its_place_and_tells_no_two_equal_ones() {
        let data_key = weir_seal::DataKey::draw(|bytes| bytes.fill(1));
        let key = |salt: u8| data_key.derive(weir_seal::Purpose::Object, &[&[salt]]);
        let text = Bytes::from(b"weir holds the water back ".repeat(1000));
        for compression in [Compression::None, Compression::Lz4, Compression::Zstd] {
            let sealed = |salt| {
                let mut stored = Vec::new();
                let raw = [text.slice(..100), text.slice(100..)];
                let frame = whole(3, &raw, compression, Some(&key(salt)), &mut stored);
                (frame, Bytes::from(stored.concat()))
            };
            let (frame, stored) = sealed(1);
            assert_ne!(sealed(2).1, stored);
            assert!(!stored.windows(8).any(|w| w == &text[..8]), "nothing of it shows");
            let open = |seq, index, salt| {
                let crc = frame_crc(
                    &identity(&object(seq), index, frame.raw_len, frame.codec),
                    std::slice::from_ref(&stored),
                );
                let frame = Frame { crc, ..frame };
                let (id, key) = (object(seq), key(salt));
                decode(&id, index, &frame, Blocks::None, Some(&key), stored.clone())
            };
            assert_eq!(open(1, 3, 1).unwrap(), text);
            for (seq, index, salt) in [(2, 3, 1), (1, 2, 1), (1, 3, 2)] {
                assert_eq!(open(seq, index, salt), Err(DecodeError::Forged { what: "a frame" }));
            }
            verify(&object(1), 3, &frame, Blocks::None, &stored).unwrap();
        }
    }
}
