//! One version of a node's lease. Page: `docs/formats/lease.md`.

use serde::{Deserialize, Serialize};

use crate::format::json::checksummed;
use crate::format::manifest::HexId;

/// Newest lease format that this code reads and writes.
pub const LEASE_FORMAT: u32 = 2;

/// Lease format of a renewal without a witness.
pub const LEASE_FORMAT_1: u32 = 1;

/// What a renewal saw of an opening. A journal of it that ends before that write is not the one that flushed it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct FlushedRecord {
    /// The opening.
    pub opening: HexId,
    /// The last write that its journal had flushed.
    pub write: u64,
}

/// Who renews a lease: a node, and one unbroken run of renewals of it. A run that missed its deadline is over for good;
/// the next one has another incarnation.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct LeaseIdentity {
    /// Names the chain of renewals.
    pub node: HexId,
    /// Names the unbroken run.
    pub incarnation: HexId,
}

/// What a volume that the node holds would lose with the node's disk, as of the renewal.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct LeasedVolume {
    /// The volume.
    pub volume: HexId,
    /// Bytes of its journal that no object held.
    pub dirty_bytes: u64,
    /// What survives a loss of power, as of the renewal; none before the first write may be acknowledged.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub flushed: Option<FlushedRecord>,
}

/// One version of `nodes/<node>/<number>.json`: a renewal.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct LeaseRecord {
    /// Format version.
    pub format: u32,
    /// Number of this version: the counter that others watch.
    pub number: u64,
    /// Unique to this version: tells its writer's lost reply from another's success.
    pub nonce: HexId,
    /// Names the chain.
    pub node: HexId,
    /// Names the unbroken run of renewals.
    pub incarnation: HexId,
    /// Host name of the node, for messages.
    pub name: String,
    /// How long the counter must stand still before others may act, in milliseconds.
    pub length_ms: u64,
    /// Seconds since the Unix epoch by the writer's clock, for humans and for deleting old versions.
    pub written_at: u64,
    /// The volumes that it holds: a hint for messages.
    pub volumes: Vec<LeasedVolume>,
    /// CRC32C, 8 hex digits, of this version as it is written with an empty checksum. Set by [`LeaseRecord::encode`].
    pub checksum: String,
}

checksummed!(LeaseRecord);

impl LeaseRecord {
    /// Whose renewal it is.
    #[must_use]
    pub fn identity(&self) -> LeaseIdentity {
        LeaseIdentity { node: self.node, incarnation: self.incarnation }
    }

    /// The format that readers must know to read it.
    #[must_use]
    pub fn format_needed(&self) -> u32 {
        let has_witness = self.volumes.iter().any(|volume| volume.flushed.is_some());
        if has_witness { LEASE_FORMAT } else { LEASE_FORMAT_1 }
    }

    /// Prefix of all versions of a node's lease.
    #[must_use]
    pub fn prefix(node: HexId) -> String {
        format!("nodes/{}/", String::from(node))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sample() -> LeaseRecord {
        LeaseRecord {
            format: LEASE_FORMAT,
            number: 7,
            nonce: HexId([1; 16]),
            node: HexId([2; 16]),
            incarnation: HexId([3; 16]),
            name: "host".into(),
            length_ms: 60_000,
            written_at: 1_790_000_000,
            volumes: vec![LeasedVolume {
                volume: HexId([4; 16]),
                dirty_bytes: 4096,
                flushed: Some(FlushedRecord { opening: HexId([5; 16]), write: 77 }),
            }],
            checksum: String::new(),
        }
    }

    #[test]
    fn records_read_back_and_wrong_ones_show() {
        let text = String::from_utf8(sample().encode()).unwrap();
        let read = serde_json::from_str::<LeaseRecord>(&text).unwrap();
        assert!(read.is_intact());
        assert_eq!(LeaseRecord { checksum: String::new(), ..read }, sample());
        let wrong = text.replacen("\"length_ms\": 60000", "\"length_ms\": 60001", 1);
        assert!(!serde_json::from_str::<LeaseRecord>(&wrong).unwrap().is_intact());
        let more = text.replacen('{', "{\"surprise\": 1,", 1);
        assert!(serde_json::from_str::<LeaseRecord>(&more).is_err());
    }
}
