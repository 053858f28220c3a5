//! Room on a file system: how far the files that grow on it may go.
//!
//! Journals fill whatever they are given, and what lets them be written over is uploaded to a store. Where the store is
//! a directory on the same file system, a journal that takes the last of it stops the uploads, which alone could
//! release it. So a file grows only while enough stays free afterwards:
//!
//!  1. always a part that no journal takes, for the small files without which nothing starts or ends;
//!  2. where the store is on the same file system, also as much as all journals of this process are long, because all
//!     that they hold has to be stored before they are released.
//!
//! What is asked for is counted before it is written, so that two that grow at once do not both take the last of it.

use std::fmt;
use std::sync::{Arc, LazyLock, Mutex, MutexGuard, PoisonError};

/// What no journal takes of its file system: two objects of a usual size, and the small files of a start.
pub const LEFT_FREE_BYTES: u64 = 16 << 20;

static OF_PROCESS: LazyLock<Arc<Room>> = LazyLock::new(Arc::default);

/// The account of all files that share one rule, whichever thread they are on.
#[derive(Debug, Default)]
pub struct Room {
    account: Mutex<Account>,
}

#[derive(Debug, Default)]
struct Account {
    /// Lengths of the open files.
    held: u64,
    /// What they are growing by at this moment.
    growing: u64,
}

/// The rule under which the files of a directory grow.
#[derive(Clone, Debug)]
pub struct LeaveRoom {
    room: Arc<Room>,
    bytes: u64,
    beside_store: bool,
}

/// How much is free and how much is needed, where that is too little.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct TooLittle {
    pub(crate) free: u64,
    pub(crate) needed: u64,
}

impl LeaveRoom {
    /// The rule for the journals of this process. `beside_store`: the store is on the same file system.
    #[must_use]
    pub fn of_process(beside_store: bool) -> Self {
        Self::new(Arc::clone(&OF_PROCESS), LEFT_FREE_BYTES, beside_store)
    }

    /// A rule with an account and a size of its own.
    #[must_use]
    pub fn new(room: Arc<Room>, bytes: u64, beside_store: bool) -> Self {
        Self { room, bytes, beside_store }
    }

    fn account(&self) -> MutexGuard<'_, Account> {
        self.room.account.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// One open file in the account; leaves it when dropped.
pub(crate) struct Share {
    rule: LeaveRoom,
    /// Length of the file as it was counted.
    len: Mutex<u64>,
}

/// A growth that was granted, until it is over. [`Share::note_len`] says that it came to be.
#[derive(Debug)]
pub(crate) struct Growth<'a> {
    share: &'a Share,
    bytes: u64,
}

impl Share {
    pub(crate) fn new(rule: LeaveRoom, len: u64) -> Self {
        rule.account().held += len;
        Self { rule, len: Mutex::new(len) }
    }

    /// The file is this long now, or longer.
    pub(crate) fn note_len(&self, now: u64) {
        let mut len = self.len.lock().unwrap_or_else(PoisonError::into_inner);
        self.rule.account().held += now.saturating_sub(*len);
        *len = now.max(*len);
    }

    /// Grants `bytes` more, if enough of what is free now stays free.
    pub(crate) fn grow(&self, bytes: u64, free: u64) -> Result<Growth<'_>, TooLittle> {
        let mut account = self.rule.account();
        // What others are writing may be counted as used already; then this errs on the side of waiting.
        let taken = account.growing + bytes;
        let beside = if self.rule.beside_store { account.held + taken } else { 0 };
        let needed = taken + self.rule.bytes + beside;
        if free < needed {
            return Err(TooLittle { free, needed });
        }
        account.growing += bytes;
        Ok(Growth { share: self, bytes })
    }
}

impl Drop for Growth<'_> {
    fn drop(&mut self) {
        self.share.rule.account().growing -= self.bytes;
    }
}

impl Drop for Share {
    fn drop(&mut self) {
        let len = *self.len.get_mut().unwrap_or_else(PoisonError::into_inner);
        self.rule.account().held -= len;
    }
}

impl fmt::Debug for Share {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Share").field("rule", &self.rule).finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LEFT: u64 = 16;

    fn share(room: &Arc<Room>, beside_store: bool, len: u64) -> Share {
        Share::new(LeaveRoom::new(Arc::clone(room), LEFT, beside_store), len)
    }

    #[test]
    fn a_part_stays_free() {
        let share = share(&Arc::default(), false, 1000);
        assert!(share.grow(64, 64 + LEFT).is_ok());
        let refused = share.grow(64, 63 + LEFT).unwrap_err();
        assert_eq!(refused, TooLittle { free: 63 + LEFT, needed: 64 + LEFT });
    }

    #[test]
    fn beside_a_store_as_much_stays_free_as_all_journals_are_long() {
        let room = Arc::default();
        let (one, other) = (share(&room, true, 100), share(&room, true, 200));
        let needed = 10 + LEFT + 310;
        assert!(one.grow(10, needed - 1).is_err());
        drop(one.grow(10, needed).unwrap());
        one.note_len(110);
        assert!(other.grow(10, needed + 9).is_err(), "the other one has grown");
        drop(one);
        assert!(other.grow(10, 10 + LEFT + 210).is_ok(), "what was closed does not count");
    }

    #[test]
    fn two_that_grow_at_once_do_not_take_the_same_room() {
        let room = Arc::default();
        let (one, other) = (share(&room, false, 0), share(&room, false, 0));
        let free = 15 + LEFT;
        let growth = one.grow(10, free).unwrap();
        assert!(other.grow(10, free).is_err());
        drop(growth);
        assert!(other.grow(10, free).is_ok(), "a growth that failed takes nothing");
    }
}
