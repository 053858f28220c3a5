//! Names that two volumes have.

use std::os::unix::net::UnixStream;

use weir_node::Mark;
use weir_node::config::FileConfig;
use weir_node::verbs::clone::CloneVolume;
use weir_node::verbs::list::ListVolumes;
use weir_node::verbs::list_snapshots::ListSnapshots;
use weir_node::verbs::promote::PromoteVolume;

use super::common::flags_of;
use super::*;

/// The options of a process that serves the volume `one` of the store, and files of these names.
fn options_beside(place: &Place, files: &[&str]) -> ServiceOptions {
    let mut options = place.options(VolumeOptions::default());
    let VolumeSet::Listed(specs) = &mut options.volumes else { unreachable!("it is a list") };
    for file in files {
        let path = place.directory.path().join(file);
        let endpoint = EndpointKind::File(FileConfig { path, direct: false });
        specs.push(VolumeSpec { name: name(file), endpoint, ..specs[0].clone() });
    }
    options
}

async fn serve_beside(place: &Place, files: &[&str]) -> Service {
    place.node.serve(options_beside(place, files)).await.expect("they open")
}

async fn create(place: &Place, name: &str, attach: bool) -> Result<(), NodeError> {
    let (name, takeover) = (name.to_owned(), Default::default());
    let verb = CreateVolume { name, size_bytes: SIZE, takeover, attach };
    place.node.call(place.home.clone(), None, verb, |_, _| {}).await.map(drop)
}

/// What an import and a copy do first.
async fn mark(place: &Place, volume: &str, mark: Mark) -> Result<(), NodeError> {
    place.node.mark_volume(place.home.clone(), name(volume), mark).await.map(drop)
}

const NEW: Mark = Mark::New { size: SIZE, takeover: Takeover::Manual };

fn take(snapshot: &str) -> ChangeSnapshots {
    ChangeSnapshots { action: SnapshotAction::Take, snapshot: snapshot.to_owned() }
}

/// The volumes of the store.
async fn in_store(place: &Place) -> Vec<String> {
    let listed = place.node.call(place.home.clone(), None, ListVolumes {}, |_, _| {}).await;
    let listed = listed.expect("listed").0.into_iter();
    listed.filter(|one| one.kind.is_none()).map(|one| one.name).collect()
}

#[test]
fn a_name_of_two_volumes_is_not_taken_for_that_of_the_one_in_the_store() {
    let place = Place::new();
    run(async {
        create(&place, "both", false).await.expect("nobody serves anything");
        place.call("both", take("old")).await;
        let service = serve_beside(&place, &["both", "file"]).await;
        let mut stream = UnixStream::connect(place.directory.path().join("data/nbd.sock")).unwrap();
        assert!(flags_of(&mut stream, "both@old").is_none(), "it is of the one in the store");
        let refused = create(&place, "file", false).await.expect_err("a file has that name");
        assert!(refused.to_string().contains("choose another one"), "{refused}");
        create(&place, "other", false).await.expect("nobody has that name");
        let is_unclear = |refused: NodeError| {
            assert!(refused.to_string().contains("detach it first"), "{refused}");
        };
        is_unclear(place.try_call("both", DELETE).await.expect_err("which one?"));
        is_unclear(place.try_call("both", take("x")).await.expect_err("which one?"));
        is_unclear(place.try_call("both", FlushVolume::default()).await.expect_err("which one?"));
        is_unclear(place.try_call("both", ListSnapshots {}).await.expect_err("which one?"));
        let shown = place.node.show_volume(place.home.clone(), name("both")).await;
        is_unclear(shown.expect_err("which one?"));
        place.call("file", FlushVolume::default()).await;
        is_unclear(mark(&place, "both", Mark::Incomplete).await.expect_err("which one?"));
        assert!(served(&service).contains(&"both".to_owned()), "it is served on");
        place.call("both", RenameVolume { to: "apart".to_owned() }).await;
        place.call("apart", take("x")).await;
        place.call("apart", RenameVolume { to: "again".to_owned() }).await;
        place.call("again", DELETE).await;
        assert!(place.directory.path().join("both").exists(), "the file is no volume of the store");
        service.stop(Closing::ToStore).await.expect("all are closed");
    });
    place.node.shut_down();
}

/// The settings give the name of a volume of the store to a file that cannot be opened: who reads a snapshot under that
/// name would take the bytes of the one for those of the other.
#[test]
fn a_snapshot_is_not_served_under_the_name_of_a_file_that_does_not_open() {
    let place = Place::new();
    run(async {
        create(&place, "both", false).await.expect("nobody serves anything");
        place.call("both", take("old")).await;
        let service = place.serve().await;
        std::fs::create_dir(place.directory.path().join("both")).expect("it is no file");
        let settings = options_beside(&place, &["both"]).volumes;
        let reloaded = place.reload(&service, settings).await.expect("loaded");
        assert_eq!(reloaded.failed[0].0, name("both"));
        let mut stream = UnixStream::connect(place.directory.path().join("data/nbd.sock")).unwrap();
        assert!(flags_of(&mut stream, "both@old").is_none(), "it is of the one in the store");
        service.stop(Closing::ToStore).await.expect("closed");
    });
    place.node.shut_down();
}

/// The volume of the store is served on for as long as a client keeps it, and its snapshots with it.
#[test]
fn a_volume_that_is_served_offers_its_snapshots_also_where_the_settings_name_a_file_by_now() {
    let place = Place::new();
    run(async {
        let service = place.serve().await;
        place.call("one", take("old")).await;
        let client = place.client("one");
        let mut options = place.options(VolumeOptions::default());
        let VolumeSet::Listed(specs) = &mut options.volumes else { unreachable!("it is a list") };
        let path = place.directory.path().join("file");
        specs[0].endpoint = EndpointKind::File(FileConfig { path, direct: false });
        place.reload(&service, options.volumes).await.expect("loaded");
        assert_eq!(served(&service), ["one"]);
        let mut stream = UnixStream::connect(place.directory.path().join("data/nbd.sock")).unwrap();
        assert!(flags_of(&mut stream, "one@old").is_some(), "it is of the one that is served");
        drop((client, stream));
        service.stop(Closing::ToStore).await.expect("closed");
    });
    place.node.shut_down();
}

/// The store has a volume of the name, of which nobody decided anything.
#[test]
fn a_file_that_was_detached_stays_so_beside_a_volume_of_its_name() {
    let place = Place::new();
    run(async {
        create(&place, "both", false).await.expect("nobody serves anything");
        let service = serve_beside(&place, &["both", "file"]).await;
        for file in ["both", "file"] {
            place.call(file, DetachVolume::default()).await;
        }
        let mut options = options_beside(&place, &["both", "file"]);
        options.left = super::failed::replaced(service).await;
        let service = place.node.serve(options).await.expect("it goes on");
        assert_eq!(served(&service), ["one"]);
        let settings = options_beside(&place, &["both", "file"]).volumes;
        let left_out = place.reload(&service, settings).await.expect("loaded").left_out;
        assert_eq!(left_out.len(), 2, "{left_out:?}");
        let is_said = |why: &str| why.contains("it stays detached");
        assert!(left_out.iter().all(|(_, why)| is_said(why)), "{left_out:?}");
        assert_eq!(served(&service), ["one"]);
        service.stop(Closing::ToStore).await.expect("closed");
    });
    place.node.shut_down();
}

/// No verb gives a volume of the store the name of a file, which is served or, after a detach, only named by the
/// settings: clients would find the file under it.
fn no_volume_gets_the_name_of_a_file(is_served: bool) {
    let place = Place::new();
    run(async {
        let service = serve_beside(&place, &["file"]).await;
        place.call("one", take("s")).await;
        create(&place, "idle", false).await.expect("nobody has that name");
        if !is_served {
            place.call("file", DetachVolume::default()).await;
        }
        let mut not_refused = Vec::new();
        let mut is_refused = |verb: &'static str, done: Result<(), NodeError>| {
            let said = done.map_or_else(|refused| refused.to_string(), |()| "done".to_owned());
            let is_said = |part| said.contains(part);
            if !is_said("volume \"file\" is no volume of a store") || !is_said("choose another one")
            {
                not_refused.push((verb, said));
            }
        };
        for attach in [false, true] {
            is_refused("create", create(&place, "file", attach).await);
        }
        for volume in ["one", "idle"] {
            let to = RenameVolume { to: "file".to_owned() };
            is_refused("rename", place.try_call(volume, to).await.map(drop));
        }
        let (snapshot, takeover) = ("s".to_owned(), Default::default());
        let clone = CloneVolume { snapshot, name: "file".to_owned(), takeover };
        is_refused("clone", place.try_call("one", clone).await.map(drop));
        is_refused("import and copy", mark(&place, "file", NEW).await);
        let promoted = place.try_call("file", PromoteVolume {}).await;
        is_refused("promote", promoted.map(drop));
        let (new, takeover) = (Some(name("file")), Takeover::Manual);
        let wish = SalvageWish { name: name("one"), new, takeover, accept_loss: false };
        let salvaged = place.node.salvage_volume(place.home.clone(), wish, |_, _| {}).await;
        is_refused("salvage", salvaged.map(drop));
        // The name is looked at first: whoever disconnects the clients for it has done so for nothing otherwise.
        let client = place.client("one");
        let to = RenameVolume { to: "file".to_owned() };
        is_refused("rename with clients", place.try_call("one", to).await.map(drop));
        drop(client);
        assert_eq!(not_refused, [], "nothing is made or renamed");
        assert_eq!(in_store(&place).await, ["idle", "one"]);
        if is_served {
            let to = RenameVolume { to: "other".to_owned() };
            let refused = place.try_call("file", to).await.expect_err("it is a file").to_string();
            assert!(refused.contains("keeps its name"), "{refused}");
        }
        let still = if is_served { vec!["file", "one"] } else { vec!["one"] };
        assert_eq!(served(&service), still);
        service.stop(Closing::ToStore).await.expect("all are closed");
    });
    place.node.shut_down();
}

#[test]
fn no_volume_of_the_store_gets_the_name_of_a_file_that_is_served() {
    no_volume_gets_the_name_of_a_file(true);
}

#[test]
fn no_volume_of_the_store_gets_the_name_that_the_settings_give_a_file() {
    no_volume_gets_the_name_of_a_file(false);
}

/// A volume of the store is not told from an export of another server by its name, either.
#[test]
fn no_volume_of_the_store_gets_the_name_that_the_settings_give_a_remote_volume() {
    let (server, place) = (Place::new(), Place::new());
    run(async {
        let serving = server.serve().await;
        let mut options = place.options(VolumeOptions::default());
        let socket = server.directory.path().join("data/nbd.sock");
        options.volumes = closing::remotes(&place, &["remote"], &socket);
        let service = place.node.serve(options).await.expect("it opens");
        place.call("remote", DetachVolume::default()).await;
        let refused = create(&place, "remote", false).await.expect_err("the settings have it");
        assert!(refused.to_string().contains("choose another one"), "{refused}");
        service.stop(Closing::ToStore).await.expect("closed");
        serving.stop(Closing::ToStore).await.expect("closed");
    });
    place.node.shut_down();
    server.node.shut_down();
}

#[test]
fn a_name_that_the_settings_take_from_a_file_is_free_once_that_is_detached() {
    let place = Place::new();
    run(async {
        let service = serve_beside(&place, &["file"]).await;
        create(&place, "late", true).await.expect("nobody has that name");
        // A client keeps the file served while the settings name it no more.
        let client = place.client("file");
        let settings = place.options(VolumeOptions::default()).volumes;
        place.reload(&service, settings).await.expect("loaded");
        assert_eq!(served(&service), ["file", "late", "one"]);
        let refused = place.try_call("file", AttachVolume::default()).await;
        let refused = refused.expect_err("the file is no volume of the store").to_string();
        assert!(refused.contains("detach it first"), "{refused}");
        let to = || RenameVolume { to: "file".to_owned() };
        place.try_call("late", to()).await.expect_err("it is served");
        drop(client);
        place.call("file", DetachVolume { disconnect: true, ..DetachVolume::default() }).await;
        place.call("late", to()).await;
        assert_eq!(in_store(&place).await, ["file", "one"]);
        service.stop(Closing::ToStore).await.expect("all are closed");
    });
    place.node.shut_down();
}

/// The journal of a volume that was deleted elsewhere, or lost by the store, is seen beside the one of its name.
#[test]
fn a_journal_is_seen_though_another_volume_has_its_name() {
    let place = Place::new();
    run(async {
        let service = place.serve().await;
        let own = &place.status().await.volumes[0].id;
        let status = place.status().await;
        assert_eq!(status.health, Health::Ok);
        assert!(!status.at_risk.bytes_are_least, "{status:?}");
        let noted = std::fs::read_to_string(place.note_of(own)).expect("noted");
        let left = place.note_of(&"07".repeat(16));
        std::fs::create_dir(left.parent().expect("of a volume")).expect("created");
        std::fs::write(left, noted).expect("written");
        let status = place.status().await;
        assert_eq!(status.health, Health::Degraded);
        assert!(status.at_risk.bytes_are_least, "nobody knows what it has: {status:?}");
        let [left] = &status.not_served[..] else { panic!("{status:?}") };
        assert!(left.name == "one" && left.reason.contains("may have the only copy"), "{left:?}");
        assert!(left.reason.contains("another volume is served under its name"), "{left:?}");
        let untrue = |why: &String| why.contains("one is not served");
        assert!(!status.reasons.iter().any(untrue), "{status:?}");
        assert!(place.metrics().await.contains("\nweir_volumes_not_served 1"));
        service.stop(Closing::ToStore).await.expect("closed");
    });
    place.node.shut_down();
}

/// Commands with its name and its store mean that volume, whatever the name means here. The metrics know names alone.
#[test]
fn a_journal_of_another_store_is_not_beside_the_volume_of_its_name() {
    let place = Place::new();
    run(async {
        let service = place.serve().await;
        let left = place.note_of(&"07".repeat(16));
        std::fs::create_dir(left.parent().expect("of a volume")).expect("created");
        let note = "one\n\"/elsewhere\"\nfile:///elsewhere\nunsent 8192 2 0\n";
        std::fs::write(left, note).expect("written");
        let status = place.status().await;
        let [left] = &status.not_served[..] else { panic!("{status:?}") };
        let advice = "`weir volume flush one --store file:///elsewhere` takes them";
        assert!(left.reason.contains(advice), "{left:?}");
        let metrics = place.metrics().await;
        for (name, value) in [("dirty_bytes", "8192.0"), ("oldest_dirty_seconds", "")] {
            let series = format!("\nweir_volume_{name}{{volume=\"one\"}} ");
            assert_eq!(metrics.matches(&series).count(), 1, "{name}: {metrics}");
            assert!(metrics.contains(&(series + value)), "{name}: {metrics}");
        }
        service.stop(Closing::ToStore).await.expect("closed");
    });
    place.node.shut_down();
}
