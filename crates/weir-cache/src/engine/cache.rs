//! What the threads of a node share of their cache.

use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use super::scan::Scan;
use super::state::{Ended, State};
use super::status::CacheStatus;
use crate::format::BLOCK_LEN;
use crate::format::superblock::Superblock;
use crate::geometry::BAND_BYTES;

/// Bytes of memory for a band: its slot, a check of each block, and its places in the queues of the policy.
const MEMORY_PER_BAND: u64 = 32 + 256 + 8;

/// The cache of a node. A clone is the same one.
#[derive(Clone)]
pub struct Cache(Arc<Shared>);

struct Shared {
    state: Mutex<State>,
    /// Of this opening.
    superblock: Superblock,
}

impl Cache {
    pub(super) fn new(state: State, superblock: Superblock) -> Self {
        Self(Arc::new(Shared { state: Mutex::new(state), superblock }))
    }

    pub(super) fn state(&self) -> MutexGuard<'_, State> {
        self.0.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn superblock(&self) -> Superblock {
        self.0.superblock
    }

    /// Gives the cache up after an error of its disk: it has nothing and takes nothing from now on.
    pub(super) fn leave_out(&self, why: &str) {
        if self.state().leave_out(why) {
            tracing::error!(
                why,
                "the cache is left out until the next start: reads go to the store meanwhile"
            );
        }
    }

    /// How it is.
    #[must_use]
    pub fn status(&self) -> CacheStatus {
        let state = self.state();
        let bands = state.table.slots().geometry().bands();
        let left_out = match &state.ended {
            Some(Ended::LeftOut(why)) => Some(why.clone()),
            Some(Ended::Closing) | None => None,
        };
        CacheStatus {
            capacity_bytes: bands * BAND_BYTES,
            bytes: state.blocks * BLOCK_LEN as u64,
            recovery: state.scan.as_ref().map(Scan::progress),
            left_out,
            memory_bytes: bands * MEMORY_PER_BAND,
            counts: state.counts,
        }
    }
}

impl fmt::Debug for Cache {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Cache")
    }
}
