//! A volume that is deleted, and the next one of its name.

use std::time::Duration;

use weir_log::catalog::{self, DeleteConsent};
use weir_log::{Closed, LogError};
use weir_store::Chance;

use crate::support::{
    Host, SIZE, expect_bytes, expect_whole, fill, filled, name, objects, run, write,
};

/// How long the store takes for what it has told nobody about.
const LATE: Duration = Duration::from_secs(3600);

#[test]
fn late_puts_of_a_deleted_volume_do_not_reach_the_next_one_of_its_name() {
    run(async {
        let host = Host::new().await;
        filled(&host, 1).await;
        let faults = host.faults.clone();
        host.in_killed_process(|volume| async move {
            faults.change(|plan| {
                (plan.late_put, plan.late_put_delay) = (Chance::ALWAYS, LATE..=LATE)
            });
            write(&volume, 0, &[1; 64 << 10]).await.expect("written");
            tokio::time::sleep(Duration::from_secs(10)).await;
        })
        .await;
        host.faults.calm();
        let (store, env, demo) = (&host.store, &host.env, name("demo"));
        catalog::delete(store, env, &demo, DeleteConsent::Ours, |_, _| {}).await.expect("deleted");
        assert!(objects(&host).await.is_empty());
        assert!(host.faults.late_puts() > 0, "they are on their way yet");

        let created = catalog::create(store, env, &demo, SIZE);
        let next = Host { id: created.await.expect("created"), ..host.other(5) };
        let (volume, _) = next.open().await;
        let bytes = fill(&volume, 2).await;
        volume.flush_remote().await.expect("flushed");
        host.faults.land_late_puts().await;
        assert!(!objects(&host).await.is_empty(), "they came");
        expect_bytes(&volume, 0, &bytes).await;
        assert_eq!(volume.close().await.expect("closed"), Closed::Clean);
        drop(volume);

        let (volume, _) = Host { id: next.id, ..host.other(7) }.open().await;
        expect_bytes(&volume, 0, &bytes).await;
        volume.close().await.expect("closed");
        expect_whole(&next).await;
        let gone = host.try_open(|_| {}).await.expect_err("the old one stays deleted");
        assert!(matches!(gone, LogError::Deleted { .. }), "{gone}");
    });
}
