//! Damaged objects, damaged journals, failing disks: errors where bytes are lost, right bytes everywhere else.

use std::collections::BTreeSet;
use std::rc::Rc;
use std::time::Duration;

use bytes::Bytes;
use weir_device::{DeviceError, ErrorKind};
use weir_log::{Closed, LogError, LogVolume};
use weir_store::{Chance, Faults};

use crate::support::{
    Host, LEASE, expect_bytes, fill, flush, name, object_key, objects, pattern, read, run, stored,
    write,
};

/// How long every answer of a slow store takes.
pub(crate) const ANSWER: Duration = Duration::from_millis(500);

#[test]
fn a_damaged_object_fails_the_ranges_it_held_and_no_others() {
    run(async {
        let mut host = Host::new().await;
        host.options.read_deadline = Duration::from_secs(5);
        host.checkpoint_every(1000);
        let (volume, _) = host.open().await;
        let mut keys = Vec::new();
        for block in 0..8_u64 {
            write(&volume, block * 8192, &pattern(block, 8192)).await.unwrap();
            volume.flush_remote().await.unwrap();
        }
        keys.extend(objects(&host).await);
        volume.close().await.unwrap();
        drop(volume);
        let (volume, _) = host.other(7).open().await;
        host.faults.flip_bit(&keys[2], 4000);
        host.faults.hide(&keys[5]);
        assert_eq!(volume.status().read_failure, None);
        for block in 0..8_u64 {
            let there = read(&volume, block * 8192, 8192).await;
            match block {
                2 | 5 => assert_eq!(there.unwrap_err().kind(), ErrorKind::Corrupt, "block {block}"),
                _ => assert_eq!(there.unwrap(), pattern(block, 8192), "block {block}"),
            }
        }
        let noted = || volume.status().read_failure;
        assert!(noted().is_some_and(|text| text.contains("bytes at 40960")), "{:?}", noted());
        assert!(read(&volume, 2 * 8192, 8192).await.is_err());
        assert!(noted().is_some_and(|text| text.contains("bytes at 16384")), "{:?}", noted());
        read(&volume, 0, 8192).await.unwrap();
        assert!(noted().is_some(), "what was read lies elsewhere");
        host.faults.heal(&keys[2]);
        expect_bytes(&volume, 2 * 8192, &pattern(2, 8192)).await;
        let other = noted().expect("those of the other object are still lost");
        assert!(other.contains("bytes at 40960: "), "the bytes were read: {other}");
        write(&volume, 5 * 8192, &[1; 4096]).await.unwrap();
        assert!(noted().is_some(), "half of them are still lost");
        write(&volume, 5 * 8192 + 4096, &[1; 4096]).await.unwrap();
        assert_eq!(noted(), None, "they were overwritten");
    });
}

/// A volume whose first blocks of 8 KiB lie in an object each, all of which are hidden.
async fn with_lost_blocks(host: &mut Host, blocks: u64) -> Rc<LogVolume> {
    host.options.read_deadline = Duration::from_secs(5);
    host.checkpoint_every(1000);
    let (volume, _) = host.open().await;
    for block in 0..blocks {
        write(&volume, block * 8192, &pattern(block, 8192)).await.expect("written");
        volume.flush_remote().await.expect("in the store");
    }
    let keys = objects(host).await;
    volume.close().await.expect("closed");
    drop(volume);
    let (volume, _) = host.other(7).open().await;
    for key in &keys {
        host.faults.hide(key);
    }
    volume
}

#[test]
fn one_failed_read_that_is_mended_is_no_other() {
    for (first, second) in [(0, 1), (1, 0)] {
        run(async move {
            let mut host = Host::new().await;
            let volume = with_lost_blocks(&mut host, 2).await;
            for block in [0, 1] {
                assert!(read(&volume, block * 8192, 8192).await.is_err());
            }
            let noted = || volume.status().read_failure;
            let both = noted().unwrap();
            assert!(both.contains("bytes at 8192, and in 1 more range: "), "{both}");
            write(&volume, first * 8192, &[1; 8192]).await.unwrap();
            let other = noted().expect("the other one is still lost");
            assert!(other.contains(&format!("bytes at {}: ", second * 8192)), "{other}");
            // What was overwritten is read, which says nothing of the other one.
            read(&volume, first * 8192, 8192).await.unwrap();
            assert_eq!(noted().as_ref(), Some(&other));
            write(&volume, second * 8192, &[1; 8192]).await.unwrap();
            assert_eq!(noted(), None);
        });
    }
}

#[test]
fn reads_of_parts_leave_of_a_failed_read_what_is_lost() {
    run(async {
        let mut host = Host::new().await;
        let volume = with_lost_blocks(&mut host, 1).await;
        assert!(read(&volume, 0, 8192).await.is_err());
        let noted = || volume.status().read_failure;
        write(&volume, 0, &[1; 2048]).await.unwrap();
        write(&volume, 4096, &[1; 2048]).await.unwrap();
        read(&volume, 4096, 2048).await.unwrap();
        read(&volume, 0, 2048).await.unwrap();
        assert!(noted().unwrap().contains("the 2048 bytes at 6144, and in 1 more range: "));
        assert!(read(&volume, 3072, 512).await.is_err());
        assert!(noted().unwrap().contains("bytes at 2048, and in 1 more range: "));
        write(&volume, 2048, &[1; 2048]).await.unwrap();
        assert!(noted().unwrap().contains("the 2048 bytes at 6144: "));
        write(&volume, 6144, &[1; 2048]).await.unwrap();
        assert_eq!(noted(), None);
    });
}

/// A read that fails in another object is another one, though it lies within a range that failed before.
#[test]
fn a_failed_read_in_another_object_is_not_the_one_before() {
    run(async {
        let mut host = Host::new().await;
        let volume = with_lost_blocks(&mut host, 1).await;
        assert!(read(&volume, 0, 8192).await.is_err());
        write(&volume, 0, &[1; 4096]).await.unwrap();
        volume.flush_remote().await.unwrap();
        host.faults.hide(&objects(&host).await.pop().unwrap());
        // More than journal and memory keep.
        for block in 16..256 {
            write(&volume, block * 4096, &[1; 4096]).await.unwrap();
        }
        volume.flush_remote().await.unwrap();
        assert!(read(&volume, 0, 4096).await.is_err());
        let noted = || volume.status().read_failure;
        write(&volume, 4096, &[1; 4096]).await.unwrap();
        assert!(noted().unwrap().contains("the 4096 bytes at 0: "), "{:?}", noted());
        write(&volume, 0, &[1; 4096]).await.unwrap();
        assert_eq!(noted(), None);
    });
}

#[test]
fn more_failed_reads_than_are_kept_are_mentioned() {
    run(async {
        let mut host = Host::new().await;
        let volume = with_lost_blocks(&mut host, 18).await;
        let noted = || volume.status().read_failure;
        for block in 0..18 {
            assert!(read(&volume, block * 8192, 8192).await.is_err());
            if block == 15 {
                assert!(noted().unwrap().contains(", and in 15 more ranges: "));
            }
        }
        assert!(noted().unwrap().contains(", and in more than 15 more ranges: "));
        write(&volume, 0, &vec![1; 18 * 8192]).await.unwrap();
        assert_eq!(noted(), None);
        read(&volume, 0, 18 * 8192).await.unwrap();
        assert_eq!(noted(), None);
    });
}

#[test]
fn a_damaged_header_of_our_own_object_is_no_other_writer() {
    run(async {
        let host = Host::new().await;
        let (volume, _) = host.open().await;
        let key = object_key(&host, 1, 1);
        host.faults.flip_bit(&key, 40);
        write(&volume, 0, &pattern(1, 8192)).await.unwrap();
        for lost_reply in [Chance::ALWAYS, Chance::NEVER] {
            host.faults.change(|plan| plan.lost_reply = lost_reply);
            let flushed = tokio::time::timeout(Duration::from_secs(300), volume.flush_remote());
            assert!(flushed.await.is_err(), "nothing proves that the object is there");
        }
        write(&volume, 4096, &pattern(2, 8192)).await.unwrap();
        host.faults.heal(&key);
        volume.flush_remote().await.unwrap();
        assert_eq!(objects(&host).await[0], key);
    });
}

#[test]
fn a_failed_fsync_stops_acknowledgements_for_good() {
    run(async {
        let host = Host::new().await;
        let disk = host.disk.clone();
        host.in_killed_process(|volume| async move {
            write(&volume, 0, &[1; 4096]).await.unwrap();
            flush(&volume).await.unwrap();
            disk.fail_next_syncs(1);
            write(&volume, 4096, &[2; 4096]).await.unwrap();
            assert_eq!(flush(&volume).await.unwrap_err().kind(), ErrorKind::Poisoned);
            assert!(write(&volume, 0, &[3; 4096]).await.is_err());
            assert!(flush(&volume).await.is_err(), "the next sync would succeed and lie");
        })
        .await;
    });
    run(async {
        let host = Host::new().await;
        let disk = host.disk.clone();
        host.in_killed_process(|volume| async move {
            write(&volume, 0, &[1; 4096]).await.unwrap();
            flush(&volume).await.unwrap();
            disk.fail_next_syncs(1);
            write(&volume, 8192, &[2; 4096]).await.unwrap();
            let _ = flush(&volume).await;
        })
        .await;
        let (volume, _) = host.open().await;
        expect_bytes(&volume, 0, &[1; 4096]).await;
    });
}

/// What is on the disk of a journal under test.
const JOURNAL_BYTES: usize = 2 << 20;

/// A volume of which 32 KiB are written and flushed: they are on the disk of the journal, and nowhere else.
async fn in_the_journal_only() -> (Host, Rc<LogVolume>, Vec<u8>) {
    let mut host = Host::new().await;
    host.options.batch.age = Duration::from_secs(3600);
    host.options.batch.bytes = 1 << 20;
    host.options.journal.resident_bytes_max = 0;
    let (volume, _) = host.open().await;
    let data = pattern(1, 32 << 10);
    write(&volume, 0, &data).await.expect("written");
    flush(&volume).await.expect("flushed");
    (host, volume, data)
}

/// Where a block lies in the file of the journal.
fn place_of(host: &Host, block: &[u8]) -> u64 {
    let mut disk = vec![0; JOURNAL_BYTES];
    host.disk.peek("journal", 0, &mut disk);
    let at = disk.windows(4096).step_by(512).position(|bytes| bytes == block);
    at.expect("it was flushed") as u64 * 512
}

/// Reads of the `lost` blocks of 4 KiB fail, and all others show `data`.
async fn expect_all_but(volume: &LogVolume, data: &[u8], lost: &[usize]) {
    for (block, bytes) in data.chunks(4096).enumerate() {
        let there = read(volume, block as u64 * 4096, 4096).await;
        if lost.contains(&block) {
            let error = there.expect_err("it is lost");
            assert_eq!(error.kind(), ErrorKind::Corrupt, "{block}");
        } else {
            assert_eq!(there.expect("it is there"), bytes, "block {block}");
        }
    }
}

#[test]
fn a_byte_of_the_journal_that_rots_before_it_is_sent_takes_no_other_piece_with_it() {
    run(async {
        let (host, volume, data) = in_the_journal_only().await;
        for damaged in [3, 7] {
            host.disk.rot("journal", place_of(&host, &data[damaged * 4096..][..4096]) + 100);
        }
        volume.flush_remote().await.unwrap();
        expect_all_but(&volume, &data, &[3, 7]).await;
        volume.close().await.unwrap();
        drop(volume);
        expect_all_but(&host.other(7).open().await.0, &data, &[3, 7]).await;
    });
}

#[test]
fn a_sector_of_the_journal_that_cannot_be_read_is_given_up_by_the_next_opening_only() {
    run(async {
        for comes_back in [true, false] {
            let (host, volume, data) = in_the_journal_only().await;
            let at = place_of(&host, &data[12288..16384]);
            host.disk.inject_eio("journal", at..at + 512);
            // It may come back, so nothing is given up, however long it takes.
            let sent = tokio::time::timeout(Duration::from_secs(3600), volume.flush_remote());
            sent.await.unwrap_err();
            let note = volume.status().upload_note.expect("uploads stand still");
            assert!(note.contains("detach the volume and attach it again"), "{note}");
            if comes_back {
                host.disk.clear_eio();
                volume.flush_remote().await.unwrap();
                expect_bytes(&volume, 0, &data).await;
                continue;
            }
            let closed = volume.close_within(Duration::ZERO).await.unwrap();
            assert_eq!(closed, Closed::LocalOnly);
            drop(volume);
            let (volume, report) = host.open().await;
            assert_eq!(report.poisoned_ranges, 1);
            volume.flush_remote().await.unwrap();
            expect_all_but(&volume, &data, &[3]).await;
        }
    });
}

#[test]
fn objects_missing_from_the_store_are_noticed() {
    run(async {
        for count in [1, usize::MAX] {
            let mut host = Host::new().await;
            host.checkpoint_every(1000);
            host.in_killed_process(|volume| async move {
                for round in 0..3 {
                    fill(&volume, round).await;
                }
            })
            .await;
            let stored = objects(&host).await;
            for key in stored.iter().skip(3).take(count) {
                host.store.delete(key).await.unwrap();
            }
            let refused = host.try_open(|_| {}).await.unwrap_err();
            assert!(matches!(refused, LogError::ObjectsMissing { .. }), "{refused}");
            let text = refused.to_string();
            assert!(text.contains("/log/0000000000000004-*; "), "{text}");
            let behind = format!("without the {} objects behind it", stored.len() - 4);
            assert_eq!(text.contains(&behind), count == 1, "{text}");
            let (volume, report) = host.try_open(|args| args.accept_loss = true).await.unwrap();
            let given_up = report.given_up_from.map(|from| (from.object.key(), from.behind));
            let behind = stored.len() as u64 - 4;
            assert_eq!(given_up, (count == 1).then(|| (stored[3].clone(), behind)));
            let flushed = volume.flush_remote().await;
            flushed.expect("what the journal held is in the store");
        }
    });
}

#[test]
fn a_store_that_was_emptied_or_set_back_is_not_called_another_writer() {
    run(async {
        for keep in [0, 1] {
            let host = Host::new().await;
            let (volume, _) = host.open().await;
            fill(&volume, 1).await;
            volume.flush_remote().await.expect("flushed");
            let versions = format!("{}/manifest/", host.id);
            for object in host.store.list(&versions, None).await.expect("listed").iter().skip(keep)
            {
                host.store.delete(&object.key).await.expect("deleted");
            }
            let error = volume.snapshot(&name("cut")).await.expect_err("it is lost");
            assert_eq!(error.kind(), ErrorKind::Fenced, "{error}");
            assert!(error.to_string().contains("was emptied or set back"), "{error}");
            assert!(!error.to_string().contains("another writer"), "{error}");
            // None that would look whole to an opening.
            let there = host.store.list(&versions, None).await.expect("listed");
            assert_eq!(there.len(), keep);
        }
    });
}

/// Writes 1 and 2 to two blocks, and sets the store back to between them, a time of `apart` before the second one. The
/// backup is of the opening and has its newest manifest: only what was stored since is missing, with renewals of the
/// lease where there were some. Also the keys of that.
async fn set_back_under(host: &Host, apart: Duration) -> (Rc<LogVolume>, BTreeSet<String>) {
    host.open().await.0.close().await.expect("closed");
    let (volume, _) = host.open().await;
    write(&volume, 0, &[1; 4096]).await.expect("done");
    volume.flush_remote().await.expect("in the store");
    let backup = stored(host).await;
    tokio::time::sleep(apart).await;
    write(&volume, 4096, &[2; 4096]).await.expect("done");
    volume.flush_remote().await.expect("in the store");
    let lost = set_back_to(&backup, host).await;
    (volume, lost)
}

async fn set_back_to(backup: &BTreeSet<String>, host: &Host) -> BTreeSet<String> {
    let lost = &stored(host).await - backup;
    for key in &lost {
        host.open_store.delete(key).await.expect("deleted");
    }
    lost
}

/// The next opening takes from the journal what the store lacks.
pub(crate) async fn expect_all_after(volume: Rc<LogVolume>, host: &Host, bytes: &[u8]) {
    drop(volume);
    let (volume, _) = host.open().await;
    for (block, byte) in (0..).zip(bytes) {
        expect_bytes(&volume, block * 4096, &[*byte; 4096]).await;
    }
}

#[test]
fn a_store_that_was_set_back_within_an_opening_stops_the_volume_with_the_next_renewal() {
    run(async {
        for void_is_there in [false, true] {
            let host = Host::new().await;
            let (volume, lost) = set_back_under(&host, LEASE).await;
            // Another one follows before anybody notices: the newest object is there, and one before it is not.
            write(&volume, 8192, &[3; 4096]).await.expect("done");
            volume.flush_remote().await.expect("in the store");
            if void_is_there {
                // Of an earlier opening, behind a gap: the next one does not read it.
                let lost =
                    lost.iter().find(|key| key.contains("/log/")).expect("an object is lost");
                let (sequence, _) = lost.rsplit_once('-').expect("an epoch follows");
                let key = format!("{sequence}-{:016x}", 1);
                host.store
                    .put_create(&key, vec![Bytes::from_static(b"void")])
                    .await
                    .expect("stored");
            }
            assert_eq!(volume.status().failure, None);
            tokio::time::sleep(LEASE).await;
            let failure = volume.status().failure.expect("it stopped");
            assert!(failure.contains("was emptied or set back"), "{failure}");
            assert_eq!(write(&volume, 0, &[4; 512]).await.unwrap_err().kind(), ErrorKind::Fenced);
            expect_all_after(volume, &host, &[1, 2, 3]).await;
        }
    });
}

/// The backup has the newest renewal of the lease, and comes back after the deadline: that it is renewed again proves
/// nothing.
#[test]
fn a_store_that_was_set_back_while_it_was_away_is_not_confirmed() {
    run(async {
        let (host, gate) = Host::new().await.with_gate();
        let (volume, _) = host.open().await;
        write(&volume, 0, &[1; 4096]).await.expect("done");
        volume.flush_remote().await.expect("in the store");
        let backup = stored(&host).await;
        write(&volume, 4096, &[2; 4096]).await.expect("done");
        volume.flush_remote().await.expect("in the store");
        gate.change(|plan| plan.outage = true);
        tokio::time::sleep(LEASE * 2).await;
        let lost = set_back_to(&backup, &host).await;
        assert!(lost.iter().all(|key| key.contains("/log/")), "{lost:?}");
        gate.calm();
        tokio::time::sleep(LEASE * 2).await;
        let failure = volume.status().failure.expect("it stopped");
        assert!(failure.contains("was emptied or set back"), "{failure}");
        expect_all_after(volume, &host, &[1, 2]).await;
    });
}

/// The next opening believes a checkpoint, and asks for nothing before it: none is published over what is missing, also
/// before the next renewal of the lease and by a close, and also where the backup has the newest renewal.
#[test]
fn a_store_that_was_set_back_within_an_opening_gets_no_checkpoint() {
    run(async {
        for (closes, apart) in
            [(false, LEASE), (true, LEASE), (false, Duration::ZERO), (true, Duration::ZERO)]
        {
            let host = Host::new().await;
            let (volume, lost) = set_back_under(&host, apart).await;
            let renewed = lost.iter().any(|key| !key.contains("/log/"));
            assert_eq!(renewed, !apart.is_zero(), "{lost:?}");
            write(&volume, 8192, &[3; 4096]).await.expect("done");
            let error = match closes {
                true => volume.close().await.expect_err("it was set back"),
                false => volume.snapshot(&name("cut")).await.expect_err("it was set back"),
            };
            assert_eq!(error.kind(), ErrorKind::Fenced, "{error}");
            assert!(error.to_string().contains("was emptied or set back"), "{error}");
            expect_all_after(volume, &host, &[1, 2, 3]).await;
        }
    });
}

/// The root of a checkpoint is in the store when that goes away, and not in the backup that comes back.
#[test]
fn a_checkpoint_that_waits_for_the_store_is_not_published_over_what_is_missing() {
    run(async {
        checkpoint_over_missing(false).await;
        // All that it covers is there.
        checkpoint_over_missing(true).await;
    });
}

/// Key of the newest object, once there are more than so many. Asks the store without its gate.
pub(crate) async fn newest_beyond(count: usize, host: &Host) -> String {
    let prefix = format!("{}/log/", host.id);
    loop {
        let mut stored = host.open_store.list(&prefix, None).await.expect("listed");
        if stored.len() > count {
            return stored.pop().expect("it is there").key;
        }
        tokio::time::sleep(ANSWER / 50).await;
    }
}

async fn checkpoint_over_missing(has_data: bool) {
    let (host, gate) = Host::new().await.with_gate();
    let (volume, _) = host.open().await;
    write(&volume, 0, &[1; 4096]).await.expect("done");
    volume.flush_remote().await.expect("in the store");
    let mut backup = stored(&host).await;
    tokio::time::sleep(LEASE / 2).await;
    write(&volume, 4096, &[2; 4096]).await.expect("done");
    volume.flush_remote().await.expect("in the store");
    if has_data {
        backup = stored(&host).await;
        tokio::time::sleep(LEASE / 2).await;
    }
    let before = objects(&host).await.len();
    gate.change(|plan| plan.latency = ANSWER..=ANSWER);
    let cut = name("cut");
    let snapshot = volume.snapshot(&cut);
    let goes_away = async {
        // The root is stored, and the manifest that names it is not.
        newest_beyond(before, &host).await;
        gate.change(|plan| plan.put.server_error = Chance::ALWAYS);
        tokio::time::sleep(ANSWER * 5).await;
        // Nothing is on its way when it comes back.
        gate.change(|plan| plan.outage = true);
        tokio::time::sleep(ANSWER * 2).await;
        set_back_to(&backup, &host).await;
        gate.calm();
    };
    let (taken, ()) = futures_util::join!(snapshot, goes_away);
    let error = taken.expect_err("it was set back");
    assert!(error.to_string().contains("was emptied or set back"), "{error}");
    expect_all_after(volume, &host, &[1, 2]).await;
}

/// Takes a snapshot, of whose checkpoint the store loses the first object as soon as it has that.
pub(crate) async fn snapshot_that_loses_an_object(
    volume: &LogVolume,
    host: &Host,
    gate: &Faults,
) -> Result<(), DeviceError> {
    let before = objects(host).await.len();
    gate.change(|plan| plan.latency = ANSWER..=ANSWER);
    let cut = name("cut");
    let is_lost = async {
        let object = newest_beyond(before, host).await;
        host.open_store.delete(&object).await.expect("deleted");
    };
    let (taken, ()) = futures_util::join!(volume.snapshot(&cut), is_lost);
    taken.map(|_| ())
}

/// The store loses the root of a checkpoint before the manifest names it. The next opening could not read the volume if
/// the manifest did.
#[test]
fn a_checkpoint_that_is_gone_before_the_manifest_names_it_is_not_published() {
    run(async {
        let (host, gate) = Host::new().await.with_gate();
        let (volume, _) = host.open().await;
        write(&volume, 0, &[1; 4096]).await.expect("done");
        volume.flush_remote().await.expect("in the store");
        let taken = snapshot_that_loses_an_object(&volume, &host, &gate).await;
        let error = taken.expect_err("it is not there");
        assert!(error.to_string().contains("was emptied or set back"), "{error}");
        gate.calm();
        write(&volume, 4096, &[2; 4096]).await.expect_err("it stopped");
        expect_all_after(volume, &host, &[1]).await;
    });
}

/// A store that has the newest renewal of the lease, and lacks `count` objects after the first one, which the journal
/// has given up. What comes of a checkpoint.
async fn checkpoint_without(count: usize) -> (Rc<LogVolume>, Result<(), DeviceError>) {
    let (host, _, volume) = more_than_the_journal_keeps(1000).await;
    for key in objects(&host).await.iter().skip(1).take(count) {
        host.store.delete(key).await.expect("deleted");
    }
    let taken = volume.snapshot(&name("cut")).await;
    (volume, taken.map(|_| ()))
}

/// A volume of which a part was written over eight times, all of it stored in 32 objects, without a checkpoint.
pub(crate) async fn more_than_the_journal_keeps(
    checkpoint_every: u64,
) -> (Host, Faults, Rc<LogVolume>) {
    let (mut host, gate) = Host::new().await.with_gate();
    host.checkpoint_every(checkpoint_every);
    let (volume, _) = host.open().await;
    fill_more_than_the_journal_keeps(Rc::clone(&volume)).await;
    (host, gate, volume)
}

/// Writes over 32 blocks eight times, and has all of it stored.
pub(crate) async fn fill_more_than_the_journal_keeps(volume: Rc<LogVolume>) {
    for round in 1..=8 {
        // More than a segment of the journal each.
        for block in 0..32 {
            write(&volume, block * 4096, &[round; 4096]).await.expect("done");
        }
        volume.flush_remote().await.expect("in the store");
    }
}

/// Whatever the journal holds: while the lease was not held, the store may have been away, and be another one now.
#[test]
fn a_store_that_lost_an_object_while_it_was_away_is_not_confirmed() {
    run(async {
        let (host, gate, volume) = more_than_the_journal_keeps(1000).await;
        let stored = objects(&host).await;
        gate.change(|plan| plan.outage = true);
        tokio::time::sleep(LEASE * 2).await;
        host.open_store.delete(&stored[1]).await.expect("deleted");
        gate.calm();
        tokio::time::sleep(LEASE * 2).await;
        let failure = volume.status().failure.expect("it stopped");
        assert!(failure.contains("was emptied or set back"), "{failure}");
    });
}

/// Objects that are lost while the lease is renewed: where the journal does not have them any more, the volume goes on
/// with the rest, of which it alone has the map.
#[test]
fn a_store_that_lost_an_object_was_not_set_back() {
    run(async {
        for count in [1, 2] {
            let (volume, taken) = checkpoint_without(count).await;
            taken.expect("it covers the loss");
            tokio::time::sleep(LEASE * 2).await;
            assert_eq!(volume.status().failure, None);
            expect_bytes(&volume, 4096, &[8; 4096]).await;
        }
    });
}

/// Also what came into the store while a checkpoint was made, which does not cover it.
#[test]
fn what_a_store_lost_beside_a_checkpoint_comes_from_the_journal() {
    run(async {
        let (mut host, gate) = Host::new().await.with_gate();
        host.checkpoint_every(3);
        let (volume, _) = host.open().await;
        gate.change(|plan| plan.latency = ANSWER..=ANSWER);
        // Five objects are on their way when a checkpoint of three begins.
        for object in 0..5 {
            write(&volume, object * 32768, &[1; 32768]).await.expect("done");
        }
        volume.flush_remote().await.expect("in the store");
        while volume.status().checkpoints_published == 0 {
            tokio::time::sleep(ANSWER).await;
        }
        assert_eq!(volume.status().checkpoint_as_of, Some(3));
        assert_eq!(volume.status().committed_sequence, 6, "its root came behind all of them");
        gate.calm();
        host.store.delete(&objects(&host).await[4]).await.expect("deleted");
        let error = volume.snapshot(&name("cut")).await.expect_err("something is lost");
        assert!(error.to_string().contains("was emptied or set back"), "{error}");
        expect_all_after(volume, &host, &[1; 40]).await;
    });
}

/// And the first object behind a checkpoint.
#[test]
fn what_a_store_lost_behind_a_checkpoint_comes_from_the_journal() {
    run(async {
        let host = Host::new().await;
        let (volume, _) = host.open().await;
        write(&volume, 0, &[1; 4096]).await.expect("done");
        volume.snapshot(&name("first")).await.expect("taken");
        write(&volume, 4096, &[2; 4096]).await.expect("done");
        volume.flush_remote().await.expect("in the store");
        let newest = objects(&host).await.pop().expect("it is there");
        host.store.delete(&newest).await.expect("deleted");
        let error = volume.snapshot(&name("second")).await.expect_err("something is lost");
        assert!(error.to_string().contains("was emptied or set back"), "{error}");
        expect_all_after(volume, &host, &[1, 2]).await;
    });
}

/// A volume of 32 objects of eight blocks, more than the journal keeps, that goes on without some of them.
pub(crate) async fn without(lost: &[usize]) -> (Host, Rc<LogVolume>) {
    let mut host = Host::new().await;
    host.checkpoint_every(1000);
    let (volume, _) = host.open().await;
    for block in 0..256 {
        write(&volume, block * 4096, &[1; 4096]).await.expect("done");
    }
    volume.flush_remote().await.expect("in the store");
    let stored = objects(&host).await;
    for object in lost {
        host.store.delete(&stored[*object]).await.expect("deleted");
    }
    volume.snapshot(&name("cut")).await.expect("it covers the loss");
    tokio::time::sleep(Duration::from_secs(1)).await;
    (host, volume)
}

/// What is lost while the volume goes on is in its status before anybody reads it, until it is written anew.
#[test]
fn the_status_names_what_the_store_lost() {
    run(async {
        let (_host, volume) = without(&[1]).await;
        let said = volume.status().read_failure.expect("something is lost");
        assert!(said.contains("reads fail in the 32768 bytes at 32768: "), "{said}");
        assert!(said.contains("the store lost "), "{said}");
        write(&volume, 32768, &[2; 32768]).await.expect("done");
        assert_eq!(volume.status().read_failure, None);
    });
}

/// The journal has all data, and no checkpoint: only this opening has the map.
#[test]
fn a_store_that_lost_a_checkpoint_gets_another_one() {
    run(async {
        let host = Host::new().await;
        let (volume, _) = host.open().await;
        write(&volume, 0, &[1; 4096]).await.expect("done");
        volume.snapshot(&name("first")).await.expect("taken");
        let root = objects(&host).await.pop().expect("a root");
        write(&volume, 4096, &[2; 4096]).await.expect("done");
        host.store.delete(&root).await.expect("deleted");
        volume.snapshot(&name("second")).await.expect("taken");
        assert_eq!(volume.status().failure, None);
        volume.close().await.expect("closed");
        expect_all_after(volume, &host, &[1, 2]).await;
    });
}

/// Stopping loses nothing as long as the journal has it.
#[test]
fn what_a_store_lost_comes_from_the_journal_as_long_as_that_has_it() {
    run(async {
        for lost in 0..3 {
            let host = Host::new().await;
            let (volume, _) = host.open().await;
            for block in 0..3 {
                write(&volume, block * 4096, &[1; 4096]).await.expect("done");
                volume.flush_remote().await.expect("in the store");
            }
            host.store.delete(&objects(&host).await[lost]).await.expect("deleted");
            let error = volume.snapshot(&name("cut")).await.expect_err("something is lost");
            assert!(error.to_string().contains("was emptied or set back"), "{error}");
            expect_all_after(volume, &host, &[1, 1, 1]).await;
        }
    });
}
