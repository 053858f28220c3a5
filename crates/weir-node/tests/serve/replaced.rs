//! What keeps the program from being replaced: the next process would not serve what this one does.

use std::os::unix::fs::PermissionsExt;

use weir_node::KeyPlace;

use super::*;

/// The next process would not find the store, whether this one serves a volume of it or none at the moment; nor the
/// data directory.
#[test]
fn a_process_whose_store_or_data_directory_is_gone_is_not_replaced() {
    let place = Place::new();
    run(async {
        let service = place.serve().await;
        let limit = Duration::from_mins(1);
        let next = |needs_store| Next { home: place.home.clone(), needs_store };
        let (wanted, not_wanted) = (next(true), next(false));
        assert_eq!(service.store_fails(None, limit).await, None);
        let left = std::fs::read_dir(place.directory.path().join("data/store/weir-probe"));
        assert_eq!(left.expect("it was asked there").count(), 0, "what was put there is deleted");
        let (store, away) = ("data/store", "data/away");
        let rename = |from, to| {
            let path = |name| place.directory.path().join(name);
            std::fs::rename(path(from), path(to)).expect("renamed");
        };
        for is_served in [true, false] {
            if !is_served {
                place.call("one", DetachVolume::default()).await;
            }
            rename(store, away);
            let why = service.store_fails(Some(&wanted), limit).await.expect("it is gone");
            assert!(why.contains("is not there"), "{why}");
            let needs_none = service.store_fails(Some(&not_wanted), limit).await;
            assert_eq!(needs_none.is_some(), is_served, "{needs_none:?}");
            let mut moved = wanted.clone();
            moved.home.store_url =
                format!("file://{}", place.directory.path().join(away).display());
            assert_eq!(service.store_fails(Some(&moved), limit).await, None, "it is the same");
            rename(away, store);
            assert_eq!(service.store_fails(Some(&wanted), limit).await, None, "it is back");
        }
        // Its directory is there, and all that was in it is not.
        let move_all = |from, to| {
            let [from, to] = [from, to].map(|name| place.directory.path().join(name));
            for entry in std::fs::read_dir(from).expect("listed") {
                let entry = entry.expect("an entry");
                std::fs::rename(entry.path(), to.join(entry.file_name())).expect("moved");
            }
        };
        std::fs::create_dir(place.directory.path().join(away)).expect("created");
        move_all(store, away);
        let why = service.store_fails(Some(&wanted), limit).await.expect("it is empty");
        assert!(why.contains("has no volumes, and never had any"), "{why}");
        move_all(away, store);
        std::fs::remove_dir(place.directory.path().join(away)).expect("removed");
        let other = place.directory.path().join("other");
        let mut another = wanted.clone();
        another.home.store_url = format!("file://{}", other.display());
        let why = service.store_fails(Some(&another), limit).await.expect("journals are for one");
        assert!(why.contains("the settings name another store"), "{why}");
        another.home.data = DataDirectory::at(&other).expect("a path");
        let why = service.data_fails(Some(&another), limit).await.expect("journals are in one");
        assert!(why.contains("the settings name another data directory"), "{why}");
        assert_eq!(service.data_fails(Some(&wanted), limit).await, None);
        rename("data", "elsewhere");
        let why = service.data_fails(None, limit).await.expect("it is gone");
        assert!(why.contains("takes no files: No such file"), "{why}");
        rename("elsewhere", "data");
        service.stop(Closing::ToStore).await.expect("closed");
    });
    place.node.shut_down();
}

/// What an opening reads is damaged, and this process needs none of it.
#[test]
fn a_process_whose_volume_could_not_be_opened_again_is_not_replaced() {
    let place = Place::new();
    run(async {
        let service = place.serve().await;
        let limit = Duration::from_mins(1);
        let next = Next { home: place.home.clone(), needs_store: true };
        let find = |directory: &Path| -> Vec<PathBuf> {
            let entries = std::fs::read_dir(directory).into_iter().flatten();
            entries.map(|entry| entry.expect("an entry").path()).collect()
        };
        let volumes = find(&place.directory.path().join("data/store"));
        let manifests = volumes.iter().flat_map(|volume| find(&volume.join("manifest")));
        let newest = manifests.max().expect("the volume has one");
        let whole = std::fs::read(&newest).expect("read");
        std::fs::write(&newest, &whole[..whole.len() / 2]).expect("damaged");
        let why = service.store_fails(Some(&next), limit).await.expect("it is damaged");
        assert!(why.contains("volume one could not be opened again"), "{why}");
        assert!(why.contains("`weir volume repair one`"), "{why}");
        std::fs::write(&newest, &whole).expect("mended");
        assert_eq!(service.store_fails(Some(&next), limit).await, None);
        service.stop(Closing::ToStore).await.expect("closed");
    });
    place.node.shut_down();
}

/// One that failed is for the next process to judge, but not where clients would find another volume in its place.
#[test]
fn a_process_whose_failed_volume_has_another_in_its_place_is_not_replaced() {
    let (place, mut elsewhere) = (Place::new(), Place::new());
    elsewhere.home.store_url.clone_from(&place.home.store_url);
    run(async {
        let service = place.serve().await;
        let limit = Duration::from_mins(1);
        place.taken_by_somebody_else();
        place.client("one").ask((1, 0, 4096), &[7; 4096]);
        let flush = FlushVolume { remote: true, wait: true, publish: true };
        place.try_call("one", flush).await.map(drop).expect_err("it is taken");
        assert_eq!(service.store_fails(None, limit).await, None, "the next process says more");
        let names = place.directory.path().join("data/store/names");
        std::fs::remove_dir_all(names.join("one")).expect("removed");
        let takeover = Default::default();
        let create =
            CreateVolume { name: "one".to_owned(), size_bytes: SIZE, takeover, attach: false };
        elsewhere.call("one", create).await;
        let why = service.store_fails(None, limit).await.expect("another is there");
        assert!(why.contains("the store has another volume of that name"), "{why}");
        assert!(why.contains("`weir volume detach one`"), "{why}");
        service.stop(Closing::ToStore).await.map(drop).expect_err("it failed");
    });
    place.node.shut_down();
    elsewhere.node.shut_down();
}

/// The settings name another place of the keys than this process has: that of the next one counts.
#[test]
fn a_process_whose_keys_are_elsewhere_by_now_is_replaced() {
    let mut place = Place::new();
    let key_file = |file: &str, digit: &str| {
        let path = place.directory.path().join(file);
        std::fs::write(&path, digit.repeat(64)).expect("written");
        std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o600)).expect("ours");
        path
    };
    let [old, new, wrong] =
        [("old", "1"), ("new", "1"), ("wrong", "2")].map(|(f, d)| key_file(f, d));
    let keys = |path: &PathBuf| KeyPlace::keys_of(Some(KeyPlace::File(path.clone())));
    (place.home.encrypt, place.home.keys) = (true, keys(&old));
    run(async {
        let service = place.serve().await;
        let limit = Duration::from_mins(1);
        let with = |path: &PathBuf| {
            let home = Home { keys: keys(path), ..place.home.clone() };
            Next { home, needs_store: true }
        };
        std::fs::remove_file(&old).expect("removed");
        assert_eq!(service.store_fails(None, limit).await, None, "it is not known what comes");
        assert_eq!(service.store_fails(Some(&with(&new)), limit).await, None);
        for path in [&old, &wrong] {
            let why = service.store_fails(Some(&with(path)), limit).await.expect("no key");
            assert!(why.contains("volume one could not be opened again"), "{why}");
        }
        service.stop(Closing::ToStore).await.expect("closed");
    });
    place.node.shut_down();
}
