//! What somebody asks to have in the cache: it is waited for, and does not pass through the queue of what is merely
//! offered, which has no room now and then. Background work all the same.

use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::oneshot;
use weir_pacer::{Class, Work};
use weir_seal::BlockKey;

use super::block::{RUN_BYTES, RunAddress};
use super::fill::{Fill, Fills};
use super::queue::{Pieces, len_of};
use super::shares::Owner;
use super::status::CacheStatus;
use super::thread::ThreadCache;
use crate::format::BLOCK_LEN;

/// Pause before the next look at a fill that somebody else began.
const FILL_PAUSE: Duration = Duration::from_millis(5);

impl ThreadCache {
    /// How the cache is, if there is one.
    #[must_use]
    pub fn status(&self) -> Option<CacheStatus> {
        self.current().map(|open| open.cache.status())
    }

    /// Bands that an owner may have of the cache, where that is limited.
    #[must_use]
    pub fn share_limit(&self, owner: Owner) -> Option<u64> {
        self.current()?.cache.state().devices.shares.limit_of(owner)
    }

    /// Whether the cache has a run, as far as it is known, without a look at its disk; it does not count as used.
    #[must_use]
    pub fn has(&self, address: &RunAddress) -> bool {
        self.current().is_some_and(|open| open.cache.state().has(address))
    }

    /// Blocks that the cache has of a run, without a look at its disk. From now on their band counts as used often, so
    /// that what comes in bulk after it does not take its place.
    #[must_use]
    pub fn keep(&self, address: &RunAddress) -> u32 {
        self.current().map_or(0, |open| open.cache.state().stay(address))
    }

    /// Writes a run that is asked for, and waits for that. What it came to, [`ThreadCache::keep`] says: other bands
    /// that are asked for may take its place at once.
    pub async fn put(&self, address: RunAddress, pieces: Pieces, key: Option<Arc<BlockKey>>) {
        let Some(open) = self.current() else { return };
        let len = len_of(&pieces);
        if len == 0 || len > RUN_BYTES {
            return;
        }
        let work =
            Work { class: Class::Fill, bytes: (RUN_BYTES + BLOCK_LEN) as u64, operations: 0 };
        // Nothing presses: whoever asked waits, but no client does.
        let leave = open.env.pacer.leave(work, || 0.0).await;
        let filling = loop {
            {
                let mut state = open.cache.state();
                if let Some(filling) = state.begin_fill_of(&address, len) {
                    break filling;
                }
                if !state.is_being_filled(&address) {
                    return;
                }
            }
            // Somebody read it just now. Whether that fill comes to something is seen when it is over.
            tokio::time::sleep(FILL_PAUSE).await;
        };
        if !weir_device::mutant("cache_put_may_go_at_once") {
            let _ = open.cache.state().stay(&address);
        }
        let (done, filled) = oneshot::channel();
        let filler = Rc::clone(&open);
        // Begun, a fill comes to its end whoever goes away: its place is in use until then.
        open.env.spawn_local(async move {
            filler.fill(Fills::from_iter([Fill { address, frame: pieces, key, filling }])).await;
            leave.used();
            // Whoever asked may be gone.
            let _ = done.send(());
        });
        // An error means that the thread ends.
        let _ = filled.await;
    }
}
