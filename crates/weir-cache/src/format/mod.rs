//! What is in the cache's file, byte by byte: `docs/formats/cache.md`. Pure: bytes in, values out.

pub mod index;
pub mod run;
pub mod superblock;

#[cfg(test)]
mod tests;

use crate::geometry::BLOCK_BYTES;

/// Bytes of a block, as a length in memory.
pub const BLOCK_LEN: usize = 4096;

const _: () = assert!(BLOCK_LEN as u64 == BLOCK_BYTES);

/// Identity of a cache: random, made with its file.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct CacheId(pub [u8; 16]);

/// Why bytes are not a valid structure.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum DecodeError {
    /// Fewer bytes than the structure needs.
    #[error("{have} bytes where {BLOCK_LEN} are needed")]
    Short {
        /// Bytes at hand.
        have: usize,
    },
    /// It does not begin like one.
    #[error("does not begin with the magic of the format")]
    Magic,
    /// A version this program does not know.
    #[error("format version {found}, this program knows version {known}")]
    Version {
        /// In the file.
        found: u32,
        /// Newest known.
        known: u32,
    },
    /// The checksum does not match.
    #[error("checksum mismatch (stored {stored:#010x}, computed {computed:#010x})")]
    Checksum {
        /// In the file.
        stored: u32,
        /// Of the bytes.
        computed: u32,
    },
    /// A whole structure, but one of another cache or place.
    #[error("{field} is another one")]
    Identity {
        /// Which part.
        field: &'static str,
    },
    /// A field outside its valid range, behind a good checksum.
    #[error("field {field} is {value}, outside its valid range")]
    Field {
        /// Which field.
        field: &'static str,
        /// What it holds.
        value: u64,
    },
}

fn crc32c(parts: &[&[u8]]) -> u32 {
    let mut digest = crc_fast::Digest::new(crc_fast::CrcAlgorithm::Crc32Iscsi);
    for part in parts {
        digest.update(part);
    }
    u32::try_from(digest.finalize() & u64::from(u32::MAX)).expect("masked to 32 bits")
}

/// Offset of the checksum in both structures, and of what is behind it.
const CRC_OFFSET: usize = 12;
const CRC_END: usize = 16;

/// The checksum of a block that has it at [`CRC_OFFSET`].
fn checksum(block: &[u8]) -> u32 {
    crc32c(&[&block[..CRC_OFFSET], &block[CRC_END..]])
}

/// A block of a structure, once magic, version and checksum are right.
fn verified(input: &[u8], magic: [u8; 8], known: u32) -> Result<&[u8], DecodeError> {
    let Some(block) = input.get(..BLOCK_LEN) else {
        return Err(DecodeError::Short { have: input.len() });
    };
    if block[..8] != magic {
        return Err(DecodeError::Magic);
    }
    let number = |at: usize| u32::from_le_bytes(block[at..at + 4].try_into().expect("four bytes"));
    // A version that is not known may have its checksum elsewhere.
    if number(8) != known {
        return Err(DecodeError::Version { found: number(8), known });
    }
    let (stored, computed) = (number(CRC_OFFSET), checksum(block));
    if stored != computed {
        return Err(DecodeError::Checksum { stored, computed });
    }
    Ok(block)
}

/// Fails unless a field lies in a range.
fn within(
    field: &'static str,
    value: u64,
    range: std::ops::RangeInclusive<u64>,
) -> Result<(), DecodeError> {
    if range.contains(&value) { Ok(()) } else { Err(DecodeError::Field { field, value }) }
}
