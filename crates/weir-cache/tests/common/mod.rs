//! What the tests of the engine run on.

use std::future::Future;

use weir_disk::sim::{SimDisk, SimDiskOptions};

/// Runs a test in simulated time.
pub(crate) fn run(test: impl Future<Output = ()>) {
    let runtime =
        tokio::runtime::Builder::new_current_thread().enable_time().start_paused(true).build();
    tokio::task::LocalSet::new().block_on(&runtime.expect("a runtime"), test);
}

/// A disk with the alignment of direct I/O.
pub(crate) fn disk(seed: u64) -> SimDisk {
    SimDisk::new(seed, SimDiskOptions { alignment: 4096, ..SimDiskOptions::default() })
}
