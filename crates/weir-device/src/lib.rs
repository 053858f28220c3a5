//! The device contract of Weir and everything that devices, stages, endpoints and front ends share.
//!
//! This crate must not know files, sockets, object stores, formats or threads: those come in through
//! traits ([`Clock`], [`Random`], [`Spawn`]), so that a whole node runs inside one deterministic simulation.

mod buffer;
pub mod conformance;
mod device;
mod env;
mod error;
mod header;
mod history;
mod memory;
mod mutant;
mod range;
mod room;

pub use buffer::{AlignedBuf, BUFFER_ALIGN, BufferPool, SharedBuf, Unneeded};
pub use device::{
    Device, DynDevice, Extent, ExtentState, LocalBoxFuture, Segment, WriteFlags, WriteZeroesFlags,
    check_bounds,
};
pub use env::{Clock, Env, Random, Spawn};
pub use error::{DeviceError, ErrorKind, with_causes};
pub use header::{IoHeader, Operation, SourceId, VolumeId};
pub use history::{ChangedRun, History};
pub use memory::MemoryDevice;
pub use mutant::mutant;
pub use range::ByteRange;
pub use room::Room;
