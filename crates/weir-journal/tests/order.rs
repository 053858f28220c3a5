//! Order of acknowledgement, the flush barrier, and what a crash leaves.

mod common;

use std::rc::Rc;
use std::time::Duration;

use common::*;
use weir_device::Env;
use weir_disk::sim::SimDisk;
use weir_journal::{Epoch, Journal, Payload, PieceKind, RecordSeq, WriteNumber};

#[test]
fn a_write_is_in_the_sink_before_it_is_answered_and_survives_a_crash() {
    run(async {
        let disk = steady_disk(1);
        let journal = create(&disk, small_config()).await;
        let ear = listen(&journal);
        write(&journal, 8192, 1, 4096).await;
        write(&journal, 100, 2, 77).await;
        journal.append(0, Payload::Discard, 1 << 40).await.unwrap();
        let pieces = ear.pieces.borrow().clone();
        assert_eq!(pieces.len(), 3);
        assert_eq!(pieces[1].write, WriteNumber(2));
        assert_eq!((pieces[2].kind, pieces[2].len), (PieceKind::Discard, 1 << 40));
        disk.crash_process();
        let recovered = recover(&disk, small_config()).await;
        let found: Vec<_> = recovered.pieces.iter().map(|found| found.piece).collect();
        assert_eq!(found, pieces);
        assert_eq!(recovered.epoch, Epoch(1));
        assert_eq!(read(&recovered.journal, &found[0]).await.unwrap(), pattern(1, 4096));
        assert_eq!(read(&recovered.journal, &found[1]).await.unwrap(), pattern(2, 77));
    });
}

/// A fresh journal, with what it tells the pacer.
async fn with_env(disk: &SimDisk) -> (Journal, Env) {
    let (directory, key, env) = (disk.directory(), key(), env_of(disk));
    let created = Journal::create(&directory, NAME, IDENTITY, key.as_ref(), small_config(), &env);
    let journal = created.await.expect("a fresh journal").journal;
    journal.begin_epoch(Epoch(1), OPENING).await.expect("first epoch");
    (journal, env)
}

#[test]
fn the_pacer_sees_what_clients_do_and_no_upkeep() {
    run(async {
        let disk = steady_disk(1);
        let (journal, env) = with_env(&disk).await;
        let is_there = || env.pacer.seen().bytes_per_second.is_some();
        assert!(!is_there(), "superblocks were written and synced");
        write(&journal, 8192, 1, 4096).await;
        assert!(is_there());
        milliseconds(1000).await;
        journal.flush_for_upkeep().await.expect("flushed");
        assert_eq!(journal.flushed_write(), WriteNumber(1));
        assert!(!is_there(), "no client waited for that");
        write(&journal, 8192, 2, 4096).await;
        milliseconds(1000).await;
        assert!(!is_there());
        journal.flush().await.expect("flushed");
        assert!(is_there());
    });
}

#[test]
fn a_flush_that_upkeep_has_made_is_no_later_client() {
    run(async {
        let disk = disk_that_takes(1, Duration::from_millis(400));
        let (journal, env) = with_env(&disk).await;
        write(&journal, 8192, 1, 4096).await;
        let client = async {
            milliseconds(100).await;
            journal.flush().await
        };
        let (upkeep, client) = futures_util::join!(journal.flush_for_upkeep(), client);
        upkeep.and(client).expect("one sync for both");
        write(&journal, 8192, 2, 4096).await;
        milliseconds(2000).await;
        journal.flush_for_upkeep().await.expect("flushed");
        assert!(env.pacer.seen().bytes_per_second.is_none(), "nobody is there");
    });
}

#[test]
fn a_client_flush_that_upkeep_joins_is_one() {
    run(async {
        let disk = steady_disk(1);
        let (journal, env) = with_env(&disk).await;
        write(&journal, 8192, 1, 4096).await;
        milliseconds(2000).await;
        assert!(env.pacer.seen().bytes_per_second.is_none());
        let (client, upkeep) = futures_util::join!(journal.flush(), journal.flush_for_upkeep());
        client.and(upkeep).expect("one sync for both");
        assert!(env.pacer.seen().bytes_per_second.is_some(), "a client waited for it");
    });
}

#[test]
fn a_client_whose_sync_took_long_is_there_when_it_ends() {
    run(async {
        let disk = disk_that_takes(1, Duration::from_millis(400));
        let (journal, env) = with_env(&disk).await;
        write(&journal, 8192, 1, 4096).await;
        journal.flush().await.expect("flushed");
        assert!(env.pacer.seen().bytes_per_second.is_some(), "it was answered just now");
    });
}

#[test]
fn what_arrives_during_a_record_goes_into_the_next_one() {
    run(async {
        let disk = steady_disk(1);
        let journal = create(&disk, small_config()).await;
        let ear = listen(&journal);
        let appends: Vec<_> = (0..20_u64)
            .map(|id| {
                let payload = Payload::Data(shared_unaligned(&pattern(id, 512)));
                tokio::task::spawn_local(journal.append(id * 512, payload, 512))
            })
            .collect();
        for append in appends {
            append.await.unwrap().unwrap();
        }
        assert_eq!(*ear.records.borrow(), [RecordSeq(1)], "one record for all that waited");
        let writes: Vec<u64> = ear.pieces.borrow().iter().map(|piece| piece.write.0).collect();
        assert_eq!(writes, (1..=20).collect::<Vec<_>>());
        assert_eq!(journal.status().records, 1);
    });
}

#[test]
fn a_small_payload_shares_the_block_of_its_header() {
    run(async {
        let disk = steady_disk(1);
        let journal = create(&disk, small_config()).await;
        write(&journal, 0, 1, 1000).await;
        assert_eq!(journal.status().bytes_written, 4096);
        write(&journal, 0, 1, 4096).await;
        assert_eq!(journal.status().bytes_written, 4096 * 3);
    });
}

/// Two records in flight, the first one slow: the second is on disk first, but not answered first.
#[test]
fn a_record_is_not_acknowledged_before_an_earlier_one() {
    let mut overtaken = 0;
    for seed in 0..40 {
        run(async {
            let disk = weir_disk::sim::SimDisk::new(seed, Default::default());
            let mut config = small_config();
            config.segment_bytes = 4 << 20;
            config.record_bytes_max = 1 << 20;
            let journal = create(&disk, config).await;
            let ear = listen(&journal);
            let answered = Rc::new(std::cell::RefCell::new(Vec::new()));
            let mut tasks = Vec::new();
            for id in 0..4_u64 {
                let len = 600 << 10;
                let append =
                    journal.append(id << 20, Payload::Data(shared(&pattern(id, len))), len as u64);
                let (answered, ear) = (answered.clone(), ear.clone());
                tasks.push(tokio::task::spawn_local(async move {
                    append.await.unwrap();
                    let durable = ear.pieces.borrow().iter().any(|piece| piece.offset == id << 20);
                    assert!(durable, "the sink hears of a record before its writers");
                    answered.borrow_mut().push(id);
                }));
            }
            for task in tasks {
                task.await.unwrap();
            }
            assert_eq!(*answered.borrow(), [0, 1, 2, 3]);
            let records = ear.records.borrow().clone();
            assert!(records.is_sorted());
            overtaken += u32::from(records.len() > 1);
        });
    }
    assert!(overtaken > 0, "the test met two records in flight");
}

#[test]
fn a_flush_is_not_satisfied_by_a_sync_that_started_before_the_write_completed() {
    run(async {
        let disk = steady_disk(1);
        let journal = create(&disk, small_config()).await;
        write(&journal, 0, 1, 512).await;
        let before = journal.status().fsyncs;
        // The first flush starts a sync of one millisecond; while it runs, a write completes.
        let first = tokio::task::spawn_local({
            let journal = journal.clone();
            async move { journal.flush().await }
        });
        for _ in 0..4 {
            tokio::task::yield_now().await;
        }
        disk.change_options(|options| {
            options.latency_min = std::time::Duration::ZERO;
            options.latency_max = std::time::Duration::ZERO;
        });
        write(&journal, 4096, 2, 512).await;
        assert!(!first.is_finished(), "the first sync is still running");
        journal.flush().await.unwrap();
        assert_eq!(journal.status().flushed_through, RecordSeq(2));
        assert_eq!(journal.status().fsyncs, before + 2, "the second flush made its own sync");
        first.await.unwrap().unwrap();
        journal.flush().await.unwrap();
        assert_eq!(journal.status().fsyncs, before + 2, "nothing to do");
    });
}

#[test]
fn waiting_flushes_are_merged() {
    run(async {
        let disk = steady_disk(1);
        let journal = create(&disk, small_config()).await;
        write(&journal, 0, 1, 512).await;
        let before = journal.status().fsyncs;
        let flushes: Vec<_> = (0..10)
            .map(|_| {
                let journal = journal.clone();
                tokio::task::spawn_local(async move { journal.flush().await })
            })
            .collect();
        for flush in flushes {
            flush.await.unwrap().unwrap();
        }
        assert_eq!(journal.status().fsyncs, before + 1);
    });
}

#[test]
fn a_dropped_append_is_carried_out() {
    run(async {
        let disk = steady_disk(1);
        let journal = create(&disk, small_config()).await;
        let ear = listen(&journal);
        drop(journal.append(0, Payload::Data(shared(&pattern(1, 512))), 512));
        write(&journal, 512, 2, 512).await;
        assert_eq!(ear.pieces.borrow().len(), 2);
    });
}

#[test]
fn a_clean_close_is_seen_and_loses_nothing_even_with_power() {
    run(async {
        let disk = steady_disk(1);
        let journal = create(&disk, small_config()).await;
        for id in 0..5 {
            write(&journal, id * 4096, id, 4096).await;
        }
        journal.close().await.unwrap();
        let refused = journal.append(0, Payload::Zero, 1).await.unwrap_err();
        assert_eq!(refused.kind(), weir_device::ErrorKind::Unavailable);
        disk.crash_power();
        let recovered = recover(&disk, small_config()).await;
        assert!(recovered.report.clean && recovered.report.boot_changed);
        assert_eq!(recovered.pieces.len(), 5);
        assert_eq!(recovered.report.bytes_scanned, 5 * 8192, "nothing behind the end is read");
        recovered.journal.begin_epoch(Epoch(2), OPENING).await.unwrap();
        write(&recovered.journal, 0, 9, 512).await;
        disk.crash_process();
        let recovered = recover(&disk, small_config()).await;
        assert!(!recovered.report.clean);
        assert_eq!(recovered.pieces.len(), 6);
        assert_eq!(recovered.pieces[5].piece.write, WriteNumber(6));
        assert_eq!(recovered.pieces[5].piece.epoch, Epoch(2));
    });
}

#[test]
fn an_empty_journal_goes_on_right_behind_the_object_stream() {
    run(async {
        let disk = steady_disk(1);
        let (directory, env, key) = (disk.directory(), env_of(&disk), key());
        let created =
            Journal::create(&directory, NAME, IDENTITY, key.as_ref(), small_config(), &env);
        let mut journal = created.await.expect("created").journal;
        // Another journal went on up to a lower write, and then up to a higher one.
        for (epoch, last) in [(1, 1000), (2, 500), (3, 2000)] {
            journal.announce(OPENING, Epoch(epoch)).await.expect("announced");
            journal.continue_after(WriteNumber(last));
            journal.begin_epoch(Epoch(epoch), OPENING).await.expect("begun");
            // What others are told of it: that this opening flushed more would be wrong.
            assert!(journal.flushed_write() <= WriteNumber(last));
            disk.crash_process();
            let recovered = recover(&disk, small_config()).await;
            assert_eq!(recovered.report.last_write, WriteNumber(last));
            journal = recovered.journal;
        }
    });
}

#[test]
fn an_epoch_must_rise_and_writes_start_above_the_floor() {
    run(async {
        let disk = steady_disk(1);
        let journal = create(&disk, small_config()).await;
        write(&journal, 0, 1, 512).await;
        disk.crash_process();
        let recovered = recover(&disk, small_config()).await;
        let refused = recovered.journal.append(0, Payload::Zero, 1).await.unwrap_err();
        assert_eq!(refused.kind(), weir_device::ErrorKind::Bug);
        let refused = recovered.journal.begin_epoch(Epoch(1), OPENING).await.unwrap_err();
        assert_eq!(refused.kind(), weir_device::ErrorKind::Fenced);
        recovered.journal.continue_after(WriteNumber(1000));
        recovered.journal.begin_epoch(Epoch(7), OPENING).await.unwrap();
        write(&recovered.journal, 0, 1, 512).await;
        assert_eq!(recovered.journal.status().last_write, WriteNumber(1001));
        disk.crash_process();
        let recovered = recover(&disk, small_config()).await;
        assert_eq!(recovered.epoch, Epoch(7));
        assert_eq!(recovered.report.last_write, WriteNumber(1001));
    });
}
