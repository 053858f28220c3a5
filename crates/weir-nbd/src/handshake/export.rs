//! What a server tells a client about an export.

use std::sync::Arc;

use super::attachment::Instance;

/// What a client may learn about an export before it uses it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ExportInfo {
    /// Canonical name.
    pub name: String,
    /// A line for a person, possibly empty.
    pub description: String,
    /// Size in bytes.
    pub size: u64,
    /// Whether writes are refused.
    pub read_only: bool,
    /// Which opening of it this is: another one may have lost what was not flushed. Without it, connections are not
    /// attached to a client's use of the export.
    pub instance: Option<Instance>,
    /// Names the volume for as long as it is the same, over openings and hosts; nothing where there is no such name.
    pub volume: Option<[u8; 16]>,
    /// Names of earlier states that it can be compared with: a context `qemu:dirty-bitmap:NAME` each.
    pub earlier: Arc<[String]>,
}
