//! The record of a name. Page: `docs/formats/manifest.md`, *Names*.

use serde::de::Error;
use serde::{Deserialize, Serialize};

use crate::format::json::{checksummed, format_of};
use crate::format::manifest::HexId;

/// Newest format of name records that this code reads and writes.
pub const NAME_FORMAT: u32 = 2;

/// What a name points at: one version of `names/<name>/<number>.json`. A name is never changed, only superseded.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct NameRecord {
    /// Format version.
    pub format: u32,
    /// The name.
    pub name: String,
    /// Number of this version.
    pub number: u64,
    /// Unique to the writer.
    pub nonce: HexId,
    /// The volume, or none once it was deleted.
    pub volume: Option<HexId>,
    /// CRC32C, 8 hex digits, of this version as it is written with an empty checksum. Set by [`NameRecord::encode`].
    pub checksum: String,
}

checksummed!(NameRecord);

/// Format 1: it does not say whose record it is, and nothing shows a wrong bit.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct NameRecordV1 {
    #[serde(rename = "format")]
    _format: u32,
    nonce: HexId,
    volume: Option<HexId>,
}

impl NameRecord {
    /// Reads version `number` of `name`.
    ///
    /// # Errors
    /// Not such a record, that of another name or number, damaged, or of a newer format.
    pub fn decode(bytes: &[u8], name: &str, number: u64) -> Result<Self, serde_json::Error> {
        let value: serde_json::Value = serde_json::from_slice(bytes)?;
        let format = format_of(&value);
        if format > NAME_FORMAT {
            let known = NAME_FORMAT;
            let problem =
                format!("it has format {format}, this Weir reads up to {known}; use a newer Weir");
            return Err(Error::custom(problem));
        }
        if format == 1 {
            let NameRecordV1 { nonce, volume, .. } = serde_json::from_value(value)?;
            let (name, checksum) = (name.to_owned(), String::new());
            return Ok(Self { format: NAME_FORMAT, name, number, nonce, volume, checksum });
        }
        let record: Self = serde_json::from_value(value)?;
        if !record.is_intact() {
            return Err(Error::custom("it fails its checksum"));
        }
        if record.name != name || record.number != number {
            return Err(Error::custom("it is the record of another name or number"));
        }
        Ok(record)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn records_read_back_and_wrong_ones_show() {
        let record = NameRecord {
            format: NAME_FORMAT,
            name: "demo".into(),
            number: 3,
            nonce: HexId([1; 16]),
            volume: Some(HexId([2; 16])),
            checksum: String::new(),
        };
        let bytes = record.encode();
        let read = NameRecord::decode(&bytes, "demo", 3).unwrap();
        assert_eq!(NameRecord { checksum: String::new(), ..read }, record);
        assert!(NameRecord::decode(&bytes, "demo", 4).is_err());
        assert!(NameRecord::decode(&bytes, "other", 3).is_err());
        for bit in 0..bytes.len() * 8 {
            let mut wrong = bytes.clone();
            wrong[bit / 8] ^= 1 << (bit % 8);
            let read = NameRecord::decode(&wrong, "demo", 3).ok();
            assert!(read.is_none_or(|read| read.encode() == bytes), "bit {bit} goes unnoticed");
        }
        for end in 0..bytes.len() {
            assert!(NameRecord::decode(&bytes[..end], "demo", 3).is_err());
        }
        let newer = String::from_utf8(bytes).unwrap().replacen("\"format\": 2", "\"format\": 3", 1);
        let error = NameRecord::decode(newer.as_bytes(), "demo", 3).unwrap_err();
        assert!(error.to_string().contains("use a newer Weir"), "{error}");
    }
}
