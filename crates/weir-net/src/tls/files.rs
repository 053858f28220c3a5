//! Certificates and keys as they lie in a directory, under the names that `qemu`, `libnbd` and `nbdkit` use as well, so
//! that one directory serves all of them.

use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use rustls::RootCertStore;
use rustls::pki_types::pem::{self, PemObject};
use rustls::pki_types::{CertificateDer, CertificateRevocationListDer, PrivateKeyDer};

use super::certificate::{self, Holder};
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
    /// The certificate's file and the key's, for messages.
    pub(super) path: PathBuf,
    pub(super) key_path: PathBuf,
}

/// What a directory holds.
pub(super) struct Files {
    pub(super) authorities: Arc<RootCertStore>,
    /// Who they are; at least one.
    pub(super) holders: Vec<Holder>,
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
        let holders: Result<Vec<_>, _> = found.iter().map(Holder::of_authority).collect();
        let holders = holders.map_err(|error| TlsError::file(&path, error.to_string()))?;
        let server = own(&directory.join(SERVER), &directory.join(SERVER_KEY))?;
        let client = own(&directory.join(CLIENT), &directory.join(CLIENT_KEY))?;
        let path = directory.join(REVOKED);
        let (revoked, lists) = match read(&path)? {
            Some(text) => {
                let lists = CertificateRevocationListDer::pem_slice_iter(&text);
                let revoked = all(&path, &text, "revocation list", lists)?;
                let between = server.iter().chain(&client).flat_map(|own| own.chain.iter().skip(1));
                let known: Vec<_> = found.iter().chain(between).cloned().collect();
                let lists = revoked::check(&path, &revoked, &known)?;
                (revoked, Some(lists))
            }
            None => (Vec::new(), None),
        };
        let authorities = Arc::new(authorities);
        Ok(Self { authorities, holders, revoked, lists, server, client })
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

/// Why a text in PEM form has nothing of a kind.
fn wrong_pem(path: &Path, text: &[u8], kind: &str, error: &pem::Error) -> TlsError {
    let text = String::from_utf8_lossy(text);
    let reason = match error {
        pem::Error::NoItemsFound if text.contains("ENCRYPTED") => {
            format!(
                "its {kind} is encrypted with a password, which Weir does not ask for: take that away with \
                 `openssl pkey -in OLD -out NEW`"
            )
        }
        pem::Error::NoItemsFound => {
            match text.lines().find(|line| line.starts_with("-----BEGIN")) {
                Some(line) => format!("it holds no {kind}: it begins with {line:?}"),
                None => format!("it holds no {kind} in PEM form"),
            }
        }
        pem::Error::MissingSectionEnd { .. } => {
            format!("its {kind} is cut off: the line that begins with -----END is missing")
        }
        other => format!("its {kind} cannot be read: {other}"),
    };
    TlsError::file(path, reason)
}

/// Everything of one kind in a file; there must be something.
fn all<T>(
    path: &Path,
    text: &[u8],
    kind: &str,
    found: impl Iterator<Item = Result<T, pem::Error>>,
) -> Result<Vec<T>, TlsError> {
    let found: Result<Vec<T>, _> = found.collect();
    match found {
        Ok(found) if found.is_empty() => {
            Err(wrong_pem(path, text, kind, &pem::Error::NoItemsFound))
        }
        Ok(found) => Ok(found),
        Err(error) => Err(wrong_pem(path, text, kind, &error)),
    }
}

fn certificates(path: &Path) -> Result<Option<Vec<CertificateDer<'static>>>, TlsError> {
    let Some(text) = read(path)? else { return Ok(None) };
    all(path, &text, "certificate", CertificateDer::pem_slice_iter(&text)).map(Some)
}

fn holder(path: &Path, certificate: &CertificateDer<'_>) -> Result<Holder, TlsError> {
    Holder::of(certificate).map_err(|error| TlsError::file(path, error.to_string()))
}

/// The holder of the first certificate in a text and the public key in it, in DER, or what is wrong with it.
pub(crate) fn holder_of_pem(text: &[u8]) -> Result<(Holder, Vec<u8>), String> {
    let certificate = CertificateDer::from_pem_slice(text).map_err(|error| error.to_string())?;
    let holder = Holder::of(&certificate).map_err(|error| error.to_string())?;
    let key = certificate::public_key(&certificate).map_err(|error| error.to_string())?;
    Ok((holder, key))
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
    let key = PrivateKeyDer::from_pem_slice(&key)
        .map_err(|error| wrong_pem(key_path, &key, "private key", &error))?;
    let holder = holder(path, &chain[0])?;
    warn_if_readable(key_path);
    let (path, key_path) = (path.to_owned(), key_path.to_owned());
    Ok(Some(Own { chain, key, holder, path, key_path }))
}
