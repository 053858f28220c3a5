//! What can be asked of a device, with everything that the call needs: a device owns it from the call on.

use crate::{ByteRange, DeviceError, ErrorKind, SharedBuf};

/// What kind of operation it is: what rules match on and counters count.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum OperationKind {
    /// Read bytes.
    Read,
    /// Write bytes.
    Write,
    /// Make a range read as zeroes.
    WriteZeroes,
    /// Give a range up; it reads as zeroes afterwards.
    Discard,
    /// Several changes, submitted together.
    Batch,
    /// Make every returned write survive.
    Flush,
    /// Ask which ranges hold data.
    Extents,
}

/// How zeroes are to be written.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct WriteZeroesFlags {
    /// Answer only when the zeroes would survive power loss: the operation followed by a local flush.
    pub fua: bool,
    /// Keep the range provisioned: extents report it as [`ExtentState::Zero`](crate::ExtentState::Zero), not as a hole.
    /// A device that keeps space for nothing may report what is large as a hole all the same.
    pub no_hole: bool,
    /// Fail with [`ErrorKind::Unsupported`] rather than write zeroes slower than a discard would be.
    pub fast: bool,
}

/// What a flush waits for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum FlushScope {
    /// Every write that returned before survives a loss of power of this host.
    Local,
    /// Every write that returned before survives the loss of this host: it is in the shared store. A device without a
    /// store does what it does for [`FlushScope::Local`].
    Store,
}

/// What one piece of a batch does to its range.
#[derive(Clone, Debug)]
pub enum Change {
    /// Bytes to write.
    Data(SharedBuf),
    /// So many zeroes, provisioned.
    Zeroes(u64),
    /// So many bytes to give up.
    Discard(u64),
}

/// One piece of a batch.
#[derive(Clone, Debug)]
pub struct Segment {
    /// First byte on the device.
    pub offset: u64,
    /// What happens there.
    pub change: Change,
}

impl Segment {
    /// Length in bytes.
    #[must_use]
    pub fn len(&self) -> u64 {
        match &self.change {
            Change::Data(data) => data.len() as u64,
            Change::Zeroes(len) | Change::Discard(len) => *len,
        }
    }

    /// Whether it changes no byte.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }
}

/// What is asked of a device. Offsets and lengths are bytes.
#[derive(Clone, Debug)]
pub enum Operation {
    /// Answered with [`Body::Data`](crate::Body::Data).
    Read {
        /// First byte.
        offset: u64,
        /// Bytes from there.
        len: u64,
    },
    /// Answered when later reads see it; with `fua`, when it survives power loss as well.
    Write {
        /// First byte.
        offset: u64,
        /// What to write there.
        data: SharedBuf,
        /// The write followed by a local flush.
        fua: bool,
    },
    /// Makes a range read as zeroes.
    WriteZeroes {
        /// First byte.
        offset: u64,
        /// Bytes from there.
        len: u64,
        /// How.
        flags: WriteZeroesFlags,
    },
    /// Gives a range up: it reads as zeroes and takes no space. Costs time by the extents it frees, not its length.
    Discard {
        /// First byte.
        offset: u64,
        /// Bytes from there.
        len: u64,
    },
    /// Changes in order, submitted together. Not atomic: on an error any of them may be visible.
    Batch {
        /// The changes; a later one wins over an earlier one.
        segments: Vec<Segment>,
        /// All of them followed by a local flush.
        fua: bool,
    },
    /// Rule 2 of the contract. Covers every client of the device, not only the caller.
    Flush(FlushScope),
    /// Answered with [`Body::Extents`](crate::Body::Extents): what the range holds, as consecutive extents from
    /// `offset` on. They may fall short of the range, but are never of no length for a range that is not empty.
    Extents {
        /// First byte.
        offset: u64,
        /// Bytes from there.
        len: u64,
        /// Extents to report at most.
        extents_max: usize,
    },
}

impl Operation {
    /// What kind it is.
    #[must_use]
    pub fn kind(&self) -> OperationKind {
        match self {
            Self::Read { .. } => OperationKind::Read,
            Self::Write { .. } => OperationKind::Write,
            Self::WriteZeroes { .. } => OperationKind::WriteZeroes,
            Self::Discard { .. } => OperationKind::Discard,
            Self::Batch { .. } => OperationKind::Batch,
            Self::Flush(_) => OperationKind::Flush,
            Self::Extents { .. } => OperationKind::Extents,
        }
    }

    /// First byte and length of what is addressed; of a batch, from its first byte to its last; nothing for a flush.
    #[must_use]
    pub fn span(&self) -> (u64, u64) {
        match self {
            Self::Read { offset, len }
            | Self::WriteZeroes { offset, len, .. }
            | Self::Discard { offset, len }
            | Self::Extents { offset, len, .. } => (*offset, *len),
            Self::Write { offset, data, .. } => (*offset, data.len() as u64),
            Self::Batch { segments, .. } => {
                let start = segments.iter().map(|segment| segment.offset).min().unwrap_or(0);
                let ends = segments.iter().map(|s| s.offset.saturating_add(s.len()));
                (start, ends.max().unwrap_or(0) - start)
            }
            Self::Flush(_) => (0, 0),
        }
    }

    /// Bytes that are read, written or given up: of a batch, of all its segments together.
    #[must_use]
    pub fn bytes(&self) -> u64 {
        match self {
            Self::Batch { segments, .. } => segments.iter().map(Segment::len).sum(),
            Self::Extents { .. } => 0,
            other => other.span().1,
        }
    }

    /// The addressed range, if all of it lies within `size` (rule 3).
    ///
    /// # Errors
    /// [`ErrorKind::Invalid`] naming the range and the size.
    pub fn check_bounds(&self, size: u64) -> Result<ByteRange, DeviceError> {
        if let Self::Batch { segments, .. } = self {
            for segment in segments {
                check_range(self.kind(), segment.offset, segment.len(), size)?;
            }
        }
        let (offset, len) = self.span();
        check_range(self.kind(), offset, len, size)
    }
}

/// The range, if it lies within `size` (rule 3).
///
/// # Errors
/// [`ErrorKind::Invalid`] naming the range and the size.
pub fn check_range(
    kind: OperationKind,
    offset: u64,
    len: u64,
    size: u64,
) -> Result<ByteRange, DeviceError> {
    match ByteRange::at(offset, len) {
        Some(range) if range.end <= size => Ok(range),
        _ => Err(DeviceError::new(
            ErrorKind::Invalid,
            format!(
                "{kind:?} of {len} bytes at {offset} goes past the end of the device ({size} bytes)"
            ),
        )),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_batch_spans_all_its_segments_and_each_of_them_must_be_within_the_device() {
        let segment = |offset, change| Segment { offset, change };
        let batch = |last| Operation::Batch {
            segments: vec![
                segment(50, Change::Data(SharedBuf::copy_of(b"abc"))),
                segment(10, Change::Zeroes(5)),
                segment(last, Change::Discard(2)),
            ],
            fua: false,
        };
        assert_eq!((batch(98).span(), batch(98).bytes()), ((10, 90), 10));
        assert_eq!(batch(98).check_bounds(100).unwrap(), ByteRange::new(10, 100));
        for last in [99, u64::MAX - 1, u64::MAX] {
            assert_eq!(batch(last).check_bounds(100).unwrap_err().kind(), ErrorKind::Invalid);
        }
        let empty = Operation::Batch { segments: Vec::new(), fua: true };
        assert_eq!(empty.check_bounds(0).unwrap(), ByteRange::new(0, 0));
    }
}
