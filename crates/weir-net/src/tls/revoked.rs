//! Revocation lists: whose they are, and when they were to be renewed.

use std::path::Path;
use std::time::Duration;

use rustls::crypto::aws_lc_rs::default_provider;
use rustls::pki_types::{CertificateDer, CertificateRevocationListDer};
use weir_device::mutant;
use x509_parser::num_bigint::BigUint;
use x509_parser::prelude::{CertificateRevocationList, FromDer, X509Certificate, X509Name};

use super::error::TlsError;

/// What is in use of what authorities have revoked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Revocations {
    /// When the first of the lists is to be renewed, since the epoch of Unix; none where no list says so. A list counts
    /// beyond that.
    pub renewal: Option<Duration>,
}

/// A list that counts: whose it is, and which.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Counted {
    /// The name of its authority, as it stands in certificates.
    issuer: Vec<u8>,
    /// The same for people.
    name: String,
    /// Its number, which rises from list to list. None where it has no number.
    number: Option<BigUint>,
    /// When it was made, in seconds since the epoch of Unix.
    made: i64,
}

impl Counted {
    fn new(list: &CertificateRevocationList<'_>) -> Self {
        Self {
            issuer: list.issuer().as_raw().to_vec(),
            name: shown(list.issuer()),
            number: list.crl_number().cloned(),
            made: list.last_update().timestamp(),
        }
    }

    /// Whether it was made before another one of the same authority.
    fn is_older_than(&self, other: &Self) -> bool {
        match (&self.number, &other.number) {
            (Some(one), Some(other)) => one < other,
            _ => self.made < other.made,
        }
    }
}

/// A name for people. It is somebody else's text.
fn shown(name: &X509Name<'_>) -> String {
    name.to_string().escape_debug().to_string()
}

/// The lists that a directory had when it was read.
#[derive(Clone, Debug)]
pub(super) struct Lists {
    pub(super) revocations: Revocations,
    counted: Vec<Counted>,
    /// The names of the authorities.
    authorities: Vec<Vec<u8>>,
}

impl Lists {
    /// What must keep these from taking the place of others: those that are revoked there would be let in again.
    pub(super) fn check_after(&self, before: &Self, path: &Path) -> Result<(), TlsError> {
        for old in &before.counted {
            // Of an authority that is none any more nobody is let in.
            if !self.authorities.contains(&old.issuer) {
                continue;
            }
            let of_it = || self.counted.iter().filter(|new| new.issuer == old.issuer);
            let (path, issuer) = (path.display().to_string(), old.name.clone());
            if of_it().next().is_none() {
                return Err(TlsError::ListDropped { path, issuer });
            }
            if of_it().all(|new| new.is_older_than(old)) && !mutant("older_list_taken") {
                return Err(TlsError::ListOlder { path, issuer });
            }
        }
        Ok(())
    }
}

/// Looks whose the lists in a file are. The library does not ask: it leaves a list of an authority that it does not
/// know out of account, and with it what was revoked.
pub(super) fn check(
    path: &Path,
    lists: &[CertificateRevocationListDer<'_>],
    authorities: &[CertificateDer<'_>],
) -> Result<Lists, TlsError> {
    let wrong = |reason: &dyn std::fmt::Display| TlsError::file(path, reason.to_string());
    let authorities = authorities.iter().map(|one| X509Certificate::from_der(one));
    let authorities: Vec<X509Certificate<'_>> =
        authorities.filter_map(|parsed| Some(parsed.ok()?.1)).collect();
    // The library finds the list of a certificate by the name of its issuer.
    for (at, one) in authorities.iter().enumerate() {
        let is_twin = |other: &X509Certificate<'_>| {
            other.subject().as_raw() == one.subject().as_raw()
                && other.public_key().raw != one.public_key().raw
        };
        if authorities[..at].iter().any(is_twin) {
            let name = shown(one.subject());
            return Err(wrong(&format!(
                "two authorities in ca-cert.pem have the name {name} and different keys, so that it cannot be told \
                 whose list this is: leave one of them out, or make the new authority under another name (`weir pki \
                 init --name NAME`)"
            )));
        }
    }
    let mut renewal: Option<Duration> = None;
    let mut counted = Vec::new();
    for list in lists {
        let (_, list) = CertificateRevocationList::from_der(list).map_err(|error| wrong(&error))?;
        let named = |one: &&X509Certificate<'_>| {
            one.subject().as_raw() == list.tbs_cert_list.issuer.as_raw()
        };
        let mut named = authorities.iter().filter(named).peekable();
        // A list of another one may be that of an authority in between, which is known only from peers.
        if named.peek().is_none() {
            continue;
        }
        if !mutant("list_signed_by_nobody_taken") && !named.any(|one| has_signed(one, &list)) {
            let issuer = shown(list.issuer());
            return Err(wrong(&format!(
                "the list of {issuer} is not signed by the authority of that name in ca-cert.pem: copy the ca-crl.pem \
                 of that authority here"
            )));
        }
        counted.push(Counted::new(&list));
        let until = list.next_update().map(|at| u64::try_from(at.timestamp()).unwrap_or(0));
        renewal = renewal.into_iter().chain(until.map(Duration::from_secs)).min();
    }
    if counted.is_empty() && !mutant("list_of_another_authority_taken") {
        return Err(wrong(
            &"it has no list of an authority in ca-cert.pem: copy the ca-crl.pem of that authority here; where the \
              list is that of an authority in between, put its certificate into ca-cert.pem as well",
        ));
    }
    let authorities = authorities.iter().map(|one| one.subject().as_raw().to_vec()).collect();
    Ok(Lists { revocations: Revocations { renewal }, counted, authorities })
}

/// Whether a list is signed with the key of an authority.
fn has_signed(authority: &X509Certificate<'_>, list: &CertificateRevocationList<'_>) -> bool {
    let key = &authority.public_key().subject_public_key.data;
    let (message, signature) = (list.tbs_cert_list.as_ref(), &list.signature_value.data);
    let algorithms = default_provider().signature_verification_algorithms;
    algorithms.all.iter().any(|one| one.verify_signature(key, message, signature).is_ok())
}
