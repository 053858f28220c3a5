//! What a process that serves volumes says at its end, and what it hands on to the one that comes after it.
#![allow(clippy::disallowed_methods, reason = "a test of a whole node, outside any test module")]

#[path = "serve/closing.rs"]
mod closing;
mod common;
#[path = "serve/failed.rs"]
mod failed;
#[path = "serve/names.rs"]
mod names;
#[path = "serve/reload.rs"]
mod reload;
#[path = "serve/replaced.rs"]
mod replaced;
#[path = "serve/replica.rs"]
mod replica;

use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use common::{Client, run};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use weir_device::with_causes;
use weir_log::catalog::VolumeName;
use weir_log::{Takeover, VolumeOptions};
use weir_net::pki::{AUTHORITY_DAYS, Authority, CERTIFICATE_DAYS, Request, Usage};
use weir_net::tls::{REVOKED, Tls};
use weir_node::api::types::{Health, Limits, NodeStatus};
use weir_node::verbs::attach::AttachVolume;
use weir_node::verbs::change_snapshots::{ChangeSnapshots, SnapshotAction};
use weir_node::verbs::create::CreateVolume;
use weir_node::verbs::delete::DeleteVolume;
use weir_node::verbs::detach::DetachVolume;
use weir_node::verbs::flush::FlushVolume;
use weir_node::verbs::rename::RenameVolume;
use weir_node::verbs::show::ShowVolume;
use weir_node::verbs::verb::Verb;
use weir_node::{
    ApiPlace, Closing, Consent, DataDirectory, EndpointKind, HandedOver, Home, Inherited, Next,
    Node, NodeConfig, NodeError, Reloaded, SalvageWish, Service, ServiceOptions, Stages, Stopped,
    VolumeSet, VolumeSpec, Was,
};

const SIZE: u64 = 1 << 20;

/// As the command line deletes.
const DELETE: DeleteVolume =
    DeleteVolume { take_over: false, discard_journal: false, detach: true };

/// A mebibyte that cannot be compressed.
fn incompressible() -> Vec<u8> {
    let mut state = 1_u64;
    let next = || {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
        state.to_be_bytes()[0]
    };
    std::iter::repeat_with(next).take(1 << 20).collect()
}

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
        let home = Home::embedded(data);
        Self { directory, node: node.expect("threads start"), home }
    }

    async fn serve(&self) -> Service {
        self.serve_with(VolumeOptions::default()).await
    }

    async fn serve_with(&self, options: VolumeOptions) -> Service {
        let options = self.options(options);
        self.node.serve(options).await.expect("the volume opens")
    }

    /// Serves it where a close waits for so long for a store that takes 50,000 bytes a second.
    async fn serve_slowly(&self, close_deadline: Duration) -> Service {
        let for_a_while = VolumeOptions { close_deadline, ..VolumeOptions::default() };
        let mut options = self.options(for_a_while);
        options.limits.upload_bytes_per_second = Some(50_000);
        let service = self.node.serve(options).await.expect("the volume opens");
        // The first time the limit lets it pass, the second one takes ten times as long as the close waits.
        let data = incompressible();
        self.client("one").ask((1, 0, 1 << 20), &data);
        self.call("one", FlushVolume { remote: true, wait: true, publish: false }).await;
        self.client("one").ask((1, 0, 1 << 20), &data);
        service
    }

    /// Loads settings of these volumes, and otherwise the same as at the start.
    async fn reload(&self, service: &Service, volumes: VolumeSet) -> Result<Reloaded, NodeError> {
        service.reload(volumes, self.options(VolumeOptions::default()).template).await
    }

    fn options(&self, options: VolumeOptions) -> ServiceOptions {
        let spec = VolumeSpec {
            name: name("one"),
            size: Some(SIZE),
            size_must_match: true,
            read_only: false,
            consent: Consent::default(),
            options,
            endpoint: EndpointKind::Log,
            stages: Stages::default(),
            replica: None,
            allowed: Default::default(),
        };
        ServiceOptions {
            home: self.home.clone(),
            template: Box::new(VolumeSpec { size: None, size_must_match: false, ..spec.clone() }),
            volumes: VolumeSet::Listed(vec![spec]),
            nbd: Vec::new(),
            nbd_access: Default::default(),
            api: ApiPlace::Node,
            api_tcp: None,
            tls: None,
            limits: Default::default(),
            cache: Default::default(),
            cache_wear: None,
            inherited: Inherited::default(),
            left: Vec::new(),
        }
    }

    /// The note of a volume in the data directory that it was opened.
    fn note_of(&self, id: &str) -> PathBuf {
        self.directory.path().join("data/volumes").join(id).join("opened-as")
    }

    /// What the process says of itself.
    async fn status(&self) -> NodeStatus {
        let processes = self.node.processes(self.home.clone()).await.expect("found");
        let [process] = processes.try_into().expect("there is one");
        process.status.expect("it answers")
    }

    /// What a scrape of the process has.
    async fn metrics(&self) -> String {
        self.ask("GET /metrics", "").await
    }

    /// What the API answers to a request with this body, which is JSON.
    async fn ask(&self, request: &str, body: &str) -> String {
        let socket = tokio::net::UnixStream::connect(self.home.data.api_socket()).await;
        let mut socket = socket.expect("it listens");
        let headers = "Host: weir\r\nConnection: close\r\nContent-Type: application/json";
        let request = format!(
            "{request} HTTP/1.1\r\n{headers}\r\nContent-Length: {}\r\n\r\n{body}",
            body.len()
        );
        socket.write_all(request.as_bytes()).await.expect("sent");
        let mut answer = String::new();
        socket.read_to_string(&mut answer).await.expect("answered");
        answer
    }

    async fn call<V: Verb>(&self, volume: &str, verb: V) -> V::Report {
        self.try_call(volume, verb).await.expect("it is done")
    }

    async fn try_call<V: Verb>(&self, volume: &str, verb: V) -> Result<V::Report, NodeError> {
        self.node.call(self.home.clone(), Some(name(volume)), verb, |_, _| {}).await
    }

    /// Has its one volume taken by another node, so that it cannot be closed.
    fn taken_by_somebody_else(&self) {
        let newest = newest_manifest(&self.directory.path().join("data/store")).expect("one");
        let text = std::fs::read_to_string(&newest).expect("read");
        let number =
            newest.file_stem().and_then(|stem| u64::from_str_radix(stem.to_str()?, 16).ok());
        let next = number.expect("manifests are numbered") + 1;
        std::fs::write(newest.with_file_name(format!("{next:016x}.json")), text).expect("written");
    }

    /// A client of an export, after its handshake.
    fn client(&self, export: &str) -> Client {
        Client::connect(&self.directory.path().join("data/nbd.sock"), export)
    }
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
        let served = |text, was| HandedOver { name: name(text), was };
        let deux = served("deux", Was::Attached { read_only: true });
        assert_eq!(service.handed_over(), [deux, served("one", Was::Served)]);
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
        place.taken_by_somebody_else();
        service.stop(Closing::ToStore).await.expect_err("it was not closed");
    });
    place.node.shut_down();
}

#[test]
fn a_volume_is_not_taken_away_from_those_who_read_its_snapshots() {
    let place = Place::new();
    run(async {
        let service = place.serve().await;
        let snapshot = "s".to_owned();
        place.call("one", ChangeSnapshots { action: SnapshotAction::Take, snapshot }).await;
        let mut reader = place.client("one@s");
        let is_open =
            |refused: NodeError| assert!(refused.to_string().contains("one@s"), "{refused}");
        is_open(place.try_call("one", DELETE).await.expect_err("it is read"));
        let rename = RenameVolume { to: "two".to_owned() };
        is_open(place.try_call("one", rename).await.expect_err("it is read"));
        is_open(place.try_call("one", DetachVolume::default()).await.expect_err("it is read"));
        let reloaded = place.reload(&service, VolumeSet::Listed(Vec::new())).await.expect("loaded");
        assert!(reloaded.detached.is_empty() && reloaded.failed.len() == 1, "{reloaded:?}");
        assert_eq!(reader.read(4096), [0; 4096], "and is still there");
        drop(reader);
        place.call("one", DELETE).await;
        service.stop(Closing::ToStore).await.expect("nothing is left");
    });
    place.node.shut_down();
}

#[test]
fn a_flush_that_would_publish_nothing_is_refused() {
    let place = Place::new();
    run(async {
        let flush = FlushVolume { remote: false, wait: true, publish: true };
        let refused = async || {
            let error = place.try_call("one", flush).await.expect_err("nothing would be done");
            assert_eq!(error.kind(), weir_device::ErrorKind::Invalid);
            assert!(error.to_string().contains("remote"), "{error}");
        };
        let service = place.serve().await;
        refused().await;
        place.call("one", FlushVolume { remote: true, ..flush }).await;
        service.stop(Closing::ToStore).await.expect("closed");
        refused().await;
    });
    place.node.shut_down();
}

#[test]
fn what_a_new_configuration_leaves_out_is_closed_until_the_store_has_it() {
    let place = Place::new();
    run(async {
        // The store is given no time at all at first.
        let in_no_time =
            VolumeOptions { close_deadline: Duration::ZERO, ..VolumeOptions::default() };
        let service = place.serve_with(in_no_time).await;
        place.client("one").ask((1, 0, 4096), &[7; 4096]);
        let reloaded = place.reload(&service, VolumeSet::Listed(Vec::new())).await.expect("loaded");
        assert!(reloaded.detached.is_empty(), "{reloaded:?}");
        assert!(reloaded.failed[0].1.contains("journal"), "{reloaded:?}");
        // Then it is closed in the background; until then the next process is told of it.
        let patience = Instant::now() + Duration::from_secs(30);
        while !service.handed_over().is_empty() {
            assert!(Instant::now() < patience, "{:?}", service.handed_over());
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
        assert_eq!(place.call("one", ShowVolume::default()).await.holder, None);
        service.stop(Closing::ToStore).await.expect("nothing is left");
    });
    place.node.shut_down();
}

#[test]
fn what_a_detach_leaves_in_the_journal_alone_counts_until_the_store_has_it() {
    let place = Place::new();
    run(async {
        let service = place.serve_slowly(Duration::from_secs(2)).await;
        let mut detached = std::pin::pin!(place.try_call("one", DetachVolume::default()));
        let mut told = false;
        let refused = loop {
            tokio::select! {
                biased;
                detached = &mut detached => break detached.expect_err("too slow"),
                status = place.status() => {
                    let is_said = |why: &String| why.contains("one is not served: it is being closed");
                    told |= status.reasons.iter().any(is_said) && status.at_risk.bytes > 1 << 19;
                }
            }
        };
        assert!(refused.to_string().contains("journal"), "{refused}");
        assert!(told, "what is being closed counts as well");
        let check = async || {
            let status = place.status().await;
            assert_eq!((status.health, status.volumes.len()), (Health::Degraded, 0));
            let [one] = &status.not_served[..] else { panic!("{:?}", status.not_served) };
            let unsent = one.at_risk.expect("it was noted");
            assert!(unsent.bytes > 0 && unsent.oldest_age_ms.is_some(), "{unsent:?}");
            assert_eq!(status.at_risk.bytes, unsent.bytes);
            let why = status.reasons.iter().find(|why| why.starts_with("one is not served: "));
            let why = why.expect("a reason");
            assert!(why.contains("MiB") || why.contains("KiB"), "{why}");
            assert!(why.contains("`weir volume flush one`"), "{why}");
            let metrics = place.metrics().await;
            let dirty = format!("weir_volume_dirty_bytes{{volume=\"one\"}} {}.0", unsent.bytes);
            for line in [dirty.as_str(), "weir_volumes_not_served 1.0"] {
                assert!(metrics.contains(line), "{line}: {metrics}");
            }
            assert!(metrics.contains("weir_volume_oldest_dirty_seconds{volume=\"one\"} "));
        };
        check().await;
        service.stop(Closing::ToStore).await.expect("nothing else is open");
        // The process after it does not serve the volume, and says so all the same.
        let mut options = place.options(VolumeOptions::default());
        options.volumes = VolumeSet::Listed(Vec::new());
        let service = place.node.serve(options).await.expect("it serves nothing");
        check().await;
        place.call("one", FlushVolume { remote: true, wait: true, publish: false }).await;
        let status = place.status().await;
        assert_eq!((status.health, status.not_served.len()), (Health::Ok, 0), "{status:?}");
        assert_eq!(status.at_risk.bytes, 0);
        service.stop(Closing::ToStore).await.expect("closed");
    });
    place.node.shut_down();
}

#[test]
fn what_is_served_is_attached_only_as_it_is() {
    let place = Place::new();
    run(async {
        let service = place.serve().await;
        place.call("one", AttachVolume { size_bytes: Some(SIZE), ..AttachVolume::default() }).await;
        let read_only = AttachVolume { read_only: true, ..AttachVolume::default() };
        let refused = place.try_call("one", read_only).await.expect_err("it is writable");
        assert!(refused.to_string().contains("clients may write"), "{refused}");
        let larger = AttachVolume { size_bytes: Some(2 * SIZE), ..AttachVolume::default() };
        let refused = place.try_call("one", larger).await.expect_err("it is smaller");
        assert!(refused.to_string().contains("1048576 bytes"), "{refused}");
        place.call("one", DetachVolume::default()).await;
        place.call("one", read_only).await;
        place.call("one", read_only).await;
        let refused = place.try_call("one", AttachVolume::default()).await.expect_err("it is not");
        assert!(refused.to_string().contains("read-only"), "{refused}");
        service.stop(Closing::ToStore).await.expect("all are closed");
    });
    place.node.shut_down();
}

#[test]
fn a_stop_waits_for_a_detach_that_has_begun() {
    let place = Place::new();
    run(async {
        let service = place.serve_slowly(Duration::from_secs(2)).await;
        let detach = place.try_call("one", DetachVolume::default());
        let stop = async {
            let left = HandedOver { name: name("one"), was: Was::Served };
            while !service.served().is_empty() {
                tokio::time::sleep(Duration::from_millis(10)).await;
            }
            let closed = service.handed_over().into_iter().next();
            assert_eq!(closed, Some(left), "the next process closes it");
            assert_eq!(service.stop(Closing::ToStore).await.expect("closed"), Stopped::LocalOnly);
        };
        let (detached, ()) = futures_util::join!(detach, stop);
        let kept = detached.expect_err("the journal has the rest").to_string();
        assert!(kept.contains("journal"), "{kept}");
    });
    place.node.shut_down();
}

#[test]
fn a_volume_is_served_on_though_its_manifest_cannot_be_read_just_now() {
    let place = Place::new();
    run(async {
        let service = place.serve().await;
        let all = || {
            let template = place.options(VolumeOptions::default()).template;
            place.reload(&service, VolumeSet::All(template))
        };
        assert_eq!(all().await.expect("loaded"), Default::default(), "nothing changes");
        let newest = newest_manifest(&place.directory.path().join("data/store")).expect("one");
        let text = std::fs::read(&newest).expect("read");
        std::fs::write(&newest, &text[1..]).expect("damaged");
        let reloaded = all().await.expect("loaded");
        assert!(reloaded.detached.is_empty() && reloaded.failed.len() == 1, "{reloaded:?}");
        assert_eq!(service.served().len(), 1);
        assert!(service.not_served().is_empty(), "{:?}", service.not_served());
        std::fs::write(&newest, &text).expect("mended");
        // One that is not served is named.
        let none = place.reload(&service, VolumeSet::Listed(Vec::new())).await.expect("loaded");
        assert_eq!(none.detached, [name("one")]);
        let newest = newest_manifest(&place.directory.path().join("data/store")).expect("one");
        let text = std::fs::read(&newest).expect("read");
        std::fs::write(&newest, &text[1..]).expect("damaged");
        assert_eq!(all().await.expect("loaded").failed.len(), 1);
        assert!(service.not_served().contains_key("one"), "{:?}", service.not_served());
        std::fs::write(&newest, &text).expect("mended");
        assert_eq!(all().await.expect("loaded").attached, [name("one")]);
        service.stop(Closing::ToStore).await.expect("closed");
    });
    place.node.shut_down();
}

#[test]
fn an_opening_that_waits_for_another_node_is_taken_back() {
    let holder = Place::new();
    let mut place = Place::new();
    place.home.store_url.clone_from(&holder.home.store_url);
    run(async {
        let held = holder.serve().await;
        let mut options = place.options(VolumeOptions::default());
        let one = VolumeSpec { size: None, size_must_match: false, ..(*options.template).clone() };
        let two = VolumeSpec { name: name("two"), size: Some(SIZE), ..one.clone() };
        options.volumes = VolumeSet::Listed(vec![two.clone(), one.clone()]);
        let service = place.node.serve(options).await.expect("one of them opens");
        let waits = |service: &Service| service.not_served().contains_key("one");
        assert!(waits(&service), "{:?}", service.not_served());
        // It begins anew, and is not taken for a change that is under way.
        let both = || VolumeSet::Listed(vec![two.clone(), one.clone()]);
        let reloaded = place.reload(&service, both()).await.expect("loaded");
        assert_eq!((reloaded.waiting.len(), reloaded.failed.len()), (1, 0), "{reloaded:?}");
        place.call("one", DetachVolume::default()).await;
        assert!(!waits(&service), "detached");
        assert_eq!(place.reload(&service, both()).await.expect("loaded").left_out.len(), 1);
        assert!(!waits(&service), "it stays so");
        let read_only = VolumeSpec { read_only: true, ..one.clone() };
        let otherwise = VolumeSet::Listed(vec![two.clone(), read_only]);
        assert_eq!(place.reload(&service, otherwise).await.expect("loaded").waiting.len(), 1);
        let only = VolumeSet::Listed(vec![two.clone()]);
        assert_eq!(place.reload(&service, only).await.expect("loaded"), Default::default());
        assert!(!waits(&service), "not wanted");
        let nothing = place.try_call("one", DetachVolume::default()).await;
        assert!(nothing.is_err(), "nothing goes on in the background");
        held.stop(Closing::ToStore).await.expect("closed");
        place.call("one", AttachVolume::default()).await;
        assert_eq!(service.served().len(), 2);
        service.stop(Closing::ToStore).await.expect("closed");
    });
    place.node.shut_down();
    holder.node.shut_down();
}

#[test]
fn a_stop_says_that_what_was_left_out_is_not_all_in_the_store() {
    let place = Place::new();
    run(async {
        let service = place.serve_slowly(Duration::from_secs(2)).await;
        let reloaded = place.reload(&service, VolumeSet::Listed(Vec::new())).await.expect("loaded");
        assert_eq!(reloaded.failed.len(), 1, "{reloaded:?}");
        assert_eq!(service.stop(Closing::ToStore).await.expect("closed"), Stopped::LocalOnly);
    });
    place.node.shut_down();
}

#[test]
fn a_deletion_does_not_wait_for_the_store_to_take_what_is_deleted() {
    let place = Place::new();
    run(async {
        let service = place.serve_slowly(Duration::from_secs(600)).await;
        let began = Instant::now();
        place.call("one", DELETE).await;
        assert!(began.elapsed() < Duration::from_secs(15), "{:?}", began.elapsed());
        place.try_call("one", ShowVolume::default()).await.expect_err("it is gone");
        service.stop(Closing::ToStore).await.expect("nothing is left");
    });
    place.node.shut_down();
}

#[test]
fn a_volume_that_is_wanted_again_waits_for_its_close() {
    let place = Place::new();
    run(async {
        let service = place.serve_slowly(Duration::from_secs(2)).await;
        let (none, mut one) = (VolumeSet::Listed(Vec::new()), place.options(Default::default()));
        place.reload(&service, none).await.expect("loaded");
        // It is being closed, for which the store takes its time.
        tokio::time::sleep(Duration::from_millis(200)).await;
        one.template.name = name("one");
        let again = place.reload(&service, VolumeSet::Listed(vec![*one.template]));
        let faster = async {
            tokio::time::sleep(Duration::from_millis(500)).await;
            let none = |_| Limits::default();
            place.node.change_limits(place.home.clone(), none).await.expect("changed");
        };
        let (reloaded, ()) = futures_util::join!(again, faster);
        assert_eq!(reloaded.expect("loaded").attached, [name("one")]);
        assert!(service.handed_over().iter().all(|one| one.name == name("one")));
        assert_eq!(service.stop(Closing::ToStore).await.expect("closed"), Stopped::Clean);
    });
    place.node.shut_down();
}

#[test]
fn a_volume_says_while_its_rpo_is_missed_and_why() {
    let place = Place::new();
    run(async {
        let second = Duration::from_secs(1);
        let mut volume = VolumeOptions::default();
        (volume.batch.age, volume.batch.rpo) = (second, second);
        let mut options = place.options(volume);
        options.limits.upload_bytes_per_second = Some(50_000);
        let service = place.node.serve(options).await.expect("the volume opens");
        let flush = || FlushVolume { remote: true, wait: true, publish: false };
        place.client("one").ask((1, 0, 1 << 20), &incompressible());
        place.call("one", flush()).await;
        // This one takes 20 s.
        place.client("one").ask((1, 0, 1 << 20), &incompressible());
        tokio::time::sleep(3 * second).await;
        let one = &place.status().await.volumes[0];
        assert_eq!(one.health, Health::Degraded);
        let reason = one.reasons.join("; ");
        assert!(reason.starts_with("uploads are held to the limits"), "{reason}");
        assert!(reason.contains("s old, and its rpo is 1.0 s"), "{reason}");
        let lifted = |_| Limits::default();
        place.node.change_limits(place.home.clone(), lifted).await.expect("changed");
        place.call("one", flush()).await;
        let one = &place.status().await.volumes[0];
        assert_eq!((one.health, &one.reasons[..]), (Health::Ok, &[][..]));
        let log = one.log.as_ref().expect("a log volume");
        assert_eq!(log.rpo_ms, 1000);
        assert!(log.rpo_missed > 0);
        service.stop(Closing::ToStore).await.expect("closed");
    });
    place.node.shut_down();
}

#[test]
fn a_drained_node_says_so_and_nothing_holds_its_uploads_back() {
    let place = Place::new();
    run(async {
        let service = place.serve().await;
        let mut client = place.client("one");
        client.ask((1, 0, 1 << 20), &incompressible());
        let status = place.status().await;
        assert!(status.background.bytes_per_second.is_some(), "a client was there just now");
        let drained = |now| Limits { drain: true, ..now };
        place.node.change_limits(place.home.clone(), drained).await.expect("changed");
        client.ask((1, 0, 1 << 20), &incompressible());
        let status = place.status().await;
        assert!(status.limits.drain);
        assert_eq!(status.background.bytes_per_second, None, "nothing bounds it");
        place.call("one", FlushVolume { remote: true, wait: true, publish: false }).await;
        let background = place.status().await.background;
        let names: Vec<_> = background.classes.iter().map(|one| one.class.as_str()).collect();
        assert_eq!(names, ["upload", "collect", "delete", "fill"]);
        assert!(background.classes[0].bytes >= 1 << 20, "{background:?}");
        service.stop(Closing::ToStore).await.expect("closed");
        let service = place.serve().await;
        assert!(!place.status().await.limits.drain, "a start begins without it");
        service.stop(Closing::ToStore).await.expect("closed");
    });
    place.node.shut_down();
}

/// The names of what is served.
fn served(service: &Service) -> Vec<String> {
    service.served().into_iter().map(|info| info.name.to_string()).collect()
}

#[test]
fn what_was_attached_or_detached_by_hand_stays_so_until_its_settings_change() {
    let place = Place::new();
    run(async {
        let service = place.serve().await;
        let settings = || place.options(VolumeOptions::default()).volumes;
        place.call("two", AttachVolume { size_bytes: Some(SIZE), ..AttachVolume::default() }).await;
        place.call("one", DetachVolume::default()).await;
        let stays = async |service: &Service| {
            let reloaded = place.reload(service, settings()).await.expect("loaded");
            assert_eq!(served(service), ["two"], "{reloaded:?}");
            assert!(reloaded.left_out[0].1.contains("stays detached"), "{reloaded:?}");
        };
        stays(&service).await;
        // The program is replaced.
        let mut options = place.options(VolumeOptions::default());
        options.left = service.handed_over();
        drop(service.hand_over(false).await);
        let service = place.node.serve(options).await.expect("two is served");
        assert_eq!(served(&service), ["two"]);
        stays(&service).await;
        // What holds for all volumes says nothing of this one.
        let read_deadline = Duration::from_secs(7);
        let other = VolumeOptions { read_deadline, ..VolumeOptions::default() };
        let reloaded = place.reload(&service, place.options(other).volumes).await.expect("loaded");
        assert_eq!(served(&service), ["two"], "{reloaded:?}");
        let mut volumes = settings();
        if let VolumeSet::Listed(specs) = &mut volumes {
            specs[0].read_only = true;
        }
        let reloaded = place.reload(&service, volumes).await.expect("loaded");
        assert_eq!(reloaded.attached, [name("one")], "its settings are new");
        // Those of a process that serves all that there are say nothing of a volume, either.
        let all = || VolumeSet::All(place.options(VolumeOptions::default()).template);
        place.reload(&service, all()).await.expect("loaded");
        place.call("one", DetachVolume::default()).await;
        place.reload(&service, all()).await.expect("loaded");
        assert_eq!(served(&service), ["two"]);
        service.stop(Closing::ToStore).await.expect("all are closed");
    });
    place.node.shut_down();
}

#[test]
fn a_volume_that_was_attached_read_only_stays_so_when_the_program_is_replaced() {
    let place = Place::new();
    run(async {
        let service = place.serve().await;
        place.call("one", DetachVolume::default()).await;
        place.call("one", AttachVolume { read_only: true, ..AttachVolume::default() }).await;
        let mut options = place.options(VolumeOptions::default());
        options.left = service.handed_over();
        drop(service.hand_over(false).await);
        let service = place.node.serve(options).await.expect("one is served");
        let one = HandedOver { name: name("one"), was: Was::Attached { read_only: true } };
        assert_eq!(service.handed_over(), [one]);
        service.stop(Closing::ToStore).await.expect("all are closed");
    });
    place.node.shut_down();
}

#[test]
fn a_volume_whose_deletion_did_not_come_to_its_end_is_served_again() {
    let place = Place::new();
    run(async {
        let service = place.serve().await;
        place.call("two", AttachVolume { size_bytes: Some(SIZE), ..AttachVolume::default() }).await;
        // The program that deletes it is killed once the volume is detached.
        place.call("one", DetachVolume { to_delete: true, ..DetachVolume::default() }).await;
        let settings = || place.options(VolumeOptions::default()).volumes;
        let reloaded = place.reload(&service, settings()).await.expect("loaded");
        assert!(reloaded.left_out[0].1.contains("begun to rename or delete"), "{reloaded:?}");
        let mut options = place.options(VolumeOptions::default());
        options.left = service.handed_over();
        assert!(options.left.iter().any(|one| matches!(one.was, Was::Going { .. })));
        drop(service.hand_over(false).await);
        let service = place.node.serve(options).await.expect("both are served");
        assert_eq!(served(&service), ["one", "two"]);
        service.stop(Closing::ToStore).await.expect("all are closed");
    });
    place.node.shut_down();
}

#[test]
fn no_empty_volume_comes_to_be_under_the_name_of_one_that_is_gone() {
    let place = Place::new();
    run(async {
        let service = place.serve().await;
        let settings = || place.options(VolumeOptions::default()).volumes;
        let renamed = place.call("one", RenameVolume { to: "uno".to_owned() }).await;
        let note = renamed.note.expect("it is said");
        assert!(note.contains("still name volume one"), "{note}");
        let stays_gone = async || {
            let reloaded = place.reload(&service, settings()).await.expect("loaded");
            assert_eq!(served(&service), ["uno"], "{reloaded:?}");
            assert!(reloaded.left_out[0].1.contains("not created anew"), "{reloaded:?}");
        };
        stays_gone().await;
        place.call("one", AttachVolume::default()).await;
        let note = place.call("one", DELETE).await.note.expect("it is said");
        assert!(note.contains("still name volume one"), "{note}");
        stays_gone().await;
        // Another volume gets the name, and of that nothing was decided.
        let takeover = Default::default();
        let one =
            CreateVolume { name: "one".to_owned(), size_bytes: SIZE, takeover, attach: false };
        let created = place.node.call(place.home.clone(), None, one, |_, _| {}).await;
        let note = created.expect("created").note.expect("it is said that it is not served");
        assert!(note.contains("weir volume attach one"), "{note}");
        let reloaded = place.reload(&service, settings()).await.expect("loaded");
        assert_eq!((reloaded.attached, reloaded.created), (vec![name("one")], Vec::new()));
        service.stop(Closing::ToStore).await.expect("all are closed");
    });
    place.node.shut_down();
}

#[test]
fn a_volume_is_not_deleted_where_the_journal_of_another_one_was_meant() {
    let place = Place::new();
    run(async {
        let service = place.serve().await;
        let discard = DeleteVolume { discard_journal: true, ..DELETE };
        let refused = place.try_call("one", discard).await.expect_err("there is no such journal");
        assert!(refused.to_string().contains("is not deleted"), "{refused}");
        assert_eq!(served(&service), ["one"], "and it is served on");
        place.call("one", DetachVolume::default()).await;
        place.try_call("one", discard).await.expect_err("nor where nobody serves it");
        place.call("one", ShowVolume::default()).await;
        service.stop(Closing::ToStore).await.expect("all are closed");
    });
    place.node.shut_down();
}

/// The fields of a request are named. A list would be read in the order of the fields, with nothing for the missing
/// ones: an empty one would take limits away that nobody named.
#[test]
fn a_request_that_is_a_list_changes_nothing() {
    let place = Place::new();
    run(async {
        let mut options = place.options(VolumeOptions::default());
        options.limits.upload_bytes_per_second = Some(50_000);
        let service = place.node.serve(options).await.expect("the volume opens");
        for request in ["PUT /v1/limits", "PATCH /v1/volumes/one/limit"] {
            let answer = place.ask(request, "[]").await;
            assert!(answer.starts_with("HTTP/1.1 422 "), "{request}: {answer}");
        }
        assert_eq!(place.status().await.limits.upload_bytes_per_second, Some(50_000));
        service.stop(Closing::ToStore).await.expect("closed");
    });
    place.node.shut_down();
}

#[test]
fn what_is_served_has_nothing_to_salvage() {
    let place = Place::new();
    run(async {
        let service = place.serve().await;
        let takeover = Takeover::Manual;
        let wish = SalvageWish { name: name("one"), new: None, takeover, accept_loss: false };
        let salvaged = place.node.salvage_volume(place.home.clone(), wish, |_, _| {}).await;
        let refused = salvaged.expect_err("there is nothing to salvage");
        assert!(refused.to_string().contains("serves it"), "{refused}");
        assert!(!refused.help().unwrap_or_default().contains("SIGTERM"), "{:?}", refused.help());
        service.stop(Closing::ToStore).await.expect("all are closed");
    });
    place.node.shut_down();
}

#[test]
fn what_would_let_the_revoked_in_again_keeps_a_process_from_being_replaced() {
    let place = Place::new();
    run(async {
        let pki = place.directory.path().join("pki");
        let mut authority = Authority::create(&pki, "test", AUTHORITY_DAYS).expect("an authority");
        for name in ["server", "mallory"] {
            let (hosts, usage, days) = (&[][..], Usage::Both, CERTIFICATE_DAYS);
            authority.issue(&Request { name, hosts, usage, days }).expect("issued");
        }
        let directory = authority.directory_of("server");
        let list = directory.join(REVOKED);
        let first = std::fs::read(&list).expect("a list");
        let mut options = place.options(VolumeOptions::default());
        options.tls = Some(Tls::load(&directory).expect("loads"));
        let service = place.node.serve(options).await.expect("the volume opens");
        let check = || {
            let next = Tls::load(&directory).expect("a start may go on with it");
            service.check_next_certificates(&next).map_err(|error| with_causes(&error))
        };
        check().expect("nothing has changed");
        authority.revoke("mallory").expect("revoked");
        check().expect("a newer list");
        let tls = service.certificates().expect("there are some");
        let read = tls.read_anew(tls.min_version()).expect("read");
        service.take_certificates(read).expect("taken");
        check().expect("the same");
        std::fs::write(&list, &first).expect("written");
        let error = check().expect_err("an older one");
        assert!(error.contains("is older than the one that is in use"), "{error}");
        std::fs::remove_file(&list).expect("removed");
        let error = check().expect_err("none");
        assert!(error.contains("is missing"), "{error}");
        service.stop(Closing::ToStore).await.expect("it closes");
    });
    place.node.shut_down();
}
