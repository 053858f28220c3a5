//! What is said of volumes whose bytes are elsewhere while they are closed.

use std::io::{Read, Write};
use std::os::unix::net::{UnixListener, UnixStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use weir_node::config::{FileConfig, RemoteConfig};

use super::*;

/// What stands between a client and its server, and passes nothing on while it hangs.
#[derive(Clone)]
pub(super) struct Passage(Arc<AtomicBool>);

impl Passage {
    pub(super) fn open(at: &Path, server: PathBuf) -> Self {
        let (listener, passage) = (UnixListener::bind(at).expect("bound"), Self(Arc::default()));
        let passing = passage.clone();
        std::thread::spawn(move || {
            for client in listener.incoming().flatten() {
                let server = UnixStream::connect(&server).expect("it listens");
                let ends = [&client, &server].map(|end| end.try_clone().expect("a copy"));
                let [back_to, back_from] = ends;
                passing.pass(client, server);
                passing.pass(back_from, back_to);
            }
        });
        passage
    }

    fn pass(&self, mut from: UnixStream, mut to: UnixStream) {
        let hangs = Arc::clone(&self.0);
        std::thread::spawn(move || {
            let mut bytes = [0; 1 << 16];
            while let Ok(read @ 1..) = from.read(&mut bytes) {
                while hangs.load(Ordering::Relaxed) {
                    std::thread::sleep(Duration::from_millis(10));
                }
                if to.write_all(&bytes[..read]).is_err() {
                    break;
                }
            }
            let _ = to.shutdown(std::net::Shutdown::Both);
        });
    }

    pub(super) fn hang(&self, hangs: bool) {
        self.0.store(hangs, Ordering::Relaxed);
    }
}

/// The settings of volumes of these names, which are all the export at the passage.
pub(super) fn remotes(place: &Place, names: &[&str], passage: &Path) -> VolumeSet {
    let uri = format!("nbd+unix:///one?socket={}", passage.display());
    let config = RemoteConfig { uri, ..RemoteConfig::default() };
    let endpoint = EndpointKind::Remote(config.checked().expect("an address"));
    let close_deadline = Duration::from_secs(10);
    let options = VolumeOptions { close_deadline, ..VolumeOptions::default() };
    let template = *place.options(options).template;
    let remote = |text: &&str| VolumeSpec {
        name: name(text),
        endpoint: endpoint.clone(),
        ..template.clone()
    };
    VolumeSet::Listed(names.iter().map(remote).collect())
}

/// Returns once the status says of a volume that it is being closed, and what it waits for.
async fn seen_closing(place: &Place, volume: &str) {
    let patience = Instant::now() + Duration::from_secs(15);
    loop {
        let status = place.status().await;
        let found = status.not_served.iter().find(|one| one.name == volume);
        if let Some(one) = found.filter(|one| one.reason.contains("4.0 KiB")) {
            assert!(one.reason.contains("it is being closed, for "), "{}", one.reason);
            assert!(one.reason.contains("its server, nbd+unix://"), "{}", one.reason);
            assert_eq!((status.health, one.at_risk), (Health::Degraded, None));
            let of_it = |why: &&String| why.starts_with(&format!("{volume} is not served: "));
            assert!(status.reasons.iter().any(|why| of_it(&why)), "{:?}", status.reasons);
            return;
        }
        assert!(Instant::now() < patience, "{volume}: {:?}", status.not_served);
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}

/// Returns once one status says of all these volumes that they are being closed.
async fn seen_closing_at_once(place: &Place, volumes: &[&str]) {
    let patience = Instant::now() + Duration::from_secs(30);
    loop {
        let status = place.status().await;
        let is_closed = |volume: &&str| {
            let found = status.not_served.iter().find(|one| one.name == *volume);
            found.is_some_and(|one| one.reason.contains("it is being closed, for "))
        };
        if volumes.iter().all(is_closed) {
            return;
        }
        assert!(Instant::now() < patience, "{:?}", status.not_served);
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}

/// Serves volumes of these names whose server does not answer any more and has a write of each that it did not flush:
/// none of them is closed before its time is over.
pub(super) async fn serve_hanging(
    place: &Place,
    server: &Place,
    names: &[&str],
) -> (Service, Passage) {
    let passage = place.directory.path().join("passage");
    let passing = Passage::open(&passage, server.directory.path().join("data/nbd.sock"));
    let mut options = place.options(VolumeOptions::default());
    options.volumes = remotes(place, names, &passage);
    let service = place.node.serve(options).await.expect("they open");
    for volume in names {
        place.client(volume).ask((1, 0, 4096), &[7; 4096]);
    }
    passing.hang(true);
    (service, passing)
}

/// A volume whose server hangs keeps no other one open: each is closed from the moment on at which a reload leaves it
/// out, or the process ends.
#[test]
fn volumes_are_closed_beside_each_other() {
    let (server, place) = (Place::new(), Place::new());
    run(async {
        let serving = server.serve().await;
        let all = ["left", "out", "stopped", "with"];
        let (service, passing) = serve_hanging(&place, &server, &all).await;
        let rest = remotes(&place, &all[2..], &place.directory.path().join("passage"));
        let reload = place.reload(&service, rest);
        let (reloaded, ()) = futures_util::join!(reload, seen_closing_at_once(&place, &all[..2]));
        assert_eq!(reloaded.expect("loaded").failed.len(), 2, "each lost something");
        let stop = service.stop(Closing::ToStore);
        let (stopped, ()) = futures_util::join!(stop, seen_closing_at_once(&place, &all[2..]));
        stopped.expect_err("both lost something");
        passing.hang(false);
        serving.stop(Closing::ToStore).await.expect("closed");
    });
    place.node.shut_down();
    server.node.shut_down();
}

/// Two volumes at a server that does not answer any more, with a write of each that it did not flush: one is detached,
/// and then the process ends.
#[test]
fn the_close_of_a_remote_volume_is_seen_and_says_what_it_lost() {
    let (server, place) = (Place::new(), Place::new());
    run(async {
        let serving = server.serve().await;
        let (service, passing) = serve_hanging(&place, &server, &["detached", "stopped"]).await;
        let detach = DetachVolume { disconnect: true, ..DetachVolume::default() };
        let detached = place.try_call("detached", detach);
        let stopped = async {
            seen_closing(&place, "detached").await;
            let stopping = service.stop(Closing::ToStore);
            let seen = async {
                // The close that had begun goes on, and is not to be lost from sight.
                seen_closing_at_once(&place, &["detached", "stopped"]).await;
                seen_closing(&place, "stopped").await;
            };
            futures_util::join!(stopping, seen).0
        };
        let (detached, stopped) = futures_util::join!(detached, stopped);
        let note = detached.expect("it is detached all the same").note.expect("it lost something");
        assert!(note.contains("4096 bytes that it acknowledged are lost"), "{note}");
        stopped.expect_err("both lost something");
        passing.hang(false);
        serving.stop(Closing::ToStore).await.expect("closed");
    });
    place.node.shut_down();
    server.node.shut_down();
}

/// Every close is seen, and one that has lost nothing and has not taken long is no reason to warn anybody.
#[test]
fn a_close_that_has_just_begun_degrades_nothing() {
    let (server, place) = (Place::new(), Place::new());
    run(async {
        let serving = server.serve().await;
        let (service, passing) = serve_hanging(&place, &server, &[]).await;
        passing.hang(false);
        let passage = place.directory.path().join("passage");
        place.reload(&service, remotes(&place, &["quiet"], &passage)).await.expect("loaded");
        let mut client = place.client("quiet");
        passing.hang(true);
        // The server never answers it, so that the close waits.
        client.send((0, 0, 4096), &[]);
        let detach = DetachVolume { disconnect: true, ..DetachVolume::default() };
        let detached = place.try_call("quiet", detach);
        let seen = async {
            let patience = Instant::now() + Duration::from_secs(30);
            let status = loop {
                let status = place.status().await;
                if !status.not_served.is_empty() {
                    break status;
                }
                assert!(Instant::now() < patience, "{:?}", status.volumes);
            };
            let said = &status.not_served[0].reason;
            // Later it is one that hangs.
            if (0..4).any(|seconds| said.contains(&format!("for {seconds} s so far"))) {
                assert_eq!((status.health, status.reasons), (Health::Ok, Vec::new()), "{said}");
            }
        };
        let (detached, ()) = futures_util::join!(detached, seen);
        assert_eq!(detached.expect("it is detached").note, None, "it lost nothing");
        passing.hang(false);
        service.stop(Closing::ToStore).await.expect("nothing is left");
        serving.stop(Closing::ToStore).await.expect("closed");
    });
    place.node.shut_down();
    server.node.shut_down();
}

/// Whoever reads the status acts on what it says: of a close that has ended with an error nothing is to be waited for.
#[test]
fn a_close_that_failed_is_not_shown_as_one_that_goes_on() {
    let place = Place::new();
    run(async {
        let service = place.serve().await;
        place.taken_by_somebody_else();
        let failed = place.try_call("one", DetachVolume::default()).await;
        failed.expect_err("it cannot be closed");
        let status = place.status().await;
        let reasons: Vec<_> = status.not_served.iter().map(|one| &*one.reason).collect();
        assert!(matches!(reasons[..], [reason] if !reason.contains("being closed")), "{reasons:?}");
        assert_eq!(status.health, Health::Degraded);
        service.stop(Closing::ToStore).await.expect("nothing is left to be closed");
    });
    place.node.shut_down();
}

/// Whoever detaches a volume while the process stops learns why its close failed, and of what kind that is: the code of
/// the answer and the exit code come from it.
#[test]
fn a_detach_that_a_stop_meets_says_why_its_close_failed() {
    let place = Place::new();
    run(async {
        // The close finds it at its end, once the store has taken everything.
        let service = place.serve_slowly(Duration::from_mins(2)).await;
        place.taken_by_somebody_else();
        let detach = place.try_call("one", DetachVolume::default());
        let stop = async {
            while !service.served().is_empty() {
                tokio::time::sleep(Duration::from_millis(10)).await;
            }
            service.stop(Closing::ToStore).await
        };
        let (detached, stopped) = futures_util::join!(detach, stop);
        let (detached, stopped) =
            (detached.expect_err("it failed"), stopped.expect_err("and the stop with it"));
        assert_eq!(detached.kind(), stopped.kind(), "{detached}; {stopped}");
        assert!(detached.to_string().contains(&stopped.to_string()), "{detached}; {stopped}");
    });
    place.node.shut_down();
}

/// The next process is told of a volume that a detach closes, and closes it itself. A replacement does not wait for the
/// close: the clients of all other volumes would wait with it.
#[test]
fn a_replacement_does_not_wait_for_a_detach_that_has_begun() {
    let place = Place::new();
    run(async {
        let service = place.serve_slowly(Duration::from_mins(1)).await;
        let detach = place.try_call("one", DetachVolume::default());
        let replaced = async {
            while !service.served().is_empty() {
                tokio::time::sleep(Duration::from_millis(10)).await;
            }
            drop(service.hand_over(false).await);
        };
        let (detached, ()) = futures_util::join!(detach, replaced);
        let cut_off = detached.expect_err("the process that would answer is gone").to_string();
        assert!(!cut_off.contains("journal"), "it was waited for: {cut_off}");
    });
    place.node.shut_down();
}

/// Of a volume in no store nothing but this process has what it acknowledged: it is closed before the next process
/// takes over, and whoever detaches it learns how that ended.
#[test]
fn a_replacement_waits_for_the_close_of_a_volume_in_no_store() {
    let (server, place) = (Place::new(), Place::new());
    run(async {
        let serving = server.serve().await;
        let (service, passing) = serve_hanging(&place, &server, &["far"]).await;
        let detach = DetachVolume { disconnect: true, ..DetachVolume::default() };
        let detached = place.try_call("far", detach);
        let replaced = async {
            seen_closing(&place, "far").await;
            let why = service.unanswered(Duration::from_millis(50)).await;
            let why = why.expect("a close goes on, so that it is refused");
            assert!(why.starts_with("volume far: it is being closed, for "), "{why}");
            let left = service.handed_over();
            assert!(left.iter().all(|one| matches!(one.was, Was::Detached { .. })), "{left:?}");
            // One that begins later is met by the end.
            let parting = service.hand_over(false).await;
            assert_eq!(parting.failed, [], "whoever detached it was told");
        };
        let (detached, ()) = futures_util::join!(detached, replaced);
        let note = detached.expect("the process answers it").note.expect("it lost something");
        assert!(note.contains("4096 bytes that it acknowledged are lost"), "{note}");
        passing.hang(false);
        serving.stop(Closing::ToStore).await.expect("closed");
    });
    place.node.shut_down();
    server.node.shut_down();
}

/// What is in the way of a replacement is over, or there was nothing.
#[test]
fn a_process_whose_files_answer_may_be_replaced() {
    let place = Place::new();
    run(async {
        let file = place.directory.path().join("disk");
        std::fs::File::create(&file).and_then(|file| file.set_len(SIZE)).expect("created");
        let mut options = place.options(VolumeOptions::default());
        let endpoint = EndpointKind::File(FileConfig { path: file, direct: false });
        let disk = VolumeSpec { name: name("disk"), endpoint, ..(*options.template).clone() };
        if let VolumeSet::Listed(specs) = &mut options.volumes {
            specs.push(disk);
        }
        let service = place.node.serve(options).await.expect("both open");
        place.client("disk").ask((1, 0, 4096), &[7; 4096]);
        place.call("one", DetachVolume::default()).await;
        assert_eq!(service.unanswered(Duration::from_mins(1)).await, None);
        service.stop(Closing::ToStore).await.expect("closed");
    });
    place.node.shut_down();
}

#[test]
fn a_reload_names_what_is_being_opened_as_the_settings_said_before() {
    let (holder, mut place) = (Place::new(), Place::new());
    place.home.store_url.clone_from(&holder.home.store_url);
    run(async {
        let held = holder.serve().await;
        let mut options = place.options(VolumeOptions::default());
        let two = VolumeSpec { name: name("two"), ..(*options.template).clone() };
        let only = VolumeSet::Listed(vec![VolumeSpec { size: Some(SIZE), ..two.clone() }]);
        options.volumes = only.clone();
        let service = place.node.serve(options).await.expect("it opens");
        // It waits for the node that has it.
        let attached = place.try_call("one", AttachVolume::default());
        let reloaded = async {
            // Whatever it found when it began, the next settings say otherwise.
            let mut template = Box::new(two);
            let patience = Instant::now() + Duration::from_secs(20);
            loop {
                template.read_only ^= true;
                let again = service.reload(only.clone(), template.clone()).await.expect("loaded");
                if again.kept_as_they_are.contains(&name("one")) {
                    break;
                }
                assert!(Instant::now() < patience, "{again:?}");
                tokio::time::sleep(Duration::from_millis(20)).await;
            }
            assert_eq!(served(&service), ["two"], "it is being opened");
            held.stop(Closing::ToStore).await.expect("closed");
        };
        let (attached, ()) = futures_util::join!(attached, reloaded);
        attached.expect("it is free by now");
        service.stop(Closing::ToStore).await.expect("closed");
    });
    place.node.shut_down();
    holder.node.shut_down();
}

/// The settings leave a volume out whose server does not answer, and name it again while it is closed. What it lost is
/// told, though nobody waits for the close any more, and it is served again.
#[test]
fn a_volume_that_is_named_again_while_it_is_closed_is_served_after_that() {
    let (server, place) = (Place::new(), Place::new());
    run(async {
        let serving = server.serve().await;
        let passage = place.directory.path().join("passage");
        let passing = Passage::open(&passage, server.directory.path().join("data/nbd.sock"));
        let mut options = place.options(VolumeOptions::default());
        options.volumes = remotes(&place, &["again"], &passage);
        let service = place.node.serve(options).await.expect("it opens");
        place.client("again").ask((1, 0, 4096), &[7; 4096]);
        passing.hang(true);
        let left_out = place.reload(&service, VolumeSet::Listed(Vec::new()));
        let waited = tokio::time::timeout(Duration::from_secs(1), left_out).await;
        waited.expect_err("whoever waited has gone before it is closed");
        seen_closing(&place, "again").await;
        let named = place.reload(&service, remotes(&place, &["again"], &passage)).await;
        let named = named.expect("the settings are loaded");
        let [(_, why)] = &named.failed[..] else { panic!("it is not open: {named:?}") };
        assert!(why.contains("it is opened once that has ended"), "{why}");
        let told = "newest writes may be lost";
        let patience = Instant::now() + Duration::from_secs(60);
        while !place.ask("GET /v1/events", "").await.contains(told) {
            assert!(Instant::now() < patience, "what was lost is in no event");
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
        passing.hang(false);
        while served(&service).is_empty() {
            assert!(Instant::now() < patience, "it stays unserved");
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
        service.stop(Closing::ToStore).await.expect("closed");
        serving.stop(Closing::ToStore).await.expect("closed");
    });
    place.node.shut_down();
    server.node.shut_down();
}
