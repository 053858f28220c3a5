//! The bottom of a stack, dispatched by enum so that a steady state makes no allocation.

use std::rc::Rc;
use std::task::{Context, Poll};
use std::time::Duration;

use weir_device::{
    Device, DeviceError, DeviceInfo, Env, Event, IoHeader, MemoryDevice, Operation, Reply, VolumeId,
};
use weir_disk::Image;
use weir_file::FileVolume;
use weir_log::catalog::VolumeName;
use weir_log::{BlockStore, Keys, LogVolume, OpenArgs, OpenReport, SnapshotView};
use weir_remote::{RemoteArgs, RemoteVolume};
use weir_store::Store;

use crate::error::StackError;

/// What a view of a volume's content is opened from.
#[derive(Clone)]
pub struct ViewArgs {
    /// The store of its objects.
    pub store: Store,
    /// The volume.
    pub id: VolumeId,
    /// Where the keys of encrypted volumes come from.
    pub keys: Keys,
    /// The node's block store.
    pub blocks: BlockStore,
    /// How long a read waits for a store that fails.
    pub read_deadline: Duration,
}

impl std::fmt::Debug for ViewArgs {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "ViewArgs({} in {})", self.id, self.store.url())
    }
}

/// What is to be opened as the bottom of a stack.
#[derive(Debug)]
pub enum EndpointSpec {
    /// Memory of this process, of so many bytes.
    Memory(u64),
    /// A log volume.
    Log(Box<OpenArgs>),
    /// A snapshot of a log volume.
    Snapshot(ViewArgs, VolumeName),
    /// What a replica shows now.
    Replica(ViewArgs),
    /// An export of another server.
    Remote(Box<RemoteArgs>),
    /// A file or a block device of this host, and whether it is only read.
    File(Box<Image>, bool),
}

/// The bottom of a volume's stack.
#[derive(Clone, Debug)]
pub enum Endpoint {
    /// A log volume.
    Log(Rc<LogVolume>),
    /// What a replica shows, as of when it was opened.
    View(Rc<SnapshotView>),
    /// Memory of this process: for measuring the front end. Nothing survives.
    Memory(Rc<MemoryDevice>),
    /// A snapshot of a log volume.
    Snapshot(Rc<SnapshotView>),
    /// An export of another server.
    Remote(Rc<RemoteVolume>),
    /// A file or a block device of this host.
    File(Rc<FileVolume>),
}

impl EndpointSpec {
    pub(crate) async fn open(self, env: &Env) -> Result<(Endpoint, OpenReport), StackError> {
        let endpoint = match self {
            Self::Memory(size) => Endpoint::Memory(Rc::new(MemoryDevice::new(size))),
            Self::Log(args) => {
                let (volume, report) = LogVolume::open(*args).await?;
                return Ok((Endpoint::Log(volume), report));
            }
            Self::Snapshot(ViewArgs { store, id, keys, blocks, read_deadline }, name) => {
                let volume = (id, &keys);
                let opening = SnapshotView::open(&store, env, volume, &name, blocks, read_deadline);
                Endpoint::Snapshot(opening.await?)
            }
            Self::Replica(ViewArgs { store, id, keys, blocks, read_deadline }) => {
                let volume = (id, &keys);
                let opening =
                    SnapshotView::open_replica(&store, env, volume, blocks, read_deadline);
                Endpoint::View(opening.await?)
            }
            Self::Remote(args) => Endpoint::Remote(RemoteVolume::open(env.clone(), *args).await?),
            Self::File(image, is_read_only) => {
                Endpoint::File(FileVolume::open(env.clone(), *image, is_read_only)?)
            }
        };
        Ok((endpoint, OpenReport::default()))
    }
}

impl Endpoint {
    /// Its name in status and metrics.
    #[must_use]
    pub fn name(&self) -> &'static str {
        match self {
            Self::Log(_) => "log",
            Self::View(_) => "replica",
            Self::Memory(_) => "memory",
            Self::Snapshot(_) => "snapshot",
            Self::Remote(_) => "remote",
            Self::File(_) => "file",
        }
    }
}

/// Calls the same method of whatever it is.
macro_rules! dispatch {
    ($self:ident, $device:ident => $call:expr) => {
        match $self {
            Self::Log($device) => $call,
            Self::View($device) => $call,
            Self::Memory($device) => $call,
            Self::Snapshot($device) => $call,
            Self::Remote($device) => $call,
            Self::File($device) => $call,
        }
    };
}

impl Device for Endpoint {
    fn info(&self) -> DeviceInfo {
        dispatch!(self, device => device.info())
    }

    async fn call(&self, io: IoHeader, operation: Operation) -> Result<Reply, DeviceError> {
        dispatch!(self, device => device.call(io, operation).await)
    }

    fn poll_event(&self, cx: &mut Context<'_>) -> Poll<Event> {
        dispatch!(self, device => device.poll_event(cx))
    }
}
