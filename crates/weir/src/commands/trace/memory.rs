//! How much memory a replay takes, and the end of it where that is more than it may take.
//!
//! What a trace comes to in memory depends on all of its requests, so it is not computed but read from the kernel every
//! so many of them, and within long work. What takes much at once, as a table that grows, is asked for before.
//! Measured, a replay takes less than 15 % more than it may: what comes between two looks.

use std::cell::Cell;
use std::rc::Rc;

use weir_node::resident_bytes;
use weir_node::size::{Size, human};

use crate::cli::trace::MemoryLimit;
use crate::terminal::failure::Failure;

/// Bytes of requests between two looks.
const LOOK_BYTES: u64 = 1 << 30;

/// What a request counts on top of its length. It may touch a part of a disk that no other does, which takes tens of
/// KiB in each replay beside it.
const REQUEST_BYTES: u64 = 16 << 20;

/// Looks at the memory of the process.
pub(super) struct Memory {
    limit_bytes: u64,
    unseen_bytes: u64,
    /// What [`Memory::is_spent`] saw beyond the limit.
    spent_bytes: Rc<Cell<Option<u64>>>,
}

impl Memory {
    pub(super) fn new(args: &MemoryLimit) -> Self {
        let Size(limit_bytes) = args.memory_limit;
        Self { limit_bytes, unseen_bytes: 0, spent_bytes: Rc::default() }
    }

    /// For work within a request: whether the limit was passed. Once it was, [`Memory::within`] is an error.
    pub(super) fn is_spent(&self) -> impl Fn() -> bool + 'static {
        let (limit_bytes, spent_bytes) = (self.limit_bytes, Rc::clone(&self.spent_bytes));
        move || {
            let bytes = resident_bytes();
            if bytes > limit_bytes {
                spent_bytes.set(Some(bytes));
            }
            bytes > limit_bytes
        }
    }

    /// To be called after each request.
    pub(super) fn after(&mut self, request_bytes: u64) -> Result<(), Failure> {
        self.unseen_bytes = self.unseen_bytes.saturating_add(request_bytes + REQUEST_BYTES);
        if self.unseen_bytes < LOOK_BYTES && self.spent_bytes.get().is_none() {
            return Ok(());
        }
        self.unseen_bytes = 0;
        self.within()
    }

    /// Whether the replay is within the limit.
    pub(super) fn within(&self) -> Result<(), Failure> {
        match self.spent_bytes.get() {
            Some(bytes) => Err(self.refused(bytes, "the replay")),
            None => self.room_for(0, "the replay"),
        }
    }

    /// Whether `more_bytes`, for `what`, are within the limit.
    pub(super) fn room_for(&self, more_bytes: u64, what: &str) -> Result<(), Failure> {
        let bytes = resident_bytes().saturating_add(more_bytes);
        match bytes <= self.limit_bytes {
            true => Ok(()),
            false => Err(self.refused(bytes, what)),
        }
    }

    fn refused(&self, bytes: u64, what: &str) -> Failure {
        let (bytes, limit) = (human(bytes), human(self.limit_bytes));
        Failure::new(format!("{what} takes {bytes} of memory, more than the {limit} it may"))
            .with_help("replay a part of the trace, smaller caches or fewer policies, or raise --memory-limit")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn memory_is_looked_at_after_many_requests_and_after_long_ones() {
        let of = |bytes| Memory::new(&MemoryLimit { memory_limit: Size(bytes) });
        let mut none = of(1);
        let small = (1..10_000).find(|_| none.after(512).is_err());
        assert!(small.is_some_and(|small| (32..=64).contains(&small)), "{small:?}");
        let error = none.after(LOOK_BYTES).unwrap_err();
        assert!(error.message().contains("more than the 1 B it may"), "{error:?}");
        let mut seen = of(1);
        assert!(seen.is_spent()());
        assert!(seen.after(1).is_err(), "what was seen within a request counts at its end");
        let mut enough = of(1 << 40);
        assert!(!enough.is_spent()());
        assert!((0..10_000).all(|_| enough.after(LOOK_BYTES).is_ok()));
        assert!(enough.room_for(1 << 40, "a cache").is_err());
    }
}
