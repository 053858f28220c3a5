//! The names of a store's volumes: each a chain of records, the highest number counts.

use bytes::Bytes;
use weir_device::VolumeId;
use weir_store::Put;

use crate::catalog::{Verb, VolumeName};
use crate::error::LogError;
use crate::format::manifest::HexId;
use crate::format::name::{NAME_FORMAT, NameRecord};
use crate::own::chain;
use crate::own::manifests::read_undamaged;

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
}
