//! What an open volume does about objects that its store lost, where it goes on: what the journal has is sent again,
//! and the next checkpoint stands on none of them.

use std::rc::Rc;
use std::time::Duration;

use weir_device::ErrorKind;
use weir_log::{Closed, LogVolume};
use weir_store::Chance;

use crate::damage::{
    ANSWER, expect_all_after, more_than_the_journal_keeps, newest_beyond,
    snapshot_that_loses_an_object, without,
};
use crate::scale::MAP_PIECE_BYTES;
use crate::support::{Host, LEASE, expect_bytes, name, newest_manifest, objects, read, run, write};

/// Pieces of the map of a volume under test.
const PIECES: u64 = 4;

/// Extents of half a KiB that fill an object of these tests.
const EXTENTS: u64 = 64;

/// Writes a block at the begin of each of these pieces of the map.
async fn write_pieces(volume: &LogVolume, pieces: impl IntoIterator<Item = u64>, byte: u8) {
    for piece in pieces {
        write(volume, piece * MAP_PIECE_BYTES, &[byte; 4096]).await.expect("done");
    }
}

/// The next host finds these bytes in the pieces, without the journal.
async fn expect_pieces_elsewhere(host: &Host, bytes: &[u8]) -> Rc<LogVolume> {
    let (volume, _) = host.other(7).open().await;
    for (piece, byte) in (0..).zip(bytes) {
        expect_bytes(&volume, piece * MAP_PIECE_BYTES, &[*byte; 128]).await;
    }
    volume
}

/// Writes 32 KiB to each of so many pieces of the map, in so many extents that begin a KiB apart.
async fn write_extents(volume: &LogVolume, pieces: u64, extents: u64) {
    let bytes = vec![1; usize::try_from(32768 / extents).expect("small")];
    for extent in 0..pieces * extents {
        let at = extent / extents * MAP_PIECE_BYTES + extent % extents * 1024;
        write(volume, at, &bytes).await.expect("done");
    }
}

/// A volume with several pieces of the map, all of them in the root of its checkpoint, and the key of that. Most of the
/// root is what later checkpoints keep, as long as one piece changes.
async fn with_pieces(host: &Host) -> (Rc<LogVolume>, String) {
    let (volume, _) = host.open().await;
    volume.resize(PIECES * MAP_PIECE_BYTES).await.expect("resized");
    write_extents(&volume, PIECES, 4 * EXTENTS).await;
    volume.snapshot(&name("first")).await.expect("taken");
    let root = objects(host).await.pop().expect("a root");
    (volume, root)
}

/// Of two objects the journal has given up the first, and has the second.
#[test]
fn what_the_journal_has_of_lost_objects_is_sent_again() {
    run(async {
        let (host, volume) = without(&[1, 31]).await;
        let said = volume.status().read_failure.expect("something is lost");
        assert!(said.contains("reads fail in the 32768 bytes at 32768: "), "{said}");
        assert_eq!(volume.close().await.expect("closed"), Closed::Clean);
        drop(volume);
        let (volume, _) = host.other(7).open().await;
        expect_bytes(&volume, 0, &[1; 32768]).await;
        let lost = read(&volume, 32768, 4096).await.expect_err("it is lost");
        assert_eq!(lost.kind(), ErrorKind::Corrupt, "{lost}");
        expect_bytes(&volume, 65536, &[1; (1 << 20) - 65536]).await;
    });
}

/// What was in the checkpoint that the store lost, and did not change since, is written anew.
#[test]
fn a_checkpoint_refers_to_nothing_in_a_lost_one() {
    run(async {
        for snapshot in [true, false] {
            let (host, gate) = Host::new().await.with_gate();
            let (volume, root) = with_pieces(&host).await;
            host.store.delete(&root).await.expect("deleted");
            write_pieces(&volume, [0], 2).await;
            gate.change(|plan| plan.latency = ANSWER..=ANSWER);
            if snapshot {
                volume.snapshot(&name("second")).await.expect("taken");
            }
            assert_eq!(volume.status().failure, None);
            assert_eq!(volume.close().await.expect("closed"), Closed::Clean);
            drop(volume);
            expect_pieces_elsewhere(&host, &[2, 1, 1, 1]).await;
        }
    });
}

/// One is lost after the other, each once another checkpoint has taken the place of the one before: also so soon that
/// the next one is not begun yet when the volume is closed.
#[test]
fn each_lost_checkpoint_is_replaced() {
    run(async {
        for (pause, rounds) in [(Duration::from_secs(10), 4), (Duration::from_millis(100), 2)] {
            let host = Host::new().await;
            let (volume, mut root) = with_pieces(&host).await;
            for round in 0..rounds {
                host.store.delete(&root).await.expect("deleted");
                write_pieces(&volume, [0], round).await;
                let taken = format!("cut-{round}");
                volume.snapshot(&name(&taken)).await.expect("taken");
                if round + 1 < rounds {
                    tokio::time::sleep(pause).await;
                }
                root = objects(&host).await.pop().expect("a root");
            }
            assert_eq!(volume.close().await.expect("closed"), Closed::Clean);
            drop(volume);
            expect_pieces_elsewhere(&host, &[rounds - 1, 1, 1, 1]).await;
        }
    });
}

/// The same of the checkpoint that an opening begins with.
#[test]
fn a_lost_checkpoint_of_an_earlier_opening_is_replaced() {
    run(async {
        let host = Host::new().await;
        let (volume, root) = with_pieces(&host).await;
        volume.close().await.expect("closed");
        drop(volume);
        let (volume, _) = host.open().await;
        host.store.delete(&root).await.expect("deleted");
        write_pieces(&volume, [0], 2).await;
        assert_eq!(volume.close().await.expect("closed"), Closed::Clean);
        drop(volume);
        expect_pieces_elsewhere(&host, &[2, 1, 1, 1]).await;
    });
}

/// A part of the checkpoint under way is lost before the manifest names it, and with it what the journal gave up.
#[test]
fn a_lost_part_of_the_checkpoint_under_way_is_written_anew() {
    run(async {
        let (mut host, gate) = Host::new().await.with_gate();
        host.checkpoint_every(1000);
        // Each piece of the map is an object of its own.
        host.options.batch.bytes = 512;
        let (volume, _) = host.open().await;
        volume.resize(PIECES * MAP_PIECE_BYTES).await.expect("resized");
        for block in 0..PIECES * EXTENTS {
            let at = block % PIECES * MAP_PIECE_BYTES + block / PIECES * 1024;
            write(&volume, at, &[1; 512]).await.expect("done");
        }
        volume.flush_remote().await.expect("in the store");
        let stored = objects(&host).await;
        // The last block of the first piece but one.
        let at = (EXTENTS - 2) * 1024;
        host.store.delete(&stored[stored.len() - 8]).await.expect("deleted");
        for _ in 0..512 {
            write(&volume, 0, &[1; 4096]).await.expect("done");
        }
        volume.flush_remote().await.expect("in the store");
        let taken = snapshot_that_loses_an_object(&volume, &host, &gate).await;
        taken.expect("it covers the loss");
        assert_eq!(volume.close().await.expect("closed"), Closed::Clean);
        drop(volume);
        let volume = expect_pieces_elsewhere(&host, &[1; 4]).await;
        read(&volume, at, 512).await.expect_err("it is lost");
    });
}

/// What the volume goes on without counts for what is lost after it: the next opening would end in front of it.
#[test]
fn a_second_loss_is_judged_with_the_first() {
    run(async {
        let (host, gate, volume) = more_than_the_journal_keeps(1000).await;
        let stored = objects(&host).await;
        host.open_store.delete(&stored[1]).await.expect("deleted");
        gate.change(|plan| plan.latency = ANSWER..=ANSWER);
        let cut = name("cut");
        let second = async {
            newest_beyond(stored.len() - 1, &host).await;
            gate.change(|plan| plan.put.server_error = Chance::ALWAYS);
            tokio::time::sleep(ANSWER * 6).await;
            host.open_store.delete(&stored[31]).await.expect("deleted");
            gate.change(|plan| plan.put.server_error = Chance::NEVER);
        };
        let (taken, ()) = futures_util::join!(volume.snapshot(&cut), second);
        taken.expect("it covers both");
        assert_eq!(volume.close().await.expect("closed"), Closed::Clean);
        drop(volume);
        let (volume, _) = host.other(7).open().await;
        expect_bytes(&volume, 0, &[8; 32 * 4096]).await;
    });
}

/// Nobody can open a volume whose checkpoint is lost, so it goes on though its lease was missed.
#[test]
fn a_store_that_lost_a_checkpoint_while_it_was_away_gets_another_one() {
    run(async {
        for is_loaded in [false, true] {
            let (host, gate) = Host::new().await.with_gate();
            let (mut volume, root) = with_pieces(&host).await;
            if is_loaded {
                volume.close().await.expect("closed");
                drop(volume);
                (volume, _) = host.open().await;
            }
            gate.change(|plan| plan.outage = true);
            tokio::time::sleep(LEASE * 2).await;
            host.open_store.delete(&root).await.expect("deleted");
            gate.calm();
            tokio::time::sleep(LEASE * 2).await;
            assert_eq!(volume.status().failure, None);
            assert!(volume.status().lease_held);
            assert_eq!(volume.close().await.expect("closed"), Closed::Clean);
            drop(volume);
            expect_pieces_elsewhere(&host, &[1; 4]).await;
        }
    });
}

/// A copy of the collector that is no part of the checkpoint, though it came into the store before its root, is made
/// again: its sources are there as long as no other checkpoint is published.
#[test]
fn a_lost_copy_before_the_root_of_a_checkpoint_stops_the_volume() {
    run(async {
        let (mut host, gate) = Host::new().await.with_gate();
        host.checkpoint_every(1000);
        let (volume, _) = host.open().await;
        for block in 0..64 {
            write(&volume, block * 4096, &[1; 4096]).await.expect("done");
        }
        volume.flush_remote().await.expect("in the store");
        gate.change(|plan| plan.latency = ANSWER..=ANSWER);
        for block in (0..64).step_by(2) {
            write(&volume, block * 4096, &[2; 4096]).await.expect("done");
        }
        volume.flush_remote().await.expect("in the store");
        while volume.status().puts_in_flight == 0 {
            tokio::time::sleep(ANSWER / 50).await;
        }
        volume.snapshot(&name("first")).await.expect("taken");
        let as_of = volume.status().checkpoint_as_of.expect("published");
        gate.calm();
        let stored = objects(&host).await;
        let sequence = |key: &String| {
            let (_, name) = key.rsplit_once('/').expect("a key of an object");
            u64::from_str_radix(&name[..16], 16).expect("a sequence")
        };
        let root = newest_manifest(&host).await.checkpoint.expect("published").sequence;
        let between = |key: &&String| (as_of + 1..root).contains(&sequence(key));
        let copy = stored.iter().find(between).expect("a copy is on its way");
        host.store.delete(copy).await.expect("deleted");
        let error = volume.snapshot(&name("second")).await.expect_err("something is lost");
        assert!(error.to_string().contains("was emptied or set back"), "{error}");
        let bytes: Vec<u8> = (0..64).map(|block| 2 - block % 2).collect();
        expect_all_after(volume, &host, &bytes).await;
    });
}

/// What is lost behind what the checkpoint covers would end the next opening: another one is made, unasked.
#[test]
fn a_checkpoint_before_a_lost_object_is_followed_by_one_behind_it() {
    run(async {
        let (host, gate, volume) = more_than_the_journal_keeps(33).await;
        gate.change(|plan| plan.latency = ANSWER..=ANSWER);
        // Six objects are on their way when the checkpoint begins.
        for object in 0..6 {
            write(&volume, (1 << 19) + object * 32768, &[1; 32768]).await.expect("done");
        }
        newest_beyond(38, &host).await;
        let stored = objects(&host).await;
        for key in [&stored[1], &stored[35]] {
            host.open_store.delete(key).await.expect("deleted");
        }
        while volume.status().checkpoints_published < 2 {
            tokio::time::sleep(ANSWER).await;
        }
        assert!(volume.status().checkpoint_as_of > Some(36), "{:?}", volume.status());
        assert_eq!(volume.status().failure, None);
        gate.calm();
        // As after a kill: nothing was closed.
        drop(volume);
        let (volume, _) = host.open().await;
        expect_bytes(&volume, 0, &[8; 32 * 4096]).await;
        expect_bytes(&volume, 1 << 19, &[1; 6 * 32768]).await;
    });
}

/// The root of the checkpoint lies behind an object that the store lost and the journal has. The sequences behind that
/// are used again: by the opening that makes another checkpoint, or by one before it.
#[test]
fn a_checkpoint_beyond_a_lost_object_is_used_and_then_replaced() {
    run(async {
        for opened_between in [false, true] {
            let (mut host, root) = with_root_beyond_a_lost_object(EXTENTS).await;
            host.checkpoint_every(1000);
            if opened_between {
                host.in_killed_process(|volume| async move {
                    for _ in 0..8 {
                        write(&volume, 4 * MAP_PIECE_BYTES, &[1; 32768]).await.expect("done");
                    }
                    volume.flush_remote().await.expect("in the store");
                    assert!(volume.status().committed_sequence > root);
                    assert_eq!(volume.status().checkpoint_as_of, Some(3));
                })
                .await;
            }
            for _ in 0..2 {
                let (volume, _) = host.open().await;
                write(&volume, 4 * MAP_PIECE_BYTES, &[1; 4096]).await.expect("done");
                assert_eq!(volume.close().await.expect("closed"), Closed::Clean);
            }
            expect_pieces_elsewhere(&host, &[1; 5]).await;
        }
    });
}

/// The next root takes the sequence of the one that it replaces.
#[test]
fn a_checkpoint_whose_sequence_is_used_again_is_replaced() {
    run(async {
        let (mut host, root) = with_root_beyond_a_lost_object(1).await;
        host.checkpoint_every(1000);
        let (volume, _) = host.open().await;
        volume.snapshot(&name("cut")).await.expect("taken");
        let next = newest_manifest(&host).await.checkpoint.expect("published").sequence;
        assert_eq!(next, root);
        assert_eq!(volume.close().await.expect("closed"), Closed::Clean);
        drop(volume);
        expect_pieces_elsewhere(&host, &[1; 5]).await;
    });
}

/// A host with a volume that stopped, as the store lost object 5: its root, which is returned, is as of object 3. Its
/// objects have so many extents each.
async fn with_root_beyond_a_lost_object(extents: u64) -> (Host, u64) {
    let (mut host, gate) = Host::new().await.with_gate();
    host.checkpoint_every(3);
    // So that the journal has all of it.
    host.options.journal.segment_bytes = 2 << 20;
    let (volume, _) = host.open().await;
    volume.resize(5 * MAP_PIECE_BYTES).await.expect("resized");
    gate.change(|plan| plan.latency = ANSWER..=ANSWER);
    // Some objects are on their way when a checkpoint of three begins. Most of its root is what later ones keep.
    write_extents(&volume, 5, extents).await;
    volume.flush_remote().await.expect("in the store");
    while volume.status().checkpoints_published == 0 {
        tokio::time::sleep(ANSWER).await;
    }
    assert_eq!(volume.status().checkpoint_as_of, Some(3));
    let root = newest_manifest(&host).await.checkpoint.expect("published").sequence;
    assert!(root > 5, "its root came behind the next two");
    gate.calm();
    host.store.delete(&objects(&host).await[4]).await.expect("deleted");
    volume.snapshot(&name("cut")).await.expect_err("something is lost");
    (host, root)
}

/// One object has more ranges than a status remembers.
#[test]
fn more_lost_ranges_than_are_remembered_are_mentioned() {
    run(async {
        let mut host = Host::new().await;
        host.checkpoint_every(1000);
        let (volume, _) = host.open().await;
        for extent in 0..EXTENTS {
            write(&volume, extent * 1024, &[1; 512]).await.expect("done");
        }
        // More than the journal keeps.
        for block in 16..256 {
            write(&volume, block * 4096, &[1; 4096]).await.expect("done");
        }
        volume.flush_remote().await.expect("in the store");
        host.store.delete(&objects(&host).await[0]).await.expect("deleted");
        volume.snapshot(&name("cut")).await.expect("it covers the loss");
        tokio::time::sleep(Duration::from_secs(1)).await;
        let said = volume.status().read_failure.expect("something is lost");
        assert!(said.contains(", and in more than 15 more ranges: the store lost "), "{said}");
        write(&volume, 0, &vec![2; 65536]).await.expect("done");
        assert_eq!(volume.status().read_failure, None);
    });
}

/// A close that has nothing to write asks for the checkpoint as well, beside whoever finds that it is lost.
#[test]
fn a_close_whose_checkpoint_is_lost_makes_another_one() {
    run(async {
        for seconds in 0..24 {
            let (host, gate) = Host::new().await.with_gate();
            let (volume, root) = with_pieces(&host).await;
            gate.change(|plan| plan.outage = true);
            tokio::time::sleep(LEASE * 2).await;
            host.open_store.delete(&root).await.expect("deleted");
            gate.calm();
            gate.change(|plan| plan.latency = ANSWER..=ANSWER);
            tokio::time::sleep(Duration::from_secs(seconds)).await;
            assert_eq!(volume.close().await.expect("closed"), Closed::Clean, "after {seconds} s");
            drop(volume);
            expect_pieces_elsewhere(&host, &[1; 4]).await;
        }
    });
}

/// What another node that took the volume over deleted is not lost: nothing goes on here.
#[test]
fn an_owner_whose_checkpoint_was_replaced_does_not_go_on() {
    run(async {
        let (host, gate) = Host::new().await.with_gate();
        let (volume, root) = with_pieces(&host).await;
        let published = volume.status().checkpoints_published;
        gate.change(|plan| plan.outage = true);
        tokio::time::sleep(LEASE * 2).await;
        let (other, _) = host.other(7).try_open(|args| args.take_over = true).await.expect("taken");
        other.close().await.expect("closed");
        host.open_store.delete(&root).await.expect("deleted");
        write(&volume, 0, &[3; 4096]).await.expect("nobody said anything yet");
        gate.calm();
        tokio::time::sleep(LEASE * 2).await;
        let failure = volume.status().failure.expect("it stopped");
        assert!(failure.contains("another writer"), "{failure}");
        assert_eq!(volume.status().checkpoints_published, published);
    });
}
