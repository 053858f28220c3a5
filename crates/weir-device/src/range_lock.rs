//! A lock on ranges of bytes: whoever waits, waits for overlapping ranges only.
//!
//! Invariants
//!  R1. Two entries that conflict (they share a byte, and one of them is exclusive) are never granted together, unless
//!      one was taken under the other's token.
//!  R2. An entry is granted when every conflicting entry before it is gone. Entries that come later never overtake it,
//!      so that readers of a range cannot starve its writer.
//!  R3. An entry under a token stands in the queue where the guard of that token stands: it waits for other entries
//!      under the same token only, and everybody whom the guard keeps waiting waits for it as well.
//!  R4. Every entry counts the entries that it waits for. One that goes, granted or not, is taken off these counts.

use std::cell::RefCell;
use std::fmt;
use std::future::Future;
use std::num::NonZeroU64;
use std::pin::Pin;
use std::rc::Rc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::task::{Context, Poll, Waker};

use smallvec::SmallVec;

use crate::{ByteRange, DeviceError, ErrorKind, mutant};

#[cfg(test)]
mod tests;

/// Whether others may hold the same bytes at the same time.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum RangeMode {
    /// Others may, shared as well.
    Shared,
    /// Nobody else may.
    Exclusive,
}

/// Names a guard. A copier that holds a range hands the token on in the header of its own calls
/// ([`IoHeader::lock`](crate::IoHeader)), so that they do not wait for the range that it holds. No two guards of a
/// process have the same token.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct RangeToken(NonZeroU64);

impl RangeToken {
    fn next() -> Self {
        static LAST: AtomicU64 = AtomicU64::new(0);
        let number = LAST.fetch_add(1, Ordering::Relaxed) + 1;
        Self(NonZeroU64::new(number).expect("nobody takes 2^64 locks"))
    }
}

/// One that holds a range, or waits for it.
#[derive(Debug)]
struct Entry {
    token: RangeToken,
    range: ByteRange,
    mode: RangeMode,
    /// The guards under whose tokens it is, the outermost first.
    under: SmallVec<[RangeToken; 2]>,
    /// Entries that it waits for. It holds its range once there are none.
    waits_for: usize,
    /// Places of the entries that wait for this one.
    waited_by: SmallVec<[usize; 4]>,
    waker: Option<Waker>,
}

impl Entry {
    fn conflicts(&self, range: ByteRange, mode: RangeMode) -> bool {
        let is_shared = self.mode == RangeMode::Shared && mode == RangeMode::Shared;
        !is_shared && self.range.intersect(range).is_some()
    }

    fn covers(&self, range: ByteRange, mode: RangeMode) -> bool {
        let is_enough = self.mode == RangeMode::Exclusive || mode == RangeMode::Shared;
        self.waits_for == 0 && is_enough && self.range.contains(range)
    }
}

/// The entries by place. There are as many as operations in flight, some hundreds at most, so that all of them are
/// looked at for each new one.
#[derive(Debug, Default)]
struct Entries {
    places: Vec<Option<Entry>>,
    free: Vec<usize>,
}

impl Entries {
    fn all(&self) -> impl Iterator<Item = &Entry> {
        self.places.iter().flatten()
    }

    fn at(&self, place: usize) -> &Entry {
        self.places[place].as_ref().expect("a place is free only when its owner is gone")
    }

    fn add(&mut self, range: ByteRange, mode: RangeMode, guard: Option<RangeToken>) -> usize {
        let holder = self.all().find(|entry| Some(entry.token) == guard);
        let mut under = holder.map_or_else(SmallVec::new, |holder| holder.under.clone());
        under.extend(guard);
        let place = self.free.pop().unwrap_or_else(|| {
            self.places.push(None);
            self.places.len() - 1
        });
        let mut added = Entry {
            token: RangeToken::next(),
            range,
            mode,
            under,
            waits_for: 0,
            waited_by: SmallVec::new(),
            waker: None,
        };
        for (other_place, other) in self.places.iter_mut().enumerate() {
            let Some(other) = other.as_mut().filter(|other| other.conflicts(range, mode)) else {
                continue;
            };
            if added.under.contains(&other.token) {
                continue;
            }
            if guard.is_none_or(|guard| other.under.contains(&guard)) {
                added.waits_for += 1;
                other.waited_by.push(place);
            } else {
                // R3: the guard keeps it waiting already.
                other.waits_for += 1;
                added.waited_by.push(other_place);
            }
        }
        self.places[place] = Some(added);
        place
    }

    /// Takes an entry out, and appends those who hold their ranges now.
    fn remove(&mut self, place: usize, woken: &mut SmallVec<[Waker; 4]>) {
        let Some(gone) = self.places[place].take() else { return };
        if gone.waits_for > 0 {
            for other in self.places.iter_mut().flatten() {
                other.waited_by.retain(|waiting| *waiting != place);
            }
        }
        for waiting in gone.waited_by {
            let Some(entry) = self.places[waiting].as_mut() else { continue };
            entry.waits_for -= 1;
            if entry.waits_for == 0 {
                woken.extend(entry.waker.take());
            }
        }
        self.free.push(place);
    }
}

/// A lock on ranges. Clones are the same lock. It stays on its thread; a steady state allocates nothing.
#[derive(Clone, Debug, Default)]
pub struct RangeLock(Rc<RefCell<Entries>>);

impl RangeLock {
    /// Waits until the range can be held. Its place in the queue is taken by this call, not when it is first polled, so
    /// that several ranges can be queued in their order before anything is waited for.
    ///
    /// An empty range is held at once.
    pub fn lock(&self, range: ByteRange, mode: RangeMode) -> RangeLocking {
        let place = self.0.borrow_mut().add(range, mode, None);
        RangeLocking(Some(RangeGuard { lock: self.clone(), place }))
    }

    /// As [`Self::lock`], for a caller that may hold the range already: under a token of this lock it waits only for
    /// others under the same token. A token of another lock, or of a guard that is gone, changes nothing.
    ///
    /// # Errors
    /// [`ErrorKind::Bug`] where the guard of the token holds a part of the range, or holds it in another mode: the call
    /// would wait for its own guard.
    pub fn lock_under(
        &self,
        range: ByteRange,
        mode: RangeMode,
        token: Option<RangeToken>,
    ) -> Result<RangeLocking, DeviceError> {
        let guard = |entry: &&Entry| Some(entry.token) == token && entry.waits_for == 0;
        let under = match self.0.borrow().all().find(guard) {
            Some(entry) if entry.covers(range, mode) => token,
            Some(entry) if entry.conflicts(range, mode) => {
                return Err(DeviceError::new(
                    ErrorKind::Bug,
                    format!("{range} was asked for under a lock of {} only", entry.range),
                ));
            }
            _ => None,
        };
        let place = self.0.borrow_mut().add(range, mode, under);
        Ok(RangeLocking(Some(RangeGuard { lock: self.clone(), place })))
    }

    /// The range, if nobody has to be waited for.
    #[must_use]
    pub fn try_lock(&self, range: ByteRange, mode: RangeMode) -> Option<RangeGuard> {
        let is_free = !self.0.borrow().all().any(|entry| entry.conflicts(range, mode));
        if !is_free {
            return None;
        }
        let place = self.0.borrow_mut().add(range, mode, None);
        Some(RangeGuard { lock: self.clone(), place })
    }

    /// Ranges that are held, and ranges that are waited for.
    #[must_use]
    pub fn counts(&self) -> (usize, usize) {
        let entries = self.0.borrow();
        let held = entries.all().filter(|entry| entry.waits_for == 0).count();
        (held, entries.all().count() - held)
    }
}

/// Waits for a range. Dropping it gives up its place in the queue.
#[derive(Debug)]
#[must_use = "a range is held once this was awaited"]
pub struct RangeLocking(Option<RangeGuard>);

impl Future for RangeLocking {
    type Output = RangeGuard;
    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<RangeGuard> {
        if let Some(guard) = &self.0 {
            let mut entries = guard.lock.0.borrow_mut();
            let entry = entries.places[guard.place].as_mut().expect("its owner is here");
            if entry.waits_for > 0 && !mutant("range_lock_waits_for_nobody") {
                match &mut entry.waker {
                    Some(waker) => waker.clone_from(cx.waker()),
                    none => *none = Some(cx.waker().clone()),
                }
                return Poll::Pending;
            }
        }
        Poll::Ready(self.0.take().expect("not polled after it was ready"))
    }
}

/// A range that is held. Dropping it lets the next ones have it.
#[must_use = "a range is given up when its guard is dropped"]
pub struct RangeGuard {
    lock: RangeLock,
    place: usize,
}

impl RangeGuard {
    /// The range.
    #[must_use]
    pub fn range(&self) -> ByteRange {
        self.lock.0.borrow().at(self.place).range
    }

    /// What the holder's own calls carry.
    #[must_use]
    pub fn token(&self) -> RangeToken {
        self.lock.0.borrow().at(self.place).token
    }
}

impl Drop for RangeGuard {
    fn drop(&mut self) {
        let mut woken = SmallVec::new();
        self.lock.0.borrow_mut().remove(self.place, &mut woken);
        // After the borrow has ended: a waker may run code of its own.
        woken.into_iter().for_each(Waker::wake);
    }
}

impl fmt::Debug for RangeGuard {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("RangeGuard")
    }
}
