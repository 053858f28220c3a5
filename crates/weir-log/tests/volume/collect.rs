//! Collection: space comes back, and nothing else changes.

use std::time::Duration;

use weir_device::Device;
use weir_log::{Closed, CollectPolicy, LogVolume, check};

use crate::support::{Host, SIZE, discard, expect_bytes, objects, pattern, run, write};

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
        let report = check(&host.store, &host.env, host.id, |_, _| {}).await.unwrap();
        let left = (report.void_objects, report.pending_objects, report.orphans);
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
