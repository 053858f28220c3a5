//! The three maps behind one trait.

use std::collections::BTreeMap;

use rangemap::RangeMap;
use weir_extent::{ExtentMap, Target};

/// What every map can do. Addresses are linear.
pub(crate) trait Map {
    const NAME: &'static str;
    fn new() -> Self;
    /// Maps a range; returns the bytes it displaced, as garbage collection needs them.
    fn insert(&mut self, offset: u64, len: u64, address: u64) -> u64;
    fn lookup(&self, offset: u64) -> Option<u64>;
    fn extents(&self) -> u64;
}

impl Map for ExtentMap {
    const NAME: &'static str = "weir-extent";

    fn new() -> Self {
        Self::new()
    }

    fn insert(&mut self, offset: u64, len: u64, address: u64) -> u64 {
        let mut displaced = 0;
        self.insert(offset, len, Target::Linear(address), |gone| displaced += gone.len);
        displaced
    }

    fn lookup(&self, offset: u64) -> Option<u64> {
        match self.lookup(offset)?.target {
            Target::Linear(address) => Some(address),
            Target::Fixed(_) => None,
        }
    }

    fn extents(&self) -> u64 {
        self.extents()
    }
}

/// Offset to length and address, cut by hand.
#[derive(Default)]
pub(crate) struct Tree(BTreeMap<u64, (u32, u64)>);

fn short(len: u64) -> u32 {
    u32::try_from(len).expect("extents of this measurement are short")
}

impl Map for Tree {
    const NAME: &'static str = "BTreeMap";

    fn new() -> Self {
        Self::default()
    }

    fn insert(&mut self, offset: u64, len: u64, address: u64) -> u64 {
        let end = offset + len;
        let mut displaced = 0;
        while let Some((&start, &(old_len, old))) = self.0.range(..end).next_back() {
            let old_end = start + u64::from(old_len);
            if old_end <= offset {
                break;
            }
            displaced += old_end.min(end) - start.max(offset);
            if old_end > end {
                self.0.insert(end, (short(old_end - end), old + (end - start)));
            }
            if start < offset {
                self.0.insert(start, (short(offset - start), old));
                break;
            }
            if start == offset {
                break;
            }
            self.0.remove(&start);
        }
        self.0.insert(offset, (short(len), address));
        displaced
    }

    fn lookup(&self, offset: u64) -> Option<u64> {
        let (start, (len, address)) = self.0.range(..=offset).next_back()?;
        (start + u64::from(*len) > offset).then(|| address + (offset - start))
    }

    fn extents(&self) -> u64 {
        u64::try_from(self.0.len()).expect("u64 holds a usize")
    }
}

/// Values are address minus offset, so that cutting and joining is exact.
pub(crate) struct Ranges(RangeMap<u64, u64>);

impl Map for Ranges {
    const NAME: &'static str = "rangemap";

    fn new() -> Self {
        Self(RangeMap::new())
    }

    fn insert(&mut self, offset: u64, len: u64, address: u64) -> u64 {
        let range = offset..offset + len;
        let displaced = self
            .0
            .overlapping(&range)
            .map(|(old, _)| old.end.min(range.end) - old.start.max(range.start))
            .sum();
        self.0.insert(range, address.wrapping_sub(offset));
        displaced
    }

    fn lookup(&self, offset: u64) -> Option<u64> {
        self.0.get(&offset).map(|delta| delta.wrapping_add(offset))
    }

    fn extents(&self) -> u64 {
        u64::try_from(self.0.len()).expect("u64 holds a usize")
    }
}
