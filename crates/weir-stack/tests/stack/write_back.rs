//! A stage that acknowledges writes before the device below has them: what every verb must not reach around.

use std::cell::{Cell, RefCell};
use std::collections::VecDeque;
use std::rc::Rc;
use std::task::{Context, Poll};
use std::time::Duration;

use tokio::sync::Mutex;
use weir_device::{
    Body, Device, DeviceError, DeviceExt, DeviceInfo, ErrorKind, Event, IoHeader, LocalBoxFuture,
    Operation, Reply, SharedBuf,
};
use weir_stack::{Below, Layer, Measured, Stage, StageSpec, StageStatus};

/// What a test sees of the stage, and can do to it.
#[derive(Default)]
pub(crate) struct Knobs {
    pub(crate) dirty: RefCell<VecDeque<(u64, SharedBuf)>>,
    /// How long one write to the device below takes.
    pub(crate) pause: Cell<Duration>,
    pub(crate) fails: Cell<bool>,
    pub(crate) drains: Cell<usize>,
    draining: Mutex<()>,
}

impl Knobs {
    pub(crate) fn dirty_bytes(&self) -> u64 {
        self.dirty.borrow().iter().map(|(_, data)| data.len() as u64).sum()
    }
}

/// Keeps writes until it is drained, or something else is asked for.
struct WriteBack {
    below: Below,
    knobs: Rc<Knobs>,
}

/// The stage as part of a description.
pub(crate) fn write_back(knobs: &Rc<Knobs>) -> StageSpec {
    let knobs = Rc::clone(knobs);
    StageSpec::Other(Box::new(move |below| {
        Rc::new(Measured::new(WriteBack { below, knobs })) as Rc<dyn Layer>
    }))
}

impl WriteBack {
    async fn write_dirty(&self) -> Result<(), DeviceError> {
        let _one = self.knobs.draining.lock().await;
        // What comes meanwhile is the next one's.
        let count = self.knobs.dirty.borrow().len();
        for _ in 0..count {
            let front = self.knobs.dirty.borrow().front().cloned();
            let (offset, data) = front.expect("whoever drains takes it away");
            tokio::time::sleep(self.knobs.pause.get()).await;
            if self.knobs.fails.get() {
                return Err(DeviceError::new(ErrorKind::Unavailable, "the way down is cut"));
            }
            self.below.write(offset, data).await?;
            self.knobs.dirty.borrow_mut().pop_front();
        }
        Ok(())
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
        self.knobs.dirty_bytes()
    }
    fn drain(&self) -> LocalBoxFuture<'_, Result<(), DeviceError>> {
        self.knobs.drains.set(self.knobs.drains.get() + 1);
        Box::pin(self.write_dirty())
    }
}

impl Device for WriteBack {
    fn info(&self) -> DeviceInfo {
        self.below.info()
    }

    async fn call(&self, io: IoHeader, operation: Operation) -> Result<Reply, DeviceError> {
        operation.check_bounds(self.info().size)?;
        match operation {
            Operation::Write { offset, data, fua: false } => {
                self.knobs.dirty.borrow_mut().push_back((offset, data));
                Ok(Reply::new(Body::Done))
            }
            other => {
                self.write_dirty().await?;
                self.below.call(io, other).await
            }
        }
    }

    fn poll_event(&self, cx: &mut Context<'_>) -> Poll<Event> {
        self.below.poll_event(cx)
    }
}
