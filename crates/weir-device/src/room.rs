//! Room for work that needs much memory for a short while, beside the buffers of a pool: the scan of a journal, a
//! checkpoint that is being loaded.
//!
//! Such work takes room before it allocates, and waits where others have it. Hundreds of openings at once then need as
//! much memory as a few, and take hardly longer: each of them keeps a disk or a processor busy by itself.

use std::fmt;
use std::sync::Arc;

use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use crate::buffer::BufferPool;

/// The part of a pool's memory that is room for this: one divided by so much.
const SHARE: usize = 4;

/// Bytes of one permit.
const UNIT_BYTES: usize = 64 << 10;

/// How much room there is, and who waits for it.
#[derive(Debug)]
pub(crate) struct Rooms {
    permits: Arc<Semaphore>,
    permits_max: usize,
}

impl Rooms {
    /// For a pool of so many bytes.
    pub(crate) fn new(pool_bytes: usize) -> Self {
        let permits_max = (pool_bytes / SHARE / UNIT_BYTES).clamp(1, Semaphore::MAX_PERMITS);
        Self { permits: Arc::new(Semaphore::new(permits_max)), permits_max }
    }
}

/// Room that somebody has. Dropping it gives it back.
#[must_use]
pub struct Room(#[expect(dead_code, reason = "held")] OwnedSemaphorePermit);

impl fmt::Debug for Room {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Room")
    }
}

impl BufferPool {
    /// Waits until there is room for `bytes`, in the order of asking. Whoever needs more than there is in all gets all
    /// of it. Nobody may wait for a second one while it holds one.
    pub async fn room(&self, bytes: usize) -> Room {
        let rooms = self.rooms();
        let wanted = bytes.div_ceil(UNIT_BYTES).clamp(1, rooms.permits_max);
        let wanted = u32::try_from(wanted).unwrap_or(u32::MAX);
        let permit = Arc::clone(&rooms.permits).acquire_many_owned(wanted).await;
        Room(permit.expect("nobody closes this semaphore"))
    }
}

#[cfg(test)]
mod tests {
    use futures_util::FutureExt;

    use super::*;

    #[test]
    fn whoever_needs_more_than_is_left_waits_for_its_turn() {
        let pool = BufferPool::new(SHARE * 10 * UNIT_BYTES);
        let first = pool.room(6 * UNIT_BYTES).now_or_never().expect("it is empty");
        let second = pool.room(4 * UNIT_BYTES).now_or_never().expect("it just fits");
        let mut third = Box::pin(pool.room(1));
        assert!(third.as_mut().now_or_never().is_none());
        let mut huge = Box::pin(pool.room(usize::MAX));
        assert!(huge.as_mut().now_or_never().is_none());
        drop(second);
        let third = third.now_or_never().expect("it was first");
        assert!(huge.as_mut().now_or_never().is_none());
        drop(first);
        assert!(huge.as_mut().now_or_never().is_none(), "it takes all");
        drop(third);
        let huge = huge.now_or_never().expect("all of it is there");
        assert!(pool.room(1).now_or_never().is_none());
        drop(huge);
    }

    #[test]
    fn the_smallest_pool_has_room_for_one() {
        let pool = BufferPool::new(0);
        let one = pool.room(1 << 20).now_or_never().expect("for one at a time");
        assert!(pool.room(1).now_or_never().is_none());
        drop(one);
    }
}
