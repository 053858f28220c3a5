//! What waits to be written to the cache on a thread: so many bytes, and no more.

use std::cell::{Cell, RefCell};
use std::collections::VecDeque;
use std::fmt;
use std::sync::Arc;

use bytes::Bytes;
use smallvec::SmallVec;
use weir_seal::BlockKey;

use super::block::RunAddress;

/// Bytes that wait to be written on a thread, and that nobody else holds.
const QUEUE_BYTES_MAX: usize = 8 << 20;

/// Runs that wait on a thread: with those that somebody else holds, 1 GiB.
const QUEUE_RUNS_MAX: usize = 16 << 10;

/// How much a full queue of what was missed presses: to read it from below again takes longer than what clients lose
/// beside its fill, but none of them waits for it.
pub(super) const PRESSURE_MAX: f64 = 0.9;

/// Runs that were missed and wait, from which on they press as much: 8 MiB.
const PRESSING_RUNS: usize = 128;

/// The bytes of a run, one piece behind the other.
pub type Pieces = SmallVec<[Bytes; 1]>;

/// Where the bytes of a run are.
pub enum Source {
    /// Here: it was written just now.
    Here(Pieces),
    /// Somebody read it, and it was not there: a cache in memory has it, and gives it when it is written, if it still
    /// does. The next read may ask for it again.
    Kept(Box<dyn Fn() -> Option<Bytes>>),
}

impl Source {
    fn bytes(&self) -> usize {
        match self {
            Self::Here(pieces) => len_of(pieces),
            Self::Kept(_) => 0,
        }
    }

    /// The bytes, if they are still to be had.
    pub(super) fn take(self) -> Option<Pieces> {
        match self {
            Self::Here(pieces) => Some(pieces),
            Self::Kept(give) => Some(Pieces::from_iter([give()?])),
        }
    }
}

impl fmt::Debug for Source {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Source({} bytes)", self.bytes())
    }
}

/// A run that waits.
pub(super) struct Offer {
    pub(super) address: RunAddress,
    pub(super) source: Source,
    pub(super) key: Option<Arc<BlockKey>>,
}

/// Bytes of all pieces.
pub(super) fn len_of(pieces: &Pieces) -> usize {
    pieces.iter().map(Bytes::len).sum()
}

/// What waits to be written on a thread.
#[derive(Default)]
pub(super) struct Queue {
    offers: RefCell<VecDeque<Offer>>,
    bytes: Cell<usize>,
    kept: Cell<usize>,
    /// Tasks that write.
    pub(super) fillers: Cell<u32>,
}

impl Queue {
    fn count(&self, offer: &Offer, change: impl Fn(usize, usize) -> usize) {
        self.bytes.set(change(self.bytes.get(), offer.source.bytes()));
        if matches!(offer.source, Source::Kept(_)) {
            self.kept.set(change(self.kept.get(), 1));
        }
    }

    /// Whether there was room for it.
    pub(super) fn push(&self, offer: Offer) -> bool {
        let mut offers = self.offers.borrow_mut();
        let bytes = self.bytes.get() + offer.source.bytes();
        if bytes > QUEUE_BYTES_MAX || offers.len() == QUEUE_RUNS_MAX {
            return false;
        }
        self.count(&offer, |all, one| all + one);
        offers.push_back(offer);
        true
    }

    pub(super) fn pop(&self) -> Option<Offer> {
        let offer = self.offers.borrow_mut().pop_front()?;
        self.count(&offer, |all, one| all - one);
        Some(offer)
    }

    /// The next one, if it is the run behind another one in its band, and of the same device.
    pub(super) fn pop_behind(&self, before: &Offer) -> Option<Offer> {
        let is_behind = self.offers.borrow().front().is_some_and(|next| {
            next.address.device == before.address.device
                && next.address.run == before.address.run + 1
                && next.address.in_band() != 0
        });
        if is_behind { self.pop() } else { None }
    }

    /// How much presses: the backlog of what was missed.
    #[allow(clippy::cast_precision_loss, reason = "at most QUEUE_RUNS_MAX")]
    pub(super) fn pressure(&self) -> f64 {
        PRESSURE_MAX * (self.kept.get() as f64 / PRESSING_RUNS as f64).min(1.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::format::run::DeviceIdentity;

    fn offer(source: Source) -> Offer {
        let address = RunAddress { device: DeviceIdentity([1; 32]), run: 0 };
        Offer { address, source, key: None }
    }

    #[test]
    fn bytes_that_nobody_else_holds_are_few_and_do_not_press() {
        let queue = Queue::default();
        let pieces = || Source::Here(Pieces::from_iter([Bytes::from(vec![0; 1 << 20])]));
        let pushed = (0..20).filter(|_| queue.push(offer(pieces()))).count();
        assert_eq!((pushed, queue.pressure()), (8, 0.0));
        queue.pop().expect("one is there");
        assert!(queue.push(offer(pieces())), "there is room again");
    }

    #[test]
    fn what_was_missed_presses_the_more_the_more_waits_and_never_fully() {
        let queue = Queue::default();
        let kept = || Source::Kept(Box::new(|| None));
        let pushed = (0..20_000).filter(|_| queue.push(offer(kept()))).count();
        assert_eq!(pushed, QUEUE_RUNS_MAX);
        assert!((queue.pressure() - PRESSURE_MAX).abs() < 1e-9);
        while let Some(offer) = queue.pop() {
            assert!(offer.source.take().is_none());
        }
        assert!(queue.push(offer(kept())));
        assert!(queue.pressure() > 0.0 && queue.pressure() < 0.1);
    }
}
