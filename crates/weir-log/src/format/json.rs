//! What the JSON formats share: how they are written, and their checksum.

use serde::Serialize;
use serde::de::DeserializeOwned;

use crate::format::crc32c;

/// As it is stored: indented by two, fields in the order of their declaration.
pub(crate) fn to_json(record: &impl Serialize) -> Vec<u8> {
    serde_json::to_vec_pretty(record).expect("the records of this crate have only string keys")
}

/// The format that a record says it has, 0 where it says none: looked at first, because a newer format may have fields
/// that this code refuses.
pub(crate) fn format_of(record: &serde_json::Value) -> u32 {
    let format = record.get("format").and_then(serde_json::Value::as_u64).unwrap_or(0);
    u32::try_from(format).unwrap_or(u32::MAX)
}

/// CRC32C, 8 hex digits, of a record whose own checksum is empty. A wrong bit in a number is valid JSON all the same.
pub(crate) fn checksum_of(record_without_checksum: &impl Serialize) -> String {
    format!("{:08x}", crc32c(&[&to_json(record_without_checksum)]))
}

/// The record that bytes are; `None` if they are not what its writer wrote.
pub(crate) fn read_whole<T: DeserializeOwned>(
    bytes: &[u8],
    is_intact: fn(&T) -> bool,
) -> Option<T> {
    serde_json::from_slice(bytes).ok().filter(is_intact)
}

/// For a record with a `checksum` of itself: how it is written, and whether it is still what was written.
macro_rules! checksummed {
    ($record:ident) => {
        impl $record {
            /// The bytes of the record in the store.
            #[must_use]
            pub fn encode(&self) -> Vec<u8> {
                let checksum = self.computed_checksum();
                $crate::format::json::to_json(&Self { checksum, ..self.clone() })
            }

            /// Whether it says what its writer wrote.
            #[must_use]
            pub fn is_intact(&self) -> bool {
                self.checksum == self.computed_checksum()
            }

            fn computed_checksum(&self) -> String {
                let checksum = String::new();
                $crate::format::json::checksum_of(&Self { checksum, ..self.clone() })
            }
        }
    };
}
pub(crate) use checksummed;
