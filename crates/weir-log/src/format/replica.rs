//! The note that a replicator leaves at its source. Page: `docs/formats/replica-note.md`.

use serde::{Deserialize, Serialize};
use weir_device::VolumeId;

use crate::format::json::{checksummed, read_whole};
use crate::format::manifest::HexId;

/// Newest format of notes that this code reads and writes.
pub const REPLICA_NOTE_FORMAT: u32 = 1;

/// One version of `<volume>/replicas/<replica>/<number>.json`: how far a replica has come. The highest number counts.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ReplicaNote {
    /// Format version.
    pub format: u32,
    /// Number of this version.
    pub number: u64,
    /// The volume that is replicated.
    pub volume: HexId,
    /// The replica.
    pub replica: HexId,
    /// URL of the replica's store, for humans.
    pub store: String,
    /// Objects of the volume up to this sequence are being copied; none while nothing is.
    pub copying_through: Option<u64>,
    /// Number of the manifest version whose root the replica shows; 0 before the first.
    pub manifest: u64,
    /// When that version was written, in seconds since the Unix epoch by its writer's clock.
    pub root_written_at: u64,
    /// Seconds since the Unix epoch by the replicator's clock, for humans.
    pub written_at: u64,
    /// CRC32C, 8 hex digits, of this version as it is written with an empty checksum. Set by [`ReplicaNote::encode`].
    pub checksum: String,
}

checksummed!(ReplicaNote);

impl ReplicaNote {
    /// Reads one version; `None` if it is not what a replicator of this format wrote.
    #[must_use]
    pub fn decode(bytes: &[u8]) -> Option<Self> {
        read_whole(bytes, Self::is_intact).filter(|note| note.format == REPLICA_NOTE_FORMAT)
    }

    /// Prefix of the notes of all replicas of a volume.
    #[must_use]
    pub fn prefix(volume: VolumeId) -> String {
        format!("{volume}/replicas/")
    }

    /// Prefix of the notes of one replica.
    #[must_use]
    pub fn prefix_of(volume: VolumeId, replica: HexId) -> String {
        format!("{}{}/", Self::prefix(volume), String::from(replica))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn notes_read_back_and_wrong_ones_show() {
        let note = ReplicaNote {
            format: REPLICA_NOTE_FORMAT,
            number: 3,
            volume: HexId([1; 16]),
            replica: HexId([2; 16]),
            store: "file:///replica".into(),
            copying_through: Some(77),
            manifest: 9,
            root_written_at: 1_790_000_000,
            written_at: 1_790_000_060,
            checksum: String::new(),
        };
        let text = String::from_utf8(note.encode()).unwrap();
        let read = ReplicaNote::decode(text.as_bytes()).unwrap();
        assert_eq!(ReplicaNote { checksum: String::new(), ..read }, note);
        let wrong = text.replacen("\"copying_through\": 77", "\"copying_through\": 76", 1);
        assert_eq!(ReplicaNote::decode(wrong.as_bytes()), None);
        assert_eq!(ReplicaNote::decode(&text.as_bytes()[..20]), None);
    }
}
