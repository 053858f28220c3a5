//! The simulated network's own random numbers: the same everywhere and for ever, so that a seed replays.

use std::ops::RangeInclusive;

/// SplitMix64: small, fast, and good enough to choose delays.
#[derive(Debug)]
pub(super) struct SimRandom(u64);

impl SimRandom {
    pub(super) fn new(seed: u64) -> Self {
        Self(seed)
    }

    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    pub(super) fn within(&mut self, range: RangeInclusive<u64>) -> u64 {
        let count = range.end() - range.start() + 1;
        let wide = u128::from(self.next()) * u128::from(count);
        range.start() + u64::try_from(wide >> 64).expect("the upper half of a product")
    }

    /// True once in so many times; never for 0.
    pub(super) fn one_in(&mut self, count: u64) -> bool {
        count > 0 && self.within(1..=count) == 1
    }
}
