//! The suite that every device and every documented stack runs: random operations against a plain byte array, one by
//! one, several at a time, and given up by their caller.
//!
//! It checks rules 1, 3, 4 and 5 of the contract, the bounds and the shape of extents. What survives a crash (rule 2)
//! is the business of the simulation, which can take the power away.

mod overlap;

use crate::{
    ByteRange, Change, Device, DeviceExt, ErrorKind, ExtentState, FlushScope, IoHeader, Operation,
    Segment, SharedBuf, WriteZeroesFlags,
};

/// Largest part of the device that the suite models, in bytes.
const MODEL_BYTES_MAX: u64 = 4 << 20;

/// Longest single operation, in bytes.
const OPERATION_BYTES_MAX: u64 = 300 << 10;

/// Operations that are in flight together at most.
const OVERLAP_MAX: u64 = 6;

/// SplitMix64: a few lines instead of a dependency, and the same on every machine.
#[derive(Debug)]
struct Dice(u64);

impl Dice {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    fn below(&mut self, bound: u64) -> u64 {
        self.next() % bound
    }

    fn byte(&mut self) -> u8 {
        self.next().to_le_bytes()[0]
    }

    /// A range within `size`: often aligned to a block, often tiny, sometimes empty.
    fn range(&mut self, size: u64) -> ByteRange {
        let len_max = match self.below(4) {
            0 => 16,
            1 => 4096,
            2 => 64 << 10,
            _ => OPERATION_BYTES_MAX,
        };
        let align = if self.below(2) == 0 { 1 } else { 512 };
        let start = self.below(size + 1) / align * align;
        let len = (self.below(len_max + 1) / align * align).min(size - start);
        ByteRange::new(start, start + len)
    }

    /// An operation that changes bytes of the range, or of several ranges from there on.
    fn change(&mut self, range: ByteRange, size: u64) -> Operation {
        let (offset, len) = (range.start, range.len());
        match self.below(10) {
            0..=5 => {
                let mut data = vec![0; index(range).len()];
                data.iter_mut().for_each(|b| *b = self.byte());
                let (data, fua) = (SharedBuf::copy_of(&data), self.below(8) == 0);
                Operation::Write { offset, data, fua }
            }
            6 => {
                let no_hole = self.below(2) == 0;
                let flags = WriteZeroesFlags { no_hole, ..WriteZeroesFlags::default() };
                Operation::WriteZeroes { offset, len, flags }
            }
            7 => Operation::Discard { offset, len },
            _ => {
                let segments = (0..self.below(6)).map(|_| self.segment(size)).collect();
                Operation::Batch { segments, fua: self.below(4) == 0 }
            }
        }
    }

    fn segment(&mut self, size: u64) -> Segment {
        let range = self.range(size);
        let change = match self.below(4) {
            0 => Change::Zeroes(range.len()),
            1 => Change::Discard(range.len()),
            _ => Change::Data(SharedBuf::copy_of(&vec![self.byte(); index(range).len()])),
        };
        Segment { offset: range.start, change }
    }
}

fn index(range: ByteRange) -> std::ops::Range<usize> {
    let to_usize = |v: u64| usize::try_from(v).expect("the model fits in memory");
    to_usize(range.start)..to_usize(range.end)
}

fn range_of(offset: u64, len: u64) -> ByteRange {
    ByteRange::new(offset, offset + len)
}

/// Calls `visit` for every range that the operation changes, with its new bytes or `None` for zeroes, in order.
fn changes(operation: &Operation, mut visit: impl FnMut(ByteRange, Option<&[u8]>)) {
    match operation {
        Operation::Write { offset, data, .. } => {
            visit(range_of(*offset, data.len() as u64), Some(data));
        }
        Operation::WriteZeroes { offset, len, .. } | Operation::Discard { offset, len } => {
            visit(range_of(*offset, *len), None);
        }
        Operation::Batch { segments, .. } => {
            for segment in segments {
                let range = range_of(segment.offset, segment.len());
                match &segment.change {
                    Change::Data(data) => visit(range, Some(data)),
                    Change::Zeroes(_) | Change::Discard(_) => visit(range, None),
                }
            }
        }
        Operation::Read { .. } | Operation::Flush(_) | Operation::Extents { .. } => {}
    }
}

fn apply(model: &mut [u8], operation: &Operation) {
    changes(operation, |range, data| match data {
        Some(data) => model[index(range)].copy_from_slice(data),
        None => model[index(range)].fill(0),
    });
}

/// Runs `operations` random operations from `seed` against `device`, whose bytes must all be zero.
///
/// # Panics
/// When the device breaks its contract; the message names the rule and the seed.
pub async fn run<D: Device>(device: &D, seed: u64, operations: usize) {
    let size = device.size().min(MODEL_BYTES_MAX);
    let mut model = vec![0_u8; usize::try_from(size).expect("the model fits in memory")];
    let mut dice = Dice(seed);
    for step in 0..operations {
        let range = dice.range(size);
        let context = format!("seed {seed}, step {step}, {range}");
        match dice.below(16) {
            0..=6 => {
                let change = dice.change(range, size);
                apply(&mut model, &change);
                let changed = device.internal(change).await;
                changed.unwrap_or_else(|e| panic!("a change failed ({context}): {e}"));
            }
            7 => {
                let flushed = device.flush(FlushScope::Local).await;
                flushed.unwrap_or_else(|e| panic!("flush failed ({context}): {e}"));
            }
            8..=9 => check_extents(device, &model, range, 1 + dice.below(20), &context).await,
            10..=11 => overlap::together(device, &mut model, &mut dice, size, &context).await,
            12 => overlap::given_up(device, &mut model, &mut dice, range, &context).await,
            _ => check_read(device, &model, range, &context).await,
        }
    }
    check_read(device, &model, ByteRange::new(0, size), &format!("seed {seed}, at the end")).await;
    check_refusals(device).await;
}

async fn check_read<D: Device>(device: &D, model: &[u8], range: ByteRange, context: &str) {
    let (offset, len) = (range.start, range.len());
    let read = device.internal(Operation::Read { offset, len }).await;
    let data = read.and_then(|reply| reply.into_data());
    let data = data.unwrap_or_else(|e| panic!("read failed ({context}): {e}"));
    assert!(data.slices().iter().all(|slice| !slice.is_empty()), "an empty slice ({context})");
    assert_eq!(data.len() as u64, len, "a reply of another length ({context})");
    let bytes = data.to_vec();
    if let Some(wrong) = (0..bytes.len()).find(|i| bytes[*i] != model[index(range)][*i]) {
        panic!("rule 1: byte {} differs ({context})", range.start + wrong as u64);
    }
}

async fn check_extents<D: Device>(
    device: &D,
    model: &[u8],
    range: ByteRange,
    extents_max: u64,
    context: &str,
) {
    let max = usize::try_from(extents_max).expect("a small number");
    let reported = device.extents(range.start, range.len(), max).await;
    let extents = reported.unwrap_or_else(|e| panic!("extents failed ({context}): {e}"));
    assert!(extents.len() <= max, "more extents than asked for ({context})");
    assert!(range.is_empty() || !extents.is_empty(), "no extent for a non-empty range ({context})");
    let mut start = range.start;
    for extent in extents {
        assert!(extent.len > 0, "an empty extent ({context})");
        let part = ByteRange::new(start, start + extent.len);
        assert!(range.contains(part), "an extent beyond the range ({context})");
        if extent.state != ExtentState::Data {
            assert!(
                model[index(part)].iter().all(|b| *b == 0),
                "an extent that holds data is reported as {:?} ({context})",
                extent.state
            );
        }
        start = part.end;
    }
}

/// Rule 3: what goes past the end is refused as invalid and touches nothing.
async fn check_refusals<D: Device>(device: &D) {
    let size = device.size();
    for (offset, len) in [(size, 1_u64), (size - 1, 2), (u64::MAX, 1), (u64::MAX - 1, 2)] {
        let data = SharedBuf::copy_of(&vec![0; index(ByteRange::new(0, len)).len()]);
        let within = Segment { offset: 0, change: Change::Discard(0) };
        let beyond = Segment { offset, change: Change::Data(data.clone()) };
        let flags = WriteZeroesFlags::default();
        for operation in [
            Operation::Read { offset, len },
            Operation::Write { offset, data, fua: false },
            Operation::WriteZeroes { offset, len, flags },
            Operation::Discard { offset, len },
            Operation::Batch { segments: vec![within, beyond], fua: false },
            Operation::Extents { offset, len, extents_max: 1 },
        ] {
            let kind = operation.kind();
            let refused = device.call(IoHeader::internal(), operation).await;
            let error = refused.expect_err("rule 3: past the end must be refused");
            assert_eq!(error.kind(), ErrorKind::Invalid, "{kind:?} at {offset}");
        }
    }
}
