//! Damage in the store: a check finds and locates all of it, reads never show a wrong byte, and a repair gives up what
//! cannot be saved and nothing else.

use std::rc::Rc;
use std::time::Duration;

use bytes::Bytes;
use weir_device::ErrorKind;
use weir_log::format::object::{ObjectHeader, ObjectKind};
use weir_log::{CheckReport, Closed, GIVEN_UP, GivenUp, LogVolume, ObjectId, RepairReport};

use crate::support::{
    Host, SIZE, checked, expect_bytes, fill, name, newest_manifest, object_key, objects, obstacle,
    pattern, read, run, show, write,
};

/// How long every answer of a slow store takes.
const SLOW: Duration = Duration::from_millis(50);

/// How long every answer of a store takes that is not quite so slow.
const ANSWER: Duration = Duration::from_millis(4);

/// Distance of the ranges that are given up, and how many there are.
const SPARSE: usize = 64 << 10;
const SPARSE_COUNT: u64 = SIZE / SPARSE as u64;

/// Bytes that are compared at a time.
const BLOCK: u64 = 1000;

/// What a repair is asked to do about a report.
fn named_by(report: &CheckReport) -> Vec<ObjectId> {
    let damaged = report.damage.iter().filter_map(|d| ObjectId::parse_key(&d.place));
    damaged.chain(report.orphans.iter().copied()).collect()
}

/// A volume with data, gc and checkpoint objects that it needs, closed.
async fn worn_volume(host: &Host) -> Vec<u8> {
    let (volume, _) = host.open().await;
    let mut data = fill(&volume, 1).await;
    for n in 0..600 {
        let offset = n * n * 7919 % (SIZE - 5000);
        let piece = pattern(n, 5000);
        write(&volume, offset, &piece).await.expect("works");
        let at = usize::try_from(offset).expect("works");
        data[at..at + 5000].copy_from_slice(&piece);
    }
    volume.flush_remote().await.expect("works");
    tokio::time::sleep(Duration::from_secs(60)).await;
    // Not in the checkpoint of the close.
    volume.close().await.expect("works");
    data
}

/// Keys of the objects of a kind that the volume needs.
async fn needed(host: &Host, kind: ObjectKind) -> Vec<String> {
    let unneeded = checked(host).await.orphans;
    let mut keys = Vec::new();
    for key in objects(host).await {
        let bytes = host.store.get(&key).await.expect("there");
        let header = ObjectHeader::decode(&bytes).expect("whole");
        if header.kind == kind && !unneeded.contains(&header.id) {
            keys.push(key);
        }
    }
    keys
}

/// Changes what the store has under `key`, whatever that was; what it was.
async fn replace(host: &Host, key: &str, bytes: Option<Bytes>) -> Bytes {
    let before = host.store.get(key).await.unwrap_or_default();
    host.store.delete(key).await.expect("deleted");
    if let Some(bytes) = bytes {
        host.store.put_create(key, vec![bytes]).await.expect("stored");
    }
    before
}

/// A bit turned, an end cut off, or nothing left.
fn damaged(bytes: &Bytes, turn: usize) -> Option<Bytes> {
    let at = turn * 7919 % bytes.len();
    match turn % 3 {
        0 => {
            let mut changed = bytes.to_vec();
            changed[at] ^= 1 << (turn % 8);
            Some(changed.into())
        }
        1 => Some(bytes.slice(..at)),
        _ => None,
    }
}

/// Every byte reads right or not at all; those that do not are the ones that the report names.
async fn expect_right_or_lost(volume: &LogVolume, data: &[u8], report: &CheckReport) {
    let lost: Vec<(u64, u64)> = report.damage.iter().flat_map(|d| d.ranges.clone()).collect();
    assert!(report.damage.iter().all(|d| d.more_ranges == 0), "all are listed");
    for offset in (0..SIZE).step_by(usize::try_from(BLOCK).expect("works")) {
        let len = BLOCK.min(SIZE - offset);
        let is_lost = lost.iter().any(|(at, n)| *at < offset + len && offset < at + n);
        match read(volume, offset, usize::try_from(len).expect("works")).await {
            Ok(bytes) => {
                let at = usize::try_from(offset).expect("works");
                assert!(bytes == data[at..at + bytes.len()], "a wrong byte in {offset} + {len}");
                assert!(!is_lost, "{offset} + {len} was said to be lost");
            }
            Err(error) => {
                assert!(is_lost, "{offset} + {len}: {error}, and the report does not say so");
                assert!(matches!(error.kind(), ErrorKind::Corrupt | ErrorKind::Unavailable));
            }
        }
    }
}

#[test]
fn a_hundred_damages_are_all_found_and_located_and_no_wrong_byte_is_read() {
    run(async {
        let mut host = Host::new().await;
        host.options.read_deadline = Duration::from_secs(5);
        let data = worn_volume(&host).await;
        assert_eq!(checked(&host).await.damage, []);
        for turn in 0..102 {
            let kind = [ObjectKind::Data, ObjectKind::Gc, ObjectKind::Checkpoint][turn / 3 % 3];
            let keys = needed(&host, kind).await;
            let key = &keys[turn * 31 % keys.len()];
            let bytes = host.store.get(key).await.unwrap();
            replace(&host, key, damaged(&bytes, turn)).await;
            let report = checked(&host).await;
            assert!(
                report.damage.iter().any(|d| d.place == *key),
                "turn {turn}: {key}: {report:?}"
            );
            assert!(report.damage.iter().all(|d| d.place == *key), "turn {turn}: {report:?}");
            match host.other(7).try_open(|args| args.options.collect.start_percent = 0).await {
                Ok((volume, _)) => {
                    expect_right_or_lost(&volume, &data, &report).await;
                    // What it wrote is not the matter here.
                    volume.close_within(Duration::from_secs(20)).await.unwrap();
                }
                Err(error) => {
                    assert_eq!(kind, ObjectKind::Checkpoint, "turn {turn}: {error}");
                    assert!(error.to_string().contains(key), "turn {turn}: {error}");
                }
            }
            replace(&host, key, Some(bytes)).await;
        }
        let (volume, _) = host.other(8).open().await;
        expect_bytes(&volume, 0, &data).await;
    });
}

#[test]
fn a_repair_gives_up_what_is_lost_and_nothing_that_was_written_meanwhile() {
    run(async {
        let mut host = Host::encrypted().await;
        host.options.read_deadline = Duration::from_secs(5);
        let data = worn_volume(&host).await;
        let (volume, _) = host.other(7).open().await;
        let mut lost_keys = needed(&host, ObjectKind::Gc).await;
        lost_keys.truncate(3);
        for key in &lost_keys {
            host.store.delete(key).await.unwrap();
        }
        let report = checked(&host).await;
        assert_eq!(
            report.damage.iter().map(|d| &d.place).collect::<Vec<_>>(),
            lost_keys.iter().collect::<Vec<_>>()
        );
        let ranges: Vec<(u64, u64)> = report.damage.iter().flat_map(|d| d.ranges.clone()).collect();
        let lost: u64 = ranges.iter().map(|(_, len)| len).sum();
        // A client writes into what was lost: that is no more lost.
        let (first, len) = ranges[0];
        assert!(len > 100);
        write(&volume, first + 10, &[9; 50]).await.unwrap();
        volume.flush_remote().await.unwrap();
        // And another all along, with objects on their way at every moment.
        let (busy, busy_len) = ranges[1..].iter().copied().max_by_key(|(_, len)| *len).unwrap();
        assert!(busy_len > 1000);
        host.faults.change(|plan| plan.latency = SLOW..=SLOW);
        let named = named_by(&report);
        let writer = async {
            for n in 0..100 {
                write(&volume, busy + n * 10, &pattern(n, 10)).await.unwrap();
                volume.flush_remote().await.unwrap();
            }
        };
        let repair = volume.repair(&named, GivenUp::Error, |_| {});
        let (done, ()) = futures_util::join!(repair, writer);
        host.faults.change(|plan| plan.latency = Duration::ZERO..=Duration::ZERO);
        let done = done.unwrap();
        assert!((lost - 1050..lost - 50).contains(&done.lost_bytes), "{lost}: {done:?}");
        assert_eq!(done.pending_deletions, 0);
        for n in 0..100 {
            expect_bytes(&volume, busy + n * 10, &pattern(n, 10)).await;
        }

        // What is known to be whole is not read again, but missed when it is not there.
        let after = checked(&host).await;
        assert_eq!(after.damage.len(), 1, "what was given up, and no object: {after:?}");
        assert_eq!((after.damage[0].lost_bytes, &after.orphans), (lost - 1050, &vec![]));
        expect_bytes(&volume, first + 10, &[9; 50]).await;
        let gone = read(&volume, first, 5).await.unwrap_err();
        assert_eq!(gone.kind(), ErrorKind::Corrupt, "{gone}");
        // It is in the log: another host sees it the same way.
        volume.close().await.unwrap();
        let (volume, _) = host.other(9).open().await;
        let at = usize::try_from(first).unwrap();
        assert!(read(&volume, first, 5).await.is_err());
        write(&volume, first, &data[at..at + usize::try_from(len).unwrap()]).await.unwrap();
        for (offset, len) in &ranges[1..] {
            let at = usize::try_from(*offset).unwrap();
            write(&volume, *offset, &data[at..at + usize::try_from(*len).unwrap()]).await.unwrap();
        }
        volume.flush_remote().await.unwrap();
        expect_bytes(&volume, 0, &data).await;
        assert_eq!(checked(&host).await.damage, []);
        volume.check_invariants();
    });
}

#[test]
fn what_the_journal_still_has_is_saved() {
    run(async {
        let mut host = Host::encrypted().await;
        host.options.read_deadline = Duration::from_secs(5);
        let (volume, _) = host.open().await;
        write(&volume, 0, &pattern(1, 20_000)).await.unwrap();
        write(&volume, 100_000, &pattern(2, 20_000)).await.unwrap();
        volume.flush_remote().await.unwrap();
        // Written over, and not in the store yet when the repair begins.
        write(&volume, 5000, &pattern(3, 1000)).await.unwrap();
        volume.repair(&[], GivenUp::Error, |_| {}).await.unwrap();
        for key in needed(&host, ObjectKind::Data).await {
            host.store.delete(&key).await.unwrap();
        }
        let report = checked(&host).await;
        let lost: u64 = report.damage.iter().map(|d| d.lost_bytes).sum();
        let done = volume.repair(&named_by(&report), GivenUp::Error, |_| {}).await.unwrap();
        assert_eq!((done.saved_bytes, done.lost_bytes), (lost, 0), "{done:?}");
        assert!(lost >= 39_000);
        assert_eq!(checked(&host).await.damage, []);
        volume.close().await.unwrap();
        let (volume, _) = host.other(9).open().await;
        let mut first = pattern(1, 20_000);
        first[5000..6000].copy_from_slice(&pattern(3, 1000));
        expect_bytes(&volume, 0, &first).await;
        expect_bytes(&volume, 100_000, &pattern(2, 20_000)).await;
        volume.check_invariants();
    });
}

#[test]
fn a_repair_fills_with_zeroes_where_that_is_wanted_and_lets_whole_objects_be() {
    run(async {
        let mut host = Host::new().await;
        host.options.read_deadline = Duration::from_secs(5);
        worn_volume(&host).await;
        let (volume, _) = host.other(7).open().await;
        let key = needed(&host, ObjectKind::Gc).await.remove(0);
        host.faults.hide(&key);
        let report = checked(&host).await;
        let (offset, len) = report.damage[0].ranges[0];
        host.faults.heal(&key);
        let done = volume.repair(&named_by(&report), GivenUp::Zero, |_| {}).await.unwrap();
        assert_eq!((done.whole_objects, done.lost_bytes), (1, 0), "it can be read after all");
        host.faults.hide(&key);
        volume.repair(&named_by(&report), GivenUp::Zero, |_| {}).await.unwrap();
        expect_bytes(&volume, offset, &vec![0; usize::try_from(len).unwrap()]).await;
        host.faults.heal(&key);
        assert_eq!(checked(&host).await.damage, []);
    });
}

#[test]
fn what_was_given_up_before_becomes_zeroes_and_what_was_written_since_stays() {
    run(async {
        let mut host = Host::new().await;
        host.options.read_deadline = Duration::from_secs(5);
        worn_volume(&host).await;
        let host = host.other(7);
        let (volume, _) = host.open().await;
        // Most of it has nothing in it, and takes no time.
        volume.resize(256 << 50).await.unwrap();
        let key = needed(&host, ObjectKind::Data).await.remove(0);
        host.store.delete(&key).await.unwrap();
        let lost = checked(&host).await;
        let (offset, len) = *lost.damage[0].ranges.iter().max_by_key(|(_, len)| *len).unwrap();
        volume.repair(&named_by(&lost), GivenUp::Error, |_| {}).await.unwrap();
        let report = checked(&host).await;
        assert_eq!(report.damage[0].problem, GIVEN_UP);
        assert_eq!(report.damage[0].lost_bytes, lost.damage[0].lost_bytes);
        let error = read(&volume, offset, 10).await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Corrupt, "{error}");
        assert!(len > 300);
        write(&volume, offset + 100, &[7; 100]).await.unwrap();
        let late = write(&volume, offset + 250, &[8; 10]);
        let repaired = volume.repair(&[], GivenUp::Zero, |_| {});
        let (done, written) = futures_util::join!(repaired, late);
        written.unwrap();
        let done = done.unwrap();
        assert!(done.lost_bytes > 0 && done.lost_bytes < lost.damage[0].lost_bytes, "{done:?}");
        let mut expected = vec![0; usize::try_from(len).unwrap()];
        expected[100..200].fill(7);
        expected[250..260].fill(8);
        expect_bytes(&volume, offset, &expected).await;
        assert_eq!(checked(&host).await.damage, []);
        volume.close().await.unwrap();
        let (volume, _) = host.other(9).open().await;
        expect_bytes(&volume, offset, &expected).await;
    });
}

#[test]
fn a_damaged_map_is_written_anew_by_the_node_that_has_it_in_memory() {
    run(async {
        let host = Host::encrypted().await;
        let data = worn_volume(&host).await;
        let (volume, _) = host.other(7).open().await;
        let checkpoints = needed(&host, ObjectKind::Checkpoint).await;
        assert!(!checkpoints.is_empty());
        for key in &checkpoints {
            host.store.delete(key).await.unwrap();
        }
        let report = checked(&host).await;
        let mut named = named_by(&report);
        // The root hides what else is missing.
        named =
            checkpoints.iter().filter_map(|key| ObjectId::parse_key(key)).chain(named).collect();
        named.sort_unstable();
        named.dedup();
        let done = volume.repair(&named, GivenUp::Error, |_| {}).await.unwrap();
        assert_eq!((done.rewritten_objects, done.lost_bytes), (checkpoints.len() as u64, 0));
        assert_eq!(checked(&host).await.damage, []);
        volume.close().await.unwrap();
        let (volume, _) = host.other(9).open().await;
        expect_bytes(&volume, 0, &data).await;
    });
}

#[test]
fn a_damaged_snapshot_is_found_and_nothing_else_while_the_volume_goes_on() {
    run(async {
        let host = Host::new().await;
        let (volume, _) = host.open().await;
        fill(&volume, 1).await;
        let root = volume.snapshot(&name("hurt")).await.expect("taken").checkpoint;
        let hurt = object_key(&host, root.sequence, root.epoch);
        host.faults.flip_bit(&hurt, 100);
        host.faults.change(|plan| plan.latency = SLOW..=SLOW);
        let overwrite = async {
            for seed in 2.. {
                fill(&volume, seed).await;
                tokio::time::sleep(SLOW * u32::try_from(seed % 31).expect("small")).await;
            }
        };
        let checks = async {
            for _ in 0..10 {
                let damage = checked(&host).await.damage;
                let places: Vec<_> = damage.iter().map(|damage| &damage.place).collect();
                assert_eq!(places, [&hurt]);
            }
        };
        tokio::select! {
            biased;
            () = checks => {}
            () = overwrite => {}
        }
    });
}

#[test]
fn what_only_a_damaged_snapshot_needs_is_looked_at_like_the_rest() {
    run(async {
        let host = Host::new().await;
        let (volume, _) = host.open().await;
        fill(&volume, 1).await;
        volume.flush_remote().await.unwrap();
        let old = objects(&host).await[0].clone();
        let root = volume.snapshot(&name("hurt")).await.expect("taken").checkpoint;
        fill(&volume, 2).await;
        volume.flush_remote().await.unwrap();
        volume.compact(75, |_, _| {}).await.unwrap();
        let root = object_key(&host, root.sequence, root.epoch);
        host.faults.flip_bit(&root, 100);
        host.faults.flip_bit(&old, 100);
        let report = checked(&host).await;
        let places: Vec<_> = report.damage.iter().map(|damage| &damage.place).collect();
        assert_eq!(places, [&old, &root]);
        assert_eq!(report.orphans, []);
    });
}

/// Opened with a snapshot whose checkpoint is damaged, a volume does not know what snapshots reach.
#[test]
fn what_snapshots_may_need_is_not_passed_over_by_a_repair() {
    run(async {
        let host = Host::new().await;
        let (volume, _) = host.open().await;
        fill(&volume, 1).await;
        let root = volume.snapshot(&name("hurt")).await.expect("taken").checkpoint;
        fill(&volume, 2).await;
        volume.close().await.expect("closed");
        drop(volume);
        let root = object_key(&host, root.sequence, root.epoch);
        host.faults.flip_bit(&root, 100);
        let (volume, _) = host.other(7).open().await;
        let named = named_by(&checked(&host).await);
        assert_eq!(named, [ObjectId::parse_key(&root).expect("an object")]);
        let done = volume.repair(&named, GivenUp::Error, |_| {}).await.expect("repaired");
        assert_eq!((done.snapshot_objects, done.lost_bytes, done.removed_objects), (1, 0, 0));
    });
}

#[test]
fn what_a_damaged_snapshot_may_need_is_no_orphan() {
    run(async {
        let mut host = Host::new().await;
        host.options.read_deadline = Duration::from_secs(5);
        let (volume, _) = host.open().await;
        let cut = fill(&volume, 1).await;
        let root = volume.snapshot(&name("hurt")).await.expect("taken").checkpoint;
        fill(&volume, 2).await;
        volume.flush_remote().await.unwrap();
        volume.compact(75, |_, _| {}).await.unwrap();
        volume.close().await.expect("closed");
        drop(volume);
        let root = object_key(&host, root.sequence, root.epoch);
        host.faults.flip_bit(&root, 100);
        let (volume, _) = host.other(7).open().await;
        let all: Vec<_> =
            objects(&host).await.iter().filter_map(|key| ObjectId::parse_key(key)).collect();
        let done = volume.repair(&all, GivenUp::Error, |_| {}).await.expect("repaired");
        assert_eq!(done.removed_objects, 0, "{done:?}");
        let status = volume.status();
        assert!(status.snapshot_failure.is_some(), "nothing is deleted, and it is said why");
        host.faults.heal(&root);
        assert!(show(&host, "hurt").await == cut);
    });
}

#[test]
fn a_root_that_was_replaced_while_it_was_looked_at_is_no_damage() {
    run(async {
        let host = Host::new().await;
        let (volume, _) = host.open().await;
        fill(&volume, 1).await;
        volume.repair(&[], GivenUp::Error, |_| {}).await.unwrap();
        let root = newest_manifest(&host).await.checkpoint.expect("one");
        host.faults.flip_bit(&object_key(&host, root.sequence, root.epoch), 100);
        let (slow, gate) = host.other(5).with_gate();
        gate.change(|plan| plan.latency = SLOW..=SLOW);
        let looks = obstacle(&slow, "demo", None);
        let goes_on = async {
            // The name and the manifest take two requests each.
            tokio::time::sleep(SLOW * 9 / 2).await;
            fill(&volume, 2).await;
            volume.repair(&[], GivenUp::Error, |_| {}).await.unwrap();
        };
        let (found, ()) = futures_util::join!(looks, goes_on);
        assert_eq!(found, None);
    });
}

/// What is lost is said by the status of whoever opens the volume next, before anybody reads, until it is written.
#[test]
fn what_was_given_up_is_said_until_it_is_written() {
    run(async {
        let (host, volume, _) = with_given_up(4).await;
        let report = checked(&host).await;
        let ranges: Vec<_> = report.damage.into_iter().flat_map(|damage| damage.ranges).collect();
        assert!(!ranges.is_empty());
        volume.close().await.expect("closed");
        drop(volume);
        let (volume, _) = host.other(7).open().await;
        let said = volume.status().read_failure.expect("it is known");
        assert!(said.contains("given up by a repair"), "{said}");
        for (offset, len) in ranges {
            write(&volume, offset, &vec![1; usize::try_from(len).unwrap()]).await.expect("written");
        }
        assert_eq!(volume.status().read_failure, None);
    });
}

#[test]
fn orphans_go_and_what_snapshots_show_stays() {
    run(async {
        let mut host = Host::new().await;
        host.options.read_deadline = Duration::from_secs(5);
        let (volume, _) = host.open().await;
        let cut = fill(&volume, 1).await;
        let old = objects(&host).await[0].clone();
        let late = host.store.get(&old).await.unwrap();
        volume.snapshot(&name("held")).await.unwrap();
        fill(&volume, 2).await;
        volume.flush_remote().await.unwrap();
        volume.compact(75, |_, _| {}).await.unwrap();
        let all = objects(&host)
            .await
            .iter()
            .filter_map(|key| ObjectId::parse_key(key))
            .collect::<Vec<_>>();
        let done = volume.repair(&all, GivenUp::Error, |_| {}).await.unwrap();
        assert_eq!((done.removed_objects, done.lost_bytes), (0, 0), "{done:?}");
        assert!(show(&host, "held").await == cut);
        volume.delete_snapshot(&name("held")).await.unwrap();
        volume.compact(75, |_, _| {}).await.unwrap();
        // A PUT that the store brings back late.
        host.store.put_create(&old, vec![late]).await.unwrap();
        let report = checked(&host).await;
        assert_eq!(report.orphans, [ObjectId::parse_key(&old).unwrap()]);
        let done = volume.repair(&named_by(&report), GivenUp::Error, |_| {}).await.unwrap();
        assert_eq!(done.removed_objects, 1);
        assert_eq!(checked(&host).await.orphans, []);
    });
}

/// A volume whose head has ranges that were given up, far apart, on a host without a journal of them. Before that a
/// snapshot "base" was taken of the pattern that is returned.
async fn with_given_up(seed: u64) -> (Host, Rc<LogVolume>, Vec<u8>) {
    let mut host = Host::new().await;
    host.options.read_deadline = Duration::from_secs(5);
    let (volume, _) = host.open().await;
    let data = fill(&volume, seed).await;
    volume.flush_remote().await.expect("stored");
    volume.snapshot(&name("base")).await.expect("taken");
    let before = objects(&host).await;
    for offset in (0..SIZE).step_by(SPARSE) {
        write(&volume, offset, &pattern(seed + 1, 1000)).await.expect("written");
    }
    volume.flush_remote().await.expect("stored");
    volume.close().await.expect("closed");
    drop(volume);
    let host = host.other(7);
    let mut named = Vec::new();
    for key in objects(&host).await.into_iter().filter(|key| !before.contains(key)) {
        let bytes = host.store.get(&key).await.expect("there");
        if ObjectHeader::decode(&bytes).expect("whole").kind == ObjectKind::Data {
            host.store.delete(&key).await.expect("deleted");
            named.push(ObjectId::parse_key(&key).expect("a key"));
        }
    }
    let (volume, _) = host.open().await;
    let done = volume.repair(&named, GivenUp::Error, |_| {}).await.expect("repaired");
    assert_eq!(done.lost_ranges, SPARSE_COUNT, "{done:?}");
    (host, volume, data)
}

/// Opens a volume on a host without a journal of it, where these objects are lost and a repair gives them up.
async fn given_up_elsewhere(
    host: &Host,
    volume: Rc<LogVolume>,
    lost: &[String],
) -> (Rc<LogVolume>, RepairReport) {
    volume.close().await.expect("closed");
    drop(volume);
    let (volume, _) = host.other(7).open().await;
    lost.iter().for_each(|key| host.faults.hide(key));
    let named: Vec<ObjectId> = lost.iter().filter_map(|key| ObjectId::parse_key(key)).collect();
    let done = volume.repair(&named, GivenUp::Error, |_| {}).await.expect("repaired");
    (volume, done)
}

/// Returns once this many writes more are acknowledged.
async fn acknowledged(volume: &LogVolume, writes: u64) {
    let wanted = volume.status().acked_write + writes;
    while volume.status().acked_write < wanted {
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
}

/// More is given up than is remembered. That is said until nothing of it is left, and a repair finds out what is.
#[test]
fn more_that_was_given_up_than_is_remembered_is_said_and_looked_for() {
    run(async {
        let mut host = Host::new().await;
        host.options.read_deadline = Duration::from_secs(5);
        let (volume, _) = host.open().await;
        let lost = 18;
        let mut damaged = Vec::new();
        for block in 0..2 * lost {
            let before = objects(&host).await;
            write(&volume, block * 8192, &pattern(block, 8192)).await.expect("written");
            volume.flush_remote().await.expect("stored");
            let new = objects(&host).await.into_iter().filter(|key| !before.contains(key));
            damaged.extend(new.filter(|_| block % 2 == 0));
        }
        let (volume, done) = given_up_elsewhere(&host, volume, &damaged).await;
        assert_eq!((done.lost_ranges, done.lost_bytes), (lost, lost * 8192));
        let said = || volume.status().read_failure.unwrap_or_default();
        let first = "reads fail in the 8192 bytes at 0, and in more than 15 more ranges: ";
        assert!(said().starts_with(first), "{}", said());
        // Asked once more, it has forgotten nothing.
        assert!(said().starts_with(first), "{}", said());

        let overwrite = async |from: u64, to: u64| {
            for block in from..to {
                write(&volume, block * 2 * 8192, &[1; 8192]).await.expect("written");
            }
        };
        overwrite(0, 16).await;
        assert!(said().starts_with("reads may fail: "), "{}", said());
        volume.repair(&[], GivenUp::Error, |_| {}).await.expect("looked");
        let left = format!("reads fail in the 8192 bytes at {}, and in 1 more range: ", 32 * 8192);
        assert!(said().starts_with(&left), "{}", said());
        overwrite(16, 18).await;
        assert_eq!(said(), "");
    });
}

#[test]
fn a_close_waits_for_a_repair_that_writes_zeroes() {
    run(async {
        for zeroed_before in 0..SPARSE_COUNT {
            let (host, volume, _) = with_given_up(1).await;
            let closing = async {
                acknowledged(&volume, zeroed_before).await;
                volume.close().await
            };
            let (repaired, closed) =
                futures_util::join!(volume.repair(&[], GivenUp::Zero, |_| {}), closing);
            assert_eq!(closed.unwrap(), Closed::Clean, "{zeroed_before}: {repaired:?}");
            let status = volume.status();
            assert_eq!(status.acked_write, status.committed_write, "{zeroed_before}: {repaired:?}");
            drop(volume);
            let (volume, _) = host.other(9).open().await;
            let mut zeroed = 0;
            for offset in (0..SIZE).step_by(SPARSE) {
                match read(&volume, offset, 1000).await {
                    Ok(bytes) => {
                        assert!(bytes.iter().all(|byte| *byte == 0), "{zeroed_before}: {offset}");
                        zeroed += 1;
                    }
                    Err(error) => assert_eq!(error.kind(), ErrorKind::Corrupt, "{error}"),
                }
            }
            assert_eq!(zeroed, SPARSE_COUNT, "{zeroed_before}: {repaired:?}");
        }
    });
}

#[test]
fn a_rollback_waits_for_a_repair_that_writes_zeroes() {
    run(async {
        for zeroed_before in 0..SPARSE_COUNT {
            let (_host, volume, data) = with_given_up(1).await;
            let base = name("base");
            let rolling = async {
                acknowledged(&volume, zeroed_before).await;
                volume.rollback(&base).await
            };
            let (_, rolled) =
                futures_util::join!(volume.repair(&[], GivenUp::Zero, |_| {}), rolling);
            rolled.unwrap();
            expect_bytes(&volume, 0, &data).await;
        }
    });
}

#[test]
fn a_repair_writes_no_zeroes_while_a_volume_is_shrunk() {
    run(async {
        let mut refused = 0;
        for begin in 0..20 {
            let (host, volume, _) = with_given_up(1).await;
            // Both wait until this is stored.
            host.faults.change(|plan| plan.latency = ANSWER..=ANSWER);
            write(&volume, 2000, &[1; 4096]).await.unwrap();
            let shrinking = async {
                tokio::time::sleep(ANSWER / 4 * begin).await;
                volume.shrink(SIZE / 2).await
            };
            let (repaired, shrunk) =
                futures_util::join!(volume.repair(&[], GivenUp::Zero, |_| {}), shrinking);
            shrunk.unwrap();
            refused += u32::from(repaired.is_err());
            volume.close().await.unwrap();
            drop(volume);
            let host = host.other(9);
            let (volume, _) = host.open().await;
            assert_eq!(volume.status().size_bytes, SIZE / 2);
            volume.resize(SIZE).await.unwrap();
            expect_bytes(&volume, SIZE / 2, &vec![0; usize::try_from(SIZE / 2).unwrap()]).await;
            volume.check_invariants();
        }
        assert!(refused > 0, "those that the shrink came before");
    });
}

#[test]
fn what_is_lost_behind_very_many_parts_is_said_at_once() {
    run(async {
        let mut host = Host::new().await;
        host.options.read_deadline = Duration::from_secs(5);
        let (volume, _) = host.open().await;
        let len = 5120 * 128;
        for at in (0..len).step_by(64 << 10) {
            write(&volume, at, &pattern(at, 64 << 10)).await.expect("written");
        }
        volume.flush_remote().await.expect("stored");
        let damaged = objects(&host).await;
        let (volume, _) = given_up_elsewhere(&host, volume, &damaged).await;
        for block in 0..4500 {
            match block % 2 {
                0 => write(&volume, block * 128, &pattern(block, 128)).await.expect("written"),
                _ => crate::support::discard(&volume, block * 128, 128).await,
            }
        }
        let said = volume.status().read_failure.unwrap_or_default();
        assert!(said.starts_with("reads fail in the "), "{said:?}");
        for block in 4500..5120 {
            write(&volume, block * 128, &pattern(block, 128)).await.expect("written");
        }
        assert_eq!(volume.status().read_failure, None);
    });
}
