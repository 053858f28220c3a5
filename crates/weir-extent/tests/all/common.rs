//! The obvious model of an extent map, and the operations both are put through.

use std::collections::BTreeMap;

use weir_extent::{ADDRESS_END, ExtentMap, Mapping, Target};

/// Volume offset of each interval to its end and target. Never joined, never overlapping.
#[derive(Default)]
pub(crate) struct Model {
    intervals: BTreeMap<u64, (u64, Target)>,
}

impl Model {
    pub(crate) fn replace(&mut self, first: u64, end: u64, target: Option<Target>) -> Vec<Mapping> {
        let mut displaced = Vec::new();
        if first == end {
            return displaced;
        }
        let below = self.intervals.range(..first).next_back().map(|(start, _)| *start);
        let starts: Vec<u64> =
            below.into_iter().chain(self.intervals.range(first..end).map(|(s, _)| *s)).collect();
        for start in starts {
            let (stop, old) = self.intervals[&start];
            if stop <= first {
                continue;
            }
            self.intervals.remove(&start);
            let (from, to) = (start.max(first), stop.min(end));
            if start < first {
                self.intervals.insert(start, (first, old));
            }
            if stop > end {
                self.intervals.insert(end, (stop, old.advance(end - start)));
            }
            push(&mut displaced, from, to, old.advance(from - start));
        }
        if let Some(target) = target {
            self.intervals.insert(first, (end, target));
        }
        displaced
    }

    pub(crate) fn range(&self, first: u64, end: u64) -> Vec<Mapping> {
        let mut found = Vec::new();
        let below = self.intervals.range(..first).next_back();
        for (start, (stop, target)) in below.into_iter().chain(self.intervals.range(first..end)) {
            if *stop > first {
                let from = first.max(*start);
                push(&mut found, from, end.min(*stop), target.advance(from - start));
            }
        }
        found
    }

    /// What holds `offset`: the end of its interval and the target of that byte.
    pub(crate) fn at(&self, offset: u64) -> Option<(u64, Target)> {
        let (start, (end, target)) = self.intervals.range(..=offset).next_back()?;
        (*end > offset).then(|| (*end, target.advance(offset - start)))
    }

    pub(crate) fn edges(&self) -> Vec<u64> {
        self.intervals.iter().flat_map(|(start, (end, _))| [*start, *end]).collect()
    }
}

fn push(list: &mut Vec<Mapping>, from: u64, to: u64, target: Target) {
    if let Some(last) = list.last_mut()
        && last.end() == from
        && last.target.advance(last.len) == target
    {
        last.len += to - from;
        return;
    }
    list.push(Mapping { offset: from, len: to - from, target });
}

/// A map and its model, changed and compared together.
#[derive(Default)]
pub(crate) struct Pair {
    pub(crate) map: ExtentMap,
    pub(crate) model: Model,
    dirty: std::collections::BTreeSet<u64>,
}

impl Pair {
    pub(crate) fn replace(&mut self, first: u64, len: u64, target: Option<Target>, budget: usize) {
        let end = first + len;
        let expected = self.model.replace(first, end, target);
        self.note_dirty(first, end, target, &expected);
        let mut displaced = Vec::new();
        let mut at = first;
        while at < end {
            let mut note =
                |gone: Mapping| push(&mut displaced, gone.offset, gone.end(), gone.target);
            let rest = end - at;
            let done = match target {
                Some(target) => {
                    self.map.insert_step(at, rest, target.advance(at - first), budget, &mut note)
                }
                None => self.map.remove_step(at, rest, budget, &mut note),
            };
            assert!(done > 0 && done <= rest, "a step makes progress");
            at += done;
        }
        assert_eq!(displaced, expected, "displaced by {first}..{end} -> {target:?}");
    }

    fn note_dirty(&mut self, first: u64, end: u64, target: Option<Target>, gone: &[Mapping]) {
        let whole = target.map(|target| Mapping { offset: first, len: end - first, target });
        for changed in whole.iter().chain(gone) {
            // Enough to compare: the ends. A whole table of pieces in between would be 1024 each.
            self.dirty.insert(ExtentMap::piece_of(changed.offset));
            self.dirty.insert(ExtentMap::piece_of(changed.end() - 1));
        }
    }

    /// Compares everything: content, look-ups, invariants.
    pub(crate) fn check(&self) {
        self.map.check_invariants();
        let everything: Vec<Mapping> = self.map.iter_range(0, ADDRESS_END).collect();
        assert_eq!(everything, self.model.range(0, ADDRESS_END));
        for edge in self.model.edges() {
            for offset in [edge.saturating_sub(1), edge, edge + 1] {
                self.check_lookup(offset.min(ADDRESS_END - 1));
            }
        }
    }

    pub(crate) fn check_lookup(&self, offset: u64) {
        let found = self.map.lookup(offset);
        let expected = self.model.at(offset);
        assert_eq!(found.map(|found| found.target), expected.map(|expected| expected.1));
        let Some(found) = found else { return };
        assert!(found.offset == offset && found.len > 0);
        // The model may hold in two intervals what the map has joined.
        let mut at = found.offset;
        while at < found.end() {
            let (end, target) = self.model.at(at).expect("a look-up stays inside");
            assert_eq!(target, found.target.advance(at - found.offset));
            at = end;
        }
    }

    pub(crate) fn check_range(&self, first: u64, len: u64) {
        let found: Vec<Mapping> = self.map.iter_range(first, len).collect();
        assert_eq!(found, self.model.range(first, first + len));
    }

    /// Every piece that changed is dirty, and dirty once.
    pub(crate) fn check_dirty(&mut self) {
        let dirty = self.map.take_dirty_ranges();
        assert!(dirty.windows(2).all(|pair| pair[0].end < pair[1].start), "in order, each once");
        for piece in std::mem::take(&mut self.dirty) {
            let known = dirty.iter().any(|range| range.contains(&piece));
            assert!(known, "piece {piece} changed and is not dirty");
        }
        assert!(!self.map.is_dirty());
        assert!(self.map.take_dirty().is_empty());
        self.map.check_invariants();
    }
}

/// A small generator with a seed in plain sight.
pub(crate) struct Dice(pub(crate) u64);

impl Dice {
    pub(crate) fn roll(&mut self, sides: u64) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        (self.0 >> 11) % sides
    }
}
