//! Requests of a trace against a table without bytes: what a cache of some size would have had.

use std::collections::{BTreeMap, HashMap};

use crate::geometry::{BAND_BLOCKS, BAND_BYTES, BLOCK_BYTES, Band, Geometry};
use crate::policy::{Arc, Lru, Replacement, S3Fifo, SixFactor, SixFactorAlone, Weights};
use crate::table::{Table, Use};

/// What came of it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    /// Blocks that were asked for.
    pub blocks: u64,
    /// Those that were there.
    pub hits: u64,
    /// Bands that made room.
    pub evictions: u64,
    /// Blocks that were not cached.
    pub refused: u64,
}

impl Counts {
    /// Hits in a million blocks.
    #[must_use]
    pub fn hits_ppm(&self) -> u64 {
        (self.hits * 1_000_000).checked_div(self.blocks).unwrap_or(0)
    }
}

/// A policy by its name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Policy {
    /// The six factors of vStore among what is not kept for its use.
    SixFactor,
    /// The six factors alone, as in the paper.
    SixFactorAlone,
    /// Least recently used.
    Lru,
    /// Adaptive replacement cache.
    Arc,
    /// Three queues, first in, first out.
    S3Fifo,
    /// Least recently used blocks, without bands: a reference that no table of bands can be expected to reach.
    Blocks,
}

impl Policy {
    /// All of them.
    pub const ALL: [Self; 6] =
        [Self::SixFactor, Self::SixFactorAlone, Self::Lru, Self::Arc, Self::S3Fifo, Self::Blocks];

    /// Its name.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::SixFactor => "six-factor",
            Self::SixFactorAlone => "six-factor-alone",
            Self::Lru => "lru",
            Self::Arc => "arc",
            Self::S3Fifo => "s3-fifo",
            Self::Blocks => "block-lru",
        }
    }

    /// An empty cache with it.
    #[must_use]
    pub fn cache(self, geometry: Geometry, weights: Weights) -> Box<dyn Cache> {
        match self {
            Self::SixFactor => Box::new(Bands::new(geometry, SixFactor::new(geometry, weights))),
            Self::SixFactorAlone => Box::new(Bands::new(geometry, SixFactorAlone::new(weights))),
            Self::Lru => Box::new(Bands::new(geometry, Lru)),
            Self::Arc => Box::new(Bands::new(geometry, Arc::new(geometry))),
            Self::S3Fifo => Box::new(Bands::new(geometry, S3Fifo::new(geometry))),
            Self::Blocks => Box::new(Blocks::new(geometry.bands() * u64::from(BAND_BLOCKS))),
        }
    }
}

/// A cache that is replayed.
pub trait Cache {
    /// A range of bytes is used.
    fn request(&mut self, device: u32, offset: u64, len: u64, use_: Use);
    /// Bytes of memory that a table takes on top if the next request, of `len` bytes, makes it grow: the new table is
    /// there before the old one goes. 0 where that one has room.
    fn growth_bytes(&self, _len: u64) -> u64 {
        0
    }
    /// What came of it so far.
    fn counts(&self) -> Counts;
    /// Of the bands whose next one is cached as well, those that have it beside them, in thousandths; `None` where
    /// there are no bands.
    fn sequential_permille(&self) -> Option<u64>;
}

/// A table of bands.
#[derive(Debug)]
struct Bands<P> {
    table: Table<P>,
    counts: Counts,
}

impl<P: Replacement> Bands<P> {
    fn new(geometry: Geometry, policy: P) -> Self {
        Self { table: Table::new(geometry, policy), counts: Counts::default() }
    }
}

/// The bands of a range of bytes, and which blocks of each.
fn parts(device: u32, offset: u64, len: u64) -> impl Iterator<Item = (Band, u64)> {
    let end = offset.saturating_add(len);
    let bands = offset / BAND_BYTES..end.div_ceil(BAND_BYTES);
    bands.map(move |number| {
        let begin = number * BAND_BYTES;
        let block = |at: u64| at.clamp(begin, begin + BAND_BYTES) - begin;
        let (from, to) = (block(offset) / BLOCK_BYTES, block(end).div_ceil(BLOCK_BYTES));
        let all = |blocks: u64| {
            if blocks == u64::from(BAND_BLOCKS) { u64::MAX } else { (1 << blocks) - 1 }
        };
        (Band { device, number }, all(to) & !all(from))
    })
}

impl<P: Replacement> Cache for Bands<P> {
    fn request(&mut self, device: u32, offset: u64, len: u64, use_: Use) {
        for (band, blocks) in parts(device, offset, len) {
            self.counts.blocks += u64::from(blocks.count_ones());
            let place = if let Some(place) = self.table.use_band(band, use_) {
                let present = self.table.slots().at(place).present & blocks;
                self.counts.hits += u64::from(present.count_ones());
                place
            } else if let Some(taken) = self.table.take_in(band) {
                self.counts.evictions += u64::from(taken.evicted.is_some());
                taken.place
            } else {
                self.counts.refused += u64::from(blocks.count_ones());
                continue;
            };
            self.table.fill(place, blocks);
        }
    }

    fn counts(&self) -> Counts {
        self.counts
    }

    fn sequential_permille(&self) -> Option<u64> {
        let slots = self.table.slots();
        let (mut pairs, mut beside) = (0, 0);
        for (place, band, _) in slots.bands() {
            if let Some(next) = slots.find(band.next()) {
                pairs += 1;
                beside += u64::from(next.row == place.row && next.column == place.column + 1);
            }
        }
        Some((beside * 1000_u64).checked_div(pairs).unwrap_or(0))
    }
}

/// Blocks one by one, the least recently used one first: what a cache without bands would have.
#[derive(Debug)]
struct Blocks {
    most: usize,
    used: HashMap<(u32, u64), u64>,
    by_use: BTreeMap<u64, (u32, u64)>,
    uses: u64,
    counts: Counts,
}

/// Bytes of an entry of the table of blocks.
const ENTRY_BYTES: u64 = size_of::<((u32, u64), u64)>() as u64 + 1;

impl Blocks {
    fn new(blocks: u64) -> Self {
        let most = usize::try_from(blocks.max(1)).expect("it fits memory");
        let (used, by_use) = Default::default();
        Self { most, used, by_use, uses: 0, counts: Counts::default() }
    }
}

impl Cache for Blocks {
    fn request(&mut self, device: u32, offset: u64, len: u64, _: Use) {
        for block in offset / BLOCK_BYTES..offset.saturating_add(len).div_ceil(BLOCK_BYTES) {
            self.counts.blocks += 1;
            self.uses += 1;
            if let Some(before) = self.used.insert((device, block), self.uses) {
                self.counts.hits += 1;
                self.by_use.remove(&before);
            }
            self.by_use.insert(self.uses, (device, block));
            if self.used.len() > self.most
                && let Some((_, oldest)) = self.by_use.pop_first()
            {
                self.used.remove(&oldest);
                self.counts.evictions += 1;
            }
        }
    }

    fn growth_bytes(&self, len: u64) -> u64 {
        // The request may begin in the midst of a block. One more than the most is there for a moment.
        let blocks = usize::try_from(len / BLOCK_BYTES + 2).unwrap_or(usize::MAX);
        let blocks = self.used.len().saturating_add(blocks).min(self.most.saturating_add(1));
        match blocks <= self.used.capacity() {
            true => 0,
            // A table is a power of two of entries with a byte beside each, of which an eighth stays free.
            false => {
                (blocks as u64).saturating_mul(8).div_ceil(7).next_power_of_two() * ENTRY_BYTES
            }
        }
    }

    fn counts(&self) -> Counts {
        self.counts
    }

    fn sequential_permille(&self) -> Option<u64> {
        None
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_table_of_blocks_says_what_it_takes_before_it_grows() {
        let mut blocks = Blocks::new(1 << 20);
        let mut grown = 0;
        for number in 0..(1 << 16) {
            let (before, said) = (blocks.used.capacity(), blocks.growth_bytes(BLOCK_BYTES));
            blocks.request(0, number * BLOCK_BYTES, BLOCK_BYTES, Use::Write);
            let after = blocks.used.capacity();
            if after != before {
                grown += 1;
                assert!(said >= after as u64 * ENTRY_BYTES, "{said} for {after}");
                assert!(said <= 4 * after as u64 * ENTRY_BYTES, "{said} for {after}");
            }
        }
        assert!(grown > 5, "{grown}");
        let full = Blocks::new(1);
        assert!(full.growth_bytes(1 << 30) < 1 << 10, "it holds no more than the cache");
        let lru = Policy::Lru.cache(Geometry::of_bands(64), Weights::DEFAULT);
        assert_eq!(lru.growth_bytes(1 << 30), 0, "its tables are there from the beginning");
    }
}
