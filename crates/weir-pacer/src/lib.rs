//! How fast background work may go beside clients (vStore, III-B, made general).
//!
//! *Background work* is whatever no client waits for at this moment: uploads, copies of the collector, deletions. Each
//! piece of it asks the [`Pacer`] of the node for leave before it moves bytes, and before it takes a lock that others
//! wait for. Work that a client comes to wait for asks with a pressure of 1, and goes at once.
//!
//! What clients feel is measured where it arises, and compared with a *baseline*: the same kinds of requests in windows
//! of 20 ms that they have alone, one in fifty, and more of them when they come back. The rate of background work
//! follows the difference, window by window. Without a client for a while there is nothing to regulate, and it goes at
//! full speed.
//!
//! `leave` waits; samples are a lock of a few instructions. Nothing here fails.

mod baseline;
mod control;
mod limits;
mod mutant;
mod pace;
mod pacer;

use std::time::Duration;

pub use mutant::mutant;
pub use pace::{Pace, Pressure};
pub use pacer::{Leave, Pacer, Request};

/// A request of a client that ended.
#[derive(Clone, Copy, Debug)]
pub struct Sample {
    /// What it asked of the disk.
    pub kind: RequestKind,
    /// Its bytes.
    pub bytes: u64,
    /// Requests that were on their way when it began, with itself.
    pub depth: usize,
    /// How long it took.
    pub took: Duration,
}

/// What a request of a client asks of the disk.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RequestKind {
    /// A record of the journal.
    Write,
    /// A read of an object on a local disk.
    Read,
    /// A flush of the journal.
    Sync,
}

impl RequestKind {
    pub(crate) const COUNT: usize = 3;

    pub(crate) fn index(self) -> usize {
        self as usize
    }
}

/// What a piece of work is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Class {
    /// New data on its way to the store.
    Upload,
    /// What the collector copies.
    Copy,
    /// Objects that nothing needs.
    Delete,
    /// What a cache on the local disk takes in.
    Fill,
}

impl Class {
    /// Number of classes.
    pub const COUNT: usize = 4;

    /// All of them.
    pub const ALL: [Self; Self::COUNT] = [Self::Upload, Self::Copy, Self::Delete, Self::Fill];

    /// As metrics and messages call it.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Upload => "upload",
            Self::Copy => "collect",
            Self::Delete => "delete",
            Self::Fill => "fill",
        }
    }

    pub(crate) fn index(self) -> usize {
        self as usize
    }
}

/// What asks for leave.
#[derive(Clone, Copy, Debug)]
pub struct Work {
    /// What it is.
    pub class: Class,
    /// Bytes that it moves.
    pub bytes: u64,
    /// Operations that take a disk time whatever their bytes, as deletions.
    pub operations: u64,
}

/// The state of the law, for people.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Seen {
    /// Bytes per second that background work gets; `None` where nothing bounds it: while no client is there,
    /// and while the node is drained.
    pub bytes_per_second: Option<f64>,
    /// What clients' requests take, as a multiple of the baseline.
    pub latency: f64,
    /// What they may take.
    pub target: f64,
}

/// What a class has had since the start.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Given {
    /// Bytes.
    pub bytes: u64,
    /// Operations.
    pub operations: u64,
    /// Time that it waited for leave.
    pub waited: Duration,
}
