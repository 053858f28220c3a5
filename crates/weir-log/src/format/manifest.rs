//! The manifest of a volume, the record of a name, and how ids and numbers stand in JSON.
//! Page: `docs/formats/manifest.md`.

use serde::{Deserialize, Serialize};
use weir_device::VolumeId;
use weir_journal::{Epoch, JournalId, WriteNumber};

use crate::ids::{ObjectSeq, WriteMark};

/// Newest manifest format that this code reads and writes.
pub const MANIFEST_FORMAT: u32 = 1;

/// 16 bytes as 32 lower-case hex digits.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct HexId(pub [u8; 16]);

impl TryFrom<String> for HexId {
    type Error = String;
    fn try_from(text: String) -> Result<Self, String> {
        VolumeId::parse(&text)
            .map(|id| Self(id.0))
            .ok_or_else(|| format!("{text:?} is not an id of 32 lower-case hex digits"))
    }
}

impl From<HexId> for String {
    fn from(id: HexId) -> Self {
        VolumeId(id.0).to_string()
    }
}

impl From<VolumeId> for HexId {
    fn from(id: VolumeId) -> Self {
        Self(id.0)
    }
}

impl From<JournalId> for HexId {
    fn from(id: JournalId) -> Self {
        Self(id.0)
    }
}

/// A write mark in JSON.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct MarkRecord {
    /// Epoch of the journal record.
    pub epoch: u64,
    /// Write number.
    pub write: u64,
}

impl From<WriteMark> for MarkRecord {
    fn from(mark: WriteMark) -> Self {
        Self { epoch: mark.epoch.0, write: mark.write.0 }
    }
}

impl From<MarkRecord> for WriteMark {
    fn from(record: MarkRecord) -> Self {
        Self { epoch: Epoch(record.epoch), write: WriteNumber(record.write) }
    }
}

/// One opening of the volume for writing.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct EpochEntry {
    /// Its number; every opening has a higher one.
    pub epoch: u64,
    /// First object sequence it owns. Without one it owns nothing.
    pub first_sequence: Option<u64>,
    /// Last write that the objects before `first_sequence` hold.
    pub after_write: Option<MarkRecord>,
    /// The journal that it writes.
    pub journal: HexId,
}

/// Who has the volume open for writing.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Holder {
    /// Host name of the node, for messages.
    pub node: String,
    /// Its journal, which may hold acknowledged writes that no object holds yet.
    pub journal: HexId,
}

/// The newest published checkpoint.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct CheckpointRef {
    /// Sequence of the object that holds its root.
    pub sequence: u64,
    /// Epoch of that object.
    pub epoch: u64,
    /// The map is as of this sequence.
    pub as_of: u64,
}

/// Whether the volume lives.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum VolumeState {
    /// In use.
    Active,
    /// Being deleted; its objects go.
    Deleted,
}

/// One version of a volume's manifest. A change is a new version under the next number.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Manifest {
    /// Format version.
    pub format: u32,
    /// Number of this version.
    pub number: u64,
    /// Unique to the writer of this version: tells its own lost reply from another's success.
    pub nonce: HexId,
    /// The volume.
    pub volume: HexId,
    /// The name it was created under.
    pub name: String,
    /// Size in bytes as last set.
    pub size: u64,
    /// Whether it lives.
    pub state: VolumeState,
    /// Seconds since the Unix epoch by the writer's clock, for humans.
    pub written_at: u64,
    /// Openings, oldest first.
    pub epochs: Vec<EpochEntry>,
    /// Who has it open; none when it was closed cleanly.
    pub holder: Option<Holder>,
    /// Newest published checkpoint.
    pub checkpoint: Option<CheckpointRef>,
    /// Streams this volume descends from, nearest first.
    #[serde(default)]
    pub lineage: Vec<HexId>,
    /// Snapshots; none before that part exists.
    #[serde(default)]
    pub snapshots: Vec<serde_json::Value>,
    /// Objects that no root reaches, waiting for deletion.
    #[serde(default)]
    pub pending_deletions: Vec<String>,
}

impl Manifest {
    /// The epoch that owns `seq`: the last opening whose first sequence is at or below it.
    #[must_use]
    pub fn owner_of(&self, seq: ObjectSeq) -> Option<Epoch> {
        let owners = self.epochs.iter().filter(|e| e.first_sequence.is_some_and(|f| f <= seq.0));
        owners.map(|e| Epoch(e.epoch)).next_back()
    }

    /// The newest epoch handed out.
    #[must_use]
    pub fn newest_epoch(&self) -> Epoch {
        Epoch(self.epochs.last().map_or(0, |e| e.epoch))
    }

    /// Prefix of all versions of a volume's manifest.
    #[must_use]
    pub fn prefix(volume: VolumeId) -> String {
        format!("{volume}/manifest/")
    }

    /// Key of one version.
    #[must_use]
    pub fn key(volume: VolumeId, number: u64) -> String {
        format!("{volume}/manifest/{number:016x}.json")
    }

    /// The number in a key of [`Manifest::key`].
    #[must_use]
    pub fn parse_key(key: &str) -> Option<u64> {
        let digits = key.rsplit_once('/')?.1.strip_suffix(".json")?;
        (digits.len() == 16).then(|| u64::from_str_radix(digits, 16).ok())?
    }
}

/// What a name points at: one version of `names/<name>/<number>.json`. A name is never changed, only superseded.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct NameRecord {
    /// Format version.
    pub format: u32,
    /// Unique to the writer.
    pub nonce: HexId,
    /// The volume, or none once it was deleted.
    pub volume: Option<HexId>,
}

#[cfg(test)]
mod tests {
    use super::*;

    fn entry(epoch: u64, first: Option<u64>) -> EpochEntry {
        EpochEntry { epoch, first_sequence: first, after_write: None, journal: HexId([9; 16]) }
    }

    fn sample() -> Manifest {
        Manifest {
            format: MANIFEST_FORMAT,
            number: 3,
            nonce: HexId([7; 16]),
            volume: HexId([1; 16]),
            name: "demo".into(),
            size: 1 << 30,
            state: VolumeState::Active,
            written_at: 1_790_000_000,
            epochs: vec![entry(1, Some(1)), entry(2, None), entry(3, Some(9))],
            holder: Some(Holder { node: "host".into(), journal: HexId([9; 16]) }),
            checkpoint: Some(CheckpointRef { sequence: 8, epoch: 1, as_of: 6 }),
            lineage: Vec::new(),
            snapshots: Vec::new(),
            pending_deletions: Vec::new(),
        }
    }

    #[test]
    fn an_epoch_without_a_first_sequence_owns_nothing() {
        let manifest = sample();
        assert_eq!(manifest.owner_of(ObjectSeq(8)), Some(Epoch(1)));
        assert_eq!(manifest.owner_of(ObjectSeq(9)), Some(Epoch(3)));
        assert_eq!(manifest.owner_of(ObjectSeq(0)), None);
        assert_eq!(manifest.newest_epoch(), Epoch(3));
    }

    #[test]
    fn manifests_read_back_and_unknown_fields_are_refused() {
        let text = serde_json::to_string_pretty(&sample()).unwrap();
        assert_eq!(serde_json::from_str::<Manifest>(&text).unwrap(), sample());
        let more = text.replacen('{', "{\"surprise\": 1,", 1);
        assert!(serde_json::from_str::<Manifest>(&more).is_err());
    }

    #[test]
    fn manifest_keys_read_back() {
        let key = Manifest::key(VolumeId([1; 16]), 0x2a);
        assert!(key.ends_with("/manifest/000000000000002a.json"));
        assert_eq!(Manifest::parse_key(&key), Some(0x2a));
    }
}
