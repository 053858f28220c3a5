//! A volume that is given another name.

use std::cell::Cell;
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

/// Gives a clone that was never opened, and that is old, another name, is cut off after some answers of the store, and
/// does it again. Whether both names were there in between, and whether it was done at once.
async fn cut_off(answers: u32) -> (bool, bool) {
    let answer = Duration::from_millis(100);
    let host = Host::new().await;
    let (volume, _) = host.open().await;
    volume.snapshot(&name("cut")).await.expect("taken");
    volume.close().await.expect("closed");
    drop(volume);
    let (store, env) = (&host.store, &host.env);
    let (from, clone) = ((&name("demo"), &name("cut")), name("clone"));
    let created = catalog::create_clone(store, env, from, &clone, Takeover::Manual);
    let id = created.await.expect("cloned");
    // One whose name does not stand for it is given up from this age on.
    tokio::time::sleep(Duration::from_secs(7200)).await;
    host.faults.change(|plan| plan.latency = answer..=answer);
    let renamed = rename(&host, "clone", "other");
    let renamed = tokio::time::timeout(answers * answer, renamed).await;
    // What was on its way lands.
    tokio::time::sleep(2 * answer).await;
    host.faults.calm();
    let both = names(&host).await == ["clone", "demo", "other"];
    // Whoever deletes its parent asks what has become of it.
    let consent = catalog::DeleteConsent::default();
    let refused = catalog::delete(store, env, &name("demo"), consent, |_, _| {}).await;
    let needs_it = matches!(refused, Err(LogError::Dependants { .. }));
    assert!(needs_it, "cut off after {answers} answers: {refused:?}");
    if renamed.is_err() {
        match rename(&host, "clone", "other").await {
            Ok(()) | Err(LogError::NoSuchVolume { .. }) => {}
            Err(error) => panic!("cut off after {answers} answers: {error}"),
        }
    }
    assert_eq!(names(&host).await, ["demo", "other"], "cut off after {answers} answers");
    let found = catalog::find(store, env, &name("other")).await.expect("found");
    assert_eq!(found, id, "cut off after {answers} answers");
    let clone = Host { id, ..host.other(9) };
    let (volume, _) = clone.open().await;
    volume.close().await.expect("closed");
    (both, renamed.is_ok())
}

#[test]
fn a_renaming_that_is_cut_off_anywhere_is_ended_by_doing_it_again() {
    let (both, done) = (Cell::new(0), Cell::new(0));
    for answers in 1..40 {
        run(async {
            let (had_both, was_done) = cut_off(answers).await;
            both.set(both.get() + u32::from(had_both));
            done.set(done.get() + u32::from(was_done));
        });
    }
    let (both, done) = (both.get(), done.get());
    assert!(both > 0 && done > 0, "{both} with both names, {done} done at once");
}
