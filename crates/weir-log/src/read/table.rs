//! Where the frames of an object are, without its header.

use weir_seal::SealKey;

use crate::format::frame::Frame;
use crate::format::object::ObjectHeader;

/// Where the frames of one object are.
#[derive(Debug)]
pub struct FrameTable {
    pub(super) frames: Vec<(u64, Frame)>,
    /// Of the object, if it is encrypted.
    pub(super) key: Option<SealKey>,
}

impl FrameTable {
    /// Of an object without frames.
    #[cfg(test)]
    pub(crate) fn empty() -> Self {
        Self { frames: Vec::new(), key: None }
    }

    pub(super) fn of(header: &ObjectHeader, key: Option<SealKey>) -> Self {
        let mut at = header.header_len();
        let place = |frame: &Frame| {
            let start = at;
            at += u64::from(frame.stored_len);
            (start, *frame)
        };
        Self { frames: header.frames.iter().map(place).collect(), key }
    }
}
