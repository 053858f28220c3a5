//! Another size for the cache of a process that serves, while it serves: reads go to the store meanwhile, and nobody
//! waits.

use std::sync::atomic::Ordering;
use std::time::Duration;

use weir_cache::engine::{CACHE_BYTES_MIN, Cache, CacheSize, capacity_bytes};

use crate::cache_error::CacheCommandError;
use crate::error::NodeError;
use crate::home::Home;
use crate::node::NodeHandle;
use crate::serve::cache::{NodeCache, hangs};
use crate::serve::cache_setting::CacheSetting;
use crate::serve::cache_shards::{abandon_on_all, close_on_all, detach_others, open_on_all};
use crate::serve::cache_size::{bytes_now, file_bytes};
use crate::serve::lock::lock;

/// How long the file system of the cache may take to say how much is free.
const ROOM_TIME_MAX: Duration = Duration::from_secs(2);

impl NodeCache {
    /// Gives the cache this size from now on, unless nobody waits for that any more; what the next start does about it.
    ///
    /// # Errors
    /// When there is no room, the disk refuses or does not answer, or somebody else changes the cache. What can be
    /// refused beforehand leaves the cache as it is; if the new file cannot be made, the cache has its old size again
    /// and is empty.
    pub(crate) async fn resize(
        &self,
        node: &NodeHandle,
        setting: CacheSetting,
        (home, shares_disk): (&Home, bool),
        is_wanted: &dyn Fn() -> bool,
    ) -> Result<String, NodeError> {
        let having = self.take_turn("is being changed").await?;
        if having.turn.is_over {
            return Err(NodeError::ShuttingDown);
        }
        let answers = self.answers(home).await;
        // Whoever asked may have given up meanwhile, and asked for something else.
        if !is_wanted() && !weir_device::mutant("cache_resized_for_nobody") {
            return Err(CacheCommandError::Left.into());
        }
        let told = next_start(having.turn.setting, setting, shares_disk);
        if setting == CacheSetting::Off {
            self.turn_off(node, home, answers).await;
            return Ok(told);
        }
        if !answers {
            return Err(hangs(home));
        }
        self.is_used.store(true, Ordering::Relaxed);
        let (bytes, old_bytes) = asked(node, setting, (home, shares_disk)).await?;
        let capacity = capacity_bytes(bytes)?;
        let is_same = |cache: &Cache| {
            let status = cache.status();
            status.left_out.is_none() && status.capacity_bytes == capacity
        };
        if lock(&self.cache).as_ref().is_ok_and(is_same) {
            return Ok(told);
        }
        let old_bytes = old_bytes.filter(|_| lock(&self.cache).is_ok());
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

    /// Goes on without it. Its file stays, with all that is in it.
    async fn turn_off(&self, node: &NodeHandle, home: &Home, answers: bool) {
        self.put(Err("it is turned off".to_owned()));
        self.is_missing.store(false, Ordering::Relaxed);
        if answers {
            close_on_all(node, home).await;
        } else {
            abandon_on_all(node).await;
            tracing::warn!(
                "the disk of the cache does not answer: it is read anew when it is used again"
            );
        }
    }
}

/// Bytes of the cache that is asked for, and of the file that is there.
async fn asked(
    node: &NodeHandle,
    setting: CacheSetting,
    (home, shares_disk): (&Home, bool),
) -> Result<(u64, Option<u64>), NodeError> {
    let place = home.clone();
    // On a thread that may be kept.
    let job = node.workers.spawn_blocking(move || {
        Ok::<_, NodeError>((bytes_now(setting, &place, shares_disk)?, file_bytes(&place)?))
    });
    match tokio::time::timeout(ROOM_TIME_MAX, job).await {
        Ok(answer) => answer.map_err(|_| NodeError::ShuttingDown)?,
        Err(_) => Err(hangs(home)),
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
    use weir_device::ErrorKind;
    use weir_disk::EngineChoice;

    use super::*;
    use crate::data_directory::DataDirectory;
    use crate::node::{Node, NodeConfig};

    fn runtime() -> tokio::runtime::Runtime {
        let mut builder = tokio::runtime::Builder::new_current_thread();
        builder.enable_all().start_paused(true).build().unwrap()
    }

    #[test]
    fn while_one_changes_it_others_are_refused_with_the_reason() {
        runtime().block_on(async {
            let cache = NodeCache::default();
            let having = cache.take_turn("is being opened").await.unwrap();
            let refused = cache.take_turn("is being changed").await.err().unwrap();
            assert_eq!(refused.kind(), ErrorKind::Busy);
            let told = "the cache on the local disk is being opened, for 2 s";
            assert_eq!(refused.to_string(), told);
            assert_eq!(cache.report().changing.as_deref(), Some("is being opened, for 2 s"));
            drop(having);
            assert_eq!(cache.report().changing, None);
            drop(cache.take_turn("is being changed").await.unwrap());
        });
    }

    #[test]
    fn nothing_is_changed_for_whoever_has_gone() {
        let place = tempfile::tempdir().unwrap();
        let config =
            NodeConfig { shards: Some(1), engine: EngineChoice::Threads, ..NodeConfig::default() };
        let node = Node::start(config).unwrap();
        let home = Home::embedded(DataDirectory::at(place.path()).unwrap());
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        runtime.block_on(async {
            let (cache, handle) = (NodeCache::default(), node.handle());
            let off = |is_wanted| {
                let (cache, handle, home) = (&cache, &handle, &home);
                async move {
                    cache.resize(handle, CacheSetting::Off, (home, true), &move || is_wanted).await
                }
            };
            let refused = off(false).await.unwrap_err();
            assert!(refused.to_string().contains("whoever asked has gone"), "{refused}");
            let why = || cache.report().none_because.unwrap();
            assert_eq!(why(), "this process has none");
            off(true).await.unwrap();
            assert_eq!(why(), "it is turned off");
        });
        node.shut_down();
    }

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
