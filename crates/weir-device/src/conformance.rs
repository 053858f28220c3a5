//! The suite that every device and every documented stack runs: random operations against a plain byte array.
//!
//! It checks rules 1, 3 and 4 of the contract, the bounds and the shape of `extents`. What survives a crash (rule 2)
//! is the business of the simulation, which can take the power away.

use crate::{
    ByteRange, Device, ErrorKind, ExtentState, IoHeader, Operation, Segment, SharedBuf, WriteFlags,
    WriteZeroesFlags,
};

/// Largest part of the device that the suite models, in bytes.
const MODEL_BYTES_MAX: u64 = 4 << 20;

/// Longest single operation, in bytes.
const OPERATION_BYTES_MAX: u64 = 300 << 10;

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
}

fn at(operation: Operation, range: ByteRange) -> IoHeader {
    IoHeader::internal(operation, range.start, range.len())
}

fn index(range: ByteRange) -> std::ops::Range<usize> {
    let to_usize = |v: u64| usize::try_from(v).expect("the model fits in memory");
    to_usize(range.start)..to_usize(range.end)
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
        match dice.below(12) {
            0..=4 => {
                let mut data = vec![0; index(range).len()];
                data.iter_mut().for_each(|b| *b = dice.next().to_le_bytes()[0]);
                model[index(range)].copy_from_slice(&data);
                let flags = WriteFlags { fua: dice.below(8) == 0 };
                let written =
                    device.write(at(Operation::Write, range), SharedBuf::copy_of(&data), flags);
                written.await.unwrap_or_else(|e| panic!("write failed ({context}): {e}"));
            }
            5 => write_batch(device, &mut model, &mut dice, size, &context).await,
            6 => {
                model[index(range)].fill(0);
                let flags = WriteZeroesFlags { no_hole: dice.below(2) == 0, ..Default::default() };
                let zeroed = device.write_zeroes(at(Operation::WriteZeroes, range), flags);
                zeroed.await.unwrap_or_else(|e| panic!("write_zeroes failed ({context}): {e}"));
            }
            7 => {
                model[index(range)].fill(0);
                let discarded = device.discard(at(Operation::Discard, range));
                discarded.await.unwrap_or_else(|e| panic!("discard failed ({context}): {e}"));
            }
            8 => {
                let flushed = device.flush(IoHeader::internal(Operation::Flush, 0, 0)).await;
                flushed.unwrap_or_else(|e| panic!("flush failed ({context}): {e}"));
            }
            9 => check_extents(device, &model, range, 1 + dice.below(20), &context).await,
            _ => check_read(device, &model, range, &context).await,
        }
    }
    check_read(device, &model, ByteRange::new(0, size), &format!("seed {seed}, at the end")).await;
    check_refusals(device).await;
}

async fn write_batch<D: Device>(
    device: &D,
    model: &mut [u8],
    dice: &mut Dice,
    size: u64,
    context: &str,
) {
    let mut segments = Vec::new();
    for _ in 0..dice.below(6) {
        let range = dice.range(size);
        let byte = dice.next().to_le_bytes()[0];
        model[index(range)].fill(byte);
        let data = SharedBuf::copy_of(&model[index(range)]);
        segments.push(Segment { offset: range.start, data });
    }
    let io = IoHeader::internal(Operation::Write, 0, size);
    let written = device.write_batch(io, segments, WriteFlags::default()).await;
    written.unwrap_or_else(|e| panic!("write_batch failed ({context}): {e}"));
}

async fn check_read<D: Device>(device: &D, model: &[u8], range: ByteRange, context: &str) {
    let mut buf = vec![0xee; index(range).len()];
    let read = device.read(at(Operation::Read, range), &mut buf).await;
    read.unwrap_or_else(|e| panic!("read failed ({context}): {e}"));
    if let Some(wrong) = (0..buf.len()).find(|i| buf[*i] != model[index(range)][*i]) {
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
    let reported = device.extents(at(Operation::Extents, range), max).await;
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
        let mut buf = vec![0; index(ByteRange::new(0, len)).len()];
        let data = SharedBuf::copy_of(&buf);
        let io = |operation| IoHeader::internal(operation, offset, len);
        let refused = [
            device.read(io(Operation::Read), &mut buf).await,
            device.write(io(Operation::Write), data, WriteFlags::default()).await,
            device.write_zeroes(io(Operation::WriteZeroes), WriteZeroesFlags::default()).await,
            device.discard(io(Operation::Discard)).await,
            device.extents(io(Operation::Extents), 1).await.map(|_| ()),
        ];
        for (call, result) in refused.into_iter().enumerate() {
            let error = result.expect_err("rule 3: past the end must be refused");
            assert_eq!(error.kind(), ErrorKind::Invalid, "call {call} at {offset}");
        }
    }
}
