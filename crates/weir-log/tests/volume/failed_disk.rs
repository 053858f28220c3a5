//! The disk of the journal fails: what was acknowledged and flushed before goes to a store that is well, in order, and
//! nothing else does.

use std::rc::Rc;
use std::time::Duration;

use weir_device::ErrorKind;
use weir_log::{Closed, LogVolume};

use crate::support::{Host, LEASE, expect_bytes, expect_whole, flush, pattern, read, run, write};

const BLOCK: usize = 4096;

/// What the store shows to another host.
async fn taken_over(host: &Host) -> Rc<LogVolume> {
    tokio::time::sleep(LEASE * 3).await;
    let (volume, _) = host.other(5).try_open(|args| args.take_over = true).await.expect("opens");
    volume
}

/// A host whose batches end by nothing but their size, and whose journal keeps no copies in memory.
async fn host() -> Host {
    let mut host = Host::new().await;
    host.options.batch.age = Duration::from_secs(3600);
    host.options.batch.rpo = Duration::from_secs(3600);
    host.options.journal.resident_bytes_max = 0;
    host
}

/// Blocks that are written, and how many of them are flushed: too few to make the journal half full, which would have
/// them sent.
const WRITTEN: u64 = 12;
const FLUSHED: u64 = 8;

/// Writes blocks, of which it flushes the first ones; the disk fails with the next flush, or with the next write.
async fn fail(host: &Host, volume: &LogVolume, by_write: bool) {
    for block in 0..WRITTEN {
        let data = pattern(block, BLOCK);
        write(volume, block * BLOCK as u64, &data).await.expect("works");
        // A byte that a later write that was not flushed has too.
        write(volume, 0, &[u8::try_from(block).expect("small")]).await.expect("works");
        if block + 1 == FLUSHED {
            flush(volume).await.expect("works");
        }
    }
    if by_write {
        host.disk.change_options(|options| options.write_errors_per_million = 1_000_000);
        let refused = write(volume, 0, &[9; BLOCK]).await.expect_err("the disk failed");
        assert_eq!(refused.kind(), ErrorKind::Poisoned);
    } else {
        host.disk.fail_next_syncs(1);
        assert_eq!(flush(volume).await.expect_err("the disk failed").kind(), ErrorKind::Poisoned);
    }
}

/// All that was flushed, and nothing that was not.
async fn expect_flushed(volume: &LogVolume) {
    let mut first = pattern(0, BLOCK);
    first[0] = u8::try_from(FLUSHED - 1).expect("small");
    expect_bytes(volume, 0, &first).await;
    for block in 1..WRITTEN {
        let expected = if block < FLUSHED { pattern(block, BLOCK) } else { vec![0; BLOCK] };
        assert!(
            read(volume, block * BLOCK as u64, BLOCK).await.expect("read") == expected,
            "{block}"
        );
    }
}

#[test]
fn what_was_flushed_goes_to_the_store_and_nothing_else_does() {
    run(async {
        for (by_write, batch_bytes) in [(false, 1 << 20), (true, 1 << 20), (false, 28 << 10)] {
            let mut host = host().await;
            host.options.batch.bytes = batch_bytes;
            host.in_killed_process(|volume| {
                let host = &host;
                async move {
                    fail(host, &volume, by_write).await;
                    tokio::time::sleep(Duration::from_secs(5)).await;
                    let status = volume.status();
                    assert!(status.failure.is_some());
                    assert_eq!(
                        status.committed_write,
                        2 * FLUSHED,
                        "the flushed ones are in the store"
                    );
                    let rest = (WRITTEN - FLUSHED) * (BLOCK as u64 + 1);
                    assert_eq!(status.unsent_bytes, rest, "and the others are not");
                    // Reads still show all that was acknowledged.
                    let last = WRITTEN - 1;
                    expect_bytes(&volume, last * BLOCK as u64, &pattern(last, BLOCK)).await;
                    let refused = volume.flush_remote().await.unwrap_err();
                    assert_eq!(refused.kind(), ErrorKind::Poisoned);
                }
            })
            .await;
            let volume = taken_over(&host).await;
            expect_flushed(&volume).await;
            volume.close().await.unwrap();
            expect_whole(&host).await;
        }
    });
}

#[test]
fn a_close_sends_what_was_flushed() {
    run(async {
        let host = host().await;
        host.in_killed_process(|volume| {
            let host = &host;
            async move {
                host.faults
                    .change(|plan| plan.latency = Duration::from_secs(2)..=Duration::from_secs(2));
                fail(host, &volume, false).await;
                let refused = volume.close().await.unwrap_err();
                assert_eq!(refused.kind(), ErrorKind::Poisoned);
                host.faults.calm();
            }
        })
        .await;
        let volume = taken_over(&host).await;
        expect_flushed(&volume).await;
    });
}

#[test]
fn a_close_does_not_wait_for_a_store_that_is_away() {
    run(async {
        let host = host().await;
        host.in_killed_process(|volume| {
            let host = &host;
            async move {
                host.faults.change(|plan| plan.outage = true);
                fail(host, &volume, true).await;
                let waiting = Rc::clone(&volume);
                let remote = tokio::task::spawn_local(async move { waiting.flush_remote().await });
                let refused = volume.close().await.unwrap_err();
                assert_eq!(refused.kind(), ErrorKind::Poisoned);
                assert_eq!(remote.await.unwrap().unwrap_err().kind(), ErrorKind::Poisoned);
                host.faults.calm();
            }
        })
        .await;
        host.disk.change_options(|options| options.write_errors_per_million = 0);
        // Its own host goes on from the journal.
        let (volume, report) = host.open().await;
        assert!(report.replayed_writes >= 2 * FLUSHED);
        let mut first = pattern(0, BLOCK);
        first[0] = read(&volume, 0, 1).await.unwrap()[0];
        assert!(u64::from(first[0]) + 1 >= FLUSHED);
        expect_bytes(&volume, 0, &first).await;
        assert_eq!(volume.close().await.unwrap(), Closed::Clean);
    });
}
