//! What a map remembers of the ranges that are lost: to damage in a journal, or given up by a repair. The status of the
//! volume names them until they are written anew; a look through the whole map for each status would take too long.

use std::cell::Cell;

use weir_extent::{ADDRESS_END, ExtentMap, Target};

use super::objects::{POISON, is_lost};

/// Ranges that are remembered.
const RANGES_MAX: usize = 16;

/// Ranges that were lost when they were noted.
#[derive(Debug, Default)]
pub(crate) struct LostRanges {
    /// Offset and length of each. Whoever finds that its beginning is well again takes that away.
    ranges: Vec<Cell<(u64, u64)>>,
    /// There were more than are remembered.
    has_more: bool,
    /// How often one was noted.
    noted: u64,
}

/// A look through a whole map for what is lost, in steps.
#[derive(Debug, Default)]
pub(crate) struct LostLook {
    found: LostRanges,
    /// Up to here it was looked.
    at: u64,
    /// Ranges that were noted before the look began.
    noted_before: u64,
}

impl LostRanges {
    /// Remembers a range of `map`.
    pub(crate) fn note(&mut self, map: &ExtentMap, offset: u64, len: u64) {
        if len == 0 {
            return;
        }
        self.noted += 1;
        if let Some((at, known)) = self.ranges.last_mut().map(Cell::get_mut)
            && *at + *known == offset
        {
            *known += len;
            return;
        }
        if self.ranges.len() == RANGES_MAX {
            self.ranges.retain(|range| is_lost(map, range.get().0, range.get().1));
        }
        match self.ranges.len() < RANGES_MAX {
            true => self.ranges.push(Cell::new((offset, len))),
            false => self.has_more = true,
        }
    }

    /// Looks on through `map`, for `steps` of its mappings; `true` once that was all of it, and what it found is
    /// remembered in the place of what was.
    pub(crate) fn look(&mut self, map: &ExtentMap, look: &mut LostLook, steps: usize) -> bool {
        if look.at == 0 || look.noted_before != self.noted {
            *look = LostLook { noted_before: self.noted, ..LostLook::default() };
        }
        let mut left = steps;
        for mapping in map.iter_range(look.at, ADDRESS_END - look.at) {
            if left == 0 {
                return false;
            }
            left -= 1;
            look.at = mapping.offset + mapping.len;
            if mapping.target == Target::Fixed(POISON) {
                look.found.note(map, mapping.offset, mapping.len);
            }
        }
        let found = std::mem::take(&mut look.found);
        *self = Self { noted: self.noted, ..found };
        true
    }

    /// Those that are remembered. Some may have been written since.
    pub(crate) fn ranges(&self) -> impl Iterator<Item = &Cell<(u64, u64)>> + '_ {
        self.ranges.iter()
    }

    /// Whether there were more.
    pub(crate) fn has_more(&self) -> bool {
        self.has_more
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LEN: u64 = 4096;

    fn lose(map: &mut ExtentMap, lost: &mut LostRanges, nth: u64) {
        map.insert(nth * 2 * LEN, LEN, Target::Fixed(POISON), |_| {});
        lost.note(map, nth * 2 * LEN, LEN);
    }

    fn look(map: &ExtentMap, lost: &mut LostRanges) -> usize {
        let mut look = LostLook::default();
        let mut steps = 1;
        while !lost.look(map, &mut look, 3) {
            steps += 1;
        }
        steps
    }

    #[test]
    fn a_look_finds_what_was_too_much_to_remember() {
        let (mut map, mut lost) = (ExtentMap::new(), LostRanges::default());
        let all = RANGES_MAX as u64 + 4;
        (0..all).for_each(|nth| lose(&mut map, &mut lost, nth));
        assert!(lost.has_more() && lost.ranges().count() == RANGES_MAX);
        // All that is remembered is written.
        map.remove(0, RANGES_MAX as u64 * 2 * LEN, |_| {});
        assert_eq!(look(&map, &mut lost), 2, "three mappings at a time");
        let found: Vec<(u64, u64)> = lost.ranges().map(Cell::get).collect();
        let expected = (RANGES_MAX as u64..all).map(|nth| (nth * 2 * LEN, LEN));
        assert_eq!(found, expected.collect::<Vec<_>>());
        assert!(!lost.has_more());
        map.remove(0, 1 << 40, |_| {});
        assert_eq!(look(&map, &mut lost), 1);
        assert_eq!(lost.ranges().count(), 0);
    }

    #[test]
    fn what_is_lost_during_a_look_is_in_it() {
        let (mut map, mut lost) = (ExtentMap::new(), LostRanges::default());
        (1..10).for_each(|nth| lose(&mut map, &mut lost, nth));
        let mut look = LostLook::default();
        assert!(!lost.look(&map, &mut look, 5));
        lose(&mut map, &mut lost, 0);
        while !lost.look(&map, &mut look, 5) {}
        assert_eq!(lost.ranges().count(), 10);
    }
}
