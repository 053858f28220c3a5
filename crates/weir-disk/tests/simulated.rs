//! The simulated disk keeps what a disk must keep, and loses what a disk may lose.
//!
//! The oracle knows for every sector each version that was ever written, when its write began and
//! ended, and which versions a sync covers. A version may be on the disk unless a covered one began
//! after it had ended.
#![allow(clippy::unwrap_used, missing_docs, reason = "tests")]

mod common;

use std::cell::RefCell;
use std::collections::BTreeSet;
use std::rc::Rc;
use std::time::Duration;

use common::block_on_paused;
use proptest::prelude::*;
use tokio::time::{Instant, sleep, timeout};
use weir_device::{AlignedBuf, ErrorKind, SharedBuf};
use weir_disk::sim::{SimCounters, SimDisk, SimDiskOptions};
use weir_disk::{Directory, File, OpenMode};

const SECTOR: usize = 512;
const SECTORS: usize = 48;

/// The test's own random numbers.
#[derive(Clone)]
struct Dice(u64);

impl Dice {
    fn roll(&mut self, bound: u64) -> u64 {
        self.0 =
            self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) % bound
    }

    fn index(&mut self, bound: usize) -> usize {
        usize::try_from(self.roll(bound as u64)).unwrap()
    }
}

/// One write, as the process saw it.
#[derive(Clone, Copy, Debug)]
struct Version {
    value: u64,
    began: u64,
    ended: Option<u64>,
    covered: bool,
    /// A failed sync gave it up: a later success says nothing about it.
    given_up: bool,
}

#[derive(Default)]
struct Oracle {
    sectors: Vec<Vec<Version>>,
    next_value: u64,
    /// Orders events that fall on the same instant.
    events: u64,
}

impl Oracle {
    fn new() -> Self {
        let initial =
            Version { value: 0, began: 0, ended: Some(0), covered: true, given_up: false };
        Self { sectors: vec![vec![initial]; SECTORS], next_value: 1, events: 1 }
    }

    fn event(&mut self) -> u64 {
        self.events += 1;
        self.events
    }

    fn begin(&mut self, first: usize, count: usize) -> (u64, Vec<u8>) {
        let value = self.next_value;
        self.next_value += 1;
        let began = self.event();
        for sector in &mut self.sectors[first..first + count] {
            sector.push(Version { value, began, ended: None, covered: false, given_up: false });
        }
        let bytes = value.to_le_bytes().repeat(count * SECTOR / 8);
        (value, bytes)
    }

    fn versions(&mut self) -> impl Iterator<Item = &mut Version> {
        self.sectors.iter_mut().flatten()
    }

    fn end(&mut self, value: u64) {
        let ended = self.event();
        for version in self.versions().filter(|version| version.value == value) {
            version.ended = Some(ended);
        }
    }

    fn synced(&mut self, started: u64, succeeded: bool) {
        for version in self.versions() {
            if !succeeded {
                // Whatever had reached the disk by then may be given up, also if its end was not
                // yet known.
                version.given_up |= !version.covered;
            } else if version.ended.is_some_and(|ended| ended < started) {
                version.covered |= !version.given_up;
            }
        }
    }

    fn allowed(&self, sector: usize) -> BTreeSet<u64> {
        let versions = &self.sectors[sector];
        let is_overwritten = |old: &Version| {
            old.ended
                .is_some_and(|ended| versions.iter().any(|new| new.covered && new.began > ended))
        };
        versions.iter().filter(|version| !is_overwritten(version)).map(|v| v.value).collect()
    }

    /// What must be seen while the process lives and no sync failed: the newest version that ended,
    /// or one beside it.
    fn newest(&self, sector: usize) -> BTreeSet<u64> {
        let versions = &self.sectors[sector];
        let is_overwritten = |old: &Version| {
            let ended = old.ended;
            ended.is_some_and(|end| {
                versions.iter().any(|new| new.ended.is_some() && new.began > end)
            })
        };
        versions.iter().filter(|version| !is_overwritten(version)).map(|v| v.value).collect()
    }

    /// Checks what was read; says per sector how many newer versions than the one found there were.
    fn check(&self, bytes: &[u8], allowed: impl Fn(usize) -> BTreeSet<u64>, context: &str) {
        for (sector, found) in bytes.chunks(SECTOR).enumerate() {
            let value = u64::from_le_bytes(found[..8].try_into().unwrap());
            assert_eq!(found, value.to_le_bytes().repeat(SECTOR / 8), "a sector is never torn");
            let allowed = allowed(sector);
            assert!(
                allowed.contains(&value),
                "{context}: sector {sector} has {value}, allowed {allowed:?}; {:?}",
                self.sectors[sector]
            );
        }
    }

    /// After a loss of power, what is found is durable.
    fn restart(&mut self, bytes: &[u8], durable: bool) {
        let now = self.event();
        for (versions, found) in self.sectors.iter_mut().zip(bytes.chunks(SECTOR)) {
            let value = u64::from_le_bytes(found[..8].try_into().unwrap());
            if durable {
                let ended = Some(now);
                *versions =
                    vec![Version { value, began: now, ended, covered: true, given_up: false }];
            } else {
                // The process died, the disk did not: what is there may be lost yet, to anything
                // older.
                for version in versions.iter_mut() {
                    version.ended = version.ended.or(Some(now - 1));
                }
                let (ended, covered) = (Some(now), false);
                versions.push(Version { value, began: now, ended, covered, given_up: false });
            }
        }
    }
}

async fn read_all(file: &File) -> Vec<u8> {
    let (buf, result) = file.read_at(AlignedBuf::zeroed(SECTORS * SECTOR), 0).await;
    result.unwrap();
    buf.to_vec()
}

async fn worker(file: File, oracle: Rc<RefCell<Oracle>>, mut dice: Dice) {
    loop {
        match dice.roll(10) {
            0..6 => {
                let first = dice.index(SECTORS);
                let count = 1 + dice.index((SECTORS - first).min(8));
                let (value, bytes) = oracle.borrow_mut().begin(first, count);
                let bytes = SharedBuf::copy_of(&bytes);
                let middle = dice.index(count) * SECTOR;
                let pieces =
                    vec![bytes.slice(0, middle), bytes.slice(middle, bytes.len() - middle)];
                let write = file.write_at(pieces, (first * SECTOR) as u64);
                if dice.roll(8) == 0 {
                    // The future goes away early; the write does not.
                    let _ = timeout(Duration::from_millis(1), write).await;
                } else {
                    write.await.1.unwrap();
                    oracle.borrow_mut().end(value);
                }
            }
            6..8 => {
                let started = oracle.borrow_mut().event();
                let result = file.sync().await;
                oracle.borrow_mut().synced(started, result.is_ok());
            }
            _ => sleep(Duration::from_millis(dice.roll(8))).await,
        }
    }
}

/// A life of one disk with several crashes.
async fn life(seed: u64, failing_syncs: bool) -> (SimCounters, Vec<u8>) {
    let options = SimDiskOptions {
        sync_errors_per_million: if failing_syncs { 200_000 } else { 0 },
        ..SimDiskOptions::default()
    };
    let disk = SimDisk::new(seed, options);
    let mut dice = Dice(seed);
    let file = disk.directory().open("data", OpenMode::CreateNew).await.unwrap();
    loop {
        if file.extend_zeroed(0, (SECTORS * SECTOR) as u64).await.is_ok() {
            break;
        }
    }
    drop(file);
    let oracle = Rc::new(RefCell::new(Oracle::new()));
    let mut bytes = Vec::new();
    for round in 0..6 {
        let file = disk.directory().open("data", OpenMode::Existing).await.unwrap();
        bytes = read_all(&file).await;
        let context = format!("seed {seed}, round {round}");
        oracle.borrow().check(&bytes, |sector| oracle.borrow().allowed(sector), &context);
        let tasks: Vec<_> = (0..3)
            .map(|_| {
                let dice = Dice(dice.roll(u64::MAX));
                tokio::task::spawn_local(worker(file.clone(), Rc::clone(&oracle), dice))
            })
            .collect();
        sleep(Duration::from_millis(dice.roll(80))).await;
        if !failing_syncs {
            let before = oracle.borrow().events;
            let seen = read_all(&file).await;
            // Writes that ended while the read was under way make the check too strict.
            if oracle.borrow().events == before {
                let context = format!("seed {seed}, round {round}, alive");
                oracle.borrow().check(&seen, |sector| oracle.borrow().newest(sector), &context);
            }
        }
        let power = dice.roll(2) == 0;
        if power {
            disk.crash_power()
        } else {
            disk.crash_process()
        }
        for task in tasks {
            task.abort();
        }
        let file = disk.directory().open("data", OpenMode::Existing).await.unwrap();
        bytes = read_all(&file).await;
        oracle.borrow().check(&bytes, |sector| oracle.borrow().allowed(sector), &context);
        oracle.borrow_mut().restart(&bytes, power);
    }
    (disk.counters(), bytes)
}

fn add(sum: &mut SimCounters, one: SimCounters) {
    sum.writes_kept += one.writes_kept;
    sum.writes_lost += one.writes_lost;
    sum.writes_torn += one.writes_torn;
    sum.in_flight_lost += one.in_flight_lost;
    sum.in_flight_torn += one.in_flight_torn;
    sum.syncs += one.syncs;
    sum.syncs_failed += one.syncs_failed;
}

/// Lives to check; more with `WEIR_DISK_SEEDS`, in a release build.
fn seeds() -> u64 {
    std::env::var("WEIR_DISK_SEEDS").map_or(200, |seeds| seeds.parse().unwrap())
}

#[test]
fn covered_writes_survive_and_the_others_are_kept_lost_and_torn() {
    let mut sum = SimCounters::default();
    for seed in 0..seeds() {
        add(&mut sum, block_on_paused(life(seed, false)).0);
    }
    println!("{sum:?}");
    assert!(sum.syncs > 1000, "{sum:?}");
    assert!(sum.writes_kept > 100, "{sum:?}");
    assert!(sum.writes_lost > 100, "{sum:?}");
    assert!(sum.writes_torn > 100, "{sum:?}");
    assert!(sum.in_flight_lost > 100, "{sum:?}");
    assert!(sum.in_flight_torn > 100, "{sum:?}");
}

#[test]
fn a_sync_after_a_failed_one_does_not_bring_lost_writes_back() {
    let mut sum = SimCounters::default();
    for seed in 1 << 32..(1 << 32) + seeds() {
        add(&mut sum, block_on_paused(life(seed, true)).0);
    }
    assert!(sum.syncs_failed > 100, "{sum:?}");
    assert!(sum.syncs > 1000, "{sum:?}");
}

#[test]
fn the_same_seed_gives_the_same_bytes_and_counters() {
    let mut different = BTreeSet::new();
    for seed in 0..20 {
        let first = block_on_paused(life(seed, true));
        let second = block_on_paused(life(seed, true));
        assert_eq!(first.0, second.0);
        assert!(first.1 == second.1);
        different.insert(first.1);
    }
    assert!(different.len() > 10, "other seeds give other bytes");
}

async fn filled(directory: &Directory, name: &str, byte: u8) -> File {
    let file = directory.open(name, OpenMode::CreateNew).await.unwrap();
    file.write_at(vec![SharedBuf::copy_of(&[byte; 4096])], 0).await.1.unwrap();
    file.sync().await.unwrap();
    file
}

fn disk(seed: u64) -> SimDisk {
    SimDisk::new(seed, SimDiskOptions::default())
}

#[test]
fn a_failed_sync_loses_data_in_spite_of_a_later_success_under_some_seeds_only() {
    let (mut lost, mut kept) = (0, 0);
    for seed in 0..100 {
        block_on_paused(async {
            let disk = disk(seed);
            let file = filled(&disk.directory(), "data", 1).await;
            file.write_at(vec![SharedBuf::copy_of(&[2; 4096])], 0).await.1.unwrap();
            disk.fail_next_syncs(1);
            let error = file.sync().await.unwrap_err();
            assert_eq!(error.kind(), ErrorKind::Unavailable, "{error}");
            file.sync().await.unwrap();
            disk.crash_power();
            let file = disk.directory().open("data", OpenMode::Existing).await.unwrap();
            let (buf, result) = file.read_at(AlignedBuf::zeroed(4096), 0).await;
            result.unwrap();
            if buf.contains(&1) { lost += 1 } else { kept += 1 }
        });
    }
    assert!(lost > 10 && kept > 10, "lost {lost}, kept {kept}");
}

#[test]
fn a_write_in_flight_beside_a_sync_is_not_covered() {
    let mut lost = 0;
    for seed in 0..200 {
        block_on_paused(async {
            let disk = disk(seed);
            let file = filled(&disk.directory(), "data", 1).await;
            disk.change_options(|options| options.latency_max = Duration::from_millis(50));
            let write = async {
                file.write_at(vec![SharedBuf::copy_of(&[2; 4096])], 0).await.1.unwrap();
                Instant::now()
            };
            let sync = async {
                file.sync().await.unwrap();
                Instant::now()
            };
            let (written, synced) = futures_util::join!(write, sync);
            disk.crash_power();
            let file = disk.directory().open("data", OpenMode::Existing).await.unwrap();
            let (buf, _) = file.read_at(AlignedBuf::zeroed(4096), 0).await;
            lost += usize::from(written < synced && buf.contains(&1));
        });
    }
    assert!(lost > 10, "{lost}");
}

#[test]
fn an_unsynced_extension_may_shorten_the_file_again_and_never_shows_garbage() {
    let mut lens = BTreeSet::new();
    for seed in 0..200 {
        block_on_paused(async {
            let disk = disk(seed);
            let file = filled(&disk.directory(), "data", 1).await;
            file.write_at(vec![SharedBuf::copy_of(&[2; 8192])], 4096).await.1.unwrap();
            disk.crash_power();
            let file = disk.directory().open("data", OpenMode::Existing).await.unwrap();
            let len = file.len().await.unwrap();
            assert!((4096..=12288).contains(&len));
            lens.insert(len);
            let (buf, result) =
                file.read_at(AlignedBuf::zeroed(usize::try_from(len).unwrap()), 0).await;
            result.unwrap();
            assert!(buf[..4096].iter().all(|byte| *byte == 1));
            assert!(buf[4096..].iter().all(|byte| *byte == 0 || *byte == 2));
            file.extend_zeroed(len, 16384).await.unwrap();
            let (buf, _) = file.read_at(AlignedBuf::zeroed(16384), 0).await;
            assert!(buf[usize::try_from(len).unwrap()..].iter().all(|byte| *byte == 0));
        });
    }
    assert!(lens.contains(&4096) && lens.contains(&12288) && lens.len() > 5, "{lens:?}");
}

#[test]
fn handles_of_a_dead_process_never_answer_and_locks_are_free() {
    block_on_paused(async {
        let disk = disk(1);
        let old = disk.directory();
        let file = filled(&old, "data", 1).await;
        let guard = old.lock("lock").await.unwrap();
        let boot_id = disk.boot_id();
        disk.crash_process();
        assert_eq!(disk.boot_id(), boot_id);
        for _ in 0..3 {
            let minute = Duration::from_secs(60);
            assert!(timeout(minute, file.sync()).await.is_err());
            assert!(timeout(minute, file.read_at(AlignedBuf::zeroed(512), 0)).await.is_err());
            assert!(timeout(minute, old.list()).await.is_err());
        }
        let new = disk.directory();
        let held = new.lock("lock").await.unwrap();
        drop(guard);
        assert_eq!(new.lock("lock").await.unwrap_err().kind(), ErrorKind::Busy);
        drop(held);
        disk.crash_power();
        assert_ne!(disk.boot_id(), boot_id);
    });
}

#[test]
fn a_full_disk_takes_what_fits_and_still_takes_overwrites() {
    block_on_paused(async {
        let disk = disk(1);
        let file = filled(&disk.directory(), "data", 1).await;
        disk.set_capacity(Some(6000));
        let write = file.write_at(vec![SharedBuf::copy_of(&[2; 4096])], 4096).await;
        assert_eq!(write.1.unwrap_err().kind(), ErrorKind::NoSpace);
        assert_eq!(file.len().await.unwrap(), 4096 + 1536);
        let error = file.extend_zeroed(4096, 1 << 20).await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::NoSpace);
        file.write_at(vec![SharedBuf::copy_of(&[3; 4096])], 0).await.1.unwrap();
        disk.set_capacity(None);
        file.extend_zeroed(4096, 1 << 20).await.unwrap();
    });
}

#[test]
fn bad_ranges_rot_and_read_only_disks_show() {
    block_on_paused(async {
        let disk = disk(1);
        let sub = disk.directory().subdirectory("v").await.unwrap();
        let file = filled(&sub, "data", 1).await;
        disk.rot("v/data", 700);
        disk.rot("v/data", 1 << 30);
        let (buf, _) = file.read_at(AlignedBuf::zeroed(4096), 0).await;
        let rotten: Vec<usize> = (0..4096).filter(|at| buf[*at] != 1).collect();
        assert_eq!(rotten, [700]);
        assert_eq!(disk.counters().bytes_rotted, 1);
        disk.inject_eio("v/data", 1000..1001);
        let read = |offset| file.read_at(AlignedBuf::zeroed(512), offset);
        assert_eq!(read(512).await.1.unwrap_err().kind(), ErrorKind::Unavailable);
        read(1024).await.1.unwrap();
        let write = file.write_at(vec![SharedBuf::copy_of(&[2; 4096])], 0).await;
        assert_eq!(write.1.unwrap_err().kind(), ErrorKind::Unavailable);
        disk.clear_eio();
        read(512).await.1.unwrap();
        disk.set_read_only(true);
        let write = file.write_at(vec![SharedBuf::copy_of(&[2; 4096])], 0).await;
        assert_eq!(write.1.unwrap_err().kind(), ErrorKind::ReadOnly);
        let error = sub.open("new", OpenMode::CreateNew).await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::ReadOnly);
    });
}

#[test]
fn a_lost_disk_is_empty() {
    block_on_paused(async {
        let disk = disk(1);
        filled(&disk.directory(), "data", 1).await;
        let boot_id = disk.boot_id();
        disk.lose_disk();
        assert_eq!(disk.directory().list().await.unwrap(), Vec::<String>::new());
        assert_ne!(disk.boot_id(), boot_id);
        disk.directory().open("data", OpenMode::CreateNew).await.unwrap();
    });
}

#[test]
fn creating_and_removing_are_durable_and_in_flight_ones_may_go_either_way() {
    let (mut there, mut gone) = (0, 0);
    for seed in 0..60 {
        block_on_paused(async {
            let disk = disk(seed);
            filled(&disk.directory(), "kept", 1).await;
            filled(&disk.directory(), "removed", 1).await;
            disk.directory().remove("removed").await.unwrap();
            let directory = disk.directory();
            tokio::task::spawn_local(async move {
                let _ = directory.open("unsure", OpenMode::CreateNew).await;
            });
            tokio::task::yield_now().await;
            disk.crash_power();
            let names = disk.directory().list().await.unwrap();
            if names == ["kept", "unsure"] {
                there += 1
            } else {
                gone += 1
            }
            assert!(names == ["kept"] || names == ["kept", "unsure"], "{names:?}");
        });
    }
    assert!(there > 5 && gone > 5, "there {there}, gone {gone}");
}

#[test]
fn a_disk_without_latency_needs_no_clock() {
    let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
    runtime.block_on(async {
        let disk = disk(1);
        disk.change_options(|options| {
            options.latency_min = Duration::ZERO;
            options.latency_max = Duration::ZERO;
        });
        let file = filled(&disk.directory(), "data", 1).await;
        disk.crash_power();
        drop(file);
        let file = disk.directory().open("data", OpenMode::Existing).await.unwrap();
        assert_eq!(file.len().await.unwrap(), 4096);
    });
}

#[test]
fn writes_overtake_each_other() {
    let mut overtaken = 0;
    for seed in 0..50 {
        block_on_paused(async {
            let file = filled(&disk(seed).directory(), "data", 1).await;
            let ended = |byte: u8| {
                let file = file.clone();
                async move {
                    file.write_at(vec![SharedBuf::copy_of(&[byte; 512])], 0).await.1.unwrap();
                    Instant::now()
                }
            };
            let (first, second) = futures_util::join!(ended(2), ended(3));
            overtaken += usize::from(second < first);
        });
    }
    assert!(overtaken > 5, "{overtaken}");
}

proptest! {
    #![proptest_config(ProptestConfig {
        failure_persistence: None,
        cases: 64,
        ..ProptestConfig::default()
    })]

    #[test]
    fn any_seed_keeps_covered_writes(seed in any::<u64>(), failing_syncs in any::<bool>()) {
        block_on_paused(life(seed, failing_syncs));
    }
}
