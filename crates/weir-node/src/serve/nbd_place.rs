//! Where NBD clients find a process: the addresses of the settings, and the URIs that are shown.

use std::path::{Path, PathBuf};

/// Where volumes are offered over NBD.
#[derive(Clone, Debug)]
pub enum NbdAddress {
    /// A unix socket.
    Unix(PathBuf),
    /// A TCP address.
    Tcp {
        /// `host:port`.
        address: String,
        /// Take clients without TLS as well, also at an address that other machines reach.
        insecure: bool,
    },
}

/// Who may connect to unix sockets for NBD. Where nothing is set, the mask of the process and the owner of the
/// directory decide. Inherited sockets keep their mode and group.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct NbdAccess {
    /// Permissions of the socket's file.
    pub mode: Option<u32>,
    /// Its group.
    pub group: Option<u32>,
}

/// A socket for NBD, to be shown as a URI.
#[derive(Clone, Debug)]
pub(crate) enum NbdPlace {
    /// A unix socket.
    Unix(PathBuf),
    /// A TCP address.
    Tcp {
        /// Host and port.
        address: String,
        /// Whether clients must speak TLS.
        tls: bool,
    },
}

impl NbdPlace {
    /// The URI of a volume there; of all of them without a name.
    pub(crate) fn uri(&self, volume: &str) -> String {
        match self {
            Self::Unix(path) => format!("nbd+unix:///{volume}?socket={}", uri_path(path)),
            Self::Tcp { address, tls: false } => format!("nbd://{address}/{volume}"),
            Self::Tcp { address, tls: true } => format!("nbds://{address}/{volume}"),
        }
    }
}

/// A path as the query of a URI takes it.
fn uri_path(path: &Path) -> String {
    let mut text = String::new();
    for &byte in std::os::unix::ffi::OsStrExt::as_bytes(path.as_os_str()) {
        if byte.is_ascii_alphanumeric() || b"/._~-".contains(&byte) {
            text.push(char::from(byte));
        } else {
            text.push_str(&format!("%{byte:02X}"));
        }
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn paths_are_quoted_in_uris() {
        let quoted = |path: &str| uri_path(Path::new(path));
        assert_eq!(quoted("/a-b/c_d~e.sock"), "/a-b/c_d~e.sock");
        assert_eq!(quoted("/a b?c=d&e%"), "/a%20b%3Fc%3Dd%26e%25");
    }
}
