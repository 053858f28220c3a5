//! TLS with certificates on both sides: who is at the other end is known by name, or there is no connection.
//!
//! TLS 1.3 only, unless 1.2 is allowed ([`MinVersion`]). Sessions are not resumed: each connection shows its
//! certificate, so that a revoked one opens none. An expired revocation list still counts: whoever keeps a newer one
//! away gains nothing that it revokes later, and a list that nobody renewed ends no service.

mod certificate;
mod error;
mod files;
mod revoked;
mod stream;
mod version;

use std::future::poll_fn;
use std::path::{Path, PathBuf};
use std::sync::{Arc, PoisonError, RwLock};
use std::time::Duration;

use rustls::client::{WebPkiServerVerifier, verify_server_cert_signed_by_trust_anchor};
use rustls::crypto::CryptoProvider;
use rustls::pki_types::{CertificateDer, ServerName, UnixTime};
use rustls::server::danger::ClientCertVerifier;
use rustls::server::{NoServerSessionStorage, ParsedCertificate, WebPkiClientVerifier};
use rustls::{
    CertificateError, ClientConfig, ClientConnection, CommonState, Connection, RootCertStore,
    ServerConfig, ServerConnection,
};
use tokio::sync::Notify;
use weir_device::{ByteStream, mutant};

pub use self::certificate::{Holder, NoHolder};
pub use self::error::TlsError;
pub(crate) use self::files::holder_of_pem;
pub use self::files::{AUTHORITY, CLIENT, CLIENT_KEY, REVOKED, SERVER, SERVER_KEY};
use self::files::{Files, Own};
use self::revoked::Lists;
pub use self::revoked::Revocations;
use self::stream::TlsStream;
pub use self::version::MinVersion;

/// The certificates of a process and what it trusts, read from a directory, and read again without a restart. Cheap to
/// clone; clones are the same.
#[derive(Clone)]
pub struct Tls(Arc<Shared>);

struct Shared {
    directory: PathBuf,
    current: RwLock<Arc<Current>>,
    /// Told after each change.
    changed: Notify,
}

/// What a directory held when it was read last.
struct Current {
    server: Option<Arc<ServerConfig>>,
    client: Option<Arc<ClientConfig>>,
    verifier: Arc<dyn ClientCertVerifier>,
    lists: Option<Lists>,
    status: TlsStatus,
}

/// Certificates that were read and are not in use yet.
pub struct ReadAnew(Current);

/// Whose certificates are in use, and until when they count.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TlsStatus {
    /// The first of the authorities.
    pub authority: Holder,
    /// Those behind it in its file.
    pub other_authorities: Vec<Holder>,
    /// This process as a server.
    pub server: Option<Holder>,
    /// The certificate of the server is of none of the authorities.
    pub server_is_of_others: bool,
    /// This process as a client.
    pub client: Option<Holder>,
    /// The lists of what is revoked; none where there is none.
    pub revocations: Option<Revocations>,
    /// The oldest version that is spoken.
    pub min_version: MinVersion,
}

/// A connection whose peer is known.
pub struct Secured {
    /// The connection.
    pub stream: Box<dyn ByteStream>,
    /// Who is there.
    pub peer: PeerCertificate,
}

/// A certificate that a peer has shown, and proved to hold.
#[derive(Clone, Debug)]
pub struct PeerCertificate {
    /// Who it was issued to.
    pub holder: Holder,
    chain: Arc<[CertificateDer<'static>]>,
    /// When the first of its chain expires, since the epoch of Unix.
    expires: Duration,
    version: MinVersion,
}

impl std::fmt::Debug for Secured {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Secured").field("peer", &self.peer.holder).finish_non_exhaustive()
    }
}

impl std::fmt::Debug for ReadAnew {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_tuple("ReadAnew").field(&self.0.status).finish()
    }
}

impl std::fmt::Debug for Tls {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Tls").field("directory", &self.0.directory).finish_non_exhaustive()
    }
}

impl Tls {
    /// Reads the certificates in `directory`: [`AUTHORITY`], and those of a server, a client, or both. TLS 1.3 is
    /// spoken. Blocks for a few file operations.
    ///
    /// # Errors
    /// [`TlsError`] names the file and what is wrong with it.
    pub fn load(directory: &Path) -> Result<Self, TlsError> {
        Self::load_with(directory, MinVersion::default())
    }

    /// As [`Tls::load`], with older versions allowed.
    ///
    /// # Errors
    /// As [`Tls::load`].
    pub fn load_with(directory: &Path, min_version: MinVersion) -> Result<Self, TlsError> {
        let current = RwLock::new(Arc::new(Current::read(directory, min_version)?));
        let directory = directory.to_owned();
        Ok(Self(Arc::new(Shared { directory, current, changed: Notify::new() })))
    }

    /// Reads them anew. Connections that begin from now on use them; a connection whose peer is not accepted any more
    /// is told by [`Tls::until_refused`]. Blocks for a few file operations.
    ///
    /// # Errors
    /// As [`Tls::load`], and where a list of what is revoked was in use and is gone, or an older one is there; what was
    /// in use stays in use.
    pub fn reload(&self) -> Result<(), TlsError> {
        self.reload_with(self.min_version())
    }

    /// As [`Tls::reload`], and changes which versions are spoken on connections that begin from now on.
    ///
    /// # Errors
    /// As [`Tls::reload`]; what was in use stays in use, the versions included.
    pub fn reload_with(&self, min_version: MinVersion) -> Result<(), TlsError> {
        self.take(self.read_anew(min_version)?)
    }

    /// Reads them anew, for [`Tls::take`]. Blocks for a few file operations.
    ///
    /// # Errors
    /// As [`Tls::load`].
    pub fn read_anew(&self, min_version: MinVersion) -> Result<ReadAnew, TlsError> {
        Current::read(&self.0.directory, min_version).map(ReadAnew)
    }

    /// Uses what was read from now on, as [`Tls::reload_with`] does.
    ///
    /// # Errors
    /// Where a list of what is revoked was in use and is gone, or an older one is there; what was in use stays in use.
    pub fn take(&self, read: ReadAnew) -> Result<(), TlsError> {
        read.0.check_after(&self.current(), &self.0.directory)?;
        *self.0.current.write().unwrap_or_else(PoisonError::into_inner) = Arc::new(read.0);
        self.0.changed.notify_waiters();
        Ok(())
    }

    /// Whether these may take the place of others that are in use, in this process or the next one.
    ///
    /// # Errors
    /// Where a list of what is revoked is in use there and is gone here, or an older one is here.
    pub fn check_after(&self, before: &Self) -> Result<(), TlsError> {
        self.current().check_after(&before.current(), &self.0.directory)
    }

    /// Where they lie.
    #[must_use]
    pub fn directory(&self) -> &Path {
        &self.0.directory
    }

    /// Whose certificates are in use.
    #[must_use]
    pub fn status(&self) -> TlsStatus {
        self.current().status.clone()
    }

    /// The oldest version that is spoken.
    #[must_use]
    pub fn min_version(&self) -> MinVersion {
        self.current().status.min_version
    }

    /// Whether there is a certificate for a server.
    ///
    /// # Errors
    /// [`TlsError::NoServer`].
    pub fn check_serves(&self) -> Result<(), TlsError> {
        match self.current().server {
            Some(_) => Ok(()),
            None => Err(TlsError::NoServer { directory: self.0.directory.display().to_string() }),
        }
    }

    /// Whether there is a certificate for a client.
    ///
    /// # Errors
    /// [`TlsError::Missing`].
    pub fn check_connects(&self) -> Result<(), TlsError> {
        self.current().client.as_ref().map(|_| ()).ok_or_else(|| self.own_missing(CLIENT))
    }

    fn current(&self) -> Arc<Current> {
        Arc::clone(&self.0.current.read().unwrap_or_else(PoisonError::into_inner))
    }

    fn own_missing(&self, file: &str) -> TlsError {
        TlsError::missing(&self.0.directory.join(file))
    }

    /// Shakes hands with a client on a connection of which every byte so far was read. It takes as long as the client
    /// takes: the caller sets the deadline.
    ///
    /// # Errors
    /// [`TlsError`]; the connection has ended then.
    pub async fn accept(&self, io: Box<dyn ByteStream>) -> Result<Secured, TlsError> {
        let config = self.current().server.clone().ok_or_else(|| self.own_missing(SERVER))?;
        secured(io, ServerConnection::new(config).map(Connection::from)).await
    }

    /// Shakes hands with the server `name` on a connection of which every byte so far was read. It takes as long as the
    /// server takes: the caller sets the deadline.
    ///
    /// # Errors
    /// [`TlsError`], also where the certificate of the server is not one for `name`; the connection has ended then.
    pub async fn connect(
        &self,
        io: Box<dyn ByteStream>,
        name: ServerName<'static>,
    ) -> Result<Secured, TlsError> {
        let config = self.current().client.clone().ok_or_else(|| self.own_missing(CLIENT))?;
        secured(io, ClientConnection::new(config, name).map(Connection::from)).await
    }

    /// What a server agrees to, for connections that another library drives; nothing where there is no certificate for
    /// a server. What it has accepted must name somebody ([`PeerCertificate::of`]).
    #[must_use]
    pub fn server_config(&self) -> Option<Arc<ServerConfig>> {
        self.current().server.clone()
    }

    /// Whether a client with this certificate is still accepted. One that has expired since is: whoever is connected
    /// stays.
    #[must_use]
    pub fn accepts(&self, client: &PeerCertificate) -> bool {
        self.current().accepts(client)
    }

    /// Whether a session with this client could begin now, as far as the version goes that it speaks. One that is open
    /// stays so where its process goes on.
    #[must_use]
    pub fn speaks_with(&self, client: &PeerCertificate) -> bool {
        client.version >= self.min_version()
    }

    /// Completes once a client with this certificate is not accepted any more, because it was revoked or its authority
    /// is none any more. One that merely expires keeps the connection that it has.
    pub async fn until_refused(&self, client: &PeerCertificate) {
        loop {
            let mut changed = std::pin::pin!(self.0.changed.notified());
            changed.as_mut().enable();
            if !self.accepts(client) {
                return;
            }
            changed.await;
        }
    }
}

async fn secured(
    io: Box<dyn ByteStream>,
    session: Result<Connection, rustls::Error>,
) -> Result<Secured, TlsError> {
    let failed = |source| TlsError::Handshake { source };
    let session = session.map_err(|error| failed(std::io::Error::other(error)))?;
    let mut stream = TlsStream::new(io, session);
    poll_fn(|cx| stream.poll_handshake(cx)).await.map_err(failed)?;
    let peer = PeerCertificate::of(stream.session())?;
    Ok(Secured { stream: Box::new(stream), peer })
}

impl PeerCertificate {
    /// The certificates, the peer's own first, as [`PeerCertificate::of_der`] takes them.
    #[must_use]
    pub fn chain(&self) -> &[CertificateDer<'static>] {
        &self.chain
    }

    /// The version that is spoken with it.
    #[must_use]
    pub fn version(&self) -> MinVersion {
        self.version
    }

    /// The certificate that the peer of a session has shown.
    ///
    /// # Errors
    /// [`NoHolder`].
    pub fn of(session: &CommonState) -> Result<Self, NoHolder> {
        let chain = session.peer_certificates().unwrap_or_default();
        Self::of_chain(chain, MinVersion::of(session))
    }

    /// As [`PeerCertificate::of`], of certificates in DER and the version that was spoken.
    ///
    /// # Errors
    /// [`NoHolder`].
    pub fn of_der(chain: &[&[u8]], version: MinVersion) -> Result<Self, NoHolder> {
        let chain: Vec<_> = chain.iter().map(|der| CertificateDer::from(*der)).collect();
        Self::of_chain(&chain, version)
    }

    /// The first certificate of a chain that a session of this version has verified.
    fn of_chain(chain: &[CertificateDer<'_>], version: MinVersion) -> Result<Self, NoHolder> {
        let chain: Arc<[_]> = chain.iter().map(|one| one.clone().into_owned()).collect();
        let (first, between) = chain.split_first().ok_or(NoHolder::NoName)?;
        let holder = Holder::of(first)?;
        let mut expires = holder.expires;
        for authority in between {
            expires = expires.min(Holder::of_authority(authority)?.expires);
        }
        Ok(Self { holder, chain, expires, version })
    }
}

impl Current {
    fn read(directory: &Path, min_version: MinVersion) -> Result<Self, TlsError> {
        let Files { authorities, mut holders, revoked, lists, server, client } =
            Files::read(directory)?;
        let provider = Arc::new(min_version.provider());
        let authority_wrong = |error: &dyn std::fmt::Display| {
            TlsError::file(&directory.join(AUTHORITY), error.to_string())
        };
        let trusted = (Arc::clone(&authorities), Arc::clone(&provider));
        let verifier = WebPkiClientVerifier::builder_with_provider(trusted.0, trusted.1)
            .with_crls(revoked.iter().cloned())
            .allow_unknown_revocation_status()
            .build()
            .map_err(|error| authority_wrong(&error))?;
        let is_of_others = |own: &Own| is_of_others(own, &authorities, &provider);
        let status = TlsStatus {
            authority: holders.remove(0),
            other_authorities: holders,
            server_is_of_others: server.as_ref().is_some_and(is_of_others),
            server: server.as_ref().map(|own| own.holder.clone()),
            client: client.as_ref().map(|own| own.holder.clone()),
            revocations: lists.as_ref().map(|lists| lists.revocations),
            min_version,
        };
        let speaks = (&provider, min_version);
        let server = match server {
            Some(own) => Some(server_config(speaks, Arc::clone(&verifier), own)?),
            None => None,
        };
        let client = match client {
            Some(own) => {
                let trusted = (authorities, Arc::clone(&provider));
                let servers = WebPkiServerVerifier::builder_with_provider(trusted.0, trusted.1)
                    .with_crls(revoked.into_iter().filter(|_| !mutant("revoked_server_accepted")))
                    .allow_unknown_revocation_status()
                    .build()
                    .map_err(|error| authority_wrong(&error))?;
                Some(client_config(speaks, servers, own)?)
            }
            None => None,
        };
        Ok(Self { server, client, verifier, lists, status })
    }

    /// What must keep these from taking the place of others: nobody is let in again because a file was forgotten, or an
    /// old one was copied back.
    fn check_after(&self, before: &Self, directory: &Path) -> Result<(), TlsError> {
        let path = directory.join(REVOKED);
        match (&before.lists, &self.lists) {
            (Some(_), None) if !mutant("list_that_is_gone_forgotten") => {
                Err(TlsError::ListGone { path: path.display().to_string() })
            }
            (Some(before), Some(now)) => now.check_after(before, &path),
            _ => Ok(()),
        }
    }

    fn accepts(&self, client: &PeerCertificate) -> bool {
        let Some((first, between)) = client.chain.split_first() else { return false };
        // Looked at while it was valid: that it has expired since says nothing, that it was revoked does.
        let valid = client.expires.saturating_sub(Duration::from_secs(1));
        let now = Duration::from_secs(UnixTime::now().as_secs());
        let at = UnixTime::since_unix_epoch(now.min(valid));
        self.verifier.verify_client_cert(first, between, at).is_ok()
    }
}

/// Whether none of the authorities has signed the certificate of a server. What else may be wrong with it, such as its
/// dates, is not looked at.
fn is_of_others(own: &Own, authorities: &RootCertStore, provider: &CryptoProvider) -> bool {
    let Some((first, between)) = own.chain.split_first() else { return false };
    let Ok(parsed) = ParsedCertificate::try_from(first) else { return false };
    let at = UnixTime::since_unix_epoch(own.holder.expires);
    let algorithms = provider.signature_verification_algorithms.all;
    let verified =
        verify_server_cert_signed_by_trust_anchor(&parsed, authorities, between, at, algorithms);
    let Err(rustls::Error::InvalidCertificate(why)) = verified else { return false };
    matches!(why, CertificateError::UnknownIssuer | CertificateError::BadSignature)
}

/// What is wrong with a certificate and its key.
fn wrong_own((path, key_path): &(PathBuf, PathBuf), error: &rustls::Error) -> TlsError {
    match error {
        rustls::Error::InconsistentKeys(_) => {
            let key = key_path.display();
            TlsError::file(path, format!("{key} is the key of another certificate"))
        }
        other => TlsError::file(path, other.to_string()),
    }
}

fn server_config(
    (provider, min_version): (&Arc<CryptoProvider>, MinVersion),
    verifier: Arc<dyn ClientCertVerifier>,
    own: Own,
) -> Result<Arc<ServerConfig>, TlsError> {
    let paths = (own.path.clone(), own.key_path.clone());
    let wrong = |error: rustls::Error| wrong_own(&paths, &error);
    let mut config = ServerConfig::builder_with_provider(Arc::clone(provider))
        .with_protocol_versions(min_version.versions())
        .map_err(wrong)?
        .with_client_cert_verifier(verifier)
        .with_single_cert(own.chain, own.key)
        .map_err(wrong)?;
    config.ignore_client_order = min_version.has_own_order();
    config.require_ems = true;
    config.send_tls13_tickets = 0;
    config.session_storage = Arc::new(NoServerSessionStorage {});
    Ok(Arc::new(config))
}

fn client_config(
    (provider, min_version): (&Arc<CryptoProvider>, MinVersion),
    servers: Arc<WebPkiServerVerifier>,
    own: Own,
) -> Result<Arc<ClientConfig>, TlsError> {
    let paths = (own.path.clone(), own.key_path.clone());
    let wrong = |error: rustls::Error| wrong_own(&paths, &error);
    let mut config = ClientConfig::builder_with_provider(Arc::clone(provider))
        .with_protocol_versions(min_version.versions())
        .map_err(wrong)?
        .with_webpki_verifier(servers)
        .with_client_auth_cert(own.chain, own.key)
        .map_err(wrong)?;
    config.require_ems = true;
    config.resumption = rustls::client::Resumption::disabled();
    Ok(Arc::new(config))
}
