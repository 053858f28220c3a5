//! Half-open ranges of bytes.

use std::fmt;

/// The bytes `start..end` of a device. Empty when `start == end`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct ByteRange {
    /// First byte.
    pub start: u64,
    /// One past the last byte.
    pub end: u64,
}

impl ByteRange {
    /// The range `start..end`.
    ///
    /// # Panics
    /// If `end < start`.
    #[must_use]
    pub fn new(start: u64, end: u64) -> Self {
        assert!(start <= end, "a byte range ends before it starts");
        Self { start, end }
    }

    /// The range of `len` bytes from `offset`, or `None` where its end exceeds 64 bits.
    #[must_use]
    pub fn at(offset: u64, len: u64) -> Option<Self> {
        Some(Self { start: offset, end: offset.checked_add(len)? })
    }

    /// Length in bytes.
    #[must_use]
    pub fn len(&self) -> u64 {
        self.end - self.start
    }

    /// Whether the range holds no byte.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.start == self.end
    }

    /// The bytes that both ranges hold, or `None` where they share none.
    #[must_use]
    pub fn intersect(&self, other: Self) -> Option<Self> {
        let (start, end) = (self.start.max(other.start), self.end.min(other.end));
        (start < end).then_some(Self { start, end })
    }

    /// The smallest range of whole blocks around it. Blocks are counted from 0.
    #[must_use]
    pub fn blocks_around(&self, block_bytes: u64) -> Self {
        let start = self.start / block_bytes * block_bytes;
        Self { start, end: self.end.next_multiple_of(block_bytes).max(start) }
    }

    /// The largest range of whole blocks within it; empty if there is none.
    #[must_use]
    pub fn blocks_within(&self, block_bytes: u64) -> Self {
        let start = self.start.next_multiple_of(block_bytes);
        Self { start, end: (self.end / block_bytes * block_bytes).max(start) }
    }

    /// It in pieces of at most `bytes_max`.
    pub fn pieces(self, bytes_max: u64) -> impl Iterator<Item = Self> {
        let mut at = self.start;
        std::iter::from_fn(move || {
            let start = at;
            at = self.end.min(start.saturating_add(bytes_max));
            (start < at).then_some(Self { start, end: at })
        })
    }

    /// Whether every byte of `other` is in this range.
    #[must_use]
    pub fn contains(&self, other: Self) -> bool {
        self.start <= other.start && other.end <= self.end
    }
}

impl fmt::Display for ByteRange {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "bytes {}..{}", self.start, self.end)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_two_ranges_share() {
        let range = |start, end| ByteRange { start, end };
        assert_eq!(range(2, 6).intersect(range(4, 9)), Some(range(4, 6)));
        assert_eq!(range(4, 9).intersect(range(2, 6)), Some(range(4, 6)));
        assert_eq!(range(2, 9).intersect(range(4, 6)), Some(range(4, 6)));
        assert_eq!(range(2, 4).intersect(range(4, 6)), None, "they touch");
        assert_eq!(range(2, 3).intersect(range(5, 6)), None);
        assert!(range(2, 6).contains(range(2, 6)) && range(2, 6).contains(range(3, 5)));
        assert!(!range(2, 6).contains(range(1, 6)) && !range(2, 6).contains(range(2, 7)));
    }

    #[test]
    fn ranges_are_widened_and_narrowed_to_blocks() {
        let range = ByteRange::new;
        assert_eq!(range(1, 513).blocks_around(512), range(0, 1024));
        assert_eq!(range(512, 1024).blocks_around(512), range(512, 1024));
        assert_eq!(range(1, 1025).blocks_within(512), range(512, 1024));
        assert!(range(1, 511).blocks_within(512).is_empty());
    }

    #[test]
    fn pieces_follow_one_another_and_are_no_longer_than_said() {
        let found: Vec<_> = ByteRange::new(3, 10).pieces(3).collect();
        let expected = [(3, 6), (6, 9), (9, 10)].map(|(start, end)| ByteRange::new(start, end));
        assert_eq!(found, expected);
        assert_eq!(ByteRange::new(3, 3).pieces(3).count(), 0);
    }
}
