//! Clients under TLS, from the handshake to the thread that serves them.

mod support;

use std::cell::RefCell;
use std::path::{Path, PathBuf};
use std::rc::Rc;
use std::time::Duration;

use rustls_pki_types::pem::PemObject;
use rustls_pki_types::{CertificateDer, ServerName};
use support::{Client, SIZE, Shelf, TestDevice, options, pattern, run_on_sockets as run, wish};
use tempfile::TempDir;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use weir_device::{Address, ByteStream, Network, Peer, SourceId};
use weir_frontend::nbd::{
    ConnectionOptions, ExportDirectory, ExportInfo, HandOff, Identity, Kept, KeptState,
    ListenerOptions, NotOffered, Places, Security, Server, Sources, go_on, hand_off_clients,
    serve_handed_off,
};
use weir_nbd::{
    ClientWish, CommandFlags, OptionRequest, ReplyStyle, Session, TransmissionFlags, encode_option,
};
use weir_net::pki::{AUTHORITY_DAYS, Authority, CERTIFICATE_DAYS, Request, Usage};
use weir_net::tls::{MinVersion, PeerCertificate, Tls};
use weir_net::{HostNetwork, connected};

const NONE: CommandFlags = CommandFlags(0);
const SOON: Duration = Duration::from_secs(10);

/// One export for everybody but mallory, who is told so; what it was asked for, and by whom.
struct OneExport {
    channel: HandOff,
    asked: RefCell<Vec<Identity>>,
}

impl ExportDirectory for OneExport {
    async fn find(&self, _: &str, client: &Identity) -> Result<(ExportInfo, HandOff), NotOffered> {
        self.asked.borrow_mut().push(client.clone());
        if *client == Identity::Certificate("mallory".to_owned()) {
            return Err(NotOffered::Refused("not for mallory"));
        }
        let info = ExportInfo {
            name: "disk".to_owned(),
            description: String::new(),
            size: SIZE,
            read_only: false,
            instance: None,
            volume: None,
            earlier: [].into(),
        };
        Ok((info, self.channel.clone()))
    }

    async fn list(&self, _: &Identity) -> Vec<String> {
        vec!["disk".to_owned()]
    }
}

/// A server with TLS on a unix socket, certificates of three clients, and the device behind it.
struct Host {
    directory: TempDir,
    tls: Tls,
    device: Rc<TestDevice>,
    exports: Rc<OneExport>,
    sources: Sources,
    /// Until they are dropped.
    _servers: (Server, Server),
}

impl Host {
    async fn new(security: impl FnOnce(Tls) -> Security) -> Self {
        let directory = TempDir::new().expect("a directory");
        let pki = directory.path().join("pki");
        let mut authority = Authority::create(&pki, "test", AUTHORITY_DAYS).expect("an authority");
        for name in ["server", "alice", "mallory"] {
            let (hosts, usage, days) = (&[][..], Usage::Both, CERTIFICATE_DAYS);
            authority.issue(&Request { name, hosts, usage, days }).expect("issued");
        }
        let tls = Tls::load(&authority.directory_of("server")).expect("loads");
        let device = TestDevice::new(SIZE);
        let sources = Sources::default();
        let connection = ConnectionOptions {
            security: security(tls.clone()),
            sources: sources.clone(),
            ..options()
        };
        let listener = ListenerOptions::new(connection);
        let (channel, serving) =
            serve_handed_off(Rc::new(Shelf(Rc::clone(&device))), ListenerOptions::new(options()));
        let at = Address::Unix(directory.path().join("nbd"));
        let socket = HostNetwork.listen(&at).await.expect("listens");
        let exports = Rc::new(OneExport { channel, asked: RefCell::default() });
        let listening = hand_off_clients(socket, Rc::clone(&exports), listener);
        let _servers = (listening, serving);
        Self { directory, tls, device, exports, sources, _servers }
    }

    fn path(&self) -> PathBuf {
        self.directory.path().join("nbd")
    }

    fn authority(&self) -> Authority {
        Authority::open(&self.directory.path().join("pki")).expect("the authority")
    }

    fn of(&self, name: &str) -> Tls {
        Tls::load(&self.authority().directory_of(name)).expect("loads")
    }

    async fn connect(&self, tls: &Tls) -> Client<Box<dyn ByteStream>> {
        let wish = ClientWish { tls: true, ..wish("disk", ReplyStyle::Extended) };
        let name = ServerName::try_from("server").expect("a name");
        Client::connect_under(stream(&self.path()).await, wish, async |clear| {
            tls.connect(clear, name.clone()).await.expect("secured").stream
        })
        .await
    }
}

async fn stream(path: &Path) -> Box<dyn ByteStream> {
    HostNetwork.connect(&Address::Unix(path.to_owned())).await.expect("connected")
}

/// The bytes of options, one behind the other.
fn asked(options: &[OptionRequest<'_>]) -> Vec<u8> {
    let mut bytes = Vec::new();
    for option in options {
        encode_option(option, &mut bytes).expect("short");
    }
    bytes
}

/// The flags of a client, which it sends before its first option.
const FLAGS: [u8; 4] = [0, 0, 0, 3];

/// What the server says until it hangs up.
async fn said(stream: &mut Box<dyn ByteStream>) -> Vec<u8> {
    let mut bytes = Vec::new();
    let _ = tokio::time::timeout(SOON, stream.read_to_end(&mut bytes)).await.expect("it hangs up");
    bytes
}

#[test]
fn a_client_is_known_by_its_certificate_to_the_directory_and_to_the_device() {
    run(async {
        let host = Host::new(Security::Required).await;
        let mut client = host.connect(&host.of("alice")).await;
        let data = pattern(3, 300_000);
        client.write(NONE, 1, &data).await.ok();
        assert_eq!(client.read(1, 300_000).await.ok().data, data);
        let alice = Identity::Certificate("alice".to_owned());
        assert!(host.exports.asked.borrow().iter().all(|asked| *asked == alice));
        let calls = host.device.calls.borrow();
        let of_alice = host.sources.of(&alice);
        assert!(!calls.is_empty() && of_alice != SourceId(0));
        assert!(calls.iter().all(|call| call.io.source == of_alice), "{calls:?}");
    });
}

#[test]
fn two_clients_have_numbers_of_their_own() {
    run(async {
        let host = Host::new(Security::Optional).await;
        let mut alice = host.connect(&host.of("alice")).await;
        let clear = stream(&host.path()).await;
        let mut local = Client::connect(clear, wish("disk", ReplyStyle::Simple)).await;
        alice.write(NONE, 0, &[1; 512]).await.ok();
        let first = host.device.last_call().io.source;
        local.write(NONE, 0, &[2; 512]).await.ok();
        let second = host.device.last_call().io.source;
        assert_ne!(first, second);
        assert!(matches!(host.sources.identity(second), Some(Identity::User(_))));
    });
}

#[test]
fn in_the_clear_nothing_is_looked_up_where_tls_is_required() {
    run(async {
        let host = Host::new(Security::Required).await;
        let mut client = stream(&host.path()).await;
        let go = OptionRequest::Go { name: "disk", facts: Vec::new() };
        let options = asked(&[OptionRequest::List, go, OptionRequest::ExportName("disk")]);
        client.write_all(&[&FLAGS, &options[..]].concat()).await.expect("sent");
        let answers = said(&mut client).await;
        assert!(!answers.windows(4).any(|window| window == b"disk"), "{answers:?}");
        assert!(host.exports.asked.borrow().is_empty());
        assert!(host.device.calls.borrow().is_empty());
    });
}

#[test]
fn what_is_sent_in_the_clear_behind_a_request_for_tls_ends_the_connection() {
    run(async {
        let host = Host::new(Security::Required).await;
        let mut client = stream(&host.path()).await;
        let options = asked(&[OptionRequest::StartTls, OptionRequest::List]);
        client.write_all(&[&FLAGS, &options[..]].concat()).await.expect("sent");
        // The greeting, and the answer to the first option.
        assert_eq!(said(&mut client).await.len(), 18 + 20);
        assert!(host.exports.asked.borrow().is_empty());
    });
}

#[test]
fn a_client_that_is_revoked_is_disconnected_and_others_are_not() {
    run(async {
        let host = Host::new(Security::Required).await;
        let mut alice = host.connect(&host.of("alice")).await;
        let mut other = host.connect(&host.of("server")).await;
        alice.write(NONE, 0, &[1; 512]).await.ok();
        host.authority().revoke("alice").expect("revoked");
        host.tls.reload().expect("reloaded");
        let ended = tokio::time::timeout(SOON, alice.try_receive()).await;
        assert_eq!(ended, Ok(None), "it is disconnected");
        other.write(NONE, 0, &[2; 512]).await.ok();
    });
}

#[test]
fn a_client_that_an_export_is_not_for_is_told_so() {
    run(async {
        let host = Host::new(Security::Required).await;
        let mallory = host.of("mallory");
        let mut clear = stream(&host.path()).await;
        clear.read_exact(&mut [0; 18]).await.expect("greeted");
        let options = asked(&[OptionRequest::StartTls]);
        clear.write_all(&[&FLAGS, &options[..]].concat()).await.expect("sent");
        clear.read_exact(&mut [0; 20]).await.expect("agreed");
        let name = ServerName::try_from("server").expect("a name");
        let mut secured = mallory.connect(clear, name).await.expect("secured").stream;
        let go = OptionRequest::Go { name: "disk", facts: Vec::new() };
        secured.write_all(&asked(&[go, OptionRequest::Abort])).await.expect("sent");
        secured.flush().await.expect("sent");
        let answers = said(&mut secured).await;
        let told = String::from_utf8_lossy(&answers).into_owned();
        assert!(told.contains("not for mallory"), "{told}");
    });
}

#[test]
fn a_session_under_an_older_version_goes_on_only_where_that_is_still_allowed() {
    use MinVersion::{Tls12, Tls13};
    run(async {
        let host = Host::new(Security::Required).await;
        let file = host.authority().directory_of("alice").join("client-cert.pem");
        let certificate = CertificateDer::from_pem_file(file).expect("read");
        for (spoken, min_version, is_well) in [
            (Tls12, Tls12, true),
            (Tls12, Tls13, false),
            (Tls13, Tls12, true),
            (Tls13, Tls13, true),
        ] {
            let tls = Tls::load_with(host.tls.directory(), min_version).expect("loads");
            let (near, _far) = std::os::unix::net::UnixStream::pair().expect("a pair");
            let flags = TransmissionFlags(1);
            let state = KeptState {
                export: "disk".to_owned(),
                session: Session { style: ReplyStyle::Simple, flags, contexts: Vec::new() },
                size: SIZE,
                client: "alice".to_owned(),
                peer: Peer::Unknown,
                certificate: Some(PeerCertificate::of_der(&[&certificate], spoken).expect("hers")),
                unread: Vec::new(),
            };
            let kept = Kept { stream: connected(near.into()), state };
            let found = host.exports.find("disk", &kept.state.identity()).await;
            let found = found.unwrap_or_else(|_| panic!("it is for alice"));
            let gone_on = go_on(kept, found, (&Places::new(10), &Sources::default()), Some(&tls));
            assert_eq!(gone_on.is_ok(), is_well, "{spoken} where {min_version} is the oldest");
        }
    });
}
