//! The simulated disk's own random numbers: the same everywhere and for ever, so that a seed
//! replays.

use std::ops::Range;

/// SplitMix64: small, fast, and good enough to choose faults.
#[derive(Debug)]
pub(super) struct SimRandom {
    state: u64,
}

impl SimRandom {
    pub(super) fn new(seed: u64) -> Self {
        Self { state: seed }
    }

    pub(super) fn next(&mut self) -> u64 {
        self.state = self.state.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.state;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    /// A number below `bound`, which is not zero.
    pub(super) fn below(&mut self, bound: u64) -> u64 {
        assert!(bound > 0, "there is a number below the bound");
        let wide = u128::from(self.next()) * u128::from(bound);
        u64::try_from(wide >> 64).expect("the upper half of a product of 64-bit numbers")
    }

    pub(super) fn within(&mut self, range: Range<u64>) -> u64 {
        range.start + self.below(range.end - range.start)
    }

    pub(super) fn coin(&mut self) -> bool {
        self.next() >> 63 == 1
    }

    /// True `parts` times in `whole`.
    pub(super) fn chance(&mut self, parts: u64, whole: u64) -> bool {
        parts > 0 && self.below(whole) < parts
    }
}
