//! What the API says and takes. Sizes are bytes; times are as the names say.

mod at_risk;
mod cache;
mod listed;
mod reports;
mod said;
mod space;

use std::fmt;

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;
use weir_log::catalog::VolumeDetails;

pub use cache::{CacheFileReport, CacheOfVolume, CacheReport, CacheResized, CacheShown};
pub use listed::Listed;
pub use reports::{
    CheckReport, CompactReport, Damage, DamagedRange, FlattenReport, RepairReport, WarmReport,
};
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
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema, clap::ValueEnum,
)]
#[serde(rename_all = "lowercase")]
pub enum Takeover {
    /// A person decides, with --take-over; without the store, I/O goes on
    #[default]
    Manual,
    /// Another node takes the volume by itself; without the store, I/O stops in time
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
    /// What the store has of it cannot be read.
    Unreadable,
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
            Self::Unreadable => "unreadable",
        })
    }
}

/// What acknowledged writes would be lost if the host and its disk died now.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct AtRisk {
    /// Bytes written that are not in the store yet.
    pub bytes: u64,
    /// Written blocks that are not in the store yet: a write has one for each 4 KiB, at least one.
    // As processes of older programs call it.
    #[serde(alias = "writes")]
    pub blocks: u64,
    /// Age of the oldest of them in milliseconds; none when there is none.
    pub oldest_age_ms: Option<u64>,
    /// Whether the oldest of them may be older: a process before this one took them in, and the journal does not say
    /// when.
    #[serde(default)]
    pub age_is_least: bool,
    /// Whether there may be more, up to all that the journal holds: the volume failed, so that its store may lack more
    /// than that, or it is not served and nothing says what its store lacks.
    #[serde(default)]
    pub bytes_are_least: bool,
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
    /// Where that store is, the same for every way to write its URL; none while only memory is served.
    #[serde(default)]
    pub store_location: Option<String>,
    /// Whether that store is on the disk of the data directory, whose loss takes the volumes whole: `at_risk` counts
    /// what is in journals alone.
    #[serde(default)]
    pub store_shares_disk: bool,
    /// The data directory.
    pub data_dir: String,
    /// Seconds since it began to serve.
    pub uptime_seconds: u64,
    /// Where clients of NBD find it.
    pub nbd: Vec<String>,
    /// How many clients of NBD there are.
    #[serde(default)]
    pub nbd_clients: NbdClients,
    /// What would be lost if the host died now, all volumes together.
    pub at_risk: AtRisk,
    /// The volumes that it serves.
    pub volumes: Vec<ServedVolume>,
    /// The volumes that it should serve and does not, those whose newest writes are in a journal here alone, and those
    /// that are being closed. A close that has nothing to send is no reason before it has gone on for five seconds.
    pub not_served: Vec<NotServed>,
    /// The names that its settings give to volumes in no store, files and exports of other servers, served or not: no
    /// volume of the store gets one of them.
    #[serde(default)]
    pub names_elsewhere: Vec<String>,
    /// What the store was asked for since the process began.
    pub store_requests: StoreRequests,
    /// Memory by kind.
    pub memory: Memory,
    /// The cache of objects on the local disk.
    #[serde(default)]
    pub cache: CacheReport,
    /// Limits on uploads.
    pub limits: Limits,
    /// Work that no client waits for, and what it leaves to clients.
    #[serde(default)]
    pub background: Background,
    /// The lease in the store; none while only memory is served.
    pub lease: Option<Lease>,
    /// The certificates for TLS; none where clients do not speak it.
    #[serde(default)]
    pub certificates: Vec<CertificateStatus>,
    /// The oldest version of TLS that is spoken, `1.2` or `1.3`; none where clients do not speak it.
    #[serde(default)]
    pub tls_min_version: Option<String>,
    /// Number of the newest event.
    pub last_event: u64,
}

/// A certificate that the process uses.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct CertificateStatus {
    /// What it is for: `server`, `client` or `authority`.
    pub role: String,
    /// Whom it was issued to.
    pub name: String,
    /// Serial number, as hexadecimal digits.
    pub serial: String,
    /// When it expires, in seconds since the epoch of Unix.
    pub expires: u64,
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

/// A volume that is not served.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct NotServed {
    /// Name of the volume.
    pub name: String,
    /// Why it is not served, and what to do; of one that is being closed, since when and what that waits for.
    pub reason: String,
    /// What is in its journal here alone, where that is known.
    #[serde(default)]
    pub at_risk: Option<AtRisk>,
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

/// Clients of NBD, of all volumes and snapshots together.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct NbdClients {
    /// Connected now.
    pub connected: u64,
    /// As many can be.
    pub most: u64,
    /// One host, or one user of this host, can have as many.
    pub most_of_one: u64,
    /// Turned away since the process began, for want of a place.
    pub refused: u64,
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
    /// Requests and replies of clients, beyond what each connection always has.
    #[serde(default)]
    pub requests: u64,
    /// Buffers that nobody holds now, kept for the next requests.
    pub unused_buffers: u64,
    /// All of the process, as the kernel counts it.
    pub resident: u64,
}

/// Work in the background, which yields to clients: uploads, the collector's copies, deletions.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct Background {
    /// Bytes per second that clients leave to it; none where nothing bounds it: while no client asks for anything, and
    /// while the node is drained.
    pub bytes_per_second: Option<u64>,
    /// What clients' requests take, as a multiple of what they take while nothing is done in the background.
    pub latency: f64,
    /// What they may take, as such a multiple.
    pub latency_target: f64,
    /// What each kind of work has had since the process began.
    pub classes: Vec<BackgroundClass>,
}

/// A kind of work in the background.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct BackgroundClass {
    /// `upload`, `collect`, `delete`, `fill`.
    pub class: String,
    /// Bytes that it moved.
    pub bytes: u64,
    /// Operations that take time whatever their bytes, as deletions.
    pub operations: u64,
    /// Time that they waited for clients, all together.
    pub waited_ms: u64,
}

/// Limits on uploads to the store, none where there is no limit, and whether background work yields to nobody.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct Limits {
    /// Bytes per second.
    #[serde(default)]
    pub upload_bytes_per_second: Option<u64>,
    /// Requests per second.
    #[serde(default)]
    pub upload_requests_per_second: Option<u64>,
    /// Whether work in the background yields to nobody, for who wants to leave the host.
    #[serde(default)]
    pub drain: bool,
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
    /// The one of them that alone may write, if one may.
    #[serde(default)]
    pub exclusive: Option<String>,
    /// Whether it does what it should.
    pub health: Health,
    /// Why not.
    pub reasons: Vec<String>,
    /// What would be lost if the host died now.
    pub at_risk: AtRisk,
    /// What clients asked for since the process began.
    pub operations: Vec<Operations>,
    /// The layers of its stack, the topmost first.
    #[serde(default)]
    pub layers: Vec<Layer>,
    /// What its clients may ask for, and its share of the cache on the local disk; none where nothing is limited.
    #[serde(default)]
    pub limit: Option<VolumeLimit>,
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

/// A layer of the stack of a volume.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct Layer {
    /// `limit`, `trace`, or what is at the bottom: `log`, `memory`, `replica`, `remote`, `file`.
    pub kind: String,
    /// What passed through it since it is there.
    pub operations: Vec<Operations>,
    /// Bytes that it acknowledged and that the layer below lacks.
    pub dirty_bytes: u64,
    /// Of a limit: what is set.
    pub limit: Option<VolumeLimit>,
    /// Of a limit: operations that wait now.
    pub waiting: Option<u64>,
    /// Of a limit: operations that have waited.
    pub delayed: Option<u64>,
    /// Of a trace: operations that are in it.
    pub recorded: Option<u64>,
    /// Of a trace: operations that are missing.
    pub missing: Option<u64>,
    /// Of a remote volume: the connection to its server.
    pub remote: Option<RemoteState>,
    /// Of a file or a block device: where it is.
    pub file: Option<FileState>,
    /// What is wrong with it, if something is.
    pub note: Option<String>,
}

/// The file or block device of a volume.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct FileState {
    /// Its path.
    pub path: String,
    /// Whether it is used past the page cache.
    pub direct: bool,
}

/// The connection of a remote volume to its server.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct RemoteState {
    /// The address of the export.
    pub url: String,
    /// Whether there is a connection.
    pub connected: bool,
    /// Whether nobody else may write the export.
    #[serde(default)]
    pub exclusive: bool,
    /// Connections that are used.
    pub connections: u64,
    /// The name in the server's certificate, under TLS.
    pub server: Option<String>,
    /// Times that the connections were lost.
    pub lost: u64,
    /// Requests that were not answered yet.
    pub requests: u64,
    /// Bytes that the server acknowledged and did not flush yet.
    pub unflushed_bytes: u64,
}

/// What clients of a volume may ask for.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(default)]
pub struct VolumeLimit {
    /// Operations per second.
    pub iops: Option<u64>,
    /// Bytes per second read and written.
    pub bytes_per_second: Option<u64>,
    /// What these let through in so many milliseconds passes at once after a pause.
    pub burst_ms: u64,
    /// What the volume may have of the cache on the local disk at most, in percent; nothing in the description of a
    /// layer.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cache_share: Option<u64>,
}

impl VolumeLimit {
    /// Whether anything is limited.
    #[must_use]
    pub fn is_some(&self) -> bool {
        self.iops.is_some() || self.bytes_per_second.is_some() || self.cache_share.is_some()
    }
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
    /// How old the oldest acknowledged byte that is not in the store may become.
    #[serde(default)]
    pub rpo_ms: u64,
    /// Batches that came into the store later than that since it was opened.
    #[serde(default)]
    pub rpo_missed: u64,
    /// How much presses its uploads, in thousandths: at 1000 they go as if clients waited for them.
    #[serde(default)]
    pub upload_pressure: u64,
    /// Reads beyond memory that the cache on the local disk answered.
    #[serde(default)]
    pub cache_hits: u64,
    /// Those that it did not.
    #[serde(default)]
    pub cache_misses: u64,
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
    /// Whether that node renewed its lease within the lease's length, by the clocks of both hosts: it has the volume
    /// open, or was stopped just now. Not where this data directory shows that no process has it open any more.
    #[serde(default)]
    pub holder_renews: bool,
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
    /// What whoever changed the volume has to know.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub note: Option<String>,
}

impl Shown {
    /// A volume of which no store knows, as the process says that serves it.
    pub(crate) fn of_served(process: Option<u32>, serving: ServedVolume) -> Self {
        Self {
            name: serving.name.clone(),
            id: serving.id.clone(),
            size_bytes: serving.size_bytes,
            state: VolumeState::Active,
            holder: None,
            holder_renews: false,
            takeover: Takeover::Manual,
            epoch: 0,
            checkpoint_as_of: None,
            objects: 0,
            object_bytes: 0,
            manifest: 0,
            origins: Vec::new(),
            encryption: None,
            key: None,
            process,
            serving: Some(serving),
            snapshots: None,
            note: None,
        }
    }

    /// What the store knows, with what a process says that serves the volume.
    #[must_use]
    pub fn new(details: VolumeDetails, serving: Option<(u32, ServedVolume)>) -> Self {
        let (process, serving) = serving.unzip();
        let encryption = details.encryption;
        let summary = details.summary;
        Self {
            name: summary.name.to_string(),
            id: summary.id,
            size_bytes: summary.size_bytes,
            state: summary.state.into(),
            holder: summary.holder,
            holder_renews: summary.is_renewed,
            takeover: summary.takeover.into(),
            epoch: details.epoch,
            checkpoint_as_of: details.checkpoint_as_of,
            objects: details.objects,
            object_bytes: details.object_bytes,
            manifest: details.manifest,
            origins: details.origins,
            encryption: encryption.clone().map(|e| e.cipher),
            key: encryption.map(|e| e.wrapped_with.into()),
            snapshots: None,
            note: None,
            process,
            serving,
        }
    }
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

/// One line of the answer to a request that takes its time. The last line is `done` or `failed`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
#[serde(tag = "state", rename_all = "snake_case", bound(deserialize = "R: Deserialize<'de>"))]
pub enum Progress<R> {
    /// Still at work.
    Running {
        /// What is done so far: objects of a check or a deletion, bytes of a compaction, a
        /// flatten or a warming; nothing of a flush.
        done: u64,
        /// What there is to do: objects, or bytes; for a flush, bytes still to go.
        total: u64,
    },
    /// Done.
    Done {
        /// What it came to.
        report: R,
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
