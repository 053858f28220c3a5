//! Who may open a volume when: holders that live, died, were cut off or stopped, and the leases of their nodes.

use std::rc::Rc;
use std::time::Duration;

use tokio::time::Instant;
use weir_device::ErrorKind;
use weir_log::{LeaseSettings, LogError, LogVolume, NodeLease, OpenArgs, Takeover, catalog};
use weir_store::Chance;

use crate::support::{
    Host, LEASE, SIZE, expect_bytes, fill, flush, leases, objects, read, run, write,
};

async fn set_auto(host: &Host) {
    let name = catalog::VolumeName::new("demo").expect("valid");
    catalog::set_takeover(&host.store, &host.env, &name, Takeover::Auto).await.expect("set");
}

#[test]
fn a_holder_that_renews_keeps_its_volume_whatever_the_flags() {
    run(async {
        let host = Host::new().await;
        let (volume, _) = host.open().await;
        write(&volume, 0, &[1; 100]).await.unwrap();
        let other = host.other(5);
        for take_over in [false, true] {
            let refused = other.try_open(|args| args.take_over = take_over).await.unwrap_err();
            assert!(
                matches!(&refused, LogError::InUse { node, .. } if node == "test"),
                "{refused}"
            );
        }
        write(&volume, 0, &[2; 100]).await.unwrap();
        volume.flush_remote().await.unwrap();
    });
}

#[test]
fn a_dead_holder_is_waited_for_and_its_own_host_does_not_wait() {
    run(async {
        let host = Host::new().await;
        host.in_killed_process(|volume| async move {
            write(&volume, 0, &[1; 50_000]).await.unwrap();
        })
        .await;
        let other = host.other(5);
        let begun = Instant::now();
        let refused = other.try_open(|_| {}).await.unwrap_err();
        assert!(begun.elapsed() >= LEASE, "only after the whole lease");
        let text = refused.to_string();
        assert!(matches!(refused, LogError::Held { .. }) && text.contains("of test"), "{text}");
        let begun = Instant::now();
        let (volume, _) = host.open().await;
        assert!(begun.elapsed() < Duration::from_secs(2), "the same journal: at once");
        expect_bytes(&volume, 0, &[1; 50_000]).await;
    });
}

#[test]
fn a_lost_disk_does_not_wait_for_its_own_renewals() {
    run(async {
        let host = Host::new().await;
        host.in_killed_process(|volume| async move {
            write(&volume, 0, &[1; 5000]).await.unwrap();
            volume.flush_remote().await.unwrap();
        })
        .await;
        host.disk.lose_disk();
        let (volume, _) = host.try_open(|args| args.take_over = true).await.unwrap();
        expect_bytes(&volume, 0, &[1; 5000]).await;
    });
}

#[test]
fn with_takeover_auto_a_holder_that_is_cut_off_stops_before_another_begins() {
    run(async {
        let (host, gate) = Host::new().await.with_gate();
        set_auto(&host).await;
        let (old, _) = host.open().await;
        write(&old, 0, &[1; 4096]).await.unwrap();
        old.flush_remote().await.unwrap();
        let replied = leases(&old).await;
        gate.change(|plan| plan.outage = true);
        let (new, _) = host.other(5).open().await;
        assert_eq!(replied.check().unwrap_err().kind(), ErrorKind::Fenced);
        assert_eq!(write(&old, 0, &[2; 10]).await.unwrap_err().kind(), ErrorKind::Fenced);
        assert_eq!(read(&old, 0, 10).await.unwrap_err().kind(), ErrorKind::Fenced);
        expect_bytes(&new, 0, &[1; 4096]).await;
    });
}

#[test]
fn with_takeover_auto_a_missed_deadline_stays_missed() {
    run(async {
        let (host, gate) = Host::new().await.with_gate();
        set_auto(&host).await;
        let (volume, _) = host.open().await;
        gate.change(|plan| plan.outage = true);
        tokio::time::sleep(LEASE * 2).await;
        gate.change(|plan| plan.outage = false);
        tokio::time::sleep(LEASE * 2).await;
        let refused = write(&volume, 0, &[1; 10]).await.unwrap_err();
        assert_eq!(refused.kind(), ErrorKind::Fenced, "{refused}");
        drop(volume);
        let (again, _) = host.open().await;
        write(&again, 0, &[1; 10]).await.unwrap();
    });
}

#[test]
fn a_missed_deadline_counts_at_once_and_once_and_one_of_nobody_does_not() {
    run(async {
        let (host, gate) = Host::new().await.with_gate();
        let mut lease = None;
        let (volume, _) = host.try_open(|args| lease = Some(args.lease.clone())).await.unwrap();
        let lease = lease.expect("an opening has one");
        let missed = || lease.status(&*host.env.clock).missed;
        assert_eq!(missed(), 0);
        gate.change(|plan| plan.outage = true);
        tokio::time::sleep(LEASE * 2).await;
        assert_eq!(missed(), 1, "while it lasts");
        gate.calm();
        tokio::time::sleep(LEASE).await;
        assert!(volume.status().lease_held);
        assert_eq!(missed(), 1);
        gate.change(|plan| plan.outage = true);
        tokio::time::sleep(LEASE * 2).await;
        gate.calm();
        tokio::time::sleep(LEASE).await;
        assert!(volume.status().lease_held);
        assert_eq!(missed(), 2, "nobody asked while it lasted");
        volume.close().await.expect("closed");
        drop(volume);
        tokio::time::sleep(LEASE * 3).await;
        assert_eq!(missed(), 2);
        let (again, _) = host.try_open(|args| args.lease = lease.clone()).await.unwrap();
        assert!(again.status().lease_held);
        assert_eq!(missed(), 2, "nobody held it when it ended");
    });
}

#[test]
fn a_missed_deadline_is_what_reads_say_though_the_journal_failed_before() {
    run(async {
        let (host, gate) = Host::new().await.with_gate();
        set_auto(&host).await;
        let (volume, _) = host.open().await;
        write(&volume, 0, &[1; 10]).await.unwrap();
        host.disk.fail_next_syncs(1);
        assert_eq!(flush(&volume).await.unwrap_err().kind(), ErrorKind::Poisoned);
        expect_bytes(&volume, 0, &[1; 10]).await;
        gate.change(|plan| plan.outage = true);
        tokio::time::sleep(LEASE * 2).await;
        let refused = read(&volume, 0, 10).await.unwrap_err();
        assert_eq!(refused.kind(), ErrorKind::Fenced, "{refused}");
    });
}

#[test]
fn with_takeover_manual_a_holder_that_is_cut_off_goes_on() {
    run(async {
        let (host, gate) = Host::new().await.with_gate();
        let (volume, _) = host.open().await;
        gate.change(|plan| plan.outage = true);
        tokio::time::sleep(LEASE * 3).await;
        assert!(!volume.status().lease_held);
        write(&volume, 0, &[1; 100]).await.unwrap();
        flush(&volume).await.unwrap();
        expect_bytes(&volume, 0, &[1; 100]).await;
        gate.change(|plan| plan.outage = false);
        volume.flush_remote().await.unwrap();
        assert!(volume.status().lease_held);
        let refused = host.other(5).try_open(|args| args.take_over = true).await.unwrap_err();
        assert!(matches!(refused, LogError::InUse { .. }), "{refused}");
        volume.close().await.unwrap();
    });
}

#[test]
fn nobody_waits_for_a_volume_whose_close_failed() {
    run(async {
        let (host, gate) = Host::new().await.with_gate();
        let (volume, _) = host.open().await;
        gate.change(|plan| plan.outage = true);
        tokio::time::sleep(LEASE * 3).await;
        host.disk.fail_next_syncs(1);
        write(&volume, 0, &[1; 100]).await.unwrap();
        let flushing = Rc::clone(&volume);
        let flushed = tokio::task::spawn_local(async move { flushing.flush_remote().await });
        tokio::task::yield_now().await;
        assert_eq!(volume.close().await.unwrap_err().kind(), ErrorKind::Poisoned);
        gate.change(|plan| plan.outage = false);
        let flushed = tokio::time::timeout(LEASE * 10, flushed).await.expect("ends");
        assert_eq!(flushed.unwrap().unwrap_err().kind(), ErrorKind::Poisoned);
    });
}

async fn takeover_of(host: &Host) -> Takeover {
    let name = catalog::VolumeName::new("demo").expect("valid");
    catalog::show(&host.store, &host.env, &name).await.expect("there").summary.takeover
}

#[test]
fn an_open_volume_is_set_to_auto_and_stops_in_time() {
    run(async {
        let (host, gate) = Host::new().await.with_gate();
        let (old, _) = host.open().await;
        old.set_takeover(Takeover::Auto).await.unwrap();
        old.set_takeover(Takeover::Auto).await.expect("what it is already");
        assert_eq!(takeover_of(&host).await, Takeover::Auto);
        assert_eq!(old.status().takeover, Takeover::Auto);
        write(&old, 0, &[1; 4096]).await.unwrap();
        old.flush_remote().await.unwrap();
        let replied = leases(&old).await;
        gate.change(|plan| plan.outage = true);
        let (new, _) = host.other(5).open().await;
        assert_eq!(replied.check().unwrap_err().kind(), ErrorKind::Fenced);
        assert_eq!(write(&old, 0, &[2; 10]).await.unwrap_err().kind(), ErrorKind::Fenced);
        expect_bytes(&new, 0, &[1; 4096]).await;
    });
}

#[test]
fn an_open_volume_is_set_to_manual_and_goes_on_when_it_is_cut_off() {
    run(async {
        let (host, gate) = Host::new().await.with_gate();
        set_auto(&host).await;
        let (volume, _) = host.open().await;
        volume.set_takeover(Takeover::Manual).await.unwrap();
        assert_eq!(takeover_of(&host).await, Takeover::Manual);
        gate.change(|plan| plan.outage = true);
        tokio::time::sleep(LEASE * 3).await;
        write(&volume, 0, &[1; 100]).await.unwrap();
        let refused = host.other(5).try_open(|_| {}).await.unwrap_err();
        assert!(matches!(refused, LogError::Held { .. }), "{refused}");
        // Without its lease it may not be changed; with the lease again it may.
        let changing = Rc::clone(&volume);
        let change =
            tokio::task::spawn_local(async move { changing.set_takeover(Takeover::Auto).await });
        tokio::time::sleep(LEASE).await;
        write(&volume, 0, &[2; 100]).await.expect("nothing is changed yet");
        gate.change(|plan| plan.outage = false);
        change.await.unwrap().unwrap();
        assert_eq!(takeover_of(&host).await, Takeover::Auto);
        volume.close().await.unwrap();
    });
}

#[test]
fn while_the_change_to_auto_is_on_its_way_the_volume_stops_in_time() {
    run(async {
        let (host, gate) = Host::new().await.with_gate();
        let (volume, _) = host.open().await;
        // The version may be in the store although no answer comes.
        gate.change(|plan| plan.outage = true);
        let changing = Rc::clone(&volume);
        tokio::task::spawn_local(async move { changing.set_takeover(Takeover::Auto).await });
        tokio::time::sleep(LEASE * 2).await;
        let refused = write(&volume, 0, &[1; 10]).await.unwrap_err();
        assert_eq!(refused.kind(), ErrorKind::Fenced, "{refused}");
    });
}

#[test]
fn a_lease_survives_lost_replies_and_failing_requests() {
    run(async {
        let host = Host::new().await;
        set_auto(&host).await;
        host.faults.change(|plan| {
            plan.lost_reply = Chance::percent(20);
            plan.put.server_error = Chance::percent(20);
            plan.list.server_error = Chance::percent(20);
            plan.get.server_error = Chance::percent(20);
        });
        let (volume, _) = host.open().await;
        for round in 0..50 {
            tokio::time::sleep(LEASE / 2).await;
            write(&volume, round, &[1; 100]).await.unwrap();
            leases(&volume).await.check().unwrap();
        }
    });
}

#[test]
fn old_manifests_and_renewals_are_deleted() {
    run(async {
        let host = Host::new().await;
        let (volume, _) = host.open().await;
        for round in 0..150_u64 {
            tokio::time::sleep(Duration::from_secs(60)).await;
            write(&volume, round, &[1; 40_000]).await.unwrap();
            volume.flush_remote().await.unwrap();
        }
        for prefix in
            [format!("{}/manifest/", host.id), "nodes/03030303030303030303030303030303/".into()]
        {
            let listed = host.store.list(&prefix, None).await.unwrap();
            let first = listed.first().unwrap().key.clone();
            assert!(listed.len() > 64, "{} of {prefix}", listed.len());
            assert!(!first.ends_with("0000000000000001.json"), "{first}");
        }
        volume.close().await.unwrap();
        drop(volume);
        let (_volume, report) = host.other(5).open().await;
        assert_eq!(report.epoch, 2);
    });
}

#[test]
fn a_clock_that_hides_time_harms_no_data() {
    run(async {
        let (host, gate) = Host::new().await.with_gate();
        set_auto(&host).await;
        let (old, _) = host.open().await;
        write(&old, 0, &[1; 4096]).await.unwrap();
        old.flush_remote().await.unwrap();
        // Its machine is paused for longer than its lease, and does not know.
        gate.change(|plan| plan.silence = true);
        let begun = Instant::now();
        let (new, _) = host.other(5).open().await;
        host.hidden.set(begun.elapsed());
        gate.change(|plan| plan.silence = false);
        write(&new, 0, &[2; 4096]).await.unwrap();
        new.flush_remote().await.unwrap();
        let _ = write(&old, 0, &[3; 40_000]).await;
        let _ = tokio::time::timeout(LEASE * 4, old.flush_remote()).await;
        new.close().await.unwrap();
        drop((old, new));
        let (again, _) = host.other(6).open().await;
        expect_bytes(&again, 0, &[2; 4096]).await;
        let rest = read(&again, 4096, 30_000).await.unwrap();
        assert!(rest.iter().all(|byte| *byte == 0), "nothing of the old epoch shows");
    });
}

#[test]
fn nothing_is_deleted_without_the_lease_however_long_it_was_tried() {
    run(async {
        let (host, gate) = Host::new().await.with_gate();
        let (volume, _) = host.open().await;
        fill(&volume, 1).await;
        gate.change(|plan| plan.delete.server_error = Chance::percent(100));
        fill(&volume, 2).await;
        volume.flush_remote().await.unwrap();
        assert!(volume.status().pending_deletions > 0);
        // The lease runs out while what is listed is still being tried.
        gate.change(|plan| plan.put.server_error = Chance::percent(100));
        tokio::time::sleep(LEASE + LEASE / 2).await;
        assert!(!volume.status().lease_held);
        let before = objects(&host).await.len();
        gate.change(|plan| plan.delete.server_error = Chance::NEVER);
        tokio::time::sleep(LEASE * 3).await;
        assert_eq!(objects(&host).await.len(), before);
        gate.calm();
        volume.flush_remote().await.unwrap();
        tokio::time::sleep(LEASE * 3).await;
        assert!(volume.status().lease_held && volume.status().pending_deletions == 0);
        assert!(objects(&host).await.len() < before);
    });
}

#[test]
fn a_holder_that_renews_is_not_taken_over_by_one_whose_looks_are_slow() {
    run(async {
        let host = Host::new().await;
        let (volume, _) = host.open().await;
        for step in 1..40 {
            let other = host.other(10 + step);
            // Its own renewals are quick.
            let lease = other.args().lease;
            let (other, gate) = other.with_gate();
            let opening = other.try_open(|args| (args.take_over, args.lease) = (true, lease));
            // Its first look is quick; the reply to a later one takes longer than the lease.
            let slow = async {
                tokio::time::sleep(Duration::from_millis(step)).await;
                let longest = LEASE * u32::try_from(step).expect("small") / 10;
                gate.change(|plan| plan.latency = longest..=longest);
            };
            let (refused, ()) = futures_util::join!(opening, slow);
            let refused = refused.unwrap_err();
            assert!(matches!(&refused, LogError::InUse { .. }), "{step}: {refused}");
        }
        write(&volume, 0, &[2; 100]).await.unwrap();
        volume.flush_remote().await.unwrap();
    });
}

/// The lease is long, so that neither its end nor a renewal ends the wait.
#[test]
fn an_opening_that_waits_goes_on_once_the_holder_has_closed() {
    run(async {
        let host = Host::new().await;
        let hour = Duration::from_secs(3600);
        let args = host.args();
        let settings = LeaseSettings::of_length(hour);
        let lease = NodeLease::start(host.store.clone(), &host.env, host.node, "test", settings);
        let (held, _) = LogVolume::open(OpenArgs { lease, ..args }).await.unwrap();
        write(&held, 0, &[7; 100]).await.unwrap();
        let other = host.other(5);
        let mut opening = std::pin::pin!(other.try_open(|_| {}));
        tokio::select! {
            opened = &mut opening => panic!("{opened:?}"),
            () = tokio::time::sleep(hour / 60) => {}
        }
        held.close().await.unwrap();
        let closed = Instant::now();
        let (volume, _) = opening.await.expect("nobody has it");
        assert!(closed.elapsed() < Duration::from_secs(30), "{:?}", closed.elapsed());
        expect_bytes(&volume, 0, &[7; 100]).await;
    });
}

/// Each version of the manifest is no new holder, so that the wait does not begin anew with it.
#[test]
fn an_opening_beside_a_holder_that_takes_snapshots_is_refused() {
    run(async {
        let host = Host::new().await;
        let (held, _) = host.open().await;
        let other = host.other(5);
        let snapshots = async {
            for number in 0.. {
                held.snapshot(&catalog::VolumeName::new(&format!("s{number}")).unwrap())
                    .await
                    .unwrap();
                tokio::time::sleep(LEASE / 40).await;
            }
        };
        tokio::select! {
            refused = other.try_open(|_| {}) => {
                let refused = refused.unwrap_err();
                assert!(matches!(&refused, LogError::InUse { .. }), "{refused}");
            }
            () = snapshots => {}
            () = tokio::time::sleep(LEASE * 3) => panic!("the renewals are not seen"),
        }
    });
}

#[test]
fn a_volume_that_is_closed_ends_the_renewals_of_no_other() {
    run(async {
        let host = Host::new().await;
        let args = host.args();
        let mut opened = Vec::new();
        for volume in ["a", "b", "c"] {
            let directory = args.directory.subdirectory(volume).await.unwrap();
            let name = catalog::VolumeName::new(volume).unwrap();
            let id = catalog::create(&host.store, &host.env, &name, SIZE).await.unwrap();
            if volume == "c" {
                let first: Rc<LogVolume> = opened.remove(0);
                first.close().await.unwrap();
            }
            let args = OpenArgs { id, directory, ..args.clone() };
            opened.push(LogVolume::open(args).await.unwrap().0);
        }
        opened.pop().expect("c").close().await.unwrap();
        tokio::time::sleep(5 * LEASE).await;
        let volume = opened.pop().expect("b");
        assert!(volume.status().lease_held);
    });
}

#[test]
fn a_volume_that_is_opened_while_an_idle_lease_lasts_has_it_renewed() {
    run(async {
        let host = Host::new().await;
        let args = host.args();
        let renew_every = args.lease.settings().renew_every;
        let (volume, _) = LogVolume::open(args.clone()).await.unwrap();
        volume.close().await.unwrap();
        drop(volume);
        // The time of the next renewal comes, and nothing is open.
        tokio::time::sleep(renew_every + Duration::from_millis(10)).await;
        let (volume, _) = LogVolume::open(args).await.unwrap();
        assert!(volume.status().lease_held);
        for _ in 0..20 {
            tokio::time::sleep(LEASE / 4).await;
            assert!(volume.status().lease_held);
        }
        volume.close().await.unwrap();
    });
}
