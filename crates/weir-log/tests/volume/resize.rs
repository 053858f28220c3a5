//! Growing an open volume, and checking what a store holds of one.

use weir_device::{Device, ErrorKind};
use weir_log::{CheckReport, check};

use crate::support::{Host, SIZE, expect_bytes, pattern, run, write};

async fn checked(host: &Host) -> CheckReport {
    check(&host.store, &host.env, (host.id, &host.keys), |_, _| {})
        .await
        .expect("the store answers")
}

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
fn a_volume_does_not_shrink() {
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
        host.options.checkpoint.objects_min = 1000;
        host.options.checkpoint.objects_max = 1000;
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
                (listed[2].key.as_str(), vec![(2 * 8192, 8192)], 8192),
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
        host.options.checkpoint.objects_min = 1000;
        host.options.checkpoint.objects_max = 1000;
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
