//! The cache on the local disk: opened before the volumes, and closed after them.

use std::fmt;
use std::os::unix::fs::MetadataExt;
use std::rc::Rc;
use std::str::FromStr;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use serde::{Deserialize, Deserializer};
use weir_cache::engine::{BLOCKS_FILE, CACHE_BYTES_MIN, Cache, CacheSize, CacheStatus, Found};

use crate::api::types::CacheReport;
use crate::cache_error::CacheCommandError;
use crate::error::NodeError;
use crate::home::Home;
use crate::node::NodeHandle;
use crate::node::shard::ShardContext;
use crate::serve::cache_limits::CacheLimits;
use crate::serve::lock::lock;
use crate::size::Size;

/// Part of the free space that a cache gets unless told otherwise, as a divisor.
const FREE_DIVISOR: u64 = 10;

/// Bounds of that, in bytes: less is not worth it, and more takes more memory than somebody who was not asked may want
/// to give (76 MiB).
const DEFAULT_BYTES_MIN: u64 = 1 << 30;
const DEFAULT_BYTES_MAX: u64 = 64 << 30;

/// How long an end waits for an opening or a resize that is under way.
const TURN_TIME_MAX: Duration = Duration::from_secs(2);

/// How long an end takes to save what is in the cache: as much is written as an opening reads.
const CLOSE_TIME_MAX: Duration = Duration::from_secs(60);

/// What a cache of a given size leaves free for journals at least: the first segments of a few.
const LEFT_FREE_BYTES: u64 = 256 << 20;

/// Whether a node has a cache on its local disk.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum CacheSetting {
    /// Where the store is not a directory of the same disk, and a tenth of what is free is at least 1 GiB.
    #[default]
    Auto,
    /// None.
    Off,
    /// Of so many bytes.
    Bytes(u64),
}

impl FromStr for CacheSetting {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match text {
            "auto" => Ok(Self::Auto),
            "off" => Ok(Self::Off),
            _ => match text.parse() {
                Ok(Size(bytes)) if bytes >= CACHE_BYTES_MIN => Ok(Self::Bytes(bytes)),
                Ok(Size(bytes)) => Err(format!(
                    "a cache of {bytes} bytes is too small: give it at least {}",
                    Size(CACHE_BYTES_MIN)
                )),
                Err(_) => Err(format!("\"{text}\" is neither \"auto\", \"off\" nor a size as 20G")),
            },
        }
    }
}

/// As it is read back.
impl fmt::Display for CacheSetting {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Auto => f.write_str("auto"),
            Self::Off => f.write_str("off"),
            Self::Bytes(bytes) => match bytes {
                bytes if bytes % (1 << 30) == 0 => write!(f, "{}G", bytes >> 30),
                bytes if bytes % (1 << 20) == 0 => write!(f, "{}M", bytes >> 20),
                bytes => write!(f, "{bytes}"),
            },
        }
    }
}

impl<'de> Deserialize<'de> for CacheSetting {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = String::deserialize(deserializer)?;
        text.parse().map_err(serde::de::Error::custom)
    }
}

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
        }
    }
}

/// Bytes of the cache to open, or why there is none.
fn size_of(setting: CacheSetting, home: &Home, shares_disk: bool) -> Result<CacheSize, String> {
    match setting {
        CacheSetting::Off => Err("it is turned off".to_owned()),
        CacheSetting::Bytes(bytes) => {
            let free = free_bytes(home).map_err(|error| error.to_string())?;
            match has_room(bytes, free) {
                true => Ok(CacheSize::Exactly(bytes)),
                false => {
                    Err(format!("there is no room for {}: {} are free", Size(bytes), Size(free)))
                }
            }
        }
        CacheSetting::Auto if shares_disk => Err("the store is on the same disk".to_owned()),
        CacheSetting::Auto => {
            let free = free_bytes(home).map_err(|error| error.to_string())?;
            let default = default_bytes(free);
            // One that is there keeps its size, also where it is of no use: what is free changes with it.
            let there = std::fs::metadata(home.data.cache().join(BLOCKS_FILE));
            match (default, there.map_or(0, |file| file.len())) {
                (_, bytes) if bytes > 0 => Ok(CacheSize::KeepOr(bytes.max(CACHE_BYTES_MIN))),
                (bytes, _) if bytes >= DEFAULT_BYTES_MIN => Ok(CacheSize::KeepOr(bytes)),
                (bytes, _) => Err(too_little(bytes)),
            }
        }
    }
}

/// Why a default of so many bytes is none.
fn too_little(bytes: u64) -> String {
    format!("a tenth of what is free, {}, is too little: give it a size", Size(bytes))
}

/// Bytes that a cache could have: those that are free, and those of the one that is there, which would make room.
pub(crate) fn free_bytes(home: &Home) -> Result<u64, NodeError> {
    let there = std::fs::metadata(home.data.cache().join(BLOCKS_FILE));
    let there = there.map_or(0, |file| file.blocks() * 512);
    // The directory of the cache may be on another file system. Before the first cache it need not be there.
    let (own, above) = (home.data.cache(), home.data.path());
    let path = if own.exists() { own.as_path() } else { above };
    let room = rustix::fs::statvfs(path).map_err(|error| {
        NodeError::io("asking for the free space of", path.display().to_string(), error.into())
    })?;
    Ok(room.f_bavail * room.f_frsize + there)
}

/// Whether a cache of so many bytes leaves the journals some room.
pub(crate) fn has_room(bytes: u64, free: u64) -> bool {
    bytes.saturating_add(LEFT_FREE_BYTES) <= free
}

/// A tenth of what is free, within bounds.
fn default_bytes(free: u64) -> u64 {
    ((free / FREE_DIVISOR) >> 20 << 20).min(DEFAULT_BYTES_MAX)
}

/// Bytes of a cache that is given this size now, whatever size it has. Nothing is done for an error.
pub(crate) fn bytes_now(
    setting: CacheSetting,
    home: &Home,
    shares_disk: bool,
) -> Result<u64, NodeError> {
    let free = free_bytes(home)?;
    let bytes = match setting {
        CacheSetting::Bytes(bytes) => bytes,
        CacheSetting::Auto if shares_disk => {
            let why = "the store is on the same disk, where \"auto\" is none";
            return Err(CacheCommandError::None { why: why.to_owned() }.into());
        }
        CacheSetting::Auto if default_bytes(free) < DEFAULT_BYTES_MIN => {
            return Err(CacheCommandError::None { why: too_little(default_bytes(free)) }.into());
        }
        CacheSetting::Auto | CacheSetting::Off => default_bytes(free),
    };
    if !has_room(bytes, free) {
        let directory = home.data.path().display().to_string();
        return Err(
            CacheCommandError::NoRoom { directory, bytes, left: LEFT_FREE_BYTES, free }.into()
        );
    }
    Ok(bytes)
}

impl NodeCache {
    /// Has the status say why there is none yet, unless that was settled just now.
    pub(super) fn note_late(&self, why: &str, setting: CacheSetting) {
        let mut cache = lock(&self.cache);
        if cache.is_err() && self.turn.try_lock().is_err() {
            *cache = Err(why.to_owned());
            let is_missing = matches!(setting, CacheSetting::Bytes(_));
            self.is_missing.store(is_missing, Ordering::Relaxed);
        }
    }

    /// Opens the cache, or notes why there is none: nobody needs it to be served.
    pub(super) async fn open(
        &self,
        node: &NodeHandle,
        setting: CacheSetting,
        (home, shares_disk): (&Home, bool),
    ) {
        let mut turn = self.turn.lock().await;
        turn.setting = setting;
        // On a thread that may be kept: no shard is to find out that the file system does not answer.
        let asked = home.clone();
        let size = node.workers.spawn_blocking(move || size_of(setting, &asked, shares_disk));
        let size = size.await.unwrap_or_else(|error| Err(error.to_string()));
        let opened = match size {
            Ok(size) => match open_on_all(node, home, size).await {
                Ok((cache, found)) => {
                    tell_found(&cache, &found);
                    Ok(cache)
                }
                Err(error) => {
                    tracing::warn!(%error, "serving without a cache on the local disk");
                    Err(error.to_string())
                }
            },
            Err(why) => {
                match setting {
                    CacheSetting::Bytes(_) => {
                        tracing::warn!(why, "serving without a cache on the local disk");
                    }
                    CacheSetting::Auto | CacheSetting::Off => {
                        tracing::debug!(why, "no cache on the local disk");
                    }
                }
                Err(why)
            }
        };
        let is_missing = opened.is_err() && matches!(setting, CacheSetting::Bytes(_));
        self.is_missing.store(is_missing, Ordering::Relaxed);
        self.put(opened);
    }

    /// Closes it, once no volume is served. One whose disk does not answer is not waited for long.
    pub(crate) async fn close(&self, node: &NodeHandle, home: &Home) {
        let closing = async {
            let mut turn = tokio::time::timeout(TURN_TIME_MAX, self.turn.lock()).await?;
            turn.is_over = true;
            let closed = Err("it is closed".to_owned());
            if std::mem::replace(&mut *lock(&self.cache), closed).is_ok() {
                close_on_all(node, home).await;
            }
            Ok(())
        };
        let closed = tokio::time::timeout(CLOSE_TIME_MAX, closing).await;
        if closed.and_then(|closed| closed).is_err() {
            tracing::warn!(
                "the disk of the cache does not answer: it is read anew at the next start"
            );
        }
    }

    /// The cache, if there is one.
    pub(crate) fn get(&self) -> Option<Cache> {
        lock(&self.cache).as_ref().ok().cloned()
    }

    /// How it is, or why there is none.
    pub(crate) fn report(&self) -> CacheReport {
        match &*lock(&self.cache) {
            Ok(cache) => report_of(cache.status()),
            Err(why) => CacheReport {
                none_because: Some(why.clone()),
                missing: self.is_missing.load(Ordering::Relaxed),
                ..CacheReport::default()
            },
        }
    }
}

fn report_of(status: CacheStatus) -> CacheReport {
    let counts = status.counts;
    let permille = |(known, all): (u32, u32)| u64::from(known) * 1000 / u64::from(all.max(1));
    CacheReport {
        missing: false,
        failed: status.left_out.is_some(),
        none_because: status.left_out,
        capacity_bytes: status.capacity_bytes,
        bytes: status.bytes,
        bands: status.bands,
        band_places: status.band_places,
        open_ms: u64::try_from(status.open_for.as_millis()).unwrap_or(u64::MAX),
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
    }
}

/// Ends its use on all shards but the first.
pub(super) async fn detach_others(node: &NodeHandle) {
    for shard in 1..node.shard_count() {
        // An error means that the thread ended, and its use with it.
        let _ = node.run(shard, |context| async move { context.blocks.disk.detach() }).await;
    }
}

/// Ends its use on all shards, on the first one last.
pub(super) async fn close_on_all(node: &NodeHandle, home: &Home) {
    detach_others(node).await;
    let path = home.data.cache();
    let closed = node.run(0, |context: Rc<ShardContext>| async move {
        let directory = context.disks.directory(path)?;
        context.blocks.disk.close(&directory).await?;
        Ok::<_, NodeError>(())
    });
    if let Err(error) = closed.await.and_then(|closed| closed) {
        tracing::warn!(%error, "the cache is read anew at the next start");
    }
}

/// Opens the cache on the first shard, in the place of the one that it has, and lets the others use it.
pub(super) async fn open_on_all(
    node: &NodeHandle,
    home: &Home,
    size: CacheSize,
) -> Result<(Cache, Found), NodeError> {
    let path = home.data.cache();
    let open = move |context: Rc<ShardContext>| async move {
        let directory = context.disks.directory(&path)?;
        let disk = Rc::clone(&context.blocks.disk);
        let (cache, found) = disk.replace(&directory, &context.env, size).await?;
        if matches!(found, Found::Unknown(_)) {
            let status = cache.clone();
            context.env.spawn_local(async move {
                let begun = tokio::time::Instant::now();
                disk.recover().await;
                let status = status.status();
                if status.recovery.is_none() {
                    let (bytes, took) = (status.bytes, begun.elapsed());
                    tracing::info!(bytes, ?took, "all of the cache on the local disk is known");
                }
            });
        }
        Ok::<_, NodeError>((cache, found))
    };
    let (cache, found) = node.run(0, open).await??;
    for shard in 1..node.shard_count() {
        let (path, cache) = (home.data.cache(), cache.clone());
        let attached = move |context: Rc<ShardContext>| async move {
            let directory = context.disks.directory(path)?;
            context.blocks.disk.attach(&cache, &directory, &context.env).await?;
            Ok::<_, NodeError>(())
        };
        if let Err(error) = node.run(shard, attached).await.and_then(|attached| attached) {
            close_on_all(node, home).await;
            return Err(error);
        }
    }
    Ok((cache, found))
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_cache_is_asked_for_by_size_or_word() {
        let parse = |text: &str| text.parse::<CacheSetting>();
        assert_eq!(parse("auto"), Ok(CacheSetting::Auto));
        assert_eq!(parse("off"), Ok(CacheSetting::Off));
        assert_eq!(parse("20G"), Ok(CacheSetting::Bytes(20 << 30)));
        for text in ["auto", "off", "20G", "96M", "100000001"] {
            assert_eq!(parse(text).map(|setting| setting.to_string()), Ok(text.to_owned()));
        }
        assert!(parse("1M").unwrap_err().contains("at least 8"));
        assert!(parse("on").unwrap_err().contains("neither \"auto\", \"off\" nor a size"));
    }
}
