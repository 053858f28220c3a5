//! The formats that leave the process: objects, checkpoint roots, manifests, names. Their pages are in `docs/formats/`.

pub mod blocks;
pub mod checkpoint;
pub mod dependant;
pub mod frame;
pub(crate) mod json;
pub mod lease;
pub mod manifest;
pub mod name;
pub mod object;
pub mod packed;
pub mod placement;
pub mod replica;
pub mod version;

#[cfg(test)]
pub(crate) mod golden;

use std::fmt;

use weir_seal::KeyId;

/// Why bytes from outside are not what they should be.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum DecodeError {
    /// Fewer bytes than the structure needs.
    #[error("{what} is cut short: {have} bytes, {need} needed")]
    Short {
        /// The structure.
        what: &'static str,
        /// Bytes there.
        have: u64,
        /// Bytes needed.
        need: u64,
    },
    /// Not this kind of structure.
    #[error("{what} does not begin with its magic number")]
    Magic {
        /// The structure.
        what: &'static str,
    },
    /// A version that this code does not know.
    #[error("{what} has version {found}; this Weir reads version {known}, use a newer one")]
    Version {
        /// The structure.
        what: &'static str,
        /// Version found.
        found: u32,
        /// Version known.
        known: u32,
    },
    /// A field beyond its bounds.
    #[error("{what}: field {field} is {value}, beyond its bounds")]
    Field {
        /// The structure.
        what: &'static str,
        /// The field.
        field: &'static str,
        /// Its value.
        value: u64,
    },
    /// A checksum that does not match.
    #[error("{what} fails its checksum (stored {stored:#010x}, computed {computed:#010x})")]
    Checksum {
        /// The structure.
        what: &'static str,
        /// As stored.
        stored: u32,
        /// As computed.
        computed: u32,
    },
    /// The structure is whole, but of something else than what was asked for.
    #[error("{what} belongs to {found}")]
    Identity {
        /// The structure.
        what: &'static str,
        /// What it says it is.
        found: String,
    },
    /// Sealed, and there is no key to open it.
    #[error("{what} is encrypted under key {key}, which is not at hand")]
    NoKey {
        /// The structure.
        what: &'static str,
        /// Name of the volume's key.
        key: KeyId,
    },
    /// Under another key than the volume's, or under none: it is not the volume's.
    #[error("{what} is encrypted under {found}, and its volume under key {wanted}")]
    OtherKey {
        /// The structure.
        what: &'static str,
        /// What it says of itself.
        found: String,
        /// Name of the volume's key.
        wanted: KeyId,
    },
    /// A checksum matches, and the tag does not: changed by somebody who has no key.
    #[error("{what} fails its authentication: it is not what was encrypted")]
    Forged {
        /// The structure.
        what: &'static str,
    },
    /// A compressed frame does not decompress.
    #[error("frame {index} does not decompress")]
    Decompress {
        /// Index of the frame.
        index: u32,
    },
}

/// Reads little-endian fields one after the other, never past the end.
#[derive(Clone, Copy)]
pub(crate) struct Reader<'a> {
    what: &'static str,
    bytes: &'a [u8],
    at: usize,
}

impl<'a> Reader<'a> {
    pub(crate) fn new(what: &'static str, bytes: &'a [u8]) -> Self {
        Self { what, bytes, at: 0 }
    }

    pub(crate) fn take(&mut self, len: usize) -> Result<&'a [u8], DecodeError> {
        let rest = &self.bytes[self.at..];
        if rest.len() < len {
            return Err(DecodeError::Short {
                what: self.what,
                have: self.bytes.len() as u64,
                need: (self.at + len) as u64,
            });
        }
        self.at += len;
        Ok(&rest[..len])
    }

    pub(crate) fn array<const N: usize>(&mut self) -> Result<[u8; N], DecodeError> {
        Ok(self.take(N)?.try_into().expect("take returned N bytes"))
    }

    pub(crate) fn u16(&mut self) -> Result<u16, DecodeError> {
        Ok(u16::from_le_bytes(self.array()?))
    }

    pub(crate) fn u32(&mut self) -> Result<u32, DecodeError> {
        Ok(u32::from_le_bytes(self.array()?))
    }

    pub(crate) fn u64(&mut self) -> Result<u64, DecodeError> {
        Ok(u64::from_le_bytes(self.array()?))
    }

    pub(crate) fn position(&self) -> usize {
        self.at
    }

    pub(crate) fn remaining(&self) -> usize {
        self.bytes.len() - self.at
    }

    /// An error about a field of this structure.
    pub(crate) fn field(&self, field: &'static str, value: u64) -> DecodeError {
        DecodeError::Field { what: self.what, field, value }
    }

    /// A count of entries of `entry_bytes` each, bounded by what is left to read, before anything is sized by it.
    pub(crate) fn count(
        &mut self,
        field: &'static str,
        entry_bytes: usize,
    ) -> Result<usize, DecodeError> {
        let value = self.u32()?;
        let count = usize::try_from(value).map_err(|_| self.field(field, value.into()))?;
        if count > self.remaining() / entry_bytes {
            return Err(self.field(field, value.into()));
        }
        Ok(count)
    }
}

impl fmt::Debug for Reader<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Reader({} at {} of {})", self.what, self.at, self.bytes.len())
    }
}

/// CRC32C (Castagnoli) over `parts`, one after the other.
pub(crate) fn crc32c(parts: &[&[u8]]) -> u32 {
    let mut digest = crc_fast::Digest::new(crc_fast::CrcAlgorithm::Crc32Iscsi);
    for part in parts {
        digest.update(part);
    }
    u32::try_from(digest.finalize()).expect("a CRC of 32 bits")
}
