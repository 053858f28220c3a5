//! Revocation lists: whose they are, and when they were to be renewed.

use std::path::Path;
use std::time::Duration;

use rustls::crypto::aws_lc_rs::default_provider;
use rustls::pki_types::{CertificateDer, CertificateRevocationListDer};
use weir_device::mutant;
use x509_parser::prelude::{CertificateRevocationList, FromDer, X509Certificate};

use super::error::TlsError;

/// What is in use of what authorities have revoked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Revocations {
    /// When the first of the lists is to be renewed, since the epoch of Unix; none where no list says so. A list counts
    /// beyond that.
    pub renewal: Option<Duration>,
}

/// Looks whose the lists in a file are. The library does not ask: it leaves a list of an authority that it does not
/// know out of account, and with it what was revoked.
pub(super) fn check(
    path: &Path,
    lists: &[CertificateRevocationListDer<'_>],
    authorities: &[CertificateDer<'_>],
) -> Result<Revocations, TlsError> {
    let wrong = |reason: &dyn std::fmt::Display| TlsError::file(path, reason.to_string());
    let authorities = authorities.iter().map(|one| X509Certificate::from_der(one));
    let authorities: Vec<X509Certificate<'_>> =
        authorities.filter_map(|parsed| Some(parsed.ok()?.1)).collect();
    let mut renewal: Option<Duration> = None;
    let mut is_ours = false;
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
            let issuer = list.issuer().to_string().escape_debug().to_string();
            return Err(wrong(&format!(
                "the list of {issuer} is not signed by the authority of that name in ca-cert.pem: copy the ca-crl.pem \
                 of that authority here"
            )));
        }
        is_ours = true;
        let until = list.next_update().map(|at| u64::try_from(at.timestamp()).unwrap_or(0));
        renewal = renewal.into_iter().chain(until.map(Duration::from_secs)).min();
    }
    if !is_ours && !mutant("list_of_another_authority_taken") {
        return Err(wrong(
            &"it has no list of an authority in ca-cert.pem: copy the ca-crl.pem of that authority here; where the \
              list is that of an authority in between, put its certificate into ca-cert.pem as well",
        ));
    }
    Ok(Revocations { renewal })
}

/// Whether a list is signed with the key of an authority.
fn has_signed(authority: &X509Certificate<'_>, list: &CertificateRevocationList<'_>) -> bool {
    let key = &authority.public_key().subject_public_key.data;
    let (message, signature) = (list.tbs_cert_list.as_ref(), &list.signature_value.data);
    let algorithms = default_provider().signature_verification_algorithms;
    algorithms.all.iter().any(|one| one.verify_signature(key, message, signature).is_ok())
}
