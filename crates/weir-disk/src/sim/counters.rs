//! What a simulated disk counts.

/// What has happened to a simulated disk: proof that a run met the faults it was made for.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SimCounters {
    /// Reads that succeeded.
    pub reads: u64,
    /// Writes that succeeded.
    pub writes: u64,
    /// Writes that failed.
    pub writes_failed: u64,
    /// Syncs that succeeded.
    pub syncs: u64,
    /// Syncs that failed.
    pub syncs_failed: u64,
    /// Deaths of the process, those by loss of power included.
    pub process_crashes: u64,
    /// Losses of power.
    pub power_crashes: u64,
    /// Operations in flight at a crash that never happened.
    pub in_flight_lost: u64,
    /// Writes in flight at a crash of which some sectors were written.
    pub in_flight_torn: u64,
    /// Writes in flight at a crash that stayed in flight.
    pub late_writes: u64,
    /// Attempts to lock a file that another opening, or a late write, had locked.
    pub lock_waits: u64,
    /// Unsynced writes that survived a loss of power whole.
    pub writes_kept: u64,
    /// Unsynced writes of which a loss of power left nothing.
    pub writes_lost: u64,
    /// Unsynced writes of which a loss of power left a part.
    pub writes_torn: u64,
    /// Unsynced sectors that survived a loss of power.
    pub sectors_kept: u64,
    /// Unsynced sectors that were lost with power.
    pub sectors_lost: u64,
    /// Bytes with flipped bits.
    pub bytes_rotted: u64,
}
