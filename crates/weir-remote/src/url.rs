//! Addresses of exports: NBD URIs.

use std::fmt;
use std::path::PathBuf;

use rustls_pki_types::ServerName;
use url::Url;
use weir_device::Address;
use weir_net::tls::Tls;

use crate::error::RemoteError;

/// The port of NBD.
const PORT: u16 = 10809;

/// Whether the connection is under TLS.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Security {
    /// In the clear.
    Clear,
    /// Under TLS, with a server whose certificate is one for this name.
    Tls(ServerName<'static>),
}

/// The name that a server's certificate must have, and the certificates to show it.
pub type Wanted<'a> = (&'a ServerName<'static>, &'a Tls);

impl Security {
    /// What TLS needs, where it is asked for.
    ///
    /// # Errors
    /// [`RemoteError::NoCertificates`].
    pub fn with<'a>(&'a self, tls: Option<&'a Tls>) -> Result<Option<Wanted<'a>>, RemoteError> {
        match self {
            Self::Clear => Ok(None),
            Self::Tls(name) => Ok(Some((name, tls.ok_or(RemoteError::NoCertificates)?))),
        }
    }
}

/// Where an export is: `nbd://HOST[:PORT]/EXPORT`, `nbds://` under TLS, `nbd+unix:///EXPORT?socket=PATH`,
/// `nbds+unix://`. With TLS, `tls-hostname=NAME` says which name the certificate must have, if not that of the host.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RemoteUrl {
    /// Where the server listens.
    pub address: Address,
    /// Name of the export; empty for the server's default.
    pub export: String,
    /// TLS or not.
    pub security: Security,
    shown: String,
}

impl fmt::Display for RemoteUrl {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.shown)
    }
}

/// The parameters of a URI.
#[derive(Default)]
struct Parameters {
    socket: Option<PathBuf>,
    hostname: Option<String>,
}

impl RemoteUrl {
    /// Reads a URI.
    ///
    /// # Errors
    /// [`RemoteError::Url`].
    pub fn parse(text: &str) -> Result<Self, RemoteError> {
        let wrong = |reason: String| RemoteError::Url { url: text.to_owned(), reason };
        let url = Url::parse(text).map_err(|error| wrong(error.to_string()))?;
        let (is_secure, is_unix) = match url.scheme() {
            "nbd" => (false, false),
            "nbds" => (true, false),
            "nbd+unix" => (false, true),
            "nbds+unix" => (true, true),
            other => {
                let known = "it begins with nbd://, nbds://, nbd+unix:// or nbds+unix://";
                return Err(wrong(format!("{known}, not {other}://")));
            }
        };
        if !url.username().is_empty() || url.password().is_some() {
            return Err(wrong("it names a user, which only TLS with shared keys has".to_owned()));
        }
        let Parameters { socket, hostname } = parameters(&url).map_err(wrong)?;
        let host = url.host_str().unwrap_or_default().trim_matches(['[', ']']).to_owned();
        let address = match (is_unix, socket) {
            (true, Some(path)) if host.is_empty() => Address::Unix(path),
            (true, Some(_)) => return Err(wrong("a unix socket has no host".to_owned())),
            (true, None) => return Err(wrong("it lacks socket=PATH".to_owned())),
            (false, Some(_)) => return Err(wrong("socket= belongs to nbd+unix://".to_owned())),
            (false, None) if host.is_empty() => return Err(wrong("it lacks a host".to_owned())),
            (false, None) => {
                let port = url.port().unwrap_or(PORT);
                Address::Tcp(match host.contains(':') {
                    true => format!("[{host}]:{port}"),
                    false => format!("{host}:{port}"),
                })
            }
        };
        let security = match (is_secure, hostname) {
            (false, None) => Security::Clear,
            (false, Some(_)) => return Err(wrong("tls-hostname= belongs to nbds://".to_owned())),
            (true, hostname) => {
                let local = || if host.is_empty() { "localhost".to_owned() } else { host.clone() };
                let name = hostname.unwrap_or_else(local);
                let name = ServerName::try_from(name).map_err(|error| wrong(error.to_string()))?;
                Security::Tls(name)
            }
        };
        // One slash is the URI's; a name that begins with one has two.
        let path = url.path();
        let export = decoded(path.strip_prefix('/').unwrap_or(path)).map_err(wrong)?;
        Ok(Self { address, export, security, shown: text.to_owned() })
    }
}

fn parameters(url: &Url) -> Result<Parameters, String> {
    let mut found = Parameters::default();
    for (key, value) in url.query_pairs() {
        match key.as_ref() {
            "socket" => found.socket = Some(PathBuf::from(value.as_ref())),
            "tls-hostname" => found.hostname = Some(value.into_owned()),
            "tls-certificates" => {
                return Err("certificates are given with --tls-certificates".to_owned());
            }
            other => return Err(format!("\"{other}\" is no parameter of it")),
        }
    }
    Ok(found)
}

/// The text of a path with its `%` sequences resolved.
fn decoded(path: &str) -> Result<String, String> {
    let mut bytes = Vec::with_capacity(path.len());
    let mut rest = path.as_bytes();
    while let Some((first, behind)) = rest.split_first() {
        rest = behind;
        if *first != b'%' {
            bytes.push(*first);
            continue;
        }
        let digits = behind.get(..2).and_then(|digits| std::str::from_utf8(digits).ok());
        let byte = digits.and_then(|digits| u8::from_str_radix(digits, 16).ok());
        bytes.push(byte.ok_or("a % that no two hexadecimal digits follow")?);
        rest = &behind[2..];
    }
    String::from_utf8(bytes).map_err(|_| "the name of the export is not UTF-8".to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parsed(text: &str) -> RemoteUrl {
        RemoteUrl::parse(text).unwrap_or_else(|error| panic!("{error}"))
    }

    fn tls(name: &str) -> Security {
        Security::Tls(ServerName::try_from(name.to_owned()).expect("a name"))
    }

    #[test]
    fn uris_name_a_place_an_export_and_tls() {
        let tcp = |address: &str| Address::Tcp(address.to_owned());
        let cases = [
            ("nbd://host/disk", tcp("host:10809"), "disk", Security::Clear),
            ("nbd://10.0.0.1:7", tcp("10.0.0.1:7"), "", Security::Clear),
            ("nbds://[::1]:8/a%20b", tcp("[::1]:8"), "a b", tls("::1")),
            (
                "nbds://host/x?tls-hostname=other.example",
                tcp("host:10809"),
                "x",
                tls("other.example"),
            ),
            (
                "nbd+unix:///disk?socket=/run/s",
                Address::Unix("/run/s".into()),
                "disk",
                Security::Clear,
            ),
            ("nbds+unix:///?socket=/run/s", Address::Unix("/run/s".into()), "", tls("localhost")),
            ("nbd://host//disk", tcp("host:10809"), "/disk", Security::Clear),
        ];
        for (text, address, export, security) in cases {
            let found = parsed(text);
            assert_eq!(
                (found.address, found.export.as_str(), found.security),
                (address, export, security)
            );
            assert_eq!(found.shown, text);
        }
    }

    #[test]
    fn what_is_no_address_is_refused_with_a_reason() {
        let cases = [
            ("disk", "relative URL"),
            ("http://host/x", "not http://"),
            ("nbd:///x", "lacks a host"),
            ("nbd+unix:///x", "lacks socket=PATH"),
            ("nbd+unix://host/x?socket=/s", "has no host"),
            ("nbd://host/x?socket=/s", "belongs to nbd+unix://"),
            ("nbd://host/x?tls-hostname=a", "belongs to nbds://"),
            ("nbd://host/x?colour=red", "\"colour\" is no parameter"),
            ("nbds://host/x?tls-certificates=/d", "--tls-certificates"),
            ("nbds://me@host/x", "names a user"),
            ("nbd://host/%ff", "not UTF-8"),
            ("nbd://host/%f", "hexadecimal"),
        ];
        for (text, reason) in cases {
            let error = RemoteUrl::parse(text).expect_err(text).to_string();
            assert!(error.contains(reason), "{text}: {error}");
        }
    }
}
