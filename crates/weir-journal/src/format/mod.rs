//! What is in the file, byte by byte: `docs/formats/journal.md`. Pure: bytes in, values out.

pub mod record;
pub mod superblock;

#[cfg(test)]
mod tests;

/// Why bytes are not a valid structure.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum DecodeError {
    /// Fewer bytes than the structure needs.
    #[error("{have} bytes where {need} are needed")]
    Short {
        /// Bytes at hand.
        have: u64,
        /// Bytes needed.
        need: u64,
    },
    /// Nothing but zeroes: never written.
    #[error("never written")]
    Zeroes,
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
    /// Records of a version this program does not know.
    #[error("records of format version {found}, this program knows version {known}")]
    RecordsVersion {
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
    /// A whole structure, but one of another volume, journal or place.
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

/// CRC32C of several runs of bytes, one after the other.
pub(crate) fn crc32c(parts: &[&[u8]]) -> u32 {
    let mut digest = crc_fast::Digest::new(crc_fast::CrcAlgorithm::Crc32Iscsi);
    for part in parts {
        digest.update(part);
    }
    low_half(digest.finalize())
}

/// A CRC of 32 bits out of the 64 that the library answers for all widths.
pub(crate) fn low_half(value: u64) -> u32 {
    u32::try_from(value & u64::from(u32::MAX)).expect("masked to 32 bits")
}

/// A length in memory as the 64 bits that files use.
pub(crate) fn to_u64(len: usize) -> u64 {
    u64::try_from(len).expect("no machine in use has more than 64-bit addresses")
}

/// A length of at most some megabytes, for use in memory.
pub(crate) fn to_usize(len: u64) -> usize {
    usize::try_from(len).expect("lengths of records and segments fit the address space")
}
