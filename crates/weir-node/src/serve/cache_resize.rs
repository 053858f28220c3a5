//! Another size for the cache of a process that serves, while it serves: reads go to the store meanwhile, and nobody
//! waits.

use std::sync::atomic::Ordering;

use weir_cache::engine::{BLOCKS_FILE, CACHE_BYTES_MIN, Cache, CacheSize, capacity_bytes};

use crate::error::NodeError;
use crate::home::Home;
use crate::node::NodeHandle;
use crate::serve::cache::{
    CacheSetting, NodeCache, bytes_now, close_on_all, detach_others, open_on_all,
};
use crate::serve::lock::lock;

impl NodeCache {
    /// Gives the cache this size from now on; what the next start does about it.
    ///
    /// # Errors
    /// When there is no room, or the disk refuses. What can be refused beforehand leaves the cache as it is; if the new
    /// file cannot be made, the cache has its old size again and is empty.
    pub(crate) async fn resize(
        &self,
        node: &NodeHandle,
        setting: CacheSetting,
        (home, shares_disk): (&Home, bool),
    ) -> Result<String, NodeError> {
        let turn = self.turn.lock().await;
        if turn.is_over {
            return Err(NodeError::ShuttingDown);
        }
        let told = next_start(turn.setting, setting, shares_disk);
        if setting == CacheSetting::Off {
            self.put(Err("it is turned off".to_owned()));
            self.is_missing.store(false, Ordering::Relaxed);
            // Its file stays, with all that is in it.
            close_on_all(node, home).await;
            return Ok(told);
        }
        let bytes = bytes_now(setting, home, shares_disk)?;
        let capacity = capacity_bytes(bytes)?;
        let is_same = |cache: &Cache| {
            let status = cache.status();
            status.left_out.is_none() && status.capacity_bytes == capacity
        };
        if lock(&self.cache).as_ref().is_ok_and(is_same) {
            return Ok(told);
        }
        let path = home.data.cache().join(BLOCKS_FILE);
        let old = lock(&self.cache).is_ok().then(|| std::fs::metadata(path));
        let old_bytes = old.and_then(Result::ok).map(|file| file.len());
        detach_others(node).await;
        let opened = open_on_all(node, home, CacheSize::Exactly(bytes)).await;
        let (now, result) = match (opened, old_bytes) {
            (Ok((cache, _)), _) => {
                let bytes = cache.status().capacity_bytes;
                tracing::info!(bytes, "the cache on the local disk has another size");
                (Ok(cache), Ok(told))
            }
            (Err(error), Some(bytes)) => {
                // As it was, if its file is still there.
                let before =
                    open_on_all(node, home, CacheSize::KeepOr(bytes.max(CACHE_BYTES_MIN))).await;
                let before = before.map(|(cache, _)| cache);
                (before.map_err(|error| error.to_string()), Err(error))
            }
            (Err(error), None) => (Err(error.to_string()), Err(error)),
        };
        self.is_missing.store(now.is_err(), Ordering::Relaxed);
        self.put(now);
        result
    }
}

/// What the next start does about the size, for people.
fn next_start(configured: CacheSetting, now: CacheSetting, shares_disk: bool) -> String {
    match (configured, now) {
        (configured, now) if configured == now && now != CacheSetting::Auto => {
            "the next start has it so as well".to_owned()
        }
        // It keeps the size of a file that is there.
        (CacheSetting::Auto, CacheSetting::Bytes(_) | CacheSetting::Auto) if !shares_disk => {
            "the next start keeps this size".to_owned()
        }
        (configured, now) => format!(
            "the next start goes by its configuration again, which says {configured}: set `cache = \"{now}\"`, --cache \
             {now} or WEIR_CACHE for this to stay"
        ),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_is_said_what_the_next_start_does() {
        let (auto, off) = (CacheSetting::Auto, CacheSetting::Off);
        let (small, large) = (CacheSetting::Bytes(1 << 30), CacheSetting::Bytes(20 << 30));
        for (configured, now, shares_disk, told) in [
            (auto, large, false, "the next start keeps this size"),
            (auto, large, true, "which says auto: set `cache = \"20G\"`, --cache 20G"),
            (auto, off, false, "which says auto: set `cache = \"off\"`"),
            (small, small, false, "has it so as well"),
            (off, off, true, "has it so as well"),
            (small, large, false, "which says 1G: set `cache = \"20G\"`"),
            (off, large, false, "which says off: set"),
        ] {
            let said = next_start(configured, now, shares_disk);
            assert!(said.contains(told), "{configured} {now}: {said}");
        }
    }
}
