//! A volume that is given another name.

use std::time::Duration;

use weir_log::catalog;
use weir_log::{LogError, Takeover};

use crate::support::{Host, SIZE, expect_bytes, filled, name, run};

async fn rename(host: &Host, from: &str, to: &str) -> Result<(), LogError> {
    catalog::rename(&host.store, &host.env, &name(from), &name(to)).await.map(drop)
}

async fn names(host: &Host) -> Vec<String> {
    let listing = catalog::list(&host.store, &host.env).await.expect("listed");
    listing.volumes.into_iter().map(|summary| summary.name.to_string()).collect()
}

#[test]
fn a_volume_has_its_bytes_under_its_new_name_and_the_old_one_is_free() {
    run(async {
        let host = Host::new().await;
        let bytes = filled(&host, 1).await;
        rename(&host, "demo", "other").await.expect("renamed");
        assert_eq!(names(&host).await, ["other"]);
        let found = catalog::find(&host.store, &host.env, &name("other")).await;
        assert_eq!(found.expect("found"), host.id);
        let (volume, _) = host.open().await;
        expect_bytes(&volume, 0, &bytes).await;
        volume.close().await.expect("closed");
        catalog::create(&host.store, &host.env, &name("demo"), SIZE).await.expect("created");
        assert_eq!(names(&host).await, ["demo", "other"]);
    });
}

#[test]
fn a_name_of_another_volume_and_a_volume_that_is_open_are_refused() {
    run(async {
        let host = Host::new().await;
        filled(&host, 1).await;
        catalog::create(&host.store, &host.env, &name("taken"), SIZE).await.expect("created");
        let taken = rename(&host, "demo", "taken").await;
        assert!(matches!(taken, Err(LogError::Exists { .. })), "{taken:?}");
        let none = rename(&host, "none", "other").await;
        assert!(matches!(none, Err(LogError::NoSuchVolume { .. })), "{none:?}");
        let (volume, _) = host.open().await;
        let open = rename(&host, "demo", "other").await;
        assert!(matches!(open, Err(LogError::InUse { .. } | LogError::Held { .. })), "{open:?}");
        assert_eq!(names(&host).await, ["demo", "taken"]);
        volume.close().await.expect("closed");
    });
}

/// A clone that was never opened and that its name does not stand for is given up after an hour: not this one.
#[test]
fn a_renaming_that_is_cut_off_anywhere_is_ended_by_doing_it_again() {
    run(async {
        let answer = Duration::from_millis(100);
        let (mut both, mut done) = (0, 0);
        for cut in 1..40 {
            let host = Host::new().await;
            let (volume, _) = host.open().await;
            volume.snapshot(&name("cut")).await.expect("taken");
            volume.close().await.expect("closed");
            let (store, env) = (&host.store, &host.env);
            let (from, clone) = ((&name("demo"), &name("cut")), name("clone"));
            let created = catalog::create_clone(store, env, from, &clone, Takeover::Manual);
            let id = created.await.expect("cloned");
            tokio::time::sleep(Duration::from_secs(7200)).await;
            host.faults.change(|plan| plan.latency = answer..=answer);
            let limit = cut * answer;
            let renamed = tokio::time::timeout(limit, rename(&host, "clone", "other")).await;
            // What was on its way lands.
            tokio::time::sleep(2 * answer).await;
            host.faults.calm();
            let now = names(&host).await;
            both += usize::from(now == ["clone", "demo", "other"]);
            // The snapshot asks what has become of the clone.
            let (volume, _) = host.open().await;
            volume
                .delete_snapshot(&name("cut"))
                .await
                .expect("deleted, as far as the clone lets it");
            tokio::time::sleep(Duration::from_secs(60)).await;
            volume.close().await.expect("closed");
            if renamed.is_err() {
                match rename(&host, "clone", "other").await {
                    Ok(()) | Err(LogError::NoSuchVolume { .. }) => {}
                    Err(error) => panic!("cut off after {limit:?}: {error}"),
                }
            } else {
                done += 1;
            }
            assert_eq!(names(&host).await, ["demo", "other"], "cut off after {limit:?}");
            let found = catalog::find(store, env, &name("other")).await.expect("found");
            assert_eq!(found, id, "cut off after {limit:?}");
            let clone = Host { id, ..host.other(9) };
            let (volume, _) = clone.open().await;
            volume.close().await.expect("closed");
        }
        assert!(both > 0 && done > 0, "{both} with both names, {done} done");
    });
}
