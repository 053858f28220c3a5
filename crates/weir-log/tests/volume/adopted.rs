//! What the original of an adopted copy holds is had back as well, and only that is asked about.

use std::time::Duration;

use tokio::task::LocalSet;
use weir_disk::sim::{CopyAs, SimCopy};
use weir_log::{
    BatchLimits, LogError, Refusal, RefusalReason, Salvage, SalvageReport, Takeover, catalog,
};

use crate::salvage::{ANSWER, args_of, kept};
use crate::support::{Host, SIZE, discard, expect_bytes, flush, name, read, run, write};

/// Writes and discards in a row, of which later ones cover parts of earlier ones.
const STEPS: [(u64, usize, u8); 12] = [
    (0, 8192, 1),
    (4096, 8192, 2),
    (30_000, 100, 3),
    (0, 1024, 0),
    (512, 4096, 4),
    (65_536, 20_000, 5),
    (6000, 3000, 6),
    (65_536, 8192, 0),
    (30_050, 100, 7),
    (0, 512, 8),
    (70_000, 5000, 0),
    (100_000, 4096, 9),
];

/// What the volume holds after the first steps.
fn model(steps: usize) -> Vec<u8> {
    let mut bytes = vec![0; usize::try_from(SIZE).expect("small")];
    for (offset, len, fill) in &STEPS[..steps] {
        let start = usize::try_from(*offset).expect("small");
        bytes[start..start + len].fill(*fill);
    }
    bytes
}

/// Takes the steps on a host that dies, the first of them into the store, and copies its directory on the way.
async fn copied_after(host: &Host, stored: usize, copied: usize) -> SimCopy {
    let disk = host.disk.clone();
    host.in_killed_process(|volume| async move {
        let mut copy = None;
        for (index, (offset, len, fill)) in STEPS.into_iter().enumerate() {
            if index == stored {
                volume.flush_remote().await.expect("stored");
            }
            if index == copied {
                flush(&volume).await.expect("flushed");
                copy = Some(disk.copy_directory(""));
            }
            match fill {
                0 => discard(&volume, offset, len as u64).await,
                fill => write(&volume, offset, &vec![fill; len]).await.expect("written"),
            }
        }
        flush(&volume).await.expect("flushed");
        copy.unwrap_or_else(|| disk.copy_directory(""))
    })
    .await
}

/// A host whose batches become objects only when that is asked for.
fn slow(mut host: Host) -> Host {
    let age = Duration::from_secs(3600);
    host.options.batch = BatchLimits { age, rpo: age, bytes: 1 << 20, ..host.options.batch };
    host
}

async fn refusal(host: &Host) -> Box<Refusal> {
    match host.try_open(|_| {}).await {
        Err(LogError::JournalRefused { refusal, .. }) => refusal,
        other => panic!("not refused: {other:?}"),
    }
}

/// Makes a volume of what the journal of `host` holds, and compares it with all that it took.
async fn salvaged_whole(host: &Host, seed: u64) -> SalvageReport {
    let salvage = Salvage::find(&args_of(host)).await.expect("there is something to salvage");
    salvage.check_whole().expect("the snapshot and the journal have everything");
    let (store, env, new) = (&host.store, &host.env, name(&format!("saved-{seed}")));
    let from = (&name("demo"), salvage.snapshot());
    let id = catalog::create_incomplete_clone(store, env, from, &new, Takeover::Manual);
    let mut saved = host.other(seed);
    saved.id = id.await.expect("created");
    let (volume, _) = saved.try_open(|args| args.incomplete = true).await.expect("opens");
    salvage.replay(&volume, |_, _| {}).await.expect("replayed");
    let size = usize::try_from(SIZE).expect("small");
    assert!(read(&volume, 0, size).await.expect("read") == model(STEPS.len()), "seed {seed}");
    volume.close().await.expect("closed");
    salvage.report()
}

#[test]
fn what_the_original_took_after_it_was_copied_is_salvaged() {
    run(async {
        for encrypted in [false, true] {
            for (stored, copied) in [(1, 4), (0, 4), (2, 2), (0, 8), (4, 11)] {
                let host = if encrypted { Host::encrypted().await } else { Host::new().await };
                let host = slow(host);
                let copy = copied_after(&host, stored, copied).await;
                let moved = host.other(5);
                moved.disk.put_copy("", &copy, CopyAs::NewFiles);
                let process = LocalSet::new();
                let adopted = async {
                    let opened = moved.try_open(|args| args.adopt_journal = true).await;
                    let (volume, _) = opened.expect("adopted");
                    let size = usize::try_from(SIZE).expect("small");
                    assert!(read(&volume, 0, size).await.expect("read") == model(copied));
                    write(&volume, 0, &[0xaa; 16_384]).await.expect("written");
                    flush(&volume).await.expect("flushed");
                };
                process.run_until(adopted).await;
                moved.disk.crash_process();
                drop(process);
                // Its own journal does not settle what is kept for the other one.
                let (volume, report) = moved.open().await;
                assert!(!report.new_journal);
                expect_bytes(&volume, 0, &[0xaa; 16_384]).await;
                volume.close().await.unwrap();
                drop(volume);
                assert_eq!(kept(&host).await, ["takeover-2"]);

                let refused = refusal(&host).await;
                let report = salvaged_whole(&host, 7).await;
                assert_eq!((refused.writes, refused.bytes), (report.blocks, report.bytes));
                let bytes: usize = STEPS[copied..].iter().map(|(_, len, _)| len).sum();
                assert_eq!(report.bytes, bytes as u64, "what the copy held is not counted");

                // Nor does a second copy that is given up.
                let second = host.other(9);
                second.disk.put_copy("", &copy, CopyAs::NewFiles);
                let (volume, _) =
                    second.try_open(|args| args.discard_journal = true).await.unwrap();
                volume.close().await.unwrap();
                drop(volume);
                salvaged_whole(&host, 11).await;

                let (volume, _) = host.try_open(|args| args.discard_journal = true).await.unwrap();
                expect_bytes(&volume, 0, &[0xaa; 16_384]).await;
                volume.close().await.unwrap();
                drop(volume);
                let nothing = Salvage::find(&args_of(&host)).await.unwrap_err();
                assert!(matches!(nothing, LogError::NothingToSalvage { .. }), "{nothing}");
            }
        }
    });
}

#[test]
fn an_original_that_holds_no_more_than_its_copy_asks_no_question() {
    run(async {
        let host = slow(Host::new().await);
        let copy = copied_after(&host, 1, STEPS.len()).await;
        let moved = host.other(5);
        moved.disk.put_copy("", &copy, CopyAs::NewFiles);
        let (volume, _) = moved.try_open(|args| args.adopt_journal = true).await.unwrap();
        write(&volume, 0, &[0xaa; 16_384]).await.unwrap();
        volume.close().await.unwrap();
        drop(volume);
        let (volume, report) = host.open().await;
        assert!(report.new_journal);
        expect_bytes(&volume, 0, &[0xaa; 16_384]).await;
        tokio::time::sleep(Duration::from_secs(5)).await;
        volume.close().await.unwrap();
        assert!(kept(&host).await.is_empty(), "nobody needs it any more");
    });
}

/// The copy ends before what the original sent: whoever goes on with it takes what the store holds.
#[test]
fn the_original_of_a_copy_that_is_too_old_is_salvaged() {
    run(async {
        let host = slow(Host::new().await);
        let copy = copied_after(&host, 7, 4).await;
        let moved = host.other(5);
        moved.disk.put_copy("", &copy, CopyAs::NewFiles);
        match moved.try_open(|args| args.adopt_journal = true).await {
            Err(LogError::JournalRefused { refusal, .. }) => {
                assert!(matches!(refusal.reason, RefusalReason::SetBack { .. }), "{refusal}");
            }
            other => panic!("not refused: {other:?}"),
        }
        let opened =
            moved.try_open(|args| (args.adopt_journal, args.accept_loss) = (true, true)).await;
        let (volume, _) = opened.expect("what is missing was agreed to");
        let size = usize::try_from(SIZE).expect("small");
        assert!(read(&volume, 0, size).await.expect("read") == model(7));
        write(&volume, 0, &[0xaa; 16_384]).await.expect("written");
        volume.close().await.expect("closed");
        drop(volume);
        let refused = refusal(&host).await;
        let report = salvaged_whole(&host, 7).await;
        assert_eq!((refused.writes, refused.bytes), (report.blocks, report.bytes));
    });
}

/// The adopter dies at every moment until it has opened. Then it opens again, or somebody without a journal takes over.
#[test]
fn the_original_is_salvaged_whenever_the_adopter_dies() {
    run(async {
        for step in 0..160 {
            let host = slow(Host::new().await);
            let copy = copied_after(&host, 2, 6).await;
            let moved = host.other(5);
            moved.disk.put_copy("", &copy, CopyAs::NewFiles);
            host.faults.change(|plan| plan.latency = ANSWER..=ANSWER);
            let process = LocalSet::new();
            let limit = crate::support::LEASE + step / 2 * ANSWER;
            let adopted = moved.try_open(|args| args.adopt_journal = true);
            let _ = process.run_until(tokio::time::timeout(limit, adopted)).await;
            moved.disk.crash_process();
            drop(process);
            tokio::time::sleep(2 * ANSWER).await;
            host.faults.calm();
            let next = if step % 2 == 0 { moved } else { host.other(6) };
            let (volume, _) = next
                .try_open(|args| (args.take_over, args.adopt_journal) = (true, true))
                .await
                .unwrap_or_else(|error| panic!("step {step}: {error}"));
            write(&volume, 0, &[0xaa; 16_384]).await.unwrap();
            volume.close().await.unwrap();
            drop(volume);
            let refused = refusal(&host).await;
            let report = salvaged_whole(&host, 7).await;
            assert_eq!(refused.writes, report.blocks, "step {step}");
        }
    });
}
