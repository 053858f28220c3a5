//! What the manifest keeps of openings that came and went.

use std::time::Duration;

use weir_log::format::manifest::Manifest;
use weir_log::limits::OPENINGS_KEPT;
use weir_log::{Closed, LOCK_FILE};
use weir_store::{Chance, Faults};

use crate::support::{Host, expect_bytes, expect_whole, fill, filled, open_and_cut_off, run};

async fn newest_manifest(host: &Host) -> Manifest {
    let listed = host.open_store.list(&format!("{}/manifest/", host.id), None).await;
    let newest = listed.expect("listed").pop().expect("there is one");
    serde_json::from_slice(&host.open_store.get(&newest.key).await.expect("read"))
        .expect("a manifest")
}

#[test]
fn openings_that_stored_nothing_leave_a_bounded_list() {
    run(async {
        let host = Host::new().await;
        let data = filled(&host, 1).await;
        for _ in 0..2 * OPENINGS_KEPT {
            host.open().await.0.close().await.expect("closed");
        }
        let manifest = newest_manifest(&host).await;
        let first = manifest.epochs.first().expect("there are openings");
        assert_eq!(first.epoch, 1, "its objects hold the data");
        assert_eq!(manifest.epochs.len(), OPENINGS_KEPT + 2, "with the first and the newest");
        expect_bytes(&host.open().await.0, 0, &data).await;
        expect_whole(&host).await;
    });
}

#[test]
fn openings_that_fail_leave_a_bounded_list() {
    run(async {
        let host = Host::new().await;
        let (mut newest, mut longest) = (0, 0);
        open_and_cut_off(&host, 400, async || {
            let manifest = newest_manifest(&host).await;
            newest = manifest.newest_epoch().0;
            longest = longest.max(manifest.epochs.len());
        })
        .await;
        assert!(newest > 2 * OPENINGS_KEPT as u64, "epoch {newest}");
        // Those that store something are not bounded by this.
        assert!(longest <= OPENINGS_KEPT + 8, "{longest} entries");
    });
}

/// A process ends quickly, and the manifest version that it had on its way lands during the next opening.
#[test]
fn a_version_that_lands_late_costs_the_next_opening_nothing() {
    run(async {
        let host = Host::new().await;
        let data = filled(&host, 1).await;
        let size = host.open().await.0.status().size_bytes;
        let answer = Duration::from_millis(100);
        let mut landed = 0;
        for step in 1..40 {
            let faults = &host.faults;
            host.in_killed_process(|volume| async move {
                put_off(faults, step * answer / 2);
                let grown = size + u64::from(step) * 4096;
                let resize = tokio::time::timeout(Duration::from_millis(1), volume.resize(grown));
                resize.await.expect_err("the process ends first");
            })
            .await;
            host.faults.calm();
            host.faults.change(|plan| plan.latency = answer..=answer);
            let (volume, report) = host.open().await;
            landed += u64::from(volume.status().size_bytes > size);
            assert!(!report.new_journal);
            expect_bytes(&volume, 0, &data).await;
            drop(volume);
            host.faults.calm();
        }
        assert!(landed > 0, "no version landed");
        expect_whole(&host).await;
    });
}

#[test]
fn a_volume_that_was_closed_can_be_opened_at_once() {
    run(async {
        let host = Host::new().await;
        filled(&host, 1).await;
        let (volume, _) = host.open().await;
        let data = fill(&volume, 2).await;
        // An upload is on its way, and gets no answer for an hour.
        let hour = Duration::from_secs(3600);
        host.faults.change(|plan| plan.latency = hour..=hour);
        let sent = tokio::time::timeout(Duration::from_secs(1), volume.flush_remote());
        sent.await.expect_err("the store is silent");
        let closed = volume.close_within(Duration::ZERO).await.expect("closed");
        assert_eq!(closed, Closed::LocalOnly);
        drop(volume);
        host.faults.calm();
        let directory = host.disk.directory();
        drop(directory.lock(LOCK_FILE).await.expect("its files are free"));
        expect_bytes(&host.open().await.0, 0, &data).await;
    });
}

#[test]
fn a_closed_volume_sends_nothing_more() {
    for is_closed in [true, false] {
        run(sends_nothing_more(is_closed));
    }
}

/// A volume that is closed without its store, or dropped as an opening does that fails in the end.
async fn sends_nothing_more(is_closed: bool) {
    let host = Host::new().await;
    filled(&host, 1).await;
    let (volume, _) = host.open().await;
    let data = fill(&volume, 2).await;
    host.faults.change(|plan| plan.outage = true);
    let sent = tokio::time::timeout(Duration::from_secs(1), volume.flush_remote());
    sent.await.expect_err("the store is away");
    if is_closed {
        let closed = volume.close_within(Duration::ZERO).await.expect("closed");
        assert_eq!(closed, Closed::LocalOnly);
    }
    drop(volume);
    tokio::time::sleep(Duration::from_millis(1)).await;
    host.faults.calm();
    let objects = format!("{}/log/", host.id);
    let before = host.open_store.list(&objects, None).await.expect("listed");
    // Longer than any pause between two attempts.
    tokio::time::sleep(Duration::from_secs(600)).await;
    let after = host.open_store.list(&objects, None).await.expect("listed");
    assert_eq!(after.len(), before.len(), "the process has the volume no more");
    expect_bytes(&host.open().await.0, 0, &data).await;
}

/// Every PUT gets an error now, and happens after `delay`.
fn put_off(faults: &Faults, delay: Duration) {
    faults.change(|plan| {
        plan.late_put = Chance::ALWAYS;
        plan.late_put_delay = delay..=delay;
    });
}
