//! The note that a clone, or the replica of one, leaves with a volume whose objects it may need. Page:
//! `docs/formats/dependant.md`.

use serde::{Deserialize, Serialize};
use weir_device::VolumeId;

use crate::format::json::checksummed;
use crate::format::manifest::HexId;

/// Newest format of notes that this code reads and writes.
pub const DEPENDANT_FORMAT: u32 = 1;

/// What a note is about, as its key says it: a clone needs a snapshot of a stream, or a replica any of its objects.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Dependant {
    /// The volume that is depended on.
    pub stream: VolumeId,
    /// Its snapshot; nothing where a replica may need any of its objects.
    pub snapshot: Option<HexId>,
    /// The clone or replica.
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
        let prefix = Self::prefix(self.stream);
        match self.snapshot {
            Some(snapshot) => format!("{prefix}{}-{}.json", String::from(snapshot), self.clone),
            None => format!("{prefix}{}", self.clone),
        }
    }

    /// Reads a key back; `None` if it is not that of a note.
    #[must_use]
    pub fn parse_key(key: &str) -> Option<Self> {
        let (stream, file) = key.split_once("/dependants/")?;
        let stream = VolumeId::parse(stream)?;
        let Some(names) = file.strip_suffix(".json") else {
            return Some(Self { stream, snapshot: None, clone: VolumeId::parse(file)? });
        };
        let (snapshot, clone) = names.split_once('-')?;
        let snapshot = Some(HexId(VolumeId::parse(snapshot)?.0));
        Some(Self { stream, snapshot, clone: VolumeId::parse(clone)? })
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
        let (stream, clone) = (VolumeId([1; 16]), VolumeId([3; 16]));
        let note = Dependant { stream, snapshot: Some(HexId([2; 16])), clone };
        assert_eq!(Dependant::parse_key(&note.key()), Some(note));
        assert_eq!(Dependant::parse_key(&note.key().replace(".json", "")), None);
        let note = Dependant { stream, snapshot: None, clone };
        assert_eq!(note.key(), format!("{stream}/dependants/{clone}"));
        assert_eq!(Dependant::parse_key(&note.key()), Some(note));
        assert_eq!(Dependant::parse_key("x/dependants/y-z.json"), None);
    }
}
