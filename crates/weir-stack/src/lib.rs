//! A volume's stack of devices, and its owner: stages over one endpoint, built from a description, opened, quiesced,
//! snapshotted, resized and closed as one. Every verb on an open volume goes through the [`Stack`], so that none of
//! them reaches around a stage.
//!
//! This crate must not know sockets, HTTP, configuration files, or files of the host: what a stage writes beside the
//! volume goes to a sink that the owner of the process gives it. It needs [`weir_device::Env`] only, so that the
//! simulation runs the same code as a node.

mod endpoint;
mod error;
mod gate;
mod layer;
mod limit;
mod measured;
mod stack;
mod status;
mod trace;
mod verbs;

pub use endpoint::{Endpoint, EndpointSpec, ViewArgs};
pub use error::StackError;
pub use gate::Quiesced;
pub use layer::{Below, Layer, Stage};
pub use limit::{BURST_DEFAULT, BURST_MAX, BURST_MIN, Limit, LimitSettings, Rate};
pub use measured::{BUCKETS_US, Counted, Counters, Kind, Measured};
pub use stack::{Stack, StackSpec, StageSpec};
pub use status::{LayerStatus, StageStatus};
pub use trace::{Trace, TraceLog, TraceSink, TraceSpec, TraceStatus};
pub use verbs::QUIESCE_MAX;
