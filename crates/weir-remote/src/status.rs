//! How a remote volume is.

/// A remote volume at a glance.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RemoteStatus {
    /// The address of the export.
    pub url: String,
    /// Whether there is a connection.
    pub is_connected: bool,
    /// Whether nobody else may write the export.
    pub is_exclusive: bool,
    /// Connections that are used.
    pub connections: usize,
    /// The name in the server's certificate, under TLS.
    pub server: Option<String>,
    /// Times that the connections were lost.
    pub lost: u64,
    /// Why there is no connection, or was none last.
    pub trouble: Option<String>,
    /// Requests that were not answered yet.
    pub requests: usize,
    /// Bytes that the server acknowledged and did not flush yet.
    pub unflushed_bytes: u64,
    /// Why writes are refused.
    pub refuses_writes: Option<String>,
}
