//! Failing disks, rot, truncation, foreign files: what is reported, what is refused, what goes on.

mod common;

use std::rc::Rc;
use std::time::Duration;

use common::*;
use weir_device::{ErrorKind, SharedBuf, VolumeId};
use weir_disk::OpenMode;
use weir_disk::sim::{SimDisk, SimDiskOptions};
use weir_journal::limits::DATA_START;
use weir_journal::{
    AcceptLoss, Damage, DamageKind, Epoch, Journal, JournalConfig, JournalError, OpeningId,
    Payload, RecordSeq, WriteNumber,
};

/// A journal of ten records of two blocks each, all acknowledged, none flushed.
async fn ten_records(disk: &SimDisk) -> Journal {
    let journal = create(disk, config()).await;
    for id in 0..10 {
        write(&journal, id * 4096, id, 4096).await;
    }
    journal
}

fn config() -> JournalConfig {
    JournalConfig { segment_bytes: 1 << 20, ..small_config() }
}

/// Byte of the file where the header of the record with this index is.
fn header_at(index: u64) -> u64 {
    DATA_START + index * 8192
}

fn payload_at(index: u64) -> u64 {
    header_at(index) + 4096
}

fn rot_block(disk: &SimDisk, offset: u64) {
    for byte in 0..512 {
        disk.rot(NAME, offset + byte);
    }
}

#[test]
fn rot_in_a_payload_poisons_exactly_its_piece() {
    run(async {
        let disk = steady_disk(1);
        ten_records(&disk).await;
        disk.crash_process();
        disk.rot(NAME, payload_at(4) + 100);
        let recovered = recover(&disk, config()).await;
        let poisoned: Vec<_> = recovered.pieces.iter().filter(|found| found.poisoned).collect();
        assert_eq!(recovered.pieces.len(), 10);
        assert_eq!(poisoned.len(), 1);
        assert_eq!(poisoned[0].piece.offset, 4 * 4096);
        let kind = DamageKind::Payload { offset: 4 * 4096, len: 4096 };
        assert_eq!(recovered.report.damage.len(), 1);
        assert_eq!(recovered.report.damage[0].kind, kind);
        let error = read(&recovered.journal, &poisoned[0].piece).await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Corrupt);
        assert!(
            error.to_string().contains("bytes 16384..20480 of the volume, record 5"),
            "{error}"
        );
        // The volume logs what is lost, and goes on.
        let journal = recovered.journal;
        journal.begin_epoch(Epoch(2), OPENING).await.unwrap();
        journal.append(4 * 4096, Payload::Poison, 4096).await.unwrap();
        disk.crash_process();
        assert_eq!(recover(&disk, config()).await.pieces.len(), 11);
    });
}

#[test]
fn of_ranges_that_are_read_together_only_the_rotten_one_fails() {
    run(async {
        let disk = steady_disk(1);
        ten_records(&disk).await;
        disk.crash_process();
        let recovered = recover(&disk, config()).await;
        disk.rot(NAME, payload_at(4) + 100);
        let ranges: Vec<_> =
            recovered.pieces.iter().map(|p| (p.piece.position, p.piece.len)).collect();
        let found = recovered.journal.read_ranges(&ranges).await;
        assert_eq!(found.len(), 10);
        for (id, parts) in found.into_iter().enumerate() {
            match parts {
                Ok(parts) => {
                    assert!(parts.iter().flat_map(|p| &p[..]).eq(&pattern(id as u64, 4096)), "{id}")
                }
                Err(error) => assert_eq!((id, error.kind()), (4, ErrorKind::Corrupt), "{error}"),
            }
        }
    });
}

#[test]
fn rot_in_a_header_is_damage_not_the_end() {
    run(async {
        let disk = steady_disk(1);
        ten_records(&disk).await;
        disk.crash_process();
        disk.rot(NAME, header_at(4) + 60);
        let refused = try_recover(&disk, config(), AcceptLoss::No).await.unwrap_err();
        let JournalError::Damaged { first, last, lost_bytes, .. } = &refused else {
            panic!("{refused}");
        };
        assert_eq!((*first, *last, *lost_bytes), (RecordSeq(5), RecordSeq(5), 8192));
        assert!(refused.to_string().contains("--accept-loss"), "{refused}");
        let recovered = try_recover(&disk, config(), AcceptLoss::Yes).await.unwrap();
        assert_eq!(recovered.pieces.len(), 9);
        assert_eq!(recovered.report.damage[0].kind, DamageKind::Records);
        assert_eq!(recovered.report.last_write, WriteNumber(10));
        // The consent is remembered: the next recovery does not ask again.
        recovered.journal.begin_epoch(Epoch(2), OPENING).await.unwrap();
        write(&recovered.journal, 0, 99, 4096).await;
        disk.crash_power();
        let again = recover(&disk, config()).await;
        assert_eq!(again.report.damage.len(), 1);
        assert!(again.pieces.len() >= 9);
    });
}

#[test]
fn the_last_record_without_a_witness_is_the_end() {
    run(async {
        let disk = steady_disk(1);
        ten_records(&disk).await;
        disk.crash_process();
        disk.rot(NAME, header_at(9) + 60);
        let recovered = recover(&disk, config()).await;
        assert_eq!(recovered.pieces.len(), 9);
        assert!(recovered.report.damage.is_empty());
    });
}

#[test]
fn a_flushed_last_record_has_the_superblock_as_witness_after_a_clean_close() {
    run(async {
        let disk = steady_disk(1);
        ten_records(&disk).await.close().await.unwrap();
        disk.rot(NAME, header_at(9) + 60);
        let refused = try_recover(&disk, config(), AcceptLoss::No).await.unwrap_err();
        assert!(matches!(refused, JournalError::Damaged { first: RecordSeq(10), .. }), "{refused}");
        let recovered = try_recover(&disk, config(), AcceptLoss::Yes).await.unwrap();
        assert_eq!(recovered.pieces.len(), 9);
        recovered.journal.begin_epoch(Epoch(2), OPENING).await.unwrap();
        write(&recovered.journal, 0, 99, 4096).await;
        recovered.journal.close().await.unwrap();
        drop(recovered);
        let again = recover(&disk, config()).await;
        assert_eq!(again.pieces.len(), 10);
        assert_eq!(again.pieces[9].piece.record, RecordSeq(11));
    });
}

#[test]
fn after_a_power_loss_only_a_flush_proves_that_a_record_was_there() {
    run(async {
        for flushed in [false, true] {
            let disk = steady_disk(1);
            let journal = ten_records(&disk).await;
            if flushed {
                journal.flush().await.unwrap();
            }
            // Its header says what was flushed when it was built.
            write(&journal, 0, 10, 4096).await;
            // As if the disk had kept everything but record 5; the boot id changes.
            let directory = disk.directory();
            let file = directory.open(NAME, OpenMode::Existing).await.unwrap();
            file.sync().await.unwrap();
            disk.crash_power();
            rot_block(&disk, header_at(4));
            let result = try_recover(&disk, config(), AcceptLoss::No).await;
            if flushed {
                assert!(matches!(result.unwrap_err(), JournalError::Damaged { .. }));
            } else {
                let recovered = result.unwrap();
                assert_eq!(recovered.pieces.len(), 4);
                assert_eq!(recovered.report.dropped_records, 6);
                assert!(recovered.report.boot_changed);
            }
        }
    });
}

#[test]
fn a_new_epoch_is_not_confused_by_records_that_recovery_dropped() {
    run(async {
        let disk = steady_disk(1);
        ten_records(&disk).await;
        let file = disk.directory().open(NAME, OpenMode::Existing).await.unwrap();
        file.sync().await.unwrap();
        disk.crash_power();
        rot_block(&disk, header_at(4));
        let recovered = recover(&disk, config()).await;
        assert_eq!(recovered.pieces.len(), 4);
        recovered.journal.begin_epoch(Epoch(2), OPENING).await.unwrap();
        // Records 6 to 10 of epoch 1 are still there, behind the head.
        disk.crash_process();
        let recovered = recover(&disk, config()).await;
        assert_eq!(recovered.pieces.len(), 4);
        assert_eq!(recovered.report.stale_records, 5);
        recovered.journal.begin_epoch(Epoch(3), OPENING).await.unwrap();
        write(&recovered.journal, 0, 50, 4096).await;
        disk.crash_process();
        let recovered = recover(&disk, config()).await;
        let epochs: Vec<_> = recovered.pieces.iter().map(|found| found.piece.epoch.0).collect();
        assert_eq!(epochs, [1, 1, 1, 1, 3]);
        assert_eq!(recovered.pieces[4].piece.record, RecordSeq(5));
    });
}

#[test]
fn an_unreadable_sector_is_handled_like_rot() {
    run(async {
        let disk = steady_disk(1);
        ten_records(&disk).await;
        disk.crash_process();
        disk.inject_eio(NAME, payload_at(3)..payload_at(3) + 512);
        let recovered = recover(&disk, config()).await;
        assert_eq!(recovered.pieces.iter().filter(|found| found.poisoned).count(), 1);
        drop(recovered);
        disk.clear_eio();
        // At the end it hides whether there was a record: that is not taken for an end.
        disk.inject_eio(NAME, header_at(9)..header_at(9) + 512);
        let refused = try_recover(&disk, config(), AcceptLoss::No).await.unwrap_err();
        assert!(refused.to_string().contains("cannot read"), "{refused}");
        let recovered = try_recover(&disk, config(), AcceptLoss::Yes).await.unwrap();
        assert_eq!(recovered.pieces.len(), 9);
        assert_eq!(recovered.report.damage[0].kind, DamageKind::Unreadable);
        drop(recovered);
        disk.clear_eio();
        disk.inject_eio(NAME, header_at(4)..header_at(4) + 512);
        let refused = try_recover(&disk, config(), AcceptLoss::No).await.unwrap_err();
        assert!(matches!(refused, JournalError::Damaged { first: RecordSeq(5), .. }), "{refused}");
    });
}

#[test]
fn either_copy_of_the_superblock_is_enough_and_is_repaired() {
    run(async {
        for slot in [0, 4096] {
            let disk = steady_disk(1);
            ten_records(&disk).await;
            disk.crash_process();
            rot_block(&disk, slot);
            let recovered = recover(&disk, config()).await;
            assert!(recovered.report.superblock_repaired);
            assert_eq!(recovered.pieces.len(), 10);
            recovered.journal.begin_epoch(Epoch(2), OPENING).await.unwrap();
            disk.crash_process();
            rot_block(&disk, 4096 - slot);
            let recovered = recover(&disk, config()).await;
            assert_eq!(recovered.epoch, Epoch(2));
            disk.crash_process();
            rot_block(&disk, slot);
            let error = try_recover(&disk, config(), AcceptLoss::Yes).await.unwrap_err();
            assert!(matches!(error, JournalError::NotAJournal { .. }), "{error}");
            assert_eq!(error.kind(), ErrorKind::Corrupt);
        }
    });
}

#[test]
fn a_newer_version_counts_only_without_a_good_copy() {
    run(async {
        for slot in [0, 4096] {
            let disk = steady_disk(1);
            ten_records(&disk).await;
            disk.crash_process();
            let version = 8 + 2;
            disk.rot(NAME, slot + version);
            assert_eq!(recover(&disk, config()).await.pieces.len(), 10);
            disk.crash_process();
            disk.rot(NAME, 4096 - slot + version);
            let error = try_recover(&disk, config(), AcceptLoss::Yes).await.unwrap_err();
            assert!(matches!(error, JournalError::NewerVersion { .. }), "{error}");
        }
    });
}

#[test]
fn a_truncated_file_is_refused_with_what_is_missing() {
    run(async {
        let disk = steady_disk(1);
        ten_records(&disk).await.close().await.unwrap();
        let directory = disk.directory();
        let old = directory.open(NAME, OpenMode::Existing).await.unwrap();
        let kept = header_at(6);
        let buf = weir_device::AlignedBuf::zeroed(usize::try_from(kept).unwrap());
        let (buf, result) = old.read_at(buf, 0).await;
        result.unwrap();
        directory.remove(NAME).await.unwrap();
        let new = directory.open(NAME, OpenMode::CreateNew).await.unwrap();
        new.write_at(vec![buf.freeze()], 0).await.1.unwrap();
        new.sync().await.unwrap();
        let refused = try_recover(&disk, config(), AcceptLoss::No).await.unwrap_err();
        let JournalError::Truncated { len, needed, .. } = &refused else { panic!("{refused}") };
        assert_eq!((*len, *needed), (kept, DATA_START + (1 << 20)));
        let recovered = try_recover(&disk, config(), AcceptLoss::Yes).await.unwrap();
        assert_eq!(recovered.pieces.len(), 6);
        let lost: Vec<&Damage> = recovered.report.damage.iter().collect();
        assert_eq!((lost[0].first, lost[0].last), (RecordSeq(7), RecordSeq(10)));
        recovered.journal.begin_epoch(Epoch(2), OPENING).await.unwrap();
        write(&recovered.journal, 0, 1, 512).await;
        disk.crash_process();
        assert_eq!(recover(&disk, config()).await.pieces.len(), 7);
    });
}

#[test]
fn foreign_files_are_refused_by_name() {
    run(async {
        let disk = steady_disk(1);
        ten_records(&disk).await.close().await.unwrap();
        let other = VolumeId([1; 16]);
        let env = env_of(&disk);
        let directory = disk.directory();
        let refused =
            Journal::recover(&directory, NAME, other, None, config(), AcceptLoss::No, &env).await;
        let refused = refused.unwrap_err();
        assert_eq!(refused.kind(), ErrorKind::Invalid);
        let message = refused.to_string();
        assert!(message.contains(&other.to_string()) && message.contains(&VOLUME.to_string()));

        for (name, content) in [("garbage", 0xA5_u8), ("zeroes", 0), ("short", 1)] {
            let file = directory.open(name, OpenMode::CreateNew).await.unwrap();
            let len = if name == "short" { 512 } else { 1 << 20 };
            file.write_at(vec![SharedBuf::copy_of(&vec![content; len])], 0).await.1.unwrap();
            let refused =
                Journal::recover(&directory, name, VOLUME, None, config(), AcceptLoss::Yes, &env)
                    .await;
            let refused = refused.unwrap_err();
            match name {
                "zeroes" => assert!(matches!(refused, JournalError::NeverFinished { .. })),
                _ => assert!(matches!(refused, JournalError::NotAJournal { .. }), "{refused}"),
            }
            assert!(refused.to_string().contains(name), "{refused}");
        }
        let missing =
            Journal::recover(&directory, "none", VOLUME, None, config(), AcceptLoss::No, &env)
                .await;
        assert_eq!(missing.unwrap_err().kind(), ErrorKind::NotFound);
    });
}

#[test]
fn a_failed_sync_is_final_and_reads_go_on() {
    run(async {
        let disk = steady_disk(1);
        let journal = ten_records(&disk).await;
        let ear = listen(&journal);
        write(&journal, 0, 70, 4096).await;
        disk.fail_next_syncs(1);
        let error = journal.flush().await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Poisoned);
        assert!(error.to_string().contains(NAME) && error.to_string().contains("restart"));
        let refused = journal.append(0, Payload::Zero, 1).await.unwrap_err();
        assert_eq!(refused.kind(), ErrorKind::Poisoned);
        assert_eq!(journal.flush().await.unwrap_err().kind(), ErrorKind::Poisoned);
        let piece = ear.pieces.borrow()[0];
        assert_eq!(read(&journal, &piece).await.unwrap(), pattern(70, 4096));
        assert!(journal.status().poisoned.unwrap().contains("sync"));
        assert_eq!(journal.close().await.unwrap_err().kind(), ErrorKind::Poisoned);
    });
}

#[test]
fn a_failed_write_answers_everyone_who_waits_and_is_never_acknowledged() {
    run(async {
        let disk = steady_disk(1);
        let journal = ten_records(&disk).await;
        let ear = listen(&journal);
        disk.inject_eio(NAME, header_at(10)..header_at(11));
        let waiting: Vec<_> = (0..5_u64)
            .map(|id| {
                let payload = Payload::Data(shared(&pattern(id, 512)));
                tokio::task::spawn_local(journal.append(id, payload, 512))
            })
            .collect();
        for task in waiting {
            assert_eq!(task.await.unwrap().unwrap_err().kind(), ErrorKind::Poisoned);
        }
        assert!(ear.pieces.borrow().is_empty());
        disk.crash_process();
        disk.clear_eio();
        let recovered = recover(&disk, config()).await;
        assert!(recovered.pieces.len() >= 10);
    });
}

#[test]
fn configurations_that_cannot_work_are_refused() {
    run(async {
        let disk = steady_disk(1);
        for (segment_bytes, segments_max, record_bytes_max) in
            [(4096, 4, 1 << 20), (65_537, 4, 1 << 20), (1 << 20, 0, 1 << 20), (1 << 20, 4, 100)]
        {
            let config =
                JournalConfig { segment_bytes, segments_max, record_bytes_max, ..config() };
            let env = env_of(&disk);
            let refused =
                Journal::create(&disk.directory(), NAME, IDENTITY, None, config, &env).await;
            assert!(matches!(refused.unwrap_err(), JournalError::Config(_)));
        }
    });
}

#[test]
fn an_interrupted_creation_is_told_apart_from_damage() {
    run(async {
        for seed in 0..20 {
            let disk = SimDisk::new(seed, Default::default());
            let env = env_of(&disk);
            let patience = std::time::Duration::from_millis(1 + seed);
            let directory = disk.directory();
            let create = Journal::create(&directory, NAME, IDENTITY, None, config(), &env);
            let finished = tokio::time::timeout(patience, create).await.is_ok();
            disk.crash_power();
            match try_recover(&disk, config(), AcceptLoss::No).await {
                Ok(recovered) => assert!(recovered.pieces.is_empty()),
                Err(error) => {
                    assert!(!finished, "{error}");
                    assert_eq!(error.kind(), ErrorKind::NotFound, "{error}");
                }
            }
        }
    });
}

/// Whoever dies while it writes the second copy leaves that one torn: the next one must not begin with the first. And
/// what a killed process wrote may be in the cache of the disk alone, and be lost while the next one writes the other
/// copy.
#[test]
fn crashes_one_after_the_other_leave_a_copy_of_the_superblock() {
    for seed in 0..300 {
        run(async {
            let disk = SimDisk::new(seed, SimDiskOptions::default());
            let random = TestRandom::new(seed);
            let journal = create(&disk, config()).await;
            write(&journal, 0, 1, 4096).await;
            journal.flush().await.unwrap();
            drop(journal);
            for epoch in 2..12 {
                match random.one_in(2) {
                    true => disk.crash_power(),
                    false => disk.crash_process(),
                }
                let recovered = try_recover(&disk, config(), AcceptLoss::No).await;
                let recovered = recovered.unwrap_or_else(|error| panic!("seed {seed}: {error}"));
                assert_eq!(recovered.pieces.len(), 1, "seed {seed}");
                let opening = u8::try_from(1 + random.below(30)).unwrap();
                let opening = OpeningId([opening; 16]);
                let announcing = recovered.journal.announce(opening, Epoch(epoch));
                let patience = Duration::from_millis(random.below(12));
                let _ = tokio::time::timeout(patience, announcing).await;
            }
        });
    }
}

#[test]
fn the_tasks_end_with_the_last_handle() {
    run(async {
        let disk = steady_disk(1);
        let journal = ten_records(&disk).await;
        let ear = listen(&journal);
        drop(journal.append(0, Payload::Zero, 1));
        drop(journal);
        milliseconds(100).await;
        assert_eq!(ear.pieces.borrow().len(), 1, "what was appended is carried out");
        assert_eq!(std::rc::Rc::strong_count(&ear), 1, "nothing holds on to the journal");
    });
}

#[test]
fn a_disk_that_does_not_answer_shows() {
    run(async {
        let disk = steady_disk(1);
        let journal = ten_records(&disk).await;
        assert_eq!(journal.status().disk_wait, None);
        let slow = Duration::from_secs(30);
        disk.change_options(|options| (options.latency_min, options.latency_max) = (slow, slow));
        let writing = Rc::new(journal);
        let written = tokio::task::spawn_local({
            let journal = Rc::clone(&writing);
            async move {
                write(&journal, 0, 1, 4096).await;
                journal.flush().await
            }
        });
        // The write, and then the sync.
        for _ in 0..3 {
            milliseconds(15_000).await;
            assert!(writing.status().disk_wait.is_some());
        }
        written.await.unwrap().unwrap();
        assert_eq!(writing.status().disk_wait, None);
    });
}
