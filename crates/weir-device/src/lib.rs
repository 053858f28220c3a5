//! The device contract of Weir and everything that devices, stages, endpoints and front ends share.
//!
//! This crate must not know files, sockets, object stores, formats or threads: those come in through
//! traits ([`Clock`], [`Random`], [`Spawn`], [`Network`]), so that a whole node runs inside one deterministic
//! simulation.

mod buffer;
pub mod conformance;
mod data;
mod device;
mod env;
mod error;
mod event;
mod header;
mod history;
mod memory;
mod network;
mod operation;
mod range;
mod range_lock;
mod reply;
mod room;
pub mod testing;
mod waits;
mod whole_blocks;

pub use buffer::{AlignedBuf, BUFFER_ALIGN, BufferPool, SharedBuf, Unneeded};
pub use data::{Data, Slice};
pub use device::{Device, DeviceExt, DeviceInfo, DynDevice, LocalBoxFuture};
pub use env::{Clock, Env, FileRead, FileReads, NoFileReads, Random, Spawn};
pub use error::{DeviceError, ErrorKind, with_causes};
pub use event::{Event, Events};
pub use header::{Admission, HOPS_MAX, IoHeader, SourceId, VolumeId};
pub use history::{ChangedRun, History};
pub use memory::MemoryDevice;
pub use network::{
    Accepted, Address, ByteStream, DetachedStream, Listener, Network, NoNetwork, Peer,
};
pub use operation::{
    Change, FlushScope, Operation, OperationKind, Segment, WriteZeroesFlags, check_range,
};
pub use range::ByteRange;
pub use range_lock::{RangeGuard, RangeLock, RangeLocking, RangeMode, RangeToken};
pub use reply::{Body, Extent, ExtentState, Lease, Leases, Reply};
pub use room::Room;
pub use waits::{DiskWait, DiskWaits};
pub use weir_pacer::{Pacer, mutant};
pub use whole_blocks::whole_blocks;
