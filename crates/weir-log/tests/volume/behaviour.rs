//! Reading, writing, restarting.

use std::sync::Arc;
use std::time::Duration;

use weir_device::{DeviceExt, Extent, ExtentState, WriteZeroesFlags};
use weir_log::{Closed, LogError, MemoryFrameCache, Takeover, VolumeState, catalog};

use crate::support::{
    Host, SIZE, discard, expect_bytes, fill, filled, flush, objects, read, run, write,
};

#[test]
fn the_log_volume_conforms() {
    for seed in 0..5 {
        run(async {
            let host = Host::new().await;
            let (volume, _) = host.open().await;
            weir_device::conformance::run(&*volume, seed, 150).await;
            volume.check_invariants();
        });
    }
}

#[test]
fn the_header_of_an_object_is_asked_for_once_however_many_read_it_cold() {
    run(async {
        let mut host = Host::new().await;
        host.options.batch.bytes = SIZE;
        let (volume, _) = host.open().await;
        let data = fill(&volume, 1).await;
        volume.close().await.expect("closed");
        drop(volume);
        let headers = objects(&host).await.len() as u64;
        let (volume, _) = host.other(9).open().await;
        let before = host.store.counters().gets;
        let frame = 64 << 10;
        let reads = (0..SIZE).step_by(frame).map(|offset| {
            let at = usize::try_from(offset).expect("small");
            expect_bytes(&volume, offset, &data[at..at + 4096])
        });
        let frames = SIZE / frame as u64;
        futures_util::future::join_all(reads).await;
        let gets = host.store.counters().gets - before;
        // A frame may lie in two objects.
        assert!(
            gets <= frames + 2 * headers,
            "{gets} GETs for {frames} frames of {headers} objects"
        );
    });
}

#[test]
fn a_reader_with_several_requests_in_flight_is_read_ahead_of() {
    run(async {
        let mut host = Host::new().await;
        host.options.batch.bytes = SIZE;
        let (volume, _) = host.open().await;
        let data = fill(&volume, 1).await;
        volume.close().await.expect("closed");
        drop(volume);
        for seed in 10..20 {
            let host = host.other(seed);
            let memory = Arc::new(MemoryFrameCache::new(4 * SIZE));
            let (volume, _) =
                host.try_open(|args| args.blocks = memory.into()).await.expect("opens");
            // The store answers them in any order.
            let latency = Duration::from_millis(1)..=Duration::from_millis(90);
            host.faults.change(|plan| plan.latency = latency);
            let frame = 64 << 10;
            let reads = (0..3).map(|frame_number| {
                let at = frame_number * frame;
                expect_bytes(&volume, at as u64, &data[at..at + frame])
            });
            futures_util::future::join_all(reads).await;
            tokio::time::sleep(Duration::from_secs(10)).await;
            let before = host.store.counters().gets;
            expect_bytes(&volume, 3 * frame as u64, &data[3 * frame..]).await;
            assert_eq!(host.store.counters().gets, before, "seed {seed}: all of it was there");
            volume.close().await.expect("closed");
        }
    });
}

#[test]
fn a_write_that_fits_a_record_is_in_one_object_though_it_is_more_than_a_batch() {
    run(async {
        let mut host = Host::new().await;
        host.options.journal.record_bytes_max = 128 << 10;
        // The end is a piece of its own, and does not lie where the rest ends.
        let data = vec![7; (68 << 10) + 100];
        assert!(data.len() as u64 > 2 * host.options.batch.bytes);
        let (host, data) = (&host, &data);
        host.in_killed_process(|volume| async move {
            write(&volume, 0, data).await.expect("written");
            volume.flush_remote().await.expect("in the store");
            assert_eq!(objects(host).await.len(), 1);
            host.faults.change(|plan| plan.outage = true);
            write(&volume, 0, data).await.expect("written");
        })
        .await;
        host.faults.calm();
        // The second one is put back from the journal.
        let (volume, _) = host.open().await;
        volume.flush_remote().await.expect("in the store");
        assert_eq!(objects(host).await.len(), 2);
    });
}

#[test]
fn everything_is_there_after_a_clean_close_and_on_another_host() {
    run(async {
        let host = Host::new().await;
        let (volume, report) = host.open().await;
        assert!(report.new_journal);
        let mut data = fill(&volume, 1).await;
        discard(&volume, 10_000, 30_000).await;
        data[10_000..40_000].fill(0);
        assert_eq!(volume.close().await.unwrap(), Closed::Clean);
        drop(volume);
        tokio::time::sleep(Duration::from_secs(1)).await;

        let (volume, report) = host.open().await;
        assert_eq!(report.replayed_writes, 0);
        expect_bytes(&volume, 0, &data).await;
        assert_eq!(volume.close().await.unwrap(), Closed::Clean);
        drop(volume);

        let (volume, report) = host.other(9).open().await;
        assert!(report.new_journal);
        expect_bytes(&volume, 0, &data).await;
        volume.check_invariants();
    });
}

#[test]
fn acknowledged_writes_survive_kill_without_a_flush() {
    run(async {
        let host = Host::new().await;
        for round in 0..6 {
            let data =
                host.in_killed_process(|volume| async move { fill(&volume, round).await }).await;
            let (volume, report) = host.open().await;
            expect_bytes(&volume, 0, &data).await;
            assert!(report.committed_sequence > 0);
            volume.check_invariants();
            drop(volume);
            tokio::time::sleep(Duration::from_secs(1)).await;
        }
    });
}

#[test]
fn flushed_writes_survive_power_loss() {
    run(async {
        let host = Host::new().await;
        let data = host
            .in_killed_process(|volume| async move {
                let data = fill(&volume, 4).await;
                flush(&volume).await.unwrap();
                data
            })
            .await;
        host.disk.crash_power();
        let (volume, _) = host.open().await;
        expect_bytes(&volume, 0, &data).await;
    });
}

#[test]
fn zeroes_with_forced_unit_access_survive_power_loss() {
    run(async {
        let host = Host::new().await;
        for round in 1..9_u8 {
            host.in_killed_process(|volume| async move {
                write(&volume, 0, &[round; 4096]).await.unwrap();
                flush(&volume).await.unwrap();
                // The last thing that happens: nothing else makes it durable.
                let no_hole = round % 2 == 0;
                let flags = WriteZeroesFlags { no_hole, fua: true, fast: false };
                volume.write_zeroes(0, 4096, flags).await.unwrap();
            })
            .await;
            host.disk.crash_power();
            let (volume, _) = host.open().await;
            expect_bytes(&volume, 0, &[0; 4096]).await;
            volume.close().await.unwrap();
        }
    });
}

#[test]
fn checkpoints_bound_what_an_opening_reads() {
    run(async {
        let host = Host::new().await;
        host.in_killed_process(|volume| async move {
            for round in 0..4 {
                fill(&volume, round).await;
            }
            volume.flush_remote().await.unwrap();
            assert!(volume.status().checkpoints_published > 2);
        })
        .await;
        let before = host.store.counters().gets;
        let (volume, _) = host.open().await;
        let gets = host.store.counters().gets - before;
        assert!(
            gets < 60,
            "{gets} GETs for an opening after {} objects",
            volume.status().committed_sequence
        );
        expect_bytes(&volume, 0, &crate::support::filling(3)).await;
    });
}

#[test]
fn an_outage_of_the_store_slows_writers_and_fails_nobody() {
    run(async {
        let host = Host::new().await;
        let (volume, _) = host.open().await;
        host.faults.change(|plan| plan.outage = true);
        let writer = async {
            let mut data = Vec::new();
            for round in 0..3 {
                data = fill(&volume, round).await;
            }
            data
        };
        let store = async {
            tokio::time::sleep(Duration::from_secs(600)).await;
            assert!(
                volume.status().journal_used_bytes * 10
                    > volume.status().journal_capacity_bytes * 7
            );
            host.faults.calm();
        };
        let (data, ()) = futures_util::join!(writer, store);
        volume.flush_remote().await.unwrap();
        expect_bytes(&volume, 0, &data).await;
    });
}

#[test]
fn extents_tell_data_from_holes() {
    run(async {
        let host = Host::new().await;
        let (volume, _) = host.open().await;
        write(&volume, 5000, &[7; 100]).await.unwrap();
        volume.flush_remote().await.unwrap();
        write(&volume, 5100, &[8; 100]).await.unwrap();
        let extents = volume.extents(0, SIZE, 10).await.unwrap();
        let expected = [
            Extent { len: 5000, state: ExtentState::Hole },
            Extent { len: 200, state: ExtentState::Data },
            Extent { len: SIZE - 5200, state: ExtentState::Hole },
        ];
        assert_eq!(extents, expected);
    });
}

#[test]
fn a_closed_volume_takes_nothing_more() {
    run(async {
        let host = Host::new().await;
        let (volume, _) = host.open().await;
        volume.close().await.unwrap();
        assert!(write(&volume, 0, &[1]).await.is_err());
        assert!(flush(&volume).await.is_err());
        let _ = read(&volume, 0, 1).await;
    });
}

#[test]
fn a_volume_that_is_being_filled_opens_only_for_that() {
    run(async {
        let mut host = Host::new().await;
        let (store, env) = (&host.store, &host.env);
        let name = catalog::VolumeName::new("filled").expect("valid");
        let id = catalog::create_incomplete(store, env, &name, SIZE, Takeover::Manual, None).await;
        host.id = id.expect("created");
        let refused = host.try_open(|_| {}).await.unwrap_err();
        assert!(matches!(refused, LogError::Incomplete { .. }), "{refused}");
        let (volume, _) = host.try_open(|args| args.incomplete = true).await.expect("opens");
        write(&volume, 0, &[1; 100]).await.unwrap();
        let (store, env) = (&host.store, &host.env);
        let early = catalog::set_incomplete(store, env, &name, false).await.unwrap_err();
        assert!(matches!(early, LogError::InUse { .. }), "{early}");
        volume.close().await.unwrap();
        drop(volume);
        let state = catalog::show(store, env, &name).await.expect("there").summary.state;
        assert_eq!(state, VolumeState::Incomplete, "closing does not make it whole");
        catalog::set_incomplete(store, env, &name, false).await.expect("closed");
        let (volume, _) = host.open().await;
        expect_bytes(&volume, 0, &[1; 100]).await;
    });
}

#[test]
fn a_read_outlives_an_outage_of_the_store() {
    run(async {
        let host = Host::new().await;
        let data = filled(&host, 1).await;
        let (volume, _) = host.other(5).open().await;
        host.faults.change(|plan| plan.outage = true);
        let outage = async {
            tokio::time::sleep(Duration::from_secs(30)).await;
            host.faults.calm();
        };
        let (there, ()) = futures_util::join!(read(&volume, 0, 100_000), outage);
        assert!(there.unwrap() == data[..100_000]);
    });
}

#[test]
fn writes_that_waited_for_room_in_the_store_come_to_it_in_their_order() {
    // However often the store was asked meanwhile.
    for pauses in 1..=4 {
        run(async {
            let host = Host::new().await;
            let (volume, _) = host.open().await;
            host.faults.change(|plan| plan.no_room = true);
            let len = usize::try_from(host.options.batch.bytes).expect("small");
            for byte in 1..=4 {
                write(&volume, 0, &vec![byte; len]).await.expect("the journal takes it");
            }
            for _ in 0..pauses {
                tokio::time::sleep(Duration::from_millis(501)).await;
                assert_eq!(volume.status().committed_write, 0, "nothing is sent");
            }
            let note = volume.status().upload_note.expect("it is said");
            assert!(note.contains("is full"), "{note}");
            host.faults.calm();
            volume.close().await.expect("there is room again");
            drop(volume);
            let (volume, _) = host.other(9).open().await;
            expect_bytes(&volume, 0, &vec![4; len]).await;
            volume.close().await.expect("closed");
        });
    }
}

#[test]
fn what_an_opening_replays_goes_to_the_store_at_once() {
    run(async {
        let mut host = Host::new().await;
        let age = Duration::from_secs(3600);
        (host.options.batch.age, host.options.batch.rpo) = (age, age);
        host.in_killed_process(|volume| async move {
            write(&volume, 0, &[7; 4096]).await.expect("written");
            flush(&volume).await.expect("flushed");
            tokio::time::sleep(Duration::from_secs(1800)).await;
            assert_eq!(volume.status().unsent_bytes, 4096, "it waits for its age");
        })
        .await;
        let (volume, report) = host.open().await;
        assert_eq!(report.replayed_bytes, 4096);
        let status = volume.status();
        assert_eq!((status.unsent_bytes, status.upload_pressure), (4096, 1000));
        assert!(status.unsent_age_is_least, "it was written half an hour ago");
        write(&volume, 8192, &[8; 4096]).await.expect("written");
        tokio::time::sleep(Duration::from_secs(10)).await;
        let status = volume.status();
        assert_eq!((status.unsent_bytes, status.upload_pressure), (4096, 0), "{status:?}");
        assert!(status.unsent_age_ms < Some(11_000), "what is left is the new write");
        assert!(!status.unsent_age_is_least, "of which it is known when it came");
        expect_bytes(&volume, 0, &[7; 4096]).await;
    });
}

#[test]
fn a_batch_that_comes_into_the_store_too_late_is_counted() {
    run(async {
        let host = Host::new().await;
        let (volume, _) = host.open().await;
        assert_eq!((volume.status().rpo_ms, volume.status().rpo_missed), (1000, 0));
        write(&volume, 0, &[1; 4096]).await.expect("written");
        tokio::time::sleep(Duration::from_secs(2)).await;
        assert_eq!((volume.status().unsent_bytes, volume.status().rpo_missed), (0, 0));
        let slow = Duration::from_secs(2);
        host.faults.change(|plan| plan.latency = slow..=slow);
        write(&volume, 0, &[2; 4096]).await.expect("written");
        tokio::time::sleep(Duration::from_millis(1500)).await;
        let status = volume.status();
        assert!(status.unsent_age_ms > Some(status.rpo_ms), "{status:?}");
        assert_eq!((status.rpo_missed, status.upload_pressure), (0, 1000), "{status:?}");
        volume.flush_remote().await.expect("stored");
        assert_eq!(volume.status().rpo_missed, 1);
        host.faults.calm();
    });
}

/// A client goes away while its read waits for the store.
#[test]
fn a_read_that_was_given_up_is_nothing_that_the_next_one_waits_for() {
    run(async {
        let host = Host::new().await;
        let data = filled(&host, 3).await;
        let (volume, _) = host.open().await;
        for block in (0..16).map(|nth| nth * 5 % 16) {
            let at = block * 4096;
            host.faults.change(|plan| plan.silence = true);
            let given_up = tokio::time::timeout(Duration::from_millis(10), read(&volume, at, 4096));
            let _ = given_up.await;
            host.faults.calm();
            let begin = usize::try_from(at).expect("small");
            let expected = &data[begin..begin + 4096];
            let again = expect_bytes(&volume, at, expected);
            tokio::time::timeout(Duration::from_secs(200), again).await.expect("answered");
        }
    });
}
