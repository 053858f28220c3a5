//! How much memory a replay takes, and the end of it where that is more than it may take.
//!
//! What a trace comes to in memory depends on all of its requests, so it is not computed but read from the kernel every
//! so many of them. Between two looks a replay takes some tens of megabytes more at most.

use weir_node::resident_bytes;
use weir_node::size::{Size, human};

use crate::cli::trace::MemoryLimit;
use crate::terminal::failure::Failure;

/// Bytes of requests between two looks.
const LOOK_BYTES: u64 = 1 << 30;

/// What a request counts on top of its length: it may be of a disk of its own, which takes some memory by itself.
const REQUEST_BYTES: u64 = 1 << 20;

/// Looks at the memory of the process.
pub(super) struct Memory {
    limit_bytes: u64,
    unseen_bytes: u64,
}

impl Memory {
    pub(super) fn new(args: &MemoryLimit) -> Self {
        let Size(limit_bytes) = args.memory_limit;
        Self { limit_bytes, unseen_bytes: 0 }
    }

    /// To be called after each request.
    pub(super) fn after(&mut self, request_bytes: u64) -> Result<(), Failure> {
        self.unseen_bytes = self.unseen_bytes.saturating_add(request_bytes + REQUEST_BYTES);
        if self.unseen_bytes < LOOK_BYTES {
            return Ok(());
        }
        self.unseen_bytes = 0;
        self.room_for(0, "the replay")
    }

    /// Whether `more_bytes`, for `what`, are within the limit.
    pub(super) fn room_for(&self, more_bytes: u64, what: &str) -> Result<(), Failure> {
        let bytes = resident_bytes().saturating_add(more_bytes);
        if bytes <= self.limit_bytes {
            return Ok(());
        }
        let (bytes, limit) = (human(bytes), human(self.limit_bytes));
        Err(Failure::new(format!("{what} takes {bytes} of memory, more than the {limit} it may"))
            .with_help("replay a part of the trace, smaller caches or fewer policies, or raise --memory-limit"))
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
        assert!(small.is_some_and(|small| (512..=1024).contains(&small)), "{small:?}");
        let error = none.after(LOOK_BYTES).unwrap_err();
        assert!(error.message().contains("more than the 1 B it may"), "{error:?}");
        let mut enough = of(1 << 40);
        assert!((0..10_000).all(|_| enough.after(LOOK_BYTES).is_ok()));
        assert!(enough.room_for(1 << 40, "a cache").is_err());
    }
}
