//! The tables of a header: frames, extents, streams, sources, and what it has of the blocks of frames.

use weir_device::VolumeId;
use weir_journal::Epoch;
use weir_seal::TAG_BYTES;

use super::{ExtentKind, GcSource, ObjectExtent, ObjectHeader, ObjectKind, u32_of, usize_of};
use crate::format::blocks::{self, Blocks};
use crate::format::frame::{self, Codec, Frame};
use crate::format::packed::Packed;
use crate::format::version::ObjectVersion;
use crate::format::{DecodeError, Reader};
use crate::ids::ObjectSeq;
use crate::limits::FRAME_BYTES;

pub(super) const FRAME_ENTRY_BYTES: usize = 16;
pub(super) const EXTENT_ENTRY_BYTES: usize = 16;
pub(super) const STREAM_ENTRY_BYTES: usize = 16;
const SOURCE_ENTRY_BYTES: usize = 24;
const SUM_BYTES: usize = 4;
const LEN_BYTES: usize = 2;

impl ObjectHeader {
    /// Bytes of all tables.
    pub(super) fn tables_len(&self) -> usize {
        self.frames.len() * FRAME_ENTRY_BYTES
            + self.extents.len() * EXTENT_ENTRY_BYTES
            + self.streams.len() * STREAM_ENTRY_BYTES
            + self.sources.len() * SOURCE_ENTRY_BYTES
            + self.sums.len() * SUM_BYTES
            + self.lens.len() * LEN_BYTES
    }

    pub(super) fn encode_tables(&self, out: &mut Vec<u8>) {
        for frame in &self.frames {
            out.extend_from_slice(&frame.stored_len.to_le_bytes());
            out.extend_from_slice(&frame.raw_len.to_le_bytes());
            out.extend_from_slice(&frame.crc.to_le_bytes());
            out.extend_from_slice(&[frame.codec.code(), 0, 0, 0]);
        }
        for extent in &self.extents {
            assert!(extent.len > 0 && extent.len < 1 << 56, "an extent's length takes 56 bits");
            out.extend_from_slice(&extent.offset.to_le_bytes());
            let word = extent.len | u64::from(extent.kind.code()) << 56;
            out.extend_from_slice(&word.to_le_bytes());
        }
        for stream in &self.streams {
            out.extend_from_slice(&stream.0);
        }
        for source in &self.sources {
            out.extend_from_slice(&source.stream.to_le_bytes());
            out.extend_from_slice(&source.payload_offset.to_le_bytes());
            out.extend_from_slice(&source.seq.0.to_le_bytes());
            out.extend_from_slice(&source.epoch.0.to_le_bytes());
        }
        for sum in &self.sums {
            out.extend_from_slice(&sum.to_le_bytes());
        }
        for len in &self.lens {
            out.extend_from_slice(&len.to_le_bytes());
        }
        out.resize(usize_of(self.header_len()), 0);
    }

    pub(super) fn decode_tables(
        &mut self,
        reader: &mut Reader<'_>,
        frames: usize,
        extents: usize,
        streams: usize,
    ) -> Result<(), DecodeError> {
        let sources = if self.kind == ObjectKind::Gc { extents } else { 0 };
        self.decode_frames(reader, frames)?;
        let (sums, lens) = self.blocks_needed();
        let need = extents * EXTENT_ENTRY_BYTES
            + streams * STREAM_ENTRY_BYTES
            + sources * SOURCE_ENTRY_BYTES
            + sums * SUM_BYTES
            + lens * LEN_BYTES;
        if reader.remaining() < need {
            return Err(reader.field("header_len", need as u64));
        }
        for _ in 0..extents {
            let (offset, word) = (reader.u64()?, reader.u64()?);
            let [.., code] = word.to_le_bytes();
            let kind =
                ExtentKind::from_code(code).ok_or_else(|| reader.field("extent kind", word))?;
            self.extents.push(ObjectExtent { offset, len: word & ((1 << 56) - 1), kind });
        }
        for _ in 0..streams {
            self.streams.push(VolumeId(reader.array()?));
        }
        for _ in 0..sources {
            let (stream, payload_offset) = (reader.u32()?, reader.u32()?);
            let (seq, epoch) = (ObjectSeq(reader.u64()?), Epoch(reader.u64()?));
            self.sources.push(GcSource { stream, payload_offset, seq, epoch });
        }
        for _ in 0..sums {
            self.sums.push(reader.u32()?);
        }
        for _ in 0..lens {
            self.lens.push(reader.u16()?);
        }
        let need = reader.position() + reader.remaining();
        let padding = reader.take(reader.remaining())?;
        if need as u64 != self.header_len() {
            return Err(reader.field("header_len", need as u64));
        }
        match padding.iter().find(|byte| **byte != 0) {
            Some(byte) => Err(reader.field("padding", (*byte).into())),
            None => Ok(()),
        }
    }

    fn decode_frames(&mut self, reader: &mut Reader<'_>, frames: usize) -> Result<(), DecodeError> {
        let tag_len = if self.sealed.is_some() { u32_of(TAG_BYTES) } else { 0 };
        for _ in 0..frames {
            let (stored_len, raw_len, crc) = (reader.u32()?, reader.u32()?, reader.u32()?);
            let [code, reserved @ ..] = reader.array::<4>()?;
            if reserved != [0; 3] {
                return Err(reader.field("reserved", 1));
            }
            let codec = Codec::from_code(code).ok_or_else(|| reader.field("codec", code.into()))?;
            let wrong = reader.field("frame length", stored_len.into());
            if raw_len == 0 || raw_len > FRAME_BYTES {
                return Err(wrong);
            }
            let stored = stored_len.saturating_sub(tag_len);
            let fits = match codec {
                Codec::Lz4Blocks if self.version < ObjectVersion::V4 || self.sealed.is_some() => {
                    return Err(reader.field("codec", code.into()));
                }
                // Its blocks say how many bytes it takes.
                Codec::Lz4Blocks => stored_len <= raw_len,
                Codec::Raw if self.version.has_blocks(codec) => {
                    let sealed_len = blocks::sealed_len(raw_len);
                    stored_len == if self.sealed.is_some() { sealed_len } else { raw_len }
                }
                Codec::Raw | Codec::Lz4 | Codec::Zstd => stored <= raw_len && stored > 0,
            };
            if !fits {
                return Err(wrong);
            }
            self.frames.push(Frame { stored_len, raw_len, crc, codec });
        }
        Ok(())
    }

    /// How many blocks have a checksum in the header, and how many a length.
    fn blocks_needed(&self) -> (usize, usize) {
        let each = self.frames.iter().map(|frame| self.in_tables(frame));
        each.fold((0, 0), |(sums, lens), own| (sums + own.0, lens + own.1))
    }

    fn in_tables(&self, frame: &Frame) -> (usize, usize) {
        let (sums, lens) = self.version.in_tables(frame, self.sealed.is_some());
        (sums as usize, lens as usize)
    }

    /// What is known of the blocks of each frame, in order.
    pub(crate) fn all_blocks(&self) -> impl Iterator<Item = Blocks<'_>> {
        let (mut sums, mut lens) = (&self.sums[..], &self.lens[..]);
        self.frames.iter().map(move |frame| {
            let (own_sums, own_lens) = self.in_tables(frame);
            let (sums, lens) = (taken(&mut sums, own_sums), taken(&mut lens, own_lens));
            Blocks::of(self.version, frame.codec, sums, lens)
        })
    }

    /// What is known of the blocks of frame `index`.
    ///
    /// # Panics
    /// If there is no such frame.
    #[must_use]
    pub fn blocks(&self, index: usize) -> Blocks<'_> {
        self.all_blocks().nth(index).expect("a frame of this object")
    }

    /// The checksum of a frame covers those of its blocks, and its blocks take what it takes.
    pub(super) fn check_blocks(&self, reader: &Reader<'_>) -> Result<(), DecodeError> {
        for ((index, frame), blocks) in (0..).zip(&self.frames).zip(self.all_blocks()) {
            if let Blocks::Packed(packed) = blocks
                && !packed.fits(frame)
            {
                return Err(reader.field("length of a block", index.into()));
            }
            let (Blocks::Plain(sums) | Blocks::Packed(Packed { sums, .. })) = blocks else {
                continue;
            };
            let computed = frame::crc_of_sums(&self.id, index, frame, sums);
            // The fuzzer must get behind the checksum.
            if computed != frame.crc && !cfg!(fuzzing) {
                return Err(reader.field("checksum of a frame", index.into()));
            }
        }
        Ok(())
    }
}

/// The first of them, which are as many as the header needs.
fn taken<'a, T>(rest: &mut &'a [T], count: usize) -> &'a [T] {
    let (own, behind) = rest.split_at(count);
    *rest = behind;
    own
}
