//! Setting a volume back while others are at work on it.

use std::rc::Rc;
use std::time::Duration;

use weir_log::{Closed, GivenUp, LogVolume, ObjectId};
use weir_store::Chance;

use crate::support::{
    Host, SIZE, expect_bytes, expect_whole, name, objects, pattern, read, run, write,
};

/// How long every answer of a slow store takes.
const SLOW: Duration = Duration::from_millis(500);

/// Bytes of an object of four frames.
const BATCH: usize = 256 << 10;

#[test]
fn a_checkpoint_that_begins_while_a_rollback_waits_for_the_manifest_is_waited_for() {
    run(async {
        let mut host = Host::new().await;
        host.options.batch.bytes = BATCH as u64;
        host.checkpoint_every(1000);
        let (volume, _) = host.open().await;
        let first = pattern(1, BATCH);
        write(&volume, 0, &first).await.unwrap();
        volume.snapshot(&name("base")).await.unwrap();
        let before = objects(&host).await;
        write(&volume, 0, &pattern(2, BATCH)).await.unwrap();
        volume.flush_remote().await.unwrap();
        let mut new = objects(&host).await;
        new.retain(|key| !before.contains(key));
        let [hurt] = &new[..] else { panic!("one object: {new:?}") };
        volume.close().await.unwrap();
        drop(volume);
        host.faults.flip_bit(hurt, BATCH as u64 / 2);

        // Elsewhere, where no journal has the bytes.
        let host = host.other(5);
        let (volume, _) = host.open().await;
        host.faults.change(|plan| plan.latency = SLOW..=SLOW);
        let (hurt, before) =
            (ObjectId::parse_key(hurt).unwrap(), volume.status().committed_sequence);
        let repair = tokio::task::spawn_local({
            let volume = Rc::clone(&volume);
            async move { volume.repair(&[hurt], GivenUp::Error, |_| ()).await }
        });
        // It has given up the damaged frame, and reads the others for a copy.
        while volume.status().committed_sequence == before {
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
        // A growth holds the manifest for as long as the store takes no PUT of it.
        host.faults.change(|plan| plan.put.server_error = Chance::percent(100));
        let growth = tokio::task::spawn_local({
            let volume = Rc::clone(&volume);
            async move { volume.resize(2 * SIZE).await }
        });
        tokio::time::sleep(Duration::from_millis(1)).await;
        let rollback = tokio::task::spawn_local({
            let volume = Rc::clone(&volume);
            async move { volume.rollback(&name("base")).await }
        });
        // Long enough for the repair to ask for its checkpoint while the rollback waits for the manifest.
        tokio::time::sleep(SLOW * 20).await;
        assert!(!rollback.is_finished() && !growth.is_finished());
        host.faults.calm();
        growth.await.unwrap().unwrap();
        rollback.await.unwrap().unwrap();
        let _ = repair.await.unwrap();
        expect_bytes(&volume, 0, &first).await;
        let rest = read(&volume, BATCH as u64, BATCH).await.unwrap();
        assert!(rest.iter().all(|byte| *byte == 0));
        volume.check_invariants();
        volume.close().await.unwrap();
        expect_whole(&host).await;
    });
}

/// What the published checkpoint needs is not deleted with a snapshot while a rollback's checkpoint is not stored yet.
#[test]
fn a_snapshot_that_is_deleted_during_a_rollback_gives_nothing_up_before_it_counts() {
    run(async {
        let mut host = Host::new().await;
        host.checkpoint_every(1000);
        let (faults, other) = (host.faults.clone(), host.other(5));
        let new = pattern(2, BATCH);
        let ended = host
            .in_killed_process(|volume| async move {
                write(&volume, 0, &pattern(1, BATCH)).await.unwrap();
                volume.snapshot(&name("base")).await.unwrap();
                write(&volume, 0, &pattern(2, BATCH)).await.unwrap();
                volume.snapshot(&name("later")).await.unwrap();
                faults.change(|plan| {
                    plan.latency = SLOW..=SLOW;
                    // Manifests are published, checkpoints are not.
                    (plan.lost_reply, plan.lost_of) = (Chance::ALWAYS, "/log/");
                });
                let deletion = tokio::task::spawn_local({
                    let volume = Rc::clone(&volume);
                    async move { volume.delete_snapshot(&name("later")).await }
                });
                tokio::time::sleep(Duration::from_millis(1)).await;
                let rollback = tokio::task::spawn_local({
                    let volume = Rc::clone(&volume);
                    async move { volume.rollback(&name("base")).await }
                });
                tokio::time::sleep(SLOW * 60).await;
                (deletion.is_finished(), rollback.is_finished())
            })
            .await;
        assert_eq!(ended, (false, false));
        host.faults.calm();
        let (volume, _) = other.try_open(|args| args.take_over = true).await.expect("taken over");
        expect_bytes(&volume, 0, &new).await;
        volume.close().await.unwrap();
        expect_whole(&other).await;
    });
}

/// A write whose client goes away before the disk has it.
async fn unanswered(host: &Host, volume: &LogVolume, data: &[u8]) {
    host.disk.change_options(|options| (options.latency_min, options.latency_max) = (SLOW, SLOW));
    let write = tokio::time::timeout(SLOW / 100, write(volume, 0, data)).await;
    assert!(write.is_err(), "it has no answer yet: {write:?}");
}

#[test]
fn a_write_without_an_answer_does_not_land_on_what_was_rolled_back() {
    run(async {
        let host = Host::new().await;
        let (volume, _) = host.open().await;
        let first = pattern(1, BATCH);
        write(&volume, 0, &first).await.unwrap();
        volume.snapshot(&name("base")).await.unwrap();
        write(&volume, 0, &pattern(2, BATCH)).await.unwrap();
        volume.flush_remote().await.unwrap();
        unanswered(&host, &volume, &[3; 4096]).await;
        volume.rollback(&name("base")).await.unwrap();
        tokio::time::sleep(SLOW * 4).await;
        expect_bytes(&volume, 0, &first).await;
        volume.close().await.unwrap();
        let (volume, _) = host.other(5).open().await;
        expect_bytes(&volume, 0, &first).await;
    });
}

#[test]
fn a_close_waits_for_a_write_without_an_answer() {
    run(async {
        let host = Host::new().await;
        let (volume, _) = host.open().await;
        write(&volume, 0, &[1; 4096]).await.unwrap();
        volume.flush_remote().await.unwrap();
        unanswered(&host, &volume, &[3; 4096]).await;
        assert_eq!(volume.close().await.unwrap(), Closed::Clean);
        let status = volume.status();
        assert_eq!(status.acked_write, status.committed_write, "nothing is left to its journal");
        drop(volume);
        let (volume, _) = host.other(5).open().await;
        expect_bytes(&volume, 0, &[3; 4096]).await;
    });
}
