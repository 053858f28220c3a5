//! Growing an open volume, and checking what a store holds of one.

use std::rc::Rc;
use std::time::Duration;

use weir_device::{DeviceExt, ErrorKind};
use weir_log::{Closed, LogVolume};
use weir_store::Chance;

use crate::salvage::ANSWER;
use crate::support::{
    Host, SIZE, checked, expect_bytes, fill, name, pattern, read, run, show, write,
};

#[test]
fn a_write_beyond_the_old_end_survives_a_crash() {
    run(async {
        let host = Host::new().await;
        host.in_killed_process(|volume| async move {
            // The open batch knows the old size.
            write(&volume, 0, &[1; 512]).await.unwrap();
            let beyond = write(&volume, SIZE, &[2; 512]).await.unwrap_err();
            assert_eq!(beyond.kind(), ErrorKind::Invalid);
            volume.resize(2 * SIZE).await.unwrap();
            assert_eq!(volume.size(), 2 * SIZE);
            write(&volume, 2 * SIZE - 512, &[2; 512]).await.unwrap();
        })
        .await;
        let (volume, _) = host.open().await;
        assert_eq!(volume.size(), 2 * SIZE);
        expect_bytes(&volume, 2 * SIZE - 512, &[2; 512]).await;
        expect_bytes(&volume, SIZE, &[0; 512]).await;
        volume.close().await.unwrap();
        // From objects alone, on another host.
        let (volume, _) = host.other(9).open().await;
        assert_eq!(volume.size(), 2 * SIZE);
        expect_bytes(&volume, 2 * SIZE - 512, &[2; 512]).await;
    });
}

#[test]
fn a_size_that_grew_lasts_although_nothing_was_written_since() {
    run(async {
        let host = Host::new().await;
        host.in_killed_process(|volume| async move {
            write(&volume, 0, &[1; 512]).await.unwrap();
            volume.flush_remote().await.unwrap();
            volume.resize(3 * SIZE).await.unwrap();
        })
        .await;
        let (volume, _) = host.open().await;
        assert_eq!(volume.size(), 3 * SIZE);
    });
}

#[test]
fn a_volume_shrinks_where_that_is_said_and_what_lay_beyond_is_gone() {
    run(async {
        let host = Host::new().await;
        let (volume, _) = host.open().await;
        let data = fill(&volume, 1).await;
        let half = SIZE / 2 + 100;
        let keep = usize::try_from(half).unwrap();
        volume.snapshot(&name("before")).await.unwrap();
        let larger = volume.shrink(SIZE + 1).await.unwrap_err();
        assert_eq!(larger.kind(), ErrorKind::Invalid);
        volume.shrink(half).await.unwrap();
        let beyond = write(&volume, half, &[1]).await.unwrap_err();
        assert_eq!(beyond.kind(), ErrorKind::Invalid);
        expect_bytes(&volume, 0, &data[..keep]).await;
        assert!(show(&host, "before").await == data);
        // It holds for another host, and what comes back with a growth is zeroes.
        drop(volume);
        host.disk.crash_process();
        let (volume, _) = host.other(9).try_open(|args| args.take_over = true).await.unwrap();
        assert_eq!(volume.size(), half);
        volume.resize(SIZE).await.unwrap();
        expect_bytes(&volume, 0, &data[..keep]).await;
        expect_bytes(&volume, half, &vec![0; data.len() - keep]).await;
        volume.rollback(&name("before")).await.unwrap();
        expect_bytes(&volume, 0, &data).await;
        volume.check_invariants();
    });
}

#[test]
fn a_size_that_grows_counts_once_the_manifest_says_so() {
    run(async {
        let host = Host::new().await;
        let (volume, _) = host.open().await;
        host.faults.change(|plan| plan.outage = true);
        let growing = tokio::task::spawn_local({
            let volume = Rc::clone(&volume);
            async move { volume.resize(2 * SIZE).await }
        });
        tokio::time::sleep(Duration::from_secs(30)).await;
        assert_eq!(volume.size(), SIZE);
        let beyond = write(&volume, SIZE, &[1; 512]).await.unwrap_err();
        assert_eq!(beyond.kind(), ErrorKind::Invalid);
        host.faults.calm();
        growing.await.unwrap().unwrap();
        assert_eq!(volume.size(), 2 * SIZE);
        write(&volume, SIZE, &[1; 512]).await.unwrap();
    });
}

/// Otherwise the volume would have the larger size, and its manifest the smaller one: what is written between the two
/// would be gone at the next opening.
#[test]
fn a_shrink_waits_for_a_growth_that_began_before() {
    run(async {
        let host = Host::new().await;
        let (volume, _) = host.open().await;
        host.faults.change(|plan| plan.put.server_error = Chance::ALWAYS);
        let growth = tokio::task::spawn_local({
            let volume = Rc::clone(&volume);
            async move { volume.resize(2 * SIZE).await }
        });
        tokio::time::sleep(Duration::from_millis(1)).await;
        let shrink = tokio::task::spawn_local({
            let volume = Rc::clone(&volume);
            async move { volume.shrink(SIZE / 2).await }
        });
        tokio::time::sleep(ANSWER).await;
        host.faults.calm();
        growth.await.unwrap().unwrap();
        shrink.await.unwrap().unwrap();
        assert_eq!(volume.size(), SIZE / 2);
        volume.close().await.unwrap();
        drop(volume);
        let (volume, _) = host.open().await;
        assert_eq!(volume.size(), SIZE / 2);
    });
}

/// A batch that is sealed as soon as it begins, so that the last object of a shrink says the size that it has then.
#[test]
fn a_size_that_shrank_lasts_whenever_its_object_is_sealed() {
    run(async {
        let mut host = Host::new().await;
        host.options.batch.age = Duration::ZERO;
        host.options.batch.rpo = Duration::ZERO;
        host.in_killed_process(|volume| async move {
            fill(&volume, 1).await;
            volume.shrink(SIZE / 2).await.unwrap();
            assert_eq!(volume.size(), SIZE / 2);
        })
        .await;
        let (volume, _) = host.open().await;
        assert_eq!(volume.size(), SIZE / 2);
        volume.resize(SIZE).await.unwrap();
        expect_bytes(&volume, SIZE / 2, &[0; 5000]).await;
    });
}

/// A host that is killed `moment` after it began to change the size of its volume with `change`, while its objects are
/// collected and a checkpoint follows each of them. Its disk is gone; another host goes on with the store.
async fn killed_while_it_resizes(
    moment: Duration,
    before: impl AsyncFnOnce(&LogVolume),
    change: impl AsyncFnOnce(&LogVolume),
) -> Rc<LogVolume> {
    let mut host = Host::new().await;
    host.checkpoint_every(1);
    host.options.collect.start_percent = 0;
    let (faults, other) = (host.faults.clone(), host.other(5));
    host.in_killed_process(|volume| async move {
        fill(&volume, 1).await;
        before(&volume).await;
        volume.flush_remote().await.expect("stored");
        faults.change(|plan| {
            (plan.latency, plan.put.server_error) = (ANSWER / 10..=ANSWER, Chance::percent(40));
        });
        tokio::task::spawn_local({
            let volume = Rc::clone(&volume);
            async move { volume.compact(100, |_, _| {}).await }
        });
        let _ = tokio::time::timeout(moment, change(&volume)).await;
    })
    .await;
    host.faults.calm();
    other.try_open(|args| args.take_over = true).await.expect("taken over").0
}

#[test]
fn a_checkpoint_in_the_middle_of_a_shrink_does_not_publish_the_smaller_size() {
    run(async {
        let host = Host::new().await;
        let (disk, other) = (host.disk.clone(), host.other(5));
        host.in_killed_process(|volume| async move {
            fill(&volume, 1).await;
            volume.flush_remote().await.unwrap();
            tokio::time::sleep(Duration::from_secs(10)).await;
            let published = volume.status().checkpoints_published;
            let minute = Duration::from_secs(60);
            disk.change_options(|o| (o.latency_min, o.latency_max) = (minute, minute));
            // A compaction asks for a checkpoint right before the shrink finds that none is under way.
            let both = async {
                futures_util::join!(volume.shrink(SIZE / 2), volume.compact(1, |_, _| {}))
            };
            let cut_off = tokio::time::timeout(minute / 2, both).await;
            cut_off.expect_err("the disk is slow");
            assert!(volume.status().checkpoints_published > published, "nothing was tried");
        })
        .await;
        let (volume, _) = other.try_open(|args| args.take_over = true).await.expect("taken over");
        assert_eq!(volume.size(), SIZE, "what lies beyond was not given up");
    });
}

#[test]
fn a_rollback_that_is_cut_off_leaves_size_and_content_of_one_of_the_two() {
    run(async {
        let mut back = 0;
        for step in 0..160 {
            let shrink = async |volume: &LogVolume| {
                volume.snapshot(&name("large")).await.unwrap();
                volume.shrink(SIZE / 2).await.unwrap();
                for block in 0..8 {
                    write(volume, block * 12_288, &[7; 4096]).await.unwrap();
                }
            };
            let set_back =
                async |volume: &LogVolume| volume.rollback(&name("large")).await.unwrap();
            let volume = killed_while_it_resizes(step * ANSWER / 4, shrink, set_back).await;
            let is_back = read(&volume, 0, 4096).await.unwrap() != [7; 4096];
            assert_eq!(volume.size(), if is_back { SIZE } else { SIZE / 2 }, "step {step}");
            back += u32::from(is_back);
        }
        assert!(back > 5 && back < 155, "{back}");
    });
}

#[test]
fn a_volume_does_not_shrink_by_accident() {
    run(async {
        let host = Host::new().await;
        let (volume, _) = host.open().await;
        volume.resize(SIZE).await.expect("the size that it has");
        let error = volume.resize(SIZE - 1).await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Unsupported);
        assert_eq!(volume.resize(u64::MAX).await.unwrap_err().kind(), ErrorKind::Invalid);
        assert_eq!(volume.size(), SIZE);
        write(&volume, 0, &[1; 512]).await.expect("it goes on");
        volume.close().await.unwrap();
        let closed = volume.resize(2 * SIZE).await.unwrap_err();
        assert_eq!(closed.kind(), ErrorKind::Unavailable);
    });
}

#[test]
fn a_check_names_what_is_damaged_and_which_bytes_are_lost() {
    run(async {
        let mut host = Host::new().await;
        host.checkpoint_every(1000);
        let (volume, _) = host.open().await;
        for block in 0..8_u64 {
            write(&volume, block * 8192, &pattern(block, 8192)).await.unwrap();
            volume.flush_remote().await.unwrap();
        }
        volume.close().await.unwrap();
        let whole = checked(&host).await;
        assert_eq!((whole.objects >= 8, whole.void_objects), (true, 0));
        assert_eq!(whole.damage, []);
        let prefix = format!("{}/log/", host.id);
        let listed = host.store.list(&prefix, None).await.unwrap();
        host.faults.flip_bit(&listed[2].key, 4000);
        host.faults.hide(&listed[5].key);
        let report = checked(&host).await;
        let damage: Vec<_> = report
            .damage
            .iter()
            .map(|d| (d.place.as_str(), d.ranges.clone(), d.lost_bytes))
            .collect();
        assert_eq!(
            damage,
            [
                // A block of it: the other one is read as ever.
                (listed[2].key.as_str(), vec![(2 * 8192, 4096)], 4096),
                (listed[5].key.as_str(), vec![(5 * 8192, 8192)], 8192),
            ]
        );
        assert!(report.damage[0].problem.contains("checksum"), "{report:?}");
        assert!(report.damage[1].problem.contains("missing"), "{report:?}");
    });
}

#[test]
fn a_check_finds_a_gap_behind_the_checkpoint_and_a_lost_checkpoint() {
    run(async {
        let mut host = Host::new().await;
        host.checkpoint_every(1000);
        let (volume, _) = host.open().await;
        for block in 0..4_u64 {
            write(&volume, block * 8192, &pattern(block, 8192)).await.unwrap();
            volume.flush_remote().await.unwrap();
        }
        volume.close().await.unwrap();
        let prefix = format!("{}/log/", host.id);
        let listed = host.store.list(&prefix, None).await.unwrap();
        let checkpoint = &listed.last().unwrap().key;
        host.faults.hide(checkpoint);
        let report = checked(&host).await;
        assert!(report.damage.iter().any(|d| d.place == *checkpoint), "{report:?}");
        assert!(report.objects >= 4, "the others are read all the same: {report:?}");
    });
}

#[test]
fn a_close_waits_for_a_shrink_that_is_under_way() {
    run(async {
        for begin in 0..40 {
            let host = Host::new().await;
            let (volume, _) = host.open().await;
            let data = fill(&volume, begin).await;
            volume.flush_remote().await.unwrap();
            write(&volume, 0, &data[..4096]).await.unwrap();
            let closing = async {
                tokio::time::sleep(Duration::from_micros(begin * 25)).await;
                volume.close().await
            };
            let small = SIZE / 2;
            let (shrunk, closed) = futures_util::join!(volume.shrink(small), closing);
            assert_eq!(closed.unwrap(), Closed::Clean);
            drop(volume);
            let (volume, _) = host.other(9).open().await;
            let size = volume.status().size_bytes;
            assert!(size == small || shrunk.is_err(), "{begin}: {shrunk:?}");
            if size == small {
                volume.resize(SIZE).await.unwrap();
            }
            let beyond = read(&volume, small, 4096).await.unwrap();
            let at = usize::try_from(small).unwrap();
            let expected = if size == small { vec![0; 4096] } else { data[at..at + 4096].to_vec() };
            assert!(beyond == expected, "{begin}: {shrunk:?}");
        }
    });
}

#[test]
fn a_volume_that_grows_takes_nothing_beyond_its_end_before_the_manifest_says_so() {
    run(async {
        let host = Host::new().await;
        let answer = Duration::from_millis(100);
        host.in_killed_process(|volume| {
            host.faults.change(|plan| plan.latency = answer..=answer);
            async move {
                let growth = async { volume.resize(2 * SIZE).await };
                let early = async {
                    tokio::time::sleep(answer / 2).await;
                    write(&volume, SIZE, &[1; 4096]).await
                };
                tokio::select! {
                    _ = growth => panic!("the store takes its time"),
                    early = early => assert_eq!(early.unwrap_err().kind(), ErrorKind::Invalid),
                }
            }
        })
        .await;
        host.faults.calm();
        let (volume, _) = host.open().await;
        volume.resize(2 * SIZE).await.unwrap();
        write(&volume, SIZE, &[1; 4096]).await.unwrap();
    });
}
