//! The ring: wrapping, waiting when full, pins, growth, and the memory for copies.

mod common;

use std::sync::Arc;

use common::*;
use weir_disk::sim::SimDisk;
use weir_disk::{LeaveRoom, Room};
use weir_journal::{
    AcceptLoss, Epoch, Journal, JournalConfig, JournalPos, PlacedPiece, WriteNumber,
};

fn pieces_of(ear: &Ear) -> Vec<PlacedPiece> {
    ear.pieces.borrow().clone()
}

fn two_segments() -> JournalConfig {
    JournalConfig { segments_max: 2, ..small_config() }
}

/// Appends until one has to wait; answers how many were acknowledged and the one that waits.
async fn fill_up(journal: &Journal) -> (u64, tokio::task::JoinHandle<()>) {
    let mut count = 0;
    loop {
        let waiting = tokio::task::spawn_local({
            let journal = journal.clone();
            async move { write(&journal, 0, count, 4096).await }
        });
        milliseconds(500).await;
        if !waiting.is_finished() {
            return (count, waiting);
        }
        count += 1;
        assert!(count < 10_000, "a ring has an end");
    }
}

#[test]
fn an_append_that_fits_a_record_is_in_one() {
    run(async {
        let disk = steady_disk(1);
        let journal = create(&disk, small_config()).await;
        let ear = listen(&journal);
        for id in 0..40_u64 {
            write(&journal, id << 20, id, usize::try_from(id % 12 + 1).expect("small") * 4096)
                .await;
            let last = *pieces_of(&ear).last().expect("its last piece");
            journal.release(last.write);
        }
        assert!(ear.forgotten.borrow().len() > 2, "it came to the ends of segments");
        let pieces = pieces_of(&ear);
        let whole = |pair: &[PlacedPiece]| {
            pair[0].offset >> 20 != pair[1].offset >> 20 || pair[0].record == pair[1].record
        };
        assert!(pieces.windows(2).all(whole));
    });
}

/// A node opens all its volumes at once: what their scans allocate together must be bounded.
#[test]
fn a_recovery_takes_room_before_it_scans() {
    run(async {
        let disk = steady_disk(1);
        let journal = create(&disk, small_config()).await;
        write(&journal, 0, 1, 4096).await;
        drop(journal);
        let env = env_of(&disk);
        let all = env.buffers.room(usize::MAX).await;
        let recovering = tokio::task::spawn_local({
            let (directory, env) = (disk.directory(), env.clone());
            async move {
                let key = key();
                let (config, accept) = (small_config(), AcceptLoss::No);
                Journal::recover(&directory, NAME, VOLUME, key.as_ref(), config, accept, &env).await
            }
        });
        milliseconds(60_000).await;
        assert!(!recovering.is_finished(), "others have all the room");
        drop(all);
        let recovered = recovering.await.expect("no panic").expect("a sound journal");
        assert_eq!(recovered.report.records, 1);
        assert!(futures_util::FutureExt::now_or_never(env.buffers.room(usize::MAX)).is_some());
    });
}

#[test]
fn a_ring_that_wraps_many_times_keeps_the_last_writes() {
    run(async {
        let disk = steady_disk(1);
        let journal = create(&disk, small_config()).await;
        let ear = listen(&journal);
        for id in 0..400_u64 {
            write(&journal, id * 4096, id, 4096).await;
            if id > 4 {
                journal.release(WriteNumber(id - 4));
            }
            journal.check_invariants();
        }
        let status = journal.status();
        assert!(status.segments <= 3, "released segments are used before the file grows");
        assert!(ear.forgotten.borrow().len() > 40);
        let holds_from = journal.holds_from();
        disk.crash_process();
        let recovered = recover(&disk, small_config()).await;
        let found: Vec<_> = recovered.pieces.iter().map(|found| found.piece).collect();
        let all = pieces_of(&ear);
        assert_eq!(found[..], all[all.len() - found.len()..]);
        assert!(found.len() >= 4 && found.len() < 40, "the tail is short: {}", found.len());
        assert!(found[0].write <= holds_from, "{} is not there", holds_from.0);
        for piece in &found {
            let expected = pattern(piece.write.0 - 1, 4096);
            assert_eq!(read(&recovered.journal, piece).await.unwrap(), expected);
        }
    });
}

/// Also where released segments wait for their next use: no recovery finds those.
#[test]
fn what_a_journal_says_that_it_holds_is_recovered() {
    run(async {
        for count in 40..80_u64 {
            let disk = steady_disk(1);
            let journal = create(&disk, small_config()).await;
            for id in 0..count {
                write(&journal, id * 4096, id, 4096).await;
                if id > 4 {
                    journal.release(WriteNumber(id - 4));
                }
            }
            let holds_from = journal.holds_from();
            disk.crash_process();
            let recovered = recover(&disk, small_config()).await;
            let first = recovered.pieces[0].piece.write;
            assert!(first <= holds_from, "{first:?} {holds_from:?} {count}");
        }
    });
}

#[test]
fn appends_wait_while_the_ring_is_full_and_go_on_when_something_is_released() {
    run(async {
        let disk = steady_disk(1);
        let journal = create(&disk, two_segments()).await;
        let ear = listen(&journal);
        let (count, waiting) = fill_up(&journal).await;
        // Two segments of eight records of two blocks.
        assert_eq!(count, 16);
        assert!(journal.fill() > 0.9);
        assert_eq!(journal.status().queued_bytes, 4096);
        journal.release(WriteNumber(7));
        milliseconds(500).await;
        assert!(!waiting.is_finished(), "a segment goes whole");
        journal.release(WriteNumber(8));
        waiting.await.unwrap();
        assert_eq!(*ear.forgotten.borrow(), [(JournalPos(0), JournalPos(SEGMENT))]);
        assert!(journal.fill() < 0.6);
        journal.close().await.unwrap();
    });
}

#[test]
fn a_single_segment_is_reused_in_place() {
    run(async {
        let disk = steady_disk(1);
        let config = JournalConfig { segments_max: 1, ..small_config() };
        let journal = create(&disk, config).await;
        let ear = listen(&journal);
        for _ in 0..5 {
            let (_, waiting) = fill_up(&journal).await;
            journal.release(last_write(&ear));
            waiting.await.unwrap();
        }
        assert_eq!(journal.status().segments, 1);
        disk.crash_power();
        recover(&disk, config).await;
    });
}

#[test]
fn a_pin_holds_its_segment() {
    run(async {
        let disk = steady_disk(1);
        let config = JournalConfig { resident_bytes_max: 0, ..two_segments() };
        let journal = create(&disk, config).await;
        let ear = listen(&journal);
        let (_, waiting) = fill_up(&journal).await;
        let first = pieces_of(&ear)[0];
        let pin = journal.pin(first.position);
        journal.release(last_write(&ear));
        milliseconds(500).await;
        assert!(!waiting.is_finished(), "the pinned segment is the only one that could go");
        let mut bytes = vec![0; 4096];
        journal.read(first.position, &mut bytes).await.unwrap();
        assert_eq!(bytes, pattern(0, 4096));
        drop(pin);
        waiting.await.unwrap();
        journal.check_invariants();
    });
}

#[test]
fn a_pinned_segment_does_not_stop_a_ring_that_can_grow() {
    run(async {
        let disk = steady_disk(1);
        let journal = create(&disk, small_config()).await;
        let ear = listen(&journal);
        write(&journal, 0, 0, 4096).await;
        let pin = journal.pin(pieces_of(&ear)[0].position);
        for id in 1..24 {
            write(&journal, 0, id, 4096).await;
            journal.release(last_write(&ear));
        }
        assert_eq!(journal.status().segments, 4);
        drop(pin);
        for id in 24..100 {
            write(&journal, 0, id, 4096).await;
            journal.release(last_write(&ear));
        }
        assert_eq!(journal.status().segments, 4);
    });
}

#[test]
#[should_panic(expected = "nobody points into a forgotten segment")]
fn a_pin_into_a_forgotten_segment_is_a_bug() {
    run(async {
        let disk = steady_disk(1);
        let journal = create(&disk, two_segments()).await;
        let ear = listen(&journal);
        let (_, _waiting) = fill_up(&journal).await;
        let held = journal.pin(JournalPos(4096));
        journal.release(last_write(&ear));
        milliseconds(500).await;
        let _late = journal.pin(JournalPos(8192));
        drop(held);
    });
}

#[test]
fn a_short_write_in_a_large_buffer_keeps_none_of_the_buffer() {
    run(async {
        let disk = steady_disk(1);
        let config = JournalConfig { resident_bytes_max: 1 << 20, ..small_config() };
        let journal = create(&disk, config).await;
        let ear = listen(&journal);
        for id in 0..8 {
            let large = shared(&pattern(id, 1 << 20));
            journal
                .append(0, weir_journal::Payload::Data(large.slice(0, 4096)), 4096)
                .await
                .expect("append");
        }
        let reads_before = disk.counters().reads;
        for (id, piece) in (0..).zip(pieces_of(&ear)) {
            let read = journal.read_parts(piece.position, 4096).await.unwrap();
            assert_eq!(*read[0], pattern(id, 1 << 20)[..4096]);
        }
        assert_eq!(disk.counters().reads, reads_before, "all of them are in memory");
        assert!(journal.status().resident_bytes <= 8 * 2 * 4096);
    });
}

#[test]
fn copies_beyond_the_budget_are_dropped_and_read_back() {
    run(async {
        let disk = steady_disk(1);
        let config = JournalConfig { resident_bytes_max: 20_000, ..small_config() };
        let journal = create(&disk, config).await;
        let ear = listen(&journal);
        for id in 0..10 {
            write(&journal, 0, id, 4096).await;
            assert!(journal.status().resident_bytes <= 20_000);
        }
        assert!(journal.status().resident_bytes > 8192);
        let reads_before = disk.counters().reads;
        let all = pieces_of(&ear);
        let last = journal.read_parts(all[9].position, 4096).await.unwrap();
        assert_eq!(*last[0], pattern(9, 4096)[..]);
        assert_eq!(disk.counters().reads, reads_before, "the newest are in memory");
        let first = journal.read_parts(all[0].position, 4096).await.unwrap();
        assert_eq!(*first[0], pattern(0, 4096)[..]);
        assert_eq!(disk.counters().reads, reads_before + 1);
        journal.release(WriteNumber(10));
        journal.check_invariants();
    });
}

#[test]
fn a_read_may_span_pieces_and_begin_anywhere() {
    run(async {
        for resident_bytes_max in [0, 1 << 20, 70_000] {
            let disk = steady_disk(1);
            let config = JournalConfig {
                segment_bytes: 4 << 20,
                record_bytes_max: 1 << 20,
                resident_bytes_max,
                ..small_config()
            };
            let journal = create(&disk, config).await;
            let ear = listen(&journal);
            let bytes = pattern(5, 300_000);
            let payload = weir_journal::Payload::Data(shared_unaligned(&bytes));
            journal.append(77, payload, 300_000).await.unwrap();
            let all = pieces_of(&ear);
            assert_eq!(all.len(), 300_000_usize.div_ceil(4 << 10));
            let parts = journal.read_parts(all[0].position.plus(3), 299_990).await.unwrap();
            assert_eq!(parts.iter().map(|part| part.len()).sum::<usize>(), 299_990);
            assert!(parts.iter().flat_map(|part| &part[..]).eq(&bytes[3..299_993]));
            for (from, len) in [(0, 300_000), (65_535, 2), (1, 4096), (299_999, 1), (70_000, 1)] {
                let mut buf = vec![0; len];
                journal.read(all[0].position.plus(from as u64), &mut buf).await.unwrap();
                assert_eq!(buf, bytes[from..from + len]);
            }
            let past = journal.read_parts(all[0].position, 300_001).await.unwrap_err();
            assert_eq!(past.kind(), weir_device::ErrorKind::Bug);
        }
    });
}

#[test]
fn ranges_that_lie_near_to_each_other_are_read_together() {
    run(async {
        let disk = steady_disk(1);
        let config =
            JournalConfig { segment_bytes: 2 << 20, resident_bytes_max: 9000, ..small_config() };
        let segment_bytes = config.segment_bytes;
        let journal = create(&disk, config).await;
        let ear = listen(&journal);
        let count = 2 * segment_bytes / (2 * 4096);
        for id in 0..count {
            write(&journal, 0, id, 4096).await;
        }
        let all = pieces_of(&ear);
        let reads_of = async |pieces: &[usize], cut: usize| {
            let before = disk.counters().reads;
            let ranges: Vec<_> = pieces
                .iter()
                .map(|&i| (all[i].position.plus(cut as u64), 4096 - 2 * cut as u64))
                .collect();
            let found = journal.read_ranges(&ranges).await;
            for (&piece, parts) in pieces.iter().zip(&found) {
                let parts = parts.as_ref().expect("verified");
                let expected = &pattern(piece as u64, 4096)[cut..4096 - cut];
                assert!(parts.iter().flat_map(|part| &part[..]).eq(expected), "{piece}");
            }
            assert_eq!(found.len(), pieces.len());
            disk.counters().reads - before
        };
        assert_eq!(reads_of(&[0, 1, 2, 4], 0).await, 1, "headers lie between");
        assert_eq!(reads_of(&[0, 1, 2, 4], 7).await, 1);
        assert_eq!(reads_of(&[0, 6], 0).await, 2, "as much lies between as is worth a read");
        let newest = count as usize - 1;
        assert_eq!(reads_of(&[0, 1, newest], 0).await, 1, "the newest is in memory");
        let segment = |piece: usize| all[piece].position.0 / segment_bytes;
        let last = (0..newest).find(|&i| segment(i) != segment(i + 1)).expect("two segments");
        assert_eq!(reads_of(&[last - 1, last, last + 1], 0).await, 2, "segments lie anywhere");
        assert_eq!(reads_of(&[], 0).await, 0);
        let all_on_disk: Vec<_> = (0..newest - 2).collect();
        assert_eq!(reads_of(&all_on_disk, 0).await, 4, "1 MiB at the most");
    });
}

#[test]
fn no_space_to_grow_makes_writers_wait_not_fail() {
    run(async {
        let disk = steady_disk(1);
        let journal = create(&disk, small_config()).await;
        let ear = listen(&journal);
        disk.set_capacity(Some((1 << 20) + 2 * SEGMENT));
        let (count, waiting) = fill_up(&journal).await;
        assert_eq!(count, 16);
        assert_eq!(journal.status().segments, 2);
        assert!(journal.status().poisoned.is_none());
        let all = 2 * SEGMENT;
        assert_eq!(journal.used_and_capacity(), (all, all), "what it has is full");
        journal.release(last_write(&ear));
        waiting.await.unwrap();
        assert_eq!(journal.status().bytes_capacity, all, "and all that there is");
        // With space, the ring grows again by itself.
        let (_, waiting) = fill_up(&journal).await;
        disk.set_capacity(None);
        milliseconds(11_000).await;
        waiting.await.unwrap();
        assert_eq!(journal.status().segments, 3);
        assert!(journal.status().bytes_capacity > 3 * SEGMENT, "it may grow on");
        journal.close().await.unwrap();
    });
}

#[test]
fn a_journal_whose_writers_wait_is_full_whatever_is_left_of_its_last_segment() {
    run(async {
        let disk = steady_disk(1);
        let journal = create(&disk, small_config()).await;
        disk.set_capacity(Some((1 << 20) + 2 * SEGMENT));
        let writer = tokio::task::spawn_local({
            let journal = journal.clone();
            async move {
                for id in 0..100 {
                    write(&journal, 0, id, 20480).await;
                }
            }
        });
        milliseconds(500).await;
        assert!(!writer.is_finished());
        let (used, capacity) = journal.used_and_capacity();
        assert_eq!((used, capacity), (2 * SEGMENT, 2 * SEGMENT));
        writer.abort();
    });
}

#[test]
fn every_time_that_it_cannot_grow_is_told() {
    run(async {
        let disk = steady_disk(1);
        let journal = create(&disk, small_config()).await;
        let ear = listen(&journal);
        disk.set_capacity(Some((1 << 20) + 2 * SEGMENT));
        for _ in 0..3 {
            let before = ear.no_space.get();
            let (_, waiting) = fill_up(&journal).await;
            assert!(ear.no_space.get() > before, "told {before} times");
            journal.release(last_write(&ear));
            waiting.await.unwrap();
        }
    });
}

/// The settings of a program can have smaller segments than a file that an earlier one made.
#[test]
fn a_file_keeps_its_segments_and_gets_no_larger_than_it_may() {
    run(async {
        let disk = steady_disk(1);
        let larger =
            JournalConfig { segment_bytes: 2 * SEGMENT, segments_max: 2, ..small_config() };
        let journal = create(&disk, larger).await;
        let capacity = journal.status().bytes_capacity;
        journal.close().await.expect("closed");
        drop(journal);
        let journal = recover(&disk, small_config()).await.journal;
        journal.begin_epoch(Epoch(2), OPENING).await.expect("begun");
        assert_eq!(journal.status().bytes_capacity, capacity);
        let ear = listen(&journal);
        let (_, waiting) = fill_up(&journal).await;
        assert_eq!(journal.status().segments, 2, "of the size that they had");
        journal.release(last_write(&ear));
        waiting.await.expect("it goes on");
    });
}

#[test]
fn a_journal_beside_the_store_leaves_room_for_what_all_journals_hold() {
    run(async {
        let disk = steady_disk(1);
        let room = Arc::new(Room::default());
        let rule = LeaveRoom::new(Arc::clone(&room), SEGMENT, true);
        let directory = disk.directory().leaving_room(rule);
        let env = env_of(&disk);
        let config = JournalConfig { segments_max: 32, ..small_config() };
        let mut journals = Vec::new();
        for name in ["one", "two"] {
            let created =
                Journal::create(&directory, name, IDENTITY, None, config, &env).await.unwrap();
            created.journal.begin_epoch(Epoch(1), OPENING).await.unwrap();
            journals.push(created.journal);
        }
        let superblocks = 2 * (1 << 20);
        // As much as ten segments, two of which are there.
        let capacity = superblocks + 10 * SEGMENT;
        disk.set_capacity(Some(capacity));
        let ears: Vec<_> = journals.iter().map(listen).collect();
        let mut waiting = Vec::new();
        for journal in &journals {
            waiting.push(fill_up(journal).await.1);
        }
        let segments: u64 = journals.iter().map(|j| u64::from(j.status().segments)).sum();
        let (held, left) = (superblocks + segments * SEGMENT, (10 - segments) * SEGMENT);
        assert!(segments == 2, "not one more fits: {segments}");
        assert!(left < held + 2 * SEGMENT, "{left} of {held} bytes");
        // What they hold is stored elsewhere: all writers go on.
        for ((journal, ear), waiting) in journals.iter().zip(&ears).zip(waiting) {
            journal.release(last_write(ear));
            waiting.await.unwrap();
        }
        // With room for all that they will hold, and for the part that always stays free, they grow.
        disk.set_capacity(Some(2 * (held + 2 * SEGMENT) + SEGMENT));
        let mut waiting = Vec::new();
        for journal in &journals {
            waiting.push(fill_up(journal).await.1);
        }
        milliseconds(11_000).await;
        let segments: u64 = journals.iter().map(|j| u64::from(j.status().segments)).sum();
        assert_eq!(segments, 4, "and no further");
        for ((journal, ear), waiting) in journals.iter().zip(&ears).zip(waiting) {
            journal.release(last_write(ear));
            let _ = waiting.await;
        }
    });
}

#[test]
fn no_space_for_the_first_segment_leaves_nothing_behind() {
    run(async {
        let disk = steady_disk(1);
        disk.set_capacity(Some(1 << 20));
        let env = env_of(&disk);
        let directory = disk.directory();
        let refused = Journal::create(&directory, NAME, IDENTITY, None, small_config(), &env).await;
        assert_eq!(refused.unwrap_err().kind(), weir_device::ErrorKind::NoSpace);
        assert!(directory.list().await.unwrap().is_empty());
        disk.set_capacity(None);
        Journal::create(&directory, NAME, IDENTITY, None, small_config(), &env).await.unwrap();
        let again = Journal::create(&directory, NAME, IDENTITY, None, small_config(), &env).await;
        assert_eq!(again.unwrap_err().kind(), weir_device::ErrorKind::Exists);
    });
}

/// Appends of all lengths, some larger than a segment.
#[test]
fn an_append_larger_than_the_ring_passes_through_it() {
    run(async {
        let disk = SimDisk::new(3, Default::default());
        let journal = create(&disk, two_segments()).await;
        let ear = listen(&journal);
        let bytes = pattern(1, 400_000);
        let append = journal.append(0, weir_journal::Payload::Data(shared(&bytes)), 400_000);
        let writer = tokio::task::spawn_local(append);
        while !writer.is_finished() {
            milliseconds(50).await;
            journal.release(last_write(&ear));
        }
        writer.await.unwrap().unwrap();
        let total: u64 = pieces_of(&ear).iter().map(|piece| piece.len).sum();
        assert_eq!(total, 400_000);
        journal.close().await.unwrap();
        drop(journal);
        let recovered = recover(&disk, two_segments()).await;
        recovered.journal.begin_epoch(Epoch(2), OPENING).await.unwrap();
        recovered.journal.check_invariants();
    });
}
