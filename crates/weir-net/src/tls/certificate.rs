//! What a certificate says of its holder.

use std::time::Duration;

use rustls::pki_types::CertificateDer;
use x509_parser::prelude::{FromDer, GeneralName, X509Certificate};

/// Longest name, in bytes: what the common name of a certificate may have is less.
const NAME_BYTES_MAX: usize = 255;

/// Who a certificate was issued to, and until when.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Holder {
    /// The subject's common name; where it has none, the first DNS name among the alternative names.
    pub name: String,
    /// Serial number, as hexadecimal digits.
    pub serial: String,
    /// Beginning of its validity, since the epoch of Unix.
    pub begins: Duration,
    /// End of its validity, since the epoch of Unix.
    pub expires: Duration,
}

/// Why a certificate names nobody.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum NoHolder {
    /// It cannot be read.
    #[error("the certificate cannot be read: {0}")]
    Unreadable(String),
    /// Nobody is named.
    #[error("the certificate has neither a common name nor a DNS name")]
    NoName,
    /// It has several common names, and no rule says which one counts.
    #[error("the certificate has {0} common names; it must have one")]
    ManyNames(usize),
    /// A name that cannot stand in a configuration or a log.
    #[error(
        "the name in the certificate is empty, too long, or has characters that are not printed"
    )]
    BadName,
}

impl Holder {
    /// Who `certificate` was issued to. It must be verified before anybody relies on it.
    ///
    /// # Errors
    /// [`NoHolder`].
    pub fn of(certificate: &CertificateDer<'_>) -> Result<Self, NoHolder> {
        let parsed = parsed(certificate)?;
        let name = name_of(&parsed)?;
        let is_fit = !name.is_empty()
            && name.len() <= NAME_BYTES_MAX
            && name.chars().all(|c| !c.is_control() && !c.is_whitespace() || c == ' ');
        if !is_fit || name.trim() != name {
            return Err(NoHolder::BadName);
        }
        Ok(Self::named(name, &parsed))
    }

    /// Who an authority is. Nobody is let in by its name, so that it may have any: the whole of its subject, where it
    /// has no common name.
    ///
    /// # Errors
    /// [`NoHolder::Unreadable`].
    pub(super) fn of_authority(certificate: &CertificateDer<'_>) -> Result<Self, NoHolder> {
        let parsed = parsed(certificate)?;
        let name = name_of(&parsed).unwrap_or_else(|_| parsed.subject().to_string());
        Ok(Self::named(name.escape_debug().to_string(), &parsed))
    }

    fn named(name: String, certificate: &X509Certificate<'_>) -> Self {
        let since_epoch = |seconds| Duration::from_secs(u64::try_from(seconds).unwrap_or(0));
        let validity = certificate.validity();
        let begins = since_epoch(validity.not_before.timestamp());
        let expires = since_epoch(validity.not_after.timestamp());
        let serial = certificate.raw_serial().iter().map(|byte| format!("{byte:02x}")).collect();
        Self { name, serial, begins, expires }
    }
}

/// The public key in a certificate, in DER.
pub(super) fn public_key(certificate: &CertificateDer<'_>) -> Result<Vec<u8>, NoHolder> {
    Ok(parsed(certificate)?.public_key().raw.to_vec())
}

fn parsed<'a>(certificate: &'a CertificateDer<'_>) -> Result<X509Certificate<'a>, NoHolder> {
    let parsed = X509Certificate::from_der(certificate);
    parsed.map(|(_, parsed)| parsed).map_err(|error| NoHolder::Unreadable(error.to_string()))
}

fn name_of(certificate: &X509Certificate<'_>) -> Result<String, NoHolder> {
    let common: Vec<_> = certificate.subject().iter_common_name().collect();
    match common[..] {
        [] => {}
        [only] => return only.as_str().map(str::to_owned).map_err(|_| NoHolder::BadName),
        _ => return Err(NoHolder::ManyNames(common.len())),
    }
    let alternative = certificate.subject_alternative_name();
    let alternative = alternative.map_err(|error| NoHolder::Unreadable(error.to_string()))?;
    let names = alternative.iter().flat_map(|extension| &extension.value.general_names);
    let mut dns = names.filter_map(|name| match name {
        GeneralName::DNSName(name) => Some((*name).to_owned()),
        _ => None,
    });
    dns.next().ok_or(NoHolder::NoName)
}
