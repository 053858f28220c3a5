//! Limits of a cache: what an owner may have of it, and what may be written to it in a day.

mod common;

use std::time::Duration;

use bytes::Bytes;
use common::{disk, run};
use weir_cache::engine::{
    Blocks, Cache, CacheSize, Owner, Pieces, RUN_BYTES, RunAddress, Source, ThreadCache,
};
use weir_cache::format::run::DeviceIdentity;
use weir_disk::sim::SimDisk;

const CACHE_BYTES: u64 = 24 << 20;

const GREEDY: Owner = Owner([1; 16]);
const MODEST: Owner = Owner([2; 16]);

/// The first run of a band of one of the devices of an owner.
fn address(owner: Owner, device: u8, band: u64) -> RunAddress {
    let mut identity = [device; 32];
    identity[..16].copy_from_slice(&owner.0);
    RunAddress { device: DeviceIdentity(identity), run: band * 4 }
}

fn bands(owner: Owner, device: u8, count: u64) -> Vec<RunAddress> {
    (0..count).map(|band| address(owner, device, band)).collect()
}

async fn open(disk: &SimDisk, life: u8) -> (ThreadCache, Cache) {
    let (thread, env) = (ThreadCache::default(), weir_device::testing::env(life));
    let opened = thread.open(&disk.directory(), &env, CacheSize::Exactly(CACHE_BYTES)).await;
    (thread, opened.expect("opens").0)
}

async fn fill(thread: &ThreadCache, runs: &[RunAddress]) {
    for chunk in runs.chunks(64) {
        for address in chunk {
            let bytes = Bytes::from(vec![7; RUN_BYTES]);
            thread.offer(*address, Source::Here(Pieces::from_iter([bytes])), None);
        }
        tokio::time::sleep(Duration::from_secs(1)).await;
    }
}

async fn count(thread: &ThreadCache, runs: &[RunAddress]) -> usize {
    let mut count = 0;
    for address in runs {
        count += usize::from(thread.read(address, Blocks::All, None).await.is_some());
    }
    count
}

/// Which of the runs are there.
async fn which(thread: &ThreadCache, runs: &[RunAddress]) -> Vec<usize> {
    let mut there = Vec::new();
    for (number, run) in runs.iter().enumerate() {
        if count(thread, std::slice::from_ref(run)).await == 1 {
            there.push(number);
        }
    }
    there
}

/// Fills runs, and reads each of them again and again, so that it stays for its own sake.
async fn fill_and_use(thread: &ThreadCache, runs: &[RunAddress]) {
    for chunk in runs.chunks(2) {
        fill(thread, chunk).await;
        count(thread, chunk).await;
        count(thread, chunk).await;
    }
}

fn has(cache: &Cache, owner: Owner) -> u64 {
    let status = cache.status();
    let owners = cache.owners();
    assert_eq!(owners.values().sum::<u64>(), status.bands, "every band has an owner");
    assert!(status.bands <= status.band_places);
    owners.get(&owner).copied().unwrap_or_default()
}

#[test]
fn an_owner_with_a_share_pushes_nobody_out() {
    run(async {
        let (thread, cache) = open(&disk(1), 1).await;
        let places = cache.status().band_places;
        let modest = bands(MODEST, 2, places * 6 / 10);
        fill(&thread, &modest).await;
        let kept = count(&thread, &modest).await;
        cache.limit_share(GREEDY, Some(10));
        for device in 0..4 {
            fill_and_use(&thread, &bands(GREEDY, device, places)).await;
            assert_eq!(has(&cache, GREEDY), 10, "with all its devices");
        }
        assert_eq!(count(&thread, &modest).await, kept, "what others have stays");
        // Its own make room for what comes, so that what it read last is there.
        let newest = bands(GREEDY, 9, places);
        fill(&thread, &newest).await;
        assert!(count(&thread, &newest).await > 0, "it has the newest of its own");
        let nobody = Owner([3; 16]);
        cache.limit_share(nobody, Some(0));
        fill(&thread, &bands(nobody, 1, 20)).await;
        assert_eq!((has(&cache, nobody), cache.status().counts.over_share), (0, 20));
        // Without a limit it takes what it can, which is what the limit is against.
        cache.limit_share(GREEDY, None);
        for device in 0..4 {
            fill_and_use(&thread, &bands(GREEDY, device, places)).await;
        }
        assert!(has(&cache, GREEDY) > 10 && count(&thread, &modest).await < kept);
    });
}

#[test]
fn a_share_is_given_back_by_eviction_and_kept_through_a_stop_and_a_crash() {
    run(async {
        let disk = disk(2);
        let (thread, cache) = open(&disk, 1).await;
        let places = cache.status().band_places;
        cache.limit_share(GREEDY, Some(20));
        fill(&thread, &bands(GREEDY, 1, places)).await;
        assert_eq!(has(&cache, GREEDY), 20);
        thread.close(&disk.directory()).await.expect("closes");
        let (thread, cache) = open(&disk, 2).await;
        assert_eq!(has(&cache, GREEDY), 20, "by the index");
        disk.crash_process();
        drop((thread, cache));
        let (thread, cache) = open(&disk, 3).await;
        cache.limit_share(GREEDY, Some(20));
        thread.recover().await;
        assert_eq!(has(&cache, GREEDY), 20, "by the headers");
        fill(&thread, &bands(GREEDY, 3, places)).await;
        assert_eq!(has(&cache, GREEDY), 20, "it holds at once");
        // Others fill, until hardly anything of it is left; then it may fill again as far as it did.
        for device in 0..8 {
            let all = bands(MODEST, device, places);
            fill(&thread, &all).await;
            count(&thread, &all).await;
            fill(&thread, &all).await;
        }
        let before = has(&cache, GREEDY);
        assert!(before < 20, "{before} are left");
        for device in 10..20 {
            fill_and_use(&thread, &bands(GREEDY, device, places)).await;
            assert!(has(&cache, GREEDY) <= 20);
        }
        assert_eq!(has(&cache, GREEDY), 20, "what went was given back");
        // A lower share takes effect as others need the places.
        cache.limit_share(GREEDY, Some(5));
        fill(&thread, &bands(GREEDY, 30, places)).await;
        assert_eq!(has(&cache, GREEDY), 20);
        cache.limit_share(GREEDY, Some(0));
        fill(&thread, &bands(MODEST, 30, places)).await;
        assert!(has(&cache, GREEDY) < 20);
    });
}

#[test]
fn no_more_is_written_in_a_day_than_may_be_and_hits_go_on() {
    run(async {
        let (thread, cache) = open(&disk(3), 1).await;
        let run_bytes = (RUN_BYTES + 4096) as u64;
        // Ten runs an hour.
        cache.limit_wear(Some(240 * run_bytes), None);
        let runs = bands(MODEST, 1, 60);
        fill(&thread, &runs).await;
        let status = cache.status();
        assert_eq!((status.counts.fills, status.counts.worn), (10, 50));
        let (left, per_day) = status.wear.expect("it is limited");
        assert!(left < run_bytes && per_day == 240 * run_bytes, "{left} of {per_day}");
        assert_eq!(count(&thread, &runs).await, 10, "what is there is served");
        tokio::time::sleep(Duration::from_secs(2 * 3600)).await;
        fill(&thread, &runs).await;
        assert_eq!(cache.status().counts.fills, 30);
        assert_eq!(count(&thread, &runs).await, 30);
        // What is there already costs nothing.
        tokio::time::sleep(Duration::from_secs(3600)).await;
        fill(&thread, &runs[..30]).await;
        let (left, _) = cache.status().wear.expect("it is limited");
        assert!(left > 9 * run_bytes, "{left}");
        cache.limit_wear(None, None);
        fill(&thread, &runs).await;
        assert_eq!((cache.status().wear, count(&thread, &runs).await), (None, 60));
    });
}

#[test]
fn what_is_asked_for_is_limited_as_well_and_what_is_not_taken_costs_nothing() {
    run(async {
        let (thread, cache) = open(&disk(5), 1).await;
        let run_bytes = (RUN_BYTES + 4096) as u64;
        // Three runs at first.
        cache.limit_wear(Some(72 * run_bytes), None);
        cache.limit_share(GREEDY, Some(0));
        fill(&thread, &bands(GREEDY, 1, 5)).await;
        assert_eq!(cache.status().counts.over_share, 5);
        let asked = bands(MODEST, 1, 5);
        for address in &asked {
            let bytes = Bytes::from(vec![7; RUN_BYTES]);
            thread.put(*address, Pieces::from_iter([bytes]), None).await;
        }
        let counts = cache.status().counts;
        assert_eq!((counts.fills, counts.worn), (3, 2));
        assert_eq!(count(&thread, &asked).await, 3);
    });
}

#[test]
fn of_an_owners_own_that_makes_room_which_was_not_used_for_longest() {
    run(async {
        let disk = disk(6);
        let (thread, cache) = open(&disk, 1).await;
        assert_eq!(cache.map(u32::MAX).columns, 1, "all bands are of one set");
        cache.limit_share(GREEDY, Some(3));
        let runs = bands(GREEDY, 1, 5);
        fill(&thread, &runs[..3]).await;
        assert_eq!(count(&thread, &runs[..1]).await, 1);
        fill(&thread, &runs[3..4]).await;
        assert_eq!(which(&thread, &runs).await, [0, 2, 3]);
        assert_eq!(count(&thread, &runs[..1]).await, 1);
        thread.close(&disk.directory()).await.expect("closes");
        let (thread, cache) = open(&disk, 2).await;
        cache.limit_share(GREEDY, Some(3));
        fill(&thread, &runs[4..]).await;
        assert_eq!(which(&thread, &runs).await, [0, 3, 4], "a stop does not change the order");
    });
}

#[test]
fn a_map_says_whose_band_is_in_which_place() {
    run(async {
        let (thread, cache) = open(&disk(4), 1).await;
        let places = cache.status().band_places;
        let map = cache.map(u32::MAX);
        assert_eq!(u64::from(map.rows) * u64::from(map.columns), places);
        assert!(map.owners.iter().all(Option::is_none), "it is empty");
        fill(&thread, &bands(MODEST, 1, 30)).await;
        fill(&thread, &bands(GREEDY, 1, 10)).await;
        let map = cache.map(u32::MAX);
        let count = |owner| map.owners.iter().filter(|there| **there == Some(owner)).count() as u64;
        assert_eq!((count(MODEST), count(GREEDY)), (has(&cache, MODEST), has(&cache, GREEDY)));
        let narrow = cache.map(1);
        assert_eq!((narrow.columns, narrow.owners.len()), (1, narrow.rows as usize));
        let first = map.owners.iter().step_by(map.columns as usize);
        assert!(narrow.owners.iter().eq(first), "every so many columns");
    });
}
