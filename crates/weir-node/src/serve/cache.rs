//! The cache on the local disk: opened before the volumes, and closed after them.

use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use tokio::time::Instant;
use weir_cache::engine::{Cache, CacheCounts, CacheStatus, Found};
use weir_device::ErrorKind;

use crate::api::types::CacheReport;
use crate::cache_error::CacheCommandError;
use crate::error::NodeError;
use crate::home::Home;
use crate::home::probe::{Answer, Probes};
use crate::node::NodeHandle;
use crate::serve::cache_limits::CacheLimits;
use crate::serve::cache_setting::CacheSetting;
use crate::serve::cache_shards::{abandon_on_all, close_on_all, open_on_all};
use crate::serve::cache_size::{NoCache, size_of};
use crate::serve::lock::lock;

/// How long whoever changes the cache, or ends the process, waits for somebody else who does.
const TURN_TIME_MAX: Duration = Duration::from_secs(2);

/// How long the disk of the cache may take to show that it answers.
const ANSWER_TIME_MAX: Duration = Duration::from_secs(2);

/// How long an end takes to save what is in the cache: as much is written as an opening reads.
const CLOSE_TIME_MAX: Duration = Duration::from_secs(60);

/// The cache of a process that serves, if it has one; why, if not.
#[derive(Debug)]
pub(crate) struct NodeCache {
    pub(super) cache: Mutex<Result<Cache, String>>,
    pub(super) limits: Mutex<CacheLimits>,
    /// One was asked for, and there is none.
    pub(super) is_missing: AtomicBool,
    /// Whoever has it warms a volume. One at a time: each reads many MiB at a time, and all would fill one cache.
    pub(crate) warming: tokio::sync::Mutex<()>,
    /// Whoever has it opens, closes or resizes the cache.
    pub(super) turn: tokio::sync::Mutex<Turn>,
    /// What that is, and since when.
    doing: Mutex<Option<(&'static str, Instant)>>,
    /// This process asks the disk of the cache for something.
    pub(super) is_used: AtomicBool,
    /// Whether that answers.
    probes: Probes,
}

/// What whoever changes the cache must know.
#[derive(Debug, Default)]
pub(super) struct Turn {
    /// What the process was started with.
    pub(super) setting: CacheSetting,
    /// The process stops.
    pub(super) is_over: bool,
}

impl Default for NodeCache {
    fn default() -> Self {
        let none = Err("this process has none".to_owned());
        Self {
            cache: Mutex::new(none),
            limits: Mutex::default(),
            is_missing: AtomicBool::new(false),
            warming: tokio::sync::Mutex::default(),
            turn: tokio::sync::Mutex::default(),
            doing: Mutex::default(),
            is_used: AtomicBool::new(false),
            probes: Probes::default(),
        }
    }
}

/// The error of a cache whose disk hangs.
pub(crate) fn hangs(home: &Home) -> NodeError {
    CacheCommandError::Hangs { directory: home.data.cache().display().to_string() }.into()
}

/// The right to change the cache.
pub(super) struct Having<'a> {
    pub(super) turn: tokio::sync::MutexGuard<'a, Turn>,
    cache: &'a NodeCache,
}

impl Drop for Having<'_> {
    fn drop(&mut self) {
        *lock(&self.cache.doing) = None;
    }
}

impl NodeCache {
    fn has<'a>(
        &'a self,
        turn: tokio::sync::MutexGuard<'a, Turn>,
        what: &'static str,
    ) -> Having<'a> {
        *lock(&self.doing) = Some((what, Instant::now()));
        Having { turn, cache: self }
    }

    /// The right to change the cache, unless somebody else has it and keeps it.
    pub(super) async fn take_turn(&self, what: &'static str) -> Result<Having<'_>, NodeError> {
        let turn = tokio::time::timeout(TURN_TIME_MAX, self.turn.lock()).await;
        let turn = turn.map_err(|_| CacheCommandError::Changing {
            doing: self.doing().unwrap_or_else(|| "is being changed".to_owned()),
        })?;
        Ok(self.has(turn, what))
    }

    /// What somebody does with the cache, and for how long.
    fn doing(&self) -> Option<String> {
        let (what, since) = (*lock(&self.doing))?;
        Some(format!("{what}, for {} s", since.elapsed().as_secs()))
    }

    /// Has the status say why there is none yet, unless that was settled just now.
    pub(super) fn note_late(&self, why: &str, setting: CacheSetting) {
        let mut cache = lock(&self.cache);
        if cache.is_err() && self.turn.try_lock().is_err() {
            *cache = Err(why.to_owned());
            // Also where nobody asked for one: where there can be none, that is known at once.
            self.is_missing.store(setting != CacheSetting::Off, Ordering::Relaxed);
        }
    }

    /// Opens the cache, or notes why there is none: nobody needs it to be served.
    pub(super) async fn open(
        &self,
        node: &NodeHandle,
        setting: CacheSetting,
        (home, shares_disk): (&Home, bool),
    ) {
        let mut having = self.has(self.turn.lock().await, "is being opened");
        having.turn.setting = setting;
        // On a thread that may be kept: no shard is to find out that the file system does not answer.
        let asked = home.clone();
        let size = node.workers.spawn_blocking(move || size_of(setting, &asked, shares_disk));
        let size = size
            .await
            .unwrap_or_else(|error| Err(NoCache { why: error.to_string(), is_trouble: true }));
        let opened = match size {
            Ok(size) => {
                self.is_used.store(true, Ordering::Relaxed);
                match open_on_all(node, home, size).await {
                    Ok((cache, found)) => {
                        tell_found(&cache, &found);
                        Ok(cache)
                    }
                    Err(error) => {
                        // Another process may have the one of this data directory.
                        let is_trouble = error.kind() != ErrorKind::Busy;
                        Err(NoCache { why: error.to_string(), is_trouble })
                    }
                }
            }
            Err(none) => Err(none),
        };
        let was_asked_for = matches!(setting, CacheSetting::Bytes(_));
        let is_missing = opened.as_ref().is_err_and(|none| was_asked_for || none.is_trouble);
        if let Err(NoCache { why, .. }) = &opened {
            match is_missing {
                true => tracing::warn!(why, "serving without a cache on the local disk"),
                false => tracing::debug!(why, "no cache on the local disk"),
            }
        }
        self.is_missing.store(is_missing, Ordering::Relaxed);
        self.put(opened.map_err(|none| none.why));
    }

    /// Closes it, once no volume is served. One whose disk does not answer is not waited for.
    pub(crate) async fn close(&self, node: &NodeHandle, home: &Home) {
        let closing = async {
            let mut having = self.take_turn("is being closed").await.ok()?;
            having.turn.is_over = true;
            let closed = Err("it is closed".to_owned());
            let was_there = std::mem::replace(&mut *lock(&self.cache), closed).is_ok();
            if was_there && !self.answers(home).await {
                abandon_on_all(node).await;
                return None;
            }
            if was_there {
                close_on_all(node, home).await;
            }
            Some(())
        };
        let closed = tokio::time::timeout(CLOSE_TIME_MAX, closing).await;
        if closed.is_ok_and(|closed| closed.is_some()) {
            return;
        }
        tracing::warn!("the disk of the cache does not answer: it is read anew at the next start");
    }

    /// Whether the file system of the cache answers, as far as this process asks it for anything.
    pub(crate) async fn answers(&self, home: &Home) -> bool {
        // An error is an answer as well: the next process goes on without a cache.
        !self.is_used.load(Ordering::Relaxed)
            || self.probes.ask(home.data.cache(), ANSWER_TIME_MAX).await != Answer::Hangs
    }

    /// The cache, if there is one.
    pub(crate) fn get(&self) -> Option<Cache> {
        lock(&self.cache).as_ref().ok().cloned()
    }

    /// What happened to the caches of this process, those before the one that there is now included.
    pub(crate) fn counts(&self) -> CacheCounts {
        // Held, so that none is put in the place of another meanwhile.
        let limits = lock(&self.limits);
        let now = self.get().map(|cache| cache.status().counts).unwrap_or_default();
        limits.counts_before.plus(&now)
    }

    /// How it is, or why there is none.
    pub(crate) fn report(&self) -> CacheReport {
        let report = match &*lock(&self.cache) {
            Ok(cache) => report_of(cache.status()),
            Err(why) => CacheReport {
                none_because: Some(why.clone()),
                missing: self.is_missing.load(Ordering::Relaxed),
                ..CacheReport::default()
            },
        };
        CacheReport { changing: self.doing(), ..report }
    }
}

fn millis(time: Duration) -> u64 {
    u64::try_from(time.as_millis()).unwrap_or(u64::MAX)
}

fn report_of(status: CacheStatus) -> CacheReport {
    let counts = status.counts;
    let permille = |(known, all): (u32, u32)| u64::from(known) * 1000 / u64::from(all.max(1));
    CacheReport {
        changing: None,
        missing: false,
        failed: status.left_out.is_some(),
        none_because: status.left_out,
        capacity_bytes: status.capacity_bytes,
        file_bytes: status.file_bytes,
        bytes: status.bytes,
        bands: status.bands,
        band_places: status.band_places,
        open_ms: millis(status.open_for),
        memory_bytes: status.memory_bytes,
        recovered_permille: status.recovery.map(permille),
        hits: counts.hits,
        misses: counts.misses,
        copied: counts.copied,
        fills: counts.fills,
        filled_bytes: counts.filled_bytes,
        dropped: counts.dropped,
        over_share: counts.over_share,
        worn: counts.worn,
        wear_bytes_per_day: status.wear.map(|(_, per_day)| per_day),
        wear_bytes_left: status.wear.map(|(left, _)| left),
        evictions: counts.evictions,
        damaged: counts.damaged,
        failed_reads: counts.failed_reads,
        failed_fills: counts.failed_fills,
        bad_ms: status.bad_for.map(millis),
    }
}

fn tell_found(cache: &Cache, found: &Found) {
    let bytes = cache.status().capacity_bytes;
    match found {
        Found::New => tracing::info!(bytes, "a new cache on the local disk"),
        Found::Nothing(why) => {
            tracing::warn!(why, "the cache on the local disk could not be used and begins empty");
        }
        Found::Index => tracing::info!(bytes, "the cache on the local disk is as it was left"),
        Found::Unknown(why) => {
            tracing::info!(bytes, why, "the cache on the local disk is being read");
        }
    }
}
