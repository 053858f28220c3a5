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
}
