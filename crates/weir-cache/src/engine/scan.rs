//! Which sets are known after a crash, and which is read next.

use std::collections::VecDeque;

use super::block::RunAddress;
use super::queue::PRESSURE_MAX;
use crate::format::run::RunPlace;

/// Sets that are asked for and not read yet; more are read in their turn.
const WANTED_MAX: usize = 256;

/// A run that was found.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct FoundRun {
    pub(super) at: RunPlace,
    pub(super) address: RunAddress,
    pub(super) fill: u64,
    /// Of its blocks, in order.
    pub(super) checks: Vec<u32>,
}

/// Which sets are known.
#[derive(Debug)]
pub(super) struct Scan {
    known: Vec<bool>,
    left: u32,
    next: u32,
    wanted: VecDeque<u32>,
}

impl Scan {
    pub(super) fn new(columns: u32) -> Self {
        let known = vec![false; columns as usize];
        Self { known, left: columns, next: 0, wanted: VecDeque::new() }
    }

    /// Whether a set is known; if not, it is read before others.
    pub(super) fn is_known(&mut self, column: u32) -> bool {
        let is_known = self.known[column as usize];
        if !is_known && self.wanted.len() < WANTED_MAX && !self.wanted.contains(&column) {
            self.wanted.push_back(column);
        }
        is_known || weir_device::mutant("cache_unscanned_set_counts_as_known")
    }

    /// How much presses: the sets that are asked for.
    #[allow(clippy::cast_precision_loss, reason = "at most WANTED_MAX")]
    pub(super) fn pressure(&self) -> f64 {
        PRESSURE_MAX * (self.wanted.len() as f64 / WANTED_MAX as f64)
    }

    /// The next set to read.
    pub(super) fn take(&mut self) -> Option<u32> {
        while let Some(column) = self.wanted.pop_front() {
            if !self.known[column as usize] {
                return Some(column);
            }
        }
        while *self.known.get(self.next as usize)? {
            self.next += 1;
        }
        Some(self.next)
    }

    /// A set is known from now on; whether all are.
    pub(super) fn end(&mut self, column: u32) -> bool {
        if !std::mem::replace(&mut self.known[column as usize], true) {
            self.left -= 1;
        }
        self.left == 0
    }

    /// Sets that are known, and all.
    pub(super) fn progress(&self) -> (u32, u32) {
        let all = u32::try_from(self.known.len()).expect("columns are counted in 32 bits");
        (all - self.left, all)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sets_that_are_asked_for_are_read_first_and_each_of_them_once() {
        let mut scan = Scan::new(4);
        assert!(scan.pressure() < 1e-9);
        assert!(!scan.is_known(2) && !scan.is_known(2) && !scan.is_known(3));
        assert!(scan.pressure() > 1e-9);
        let mut order = Vec::new();
        while let Some(column) = scan.take() {
            order.push(column);
            if scan.end(column) {
                break;
            }
        }
        assert_eq!(order, [2, 3, 0, 1]);
        assert!(scan.is_known(0));
        assert_eq!(scan.progress(), (4, 4));
        assert_eq!(scan.take(), None);
    }
}
