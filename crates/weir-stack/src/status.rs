//! What the layers of a stack say of themselves.

use weir_file::FileStatus;
use weir_remote::RemoteStatus;

use crate::limit::LimitSettings;
use crate::measured::Counted;
use crate::trace::TraceStatus;

/// What a stage is and how it is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum StageStatus {
    /// It holds operations up.
    Limit {
        /// How much may pass.
        settings: LimitSettings,
        /// Operations that wait now.
        waiting: u64,
        /// Operations that have waited.
        delayed: u64,
    },
    /// It records operations.
    Trace(TraceStatus),
    /// It is an export of another server.
    Remote(RemoteStatus),
    /// It is a file or a block device of this host.
    File(FileStatus),
    /// Another endpoint, or a stage of another kind, by name.
    Other(&'static str),
}

impl StageStatus {
    /// Its name in status and metrics.
    #[must_use]
    pub fn name(&self) -> &'static str {
        match self {
            Self::Limit { .. } => "limit",
            Self::Trace(_) => "trace",
            Self::Remote(_) => "remote",
            Self::File(_) => "file",
            Self::Other(name) => name,
        }
    }
}

/// One layer of a stack.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LayerStatus {
    /// What it is and how it is.
    pub stage: StageStatus,
    /// What passed through it, in the order of [`Kind::ALL`](crate::Kind::ALL).
    pub operations: [Counted; 4],
    /// Bytes that it acknowledged and that the layer below lacks.
    pub dirty_bytes: u64,
}
