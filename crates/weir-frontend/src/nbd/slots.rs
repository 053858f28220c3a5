//! A slab of futures that run side by side without an allocation for each.
//!
//! A slot keeps its pinned memory and its waker when its future ends, and lends them to the next one. Each waker marks
//! its own slot, so that only futures that were woken are polled.
//!
//! Invariants
//!  S1. A slot is either free or holds a future and its ticket.
//!  S2. A future is dropped only after it completed, unless the whole slab is dropped.

use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::task::{Context, Poll, Wake, Waker};

use futures_util::task::AtomicWaker;
use weir_device::mutant;

/// Which slots were woken, and whom to tell.
struct Ready {
    words: Box<[AtomicU64]>,
    parent: AtomicWaker,
}

struct SlotWaker {
    ready: Arc<Ready>,
    index: usize,
}

impl Wake for SlotWaker {
    fn wake(self: Arc<Self>) {
        self.wake_by_ref();
    }

    fn wake_by_ref(self: &Arc<Self>) {
        let bit = 1 << (self.index % 64);
        let before = self.ready.words[self.index / 64].fetch_or(bit, Ordering::AcqRel);
        if before & bit == 0 {
            self.ready.parent.wake();
        }
    }
}

struct Slot<F, T> {
    future: Pin<Box<Option<F>>>,
    ticket: Option<T>,
    waker: Waker,
}

/// Up to a fixed number of futures in flight, each with a ticket that comes back with its output.
pub(super) struct Slots<F, T> {
    slots: Vec<Slot<F, T>>,
    free: Vec<usize>,
    ready: Arc<Ready>,
    slots_max: usize,
}

impl<F: Future, T> Slots<F, T> {
    pub(super) fn new(slots_max: usize) -> Self {
        let words = (0..slots_max.div_ceil(64)).map(|_| AtomicU64::new(0)).collect();
        let ready = Arc::new(Ready { words, parent: AtomicWaker::new() });
        Self { slots: Vec::new(), free: Vec::new(), ready, slots_max }
    }

    /// Futures that have not completed.
    pub(super) fn active(&self) -> usize {
        self.slots.len() - self.free.len()
    }

    /// Gives back the memory of slots if all are free.
    pub(super) fn shrink(&mut self) {
        if self.active() == 0 {
            (self.slots, self.free) = (Vec::new(), Vec::new());
        }
    }

    /// Who is woken when a future can go on.
    pub(super) fn register(&self, waker: &Waker) {
        self.ready.parent.register(waker);
    }

    fn take_slot(&mut self) -> usize {
        if let Some(index) = self.free.pop() {
            return index;
        }
        let index = self.slots.len();
        assert!(index < self.slots_max, "the caller keeps to the number of slots");
        let waker = Waker::from(Arc::new(SlotWaker { ready: Arc::clone(&self.ready), index }));
        self.slots.push(Slot { future: Box::pin(None), ticket: None, waker });
        index
    }

    /// Starts a future; its ticket and output, if it completes at once.
    ///
    /// # Panics
    /// If all slots are taken.
    pub(super) fn start(&mut self, future: F, ticket: T) -> Option<(T, F::Output)> {
        let index = self.take_slot();
        let slot = &mut self.slots[index];
        assert!(slot.ticket.is_none(), "S1: a free slot holds no ticket");
        slot.future.set(Some(future));
        slot.ticket = Some(ticket);
        self.poll_slot(index)
    }

    fn poll_slot(&mut self, index: usize) -> Option<(T, F::Output)> {
        let slot = self.slots.get_mut(index)?;
        // A late wake of an earlier future can mark a slot that is free by now.
        let future = slot.future.as_mut().as_pin_mut()?;
        let Poll::Ready(output) = future.poll(&mut Context::from_waker(&slot.waker)) else {
            return None;
        };
        slot.future.set(None);
        self.free.push(index);
        let ticket = slot.ticket.take().expect("S1: a slot with a future holds its ticket");
        Some((ticket, output))
    }

    /// Polls every future that was woken, once, and hands over those that completed. Whether any was polled.
    pub(super) fn poll_woken(&mut self, mut completed: impl FnMut(T, F::Output)) -> bool {
        let mut polled = false;
        for word_index in 0..self.ready.words.len() {
            let mut word = self.ready.words[word_index].swap(0, Ordering::AcqRel);
            while word != 0 {
                polled = true;
                let bit = usize::try_from(word.trailing_zeros()).expect("below 64");
                word &= word - 1;
                if let Some((ticket, output)) = self.poll_slot(word_index * 64 + bit) {
                    completed(ticket, output);
                }
            }
            if mutant("wake_lost_while_polling") {
                self.ready.words[word_index].store(0, Ordering::Release);
            }
        }
        polled
    }
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;
    use std::rc::Rc;

    use tokio::sync::oneshot;

    use super::*;

    #[test]
    fn only_woken_futures_are_polled_and_slots_are_used_again() {
        let polls = Rc::new(Cell::new(0));
        let counted = |receiver: oneshot::Receiver<u32>| {
            let polls = Rc::clone(&polls);
            let mut receiver = Box::pin(receiver);
            std::future::poll_fn(move |cx| {
                polls.set(polls.get() + 1);
                receiver.as_mut().poll(cx).map(|value| value.expect("sent"))
            })
        };
        let mut slots = Slots::new(100);
        for round in 0..3 {
            let (senders, receivers): (Vec<_>, Vec<_>) =
                (0..100).map(|_| oneshot::channel()).unzip();
            for (ticket, receiver) in receivers.into_iter().enumerate() {
                assert!(slots.start(counted(receiver), ticket).is_none());
            }
            assert_eq!((slots.active(), slots.slots.len()), (100, 100), "round {round}");
            polls.set(0);
            assert!(!slots.poll_woken(|_, _| panic!("nothing was woken")));
            let mut senders: Vec<_> = senders.into_iter().map(Some).collect();
            for ticket in [63, 64, 99, 0] {
                let sender = senders[ticket].take().expect("once each");
                sender.send(7).expect("the future waits");
            }
            let mut done = Vec::new();
            assert!(slots.poll_woken(|ticket, output| done.push((ticket, output))));
            done.sort_unstable();
            assert_eq!(done, [(0, 7), (63, 7), (64, 7), (99, 7)]);
            assert_eq!((polls.get(), slots.active()), (4, 96));
            for sender in senders.into_iter().flatten() {
                sender.send(8).expect("the future waits");
            }
            slots.poll_woken(|_, output| assert_eq!(output, 8));
            assert_eq!(slots.active(), 0);
        }
    }

    #[test]
    fn a_future_that_completes_at_once_takes_no_slot() {
        let mut slots = Slots::new(1);
        for index in 0..3 {
            let completed = slots.start(std::future::ready(index), "ticket");
            assert_eq!(completed, Some(("ticket", index)));
            assert_eq!(slots.active(), 0);
        }
    }

    #[test]
    fn whoever_is_woken_while_futures_are_polled_is_polled_again() {
        let mut slots = Slots::new(2);
        // The first is polled before the second, which wakes it, and itself.
        let (first, polls): (Rc<Cell<Option<Waker>>>, _) = (Rc::default(), Rc::new(Cell::new(0)));
        for nth in 0..2 {
            let (first, polls) = (Rc::clone(&first), Rc::clone(&polls));
            let future = std::future::poll_fn(move |cx| {
                polls.set(polls.get() + 1);
                match (nth, polls.get()) {
                    (_, 5..) => return Poll::Ready(()),
                    (0, _) => first.set(Some(cx.waker().clone())),
                    _ => {
                        cx.waker().wake_by_ref();
                        first.take().into_iter().for_each(Waker::wake);
                    }
                }
                Poll::Pending
            });
            assert!(slots.start(future, nth).is_none());
        }
        let mut done = Vec::new();
        while slots.poll_woken(|nth, ()| done.push(nth)) {}
        assert_eq!(done, [0, 1], "nobody is forgotten");
    }

    #[test]
    fn a_late_wake_finds_a_free_slot_and_does_nothing() {
        let mut slots = Slots::new(1);
        let waker = Rc::new(Cell::new(None));
        let kept = Rc::clone(&waker);
        let future = std::future::poll_fn(move |cx| {
            kept.set(Some(cx.waker().clone()));
            Poll::Ready(())
        });
        assert!(slots.start(future, ()).is_some());
        waker.take().expect("kept").wake();
        assert!(slots.poll_woken(|(), ()| panic!("nothing is left")));
    }
}
