//! The note that a clone leaves with a volume whose objects it may need. Page: `docs/formats/dependant.md`.

use serde::{Deserialize, Serialize};
use weir_device::VolumeId;

use crate::format::json::checksummed;
use crate::format::manifest::HexId;

/// Newest format of notes that this code reads and writes.
pub const DEPENDANT_FORMAT: u32 = 1;

/// What a note is about, as its key says it: a clone needs a snapshot of a stream.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Dependant {
    /// The volume that is depended on.
    pub stream: VolumeId,
    /// Its snapshot.
    pub snapshot: HexId,
    /// The clone.
    pub clone: VolumeId,
}

impl Dependant {
    /// Prefix of all notes left with a volume.
    #[must_use]
    pub fn prefix(stream: VolumeId) -> String {
        format!("{stream}/dependants/")
    }

    /// Key of the note.
    #[must_use]
    pub fn key(&self) -> String {
        let snapshot = String::from(self.snapshot);
        format!("{}{snapshot}-{}.json", Self::prefix(self.stream), self.clone)
    }

    /// Reads a key back; `None` if it is not that of a note.
    #[must_use]
    pub fn parse_key(key: &str) -> Option<Self> {
        let (stream, file) = key.split_once("/dependants/")?;
        let (snapshot, clone) = file.strip_suffix(".json")?.split_once('-')?;
        Some(Self {
            stream: VolumeId::parse(stream)?,
            snapshot: HexId(VolumeId::parse(snapshot)?.0),
            clone: VolumeId::parse(clone)?,
        })
    }
}

/// The note itself: its key again, and what people want to know.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct DependantRecord {
    /// Format version.
    pub format: u32,
    /// The volume that is depended on.
    pub stream: HexId,
    /// Its snapshot.
    pub snapshot: HexId,
    /// The clone.
    pub clone: HexId,
    /// Name that the clone was created under.
    pub name: String,
    /// Seconds since the Unix epoch by the writer's clock: a clone that was never finished is given up by it.
    pub written_at: u64,
    /// CRC32C, 8 hex digits, of this record as it is written with an empty checksum. Set by [`Self::encode`].
    pub checksum: String,
}

checksummed!(DependantRecord);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_read_back() {
        let note = Dependant {
            stream: VolumeId([1; 16]),
            snapshot: HexId([2; 16]),
            clone: VolumeId([3; 16]),
        };
        assert_eq!(Dependant::parse_key(&note.key()), Some(note));
        assert_eq!(Dependant::parse_key(&note.key().replace(".json", "")), None);
        assert_eq!(Dependant::parse_key("x/dependants/y-z.json"), None);
    }
}
