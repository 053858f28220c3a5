//! Block status in whole blocks of the preferred size.
//!
//! Clients round what they are told: `qemu-img convert` counts in sectors, others in pages. A hole that ends within
//! such a unit would swallow the bytes behind it. So data wins: a block that holds a byte of data is data, and only a
//! block that is a hole from end to end is a hole. Blocks are counted from the start of the export; the last one ends
//! with it.

use weir_device::{ByteRange, ChangedRun, DeviceError, Extent, ExtentState};
use weir_nbd::limits::BLOCK_BYTES_PREFERRED;
use weir_nbd::{AllocationFlags, DirtyFlags, ExtentStatus};

const BLOCK_BYTES: u64 = BLOCK_BYTES_PREFERRED as u64;

/// Runs that the device is asked for at least, so that a block with many small ones is settled in few calls.
const RUNS_PER_CALL_MIN: usize = 64;

/// A run of bytes with the flags of its context.
pub(super) struct Run {
    len: u64,
    flags: u32,
}

impl From<Extent> for Run {
    fn from(extent: Extent) -> Self {
        let flags = match extent.state {
            ExtentState::Data => AllocationFlags::default(),
            ExtentState::Zero => AllocationFlags::ZERO,
            ExtentState::Hole => AllocationFlags::ZERO.with(AllocationFlags::HOLE),
        };
        Self { len: extent.len, flags: flags.0 }
    }
}

impl From<ChangedRun> for Run {
    fn from(run: ChangedRun) -> Self {
        let flags = if run.changed { DirtyFlags::DIRTY } else { DirtyFlags::default() };
        Self { len: run.len, flags: flags.0 }
    }
}

/// What a block is of which parts have different flags.
#[derive(Clone, Copy)]
pub(super) enum Mixed {
    /// It has the flags that all parts have: zeroes only where all of it reads as zeroes.
    Common,
    /// It has the flags of any part: what changed in part has changed.
    Any,
}

impl Mixed {
    fn join(self, a: u32, b: u32) -> u32 {
        match self {
            Self::Common => a & b,
            Self::Any => a | b,
        }
    }
}

/// The range that is asked of the device for `range`: its blocks, whole.
fn whole_blocks(range: ByteRange, size: u64) -> ByteRange {
    let start = range.start - range.start % BLOCK_BYTES;
    let end = range.end.checked_next_multiple_of(BLOCK_BYTES).unwrap_or(u64::MAX);
    ByteRange::new(start, end.min(size.max(range.end)))
}

/// The blocks that the runs so far have filled.
struct Blocks {
    mixed: Mixed,
    /// Where the next run begins.
    at: u64,
    /// The last block ends here, however short it is.
    end: u64,
    /// Ends of runs of whole blocks, with their flags.
    filled: Vec<(u64, u32)>,
    /// Flags of the block that is filled in part.
    partial: Option<u32>,
}

impl Blocks {
    fn take(&mut self, run: &Run) {
        let mut len = run.len.min(self.end - self.at);
        if let Some(flags) = self.partial
            && len > 0
        {
            let part = len.min(self.at.next_multiple_of(BLOCK_BYTES).min(self.end) - self.at);
            self.partial = Some(self.mixed.join(flags, run.flags));
            self.advance(part);
            len -= part;
        }
        if len > 0 {
            self.partial = Some(run.flags);
            let stop = self.at + len;
            let whole = if stop == self.end { stop } else { stop - stop % BLOCK_BYTES };
            if whole > self.at {
                self.advance(whole - self.at);
                self.partial = (stop > whole).then_some(run.flags);
            }
            self.at = stop;
        }
    }

    /// Goes on by `len` bytes with the flags of the partial block, which is filled if it ends there.
    fn advance(&mut self, len: u64) {
        self.at += len;
        if !self.at.is_multiple_of(BLOCK_BYTES) && self.at != self.end {
            return;
        }
        let Some(flags) = self.partial.take() else { return };
        match self.filled.last_mut() {
            Some(last) if last.1 == flags => last.0 = self.at,
            _ => self.filled.push((self.at, flags)),
        }
    }
}

/// Descriptors of the range, in whole blocks but for its two ends, from what `ask` tells of a range in so many
/// runs at most. At most `statuses_max`, at least one; `None` if the device broke its contract and told nothing.
pub(super) async fn in_blocks<R: Into<Run>>(
    range: ByteRange,
    size: u64,
    statuses_max: usize,
    mixed: Mixed,
    mut ask: impl AsyncFnMut(ByteRange, usize) -> Result<Vec<R>, DeviceError>,
) -> Result<Option<Vec<ExtentStatus>>, DeviceError> {
    let ByteRange { start, end } = whole_blocks(range, size);
    let mut blocks = Blocks { mixed, at: start, end, filled: Vec::new(), partial: None };
    // A block has no more runs than bytes, so this ends.
    while blocks.filled.is_empty() {
        let rest = ByteRange::new(blocks.at, end);
        let runs = ask(rest, statuses_max.max(RUNS_PER_CALL_MIN)).await?;
        let before = blocks.at;
        for run in runs {
            blocks.take(&run.into());
        }
        if blocks.at == before {
            return Ok(None);
        }
    }
    let mut statuses = Vec::with_capacity(statuses_max.min(blocks.filled.len()));
    let mut at = range.start;
    for (filled, flags) in blocks.filled.into_iter().take(statuses_max) {
        let stop = filled.min(range.end);
        if stop > at {
            statuses.push(ExtentStatus { length: stop - at, flags: u64::from(flags) });
            at = stop;
        }
    }
    Ok(Some(statuses))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const SIZE: u64 = 4 * BLOCK_BYTES + 100;

    fn state_of(bytes: &[ExtentState]) -> Vec<Extent> {
        let mut extents: Vec<Extent> = Vec::new();
        for state in bytes {
            match extents.last_mut() {
                Some(last) if last.state == *state => last.len += 1,
                _ => extents.push(Extent { len: 1, state: *state }),
            }
        }
        extents
    }

    fn index(at: u64) -> usize {
        usize::try_from(at).unwrap()
    }

    fn told(
        bytes: &[ExtentState],
        offset: u64,
        len: u64,
        max: usize,
        per_call: usize,
    ) -> Vec<ExtentStatus> {
        let range = ByteRange::new(offset, offset + len);
        let ask = async |range: ByteRange, runs_max: usize| {
            let all = state_of(&bytes[index(range.start)..index(range.end)]);
            Ok(all.into_iter().take(runs_max.min(per_call)).collect())
        };
        let told = in_blocks(range, SIZE, max, Mixed::Common, ask);
        futures_util::future::FutureExt::now_or_never(told).unwrap().unwrap().unwrap()
    }

    /// The flags that the block around `at` must have.
    fn model(bytes: &[ExtentState], at: u64) -> u64 {
        let start = at - at % BLOCK_BYTES;
        let block = &bytes[index(start)..index((start + BLOCK_BYTES).min(SIZE))];
        match block {
            _ if block.contains(&ExtentState::Data) => 0,
            _ if block.contains(&ExtentState::Zero) => 2,
            _ => 3,
        }
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(24))]

        #[test]
        fn every_block_has_one_state_and_data_wins(
            pieces in proptest::collection::vec((0..SIZE, 1..6000_u64, 0..3_u8), 0..12),
            (offset, len) in (0..SIZE).prop_flat_map(|at| (Just(at), 1..=SIZE - at)),
            max in 1..5_usize,
            per_call in 1..4_usize,
        ) {
            let mut bytes = vec![ExtentState::Hole; index(SIZE)];
            for (at, len, state) in pieces {
                let states = [ExtentState::Data, ExtentState::Zero, ExtentState::Hole];
                let state = states[usize::from(state)];
                bytes[index(at)..index((at + len).min(SIZE))].fill(state);
            }
            let statuses = told(&bytes, offset, len, max, per_call);
            prop_assert!(!statuses.is_empty() && statuses.len() <= max);
            let mut at = offset;
            for status in statuses {
                prop_assert!(status.length > 0);
                for byte in at..at + status.length {
                    prop_assert_eq!(status.flags, model(&bytes, byte), "byte {}", byte);
                }
                at += status.length;
                let ends_with_range = at == offset + len;
                prop_assert!(at.is_multiple_of(BLOCK_BYTES) || ends_with_range);
            }
            prop_assert!(at <= offset + len);
        }
    }

    #[test]
    fn a_block_of_single_bytes_is_settled() {
        let mut bytes = vec![ExtentState::Hole; index(SIZE)];
        for at in (0..index(SIZE)).step_by(2) {
            bytes[at] = ExtentState::Zero;
        }
        let statuses = told(&bytes, 4095, 2, 1, usize::MAX);
        assert_eq!(statuses, [ExtentStatus { length: 1, flags: 2 }]);
    }

    #[test]
    fn what_changed_in_part_has_changed() {
        let range = ByteRange::new(0, 3 * BLOCK_BYTES);
        let run = |len, changed| ChangedRun { len, changed };
        let runs = vec![run(BLOCK_BYTES + 5, false), run(1, true), run(u64::MAX / 2, false)];
        let ask = async |_: ByteRange, _: usize| Ok(runs.clone());
        let told = in_blocks(range, SIZE, 9, Mixed::Any, ask);
        let told = futures_util::future::FutureExt::now_or_never(told).unwrap().unwrap();
        let status = |flags| ExtentStatus { length: BLOCK_BYTES, flags };
        assert_eq!(told, Some(vec![status(0), status(1), status(0)]));
    }

    #[test]
    fn nothing_told_is_no_answer() {
        for runs in [vec![], vec![Extent { len: 0, state: ExtentState::Data }]] {
            let range = ByteRange::new(0, 4);
            let ask = async |_: ByteRange, _: usize| Ok(runs.clone());
            let told = in_blocks(range, SIZE, 9, Mixed::Common, ask);
            let told = futures_util::future::FutureExt::now_or_never(told).unwrap().unwrap();
            assert_eq!(told, None);
        }
    }
}
