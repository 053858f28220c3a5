//! Frames: the payload of an object in runs of 64 KiB, each raw or compressed, each with a checksum that covers its
//! identity, so that a frame of another object, place or length never verifies. In an encrypted object each is sealed,
//! and its tag, which covers the same identity, is behind it. Page: `docs/formats/object.md`.

use bytes::Bytes;
use weir_seal::{SealKey, TAG_BYTES, counter_nonce};

use crate::format::DecodeError;
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
}

impl Codec {
    /// Number on disk.
    #[must_use]
    pub fn code(self) -> u8 {
        match self {
            Self::Raw => 0,
            Self::Lz4 => 1,
            Self::Zstd => 2,
        }
    }

    /// From the number on disk.
    #[must_use]
    pub fn from_code(code: u8) -> Option<Self> {
        match code {
            0 => Some(Self::Raw),
            1 => Some(Self::Lz4),
            2 => Some(Self::Zstd),
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
    /// CRC32C of identity and stored bytes.
    pub crc: u32,
    /// How it is stored.
    pub codec: Codec,
}

/// What checksum and tag cover besides the bytes.
fn identity(object: &ObjectId, index: u32, raw_len: u32, codec: Codec) -> [u8; 41] {
    let mut bytes = [0; 41];
    bytes[..16].copy_from_slice(&object.stream.0);
    bytes[16..24].copy_from_slice(&object.seq.0.to_le_bytes());
    bytes[24..32].copy_from_slice(&object.epoch.0.to_le_bytes());
    bytes[32..36].copy_from_slice(&index.to_le_bytes());
    bytes[36..40].copy_from_slice(&raw_len.to_le_bytes());
    bytes[40] = codec.code();
    bytes
}

fn frame_crc(identity: &[u8; 41], stored: &[Bytes]) -> u32 {
    let mut digest = crc_fast::Digest::new(crc_fast::CrcAlgorithm::Crc32Iscsi);
    digest.update(identity);
    for part in stored {
        digest.update(part);
    }
    u32::try_from(digest.finalize()).expect("a CRC of 32 bits")
}

fn shrinks_enough(stored: usize, raw: usize) -> bool {
    stored <= raw - raw / 8
}

/// Bytes of all parts together.
pub(super) fn len_of(parts: &[Bytes]) -> usize {
    parts.iter().map(Bytes::len).sum()
}

fn compress(compression: Compression, raw: &[Bytes]) -> Option<(Codec, Vec<u8>)> {
    let joined;
    let raw: &[u8] = match raw {
        _ if compression == Compression::None => return None,
        [one] => one,
        many => {
            joined = many.concat();
            &joined
        }
    };
    let (codec, stored) = match compression {
        Compression::None => return None,
        Compression::Lz4 => (Codec::Lz4, lz4_flex::block::compress(raw)),
        Compression::Zstd => (Codec::Zstd, zstd::bulk::compress(raw, 1).ok()?),
    };
    shrinks_enough(stored.len(), raw.len()).then_some((codec, stored))
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

/// Encodes the frame whose bytes are `raw`, read as one run, and adds what is stored of it to `stored`: the parts as
/// they are, unless it shrinks or is sealed.
pub fn encode(
    object: &ObjectId,
    index: u32,
    raw: &[Bytes],
    compression: Compression,
    key: Option<&SealKey>,
    stored: &mut Vec<Bytes>,
) -> Frame {
    let raw_len = u32::try_from(len_of(raw)).expect("a frame is at most 64 KiB");
    assert!(raw_len <= FRAME_BYTES, "a frame is at most 64 KiB");
    let before = stored.len();
    let compressed = compress(compression, raw);
    let codec = compressed.as_ref().map_or(Codec::Raw, |(codec, _)| *codec);
    let identity = identity(object, index, raw_len, codec);
    match (compressed, key) {
        (Some((_, bytes)), None) => stored.push(Bytes::from(bytes)),
        (Some((_, bytes)), Some(key)) => stored.push(seal(key, index, &identity, bytes)),
        (None, None) => stored.extend_from_slice(raw),
        (None, Some(key)) => {
            let mut bytes = Vec::with_capacity(raw_len as usize + TAG_BYTES);
            raw.iter().for_each(|part| bytes.extend_from_slice(part));
            stored.push(seal(key, index, &identity, bytes));
        }
    }
    let stored = &stored[before..];
    let stored_len = u32::try_from(len_of(stored)).expect("stored only where it shrinks");
    let crc = frame_crc(&identity, stored);
    Frame { stored_len, raw_len, crc, codec }
}

/// Whether a sample of the payload (the frames at its begin, middle and end) shrinks by an eighth.
#[must_use]
pub fn sample_shrinks(frames: &[Vec<Bytes>], compression: Compression) -> bool {
    if compression == Compression::None || frames.is_empty() {
        return false;
    }
    let picks = [0, frames.len() / 2, frames.len() - 1];
    let shrunk = picks.iter().filter(|i| compress(compression, &frames[**i]).is_some()).count();
    shrunk >= 2
}

/// Verifies the checksum of one frame, which needs no key.
///
/// # Errors
/// [`DecodeError::Checksum`] when the stored bytes are not those that were written.
pub fn verify(
    object: &ObjectId,
    index: u32,
    frame: &Frame,
    stored: &Bytes,
) -> Result<(), DecodeError> {
    let identity = identity(object, index, frame.raw_len, frame.codec);
    let computed = frame_crc(&identity, std::slice::from_ref(stored));
    if computed != frame.crc && !weir_device::mutant("no_frame_crc") {
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
    key: Option<&SealKey>,
    stored: Bytes,
) -> Result<Bytes, DecodeError> {
    verify(object, index, frame, &stored)?;
    let stored = match key {
        Some(key) => open(key, object, index, frame, &stored)?,
        None => stored,
    };
    let raw_len = usize::try_from(frame.raw_len).expect("at most 64 KiB");
    let raw = match frame.codec {
        Codec::Raw => stored,
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ids::ObjectSeq;
    use weir_device::VolumeId;
    use weir_journal::Epoch;

    fn object(seq: u64) -> ObjectId {
        ObjectId { stream: VolumeId([1; 16]), seq: ObjectSeq(seq), epoch: Epoch(1) }
    }

    #[test]
    fn frames_come_back_under_every_compression() {
        let text = Bytes::from(b"weir holds the water back ".repeat(1000));
        for compression in [Compression::None, Compression::Lz4, Compression::Zstd] {
            for cut in [0, 1, 20_000] {
                let raw = [text.slice(..cut), text.slice(cut..)];
                let mut stored = Vec::new();
                let frame = encode(&object(1), 3, &raw, compression, None, &mut stored);
                assert_eq!(compression == Compression::None, frame.codec == Codec::Raw);
                let stored = Bytes::from(stored.concat());
                assert_eq!(decode(&object(1), 3, &frame, None, stored).unwrap(), text);
            }
        }
    }

    #[test]
    fn bytes_that_do_not_shrink_stay_raw() {
        let mut next = crate::random::splitmix(1);
        let noise: Vec<u8> = (0..4096).map(|_| next().to_le_bytes()[0]).collect();
        let frame =
            encode(&object(1), 0, &[Bytes::from(noise)], Compression::Lz4, None, &mut Vec::new());
        assert_eq!(frame.codec, Codec::Raw);
    }

    #[test]
    fn a_frame_of_another_object_or_place_does_not_verify() {
        let mut stored = Vec::new();
        let raw = [Bytes::from_static(b"data")];
        let frame = encode(&object(1), 0, &raw, Compression::None, None, &mut stored);
        let stored = stored.remove(0);
        assert!(decode(&object(2), 0, &frame, None, stored.clone()).is_err());
        assert!(decode(&object(1), 1, &frame, None, stored.clone()).is_err());
        assert!(decode(&object(1), 0, &frame, None, Bytes::from_static(b"Data")).is_err());
        assert!(decode(&object(1), 0, &frame, None, stored).is_ok());
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
                let frame = encode(&object(1), 3, &raw, compression, Some(&key(salt)), &mut stored);
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
                decode(
                    &object(seq),
                    index,
                    &Frame { crc, ..frame },
                    Some(&key(salt)),
                    stored.clone(),
                )
            };
            assert_eq!(open(1, 3, 1).unwrap(), text);
            for (seq, index, salt) in [(2, 3, 1), (1, 2, 1), (1, 3, 2)] {
                assert_eq!(open(seq, index, salt), Err(DecodeError::Forged { what: "a frame" }));
            }
            verify(&object(1), 3, &frame, &stored).unwrap();
        }
    }
}
