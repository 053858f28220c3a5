//! Certificates and keys as they lie in a directory, under the names that `qemu`, `libnbd` and `nbdkit` use as well, so
//! that one directory serves all of them.

use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use rustls::RootCertStore;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, CertificateRevocationListDer, PrivateKeyDer};

use super::certificate::Holder;
use super::error::TlsError;
use super::revoked::{self, Lists};

/// The certificates that peers' certificates must descend from.
pub const AUTHORITY: &str = "ca-cert.pem";
/// What these authorities have revoked; it may be missing.
pub const REVOKED: &str = "ca-crl.pem";
/// The certificate of a server, followed by those between it and the authority.
pub const SERVER: &str = "server-cert.pem";
/// The server's private key.
pub const SERVER_KEY: &str = "server-key.pem";
/// The certificate of a client, followed by those between it and the authority.
pub const CLIENT: &str = "client-cert.pem";
/// The client's private key.
pub const CLIENT_KEY: &str = "client-key.pem";

/// A certificate with its chain, and its key.
pub(super) struct Own {
    pub(super) chain: Vec<CertificateDer<'static>>,
    pub(super) key: PrivateKeyDer<'static>,
    pub(super) holder: Holder,
    /// The certificate's file, for messages.
    pub(super) path: PathBuf,
}

/// What a directory holds.
pub(super) struct Files {
    pub(super) authorities: Arc<RootCertStore>,
    pub(super) authority: Holder,
    pub(super) revoked: Vec<CertificateRevocationListDer<'static>>,
    /// None where there is no list.
    pub(super) lists: Option<Lists>,
    pub(super) server: Option<Own>,
    pub(super) client: Option<Own>,
}

impl Files {
    /// Reads a directory. Blocks for a few file operations.
    pub(super) fn read(directory: &Path) -> Result<Self, TlsError> {
        let path = directory.join(AUTHORITY);
        let found = certificates(&path)?.ok_or_else(|| TlsError::missing(&path))?;
        let mut authorities = RootCertStore::empty();
        for certificate in &found {
            let added = authorities.add(certificate.clone());
            added.map_err(|error| TlsError::file(&path, error.to_string()))?;
        }
        let authority = Holder::of_authority(&found[0]);
        let authority = authority.map_err(|error| TlsError::file(&path, error.to_string()))?;
        let server = own(&directory.join(SERVER), &directory.join(SERVER_KEY))?;
        let client = own(&directory.join(CLIENT), &directory.join(CLIENT_KEY))?;
        let path = directory.join(REVOKED);
        let (revoked, lists) = match read(&path)? {
            Some(text) => {
                let revoked = all(&path, CertificateRevocationListDer::pem_slice_iter(&text))?;
                let between = server.iter().chain(&client).flat_map(|own| own.chain.iter().skip(1));
                let known: Vec<_> = found.iter().chain(between).cloned().collect();
                let lists = revoked::check(&path, &revoked, &known)?;
                (revoked, Some(lists))
            }
            None => (Vec::new(), None),
        };
        let authorities = Arc::new(authorities);
        Ok(Self { authorities, authority, revoked, lists, server, client })
    }
}

/// The bytes of a file, if there is one.
fn read(path: &Path) -> Result<Option<Vec<u8>>, TlsError> {
    match std::fs::read(path) {
        Ok(bytes) => Ok(Some(bytes)),
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => Ok(None),
        Err(error) => Err(TlsError::file(path, error.to_string())),
    }
}

/// Everything of one kind in a file; there must be something.
fn all<T, E: std::fmt::Display>(
    path: &Path,
    found: impl Iterator<Item = Result<T, E>>,
) -> Result<Vec<T>, TlsError> {
    let found: Result<Vec<T>, E> = found.collect();
    let found = found.map_err(|error| TlsError::file(path, error.to_string()))?;
    if found.is_empty() {
        return Err(TlsError::file(path, "it holds nothing of its kind in PEM form"));
    }
    Ok(found)
}

fn certificates(path: &Path) -> Result<Option<Vec<CertificateDer<'static>>>, TlsError> {
    let Some(text) = read(path)? else { return Ok(None) };
    all(path, CertificateDer::pem_slice_iter(&text)).map(Some)
}

fn holder(path: &Path, certificate: &CertificateDer<'_>) -> Result<Holder, TlsError> {
    Holder::of(certificate).map_err(|error| TlsError::file(path, error.to_string()))
}

/// The holder of the first certificate in a text, or what is wrong with it.
pub(crate) fn holder_of_pem(text: &[u8]) -> Result<Holder, String> {
    let certificate = CertificateDer::from_pem_slice(text).map_err(|error| error.to_string())?;
    Holder::of(&certificate).map_err(|error| error.to_string())
}

/// Says that everybody may read a private key. It is taken: what is mounted into containers often has that mode.
fn warn_if_readable(key: &Path) {
    let mode = std::fs::metadata(key).map_or(0, |file| file.permissions().mode());
    if mode & 0o004 != 0 {
        let key = key.display();
        tracing::warn!(%key, "everybody on this host may read a private key: chmod o= it");
    }
}

/// A certificate and its key; both are there, or neither.
fn own(path: &Path, key_path: &Path) -> Result<Option<Own>, TlsError> {
    let (chain, key) = (certificates(path)?, read(key_path)?);
    let (chain, key) = match (chain, key) {
        (Some(chain), Some(key)) => (chain, key),
        (None, None) => return Ok(None),
        (None, Some(_)) => return Err(TlsError::missing(path)),
        (Some(_), None) => return Err(TlsError::missing(key_path)),
    };
    let key = PrivateKeyDer::from_pem_slice(&key);
    let key = key.map_err(|error| TlsError::file(key_path, error.to_string()))?;
    let holder = holder(path, &chain[0])?;
    warn_if_readable(key_path);
    Ok(Some(Own { chain, key, holder, path: path.to_owned() }))
}
