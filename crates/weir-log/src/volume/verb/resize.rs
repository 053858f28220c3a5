//! Growing and shrinking a volume while it is open.
//!
//! An opening takes the larger of what the manifest says and what the newest object with writes says. So the manifest
//! says a size that grew before any client may use it, and no opening ever finds a write beyond the end; and it says a
//! size that shrank after an object did, so that a crash leaves either size, and bytes that come back with a later
//! growth are zeroes: the object that says the smaller size discards them.

use std::rc::Rc;

use weir_device::{DeviceError, ErrorKind, Event};
use weir_journal::Payload;
use weir_store::RetryPolicy;

use crate::catalog::names::check_size;
use crate::error::LogError;
use crate::volume::LogVolume;
use crate::volume::shared::{Frozen, Shared, State};

impl LogVolume {
    /// Grows the volume to `size` bytes; what is new reads as zeroes. The size it has already is no error. Waits for
    /// the store, and goes on if the caller goes away.
    ///
    /// # Errors
    /// A size below the present one ([`ErrorKind::Unsupported`]) or beyond the limit ([`ErrorKind::Invalid`]), or the
    /// failure that stopped the volume.
    pub async fn resize(&self, size: u64) -> Result<(), DeviceError> {
        check_size(size)?;
        let shared = Rc::clone(&self.shared);
        self.shared.to_its_end(async move { grow(&shared, size).await }).await
    }

    /// Shrinks the volume to `size` bytes and gives up what lies beyond for ever but for what snapshots show. Waits for
    /// the store, and goes on if the caller goes away. The caller sees to it that no client is connected: none would
    /// learn of it. After a crash in the middle the volume may have its old size, with zeroes beyond the new one.
    ///
    /// # Errors
    /// A size above the present one or none ([`ErrorKind::Invalid`]), or the failure that stopped the volume.
    pub async fn shrink(&self, size: u64) -> Result<(), DeviceError> {
        check_size(size)?;
        let shared = Rc::clone(&self.shared);
        self.shared.to_its_end(async move { shrink(&shared, size).await }).await
    }
}

impl State {
    /// Sets the size, also of the open batch, whose object will say it.
    fn set_size(&mut self, size: u64) {
        self.size = size;
        if let Some(batch) = &mut self.writes.batch {
            batch.volume_size = size;
        }
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
            "volume {} has {present} bytes: {size} would give up what lies beyond, which takes --shrink",
            shared.id
        );
        return Err(DeviceError::new(ErrorKind::Unsupported, message));
    }
    if size == present {
        return Ok(());
    }
    if weir_device::mutant("grow_before_manifest") {
        shared.state.borrow_mut().set_size(size);
    }
    let published = manifest.publish(&shared.env, &RetryPolicy::forever(), |m| m.size = size).await;
    if let Err(error) = published {
        return Err(shared.fail_publishing(error));
    }
    shared.note_manifest(&manifest).await?;
    shared.state.borrow_mut().set_size(size);
    shared.events.push(Event::Resized(size));
    tracing::info!(volume = %shared.id, from = present, to = size, "volume resized");
    Ok(())
}

async fn shrink(shared: &Rc<Shared>, size: u64) -> Result<(), DeviceError> {
    shared.check_failure()?;
    shared.check_owned()?;
    shared.check_not_closing()?;
    let _frozen = Frozen::new(shared);
    // A growth that began before may still publish its size, and sets it afterwards.
    match weir_device::mutant("shrink_beside_growth") {
        true => shared.settle().await?,
        false => shared.settle_alone().await?,
    }
    let present = shared.state.borrow().size;
    if size > present {
        let message =
            format!("volume {} has {present} bytes: {size} is no smaller size", shared.id);
        return Err(DeviceError::new(ErrorKind::Invalid, message));
    }
    if size == present {
        return Ok(());
    }
    // The size is set first, so that the object with the discard says it, whenever its batch is closed: the newest
    // object counts. The manifest says it only once that object is stored, whoever else publishes one meanwhile.
    shared.state.borrow_mut().shrinking = true;
    shared.state.borrow_mut().set_size(size);
    shared.events.push(Event::Resized(size));
    let discard = shared.journal.append(size, Payload::Discard, present - size);
    if let Err(error) = discard.await {
        shared.state.borrow_mut().set_size(present);
        shared.events.push(Event::Resized(present));
        return Err(LogError::Journal(error).into());
    }
    shared.upload_all().await?;
    shared.state.borrow_mut().shrinking = false;
    let mut manifest = shared.manifest.lock().await;
    let published = manifest.publish(&shared.env, &RetryPolicy::forever(), |m| m.size = size).await;
    if let Err(error) = published {
        return Err(shared.fail_publishing(error));
    }
    shared.note_manifest(&manifest).await?;
    tracing::info!(volume = %shared.id, from = present, to = size, "volume shrunk");
    drop(manifest);
    shared.wait_for_lease().await
}
