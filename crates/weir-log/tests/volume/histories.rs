//! Stores and data directories that were set back, copied, and brought back: whose journal is replayed into what.

use std::cell::Cell;
use std::rc::Rc;
use std::time::Duration;

use bytes::Bytes;
use tokio::task::LocalSet;
use weir_device::VolumeId;
use weir_disk::sim::CopyAs;
use weir_journal::{Epoch, WriteNumber};
use weir_log::format::manifest::HexId;
use weir_log::format::object::{self, Encoding, ExtentKind, ObjectExtent, ObjectKind, ObjectSpec};
use weir_log::{
    BatchLimits, LogError, LogVolume, ObjectId, ObjectSeq, OpenArgs, RefusalReason, Takeover,
    WriteMark, catalog,
};
use weir_store::Chance;

use crate::support::{
    Backup, Host, LEASE, checked, expect_bytes, flush, name, newest_manifest, object_key,
    open_and_cut_off, run, write,
};

/// A host whose batches become objects only when that is asked for.
fn slow(mut host: Host) -> Host {
    let age = Duration::from_secs(3600);
    host.options.batch = BatchLimits { age, rpo: age, ..host.options.batch };
    host
}

fn reason_of(error: LogError) -> RefusalReason {
    match error {
        LogError::JournalRefused { refusal, .. } => refusal.reason,
        other => panic!("another reason: {other}"),
    }
}

/// D1: A's store is set back while A is away; B goes on in it and closes; then A comes back.
#[test]
fn a_journal_of_a_lost_history_is_not_replayed_over_a_newer_owner() {
    run(async {
        let a = slow(Host::new().await);
        a.in_killed_process(|volume| async move {
            write(&volume, 0, &[0x11; 4096]).await.unwrap();
            volume.flush_remote().await.unwrap();
        })
        .await;
        let backup = Backup::of(&a.store).await;
        a.in_killed_process(|_| async {}).await;
        a.in_killed_process(|volume| async move {
            write(&volume, 0, &[0x22; 4096]).await.unwrap();
            flush(&volume).await.unwrap();
        })
        .await;
        backup.restore(&a.store).await;
        let b = a.other(5);
        let (volume, _) = b.try_open(|args| args.take_over = true).await.unwrap();
        write(&volume, 0, &[0x33; 4096]).await.unwrap();
        volume.close().await.unwrap();
        drop(volume);

        for (take_over, adopt_journal) in [(false, false), (true, false), (false, true)] {
            let refused = a.try_open(|args| {
                (args.take_over, args.adopt_journal) = (take_over, adopt_journal);
            });
            let refused = refused.await.unwrap_err();
            let text = refused.to_string();
            assert_eq!(reason_of(refused), RefusalReason::OtherHistory);
            assert!(text.contains("2 written blocks (8192 bytes)"), "{text}");
        }
        let (volume, report) = a.try_open(|args| args.discard_journal = true).await.unwrap();
        assert!(report.new_journal);
        expect_bytes(&volume, 0, &[0x33; 4096]).await;
    });
}

/// A store is set back to before the last opening, which sent everything that its journal held. Whether the journal
/// still holds some of it depends on what a loss of power leaves.
#[test]
fn a_store_that_was_set_back_is_noticed_though_the_journal_holds_nothing() {
    let missing = Rc::new(Cell::new(0));
    for seed in 1..=16 {
        let missing = Rc::clone(&missing);
        run(async move {
            let host = slow(Host::new().await).other(seed);
            let (volume, _) = host.open().await;
            write(&volume, 0, &[1; 4096]).await.unwrap();
            volume.close().await.unwrap();
            drop(volume);
            let backup = Backup::of(&host.store).await;
            host.in_killed_process(|volume| async move {
                for _ in 0..4 {
                    write(&volume, 0, &[2; 100 << 10]).await.unwrap();
                    volume.flush_remote().await.unwrap();
                }
                write(&volume, 0, &[2; 30 << 10]).await.unwrap();
                tokio::time::sleep(Duration::from_secs(1)).await;
            })
            .await;
            host.disk.crash_power();
            backup.restore(&host.store).await;
            // Versions are published in the store that was set back, more than the journal knows of: their numbers do
            // not say that it was.
            for takeover in [Takeover::Auto, Takeover::Manual, Takeover::Auto, Takeover::Manual] {
                let name = name("demo");
                catalog::set_takeover(&host.store, &host.env, &name, takeover).await.expect("set");
            }
            // However often it is tried, and whatever was said about something else.
            let mut is_empty = false;
            for take_over in [false, true, false] {
                let refused = host.try_open(|args| args.take_over = take_over).await;
                match refused.map(|_| ()).unwrap_err() {
                    LogError::ObjectsMissing { .. } => is_empty = true,
                    error => assert_eq!(reason_of(error), RefusalReason::OtherHistory),
                }
            }
            missing.set(missing.get() + u64::from(is_empty));
            let agree = |args: &mut OpenArgs| {
                (args.accept_loss, args.discard_journal) = (is_empty, !is_empty);
            };
            // A process that is killed before its first write, and one after it. Nobody is asked again.
            let process = LocalSet::new();
            process.run_until(host.try_open(agree)).await.unwrap();
            host.disk.crash_process();
            drop(process);
            host.in_killed_process(|volume| async move {
                expect_bytes(&volume, 0, &[1; 4096]).await;
                write(&volume, 4096, &[2; 4096]).await.unwrap();
            })
            .await;
            let (volume, _) = host.open().await;
            expect_bytes(&volume, 0, &[[1; 4096], [2; 4096]].concat()).await;
            write(&volume, 0, &[3; 4096]).await.unwrap();
            volume.close().await.unwrap();
            drop(volume);
            let (volume, _) = host.open().await;
            expect_bytes(&volume, 0, &[3; 4096]).await;
        });
    }
    assert!(missing.get() > 0, "no journal was empty");
}

/// A store is set back to a backup of the opening that the journal is of, and the journal has all writes since: what
/// `change` did is in no record of it. Writes follow the change.
async fn set_back_over<F: Future<Output = ()>>(change: impl FnOnce(Rc<LogVolume>) -> F) -> Host {
    let host = slow(Host::new().await);
    let store = host.store.clone();
    let backup = host
        .in_killed_process(|volume| async move {
            write(&volume, 0, &[1; 8192]).await.expect("it works");
            volume.snapshot(&name("a")).await.expect("it works");
            write(&volume, 0, &[2; 4096]).await.expect("it works");
            volume.flush_remote().await.expect("it works");
            let backup = Backup::of(&store).await;
            change(Rc::clone(&volume)).await;
            write(&volume, 4096, &[3; 4096]).await.expect("it works");
            flush(&volume).await.expect("it works");
            backup
        })
        .await;
    // What was noted is durable.
    host.disk.crash_power();
    backup.restore(&host.store).await;
    host
}

/// However often it is asked, and whatever was agreed to that is something else; then each way out once.
async fn refused_until_agreed(host: &Host, accept_loss: bool) -> Rc<LogVolume> {
    for take_over in [false, true, false, false, false, false] {
        let refused = host.try_open(|args| args.take_over = take_over).await.map(|_| ());
        let reason = reason_of(refused.expect_err("the store was set back"));
        assert!(matches!(reason, RefusalReason::StoreSetBack { .. }), "{reason:?}");
    }
    let agree = |args: &mut OpenArgs| {
        (args.accept_loss, args.discard_journal) = (accept_loss, !accept_loss);
        // What becomes of the holder, which is the journal's opening, is asked as for a lost disk.
        args.take_over = !accept_loss;
    };
    let (volume, report) = host.try_open(agree).await.expect("agreed");
    assert_eq!(report.new_journal, !accept_loss);
    volume
}

/// Nothing is asked again, after a crash and after a close.
async fn opens_from_here_on(host: &Host, volume: Rc<LogVolume>) {
    volume.close().await.expect("it works");
    drop(volume);
    host.in_killed_process(|volume| async move {
        write(&volume, 8192, &[4; 4096]).await.expect("it works");
    })
    .await;
    let (volume, _) = host.open().await;
    expect_bytes(&volume, 8192, &[4; 4096]).await;
}

#[test]
fn a_store_that_was_set_back_within_an_opening_over_a_rollback_is_noticed() {
    for accept_loss in [false, true] {
        run(async move {
            let host = set_back_over(|volume| async move {
                volume.rollback(&name("a")).await.unwrap();
            })
            .await;
            let volume = refused_until_agreed(&host, accept_loss).await;
            expect_bytes(&volume, 0, &[2; 4096]).await;
            expect_bytes(&volume, 4096, &[if accept_loss { 3 } else { 1 }; 4096]).await;
            opens_from_here_on(&host, volume).await;
        });
    }
}

#[test]
fn a_store_that_was_set_back_within_an_opening_over_a_new_size_is_noticed() {
    for size in [2 * crate::support::SIZE, crate::support::SIZE / 2] {
        run(async move {
            let host = set_back_over(|volume| async move {
                if size > crate::support::SIZE {
                    volume.resize(size).await.unwrap();
                } else {
                    volume.shrink(size).await.unwrap();
                }
            })
            .await;
            let volume = refused_until_agreed(&host, true).await;
            expect_bytes(&volume, 4096, &[3; 4096]).await;
            opens_from_here_on(&host, volume).await;
        });
    }
}

#[test]
fn a_store_that_was_set_back_within_an_opening_over_a_snapshot_is_noticed() {
    for deleted in [false, true] {
        run(async move {
            let host = set_back_over(|volume| async move {
                if deleted {
                    volume.delete_snapshot(&name("a")).await.unwrap();
                } else {
                    volume.snapshot(&name("b")).await.unwrap();
                }
            })
            .await;
            let volume = refused_until_agreed(&host, true).await;
            expect_bytes(&volume, 4096, &[3; 4096]).await;
            opens_from_here_on(&host, volume).await;
        });
    }
}

#[test]
fn a_store_that_was_set_back_within_an_opening_over_another_takeover_is_noticed() {
    run(async {
        let host = set_back_over(|volume| async move {
            volume.set_takeover(Takeover::Auto).await.unwrap();
        })
        .await;
        let volume = refused_until_agreed(&host, true).await;
        opens_from_here_on(&host, volume).await;
    });
}

/// The journal has all writes since the backup, and nothing but writes came since: nothing is missing.
#[test]
fn a_store_that_was_set_back_within_an_opening_over_writes_alone_is_written_again() {
    run(async {
        let host = set_back_over(|_| async {}).await;
        let (volume, _) = host.open().await;
        expect_bytes(&volume, 0, &[2; 4096]).await;
        expect_bytes(&volume, 4096, &[3; 4096]).await;
    });
}

/// D3: an earlier state of the data directory is put back, and later the true one.
#[test]
fn an_old_copy_of_the_directory_is_not_taken_for_the_journal() {
    run(async {
        let host = slow(Host::new().await);
        host.in_killed_process(|volume| async move {
            write(&volume, 0, &[1; 4096]).await.unwrap();
            flush(&volume).await.unwrap();
        })
        .await;
        let old = host.disk.copy_directory("");
        host.in_killed_process(|volume| async move {
            write(&volume, 0, &[2; 4096]).await.unwrap();
            flush(&volume).await.unwrap();
        })
        .await;
        let newest = host.disk.copy_directory("");
        host.disk.put_copy("", &old, CopyAs::SameFiles);
        let refused = host.try_open(|args| args.take_over = true).await.unwrap_err();
        assert_eq!(reason_of(refused), RefusalReason::Superseded);
        host.disk.put_copy("", &newest, CopyAs::SameFiles);
        let (volume, report) = host.open().await;
        assert!(!report.new_journal);
        expect_bytes(&volume, 0, &[2; 4096]).await;
    });
}

#[test]
fn an_old_copy_that_holds_nothing_of_its_own_is_asked_about_as_a_lost_disk_is() {
    run(async {
        let host = slow(Host::new().await);
        host.in_killed_process(|volume| async move {
            write(&volume, 0, &[1; 4096]).await.unwrap();
            volume.flush_remote().await.unwrap();
        })
        .await;
        let old = host.disk.copy_directory("");
        host.in_killed_process(|volume| async move {
            write(&volume, 0, &[2; 4096]).await.unwrap();
            flush(&volume).await.unwrap();
        })
        .await;
        let newest = host.disk.copy_directory("");
        host.disk.put_copy("", &old, CopyAs::SameFiles);
        let refused = host.try_open(|_| {}).await.unwrap_err();
        assert!(matches!(refused, LogError::Held { .. }), "{refused}");
        let (volume, _) = host.try_open(|args| args.take_over = true).await.unwrap();
        write(&volume, 8192, &[3; 4096]).await.unwrap();
        volume.close().await.unwrap();
        drop(volume);
        // The true one is brought back after all: what it holds is not lost in silence, and not replayed over the rest.
        host.disk.put_copy("", &newest, CopyAs::SameFiles);
        let refused = host.try_open(|_| {}).await.unwrap_err();
        assert_eq!(reason_of(refused), RefusalReason::Superseded);
    });
}

/// A host whose directory is as it was `pause` after its first write: it lacks a second one, which is flushed, and
/// which only a renewal of the lease has seen.
async fn set_back_between_renewals(pause: Duration) -> Host {
    let host = slow(Host::new().await);
    let disk = host.disk.clone();
    let old = host
        .in_killed_process(|volume| async move {
            write(&volume, 0, &[1; 4096]).await.expect("done");
            flush(&volume).await.expect("done");
            tokio::time::sleep(pause).await;
            let old = disk.copy_directory("");
            write(&volume, 0, &[2; 4096]).await.expect("done");
            flush(&volume).await.expect("done");
            tokio::time::sleep(LEASE / 2).await;
            old
        })
        .await;
    host.disk.put_copy("", &old, CopyAs::SameFiles);
    host
}

/// A backup from within the opening, and only a renewal of the lease has seen what it lacks.
#[test]
fn a_directory_that_was_set_back_within_an_opening_is_noticed_by_the_lease() {
    run(async {
        let host = set_back_between_renewals(Duration::ZERO).await;
        for take_over in [false, true] {
            let refused = host.try_open(|args| args.take_over = take_over).await.unwrap_err();
            let reason = reason_of(refused);
            assert!(matches!(reason, RefusalReason::SetBack { seen: 2, .. }), "{reason:?}");
        }
        let (volume, _) = host.try_open(|args| args.accept_loss = true).await.unwrap();
        expect_bytes(&volume, 0, &[1; 4096]).await;
    });
}

/// The same, while bits flip on the way: an older renewal has seen less.
#[test]
fn a_damaged_reading_of_a_renewal_does_not_make_it_unseen() {
    run(async {
        let host = set_back_between_renewals(LEASE / 2).await;
        host.faults.change(|plan| plan.flipped_bit = Chance::percent(20));
        for _ in 0..30 {
            assert!(host.try_open(|_| {}).await.is_err(), "what it flushed is gone");
        }
    });
}

/// The same, and objects hold what it lacks.
#[test]
fn a_directory_that_was_set_back_within_an_opening_is_noticed_by_the_objects() {
    run(async {
        let host = slow(Host::new().await);
        let disk = host.disk.clone();
        let old = host
            .in_killed_process(|volume| async move {
                write(&volume, 0, &[1; 4096]).await.unwrap();
                let old = disk.copy_directory("");
                write(&volume, 0, &[2; 4096]).await.unwrap();
                volume.flush_remote().await.unwrap();
                write(&volume, 8192, &[3; 4096]).await.unwrap();
                old
            })
            .await;
        let newest = host.disk.copy_directory("");
        host.disk.put_copy("", &old, CopyAs::SameFiles);
        let reason = reason_of(host.try_open(|_| {}).await.unwrap_err());
        assert!(matches!(reason, RefusalReason::SetBack { .. }), "{reason:?}");
        host.disk.put_copy("", &newest, CopyAs::SameFiles);
        let (volume, _) = host.open().await;
        expect_bytes(&volume, 0, &[2; 4096]).await;
        expect_bytes(&volume, 8192, &[3; 4096]).await;
    });
}

#[test]
fn a_directory_from_before_a_clean_close_opens_without_a_question() {
    run(async {
        let host = slow(Host::new().await);
        let (volume, _) = host.open().await;
        write(&volume, 0, &[1; 4096]).await.unwrap();
        let old = host.disk.copy_directory("");
        write(&volume, 0, &[2; 4096]).await.unwrap();
        volume.close().await.unwrap();
        drop(volume);
        host.disk.put_copy("", &old, CopyAs::SameFiles);
        let (volume, report) = host.open().await;
        assert!(report.new_journal);
        expect_bytes(&volume, 0, &[2; 4096]).await;
    });
}

/// Data path 7: a copy of the directory beside the live holder.
#[test]
fn a_copied_directory_does_not_open_beside_the_live_holder() {
    run(async {
        let host = slow(Host::new().await);
        let (volume, _) = host.open().await;
        write(&volume, 0, &[1; 4096]).await.unwrap();
        flush(&volume).await.unwrap();
        let copy = host.other(5);
        copy.disk.put_copy("", &host.disk.copy_directory(""), CopyAs::NewFiles);
        write(&volume, 0, &[2; 4096]).await.unwrap();
        flush(&volume).await.unwrap();
        let refused = copy.try_open(|args| args.take_over = true).await.unwrap_err();
        assert_eq!(reason_of(refused), RefusalReason::Copied);
        let refused = copy.try_open(|args| args.adopt_journal = true).await.unwrap_err();
        assert!(!matches!(refused, LogError::Fenced { .. }), "{refused}");
        tokio::time::sleep(2 * LEASE).await;
        volume.flush_remote().await.expect("nobody took it");
        expect_bytes(&volume, 0, &[2; 4096]).await;
    });
}

/// A directory that was brought to a new disk by rsync, with writes that no object holds.
#[test]
fn a_copied_directory_is_adopted_when_that_is_asked_for() {
    run(async {
        let host = slow(Host::new().await);
        host.in_killed_process(|volume| async move {
            write(&volume, 0, &[1; 4096]).await.unwrap();
            flush(&volume).await.unwrap();
        })
        .await;
        let moved = slow(host.other(5));
        moved.disk.put_copy("", &host.disk.copy_directory(""), CopyAs::NewFiles);
        let reason = reason_of(moved.try_open(|_| {}).await.unwrap_err());
        assert_eq!(reason, RefusalReason::Copied);
        let begun = tokio::time::Instant::now();
        let process = LocalSet::new();
        process
            .run_until(async {
                let (volume, report) =
                    moved.try_open(|args| args.adopt_journal = true).await.expect("adopted");
                assert_eq!(report.replayed_writes, 1);
                assert!(begun.elapsed() >= LEASE, "the original may be in use");
                expect_bytes(&volume, 0, &[1; 4096]).await;
                write(&volume, 8192, &[2; 4096]).await.unwrap();
            })
            .await;
        moved.disk.crash_process();
        drop(process);
        // The new file is its own from then on.
        let (volume, report) = moved.open().await;
        assert!(!report.new_journal);
        expect_bytes(&volume, 0, &[1; 4096]).await;
        expect_bytes(&volume, 8192, &[2; 4096]).await;
    });
}

#[test]
fn a_volume_that_was_closed_and_was_elsewhere_asks_no_question_at_its_return() {
    run(async {
        let (a, b) = {
            let a = Host::new().await;
            let b = a.other(5);
            (a, b)
        };
        for round in 0..3_u8 {
            for host in [&a, &b] {
                let (volume, _) = host.open().await;
                if round > 0 {
                    expect_bytes(&volume, 0, &[round; 4096]).await;
                }
                if host.node == b.node {
                    write(&volume, 0, &[round + 1; 4096]).await.unwrap();
                } else {
                    write(&volume, 8192, &[round + 1; 4096]).await.unwrap();
                }
                volume.close().await.unwrap();
            }
        }
    });
}

/// What is uploaded is flushed before: after a loss of power the journal is not taken for one that was set back.
#[test]
fn nothing_is_in_an_object_that_a_loss_of_power_takes_from_the_journal() {
    run(async {
        let host = Host::new().await;
        let process = LocalSet::new();
        process
            .run_until(async {
                let (volume, _) = host.open().await;
                for round in 0..20_u8 {
                    write(&volume, u64::from(round) * 4096, &[round + 1; 4096]).await.unwrap();
                }
                volume.flush_remote().await.unwrap();
            })
            .await;
        host.disk.crash_power();
        drop(process);
        let (volume, report) = host.open().await;
        assert!(!report.new_journal);
        for round in 0..20_u8 {
            expect_bytes(&volume, u64::from(round) * 4096, &[round + 1; 4096]).await;
        }
    });
}

/// A PUT that is answered after the lease was lost may not be seen by whoever takes over: the journal keeps its writes
/// until it is known that nobody did.
#[test]
fn what_is_stored_without_the_lease_stays_in_the_journal() {
    run(async {
        let mut host = Host::new().await;
        host.options.journal.segments_max = 16;
        let answer = Duration::from_millis(500);
        let process = LocalSet::new();
        let used = |volume: &LogVolume| volume.status().journal_used_bytes;
        let written = 12 * 65_536;
        let (volume, before) = process
            .run_until(async {
                let (volume, _) = host.open().await;
                write(&volume, 0, &[1; 4096]).await.unwrap();
                volume.flush_remote().await.unwrap();
                let before = used(&volume);
                host.faults.change(|plan| plan.latency = answer..=answer);
                for round in 0..12_u64 {
                    write(&volume, round * 65_536, &[2; 65_536]).await.unwrap();
                }
                (volume, before)
            })
            .await;
        // The process is stopped for longer than its lease, and goes on.
        tokio::time::sleep(3 * LEASE).await;
        process
            .run_until(async {
                tokio::time::sleep(3 * answer).await;
                assert!(volume.status().committed_write > 1, "a PUT takes one answer");
                assert!(!volume.status().lease_held, "a lease and the manifest take four");
                assert!(used(&volume) >= before + written, "{} {before}", used(&volume));
                volume.flush_remote().await.expect("the lease comes back");
                write(&volume, 0, &[3; 4096]).await.unwrap();
                volume.flush_remote().await.unwrap();
                assert!(used(&volume) < before + written, "released: nobody can have taken it");
            })
            .await;
    });
}

fn stray(host: &Host, seq: u64, epoch: u64, opening: Option<HexId>) -> (String, Vec<Bytes>) {
    let write = WriteMark { epoch: Epoch(epoch), write: WriteNumber(1000) };
    let id = ObjectId { stream: VolumeId(host.id.0), seq: ObjectSeq(seq), epoch: Epoch(epoch) };
    let spec = ObjectSpec {
        id,
        opening,
        kind: ObjectKind::Data,
        first_write: write,
        last_write: write,
        volume_size: crate::support::SIZE,
        salt: [7; 16],
        root: None,
        extents: vec![ObjectExtent { offset: 0, len: 4096, kind: ExtentKind::Data }],
        streams: Vec::new(),
        sources: Vec::new(),
    };
    let payload = [Bytes::from(vec![0x66; 4096])];
    (id.key(), object::encode(spec, &payload, Encoding::default(), None).expect("readable").parts)
}

/// Somebody of another history, whose epochs are the same numbers, is still at it.
#[test]
fn an_object_of_another_opening_is_void_though_its_epoch_is_right() {
    run(async {
        let host = slow(Host::new().await);
        host.in_killed_process(|volume| async move {
            write(&volume, 0, &[1; 4096]).await.unwrap();
            volume.flush_remote().await.unwrap();
            write(&volume, 8192, &[2; 4096]).await.unwrap();
        })
        .await;
        let manifest = newest_manifest(&host).await;
        let owner = manifest.newest_owner().expect("it was open");
        let next = crate::support::objects(&host).await.len() as u64 + 1;
        for (seq, opening) in [(next, Some(HexId([0x66; 16]))), (next + 1, owner.opening)] {
            let (key, parts) = stray(&host, seq, owner.epoch, opening);
            host.store.put_create(&key, parts).await.expect("put");
        }
        let (volume, report) = host.open().await;
        assert_eq!((report.void_objects, report.replayed_writes), (2, 1));
        // What is behind is in the journal.
        assert_eq!(report.given_up_from, None);
        expect_bytes(&volume, 0, &[1; 4096]).await;
        expect_bytes(&volume, 8192, &[2; 4096]).await;
        volume.close().await.unwrap();
        drop(volume);
        // An object without a name is no better.
        let manifest = newest_manifest(&host).await;
        let epoch = manifest.newest_owner().expect("it was open").epoch;
        let next = manifest.checkpoint.expect("published at the close").sequence + 1;
        let (key, parts) = stray(&host, next, epoch, None);
        host.store.put_create(&key, parts).await.expect("put");
        let (volume, report) = host.open().await;
        assert_eq!(report.void_objects, 1);
        expect_bytes(&volume, 0, &[1; 4096]).await;
    });
}

/// Behind an object that is not there only objects of the opening that owns their sequence count: what an earlier one
/// left shows no loss.
#[test]
fn a_gap_in_a_closed_log_is_damage_unless_an_earlier_opening_left_what_is_behind() {
    run(async {
        for is_of_earlier in [false, true] {
            let host = Host::new().await;
            host.in_killed_process(|volume| async move {
                write(&volume, 0, &[1; 4096]).await.unwrap();
            })
            .await;
            let earlier = *newest_manifest(&host).await.newest_owner().expect("it was open");
            let (volume, _) = host.open().await;
            volume.close().await.unwrap();
            drop(volume);
            let manifest = newest_manifest(&host).await;
            let newest = manifest.newest_owner().expect("it was open");
            assert!(newest.epoch > earlier.epoch);
            let owner = if is_of_earlier { &earlier } else { newest };
            let missing = manifest.checkpoint.expect("published at the close").sequence + 1;
            let (key, parts) = stray(&host, missing + 1, owner.epoch, owner.opening);
            host.store.put_create(&key, parts).await.expect("put");

            let report = checked(&host).await;
            assert_eq!(report.awaited, None, "nobody sends it");
            let places: Vec<String> = report.damage.into_iter().map(|d| d.place).collect();
            let damaged = object_key(&host, missing, newest.epoch);
            assert_eq!(places, if is_of_earlier { Vec::new() } else { vec![damaged] });
        }
    });
}

/// Objects of a lost history may stay behind when a store is set back.
#[test]
fn a_new_epoch_is_above_all_that_objects_have() {
    run(async {
        let host = Host::new().await;
        let (key, parts) = stray(&host, 7, 41, Some(HexId([0x66; 16])));
        host.store.put_create(&key, parts).await.expect("put");
        let (_volume, report) = host.open().await;
        assert_eq!((report.epoch, report.void_objects), (42, 1));
    });
}

/// An opening is cut off at every moment, again and again, and what the volume acknowledged stays with the journal.
#[test]
fn an_opening_that_is_cut_off_at_any_step_costs_nothing() {
    run(async {
        let host = slow(Host::new().await);
        open_and_cut_off(&host, 100, async || {}).await;
    });
}
