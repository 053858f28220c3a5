//! Why a stack cannot be opened.

use weir_device::DeviceError;
use weir_log::LogError;

/// What the endpoint of a stack says when it is opened.
#[derive(Debug, thiserror::Error)]
pub enum StackError {
    /// A log volume, or a view of one.
    #[error(transparent)]
    Log(#[from] LogError),
    /// Another device.
    #[error(transparent)]
    Device(#[from] DeviceError),
}
