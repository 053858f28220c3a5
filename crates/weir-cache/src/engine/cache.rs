//! What the threads of a node share of their cache.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tokio::time::Instant;

use super::opening::file_bytes;
use super::scan::Scan;
use super::shares::Owner;
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
    opened: Instant,
}

impl Cache {
    pub(super) fn new(state: State, superblock: Superblock) -> Self {
        let opened = Instant::now();
        Self(Arc::new(Shared { state: Mutex::new(state), superblock, opened }))
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
        let mut state = self.state();
        let bands = state.table.slots().geometry().bands();
        let left_out = match &state.ended {
            Some(Ended::LeftOut(why)) => Some(why.clone()),
            Some(Ended::Closing) | None => None,
        };
        CacheStatus {
            capacity_bytes: bands * BAND_BYTES,
            file_bytes: file_bytes(&self.0.superblock),
            bytes: state.blocks * BLOCK_LEN as u64,
            bands: state.devices.shares.all().map(|(_, bands)| bands).sum(),
            band_places: bands,
            open_for: self.0.opened.elapsed(),
            recovery: state.scan.as_ref().map(Scan::progress),
            bad_for: state.bad_at.map(|at| at.elapsed()),
            left_out,
            memory_bytes: bands * MEMORY_PER_BAND,
            wear: state.wear.left(),
            counts: state.counts,
        }
    }

    /// So many bytes are written in a day from now on; `None` for as many as come. `left` may be written at once: what
    /// the cache before this one had left, or an hour's worth where there was none.
    pub fn limit_wear(&self, bytes_per_day: Option<u64>, left: Option<u64>) {
        self.state().wear.limit(bytes_per_day, left);
    }

    /// An owner has so many bands at most from now on, so that it does not push out others; `None` for no limit. Once
    /// it has them, what comes replaces its own. What it has beyond is left to it until others need the places.
    pub fn limit_share(&self, owner: Owner, bands: Option<u64>) {
        self.state().devices.shares.limit(owner, bands);
    }

    /// How many bands each owner has.
    #[must_use]
    pub fn owners(&self) -> BTreeMap<Owner, u64> {
        self.state().devices.shares.all().collect()
    }
}

impl fmt::Debug for Cache {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Cache")
    }
}
