//! The cache of a process that serves, resized and looked at while clients use it.
#![allow(clippy::disallowed_methods, reason = "a test of a whole node, outside any test module")]

mod common;

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use common::{Client, run};
use weir_device::ErrorKind;
use weir_log::VolumeOptions;
use weir_log::catalog::VolumeName;
use weir_node::api::types::CacheShown;
use weir_node::verbs::flush::FlushVolume;
use weir_node::{
    ApiPlace, CacheSetting, Closing, Consent, DataDirectory, EndpointKind, Home, Inherited, Node,
    NodeConfig, Service, ServiceOptions, Stages, VolumeSet, VolumeSpec,
};

const SIZE: u32 = 4 << 20;
const SMALL: CacheSetting = CacheSetting::Bytes(16 << 20);
const LARGE: CacheSetting = CacheSetting::Bytes(40 << 20);

/// What may be written to it in a day.
const WEAR: u64 = (24 * 64) << 20;

/// Bytes that cannot be compressed.
fn pattern() -> Vec<u8> {
    let mut state = 1_u64;
    let next = || {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
        state.to_be_bytes()[0]
    };
    std::iter::repeat_with(next).take(SIZE as usize).collect()
}

/// A node of two threads with a directory of its own, that serves the volume `one`.
struct Place {
    directory: tempfile::TempDir,
    node: Node,
    home: Home,
}

impl Place {
    fn new() -> Self {
        let directory = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).expect("a directory");
        let data = DataDirectory::at(&directory.path().join("data")).expect("a directory");
        let node = Node::start(NodeConfig { shards: Some(2), ..NodeConfig::default() });
        Self { directory, node: node.expect("threads start"), home: Home::embedded(data) }
    }

    async fn serve(&self, cache: CacheSetting) -> Service {
        let spec = VolumeSpec {
            name: VolumeName::new("one").expect("valid"),
            size: Some(SIZE.into()),
            size_must_match: true,
            read_only: false,
            consent: Consent::default(),
            options: VolumeOptions::default(),
            endpoint: EndpointKind::Log,
            stages: Stages { cache_share: Some(50), ..Stages::default() },
            replica: None,
            allowed: Default::default(),
        };
        let options = ServiceOptions {
            home: self.home.clone(),
            template: Box::new(spec.clone()),
            volumes: VolumeSet::Listed(vec![spec]),
            nbd: Vec::new(),
            nbd_access: Default::default(),
            api: ApiPlace::Node,
            api_tcp: None,
            tls: None,
            limits: Default::default(),
            cache,
            cache_wear: Some(WEAR),
            inherited: Inherited::default(),
            left: Vec::new(),
        };
        self.node.serve(options).await.expect("the volume opens")
    }

    async fn shown(&self) -> CacheShown {
        let known = self.node.known_cache(self.home.clone()).await.expect("it is known");
        let [(_, shown)] = known.processes.try_into().expect("one process");
        shown.expect("it says so")
    }

    /// Writes to the volume and has it in the store, and so in the cache.
    async fn fill(&self) {
        self.client().ask((1, 0, SIZE), &pattern());
        let flush = FlushVolume { remote: true, wait: true, publish: false };
        let one = VolumeName::new("one").expect("valid");
        let flushed = self.node.call(self.home.clone(), Some(one), flush, |_, _| {});
        flushed.await.expect("it is flushed");
    }

    /// Waits until the cache holds something.
    async fn is_filled(&self) -> CacheShown {
        for _ in 0..600 {
            let shown = self.shown().await;
            if shown.cache.bytes > 0 {
                return shown;
            }
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
        panic!("nothing comes into the cache: {:?}", self.shown().await);
    }

    fn client(&self) -> Client {
        Client::connect(&self.directory.path().join("data/nbd.sock"), "one")
    }
}

#[test]
fn a_cache_gets_another_size_while_clients_read() {
    let place = Place::new();
    run(async {
        let service = place.serve(SMALL).await;
        place.fill().await;
        let shown = place.is_filled().await;
        assert!(shown.path.ends_with("cache/blocks") && shown.cache.bands > 0, "{shown:?}");
        let of_one = &shown.volumes[0];
        assert_eq!((&of_one.name[..], shown.other_bands), ("one", 0));
        assert!(of_one.bands > 0, "{shown:?}");
        // A client reads all the time.
        let (is_over, reads) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicU64::new(0)));
        let (over, counted, mut client) =
            (Arc::clone(&is_over), Arc::clone(&reads), place.client());
        let reader = std::thread::spawn(move || {
            let expected = pattern();
            while !over.load(Ordering::Relaxed) {
                assert!(client.read(SIZE) == expected, "what is read is what was written");
                counted.fetch_add(1, Ordering::Relaxed);
            }
        });
        let resize = |size| place.node.resize_cache(place.home.clone(), size);
        let small = shown.cache.capacity_bytes;
        let (_, large) = resize(LARGE).await.expect("it is resized");
        assert!(large.cache.capacity_bytes > 2 * small && large.cache.bytes == 0, "{large:?}");
        assert!(large.next_start.contains("which says 16M: set `cache = \"40M\"`"), "{large:?}");
        // The limits hold for the new one as well.
        assert_eq!(large.cache.wear_bytes_per_day, Some(WEAR));
        assert!(large.cache.wear_bytes_left < Some(WEAR / 24), "what the one before wrote counts");
        assert_eq!(place.shown().await.volumes[0].share_percent, Some(50));
        let (_, off) = resize(CacheSetting::Off).await.expect("it is closed");
        assert_eq!(off.cache.none_because.as_deref(), Some("it is turned off"));
        let (_, again) = resize(LARGE).await.expect("it is open again");
        assert_eq!(again.cache.capacity_bytes, large.cache.capacity_bytes);
        let (_, back) = resize(SMALL).await.expect("it is resized");
        assert_eq!(back.cache.capacity_bytes, small);
        assert!(back.next_start.contains("has it so as well"), "{back:?}");
        // What is refused changes nothing.
        let refused = |error: weir_node::NodeError, kind, said: &str| {
            assert_eq!(error.kind(), kind, "{error}");
            assert!(error.to_string().contains(said), "{error}");
        };
        let too_large = resize(CacheSetting::Bytes(1 << 59)).await.expect_err("no room");
        refused(too_large, ErrorKind::NoSpace, "leaves less than 256.0 MiB to journals");
        let auto = resize(CacheSetting::Auto).await.expect_err("it would be none");
        refused(auto, ErrorKind::Invalid, "the store is on the same disk");
        let destroyed = place.node.destroy_cache(place.home.clone()).await.expect_err("it is used");
        refused(destroyed, ErrorKind::Busy, "has the cache of");
        assert_eq!(place.shown().await.cache.capacity_bytes, small);
        // It is of use.
        place.fill().await;
        place.is_filled().await;
        let before = reads.load(Ordering::Relaxed);
        is_over.store(true, Ordering::Relaxed);
        reader.join().expect("every read was right");
        assert!(before > 0, "it read meanwhile");
        service.stop(Closing::ToStore).await.expect("closed");
        let ended = resize(LARGE).await.expect_err("nobody serves");
        refused(ended, ErrorKind::NotFound, "no process has a cache");
        let known = place.node.known_cache(place.home.clone()).await.expect("its file is there");
        let file = known.file.expect("it is there");
        assert!(file.closed && file.capacity_bytes == small && file.version > 0, "{file:?}");
        let there = place.node.create_cache(place.home.clone(), 16 << 20).await;
        refused(there.expect_err("it is there"), ErrorKind::Exists, "is there already");
        place.node.destroy_cache(place.home.clone()).await.expect("it is removed");
        let none = place.node.known_cache(place.home.clone()).await.expect_err("none is left");
        refused(none, ErrorKind::NotFound, "there is no cache in");
    });
    place.node.shut_down();
}

#[test]
fn a_cache_that_was_made_beforehand_is_used() {
    let place = Place::new();
    run(async {
        let made = place.node.create_cache(place.home.clone(), 16 << 20).await.expect("made");
        assert!(made.closed && made.openings == 1, "{made:?}");
        let service = place.serve(SMALL).await;
        assert_eq!(place.shown().await.cache.capacity_bytes, made.capacity_bytes);
        let known = place.node.known_cache(place.home.clone()).await.expect("known");
        assert_eq!(known.file.map(|file| (file.openings, file.closed)), Some((2, false)));
        service.stop(Closing::ToStore).await.expect("closed");
    });
    place.node.shut_down();
}
