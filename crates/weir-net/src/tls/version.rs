//! Which versions of TLS are spoken, and with which ciphers.

use std::fmt;
use std::str::FromStr;

use rustls::crypto::CryptoProvider;
use rustls::crypto::aws_lc_rs::{cipher_suite, default_provider};
use rustls::version::{TLS12, TLS13};
use rustls::{CommonState, ProtocolVersion, SupportedProtocolVersion};
use serde::Deserialize;

/// The oldest version that is spoken. Where both ends speak 1.3 it is what they agree on.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Deserialize)]
pub enum MinVersion {
    /// TLS 1.2 and 1.3.
    #[serde(rename = "1.2")]
    Tls12,
    /// TLS 1.3 alone.
    #[default]
    #[serde(rename = "1.3")]
    Tls13,
}

impl MinVersion {
    /// The newest that would have let this session begin.
    pub(super) fn of(session: &CommonState) -> Self {
        match session.protocol_version() {
            Some(ProtocolVersion::TLSv1_3) => Self::Tls13,
            _ => Self::Tls12,
        }
    }

    pub(super) fn versions(self) -> &'static [&'static SupportedProtocolVersion] {
        static BOTH: [&SupportedProtocolVersion; 2] = [&TLS13, &TLS12];
        match self {
            Self::Tls12 => &BOTH,
            Self::Tls13 => &BOTH[..1],
        }
    }

    /// Whether a server chooses among the ciphers that a client offers in its own order, or in the client's.
    pub(super) fn has_own_order(self) -> bool {
        self == Self::Tls12
    }

    /// The ciphers, in the order of preference. TLS 1.2 cannot change its keys: with AES-GCM the library ends a
    /// connection after 2^24 records, which a disk sends in an hour. So ChaCha20 comes first there; it has no limit
    /// that anybody reaches.
    pub(super) fn provider(self) -> CryptoProvider {
        let first = [
            cipher_suite::TLS_ECDHE_ECDSA_WITH_CHACHA20_POLY1305_SHA256,
            cipher_suite::TLS_ECDHE_RSA_WITH_CHACHA20_POLY1305_SHA256,
        ];
        let mut provider = default_provider();
        provider.cipher_suites.sort_by_key(|suite| {
            let is_old = suite.tls13().is_none();
            (is_old, is_old && !first.contains(suite))
        });
        provider
    }
}

impl fmt::Display for MinVersion {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Tls12 => "1.2",
            Self::Tls13 => "1.3",
        })
    }
}

impl FromStr for MinVersion {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match text {
            "1.2" => Ok(Self::Tls12),
            "1.3" => Ok(Self::Tls13),
            _ => Err(format!("{text:?} is no version that can be spoken: take 1.2 or 1.3")),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tls_1_2_prefers_the_cipher_that_needs_no_new_keys() {
        let names: Vec<String> = MinVersion::Tls12
            .provider()
            .cipher_suites
            .iter()
            .map(|suite| format!("{:?}", suite.suite()))
            .collect();
        let expected = [
            "TLS13_AES_256_GCM_SHA384",
            "TLS13_AES_128_GCM_SHA256",
            "TLS13_CHACHA20_POLY1305_SHA256",
            "TLS_ECDHE_ECDSA_WITH_CHACHA20_POLY1305_SHA256",
            "TLS_ECDHE_RSA_WITH_CHACHA20_POLY1305_SHA256",
            "TLS_ECDHE_ECDSA_WITH_AES_256_GCM_SHA384",
            "TLS_ECDHE_ECDSA_WITH_AES_128_GCM_SHA256",
            "TLS_ECDHE_RSA_WITH_AES_256_GCM_SHA384",
            "TLS_ECDHE_RSA_WITH_AES_128_GCM_SHA256",
        ];
        assert_eq!(names, expected);
    }
}
