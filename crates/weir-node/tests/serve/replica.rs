//! A replica that is kept of a served volume, whose store goes away.

use weir_node::ReplicateTo;
use weir_node::api::types::ServedVolume;

use super::*;

/// How long the status of a process is waited for.
const PATIENCE: Duration = Duration::from_mins(1);

impl Place {
    /// Serves the volume with a replica in a directory of that name.
    async fn serve_replicated(&self, directory: &str) -> Service {
        self.serve_replicated_every(Duration::from_secs(1), directory).await
    }

    async fn serve_replicated_every(&self, age: Duration, directory: &str) -> Service {
        let mut options = self.options(VolumeOptions::default());
        let VolumeSet::Listed(volumes) = &mut options.volumes else { unreachable!() };
        let store_url = url_of(self, directory);
        volumes[0].replica = Some(ReplicateTo { store_url, age });
        self.node.serve(options).await.expect("the volume opens")
    }

    /// Waits until the status of the volume is as `wanted` says.
    async fn wait_for(&self, what: &str, wanted: impl Fn(&ServedVolume) -> bool) -> ServedVolume {
        let patience = Instant::now() + PATIENCE;
        loop {
            let volume = self.status().await.volumes.remove(0);
            if wanted(&volume) {
                return volume;
            }
            assert!(Instant::now() < patience, "{what}: {volume:?}");
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    }

    async fn take(&self, snapshot: &str) {
        let snapshot = snapshot.to_owned();
        self.call("one", ChangeSnapshots { action: SnapshotAction::Take, snapshot }).await;
    }
}

fn url_of(place: &Place, directory: &str) -> String {
    format!("file://{}", place.directory.path().join(directory).display())
}

fn is_kept(volume: &ServedVolume) -> bool {
    volume.replica.as_ref().is_some_and(|replica| replica.as_of.is_some())
}

fn trouble(volume: &ServedVolume) -> Option<&String> {
    volume.replica.as_ref().and_then(|replica| replica.trouble.as_ref())
}

/// What is asked of a store is tried again for minutes: the status does not wait for that. Where the store is not there
/// at the next start either, no other one is begun in its place.
#[test]
fn a_replica_whose_store_is_away_is_trouble_and_is_made_nowhere_else() {
    let place = Place::new();
    let path = |name: &str| place.directory.path().join(name);
    run(async {
        let service = place.serve_replicated("replica").await;
        place.client("one").ask((1, 0, 4096), &[7; 4096]);
        place.take("first").await;
        place.wait_for("it is kept", is_kept).await;
        std::fs::rename(path("replica"), path("away")).expect("renamed");
        place.client("one").ask((1, 0, 4096), &[8; 4096]);
        place.take("second").await;
        let waits = place.wait_for("it waits", |volume| trouble(volume).is_some()).await;
        assert_eq!(waits.health, Health::Degraded);
        assert!(waits.reasons.iter().any(|why| why.contains("the replica is behind")), "{waits:?}");
        service.stop(Closing::ToStore).await.expect("the volume's own store is there");

        let service = place.serve_replicated("replica").await;
        let waits = place.wait_for("it waits", |volume| trouble(volume).is_some()).await;
        assert!(trouble(&waits).is_some_and(|why| why.contains("is not there")), "{waits:?}");
        assert!(!path("replica").exists(), "nothing was made there");
        // A mount point without its file system.
        std::fs::create_dir(path("replica")).expect("created");
        let is_empty = |volume: &ServedVolume| {
            trouble(volume).is_some_and(|why| why.contains("has no volumes"))
        };
        place.wait_for("it waits", is_empty).await;
        std::fs::remove_dir_all(path("replica")).expect("removed");
        std::fs::rename(path("away"), path("replica")).expect("renamed");
        let again = place.wait_for("it goes on", |volume| trouble(volume).is_none()).await;
        assert_eq!(again.health, Health::Ok);
        service.stop(Closing::ToStore).await.expect("closed");
    });
    place.node.shut_down();
}

/// Its source is looked at every few seconds, which is less than the age that it may have here.
#[test]
fn a_replica_follows_though_it_is_looked_at_more_often_than_it_is_moved() {
    let place = Place::new();
    run(async {
        let service = place.serve_replicated_every(Duration::from_secs(6), "replica").await;
        let as_of = |volume: &ServedVolume| volume.replica.as_ref().and_then(|one| one.as_of);
        place.client("one").ask((1, 0, 4096), &[7; 4096]);
        place.take("first").await;
        let first = as_of(&place.wait_for("it is kept", is_kept).await);
        place.client("one").ask((1, 0, 4096), &[8; 4096]);
        place.take("second").await;
        place.wait_for("it follows", |volume| as_of(volume) > first).await;
        service.stop(Closing::ToStore).await.expect("closed");
    });
    place.node.shut_down();
}

/// A replica has the identity of its source, whose process was killed here: its journal may have the only copy.
#[test]
fn a_journal_is_seen_though_a_replica_of_its_volume_is_served() {
    let place = Place::new();
    run(async {
        let service = place.serve_replicated("replica").await;
        place.client("one").ask((1, 0, 4096), &[7; 4096]);
        place.take("first").await;
        let volume = place.wait_for("it is kept", is_kept).await;
        let note = std::fs::read(place.note_of(&volume.id)).expect("noted");
        service.stop(Closing::ToStore).await.expect("closed");
        std::fs::write(place.note_of(&volume.id), note).expect("written");

        let mut options = place.options(VolumeOptions::default());
        options.home.store_url = url_of(&place, "replica");
        let VolumeSet::Listed(volumes) = &mut options.volumes else { unreachable!() };
        (volumes[0].read_only, volumes[0].size) = (true, None);
        let service = place.node.serve(options).await.expect("a replica is read");
        let status = place.status().await;
        assert_eq!(status.volumes[0].id, volume.id);
        let [left] = &status.not_served[..] else { panic!("{status:?}") };
        assert!(left.reason.contains("may have the only copy"), "{left:?}");
        assert!(place.metrics().await.contains("\nweir_volumes_not_served 1"));
        let processes = place.node.processes(place.home.clone()).await.expect("found");
        let unserved = place.node.unserved(place.home.clone(), &processes).await.expect("listed");
        assert_eq!(unserved.len(), 1, "{unserved:?}");
        service.stop(Closing::ToStore).await.expect("closed");
    });
    place.node.shut_down();
}
