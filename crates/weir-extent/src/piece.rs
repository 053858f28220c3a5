//! The checkpoint encoding of one piece. Layout: docs/formats/extent-piece.md.

use weir_device::ErrorKind;

use crate::ExtentMap;
use crate::bits::{low32, size, wide};
use crate::cell::Site;
use crate::limits::{
    ADDRESS_END, BLOCK_BYTES, CROWDED_EXTENTS, PIECE_BYTES, REGION_BYTES, TARGET_MAX,
};
use crate::mapping::{Extent, Mapping, Target};
use crate::replace::RegionPlace;
use crate::slot::{Cell, Piece, Slot};

/// The version [`ExtentMap::encode_piece`] writes.
pub const PIECE_ENCODING_VERSION: u8 = 1;

const HEADER_BYTES: usize = 5;
const VALUE_BYTES_MASK: u8 = 0x07;
const KIND_SHIFT: u32 = 3;
const KIND_ABSOLUTE: u8 = 0;
const KIND_FORWARD: u8 = 1;
const KIND_BACKWARD: u8 = 2;
const KIND_FIXED: u8 = 3;
const HAS_GAP: u8 = 1 << 5;
const IN_BLOCKS: u8 = 1 << 6;
const SAME_LEN: u8 = 1 << 7;

/// Longest varint: 29 bits of offset inside a piece.
const VARINT_BYTES_MAX: usize = 5;

/// Why bytes are not the encoding of a piece.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum DecodeError {
    /// The version is not one this program reads.
    #[error("piece encoding version {found} is not supported (this program reads version 1)")]
    Version {
        /// The version byte.
        found: u8,
    },
    /// The bytes end inside the header or an entry.
    #[error("piece encoding ends early at byte {at}")]
    Truncated {
        /// Where more bytes were needed.
        at: usize,
    },
    /// Bytes follow the last entry.
    #[error("piece encoding has {bytes} bytes after its last entry")]
    Trailing {
        /// How many.
        bytes: usize,
    },
    /// An entry breaks a rule of the format.
    #[error("piece encoding entry at byte {at}: {rule}")]
    Entry {
        /// Where the entry begins.
        at: usize,
        /// The rule.
        rule: &'static str,
    },
    /// The map already holds something in this piece.
    #[error("piece {piece} is already mapped; a piece is decoded into an empty one only")]
    Occupied {
        /// The piece.
        piece: u64,
    },
    /// There is no such piece.
    #[error("piece {piece} lies past the address space")]
    PieceNumber {
        /// The piece.
        piece: u64,
    },
}

impl DecodeError {
    /// What a caller can do about it.
    #[must_use]
    pub fn kind(&self) -> ErrorKind {
        match self {
            Self::Version { .. } => ErrorKind::Unsupported,
            Self::Truncated { .. } | Self::Trailing { .. } | Self::Entry { .. } => {
                ErrorKind::Corrupt
            }
            Self::Occupied { .. } => ErrorKind::Bug,
            Self::PieceNumber { .. } => ErrorKind::Invalid,
        }
    }
}

impl ExtentMap {
    /// Appends the encoding of a piece to `out`. A random 4 KiB extent takes about 9 bytes.
    ///
    /// # Panics
    ///
    /// If the piece lies past [`ADDRESS_END`].
    pub fn encode_piece(&self, piece: u64, out: &mut Vec<u8>) {
        let base = piece.saturating_mul(PIECE_BYTES);
        out.push(PIECE_ENCODING_VERSION);
        let count_at = out.len();
        out.extend_from_slice(&[0; 4]);
        let mut count: u32 = 0;
        let mut writer = Writer { at: base, len: 0, address: 0 };
        for mapping in self.iter_range(base, PIECE_BYTES) {
            writer.put(mapping, out);
            count += 1;
        }
        out[count_at..count_at + 4].copy_from_slice(&count.to_le_bytes());
    }

    /// Fills an empty piece from its encoding. Does not mark it dirty.
    ///
    /// # Errors
    ///
    /// If the bytes are not a valid encoding, the piece is not empty, or does not exist. The piece
    /// is as empty as before then.
    pub fn decode_piece(&mut self, piece: u64, bytes: &[u8]) -> Result<(), DecodeError> {
        if piece >= ADDRESS_END / PIECE_BYTES {
            return Err(DecodeError::PieceNumber { piece });
        }
        let base = piece * PIECE_BYTES;
        if self.iter_range(base, PIECE_BYTES).next().is_some() {
            return Err(DecodeError::Occupied { piece });
        }
        let mut reader = Reader::new(bytes)?;
        if reader.left == 0 {
            return reader.finish();
        }
        let (entry, slot) = self.table_of(piece);
        let before = self.root.table(entry)[slot];
        let result = self.fill_piece(base, entry, slot, &mut reader);
        if result.is_err() {
            self.replace(base, PIECE_BYTES, None, usize::MAX, &mut |_| {});
            // Had no entry been decoded, nothing was replaced and the directory is still there.
            if let Piece::Directory(node) = self.root.table(entry)[slot].piece()
                && let Some(moved) = self.pools.directories.give(node)
            {
                self.relocate(moved);
            }
            self.crowded.retain(|block| *block < base || *block >= base + PIECE_BYTES);
            self.root.table_mut(entry)[slot] = before;
        }
        result
    }

    fn fill_piece(
        &mut self,
        base: u64,
        entry: usize,
        slot: usize,
        reader: &mut Reader<'_>,
    ) -> Result<(), DecodeError> {
        let directory = self.expand_piece(entry, base);
        let mut place = RegionPlace { entry, piece: slot, directory, region: 0, base };
        let mut extents = std::mem::take(&mut self.scratch);
        extents.clear();
        let mut result = Ok(());
        loop {
            match reader.next() {
                Ok(None) => break,
                Ok(Some(mapping)) => self.fill_mapping(&mut place, &mut extents, mapping),
                Err(error) => {
                    result = Err(error);
                    break;
                }
            }
        }
        self.fill_region(place, &extents);
        self.scratch = extents;
        result?;
        reader.finish()?;
        let first = RegionPlace { region: 0, base, ..place };
        let head = Slot(self.pools.directories.slot(directory, 0));
        if matches!(head.cell(), Cell::Empty | Cell::Run(_)) {
            self.collapse(first, head);
        }
        let upper = self.root.table(entry)[slot];
        assert!(upper.piece() != Piece::Uniform(None), "entries were decoded into the piece");
        Ok(())
    }

    /// Adds a mapping (its offset counted from the piece) to the regions it touches.
    fn fill_mapping(
        &mut self,
        place: &mut RegionPlace,
        extents: &mut Vec<Extent>,
        mapping: Mapping,
    ) {
        let piece_base = place.base - wide(place.region) * REGION_BYTES;
        let mut at = mapping.offset;
        while at < mapping.end() {
            let region = size(at / REGION_BYTES);
            if region != place.region {
                self.fill_region(*place, extents);
                extents.clear();
                place.region = region;
                place.base = piece_base + wide(region) * REGION_BYTES;
            }
            let start = at % REGION_BYTES;
            let len = (mapping.end() - at).min(REGION_BYTES - start);
            let target = mapping.target.advance(at - mapping.offset);
            let extent = Extent { start: low32(start), len: low32(len), target };
            match extents.last_mut() {
                Some(last) if last.joins(&extent) => last.len += extent.len,
                _ => extents.push(extent),
            }
            at += len;
        }
    }

    fn fill_region(&mut self, place: RegionPlace, extents: &[Extent]) {
        if extents.is_empty() {
            return;
        }
        let slot = self.build(Site::region(place.base), extents);
        self.pools.directories.set_slot(place.directory, place.region, slot.0);
        self.extents += slot.extents();
        let window = size(u64::from(CROWDED_EXTENTS));
        for (early, late) in extents.iter().zip(extents.iter().skip(window)) {
            let block = u64::from(late.start) / BLOCK_BYTES;
            if block == u64::from(early.end() - 1) / BLOCK_BYTES {
                self.crowded.insert(place.base + block * BLOCK_BYTES);
            }
        }
    }
}

/// What the previous entry left behind, to encode the next one against.
struct Writer {
    at: u64,
    len: u64,
    address: u64,
}

impl Writer {
    fn put(&mut self, mapping: Mapping, out: &mut Vec<u8>) {
        let gap = mapping.offset - self.at;
        let (kind, value) = match mapping.target {
            Target::Fixed(value) => (KIND_FIXED, value),
            Target::Linear(address) => self.shortest(address),
        };
        let value_bytes = 8 - value.leading_zeros() / 8;
        let mut control = u8::try_from(value_bytes).expect("at most 7") | (kind << KIND_SHIFT);
        let in_blocks = gap.is_multiple_of(BLOCK_BYTES) && mapping.len.is_multiple_of(BLOCK_BYTES);
        let unit = if in_blocks { BLOCK_BYTES } else { 1 };
        control |= if in_blocks { IN_BLOCKS } else { 0 };
        control |= if gap > 0 { HAS_GAP } else { 0 };
        control |= if mapping.len == self.len { SAME_LEN } else { 0 };
        out.push(control);
        if gap > 0 {
            put_varint(gap / unit, out);
        }
        if mapping.len != self.len {
            put_varint(mapping.len / unit, out);
        }
        out.extend_from_slice(&value.to_le_bytes()[..size(value_bytes.into())]);
        self.at = mapping.end();
        self.len = mapping.len;
        if let Target::Linear(address) = mapping.target {
            self.address = address + mapping.len;
        }
    }

    /// The shortest way to write an address: itself, or its distance from where the last linear extent ended.
    fn shortest(&self, address: u64) -> (u8, u64) {
        let (kind, distance) = if address >= self.address {
            (KIND_FORWARD, address - self.address)
        } else {
            (KIND_BACKWARD, self.address - address)
        };
        if distance.leading_zeros() / 8 > address.leading_zeros() / 8 {
            (kind, distance)
        } else {
            (KIND_ABSOLUTE, address)
        }
    }
}

fn put_varint(mut value: u64, out: &mut Vec<u8>) {
    while value >= 0x80 {
        out.push(u8::try_from(value & 0x7f).expect("7 bits") | 0x80);
        value >>= 7;
    }
    out.push(u8::try_from(value).expect("below 128"));
}

/// Reads entries one by one; offsets count from the piece.
struct Reader<'a> {
    bytes: &'a [u8],
    position: usize,
    left: u32,
    at: u64,
    len: u64,
    address: u64,
}

impl<'a> Reader<'a> {
    fn new(bytes: &'a [u8]) -> Result<Self, DecodeError> {
        match bytes.first() {
            Some(&PIECE_ENCODING_VERSION) => {}
            Some(&found) => return Err(DecodeError::Version { found }),
            None => return Err(DecodeError::Truncated { at: 0 }),
        }
        let Some(&[_, a, b, c, d]) = bytes.first_chunk::<HEADER_BYTES>() else {
            return Err(DecodeError::Truncated { at: bytes.len() });
        };
        let left = u32::from_le_bytes([a, b, c, d]);
        Ok(Self { bytes, position: HEADER_BYTES, left, at: 0, len: 0, address: 0 })
    }

    fn finish(&self) -> Result<(), DecodeError> {
        match self.bytes.len() - self.position {
            0 => Ok(()),
            bytes => Err(DecodeError::Trailing { bytes }),
        }
    }

    #[inline]
    fn byte(&mut self) -> Result<u8, DecodeError> {
        let byte = *self
            .bytes
            .get(self.position)
            .ok_or(DecodeError::Truncated { at: self.bytes.len() })?;
        self.position += 1;
        Ok(byte)
    }

    #[inline]
    fn varint(&mut self, entry: usize) -> Result<u64, DecodeError> {
        let mut value = 0;
        for step in 0..VARINT_BYTES_MAX {
            let byte = self.byte()?;
            value |= u64::from(byte & 0x7f) << (7 * step);
            if byte & 0x80 == 0 {
                if byte == 0 && step > 0 {
                    return Err(rule(entry, "a varint has no superfluous bytes"));
                }
                return Ok(value);
            }
        }
        Err(rule(entry, "a varint has at most 5 bytes"))
    }

    #[inline]
    fn value(&mut self, entry: usize, bytes: u8) -> Result<u64, DecodeError> {
        let bytes = usize::from(bytes);
        let end = self.position + bytes;
        let part = self
            .bytes
            .get(self.position..end)
            .ok_or(DecodeError::Truncated { at: self.bytes.len() })?;
        if part.last() == Some(&0) {
            return Err(rule(entry, "a value has no superfluous bytes"));
        }
        let mut word = [0; 8];
        word[..bytes].copy_from_slice(part);
        self.position = end;
        Ok(u64::from_le_bytes(word))
    }

    #[inline]
    fn next(&mut self) -> Result<Option<Mapping>, DecodeError> {
        if self.left == 0 {
            return Ok(None);
        }
        let entry = self.position;
        let control = self.byte()?;
        let unit = if control & IN_BLOCKS != 0 { BLOCK_BYTES } else { 1 };
        if control & HAS_GAP != 0 {
            let gap = self.varint(entry)?;
            if gap == 0 {
                return Err(rule(entry, "a gap that is present is not zero"));
            }
            // No overflow: 35 bits times 4096.
            self.at += gap * unit;
        }
        if control & SAME_LEN == 0 {
            self.len = self.varint(entry)? * unit;
        }
        if self.len == 0 {
            return Err(rule(entry, "an extent is not empty"));
        }
        if self.at + self.len > PIECE_BYTES {
            return Err(rule(entry, "an extent ends inside its piece"));
        }
        let value = self.value(entry, control & VALUE_BYTES_MASK)?;
        let target = self.target(entry, (control >> KIND_SHIFT) & 3, value)?;
        let mapping = Mapping { offset: self.at, len: self.len, target };
        self.at += self.len;
        self.left -= 1;
        Ok(Some(mapping))
    }

    #[inline]
    fn target(&mut self, entry: usize, kind: u8, value: u64) -> Result<Target, DecodeError> {
        let address = match kind {
            KIND_FIXED => return Ok(Target::Fixed(value)),
            KIND_FORWARD => Some(self.address + value),
            KIND_BACKWARD => self.address.checked_sub(value),
            _ => Some(value),
        };
        let target = address.map(Target::Linear).filter(|target| target.fits(self.len));
        let Some(Target::Linear(address)) = target else {
            return Err(rule(entry, "an address stays within 56 bits"));
        };
        self.address = address + self.len;
        Ok(Target::Linear(address))
    }
}

#[cold]
fn rule(at: usize, rule: &'static str) -> DecodeError {
    DecodeError::Entry { at, rule }
}

const _: () = {
    assert!(TARGET_MAX < 1 << 56);
    assert!(PIECE_BYTES < 1 << (7 * VARINT_BYTES_MAX));
};
