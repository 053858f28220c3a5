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
        let start = range.start / self.minimum * self.minimum;
        ByteRange::new(start, range.end.next_multiple_of(self.minimum).max(start))
    }

    /// Whether a range can be addressed as it is.
    pub(crate) fn fits(&self, range: ByteRange) -> bool {
        self.around(range) == range
    }

    /// The largest range of whole blocks within `range`; empty if there is none.
    pub(crate) fn inside(&self, range: ByteRange) -> ByteRange {
        let start = range.start.next_multiple_of(self.minimum);
        let end = range.end / self.minimum * self.minimum;
        ByteRange::new(start, end.max(start))
    }
}

/// A range in pieces of at most `most` bytes.
pub(crate) fn pieces(range: ByteRange, most: u64) -> impl Iterator<Item = ByteRange> {
    let mut at = range.start;
    std::iter::from_fn(move || {
        let start = at;
        at = range.end.min(start.saturating_add(most));
        (start < at).then(|| ByteRange::new(start, at))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranges_are_widened_and_narrowed_to_blocks() {
        let blocks =
            Blocks::of(Some(BlockSizes { minimum: 512, preferred: 4096, payload_max: 1300 }));
        assert_eq!(blocks.payload_max, 1024);
        let range = ByteRange::new;
        assert_eq!(blocks.around(range(1, 513)), range(0, 1024));
        assert_eq!(blocks.inside(range(1, 1025)), range(512, 1024));
        assert!(blocks.inside(range(1, 511)).is_empty());
        assert!(blocks.fits(range(512, 1024)) && !blocks.fits(range(512, 1000)));
        assert_eq!(Blocks::of(None).minimum, UNSAID_MINIMUM);
    }

    #[test]
    fn pieces_follow_one_another_and_are_no_longer_than_said() {
        let found: Vec<_> = pieces(ByteRange::new(3, 10), 3).collect();
        let expected = [(3, 6), (6, 9), (9, 10)].map(|(start, end)| ByteRange::new(start, end));
        assert_eq!(found, expected);
        assert_eq!(pieces(ByteRange::new(3, 3), 3).count(), 0);
    }
}
