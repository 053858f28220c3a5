//! The cache on the local disk, with what the volumes have of it.

use std::sync::Arc;

use weir_cache::engine::{BLOCKS_FILE, Cache, CacheMap, Owner};
use weir_device::VolumeId;

use crate::api::types::{CacheOfVolume, CacheReport, CacheShown, NodeStatus};
use crate::serve::core::Core;
use crate::status::png;

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
        let share_percent = id.and_then(|id| core.cache.share_of(id));
        let [red, green, blue] = rgb(id.map_or(0, |id| colour(&Owner(id.0))));
        volumes.push(CacheOfVolume {
            name: volume.name,
            id: volume.id,
            bands,
            share_percent,
            hits: log.cache_hits,
            misses: log.cache_misses,
            colour: format!("#{red:02x}{green:02x}{blue:02x}"),
        });
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

/// Columns of the map at most: a cache of 64 GiB has as many.
const MAP_COLUMNS_MAX: u32 = 4096;

/// Colours of the map beside black.
const COLOURS: u8 = 254;

/// The number of the colour of a volume, the same in every process.
fn colour(owner: &Owner) -> u8 {
    let mixed = u64::from_le_bytes(owner.0[..8].try_into().expect("it has 16 bytes"));
    let mixed = mixed.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 32;
    1 + u8::try_from(mixed % u64::from(COLOURS)).expect("it is below")
}

/// Red, green and blue of a colour: black for no band, and bright ones around the circle for volumes.
fn rgb(number: u8) -> [u8; 3] {
    if number == 0 {
        return [0; 3];
    }
    // Six sixths, in each of which one of the three rises or falls.
    let around = (u32::from(number) - 1) * 6 * 256 / u32::from(COLOURS);
    let part = u8::try_from(around % 256).expect("below 256");
    match around / 256 {
        0 => [255, part, 64],
        1 => [255 - part, 255, 64],
        2 => [64, 255, part],
        3 => [64, 255 - part, 255],
        4 => [part, 64, 255],
        _ => [255, 64, 255 - part],
    }
}

/// A picture of the cache: a pixel for each band, by its row and column, in the colour of the volume that wrote it.
pub(crate) fn picture(cache: &Cache) -> Vec<u8> {
    let CacheMap { columns, owners, .. } = cache.map(MAP_COLUMNS_MAX);
    let pixels: Vec<u8> = owners.iter().map(|owner| owner.as_ref().map_or(0, colour)).collect();
    let colours: Vec<_> = (0..=COLOURS).map(rgb).collect();
    png::encode(columns, &pixels, &colours)
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
    fn a_volume_has_one_colour_and_what_is_empty_is_black() {
        let numbers: Vec<u8> = (0..200).map(|id| colour(&Owner([id; 16]))).collect();
        assert!(numbers.iter().all(|number| (1..=COLOURS).contains(number)));
        assert_eq!(numbers, (0..200).map(|id| colour(&Owner([id; 16]))).collect::<Vec<_>>());
        let mut colours: Vec<_> = (0..=COLOURS).map(rgb).collect();
        assert_eq!(colours[0], [0; 3]);
        colours.sort_unstable();
        colours.dedup();
        assert_eq!(colours.len(), 255, "each is another one");
    }

    #[test]
    fn what_is_written_in_a_day_is_said_once_it_means_something() {
        let after = |open_ms| CacheReport { open_ms, filled_bytes: 1 << 30, ..Default::default() };
        assert_eq!(per_day(&after(RATE_AFTER_MS - 1)), None);
        assert_eq!(per_day(&after(RATE_AFTER_MS)), Some(24 << 30));
        assert_eq!(per_day(&after(2 * DAY_MS)), Some(1 << 29));
        assert_eq!((permille(0, 0), permille(1, 0), permille(1, 2)), (None, Some(1000), Some(333)));
    }
}
