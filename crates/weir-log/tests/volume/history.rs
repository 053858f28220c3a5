//! A snapshot that says what changed since earlier ones, range by range: the same as a comparison of the two, whatever
//! a client asks for and in whatever pieces.

use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use weir_device::{ByteRange, DeviceError, DeviceExt, ErrorKind, History};
use weir_log::{LogVolume, MemoryFrameCache, SnapshotView, changes};

use crate::support::{Host, SIZE, discard, fill, name, pattern, run, write};

/// What the map is kept in: the unit of a comparison.
const PIECE: u64 = 512 << 20;

async fn view(host: &Host, snapshot: &str) -> Rc<SnapshotView> {
    let cache = Arc::new(MemoryFrameCache::new(256 << 10));
    let deadline = Duration::from_secs(30);
    let (store, env) = (&host.store, &host.env);
    SnapshotView::open(store, env, (host.id, &host.keys), &name(snapshot), cache.into(), deadline)
        .await
        .expect("opens")
}

/// Asks about `start..end`, `step` bytes and `runs_max` runs at a time: what changed, as ranges that do not touch.
async fn ask(
    view: &SnapshotView,
    since: &str,
    (start, end): (u64, u64),
    (step, runs_max): (u64, usize),
) -> Result<Vec<(u64, u64)>, DeviceError> {
    let (mut at, mut found) = (start, Vec::<(u64, u64)>::new());
    while at < end {
        let len = step.min(end - at);
        let runs = view.changed(since, ByteRange::new(at, at + len), runs_max).await?;
        assert!(!runs.is_empty() && runs.len() <= runs_max, "{} runs", runs.len());
        assert!(runs.iter().all(|run| run.len > 0));
        assert!(runs.iter().map(|run| run.len).sum::<u64>() <= len, "within the range");
        for run in runs {
            let (from, to) = (at, at + run.len);
            at = to;
            match found.last_mut() {
                _ if !run.changed => {}
                Some(last) if last.1 == from => last.1 = to,
                _ => found.push((from, to)),
            }
        }
    }
    Ok(found)
}

/// The same from the comparison of both, and all of what the first did not have.
async fn expected(host: &Host, since: &str, to: &str) -> Vec<(u64, u64)> {
    let mut found = Vec::<(u64, u64)>::new();
    let mut add = |from, to| match found.last_mut() {
        Some(last) if last.1 == from => last.1 = to,
        _ => found.push((from, to)),
    };
    let (since, to) = (name(since), name(to));
    let mut changed = Vec::new();
    let sum =
        changes(&host.store, &host.env, (host.id, &host.keys), (&since, &to), async |change| {
            changed.push((change.offset, change.offset + change.len));
        });
    let sum = sum.await.expect("compared");
    for (start, end) in changed {
        if start < sum.from_size {
            add(start, end.min(sum.from_size));
        }
    }
    if sum.from_size < sum.to_size {
        add(sum.from_size, sum.to_size);
    }
    found
}

async fn expect_same(host: &Host, to: &str, steps: &[u64]) {
    let view = view(host, to).await;
    for since in view.earlier() {
        let expected = expected(host, &since, to).await;
        for step in steps {
            for runs_max in [1, 2, 3, 4096] {
                let asked = ask(&view, &since, (0, view.size()), (*step, runs_max)).await;
                let asked = asked.expect("told");
                assert!(
                    asked == expected,
                    "{since} to {to}, {step} bytes, {runs_max} runs at a time"
                );
            }
        }
    }
}

#[test]
fn it_says_the_same_as_a_comparison_of_both() {
    run(async {
        let host = Host::encrypted().await;
        let (volume, _) = host.open().await;
        volume.snapshot(&name("empty")).await.unwrap();
        fill(&volume, 1).await;
        volume.snapshot(&name("full")).await.unwrap();
        volume.snapshot(&name("same")).await.unwrap();
        write(&volume, 12_345, &pattern(2, 4096)).await.unwrap();
        discard(&volume, 65_536, 8192).await;
        volume.snapshot(&name("little")).await.unwrap();
        volume.resize(2 * SIZE).await.unwrap();
        for n in 0..100 {
            write(&volume, n * n * 7919 % (SIZE - 5000), &pattern(n, 5000)).await.unwrap();
        }
        volume.snapshot(&name("grown")).await.unwrap();
        assert_eq!(view(&host, "empty").await.earlier(), Vec::<String>::new());
        let earlier = view(&host, "grown").await.earlier();
        assert_eq!(earlier, ["empty", "full", "same", "little"]);
        for to in ["full", "same", "little", "grown"] {
            expect_same(&host, to, &[u64::MAX, 100_000, 4096]).await;
        }
        let little = view(&host, "little").await;
        let all = ask(&little, "full", (0, SIZE), (u64::MAX, 100)).await.unwrap();
        assert_eq!(all, [(12_345, 16_441), (65_536, 73_728)]);
        let part = ask(&little, "full", (13_000, 66_000), (u64::MAX, 100)).await.unwrap();
        assert_eq!(part, [(13_000, 16_441), (65_536, 66_000)]);
        let grown = view(&host, "grown").await;
        let new = ask(&grown, "little", (SIZE - 1, SIZE + 9), (4, 1)).await.unwrap();
        assert_eq!(new.last(), Some(&(SIZE, SIZE + 9)), "what the first did not have has changed");
    });
}

#[test]
fn a_large_volume_is_compared_in_pieces() {
    run(async {
        let host = Host::new().await;
        let (volume, _) = host.open().await;
        volume.resize(40 * PIECE).await.unwrap();
        write(&volume, 17 * PIECE, &pattern(1, 4096)).await.unwrap();
        volume.snapshot(&name("first")).await.unwrap();
        for piece in [0, 1, 2, 5, 6, 7, 8, 9, 10, 11, 17, 30, 39] {
            write(&volume, piece * PIECE + 100, &pattern(piece, 5000)).await.unwrap();
        }
        // Across the border of two pieces, and a whole piece.
        write(&volume, 20 * PIECE - 2000, &pattern(7, 4000)).await.unwrap();
        volume.snapshot(&name("second")).await.unwrap();
        discard(&volume, 5 * PIECE, 3 * PIECE).await;
        discard(&volume, 17 * PIECE, PIECE).await;
        volume.snapshot(&name("third")).await.unwrap();
        for to in ["second", "third"] {
            expect_same(&host, to, &[u64::MAX, 3 * PIECE + 1, PIECE, PIECE / 3]).await;
        }
        // Here and there, as several clients ask.
        let view = view(&host, "third").await;
        for (piece, changed) in [(39, 1), (0, 1), (3, 0), (17, 1), (5, 1), (19, 1), (12, 0)] {
            let range = (piece * PIECE, (piece + 1) * PIECE);
            let found = ask(&view, "first", range, (u64::MAX, 9)).await.unwrap();
            let all = expected(&host, "first", "third").await;
            let here = all.into_iter().filter(|run| run.0 < range.1 && run.1 > range.0);
            let here: Vec<_> = here.map(|r| (r.0.max(range.0), r.1.min(range.1))).collect();
            assert_eq!((found.len(), &found), (changed.min(here.len()), &here), "piece {piece}");
        }
    });
}

#[test]
fn ranges_past_the_end_and_states_that_are_none_are_errors() {
    run(async {
        let host = Host::new().await;
        let (volume, _) = host.open().await;
        volume.snapshot(&name("a")).await.unwrap();
        volume.snapshot(&name("b")).await.unwrap();
        volume.snapshot(&name("c")).await.unwrap();
        let view = view(&host, "b").await;
        let kind = async |since, len| {
            view.changed(since, ByteRange::new(1, 1 + len), 9).await.map_err(|error| error.kind())
        };
        assert_eq!(kind("a", SIZE).await, Err(ErrorKind::Invalid));
        for since in ["b", "c", "never"] {
            assert_eq!(kind(since, 1).await, Err(ErrorKind::NotFound), "{since}");
        }
        assert_eq!(kind("a", 0).await, Ok(Vec::new()));
        assert_eq!(kind("a", 1).await.unwrap().len(), 1);
    });
}

/// Two snapshots of a large volume that differ in `pieces`.
async fn two(host: &Host, pieces: u64) -> Rc<LogVolume> {
    let (volume, _) = host.open().await;
    volume.resize(pieces * PIECE).await.expect("done");
    for state in ["a", "b"] {
        for piece in 0..pieces {
            write(&volume, piece * PIECE, &pattern(piece, 4096)).await.expect("done");
        }
        volume.snapshot(&name(state)).await.expect("done");
    }
    volume
}

#[test]
fn what_is_deleted_meanwhile_is_an_error_or_still_right() {
    run(async {
        let host = Host::new().await;
        let volume = two(&host, 12).await;
        let (early, late) = (view(&host, "b").await, view(&host, "b").await);
        let all = expected(&host, "a", "b").await;
        assert_eq!(all.len(), 12);
        assert_eq!(ask(&early, "a", (0, PIECE), (PIECE, 9)).await.unwrap(), all[..1]);
        volume.delete_snapshot(&name("a")).await.unwrap();
        for _ in 0..3 {
            fill(&volume, 9).await;
            volume.flush_remote().await.unwrap();
            tokio::time::sleep(Duration::from_secs(60)).await;
        }
        let end = 12 * PIECE;
        assert!(ask(&late, "a", (0, end), (PIECE, 9)).await.is_err(), "its objects are gone");
        assert_eq!(late.earlier(), ["a"], "as of when it was opened");
        let compared = ask(&early, "a", (PIECE, 2 * PIECE), (PIECE, 9)).await.unwrap();
        assert_eq!(compared, all[1..2], "what was compared before still is right");
        let rest = ask(&early, "a", (8 * PIECE, end), (PIECE, 9)).await;
        assert_eq!(rest.unwrap_err().kind(), ErrorKind::NotFound);
        for start in [8 * PIECE, 0] {
            let again = ask(&early, "a", (start, start + PIECE), (PIECE, 9)).await;
            assert!(again.is_err(), "a failure leaves nothing that looks compared");
        }
        assert_eq!(view(&host, "b").await.earlier(), Vec::<String>::new());
    });
}

#[test]
fn while_the_store_cannot_be_reached_nothing_is_told() {
    run(async {
        let host = Host::new().await;
        drop(two(&host, 12).await);
        let view = view(&host, "b").await;
        let all = expected(&host, "a", "b").await;
        for start in [0, 8 * PIECE] {
            host.faults.change(|plan| plan.outage = true);
            let error = ask(&view, "a", (start, 12 * PIECE), (PIECE, 9)).await.unwrap_err();
            assert_eq!(error.kind(), ErrorKind::Unavailable, "{error}");
            host.faults.calm();
            // The very pieces that could not be read first: nothing may look compared.
            let there = ask(&view, "a", (start, 12 * PIECE), (PIECE, 9)).await.unwrap();
            assert_eq!(there, all.iter().copied().filter(|r| r.0 >= start).collect::<Vec<_>>());
            let told = ask(&view, "a", (0, 12 * PIECE), (PIECE, 9)).await.unwrap();
            assert_eq!(told, all, "and then all of it");
            assert_eq!(ask(&view, "a", (0, PIECE), (PIECE, 9)).await.unwrap(), all[..1]);
        }
    });
}

/// Buffers come from a pool, with what was read before in them.
#[test]
fn holes_of_a_snapshot_are_zeroes_whatever_was_read_before() {
    run(async {
        let host = Host::new().await;
        let (volume, _) = host.open().await;
        write(&volume, 4096, &[1; 4096]).await.expect("written");
        write(&volume, 65536, &[2; 8192]).await.expect("written");
        volume.snapshot(&name("cut")).await.expect("taken");
        let view = view(&host, "cut").await;
        for _ in 0..4 {
            let mut bytes = [0xee; 16384];
            // A hole before and behind what was written, each time in one read.
            view.read(65536 - 4096, &mut bytes).await.expect("read");
            assert_eq!(bytes[4096..12288], [2; 8192]);
            view.read(0, &mut bytes).await.expect("read");
            assert_eq!(bytes[..4096], [0; 4096]);
            assert_eq!(bytes[4096..8192], [1; 4096]);
            assert_eq!(bytes[8192..], [0; 8192]);
        }
    });
}
