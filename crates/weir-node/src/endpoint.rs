//! What a volume is served from, dispatched by enum so that a steady state makes no allocation.

use std::rc::Rc;

use weir_device::{
    ByteRange, Device, DeviceError, Extent, IoHeader, MemoryDevice, Segment, SharedBuf, WriteFlags,
    WriteZeroesFlags,
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
    fn size(&self) -> u64 {
        dispatch!(self, device => device.size())
    }

    async fn read(&self, io: IoHeader, buf: &mut [u8]) -> Result<(), DeviceError> {
        dispatch!(self, device => device.read(io, buf).await)
    }

    async fn write(
        &self,
        io: IoHeader,
        data: SharedBuf,
        flags: WriteFlags,
    ) -> Result<(), DeviceError> {
        dispatch!(self, device => device.write(io, data, flags).await)
    }

    async fn write_batch(
        &self,
        io: IoHeader,
        segments: Vec<Segment>,
        flags: WriteFlags,
    ) -> Result<(), DeviceError> {
        dispatch!(self, device => device.write_batch(io, segments, flags).await)
    }

    async fn write_zeroes(&self, io: IoHeader, flags: WriteZeroesFlags) -> Result<(), DeviceError> {
        dispatch!(self, device => device.write_zeroes(io, flags).await)
    }

    async fn discard(&self, io: IoHeader) -> Result<(), DeviceError> {
        dispatch!(self, device => device.discard(io).await)
    }

    async fn flush(&self, io: IoHeader) -> Result<(), DeviceError> {
        dispatch!(self, device => device.flush(io).await)
    }

    async fn extents(&self, io: IoHeader, extents_max: usize) -> Result<Vec<Extent>, DeviceError> {
        dispatch!(self, device => device.extents(io, extents_max).await)
    }

    fn check_reply(&self) -> Result<(), DeviceError> {
        dispatch!(self, device => device.check_reply())
    }

    fn on_resize(&self, size: u64) {
        dispatch!(self, device => device.on_resize(size));
    }

    fn invalidate(&self, range: ByteRange) {
        dispatch!(self, device => device.invalidate(range));
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
