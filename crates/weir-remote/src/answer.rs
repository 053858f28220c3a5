//! What a request brings back to the call that made it.

use weir_device::{AlignedBuf, DeviceError, ErrorKind};
use weir_nbd::{AllocationFlags, ExtentStatus};

/// What a request that succeeded brings back.
#[derive(Debug)]
pub(crate) enum Answer {
    Done,
    Data(AlignedBuf),
    Status(Vec<ExtentStatus>),
}

impl Answer {
    pub(crate) fn into_data(self) -> Result<AlignedBuf, DeviceError> {
        match self {
            Self::Data(data) => Ok(data),
            _ => Err(DeviceError::new(ErrorKind::Bug, "a read was answered without data")),
        }
    }

    pub(crate) fn into_status(self) -> Result<Vec<ExtentStatus>, DeviceError> {
        match self {
            Self::Status(status) => Ok(status),
            _ => Err(DeviceError::new(ErrorKind::Bug, "block status was answered without any")),
        }
    }
}

/// Whether an extent reads as zeroes, and whether it takes space.
pub(crate) fn allocation(extent: &ExtentStatus) -> weir_device::ExtentState {
    use weir_device::ExtentState;
    let flags = AllocationFlags(u32::try_from(extent.flags).unwrap_or(0));
    match (flags.contains(AllocationFlags::ZERO), flags.contains(AllocationFlags::HOLE)) {
        (true, true) => ExtentState::Hole,
        (true, false) => ExtentState::Zero,
        // A hole of a server that does not say what it reads as may read as anything.
        (false, _) => ExtentState::Data,
    }
}
