//! Volumes that cross the limits that work on maps and checkpoints is cut by: at the real limits, which volumes of a
//! MiB never see. What is read is read from the store alone, on another host.

use std::rc::Rc;
use std::time::Duration;

use weir_device::{DeviceExt, VolumeId, WriteZeroesFlags};
use weir_log::format::object::{ObjectHeader, ObjectKind};
use weir_log::limits::{APPLY_STEP_EXTENTS, INDEX_PAGE_ENTRIES, TABLE_PIECE_ENTRIES};
use weir_log::{GivenUp, LogVolume, ObjectId, OpenReport, VolumeOptions};

use crate::support::{
    Host, SIZE, discard, expect_bytes, expect_whole, name, objects, options, pattern, read, run,
    write,
};

/// Bytes of the volume that a piece of the map covers.
pub(crate) const MAP_PIECE_BYTES: u64 = 512 << 20;

/// Bytes of the volume whose map pieces one index page names.
const PAGE_BYTES: u64 = INDEX_PAGE_ENTRIES * MAP_PIECE_BYTES;

async fn elsewhere(host: &Host, seed: u64) -> (Rc<LogVolume>, OpenReport) {
    host.other(seed).try_open(|args| args.take_over = true).await.expect("opens")
}

#[test]
fn a_map_of_several_index_pages_is_loaded_whole() {
    run(async {
        let mut host = Host::new().await;
        let (volume, _) = host.open().await;
        volume.resize(4 * PAGE_BYTES).await.unwrap();
        // At the borders of pages, and in the middle of the third.
        let places =
            [0, PAGE_BYTES - 4096, PAGE_BYTES, 2 * PAGE_BYTES + (9 << 30), 4 * PAGE_BYTES - 4096];
        let mut bytes: Vec<Vec<u8>> = (0..5).map(|n| pattern(n, 4096)).collect();
        for (at, bytes) in places.iter().zip(&bytes) {
            write(&volume, *at, bytes).await.unwrap();
        }
        volume.close().await.unwrap();
        drop(volume);
        // A later checkpoint refers to the pages of an earlier one.
        for changed in 0..places.len() {
            host = host.other(20 + changed as u64);
            let (volume, _) = host.open().await;
            for (at, bytes) in places.iter().zip(&bytes) {
                expect_bytes(&volume, *at, bytes).await;
            }
            volume.check_invariants();
            bytes[changed] = pattern(100 + changed as u64, 4096);
            write(&volume, places[changed], &bytes[changed]).await.unwrap();
            volume.close().await.unwrap();
            expect_whole(&host).await;
        }
    });
}

/// A host whose index pages name two pieces of the map each, and a volume whose newest checkpoint has an index page in
/// an object that no piece of it is in: its key. The bytes at the begin of each piece are those that are returned, if
/// there are any.
async fn with_page_alone() -> (Host, String, [Option<Vec<u8>>; 4]) {
    let mut host = Host::new().await;
    host.options.map.index_page_entries = 2;
    host.options.collect.start_percent = 0;
    host.checkpoint_every(1000);
    let (volume, _) = host.open().await;
    volume.resize(4 * MAP_PIECE_BYTES).await.expect("resized");
    let bytes = [0, 1, 2, 3].map(|piece| pattern(piece, 4096));
    for (piece, bytes) in (0..).zip(&bytes) {
        write(&volume, piece * MAP_PIECE_BYTES, bytes).await.expect("written");
    }
    // So many extents that most of the object stays needed without the second piece and the third.
    for piece in [0, 3] {
        for extent in 1..200 {
            let at = piece * MAP_PIECE_BYTES + extent * 8192;
            write(&volume, at, &pattern(extent, 512)).await.expect("written");
        }
    }
    volume.close().await.expect("closed");
    let before = objects(&host).await;
    // One of the first two pieces has nothing in it any more: the page that named both is written, and no piece.
    let host = host.other(20);
    let (volume, _) = host.open().await;
    discard(&volume, MAP_PIECE_BYTES, MAP_PIECE_BYTES).await;
    volume.close().await.expect("closed");
    let mut new = objects(&host).await;
    new.retain(|key| !before.contains(key));
    let mut roots = Vec::new();
    for key in new {
        let header = host.store.get(&key).await.expect("there");
        let header = ObjectHeader::decode(&header).expect("whole");
        if header.kind == ObjectKind::Checkpoint {
            roots.push(key);
        }
    }
    let [root] = &roots[..] else { panic!("one checkpoint in one object: {roots:?}") };
    let [first, _, third, fourth] = bytes;
    (host, root.clone(), [Some(first), None, Some(third), Some(fourth)])
}

async fn expect_pieces(volume: &LogVolume, pieces: &[Option<Vec<u8>>; 4]) {
    for (piece, bytes) in (0..).zip(pieces) {
        let bytes = bytes.clone().unwrap_or_else(|| vec![0; 4096]);
        expect_bytes(volume, piece * MAP_PIECE_BYTES, &bytes).await;
    }
    volume.check_invariants();
}

#[test]
fn an_index_page_that_is_left_alone_in_its_object_is_written_again() {
    run(async {
        let (host, root, mut pieces) = with_page_alone().await;
        // Checkpoints that change nothing of what that page names: the first needs the table there, perhaps.
        let host = host.other(21);
        let (volume, _) = host.open().await;
        for round in 0..2 {
            let bytes = pattern(12 + round, 4096);
            write(&volume, 2 * MAP_PIECE_BYTES, &bytes).await.unwrap();
            pieces[2] = Some(bytes);
            volume.flush_remote().await.unwrap();
            volume.compact(1, |_, _| {}).await.unwrap();
        }
        let left = objects(&host).await;
        assert!(!left.contains(&root), "the object held that page and an old root: {left:?}");
        volume.close().await.unwrap();
        let host = host.other(22);
        let (volume, _) = host.open().await;
        expect_pieces(&volume, &pieces).await;
        volume.close().await.unwrap();
        expect_whole(&host).await;
    });
}

#[test]
fn a_damaged_index_page_is_written_anew_by_the_node_that_has_the_map_in_memory() {
    run(async {
        let (host, root, pieces) = with_page_alone().await;
        let host = host.other(21);
        let (volume, _) = host.open().await;
        host.store.delete(&root).await.unwrap();
        let damaged = ObjectId::parse_key(&root).unwrap();
        let done = volume.repair(&[damaged], GivenUp::Error, |_| {}).await.unwrap();
        assert_eq!((done.rewritten_objects, done.lost_bytes), (1, 0));
        volume.close().await.unwrap();
        let host = host.other(22);
        let (volume, _) = host.open().await;
        expect_pieces(&volume, &pieces).await;
        volume.close().await.unwrap();
        expect_whole(&host).await;
    });
}

#[test]
fn a_table_of_several_pieces_is_loaded_whole() {
    run(async {
        let mut host = Host::new().await;
        // No object is collected, and there is one checkpoint, or hardly more.
        host.options.collect.start_percent = 0;
        host.checkpoint_every(3000);
        let (volume, _) = host.open().await;
        let count = TABLE_PIECE_ENTRIES + 150;
        let len = usize::try_from(SIZE / count / 8 * 8).expect("small");
        let mut data = pattern(1, len * usize::try_from(count).expect("small"));
        for (n, bytes) in data.chunks(len).enumerate() {
            write(&volume, (n * len) as u64, bytes).await.unwrap();
            volume.flush_remote().await.unwrap();
        }
        assert!(volume.status().objects_written >= count);
        volume.close().await.unwrap();
        drop(volume);
        // Objects of the first piece and of the last one die, and the entries of others are used again.
        for round in 0..2 {
            host = host.other(30 + round);
            let (volume, _) = host.open().await;
            expect_bytes(&volume, 0, &data).await;
            volume.check_invariants();
            for n in [3, data.len() / len - 2] {
                let bytes = pattern(200 + round + n as u64, len);
                write(&volume, (n * len) as u64, &bytes).await.unwrap();
                volume.flush_remote().await.unwrap();
                data[n * len..(n + 1) * len].copy_from_slice(&bytes);
            }
            volume.close().await.unwrap();
            expect_whole(&host).await;
        }
    });
}

#[test]
fn an_object_of_more_extents_than_a_step_applies_is_read_back_whole() {
    run(async {
        let mut host = Host::new().await;
        host.options = options();
        host.options.batch.bytes = 16 << 20;
        host.options.batch.age = Duration::from_secs(3600);
        host.options.batch.rpo = Duration::from_secs(3600);
        host.options.journal.segment_bytes = 8 << 20;
        let count = 2 * APPLY_STEP_EXTENTS + 9;
        let places = (0..count).map(|n| n * 400).collect::<Vec<usize>>();
        let written = places.clone();
        host.in_killed_process(|volume| async move {
            for at in written {
                write(&volume, at as u64, &pattern(at as u64, 200)).await.unwrap();
            }
            volume.flush_remote().await.unwrap();
            assert_eq!(volume.status().objects_written, 1);
        })
        .await;
        // First by the object's header alone, then from a checkpoint.
        for seed in [41, 42] {
            let (volume, _) = elsewhere(&host, seed).await;
            let shown = read(&volume, 0, count * 400).await.unwrap();
            for at in &places {
                assert!(
                    shown[*at..at + 200] == pattern(*at as u64, 200),
                    "what was written at {at}"
                );
                assert!(shown[at + 200..at + 400] == [0; 200], "beside {at}");
            }
            volume.check_invariants();
            volume.close().await.unwrap();
        }
    });
}

/// Pieces of the map that one request covers, far more than memory has room for a list of.
const HUGE: u64 = 256 << 50;

/// Bytes of all objects in the store.
async fn stored_bytes(host: &Host) -> u64 {
    let prefix = ObjectId::prefix(VolumeId(host.id.0));
    let listed = host.store.list(&prefix, None).await.expect("listed");
    assert!(!listed.is_empty());
    listed.iter().map(|object| object.size).sum()
}

async fn zero(volume: &LogVolume, offset: u64, len: u64) {
    let flags = WriteZeroesFlags { no_hole: true, ..WriteZeroesFlags::default() };
    volume.write_zeroes(offset, len, flags).await.expect("zeroed");
}

#[test]
fn zeroes_and_discards_of_a_huge_volume_take_what_is_in_it() {
    run(async {
        let host = Host::new().await;
        let (volume, _) = host.open().await;
        volume.resize(HUGE).await.unwrap();
        let last = HUGE - 4096;
        for at in [0, 5000 * MAP_PIECE_BYTES, last] {
            write(&volume, at, &pattern(at, 4096)).await.unwrap();
        }
        volume.snapshot(&name("data")).await.expect("taken");
        // The pieces at both ends are zeroed in part, all others as a whole.
        zero(&volume, 4096, HUGE - 8192).await;
        volume.snapshot(&name("zeroes")).await.expect("taken");
        volume.check_invariants();
        expect_bytes(&volume, 5000 * MAP_PIECE_BYTES, &[0; 4096]).await;
        expect_bytes(&volume, last, &pattern(last, 4096)).await;
        discard(&volume, 0, HUGE).await;
        volume.snapshot(&name("nothing")).await.expect("taken");
        expect_bytes(&volume, 0, &[0; 4096]).await;
        volume.rollback(&name("data")).await.expect("rolled back");
        expect_bytes(&volume, 5000 * MAP_PIECE_BYTES, &pattern(5000 * MAP_PIECE_BYTES, 4096)).await;
        discard(&volume, 0, HUGE).await;
        volume.rollback(&name("zeroes")).await.expect("rolled back");
        volume.close().await.unwrap();
        drop(volume);
        assert!(stored_bytes(&host).await < 1 << 20, "a few pieces");
        let (volume, _) = elsewhere(&host, 20).await;
        expect_bytes(&volume, 0, &pattern(0, 4096)).await;
        expect_bytes(&volume, 4096, &[0; 4096]).await;
        expect_bytes(&volume, 5000 * MAP_PIECE_BYTES, &[0; 4096]).await;
        expect_bytes(&volume, last, &pattern(last, 4096)).await;
        volume.check_invariants();
        volume.close().await.unwrap();
    });
}

/// Longest write that is promised to be there whole or not at all.
const WHOLE_BYTES: usize = 15 << 18;

#[test]
fn a_write_of_the_length_that_is_promised_whole_is_in_one_object() {
    run(async {
        for encrypted in [false, true] {
            let mut host = if encrypted { Host::encrypted().await } else { Host::new().await };
            // The journal's real limits; every record ends an object.
            host.options.journal = VolumeOptions::default().journal;
            // But for segments that end more often.
            host.options.journal.segment_bytes = 16 << 20;
            host.options.batch.bytes = 1;
            let (volume, _) = host.open().await;
            volume.resize(64 << 20).await.unwrap();
            // Records that begin anywhere in a segment, and one that has no room in the first.
            for (round, offset) in [0, 512, 1, 4095, 8191].into_iter().enumerate() {
                for len in [WHOLE_BYTES, WHOLE_BYTES + (512 << 10)] {
                    let before = volume.status().objects_written;
                    write(&volume, offset, &pattern(offset, len)).await.unwrap();
                    volume.flush_remote().await.unwrap();
                    let objects = volume.status().objects_written - before;
                    let is_whole = objects == 1;
                    assert_eq!(is_whole, len == WHOLE_BYTES, "{round}, {encrypted}: {objects}");
                }
            }
        }
    });
}
