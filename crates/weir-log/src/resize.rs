//! Growing a volume while it is open.
//!
//! The manifest says the new size before any client may use it, so that no opening ever finds a write beyond the end:
//! an opening takes the larger of what the manifest says and what the newest object says.

use weir_device::{DeviceError, ErrorKind};
use weir_store::RetryPolicy;

use crate::catalog::check_size;
use crate::volume::{LogVolume, Shared};

impl LogVolume {
    /// Grows the volume to `size` bytes; what is new reads as zeroes. The size it has already is no error. Waits for
    /// the store, and goes on if the caller goes away.
    ///
    /// # Errors
    /// A size below the present one ([`ErrorKind::Unsupported`]) or beyond the limit ([`ErrorKind::Invalid`]), or the
    /// failure that stopped the volume.
    pub async fn resize(&self, size: u64) -> Result<(), DeviceError> {
        check_size(size)?;
        let shared = std::rc::Rc::clone(&self.shared);
        self.shared.to_its_end(async move { grow(&shared, size).await }).await
    }
}

async fn grow(shared: &Shared, size: u64) -> Result<(), DeviceError> {
    // Under the lock, so that two callers go one after the other.
    let mut manifest = shared.manifest.lock().await;
    shared.check_failure()?;
    shared.check_owned()?;
    shared.check_not_closing()?;
    let present = shared.state.borrow().size;
    if size < present {
        let message = format!(
            "volume {} has {present} bytes and cannot shrink to {size}: only growing is supported",
            shared.id
        );
        return Err(DeviceError::new(ErrorKind::Unsupported, message));
    }
    if size == present {
        return Ok(());
    }
    let published = manifest.publish(&shared.env, &RetryPolicy::forever(), |m| m.size = size).await;
    if let Err(error) = published {
        return Err(shared.fail_publishing(error));
    }
    let mut state = shared.state.borrow_mut();
    state.size = size;
    // The open batch may take writes beyond the old end from here on.
    if let Some(batch) = &mut state.batch {
        batch.volume_size = size;
    }
    drop(state);
    tracing::info!(volume = %shared.id, from = present, to = size, "volume resized");
    Ok(())
}
