//! The manifest of a volume, and how ids and numbers stand in JSON.
//! Page: `docs/formats/manifest.md`.

use serde::{Deserialize, Serialize};
use weir_device::VolumeId;
use weir_journal::{Epoch, JournalId, ManifestSeen, WriteNumber};

use crate::format::json::checksummed;
use crate::format::lease::LeaseIdentity;
use crate::ids::{ObjectSeq, WriteMark};
pub use crate::keys::WrappedHex;

/// Newest manifest format that this code reads and writes.
pub const MANIFEST_FORMAT: u32 = 5;

/// Manifest format of a volume whose objects are of version 3 at most.
pub const BLOCKS_FORMAT: u32 = 4;

/// Manifest format of a volume whose objects are all of versions that older programs read.
pub const OPENINGS_FORMAT: u32 = 3;

/// Manifest format of an encrypted volume that no program opened for writing that knows openings.
pub const ENCRYPTED_FORMAT: u32 = 2;

/// Manifest format of such a volume that is not encrypted.
pub const PLAIN_FORMAT: u32 = 1;

/// The one cipher there is.
pub const CIPHER: &str = "aes-256-gcm";

/// 16 bytes as 32 lower-case hex digits.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
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
    /// What names it in its journal and its objects. None where a program wrote them that knew no openings.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub opening: Option<HexId>,
    /// The newest opening that owned sequences before it, if that has a name.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub previous: Option<HexId>,
}

/// What a clean close says: everything that the opening acknowledged is in the store.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ClosedRecord {
    /// The opening that was closed.
    pub opening: HexId,
    /// Its last write.
    pub write: u64,
}

/// A journal that a takeover went on without, and the snapshot that is kept for it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct SalvageRecord {
    /// Epoch of the opening that was given up.
    pub epoch: u64,
    /// Its name, if it has one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub opening: Option<HexId>,
    /// Its journal.
    pub journal: HexId,
    /// Last write that the taker found in the store.
    pub after_write: MarkRecord,
    /// Epoch of the opening that took over.
    pub taken_at: u64,
    /// The snapshot of what the taker found; none before it is taken.
    pub snapshot: Option<HexId>,
}

/// Who has the volume open for writing.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Holder {
    /// Host name of the node, for messages.
    pub name: String,
    /// The node: names the chain of lease renewals to watch.
    pub node: HexId,
    /// The unbroken run of renewals that the volume is held under.
    pub incarnation: HexId,
    /// Its journal, which may hold acknowledged writes that no object holds yet.
    pub journal: HexId,
}

impl Holder {
    /// The lease that it is held under.
    #[must_use]
    pub fn lease(&self) -> LeaseIdentity {
        LeaseIdentity { node: self.node, incarnation: self.incarnation }
    }
}

/// What happens when the holder's lease runs out.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Takeover {
    /// A person decides: the holder goes on without the store, and another node needs to be told to take over.
    #[default]
    Manual,
    /// Another node takes over by itself, and the holder stops acknowledging in time.
    Auto,
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

/// The checkpoint of another stream that a volume begins with, until it has one of its own.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Origin {
    /// The stream that the checkpoint is in.
    pub stream: HexId,
    /// The checkpoint.
    pub checkpoint: CheckpointRef,
}

/// What a replica knows of itself.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ReplicaRecord {
    /// Its identity: names its notes at the source.
    pub id: HexId,
    /// URL of the source's store, for messages.
    pub source: String,
    /// Number of the source's manifest version that the root is from; 0 before the first.
    pub manifest: u64,
    /// When that version was written, in seconds since the Unix epoch by its writer's clock.
    pub written_at: u64,
    /// The volume that it was promoted to. Nothing is moved to this replica any more.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub promoted_to: Option<HexId>,
}

/// A snapshot: a name for a checkpoint.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct SnapshotRecord {
    /// Its name, unique within the volume.
    pub name: String,
    /// Its identity; never used again.
    pub id: HexId,
    /// Seconds since the Unix epoch by the writer's clock, for humans.
    pub created_at: u64,
    /// Size of the volume in bytes.
    pub size: u64,
    /// Last write that it shows.
    pub last_write: MarkRecord,
    /// The checkpoint that it is.
    pub checkpoint: CheckpointRef,
    /// The stream that the checkpoint is in, where it is not the volume's own.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub stream: Option<HexId>,
    /// It was deleted, and goes with the last clone that needs it. Nobody finds it by its name any more.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub deleting: bool,
}

/// A snapshot that a clone began as, or that such a snapshot's volume began as.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct OriginRecord {
    /// The volume that it is a snapshot of.
    pub stream: HexId,
    /// Name of that volume when the clone was made, for messages.
    pub volume: String,
    /// Name of the snapshot then.
    pub snapshot: String,
    /// The snapshot.
    pub id: HexId,
}

/// How a volume is encrypted.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Encryption {
    /// [`CIPHER`].
    pub cipher: String,
    /// Name of the volume's data key: what is unwrapped must have it.
    pub key: HexId,
    /// Name of the operator's key that it is wrapped with.
    pub wrapped_with: HexId,
    /// The data key, wrapped.
    pub wrapped: WrappedHex,
}

/// Whether the volume lives.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum VolumeState {
    /// In use.
    Active,
    /// Being filled by an import or a copy that has not come to its end: not to be used as if it were whole.
    Incomplete,
    /// A replica: what replication brought. Takes no writes.
    Replica,
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
    /// What happens when the holder's lease runs out.
    pub takeover: Takeover,
    /// Who has it open; none when it was closed cleanly.
    pub holder: Option<Holder>,
    /// Newest published checkpoint.
    pub checkpoint: Option<CheckpointRef>,
    /// What it begins with as long as it has no checkpoint.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub origin: Option<Origin>,
    /// Of a replica: where it is from and how far it has come.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub replica: Option<ReplicaRecord>,
    /// Streams this volume descends from, nearest first.
    #[serde(default)]
    pub lineage: Vec<HexId>,
    /// Of a clone: the snapshots whose objects its map may name, nearest first. Each has a note of this volume among
    /// its dependants as long as it stands here.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub origins: Vec<OriginRecord>,
    /// Snapshots, oldest first.
    #[serde(default)]
    pub snapshots: Vec<SnapshotRecord>,
    /// Objects that no root reaches, waiting for deletion.
    #[serde(default)]
    pub pending_deletions: Vec<String>,
    /// How its bytes are encrypted; said when it was created.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub encryption: Option<Encryption>,
    /// Newest version that its objects, or those of streams that its map names, may have, where older programs do not
    /// read it. It never goes back.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub object_version: Option<u32>,
    /// How the last clean close left it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub closed: Option<ClosedRecord>,
    /// Journals that takeovers went on without, oldest first, until they are settled.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub salvage: Vec<SalvageRecord>,
    /// CRC32C, 8 hex digits, of this version as it is written with an empty checksum. Set by [`Manifest::encode`].
    pub checksum: String,
}

checksummed!(Manifest);

impl Manifest {
    /// The epoch that owns `seq`: the last opening whose first sequence is at or below it.
    #[must_use]
    pub fn owner_of(&self, seq: ObjectSeq) -> Option<Epoch> {
        self.owning_entry(seq).map(|entry| Epoch(entry.epoch))
    }

    /// The entry of the opening that owns `seq`.
    #[must_use]
    pub fn owning_entry(&self, seq: ObjectSeq) -> Option<&EpochEntry> {
        let owns = |first: Option<u64>| match first {
            None if weir_device::mutant("entry_without_first_sequence_owns") => true,
            first => first.is_some_and(|first| first <= seq.0),
        };
        self.epochs.iter().rfind(|e| owns(e.first_sequence))
    }

    /// The newest opening that owns sequences. Those after it, if there are any, acknowledged nothing.
    #[must_use]
    pub fn newest_owner(&self) -> Option<&EpochEntry> {
        self.epochs.iter().rfind(|entry| entry.first_sequence.is_some())
    }

    /// What tells the objects of `epoch` from those of the same epoch in another history of this volume: the opening of
    /// that epoch, or else of the next one that has a name. Every later opening goes on from exactly one history.
    #[must_use]
    pub fn history_of(&self, epoch: Epoch) -> Option<HexId> {
        self.epochs.iter().filter(|e| e.epoch >= epoch.0).find_map(|e| e.opening)
    }

    /// The checkpoint that the volume's map is loaded from.
    #[must_use]
    pub fn root(&self) -> Option<Origin> {
        let own = |checkpoint| Origin { stream: self.volume, checkpoint };
        self.checkpoint.map(own).or(self.origin)
    }

    /// The snapshot of that name.
    #[must_use]
    pub fn snapshot(&self, name: &str) -> Option<&SnapshotRecord> {
        self.snapshots.iter().find(|s| s.name == name && !s.deleting)
    }

    /// What a journal notes of this version.
    #[must_use]
    pub fn seen(&self) -> ManifestSeen {
        ManifestSeen { number: self.number, nonce: self.nonce.0 }
    }

    /// The newest epoch handed out.
    #[must_use]
    pub fn newest_epoch(&self) -> Epoch {
        Epoch(self.epochs.last().map_or(0, |e| e.epoch))
    }

    /// The format that readers must know to read it.
    #[must_use]
    pub fn format_needed(&self) -> u32 {
        match self.object_version {
            None => {}
            Some(..=3) => return BLOCKS_FORMAT,
            Some(_) => return MANIFEST_FORMAT,
        }
        let has_openings = self.epochs.iter().any(|e| e.opening.is_some());
        match (has_openings || self.closed.is_some(), &self.encryption) {
            (true, _) => OPENINGS_FORMAT,
            (false, Some(_)) => ENCRYPTED_FORMAT,
            (false, None) => PLAIN_FORMAT,
        }
    }

    /// Prefix of all versions of a volume's manifest.
    #[must_use]
    pub fn prefix(volume: VolumeId) -> String {
        format!("{volume}/manifest/")
    }
}

impl SnapshotRecord {
    /// The checkpoint, with the stream that it is in.
    #[must_use]
    pub fn root(&self, volume: VolumeId) -> Origin {
        Origin { stream: self.stream.unwrap_or(volume.into()), checkpoint: self.checkpoint }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn entry(epoch: u64, first: Option<u64>) -> EpochEntry {
        let journal = HexId([9; 16]);
        let (after_write, opening, previous) = (None, None, None);
        EpochEntry { epoch, first_sequence: first, after_write, journal, opening, previous }
    }

    fn sample() -> Manifest {
        Manifest {
            format: PLAIN_FORMAT,
            number: 3,
            nonce: HexId([7; 16]),
            volume: HexId([1; 16]),
            name: "demo".into(),
            size: 1 << 30,
            state: VolumeState::Active,
            written_at: 1_790_000_000,
            epochs: vec![entry(1, Some(1)), entry(2, None), entry(3, Some(9))],
            takeover: Takeover::Manual,
            holder: Some(Holder {
                name: "host".into(),
                node: HexId([5; 16]),
                incarnation: HexId([6; 16]),
                journal: HexId([9; 16]),
            }),
            checkpoint: Some(CheckpointRef { sequence: 8, epoch: 1, as_of: 6 }),
            origin: None,
            replica: None,
            lineage: Vec::new(),
            origins: Vec::new(),
            snapshots: Vec::new(),
            pending_deletions: Vec::new(),
            encryption: None,
            object_version: None,
            closed: None,
            salvage: Vec::new(),
            checksum: String::new(),
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
        let text = String::from_utf8(sample().encode()).unwrap();
        let read = serde_json::from_str::<Manifest>(&text).unwrap();
        assert!(read.is_intact());
        assert_eq!(Manifest { checksum: String::new(), ..read }, sample());
        let wrong = text.replacen("\"first_sequence\": 9", "\"first_sequence\": 8", 1);
        assert!(!serde_json::from_str::<Manifest>(&wrong).unwrap().is_intact());
        let more = text.replacen('{', "{\"surprise\": 1,", 1);
        assert!(serde_json::from_str::<Manifest>(&more).is_err());
    }
}
