//! A small certificate authority in a directory, for people who have none.
//!
//! ```text
//! ca-cert.pem, ca-key.pem   the authority; the key stays here
//! ca-crl.pem                what it has revoked
//! index.json                every certificate that it issued
//! issued/NAME/              what the holder needs: hand this directory, and nothing else, to its host
//! ```
//!
//! Keys are ECDSA on P-256, which everybody's TLS library takes. A certificate that is renewed keeps its key, so that
//! only certificates are replaced and no reader sees a certificate beside the key of another.

mod error;
mod files;
mod index;

use std::collections::BTreeSet;
use std::fs::File;
use std::path::{Path, PathBuf};
use std::time::Duration;

use rcgen::{
    BasicConstraints, CertificateParams, CertificateRevocationListParams, DistinguishedName,
    DnType, ExtendedKeyUsagePurpose, IsCa, Issuer, KeyIdMethod, KeyPair, KeyUsagePurpose,
    PublicKeyData, RevocationReason, RevokedCertParams, SanType, SerialNumber,
};
use time::OffsetDateTime;

pub use self::error::PkiError;
use self::files::{lock, make_private_directory, read, write, write_private};
use self::index::Index;
pub use self::index::{Entry, Revoked, Usage};
use crate::tls::{AUTHORITY, CLIENT, CLIENT_KEY, REVOKED, SERVER, SERVER_KEY};

/// The key of the authority.
pub const AUTHORITY_KEY: &str = "ca-key.pem";

/// For how many days an authority is valid, unless it is told otherwise.
pub const AUTHORITY_DAYS: u32 = 3650;

/// For how many days a certificate is valid, unless it is told otherwise.
pub const CERTIFICATE_DAYS: u32 = 365;

/// Longest validity: what lies beyond the year 9999 cannot be written down.
pub const DAYS_MAX: u32 = 36_500;

/// Clocks of other hosts may be behind by as much.
const CLOCK_SLACK: time::Duration = time::Duration::hours(1);

/// Longest name: what a common name may have (RFC 5280, appendix A.1).
const NAME_BYTES_MAX: usize = 64;

/// Bytes of a serial number, at random: two never meet.
const SERIAL_BYTES: usize = 16;

/// An authority. One process changes it at a time.
pub struct Authority {
    directory: PathBuf,
    index: Index,
    issuer: Issuer<'static, KeyPair>,
    expires: OffsetDateTime,
    /// Until it is dropped.
    _lock: File,
}

impl std::fmt::Debug for Authority {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Authority").field("directory", &self.directory).finish_non_exhaustive()
    }
}

/// What a certificate is to say.
#[derive(Clone, Debug)]
pub struct Request<'a> {
    /// Who is to hold it: its common name.
    pub name: &'a str,
    /// Host names and addresses under which clients connect to it; its name is always one.
    pub hosts: &'a [String],
    /// What it may be used for.
    pub usage: Usage,
    /// For how many days.
    pub days: u32,
}

impl Authority {
    /// Makes an authority of this name in `directory`, which may exist and must hold none. Blocks for file operations.
    ///
    /// # Errors
    /// [`PkiError`]; whatever was there is untouched.
    pub fn create(directory: &Path, name: &str, days: u32) -> Result<Self, PkiError> {
        check_name(name)?;
        make_private_directory(directory)?;
        let lock = lock(directory)?;
        let (cert_path, key_path) = (directory.join(AUTHORITY), directory.join(AUTHORITY_KEY));
        for path in [&cert_path, &key_path] {
            if path.exists() {
                return Err(PkiError::AlreadyThere { path: path.display().to_string() });
            }
        }
        let now = OffsetDateTime::now_utc();
        let mut params = params_of(name, now, days)?;
        params.is_ca = IsCa::Ca(BasicConstraints::Constrained(0));
        params.key_usages = vec![KeyUsagePurpose::KeyCertSign, KeyUsagePurpose::CrlSign];
        let expires = params.not_after;
        let key = KeyPair::generate()?;
        let certificate = params.self_signed(&key)?;
        write_private(&key_path, &key.serialize_pem())?;
        write(&cert_path, &certificate.pem())?;
        let issuer = Issuer::new(params, key);
        let directory = directory.to_owned();
        let mut authority =
            Self { directory, index: Index::default(), issuer, expires, _lock: lock };
        authority.publish_revoked(now)?;
        authority.save()?;
        Ok(authority)
    }

    /// The authority in `directory`. Blocks for file operations, and while another process changes it.
    ///
    /// # Errors
    /// [`PkiError`], also where there is none.
    pub fn open(directory: &Path) -> Result<Self, PkiError> {
        let key_path = directory.join(AUTHORITY_KEY);
        if !key_path.exists() {
            return Err(PkiError::NoAuthority { directory: directory.display().to_string() });
        }
        let lock = lock(directory)?;
        let cert_path = directory.join(AUTHORITY);
        let key =
            KeyPair::from_pem(&read(&key_path)?).map_err(|e| PkiError::wrong(&key_path, &e))?;
        let text = read(&cert_path)?;
        let holder = crate::tls::holder_of_pem(text.as_bytes());
        let (holder, of) = holder.map_err(|reason| PkiError::wrong(&cert_path, &reason))?;
        // What another key signs nobody accepts, and the certificates would be in the index all the same.
        if key.subject_public_key_info() != of {
            let reason = format!("it is not the key of {}", cert_path.display());
            return Err(PkiError::wrong(&key_path, &reason));
        }
        let issuer =
            Issuer::from_ca_cert_pem(&text, key).map_err(|e| PkiError::wrong(&cert_path, &e))?;
        let expires = OffsetDateTime::UNIX_EPOCH + holder.expires;
        let index = Index::load(directory)?;
        Ok(Self { directory: directory.to_owned(), index, issuer, expires, _lock: lock })
    }

    /// Every certificate that it issued, in the order of their issue.
    #[must_use]
    pub fn entries(&self) -> &[Entry] {
        self.index.entries()
    }

    /// When it ends, since the epoch of Unix.
    #[must_use]
    pub fn expires(&self) -> Duration {
        Duration::from_secs(u64::try_from(self.expires.unix_timestamp()).unwrap_or(0))
    }

    /// The directory of a holder.
    #[must_use]
    pub fn directory_of(&self, name: &str) -> PathBuf {
        self.directory.join("issued").join(name)
    }

    /// Issues a certificate with a new key; the directory to hand to its holder.
    ///
    /// # Errors
    /// [`PkiError`], also where the name has a certificate that is not revoked.
    pub fn issue(&mut self, request: &Request<'_>) -> Result<PathBuf, PkiError> {
        check_name(request.name)?;
        if self.index.current(request.name).is_some() {
            return Err(PkiError::AlreadyIssued { name: request.name.to_owned() });
        }
        // Before anything is written.
        let saying = self.saying(request)?;
        let key = KeyPair::generate()?;
        let directory = self.directory_of(request.name);
        make_private_directory(&self.directory.join("issued"))?;
        make_private_directory(&directory)?;
        // What an earlier holder of the name had is revoked; it must not be left beside the new one.
        for file in [SERVER, CLIENT, SERVER_KEY, CLIENT_KEY] {
            files::remove(&directory.join(file))?;
        }
        for file in request.usage.key_files() {
            write_private(&directory.join(file), &key.serialize_pem())?;
        }
        self.sign(request, saying, &key, &directory)?;
        Ok(directory)
    }

    /// Issues the newest certificate of a name again, with the same key, hosts and usage.
    ///
    /// # Errors
    /// [`PkiError`], also where the name has none, or its newest is revoked.
    pub fn renew(&mut self, name: &str, days: u32) -> Result<PathBuf, PkiError> {
        let none = || PkiError::NotIssued { name: name.to_owned() };
        let newest = self.index.current(name).cloned().ok_or_else(none)?;
        let directory = self.directory_of(name);
        let [first, ..] = newest.usage.key_files() else { return Err(none()) };
        let path = directory.join(first);
        let key = KeyPair::from_pem(&read(&path)?).map_err(|e| PkiError::wrong(&path, &e))?;
        let request = Request { name, hosts: &newest.hosts, usage: newest.usage, days };
        let saying = self.saying(&request)?;
        self.sign(&request, saying, &key, &directory)?;
        Ok(directory)
    }

    /// Revokes every certificate of a name, also those that have expired: a connection that was opened before may stand
    /// on one. How many are revoked now. The new list is in the authority's directory, and in those of all holders that
    /// are still here: hosts that have copies need the new one.
    ///
    /// # Errors
    /// [`PkiError`], also where there is none. After one, the same call completes what was begun.
    pub fn revoke(&mut self, name: &str) -> Result<Revoked, PkiError> {
        let now = OffsetDateTime::now_utc();
        let revoked = self.index.revoke(name, now.unix_timestamp());
        if revoked.count == 0 {
            return Err(PkiError::NotIssued { name: name.to_owned() });
        }
        // The index first: a list that was made from it can be made again.
        self.save()?;
        self.publish_revoked(now)?;
        Ok(revoked)
    }

    /// What a certificate that is issued now is to say, without its serial number.
    fn saying(
        &self,
        request: &Request<'_>,
    ) -> Result<(CertificateParams, OffsetDateTime), PkiError> {
        let now = OffsetDateTime::now_utc();
        let mut params = params_of(request.name, now, request.days)?;
        if params.not_after > self.expires {
            params.not_after = self.expires;
        }
        if params.not_after <= now {
            return Err(PkiError::Expired { directory: self.directory.display().to_string() });
        }
        params.subject_alt_names = alternative_names(request)?;
        params.key_usages = vec![KeyUsagePurpose::DigitalSignature];
        params.extended_key_usages = match request.usage {
            Usage::Both => {
                vec![ExtendedKeyUsagePurpose::ServerAuth, ExtendedKeyUsagePurpose::ClientAuth]
            }
            Usage::Server => vec![ExtendedKeyUsagePurpose::ServerAuth],
            Usage::Client => vec![ExtendedKeyUsagePurpose::ClientAuth],
        };
        params.use_authority_key_identifier_extension = true;
        Ok((params, now))
    }

    fn sign(
        &mut self,
        request: &Request<'_>,
        (mut params, now): (CertificateParams, OffsetDateTime),
        key: &KeyPair,
        at: &Path,
    ) -> Result<(), PkiError> {
        let serial = new_serial()?;
        params.serial_number = Some(SerialNumber::from_slice(&serial));
        let certificate = params.signed_by(key, &self.issuer)?;
        // Noted before anybody can have it: what is not in the index cannot be revoked.
        self.index.push(Entry {
            name: request.name.to_owned(),
            serial: serial.iter().map(|byte| format!("{byte:02x}")).collect(),
            hosts: request.hosts.to_vec(),
            usage: request.usage,
            issued: now.unix_timestamp(),
            expires: params.not_after.unix_timestamp(),
            revoked: None,
        });
        self.save()?;
        write(&at.join(AUTHORITY), &read(&self.directory.join(AUTHORITY))?)?;
        write(&at.join(REVOKED), &read(&self.directory.join(REVOKED))?)?;
        for file in request.usage.certificate_files() {
            write(&at.join(file), &certificate.pem())?;
        }
        Ok(())
    }

    /// Writes the list of what is revoked. What has expired stays in it: a server that reads it late may have
    /// connections that stand on that.
    fn publish_revoked(&mut self, now: OffsetDateTime) -> Result<(), PkiError> {
        let revoked = |entry: &Entry| {
            Some(RevokedCertParams {
                serial_number: SerialNumber::from_slice(&index::serial_bytes(&entry.serial)?),
                revocation_time: OffsetDateTime::from_unix_timestamp(entry.revoked?).ok()?,
                reason_code: Some(RevocationReason::Unspecified),
                invalidity_date: None,
            })
        };
        self.index.lists += 1;
        let list = CertificateRevocationListParams {
            this_update: now - CLOCK_SLACK,
            next_update: self.expires.max(now + CLOCK_SLACK),
            crl_number: SerialNumber::from(self.index.lists),
            issuing_distribution_point: None,
            revoked_certs: self.index.entries().iter().filter_map(revoked).collect(),
            key_identifier_method: KeyIdMethod::Sha256,
        };
        let text = list.signed_by(&self.issuer)?.pem()?;
        write(&self.directory.join(REVOKED), &text)?;
        let names: BTreeSet<&str> = self.index.entries().iter().map(|e| e.name.as_str()).collect();
        for directory in names.into_iter().map(|name| self.directory_of(name)) {
            if directory.is_dir() {
                write(&directory.join(REVOKED), &text)?;
            }
        }
        self.save()
    }

    fn save(&self) -> Result<(), PkiError> {
        self.index.save(&self.directory)
    }
}

fn new_serial() -> Result<[u8; SERIAL_BYTES], PkiError> {
    let mut serial = [0; SERIAL_BYTES];
    rustix::rand::getrandom(&mut serial, rustix::rand::GetRandomFlags::empty())
        .map_err(|error| PkiError::Random { source: error.into() })?;
    // Positive, and as long as all others.
    serial[0] = serial[0] & 0x3f | 0x40;
    Ok(serial)
}

fn params_of(name: &str, now: OffsetDateTime, days: u32) -> Result<CertificateParams, PkiError> {
    if !(1..=DAYS_MAX).contains(&days) {
        return Err(PkiError::Days { days, limit: DAYS_MAX });
    }
    let mut params = CertificateParams::default();
    params.distinguished_name = DistinguishedName::new();
    params.distinguished_name.push(DnType::CommonName, name);
    params.not_before = now - CLOCK_SLACK;
    params.not_after = now + time::Duration::days(days.into());
    Ok(params)
}

/// The hosts of a request, and its name, which is one.
fn alternative_names(request: &Request<'_>) -> Result<Vec<SanType>, PkiError> {
    let mut names = Vec::new();
    let hosts = request.hosts.iter().map(String::as_str);
    for host in std::iter::once(request.name).chain(hosts) {
        let bad = || PkiError::BadHost { host: host.to_owned() };
        let name = match host.parse() {
            Ok(address) => SanType::IpAddress(address),
            Err(_) => {
                // It must be one that a client can ask for.
                rustls::pki_types::DnsName::try_from(host).map_err(|_| bad())?;
                SanType::DnsName(host.try_into().map_err(|_| bad())?)
            }
        };
        if !names.contains(&name) {
            names.push(name);
        }
    }
    Ok(names)
}

/// A name is a common name, a DNS name and a directory.
fn check_name(name: &str) -> Result<(), PkiError> {
    let is_fit = !name.is_empty()
        && name.len() <= NAME_BYTES_MAX
        && name.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"-._".contains(&byte))
        && name.bytes().next().is_some_and(|first| first.is_ascii_alphanumeric());
    is_fit.then_some(()).ok_or_else(|| PkiError::BadName { name: name.to_owned() })
}
