//! What settings that are loaded anew bring to volumes that verbs attach and create.

use std::net::TcpStream;
use std::os::unix::net::UnixStream;

use weir_node::{Allowed, NbdAddress};

use super::closing::{Passage, remotes};
use super::common::flags_of;
use super::*;

/// The settings of all volumes.
fn template(place: &Place, allowed: Allowed, read_only: bool) -> VolumeSpec {
    let template = *place.options(VolumeOptions::default()).template;
    VolumeSpec { name: name("any"), read_only, allowed, ..template }
}

/// One volume, `listed`, as the settings of all volumes say.
fn listed(template: &VolumeSpec) -> VolumeSet {
    let one = VolumeSpec { name: name("listed"), size: Some(SIZE), ..template.clone() };
    VolumeSet::Listed(vec![one])
}

/// Every volume of the store.
fn all(template: &VolumeSpec) -> VolumeSet {
    VolumeSet::All(Box::new(template.clone()))
}

/// Serves with clients who come over TCP in the clear as well: those whom a list names are none of them.
async fn serve(place: &Place, volumes: VolumeSet, template: VolumeSpec) -> Service {
    let tcp = NbdAddress::Tcp { address: "127.0.0.1:0".to_owned(), insecure: false };
    let options = ServiceOptions {
        template: Box::new(template),
        volumes,
        nbd: vec![tcp, NbdAddress::Unix(place.home.data.node_nbd_socket())],
        ..place.options(VolumeOptions::default())
    };
    place.node.serve(options).await.expect("it serves")
}

/// Creates a volume and serves it.
async fn create(place: &Place, volume: &str) {
    let takeover = Default::default();
    let create = CreateVolume { name: volume.to_owned(), size_bytes: SIZE, takeover, attach: true };
    let created = place.node.call(place.home.clone(), None, create, |_, _| {}).await;
    created.expect("created");
}

async fn attach_again(place: &Place, volume: &str) {
    place.call(volume, DetachVolume::default()).await;
    place.call(volume, AttachVolume::default()).await;
}

/// Whether a client without a certificate gets an export over TCP.
fn lets_in(service: &Service, export: &str) -> bool {
    let uris = service.nbd_uris();
    let address = uris.iter().find_map(|uri| uri.strip_prefix("nbd://")).expect("over TCP");
    let mut stream = TcpStream::connect(address.trim_end_matches('/')).expect("it listens");
    flags_of(&mut stream, export).is_some()
}

/// Whether a client of this host may write.
fn takes_writes(place: &Place, export: &str) -> bool {
    const READ_ONLY: u16 = 1 << 1;
    let mut stream = UnixStream::connect(place.home.data.node_nbd_socket()).expect("it listens");
    flags_of(&mut stream, export).expect("users of this host get it") & READ_ONLY == 0
}

/// Volumes that a verb attached before and after a reload, of either kind of set, are served as the reloaded settings
/// say: at once to whom they say, and once they are attached anew also in every other way.
fn a_reload_counts_for_what_verbs_attach(set: fn(&VolumeSpec) -> VolumeSet) {
    let place = Place::new();
    run(async {
        let (everybody, nobody) = (Allowed::All, Allowed::Named([].into()));
        let before = template(&place, everybody.clone(), false);
        let service = serve(&place, set(&before), before.clone()).await;
        create(&place, "early").await;
        assert!(lets_in(&service, "early") && takes_writes(&place, "early"));

        let after = template(&place, nobody, true);
        let reloaded = service.reload(set(&after), Box::new(after)).await.expect("loaded");
        let Reloaded { kept_as_they_are, .. } = reloaded;
        assert!(kept_as_they_are.contains(&name("early")), "{kept_as_they_are:?}");
        assert!(!lets_in(&service, "early"), "who may use it counts at once");
        assert!(takes_writes(&place, "early"), "it is kept as it is");
        create(&place, "late").await;
        attach_again(&place, "early").await;
        for volume in ["early", "late"] {
            assert!(!lets_in(&service, volume), "{volume} is for those whom the new list names");
            assert!(!takes_writes(&place, volume), "{volume} is read-only by now");
        }

        let reloaded = service.reload(set(&before), Box::new(before)).await.expect("loaded");
        assert!(reloaded.kept_as_they_are.contains(&name("late")), "{reloaded:?}");
        assert!(lets_in(&service, "early") && lets_in(&service, "late"), "the other way round");
        attach_again(&place, "late").await;
        assert!(takes_writes(&place, "late"));
        service.stop(Closing::ToStore).await.expect("closed");
    });
    place.node.shut_down();
}

#[test]
fn a_reload_counts_for_what_verbs_attach_beside_listed_volumes() {
    a_reload_counts_for_what_verbs_attach(listed);
}

#[test]
fn a_reload_counts_for_what_verbs_attach_where_all_volumes_are_served() {
    a_reload_counts_for_what_verbs_attach(all);
}

#[test]
fn whom_a_list_leaves_out_is_out_before_the_store_is_asked() {
    let place = Place::new();
    run(async {
        let before = template(&place, Allowed::All, false);
        let service = serve(&place, all(&before), before.clone()).await;
        create(&place, "early").await;
        assert!(lets_in(&service, "early"));
        let nobody = template(&place, Allowed::Named([].into()), false);
        let mut reload = Box::pin(service.reload(all(&nobody), Box::new(nobody)));
        assert!(futures_util::poll!(&mut reload).is_pending(), "the volumes are being listed");
        assert!(!lets_in(&service, "early"));
        reload.await.expect("loaded");
        service.stop(Closing::ToStore).await.expect("closed");
    });
    place.node.shut_down();
}

#[test]
fn a_reload_keeps_what_a_verb_asked_for() {
    let place = Place::new();
    run(async {
        let same = template(&place, Allowed::All, false);
        let service = serve(&place, listed(&same), same.clone()).await;
        create(&place, "early").await;
        place.call("early", DetachVolume::default()).await;
        let read_only = AttachVolume { read_only: true, ..AttachVolume::default() };
        place.call("early", read_only).await;
        let reloaded = service.reload(listed(&same), Box::new(same)).await.expect("loaded");
        let kept = Reloaded { kept_as_they_are: vec![name("early")], ..Reloaded::default() };
        assert_eq!(reloaded, kept, "it is served otherwise than the settings say");
        assert!(!takes_writes(&place, "early"));
        service.stop(Closing::ToStore).await.expect("closed");
    });
    place.node.shut_down();
}

#[test]
fn a_reload_counts_for_what_is_being_opened() {
    let holder = Place::new();
    let mut place = Place::new();
    place.home.store_url.clone_from(&holder.home.store_url);
    run(async {
        let held = holder.serve().await;
        let before = template(&place, Allowed::All, false);
        let service = serve(&place, listed(&before), before).await;
        // It waits for the node that has it, and knows the settings of the time before.
        let attached = place.call("one", AttachVolume::default());
        let reloaded = async {
            tokio::time::sleep(Duration::from_millis(500)).await;
            let after = template(&place, Allowed::Named([].into()), false);
            service.reload(listed(&after), Box::new(after)).await.expect("loaded");
            held.stop(Closing::ToStore).await.expect("closed");
        };
        futures_util::join!(attached, reloaded);
        assert!(!lets_in(&service, "one"), "it is for those whom the new list names");
        service.stop(Closing::ToStore).await.expect("closed");
    });
    place.node.shut_down();
    holder.node.shut_down();
}

#[test]
fn what_is_closed_in_the_background_counts_as_not_served_all_the_while() {
    let place = Place::new();
    run(async {
        let service = place.serve_slowly(Duration::from_secs(2)).await;
        let reloaded = place.reload(&service, VolumeSet::Listed(Vec::new())).await.expect("loaded");
        assert_eq!(reloaded.failed.len(), 1, "{reloaded:?}");
        // It is open in the background for a part of this time, and its journal is held.
        for _ in 0..30 {
            let status = place.status().await;
            assert_eq!(status.health, Health::Degraded);
            assert!(status.not_served.iter().any(|one| one.name == "one"), "{status:?}");
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
        service.stop(Closing::Quick).await.expect("closed");
    });
    place.node.shut_down();
}

#[test]
fn a_reload_that_meets_a_detach_leaves_it_at_that() {
    let place = Place::new();
    run(async {
        let service = place.serve_slowly(Duration::from_secs(2)).await;
        place.call("two", AttachVolume { size_bytes: Some(SIZE), ..AttachVolume::default() }).await;
        let mut volumes = place.options(VolumeOptions::default()).volumes;
        if let VolumeSet::Listed(specs) = &mut volumes {
            specs[0].name = name("two");
        }
        // It closes one first, which takes its time.
        let detach = async {
            tokio::time::sleep(Duration::from_millis(500)).await;
            place.call("two", DetachVolume::default()).await;
        };
        let (reloaded, ()) = futures_util::join!(place.reload(&service, volumes), detach);
        let reloaded = reloaded.expect("loaded");
        assert_eq!(served(&service), Vec::<String>::new(), "{reloaded:?}");
        assert_eq!(reloaded.left_out[0].0, name("two"), "{reloaded:?}");
        service.stop(Closing::Quick).await.expect("all are closed");
    });
    place.node.shut_down();
}

#[test]
fn a_reload_says_which_volumes_are_new() {
    let place = Place::new();
    run(async {
        let service = place.serve().await;
        let mut volumes = place.options(VolumeOptions::default()).volumes;
        if let VolumeSet::Listed(specs) = &mut volumes {
            specs.push(VolumeSpec { name: name("two"), ..specs[0].clone() });
        }
        let reloaded = place.reload(&service, volumes).await.expect("loaded");
        assert_eq!(reloaded.created, [(name("two"), SIZE)]);
        service.stop(Closing::ToStore).await.expect("all are closed");
    });
    place.node.shut_down();
}

/// An opening takes its time, and newer settings count meanwhile. What they say of volumes that they do not name is not
/// said of the one that is being opened as the settings before had it.
#[test]
fn an_opening_that_newer_settings_overtake_lets_in_whom_its_own_did() {
    let (server, place) = (Place::new(), Place::new());
    run(async {
        let serving = server.serve().await;
        let path = place.directory.path().join("passage");
        let passing = Passage::open(&path, server.directory.path().join("data/nbd.sock"));
        passing.hang(true);
        let everybody = template(&place, Allowed::All, false);
        let service = serve(&place, listed(&everybody), everybody.clone()).await;
        let (mut first, others) = (remotes(&place, &["far"], &path), listed(&everybody));
        if let (VolumeSet::Listed(specs), VolumeSet::Listed(others)) = (&mut first, others) {
            specs[0].allowed = Allowed::listed(Some(&vec!["alice".to_owned()]));
            specs.extend(others);
        }
        service.take_settings(first, Box::new(everybody.clone()));
        let newer = async {
            service.take_settings(listed(&everybody), Box::new(everybody.clone()));
            passing.hang(false);
        };
        let (reloaded, ()) = futures_util::join!(service.follow_settings(), newer);
        assert_eq!(reloaded.expect("loaded").attached, [name("far")]);
        assert!(lets_in(&service, "listed") && !lets_in(&service, "far"));
        let reloaded = service.follow_settings().await.expect("loaded");
        assert_eq!(reloaded.detached, [name("far")]);
        service.stop(Closing::ToStore).await.expect("closed");
        serving.stop(Closing::ToStore).await.expect("closed");
    });
    place.node.shut_down();
    server.node.shut_down();
}
