//! A volume that is deleted, and the next one of its name.

use std::time::Duration;

use bytes::Bytes;
use weir_device::{ErrorKind, SharedBuf};
use weir_disk::OpenMode;
use weir_disk::sim::CopyAs;
use weir_log::catalog::{self, DeleteConsent};
use weir_log::{Closed, JOURNAL_FILE, LogError, Takeover, VolumeState};
use weir_store::Chance;

use crate::support::{
    Host, SIZE, expect_bytes, expect_whole, fill, filled, name, objects, replace, run, try_check,
    write,
};

/// The consent of the journal that lies on this host.
async fn ours(host: &Host) -> DeleteConsent {
    let journal = catalog::journal_in(&host.disk.directory(), host.id).await.expect("readable");
    assert!(journal.is_some(), "there is one");
    DeleteConsent { ours: journal, ..DeleteConsent::default() }
}

async fn delete(host: &Host, volume: &str, consent: DeleteConsent) -> Result<(), LogError> {
    catalog::delete(&host.store, &host.env, &name(volume), consent, |_, _| {}).await
}

async fn newest(host: &Host, prefix: &str) -> String {
    let listed = host.store.list(prefix, None).await.expect("listed");
    listed.last().expect("there is one").key.clone()
}

/// How long the store takes for what it has told nobody about.
const LATE: Duration = Duration::from_secs(3600);

#[test]
fn late_puts_of_a_deleted_volume_do_not_reach_the_next_one_of_its_name() {
    run(async {
        let host = Host::new().await;
        filled(&host, 1).await;
        let faults = host.faults.clone();
        host.in_killed_process(|volume| async move {
            faults.change(|plan| {
                (plan.late_put, plan.late_put_delay) = (Chance::ALWAYS, LATE..=LATE)
            });
            write(&volume, 0, &[1; 64 << 10]).await.expect("written");
            tokio::time::sleep(Duration::from_secs(10)).await;
        })
        .await;
        host.faults.calm();
        let (store, env, demo) = (&host.store, &host.env, name("demo"));
        let ours = ours(&host).await;
        catalog::delete(store, env, &demo, ours, |_, _| {}).await.expect("deleted");
        assert!(objects(&host).await.is_empty());
        assert!(host.faults.late_puts() > 0, "they are on their way yet");

        let created = catalog::create(store, env, &demo, SIZE);
        let next = Host { id: created.await.expect("created"), ..host.other(5) };
        let (volume, _) = next.open().await;
        let bytes = fill(&volume, 2).await;
        volume.flush_remote().await.expect("flushed");
        host.faults.land_late_puts().await;
        assert!(!objects(&host).await.is_empty(), "they came");
        expect_bytes(&volume, 0, &bytes).await;
        assert_eq!(volume.close().await.expect("closed"), Closed::Clean);
        drop(volume);

        let (volume, _) = Host { id: next.id, ..host.other(7) }.open().await;
        expect_bytes(&volume, 0, &bytes).await;
        volume.close().await.expect("closed");
        expect_whole(&next).await;
        let gone = host.try_open(|_| {}).await.expect_err("the old one stays deleted");
        assert!(matches!(gone, LogError::Deleted { .. }), "{gone}");
    });
}

#[test]
fn the_journal_of_an_earlier_opening_allows_no_deletion_of_a_volume_that_is_open_with_another() {
    run(async {
        // Both hosts have the same name, as two processes of one machine have.
        let host = Host::new().await;
        filled(&host, 1).await;
        let other = host.other(5);
        let (volume, _) = other.open().await;
        let bytes = fill(&volume, 2).await;
        volume.flush_remote().await.expect("flushed");
        let before = objects(&host).await;

        let refused = delete(&host, "demo", ours(&host).await).await.expect_err("it is open");
        assert!(matches!(refused, LogError::InUse { .. }), "{refused}");
        assert_eq!(objects(&host).await, before);
        expect_bytes(&volume, 0, &bytes).await;
        assert_eq!(volume.close().await.expect("closed"), Closed::Clean);
        drop(volume);
        // Of one that died the journal may hold what nobody has uploaded.
        other.in_killed_process(|_| async {}).await;
        let refused = delete(&host, "demo", ours(&host).await).await.expect_err("not closed");
        assert!(matches!(refused, LogError::Held { .. }), "{refused}");
        delete(&other, "demo", ours(&other).await).await.expect("its own journal allows it");
        assert!(objects(&host).await.is_empty());
    });
}

#[test]
fn a_copy_of_the_journal_allows_no_deletion_of_a_volume_that_is_open() {
    run(async {
        let host = Host::new().await;
        let (volume, _) = host.open().await;
        write(&volume, 0, &[1; 4096]).await.expect("written");
        volume.flush_remote().await.expect("flushed");
        let copy = host.other(5);
        copy.disk.put_copy("", &host.disk.copy_directory(""), CopyAs::NewFiles);
        let refused = delete(&copy, "demo", ours(&copy).await).await.expect_err("it is open");
        assert!(matches!(refused, LogError::InUse { .. }), "{refused}");
        expect_bytes(&volume, 0, &[1; 4096]).await;
        volume.close().await.expect("closed");
        drop(volume);
        host.in_killed_process(|_| async {}).await;
        // A directory of before that opening, put back as the same file: another opening was in force since.
        let refused = delete(&copy, "demo", ours(&copy).await).await.expect_err("not closed");
        assert!(matches!(refused, LogError::Held { .. }), "{refused}");
        let was = host.disk.copy_directory("");
        host.in_killed_process(|_| async {}).await;
        let now = host.disk.copy_directory("");
        host.disk.put_copy("", &was, CopyAs::SameFiles);
        let refused = delete(&host, "demo", ours(&host).await).await.expect_err("not its opening");
        assert!(matches!(refused, LogError::Held { .. }), "{refused}");
        host.disk.put_copy("", &now, CopyAs::SameFiles);
        delete(&host, "demo", ours(&host).await).await.expect("its own journal allows it");
    });
}

#[test]
fn a_journal_that_says_nothing_allows_nothing() {
    run(async {
        let host = Host::new().await;
        let directory = host.disk.directory();
        assert!(catalog::journal_in(&directory, host.id).await.expect("none").is_none());
        filled(&host, 1).await;
        let there = catalog::journal_in(&directory, host.id).await.expect("readable");
        assert!(there.is_some());
        let another = weir_device::VolumeId([9; 16]);
        assert!(catalog::journal_in(&directory, another).await.expect("readable").is_none());
        directory.remove(JOURNAL_FILE).await.expect("removed");
        let file = directory.open(JOURNAL_FILE, OpenMode::CreateNew).await.expect("created");
        let garbage = SharedBuf::copy_of(&[0x5a; 8192]);
        file.write_at(vec![garbage], 0).await.1.expect("written");
        assert!(catalog::journal_in(&directory, host.id).await.expect("readable").is_none());
    });
}

#[test]
fn a_deletion_that_began_stays_one_though_a_clone_shows_up() {
    run(async {
        let host = Host::new().await;
        let (volume, _) = host.open().await;
        fill(&volume, 1).await;
        volume.snapshot(&name("cut")).await.expect("taken");
        volume.close().await.expect("closed");
        drop(volume);
        let from = (&name("demo"), &name("cut"));
        let (store, env) = (&host.store, &host.env);
        catalog::create_clone(store, env, from, &name("other"), Takeover::Manual)
            .await
            .expect("made");
        // Its note is missing while the deletion begins, and the first objects go.
        let note = newest(&host, &format!("{}/dependants/", host.id)).await;
        let body = store.get(&note).await.expect("read");
        store.delete(&note).await.expect("deleted");
        let (faults, demo) = (host.faults.clone(), name("demo"));
        let interrupted =
            catalog::delete(store, env, &demo, DeleteConsent::default(), |done, _| {
                if done == 1 {
                    faults.change(|plan| plan.outage = true);
                }
            });
        interrupted.await.expect_err("the store went away");
        host.faults.calm();
        store.put_create(&note, vec![body]).await.expect("put");

        let refused =
            delete(&host, "demo", DeleteConsent::default()).await.expect_err("a clone needs it");
        assert!(matches!(refused, LogError::Dependants { .. }), "{refused}");
        let shown = catalog::show(store, env, &name("demo")).await.expect("shown");
        assert_eq!(shown.summary.state, VolumeState::Deleted, "objects are gone");
        let closed = host.try_open(|_| {}).await.expect_err("it is deleted");
        assert!(matches!(closed, LogError::Deleted { .. }), "{closed}");
    });
}

#[test]
fn a_volume_of_a_newer_program_cannot_be_checked_and_is_not_called_damaged() {
    run(async {
        let host = Host::new().await;
        let manifest = newest(&host, &format!("{}/manifest/", host.id)).await;
        replace(&host, &manifest, &b"{\"format\": 4000000}"[..]).await;
        let refused = try_check(&host).await.map(drop).expect_err("nothing is known of it");
        assert_eq!(refused.kind(), ErrorKind::Unsupported);
        assert!(refused.to_string().contains("use a newer Weir"), "{refused}");
    });
}

#[test]
fn a_listing_names_what_cannot_be_read_and_goes_on() {
    run(async {
        let host = Host::new().await;
        let (store, env) = (&host.store, &host.env);
        for volume in ["a", "b", "c", "d"] {
            catalog::create(store, env, &name(volume), SIZE).await.expect("created");
        }
        let id = catalog::find(store, env, &name("b")).await.expect("found");
        let manifest = newest(&host, &format!("{id}/manifest/")).await;
        replace(&host, &manifest, &b"{\"format\": 1"[..]).await;
        let record = newest(&host, "names/c/").await;
        replace(&host, &record, &b"garbage"[..]).await;
        let id = catalog::find(store, env, &name("d")).await.expect("found");
        let manifest = newest(&host, &format!("{id}/manifest/")).await;
        replace(&host, &manifest, &b"{\"format\": 4000000}"[..]).await;

        let listing = catalog::list(store, env).await.expect("listed");
        let names: Vec<_> = listing.volumes.iter().map(|v| v.name.as_str()).collect();
        assert_eq!(names, ["a", "demo"]);
        let unreadable: Vec<_> =
            listing.unreadable.iter().map(|(name, error)| (name.as_str(), error.kind())).collect();
        let expected =
            [("b", ErrorKind::Corrupt), ("c", ErrorKind::Corrupt), ("d", ErrorKind::Unsupported)];
        assert_eq!(unreadable, expected);
        // A store that does not answer is nobody's own fault.
        host.faults.change(|plan| plan.get.server_error = Chance::ALWAYS);
        let error = catalog::list(store, env).await.expect_err("no answer");
        assert_eq!(error.kind(), ErrorKind::Unavailable, "{error}");
    });
}

#[test]
fn a_deleted_volume_leaves_two_versions_of_its_manifest() {
    run(async {
        let host = Host::new().await;
        filled(&host, 1).await;
        let (volume, _) = host.open().await;
        for snapshot in ["a", "b", "c"] {
            volume.snapshot(&name(snapshot)).await.expect("taken");
        }
        volume.close().await.expect("closed");
        let (store, env) = (&host.store, &host.env);
        let from = (&name("demo"), &name("a"));
        let made = catalog::create_clone(store, env, from, &name("copy"), Takeover::Manual).await;
        made.expect("made");
        let refused = delete(&host, "demo", DeleteConsent::default()).await;
        assert!(matches!(refused, Err(LogError::Dependants { .. })), "{refused:?}");
        delete(&host, "copy", DeleteConsent::default()).await.expect("deleted");
        delete(&host, "demo", DeleteConsent::default()).await.expect("deleted");
        let left = host.store.list("", None).await.expect("listed");
        let left = left.iter().filter(|l| !l.key.starts_with("names/"));
        let left: Vec<&str> =
            left.filter(|l| !l.key.starts_with("nodes/")).map(|l| &*l.key).collect();
        let own = left.iter().filter(|key| key.starts_with(&format!("{}/manifest/", host.id)));
        assert_eq!(own.count(), 2, "{left:?}");
        assert!(left.iter().all(|key| key.contains("/manifest/")) && left.len() <= 4, "{left:?}");
        let listed = catalog::list(store, env).await.expect("listed");
        assert!(listed.volumes.is_empty() && listed.unreadable.is_empty());
    });
}

/// Under the keys of what was deleted there may be a replica by then.
#[test]
fn a_deletion_that_slept_does_not_go_on_after_another_one_ended_it() {
    run(async {
        let mut host = Host::new().await;
        host.options.batch.bytes = 64 << 10;
        filled(&host, 1).await;
        let before = objects(&host).await;
        assert!(before.len() > 10, "{before:?}");
        let (slow, gate) = Host { id: host.id, ..host.other(5) }.with_gate();
        let first = tokio::task::spawn_local(async move {
            let (store, env, consent) = (&slow.store, &slow.env, DeleteConsent::default());
            let (demo, late) = (name("demo"), Duration::from_secs(10));
            let stall = |done, _| {
                if done == 3 {
                    gate.change(|plan| plan.latency = late..=late)
                }
            };
            catalog::delete(store, env, &demo, consent, stall).await
        });
        tokio::time::sleep(Duration::from_secs(1)).await;
        delete(&host, "demo", DeleteConsent::default()).await.expect("deleted");
        assert!(objects(&host).await.is_empty());
        for key in &before {
            host.store.put_create(key, vec![Bytes::from_static(b"copied")]).await.expect("put");
        }
        let stopped = first.await.expect("ended").unwrap_err();
        assert!(matches!(stopped, LogError::Inconsistent { .. }), "{stopped}");
        let gone = before.len() - objects(&host).await.len();
        assert!(gone <= 1, "the one that was on its way: {gone}");
    });
}
