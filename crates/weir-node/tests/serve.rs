//! What a process that serves volumes says at its end, and what it hands on to the one that comes after it.
#![allow(clippy::disallowed_methods, reason = "a test of a whole node, outside any test module")]

use std::path::{Path, PathBuf};

use weir_log::VolumeOptions;
use weir_log::catalog::VolumeName;
use weir_node::verbs::attach::AttachVolume;
use weir_node::verbs::detach::DetachVolume;
use weir_node::verbs::rename::RenameVolume;
use weir_node::verbs::verb::Verb;
use weir_node::{
    ApiPlace, Closing, Consent, DataDirectory, EndpointKind, HandedOver, Home, Inherited, Node,
    NodeConfig, Service, ServiceOptions, Stages, VolumeSet, VolumeSpec,
};

const SIZE: u64 = 1 << 20;

fn name(text: &str) -> VolumeName {
    VolumeName::new(text).expect("valid")
}

/// A node with a directory of its own, that serves the volume `one`.
struct Place {
    directory: tempfile::TempDir,
    node: Node,
    home: Home,
}

impl Place {
    fn new() -> Self {
        let directory = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).expect("a directory");
        let data = DataDirectory::at(&directory.path().join("data")).expect("a directory");
        let node = Node::start(NodeConfig { shards: Some(1), ..NodeConfig::default() });
        let home = Home {
            store_url: data.store_url(),
            store_options: Default::default(),
            data,
            keys: Default::default(),
            encrypt: false,
        };
        Self { directory, node: node.expect("threads start"), home }
    }

    async fn serve(&self) -> Service {
        let spec = VolumeSpec {
            name: name("one"),
            size: Some(SIZE),
            size_must_match: true,
            read_only: false,
            consent: Consent::default(),
            options: VolumeOptions::default(),
            endpoint: EndpointKind::Log,
            stages: Stages::default(),
            replica: None,
        };
        let options = ServiceOptions {
            home: self.home.clone(),
            template: Box::new(VolumeSpec { size: None, size_must_match: false, ..spec.clone() }),
            volumes: VolumeSet::Listed(vec![spec]),
            nbd: Vec::new(),
            nbd_access: Default::default(),
            api: ApiPlace::Node,
            api_tcp: None,
            limits: Default::default(),
            inherited: Inherited::default(),
            left: Vec::new(),
        };
        self.node.serve(options).await.expect("the volume opens")
    }

    async fn call<V: Verb>(&self, volume: &str, verb: V) -> V::Report {
        let called = self.node.call(self.home.clone(), Some(name(volume)), verb, |_, _| {});
        called.await.expect("it is done")
    }
}

fn run(test: impl Future<Output = ()>) {
    tokio::runtime::Runtime::new().expect("a runtime").block_on(test);
}

#[test]
fn what_was_attached_is_handed_on_as_it_is_served() {
    let place = Place::new();
    run(async {
        let service = place.serve().await;
        place.call("two", AttachVolume { size_bytes: Some(SIZE), ..AttachVolume::default() }).await;
        place.call("two", DetachVolume::default()).await;
        place.call("two", AttachVolume { read_only: true, ..AttachVolume::default() }).await;
        place.call("two", RenameVolume { to: "deux".to_owned() }).await;
        let served =
            |text, attached| HandedOver { name: name(text), attached, read_only: attached };
        assert_eq!(service.handed_over(), [served("deux", true), served("one", false)]);
        service.stop(Closing::ToStore).await.expect("all are closed");
    });
    place.node.shut_down();
}

/// The newest manifest of the one volume below a directory.
fn newest_manifest(directory: &Path) -> Option<PathBuf> {
    let entries = std::fs::read_dir(directory).ok()?.flatten().map(|entry| entry.path());
    let below = entries.filter_map(|path| match path.is_dir() {
        true => newest_manifest(&path),
        false => path.parent()?.ends_with("manifest").then_some(path),
    });
    below.max()
}

#[test]
fn a_volume_that_cannot_be_closed_is_an_error_of_the_process() {
    let place = Place::new();
    run(async {
        let service = place.serve().await;
        // Somebody else took it.
        let newest = newest_manifest(&place.directory.path().join("data/store")).expect("one");
        let text = std::fs::read_to_string(&newest).expect("read");
        let number =
            newest.file_stem().and_then(|stem| u64::from_str_radix(stem.to_str()?, 16).ok());
        let next = number.expect("manifests are numbered") + 1;
        std::fs::write(newest.with_file_name(format!("{next:016x}.json")), text).expect("written");
        service.stop(Closing::ToStore).await.expect_err("it was not closed");
    });
    place.node.shut_down();
}
