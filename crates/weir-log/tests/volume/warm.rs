//! Warming: what a volume has of a range, or one of its snapshots, comes to the local disk, and is read without the
//! store from then on.

use std::cell::Cell;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use weir_cache::engine::CacheSize;
use weir_device::{ByteRange, DeviceError, DeviceExt, ErrorKind, FlushScope};
use weir_disk::sim::{SimDisk, SimDiskOptions};
use weir_log::{BlockStore, LogVolume, MemoryFrameCache, SnapshotView, WarmReport};

use crate::cached::{block_store, block_store_of, gets, open, read_all};
use crate::clones::clone_of;
use crate::support::{
    Host, SIZE, expect_bytes, fill, filled, name, object_key, objects, pattern, run, write,
};

const ALL: ByteRange = ByteRange { start: 0, end: SIZE };

/// Memory that holds everything.
const MEMORY_BYTES: u64 = 4 << 20;

fn with_memory(blocks: &BlockStore) -> BlockStore {
    let disk = Rc::clone(&blocks.disk);
    BlockStore { memory: Arc::new(MemoryFrameCache::new(MEMORY_BYTES)), disk }
}

async fn warm(volume: &LogVolume, range: ByteRange) -> Result<WarmReport, DeviceError> {
    volume.warm(None, range, |done, total| assert!(done <= total, "{done} of {total}")).await
}

/// A volume that another host wrote in objects of 256 KiB, opened here with an empty cache on the local disk and room
/// in memory.
async fn cold(host: &mut Host) -> (Vec<u8>, SimDisk, BlockStore, Rc<LogVolume>) {
    host.options.batch.bytes = 256 << 10;
    let data = filled(host, 3).await;
    *host = host.other(9);
    let disk = SimDisk::new(5, SimDiskOptions::default());
    let blocks = with_memory(&block_store(host, &disk).await);
    let volume = open(host, &blocks).await;
    (data, disk, blocks, volume)
}

#[test]
fn what_was_warmed_is_read_without_the_store_also_by_the_next_process() {
    run(async {
        for mut host in [Host::new().await, Host::encrypted().await] {
            let (data, disk, blocks, volume) = cold(&mut host).await;
            let in_memory = blocks.memory.bytes();
            let before = gets(&host);
            let report = warm(&volume, ALL).await.expect("warmed");
            assert_eq!(gets(&host) - before, report.requests);
            assert!(report.requests <= 2 * report.objects && report.objects >= 4, "{report:?}");
            assert!(report.warmed_bytes >= SIZE, "{report:?}");
            let nothing = (report.there_bytes, report.journal_bytes, report.left_bytes);
            assert_eq!((nothing, &report.obstacle), ((0, 0, 0), &None));
            assert_eq!(blocks.memory.bytes(), in_memory, "memory is left to clients");
            let before = gets(&host);
            read_all(&volume, &data).await;
            assert_eq!(gets(&host), before, "nothing was asked of the store");
            let again = warm(&volume, ALL).await.expect("warmed");
            assert_eq!(gets(&host), before, "nor by a second warming");
            let there = WarmReport { there_bytes: report.warmed_bytes, ..WarmReport::default() };
            assert_eq!(again, there);
            volume.close().await.expect("closed");
            drop(volume);
            disk.crash_process();
            let volume = open(&host, &block_store(&host, &disk).await).await;
            let before = gets(&host);
            read_all(&volume, &data).await;
            assert_eq!(gets(&host), before, "nor by the next process");
        }
    });
}

#[test]
fn a_range_warms_what_it_holds_and_no_more() {
    run(async {
        let mut host = Host::new().await;
        let (data, _disk, _blocks, volume) = cold(&mut host).await;
        let range = ByteRange::new(512 << 10, 640 << 10);
        let report = warm(&volume, range).await.expect("warmed");
        // Whole frames, of objects in which the bytes do not begin with one.
        assert!((128 << 10..=256 << 10).contains(&report.warmed_bytes), "{report:?}");
        let before = gets(&host);
        expect_bytes(&volume, range.start, &data[512 << 10..640 << 10]).await;
        assert_eq!(gets(&host), before);
        expect_bytes(&volume, 0, &data[..64 << 10]).await;
        assert!(gets(&host) > before, "the rest is in the store");
        for (start, end) in [(4096, 4096), (0, SIZE + 1)] {
            let error = warm(&volume, ByteRange { start, end }).await.expect_err("refused");
            assert_eq!(error.kind(), ErrorKind::Invalid, "{error}");
        }
    });
}

#[test]
fn frames_around_one_that_is_there_come_each_as_itself() {
    run(async {
        for is_warmed in [true, false] {
            let mut host = Host::new().await;
            let (data, _disk, blocks, volume) = cold(&mut host).await;
            // One amid those of the first object.
            let report = warm(&volume, ByteRange::new(96 << 10, 100 << 10)).await.expect("warmed");
            assert_eq!(report.warmed_bytes, 64 << 10);
            if is_warmed {
                let report = warm(&volume, ALL).await.expect("warmed");
                assert_eq!((report.there_bytes, report.left_bytes), (64 << 10, 0));
            } else {
                expect_bytes(&volume, 0, &data[..512 << 10]).await;
                tokio::time::sleep(Duration::from_secs(2)).await;
            }
            volume.close().await.expect("closed");
            drop(volume);
            let volume = open(&host, &block_store_of(&blocks)).await;
            let before = gets(&host);
            read_all(&volume, &data).await;
            assert!(!is_warmed || gets(&host) == before, "nothing was asked of the store");
        }
    });
}

#[test]
fn what_the_cache_does_not_take_is_not_said_to_be_warmed() {
    run(async {
        let mut host = Host::new().await;
        host.options.batch.bytes = 256 << 10;
        filled(&host, 3).await;
        let host = host.other(9);
        let disk = SimDisk::new(5, SimDiskOptions::default());
        let blocks = block_store(&host, &disk).await;
        let size = CacheSize::Exactly(16 << 20);
        let replaced = blocks.disk.replace(&disk.directory(), &host.env, size).await;
        let (cache, _) = replaced.expect("is replaced");
        // What comes in an hour is half of what the volume has.
        cache.limit_wear(Some(24 * SIZE / 2), None);
        let volume = open(&host, &blocks).await;
        let report = warm(&volume, ALL).await.expect("warmed");
        assert!(report.left_bytes >= SIZE / 2 && report.obstacle.is_some(), "{report:?}");
        let all = objects(&host).await.len() as u64;
        assert!(
            report.objects <= all * 3 / 4,
            "what cannot be kept is not read: {report:?} of {all}"
        );
        assert_eq!(report.warmed_bytes, cache.status().bytes);
    });
}

#[test]
fn what_is_in_the_journal_is_local_already() {
    run(async {
        let host = Host::new().await;
        let disk = SimDisk::new(5, SimDiskOptions::default());
        let volume = open(&host, &block_store(&host, &disk).await).await;
        write(&volume, 0, &pattern(1, 20_000)).await.expect("written");
        let report = warm(&volume, ALL).await.expect("warmed");
        assert_eq!(report, WarmReport { journal_bytes: 20_000, ..WarmReport::default() });
    });
}

#[test]
fn a_clone_and_its_parent_warm_each_other() {
    run(async {
        let mut host = Host::new().await;
        host.options.batch.bytes = 256 << 10;
        let (volume, _) = host.open().await;
        let data = fill(&volume, 3).await;
        volume.snapshot(&name("cut")).await.expect("taken");
        volume.close().await.expect("closed");
        let copy = clone_of(&host, 7, ("demo", "cut"), "copy").await;
        for (first, second) in [(&host, &copy), (&copy, &host)] {
            let disk = SimDisk::new(5, SimDiskOptions::default());
            let host = first.other(11);
            let blocks = block_store(&host, &disk).await;
            let volume = open(&host, &blocks).await;
            let report = warm(&volume, ALL).await.expect("warmed");
            assert!(report.warmed_bytes >= SIZE, "{report:?}");
            volume.close().await.expect("closed");
            let host = second.other(12);
            let volume = open(&host, &block_store_of(&blocks)).await;
            let again = warm(&volume, ALL).await.expect("warmed");
            assert_eq!((again.warmed_bytes, again.there_bytes), (0, report.warmed_bytes));
            // The header of one object says which opening wrote those of an epoch of another volume.
            assert_eq!(again.requests, u64::from(second.id == copy.id));
            let before = gets(&host);
            read_all(&volume, &data).await;
            assert_eq!(gets(&host), before);
            volume.close().await.expect("closed");
        }
    });
}

#[test]
fn a_snapshot_is_warmed_apart_from_its_volume() {
    run(async {
        let mut host = Host::new().await;
        host.options.batch.bytes = 256 << 10;
        let (volume, _) = host.open().await;
        let data = fill(&volume, 3).await;
        volume.snapshot(&name("cut")).await.expect("taken");
        let newer = fill(&volume, 4).await;
        volume.close().await.expect("closed");
        let host = host.other(9);
        let disk = SimDisk::new(5, SimDiskOptions::default());
        let blocks = block_store(&host, &disk).await;
        let volume = open(&host, &blocks).await;
        let (store, env, of) = (&host.store, &host.env, (host.id, &host.keys));
        let (cut, deadline) = (name("cut"), Duration::from_secs(30));
        let view = SnapshotView::open(store, env, of, &cut, block_store_of(&blocks), deadline);
        let view = view.await.expect("opens");
        let report = volume.warm(Some(&view), ALL, |_, _| {}).await.expect("warmed");
        assert!(report.warmed_bytes >= SIZE, "{report:?}");
        let before = gets(&host);
        let mut bytes = vec![0; data.len()];
        view.read(0, &mut bytes).await.expect("read");
        assert!(bytes == data, "what the snapshot shows");
        assert_eq!(gets(&host), before);
        read_all(&volume, &newer).await;
        assert!(gets(&host) > before, "the volume has other objects");
    });
}

#[test]
fn a_store_that_fails_ends_it_and_so_does_an_object_that_is_gone() {
    run(async {
        let mut host = Host::new().await;
        let (data, _disk, _blocks, volume) = cold(&mut host).await;
        host.faults.change(|plan| plan.outage = true);
        let error = warm(&volume, ALL).await.expect_err("no answer");
        assert_eq!(error.kind(), ErrorKind::Unavailable, "{error}");
        host.faults.change(|plan| plan.outage = false);
        warm(&volume, ALL).await.expect("it answers again");
        read_all(&volume, &data).await;
        volume.close().await.expect("closed");
        drop(volume);
        let disk = SimDisk::new(6, SimDiskOptions::default());
        let volume = open(&host, &block_store(&host, &disk).await).await;
        host.store.delete(&object_key(&host, 2, 1)).await.expect("deleted");
        let error = warm(&volume, ALL).await.expect_err("it is gone");
        assert_eq!(error.kind(), ErrorKind::NotFound, "{error}");
    });
}

#[test]
fn a_damaged_frame_is_left_out_and_named() {
    run(async {
        let mut host = Host::new().await;
        let (_data, _disk, _blocks, volume) = cold(&mut host).await;
        let key = object_key(&host, 2, 1);
        let mut object = host.store.get(&key).await.expect("read").to_vec();
        let last = object.len() - 1;
        object[last] ^= 1;
        host.store.delete(&key).await.expect("deleted");
        host.store.put_create(&key, vec![object.into()]).await.expect("put");
        let report = warm(&volume, ALL).await.expect("warmed");
        assert_eq!(report.left_bytes, 64 << 10, "{report:?}");
        let why = report.obstacle.expect("it is said");
        assert!(why.contains("cannot be read") && why.contains("weir volume check"), "{why}");
        assert!(report.warmed_bytes >= SIZE - (64 << 10));
    });
}

#[test]
fn a_cache_that_is_too_small_or_gone_is_said() {
    run(async {
        let mut host = Host::new().await;
        // Each object takes a band of 256 KiB, however small it is.
        host.options.batch.bytes = 8 << 10;
        filled(&host, 3).await;
        let host = host.other(9);
        let disk = SimDisk::new(5, SimDiskOptions::default());
        let blocks = block_store(&host, &disk).await;
        let volume = open(&host, &blocks).await;
        let before = gets(&host);
        let error = warm(&volume, ALL).await.expect_err("too much");
        assert_eq!(error.kind(), ErrorKind::NoSpace, "{error}");
        assert!(error.to_string().contains("that holds 16 MiB"), "{error}");
        assert_eq!(gets(&host), before, "nothing was begun");
        warm(&volume, ByteRange::new(0, 64 << 10)).await.expect("a part fits");
        disk.set_read_only(true);
        let error = warm(&volume, ByteRange::new(64 << 10, 256 << 10)).await.expect_err("failed");
        assert!(error.to_string().contains("its disk failed"), "{error}");
        blocks.disk.detach();
        let error = warm(&volume, ByteRange::new(0, 64 << 10)).await.expect_err("none");
        assert!(error.to_string().contains("no cache on the local disk"), "{error}");
    });
}

/// Warms a volume over a store that is slow, or away, and does something else with it meanwhile.
async fn warmed_while(is_away: bool, act: impl AsyncFn(&Host, Rc<LogVolume>)) -> DeviceError {
    let mut host = Host::new().await;
    host.options.batch.bytes = 256 << 10;
    let (volume, _) = host.open().await;
    fill(&volume, 3).await;
    volume.snapshot(&name("cut")).await.expect("taken");
    volume.close().await.expect("closed");
    let host = host.other(9);
    let disk = SimDisk::new(5, SimDiskOptions::default());
    let volume = open(&host, &block_store(&host, &disk).await).await;
    let slow = Duration::from_secs(2);
    host.faults.change(|plan| (plan.latency, plan.outage) = (slow..=slow, is_away));
    let warming = warm(&volume, ALL);
    let acting = async {
        tokio::time::sleep(Duration::from_secs(1)).await;
        act(&host, Rc::clone(&volume)).await;
    };
    let (warmed, ()) = futures_util::join!(warming, acting);
    warmed.expect_err("it ended")
}

#[test]
fn it_ends_with_its_volume() {
    run(async {
        let error = warmed_while(false, async |_, volume| {
            volume.close().await.expect("closed");
        });
        let error = error.await;
        assert!(error.to_string().contains("closed"), "{error}");
        // It does not wait for a store that is away.
        let error = warmed_while(true, async |_, volume| {
            volume.close_within(Duration::from_secs(2)).await.ok();
        });
        let error = error.await;
        assert!(error.to_string().contains("closed"), "{error}");
        let error = warmed_while(false, async |host, volume| {
            volume.rollback(&name("cut")).await.expect("set back");
            host.faults.change(|plan| plan.latency = Duration::ZERO..=Duration::ZERO);
            let report = warm(&volume, ALL).await.expect("warmed");
            assert_eq!(report.left_bytes, 0, "{report:?}");
        });
        let error = error.await;
        assert!(error.to_string().contains("set back"), "{error}");
    });
}

#[test]
fn what_is_given_up_meanwhile_is_looked_for_where_it_is() {
    run(async {
        let host = Host::new().await;
        let mut data = filled(&host, 3).await;
        let host = host.other(9);
        let disk = SimDisk::new(5, SimDiskOptions::default());
        let volume = open(&host, &block_store(&host, &disk).await).await;
        let slow = Duration::from_secs(1);
        host.faults.change(|plan| plan.latency = slow..=slow);
        let looks = Cell::new(0);
        let warming =
            volume.warm(None, ALL, |done, _| looks.set(looks.get() + u32::from(done == 0)));
        // The objects of the second half are read last, and deleted before that.
        let half = data.len() / 2;
        let newer = pattern(9, half);
        data[half..].copy_from_slice(&newer);
        let writing = async {
            for (at, piece) in (half as u64..).step_by(32 << 10).zip(newer.chunks(32 << 10)) {
                write(&volume, at, piece).await.expect("written");
            }
            volume.flush(FlushScope::Store).await.expect("stored");
        };
        let (warmed, ()) = futures_util::join!(warming, writing);
        let report = warmed.expect("warmed");
        assert!(looks.get() > 1, "an object was gone");
        assert_eq!(report.there_bytes, 0, "what it brought itself was not there");
        assert_eq!((report.left_bytes, &report.obstacle), (0, &None), "{report:?}");
        let before = gets(&host);
        read_all(&volume, &data).await;
        assert_eq!(gets(&host), before);
    });
}
