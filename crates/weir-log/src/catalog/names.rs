//! The names of a store's volumes: each a chain of records, the highest number counts.

use std::time::Duration;

use bytes::Bytes;
use serde::Serialize;
use weir_device::{Env, VolumeId, mutant};
use weir_store::{Put, RetryPolicy, Store, StoreError};

use crate::error::LogError;
use crate::format::manifest::{HexId, Manifest, PLAIN_FORMAT, Takeover, VolumeState};
use crate::format::name::{NAME_FORMAT, NameRecord};
use crate::limits::VOLUME_BYTES_MAX;
use crate::own::chain;
use crate::own::manifests::{find_newest, read_undamaged};

/// Longest name in bytes: fits a file name with room for a suffix, and a socket path.
const NAME_BYTES_MAX: usize = 64;

/// How long a verb goes on retrying a failing store before it says so.
const VERB_DEADLINE: Duration = Duration::from_secs(30);

/// The name of a volume: 1 to 64 of `A-Z a-z 0-9 . _ -`, beginning with a letter or a digit.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(transparent)]
pub struct VolumeName(String);

impl VolumeName {
    /// Checks a name.
    ///
    /// # Errors
    /// [`LogError::Name`] saying which rule it breaks.
    pub fn new(name: &str) -> Result<Self, LogError> {
        let allowed = |b: u8| b.is_ascii_alphanumeric() || matches!(b, b'.' | b'_' | b'-');
        let reason = if name.is_empty() {
            "it is empty"
        } else if name.len() > NAME_BYTES_MAX {
            "it is longer than 64 bytes"
        } else if !name.bytes().all(allowed) {
            "only letters, digits, '.', '_' and '-' are allowed"
        } else if !name.as_bytes()[0].is_ascii_alphanumeric() {
            "it must begin with a letter or a digit"
        } else {
            return Ok(Self(name.to_owned()));
        };
        Err(LogError::Name { name: name.to_owned(), reason })
    }

    /// The name.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl std::fmt::Display for VolumeName {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.0)
    }
}

/// Checks a size.
///
/// # Errors
/// [`LogError::Size`] saying which rule it breaks.
pub fn check_size(size: u64) -> Result<(), LogError> {
    match size {
        0 => Err(LogError::Size { size, reason: "it must be at least 1 byte" }),
        1..=VOLUME_BYTES_MAX => Ok(()),
        _ => Err(LogError::Size { size, reason: "the limit is 8 EiB less 4 KiB" }),
    }
}

/// A store, for verbs.
#[derive(Clone, Copy)]
pub(crate) struct Verb<'a> {
    pub(crate) store: &'a Store,
    pub(crate) env: &'a Env,
}

impl Verb<'_> {
    pub(crate) async fn retry<T, F>(&self, attempt: impl FnMut() -> F) -> Result<T, StoreError>
    where
        F: Future<Output = Result<T, StoreError>>,
    {
        let mut random = || self.env.random.next_u64();
        let policy = RetryPolicy::reads();
        self.store.retry(&policy, &mut random, Some(VERB_DEADLINE), attempt).await
    }

    pub(crate) fn nonce(&self) -> HexId {
        let mut bytes = [0; 16];
        self.env.random.fill(&mut bytes);
        HexId(bytes)
    }
}

/// Prefix of all names.
pub(crate) const NAMES: &str = "names/";

fn prefix_of(name: &VolumeName) -> String {
    format!("{NAMES}{name}/")
}

/// Name and number in the key of a record.
pub(crate) fn parse_name_key(key: &str) -> Option<(VolumeName, u64)> {
    let (name, _) = key.strip_prefix(NAMES)?.rsplit_once('/')?;
    Some((VolumeName::new(name).ok()?, chain::parse_key(key)?))
}

impl Verb<'_> {
    /// A record of a name. A writer that is told by a damaged one that somebody else has its name gives up for good.
    pub(crate) async fn read_name(
        &self,
        name: &VolumeName,
        number: u64,
    ) -> Result<NameRecord, LogError> {
        let key = chain::key(&prefix_of(name), number);
        let read = async || {
            let bytes = self.retry(|| self.store.get(&key)).await?;
            NameRecord::decode(&bytes, name.as_str(), number).map_err(|source| {
                let (key, store) = (key.clone(), self.store.url().to_owned());
                LogError::Json { key, store, what: "a name record", source }
            })
        };
        read_undamaged(read).await
    }

    /// The newest record of a name.
    pub(crate) async fn newest_name(
        &self,
        name: &VolumeName,
    ) -> Result<Option<NameRecord>, LogError> {
        let prefix = prefix_of(name);
        let numbers = self.retry(|| chain::numbers(self.store, &prefix)).await?;
        match numbers.last() {
            Some(number) => self.read_name(name, *number).await.map(Some),
            None => Ok(None),
        }
    }

    /// The number of the next record of a name that no volume has.
    pub(crate) async fn next_free(&self, name: &VolumeName) -> Result<u64, LogError> {
        match self.newest_name(name).await? {
            Some(NameRecord { volume: Some(_), .. }) => Err(self.name_is_taken(name)),
            Some(NameRecord { number, .. }) => Ok(number + 1),
            None => Ok(1),
        }
    }

    pub(crate) fn name_is_taken(&self, name: &VolumeName) -> LogError {
        LogError::Exists { name: name.to_string(), store: self.store.url().to_owned() }
    }

    /// Publishes the next record of a name; `false` when somebody else was first.
    pub(crate) async fn publish_name(
        &self,
        name: &VolumeName,
        number: u64,
        volume: Option<VolumeId>,
    ) -> Result<bool, LogError> {
        let record = NameRecord {
            format: NAME_FORMAT,
            name: name.to_string(),
            number,
            nonce: self.nonce(),
            volume: volume.map(HexId::from),
            checksum: String::new(),
        };
        let body = Bytes::from(record.encode());
        let key = chain::key(&prefix_of(name), number);
        match self.retry(|| self.store.put_create(&key, vec![body.clone()])).await? {
            Put::Created => Ok(true),
            // Perhaps our own, from an attempt whose reply was lost.
            Put::Exists => Ok(self.read_name(name, number).await?.nonce == record.nonce),
        }
    }
}

/// The manifest of a volume before its first version.
pub(crate) fn blank(id: VolumeId, name: &str) -> Manifest {
    Manifest {
        format: PLAIN_FORMAT,
        number: 0,
        nonce: HexId([0; 16]),
        volume: id.into(),
        name: name.to_owned(),
        size: 0,
        state: VolumeState::Active,
        written_at: 0,
        epochs: Vec::new(),
        takeover: Takeover::Manual,
        holder: None,
        checkpoint: None,
        lineage: Vec::new(),
        origin: None,
        replica: None,
        origins: Vec::new(),
        snapshots: Vec::new(),
        pending_deletions: Vec::new(),
        encryption: None,
        object_version: None,
        closed: None,
        salvage: Vec::new(),
        checksum: String::new(),
    }
}

/// The volume of a name.
///
/// # Errors
/// [`LogError::NoSuchVolume`], or what the store says.
pub async fn find(store: &Store, env: &Env, name: &VolumeName) -> Result<VolumeId, LogError> {
    match (Verb { store, env }).newest_name(name).await? {
        Some(NameRecord { volume: Some(id), .. }) => Ok(VolumeId(id.0)),
        _ => Err(LogError::NoSuchVolume { name: name.to_string(), store: store.url().to_owned() }),
    }
}

/// Whether the store lost a volume that was open out of it under this name: nothing at all stands under the name, or
/// there is no manifest of this volume, which a deletion leaves. The name alone does not tell: another volume may have
/// been deleted under it.
///
/// # Errors
/// What the store says.
pub async fn is_lost(
    store: &Store,
    env: &Env,
    volume: VolumeId,
    name: &VolumeName,
) -> Result<bool, LogError> {
    let verb = Verb { store, env };
    if verb.newest_name(name).await?.is_none() {
        return Ok(true);
    }
    let is_gone = find_newest(store, env, volume).await?.is_none();
    Ok(is_gone && !mutant("lost_name_is_any_record"))
}

/// Points a name at `to`, which stood for `from` before, or for nothing.
///
/// # Errors
/// [`LogError::Exists`] where it stands for something else, or what the store says.
pub(crate) async fn point(
    store: &Store,
    env: &Env,
    name: &VolumeName,
    from: Option<VolumeId>,
    to: VolumeId,
) -> Result<(), LogError> {
    let verb = Verb { store, env };
    loop {
        let (number, stands_for) = match verb.newest_name(name).await? {
            Some(record) => (record.number, record.volume.map(|id| VolumeId(id.0))),
            None => (0, None),
        };
        if stands_for == Some(to) {
            return Ok(());
        }
        if stands_for.is_some() && stands_for != from {
            return Err(verb.name_is_taken(name));
        }
        // Whoever was first may have done the same.
        if verb.publish_name(name, number + 1, Some(to)).await? {
            return Ok(());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn name_keys_read_back() {
        let name = VolumeName::new("demo").unwrap();
        assert_eq!(parse_name_key(&chain::key(&prefix_of(&name), 3)), Some((name, 3)));
        assert_eq!(parse_name_key("names/demo/3.json"), None);
        assert_eq!(parse_name_key("names/demo/a/0000000000000003.json"), None);
    }

    #[test]
    fn names_follow_the_rules() {
        for good in ["a", "demo", "db-1.main_2", "0", &"x".repeat(64)] {
            assert!(VolumeName::new(good).is_ok(), "{good}");
        }
        for bad in ["", ".", "..", "a/b", "../x", "-rf", "a b", "na\u{ef}ve", &"x".repeat(65)] {
            assert!(VolumeName::new(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn sizes_follow_the_rules() {
        assert!(check_size(0).is_err());
        assert!(check_size(1).is_ok());
        assert!(check_size(VOLUME_BYTES_MAX).is_ok());
        assert!(check_size(u64::MAX).is_err());
    }
}
