//! Names that two volumes have.

use weir_node::config::FileConfig;

use super::*;

#[test]
fn a_name_of_two_volumes_is_not_taken_for_that_of_the_one_in_the_store() {
    let place = Place::new();
    run(async {
        let create = |name: &str| {
            let (name, takeover) = (name.to_owned(), Default::default());
            let verb = CreateVolume { name, size_bytes: SIZE, takeover, attach: false };
            place.node.call(place.home.clone(), None, verb, |_, _| {})
        };
        create("both").await.expect("nobody serves anything");
        let mut options = place.options(VolumeOptions::default());
        let VolumeSet::Listed(specs) = &mut options.volumes else { unreachable!("it is a list") };
        for file in ["both", "file"] {
            let path = place.directory.path().join(file);
            let endpoint = EndpointKind::File(FileConfig { path, direct: false });
            specs.push(VolumeSpec { name: name(file), endpoint, ..specs[0].clone() });
        }
        let service = place.node.serve(options).await.expect("they open");
        let refused = create("file").await.expect_err("a file has that name").to_string();
        assert!(refused.contains("choose another one"), "{refused}");
        create("other").await.expect("nobody has that name");
        let refused = place.try_call("both", DELETE).await.expect_err("which one?").to_string();
        assert!(refused.contains("detach it first"), "{refused}");
        assert!(served(&service).contains(&"both".to_owned()), "it is served on");
        place.call("both", DetachVolume::default()).await;
        place.call("both", DELETE).await;
        assert!(place.directory.path().join("both").exists(), "the file is no volume of the store");
        service.stop(Closing::ToStore).await.expect("all are closed");
    });
    place.node.shut_down();
}
