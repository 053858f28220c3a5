//! TLS between two ends of a socket: who gets through, what arrives, and what a reload changes.
#![allow(
    clippy::disallowed_methods,
    reason = "a test spoils files of certificates and starts threads"
)]

use std::io;
use std::path::{Path, PathBuf};
use std::time::Duration;

use rcgen::{
    BasicConstraints, CertificateParams, CertificateRevocationListParams, DistinguishedName,
    DnType, ExtendedKeyUsagePurpose, IsCa, Issuer, KeyIdMethod, KeyPair, RevokedCertParams,
    SerialNumber,
};
use rustls::pki_types::ServerName;
use tempfile::TempDir;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::task::LocalSet;
use weir_device::{Address, ByteStream, Network};
use weir_net::HostNetwork;
use weir_net::pki::{
    AUTHORITY_DAYS, Authority, CERTIFICATE_DAYS, PkiError, Request, Revoked, Usage,
};
use weir_net::tls::{MinVersion, Secured, Tls, TlsError};

const SOON: Duration = Duration::from_secs(5);

fn run<F: Future<Output = ()>>(test: F) {
    let mut builder = tokio::runtime::Builder::new_current_thread();
    let runtime = builder.enable_all().build().expect("a runtime");
    LocalSet::new().block_on(&runtime, test);
}

/// An authority, and certificates of a server and of two clients.
struct Certificates {
    directory: TempDir,
}

impl Certificates {
    fn new() -> Self {
        let directory = TempDir::new().expect("a directory");
        let certificates = Self { directory };
        let path = certificates.path();
        drop(Authority::create(&path, "test", AUTHORITY_DAYS).expect("an authority"));
        for name in ["server", "alice", "bob"] {
            certificates.issue(name, Usage::Both);
        }
        certificates
    }

    fn path(&self) -> PathBuf {
        self.directory.path().join("pki")
    }

    fn authority(&self) -> Authority {
        Authority::open(&self.path()).expect("the authority")
    }

    fn issue(&self, name: &str, usage: Usage) -> PathBuf {
        let hosts = ["127.0.0.1".to_owned()];
        let request = Request { name, hosts: &hosts, usage, days: CERTIFICATE_DAYS };
        self.authority().issue(&request).expect("issued")
    }

    /// The authority as somebody has it who has its key.
    fn issuer(&self) -> Issuer<'static, KeyPair> {
        let read = |file| std::fs::read_to_string(self.path().join(file)).expect("read");
        let key = KeyPair::from_pem(&read("ca-key.pem")).expect("a key");
        Issuer::from_ca_cert_pem(&read("ca-cert.pem"), key).expect("an authority")
    }

    /// The serial number of the newest certificate of a name.
    fn serial(&self, name: &str) -> SerialNumber {
        let authority = self.authority();
        let newest = authority.entries().iter().rev().find(|entry| entry.name == name);
        let digits = &newest.expect("issued").serial;
        let pairs = (0..digits.len()).step_by(2).map(|at| &digits[at..at + 2]);
        let bytes = pairs.map(|pair| u8::from_str_radix(pair, 16).expect("digits"));
        SerialNumber::from_slice(&bytes.collect::<Vec<_>>())
    }

    /// What the authority knows of a name is that its certificates expired long ago.
    fn note_expired(&self, name: &str) {
        let path = self.path().join("index.json");
        let text = std::fs::read_to_string(&path).expect("read");
        let mut index: serde_json::Value = serde_json::from_str(&text).expect("an index");
        for entry in index["entries"].as_array_mut().expect("a list") {
            if entry["name"] == name {
                entry["expires"] = 1_000_000.into();
            }
        }
        std::fs::write(path, index.to_string()).expect("written");
    }

    /// Gives a holder another certificate for clients, which expires then.
    fn expire(&self, name: &str, at: time::OffsetDateTime) -> Tls {
        let read = |path: PathBuf| std::fs::read_to_string(path).expect("read");
        let issuer = self.issuer();
        let directory = self.authority().directory_of(name);
        let own = KeyPair::from_pem(&read(directory.join("client-key.pem"))).expect("a key");
        let mut params = CertificateParams::default();
        params.distinguished_name.push(DnType::CommonName, name);
        params.extended_key_usages = vec![ExtendedKeyUsagePurpose::ClientAuth];
        (params.not_before, params.not_after) = (at - time::Duration::days(30), at);
        // It takes the place of the one that the authority knows.
        params.serial_number = Some(self.serial(name));
        let signed = params.signed_by(&own, &issuer).expect("signed");
        std::fs::write(directory.join("client-cert.pem"), signed.pem()).expect("written");
        Tls::load(&directory).expect("loads")
    }

    fn of(&self, name: &str) -> Tls {
        Tls::load(&self.authority().directory_of(name)).expect("loads")
    }
}

/// Two ends of a unix socket.
async fn pair() -> (Box<dyn ByteStream>, Box<dyn ByteStream>) {
    let directory = TempDir::new().expect("a directory");
    let at = Address::Unix(directory.path().join("socket"));
    let mut listener = HostNetwork.listen(&at).await.expect("listens");
    let client = HostNetwork.connect(&at).await.expect("connected");
    let accepted = std::future::poll_fn(|cx| listener.poll_accept(cx)).await.expect("accepted");
    (accepted.stream, client)
}

fn name(text: &str) -> ServerName<'static> {
    ServerName::try_from(text.to_owned()).expect("a name")
}

type Ends = (Result<Secured, TlsError>, Result<Secured, TlsError>);

/// Both ends shake hands.
async fn shake_hands(server: &Tls, client: &Tls, of: &str) -> Ends {
    let (theirs, ours) = pair().await;
    let both = async { futures_util::join!(server.accept(theirs), client.connect(ours, name(of))) };
    tokio::time::timeout(SOON, both).await.expect("both come to an end")
}

async fn secured(server: &Tls, client: &Tls) -> (Secured, Secured) {
    let (server, client) = shake_hands(server, client, "server").await;
    (server.expect("the client is accepted"), client.expect("the server is accepted"))
}

fn bytes(count: usize) -> Vec<u8> {
    (0..=250).cycle().take(count).collect()
}

#[test]
fn each_end_knows_the_other_by_name_and_bytes_go_both_ways() {
    run(async {
        let certificates = Certificates::new();
        let (mut server, mut client) =
            secured(&certificates.of("server"), &certificates.of("alice")).await;
        assert_eq!(server.peer.holder.name, "alice");
        assert_eq!(client.peer.holder.name, "server");
        let sent = bytes(3 << 20);
        let expected = sent.clone();
        let sending = tokio::task::spawn_local(async move {
            client.stream.write_all(&sent).await.expect("sent");
            client.stream.flush().await.expect("sent");
            let mut answer = [0; 6];
            client.stream.read_exact(&mut answer).await.expect("received");
            assert_eq!(&answer, b"thanks");
            client.stream.shutdown().await.expect("said goodbye");
            client
        });
        let mut received = vec![0; expected.len()];
        server.stream.read_exact(&mut received).await.expect("received");
        assert!(received == expected);
        let gathered = [io::IoSlice::new(b"tha"), io::IoSlice::new(b"nks")];
        assert!(server.stream.is_write_vectored());
        let wrote = server.stream.write_vectored(&gathered).await.expect("sent");
        assert_eq!(wrote, 6);
        server.stream.flush().await.expect("sent");
        let client = sending.await.expect("the client ends");
        assert_eq!(server.stream.read(&mut received).await.expect("a goodbye"), 0);
        drop(client);
    });
}

#[test]
fn a_session_goes_on_on_another_thread_with_what_was_received() {
    run(async {
        let certificates = Certificates::new();
        let (mut server, mut client) =
            secured(&certificates.of("server"), &certificates.of("alice")).await;
        client.stream.write_all(b"firstsecond").await.expect("sent");
        client.stream.flush().await.expect("sent");
        let mut first = [0; 5];
        server.stream.read_exact(&mut first).await.expect("received");
        let detached = server.stream.detach().expect("detached");
        let other = std::thread::spawn(move || {
            run(async move {
                let mut stream = detached.attach().expect("attached");
                let mut second = [0; 6];
                stream.read_exact(&mut second).await.expect("received");
                assert_eq!(&second, b"second");
                stream.write_all(b"done").await.expect("sent");
                stream.flush().await.expect("sent");
                let mut end = [0; 1];
                assert_eq!(stream.read(&mut end).await.expect("a goodbye"), 0);
            });
        });
        let mut answer = [0; 4];
        client.stream.read_exact(&mut answer).await.expect("received");
        client.stream.shutdown().await.expect("said goodbye");
        other.join().expect("the thread ends");
    });
}

#[test]
fn a_connection_that_is_cut_is_no_goodbye() {
    run(async {
        let certificates = Certificates::new();
        let (mut server, client) =
            secured(&certificates.of("server"), &certificates.of("alice")).await;
        drop(client);
        let error = server.stream.read(&mut [0; 1]).await.expect_err("cut");
        assert_eq!(error.kind(), io::ErrorKind::UnexpectedEof);
    });
}

#[test]
fn who_has_no_certificate_of_the_authority_gets_nothing() {
    run(async {
        let (ours, theirs) = (Certificates::new(), Certificates::new());
        let server = ours.of("server");
        let (refused, _) = shake_hands(&server, &theirs.of("alice"), "server").await;
        refused.expect_err("another authority");
        // The client refuses as well: one that trusts the server, and shows a certificate of another authority.
        let stranger = theirs.authority().directory_of("alice");
        std::fs::copy(ours.path().join("ca-cert.pem"), stranger.join("ca-cert.pem"))
            .expect("copied");
        std::fs::copy(ours.path().join("ca-crl.pem"), stranger.join("ca-crl.pem")).expect("copied");
        let client = Tls::load(&stranger).expect("loads");
        assert!(client.status().server_is_of_others, "which can be said of what is there");
        assert!(!server.status().server_is_of_others);
        let (refused, _) = shake_hands(&server, &client, "server").await;
        let error = refused.expect_err("another authority");
        assert!(error.to_string().contains("invalid peer certificate"), "{error}");
        let (_, refused) = shake_hands(&ours.of("bob"), &ours.of("alice"), "server").await;
        let error = refused.expect_err("bob is not the server");
        assert!(error.to_string().contains("not valid for name"), "{error}");
        // An address counts as a name of the server.
        let (_, accepted) = shake_hands(&server, &ours.of("alice"), "127.0.0.1").await;
        accepted.expect("one of its hosts");
    });
}

#[test]
fn a_certificate_of_a_server_alone_opens_no_connection() {
    run(async {
        let certificates = Certificates::new();
        let only_server = certificates.issue("only-server", Usage::Server);
        for file in ["cert", "key"] {
            let [from, to] =
                ["server", "client"].map(|role| only_server.join(format!("{role}-{file}.pem")));
            std::fs::copy(from, to).expect("copied");
        }
        let client = Tls::load(&only_server).expect("loads");
        let (refused, _) = shake_hands(&certificates.of("server"), &client, "server").await;
        refused.expect_err("not for clients");
    });
}

#[test]
fn who_speaks_in_the_clear_is_refused() {
    run(async {
        let certificates = Certificates::new();
        let (theirs, mut ours) = pair().await;
        ours.write_all(b"NBDMAGIC, or anything else that is long enough").await.expect("sent");
        let server = certificates.of("server");
        let refused = tokio::time::timeout(SOON, server.accept(theirs)).await.expect("at once");
        assert!(matches!(refused, Err(TlsError::Handshake { .. })));
        let (theirs, ours) = pair().await;
        drop(ours);
        let refused = tokio::time::timeout(SOON, server.accept(theirs)).await.expect("at once");
        refused.map(drop).expect_err("gone");
    });
}

#[test]
fn authorities_need_no_common_name() {
    run(async {
        let directory = TempDir::new().expect("a directory");
        let generate = || KeyPair::generate().expect("a key");
        let unnamed = |unit: &str| {
            let mut params = CertificateParams::default();
            params.distinguished_name = DistinguishedName::new();
            params.distinguished_name.push(DnType::OrganizationName, unit);
            params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
            params
        };
        let (root, between) = (unnamed("Example"), unnamed("Example, disks"));
        let root_key = generate();
        let root_certificate = root.self_signed(&root_key).expect("signed");
        let root = Issuer::new(root, root_key);
        let between_key = generate();
        let between_certificate = between.signed_by(&between_key, &root).expect("signed");
        let between = Issuer::new(between, between_key);
        let own = generate();
        let mut params = CertificateParams::new(vec!["server".to_owned()]).expect("a name");
        params.distinguished_name.push(DnType::CommonName, "carol");
        params.extended_key_usages =
            vec![ExtendedKeyUsagePurpose::ClientAuth, ExtendedKeyUsagePurpose::ServerAuth];
        let signed = params.signed_by(&own, &between).expect("signed");
        let chain = signed.pem() + &between_certificate.pem();
        let files = [
            ("ca-cert.pem", root_certificate.pem()),
            ("server-cert.pem", chain.clone()),
            ("server-key.pem", own.serialize_pem()),
            ("client-cert.pem", chain),
            ("client-key.pem", own.serialize_pem()),
        ];
        for (name, text) in files {
            std::fs::write(directory.path().join(name), text).expect("written");
        }
        let tls = Tls::load(directory.path()).expect("loads");
        assert_eq!(tls.status().authority.name, "O=Example");
        assert!(!tls.status().server_is_of_others, "one in between has signed it");
        let (server, client) = secured(&tls, &tls).await;
        assert_eq!([server.peer.holder.name, client.peer.holder.name], ["carol", "carol"]);
    });
}

#[test]
fn a_revoked_certificate_opens_nothing_and_ends_what_is_open() {
    run(async {
        let certificates = Certificates::new();
        let server = certificates.of("server");
        let (alice, bob) = (certificates.of("alice"), certificates.of("bob"));
        let (of_alice, _alice) = secured(&server, &alice).await;
        let (of_bob, _bob) = secured(&server, &bob).await;
        assert_eq!(certificates.authority().revoke("alice").expect("revoked").count, 1);
        let until = |secured: &Secured| {
            let (server, peer) = (server.clone(), secured.peer.clone());
            async move {
                tokio::time::timeout(Duration::from_millis(50), server.until_refused(&peer)).await
            }
        };
        until(&of_alice).await.expect_err("the list was not read yet");
        let told = tokio::task::spawn_local({
            let (server, peer) = (server.clone(), of_alice.peer.clone());
            async move { server.until_refused(&peer).await }
        });
        tokio::task::yield_now().await;
        server.reload().expect("reloaded");
        tokio::time::timeout(SOON, told).await.expect("told").expect("told");
        until(&of_bob).await.expect_err("bob is not revoked");
        let (refused, _) = shake_hands(&server, &alice, "server").await;
        let error = refused.expect_err("revoked");
        assert!(error.to_string().contains("Revoked"), "{error}");
        // A new certificate under the same name is another one.
        certificates.issue("alice", Usage::Client);
        secured(&server, &certificates.of("alice")).await;
        until(&of_alice).await.expect("the old one stays revoked");
    });
}

#[test]
fn a_client_goes_to_no_server_whose_certificate_is_revoked() {
    run(async {
        let certificates = Certificates::new();
        let (server, alice) = (certificates.of("server"), certificates.of("alice"));
        secured(&server, &alice).await;
        assert_eq!(certificates.authority().revoke("server").expect("revoked").count, 1);
        alice.reload().expect("reloaded");
        let (_, refused) = shake_hands(&server, &alice, "server").await;
        let error = refused.expect_err("revoked");
        assert!(error.to_string().contains("Revoked"), "{error}");
    });
}

#[test]
fn tls_1_2_is_spoken_only_where_it_is_allowed_and_from_a_reload_on() {
    run(async {
        let certificates = Certificates::new();
        let server = certificates.of("server");
        let at = certificates.authority().directory_of("alice");
        // What a client offers that speaks 1.2 alone.
        let old = old_client(&at);
        let (theirs, ours) = pair().await;
        let (refused, _) = futures_util::join!(server.accept(theirs), connect_old(&old, ours));
        let error = refused.expect_err("1.3 alone").to_string();
        assert!(error.contains("Tls12NotOfferedOrEnabled"), "{error}");
        server.reload_with(MinVersion::Tls12).expect("reloaded");
        assert_eq!(server.status().min_version, MinVersion::Tls12);
        server.reload().expect("a reload of the certificates alone leaves it");
        let (theirs, ours) = pair().await;
        let (accepted, suite) = futures_util::join!(server.accept(theirs), connect_old(&old, ours));
        let mut accepted = accepted.expect("1.2 is allowed");
        assert_eq!(accepted.peer.holder.name, "alice");
        assert_eq!(accepted.peer.version(), MinVersion::Tls12);
        let (suite, mut client) = suite.expect("accepted");
        // One whose keys last as long as the connection, though the client prefers another.
        assert_eq!(suite, "TLS_ECDHE_ECDSA_WITH_CHACHA20_POLY1305_SHA256");
        accepted.stream.write_all(b"hello").await.expect("sent");
        accepted.stream.flush().await.expect("sent");
        let mut hello = [0; 5];
        client.read_exact(&mut hello).await.expect("received");
        assert_eq!(&hello, b"hello");
        // Both speak 1.3, so that it is what they agree on; a client that allows 1.2 goes to a server that has 1.3
        // alone.
        let new = Tls::load_with(&at, MinVersion::Tls12).expect("loads");
        let (of_new, _new) = secured(&server, &new).await;
        assert_eq!(of_new.peer.version(), MinVersion::Tls13);
        server.reload_with(MinVersion::Tls13).expect("reloaded");
        assert!(server.speaks_with(&of_new.peer) && !server.speaks_with(&accepted.peer));
        secured(&server, &new).await;
        let (theirs, ours) = pair().await;
        let (refused, _) = futures_util::join!(server.accept(theirs), connect_old(&old, ours));
        refused.expect_err("1.3 alone again");
        // Who is connected stays.
        accepted.stream.write_all(b"hello").await.expect("sent");
        accepted.stream.flush().await.expect("sent");
        client.read_exact(&mut hello).await.expect("received");
    });
}

/// A client that speaks TLS 1.2 alone, with the certificate in this directory.
fn old_client(directory: &Path) -> std::sync::Arc<rustls::ClientConfig> {
    use rustls::pki_types::pem::PemObject;
    use rustls::pki_types::{CertificateDer, PrivateKeyDer};
    let certificate = |file| CertificateDer::from_pem_file(directory.join(file)).expect("read");
    let key = PrivateKeyDer::from_pem_file(directory.join("client-key.pem")).expect("read");
    let mut authorities = rustls::RootCertStore::empty();
    authorities.add(certificate("ca-cert.pem")).expect("an authority");
    let provider = std::sync::Arc::new(rustls::crypto::aws_lc_rs::default_provider());
    let config = rustls::ClientConfig::builder_with_provider(provider)
        .with_protocol_versions(&[&rustls::version::TLS12])
        .expect("1.2 is built in")
        .with_root_certificates(authorities)
        .with_client_auth_cert(vec![certificate("client-cert.pem")], key)
        .expect("a certificate");
    std::sync::Arc::new(config)
}

type OldStream = tokio_rustls::client::TlsStream<Box<dyn ByteStream>>;

/// Shakes hands; the cipher that was agreed on.
async fn connect_old(
    config: &std::sync::Arc<rustls::ClientConfig>,
    stream: Box<dyn ByteStream>,
) -> io::Result<(String, OldStream)> {
    let connector = tokio_rustls::TlsConnector::from(std::sync::Arc::clone(config));
    let stream = connector.connect(name("server"), stream).await?;
    let suite = stream.get_ref().1.negotiated_cipher_suite().expect("agreed");
    Ok((format!("{:?}", suite.suite()), stream))
}

#[test]
fn an_expired_certificate_opens_nothing_and_ends_nothing() {
    run(async {
        let certificates = Certificates::new();
        let server = certificates.of("server");
        let soon = time::OffsetDateTime::now_utc() + time::Duration::seconds(2);
        let alice = certificates.expire("alice", soon);
        let (of_alice, _alice) = secured(&server, &alice).await;
        tokio::time::sleep(Duration::from_secs(3)).await;
        let (refused, _) = shake_hands(&server, &alice, "server").await;
        let error = refused.expect_err("expired");
        assert!(error.to_string().contains("xpired"), "{error}");
        server.reload().expect("reloaded");
        assert!(server.accepts(&of_alice.peer), "who is connected stays");
        let before = time::OffsetDateTime::now_utc() - time::Duration::days(1);
        let (refused, _) =
            shake_hands(&server, &certificates.expire("bob", before), "server").await;
        refused.expect_err("expired yesterday");
    });
}

#[test]
fn a_connection_that_stands_on_an_expired_certificate_ends_when_that_is_revoked() {
    run(async {
        let certificates = Certificates::new();
        let server = certificates.of("server");
        let soon = time::OffsetDateTime::now_utc() + time::Duration::seconds(2);
        let (of_alice, _alice) = secured(&server, &certificates.expire("alice", soon)).await;
        let (of_bob, _bob) = secured(&server, &certificates.of("bob")).await;
        tokio::time::sleep(Duration::from_secs(3)).await;
        server.reload().expect("reloaded");
        assert!(server.accepts(&of_alice.peer), "that it expired ends nothing");
        certificates.note_expired("alice");
        let revoked = certificates.authority().revoke("alice").expect("revoked");
        assert_eq!(revoked, Revoked { count: 1, expired: 1 });
        // It is in later lists as well: this server reads only the second one.
        assert_eq!(certificates.authority().revoke("bob").expect("revoked").expired, 0);
        server.reload().expect("reloaded");
        for peer in [&of_alice.peer, &of_bob.peer] {
            let refused = server.until_refused(peer);
            tokio::time::timeout(SOON, refused).await.expect("it is disconnected");
        }
    });
}

/// A list of revocations with these serial numbers, which was to be renewed then.
fn list(
    certificates: &Certificates,
    serials: &[SerialNumber],
    until: time::OffsetDateTime,
) -> String {
    let revoked = |serial: &SerialNumber| RevokedCertParams {
        serial_number: serial.clone(),
        revocation_time: until - time::Duration::days(20),
        reason_code: None,
        invalidity_date: None,
    };
    let list = CertificateRevocationListParams {
        this_update: until - time::Duration::days(10),
        next_update: until,
        crl_number: SerialNumber::from(7_u64),
        issuing_distribution_point: None,
        revoked_certs: serials.iter().map(revoked).collect(),
        key_identifier_method: KeyIdMethod::Sha256,
    };
    list.signed_by(&certificates.issuer()).expect("signed").pem().expect("encoded")
}

#[test]
fn a_list_of_another_authority_is_refused_and_what_was_revoked_stays_so() {
    run(async {
        let certificates = Certificates::new();
        let server = certificates.of("server");
        let alice = certificates.of("alice");
        certificates.authority().revoke("alice").expect("revoked");
        server.reload().expect("reloaded");
        let path = server.directory().join("ca-crl.pem");
        let ours = std::fs::read_to_string(&path).expect("read");
        let still_revoked = async || {
            let (refused, _) = shake_hands(&server, &alice, "server").await;
            let error = refused.expect_err("revoked").to_string();
            assert!(error.contains("Revoked"), "{error}");
        };
        // One of the same name, and one of another.
        let directory = TempDir::new().expect("a directory");
        drop(Authority::create(directory.path(), "elsewhere", AUTHORITY_DAYS).expect("made"));
        let elsewhere = std::fs::read_to_string(directory.path().join("ca-crl.pem"));
        let elsewhere = elsewhere.expect("read");
        let same_name = list(&Certificates::new(), &[], time::OffsetDateTime::now_utc());
        let bad = [
            (&same_name, "is not signed by the authority of that name"),
            (&elsewhere, "it has no list of an authority in ca-cert.pem"),
            (&(ours.clone() + &same_name), "is not signed by the authority of that name"),
        ];
        for (text, says) in bad {
            std::fs::write(&path, text).expect("written");
            for error in [
                server.reload().expect_err("at a reload").to_string(),
                Tls::load(server.directory()).expect_err("at a start").to_string(),
            ] {
                assert!(error.contains("ca-crl.pem: ") && error.contains(says), "{error}");
            }
            still_revoked().await;
        }
        // One more may be that of an authority in between, which only peers show.
        std::fs::write(&path, elsewhere + &ours).expect("written");
        server.reload().expect("ours is there");
        still_revoked().await;
        // Nobody is let in again because the file was forgotten.
        std::fs::remove_file(&path).expect("removed");
        let error = server.reload().expect_err("it was there before").to_string();
        assert!(error.contains("ca-crl.pem is missing"), "{error}");
        still_revoked().await;
        Tls::load(server.directory()).expect("a start may go on without");
    });
}

/// Why a process neither reads what is there now nor is followed by one that does. A start may go on with it.
fn refusal(server: &Tls) -> String {
    let error = server.reload().expect_err("refused").to_string();
    let next = Tls::load(server.directory()).expect("a start may go on with it");
    assert_eq!(next.check_after(server).expect_err("refused").to_string(), error);
    error
}

#[test]
fn lists_that_would_let_the_revoked_in_again_are_refused() {
    run(async {
        let certificates = Certificates::new();
        let server = certificates.of("server");
        let (authorities, lists) =
            (server.directory().join("ca-cert.pem"), server.directory().join("ca-crl.pem"));
        let before = std::fs::read_to_string(&lists).expect("read");
        certificates.authority().revoke("alice").expect("revoked");
        server.reload().expect("reloaded");
        let newest = std::fs::read_to_string(&lists).expect("read");
        // One from before, copied back.
        std::fs::write(&lists, &before).expect("written");
        let error = refusal(&server);
        assert!(error.contains("is older than the one that is in use"), "{error}");
        std::fs::remove_file(&lists).expect("removed");
        let error = refusal(&server);
        assert!(error.contains("ca-crl.pem is missing"), "{error}");
        // A second authority, whose list is left out again.
        let directory = TempDir::new().expect("a directory");
        let text = |file: &str| std::fs::read_to_string(directory.path().join(file)).expect("read");
        drop(Authority::create(directory.path(), "elsewhere", AUTHORITY_DAYS).expect("made"));
        let ours = std::fs::read_to_string(&authorities).expect("read");
        std::fs::write(&authorities, ours.clone() + &text("ca-cert.pem")).expect("written");
        std::fs::write(&lists, newest.clone() + &text("ca-crl.pem")).expect("written");
        server.reload().expect("both");
        let others = server.status().other_authorities;
        assert_eq!(others.into_iter().map(|other| other.name).collect::<Vec<_>>(), ["elsewhere"]);
        assert!(!server.status().server_is_of_others);
        std::fs::write(&lists, &newest).expect("written");
        let error = refusal(&server);
        assert!(error.contains("no list of CN=elsewhere any more"), "{error}");
        // Without the authority its list is not needed.
        std::fs::write(&authorities, &ours).expect("written");
        let next = Tls::load(server.directory()).expect("loads");
        next.check_after(&server).expect("nobody of it is let in");
        server.reload().expect("nobody of it is let in");
        // Two of one name: the library would look for a certificate in the list of the other one.
        let twin = TempDir::new().expect("a directory");
        let name = server.status().authority.name;
        drop(Authority::create(twin.path(), &name, AUTHORITY_DAYS).expect("made"));
        let twin = std::fs::read_to_string(twin.path().join("ca-cert.pem")).expect("read");
        std::fs::write(&authorities, ours + &twin).expect("written");
        let error = server.reload().expect_err("two of one name").to_string();
        assert!(error.contains("two authorities in ca-cert.pem have the name"), "{error}");
    });
}

#[test]
fn a_list_that_was_to_be_renewed_counts_on_and_says_so() {
    run(async {
        let certificates = Certificates::new();
        let server = certificates.of("server");
        let (alice, bob) = (certificates.of("alice"), certificates.of("bob"));
        let renewal = server.status().revocations.expect("a list").renewal.expect("a date");
        assert_eq!(renewal, server.status().authority.expires, "that of weir pki");
        let yesterday = time::OffsetDateTime::now_utc() - time::Duration::days(1);
        let text = list(&certificates, &[certificates.serial("alice")], yesterday);
        std::fs::write(server.directory().join("ca-crl.pem"), text).expect("written");
        server.reload().expect("a service does not end because a list is late");
        let renewal = server.status().revocations.expect("a list").renewal.expect("a date");
        assert_eq!(i64::try_from(renewal.as_secs()).expect("soon"), yesterday.unix_timestamp());
        let (refused, _) = shake_hands(&server, &alice, "server").await;
        refused.expect_err("revoked in a list that is late");
        secured(&server, &bob).await;
    });
}

#[test]
fn a_reload_that_fails_changes_nothing() {
    run(async {
        let certificates = Certificates::new();
        let server = certificates.of("server");
        let (of_alice, _alice) = secured(&server, &certificates.of("alice")).await;
        let directory = server.directory().to_owned();
        let spoil = |file: &str, text: &[u8]| {
            let path = directory.join(file);
            let before = std::fs::read(&path).expect("read");
            std::fs::write(&path, text).expect("written");
            (path, before)
        };
        let bad = [
            ("server-cert.pem", &b"not a certificate"[..], "it holds no certificate in PEM form"),
            ("server-key.pem", b"", "server-key.pem: it holds no private key"),
            ("server-key.pem", b"-----BEGIN PRIVATE KEY-----\nAAAA\n", "its private key is cut off"),
            (
                "server-key.pem",
                b"-----BEGIN ENCRYPTED PRIVATE KEY-----\nAAAA\n-----END ENCRYPTED PRIVATE KEY-----\n",
                "is encrypted with a password",
            ),
            (
                "server-key.pem",
                b"-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n",
                "it holds no private key: it begins with \"-----BEGIN CERTIFICATE",
            ),
            (
                "ca-cert.pem",
                b"-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n",
                "ca-cert.pem",
            ),
            ("ca-crl.pem", b"-----BEGIN X509 CRL-----\nAAAA\n-----END X509 CRL-----\n", "ca-"),
        ];
        for (file, text, says) in bad {
            let (path, before) = spoil(file, text);
            let error = server.reload().expect_err(file).to_string();
            assert!(error.contains(says), "{file}: {error}");
            std::fs::write(path, before).expect("written");
        }
        // The key of somebody else.
        let other =
            std::fs::read(certificates.authority().directory_of("bob").join("client-key.pem"));
        let (path, before) = spoil("server-key.pem", &other.expect("read"));
        let error = server.reload().expect_err("not that of the certificate").to_string();
        assert!(error.contains("server-key.pem is the key of another certificate"), "{error}");
        std::fs::write(&path, before).expect("written");
        std::fs::remove_file(&path).expect("removed");
        let error = server.reload().expect_err("missing").to_string();
        assert!(error.contains("server-key.pem is missing"), "{error}");
        secured(&server, &certificates.of("alice")).await;
        let wait =
            tokio::time::timeout(Duration::from_millis(50), server.until_refused(&of_alice.peer));
        wait.await.expect_err("nothing has changed");
    });
}

#[test]
fn a_renewed_certificate_is_used_by_new_connections_and_old_ones_go_on() {
    run(async {
        let certificates = Certificates::new();
        let (server, alice) = (certificates.of("server"), certificates.of("alice"));
        let (mut of_alice, mut client) = secured(&server, &alice).await;
        let before = server.status().server.expect("a certificate");
        certificates.authority().renew("server", 30).expect("renewed");
        server.reload().expect("reloaded");
        let after = server.status().server.expect("a certificate");
        assert!(before.serial != after.serial && before.expires > after.expires);
        let (_, fresh) = secured(&server, &alice).await;
        assert_eq!(fresh.peer.holder.serial, after.serial);
        client.stream.write_all(b"x").await.expect("sent");
        client.stream.flush().await.expect("sent");
        of_alice.stream.read_exact(&mut [0; 1]).await.expect("received");
    });
}

#[test]
fn an_authority_is_never_replaced_and_says_what_is_wrong_with_a_request() {
    let directory = TempDir::new().expect("a directory");
    let open = || Authority::open(directory.path());
    assert!(matches!(open(), Err(PkiError::NoAuthority { .. })));
    drop(Authority::create(directory.path(), "test", 10).expect("made"));
    let again = Authority::create(directory.path(), "test", 10);
    assert!(matches!(again, Err(PkiError::AlreadyThere { .. })));
    let mut authority = open().expect("there");
    let request = |name: &'static str| Request { name, hosts: &[], usage: Usage::Both, days: 365 };
    for name in ["", ".", "..", "a/b", "a b", "-a", &"x".repeat(65)] {
        let name: &'static str = name.to_owned().leak();
        assert!(matches!(authority.issue(&request(name)), Err(PkiError::BadName { .. })), "{name}");
    }
    let hosts = ["no host!".to_owned()];
    let bad = authority.issue(&Request { hosts: &hosts, ..request("node") });
    assert!(matches!(bad, Err(PkiError::BadHost { .. })));
    for days in [0, 36_501] {
        let bad = authority.issue(&Request { days, ..request("node") });
        assert!(matches!(bad, Err(PkiError::Days { .. })), "{days}");
    }
    assert!(!authority.directory_of("node").exists(), "what is refused leaves no key behind");
    let issued = authority.issue(&request("node")).expect("issued");
    assert!(matches!(authority.issue(&request("node")), Err(PkiError::AlreadyIssued { .. })));
    assert!(matches!(authority.renew("nobody", 1), Err(PkiError::NotIssued { .. })));
    assert!(matches!(authority.revoke("nobody"), Err(PkiError::NotIssued { .. })));
    // Not longer than the authority itself.
    let expires = authority.entries()[0].expires;
    assert!(expires <= i64::try_from(authority.expires().as_secs()).expect("soon"));
    assert_private(&issued.join("server-key.pem"));
    assert_private(&directory.path().join("ca-key.pem"));
    drop(authority);
    let mut authority = open().expect("there");
    assert_eq!(authority.entries().len(), 1);
    assert_eq!(authority.revoke("node").expect("revoked"), Revoked { count: 1, expired: 0 });
    assert!(matches!(authority.renew("node", 1), Err(PkiError::NotIssued { .. })));
    authority.issue(&request("node")).expect("a new one");
    assert_eq!(authority.entries().len(), 2);
}

#[test]
fn an_authority_with_the_key_of_another_signs_nothing() {
    let [one, other] = [(); 2].map(|()| TempDir::new().expect("a directory"));
    for directory in [&one, &other] {
        drop(Authority::create(directory.path(), "test", 10).expect("made"));
    }
    let key = |directory: &TempDir| directory.path().join("ca-key.pem");
    std::fs::copy(key(&other), key(&one)).expect("copied");
    let error = Authority::open(one.path()).expect_err("its certificate has another key");
    assert!(error.to_string().contains("it is not the key of"), "{error}");
}

fn assert_private(path: &Path) {
    use std::os::unix::fs::PermissionsExt;
    let mode = std::fs::metadata(path).expect("there").permissions().mode();
    assert_eq!(mode & 0o777, 0o600, "{}", path.display());
}
