//! What the JSON formats share: how they are written, and their checksum.

use serde::Serialize;

use crate::format::crc32c;

/// As it is stored: indented by two, fields in the order of their declaration.
pub(crate) fn to_json(record: &impl Serialize) -> Vec<u8> {
    serde_json::to_vec_pretty(record).expect("the records of this crate have only string keys")
}

/// CRC32C, 8 hex digits, of a record whose own checksum is empty. A wrong bit in a number is valid JSON all the same.
pub(crate) fn checksum_of(record_without_checksum: &impl Serialize) -> String {
    format!("{:08x}", crc32c(&[&to_json(record_without_checksum)]))
}
