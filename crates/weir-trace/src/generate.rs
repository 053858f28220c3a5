//! Traces whose answers are known.

use crate::{Op, Request};

/// Bytes of a block.
const BLOCK: u64 = 4096;

/// What a generated trace looks like.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Shape {
    /// Blocks of 4 KiB written again and again, few of them most of the time (Zipf with exponent 0.99 over 65,536
    /// blocks): what a batch is spared shows in the merge ratio.
    Zipf,
    /// A disk written in one go, then 16 KiB of every 20 KiB again, in order: 4 KiB holes of old data between new
    /// records, two extents where one would do. Between the records twice their bytes go to a scratch area, so that
    /// what holds the records soon mostly dies and is collected: plugging the holes must halve the map at least.
    Holes,
}

/// Blocks of [`Shape::Zipf`].
const ZIPF_BLOCKS: u32 = 65_536;

/// Writes of [`Shape::Zipf`].
const ZIPF_WRITES: u64 = 400_000;

/// Records of [`Shape::Holes`].
const HOLES_RECORDS: u64 = 20_000;

/// The writes of a shape; the same ones every time.
#[must_use]
pub fn generate(shape: Shape) -> Vec<Request> {
    match shape {
        Shape::Zipf => zipf(),
        Shape::Holes => holes(),
    }
}

fn write(index: usize, offset: u64, len: u64) -> Request {
    Request { time_us: index as u64, op: Op::Write, device: 0, offset, len }
}

/// A generator of random numbers that is the same everywhere (splitmix64).
struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = self.0;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ (mixed >> 31)
    }

    /// From 0 to below 1.
    fn unit(&mut self) -> f64 {
        let high = u32::try_from(self.next() >> 32).expect("32 bits are left");
        f64::from(high) / 4_294_967_296.0
    }
}

fn zipf() -> Vec<Request> {
    let mut sum = 0.0;
    let cumulated: Vec<f64> = (1..=ZIPF_BLOCKS)
        .map(|rank| {
            sum += f64::from(rank).powf(-0.99);
            sum
        })
        .collect();
    let mut random = Random(1);
    let requests = (0..ZIPF_WRITES).zip(0..).map(|(_, index)| {
        let point = random.unit() * sum;
        let rank = cumulated.partition_point(|upto| *upto <= point) as u64;
        // Popular blocks lie apart: an odd factor maps the ranks one to one.
        let block = rank.wrapping_mul(40_503) % u64::from(ZIPF_BLOCKS);
        write(index, block * BLOCK, BLOCK)
    });
    requests.collect()
}

fn holes() -> Vec<Request> {
    const RECORD: u64 = 4 * BLOCK;
    const STRIDE: u64 = 5 * BLOCK;
    // 64 MiB: more than a batch, or merging would spare the store what is to die in it.
    const SCRATCH_SLOTS: u64 = 2048;
    let fill = (0..HOLES_RECORDS).map(|n| (n * STRIDE, STRIDE));
    let scratch = |n| (HOLES_RECORDS * STRIDE + n % SCRATCH_SLOTS * 2 * RECORD, 2 * RECORD);
    let records = (0..HOLES_RECORDS).flat_map(|n| [(n * STRIDE, RECORD), scratch(n)]);
    fill.chain(records).zip(0..).map(|((offset, len), index)| write(index, offset, len)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeMap;

    #[test]
    fn few_blocks_get_most_writes_of_zipf() {
        let mut counts: BTreeMap<u64, u64> = BTreeMap::new();
        for request in generate(Shape::Zipf) {
            *counts.entry(request.offset).or_default() += 1;
        }
        let mut counts: Vec<u64> = counts.into_values().collect();
        counts.sort_unstable_by(|a, b| b.cmp(a));
        let head: u64 = counts.iter().take(655).sum();
        let share = head * 100 / ZIPF_WRITES;
        // H(655) / H(65536) with the exponent 0.99: 0.59.
        assert!((57..=61).contains(&share), "{share} % of the writes to 1 % of the blocks");
        assert!(counts.len() > 30_000, "{} blocks", counts.len());
    }

    #[test]
    fn records_leave_holes_of_one_block() {
        let requests = generate(Shape::Holes);
        let (fill, rest) = requests.split_at(requests.len() / 3);
        assert!(fill.windows(2).all(|w| w[0].offset + w[0].len == w[1].offset));
        let disk = fill.last().map_or(0, |r| r.offset + r.len);
        let records: Vec<&Request> = rest.iter().filter(|r| r.offset < disk).collect();
        assert_eq!(records.len(), fill.len(), "every record once");
        assert!(records.windows(2).all(|w| w[0].offset + 5 * BLOCK == w[1].offset));
    }
}
