//! The cache of a process that serves, resized and looked at while clients use it.
#![allow(clippy::disallowed_methods, reason = "a test of a whole node, outside any test module")]

mod common;

use std::io::{Read, Write};
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use common::{Client, run};
use weir_device::ErrorKind;
use weir_log::VolumeOptions;
use weir_log::catalog::VolumeName;
use weir_node::api::types::{CacheReport, CacheShown};
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
        Self::with_memory(None)
    }

    /// The same with so many bytes for frames in memory.
    fn with_memory(cache_bytes: Option<u64>) -> Self {
        let directory = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).expect("a directory");
        let data = DataDirectory::at(&directory.path().join("data")).expect("a directory");
        let node =
            Node::start(NodeConfig { shards: Some(2), cache_bytes, ..NodeConfig::default() });
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

    /// A counter of the process.
    fn measured(&self, name: &str) -> u64 {
        let api = UnixStream::connect(self.directory.path().join("data/api.sock"));
        let mut api = api.expect("it serves");
        let asked = b"GET /metrics HTTP/1.1\r\nHost: weir\r\nConnection: close\r\n\r\n";
        api.write_all(asked).expect("it is asked");
        let mut text = String::new();
        api.read_to_string(&mut text).expect("it answers");
        let value = text.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(' '));
        value.and_then(|value| value.parse().ok()).unwrap_or_else(|| panic!("{name} in {text}"))
    }

    /// Counters count since the process began, whatever becomes of the cache.
    fn counts_on_from(&self, fills: u64, now: &CacheReport) {
        assert!(now.file_bytes > now.capacity_bytes && now.fills < fills, "{now:?}");
        let counted = self.measured("weir_cache_fills_total");
        assert!(fills > 0 && counted >= fills, "{counted} of {fills}");
        assert_eq!(self.measured("weir_volume_cache_hits_total{volume=\"one\"}"), 0);
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
        let (small, fills) = (shown.cache.capacity_bytes, shown.cache.fills);
        let (_, large) = resize(LARGE).await.expect("it is resized");
        assert!(large.cache.capacity_bytes > 2 * small && large.cache.bytes == 0, "{large:?}");
        assert!(large.next_start.contains("which says 16M: set `cache = \"40M\"`"), "{large:?}");
        place.counts_on_from(fills, &large.cache);
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
        refused(destroyed, ErrorKind::Busy, &format!("process {} has the", std::process::id()));
        assert_eq!(place.shown().await.cache.capacity_bytes, small);
        // It is of use.
        place.fill().await;
        place.is_filled().await;
        assert!(reads.load(Ordering::Relaxed) > 0, "it read meanwhile");
        is_over.store(true, Ordering::Relaxed);
        reader.join().expect("every read was right");
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
fn a_cache_that_was_left_out_is_opened_again_in_the_size_that_it_has() {
    let place = Place::with_memory(Some(64 << 10));
    run(async {
        let service = place.serve(SMALL).await;
        place.fill().await;
        place.is_filled().await;
        // What is read after another start is in no journal.
        service.stop(Closing::ToStore).await.expect("closed");
        let service = place.serve(SMALL).await;
        let blocks = place.directory.path().join("data/cache/blocks");
        let file = std::fs::File::options().write(true).open(blocks).expect("it is there");
        file.set_len(64 << 10).expect("somebody cuts it");
        assert!(place.client().read(SIZE) == pattern(), "the store has it");
        let shown = place.shown().await.cache;
        assert!(shown.failed && shown.none_because.is_some(), "{shown:?}");
        let (_, again) = place.node.resize_cache(place.home.clone(), SMALL).await.expect("opened");
        assert!(!again.cache.failed && again.cache.none_because.is_none(), "{again:?}");
        place.fill().await;
        place.is_filled().await;
        service.stop(Closing::ToStore).await.expect("closed");
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

/// Where the process asks its disk for an answer there is a pipe: to open it waits for a reader, as a file system that
/// hangs does.
#[test]
fn a_disk_that_hangs_keeps_nobody() {
    let place = Place::new();
    run(async {
        let service = place.serve(SMALL).await;
        place.fill().await;
        place.is_filled().await;
        let resize = |size| place.node.resize_cache(place.home.clone(), size);
        let data = place.directory.path().join("data");
        let pipe = data.join(format!("cache/.answers-{}", std::process::id()));
        rustix::fs::mkfifoat(rustix::fs::CWD, &pipe, rustix::fs::Mode::RWXU).expect("a pipe");
        assert!(!service.cache_answers().await && !service.cache_answers().await);
        let is_asking = |task: std::fs::DirEntry| {
            let name = std::fs::read_to_string(task.path().join("comm"));
            name.is_ok_and(|name| name.trim() == "weir-asks")
        };
        let asking = || {
            let tasks = std::fs::read_dir("/proc/self/task").expect("threads").flatten();
            tasks.map(is_asking).filter(|asks| *asks).count()
        };
        // Those of other tests end at once.
        let is_one = (0..50).any(|_| {
            std::thread::sleep(Duration::from_millis(10));
            asking() == 1
        });
        assert!(is_one, "one thread asks at a time, however often somebody wants to know");
        let hangs = resize(LARGE).await.expect_err("it would not end");
        assert_eq!(hangs.kind(), ErrorKind::Busy);
        assert!(hangs.to_string().contains("does not answer"), "{hangs}");
        assert!(place.shown().await.cache.capacity_bytes > 0, "it stays as it is");
        let (_, off) = resize(CacheSetting::Off).await.expect("it goes on without it");
        assert_eq!(off.cache.none_because.as_deref(), Some("it is turned off"));
        assert!(place.client().read(SIZE) == pattern());
        // Once it answers, it is used again, and nobody else had its lock.
        let reader = std::thread::spawn(move || std::fs::read(pipe));
        while !service.cache_answers().await {}
        reader.join().expect("it reads").expect("from the pipe");
        let (_, again) = resize(SMALL).await.expect("it is open again");
        assert!(again.cache.capacity_bytes > 0 && again.cache.changing.is_none(), "{again:?}");
        // The end does not wait for it either.
        let pipe = data.join(format!("cache/.answers-{}", std::process::id()));
        rustix::fs::mkfifoat(rustix::fs::CWD, &pipe, rustix::fs::Mode::RWXU).expect("a pipe");
        service.stop(Closing::ToStore).await.expect("closed");
        let known = place.node.known_cache(place.home.clone()).await.expect("its file is there");
        assert!(!known.file.expect("it is there").closed, "nothing of it was saved");
        std::fs::read(pipe).expect("the thread that asked ends");
    });
    place.node.shut_down();
}

#[test]
fn a_cache_that_cannot_be_opened_or_is_gone_is_said() {
    let place = Place::new();
    run(async {
        let made = place.node.create_cache(place.home.clone(), 16 << 20).await.expect("made");
        let file = place.directory.path().join("data/cache/blocks");
        assert_eq!(made.path, file.display().to_string());
        std::fs::remove_file(&file).expect("removed");
        std::os::unix::fs::symlink(&file, &file).expect("a link to itself");
        // It is not taken for one that is not there.
        let destroyed = place.node.destroy_cache(place.home.clone()).await.expect_err("no file");
        assert!(destroyed.to_string().contains("looking for"), "{destroyed}");
        let known = place.node.known_cache(place.home.clone()).await.expect("as far as is known");
        let unread = known.file.and_then(|file| file.unread).expect("it cannot be looked at");
        assert!(unread.contains("looking for"), "{unread}");
        let service = place.serve(SMALL).await;
        let shown = place.shown().await;
        assert!(shown.cache.missing, "{shown:?}");
        service.stop(Closing::ToStore).await.expect("closed");
    });
    place.node.shut_down();
}
