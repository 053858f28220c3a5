//! What happens to a device without being asked for: news that goes up through the stages to whoever owns the stack.

use std::cell::RefCell;
use std::collections::VecDeque;
use std::mem::discriminant;
use std::task::{Context, Poll, Waker};

use crate::DeviceError;

/// What happened to a device.
#[derive(Clone, Debug)]
pub enum Event {
    /// It has another size now, in bytes.
    Resized(u64),
    /// What it holds was replaced, by a rollback for instance: forget what is kept of replies of other generations,
    /// without writing it back.
    ContentReplaced {
        /// What [`Reply::generation`](crate::Reply::generation) says from here on.
        generation: u64,
    },
    /// It belongs to another owner now; it answers nothing any more.
    ExclusiveLost(DeviceError),
    /// It goes on, but refuses some of what it should do, such as writes after a failed flush.
    Degraded(DeviceError),
}

/// The events that nobody has taken yet. Never a call upward: the device adds, and its owner takes when it can.
///
/// Of each kind only the newest is kept, so that an owner that does not look costs no memory; what matters is how the
/// device is now.
#[derive(Debug, Default)]
pub struct Events {
    queue: RefCell<VecDeque<Event>>,
    waker: RefCell<Option<Waker>>,
}

impl Events {
    /// Adds an event and wakes the owner.
    pub fn push(&self, event: Event) {
        {
            let mut queue = self.queue.borrow_mut();
            queue.retain(|older| discriminant(older) != discriminant(&event));
            queue.push_back(event);
        }
        if let Some(waker) = self.waker.borrow_mut().take() {
            waker.wake();
        }
    }

    /// The next event; the task is woken when there is one. One task waits at a time.
    pub fn poll(&self, cx: &mut Context<'_>) -> Poll<Event> {
        if let Some(event) = self.queue.borrow_mut().pop_front() {
            return Poll::Ready(event);
        }
        *self.waker.borrow_mut() = Some(cx.waker().clone());
        Poll::Pending
    }
}

#[cfg(test)]
mod tests {
    use std::future::poll_fn;

    use futures_util::FutureExt;

    use super::*;

    #[test]
    fn the_newest_event_of_each_kind_is_taken_once() {
        let events = Events::default();
        let take = || poll_fn(|cx| events.poll(cx)).now_or_never();
        assert!(take().is_none());
        for size in 0..1000 {
            events.push(Event::Resized(size));
        }
        events.push(Event::ContentReplaced { generation: 3 });
        assert!(matches!(take(), Some(Event::Resized(999))));
        assert!(matches!(take(), Some(Event::ContentReplaced { generation: 3 })));
        assert!(take().is_none());
    }

    #[tokio::test]
    async fn whoever_waits_is_woken() {
        let events = std::rc::Rc::new(Events::default());
        let waits = std::rc::Rc::clone(&events);
        let set = tokio::task::LocalSet::new();
        let waiting = set.spawn_local(async move { poll_fn(|cx| waits.poll(cx)).await });
        set.run_until(async {
            tokio::task::yield_now().await;
            events.push(Event::Resized(7));
            assert!(matches!(waiting.await.unwrap(), Event::Resized(7)));
        })
        .await;
    }
}
