//! The cache on the local disk, with what the volumes have of it.

use std::sync::Arc;

use weir_cache::engine::{BLOCKS_FILE, Owner};
use weir_device::VolumeId;

use crate::api::types::{CacheOfVolume, CacheReport, CacheShown, NodeStatus};
use crate::serve::core::Core;

/// From when on it is said how much is written in a day, in milliseconds.
const RATE_AFTER_MS: u64 = 3_600_000;

const DAY_MS: u64 = 86_400_000;

/// What `weir cache show` shows.
pub(crate) async fn shown(core: &Arc<Core>) -> CacheShown {
    let NodeStatus { process, cache, volumes: served, .. } = super::of_node(core).await;
    let mut owners = core.cache.get().map(|cache| cache.owners()).unwrap_or_default();
    let mut volumes = Vec::new();
    for volume in served {
        let Some(log) = volume.log else { continue };
        let id = VolumeId::parse(&volume.id);
        let bands = id.and_then(|id| owners.remove(&Owner(id.0))).unwrap_or_default();
        let (hits, misses) = (log.cache_hits, log.cache_misses);
        volumes.push(CacheOfVolume { name: volume.name, id: volume.id, bands, hits, misses });
    }
    CacheShown {
        process,
        path: core.home.data.cache().join(BLOCKS_FILE).display().to_string(),
        hit_permille: permille(cache.hits, cache.misses),
        filled_bytes_per_day: per_day(&cache),
        cache,
        volumes,
        other_bands: owners.values().sum(),
    }
}

/// The share of the hits in thousandths.
pub(crate) fn permille(hits: u64, misses: u64) -> Option<u64> {
    (hits * 1000).checked_div(hits + misses)
}

fn per_day(cache: &CacheReport) -> Option<u64> {
    if cache.open_ms < RATE_AFTER_MS {
        return None;
    }
    let bytes = u128::from(cache.filled_bytes) * u128::from(DAY_MS) / u128::from(cache.open_ms);
    u64::try_from(bytes).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_written_in_a_day_is_said_once_it_means_something() {
        let after = |open_ms| CacheReport { open_ms, filled_bytes: 1 << 30, ..Default::default() };
        assert_eq!(per_day(&after(RATE_AFTER_MS - 1)), None);
        assert_eq!(per_day(&after(RATE_AFTER_MS)), Some(24 << 30));
        assert_eq!(per_day(&after(2 * DAY_MS)), Some(1 << 29));
        assert_eq!((permille(0, 0), permille(1, 0), permille(1, 2)), (None, Some(1000), Some(333)));
    }
}
