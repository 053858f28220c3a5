//! What the owner of a stack hears of its volume: events that went up through every stage. Each that is due must come.

use std::cell::Cell;
use std::future::poll_fn;
use std::rc::Rc;
use std::time::Duration;

use tokio::sync::Notify;
use weir_device::{Device, ErrorKind, Event};
use weir_stack::Stack;

/// How often it is looked whether an event has come, and how many times: it is on its way already.
const LOOK_INTERVAL: Duration = Duration::from_millis(1);
const LOOKS_MAX: u64 = 10;

/// The events of a life.
#[derive(Debug)]
pub(crate) struct Heard {
    pub(crate) size: Cell<u64>,
    /// Of the content.
    pub(crate) generation: Cell<u64>,
    pub(crate) is_lost: Cell<bool>,
    pub(crate) is_degraded: Cell<bool>,
    /// What a client was refused with, and nobody has looked since whether that was said.
    pub(crate) failed_with: Cell<Option<ErrorKind>>,
    pub(crate) failed: Notify,
}

impl Heard {
    /// Of a volume that was just opened.
    pub(crate) fn new(size: u64) -> Self {
        let (generation, is_lost, is_degraded, failed_with, failed) = Default::default();
        Self { size: Cell::new(size), generation, is_lost, is_degraded, failed_with, failed }
    }
}

/// Hears events as long as the process lives.
pub(crate) async fn run(stack: Rc<Stack>, heard: Rc<Heard>) {
    loop {
        match poll_fn(|cx| stack.poll_event(cx)).await {
            Event::Resized(size) => heard.size.set(size),
            Event::ContentReplaced { generation } => heard.generation.set(generation),
            Event::ExclusiveLost(_) => heard.is_lost.set(true),
            Event::Degraded(_) => heard.is_degraded.set(true),
        }
    }
}

impl Heard {
    /// Whether something is heard that has been said.
    pub(crate) async fn has(&self, is_heard: impl Fn(&Self) -> bool) -> bool {
        for _ in 0..LOOKS_MAX {
            if is_heard(self) {
                return true;
            }
            tokio::time::sleep(LOOK_INTERVAL).await;
        }
        false
    }
}
