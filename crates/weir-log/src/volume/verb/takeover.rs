//! Changing what happens when the lease runs out.

use std::rc::Rc;

use weir_device::DeviceError;
use weir_store::RetryPolicy;

use crate::format::manifest::{Manifest, Takeover};
use crate::volume::LogVolume;
use crate::volume::shared::Shared;

impl LogVolume {
    /// Sets what happens when the lease of this node runs out. Waits for the lease and for the store, and goes on if
    /// the caller goes away. While the manifest changes, the volume keeps the stricter of the two rules: a deadline
    /// missed meanwhile ends the opening.
    ///
    /// # Errors
    /// The failure that stopped the volume, or that it is being closed.
    pub async fn set_takeover(&self, takeover: Takeover) -> Result<(), DeviceError> {
        let shared = Rc::clone(&self.shared);
        self.shared.to_its_end(async move { change_takeover(&shared, takeover).await }).await
    }
}

async fn change_takeover(shared: &Shared, takeover: Takeover) -> Result<(), DeviceError> {
    let mut manifest = loop {
        // Not under the lock: it is `confirm` that puts the volume under a new run of the lease.
        shared.wait_for_lease().await?;
        let manifest = shared.manifest.lock().await;
        shared.check_failure()?;
        shared.check_not_closing()?;
        if shared.holds_lease() {
            break manifest;
        }
    };
    if manifest.current().takeover == takeover {
        return Ok(());
    }
    // Others may act on the version as soon as it is there, and nobody knows when that is.
    shared.takeover.set(Takeover::Auto);
    let change = |m: &mut Manifest| m.takeover = takeover;
    if let Err(error) = manifest.publish(&shared.env, &RetryPolicy::forever(), change).await {
        return Err(shared.fail_publishing(error));
    }
    shared.note_manifest(&manifest).await?;
    // Under the old version nobody took the volume up to this moment.
    shared.check_owned()?;
    shared.takeover.set(takeover);
    tracing::info!(volume = %shared.id, ?takeover, "what happens when the lease runs out was changed");
    shared.progress.notify_waiters();
    Ok(())
}
