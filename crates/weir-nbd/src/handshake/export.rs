//! What a server tells a client about an export.

use std::sync::Arc;

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
    /// Names of earlier states that it can be compared with: a context `qemu:dirty-bitmap:NAME` each.
    pub earlier: Arc<[String]>,
}
