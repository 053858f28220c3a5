//! What is said and refused beside journals that were left open by a process that was killed.

use super::*;

/// Serves a volume, and kills the process that does: the journal is not closed.
fn serve_and_kill(place: &Place, arguments: &[&str]) {
    let mut process = serve(place, arguments);
    process.kill().unwrap();
    process.wait().unwrap();
}

#[test]
fn a_volume_whose_name_the_store_lost_is_not_made_anew() {
    let place = Place::new();
    place.ok(&["volume", "create", "other", "--size", "1M"]);
    serve_and_kill(&place, &["demo", "--size", "1M"]);
    std::fs::remove_dir_all(place.path().join("data/store/names/demo")).unwrap();
    for made in [
        &["up", "demo", "--size", "1M", "--", "true"][..],
        &["volume", "create", "demo", "--size", "1M"],
    ] {
        let errors = place.fails(1, made);
        assert!(errors.contains("the store lost its name, or was set back"), "{errors}");
    }
    place.ok(&["snapshot", "create", "other@cut"]);
    for taken in [
        &["volume", "rename", "other", "demo"][..],
        &["volume", "clone", "other@cut", "demo"],
        &["volume", "copy", "other", "demo"],
        &["volume", "salvage", "other", "demo"],
        &["volume", "flush", "demo"],
    ] {
        let errors = place.fails(1, taken);
        assert!(errors.contains("the store lost its name, or was set back"), "{taken:?}: {errors}");
    }
}

#[test]
fn the_journal_of_a_deleted_volume_is_given_up_and_not_the_new_volume_of_its_name() {
    let (place, elsewhere) = (Place::new(), Place::new());
    let store = format!("file://{}", elsewhere.path().join("store").display());
    let id = |name: &str| {
        let shown = elsewhere.ok(&["volume", "show", name, "--output", "json", "--store", &store]);
        field(&shown, "id")
    };
    let journal = |id: &str| place.path().join("data/volumes").join(id).join("journal");
    for name in ["demo", "other"] {
        serve_and_kill(&place, &[name, "--size", "1M", "--store", &store, "--lease", "3"]);
    }
    let (old, other) = (id("demo"), id("other"));
    assert!(journal(&old).is_file() && journal(&other).is_file());
    elsewhere.ok(&["volume", "delete", "demo", "--take-over", "--yes", "--store", &store]);
    elsewhere.ok(&["volume", "create", "demo", "--size", "2M", "--store", &store]);
    let new = id("demo");
    let discard = ["volume", "delete", "demo", "--discard-journal", "--store", &store, "--yes"];
    // As weir status advises.
    let advised = text(&place.run(&["status"]).stderr);
    assert!(advised.contains(&format!("`weir {}`", discard[..6].join(" "))), "{advised}");
    // The new volume may have a journal here, too.
    serve_and_kill(&place, &["demo", "--store", &store, "--lease", "3"]);
    let done = place.run(&discard);
    let said = text(&done.stderr);
    assert!(done.status.success() && said.contains("is not deleted: removed 1 journal "), "{said}");
    assert!(!journal(&old).exists(), "{said}");
    for left in [&new, &other] {
        assert!(journal(left).is_file(), "{left}");
    }
    let errors = place.fails(1, &discard);
    assert!(errors.contains("volume \"demo\" is not deleted"), "{errors}");
    assert!(!errors.contains("volume delete"), "that would delete the volume of now: {errors}");
    assert!(journal(&new).is_file() && journal(&other).is_file());
    assert_eq!((id("demo"), id("other")), (new, other));
    elsewhere.ok(&["volume", "delete", "other", "--take-over", "--yes", "--store", &store]);
    let errors = place.fails(1, &["volume", "flush", "other", "--store", &store]);
    assert!(errors.contains("was deleted elsewhere; its journal in this data"), "{errors}");
    assert!(errors.contains("`weir volume delete other --discard-journal`"), "{errors}");
}

#[test]
fn what_was_renamed_and_deleted_elsewhere_is_given_up_under_its_last_name() {
    let (place, elsewhere) = (Place::new(), Place::new());
    let store = format!("file://{}", elsewhere.path().join("store").display());
    serve_and_kill(&place, &["demo", "--size", "1M", "--store", &store, "--lease", "3"]);
    elsewhere.ok(&["up", "demo", "--take-over", "--store", &store, "--", "true"]);
    elsewhere.ok(&["volume", "rename", "demo", "moved", "--store", &store]);
    elsewhere.ok(&["volume", "delete", "moved", "--take-over", "--yes", "--store", &store]);
    let errors = place.fails(1, &["volume", "flush", "demo", "--store", &store]);
    assert!(errors.contains("\"moved\" was deleted elsewhere"), "{errors}");
    // By now another volume has that name, and went on elsewhere without a journal that it has here.
    serve_and_kill(&place, &["moved", "--size", "1M", "--store", &store, "--lease", "3"]);
    elsewhere.ok(&["up", "moved", "--take-over", "--store", &store, "--", "true"]);
    let discard = ["volume", "delete", "moved", "--discard-journal", "--yes", "--store", &store];
    let done = place.run(&discard);
    let said = text(&done.stderr);
    assert!(done.status.success() && said.contains("is not deleted: removed 1 journal "), "{said}");
    elsewhere.ok(&["volume", "show", "moved", "--store", &store]);
    place.ok(&discard);
    elsewhere.fails(1, &["volume", "show", "moved", "--store", &store]);
}

/// An earlier volume of the name was deleted: what that left in the store says nothing of the one that is missing.
#[test]
fn a_name_that_was_used_before_is_not_taken_from_a_lost_volume() {
    let place = Place::new();
    place.ok(&["volume", "create", "other", "--size", "1M"]);
    place.ok(&["volume", "create", "demo", "--size", "1M"]);
    place.ok(&["volume", "delete", "demo", "--yes"]);
    let path = |name: &str| place.path().join(name);
    let (store, backup) = (path("data/store"), path("backup"));
    let copy = |from: &Path, to: &Path| {
        let copied = Command::new("cp").arg("-a").args([from, to]).status();
        assert!(copied.unwrap().success());
    };
    copy(&store, &backup);
    serve_and_kill(&place, &["demo", "--size", "1M"]);
    std::fs::remove_dir_all(&store).unwrap();
    copy(&backup, &store);
    for made in [
        &["up", "demo", "--size", "1M", "--", "true"][..],
        &["volume", "create", "demo", "--size", "1M"],
        &["volume", "rename", "other", "demo"],
        &["volume", "flush", "demo"],
    ] {
        let errors = place.fails(1, made);
        assert!(errors.contains("the store lost its name, or was set back"), "{made:?}: {errors}");
    }
}
