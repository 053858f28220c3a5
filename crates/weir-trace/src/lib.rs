//! Block traces: requests read from the formats in which public collections come, and generated ones.
#![allow(
    clippy::disallowed_methods,
    reason = "traces are files of the host, read outside any volume"
)]

mod error;
mod format;
mod generate;
mod reader;
mod text;
mod vscsi;
mod write;

pub use error::TraceError;
pub use format::Format;
pub use generate::{Shape, generate};
pub use reader::{Trace, open, read};
pub use write::{CSV_HEADING, write_csv};

/// Most bytes that a request of a trace reads or writes. Kernels and hypervisors cut requests far below it; what is
/// above it is an offset that was taken for a length. Discards have no such bound: one may be of a whole disk.
pub const REQUEST_BYTES_MAX: u64 = 1 << 30;

/// What a request does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Op {
    /// Reads.
    Read,
    /// Writes.
    Write,
    /// Gives a range up.
    Discard,
    /// Makes what was written before it durable.
    Flush,
}

/// One request of a trace.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Request {
    /// When, in microseconds since whatever the trace counts from; 0 where it has no times.
    pub time_us: u64,
    /// What it does.
    pub op: Op,
    /// Which disk; names are numbered in the order in which they appear.
    pub device: u64,
    /// First byte.
    pub offset: u64,
    /// Bytes.
    pub len: u64,
}
