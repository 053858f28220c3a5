//! A stage as the owner of a stack sees it.

use std::fmt;
use std::future::ready;
use std::rc::Rc;
use std::task::{Context, Poll};

use weir_device::{
    Device, DeviceError, DeviceInfo, DynDevice, Event, IoHeader, LocalBoxFuture, Operation, Reply,
};

use crate::endpoint::Endpoint;
use crate::measured::{Counted, Measured};
use crate::status::StageStatus;

/// What a stage is to the owner of its stack, beside a device. What is not overridden is that of a stage that keeps
/// nothing: what it acknowledged, the device below acknowledged.
pub trait Stage {
    /// What it says of itself.
    fn status(&self) -> StageStatus;

    /// Whether it ever acknowledges a write before the device below does. Such a stage is drained before a snapshot, a
    /// rollback, a shrink and a close.
    fn holds_writes(&self) -> bool {
        false
    }

    /// Bytes that it acknowledged and that the device below lacks.
    fn dirty_bytes(&self) -> u64 {
        0
    }

    /// The stack is being closed: operations that the stage holds up end with an error, and none waits in it any more.
    /// Those that it let through go on.
    fn shut(&self) {}

    /// Returns once the device below has acknowledged all that was dirty when it was called.
    fn drain(&self) -> LocalBoxFuture<'_, Result<(), DeviceError>> {
        Box::pin(ready(Ok(())))
    }

    /// Ends what it does beside its calls. It was drained before, and no call comes after it.
    fn close(&self) -> LocalBoxFuture<'_, Result<(), DeviceError>> {
        Box::pin(ready(Ok(())))
    }
}

/// A stage in its place in a stack, with its counters.
pub trait Layer: DynDevice {
    /// The stage.
    fn stage(&self) -> &dyn Stage;
    /// What passed through it.
    fn operations(&self) -> [Counted; 4];
}

impl<S: Stage + Device> Layer for Measured<S> {
    fn stage(&self) -> &dyn Stage {
        self.inner()
    }

    fn operations(&self) -> [Counted; 4] {
        Self::operations(self)
    }
}

/// What a stage stands on. The call of a stage is one allocation, that of an endpoint none.
#[derive(Clone)]
pub enum Below {
    /// The endpoint.
    Endpoint(Rc<Measured<Endpoint>>),
    /// Another stage.
    Layer(Rc<dyn Layer>),
}

impl fmt::Debug for Below {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Endpoint(endpoint) => write!(f, "{:?}", endpoint.inner()),
            Self::Layer(layer) => write!(f, "{:?}", layer.stage().status()),
        }
    }
}

impl Device for Below {
    fn info(&self) -> DeviceInfo {
        match self {
            Self::Endpoint(endpoint) => endpoint.info(),
            Self::Layer(layer) => layer.dyn_info(),
        }
    }

    async fn call(&self, io: IoHeader, operation: Operation) -> Result<Reply, DeviceError> {
        match self {
            Self::Endpoint(endpoint) => endpoint.call(io, operation).await,
            Self::Layer(layer) => layer.dyn_call(io, operation).await,
        }
    }

    fn poll_event(&self, cx: &mut Context<'_>) -> Poll<Event> {
        match self {
            Self::Endpoint(endpoint) => endpoint.poll_event(cx),
            Self::Layer(layer) => layer.dyn_poll_event(cx),
        }
    }
}
