//! Collection: space comes back, and nothing else changes.

use std::rc::Rc;
use std::time::Duration;

use tokio::time::Instant;
use weir_device::DeviceExt;
use weir_log::{Closed, CollectPolicy, LogVolume};
use weir_store::Chance;

use crate::support::{
    Host, SIZE, checked, discard, expect_bytes, fill, objects, pattern, read, run, write,
};

const PIECE: u64 = 4096;

fn to_usize(value: u64) -> usize {
    usize::try_from(value).expect("small")
}

/// Overwrites single pieces here and there, `count` times; `data` follows.
async fn scatter(volume: &LogVolume, data: &mut [u8], seed: u64, count: u64) {
    let mut state = seed;
    for n in 0..count {
        state =
            state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        let at = (state >> 33) % (SIZE / PIECE) * PIECE;
        let bytes = pattern(seed * 1000 + n, to_usize(PIECE));
        write(volume, at, &bytes).await.expect("written");
        let at = to_usize(at);
        data[at..at + bytes.len()].copy_from_slice(&bytes);
    }
}

async fn stored_bytes(host: &Host) -> u64 {
    let listed = host.open_store.list(&format!("{}/log/", host.id), None).await.expect("listed");
    listed.iter().map(|object| object.size).sum()
}

async fn fill_all(volume: &LogVolume) -> Vec<u8> {
    let data = pattern(99, to_usize(SIZE));
    for at in (0..SIZE).step_by(32 << 10) {
        let at = to_usize(at);
        write(volume, at as u64, &data[at..at + (32 << 10)]).await.expect("written");
    }
    data
}

#[test]
fn overwriting_a_volume_many_times_does_not_grow_its_store() {
    for policy in [CollectPolicy::Greedy, CollectPolicy::CostBenefit] {
        run(async {
            let mut host = Host::new().await;
            host.options.collect.policy = policy;
            let (volume, _) = host.open().await;
            let mut data = fill_all(&volume).await;
            for round in 1..12 {
                scatter(&volume, &mut data, round, SIZE / PIECE).await;
                volume.flush_remote().await.unwrap();
                tokio::time::sleep(Duration::from_secs(5)).await;
                let stored = stored_bytes(&host).await;
                assert!(stored < SIZE * 18 / 10, "round {round}: {stored} bytes for {SIZE}");
            }
            let status = volume.status();
            assert!(status.collected_objects > 0 && status.deleted_objects > 100, "{status:?}");
            volume.check_invariants();
            expect_bytes(&volume, 0, &data).await;
            assert_eq!(volume.close().await.unwrap(), Closed::Clean);
            drop(volume);
            let (volume, _) = host.other(9).open().await;
            expect_bytes(&volume, 0, &data).await;
            volume.check_invariants();
        });
    }
}

/// Overwrites the volume again and again as fast as it goes, over a store where each request takes its time; the lowest
/// live share, in percent, after it was overwritten twice.
async fn lowest_share_at_full_speed(host: &Host) -> u64 {
    let (volume, _) = host.open().await;
    let mut data = fill_all(&volume).await;
    let slow = Duration::from_millis(20);
    host.faults.change(|plan| plan.latency = slow..=slow);
    let mut lowest = 100;
    for round in 1..200 {
        scatter(&volume, &mut data, round, SIZE / PIECE / 10).await;
        let status = volume.status();
        if round > 20 {
            lowest = lowest.min(status.live_bytes * 100 / status.used_bytes);
        }
    }
    volume.flush_remote().await.expect("in the store");
    expect_bytes(&volume, 0, &data).await;
    assert_eq!(volume.close().await.expect("closes"), Closed::Clean);
    lowest
}

#[test]
fn what_a_read_has_found_its_bytes_in_is_deleted_after_it() {
    run(async {
        let host = Host::new().await;
        let (volume, _) = host.open().await;
        let before = fill_all(&volume).await;
        assert_eq!(volume.close().await.unwrap(), Closed::Clean);
        drop(volume);
        let first = objects(&host).await.swap_remove(0);
        // Elsewhere no journal has the bytes.
        let (host, gate) = host.other(5).with_gate();
        let (volume, _) = host.open().await;
        gate.watch();
        gate.change(|plan| plan.get.timeout = Chance::ALWAYS);
        let reading = Rc::clone(&volume);
        let read = tokio::task::spawn_local(async move { read(&reading, 0, 1000).await });
        tokio::time::sleep(Duration::from_secs(1)).await;
        fill(&volume, 7).await;
        volume.flush_remote().await.unwrap();
        fill(&volume, 8).await;
        volume.flush_remote().await.unwrap();
        tokio::time::sleep(Duration::from_secs(20)).await;
        let of_read = |(_, key): &(Instant, String)| *key == first;
        assert!(!gate.take_watched().deletes.iter().any(of_read), "the read is not over");
        gate.calm();
        assert_eq!(read.await.unwrap().unwrap(), before[..1000], "as of when it began");
        tokio::time::sleep(Duration::from_secs(20)).await;
        assert!(gate.take_watched().deletes.iter().any(of_read));
    });
}

#[test]
fn data_waits_for_a_collector_that_falls_behind() {
    run(async {
        let lowest = lowest_share_at_full_speed(&Host::new().await).await;
        // 44 without the wait.
        assert!(lowest >= 55, "{lowest} % of the objects lived");
    });
}

#[test]
fn kill_while_objects_are_collected_and_deleted_loses_nothing_and_leaves_nothing() {
    run(async {
        let host = Host::new().await;
        let mut data =
            host.in_killed_process(|volume| async move { fill_all(&volume).await }).await;
        for round in 1..15 {
            let mut next = data.clone();
            data = host
                .in_killed_process(|volume| async move {
                    scatter(&volume, &mut next, round, 100 + round * 17).await;
                    next
                })
                .await;
        }
        let (volume, _) = host.open().await;
        expect_bytes(&volume, 0, &data).await;
        volume.check_invariants();
        volume.close().await.unwrap();
        drop(volume);
        let (volume, _) = host.open().await;
        tokio::time::sleep(Duration::from_secs(30)).await;
        assert_eq!(volume.status().pending_deletions, 0);
        let report = checked(&host).await;
        let left = (report.void_objects, report.pending_objects, report.orphans.len());
        assert_eq!((report.damage.len(), left), (0, (0, 0, 0)), "{report:?}");
    });
}

#[test]
fn discarded_space_comes_back() {
    run(async {
        let host = Host::new().await;
        let (volume, _) = host.open().await;
        fill_all(&volume).await;
        volume.flush_remote().await.unwrap();
        let before = stored_bytes(&host).await;
        discard(&volume, 0, SIZE).await;
        assert_eq!(volume.close().await.unwrap(), Closed::Clean);
        drop(volume);
        let (_volume, _) = host.open().await;
        tokio::time::sleep(Duration::from_secs(10)).await;
        let after = stored_bytes(&host).await;
        assert!(after < before / 50, "{after} of {before} bytes are left");
    });
}

#[test]
fn an_object_that_cannot_be_read_is_left_alone() {
    run(async {
        let host = Host::new().await;
        let (volume, _) = host.open().await;
        let mut data = fill_all(&volume).await;
        volume.flush_remote().await.unwrap();
        let hurt = objects(&host).await[3].clone();
        host.faults.flip_bit(&hurt, 3000);
        for round in 1..6 {
            scatter(&volume, &mut data, round, SIZE / PIECE / 4).await;
            volume.flush_remote().await.unwrap();
            tokio::time::sleep(Duration::from_secs(5)).await;
        }
        assert!(objects(&host).await.contains(&hurt), "what lives in it may be saved yet");
        assert!(volume.status().collected_objects > 0);
        host.faults.heal(&hurt);
        expect_bytes(&volume, 0, &data).await;
        assert_eq!(volume.size(), SIZE);
    });
}

#[test]
fn damage_where_nothing_lives_keeps_nothing_from_being_collected() {
    const FRAME: usize = 64 << 10;
    run(async {
        let mut host = Host::new().await;
        host.options.collect.start_percent = 0;
        host.options.batch.bytes = 4 * FRAME as u64;
        let (volume, _) = host.open().await;
        let mut data = pattern(5, 4 * FRAME);
        for at in (0..data.len()).step_by(FRAME / 2) {
            write(&volume, at as u64, &data[at..at + FRAME / 2]).await.expect("written");
        }
        volume.flush_remote().await.unwrap();
        let hurt = objects(&host).await[0].clone();
        for at in (FRAME..3 * FRAME).step_by(FRAME / 2) {
            data[at..at + FRAME / 2].copy_from_slice(&pattern(6 + at as u64, FRAME / 2));
            write(&volume, at as u64, &data[at..at + FRAME / 2]).await.expect("written");
        }
        volume.flush_remote().await.unwrap();
        host.faults.flip_bit(&hurt, 2 * FRAME as u64);
        let report = volume.compact(100, |_, _| {}).await.unwrap();
        assert_eq!((report.obstacle, report.live_percent_after), (None, 100));
        assert!(!objects(&host).await.contains(&hurt), "what lived in it has moved");
        expect_bytes(&volume, 0, &data).await;
    });
}

#[test]
fn what_lives_in_an_object_is_found_step_by_step() {
    const PIECES: u64 = 16;
    run(async {
        let mut host = Host::new().await;
        host.options.collect.start_percent = 0;
        host.options.map.apply_step_extents = 2;
        host.options.batch.bytes = PIECES * PIECE;
        let (volume, _) = host.open().await;
        // Apart from each other, so that each is an extent.
        let at = |number: u64| number * 3 * PIECE;
        let piece = |number: u64| pattern(number, to_usize(PIECE));
        for number in 0..PIECES {
            write(&volume, at(number), &piece(number)).await.expect("written");
        }
        volume.flush_remote().await.unwrap();
        for number in (0..PIECES).step_by(2) {
            write(&volume, at(number), &piece(number + 100)).await.expect("written");
        }
        volume.flush_remote().await.unwrap();
        // What is not found would be looked for without an end.
        let report = volume.compact(100, |_, _| {}).await.unwrap();
        assert_eq!((report.obstacle, report.live_percent_after), (None, 100));
        for number in 0..PIECES {
            let expected = piece(if number % 2 == 0 { number + 100 } else { number });
            expect_bytes(&volume, at(number), &expected).await;
        }
    });
}

#[test]
fn compacting_gives_back_what_the_collector_leaves() {
    run(async {
        let mut host = Host::new().await;
        host.options.collect.start_percent = 0;
        let (volume, _) = host.open().await;
        let mut data = fill_all(&volume).await;
        scatter(&volume, &mut data, 1, SIZE / PIECE / 2).await;
        volume.flush_remote().await.unwrap();
        assert_eq!(volume.status().collected_objects, 0, "it is off");
        let mut heard = Vec::new();
        let report = volume.compact(95, |done, total| heard.push((done, total))).await.unwrap();
        assert_eq!(report.obstacle, None);
        assert!(report.live_percent_before < 80 && report.live_percent_after >= 95, "{report:?}");
        assert!(report.copied_bytes > 0 && report.reclaimed_bytes > report.copied_bytes);
        assert_eq!(report.pending_deletions, 0);
        assert!(heard.iter().all(|(done, total)| done <= total) && heard.last() > heard.first());
        let stored = stored_bytes(&host).await;
        assert!(stored < SIZE * 112 / 100, "{stored} bytes for {SIZE}");
        expect_bytes(&volume, 0, &data).await;
        volume.check_invariants();
        let again = volume.compact(95, |_, _| {}).await.unwrap();
        assert_eq!((again.copied_objects, again.obstacle), (0, None));
        scatter(&volume, &mut data, 2, SIZE / PIECE / 2).await;
        volume.flush_remote().await.unwrap();
        assert_eq!(volume.status().collected_objects, report.copied_objects, "it is off again");
        let error = volume.compact(101, |_, _| {}).await.unwrap_err();
        assert!(error.to_string().contains("give 1 to 100 percent"), "{error}");
    });
}

#[test]
fn compacting_says_when_objects_cannot_be_read() {
    run(async {
        let mut host = Host::new().await;
        host.options.collect.start_percent = 0;
        let (volume, _) = host.open().await;
        let mut data = fill_all(&volume).await;
        volume.flush_remote().await.unwrap();
        for hurt in &objects(&host).await[..8] {
            host.faults.flip_bit(hurt, 3000);
        }
        scatter(&volume, &mut data, 1, SIZE / PIECE / 2).await;
        volume.flush_remote().await.unwrap();
        let report = volume.compact(100, |_, _| {}).await.unwrap();
        let obstacle = report.obstacle.unwrap_or_default();
        assert!(obstacle.contains("objects cannot be read and stay as they are"), "{obstacle}");
        assert!(report.live_percent_after > report.live_percent_before);
    });
}

#[test]
fn an_object_that_is_being_applied_is_not_collected() {
    run(async {
        let mut host = Host::new().await;
        host.options.map.apply_step_extents = 1;
        (host.options.collect.start_percent, host.options.collect.stop_percent) = (99, 100);
        host.options.checkpoint.objects_max = 1;
        host.options.collect.plugs_per_read_min = 1;
        let (volume, _) = host.open().await;
        let mut data = fill_all(&volume).await;
        scatter(&volume, &mut data, 1, SIZE / PIECE / 2).await;
        volume.flush_remote().await.unwrap();
        // Each copy would be chosen halfway through its application, moved whole, and so on.
        tokio::time::sleep(Duration::from_secs(60)).await;
        let settled = volume.status().collected_objects;
        assert!(settled > 0);
        tokio::time::sleep(Duration::from_secs(60)).await;
        assert_eq!(volume.status().collected_objects, settled, "nothing was written meanwhile");
        expect_bytes(&volume, 0, &data).await;
    });
}

#[test]
fn what_could_not_be_deleted_is_deleted_though_the_volume_is_idle() {
    run(async {
        let host = Host::new().await;
        let (volume, _) = host.open().await;
        fill(&volume, 1).await;
        volume.flush_remote().await.unwrap();
        host.faults.change(|plan| plan.delete.server_error = Chance::ALWAYS);
        fill(&volume, 2).await;
        volume.flush_remote().await.unwrap();
        // Whatever is still tried is given up.
        tokio::time::sleep(Duration::from_secs(600)).await;
        assert!(volume.status().pending_deletions > 0);
        host.faults.calm();
        tokio::time::sleep(Duration::from_secs(180)).await;
        assert_eq!(volume.status().pending_deletions, 0);
        volume.close().await.unwrap();
    });
}
