//! Snapshots: they show their cut for ever, cost what they alone hold, and take the volume back.

use std::collections::BTreeMap;
use std::rc::Rc;
use std::time::Duration;

use weir_device::{DeviceExt, ErrorKind};
use weir_log::format::frame::Compression;
use weir_log::{Closed, LogVolume, SnapshotSpace, Takeover, catalog, snapshot_space};
use weir_store::Chance;

use crate::support::{
    Host, SIZE, discard, expect_bytes, expect_whole, fill, name, object_key, pattern, run, show,
    write,
};

async fn stored_objects(host: &Host) -> usize {
    host.store.list(&format!("{}/log/", host.id), None).await.expect("listed").len()
}

async fn let_it_settle(volume: &LogVolume) {
    volume.flush_remote().await.expect("flushed");
    tokio::time::sleep(Duration::from_secs(30)).await;
}

#[test]
fn snapshots_show_their_cut_whatever_is_written_collected_and_restarted() {
    run(async {
        let host = Host::new().await;
        let mut cuts = Vec::new();
        for round in 0..5 {
            let cut = host
                .in_killed_process(|volume| async move {
                    let data = fill(&volume, round).await;
                    let taken = volume.snapshot(&name(&format!("s{round}"))).await.unwrap();
                    assert_eq!(taken.size, SIZE);
                    fill(&volume, 100 + round).await;
                    volume.flush_remote().await.unwrap();
                    data
                })
                .await;
            cuts.push(cut);
            for (round, cut) in cuts.iter().enumerate() {
                assert!(show(&host, &format!("s{round}")).await == *cut, "snapshot {round}");
            }
        }
        let (volume, _) = host.open().await;
        assert_eq!(volume.snapshots().len(), 5);
        let again = volume.snapshot(&name("s1")).await.unwrap_err();
        assert_eq!(again.kind(), ErrorKind::Exists);
        let data = fill(&volume, 77).await;
        let_it_settle(&volume).await;
        expect_whole(&host).await;
        let with_all = stored_objects(&host).await;
        for gone in ["s0", "s2", "s3", "s4"] {
            volume.delete_snapshot(&name(gone)).await.unwrap();
        }
        let missing = volume.delete_snapshot(&name("s0")).await.unwrap_err();
        assert_eq!(missing.kind(), ErrorKind::NotFound);
        let_it_settle(&volume).await;
        assert_eq!(volume.close().await.unwrap(), Closed::Clean);
        drop(volume);
        let (volume, _) = host.other(9).open().await;
        let_it_settle(&volume).await;
        let with_one = stored_objects(&host).await;
        assert!(with_one < with_all * 6 / 10, "{with_one} of {with_all} objects are left");
        assert!(show(&host, "s1").await == cuts[1]);
        expect_bytes(&volume, 0, &data).await;
        expect_whole(&host).await;
        volume.delete_snapshot(&name("s1")).await.unwrap();
        let_it_settle(&volume).await;
        expect_whole(&host).await;
        volume.check_invariants();
        let with_none = stored_objects(&host).await;
        assert!(with_none < with_one, "{with_none} of {with_one} objects are left");
    });
}

/// Keys of the volume's objects, and their sizes.
async fn sizes(host: &Host) -> BTreeMap<String, u64> {
    let listed = host.store.list(&format!("{}/log/", host.id), None).await.expect("listed");
    listed.into_iter().map(|object| (object.key, object.size)).collect()
}

async fn space(host: &Host) -> BTreeMap<String, SnapshotSpace> {
    let spaces =
        snapshot_space(&host.store, &host.env, (host.id, &host.keys)).await.expect("summed up");
    spaces.into_iter().map(|space| (space.name.clone(), space)).collect()
}

/// Deletes a snapshot, and sees whether that gives back what was said, no less and no more.
async fn expect_given_back(host: &Host, volume: &LogVolume, snapshot: &str) -> u64 {
    let said = space(host).await[snapshot].clone();
    assert_eq!(said.shared_bytes + said.reclaimable_bytes, said.reached_bytes);
    let before = sizes(host).await;
    volume.delete_snapshot(&name(snapshot)).await.expect("deleted");
    let_it_settle(volume).await;
    let after = sizes(host).await;
    let gone = before.iter().filter(|(key, _)| !after.contains_key(*key));
    assert_eq!(gone.map(|(_, size)| size).sum::<u64>(), said.reclaimable_bytes, "{snapshot}");
    said.reclaimable_bytes
}

/// An object stays whole for the part of it that a snapshot shows, so that it keeps a few bytes of others.
const MOST: u64 = SIZE * 9 / 10;

#[test]
fn deleting_a_snapshot_gives_back_what_was_said() {
    run(async {
        let mut host = Host::encrypted().await;
        host.options.compression = Compression::None;
        let (volume, _) = host.open().await;
        fill(&volume, 1).await;
        volume.snapshot(&name("a")).await.unwrap();
        volume.snapshot(&name("b")).await.unwrap();
        let_it_settle(&volume).await;
        let unshared = space(&host).await;
        assert!(unshared["a"].reached_bytes >= SIZE, "nothing is compressed");
        for twin in ["a", "b"] {
            let SnapshotSpace { reached_bytes, shared_bytes, reclaimable_bytes, .. } =
                unshared[twin];
            assert!(reclaimable_bytes < SIZE / 20, "{twin}: its checkpoint at most");
            assert_eq!(shared_bytes + reclaimable_bytes, reached_bytes);
        }
        fill(&volume, 2).await;
        volume.snapshot(&name("c")).await.unwrap();
        fill(&volume, 3).await;
        volume.snapshot(&name("d")).await.unwrap();
        let_it_settle(&volume).await;
        assert!(
            expect_given_back(&host, &volume, "c").await >= MOST,
            "nobody else has those bytes"
        );
        assert!(expect_given_back(&host, &volume, "a").await < SIZE / 20, "its twin has them");
        assert!(expect_given_back(&host, &volume, "b").await >= MOST, "and is the last to");
        assert!(
            expect_given_back(&host, &volume, "d").await < SIZE - MOST + SIZE / 10,
            "the volume has most of them"
        );
        assert_eq!(space(&host).await, BTreeMap::new());
        expect_whole(&host).await;
    });
}

#[test]
fn a_snapshot_reaches_nothing_that_it_does_not_show() {
    run(async {
        let mut host = Host::new().await;
        // No checkpoint of its own accord: what died is in none when the snapshot is taken.
        host.checkpoint_every(1000);
        let (volume, _) = host.open().await;
        fill(&volume, 1).await;
        volume.flush_remote().await.unwrap();
        discard(&volume, 0, SIZE).await;
        write(&volume, 0, &pattern(2, 4096)).await.unwrap();
        volume.snapshot(&name("pin")).await.unwrap();
        let pin = space(&host).await["pin"].clone();
        assert!(pin.reached_bytes < 16 << 10, "{pin:?}");
        let_it_settle(&volume).await;
        let stored: u64 = sizes(&host).await.values().sum();
        assert!(stored < 32 << 10, "{stored} bytes stored");
        expect_whole(&host).await;
        drop(volume);
        host.disk.crash_process();
        tokio::time::sleep(Duration::from_secs(1)).await;
        let (volume, _) = host.open().await;
        assert!(show(&host, "pin").await[..4096] == pattern(2, 4096)[..]);
        fill(&volume, 3).await;
        volume.delete_snapshot(&name("pin")).await.unwrap();
        let_it_settle(&volume).await;
        volume.check_invariants();
        volume.close().await.unwrap();
        expect_whole(&host).await;
    });
}

#[test]
fn a_snapshot_that_a_clone_needs_gives_nothing_back() {
    run(async {
        let mut host = Host::new().await;
        host.options.compression = Compression::None;
        let (volume, _) = host.open().await;
        fill(&volume, 1).await;
        volume.snapshot(&name("base")).await.unwrap();
        fill(&volume, 2).await;
        volume.snapshot(&name("next")).await.unwrap();
        let_it_settle(&volume).await;
        assert!(space(&host).await["base"].reclaimable_bytes >= MOST);
        let (demo, from, copy) = (name("demo"), name("base"), name("copy"));
        let (store, env, takeover) = (&host.store, &host.env, Takeover::Manual);
        catalog::create_clone(store, env, (&demo, &from), &copy, takeover).await.unwrap();
        let base = space(&host).await["base"].clone();
        assert_eq!((base.clones, base.reclaimable_bytes), (1, 0));
        assert_eq!(base.shared_bytes, base.reached_bytes);
        assert_eq!(expect_given_back(&host, &volume, "base").await, 0);
        assert!(space(&host).await["base"].deleting);
        host.faults.change(|plan| plan.outage = true);
        let error =
            snapshot_space(&host.store, &host.env, (host.id, &host.keys)).await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Unavailable);
        host.faults.calm();
    });
}

#[test]
fn a_snapshot_holds_what_was_acknowledged_before_and_a_prefix_of_the_rest() {
    run(async {
        let host = Host::new().await;
        let (volume, _) = host.open().await;
        let writer = async {
            for n in 0..200_u64 {
                write(&volume, n * 4096, &pattern(n + 1, 4096)).await.unwrap();
            }
        };
        let taker = async {
            tokio::time::sleep(Duration::from_millis(1)).await;
            volume.snapshot(&name("busy")).await.unwrap()
        };
        let ((), taken) = futures_util::join!(writer, taker);
        let shown = show(&host, "busy").await;
        let there = (0..200_usize)
            .take_while(|n| shown[n * 4096..(n + 1) * 4096] == pattern(*n as u64 + 1, 4096))
            .count();
        assert!(shown[there * 4096..].iter().all(|byte| *byte == 0), "a prefix");
        assert_eq!(taken.last_write.write, there as u64);
    });
}

#[test]
fn rollback_takes_the_volume_back_and_later_snapshots_stay() {
    run(async {
        let host = Host::new().await;
        let (volume, _) = host.open().await;
        let first = fill(&volume, 1).await;
        volume.snapshot(&name("first")).await.unwrap();
        let second = fill(&volume, 2).await;
        volume.resize(2 * SIZE).await.unwrap();
        write(&volume, SIZE + 5, &[7; 100]).await.unwrap();
        volume.snapshot(&name("second")).await.unwrap();
        fill(&volume, 3).await;
        let missing = volume.rollback(&name("never")).await.unwrap_err();
        assert_eq!(missing.kind(), ErrorKind::NotFound);

        volume.rollback(&name("first")).await.unwrap();
        assert_eq!(volume.size(), SIZE);
        expect_bytes(&volume, 0, &first).await;
        write(&volume, 0, &[9; 5000]).await.unwrap();
        let_it_settle(&volume).await;
        expect_whole(&host).await;
        assert!(show(&host, "second").await[..second.len()] == second[..]);
        volume.rollback(&name("second")).await.unwrap();
        assert_eq!(volume.size(), 2 * SIZE);
        expect_bytes(&volume, 0, &second).await;
        expect_bytes(&volume, SIZE + 5, &[7; 100]).await;
        for gone in ["first", "second"] {
            volume.delete_snapshot(&name(gone)).await.unwrap();
        }
        let_it_settle(&volume).await;
        volume.check_invariants();
        expect_whole(&host).await;
        drop(volume);
        host.disk.crash_process();
        tokio::time::sleep(Duration::from_secs(1)).await;
        let (volume, _) = host.open().await;
        assert_eq!(volume.size(), 2 * SIZE);
        expect_bytes(&volume, 0, &second).await;
        let_it_settle(&volume).await;
        expect_whole(&host).await;
    });
}

#[test]
fn a_snapshot_that_cannot_be_read_stops_deletions_and_nothing_else() {
    run(async {
        let host = Host::new().await;
        let root = host
            .in_killed_process(|volume| async move {
                fill(&volume, 1).await;
                let taken = volume.snapshot(&name("hurt")).await.unwrap().checkpoint;
                fill(&volume, 2).await;
                volume.flush_remote().await.unwrap();
                (taken.sequence, taken.epoch)
            })
            .await;
        let key = object_key(&host, root.0, root.1);
        host.faults.flip_bit(&key, 100);
        let before = stored_objects(&host).await;
        let (volume, _) = host.open().await;
        let data = fill(&volume, 3).await;
        let_it_settle(&volume).await;
        assert!(stored_objects(&host).await > before, "everything is kept");
        expect_bytes(&volume, 0, &data).await;
        assert!(volume.snapshot(&name("another")).await.is_ok());
    });
}

#[test]
fn a_write_that_is_on_its_way_is_in_a_snapshot_whole_or_not_at_all() {
    run(async {
        let host = Host::new().await;
        let (volume, _) = host.open().await;
        // More than a batch, less than a record, and no divisor of a segment; half of them end in what is copied.
        let len_of = |round: u8| (44 << 10) + usize::from(round % 2) * 100;
        for round in 0..80_u8 {
            let data = vec![round; len_of(round)];
            let writing = tokio::task::spawn_local({
                let (volume, data) = (Rc::clone(&volume), data.clone());
                async move { write(&volume, 0, &data).await }
            });
            tokio::time::sleep(Duration::from_micros(u64::from(round) * 50)).await;
            let taken = format!("s{round}");
            volume.snapshot(&name(&taken)).await.expect("taken");
            writing.await.expect("no panic").expect("written");
            let shown = show(&host, &taken).await;
            let first = shown[0];
            let other = shown[..len_of(first)].iter().position(|byte| *byte != first);
            assert_eq!(other.map(|at| (at, shown[at])), None, "round {round} shows {first}");
            assert!(first == round || first + 1 == round, "round {round} shows {first}");
        }
    });
}

/// A snapshot and the published checkpoint are the same one, and another one is on its way when the snapshot goes.
#[test]
fn a_snapshot_takes_no_checkpoint_with_it_that_is_published() {
    run(async {
        let (host, gate) = Host::new().await.with_gate();
        host.in_killed_process(|volume| async move {
            write(&volume, 0, &[1; 4096]).await.expect("written");
            volume.snapshot(&name("first")).await.expect("taken");
            write(&volume, 0, &[2; 4096]).await.expect("written");
            volume.flush_remote().await.expect("stored");
            // The next root is sent, and never stored.
            gate.change(|plan| {
                (plan.late_put, plan.lost_of) = (Chance::ALWAYS, "/log/");
                plan.late_put_delay = Duration::from_secs(1 << 20)..=Duration::from_secs(1 << 20);
            });
            let second = name("second");
            let taken = tokio::time::timeout(Duration::from_secs(5), volume.snapshot(&second));
            taken.await.expect_err("its root does not come into the store");
            volume.delete_snapshot(&name("first")).await.expect("deleted");
            tokio::time::sleep(Duration::from_secs(5)).await;
        })
        .await;
        let (volume, _) = host.open().await;
        expect_bytes(&volume, 0, &[2; 4096]).await;
    });
}
