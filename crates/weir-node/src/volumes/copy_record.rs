//! How far a copy into or out of a volume has come, so that a second run goes on where the first one stopped.
//! Format: `docs/formats/copy-record.md`.

use std::io;
use std::os::unix::fs::DirBuilderExt;
use std::path::Path;

use serde::{Deserialize, Serialize};

/// Version of the format that is written.
const FORMAT: u32 = 2;

/// The progress of a copy. A record that is damaged, or about another copy, is not believed: the copy begins anew.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct CopyRecord {
    format: u32,
    /// The other end of the copy, for people: an image, a file, another volume.
    pub name: String,
    /// What tells the other end from everything else that it could have been replaced by.
    pub identity: String,
    /// Where the bytes come from a volume, the number of its opening that they were read in: as long as no other
    /// opening follows, the volume has not changed.
    pub opening: Option<u64>,
    /// Where a volume is filled, the number of its newest opening that this copy knows of: as long as there is no
    /// other, nobody else wrote to it. Format 1 did not have it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub target_opening: Option<u64>,
    /// The copy began on a blank target: what it did not write there reads as zeroes.
    pub blank: bool,
    /// Bytes from the beginning that are copied, durably.
    pub done_bytes: u64,
    /// CRC32C, 8 hex digits, of the record as it is written with an empty checksum.
    checksum: String,
}

/// Why a record is not believed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum CopyRecordError {
    /// It is no record.
    #[error("it is no record of a copy")]
    Malformed,
    /// A later program wrote it.
    #[error("it has a format that this program does not know")]
    NewerFormat,
    /// Its checksum is wrong.
    #[error("it fails its checksum")]
    Checksum,
}

impl CopyRecord {
    /// The record of a copy that is about to begin.
    #[must_use]
    pub fn new(name: String, identity: String, opening: Option<u64>, blank: bool) -> Self {
        let (format, done_bytes, checksum) = (FORMAT, 0, String::new());
        Self { format, name, identity, opening, target_opening: None, blank, done_bytes, checksum }
    }

    /// The bytes of the file.
    #[must_use]
    pub fn encode(&self) -> Vec<u8> {
        let checksum = self.computed_checksum();
        to_json(&Self { checksum, ..self.clone() })
    }

    /// Reads a record.
    ///
    /// # Errors
    /// Bytes that are no record, or not the one that was written.
    pub fn decode(bytes: &[u8]) -> Result<Self, CopyRecordError> {
        /// What all versions have.
        #[derive(Deserialize)]
        struct Any {
            format: u32,
        }
        let any: Any = serde_json::from_slice(bytes).map_err(|_| CopyRecordError::Malformed)?;
        if any.format > FORMAT {
            return Err(CopyRecordError::NewerFormat);
        }
        let record: Self = serde_json::from_slice(bytes).map_err(|_| CopyRecordError::Malformed)?;
        if record.checksum != record.computed_checksum() {
            return Err(CopyRecordError::Checksum);
        }
        Ok(Self { checksum: String::new(), ..record })
    }

    fn computed_checksum(&self) -> String {
        let plain = to_json(&Self { checksum: String::new(), ..self.clone() });
        let mut digest = crc_fast::Digest::new(crc_fast::CrcAlgorithm::Crc32Iscsi);
        digest.update(&plain);
        format!("{:08x}", digest.finalize())
    }

    /// The record at `path`, if there is one that can be believed.
    ///
    /// # Errors
    /// When the file is there and cannot be read.
    pub fn read(path: &Path) -> io::Result<Option<Self>> {
        let bytes = match std::fs::read(path) {
            Ok(bytes) => bytes,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
            Err(error) => return Err(error),
        };
        match Self::decode(&bytes) {
            Ok(record) => Ok(Some(record)),
            Err(error) => {
                tracing::warn!(path = %path.display(), %error, "the record of a copy is ignored");
                Ok(None)
            }
        }
    }

    /// Puts the record in the place of the one at `path`, durably. Makes the directory, for its owner alone, where it
    /// is missing.
    ///
    /// # Errors
    /// When it cannot be written.
    pub fn write(&self, path: &Path) -> io::Result<()> {
        if let Some(directory) = path.parent() {
            std::fs::DirBuilder::new().recursive(true).mode(0o700).create(directory)?;
            if let Some(above) = directory.parent() {
                weir_disk::adopt_directory(above)?;
            }
            weir_disk::adopt_directory(directory)?;
        }
        let new = path.with_extension("new");
        let mut file = std::fs::File::create(&new)?;
        weir_disk::adopt_file(&file, &new)?;
        io::Write::write_all(&mut file, &self.encode())?;
        file.sync_all()?;
        std::fs::rename(&new, path)?;
        match path.parent() {
            Some(directory) => std::fs::File::open(directory)?.sync_all(),
            None => Ok(()),
        }
    }
}

fn to_json(record: &CopyRecord) -> Vec<u8> {
    let mut text = serde_json::to_vec_pretty(record).expect("a record has only string keys");
    text.push(b'\n');
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    const GOLDEN: &[u8] = include_bytes!("../../testdata/v2/copy-record.json");
    const GOLDEN_V1: &[u8] = include_bytes!("../../testdata/v1/copy-record.json");

    fn sample() -> CopyRecord {
        let name = "/images/debian.qcow2".to_owned();
        let identity = "qcow2 2147483648 64769 1311 1763712000123456789".to_owned();
        let (done_bytes, target_opening) = (268_435_456, Some(3));
        CopyRecord { done_bytes, target_opening, ..CopyRecord::new(name, identity, Some(7), true) }
    }

    #[test]
    fn golden_record_of_version_2() {
        assert_eq!(String::from_utf8_lossy(&sample().encode()), String::from_utf8_lossy(GOLDEN));
        assert_eq!(CopyRecord::decode(GOLDEN), Ok(sample()));
    }

    #[test]
    fn golden_record_of_version_1() {
        let old = CopyRecord { format: 1, target_opening: None, ..sample() };
        assert_eq!(CopyRecord::decode(GOLDEN_V1).as_ref(), Ok(&old));
        assert_eq!(String::from_utf8_lossy(&old.encode()), String::from_utf8_lossy(GOLDEN_V1));
    }

    #[test]
    fn what_was_not_written_like_this_is_refused() {
        let good = sample().encode();
        for end in 0..good.len() - 1 {
            let cut = CopyRecord::decode(&good[..end]);
            assert_eq!(cut, Err(CopyRecordError::Malformed), "{end}");
        }
        let text = String::from_utf8(good).expect("text");
        let changed = text.replace("268435456", "368435456");
        assert_eq!(CopyRecord::decode(changed.as_bytes()), Err(CopyRecordError::Checksum));
        let more = text.replacen('{', "{\"surprise\": 1,", 1);
        assert_eq!(CopyRecord::decode(more.as_bytes()), Err(CopyRecordError::Malformed));
        let newer = text.replace("\"format\": 2", "\"format\": 3");
        assert_eq!(CopyRecord::decode(newer.as_bytes()), Err(CopyRecordError::NewerFormat));
    }

    #[test]
    fn a_record_replaces_the_one_before_it_and_a_damaged_one_counts_as_none() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("copy.json");
        assert_eq!(CopyRecord::read(&path).unwrap(), None);
        sample().write(&path).unwrap();
        let further = CopyRecord { done_bytes: 300_000_000, ..sample() };
        further.write(&path).unwrap();
        assert_eq!(CopyRecord::read(&path).unwrap(), Some(further));
        std::fs::write(&path, "{}").unwrap();
        assert_eq!(CopyRecord::read(&path).unwrap(), None);
        assert_eq!(std::fs::read_dir(directory.path()).unwrap().count(), 1, "nothing left over");
    }
}
