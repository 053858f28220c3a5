//! What a takeover gave up is had back, as a volume of its own.

use std::rc::Rc;
use std::time::Duration;

use tokio::task::LocalSet;
use weir_device::ErrorKind;
use weir_log::{DamagedWrite, LogError, Salvage, SalvageArgs, Takeover, catalog};

use crate::damage::fill_more_than_the_journal_keeps;
use crate::support::{Host, discard, expect_bytes, flush, name, objects, read, run, write};

/// How long every answer of a slow store takes.
pub(crate) const ANSWER: Duration = Duration::from_millis(100);

pub(crate) fn args_of(host: &Host) -> SalvageArgs {
    SalvageArgs {
        store: host.store.clone(),
        env: host.env.clone(),
        id: host.id,
        directory: host.disk.directory(),
        keys: host.keys.clone(),
        options: host.options.clone(),
        accept_loss: false,
    }
}

/// Names of the snapshots that are kept for journals.
pub(crate) async fn kept(host: &Host) -> Vec<String> {
    let listed = catalog::snapshots(&host.store, &host.env, &name("demo")).await.expect("there");
    listed.into_iter().map(|snapshot| snapshot.name).collect()
}

/// A host that dies with writes that only its journal holds, and another one that takes its volume over.
async fn taken_over(host: &Host, other: &Host) {
    host.in_killed_process(|volume| async move {
        write(&volume, 0, &[1; 8192]).await.expect("done");
        volume.flush_remote().await.expect("done");
        write(&volume, 4096, &[2; 8192]).await.expect("done");
        write(&volume, 30_000, &[3; 100]).await.expect("done");
        discard(&volume, 0, 1024).await;
        flush(&volume).await.expect("done");
    })
    .await;
    let (volume, _) = other.try_open(|args| args.take_over = true).await.expect("taken over");
    expect_bytes(&volume, 0, &[1; 8192]).await;
    write(&volume, 0, &[9; 16_384]).await.expect("done");
    volume.flush_remote().await.expect("done");
    volume.close().await.expect("done");
}

#[test]
fn a_salvage_is_the_prefix_that_was_taken_and_what_the_journal_holds() {
    run(async {
        for encrypted in [false, true] {
            let host = if encrypted { Host::encrypted().await } else { Host::new().await };
            let age = Duration::from_secs(3600);
            let mut host = host;
            (host.options.batch.age, host.options.batch.rpo) = (age, age);
            let other = host.other(5);
            taken_over(&host, &other).await;
            assert_eq!(kept(&host).await, ["takeover-2"]);
            let refused = host.try_open(|_| {}).await.unwrap_err();
            assert!(matches!(refused, LogError::JournalRefused { .. }), "{refused}");

            let salvage = Salvage::find(&args_of(&host)).await.expect("it is all there");
            let report = salvage.report();
            assert_eq!((report.blocks, report.bytes, report.damaged_bytes), (4, 9316, 0));
            assert_eq!(report.missing_blocks, 0);
            let (store, env, new) = (&host.store, &host.env, name("saved"));
            let from = (&name("demo"), salvage.snapshot());
            let id = catalog::create_incomplete_clone(store, env, from, &new, Takeover::Manual);
            let mut saved = host.other(7);
            saved.id = id.await.expect("created");
            let (volume, _) = saved.try_open(|args| args.incomplete = true).await.unwrap();
            let mut seen = Vec::new();
            salvage.replay(&volume, |done, all| seen.push((done, all))).await.expect("replayed");
            assert_eq!(seen.last(), Some(&(9316, 9316)));
            volume.close().await.unwrap();
            drop((volume, salvage));
            catalog::set_incomplete(store, env, &new, false).await.unwrap();

            let (volume, _) = saved.open().await;
            expect_bytes(&volume, 0, &[0; 1024]).await;
            expect_bytes(&volume, 1024, &[1; 3072]).await;
            expect_bytes(&volume, 4096, &[2; 8192]).await;
            expect_bytes(&volume, 30_000, &[3; 100]).await;
            volume.close().await.unwrap();
            // The original knows nothing of it; and the journal may go now, with what was kept for it.
            let (volume, _) = host.try_open(|args| args.discard_journal = true).await.unwrap();
            expect_bytes(&volume, 0, &[9; 16_384]).await;
            expect_bytes(&volume, 30_000, &[0; 100]).await;
            volume.close().await.unwrap();
            drop(volume);
            let nothing = Salvage::find(&args_of(&host)).await.unwrap_err();
            assert!(matches!(nothing, LogError::NothingToSalvage { .. }), "{nothing}");
        }
    });
}

/// The journal gave up what the store had, and the store lost some of it since: what the journal still holds does not
/// follow what the taker found.
#[test]
fn what_the_store_lost_between_snapshot_and_journal_is_not_left_out_silently() {
    run(async {
        let mut host = Host::new().await;
        host.checkpoint_every(1000);
        host.in_killed_process(fill_more_than_the_journal_keeps).await;
        let lost = objects(&host).await.swap_remove(1);
        host.store.delete(&lost).await.expect("deleted");
        let other = host.other(5);
        let (volume, report) = other.try_open(|args| args.take_over = true).await.unwrap();
        assert!(report.given_up_from.is_some_and(|from| from.object.key() == lost), "{report:?}");
        volume.close().await.unwrap();
        drop(volume);

        let salvage = Salvage::find(&args_of(&host)).await.expect("there is something");
        let found = salvage.report();
        // Eight writes of a block are in the first object.
        let missing = 8 * 32 - 8 - found.blocks;
        assert!(missing > 0, "{found:?}");
        assert_eq!(found.missing_blocks, missing);
        let refused = salvage.check_whole().unwrap_err().to_string();
        assert!(refused.contains(&format!("{missing} written blocks are neither in")), "{refused}");
        drop(salvage);
        let args = SalvageArgs { accept_loss: true, ..args_of(&host) };
        Salvage::find(&args).await.unwrap().check_whole().expect("it was accepted");
    });
}

/// A snapshot that has the name of what a takeover keeps, and shows something else.
#[test]
fn a_snapshot_that_somebody_gave_the_name_is_not_taken_for_what_was_kept() {
    run(async {
        let host = Host::new().await;
        host.in_killed_process(|volume| async move {
            write(&volume, 0, &[7; 8192]).await.unwrap();
            volume.snapshot(&name("takeover-2")).await.unwrap();
            write(&volume, 0, &[1; 8192]).await.unwrap();
            volume.flush_remote().await.unwrap();
            write(&volume, 4096, &[2; 8192]).await.unwrap();
            flush(&volume).await.unwrap();
        })
        .await;
        let other = host.other(5);
        let (volume, _) = other.try_open(|args| args.take_over = true).await.unwrap();
        expect_bytes(&volume, 0, &[1; 8192]).await;
        volume.close().await.unwrap();
        assert_eq!(kept(&host).await, ["takeover-2", "takeover-2-2"]);
        let salvage = Salvage::find(&args_of(&host)).await.unwrap();
        salvage.check_whole().expect("the snapshot and the journal have everything");
        assert_eq!(salvage.snapshot().as_str(), "takeover-2-2");
    });
}

#[test]
fn what_is_damaged_in_the_journal_fails_in_the_salvaged_volume_and_shows_nothing_older() {
    run(async {
        let mut host = Host::new().await;
        let age = Duration::from_secs(3600);
        (host.options.batch.age, host.options.batch.rpo) = (age, age);
        taken_over(&host, &host.other(5)).await;
        let mut disk = vec![0; 2 << 20];
        host.disk.peek("journal", 0, &mut disk);
        // The write of 8,192 bytes is two pieces.
        let at = disk.windows(4096).step_by(512).position(|bytes| bytes == [2; 4096]);
        host.disk.rot("journal", at.expect("it was flushed") as u64 * 512 + 7);

        let mut args = args_of(&host);
        let refused = async |args: &SalvageArgs| match Salvage::find(args).await {
            Ok(salvage) => salvage.check_whole().unwrap_err().to_string(),
            Err(error) => error.to_string(),
        };
        assert!(refused(&args).await.contains("damaged"), "{}", refused(&args).await);
        args.accept_loss = true;
        let salvage = Salvage::find(&args).await.expect("accepted");
        salvage.check_whole().expect("accepted");
        let damaged = vec![DamagedWrite { offset: 4096, bytes: 4096 }];
        assert_eq!(salvage.report().damaged, damaged);
        let from = (&name("demo"), salvage.snapshot());
        let (store, env, new) = (&host.store, &host.env, name("saved"));
        let id = catalog::create_incomplete_clone(store, env, from, &new, Takeover::Manual);
        let mut saved = host.other(7);
        saved.id = id.await.expect("created");
        let (volume, _) = saved.try_open(|args| args.incomplete = true).await.unwrap();
        salvage.replay(&volume, |_, _| {}).await.expect("replayed");
        for elsewhere in [false, true] {
            let volume = if elsewhere {
                volume.close().await.unwrap();
                catalog::set_incomplete(store, env, &new, false).await.unwrap();
                let mut there = host.other(9);
                there.id = saved.id;
                there.open().await.0
            } else {
                Rc::clone(&volume)
            };
            expect_bytes(&volume, 1024, &[1; 3072]).await;
            let lost = read(&volume, 4096, 4096).await.unwrap_err();
            assert_eq!(lost.kind(), ErrorKind::Corrupt, "{lost}");
            expect_bytes(&volume, 8192, &[2; 4096]).await;
            expect_bytes(&volume, 30_000, &[3; 100]).await;
        }
    });
}

#[test]
fn a_journal_that_holds_nothing_of_its_own_is_settled_at_its_return() {
    run(async {
        let host = Host::new().await;
        host.in_killed_process(|volume| async move {
            write(&volume, 0, &[1; 8192]).await.unwrap();
            volume.flush_remote().await.unwrap();
        })
        .await;
        let other = host.other(5);
        let (volume, _) = other.try_open(|args| args.take_over = true).await.unwrap();
        volume.close().await.unwrap();
        drop(volume);
        assert_eq!(kept(&host).await, ["takeover-2"]);
        let (volume, _) = host.open().await;
        tokio::time::sleep(Duration::from_secs(5)).await;
        volume.close().await.unwrap();
        assert!(kept(&host).await.is_empty(), "nobody needs it any more");
    });
}

/// The taker dies after it owns sequences, at every moment until it has opened.
#[test]
fn what_is_taken_over_is_kept_before_anything_is_acknowledged() {
    run(async {
        for step in 0..40 {
            let host = Host::new().await;
            host.in_killed_process(|volume| async move {
                write(&volume, 0, &[1; 8192]).await.unwrap();
                volume.flush_remote().await.unwrap();
            })
            .await;
            let other = host.other(5);
            host.faults.change(|plan| plan.latency = ANSWER..=ANSWER);
            let process = LocalSet::new();
            let limit = crate::support::LEASE + Duration::from_secs(1) + step * ANSWER / 2;
            let opened = process.run_until(tokio::time::timeout(
                limit,
                other.try_open(|args| args.take_over = true),
            ));
            let was_open = opened.await.is_ok();
            other.disk.crash_process();
            drop(process);
            tokio::time::sleep(2 * ANSWER).await;
            host.faults.calm();
            let (volume, report) = other.try_open(|args| args.take_over = true).await.unwrap();
            assert!(!was_open || report.epoch >= 3);
            let kept = kept(&host).await;
            assert_eq!(kept.len(), 1, "step {step}: {kept:?}");
            write(&volume, 0, &[2; 8192]).await.unwrap();
        }
    });
}

#[test]
fn a_lost_disk_leaves_a_snapshot_that_may_be_deleted() {
    run(async {
        let host = Host::new().await;
        host.in_killed_process(|volume| async move {
            write(&volume, 0, &[1; 8192]).await.unwrap();
            volume.flush_remote().await.unwrap();
        })
        .await;
        host.disk.lose_disk();
        let (volume, _) = host.try_open(|args| args.take_over = true).await.unwrap();
        let kept = kept(&host).await;
        volume.delete_snapshot(&name(&kept[0])).await.unwrap();
        volume.close().await.unwrap();
        drop(volume);
        let (volume, _) = host.open().await;
        volume.close().await.unwrap();
    });
}
