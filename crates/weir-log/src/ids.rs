//! Names of objects and marks of writes.

use std::fmt;

use weir_device::VolumeId;
use weir_journal::{Epoch, WriteNumber};

/// Place of an object in its stream. The first object of a stream has sequence 1.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Default)]
pub struct ObjectSeq(pub u64);

impl ObjectSeq {
    /// The next place in the stream.
    #[must_use]
    pub fn next(self) -> Self {
        Self(self.0 + 1)
    }
}

impl fmt::Display for ObjectSeq {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.0)
    }
}

/// What names an object: its stream (a volume id), its place in it, and the epoch of the owner that wrote it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct ObjectId {
    /// The volume whose stream it is.
    pub stream: VolumeId,
    /// Place in the stream.
    pub seq: ObjectSeq,
    /// Owner that wrote it.
    pub epoch: Epoch,
}

impl ObjectId {
    /// Key in the store.
    #[must_use]
    pub fn key(&self) -> String {
        format!("{}/log/{:016x}-{:016x}", self.stream, self.seq.0, self.epoch.0)
    }

    /// The prefix of all keys of a stream.
    #[must_use]
    pub fn prefix(stream: VolumeId) -> String {
        format!("{stream}/log/")
    }

    /// Reads a key back; `None` if it is not the key of an object.
    #[must_use]
    pub fn parse_key(key: &str) -> Option<Self> {
        let (stream, rest) = key.split_once("/log/")?;
        let (seq, epoch) = rest.split_once('-')?;
        if seq.len() != 16 || epoch.len() != 16 {
            return None;
        }
        Some(Self {
            stream: VolumeId::parse(stream)?,
            seq: ObjectSeq(u64::from_str_radix(seq, 16).ok()?),
            epoch: Epoch(u64::from_str_radix(epoch, 16).ok()?),
        })
    }
}

impl fmt::Display for ObjectId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.key())
    }
}

/// A write, ordered over the whole life of a volume: by the epoch it was acknowledged in, then by its number.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Default)]
pub struct WriteMark {
    /// Epoch of the journal record that carried the write.
    pub epoch: Epoch,
    /// Its number within the journal.
    pub write: WriteNumber,
}

impl fmt::Display for WriteMark {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "write {} of epoch {}", self.write.0, self.epoch.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn object_keys_read_back_and_sort_by_sequence() {
        let id = |seq, epoch| ObjectId {
            stream: VolumeId([0xab; 16]),
            seq: ObjectSeq(seq),
            epoch: Epoch(epoch),
        };
        assert_eq!(
            id(0x1f, 2).key(),
            "abababababababababababababababab/log/000000000000001f-0000000000000002"
        );
        assert_eq!(ObjectId::parse_key(&id(7, 9).key()), Some(id(7, 9)));
        assert!(id(0x10, 1).key() > id(0xf, 2).key());
        assert_eq!(ObjectId::parse_key("abab/log/1-2"), None);
    }
}
