//! Other hosts, lost disks, old owners.

use std::time::Duration;

use weir_device::ErrorKind;
use weir_log::catalog::DeleteConsent;
use weir_log::{LogError, catalog};
use weir_store::{Chance, Fault};

use crate::support::{
    Host, LEASE, expect_bytes, expect_whole, fill, name, objects, pattern, read, run, stored, write,
};

/// How long every answer of a slow store takes.
const ANSWER: Duration = Duration::from_millis(500);

#[test]
fn a_volume_that_was_not_closed_is_not_taken_silently() {
    run(async {
        let host = Host::new().await;
        host.in_killed_process(|volume| async move {
            for number in 0..10 {
                write(&volume, number * 1000, &[1; 1000]).await.unwrap();
            }
        })
        .await;
        let other = host.other(5);
        let refused = other.try_open(|_| {}).await.unwrap_err();
        assert!(matches!(refused, LogError::Held { .. }), "{refused}");
        let (volume, report) = other.try_open(|args| args.take_over = true).await.unwrap();
        assert!(report.new_journal);
        write(&volume, 0, &[9; 100]).await.unwrap();
        volume.close().await.unwrap();
        drop(volume);

        // The first host comes back: its journal holds writes that the takeover gave up.
        let back = host.try_open(|_| {}).await.unwrap_err();
        assert!(matches!(back, LogError::JournalRefused { .. }), "{back}");
        let (volume, _) = host.try_open(|args| args.discard_journal = true).await.unwrap();
        expect_bytes(&volume, 0, &[9; 100]).await;
    });
}

#[test]
fn a_takeover_that_was_cut_off_is_finished_by_its_own_host_and_by_no_other() {
    run(async {
        let host = Host::new().await;
        host.in_killed_process(|volume| async move {
            write(&volume, 0, &[1; 1000]).await.unwrap();
            volume.flush_remote().await.unwrap();
            write(&volume, 0, &[2; 1000]).await.unwrap();
        })
        .await;
        let other = host.other(5);
        host.faults.change(|plan| plan.latency = ANSWER..=ANSWER);
        let versions = async || {
            let listed = host.store.list(&format!("{}/manifest/", host.id), None).await;
            listed.expect("listed").len()
        };
        let before = versions().await;
        let published = async {
            while versions().await == before {
                tokio::time::sleep(ANSWER / 10).await;
            }
        };
        tokio::select! {
            opened = other.try_open(|args| args.take_over = true) => panic!("{opened:?}"),
            () = published => {}
        }
        host.faults.calm();
        let refused = host.other(6).try_open(|_| {}).await.unwrap_err();
        assert!(matches!(refused, LogError::Held { .. }), "{refused}");
        let (volume, report) = other.try_open(|_| {}).await.expect("it is the holder by now");
        assert_eq!((report.epoch, report.replayed_writes), (3, 0));
        expect_bytes(&volume, 0, &[1; 1000]).await;
    });
}

/// What the first host had sent lands when the second one has stored more than that, and a checkpoint of it.
#[test]
fn an_object_of_the_first_host_that_lands_after_the_takeover_is_deleted_by_the_next_opening() {
    run(async {
        let host = Host::new().await;
        let late = Duration::from_secs(300);
        let faults = &host.faults;
        host.in_killed_process(|volume| async move {
            write(&volume, 0, &[1; 1000]).await.unwrap();
            volume.flush_remote().await.unwrap();
            faults.change(|plan| {
                (plan.late_put, plan.late_put_delay) = (Chance::ALWAYS, late..=late);
            });
            write(&volume, 0, &[2; 1000]).await.unwrap();
            let sent = tokio::time::timeout(Duration::from_secs(1), volume.flush_remote()).await;
            sent.expect_err("nothing is stored yet");
        })
        .await;
        host.faults.calm();
        let other = host.other(5);
        let (volume, _) = other.try_open(|args| args.take_over = true).await.unwrap();
        let more = fill(&volume, 3).await;
        volume.compact(1, |_, _| {}).await.unwrap();
        tokio::time::sleep(late * 2).await;
        volume.close().await.unwrap();
        drop(volume);
        assert!(host.faults.counts().of(Fault::LatePutLanded) > 0);

        let (volume, report) = other.open().await;
        assert!(report.void_objects > 0, "{report:?}");
        volume.compact(1, |_, _| {}).await.unwrap();
        tokio::time::sleep(Duration::from_secs(30)).await;
        expect_bytes(&volume, 0, &more).await;
        volume.close().await.unwrap();
        drop(volume);
        expect_whole(&other).await;
    });
}

/// Nobody can tell from the store alone whether an object was on its way when its holder ended, or is lost. So what is
/// given up behind it is said.
#[test]
fn a_takeover_says_what_it_gives_up_behind_a_missing_object() {
    run(async {
        let mut host = Host::new().await;
        host.checkpoint_every(1000);
        host.in_killed_process(|volume| async move {
            for number in 0..4 {
                write(&volume, number * 4096, &[1; 4096]).await.unwrap();
                volume.flush_remote().await.unwrap();
            }
        })
        .await;
        let lost = objects(&host).await.swap_remove(1);
        host.store.delete(&lost).await.expect("deleted");
        let other = host.other(5);
        let (volume, report) = other.try_open(|args| args.take_over = true).await.unwrap();
        let said = report.given_up_from.map(|from| (from.object.key(), from.behind));
        assert_eq!(said, Some((lost, 2)));
        expect_bytes(&volume, 0, &[1; 4096]).await;
        expect_bytes(&volume, 4096, &[0; 3 * 4096]).await;
        volume.close().await.unwrap();
        drop(volume);
        // It was said once, of what is gone by now.
        let (_volume, report) = other.open().await;
        assert_eq!(report.given_up_from, None);
    });
}

/// A takeover that owned nothing yet has given up nothing: the first host goes on once it is known to be dead.
#[test]
fn a_takeover_that_was_cut_off_does_not_cost_the_first_host_its_journal() {
    run(async {
        let host = Host::new().await;
        host.in_killed_process(|volume| async move {
            write(&volume, 0, &[1; 1000]).await.unwrap();
            volume.flush_remote().await.unwrap();
            write(&volume, 0, &[2; 1000]).await.unwrap();
        })
        .await;
        let other = host.other(5);
        host.faults.change(|plan| plan.latency = ANSWER..=ANSWER);
        let versions = async || {
            let listed = host.store.list(&format!("{}/manifest/", host.id), None).await;
            listed.expect("listed").len()
        };
        let before = versions().await;
        let published = async {
            while versions().await == before {
                tokio::time::sleep(ANSWER / 10).await;
            }
        };
        let process = tokio::task::LocalSet::new();
        process
            .run_until(async {
                tokio::select! {
                    opened = other.try_open(|args| args.take_over = true) => panic!("{opened:?}"),
                    () = published => {}
                }
            })
            .await;
        other.disk.crash_process();
        drop(process);
        host.faults.calm();
        let begun = tokio::time::Instant::now();
        let (volume, report) = host.try_open(|_| {}).await.expect("nothing of it was given up");
        assert!(begun.elapsed() >= LEASE, "the other one may be alive");
        assert_eq!(report.replayed_writes, 1);
        expect_bytes(&volume, 0, &[2; 1000]).await;
        let refused = other.try_open(|args| args.take_over = true).await.unwrap_err();
        assert!(matches!(refused, LogError::InUse { .. }), "{refused}");
    });
}

#[test]
fn a_renewal_that_nobody_can_read_is_one_all_the_same() {
    run(async {
        let host = Host::new().await;
        host.in_killed_process(
            |volume| async move { write(&volume, 0, &[1; 1000]).await.unwrap() },
        )
        .await;
        let renewals = host.store.list("nodes/", None).await.expect("listed");
        host.faults.hide(&renewals.last().expect("it was held").key);
        let other = host.other(5);
        let refused = other.try_open(|_| {}).await.unwrap_err();
        assert!(matches!(refused, LogError::Held { .. }), "{refused}");
        other.try_open(|args| args.take_over = true).await.expect("after the usual length");
    });
}

#[test]
fn a_lost_disk_shows_a_prefix() {
    run(async {
        let host = Host::new().await;
        let block = 1000;
        host.in_killed_process(|volume| async move {
            for number in 0..400_u64 {
                write(&volume, number * 1000, &pattern(number, block)).await.unwrap();
            }
        })
        .await;
        host.disk.lose_disk();
        let refused = host.try_open(|_| {}).await.unwrap_err();
        assert!(matches!(refused, LogError::Held { .. }), "{refused}");
        let (volume, _) = host.try_open(|args| args.take_over = true).await.unwrap();
        let mut ended = None;
        for number in 0..400_u64 {
            let there = read(&volume, number * 1000, block).await.unwrap();
            if there == pattern(number, block) {
                assert_eq!(ended, None, "write {number} is visible beyond the end of the prefix");
            } else {
                assert!(there.iter().all(|b| *b == 0), "write {number} is torn");
                ended.get_or_insert(number);
            }
        }
        assert!(ended.is_none_or(|end| end > 50), "most of it was uploaded");
    });
}

#[test]
fn an_owner_that_was_superseded_is_fenced() {
    run(async {
        let (host, gate) = Host::new().await.with_gate();
        let (old, _) = host.open().await;
        write(&old, 0, &[1; 4096]).await.unwrap();
        old.flush_remote().await.unwrap();
        gate.change(|plan| plan.outage = true);
        let other = host.other(8);
        let (new, _) = other.try_open(|args| args.take_over = true).await.unwrap();
        // The old owner goes on: nothing of what it uploads may become visible to the new one.
        write(&old, 0, &[2; 4096]).await.unwrap();
        gate.change(|plan| plan.outage = false);
        let flushed = tokio::time::timeout(Duration::from_secs(60), old.flush_remote()).await;
        assert_eq!(flushed.expect("it is told").unwrap_err().kind(), ErrorKind::Fenced);
        write(&new, 8192, &[3; 4096]).await.unwrap();
        new.flush_remote().await.unwrap();
        expect_bytes(&new, 0, &[1; 4096]).await;
        assert_eq!(write(&old, 0, &[4; 10]).await.unwrap_err().kind(), ErrorKind::Fenced);
        assert_eq!(read(&old, 0, 10).await.unwrap_err().kind(), ErrorKind::Fenced);
        new.close().await.unwrap();
        drop(new);
        let (again, _) = other.other(11).open().await;
        expect_bytes(&again, 0, &[1; 4096]).await;
        expect_bytes(&again, 8192, &[3; 4096]).await;
    });
}

/// The new owner deletes objects of the old one that its own checkpoint does not need: the store has not lost them.
#[test]
fn an_owner_whose_objects_were_deleted_by_the_next_one_is_told_of_that_one() {
    run(async {
        for deletes in [false, true] {
            let (host, gate) = Host::new().await.with_gate();
            let (old, _) = host.open().await;
            for round in 0..2 {
                fill(&old, round).await;
                old.flush_remote().await.expect("in the store");
                if round == 0 {
                    old.publish().await.expect("published");
                }
            }
            let before = stored(&host).await;
            gate.change(|plan| plan.outage = true);
            let other = host.other(8);
            if deletes {
                tokio::time::sleep(LEASE * 2).await;
                let (store, env) = (&other.store, &other.env);
                let consent = DeleteConsent { take_over: true, ..DeleteConsent::default() };
                let gone = catalog::delete(store, env, &name("demo"), consent, |_, _| {}).await;
                gone.expect("deleted");
            } else {
                let (new, _) = other.try_open(|args| args.take_over = true).await.unwrap();
                fill(&new, 2).await;
                new.compact(1, |_, _| {}).await.expect("compacted");
                tokio::time::sleep(LEASE * 2).await;
            }
            assert!(!before.is_subset(&stored(&other).await), "something was deleted");
            gate.change(|plan| plan.outage = false);
            tokio::time::sleep(LEASE * 2).await;
            let failure = old.status().failure.expect("it stopped");
            assert!(!failure.contains("set back"), "{failure}");
            assert!(failure.contains("another writer"), "{failure}");
        }
    });
}

#[test]
fn a_listing_tells_a_holder_that_renews_from_one_that_is_gone() {
    run(async {
        let host = Host::new().await;
        let renews = async || {
            let shown = catalog::show(&host.store, &host.env, &name("demo")).await;
            let listed = catalog::list(&host.store, &host.env).await.expect("listed").volumes;
            let shown = shown.expect("shown").summary;
            assert_eq!(listed, std::slice::from_ref(&shown));
            (shown.holder.is_some(), shown.is_renewed)
        };
        assert_eq!(renews().await, (false, false), "nobody has it");
        host.in_killed_process(|volume| async move {
            write(&volume, 0, &[1; 1000]).await.expect("done");
            // Many lengths of its lease: it is renewed all the time.
            tokio::time::sleep(LEASE * 5).await;
            assert_eq!(renews().await, (true, true));
        })
        .await;
        tokio::time::sleep(LEASE + Duration::from_secs(1)).await;
        assert_eq!(renews().await, (true, false));
        host.open().await.0.close().await.expect("done");
        assert_eq!(renews().await, (false, false));
    });
}
