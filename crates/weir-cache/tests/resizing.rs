//! A cache that gets another size while it is in use, on a simulated disk.

mod common;

use std::time::Duration;

use bytes::Bytes;
use common::{disk, run};
use weir_cache::engine::{
    Blocks, Cache, CacheError, CacheFile, CacheSize, Found, Pieces, RUN_BYTES, RunAddress, Source,
    ThreadCache, inspect,
};
use weir_cache::format::run::DeviceIdentity;
use weir_cache::format::superblock::VERSION;
use weir_disk::sim::SimDisk;

const SMALL: u64 = 16 << 20;
const LARGE: u64 = 40 << 20;

fn runs() -> impl Iterator<Item = RunAddress> {
    (0..40).map(|run| RunAddress { device: DeviceIdentity([1; 32]), run })
}

fn content(address: &RunAddress) -> Bytes {
    Bytes::from(vec![u8::try_from(address.run).expect("few runs"); RUN_BYTES])
}

async fn open(disk: &SimDisk, life: u8, bytes: u64) -> (ThreadCache, Cache, Found) {
    let (thread, env) = (ThreadCache::default(), weir_device::testing::env(life));
    let opened = thread.open(&disk.directory(), &env, CacheSize::Exactly(bytes)).await;
    let (cache, found) = opened.expect("opens");
    (thread, cache, found)
}

async fn fill(thread: &ThreadCache) {
    for address in runs() {
        thread.offer(address, Source::Here(Pieces::from_iter([content(&address)])), None);
    }
    tokio::time::sleep(Duration::from_secs(2)).await;
}

/// How many runs are served; each as it must be.
async fn count(thread: &ThreadCache) -> usize {
    let mut count = 0;
    for address in runs() {
        if let Some(found) = thread.read(&address, Blocks::All, None).await {
            assert!(found[..] == content(&address)[..], "what is served is what was given");
            count += 1;
        }
    }
    count
}

#[test]
fn another_size_begins_empty_and_is_used_at_once() {
    run(async {
        let disk = disk(1);
        let (thread, old, _) = open(&disk, 1, SMALL).await;
        fill(&thread).await;
        assert_eq!(count(&thread).await, 40);
        // A second thread of the node still has the old one, and a read of it on its way.
        let other = ThreadCache::default();
        let env = weir_device::testing::env(2);
        other.attach(&old, &disk.directory(), &env).await.expect("attaches");
        let first = runs().next().expect("a run");
        let reading = other.read(&first, Blocks::All, None);
        let directory = disk.directory();
        let replacing = thread.replace(&directory, &env, CacheSize::Exactly(LARGE));
        let (read, replaced) = futures_util::join!(reading, replacing);
        let (new, found) = replaced.expect("is replaced");
        assert_eq!(read.expect("what had begun ends")[..], content(&first)[..]);
        assert_eq!(found, Found::Nothing("it had another size".to_owned()));
        assert!(new.status().capacity_bytes > 2 * old.status().capacity_bytes);
        assert_eq!((new.status().bytes, count(&thread).await), (0, 0));
        // Whoever still has the old one finds nothing, and writes nowhere.
        assert_eq!(count(&other).await, 0);
        fill(&other).await;
        assert_eq!(old.status().counts.fills, 40);
        fill(&thread).await;
        assert_eq!(count(&thread).await, 40);
        thread.close(&directory).await.expect("closes");
        let (thread, _, found) = open(&disk, 3, LARGE).await;
        assert_eq!((found, count(&thread).await), (Found::Index, 40));
    });
}

#[test]
fn nobody_else_gets_the_file_in_between() {
    run(async {
        let disk = disk(2);
        let (thread, ..) = open(&disk, 1, SMALL).await;
        let (directory, env) = (disk.directory(), weir_device::testing::env(1));
        let intruder = ThreadCache::default();
        let taking = async {
            for _ in 0..200 {
                let taken = intruder.open(&directory, &env, CacheSize::Exactly(SMALL)).await;
                assert!(taken.is_err(), "the lock is held all the time");
                tokio::time::sleep(Duration::from_micros(20)).await;
            }
        };
        let replacing = thread.replace(&directory, &env, CacheSize::Exactly(LARGE));
        let (replaced, ()) = futures_util::join!(replacing, taking);
        replaced.expect("is replaced");
    });
}

#[test]
fn where_requests_do_not_end_the_cache_is_given_up_and_free_for_others() {
    run(async {
        let disk = disk(4);
        let (thread, ..) = open(&disk, 1, SMALL).await;
        let hang = Duration::from_secs(60);
        disk.change_options(|options| (options.latency_min, options.latency_max) = (hang, hang));
        let first = runs().next().expect("a run");
        thread.offer(first, Source::Here(Pieces::from_iter([content(&first)])), None);
        tokio::time::sleep(Duration::from_secs(1)).await;
        let (directory, env) = (disk.directory(), weir_device::testing::env(1));
        let replaced = thread.replace(&directory, &env, CacheSize::Exactly(LARGE)).await;
        assert!(matches!(replaced, Err(CacheError::Busy)), "{replaced:?}");
        assert!(!thread.is_there());
        tokio::time::sleep(2 * hang).await;
        assert_eq!(count(&thread).await, 0);
        open(&disk, 2, SMALL).await;
    });
}

#[test]
fn who_is_killed_on_the_way_leaves_a_cache_that_opens() {
    let (mut done, mut undone) = (0, 0);
    for seed in 0..120 {
        run(async {
            let disk = disk(seed);
            let (thread, ..) = open(&disk, 1, SMALL).await;
            fill(&thread).await;
            let (directory, env) = (disk.directory(), weir_device::testing::env(2));
            let replacing = thread.replace(&directory, &env, CacheSize::Exactly(LARGE));
            let time = Duration::from_micros(seed * 250);
            match tokio::time::timeout(time, replacing).await {
                Ok(replaced) => drop(replaced.map(|_| done += 1)),
                Err(_) => undone += 1,
            }
            if seed % 2 == 0 {
                disk.crash_power()
            } else {
                disk.crash_process()
            }
            for (life, bytes) in [(3, SMALL), (4, LARGE)] {
                let (thread, ..) = open(&disk, life, bytes).await;
                thread.recover().await;
                count(&thread).await;
                fill(&thread).await;
                assert_eq!(count(&thread).await, 40, "it is of use");
                disk.crash_process();
            }
        });
    }
    assert!(done > 0 && undone > 20, "{done} came to their end, {undone} did not");
}

#[test]
fn a_file_says_what_it_is_without_being_opened() {
    run(async {
        let disk = disk(3);
        assert_eq!(inspect(&disk.directory()).await.expect("is read"), None);
        let (thread, cache, _) = open(&disk, 1, SMALL).await;
        let found =
            || async { inspect(&disk.directory()).await.expect("is read").expect("is there") };
        let capacity_bytes = cache.status().capacity_bytes;
        let file = CacheFile { version: VERSION, capacity_bytes, is_closed: false, openings: 1 };
        assert_eq!(found().await, Ok(file));
        thread.close(&disk.directory()).await.expect("closes");
        assert_eq!(found().await, Ok(CacheFile { is_closed: true, ..file }));
        let directory = disk.directory();
        let open = directory.open("blocks", weir_disk::OpenMode::Existing).await.expect("opens");
        for offset in [0, 4096] {
            let block = weir_device::AlignedBuf::zeroed(4096).freeze();
            open.write_at(vec![block], offset).await.1.expect("is written");
        }
        assert!(found().await.is_err());
    });
}
