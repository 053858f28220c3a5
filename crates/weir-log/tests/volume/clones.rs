//! Clones: they begin as their snapshot, share its bytes, and keep what they need of it.

use std::sync::Arc;
use std::time::Duration;

use weir_device::{ErrorKind, VolumeId};
use weir_journal::ManifestSeen;
use weir_log::catalog::{self, DeleteConsent};
use weir_log::limits::{HEADER_GUESS_BYTES, REFERENCES_LOOK_INTERVAL};
use weir_log::{Closed, GivenUp, LogError, LogVolume, MemoryFrameCache, Obstacle, Takeover};

use crate::support::{
    Host, SIZE, checked, expect_bytes, expect_whole, fill, filling, name, newest_manifest,
    object_key, objects, obstacle, pattern, read, replace, run, show, write,
};

/// A host of its own for a clone of `parent@snapshot`.
pub(crate) async fn clone_of(host: &Host, seed: u64, from: (&str, &str), clone: &str) -> Host {
    let id = create(host, from, clone).await.expect("cloned");
    Host { id, ..host.other(seed) }
}

async fn create(host: &Host, from: (&str, &str), clone: &str) -> Result<VolumeId, LogError> {
    let (store, env) = (&host.store, &host.env);
    let (volume, snapshot) = (name(from.0), name(from.1));
    catalog::create_clone(store, env, (&volume, &snapshot), &name(clone), Takeover::Manual).await
}

async fn notes(host: &Host) -> usize {
    host.store.list(&format!("{}/dependants/", host.id), None).await.expect("listed").len()
}

async fn delete(host: &Host, volume: &str) -> Result<(), LogError> {
    let (store, env) = (&host.store, &host.env);
    catalog::delete(store, env, &name(volume), DeleteConsent::default(), |_, _| {}).await
}

async fn let_it_settle(volume: &LogVolume) {
    volume.flush_remote().await.expect("flushed");
    tokio::time::sleep(Duration::from_secs(30)).await;
}

/// A closed volume `demo` that shows other bytes than its snapshot `cut`; the snapshot's bytes.
async fn parent(host: &Host) -> Vec<u8> {
    let (volume, _) = host.open().await;
    let cut = fill(&volume, 1).await;
    volume.snapshot(&name("cut")).await.expect("taken");
    fill(&volume, 2).await;
    assert_eq!(volume.close().await.expect("closed"), Closed::Clean);
    cut
}

#[test]
fn a_clone_begins_as_its_snapshot_and_goes_its_own_way() {
    run(async {
        let host = Host::new().await;
        let cut = parent(&host).await;
        let clone = clone_of(&host, 7, ("demo", "cut"), "other").await;
        let mut bytes = clone
            .in_killed_process(|volume| async move {
                assert_eq!(read(&volume, 0, 1 << 20).await.expect("read"), cut);
                let mut bytes = cut;
                for n in 0..20_u64 {
                    let data = pattern(100 + n, 3000);
                    write(&volume, n * 40_000, &data).await.expect("written");
                    let at = usize::try_from(n * 40_000).expect("small");
                    bytes[at..at + 3000].copy_from_slice(&data);
                }
                bytes
            })
            .await;
        // Its journal, its objects and no checkpoint yet; then a checkpoint of its own; then another host.
        let (volume, _) = clone.open().await;
        expect_bytes(&volume, 0, &bytes).await;
        volume.snapshot(&name("mine")).await.expect("taken");
        write(&volume, 5, &[9; 70_000]).await.expect("written");
        let_it_settle(&volume).await;
        volume.check_invariants();
        assert_eq!(volume.close().await.expect("closed"), Closed::Clean);
        drop(volume);
        assert_eq!(show(&clone, "mine").await, bytes);
        expect_whole(&clone).await;
        let elsewhere = Host { id: clone.id, ..host.other(8) };
        let (volume, _) = elsewhere.open().await;
        bytes[5..70_005].fill(9);
        expect_bytes(&volume, 0, &bytes).await;
        volume.check_invariants();
        // The parent shows what it showed, and so does its snapshot.
        let (parent, _) = host.open().await;
        expect_bytes(&parent, 0, &filling(2)).await;
        assert_eq!(show(&host, "cut").await, filling(1));
        expect_whole(&host).await;
    });
}

#[test]
fn a_deleted_snapshot_stays_for_its_clones_and_goes_with_the_last_of_them() {
    run(async {
        let host = Host::new().await;
        let cut = parent(&host).await;
        let clone = clone_of(&host, 7, ("demo", "cut"), "one").await;
        let (volume, _) = clone.open().await;
        write(&volume, 0, &[1; 5000]).await.expect("written");
        volume.snapshot(&name("deep")).await.expect("taken");
        volume.close().await.expect("closed");
        drop(volume);
        let grandchild = clone_of(&host, 9, ("one", "deep"), "two").await;
        assert_eq!((notes(&host).await, notes(&clone).await), (2, 1));
        let (parent, _) = host.open().await;
        parent.delete_snapshot(&name("cut")).await.expect("deleted");
        let again = parent.delete_snapshot(&name("cut")).await.expect_err("gone");
        assert_eq!(again.kind(), ErrorKind::NotFound);
        let_it_settle(&parent).await;
        let held = objects(&host).await.len();
        // The name is free, and nobody makes another clone of it.
        let refused = create(&host, ("demo", "cut"), "three").await.expect_err("gone");
        assert!(matches!(refused, LogError::NoSuchSnapshot { .. }), "{refused}");
        parent.snapshot(&name("cut")).await.expect("taken");
        parent.delete_snapshot(&name("cut")).await.expect("deleted");
        let (volume, _) = grandchild.open().await;
        let mut bytes = cut;
        bytes[..5000].fill(1);
        expect_bytes(&volume, 0, &bytes).await;
        volume.close().await.expect("closed");
        drop(volume);
        for (volume, clones) in [("one", "two"), ("demo", "one, two")] {
            if volume == "demo" {
                parent.close().await.expect("closed");
            }
            let error = delete(&host, volume).await.expect_err("needed").to_string();
            assert!(error.contains(&format!("needed by {clones} for")), "{error}");
        }
        drop(parent);
        expect_whole(&host).await;
        expect_whole(&grandchild).await;
        delete(&host, "two").await.expect("deleted");
        delete(&host, "one").await.expect("deleted");
        assert_eq!(notes(&host).await, 0);
        let (parent, _) = host.open().await;
        let_it_settle(&parent).await;
        assert_eq!(parent.snapshots(), []);
        let left = objects(&host).await.len();
        assert!(left < held * 7 / 10, "{left} of {held} objects are left");
        expect_bytes(&parent, 0, &filling(2)).await;
        parent.close().await.expect("closed");
        drop(parent);
        expect_whole(&host).await;
        delete(&host, "demo").await.expect("deleted");
    });
}

#[test]
fn a_deleted_snapshot_goes_with_its_last_clone_though_nobody_writes_to_its_volume() {
    run(async {
        let host = Host::new().await;
        parent(&host).await;
        clone_of(&host, 7, ("demo", "cut"), "one").await;
        let (parent, _) = host.open().await;
        parent.delete_snapshot(&name("cut")).await.expect("deleted");
        let_it_settle(&parent).await;
        let held = objects(&host).await.len();
        delete(&host, "one").await.expect("deleted");
        tokio::time::sleep(2 * REFERENCES_LOOK_INTERVAL).await;
        let left = objects(&host).await.len();
        assert!(left < held * 7 / 10, "{left} of {held} objects are left");
        parent.close().await.expect("closed");
    });
}

#[test]
fn a_clone_that_wrote_nothing_is_flattened_though_part_of_what_it_shares_is_dead() {
    run(async {
        let host = Host::new().await;
        let (volume, _) = host.open().await;
        let mut bytes = fill(&volume, 1).await;
        for place in (0..bytes.len()).step_by(20_000) {
            write(&volume, place as u64, &[1; 5000]).await.expect("written");
            bytes[place..place + 5000].fill(1);
        }
        volume.snapshot(&name("cut")).await.expect("taken");
        volume.close().await.expect("closed");
        let clone = clone_of(&host, 7, ("demo", "cut"), "one").await;
        let (volume, _) = clone.open().await;
        let report = volume.flatten(|_, _| {}).await.expect("flattened");
        assert_eq!((report.shared_bytes, report.obstacle), (0, None));
        expect_bytes(&volume, 0, &bytes).await;
        volume.check_invariants();
        volume.close().await.expect("closed");
    });
}

/// No object is ever stored, so that no checkpoint comes that could be waited for.
#[test]
fn a_clone_of_a_volume_that_was_never_written_is_flattened_without_waiting() {
    run(async {
        let host = Host::new().await;
        let (volume, _) = host.open().await;
        volume.snapshot(&name("cut")).await.expect("taken");
        volume.close().await.expect("closed");
        let clone = clone_of(&host, 7, ("demo", "cut"), "one").await;
        let (volume, _) = clone.open().await;
        let flattened = tokio::time::timeout(Duration::from_secs(600), volume.flatten(|_, _| {}));
        let report = flattened.await.expect("it ends").expect("flattened");
        assert_eq!((report.copied_bytes, report.shared_bytes), (0, 0));
        assert!(report.obstacle.expect("it has no checkpoint").contains("write to it"));
        write(&volume, 0, &[1; 5000]).await.expect("written");
        let_it_settle(&volume).await;
        let report = volume.flatten(|_, _| {}).await.expect("flattened");
        assert_eq!((report.obstacle, report.origins), (None, vec![]));
        volume.close().await.expect("closed");
    });
}

#[test]
fn a_clone_that_shares_nothing_any_more_is_still_noted_for_its_snapshots() {
    run(async {
        let host = Host::new().await;
        let cut = parent(&host).await;
        let clone = clone_of(&host, 7, ("demo", "cut"), "other").await;
        let (volume, _) = clone.open().await;
        volume.snapshot(&name("mine")).await.expect("taken");
        fill(&volume, 3).await;
        let_it_settle(&volume).await;
        assert_eq!(volume.status().shared_bytes, 0);
        // Several checkpoints, each of which has it look for what nothing is shared with.
        for _ in 0..3 {
            volume.compact(90, |_, _| {}).await.expect("compacted");
            tokio::time::sleep(Duration::from_secs(600)).await;
        }
        assert_eq!(notes(&host).await, 1);
        let error = delete(&host, "demo").await.expect_err("needed").to_string();
        assert!(error.contains("needed by other for"), "{error}");
        assert!(show(&clone, "mine").await == cut);
        // With the snapshot it goes.
        volume.delete_snapshot(&name("mine")).await.expect("deleted");
        tokio::time::sleep(Duration::from_secs(600)).await;
        assert_eq!(notes(&host).await, 0);
        volume.close().await.expect("closed");
        delete(&host, "demo").await.expect("deleted");
    });
}

#[test]
fn what_a_clone_overwrites_stays_its_parents() {
    run(async {
        let host = Host::new().await;
        let cut = parent(&host).await;
        let clone = clone_of(&host, 7, ("demo", "cut"), "other").await;
        // A checkpoint still names what died before it, and the opening from it gives that up: neither the parent's
        // objects, nor those of the clone that have the same sequence and epoch.
        clone
            .in_killed_process(|volume| async move {
                write(&volume, 0, &[2; 1000]).await.expect("written");
                write(&volume, 0, &[3; 200_000]).await.expect("written");
                volume.snapshot(&name("mine")).await.expect("taken");
            })
            .await;
        let (volume, _) = clone.open().await;
        write(&volume, 0, &[4; 1000]).await.expect("written");
        volume.snapshot(&name("again")).await.expect("taken");
        let_it_settle(&volume).await;
        drop(volume);
        expect_whole(&clone).await;
        let mut mine = cut.clone();
        mine[..200_000].fill(3);
        assert_eq!(show(&clone, "mine").await, mine);
        assert_eq!(show(&host, "cut").await, cut);
        expect_whole(&host).await;
    });
}

#[test]
fn a_flattened_clone_needs_nobody() {
    run(async {
        let host = Host::encrypted().await;
        let cut = parent(&host).await;
        let clone = clone_of(&host, 7, ("demo", "cut"), "one").await;
        let (volume, _) = clone.open().await;
        volume.snapshot(&name("before")).await.expect("taken");
        write(&volume, 100, &[1; 5000]).await.expect("written");
        let (mut steps, mut last) = (0, (0, 0));
        let report = volume.flatten(|done, total| (steps, last) = (steps + 1, (done, total)));
        let report = report.await.expect("flattened");
        assert!(steps > 3 && last.0 == last.1 && last.1 > SIZE / 2, "{steps} {last:?}");
        assert_eq!((report.shared_bytes, report.origins.as_slice()), (0, &["demo".to_owned()][..]));
        assert!(report.obstacle.expect("a snapshot needs it").contains("snapshots"), "said");
        assert_eq!(notes(&host).await, 1);
        volume.delete_snapshot(&name("before")).await.expect("deleted");
        let report = volume.flatten(|_, _| {}).await.expect("flattened");
        assert_eq!((report.copied_bytes, report.obstacle), (0, None));
        let_it_settle(&volume).await;
        assert_eq!(notes(&host).await, 0);
        volume.close().await.expect("closed");
        drop(volume);
        delete(&host, "demo").await.expect("nobody needs it");
        let (volume, _) = Host { id: clone.id, ..host.other(8) }.open().await;
        let mut bytes = cut;
        bytes[100..5100].fill(1);
        expect_bytes(&volume, 0, &bytes).await;
        volume.check_invariants();
        expect_whole(&clone).await;
    });
}

/// Another clone still shows the damaged block, and both read through one cache.
#[test]
fn what_a_flatten_leaves_out_of_a_damaged_frame_is_no_zeroes_to_others() {
    const FRAME: usize = 64 << 10;
    const HURT: usize = FRAME + (24 << 10);
    run(async {
        let mut host = Host::new().await;
        host.options.batch.bytes = 4 * FRAME as u64;
        let data = pattern(5, 4 * FRAME);
        {
            let (volume, _) = host.open().await;
            for at in (0..data.len()).step_by(FRAME / 2) {
                write(&volume, at as u64, &data[at..at + FRAME / 2]).await.expect("written");
            }
            volume.snapshot(&name("cut")).await.expect("taken");
            assert_eq!(volume.close().await.expect("closed"), Closed::Clean);
        }
        let hurt = objects(&host).await.swap_remove(0);
        let clone = clone_of(&host, 7, ("demo", "cut"), "flattened").await;
        let other = clone_of(&host, 8, ("demo", "cut"), "other").await;
        let cache = Arc::new(MemoryFrameCache::new(1 << 20));
        let (copy, _) =
            clone.try_open(|args| args.blocks = cache.clone().into()).await.expect("opens");
        // All of the clone's frame that may be damaged is its own.
        write(&copy, FRAME as u64 + 4096, &data[..44 << 10]).await.expect("written");
        copy.flush_remote().await.expect("stored");
        host.faults.flip_bit(&hurt, HURT as u64);
        let report = copy.flatten(|_, _| {}).await.expect("flattened");
        assert_eq!(report.obstacle, None, "what it needs can be read");
        let (volume, _) =
            other.try_open(|args| args.blocks = cache.clone().into()).await.expect("opens");
        let error = read(&volume, FRAME as u64, FRAME).await.map(drop).expect_err("damaged");
        assert_eq!(error.kind(), ErrorKind::Corrupt, "{error}");
        host.faults.heal(&hurt);
        expect_bytes(&volume, 0, &data).await;
    });
}

/// What every opening reads first: of a clone, the snapshot that it begins as; of a volume, its manifest and the root
/// of its checkpoint.
#[test]
fn what_keeps_a_volume_from_being_opened_is_damage() {
    run(async {
        let host = Host::new().await;
        let (volume, _) = host.open().await;
        fill(&volume, 1).await;
        let root = volume.snapshot(&name("cut")).await.expect("taken").checkpoint;
        volume.close().await.expect("closed");
        drop(volume);
        let root = object_key(&host, root.sequence, root.epoch);
        let clone = clone_of(&host, 7, ("demo", "cut"), "copy").await;
        let damage = async |host: &Host| {
            let called = if host.id == clone.id { "copy" } else { "demo" };
            obstacle(host, called, None).await
        };
        assert_eq!((damage(&host).await, damage(&clone).await), (None, None));
        let other = obstacle(&host, "copy", None).await;
        assert!(matches!(other, Some(Obstacle::OtherStore(_))), "{other:?}");
        let nobody = obstacle(&host, "nobody", None).await;
        assert!(matches!(nobody, Some(Obstacle::OtherStore(_))), "{nobody:?}");
        for (number, is_back) in [(1, false), (u64::MAX, true)] {
            let known = Some(ManifestSeen { number, nonce: [7; 16] });
            let found = obstacle(&host, "demo", known).await;
            assert_eq!(matches!(found, Some(Obstacle::OtherStore(_))), is_back, "{found:?}");
        }
        host.faults.flip_bit(&root, 100);
        let found = damage(&clone).await.expect("it begins as that");
        assert!(matches!(&found, Obstacle::Damage(why) if why.contains(&root)), "{found:?}");
        let places: Vec<_> = checked(&clone).await.damage.into_iter().map(|d| d.place).collect();
        assert_eq!(places, [root.as_str()]);
        host.faults.heal(&root);
        assert_eq!(damage(&clone).await, None);
        let manifests = host.store.list(&format!("{}/manifest/", host.id), None).await;
        let newest = manifests.expect("listed").pop().expect("there is one").key;
        replace(&host, &newest, "no manifest").await;
        assert!(damage(&host).await.is_some());
    });
}

/// The store is set back to what it was since the volume was opened, which only this opening knows.
#[test]
fn a_store_that_was_set_back_to_within_this_opening_is_noticed() {
    run(async {
        let host = Host::new().await;
        let (volume, _) = host.open().await;
        let at_first = volume.status().manifest.number;
        volume.repair(&[], GivenUp::Error, |_| {}).await.expect("a checkpoint");
        fill(&volume, 1).await;
        volume.repair(&[], GivenUp::Error, |_| {}).await.expect("another");
        let known = Some(volume.status().manifest);
        let newest = newest_manifest(&host).await.number;
        assert!(newest >= at_first + 2 && known.is_some_and(|known| known.number == newest));
        assert_eq!(obstacle(&host, "demo", known).await, None);
        let listed = host.open_store.list(&format!("{}/manifest/", host.id), None).await;
        let last = listed.expect("listed").pop().expect("there is one").key;
        host.store.delete(&last).await.expect("deleted");
        let found = obstacle(&host, "demo", known).await;
        assert!(matches!(found, Some(Obstacle::OtherStore(_))), "{found:?}");
    });
}

#[test]
fn a_clone_that_was_never_finished_holds_nothing_for_ever() {
    run(async {
        let host = Host::new().await;
        parent(&host).await;
        // The store takes the note, and then nothing more.
        let (gated, gate) = host.other(5).with_gate();
        let making = create(&gated, ("demo", "cut"), "never");
        let cut_off = async {
            while notes(&host).await == 0 {
                tokio::time::sleep(Duration::from_micros(100)).await;
            }
            gate.change(|plan| plan.outage = true);
        };
        let (made, ()) = futures_util::join!(making, cut_off);
        let unfinished = made.is_err();
        gate.change(|plan| plan.outage = false);
        if !unfinished {
            delete(&host, "never").await.expect("deleted");
            return;
        }
        let (volume, _) = host.open().await;
        volume.delete_snapshot(&name("cut")).await.expect("deleted");
        let_it_settle(&volume).await;
        assert_eq!(volume.snapshots().len(), 1, "it may be finished yet");
        volume.close().await.expect("closed");
        drop(volume);
        let refused = delete(&host, "demo").await.expect_err("it may be finished yet");
        assert!(refused.to_string().contains("(being made)"), "{refused}");
        tokio::time::sleep(Duration::from_secs(3700)).await;
        let (volume, _) = host.open().await;
        let_it_settle(&volume).await;
        assert_eq!((volume.snapshots().len(), notes(&host).await), (0, 0));
        expect_whole(&host).await;
    });
}

async fn id_of(host: &Host, n: u64) -> VolumeId {
    catalog::find(&host.store, &host.env, &name(&format!("c{n}"))).await.expect("found")
}

#[test]
fn a_thousand_clones_of_one_image_cost_what_each_writes() {
    run(async {
        let host = Host::new().await;
        let cut = parent(&host).await;
        let counters = || host.store.counters();
        let before = counters();
        for n in 0..1000 {
            create(&host, ("demo", "cut"), &format!("c{n}")).await.expect("cloned");
        }
        let made = counters();
        let bytes_each = (made.bytes_up - before.bytes_up) / 1000;
        assert!(bytes_each < 3000, "{bytes_each} bytes are written for each");
        assert_eq!(made.puts - before.puts, 3000, "note, manifest and name");
        let alone = Host { id: id_of(&host, 999).await, ..host.other(9) };
        let (volume, _) = alone.open().await;
        let before = counters();
        expect_bytes(&volume, 0, &cut).await;
        let fetched_alone = counters().bytes_down - before.bytes_down;
        // Twenty of them are used at once, with one cache: each shared byte comes once, and each of them asks once of
        // which history the image is.
        let cache = Arc::new(MemoryFrameCache::new(64 << 20));
        let mut clones = Vec::new();
        for n in 0..20_u64 {
            let host = Host { id: id_of(&host, n).await, ..host.other(10 + n) };
            let opened = host.try_open(|args| args.blocks = Arc::clone(&cache).into()).await;
            clones.push((host, opened.expect("opened").0));
        }
        let opened = counters();
        let readers = clones.iter().map(|(_, volume)| expect_bytes(volume, 0, &cut));
        futures_util::future::join_all(readers).await;
        let fetched = counters().bytes_down - opened.bytes_down;
        let asked = 19 * HEADER_GUESS_BYTES;
        assert!(fetched <= fetched_alone + asked, "{fetched} bytes, and alone {fetched_alone}");
        let before = counters();
        for (n, (_, volume)) in (1..).zip(&clones) {
            write(volume, n * 1000, &pattern(n, 30_000)).await.expect("written");
            volume.flush_remote().await.expect("flushed");
        }
        let written = counters().bytes_up - before.bytes_up;
        assert!(written < 20 * 50_000, "{written} bytes for 20 times 30,000");
        for (n, (_, volume)) in (1..).zip(&clones) {
            expect_bytes(volume, n * 1000, &pattern(n, 30_000)).await;
            volume.check_invariants();
        }
    });
}

#[test]
fn a_clone_gives_back_what_it_overwrites_of_its_own() {
    run(async {
        let host = Host::new().await;
        parent(&host).await;
        let clone = clone_of(&host, 7, ("demo", "cut"), "other").await;
        let (volume, _) = clone.open().await;
        for round in 0..4 {
            fill(&volume, 10 + round).await;
            let_it_settle(&volume).await;
        }
        let_it_settle(&volume).await;
        assert!(volume.status().deleted_objects > 40, "{:?}", volume.status());
        volume.close().await.expect("closed");
        expect_whole(&clone).await;
    });
}

#[test]
fn a_clone_whose_name_cannot_be_read_is_not_taken_for_one_that_was_never_finished() {
    run(async {
        let host = Host::new().await;
        let cut = parent(&host).await;
        let clone = clone_of(&host, 7, ("demo", "cut"), "other").await;
        // Older than what is given up where no name stands for it.
        tokio::time::sleep(Duration::from_secs(7200)).await;
        let key = "names/other/0000000000000001.json";
        let record = host.store.get(key).await.expect("read");
        host.store.delete(key).await.expect("deleted");
        let mut damaged = record.to_vec();
        damaged[record.len() / 2] ^= 1;
        host.store.put_create(key, vec![damaged.into()]).await.expect("put");
        let refused = delete(&host, "demo").await.expect_err("nobody knows");
        assert!(refused.to_string().contains("names/other/"), "{refused}");

        host.store.delete(key).await.expect("deleted");
        host.store.put_create(key, vec![record]).await.expect("put");
        host.faults.change(|plan| plan.get.server_error = weir_store::Chance::ALWAYS);
        delete(&host, "demo").await.expect_err("the store fails");
        host.faults.calm();
        let refused = delete(&host, "demo").await.expect_err("the clone needs it");
        assert!(matches!(refused, LogError::Dependants { .. }), "{refused}");
        let (volume, _) = clone.open().await;
        expect_bytes(&volume, 0, &cut).await;
        volume.close().await.expect("closed");
    });
}
