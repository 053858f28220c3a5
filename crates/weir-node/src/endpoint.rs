//! What a volume is served from, dispatched by enum so that a steady state makes no allocation.

use std::rc::Rc;
use std::task::{Context, Poll};

use weir_device::{
    Device, DeviceError, DeviceInfo, Event, IoHeader, MemoryDevice, Operation, Reply,
};
use weir_log::{LogVolume, SnapshotView};

/// The bottom of a volume's stack.
#[derive(Clone, Debug)]
pub enum Endpoint {
    /// A log volume.
    Log(Rc<LogVolume>),
    /// What a replica shows, as of when it was opened.
    View(Rc<SnapshotView>),
    /// Memory of this process: for measuring the front end. Nothing survives.
    Memory(Rc<MemoryDevice>),
    /// A snapshot of a log volume.
    Snapshot(Rc<SnapshotView>),
}

/// Calls the same method of whatever it is.
macro_rules! dispatch {
    ($self:ident, $device:ident => $call:expr) => {
        match $self {
            Self::Log($device) => $call,
            Self::View($device) => $call,
            Self::Memory($device) => $call,
            Self::Snapshot($device) => $call,
        }
    };
}

impl Device for Endpoint {
    fn info(&self) -> DeviceInfo {
        dispatch!(self, device => device.info())
    }

    async fn call(&self, io: IoHeader, operation: Operation) -> Result<Reply, DeviceError> {
        dispatch!(self, device => device.call(io, operation).await)
    }

    fn poll_event(&self, cx: &mut Context<'_>) -> Poll<Event> {
        dispatch!(self, device => device.poll_event(cx))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn endpoint_conforms() {
        for seed in 0..5 {
            let endpoint = Endpoint::Memory(Rc::new(MemoryDevice::new(300_001)));
            weir_device::conformance::run(&endpoint, seed, 200).await;
        }
    }
}
