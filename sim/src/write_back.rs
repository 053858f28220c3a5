//! A stage that acknowledges writes before the device below has them, as a write-back cache will: no verb may reach
//! around it, and what was flushed or closed must be below it. The order in which writes were acknowledged is kept.

use std::cell::RefCell;
use std::collections::VecDeque;
use std::rc::Rc;
use std::task::{Context, Poll};

use tokio::sync::{Mutex, oneshot};
use weir_device::{
    Body, Device, DeviceError, DeviceExt, DeviceInfo, ErrorKind, Event, IoHeader, LocalBoxFuture,
    Operation, Reply, SharedBuf,
};
use weir_stack::{Below, Layer, Measured, Stage, StageSpec, StageStatus};

/// Bytes that it holds at most.
const DIRTY_BYTES_MAX: u64 = 256 << 10;

struct Held {
    below: Below,
    dirty: RefCell<VecDeque<(u64, SharedBuf)>>,
    /// One at a time writes them, in their order.
    writing: Mutex<()>,
}

struct WriteBack(Rc<Held>);

/// The stage as part of a description.
pub(crate) fn write_back() -> StageSpec {
    StageSpec::Other(Box::new(|below| {
        let held = Held { below, dirty: RefCell::default(), writing: Mutex::new(()) };
        Rc::new(Measured::new(WriteBack(Rc::new(held)))) as Rc<dyn Layer>
    }))
}

impl Held {
    fn bytes(&self) -> u64 {
        self.dirty.borrow().iter().map(|(_, data)| data.len() as u64).sum()
    }

    async fn write(&self) -> Result<(), DeviceError> {
        let _one = self.writing.lock().await;
        // What comes meanwhile is the next one's.
        let count = self.dirty.borrow().len();
        for _ in 0..count {
            let front = self.dirty.borrow().front().cloned();
            let Some((offset, data)) = front else { return Ok(()) };
            self.below.write(offset, data).await?;
            self.dirty.borrow_mut().pop_front();
        }
        Ok(())
    }
}

impl WriteBack {
    /// Writes what is held, to its end though the caller goes away.
    async fn write_held(&self) -> Result<(), DeviceError> {
        if self.0.dirty.borrow().is_empty() {
            return Ok(());
        }
        let (held, (written, outcome)) = (Rc::clone(&self.0), oneshot::channel());
        tokio::task::spawn_local(async move {
            // Whoever asked may be gone.
            let _ = written.send(held.write().await);
        });
        let gone = || DeviceError::new(ErrorKind::Unavailable, "the process is shutting down");
        outcome.await.unwrap_or_else(|_| Err(gone()))
    }
}

impl Stage for WriteBack {
    fn status(&self) -> StageStatus {
        StageStatus::Other("write-back")
    }

    fn holds_writes(&self) -> bool {
        true
    }

    fn dirty_bytes(&self) -> u64 {
        self.0.bytes()
    }

    fn drain(&self) -> LocalBoxFuture<'_, Result<(), DeviceError>> {
        Box::pin(self.write_held())
    }
}

impl Device for WriteBack {
    fn info(&self) -> DeviceInfo {
        self.0.below.info()
    }

    async fn call(&self, io: IoHeader, operation: Operation) -> Result<Reply, DeviceError> {
        operation.check_bounds(self.info().size)?;
        match operation {
            Operation::Write { offset, data, fua: false } if !data.is_empty() => {
                if self.0.bytes() > DIRTY_BYTES_MAX {
                    self.write_held().await?;
                }
                self.0.dirty.borrow_mut().push_back((offset, data));
                Ok(Reply::new(Body::Done))
            }
            other => {
                self.write_held().await?;
                self.0.below.call(io, other).await
            }
        }
    }

    fn poll_event(&self, cx: &mut Context<'_>) -> Poll<Event> {
        self.0.below.poll_event(cx)
    }
}
