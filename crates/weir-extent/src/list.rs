//! List nodes: the sorted extents of a cell, 12 bytes each, keys apart from values.
//!
//! An extent inside a region is a start (19 bits), a length (19 bits) and a target (57 bits): 95 bits.
//! The key word holds the start above 13 bits of the length, so keys compare by start, and a
//! search touches 4 bytes per extent and one value.
//!
//! Node of capacity `c`: `c` keys, then `c` values of two words, then the owner.
//!
//! Invariants
//!  L1. Extents are sorted and do not overlap; none is empty.
//!  L2. No extent joins its successor.

use crate::bits::{index, join, low32, narrow, size, split, wide};
use crate::limits::{REGION_BYTES, TARGET_MAX};
use crate::mapping::{Extent, Target};
use crate::pool::Pool;

/// Capacities of the list classes: steps of at most a third, so that little is wasted, up to a
/// block of 4096 one-byte extents.
pub(crate) const CAPACITIES: [usize; 41] = [
    2, 3, 4, 5, 6, 7, 8, 10, 12, 14, 16, 20, 24, 28, 32, 40, 48, 56, 64, 80, 96, 112, 128, 160,
    192, 224, 256, 320, 384, 448, 512, 640, 768, 896, 1024, 1280, 1536, 2048, 2560, 3072, 4096,
];

const LEN_BITS: u32 = 13;
const LEN_MASK: u32 = (1 << LEN_BITS) - 1;
const FIXED_FLAG: u64 = 1 << 56;
const LEN_HIGH_SHIFT: u32 = 57;

/// Longest key run that is counted without sampling first.
const SCAN_KEYS: usize = 64;

/// Keys in one cache line, the distance of samples in a long list.
const SAMPLE_KEYS: usize = 16;

/// One pool per class.
pub(crate) fn pools() -> Vec<Pool> {
    CAPACITIES.iter().map(|capacity| Pool::new(capacity * 3)).collect()
}

/// The smallest class that holds `count` extents.
pub(crate) fn class_for(count: usize) -> usize {
    let class = CAPACITIES.partition_point(|capacity| *capacity < count);
    assert!(class < CAPACITIES.len(), "L1: a cell holds at most one extent per byte of a block");
    class
}

/// Bytes of a node of `class`, its owner included.
pub(crate) fn class_bytes(class: usize) -> usize {
    CAPACITIES[class] * 12 + 8
}

#[inline]
fn pack(extent: Extent) -> (u32, [u32; 2]) {
    let last = extent.len - 1;
    let key = (extent.start << LEN_BITS) | (last & LEN_MASK);
    let value = match extent.target {
        Target::Linear(address) => address,
        Target::Fixed(value) => value | FIXED_FLAG,
    };
    (key, split(value | (u64::from(last >> LEN_BITS) << LEN_HIGH_SHIFT)))
}

#[inline]
fn unpack(key: u32, value: [u32; 2]) -> Extent {
    let value = join(value);
    let high = low32(value >> LEN_HIGH_SHIFT) << LEN_BITS;
    let payload = value & TARGET_MAX;
    let fixed = value & FIXED_FLAG != 0;
    let target = if fixed { Target::Fixed(payload) } else { Target::Linear(payload) };
    Extent { start: key >> LEN_BITS, len: (high | (key & LEN_MASK)) + 1, target }
}

/// How many of the sorted `keys` begin at or before `start`.
#[inline]
fn rank(keys: &[u32], start: u32) -> usize {
    let probe = (start << LEN_BITS) | LEN_MASK;
    if keys.len() <= SCAN_KEYS {
        return count_through(keys, probe);
    }
    // One key of every line first: those loads do not wait for each other.
    let mut lines = 0;
    for line in keys.chunks(SAMPLE_KEYS) {
        lines += usize::from(line[0] <= probe);
    }
    let Some(line) = lines.checked_sub(1) else { return 0 };
    let first = line * SAMPLE_KEYS;
    let end = keys.len().min(first + SAMPLE_KEYS);
    first + count_through(&keys[first..end], probe)
}

#[inline]
fn count_through(keys: &[u32], probe: u32) -> usize {
    index(keys.iter().fold(0, |count, key| count + u32::from(*key <= probe)))
}

/// A list node to read.
#[derive(Clone, Copy, Debug)]
pub(crate) struct List<'a> {
    keys: &'a [u32],
    values: &'a [[u32; 2]],
}

impl<'a> List<'a> {
    /// The list in `node` of `class`, holding `count` extents.
    #[inline]
    pub(crate) fn new(node: &'a [u32], class: usize, count: u32) -> Self {
        let count = index(count);
        let (keys, values) = node.split_at(CAPACITIES[class]);
        Self { keys: &keys[..count], values: &values.as_chunks::<2>().0[..count] }
    }

    #[inline]
    pub(crate) fn len(&self) -> usize {
        self.keys.len()
    }

    #[inline]
    pub(crate) fn get(&self, at: usize) -> Extent {
        unpack(self.keys[at], self.values[at])
    }

    /// Loads the value that `offset` would have if extents were spread evenly, which is often in
    /// the line that will be needed. The processor then waits for keys and value together, and
    /// not for one after the other.
    #[inline]
    fn touch(&self, offset: u32) {
        let guess = (wide(self.len()) * u64::from(offset)) / REGION_BYTES;
        if let Some(value) = self.values.get(size(guess)) {
            std::hint::black_box(*value);
        }
    }

    /// The first extent that ends after `offset`.
    #[inline]
    pub(crate) fn find(&self, offset: u32) -> usize {
        self.touch(offset);
        let after = rank(self.keys, offset);
        match after.checked_sub(1) {
            Some(at) if self.get(at).end() > offset => at,
            _ => after,
        }
    }

    /// How many extents touch `first..end`.
    pub(crate) fn touching(&self, first: u32, end: u32) -> usize {
        rank(self.keys, end - 1) - self.find(first)
    }

    pub(crate) fn iter(self) -> impl Iterator<Item = Extent> + 'a {
        self.keys.iter().zip(self.values).map(|(key, value)| unpack(*key, *value))
    }
}

/// A change of a list: `fresh[..fresh_count]` take the place of the `removed` extents from `at` on.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Splice {
    pub(crate) at: usize,
    pub(crate) removed: usize,
    /// Whether an extent lost its beginning and begins later now.
    pub(crate) cut: bool,
    fresh: [Extent; 3],
    fresh_count: usize,
}

impl Splice {
    /// Works out what mapping `first..end` to `target` does to a list, given as its length, an accessor and
    /// the index of its first extent that ends after `first`. Calls `displaced` in order.
    #[inline]
    pub(crate) fn plan(
        count: usize,
        get: impl Fn(usize) -> Extent,
        found: usize,
        wanted: (u32, u32, Option<Target>),
        mut displaced: impl FnMut(Extent),
    ) -> Self {
        let (first, end, target) = wanted;
        let mut left = None;
        let mut right = None;
        let mut at = found;
        let mut next = found;
        while next < count {
            let old = get(next);
            if old.start >= end {
                break;
            }
            displaced(old.clip(first, end));
            if old.start < first {
                left = Some(Extent::new(old.start, first, old.target));
            }
            if old.end() > end {
                right = Some(old.clip(end, old.end()));
            }
            next += 1;
        }
        let cut = right.is_some();
        let mut middle = target.map(|target| Extent::new(first, end, target));
        if let Some(fresh) = &mut middle {
            if left.is_none() && at > 0 && get(at - 1).joins(fresh) {
                at -= 1;
                left = Some(get(at));
            }
            if right.is_none() && next < count && fresh.joins(&get(next)) {
                right = Some(get(next));
                next += 1;
            }
            if let Some(before) = left.filter(|before| before.joins(fresh)) {
                *fresh = Extent::new(before.start, fresh.end(), before.target);
                left = None;
            }
            if let Some(after) = right.filter(|after| fresh.joins(after)) {
                fresh.len += after.len;
                right = None;
            }
        }
        let nothing = Extent { start: 0, len: 0, target: Target::Fixed(0) };
        let mut splice = Self { at, removed: next - at, cut, fresh: [nothing; 3], fresh_count: 0 };
        for extent in [left, middle, right].into_iter().flatten() {
            splice.fresh[splice.fresh_count] = extent;
            splice.fresh_count += 1;
        }
        splice
    }

    #[inline]
    pub(crate) fn fresh(&self) -> &[Extent] {
        &self.fresh[..self.fresh_count]
    }

    /// The length of a list of `count` extents after this change.
    #[inline]
    pub(crate) fn count_after(&self, count: usize) -> usize {
        count - self.removed + self.fresh_count
    }

    /// Changes a node of `class` in place; the result must fit.
    #[inline]
    pub(crate) fn apply(&self, node: &mut [u32], class: usize, count: usize) {
        let (keys, values) = node.split_at_mut(CAPACITIES[class]);
        let (values, _) = values.as_chunks_mut::<2>();
        let tail = self.at + self.removed;
        let tail_to = self.at + self.fresh_count;
        if tail != tail_to {
            keys.copy_within(tail..count, tail_to);
            values.copy_within(tail..count, tail_to);
        }
        for (step, extent) in self.fresh().iter().enumerate() {
            (keys[self.at + step], values[self.at + step]) = pack(*extent);
        }
    }

    /// Writes the changed list into a node `into` of another class.
    pub(crate) fn copy(&self, from: List<'_>, into: &mut [u32], class: usize) {
        let (keys, values) = into.split_at_mut(CAPACITIES[class]);
        let (values, _) = values.as_chunks_mut::<2>();
        let tail = self.at + self.removed;
        let tail_to = self.at + self.fresh_count;
        let end = self.count_after(from.len());
        keys[..self.at].copy_from_slice(&from.keys[..self.at]);
        values[..self.at].copy_from_slice(&from.values[..self.at]);
        keys[tail_to..end].copy_from_slice(&from.keys[tail..]);
        values[tail_to..end].copy_from_slice(&from.values[tail..]);
        for (step, extent) in self.fresh().iter().enumerate() {
            (keys[self.at + step], values[self.at + step]) = pack(*extent);
        }
    }
}

/// Writes `extents` into a fresh node of `class`; returns how many there are.
pub(crate) fn fill(node: &mut [u32], class: usize, extents: &[Extent]) -> u32 {
    let (keys, values) = node.split_at_mut(CAPACITIES[class]);
    let (values, _) = values.as_chunks_mut::<2>();
    for ((key, value), extent) in keys.iter_mut().zip(values).zip(extents) {
        (*key, *value) = pack(*extent);
    }
    narrow(extents.len())
}
