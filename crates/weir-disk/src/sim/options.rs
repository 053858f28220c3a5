//! How a simulated disk behaves.

use std::time::Duration;

/// How a simulated disk behaves. All of it can change while it runs, see
/// [`SimDisk::change_options`](crate::sim::SimDisk::change_options).
#[derive(Clone, Debug)]
pub struct SimDiskOptions {
    /// What the disk writes all or nothing of. Fixed when the disk is made.
    pub sector_bytes: u64,
    /// What files report as their alignment when they are opened; 1 is a file system without direct
    /// I/O.
    pub alignment: usize,
    /// Shortest time of an operation. Tokio's timers have a resolution of one millisecond;
    /// without any latency no timer is used, and operations happen at once.
    pub latency_min: Duration,
    /// Longest time of an ordinary operation.
    pub latency_max: Duration,
    /// One operation in this many takes twenty times longer; 0 is none.
    pub slow_one_in: u64,
    /// Room for the lengths of all files together.
    pub capacity_bytes: Option<u64>,
    /// Reads that fail with EIO, in a million.
    pub read_errors_per_million: u64,
    /// Writes that fail with EIO after writing any part, in a million.
    pub write_errors_per_million: u64,
    /// Syncs that fail with EIO, in a million.
    pub sync_errors_per_million: u64,
    /// One write in this many that is in flight when its process is killed outlives it; 0 is none.
    pub late_write_one_in: u64,
    /// How long after the kill such a write lands at the latest.
    pub late_write_max: Duration,
}

impl Default for SimDiskOptions {
    fn default() -> Self {
        Self {
            sector_bytes: 512,
            alignment: 512,
            latency_min: Duration::from_micros(20),
            latency_max: Duration::from_millis(3),
            slow_one_in: 100,
            capacity_bytes: None,
            read_errors_per_million: 0,
            write_errors_per_million: 0,
            sync_errors_per_million: 0,
            late_write_one_in: 0,
            late_write_max: Duration::from_secs(10),
        }
    }
}
