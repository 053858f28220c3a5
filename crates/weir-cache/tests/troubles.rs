//! A cache whose disk hangs, or whose file somebody changes, while it is in use, on a simulated disk.

#![allow(clippy::disallowed_methods, reason = "a test of a real file, outside any test module")]

mod common;

use std::time::Duration;

use bytes::Bytes;
use common::{disk, run};
use weir_cache::engine::{
    BLOCKS_FILE, Blocks, Cache, CacheSize, Found, Pieces, RUN_BYTES, RunAddress, Source,
    ThreadCache,
};
use weir_cache::format::run::DeviceIdentity;
use weir_disk::sim::SimDisk;
use weir_disk::{Disks, EngineChoice};

const BYTES: u64 = 24 << 20;

fn address(run: u64) -> RunAddress {
    RunAddress { device: DeviceIdentity([1; 32]), run }
}

fn pieces() -> Pieces {
    Pieces::from_iter([Bytes::from(vec![7; RUN_BYTES])])
}

async fn open(disk: &SimDisk, life: u8) -> (ThreadCache, Cache, Found) {
    let (thread, env) = (ThreadCache::default(), weir_device::testing::env(life));
    let opened = thread.open(&disk.directory(), &env, CacheSize::Exactly(BYTES)).await;
    let (cache, found) = opened.expect("opens");
    (thread, cache, found)
}

fn takes(disk: &SimDisk, time: Duration) {
    disk.change_options(|options| (options.latency_min, options.latency_max) = (time, time));
}

#[test]
fn a_write_that_hangs_is_given_up_and_the_cache_left_out() {
    run(async {
        let disk = disk(1);
        let (thread, cache, _) = open(&disk, 1).await;
        takes(&disk, Duration::from_secs(15));
        thread.put(address(0), pieces(), None).await;
        let status = cache.status();
        assert_eq!((status.counts.failed_fills, status.counts.fills), (1, 1), "it was slow");
        assert!(status.left_out.is_none() && status.bad_for.is_some(), "{status:?}");
        takes(&disk, Duration::from_secs(100_000));
        thread.offer(address(1), Source::Here(pieces()), None);
        // Whoever asked for one is not kept until the disk answers.
        thread.put(address(100), pieces(), None).await;
        let status = cache.status();
        let why = status.left_out.expect("left out");
        assert!(why.contains("a write takes longer than 10s"), "{why}");
        assert_eq!(status.counts.fills, 1);
        assert!(thread.read(&address(0), Blocks::All, None).await.is_none());
        // Once the disk has answered, nothing of it is in use any more, and it can be opened again.
        takes(&disk, Duration::from_millis(1));
        tokio::time::sleep(Duration::from_secs(300_000)).await;
        let env = weir_device::testing::env(2);
        let opened = thread.replace(&disk.directory(), &env, CacheSize::Exactly(BYTES)).await;
        assert!(opened.expect("it opens again").0.status().left_out.is_none());
    });
}

#[test]
fn slow_writes_with_good_ones_between_them_do_not_add_up() {
    run(async {
        let disk = disk(4);
        let (thread, cache, _) = open(&disk, 1).await;
        // Each of them takes too long twice, and is written.
        takes(&disk, Duration::from_secs(25));
        for run in 0..8 {
            thread.put(address(run), pieces(), None).await;
        }
        let status = cache.status();
        assert_eq!(status.left_out, None);
        assert_eq!((status.counts.failed_fills, status.counts.fills), (16, 8));
    });
}

#[test]
fn a_file_that_became_shorter_is_left_out_at_once() {
    let place = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).expect("a directory");
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    tokio::task::LocalSet::new().block_on(&runtime.expect("a runtime"), async {
        let disks = Disks::new(EngineChoice::Threads).expect("an engine");
        let directory = disks.directory_apart(place.path()).await.expect("a directory");
        let (thread, env) = (ThreadCache::default(), weir_device::testing::env(1));
        let opened = thread.open(&directory, &env, CacheSize::Exactly(BYTES)).await;
        let (cache, _) = opened.expect("opens");
        for run in 0..4 {
            thread.put(address(run), pieces(), None).await;
        }
        assert!(thread.read(&address(0), Blocks::All, None).await.is_some());
        let file = std::fs::File::options().write(true).open(place.path().join(BLOCKS_FILE));
        file.expect("it is there").set_len(64 << 10).expect("it is cut");
        assert!(thread.read(&address(0), Blocks::All, None).await.is_none());
        let status = cache.status();
        let why = status.left_out.expect("left out");
        assert!(why.contains("its file is shorter than it was"), "{why}");
        assert_eq!(status.counts.failed_reads, 1);
        assert!(status.bad_for.is_some(), "and when that was");
        // The lock is free as soon as that returned.
        thread.close(&directory).await.expect("ends");
        directory.lock("lock").await.expect("it is free").release().await;
    });
}

#[test]
fn a_cache_that_is_given_up_is_read_anew_by_the_next_opening() {
    run(async {
        let disk = disk(3);
        let (thread, cache, _) = open(&disk, 1).await;
        for run in 0..8 {
            thread.put(address(run), pieces(), None).await;
        }
        // Nothing is asked of the disk, which hangs.
        takes(&disk, Duration::from_secs(100_000));
        thread.abandon();
        assert!(!thread.is_there() && thread.read(&address(0), Blocks::All, None).await.is_none());
        assert_eq!(cache.status().bytes, 8 * RUN_BYTES as u64);
        takes(&disk, Duration::from_millis(1));
        let (thread, _, found) = open(&disk, 2).await;
        assert!(matches!(found, Found::Unknown(_)), "{found:?}");
        thread.recover().await;
        let found = thread.read(&address(0), Blocks::All, None).await.expect("it is there");
        assert!(found.iter().all(|byte| *byte == 7));
    });
}

/// Its lock is free then: what still waits would be written beside what the next process has there.
#[test]
fn nothing_that_waits_is_written_to_a_cache_that_was_given_up() {
    run(async {
        let disk = disk(5);
        let (thread, cache, _) = open(&disk, 1).await;
        thread.put(address(0), pieces(), None).await;
        for run in 1..8 {
            thread.offer(address(run), Source::Here(pieces()), None);
        }
        thread.abandon();
        let (next, ..) = open(&disk, 2).await;
        next.recover().await;
        tokio::time::sleep(Duration::from_secs(10)).await;
        assert_eq!(cache.status().counts.fills, 1, "what was written before");
        assert!(next.read(&address(0), Blocks::All, None).await.is_some());
    });
}
