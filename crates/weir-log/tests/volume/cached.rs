//! Objects on the local disk: what is there is read without the store, and is never another history's.

use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use weir_cache::engine::{CacheSize, Found, ThreadCache};
use weir_device::ErrorKind;
use weir_disk::sim::{SimDisk, SimDiskOptions};
use weir_log::format::frame::Compression;
use weir_log::{
    BlockRange, BlockStore, Closed, FrameCache, FrameKey, FrameResult, FrameTable, LogVolume, Look,
    MemoryFrameCache, ObjectKey, Part,
};
use weir_pacer::Class;

use crate::clones::clone_of;
use crate::support::{
    Backup, Host, SIZE, expect_bytes, fill, name, object_key, objects, pattern, read, run, write,
};

const CACHE_BYTES: u64 = 24 << 20;

/// Memory that holds little.
const MEMORY_BYTES: u64 = 128 << 10;

/// The cache of a process that begins now, on a disk of its own; nothing is in memory.
pub(crate) async fn block_store(host: &Host, disk: &SimDisk) -> BlockStore {
    let thread = Rc::new(ThreadCache::default());
    let size = CacheSize::Exactly(CACHE_BYTES);
    let (_, found) = thread.open(&disk.directory(), &host.env, size).await.expect("opens");
    assert!(!matches!(found, Found::Nothing(_)), "{found:?}");
    thread.recover().await;
    BlockStore { memory: Arc::new(MemoryFrameCache::new(MEMORY_BYTES)), disk: thread }
}

/// The same cache on the local disk, with other memory.
pub(crate) fn block_store_of(blocks: &BlockStore) -> BlockStore {
    let memory = Arc::new(MemoryFrameCache::new(MEMORY_BYTES));
    BlockStore { memory, disk: Rc::clone(&blocks.disk) }
}

pub(crate) async fn open(host: &Host, blocks: &BlockStore) -> Rc<LogVolume> {
    host.try_open(|args| args.blocks = blocks.clone()).await.expect("opens").0
}

/// Fills that were begun end.
async fn rest() {
    tokio::time::sleep(Duration::from_secs(2)).await;
}

pub(crate) fn gets(host: &Host) -> u64 {
    host.store.counters().gets
}

/// Everything, in pieces that have nothing to do with blocks.
pub(crate) async fn read_all(volume: &LogVolume, data: &[u8]) {
    for (at, piece) in (0..).step_by(7000).zip(data.chunks(7000)) {
        expect_bytes(volume, at, piece).await;
    }
}

#[test]
fn what_is_cached_is_read_without_the_store_also_by_the_next_process() {
    run(async {
        for host in [Host::new().await, Host::encrypted().await] {
            let disk = SimDisk::new(5, SimDiskOptions::default());
            let blocks = block_store(&host, &disk).await;
            let volume = open(&host, &blocks).await;
            let data = fill(&volume, 3).await;
            volume.flush_remote().await.expect("stored");
            assert_eq!(volume.close().await.expect("closed"), Closed::Clean);
            drop(volume);
            rest().await;
            // What was written is there without a read; what it had no room for, after one.
            let volume = open(&host, &blocks).await;
            read_all(&volume, &data).await;
            assert!(volume.status().cache_hits > 0, "{:?}", volume.status());
            rest().await;
            volume.close().await.expect("closed");
            drop(volume);
            disk.crash_process();
            let blocks = block_store(&host, &disk).await;
            let volume = open(&host, &blocks).await;
            let before = gets(&host);
            read_all(&volume, &data).await;
            assert_eq!(gets(&host), before, "nothing was asked of the store");
            // Large reads as well, past what memory has of them.
            for at in (0..SIZE).step_by(256 << 10) {
                let from = usize::try_from(at).expect("small");
                expect_bytes(&volume, at, &data[from..from + (256 << 10)]).await;
            }
            assert_eq!(gets(&host), before, "nor for large ones");
            assert_eq!(volume.status().cache_misses, 0);
        }
    });
}

#[test]
fn a_clone_reads_what_its_parent_cached() {
    run(async {
        let host = Host::new().await;
        let disk = SimDisk::new(5, SimDiskOptions::default());
        let blocks = block_store(&host, &disk).await;
        let volume = open(&host, &blocks).await;
        let data = fill(&volume, 3).await;
        volume.snapshot(&name("cut")).await.expect("taken");
        volume.flush_remote().await.expect("stored");
        rest().await;
        read_all(&volume, &data).await;
        rest().await;
        let copy = clone_of(&host, 7, ("demo", "cut"), "copy").await;
        let copy = open(&copy, &block_store_of(&blocks)).await;
        let before = gets(&host);
        read_all(&copy, &data).await;
        // The header of one object says which opening wrote those of its epoch.
        assert_eq!((gets(&host) - before, copy.status().cache_misses), (1, 0));
    });
}

/// The store is set back, and goes on with other objects of the same names: what the disk has of those that are gone is
/// shown to nobody.
#[test]
fn objects_of_a_history_that_was_given_up_are_not_shown() {
    run(async {
        let host = Host::new().await;
        let disk = SimDisk::new(5, SimDiskOptions::default());
        let backup = Backup::of(&host.store).await;
        let blocks = block_store(&host, &disk).await;
        let volume = open(&host, &blocks).await;
        let [gone, data] = [1, 2].map(|seed| pattern(seed, 64 << 10));
        write(&volume, 0, &gone).await.expect("written");
        volume.flush_remote().await.expect("stored");
        volume.close().await.expect("closed");
        drop(volume);
        rest().await;
        let volume = open(&host, &blocks).await;
        expect_bytes(&volume, 0, &gone).await;
        assert!(volume.status().cache_hits > 0, "it is on the disk");
        volume.close().await.expect("closed");
        drop(volume);
        let before = objects(&host).await;
        backup.restore(&host.store).await;
        let host = host.other(9);
        let volume = open(&host, &blocks).await;
        write(&volume, 0, &data).await.expect("written");
        volume.flush_remote().await.expect("stored");
        assert!(before.contains(&objects(&host).await[0]), "it has the same name");
        volume.close().await.expect("closed");
        drop(volume);
        let volume = open(&host, &block_store_of(&blocks)).await;
        expect_bytes(&volume, 0, &data).await;
    });
}

/// The same with what a clone reads of its parent, which memory and disk may have of both histories.
#[test]
fn a_clone_is_shown_objects_of_its_history_only() {
    run(async {
        for with_disk in [false, true] {
            let host = Host::new().await;
            let disk = SimDisk::new(5, SimDiskOptions::default());
            let memory: BlockStore = Arc::new(MemoryFrameCache::new(8 << 20)).into();
            let on_disk = block_store(&host, &disk).await;
            let blocks = if with_disk { &on_disk } else { &memory };
            let backup = Backup::of(&host.store).await;
            let (mut before, mut host) = (Vec::new(), host);
            for seed in [1, 2] {
                let volume = open(&host, blocks).await;
                let data = pattern(seed, 64 << 10);
                write(&volume, 0, &data).await.expect("written");
                volume.snapshot(&name("cut")).await.expect("taken");
                volume.flush_remote().await.expect("stored");
                rest().await;
                expect_bytes(&volume, 0, &data).await;
                let copy = clone_of(&host, 20 + seed, ("demo", "cut"), "copy").await;
                let clone = open(&copy, &blocks.clone()).await;
                // A block, and more than is read in blocks.
                expect_bytes(&clone, 4096, &data[4096..8192]).await;
                expect_bytes(&clone, 0, &data).await;
                rest().await;
                clone.close().await.expect("closed");
                volume.close().await.expect("closed");
                let now = objects(&host).await;
                assert!(seed == 1 || now.iter().any(|id| before.contains(id)), "names come again");
                before = now;
                backup.restore(&host.store).await;
                host = host.other(8 + seed);
            }
        }
    });
}

/// Reads that come at once ask for the history of their objects once. An object that is gone is no error of the others.
#[test]
fn an_object_that_is_gone_fails_no_read_of_another() {
    run(async {
        let host = Host::new().await;
        let volume = open(&host, &Arc::new(MemoryFrameCache::new(8 << 20)).into()).await;
        let data = pattern(1, 64 << 10);
        for at in [0, SIZE / 2] {
            write(&volume, at, &data).await.expect("written");
            volume.flush_remote().await.expect("stored");
        }
        volume.snapshot(&name("cut")).await.expect("taken");
        volume.close().await.expect("closed");
        let copy = clone_of(&host, 7, ("demo", "cut"), "copy").await;
        let clone = open(&copy, &Arc::new(MemoryFrameCache::new(8 << 20)).into()).await;
        host.store.delete(&object_key(&host, 1, 1)).await.expect("deleted");
        let [gone, there] = [0, SIZE / 2].map(|at| read(&clone, at, 4096));
        let (gone, there) = futures_util::join!(gone, there);
        assert_eq!(gone.expect_err("it is gone").kind(), ErrorKind::Corrupt);
        assert_eq!(there.expect("it is there"), data[..4096]);
    });
}

/// Overwrites a block in each 32 KiB, until the collector has moved what lives of the objects before.
async fn overwrite(volume: &LogVolume, data: &mut [u8]) {
    for round in 0..7 {
        for at in (0..SIZE).step_by(32 << 10) {
            let at = at + round * 4096;
            let bytes = pattern(at, 4096);
            write(volume, at, &bytes).await.expect("written");
            let at = usize::try_from(at).expect("small");
            data[at..at + 4096].copy_from_slice(&bytes);
        }
        volume.flush_remote().await.expect("stored");
        rest().await;
    }
    assert!(volume.status().collected_objects > 0, "{:?}", volume.status());
}

#[test]
fn what_the_collector_copies_is_cached_where_it_was_before() {
    run(async {
        for is_cached in [true, false] {
            let mut host = Host::new().await;
            // Small objects would take a band each, and the cache has few.
            host.options.batch.bytes = 256 << 10;
            let disk = SimDisk::new(5, SimDiskOptions::default());
            let blocks = block_store(&host, &disk).await;
            let memory = Arc::new(MemoryFrameCache::new(128 << 10)).into();
            let first = open(&host, if is_cached { &blocks } else { &memory }).await;
            let mut data = fill(&first, 3).await;
            first.close().await.expect("closed");
            drop(first);
            rest().await;
            let volume = open(&host, &blocks).await;
            overwrite(&volume, &mut data).await;
            let (misses, before) = (volume.status().cache_misses, gets(&host));
            read_all(&volume, &data).await;
            let missed = volume.status().cache_misses - misses;
            if is_cached {
                assert_eq!((missed, gets(&host) - before), (0, 0), "it was moved with its bytes");
            } else {
                assert!(missed > 0, "it was not there before");
            }
        }
    });
}

#[test]
fn the_collector_reads_the_local_disk_where_it_can() {
    run(async {
        let mut read_of_store = Vec::new();
        for is_cached in [true, false] {
            let mut host = Host::new().await;
            // Of compressed frames the object's checksums do not say what the local disk has.
            host.options.compression = Compression::None;
            host.options.batch.bytes = 256 << 10;
            let disk = SimDisk::new(5, SimDiskOptions::default());
            let blocks = block_store(&host, &disk).await;
            let memory = Arc::new(MemoryFrameCache::new(MEMORY_BYTES)).into();
            let volume = open(&host, if is_cached { &blocks } else { &memory }).await;
            let mut data = fill(&volume, 3).await;
            overwrite(&volume, &mut data).await;
            read_of_store.push(host.store.counters().bytes_down);
            let counts = blocks.disk.status().expect("there").counts;
            assert_eq!(counts.copied > 0, is_cached, "{counts:?}");
            assert_eq!((counts.hits, counts.damaged), (0, 0), "nobody else read: {counts:?}");
            // What is read of the disk has leave, as what is written has.
            let given = host.env.pacer.given(Class::Copy).bytes;
            let copied = counts.copied * (64 << 10) + volume.status().collected_bytes;
            assert!(given >= copied, "{given} bytes of {copied}");
            volume.close().await.expect("closed");
            drop(volume);
            let volume = open(&host, &memory).await;
            read_all(&volume, &data).await;
        }
        let [cached, uncached] = read_of_store[..] else { panic!("two runs") };
        assert!(cached < uncached / 2, "{cached} bytes read, and {uncached} without a cache");
    });
}

/// Memory with a wrong last byte in each whole frame, as a local disk may have given it. Reads are not shown it.
#[derive(Debug)]
struct WrongFrames(MemoryFrameCache);

impl FrameCache for WrongFrames {
    fn get(&self, key: &FrameKey) -> Option<Bytes> {
        let mut frame = self.0.get(key)?.to_vec();
        *frame.last_mut()? ^= 1;
        Some(frame.into())
    }

    fn part(&self, frame: &FrameKey, range: BlockRange) -> Part {
        self.0.part(frame, range)
    }

    fn look(&self, key: &FrameKey) -> Look {
        self.0.look(key)
    }

    fn settle(&self, key: FrameKey, result: Option<FrameResult>) {
        self.0.settle(key, result);
    }

    fn keep(&self, key: FrameKey, bytes: Bytes) {
        self.0.keep(key, bytes);
    }

    fn table(&self, object: &ObjectKey) -> Option<Arc<FrameTable>> {
        self.0.table(object)
    }

    fn keep_table(&self, object: ObjectKey, table: Arc<FrameTable>) {
        self.0.keep_table(object, table);
    }

    fn bytes(&self) -> u64 {
        self.0.bytes()
    }
}

/// What is copied lasts. Memory beside a local disk may have what that gave to reads.
#[test]
fn the_collector_copies_nothing_of_memory_that_the_object_does_not_vouch_for() {
    run(async {
        for compression in [Compression::None, Compression::Lz4] {
            let mut host = Host::new().await;
            host.options.compression = compression;
            host.options.batch.bytes = 256 << 10;
            let disk = SimDisk::new(5, SimDiskOptions::default());
            let mut blocks = block_store(&host, &disk).await;
            blocks.memory = Arc::new(WrongFrames(MemoryFrameCache::new(8 << 20)));
            let volume = open(&host, &blocks).await;
            let mut data = fill(&volume, 3).await;
            volume.flush_remote().await.expect("stored");
            for at in (0..SIZE).step_by(256 << 10) {
                let from = usize::try_from(at).expect("small");
                expect_bytes(&volume, at, &data[from..from + (256 << 10)]).await;
            }
            overwrite(&volume, &mut data).await;
            volume.close().await.expect("closed");
            drop(volume);
            let memory = Arc::new(MemoryFrameCache::new(MEMORY_BYTES)).into();
            let volume = open(&host, &memory).await;
            read_all(&volume, &data).await;
        }
    });
}
