//! Which sizes the volume may have: what was asked for and not answered may have come about, or not.

use std::cell::RefCell;
use std::collections::BTreeSet;

/// Sizes in bytes of the volume, not of the oracle.
#[derive(Debug)]
pub(crate) struct Sizes {
    possible: RefCell<BTreeSet<u64>>,
    /// Every size that it may have had, in the order in which they became possible.
    history: RefCell<Vec<u64>>,
}

/// The sizes that something may have seen that took its time.
#[derive(Clone, Debug)]
pub(crate) struct SizesSeen {
    since: usize,
    seen: BTreeSet<u64>,
}

impl SizesSeen {
    pub(crate) fn contains(&self, size: u64) -> bool {
        self.seen.contains(&size)
    }
}

impl Sizes {
    pub(crate) fn new(size: u64) -> Self {
        Self { possible: BTreeSet::from([size]).into(), history: vec![size].into() }
    }

    /// It may have this size from now on.
    pub(crate) fn add(&self, size: u64) {
        self.possible.borrow_mut().insert(size);
        self.history.borrow_mut().push(size);
    }

    /// It has this size, for certain; `false` if it cannot.
    pub(crate) fn settle(&self, size: u64) -> bool {
        let was_possible = self.possible.borrow().contains(&size);
        *self.possible.borrow_mut() = BTreeSet::from([size]);
        was_possible
    }

    /// Whether it may ever have had this size.
    pub(crate) fn ever(&self, size: u64) -> bool {
        self.history.borrow().contains(&size)
    }

    /// Something begins that sees the size of the volume.
    pub(crate) fn begin(&self) -> SizesSeen {
        let since = self.history.borrow().len();
        SizesSeen { since, seen: self.possible.borrow().clone() }
    }

    /// It ends: any size in between may have been seen.
    pub(crate) fn end(&self, seen: &mut SizesSeen) {
        let history = self.history.borrow();
        seen.seen.extend(&history[seen.since.min(history.len())..]);
        seen.since = usize::MAX;
    }
}
