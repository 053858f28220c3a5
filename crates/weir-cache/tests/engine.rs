//! The cache on a simulated disk: what it serves is what it was given, whatever happens to its file.

mod common;

use std::cell::Cell;
use std::ops::RangeInclusive;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use common::{disk, run};
use weir_cache::engine::{
    BAND_RUNS, BLOCKS_FILE, Blocks, Cache, CacheError, CacheSize, Found, Owner, Pieces, RUN_BLOCKS,
    RUN_BYTES, RunAddress, Source, ThreadCache,
};
use weir_cache::format::run::DeviceIdentity;
use weir_device::SharedBuf;
use weir_disk::sim::{SimDisk, SimDiskOptions};
use weir_pacer::{Class, Pacer};
use weir_seal::{BlockKey, DataKey};

const CACHE_BYTES: u64 = 24 << 20;
const BLOCK: usize = 4096;

fn address(device: u8, run: u64) -> RunAddress {
    RunAddress { device: DeviceIdentity([device; 32]), run }
}

/// What is at an address, for ever. Every seventh frame is short.
fn content(address: &RunAddress) -> Bytes {
    let len = if address.run % 7 == 6 { 10_000 } else { RUN_BYTES };
    let mut bytes = vec![0; len];
    let mut hasher = blake3::Hasher::new();
    hasher.update(&address.device.0).update(&address.run.to_le_bytes());
    hasher.finalize_xof().fill(&mut bytes);
    Bytes::from(bytes)
}

fn key() -> Arc<BlockKey> {
    Arc::new(DataKey::draw(|bytes| bytes.fill(5)).block_key(&[b"a volume"]))
}

/// A process with the cache open.
struct Host {
    cache: Cache,
    thread: Rc<ThreadCache>,
    disk: SimDisk,
    key: Option<Arc<BlockKey>>,
    pacer: Pacer,
}

thread_local! {
    static LIVES: Cell<u8> = const { Cell::new(0) };
}

impl Host {
    async fn try_start(disk: &SimDisk, bytes: u64) -> Result<(Self, Found), CacheError> {
        let life = LIVES.with(|lives| lives.replace(lives.get().wrapping_add(1)));
        let env = weir_device::testing::env(life);
        let directory = disk.directory();
        let thread = Rc::new(ThreadCache::default());
        let size = CacheSize::Exactly(bytes);
        let (cache, found) = thread.open(&directory, &env, size).await?;
        let pacer = env.pacer.clone();
        Ok((Self { cache, thread, disk: disk.clone(), key: None, pacer }, found))
    }

    async fn start(disk: &SimDisk) -> (Self, Found) {
        Self::try_start(disk, CACHE_BYTES).await.expect("opens")
    }

    /// The same, once it is known what is in the file.
    async fn start_known(disk: &SimDisk) -> Self {
        let (host, _) = Self::start(disk).await;
        host.thread.recover().await;
        host
    }

    fn offer(&self, address: RunAddress) {
        // In pieces, as it comes from a journal.
        let mut frame = content(&address);
        let first = frame.split_to(frame.len() / 3);
        let source = match address.run % 2 {
            0 => Source::Here(Pieces::from_iter([first, frame])),
            _ => Source::Kept(Box::new(move || Some(content(&address)))),
        };
        self.thread.offer(address, source, self.key.clone());
    }

    /// Fills what was offered.
    async fn rest(&self) {
        tokio::time::sleep(Duration::from_secs(2)).await;
    }

    async fn fill(&self, addresses: &[RunAddress]) {
        for address in addresses {
            self.offer(*address);
        }
        self.rest().await;
    }

    /// Blocks of a run, compared with what they must be; whether they are there.
    async fn has(&self, address: RunAddress, range: Option<RangeInclusive<u32>>) -> bool {
        let blocks = range.clone().map_or(Blocks::All, Blocks::Some);
        let Some(found) = self.thread.read(&address, blocks, self.key.as_deref()).await else {
            return false;
        };
        let mut whole = content(&address).to_vec();
        whole.resize(whole.len().next_multiple_of(BLOCK), 0);
        let expected = match range {
            None => &whole[..],
            Some(range) => {
                &whole[*range.start() as usize * BLOCK..(*range.end() as usize + 1) * BLOCK]
            }
        };
        assert!(found[..] == *expected, "what is served of {address:?} is what was given");
        true
    }

    /// Runs that follow each other, compared with what they must be; which of them are there.
    async fn has_runs(&self, first: RunAddress, count: u32) -> Vec<bool> {
        let found = self.thread.read_runs(&first, count, self.key.as_deref()).await;
        assert_eq!(found.len(), count as usize);
        let compared = (first.run..).zip(found).map(|(run, found)| {
            let mut whole = content(&RunAddress { run, ..first }).to_vec();
            whole.resize(whole.len().next_multiple_of(BLOCK), 0);
            assert!(found.as_ref().is_none_or(|found| found[..] == whole), "run {run}");
            found.is_some()
        });
        compared.collect()
    }

    /// One of the ways to read; whether something was there.
    async fn looks(&self, address: RunAddress, first: u32, kind: u64) -> bool {
        match kind {
            0 | 1 => self.has_runs(address, 1 + 4 * first).await.contains(&true),
            2 | 3 => self.has(address, Some(first..=first + 1)).await,
            _ => self.has(address, None).await,
        }
    }

    async fn count(&self, addresses: &[RunAddress]) -> usize {
        let mut count = 0;
        for address in addresses {
            count += usize::from(self.has(*address, None).await);
        }
        count
    }

    async fn close(self) {
        self.thread.close(&self.disk.directory()).await.expect("closes");
    }
}

/// Runs of two bands of each of some devices.
fn some_runs() -> Vec<RunAddress> {
    (0..5).flat_map(|device| (0..8).map(move |run| address(device, run))).collect()
}

#[test]
fn what_was_filled_is_served_in_blocks_and_as_a_whole() {
    run(async {
        let (host, found) = Host::start(&disk(1)).await;
        assert_eq!(found, Found::New);
        let one = address(1, 3);
        assert!(!host.has(one, None).await);
        host.fill(&[one]).await;
        for block in 0..RUN_BLOCKS {
            assert!(host.has(one, Some(block..=block)).await);
        }
        assert!(host.has(one, Some(3..=9)).await && host.has(one, None).await);
        assert!(!host.has(address(2, 3), None).await && !host.has(address(1, 2), None).await);
        let status = host.cache.status();
        assert_eq!((status.bytes, status.counts.fills), (RUN_BYTES as u64, 1));
        assert_eq!(
            status.counts.filled_bytes,
            (RUN_BYTES + BLOCK) as u64,
            "one write with its header"
        );
        // A short frame, to its end and no further.
        let short = address(1, 6);
        host.fill(&[short]).await;
        assert!(host.has(short, None).await && host.has(short, Some(0..=2)).await);
        assert!(!host.has(short, Some(2..=3)).await);
    });
}

#[test]
fn runs_that_lie_behind_each_other_are_read_at_once() {
    run(async {
        for key in [None, Some(key())] {
            let disk = disk(8);
            let mut host = Host::start(&disk).await.0;
            host.key = key;
            // The fourth band has a short run, the last two are not there, and of the second one run is damaged.
            let runs: Vec<_> = (0..18).filter(|run| *run != 9).map(|run| address(1, run)).collect();
            host.fill(&runs).await;
            let at = |run| {
                let mut block = content(&address(1, run))[BLOCK..2 * BLOCK].to_vec();
                if let Some(key) = &host.key {
                    let nonce = weir_seal::counter_nonce(run, 1);
                    key.apply(nonce, &mut block);
                }
                find(&disk, &block).expect("it is in the file")
            };
            disk.rot(BLOCKS_FILE, at(5) + 7);
            let there = host.has_runs(address(1, 0), 20).await;
            let is_there = |run: usize| !matches!(run, 5 | 9 | 18 | 19);
            assert_eq!(there, (0..20).map(is_there).collect::<Vec<_>>());
            assert_eq!(host.cache.status().counts.damaged, 1);
            assert_eq!(host.has_runs(address(2, 0), 3).await, [false; 3]);
            host.fill(&[address(1, 5)]).await;
            assert_eq!(host.has_runs(address(1, 4), 3).await, [true; 3], "it is filled again");
        }
    });
}

#[test]
fn runs_that_lie_behind_each_other_are_written_at_once() {
    run(async {
        let disk = disk(6);
        let host = Host::start(&disk).await.0;
        let writes = || disk.counters().writes;
        let before = writes();
        // The third of the second band is short, so that what is behind it is apart.
        let runs: Vec<_> = (0..8).map(|run| address(1, run)).collect();
        host.fill(&runs).await;
        assert_eq!(host.count(&runs).await, 8);
        assert_eq!(writes() - before, 3);
        host.fill(&[address(2, 0), address(2, 2), address(3, 3)]).await;
        assert_eq!(writes() - before, 6, "others are not behind each other");
    });
}

#[test]
fn all_is_there_after_a_clean_stop_and_after_a_crash() {
    run(async {
        let (disk, runs) = (disk(2), some_runs());
        let (host, _) = Host::start(&disk).await;
        host.fill(&runs).await;
        assert_eq!(host.count(&runs).await, runs.len());
        host.close().await;
        let (host, found) = Host::start(&disk).await;
        assert_eq!(found, Found::Index);
        assert_eq!(host.count(&runs).await, runs.len());
        // Filled after the index was saved: it counts no more.
        let more: Vec<_> = (100..104).map(|run| address(9, run)).collect();
        host.fill(&more).await;
        disk.crash_process();
        let (host, found) = Host::start(&disk).await;
        assert!(matches!(found, Found::Unknown(_)), "{found:?}");
        assert_eq!(host.count(&runs).await, 0, "it is not known yet");
        assert!(host.cache.status().recovery.is_some());
        host.thread.recover().await;
        assert_eq!(host.cache.status().recovery, None);
        let asked = host.pacer.given(Class::Fill).bytes;
        assert!(asked >= CACHE_BYTES / 32, "a header of each run: {asked}");
        assert_eq!(host.count(&runs).await + host.count(&more).await, runs.len() + 4);
        // Numbers of fills went on, and so does the cache.
        host.close().await;
        let (host, found) = Host::start(&disk).await;
        assert_eq!(found, Found::Index);
        assert_eq!(host.count(&runs).await, runs.len());
    });
}

#[test]
fn a_stop_before_all_is_known_saves_no_index() {
    run(async {
        let (disk, runs) = (disk(14), some_runs());
        let (host, _) = Host::start(&disk).await;
        host.fill(&runs).await;
        disk.crash_process();
        Host::start(&disk).await.0.close().await;
        let (host, found) = Host::start(&disk).await;
        assert!(matches!(found, Found::Unknown(_)), "{found:?}");
        host.thread.recover().await;
        assert_eq!(host.count(&runs).await, runs.len());
    });
}

#[test]
fn a_scan_after_a_restart_leaves_what_was_kept_before_it() {
    run(async {
        let disk = disk(3);
        let band = |device, number: u64| address(device, number * 4);
        let hot: Vec<_> = (0..40).map(|number| band(1, number)).collect();
        let scan = |device| (0..150).map(|number| band(device, number)).collect::<Vec<_>>();
        let (host, _) = Host::start(&disk).await;
        host.fill(&hot).await;
        for _ in 0..3 {
            assert_eq!(host.count(&hot).await, hot.len());
        }
        host.fill(&scan(2)).await;
        assert_eq!(host.count(&hot).await, hot.len(), "a scan passes by");
        // What was kept is not what was used last.
        host.fill(&scan(4)).await;
        host.close().await;
        let (host, found) = Host::start(&disk).await;
        assert_eq!(found, Found::Index);
        host.fill(&scan(3)).await;
        assert!(host.cache.status().counts.evictions > 100, "{:?}", host.cache.status());
        assert_eq!(host.count(&hot).await, hot.len(), "so does the first one of a process");
    });
}

#[test]
fn a_flipped_bit_is_never_served_and_its_run_can_be_filled_again() {
    run(async {
        let (disk, one) = (disk(3), address(1, 0));
        let (host, _) = Host::start(&disk).await;
        host.fill(&[one]).await;
        // Wherever it lies, one byte of its fourth block.
        let whole = content(&one);
        let at = find(&disk, &whole[3 * BLOCK..4 * BLOCK]).expect("in the file");
        disk.rot(BLOCKS_FILE, at + 77);
        assert!(host.has(one, Some(2..=2)).await && !host.has(one, Some(3..=3)).await);
        assert!(!host.has(one, Some(2..=2)).await, "its run is dropped");
        assert_eq!(host.cache.status().counts.damaged, 1);
        host.fill(&[one]).await;
        assert!(host.has(one, None).await);
    });
}

#[test]
fn a_run_that_is_found_damaged_by_whoever_copies_it_is_dropped_as_well() {
    run(async {
        let (disk, one) = (disk(14), address(1, 0));
        let (host, _) = Host::start(&disk).await;
        host.fill(&[one]).await;
        let at = find(&disk, &content(&one)[3 * BLOCK..4 * BLOCK]).expect("in the file");
        disk.rot(BLOCKS_FILE, at + 77);
        assert!(host.thread.copy_runs(&one, 1, None).await[0].is_none());
        assert!(!host.thread.has(&one), "nobody finds it again");
        let status = host.cache.status();
        assert_eq!((status.counts.damaged, status.counts.copied, status.counts.hits), (1, 0, 0));
        assert!(status.bad_for.is_some(), "{status:?}");
        host.fill(&[one]).await;
        let copied = host.thread.copy_runs(&one, 1, None).await.remove(0).expect("filled again");
        assert!(copied.starts_with(&content(&one)));
        assert_eq!(host.cache.status().counts.copied, 1);
    });
}

/// Where bytes are in the file.
fn find(disk: &SimDisk, bytes: &[u8]) -> Option<u64> {
    let mut block = vec![0; bytes.len()];
    (0..CACHE_BYTES / BLOCK as u64).map(|block| block * BLOCK as u64).find(|at| {
        disk.peek(BLOCKS_FILE, *at, &mut block);
        block == bytes
    })
}

#[test]
fn a_damaged_header_or_index_costs_what_it_is_of_and_nothing_else() {
    run(async {
        let (disk, runs) = (disk(4), some_runs());
        let (host, _) = Host::start(&disk).await;
        host.fill(&runs).await;
        let whole = content(&runs[0]);
        let at = find(&disk, &whole[..BLOCK]).expect("in the file");
        disk.rot(BLOCKS_FILE, at - BLOCK as u64 + 2100);
        disk.crash_process();
        let host = Host::start_known(&disk).await;
        assert_eq!(host.count(&runs).await, runs.len() - 1);
        assert!(!host.has(runs[0], None).await);
        host.close().await;
        // The index lies behind the bands. One flipped bit, and the headers are read.
        let file = disk.directory().open(BLOCKS_FILE, weir_disk::OpenMode::Existing).await.unwrap();
        let mut magic = [0; 8];
        let blocks = file.len().await.unwrap() / BLOCK as u64;
        let index = (0..blocks).map(|block| block * BLOCK as u64).find(|at| {
            disk.peek(BLOCKS_FILE, *at, &mut magic);
            magic == *b"WEIR-CIX"
        });
        disk.rot(BLOCKS_FILE, index.expect("saved") + 1000);
        drop(file);
        let (host, found) = Host::start(&disk).await;
        assert!(matches!(&found, Found::Unknown(why) if why.contains("its index")), "{found:?}");
        host.thread.recover().await;
        assert_eq!(host.count(&runs).await, runs.len() - 1);
    });
}

#[test]
fn a_file_that_is_of_no_use_is_begun_anew() {
    run(async {
        let (disk, runs) = (disk(5), some_runs());
        let begin = async |bytes: u64| {
            let (host, found) = Host::try_start(&disk, bytes).await.expect("opens");
            let why = match found {
                Found::Nothing(why) => why,
                Found::New => "new".to_owned(),
                _ => panic!("{found:?} of {bytes}"),
            };
            assert_eq!(host.count(&runs).await, 0);
            host.fill(&runs).await;
            assert_eq!(host.count(&runs).await, runs.len());
            host.close().await;
            why
        };
        assert!(begin(CACHE_BYTES).await.contains("new"));
        assert!(begin(2 * CACHE_BYTES).await.contains("another size"));
        // Both copies of the superblock.
        disk.rot(BLOCKS_FILE, 100);
        disk.rot(BLOCKS_FILE, 4096 + 100);
        assert!(begin(2 * CACHE_BYTES).await.contains("checksum"));
        // Cut off, as by a copy that stopped.
        disk.directory().remove(BLOCKS_FILE).await.unwrap();
        let file = disk.directory().open(BLOCKS_FILE, weir_disk::OpenMode::CreateNew).await;
        drop(file);
        assert!(begin(CACHE_BYTES).await.contains("too short"));
        let file = disk.directory().open(BLOCKS_FILE, weir_disk::OpenMode::Existing).await;
        let len = file.expect("opens").len().await.expect("known");
        cut(&disk, len - 4096).await;
        assert!(begin(CACHE_BYTES).await.contains("shorter than it says"));
        // One copy of the superblock is enough.
        disk.rot(BLOCKS_FILE, 100);
        let (_host, found) = Host::start(&disk).await;
        assert!(!matches!(found, Found::Nothing(_) | Found::New), "{found:?}");
        let small = Host::try_start(&SimDisk::new(1, SimDiskOptions::default()), 1 << 20).await;
        assert!(matches!(small, Err(CacheError::TooSmall { .. })));
    });
}

#[test]
fn the_length_of_a_file_is_a_size_that_keeps_it() {
    run(async {
        for bytes in [9 << 20, (9 << 20) + 4096, 24 << 20, 25_000_001, 100 << 20] {
            let disk = disk(bytes);
            let (host, _) = Host::try_start(&disk, bytes).await.expect("opens");
            host.close().await;
            let file = disk.directory().open(BLOCKS_FILE, weir_disk::OpenMode::Existing).await;
            let len = file.expect("opens").len().await.expect("known");
            assert!(len <= bytes, "{len} of {bytes}");
            let (_host, found) = Host::try_start(&disk, len).await.expect("opens");
            assert_eq!(found, Found::Index, "{len} of {bytes}");
        }
    });
}

/// The file as a copy has it that ended too early.
async fn cut(disk: &SimDisk, len: u64) {
    let mut bytes = vec![0; usize::try_from(len).expect("small")];
    disk.peek(BLOCKS_FILE, 0, &mut bytes);
    disk.directory().remove(BLOCKS_FILE).await.expect("removed");
    let file = disk.directory().open(BLOCKS_FILE, weir_disk::OpenMode::CreateNew).await;
    let (_, written) = file.expect("made").write_at(vec![SharedBuf::copy_of(&bytes)], 0).await;
    written.expect("written");
}

#[test]
fn two_processes_cannot_have_one_file() {
    run(async {
        let disk = disk(6);
        let (host, _) = Host::start(&disk).await;
        let refused = Host::try_start(&disk, CACHE_BYTES).await.err().expect("refused");
        assert!(matches!(refused, CacheError::Disk(weir_disk::DiskError::Locked { .. })));
        host.close().await;
        Host::start(&disk).await;
    });
}

#[test]
fn a_disk_that_fails_is_left_out() {
    run(async {
        let (disk, runs) = (disk(7), some_runs());
        let (host, _) = Host::start(&disk).await;
        host.fill(&runs[..30]).await;
        disk.set_read_only(true);
        host.fill(&runs[30..]).await;
        let why = host.cache.status().left_out.expect("left out");
        assert!(why.contains("write"), "{why}");
        assert_eq!(host.count(&runs).await, 0);
        disk.set_read_only(false);
        disk.crash_process();
        let host = Host::start_known(&disk).await;
        assert_eq!(host.count(&runs[..30]).await, 30, "it was whole before");
        disk.change_options(|options| options.read_errors_per_million = 1_000_000);
        assert_eq!(host.count(&runs[..10]).await, 0);
        disk.change_options(|options| options.read_errors_per_million = 0);
        assert_eq!(
            host.count(&runs[..20]).await,
            10,
            "what failed is dropped, the others are there"
        );
        disk.change_options(|options| options.read_errors_per_million = 1_000_000);
        assert_eq!(host.count(&runs[10..]).await, 0);
        assert!(host.cache.status().left_out.is_some());
        assert_eq!(host.cache.status().counts.failed_reads, 10 + 16, "and nothing more is tried");
    });
}

#[test]
fn runs_that_one_read_does_not_get_are_dropped_all_of_them() {
    run(async {
        let (disk, runs) = (disk(12), [0, 1, 2, 3].map(|run| address(1, run)));
        let (host, _) = Host::start(&disk).await;
        host.fill(&runs).await;
        disk.change_options(|options| options.read_errors_per_million = 1_000_000);
        assert_eq!(host.has_runs(runs[0], 4).await, [false; 4]);
        disk.change_options(|options| options.read_errors_per_million = 0);
        assert_eq!(host.has_runs(runs[0], 4).await, [false; 4], "none of them is tried again");
        host.fill(&runs).await;
        assert_eq!(host.has_runs(runs[0], 4).await, [true; 4], "but filled again");
        assert_eq!(host.cache.status().counts.failed_reads, 1);
    });
}

/// A band takes the place of one that is being read, and has to give it to the next one before it is written.
#[test]
fn runs_that_wait_for_a_place_that_goes_to_another_band_are_given_up() {
    run(async {
        let disk = disk(13);
        let (host, _) = Host::start(&disk).await;
        // All are of one owner, who has one place.
        host.cache.limit_share(Owner([1; 16]), Some(1));
        let of_band = |band: u64| [8 * band, 8 * band + 1].map(|run| address(1, run));
        let latency = |time| {
            disk.change_options(|options| (options.latency_min, options.latency_max) = (time, time))
        };
        host.fill(&of_band(0)).await;
        latency(Duration::from_millis(900));
        let reading = host.has_runs(address(1, 0), 2);
        let taking = async {
            tokio::task::yield_now().await;
            latency(Duration::from_millis(1));
            for band in [1, 2] {
                of_band(band).iter().for_each(|run| host.offer(*run));
                tokio::time::sleep(Duration::from_millis(100)).await;
            }
            assert_eq!(host.cache.status().counts.fills, 2, "nobody writes under the read");
        };
        let (read, ()) = futures_util::join!(reading, taking);
        assert_eq!(read, [true; 2], "what it began with is there to its end");
        host.rest().await;
        let counts = [host.count(&of_band(1)).await, host.count(&of_band(2)).await];
        assert_eq!((counts, host.cache.status().counts.damaged), ([0, 2], 0));
        // No place stays in use.
        host.close().await;
    });
}

#[test]
fn a_hung_disk_is_waited_for_a_second() {
    run(async {
        let (disk, one) = (disk(8), address(1, 0));
        let (host, _) = Host::start(&disk).await;
        host.fill(&[one]).await;
        disk.change_options(|options| {
            (options.latency_min, options.latency_max) =
                (Duration::from_secs(100), Duration::from_secs(200));
        });
        let begun = tokio::time::Instant::now();
        assert!(!host.has(one, None).await);
        assert!(begun.elapsed() < Duration::from_millis(1100), "{:?}", begun.elapsed());
        let begun = tokio::time::Instant::now();
        assert!(!host.has(one, None).await);
        assert!(begun.elapsed() < Duration::from_millis(10), "it is left alone for a while");
        // Many that wait together are one stall.
        tokio::time::sleep(Duration::from_secs(2)).await;
        let waiting = (0..40).map(|_| host.has(one, None));
        futures_util::future::join_all(waiting).await;
        assert_eq!(host.cache.status().left_out, None);
    });
}

#[test]
fn sealed_blocks_are_nowhere_in_the_file_in_the_clear() {
    run(async {
        let (disk, one) = (disk(9), address(1, 0));
        let (mut host, _) = Host::start(&disk).await;
        host.key = Some(key());
        host.fill(&[one]).await;
        assert!(host.has(one, None).await && host.has(one, Some(5..=6)).await);
        assert_eq!(find(&disk, &content(&one)[..BLOCK]), None);
        // Without the key, or with another one, nothing of it is served.
        let other = DataKey::draw(|bytes| bytes.fill(6)).block_key(&[b"a volume"]);
        for key in [None, Some(Arc::new(other))] {
            host.key = Some(self::key());
            host.fill(&[one]).await;
            host.key = key;
            assert!(!host.has(one, None).await);
        }
        host.key = Some(self::key());
        host.fill(&[one]).await;
        disk.crash_process();
        let mut host = Host::start_known(&disk).await;
        host.key = Some(key());
        assert!(host.has(one, None).await, "and is opened after a crash");
    });
}

#[test]
fn what_is_asked_for_stays_where_what_comes_in_bulk_goes() {
    run(async {
        let (host, _) = Host::start(&disk(10)).await;
        let bands = host.cache.status().capacity_bytes / (u64::from(BAND_RUNS) * RUN_BYTES as u64);
        let bands_of = |device, count| (0..count).map(move |band| address(device, 4 * band));
        let (used, asked): (Vec<_>, Vec<_>) =
            (bands_of(1, bands).collect(), bands_of(2, 20).collect());
        host.fill(&used).await;
        for _ in 0..4 {
            assert_eq!(host.count(&used).await, used.len());
        }
        for address in &asked {
            assert_eq!(host.thread.keep(address), 0);
            host.thread.put(*address, Pieces::from_iter([content(address)]), None).await;
        }
        assert_eq!(host.cache.status().counts.misses, 0, "nobody looked in vain");
        for address in &asked {
            let blocks = content(address).len().div_ceil(BLOCK);
            assert_eq!(host.thread.keep(address) as usize, blocks);
        }
        // Others are used meanwhile, and these are not.
        assert!(host.count(&used).await > 0);
        host.fill(&bands_of(3, 2 * bands).collect::<Vec<_>>()).await;
        assert_eq!(host.count(&asked).await, asked.len());
        assert!(host.count(&used).await > used.len() / 2, "they took the place of some");
    });
}

#[test]
fn a_run_that_was_asked_for_comes_whoever_goes_away() {
    run(async {
        let (host, _) = Host::start(&disk(11)).await;
        let one = address(1, 0);
        let put = host.thread.put(one, Pieces::from_iter([content(&one)]), None);
        // Once it has leave the write is under way.
        assert!(tokio::time::timeout(Duration::from_micros(1), put).await.is_err());
        host.rest().await;
        assert!(host.has(one, None).await);
        host.close().await;
    });
}

#[derive(Default)]
struct Met {
    hits: u64,
    misses: u64,
    evictions: u64,
    damaged: u64,
    indexes: u64,
    scans: u64,
}

/// A life after the other on one disk, each ended in its own way.
async fn lives(seed: u64, met: &mut Met) {
    let mut state = seed;
    let mut below = move |end: u64| {
        state =
            state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (state >> 33) % end
    };
    let disk = disk(seed);
    let devices = 1 + below(4);
    let runs = 100 + below(300);
    let mut sealed = below(3) == 0;
    disk.change_options(|options| options.late_write_one_in = 5);
    for _ in 0..5 {
        let (mut host, found) = Host::start(&disk).await;
        host.key = sealed.then(key);
        match found {
            Found::Index => met.indexes += 1,
            Found::Unknown(_) => met.scans += 1,
            Found::New | Found::Nothing(_) => {}
        }
        let scanning = Rc::clone(&host.thread);
        let scan = tokio::task::spawn_local(async move { scanning.recover().await });
        if below(2) == 0 {
            scan.await.expect("it ends");
        }
        let host = Rc::new(host);
        let mut reads = tokio::task::JoinSet::new();
        for _ in 0..100 + below(200) {
            let device = u8::try_from(below(devices)).expect("few");
            let address = address(device, below(runs));
            match below(20) {
                0 => disk.rot(BLOCKS_FILE, below(CACHE_BYTES)),
                1 => tokio::time::sleep(Duration::from_millis(below(20))).await,
                2..=10 => host.offer(address),
                _ => {
                    let host = Rc::clone(&host);
                    let first = u32::try_from(below(3)).expect("small");
                    let kind = below(6);
                    reads.spawn_local(async move { host.looks(address, first, kind).await });
                }
            }
        }
        let dies = below(4);
        if dies > 0 {
            while let Some(read) = reads.join_next().await {
                match read.expect("it ends") {
                    true => met.hits += 1,
                    false => met.misses += 1,
                }
            }
        }
        let counts = host.cache.status().counts;
        (met.evictions, met.damaged) =
            (met.evictions + counts.evictions, met.damaged + counts.damaged);
        match dies {
            0 | 1 => disk.crash_process(),
            2 => disk.crash_power(),
            _ => {
                host.rest().await;
                Rc::into_inner(host).expect("all reads ended").close().await;
                continue;
            }
        }
        reads.abort_all();
        // A volume of the same name with another key, or none: nothing of the other is served to it.
        if below(5) == 0 {
            sealed = !sealed;
        }
    }
}

#[test]
fn nothing_else_is_ever_served_than_was_given() {
    let (first, count) = weir_cache_seeds();
    let mut met = Met::default();
    for seed in first..first + count {
        run(async { lives(seed, &mut met).await });
    }
    if count >= 150 {
        let Met { hits, misses, evictions, damaged, indexes, scans } = met;
        println!("{hits} hits, {misses} misses, {evictions} evictions, {damaged} damaged");
        println!("{indexes} by index, {scans} by headers");
        for (met, least) in [
            (hits, 2000),
            (misses, 500),
            (evictions, 500),
            (damaged, 20),
            (indexes, 20),
            (scans, 50),
        ] {
            assert!(met >= least, "{met} of {least}");
        }
    }
}

/// The seeds to try: 60, or those that the surroundings name as `FIRST+COUNT`.
fn weir_cache_seeds() -> (u64, u64) {
    let Ok(named) = std::env::var("WEIR_CACHE_SEEDS") else { return (1, 150) };
    let (first, count) = named.split_once('+').expect("FIRST+COUNT");
    (first.parse().expect("a number"), count.parse().expect("a number"))
}
