//! The units of a server.

use weir_device::ByteRange;
use weir_nbd::BlockSizes;
use weir_nbd::limits::PAYLOAD_BYTES_MAX;

/// The smallest unit of a server that does not say: what the protocol recommends to clients.
const UNSAID_MINIMUM: u64 = 512;

/// Longest write of zeroes in one request: a compact header has 32 bits for it, and some servers take less.
pub(crate) const ZEROES_MAX: u64 = 1 << 30;

/// What a server addresses.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Blocks {
    /// Every request begins and ends at a multiple of it.
    pub(crate) minimum: u64,
    /// Costs least.
    pub(crate) preferred: u64,
    /// Longest payload, a multiple of `minimum`.
    pub(crate) payload_max: u64,
}

impl Blocks {
    pub(crate) fn of(sizes: Option<BlockSizes>) -> Self {
        let unsaid = BlockSizes {
            minimum: u32::try_from(UNSAID_MINIMUM).unwrap_or(u32::MAX),
            preferred: 4096,
            payload_max: PAYLOAD_BYTES_MAX,
        };
        let BlockSizes { minimum, preferred, payload_max } = sizes.unwrap_or(unsaid);
        let minimum = u64::from(minimum);
        let payload_max = u64::from(payload_max.min(PAYLOAD_BYTES_MAX));
        Self {
            minimum,
            preferred: preferred.into(),
            payload_max: (payload_max / minimum * minimum).max(minimum),
        }
    }

    /// The smallest range of whole blocks around `range`.
    pub(crate) fn around(&self, range: ByteRange) -> ByteRange {
        range.blocks_around(self.minimum)
    }

    /// Whether a range can be addressed as it is.
    pub(crate) fn fits(&self, range: ByteRange) -> bool {
        self.around(range) == range
    }

    /// The largest range of whole blocks within `range`; empty if there is none.
    pub(crate) fn inside(&self, range: ByteRange) -> ByteRange {
        range.blocks_within(self.minimum)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_payload_is_whole_blocks_and_a_server_that_says_nothing_has_small_ones() {
        let blocks =
            Blocks::of(Some(BlockSizes { minimum: 512, preferred: 4096, payload_max: 1300 }));
        assert_eq!(blocks.payload_max, 1024);
        let range = ByteRange::new;
        assert!(blocks.fits(range(512, 1024)) && !blocks.fits(range(512, 1000)));
        assert_eq!(Blocks::of(None).minimum, UNSAID_MINIMUM);
    }
}
