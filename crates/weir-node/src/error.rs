//! What can go wrong with a node, and what to do next.

mod help;

use std::fmt;
use std::io;

use weir_cache::engine::CacheError;
use weir_device::{DeviceError, ErrorKind, VolumeId, with_causes};
use weir_disk::DiskError;
use weir_frontend::nbd::NbdError;
use weir_log::LogError;
use weir_log::catalog::VolumeName;
use weir_store::StoreError;

use self::help::{
    ROOM_HELP, gone_help, image_help, io_help, left_help, live_help, log_help, lost_help,
    salvage_help, size_help, unknown_help,
};
use crate::cache_error::CacheCommandError;
use crate::size::human;

/// Why a process that accepts connections and says nothing does not answer.
pub(crate) const SILENT: &str = "it is silent";

/// A process of this machine, as far as it is known.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ProcessId(pub Option<i32>);

impl ProcessId {
    /// This process.
    pub(crate) fn own() -> Self {
        Self(i32::try_from(std::process::id()).ok())
    }
}

impl fmt::Display for ProcessId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0 {
            Some(id) => write!(f, "{id}"),
            None => f.write_str("(unknown)"),
        }
    }
}

/// An error of a node.
#[derive(Debug, thiserror::Error)]
pub enum NodeError {
    /// The operating system refused something.
    #[error("{action} {subject}: {source}")]
    Io {
        /// What was done, as "reading".
        action: &'static str,
        /// To what: a path, an address.
        subject: String,
        /// Why not.
        #[source]
        source: io::Error,
    },
    /// The volume is open in another process of this machine.
    #[error("volume {name:?} is served by process {process}{place}")]
    Served {
        /// Name of the volume.
        name: String,
        /// The process.
        process: ProcessId,
        /// Where it is served, as " at URI"; empty where unknown.
        place: String,
    },
    /// A process of this machine has the volume open, and nothing says that it serves it.
    #[error("process {process} has volume {name:?} open, and does not say that it serves it")]
    Held {
        /// Name of the volume.
        name: String,
        /// The process.
        process: ProcessId,
    },
    /// A process of this machine has a volume of the same identity open, from another store.
    #[error("process {process} has volume {name:?} open from {served}, which is another store")]
    OtherStore {
        /// Name of the volume.
        name: String,
        /// The process.
        process: ProcessId,
        /// URL of the store that it is served from.
        served: String,
    },
    /// The process has another volume under this name.
    #[error("volume {name:?} is {found} in the process that serves it, not {meant}")]
    OtherVolume {
        /// The name.
        name: String,
        /// Identity of the volume that the caller found in the store.
        meant: String,
        /// Identity of the one that is served.
        found: String,
    },
    /// The volume has another size than was asked for.
    #[error("volume {name:?} has {found} bytes, not {wanted}")]
    OtherSize {
        /// Name of the volume.
        name: String,
        /// Its size in bytes.
        found: u64,
        /// The size asked for, in bytes.
        wanted: u64,
        /// Whether Weir can grow it.
        can_grow: bool,
    },
    /// A volume that does not exist can be created only with a size.
    #[error("there is no volume {name:?} in {store}")]
    SizeNeeded {
        /// Name of the volume.
        name: String,
        /// URL of the store.
        store: String,
    },
    /// Volumes were in a store that looks as if nobody had ever used it.
    #[error(
        "the store {store} {state}, and volumes of this data directory were in it: it is another place, or its file \
         system is not mounted"
    )]
    StoreGone {
        /// URL of the store.
        store: String,
        /// What it looks like.
        state: &'static str,
        /// The file that says which stores were used.
        record: String,
    },
    /// A volume that is to be created, of whose name there is a journal, and that its store lacks.
    #[error(
        "the store {store} has no volume \"{name}\", and yet there is a journal of one in this data directory, \
         {journal}, which was not closed with everything in that store: the store lost its name, or was set back"
    )]
    NameLost {
        /// Name of the volume.
        name: String,
        /// URL of the store.
        store: String,
        /// The journal.
        journal: String,
    },
    /// A journal that its volume went on without, of a volume that is to be deleted.
    #[error(
        "volume \"{name}\" is not deleted: its journal in this data directory holds {blocks} written blocks \
         ({bytes} bytes) that the volume went on without"
    )]
    NotSalvaged {
        /// Name of the volume.
        name: String,
        /// Written blocks, of 4 KiB at most, that only the journal holds.
        blocks: u64,
        /// Their bytes.
        bytes: u64,
    },
    /// A volume that is not there, of whose journal the same is true.
    #[error(
        "volume \"{name}\" was deleted elsewhere; its journal in this data directory, {journal}, may hold the only \
         copy of acknowledged writes"
    )]
    DeletedElsewhere {
        /// Name of the volume.
        name: String,
        /// The journal.
        journal: String,
    },
    /// The same, where the journal cannot be read.
    #[error(
        "volume \"{name}\" is not deleted: it went on without its journal in this data directory, and what that holds \
         is not known"
    )]
    NotKnownSalvaged {
        /// Name of the volume.
        name: String,
        /// Why it is not known.
        source: Box<LogError>,
    },
    /// The journal of a new volume has no room.
    #[error(
        "a journal takes {} at first, and the file system of {directory} has {} left",
        human(*needed),
        human(*free)
    )]
    NoJournalRoom {
        /// The data directory.
        directory: String,
        /// Bytes that are free.
        free: u64,
        /// Bytes that a journal begins with.
        needed: u64,
    },
    /// A store that whoever only reads does not create.
    #[error("there is no store at {store}")]
    NoStore {
        /// URL of the store.
        store: String,
        /// URLs of those that were used from the same data directory.
        known: Vec<String>,
    },
    /// A unix socket's path is longer than the operating system allows.
    #[error("{path} is too long for a unix socket: {length} bytes, {limit} are allowed")]
    SocketPath {
        /// The path.
        path: String,
        /// Its length in bytes.
        length: usize,
        /// The limit in bytes.
        limit: usize,
    },
    /// Something else than an abandoned socket is where a socket should be.
    #[error("{path} is in use: {reason}")]
    SocketInUse {
        /// The path.
        path: String,
        /// What is there.
        reason: &'static str,
    },
    /// The certificates for TLS are not what they must be.
    #[error("certificates for TLS")]
    Tls(#[from] weir_net::tls::TlsError),
    /// An address that other machines reach, without TLS.
    #[error(
        "{address} can be reached from other machines, and NBD there is neither encrypted nor authenticated"
    )]
    NotLoopback {
        /// The address.
        address: String,
    },
    /// The same for the API.
    #[error("{address} can be reached from other machines, and the API there is not encrypted")]
    ApiNotLoopback {
        /// The address.
        address: String,
    },
    /// The API over TCP is for those who know a token.
    #[error("the API cannot be served at {address}: {reason}")]
    Token {
        /// The address.
        address: String,
        /// What is wrong with the token.
        reason: &'static str,
    },
    /// Another process of this kind runs in the data directory.
    #[error("another `weir serve` runs in {data_dir}: process {process}{}", .fate.0)]
    SecondNode {
        /// The data directory.
        data_dir: String,
        /// That process.
        process: ProcessId,
        /// What became of it, and what to do about it.
        fate: (&'static str, &'static str),
    },
    /// A volume of a store is wanted of a process without one.
    #[error("this process has no store that volume {name:?} could be in")]
    NoStoreHere {
        /// Name of the volume.
        name: String,
    },
    /// A volume that is in no store, but in memory or on another server, cannot do this.
    #[error("volume {name:?} is no volume of a store, and {reason}")]
    InMemory {
        /// Name of the volume.
        name: String,
        /// What follows from that, as "keeps its size".
        reason: &'static str,
    },
    /// A clone that is to be encrypted would share the bytes of a volume that is not.
    #[error("a clone of {snapshot} cannot be encrypted, because that is not")]
    PlainParent {
        /// The snapshot.
        snapshot: String,
    },
    /// What needs a volume without clients.
    #[error("clients are connected to volume {name:?}: {clients}")]
    Connected {
        /// Name of the volume.
        name: String,
        /// How many.
        clients: usize,
    },
    /// Two verbs at once of which each needs a volume without clients.
    #[error(
        "volume {name:?} is being changed by another verb: attached, detached, set back to a snapshot, or shrunk"
    )]
    Changing {
        /// Name of the volume.
        name: String,
    },
    /// An opening that was given up because its volume is not to be served any more.
    #[error("volume {name:?} is not opened: it was detached, or the configuration was loaded anew")]
    TakenBack {
        /// Name of the volume.
        name: String,
    },
    /// More than the process does at a time.
    #[error("{limit} {what} are under way in this process, some of them for callers who have left")]
    TooMuch {
        /// How many it does at a time.
        limit: usize,
        /// Of what, as "checks".
        what: &'static str,
    },
    /// A verb on a served volume, and it is not served here.
    #[error("volume {name:?} is not served by this process")]
    NotServedHere {
        /// Name of the volume.
        name: String,
    },
    /// A volume that is to be served is served already, and not as it was asked for.
    #[error(
        "volume {name:?} is served already, and {}",
        if *read_only { "read-only" } else { "clients may write to it" }
    )]
    ServedOtherwise {
        /// Name of the volume.
        name: String,
        /// Writes of its clients are refused.
        read_only: bool,
    },
    /// A volume was closed without everything in the store.
    #[error(
        "volume {name:?} is closed, but the store did not take everything in time: the journal here keeps the rest"
    )]
    KeptInJournal {
        /// Name of the volume.
        name: String,
    },
    /// What only a process of many volumes can do.
    #[error("process {process} serves one volume for as long as it runs (weir up)")]
    SingleVolume {
        /// The process.
        process: ProcessId,
    },
    /// A snapshot that clients read cannot be deleted.
    #[error("snapshot {export:?} is open: clients are connected to the export of that name")]
    SnapshotOpen {
        /// Name of the export, as `demo@monday`.
        export: String,
    },
    /// What only a process that serves can do.
    #[error("nothing is served from {data_dir}")]
    NothingServed {
        /// The data directory.
        data_dir: String,
    },
    /// The cache on the local disk is not changed.
    #[error(transparent)]
    CacheCommand(#[from] CacheCommandError),
    /// A limit of zero would stop all uploads.
    #[error("a limit of zero would stop all uploads")]
    ZeroLimit,
    /// A configuration that cannot be used.
    #[error("{place}: {message}")]
    Config {
        /// The file.
        place: String,
        /// What is wrong, with its line where there is one.
        message: String,
        /// What to do next.
        help: Option<String>,
    },
    /// A process that serves a volume answered with an error.
    #[error("{message}")]
    Remote {
        /// What a caller can do.
        kind: ErrorKind,
        /// The other process's message.
        message: String,
        /// What it says to do next.
        help: Option<String>,
    },
    /// A process that serves volumes did not answer, or not in a form that is understood.
    #[error("process {process}, which listens on {place}, does not answer: {reason}")]
    NoAnswer {
        /// Where it listens.
        place: String,
        /// The process.
        process: ProcessId,
        /// What happened instead.
        reason: String,
    },
    /// A name that no snapshot can have.
    #[error("{}", .0.to_string().replacen("volume name", "snapshot name", 1))]
    SnapshotName(Box<LogError>),
    /// What a volume said of itself by its identity, said by its name.
    #[error("{}", by_name(error, name, id))]
    Called {
        /// Its name.
        name: String,
        /// Its identity, 32 hex digits.
        id: String,
        /// What it said.
        error: Box<NodeError>,
    },
    /// Another replicator keeps the replica.
    #[error(
        "the replica {name:?} is open on {node}, whose replicator renews its lease of {lease_s} s"
    )]
    ReplicaInUse {
        /// Its name.
        name: String,
        /// Name of the node of that replicator.
        node: String,
        /// Length of its lease in seconds.
        lease_s: u64,
    },
    /// Something to be given up that is not there.
    #[error("volume \"{name}\" is not deleted: {why}")]
    NothingToDiscard {
        /// Name of the volume.
        name: String,
        /// How many journals of deleted volumes of that name were removed: then it is what was asked for.
        removed: usize,
        /// Why the volume stays.
        why: String,
    },
    /// A verb on a volume was asked for without its name.
    #[error("no volume was named")]
    NoName,
    /// The store names a volume by something that is no identity.
    #[error("volume {name:?} has the identity {id:?}, which is none")]
    Identity {
        /// Name of the volume.
        name: String,
        /// What the store says.
        id: String,
    },
    /// The volume or the catalog of the store failed.
    #[error(transparent)]
    Log(#[from] LogError),
    /// The store failed.
    #[error(transparent)]
    Store(#[from] StoreError),
    /// The volume failed.
    #[error(transparent)]
    Device(#[from] DeviceError),
    /// A front end failed.
    #[error(transparent)]
    Frontend(#[from] NbdError),
    /// A local file failed.
    #[error(transparent)]
    Disk(#[from] DiskError),
    /// The cache on the local disk cannot be used, or was not closed in order.
    #[error("the cache on the local disk: {0}")]
    Cache(#[from] CacheError),
    /// The node's threads went away in the middle of the work.
    #[error("the node is shutting down")]
    ShuttingDown,
}

/// A message in which a volume is called by its name.
fn by_name(error: &NodeError, name: &str, id: &str) -> String {
    let message = with_causes(error);
    let mut parts = message.split(id);
    let mut named = parts.next().unwrap_or_default().to_owned();
    for part in parts {
        // In a path, and in the key of an object, it is looked for as it is.
        match named.ends_with('/') || part.starts_with('/') {
            true => named.push_str(id),
            false => named.push_str(&format!("{name:?}")),
        }
        named.push_str(part);
    }
    named
}

impl NodeError {
    /// The same, where it names the volume `id` by nothing else.
    #[must_use]
    pub(crate) fn of_volume(self, name: &VolumeName, id: VolumeId) -> Self {
        let id = id.to_string();
        match &self {
            // What is looked for by its kind stays what it is.
            Self::Remote { .. } | Self::Called { .. } => self,
            _ if !with_causes(&self).contains(&id) => self,
            _ => Self::Called { name: name.to_string(), id, error: Box::new(self) },
        }
    }

    /// What the log volume says, if it is what failed.
    pub(crate) fn of_log(&self) -> Option<&LogError> {
        match self {
            Self::Called { error, .. } => error.of_log(),
            Self::Log(error) => Some(error),
            _ => None,
        }
    }

    pub(crate) fn io(action: &'static str, subject: impl Into<String>, source: io::Error) -> Self {
        Self::Io { action, subject: subject.into(), source }
    }

    /// What a caller can do about it.
    #[must_use]
    pub fn kind(&self) -> ErrorKind {
        match self {
            Self::Io { source, .. } => io_kind(source),
            Self::Served { .. }
            | Self::Held { .. }
            | Self::OtherStore { .. }
            | Self::OtherVolume { .. }
            | Self::SocketInUse { .. }
            | Self::NotSalvaged { .. }
            | Self::NotKnownSalvaged { .. }
            | Self::DeletedElsewhere { .. }
            | Self::NameLost { .. }
            | Self::SecondNode { .. } => ErrorKind::Busy,
            Self::OtherSize { .. }
            | Self::SocketPath { .. }
            | Self::Tls(_)
            | Self::NotLoopback { .. }
            | Self::ApiNotLoopback { .. }
            | Self::Token { .. }
            | Self::ZeroLimit
            | Self::NoName
            | Self::NothingToDiscard { .. }
            | Self::SnapshotName(_)
            | Self::PlainParent { .. }
            | Self::Config { .. } => ErrorKind::Invalid,
            Self::InMemory { .. } | Self::SingleVolume { .. } | Self::NoStoreHere { .. } => {
                ErrorKind::Unsupported
            }
            Self::NotServedHere { .. } => ErrorKind::NotFound,
            Self::KeptInJournal { .. } => ErrorKind::Unavailable,
            Self::NoJournalRoom { .. } => ErrorKind::NoSpace,
            Self::CacheCommand(error) => error.kind(),
            Self::Connected { .. }
            | Self::Changing { .. }
            | Self::ReplicaInUse { .. }
            | Self::TooMuch { .. }
            | Self::TakenBack { .. }
            | Self::ServedOtherwise { .. }
            | Self::SnapshotOpen { .. } => ErrorKind::Busy,
            Self::SizeNeeded { .. }
            | Self::NothingServed { .. }
            | Self::StoreGone { .. }
            | Self::NoStore { .. } => ErrorKind::NotFound,
            Self::Remote { kind, .. } => *kind,
            Self::Called { error, .. } => error.kind(),
            Self::NoAnswer { .. } | Self::ShuttingDown => ErrorKind::Unavailable,
            Self::Identity { .. } => ErrorKind::Corrupt,
            Self::Log(source) => source.kind(),
            Self::Store(source) => source.kind(),
            Self::Device(source) => source.kind(),
            Self::Disk(source) => source.kind(),
            Self::Cache(CacheError::Disk(source)) => source.kind(),
            Self::Cache(CacheError::TooSmall { .. }) => ErrorKind::Invalid,
            Self::Cache(CacheError::Busy) => ErrorKind::Busy,
            Self::Frontend(source) => source.kind(),
        }
    }

    /// What to do next, for a person at a terminal.
    #[must_use]
    pub fn help(&self) -> Option<String> {
        match self {
            Self::Served { .. } => {
                Some("use it where it is served, or end that process with SIGTERM first".to_owned())
            }
            Self::Held { .. } => Some(
                "it may be opening or closing the volume, or a verb works on it, and its log says what it waits for: \
                 try again once that has ended, or end that process with SIGTERM first"
                    .to_owned(),
            ),
            Self::OtherStore { served, .. } => Some(format!(
                "a data directory has one of them open at a time: use another --data-dir, or end that process with \
                 SIGTERM first; if both are one store, name it as {served}; if you did, another directory has taken \
                 its place since: bring back the one that was there"
            )),
            Self::OtherVolume { .. } => {
                Some("the name was given to another volume meanwhile: try again".to_owned())
            }
            Self::OtherSize { name, can_grow, .. } => Some(match can_grow {
                true => format!(
                    "leave --size away to serve it as it is; `weir volume resize {name} SIZE` grows it"
                ),
                false => "leave --size away to serve it as it is; it grows where it is kept".to_owned(),
            }),
            Self::NotSalvaged { name, .. } => Some(salvage_help(name)),
            Self::NotKnownSalvaged { name, .. } => Some(unknown_help(name)),
            Self::DeletedElsewhere { name, .. } => Some(left_help(name)),
            Self::NameLost { name, .. } => Some(lost_help(name)),
            Self::StoreGone { store, record, .. } => Some(gone_help(store, record)),
            Self::NoStore { known, .. } => Some(match &known[..] {
                [] => "give the URL of one that there is; the first volume creates it".to_owned(),
                known => format!("name it with --store; used from here: {}", known.join(", ")),
            }),
            Self::SizeNeeded { name, .. } => Some(size_help(name)),
            Self::NoJournalRoom { .. } => Some(ROOM_HELP.to_owned()),
            Self::SocketPath { .. } => {
                Some("give a shorter path with --nbd-socket, or a shorter --data-dir".to_owned())
            }
            Self::SocketInUse { .. } => Some("give another path with --nbd-socket".to_owned()),
            Self::NotLoopback { .. } | Self::ApiNotLoopback { .. } => Some(
                "give certificates with --tls-certificates (`weir pki init` makes some), or listen on 127.0.0.1 or \
                 a unix socket; --insecure is for a network where everybody may read and write everything"
                    .to_owned(),
            ),
            Self::Token { .. } => Some(
                "put a random token of 16 characters or more into a file, and name the file with --api-token-file"
                    .to_owned(),
            ),
            Self::SecondNode { fate: (_, help), .. } => Some((*help).to_owned()),
            Self::NothingServed { .. } => Some(
                "start `weir serve`, or `weir up` for one volume, with this --data-dir; or name the one of a process \
                 that runs"
                    .to_owned(),
            ),
            Self::ZeroLimit => Some("leave the limit away, or null in JSON, for no limit".to_owned()),
            Self::Remote { help, .. } | Self::Config { help, .. } => help.clone(),
            Self::Io { source, subject, .. } => io_help(source, subject),
            Self::Disk(error) => image_help(error),
            Self::Log(error) => log_help(error),
            Self::CacheCommand(error) => Some(error.help().to_owned()),
            Self::Called { error, .. } => error.help(),
            other => live_help(other),
        }
    }
}

/// What a caller can do about an error of the operating system.
fn io_kind(error: &io::Error) -> ErrorKind {
    match error.kind() {
        io::ErrorKind::NotFound => ErrorKind::NotFound,
        io::ErrorKind::AlreadyExists => ErrorKind::Exists,
        io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded => ErrorKind::NoSpace,
        io::ErrorKind::ReadOnlyFilesystem | io::ErrorKind::PermissionDenied => ErrorKind::ReadOnly,
        io::ErrorKind::AddrInUse => ErrorKind::Busy,
        _ => ErrorKind::Unavailable,
    }
}

#[cfg(test)]
mod tests;
