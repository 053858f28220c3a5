//! What a probe leaves in the store. Format: `docs/formats/probe-record.md`.

use serde::{Deserialize, Serialize};

use super::Verdict;

/// Version of the format that is written.
const FORMAT: u32 = 1;

/// The result of a probe, as it is kept in the store.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ProbeRecord {
    /// Version of the format.
    pub format: u32,
    /// The store it is about: service and URL.
    pub store: String,
    /// What the store is good for.
    pub verdict: Verdict,
    /// What it does wrong, for people.
    pub finding: Option<String>,
    /// CRC32C, 8 hex digits, of the record as it is written with an empty checksum.
    pub checksum: String,
}

/// Why a record is not believed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ProbeRecordError {
    /// It is no record.
    #[error("it is no record of a probe")]
    Malformed,
    /// A later program wrote it.
    #[error("it has a format that this program does not know")]
    NewerFormat,
    /// Its checksum is wrong.
    #[error("it fails its checksum")]
    Checksum,
}

impl ProbeRecord {
    pub(super) fn new(store: String, verdict: Verdict, finding: Option<String>) -> Self {
        let plain = Self { format: FORMAT, store, verdict, finding, checksum: String::new() };
        Self { checksum: plain.computed_checksum(), ..plain }
    }

    /// The bytes in the store.
    #[must_use]
    pub fn encode(&self) -> Vec<u8> {
        serde_json::to_vec_pretty(self).expect("a record has only string keys")
    }

    /// Reads a record.
    ///
    /// # Errors
    /// Bytes that are no record, or not the one that was written.
    pub fn decode(bytes: &[u8]) -> Result<Self, ProbeRecordError> {
        /// What all versions have.
        #[derive(Deserialize)]
        struct Any {
            format: u32,
        }
        let any: Any = serde_json::from_slice(bytes).map_err(|_| ProbeRecordError::Malformed)?;
        if any.format > FORMAT {
            return Err(ProbeRecordError::NewerFormat);
        }
        let record: Self =
            serde_json::from_slice(bytes).map_err(|_| ProbeRecordError::Malformed)?;
        if record.checksum == record.computed_checksum() {
            Ok(record)
        } else {
            Err(ProbeRecordError::Checksum)
        }
    }

    fn computed_checksum(&self) -> String {
        let plain = Self { checksum: String::new(), ..self.clone() }.encode();
        format!("{:08x}", digest(crc_fast::CrcAlgorithm::Crc32Iscsi, &plain))
    }
}

/// Tells stores apart in the names of records.
pub(super) fn fingerprint(identity: &str) -> u64 {
    digest(crc_fast::CrcAlgorithm::Crc64Nvme, identity.as_bytes())
}

fn digest(algorithm: crc_fast::CrcAlgorithm, bytes: &[u8]) -> u64 {
    let mut digest = crc_fast::Digest::new(algorithm);
    digest.update(bytes);
    digest.finalize()
}

#[cfg(test)]
mod tests {
    use super::*;

    const GOLDEN: &str = include_str!("../../testdata/v1/probe-record.json");

    fn sample() -> ProbeRecord {
        let store = "http://127.0.0.1:9000 s3://bucket/prefix".to_owned();
        let finding = "5 of 16 racing writers were told that they created the object".to_owned();
        ProbeRecord::new(store, Verdict::SingleWriter, Some(finding))
    }

    #[test]
    fn golden_record_of_version_1() {
        assert_eq!(String::from_utf8(sample().encode()).expect("text"), GOLDEN.trim_end());
        assert_eq!(ProbeRecord::decode(GOLDEN.as_bytes()), Ok(sample()));
        let key = fingerprint("http://127.0.0.1:9000 s3://bucket/prefix");
        assert_eq!(format!("{key:016x}"), "c78b0de258cd33d0");
    }

    #[test]
    fn what_was_not_written_like_this_is_refused() {
        let good = sample().encode();
        for end in 0..good.len() {
            assert_eq!(
                ProbeRecord::decode(&good[..end]),
                Err(ProbeRecordError::Malformed),
                "{end}"
            );
        }
        let text = String::from_utf8(good).expect("text");
        let changed = text.replace("single-writer", "usable");
        assert_eq!(ProbeRecord::decode(changed.as_bytes()), Err(ProbeRecordError::Checksum));
        let more = text.replacen('{', "{\"surprise\": 1,", 1);
        assert_eq!(ProbeRecord::decode(more.as_bytes()), Err(ProbeRecordError::Malformed));
        let newer = text.replace("\"format\": 1", "\"format\": 2");
        assert_eq!(ProbeRecord::decode(newer.as_bytes()), Err(ProbeRecordError::NewerFormat));
    }
}
