//! Which bands a trace touches, as runs of bands side by side: a request takes one entry however long it is, and
//! memory grows by a node at a time. A hash table doubles, with the old one beside the new one, between two looks at
//! the memory.

use std::collections::BTreeMap;
use std::ops::Range;

/// Sets of bands, one of each disk.
#[derive(Debug, Default)]
pub(super) struct Touched {
    /// Disk and first band of a run, and the band behind its last one. Runs of a disk share no band and do not meet.
    runs: BTreeMap<(u32, u64), u64>,
    bands: u64,
}

impl Touched {
    /// Adds bands of a disk.
    pub(super) fn add(&mut self, device: u32, bands: Range<u64>) {
        let Range { start: mut from, end: mut to } = bands;
        if from >= to {
            return;
        }
        // The run that begins last among those that reach or meet what is added, again and again.
        while let Some((&(_, begin), &end)) =
            self.runs.range((device, 0)..=(device, to)).next_back()
            && end >= from
        {
            if begin <= from && end >= to {
                return;
            }
            self.runs.remove(&(device, begin));
            self.bands -= end - begin;
            (from, to) = (from.min(begin), to.max(end));
        }
        self.runs.insert((device, from), to);
        self.bands += to - from;
    }

    /// How many bands there are.
    pub(super) fn bands(&self) -> u64 {
        self.bands
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use super::*;

    #[test]
    fn bands_are_counted_once_and_those_side_by_side_are_one_run() {
        let (mut touched, mut model) = (Touched::default(), HashSet::new());
        let mut state = 7_u64;
        let mut next = |below: u64| {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            (state >> 33) % below
        };
        for _ in 0..3000 {
            let (device, from) = (u32::from(next(2) == 1), next(2000));
            let bands = from..from + next(6);
            touched.add(device, bands.clone());
            model.extend(bands.map(|band| (device, band)));
            assert_eq!(touched.bands(), model.len() as u64);
        }
        let begins = |&&(device, band): &&(u32, u64)| {
            band.checked_sub(1).is_none_or(|before| !model.contains(&(device, before)))
        };
        assert_eq!(touched.runs.len(), model.iter().filter(begins).count());
        touched.add(0, 0..5000);
        assert_eq!(touched.runs.keys().filter(|(device, _)| *device == 0).count(), 1);
    }
}
