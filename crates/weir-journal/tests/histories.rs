//! Whose journal a file is: writes that outlive their process, openings that are announced, copies, and the upgrade of
//! journals that know none of it.

#![allow(clippy::unwrap_used, reason = "helpers of tests")]

mod common;

use std::cell::RefCell;
use std::rc::Rc;
use std::time::Duration;

use common::*;
use weir_device::{AlignedBuf, ErrorKind, SharedBuf};
use weir_disk::OpenMode;
use weir_disk::sim::{CopyAs, SimDisk, SimDiskOptions};
use weir_journal::format::superblock::{SLOT_OFFSETS, Superblock};
use weir_journal::limits::{ANNOUNCED_MAX, BLOCK_BYTES, DATA_START};
use weir_journal::{
    AcceptLoss, Announced, Epoch, FileMatch, Journal, JournalError, OpeningId, WriteNumber,
};

const SECOND: OpeningId = OpeningId([2; 16]);
const THIRD: OpeningId = OpeningId([3; 16]);

/// A kill leaves every write that is in flight with the disk, for up to ten seconds.
fn late_disk(seed: u64) -> SimDisk {
    let millisecond = Duration::from_millis(1);
    let options = SimDiskOptions {
        latency_min: millisecond,
        latency_max: millisecond,
        slow_one_in: 0,
        late_write_one_in: 1,
        ..SimDiskOptions::default()
    };
    SimDisk::new(seed, options)
}

/// The journal's bytes are in flight when its process is killed. The next process starts at once, writes to the same
/// place of the ring and flushes. Without the lock on the journal's own descriptor, the old write lands over that after
/// the flush was answered; the scan then finds a record of a superseded epoch where the new one was, takes it for the
/// end, and the flushed write is gone without a word.
#[test]
fn a_write_that_outlives_its_process_does_not_destroy_what_was_flushed_after_it() {
    for seed in 0..20 {
        run(async {
            let disk = late_disk(seed);
            let journal = create(&disk, small_config()).await;
            let old = tokio::task::spawn_local({
                let journal = journal.clone();
                async move { write(&journal, 0, 1, 32 << 10).await }
            });
            // The record is with the disk.
            while journal.status().records == 0 {
                tokio::task::yield_now().await;
            }
            disk.crash_process();
            old.abort();
            drop(journal);
            assert!(disk.counters().late_writes > 0, "the story needs its late write");

            let recovered = recover(&disk, small_config()).await;
            let journal = recovered.journal;
            // Whether it landed or not was settled before it was looked for.
            let found = recovered.pieces.len();
            journal.begin_epoch(Epoch(2), SECOND).await.unwrap();
            let ear = listen(&journal);
            write(&journal, 0, 2, 32 << 10).await;
            journal.flush().await.unwrap();
            let placed = ear.pieces.borrow().clone();
            milliseconds(20_000).await;
            disk.change_options(|options| options.late_write_one_in = 0);
            disk.crash_process();
            drop(journal);

            let recovered = recover(&disk, small_config()).await;
            assert_eq!(recovered.pieces.len(), found + placed.len(), "seed {seed}");
            let mut bytes = Vec::new();
            for found in &recovered.pieces[found..] {
                assert!(!found.poisoned, "seed {seed}");
                bytes.extend(read(&recovered.journal, &found.piece).await.unwrap());
            }
            assert_eq!(bytes, pattern(2, 32 << 10), "seed {seed}");
            assert!(disk.counters().lock_waits > 0, "the opener waited");
        });
    }
}

#[test]
fn a_journal_that_is_open_is_not_opened_again() {
    run(async {
        let disk = steady_disk(1);
        let journal = create(&disk, small_config()).await;
        let second = tokio::time::timeout(
            Duration::from_secs(60),
            try_recover(&disk, small_config(), AcceptLoss::No),
        );
        assert!(second.await.is_err(), "it waits as long as the first one lives");
        journal.close().await.unwrap();
        drop(journal);
        recover(&disk, small_config()).await;
    });
}

#[test]
fn what_is_announced_is_kept_until_an_opening_counts() {
    run(async {
        let disk = steady_disk(1);
        let journal = create(&disk, small_config()).await;
        write(&journal, 0, 1, 4096).await;
        journal.flush().await.unwrap();
        assert_eq!(journal.flushed_write(), WriteNumber(1));
        disk.crash_process();

        // Two attempts end before their first acknowledgement, the second by loss of power.
        let recovered = recover(&disk, small_config()).await;
        assert_eq!((recovered.epoch, recovered.opening), (Epoch(1), Some(OPENING)));
        assert_eq!((recovered.announced, recovered.file), (Vec::new(), FileMatch::Same));
        assert_eq!(recovered.last_flushed, WriteNumber(1));
        let low = recovered.journal.announce(SECOND, Epoch(1)).await.unwrap_err();
        assert!(matches!(low, JournalError::EpochNotHigher { .. }), "{low}");
        recovered.journal.announce(SECOND, Epoch(4)).await.unwrap();
        disk.crash_process();
        let recovered = recover(&disk, small_config()).await;
        let second = Announced { opening: SECOND, epoch: Epoch(4) };
        assert_eq!(recovered.announced, [second]);
        recovered.journal.announce(THIRD, Epoch(5)).await.unwrap();
        disk.crash_power();

        let recovered = recover(&disk, small_config()).await;
        assert_eq!((recovered.epoch, recovered.opening), (Epoch(1), Some(OPENING)));
        let third = Announced { opening: THIRD, epoch: Epoch(5) };
        assert_eq!(recovered.announced, [second, third]);
        assert_eq!(recovered.pieces.len(), 1, "what the opening before wrote is there");
        let journal = recovered.journal;
        journal.announce(SECOND, Epoch(6)).await.unwrap();
        let second = Announced { epoch: Epoch(6), ..second };
        assert_eq!(journal.announced(), [second, third], "used again, under a higher epoch");
        journal.begin_epoch(Epoch(6), SECOND).await.unwrap();
        let late = journal.announce(THIRD, Epoch(7)).await.unwrap_err();
        assert!(matches!(late, JournalError::Closed { .. }), "{late}");
        disk.crash_power();
        let recovered = recover(&disk, small_config()).await;
        assert_eq!((recovered.epoch, recovered.opening), (Epoch(6), Some(SECOND)));
        assert_eq!(recovered.announced, []);
    });
}

#[test]
fn an_announcement_leaves_a_clean_end_and_its_records_as_they_are() {
    run(async {
        let disk = steady_disk(1);
        let journal = create(&disk, small_config()).await;
        write(&journal, 0, 1, 4096).await;
        journal.close().await.unwrap();
        drop(journal);
        let recovered = recover(&disk, small_config()).await;
        let report = recovered.report.clone();
        assert!(report.clean);
        recovered.journal.announce(SECOND, Epoch(2)).await.unwrap();
        disk.crash_power();
        let mut again = recover(&disk, small_config()).await.report;
        again.boot_changed = false;
        assert_eq!(again, report);
    });
}

#[test]
fn a_full_list_of_announcements_asks_for_the_newest() {
    run(async {
        let disk = steady_disk(1);
        let journal = create(&disk, small_config()).await;
        drop(journal);
        disk.crash_process();
        let journal = recover(&disk, small_config()).await.journal;
        for number in 1..=ANNOUNCED_MAX {
            let number = u8::try_from(number).unwrap();
            let opening = OpeningId([number; 16]);
            journal.announce(opening, Epoch(1 + u64::from(number))).await.unwrap();
        }
        let full = journal.announce(OpeningId([99; 16]), Epoch(99)).await.unwrap_err();
        assert!(matches!(full, JournalError::AnnouncementsFull { count: 32, .. }), "{full}");
        let newest = *journal.announced().last().unwrap();
        journal.announce(newest.opening, Epoch(99)).await.unwrap();
        disk.crash_power();
        let announced = recover(&disk, small_config()).await.announced;
        assert_eq!(announced.len(), ANNOUNCED_MAX);
        assert_eq!(announced.last(), Some(&Announced { epoch: Epoch(99), ..newest }));
    });
}

#[test]
fn a_copy_is_another_file_and_a_move_is_the_same() {
    run(async {
        let disk = steady_disk(1);
        let journal = create(&disk, small_config()).await;
        write(&journal, 0, 1, 4096).await;
        journal.close().await.unwrap();
        drop(journal);
        disk.crash_process();
        let copy = disk.copy_directory("");
        let other = steady_disk(2);
        other.put_copy("", &copy, CopyAs::NewFiles);
        let recovered = recover(&other, small_config()).await;
        assert_eq!((recovered.file, recovered.pieces.len()), (FileMatch::Other, 1));
        // An announcement is no opening: the copy is one until it has begun an epoch.
        recovered.journal.announce(SECOND, Epoch(2)).await.unwrap();
        drop(recovered);
        let recovered = recover(&other, small_config()).await;
        assert_eq!(recovered.file, FileMatch::Other);
        recovered.journal.begin_epoch(Epoch(2), SECOND).await.unwrap();
        other.crash_process();
        assert_eq!(recover(&other, small_config()).await.file, FileMatch::Same);
        // What a snapshot of the machine brings back is the file itself.
        disk.put_copy("", &copy, CopyAs::SameFiles);
        assert_eq!(recover(&disk, small_config()).await.file, FileMatch::Same);
    });
}

// --- the upgrade --------------------------------------------------------------------------------------------------

/// Both copies of the superblock.
async fn superblocks(disk: &SimDisk) -> [Result<Superblock, weir_journal::DecodeError>; 2] {
    let file = disk.directory().open(NAME, OpenMode::Existing).await.unwrap();
    let mut copies = Vec::new();
    for offset in SLOT_OFFSETS {
        let (bytes, result) = file.read_at(AlignedBuf::zeroed(4096), offset).await;
        result.unwrap();
        copies.push(Superblock::decode(&bytes));
    }
    copies.try_into().unwrap()
}

async fn put_superblock(disk: &SimDisk, slot: usize, bytes: &[u8]) {
    let file = disk.directory().open(NAME, OpenMode::Existing).await.unwrap();
    file.write_at(vec![SharedBuf::copy_of(bytes)], SLOT_OFFSETS[slot]).await.1.unwrap();
    file.sync().await.unwrap();
}

/// A journal as a program before version 3 left it, with two writes in it.
async fn old_journal(disk: &SimDisk) -> Superblock {
    let journal = create(disk, small_config()).await;
    write(&journal, 0, 1, 4096).await;
    write(&journal, 8192, 2, 9000).await;
    journal.flush().await.unwrap();
    disk.crash_process();
    drop(journal);
    let [superblock, _] = superblocks(disk).await;
    let old = Superblock {
        opening: None,
        announced: Vec::new(),
        manifest: None,
        file: None,
        ..superblock.unwrap()
    };
    for slot in [0, 1] {
        put_superblock(disk, slot, &old.encode_before_openings()).await;
    }
    old
}

/// What the programs up to build 90f55db take from two copies: `Superblock::decode` believed a version above 2 before
/// the checksum, and `read_superblock` took the one good copy beside one that was not.
async fn read_as_before(disk: &SimDisk) -> Result<Superblock, &'static str> {
    let file = disk.directory().open(NAME, OpenMode::Existing).await.unwrap();
    let mut copies = Vec::new();
    for offset in SLOT_OFFSETS {
        let (bytes, result) = file.read_at(AlignedBuf::zeroed(4096), offset).await;
        result.unwrap();
        let version = u32::from_le_bytes(bytes[8..12].try_into().unwrap());
        copies.push(match Superblock::decode(&bytes) {
            _ if version > 2 => Err("newer version"),
            Ok(superblock) => Ok(superblock),
            Err(_) => Err("damaged"),
        });
    }
    let second = copies.pop().unwrap();
    let first = copies.pop().unwrap();
    match (first, second) {
        (Ok(first), Ok(second)) if first.generation >= second.generation => Ok(first),
        (Ok(_), Ok(second)) => Ok(second),
        (Ok(one), Err(_)) | (Err(_), Ok(one)) => Ok(one),
        (Err("newer version"), _) | (_, Err("newer version")) => Err("newer version"),
        (Err(first), Err(_)) => Err(first),
    }
}

#[test]
fn an_old_journal_is_replayed_and_named_at_its_first_opening() {
    for sealed in [false, true] {
        seal_journals(sealed);
        run(async {
            let disk = steady_disk(1);
            old_journal(&disk).await;
            let recovered = recover(&disk, small_config()).await;
            assert_eq!((recovered.epoch, recovered.opening), (Epoch(1), None));
            assert_eq!(recovered.file, FileMatch::Unknown);
            assert_eq!(recovered.last_flushed, recovered.report.last_write);
            let pieces = recovered.pieces.clone();
            assert!(pieces.len() >= 3);
            let first = read(&recovered.journal, &pieces[0].piece).await.unwrap();
            assert_eq!(first, pattern(1, 4096));
            // A look changes nothing; an opening for writing does.
            assert!(read_as_before(&disk).await.is_ok());
            recovered.journal.announce(SECOND, Epoch(2)).await.unwrap();
            assert_eq!(read_as_before(&disk).await.unwrap_err(), "newer version");
            recovered.journal.begin_epoch(Epoch(2), SECOND).await.unwrap();
            write(&recovered.journal, 0, 3, 4096).await;
            recovered.journal.flush().await.unwrap();
            disk.crash_power();
            let recovered = recover(&disk, small_config()).await;
            assert_eq!((recovered.epoch, recovered.opening), (Epoch(2), Some(SECOND)));
            assert_eq!(recovered.file, FileMatch::Same);
            assert_eq!(recovered.pieces[..pieces.len()], pieces[..]);
            assert_eq!(recovered.pieces.len(), pieces.len() + 1);
        });
    }
    seal_journals(false);
}

/// The process dies at every moment of the first announcement: the program of before either goes on with its own copy,
/// which loses an announcement that nobody relies on yet, or refuses the file; this program goes on in every case.
#[test]
fn an_upgrade_that_stops_anywhere_is_the_old_journal_or_the_new_one() {
    let (mut old_ones, mut new_ones, mut mixed) = (0, 0, 0);
    for step in 0..10 {
        for seed in 0..8 {
            run(async {
                let disk = steady_disk(seed);
                let old = old_journal(&disk).await;
                let journal = recover(&disk, small_config()).await.journal;
                let announced = Rc::new(RefCell::new(false));
                let announcing = tokio::task::spawn_local({
                    let announced = Rc::clone(&announced);
                    async move {
                        journal.announce(SECOND, Epoch(2)).await.unwrap();
                        *announced.borrow_mut() = true;
                    }
                });
                tokio::time::sleep(Duration::from_micros(step * 700)).await;
                if seed % 2 == 0 {
                    disk.crash_process();
                } else {
                    disk.crash_power();
                }
                announcing.abort();
                let _ = announcing.await;
                let before = read_as_before(&disk).await;
                let [first, second] = superblocks(&disk).await;
                let upgraded = |copy: &Result<Superblock, _>| {
                    copy.as_ref().is_ok_and(|copy| !copy.announced.is_empty())
                };
                match before {
                    Ok(seen) => {
                        assert!(!*announced.borrow(), "what was announced binds the old program");
                        assert_eq!(seen, old, "the old program finds what it left");
                        old_ones += 1;
                        mixed += u32::from(upgraded(&first) || upgraded(&second));
                    }
                    Err(error) => {
                        assert_eq!(error, "newer version");
                        assert!(upgraded(&first) || upgraded(&second));
                        new_ones += 1;
                    }
                }
                let recovered = recover(&disk, small_config()).await;
                assert_eq!((recovered.epoch, recovered.opening), (Epoch(1), None));
                assert!(!*announced.borrow() || recovered.announced.len() == 1);
                assert!(recovered.pieces.len() >= 3);
            });
        }
    }
    let met = old_ones > 0 && new_ones > 0 && mixed > 0;
    assert!(met, "{old_ones} old, {new_ones} new, {mixed} with one copy of each");
}

#[test]
fn newer_records_and_newer_superblocks_are_refused_by_name() {
    run(async {
        let disk = steady_disk(1);
        let journal = create(&disk, small_config()).await;
        drop(journal);
        disk.crash_process();
        let [superblock, _] = superblocks(&disk).await;
        let good = superblock.unwrap().encode();
        let mut newer = good.to_vec();
        newer[8] = 4;
        for slot in [0, 1] {
            put_superblock(&disk, slot, &newer).await;
        }
        let error = try_recover(&disk, small_config(), AcceptLoss::Yes).await.unwrap_err();
        assert!(matches!(error, JournalError::NewerVersion { found: 4, known: 3, .. }), "{error}");
        assert_eq!(error.kind(), ErrorKind::Unsupported);
    });
}

/// The first superblock is there before the first segment's payload ever is: a fresh journal names its file.
#[test]
fn a_fresh_journal_names_its_file() {
    run(async {
        let disk = steady_disk(1);
        let (directory, env) = (disk.directory(), env_of(&disk));
        let made = Journal::create(&directory, NAME, IDENTITY, None, small_config(), &env).await;
        let made = made.unwrap();
        assert_eq!((made.file, made.opening), (FileMatch::Same, None));
        drop(made);
        let recovered = recover(&disk, small_config()).await;
        assert_eq!((recovered.file, recovered.opening), (FileMatch::Same, None));
        let file = disk.directory().open(NAME, OpenMode::Existing).await.unwrap();
        assert!(file.len().await.unwrap() >= DATA_START + BLOCK_BYTES);
    });
}
