//! What settings that are loaded anew bring to volumes that verbs attach and create.
#![allow(clippy::disallowed_methods, reason = "a test of a whole node, outside any test module")]

use std::io::{Read, Write};
use std::net::TcpStream;
use std::os::unix::net::UnixStream;

use weir_log::VolumeOptions;
use weir_log::catalog::VolumeName;
use weir_node::verbs::attach::AttachVolume;
use weir_node::verbs::create::CreateVolume;
use weir_node::verbs::detach::DetachVolume;
use weir_node::verbs::verb::Verb;
use weir_node::{
    Allowed, ApiPlace, Closing, Consent, DataDirectory, EndpointKind, Home, Inherited, NbdAddress,
    Node, NodeConfig, Reloaded, Service, ServiceOptions, Stages, VolumeSet, VolumeSpec,
};

const SIZE: u64 = 1 << 20;

fn name(text: &str) -> VolumeName {
    VolumeName::new(text).expect("valid")
}

/// A node with a directory of its own, whose clients come over TCP in the clear: those whom a list names are none of
/// them.
struct Place {
    _directory: tempfile::TempDir,
    node: Node,
    home: Home,
}

/// The settings of all volumes.
fn template(allowed: Allowed, read_only: bool) -> VolumeSpec {
    VolumeSpec {
        name: name("any"),
        size: None,
        size_must_match: false,
        read_only,
        consent: Consent::default(),
        options: VolumeOptions::default(),
        endpoint: EndpointKind::Log,
        stages: Stages::default(),
        replica: None,
        allowed,
    }
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

impl Place {
    fn new() -> Self {
        let directory = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).expect("a directory");
        let data = DataDirectory::at(&directory.path().join("data")).expect("a directory");
        let node = Node::start(NodeConfig { shards: Some(1), ..NodeConfig::default() });
        let home = Home::embedded(data);
        Self { _directory: directory, node: node.expect("threads start"), home }
    }

    async fn serve(&self, volumes: VolumeSet, template: VolumeSpec) -> Service {
        let tcp = NbdAddress::Tcp { address: "127.0.0.1:0".to_owned(), insecure: false };
        let options = ServiceOptions {
            home: self.home.clone(),
            template: Box::new(template),
            volumes,
            nbd: vec![tcp, NbdAddress::Unix(self.home.data.node_nbd_socket())],
            nbd_access: Default::default(),
            api: ApiPlace::Node,
            api_tcp: None,
            tls: None,
            limits: Default::default(),
            cache: Default::default(),
            cache_wear: None,
            inherited: Inherited::default(),
            left: Vec::new(),
        };
        self.node.serve(options).await.expect("it serves")
    }

    async fn call<V: Verb>(&self, volume: &str, verb: V) {
        let done = self.node.call(self.home.clone(), Some(name(volume)), verb, |_, _| {}).await;
        done.expect("it is done");
    }

    /// Creates a volume and serves it.
    async fn create(&self, volume: &str) {
        let takeover = Default::default();
        let create =
            CreateVolume { name: volume.to_owned(), size_bytes: SIZE, takeover, attach: true };
        let created = self.node.call(self.home.clone(), None, create, |_, _| {}).await;
        created.expect("created");
    }

    async fn attach_again(&self, volume: &str) {
        self.call(volume, DetachVolume::default()).await;
        self.call(volume, AttachVolume::default()).await;
    }
}

/// The flags of an export as a client finds them in its handshake; nothing if it does not get the export.
fn flags_of(mut stream: impl Read + Write, export: &str) -> Option<u16> {
    stream.read_exact(&mut [0; 18]).expect("greeted");
    let mut ask = 3_u32.to_be_bytes().to_vec();
    ask.extend(b"IHAVEOPT");
    ask.extend(1_u32.to_be_bytes());
    ask.extend(u32::try_from(export.len()).expect("short").to_be_bytes());
    ask.extend(export.as_bytes());
    stream.write_all(&ask).expect("sent");
    let mut answer = [0; 10];
    stream.read_exact(&mut answer).ok()?;
    Some(u16::from_be_bytes([answer[8], answer[9]]))
}

/// Whether a client without a certificate gets an export over TCP.
fn lets_in(service: &Service, export: &str) -> bool {
    let uris = service.nbd_uris();
    let address = uris.iter().find_map(|uri| uri.strip_prefix("nbd://")).expect("over TCP");
    let stream = TcpStream::connect(address.trim_end_matches('/')).expect("it listens");
    flags_of(stream, export).is_some()
}

/// Whether a client of this host may write.
fn takes_writes(place: &Place, export: &str) -> bool {
    const READ_ONLY: u16 = 1 << 1;
    let stream = UnixStream::connect(place.home.data.node_nbd_socket()).expect("it listens");
    flags_of(stream, export).expect("users of this host get it") & READ_ONLY == 0
}

/// Volumes that a verb attached before and after a reload, of either kind of set, are served as the reloaded settings
/// say: at once to whom they say, and once they are attached anew also in every other way.
fn a_reload_counts_for_what_verbs_attach(set: fn(&VolumeSpec) -> VolumeSet) {
    let place = Place::new();
    run(async {
        let (everybody, nobody) = (Allowed::All, Allowed::Named([].into()));
        let before = template(everybody.clone(), false);
        let service = place.serve(set(&before), before.clone()).await;
        place.create("early").await;
        assert!(lets_in(&service, "early") && takes_writes(&place, "early"));

        let after = template(nobody, true);
        let reloaded = service.reload(set(&after), Box::new(after)).await.expect("loaded");
        let Reloaded { kept_as_they_are, .. } = reloaded;
        assert!(kept_as_they_are.contains(&name("early")), "{kept_as_they_are:?}");
        assert!(!lets_in(&service, "early"), "who may use it counts at once");
        assert!(takes_writes(&place, "early"), "it is kept as it is");
        place.create("late").await;
        place.attach_again("early").await;
        for volume in ["early", "late"] {
            assert!(!lets_in(&service, volume), "{volume} is for those whom the new list names");
            assert!(!takes_writes(&place, volume), "{volume} is read-only by now");
        }

        let reloaded = service.reload(set(&before), Box::new(before)).await.expect("loaded");
        assert!(reloaded.kept_as_they_are.contains(&name("late")), "{reloaded:?}");
        assert!(lets_in(&service, "early") && lets_in(&service, "late"), "the other way round");
        place.attach_again("late").await;
        assert!(takes_writes(&place, "late"));
        service.stop(Closing::ToStore).await.expect("closed");
    });
    place.node.shut_down();
}

/// Runs a test in real time.
fn run(test: impl Future<Output = ()>) {
    tokio::runtime::Runtime::new().expect("a runtime").block_on(test);
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
fn a_reload_keeps_what_a_verb_asked_for() {
    let place = Place::new();
    run(async {
        let same = template(Allowed::All, false);
        let service = place.serve(listed(&same), same.clone()).await;
        place.create("early").await;
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
