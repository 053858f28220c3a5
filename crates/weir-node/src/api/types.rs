//! What the API says and takes. Sizes are bytes; times are as the names say.

mod space;

use std::fmt;

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;
use weir_log::ObjectId;
use weir_log::catalog::{VolumeDetails, VolumeSummary};

pub use space::SnapshotSpace;

/// Whether something does what it should.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum Health {
    /// All is well.
    Ok,
    /// It serves, but not as it should; the reasons are beside it.
    Degraded,
    /// It takes no writes any more; the reasons are beside it.
    Failed,
}

/// What happens when the lease of a volume's holder runs out.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "lowercase")]
pub enum Takeover {
    /// A person decides: the holder goes on without the store, and another node needs to be told to take over.
    #[default]
    Manual,
    /// Another node takes over by itself, and the holder stops acknowledging in time.
    Auto,
}

impl From<weir_log::Takeover> for Takeover {
    fn from(takeover: weir_log::Takeover) -> Self {
        match takeover {
            weir_log::Takeover::Manual => Self::Manual,
            weir_log::Takeover::Auto => Self::Auto,
        }
    }
}

impl From<Takeover> for weir_log::Takeover {
    fn from(takeover: Takeover) -> Self {
        match takeover {
            Takeover::Manual => Self::Manual,
            Takeover::Auto => Self::Auto,
        }
    }
}

impl fmt::Display for Takeover {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Manual => "manual",
            Self::Auto => "auto",
        })
    }
}

/// Whether a volume is whole.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "lowercase")]
pub enum VolumeState {
    /// In use.
    Active,
    /// An import or a copy into it has not come to its end.
    Incomplete,
    /// A replica of a volume of another store.
    Replica,
    /// A deletion of it has not come to its end.
    Deleted,
}

impl From<weir_log::VolumeState> for VolumeState {
    fn from(state: weir_log::VolumeState) -> Self {
        match state {
            weir_log::VolumeState::Active => Self::Active,
            weir_log::VolumeState::Incomplete => Self::Incomplete,
            weir_log::VolumeState::Replica => Self::Replica,
            weir_log::VolumeState::Deleted => Self::Deleted,
        }
    }
}

impl fmt::Display for VolumeState {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Active => "active",
            Self::Incomplete => "incomplete",
            Self::Replica => "replica",
            Self::Deleted => "deleted",
        })
    }
}

/// What acknowledged writes would be lost if the host and its disk died now.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct AtRisk {
    /// Bytes written that are not in the store yet.
    pub bytes: u64,
    /// Writes that are not in the store yet.
    pub writes: u64,
    /// Age of the oldest of them in milliseconds; none when there is none.
    pub oldest_age_ms: Option<u64>,
}

/// A process that serves volumes.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct NodeStatus {
    /// Version of Weir.
    pub version: String,
    /// Id of the process.
    pub process: u32,
    /// Name of the host.
    pub node: String,
    /// Whether it does what it should.
    pub health: Health,
    /// Why not.
    pub reasons: Vec<String>,
    /// URL of the store.
    pub store: String,
    /// The data directory.
    pub data_dir: String,
    /// Seconds since it began to serve.
    pub uptime_seconds: u64,
    /// Where clients of NBD find it.
    pub nbd: Vec<String>,
    /// What would be lost if the host died now, all volumes together.
    pub at_risk: AtRisk,
    /// The volumes that it serves.
    pub volumes: Vec<ServedVolume>,
    /// The volumes that it should serve and does not.
    pub not_served: Vec<NotServed>,
    /// What the store was asked for since the process began.
    pub store_requests: StoreRequests,
    /// Memory by kind.
    pub memory: Memory,
    /// Limits on uploads.
    pub limits: Limits,
    /// The lease in the store; none while only memory is served.
    pub lease: Option<Lease>,
    /// Number of the newest event.
    pub last_event: u64,
}

/// The lease that other nodes watch while volumes are open here.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Lease {
    /// The identity under which it is kept, 32 hex digits.
    pub node: String,
    /// The unbroken run of renewals, 32 hex digits.
    pub incarnation: String,
    /// Its length: how long others wait.
    pub length_ms: u64,
    /// Time until this node stops relying on it; 0 once that has passed.
    pub left_ms: u64,
    /// Renewals since the process began.
    pub renewals: u64,
    /// Deadlines missed since the process began.
    pub missed: u64,
    /// What renewing struggles with, if it does.
    pub note: Option<String>,
}

/// A volume that could not be opened.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct NotServed {
    /// Name of the volume.
    pub name: String,
    /// Why it is not served.
    pub reason: String,
}

/// Requests to the store, attempts that failed included.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct StoreRequests {
    /// PUTs.
    pub puts: u64,
    /// GETs.
    pub gets: u64,
    /// LISTs.
    pub lists: u64,
    /// DELETEs.
    pub deletes: u64,
    /// Bytes of the objects created.
    pub bytes_up: u64,
    /// Bytes read.
    pub bytes_down: u64,
    /// Requests that failed.
    pub failures: u64,
    /// Requests that were made again.
    pub retries: u64,
    /// Time that uploads waited for their limits, all together.
    pub upload_wait_ms: u64,
}

/// Memory by kind, in bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Memory {
    /// Decoded frames of objects.
    pub frame_cache: u64,
    /// Maps of all volumes.
    pub maps: u64,
    /// Copies of what is in journals.
    pub journals: u64,
    /// Buffers that nobody holds now, kept for the next requests.
    pub unused_buffers: u64,
    /// All of the process, as the kernel counts it.
    pub resident: u64,
}

/// Limits on uploads to the store; none where there is no limit.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct Limits {
    /// Bytes per second.
    #[serde(default)]
    pub upload_bytes_per_second: Option<u64>,
    /// Requests per second.
    #[serde(default)]
    pub upload_requests_per_second: Option<u64>,
}

/// A volume that is being served.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct ServedVolume {
    /// Name of the volume.
    pub name: String,
    /// Its identity, 32 hex digits.
    pub id: String,
    /// Where it is served.
    pub uri: String,
    /// Its size.
    pub size_bytes: u64,
    /// Whether writes of clients are refused.
    pub read_only: bool,
    /// Clients connected now.
    pub clients: u64,
    /// Whether it does what it should.
    pub health: Health,
    /// Why not.
    pub reasons: Vec<String>,
    /// What would be lost if the host died now.
    pub at_risk: AtRisk,
    /// What clients asked for since the process began.
    pub operations: Vec<Operations>,
    /// The replica that is kept of it, if one is.
    pub replica: Option<ReplicaState>,
    /// The log volume behind it; none for a volume in memory.
    pub log: Option<LogStatus>,
}

/// How far the replica of a volume has come.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct ReplicaState {
    /// URL of its store.
    pub store: String,
    /// Object that it is as of; none before its first state is complete.
    pub as_of: Option<u64>,
    /// Bytes of objects that were written after that.
    pub lag_bytes: u64,
    /// Age of what it shows in seconds; 0 where nothing was written since.
    pub lag_seconds: u64,
    /// Bytes sent since the process began to serve the volume.
    pub sent_bytes: u64,
    /// Why it waits, if it does.
    pub trouble: Option<String>,
}

/// Operations of one kind.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct Operations {
    /// `read`, `write`, `discard`, `flush`.
    pub kind: String,
    /// How many.
    pub count: u64,
    /// How many failed.
    pub errors: u64,
    /// Bytes of those that succeeded.
    pub bytes: u64,
    /// Time that they took together, in microseconds.
    pub time_us: u64,
}

/// The inside of a log volume.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct LogStatus {
    /// Number of this opening.
    pub epoch: u64,
    /// Last object of the committed prefix.
    pub committed_sequence: u64,
    /// Sequence that the newest published checkpoint is as of.
    pub checkpoint_as_of: Option<u64>,
    /// Bytes of the journal that cannot be written over yet.
    pub journal_used_bytes: u64,
    /// Bytes that the journal can hold.
    pub journal_capacity_bytes: u64,
    /// Copies of the journal in memory.
    pub journal_resident_bytes: u64,
    /// PUTs of objects in flight.
    pub puts_in_flight: u64,
    /// Objects written since it was opened.
    pub objects_written: u64,
    /// Checkpoints published since it was opened.
    pub checkpoints_published: u64,
    /// Entries of the map.
    pub map_entries: u64,
    /// Memory of the map.
    pub map_bytes: u64,
    /// Bytes of objects that are live.
    pub live_bytes: u64,
    /// Of the live bytes, those in objects of volumes that this one is a clone of.
    #[serde(default)]
    pub shared_bytes: u64,
    /// Payload bytes of the objects that have live bytes: the live share is `live_bytes / used_bytes`.
    pub used_bytes: u64,
    /// Payload bytes of all objects that are not deleted yet.
    pub object_bytes: u64,
    /// Payload bytes of objects of clients' writes since it was opened, merged and not compressed: the write
    /// amplification is `(data_bytes + collected_bytes) / data_bytes`.
    pub data_bytes: u64,
    /// Objects that the collector wrote since it was opened.
    pub collected_objects: u64,
    /// Payload bytes in them.
    pub collected_bytes: u64,
    /// Objects deleted since it was opened.
    pub deleted_objects: u64,
    /// Payload bytes of the objects that were given up for deletion since it was opened.
    pub reclaimed_bytes: u64,
    /// Objects that nothing needs any more and that are not deleted yet.
    pub pending_deletions: u64,
    /// Whether objects of clients' data wait for the collector, which is behind.
    #[serde(default)]
    pub waits_for_collector: bool,
    /// Whether the node holds the lease under which the volume is open.
    pub lease_held: bool,
    /// What happens when that lease runs out.
    pub takeover: Takeover,
}

/// A volume of the store, served or not.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Listed {
    /// Name of the volume.
    pub name: String,
    /// Its identity, 32 hex digits.
    pub id: String,
    /// Its size.
    pub size_bytes: u64,
    /// Whether it is whole.
    pub state: VolumeState,
    /// Node that has it open for writing or did not close it, if any.
    pub holder: Option<String>,
    /// What happens when the holder's lease runs out.
    pub takeover: Takeover,
    /// The process on this machine that serves it, from this data directory.
    pub process: Option<u32>,
    /// Where it serves it.
    pub uri: Option<String>,
}

impl Listed {
    /// A line of a listing.
    #[must_use]
    pub fn new(summary: VolumeSummary, process: Option<u32>, uri: Option<String>) -> Self {
        let VolumeSummary { name, id, size_bytes, holder, takeover, state } = summary;
        let (name, takeover, state) = (name.to_string(), takeover.into(), state.into());
        Self { name, id, size_bytes, state, holder, takeover, process, uri }
    }
}

/// A volume with everything that is known of it.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct Shown {
    /// Name of the volume.
    pub name: String,
    /// Its identity, 32 hex digits.
    pub id: String,
    /// Its size.
    pub size_bytes: u64,
    /// Whether it is whole.
    pub state: VolumeState,
    /// Node that has it open for writing or did not close it, if any.
    pub holder: Option<String>,
    /// What happens when the holder's lease runs out.
    pub takeover: Takeover,
    /// Openings so far.
    pub epoch: u64,
    /// Sequence that the published checkpoint is as of.
    pub checkpoint_as_of: Option<u64>,
    /// Objects in the store.
    pub objects: u64,
    /// Their bytes.
    pub object_bytes: u64,
    /// Number of the newest manifest.
    pub manifest: u64,
    /// Of a clone: the snapshots whose objects it may need, as they were called, nearest first.
    #[serde(default)]
    pub origins: Vec<String>,
    /// Cipher that everything is encrypted with, if it is.
    pub encryption: Option<String>,
    /// Name of the operator's key that the volume's own key is wrapped with.
    pub key: Option<String>,
    /// The process on this machine that serves it, from this data directory.
    pub process: Option<u32>,
    /// What that process says.
    pub serving: Option<ServedVolume>,
    /// What its snapshots take, oldest first, where that was asked for.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub snapshots: Option<Vec<SnapshotSpace>>,
}

impl Shown {
    /// What the store knows, with what a process says that serves the volume.
    #[must_use]
    pub fn new(details: VolumeDetails, serving: Option<(u32, ServedVolume)>) -> Self {
        let (process, serving) = serving.unzip();
        let encryption = details.encryption;
        let VolumeSummary { name, id, size_bytes, holder, takeover, state } = details.summary;
        Self {
            name: name.to_string(),
            id,
            size_bytes,
            state: state.into(),
            holder,
            takeover: takeover.into(),
            epoch: details.epoch,
            checkpoint_as_of: details.checkpoint_as_of,
            objects: details.objects,
            object_bytes: details.object_bytes,
            manifest: details.manifest,
            origins: details.origins,
            encryption: encryption.clone().map(|e| e.cipher),
            key: encryption.map(|e| e.wrapped_with.into()),
            snapshots: None,
            process,
            serving,
        }
    }
}

/// What a check found.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct CheckReport {
    /// Objects read, from header to checksums.
    pub objects: u64,
    /// Bytes of them.
    pub bytes: u64,
    /// Objects that belong to no reading of the volume: a crash or a takeover left them, and the next opening deletes
    /// them.
    pub void_objects: u64,
    /// Objects that nothing needs any more and that the volume is about to delete.
    pub pending_objects: u64,
    /// Objects that were not read because an earlier run found them whole.
    #[serde(default)]
    pub known_objects: u64,
    /// Objects that nothing needs and nobody will delete.
    pub orphans: u64,
    /// Their keys in the store.
    #[serde(default)]
    pub orphan_keys: Vec<String>,
    /// In the log of a volume that is open somewhere: the key of the first object that is not there though later ones
    /// are. It is on its way, or missing.
    #[serde(default)]
    pub awaited: Option<String>,
    /// Why only the checksums of an encrypted volume were checked: its key was not at hand.
    #[serde(default)]
    pub without_key: Option<String>,
    /// What is damaged or missing; nothing when the volume is whole.
    pub damage: Vec<Damage>,
}

impl From<weir_log::CheckReport> for CheckReport {
    fn from(report: weir_log::CheckReport) -> Self {
        let range = |(offset, len)| DamagedRange { offset, len };
        let damage = report.damage.into_iter().map(|damage| Damage {
            place: damage.place,
            problem: damage.problem,
            lost_bytes: damage.lost_bytes,
            ranges: damage.ranges.into_iter().map(range).collect(),
            more_ranges: damage.more_ranges,
        });
        Self {
            objects: report.objects,
            bytes: report.bytes,
            void_objects: report.void_objects,
            pending_objects: report.pending_objects,
            known_objects: report.known_objects,
            orphans: report.orphans.len() as u64,
            awaited: report.awaited.map(|awaited| awaited.object.key()),
            orphan_keys: report.orphans.iter().map(ObjectId::key).collect(),
            without_key: report.without_key,
            damage: damage.collect(),
        }
    }
}

/// What a compaction did.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct CompactReport {
    /// Objects that the collector wrote.
    pub copied_objects: u64,
    /// Payload bytes in them.
    pub copied_bytes: u64,
    /// Payload bytes of the objects that were given up.
    pub reclaimed_bytes: u64,
    /// Live share before, in percent.
    pub live_percent_before: u64,
    /// Live share after, in percent.
    pub live_percent_after: u64,
    /// Objects that nothing needs and that are not deleted yet.
    pub pending_deletions: u64,
    /// Why the wanted share was not reached; none when it was.
    pub obstacle: Option<String>,
}

impl From<weir_log::CompactReport> for CompactReport {
    fn from(report: weir_log::CompactReport) -> Self {
        Self {
            copied_objects: report.copied_objects,
            copied_bytes: report.copied_bytes,
            reclaimed_bytes: report.reclaimed_bytes,
            live_percent_before: report.live_percent_before,
            live_percent_after: report.live_percent_after,
            pending_deletions: report.pending_deletions,
            obstacle: report.obstacle,
        }
    }
}

/// What a repair did.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct RepairReport {
    /// Bytes of the volume that the local journal still had and that are in the store again.
    pub saved_bytes: u64,
    /// Bytes of the volume that were given up.
    pub lost_bytes: u64,
    /// Ranges of the volume that were given up.
    pub lost_ranges: u64,
    /// Damaged objects of the map that were written anew from memory; nothing is lost by them.
    pub rewritten_objects: u64,
    /// Objects that nobody needs, given up for deletion.
    pub removed_objects: u64,
    /// Objects that can be read after all: nothing was done about them.
    pub whole_objects: u64,
    /// Damaged objects that snapshots need: they stay until those snapshots are deleted.
    pub snapshot_objects: u64,
    /// Objects given up that the store has not deleted yet.
    pub pending_deletions: u64,
}

impl RepairReport {
    /// Goes on with the report of the next part of a repair.
    pub(crate) fn add(&mut self, next: &Self) {
        self.saved_bytes += next.saved_bytes;
        self.lost_bytes += next.lost_bytes;
        self.lost_ranges += next.lost_ranges;
        self.rewritten_objects += next.rewritten_objects;
        self.removed_objects += next.removed_objects;
        self.whole_objects += next.whole_objects;
        self.snapshot_objects += next.snapshot_objects;
        self.pending_deletions = next.pending_deletions;
    }
}

impl From<weir_log::RepairReport> for RepairReport {
    fn from(report: weir_log::RepairReport) -> Self {
        Self {
            saved_bytes: report.saved_bytes,
            lost_bytes: report.lost_bytes,
            lost_ranges: report.lost_ranges,
            rewritten_objects: report.rewritten_objects,
            removed_objects: report.removed_objects,
            whole_objects: report.whole_objects,
            snapshot_objects: report.snapshot_objects,
            pending_deletions: report.pending_deletions,
        }
    }
}

/// What a flatten did.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct FlattenReport {
    /// Payload bytes that were copied.
    pub flattened_bytes: u64,
    /// Live bytes of the volume that are still in objects of other volumes.
    pub shared_bytes: u64,
    /// Volumes that it still depends on, by the names they had.
    pub origins: Vec<String>,
    /// Why it still does; none when it does not.
    pub obstacle: Option<String>,
}

impl From<weir_log::FlattenReport> for FlattenReport {
    fn from(report: weir_log::FlattenReport) -> Self {
        Self {
            flattened_bytes: report.copied_bytes,
            shared_bytes: report.shared_bytes,
            origins: report.origins,
            obstacle: report.obstacle,
        }
    }
}

/// What work that takes its time comes to.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(untagged)]
pub enum Report {
    /// Of a check.
    Check(CheckReport),
    /// Of a compaction.
    Compact(CompactReport),
    /// Of a repair.
    Repair(RepairReport),
    /// Of a flatten.
    Flatten(FlattenReport),
}

/// One thing that is damaged or missing.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Damage {
    /// Its key in the store.
    pub place: String,
    /// What is wrong with it.
    pub problem: String,
    /// Bytes of the volume that cannot be read because of it.
    pub lost_bytes: u64,
    /// Where on the volume, the first of them.
    pub ranges: Vec<DamagedRange>,
    /// Ranges that are not listed.
    pub more_ranges: u64,
}

/// Bytes of a volume that cannot be read.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct DamagedRange {
    /// First byte.
    pub offset: u64,
    /// How many.
    pub len: u64,
}

/// What is asked for by `POST /v1/volumes`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct CreateVolume {
    /// Its name.
    pub name: String,
    /// Its size.
    pub size_bytes: u64,
    /// What happens when the lease of the node that holds it runs out.
    #[serde(default)]
    pub takeover: Takeover,
}

/// What is asked for by `POST /v1/volumes/{name}/resize`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct ResizeVolume {
    /// The new size.
    pub size_bytes: u64,
    /// Whether a smaller size gives up what lies beyond it; without this it is refused. Needs a volume without clients.
    #[serde(default)]
    pub shrink: bool,
}

/// A snapshot of a volume.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Snapshot {
    /// Its name.
    pub name: String,
    /// When it was taken, in seconds since 1970 by the clock of the node that took it.
    pub created_at: u64,
    /// Size of the volume in it.
    pub size_bytes: u64,
    /// Number of the last write in it.
    pub last_write: u64,
    /// Sequence of the last object in it.
    pub as_of: u64,
    /// It was deleted, and goes with the last clone that needs it.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub deleting: bool,
}

/// What is asked for by `POST /v1/volumes/{name}/snapshots`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct ChangeSnapshots {
    /// What to do.
    pub action: SnapshotAction,
    /// Name of the snapshot: 1 to 64 letters, digits, `.`, `_` and `-`, beginning with a letter or digit.
    pub snapshot: String,
}

/// What is done with a snapshot.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum SnapshotAction {
    /// Take it.
    Take,
    /// Delete it.
    Delete,
    /// Set the volume back to it, and give up what was written since.
    RollBack,
}

/// What is asked for by `POST /v1/volumes/{name}/compact`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct CompactVolume {
    /// Live share at which it ends, 1 to 100.
    pub percent: u64,
}

/// What is asked for by `POST /v1/volumes/{name}/repair`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct RepairVolume {
    /// Keys of objects that a check named. Each is looked at once more.
    pub objects: Vec<String>,
    /// Whether lost bytes read as zeroes from then on; otherwise reads of them fail until they are written again.
    #[serde(default)]
    pub zero: bool,
}

/// What is asked for by `POST /v1/volumes/{name}/clones`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct CloneVolume {
    /// The snapshot that the clone begins as.
    pub snapshot: String,
    /// Name of the clone.
    pub name: String,
    /// What happens when the lease of the node that holds the clone runs out.
    #[serde(default)]
    pub takeover: Takeover,
}

/// What is asked for by `POST /v1/volumes/{name}/takeover`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct SetTakeover {
    /// What happens when the lease of the node that holds it runs out.
    pub takeover: Takeover,
}

/// What is asked for by `POST /v1/volumes/{name}/flush`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields, default)]
pub struct FlushVolume {
    /// To the store, not only to the local disk.
    pub remote: bool,
    /// Answer when it is done, not when it is begun.
    pub wait: bool,
}

/// One line of the answer to a request that takes its time. The last line is `done` or `failed`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
#[serde(tag = "state", rename_all = "snake_case")]
pub enum Progress {
    /// Still at work.
    Running {
        /// What is done so far: objects of a check or a deletion, bytes of a compaction or a
        /// flatten; nothing of a flush.
        done: u64,
        /// What there is to do: objects, or bytes; for a flush, bytes still to go.
        total: u64,
    },
    /// Done.
    Done {
        /// The report of a check, a compaction or a flatten.
        #[serde(skip_serializing_if = "Option::is_none", default)]
        report: Option<Report>,
    },
    /// Not done.
    Failed(Problem),
}

/// An error.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Problem {
    /// What a caller can do about it, as `Busy`, `Invalid`, `NotFound`, `Unavailable`.
    pub kind: String,
    /// What happened.
    pub message: String,
    /// What to do next, for people.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub help: Option<String>,
}

/// The body of every answer that is no success.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct ErrorBody {
    /// The error.
    pub error: Problem,
}
