//! What can be set of a journal.

use crate::error::JournalError;
use crate::group_commit::Shape;
use crate::limits::{
    BLOCK_BYTES, BLOCK_LEN, PIECE_BYTES, RECORD_BYTES_LIMIT, SEGMENT_BYTES_MAX, SEGMENT_BYTES_MIN,
    SEGMENTS_LIMIT,
};

/// Sizes of a journal.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct JournalConfig {
    /// Size of a segment: what the file grows by and what the tail moves by. An existing journal keeps the one it has.
    pub segment_bytes: u64,
    /// Most segments the file may have.
    pub segments_max: u32,
    /// Most bytes in one record.
    pub record_bytes_max: usize,
    /// Memory for copies of payloads; the oldest are dropped beyond it and read back, verified, when needed.
    pub resident_bytes_max: usize,
    /// Bytes of waiting payloads beyond which [`crate::Journal::room`] waits.
    pub queue_bytes_max: u64,
}

impl Default for JournalConfig {
    fn default() -> Self {
        Self {
            segment_bytes: 64 << 20,
            segments_max: 16,
            record_bytes_max: 4 << 20,
            resident_bytes_max: 64 << 20,
            queue_bytes_max: 32 << 20,
        }
    }
}

impl JournalConfig {
    pub(crate) fn check(&self) -> Result<(), JournalError> {
        let sized = (SEGMENT_BYTES_MIN..=SEGMENT_BYTES_MAX).contains(&self.segment_bytes);
        if !sized || !self.segment_bytes.is_multiple_of(BLOCK_BYTES) {
            return Err(JournalError::Config(
                "segment_bytes must be a multiple of 4096 from 64 KiB to 2 GiB",
            ));
        }
        if self.segments_max == 0
            || crate::format::to_usize(u64::from(self.segments_max)) > SEGMENTS_LIMIT
        {
            return Err(JournalError::Config("segments_max must be from 1 to 960"));
        }
        if self.record_bytes_max < 8 * BLOCK_LEN
            || crate::format::to_u64(self.record_bytes_max) > RECORD_BYTES_LIMIT
        {
            return Err(JournalError::Config("record_bytes_max must be from 32 KiB to 8 MiB"));
        }
        Ok(())
    }

    /// Most segments of a file whose segments have `segment_bytes`: it gets no larger than one made by this.
    pub(crate) fn segments_max_of(&self, segment_bytes: u64) -> u32 {
        let bytes = self.segment_bytes.saturating_mul(u64::from(self.segments_max));
        let segments = bytes.div_ceil(segment_bytes).min(crate::format::to_u64(SEGMENTS_LIMIT));
        u32::try_from(segments).expect("at most the limit")
    }

    pub(crate) fn shape(&self, alignment: usize, segment_bytes: u64, sealed: bool) -> Shape {
        // A piece must fit a record, and small segments must not waste most of themselves at their end.
        let record_bytes_max = crate::format::to_u64(self.record_bytes_max).min(segment_bytes);
        let piece_bytes_max = PIECE_BYTES.min(record_bytes_max / 4);
        let piece_bytes_max = (piece_bytes_max / BLOCK_BYTES).max(1) * BLOCK_BYTES;
        Shape { alignment, piece_bytes_max, record_bytes_max, sealed }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_with_smaller_segments_may_have_more_of_them() {
        let config =
            JournalConfig { segment_bytes: 64 << 20, segments_max: 16, ..JournalConfig::default() };
        let most =
            [64 << 20, 8 << 20, 48 << 20, 2 << 30, 1].map(|bytes| config.segments_max_of(bytes));
        let limit = u32::try_from(SEGMENTS_LIMIT).expect("small");
        assert_eq!(most, [16, 128, 22, 1, limit]);
    }
}
