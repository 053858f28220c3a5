//! What is said of volumes whose bytes are elsewhere while they are closed.

use std::io::{Read, Write};
use std::os::unix::net::{UnixListener, UnixStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use weir_node::config::RemoteConfig;

use super::*;

/// What stands between a client and its server, and passes nothing on while it hangs.
#[derive(Clone)]
struct Passage(Arc<AtomicBool>);

impl Passage {
    fn open(at: &Path, server: PathBuf) -> Self {
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

    fn hang(&self, hangs: bool) {
        self.0.store(hangs, Ordering::Relaxed);
    }
}

/// The settings of volumes of these names, which are all the export at the passage.
fn remotes(place: &Place, names: &[&str], passage: &Path) -> VolumeSet {
    let uri = format!("nbd+unix:///one?socket={}", passage.display());
    let config = RemoteConfig { uri, ..RemoteConfig::default() };
    let endpoint = EndpointKind::Remote(config.checked().expect("an address"));
    let close_deadline = Duration::from_secs(6);
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

/// Two volumes at a server that does not answer any more, with a write of each that it did not flush: one is detached,
/// and then the process ends.
#[test]
fn the_close_of_a_remote_volume_is_seen_and_says_what_it_lost() {
    let (server, place) = (Place::new(), Place::new());
    run(async {
        let serving = server.serve().await;
        let passage = place.directory.path().join("passage");
        let passing = Passage::open(&passage, server.directory.path().join("data/nbd.sock"));
        let mut options = place.options(VolumeOptions::default());
        options.volumes = remotes(&place, &["detached", "stopped"], &passage);
        let service = place.node.serve(options).await.expect("they open");
        for volume in ["detached", "stopped"] {
            place.client(volume).ask((1, 0, 4096), &[7; 4096]);
        }
        passing.hang(true);
        let detach = DetachVolume { disconnect: true, ..DetachVolume::default() };
        let detached = place.try_call("detached", detach);
        let stopped = async {
            seen_closing(&place, "detached").await;
            let stopping = service.stop(Closing::ToStore);
            futures_util::join!(stopping, seen_closing(&place, "stopped")).0
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
