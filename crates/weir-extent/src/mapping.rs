//! What the map stores and reports: targets, mappings, and the sink that joins what belongs together.

use crate::limits::TARGET_MAX;

/// What an extent points at. Values are at most [`TARGET_MAX`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Target {
    /// Byte `i` of the extent lives at this address plus `i`.
    Linear(u64),
    /// A constant for the whole extent (zeroes, poison, ...); it does not advance.
    Fixed(u64),
}

impl Target {
    /// The target of what begins `bytes` further on in the same extent.
    #[inline]
    #[must_use]
    pub fn advance(self, bytes: u64) -> Self {
        match self {
            Self::Linear(address) => Self::Linear(address + bytes),
            Self::Fixed(value) => Self::Fixed(value),
        }
    }

    /// Whether `self` can be the target of `bytes` bytes without passing [`TARGET_MAX`].
    #[inline]
    #[must_use]
    pub fn fits(self, bytes: u64) -> bool {
        match self {
            Self::Linear(address) => {
                address <= TARGET_MAX && bytes.saturating_sub(1) <= TARGET_MAX - address
            }
            Self::Fixed(value) => value <= TARGET_MAX,
        }
    }
}

/// A run of volume bytes and what it points at.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Mapping {
    /// First byte in the volume.
    pub offset: u64,
    /// Bytes; never zero.
    pub len: u64,
    /// What the first byte points at.
    pub target: Target,
}

impl Mapping {
    /// The byte after the last.
    #[inline]
    #[must_use]
    pub fn end(&self) -> u64 {
        self.offset + self.len
    }

    /// The part inside `first..end`, which must overlap it.
    #[inline]
    pub(crate) fn clip(self, first: u64, end: u64) -> Self {
        let offset = self.offset.max(first);
        let len = self.end().min(end) - offset;
        Self { offset, len, target: self.target.advance(offset - self.offset) }
    }

    /// Whether `next` begins where this one ends and points at where this one ends.
    #[inline]
    pub(crate) fn joins(&self, next: &Self) -> bool {
        self.end() == next.offset && self.target.advance(self.len) == next.target
    }
}

/// An extent inside a cell (a region or a block); offsets count from the cell's first byte.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Extent {
    pub(crate) start: u32,
    pub(crate) len: u32,
    pub(crate) target: Target,
}

impl Extent {
    #[inline]
    pub(crate) fn new(start: u32, end: u32, target: Target) -> Self {
        Self { start, len: end - start, target }
    }

    #[inline]
    pub(crate) fn end(&self) -> u32 {
        self.start + self.len
    }

    /// The part inside `first..end`, which must overlap it.
    #[inline]
    pub(crate) fn clip(&self, first: u32, end: u32) -> Self {
        let start = self.start.max(first);
        let target = self.target.advance(u64::from(start - self.start));
        Self { start, len: self.end().min(end) - start, target }
    }

    #[inline]
    pub(crate) fn joins(&self, next: &Self) -> bool {
        self.end() == next.start && self.target.advance(u64::from(self.len)) == next.target
    }

    #[inline]
    pub(crate) fn placed(&self, base: u64) -> Mapping {
        Mapping {
            offset: base + u64::from(self.start),
            len: u64::from(self.len),
            target: self.target,
        }
    }
}

/// Passes mappings on in order, joined where they continue each other, and counts the work.
pub(crate) struct Sink<'a> {
    pending: Option<Mapping>,
    out: &'a mut dyn FnMut(Mapping),
    units: usize,
}

impl<'a> Sink<'a> {
    pub(crate) fn new(out: &'a mut dyn FnMut(Mapping)) -> Self {
        Self { pending: None, out, units: 0 }
    }

    #[inline]
    pub(crate) fn push(&mut self, mapping: Mapping) {
        self.units += 1;
        match &mut self.pending {
            Some(held) if held.joins(&mapping) => held.len += mapping.len,
            Some(held) => {
                let done = std::mem::replace(held, mapping);
                (self.out)(done);
            }
            None => self.pending = Some(mapping),
        }
    }

    /// Counts work that reported nothing.
    #[inline]
    pub(crate) fn work(&mut self, units: usize) {
        self.units += units;
    }

    #[inline]
    pub(crate) fn units(&self) -> usize {
        self.units
    }

    pub(crate) fn finish(self) {
        if let Some(held) = self.pending {
            (self.out)(held);
        }
    }
}
