//! What volumes may have of the cache, and how much may be written to it: for the cache that is there, and for the one
//! that takes its place.

use std::collections::BTreeMap;

use weir_cache::engine::{Cache, CacheCounts, Owner};
use weir_device::VolumeId;

use crate::serve::cache::NodeCache;
use crate::serve::lock::lock;

/// The limits of a cache.
#[derive(Debug, Default)]
pub(super) struct CacheLimits {
    wear: Option<u64>,
    /// What the cache that was there last had left of that.
    wear_left: Option<u64>,
    /// What happened to the caches before the one that is there.
    pub(super) counts_before: CacheCounts,
    /// In percent, by what wrote the objects: what a clone reads of its origin is the origin's.
    shares: BTreeMap<VolumeId, u64>,
}

/// So many percent of the bands, and at least one.
fn bands(cache: &Cache, percent: u64) -> u64 {
    (cache.status().band_places * percent / 100).max(1)
}

impl NodeCache {
    /// So many bytes are written to it in a day from now on, at most.
    pub(crate) fn limit_wear(&self, bytes_per_day: Option<u64>) {
        lock(&self.limits).wear = bytes_per_day;
        if let Some(cache) = self.get() {
            cache.limit_wear(bytes_per_day, None);
        }
    }

    /// A volume has so many percent of it from now on, at most.
    pub(crate) fn limit_share(&self, volume: VolumeId, percent: Option<u64>) {
        let mut limits = lock(&self.limits);
        match percent {
            Some(percent) => limits.shares.insert(volume, percent),
            None => limits.shares.remove(&volume),
        };
        if let Some(cache) = self.get() {
            cache.limit_share(Owner(volume.0), percent.map(|percent| bands(&cache, percent)));
        }
    }

    /// What a volume may have of it, in percent.
    pub(crate) fn share_of(&self, volume: VolumeId) -> Option<u64> {
        lock(&self.limits).shares.get(&volume).copied()
    }

    /// Puts another cache, or none, in the place of the one that was there. The limits hold for it as well, and what
    /// the one before wrote counts: it is the same disk.
    pub(super) fn put(&self, cache: Result<Cache, String>) {
        // Held until the cache can be found, so that a limit of this moment reaches it one way or the other.
        let mut limits = lock(&self.limits);
        if let Some(before) = self.get() {
            let status = before.status();
            limits.wear_left = status.wear.map(|(left, _)| left);
            if !weir_device::mutant("cache_counts_begin_anew") {
                limits.counts_before = limits.counts_before.plus(&status.counts);
            }
        }
        if let Ok(cache) = &cache
            && !weir_device::mutant("cache_limits_not_kept")
        {
            cache.limit_wear(limits.wear, limits.wear_left);
            for (volume, percent) in &limits.shares {
                cache.limit_share(Owner(volume.0), Some(bands(cache, *percent)));
            }
        }
        *lock(&self.cache) = cache;
    }
}
