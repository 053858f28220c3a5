//! The I/O header that travels with every call, from the front end to the endpoint.

use std::fmt;

use crate::ByteRange;

/// Random 128-bit identity of a volume. Keys, maps and caches use it, never the name.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct VolumeId(pub [u8; 16]);

impl VolumeId {
    /// Parses the 32 lower-case hex digits that [`fmt::Display`] writes.
    #[must_use]
    pub fn parse(text: &str) -> Option<Self> {
        let digits = text.as_bytes();
        if digits.len() != 32 || !digits.iter().all(|b| matches!(b, b'0'..=b'9' | b'a'..=b'f')) {
            return None;
        }
        Some(Self(u128::from_str_radix(text, 16).ok()?.to_be_bytes()))
    }
}

impl fmt::Display for VolumeId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:032x}", u128::from_be_bytes(self.0))
    }
}

impl fmt::Debug for VolumeId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "VolumeId({self})")
    }
}

/// Who asked: the authenticated client of a front end. Filled in by the front end, never rewritten below it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Default)]
pub struct SourceId(pub u64);

/// What is asked of a device.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Operation {
    /// Read bytes.
    Read,
    /// Write bytes.
    Write,
    /// Make a range read as zeroes.
    WriteZeroes,
    /// Give a range up; it reads as zeroes afterwards.
    Discard,
    /// Make every returned write survive power loss.
    Flush,
    /// Ask which ranges hold data.
    Extents,
}

/// `(source, operation, volume, offset, length)`: what rules match on. Offsets and lengths are bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct IoHeader {
    /// The authenticated client.
    pub source: SourceId,
    /// What is asked.
    pub operation: Operation,
    /// The volume addressed by the client.
    pub volume: VolumeId,
    /// First byte.
    pub offset: u64,
    /// Bytes from `offset`.
    pub len: u64,
}

impl IoHeader {
    /// A header of an operation that comes from inside the process, not from a client (tests, verbs).
    #[must_use]
    pub fn internal(operation: Operation, offset: u64, len: u64) -> Self {
        Self { source: SourceId(0), operation, volume: VolumeId([0; 16]), offset, len }
    }

    /// The addressed bytes, or `None` where their end exceeds 64 bits.
    #[must_use]
    pub fn range(&self) -> Option<ByteRange> {
        ByteRange::at(self.offset, self.len)
    }

    /// The same header for another operation or range (a stage that splits an operation uses this).
    #[must_use]
    pub fn with_range(self, offset: u64, len: u64) -> Self {
        Self { offset, len, ..self }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_identity_is_read_as_it_is_written() {
        let text = "0123456789abcdef00000000000000ff";
        let id = VolumeId::parse(text).expect("32 digits");
        assert_eq!(id.0[..2], [0x01, 0x23]);
        assert_eq!((id.to_string(), format!("{id:?}")), (text.into(), format!("VolumeId({text})")));
        for wrong in
            [&text[1..], &format!("{text}0"), "", &text.to_uppercase(), &text.replace('f', "g")]
        {
            assert_eq!(VolumeId::parse(wrong), None, "{wrong}");
        }
    }
}
