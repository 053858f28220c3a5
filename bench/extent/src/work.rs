//! The workloads, the dice and the clock.

use rustix::time::{ClockId, clock_gettime};

/// CPU time of this thread.
pub(crate) fn cpu_ns() -> u64 {
    let now = clock_gettime(ClockId::ThreadCPUTime);
    let part = |value: i64| u64::try_from(value).expect("CPU time is not negative");
    part(now.tv_sec) * 1_000_000_000 + part(now.tv_nsec)
}

/// A fast generator with a fixed seed.
pub(crate) struct Dice(pub(crate) u64);

impl Dice {
    fn next(&mut self) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0.wrapping_mul(0x2545_f491_4f6c_dd1d)
    }

    pub(crate) fn roll(&mut self, sides: u64) -> u64 {
        // Sides are below 2^32, so the product of the high half fits.
        ((self.next() >> 32) * sides) >> 32
    }

    /// A 4 KiB-aligned address in 1 PiB of log.
    pub(crate) fn address(&mut self) -> u64 {
        (self.next() >> 26) << 12
    }
}

/// Where extents go.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Work {
    /// Distinct aligned 4 KiB blocks in 128 GiB.
    Blocks128GiB,
    /// 100 to 4000 bytes at any byte of 32 GiB, overlapping as it happens, until so many extents exist.
    Bytes32GiB,
    /// Distinct aligned 4 KiB blocks in 16 TiB.
    Blocks16TiB,
}

impl Work {
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Blocks128GiB => "4 KiB aligned, 128 GiB",
            Self::Bytes32GiB => "100-4000 B unaligned, 32 GiB",
            Self::Blocks16TiB => "4 KiB aligned, 16 TiB",
        }
    }

    /// Offset and length of extent `number`; the same number is the same place.
    pub(crate) fn extent(self, number: u64, _dice: &mut Dice) -> (u64, u64) {
        match self {
            Self::Blocks128GiB => (shuffle(number, 25) << 12, 4096),
            Self::Blocks16TiB => (shuffle(number, 32) << 12, 4096),
            Self::Bytes32GiB => {
                let mixed = mix(number);
                (mixed >> 29, 100 + (mixed & 0xffff) % 3901)
            }
        }
    }
}

fn mix(number: u64) -> u64 {
    let mut mixed = number.wrapping_add(0x9e37_79b9_7f4a_7c15);
    mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    mixed ^ (mixed >> 31)
}

/// A bijection of `bits`-bit numbers that looks random.
fn shuffle(number: u64, bits: u32) -> u64 {
    let mask = (1 << bits) - 1;
    let mut mixed = number & mask;
    for _ in 0..3 {
        mixed = mixed.wrapping_mul(0x9e37_79b9_7f4a_7c15 | 1) & mask;
        mixed ^= mixed >> (bits / 2);
    }
    mixed
}

/// What a load costs that misses the cache and waits for the one before: the yardstick for
/// everything else here, since machines and neighbours differ.
pub(crate) fn load_ns() -> u64 {
    const WORDS: u64 = 128 << 17;
    const LOADS: u64 = 1_000_000;
    let index = |value: u64| usize::try_from(value).expect("usize holds 64 bits");
    let mut next: Vec<u64> = (0..WORDS).collect();
    let mut dice = Dice(7);
    for at in (1..WORDS).rev() {
        next.swap(index(at), index(dice.roll(at)));
    }
    let start = cpu_ns();
    let at = (0..LOADS).fold(0, |at, _| next[index(at)]);
    std::hint::black_box(at);
    (cpu_ns() - start) / LOADS
}
