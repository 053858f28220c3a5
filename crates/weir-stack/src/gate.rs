//! Who may call: operations are counted while they run, and kept waiting while the stack is quiesced.
//!
//! A call whose caller went away is not counted any more, though the devices below may still run it to its end: what
//! was not acknowledged is not waited for.

use std::cell::Cell;
use std::rc::Rc;

use tokio::sync::{Notify, oneshot};
use tokio::time::Instant;
use weir_device::{DeviceError, ErrorKind, mutant};

/// The entry of a stack.
#[derive(Debug, Default)]
pub(crate) struct Gate {
    in_flight: Cell<usize>,
    /// Holders of a quiesce.
    quiesced: Cell<usize>,
    is_shut: Cell<bool>,
    is_cut: Cell<bool>,
    changed: Notify,
}

/// An operation that runs.
#[derive(Debug)]
pub(crate) struct Running<'a>(&'a Gate);

impl Gate {
    /// Waits while the stack is quiesced.
    pub(crate) async fn enter(&self) -> Result<Running<'_>, DeviceError> {
        while self.quiesced.get() > 0 && !self.is_shut.get() {
            self.changed.notified().await;
            if mutant("gate_looks_once") {
                break;
            }
        }
        if self.is_shut.get() {
            return Err(DeviceError::new(ErrorKind::Unavailable, "the volume is closed"));
        }
        self.in_flight.set(self.in_flight.get() + 1);
        Ok(Running(self))
    }

    /// Returns once no operation runs.
    pub(crate) async fn idle(&self) {
        while self.in_flight.get() > 0 {
            self.changed.notified().await;
        }
    }

    /// Operations that run.
    pub(crate) fn in_flight(&self) -> usize {
        self.in_flight.get()
    }

    /// Whether operations wait at present.
    pub(crate) fn is_quiesced(&self) -> bool {
        self.quiesced.get() > 0
    }

    /// No operation is let in any more.
    pub(crate) fn shut(&self) {
        self.is_shut.set(true);
        self.changed.notify_waiters();
    }

    /// Nothing is acknowledged any more, of what runs either.
    pub(crate) fn cut(&self) {
        self.is_cut.set(true);
    }

    /// What becomes of a reply that comes now.
    pub(crate) fn check_cut(&self) -> Result<(), DeviceError> {
        if self.is_cut.get() {
            return Err(DeviceError::new(ErrorKind::Unavailable, "the volume is closed"));
        }
        Ok(())
    }

    /// New operations wait until every hold has ended.
    pub(crate) fn hold(self: &Rc<Self>) -> Hold {
        self.quiesced.set(self.quiesced.get() + 1);
        Hold { gate: Rc::clone(self), is_held: Cell::new(true) }
    }
}

impl Drop for Running<'_> {
    fn drop(&mut self) {
        self.0.in_flight.set(self.0.in_flight.get() - 1);
        if self.0.in_flight.get() == 0 {
            self.0.changed.notify_waiters();
        }
    }
}

/// New operations wait as long as this is held.
#[derive(Debug)]
pub(crate) struct Hold {
    gate: Rc<Gate>,
    is_held: Cell<bool>,
}

impl Hold {
    /// Lets operations go on, once.
    pub(crate) fn release(&self) {
        if self.is_held.replace(false) {
            self.gate.quiesced.set(self.gate.quiesced.get() - 1);
            self.gate.changed.notify_waiters();
        }
    }
}

impl Drop for Hold {
    fn drop(&mut self) {
        self.release();
    }
}

/// A stack at rest: what was in flight has ended, and new operations wait. It ends when this is dropped, and at its
/// deadline whoever has it.
#[derive(Debug)]
#[must_use = "operations go on when this is dropped"]
pub struct Quiesced {
    pub(crate) hold: Rc<Hold>,
    pub(crate) deadline: Instant,
    /// Ends the task that waits for the deadline.
    pub(crate) is_over: Option<oneshot::Sender<()>>,
}

impl Quiesced {
    /// Whether operations still wait: not after the deadline.
    #[must_use]
    pub fn holds(&self) -> bool {
        self.hold.is_held.get()
    }

    /// When operations go on at the latest.
    #[must_use]
    pub fn deadline(&self) -> Instant {
        self.deadline
    }

    /// Holds on until this is dropped, without a deadline. Returns whether it was in time.
    pub(crate) fn keep(&mut self) -> bool {
        if let Some(is_over) = self.is_over.take() {
            // The task may have ended.
            let _ = is_over.send(());
        }
        self.holds()
    }
}

impl Drop for Quiesced {
    fn drop(&mut self) {
        self.hold.release();
    }
}
