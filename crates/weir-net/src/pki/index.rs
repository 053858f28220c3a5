//! What an authority has issued, and what of it is revoked.

use std::path::Path;

use serde::{Deserialize, Serialize};
use weir_device::mutant;

use super::error::PkiError;
use super::files;
use crate::tls::{CLIENT, CLIENT_KEY, SERVER, SERVER_KEY};

const INDEX: &str = "index.json";

/// The version that this program writes; it reads no other.
const VERSION: u32 = 1;

/// What a certificate may be used for.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Usage {
    /// As a server, and as a client: what a node needs that does both.
    #[default]
    Both,
    /// As a server alone.
    Server,
    /// As a client alone.
    Client,
}

impl Usage {
    /// The files of the certificate.
    pub(super) fn certificate_files(self) -> &'static [&'static str] {
        match self {
            Self::Both => &[SERVER, CLIENT],
            Self::Server => &[SERVER],
            Self::Client => &[CLIENT],
        }
    }

    /// The files of its key.
    pub(super) fn key_files(self) -> &'static [&'static str] {
        match self {
            Self::Both => &[SERVER_KEY, CLIENT_KEY],
            Self::Server => &[SERVER_KEY],
            Self::Client => &[CLIENT_KEY],
        }
    }
}

/// A certificate that was issued. Times are seconds since the epoch of Unix.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Entry {
    /// Who holds it.
    pub name: String,
    /// Serial number, as hexadecimal digits.
    pub serial: String,
    /// Host names and addresses beside its name.
    pub hosts: Vec<String>,
    /// What it may be used for.
    pub usage: Usage,
    /// When it was issued.
    pub issued: i64,
    /// When it expires.
    pub expires: i64,
    /// When it was revoked.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub revoked: Option<i64>,
}

/// Certificates of a name that are revoked now.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Revoked {
    /// All of them.
    pub count: usize,
    /// Those that have expired. They open no connection; one that was opened before may stand on them.
    pub expired: usize,
}

/// The index of an authority.
#[derive(Debug, Serialize, Deserialize)]
pub(super) struct Index {
    version: u32,
    /// Revocation lists made so far: the number of the newest.
    pub(super) lists: u64,
    entries: Vec<Entry>,
}

impl Default for Index {
    fn default() -> Self {
        Self { version: VERSION, lists: 0, entries: Vec::new() }
    }
}

impl Index {
    pub(super) fn load(directory: &Path) -> Result<Self, PkiError> {
        let path = directory.join(INDEX);
        let index: Self = serde_json::from_str(&files::read(&path)?)
            .map_err(|error| PkiError::wrong(&path, &error))?;
        if index.version != VERSION {
            let reason = format!("it has version {}, this program reads {VERSION}", index.version);
            return Err(PkiError::wrong(&path, &reason));
        }
        Ok(index)
    }

    pub(super) fn save(&self, directory: &Path) -> Result<(), PkiError> {
        let path = directory.join(INDEX);
        let text = serde_json::to_string_pretty(self).map_err(|e| PkiError::wrong(&path, &e))?;
        files::write_private(&path, &text)
    }

    pub(super) fn entries(&self) -> &[Entry] {
        &self.entries
    }

    pub(super) fn push(&mut self, entry: Entry) {
        self.entries.push(entry);
    }

    /// The newest certificate of a name, unless it was revoked. It may have expired.
    pub(super) fn current(&self, name: &str) -> Option<&Entry> {
        let newest = self.entries.iter().rev().find(|entry| entry.name == name)?;
        newest.revoked.is_none().then_some(newest)
    }

    /// Revokes all of a name, those that have expired as well.
    pub(super) fn revoke(&mut self, name: &str, now: i64) -> Revoked {
        let mut revoked = Revoked { count: 0, expired: 0 };
        for entry in self.entries.iter_mut().filter(|entry| entry.name == name) {
            if entry.expires <= now && mutant("expired_not_revoked") {
                continue;
            }
            entry.revoked.get_or_insert(now);
            revoked.count += 1;
            revoked.expired += usize::from(entry.expires <= now);
        }
        revoked
    }
}

/// The bytes of a serial number.
pub(super) fn serial_bytes(digits: &str) -> Option<Vec<u8>> {
    let pairs = digits.as_bytes().chunks(2);
    pairs.map(|pair| u8::from_str_radix(std::str::from_utf8(pair).ok()?, 16).ok()).collect()
}
