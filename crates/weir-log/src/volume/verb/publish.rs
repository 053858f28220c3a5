//! Publishing a checkpoint on demand: what replicas, and others who read the store alone, see of a volume.

use weir_device::DeviceError;

use crate::volume::LogVolume;
use crate::volume::verb::compact;

impl LogVolume {
    /// Puts everything that was acknowledged before the call into the store, and has the published checkpoint reach it.
    /// Where it reaches that already nothing is published, so that a replica has nothing new to fetch.
    ///
    /// # Errors
    /// The failure that stopped the volume, or that it is being closed.
    pub async fn publish(&self) -> Result<(), DeviceError> {
        let shared = &self.shared;
        compact::check(shared)?;
        shared.upload_all().await?;
        let reaches_all = {
            let state = shared.state.borrow();
            let (head, checkpoint) = (&state.head, &state.head.checkpoint);
            head.published.is_some() && checkpoint.objects_since == 0 && !checkpoint.under_way
        };
        if reaches_all {
            return Ok(());
        }
        compact::checkpoint(shared).await?;
        shared.wait_for_lease().await
    }
}
