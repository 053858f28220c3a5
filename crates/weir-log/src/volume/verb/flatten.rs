//! Making a clone independent: what it shares with others is copied into objects of its own.
//!
//! The collector does it: it takes the objects of other streams for its sources. What was copied stays so, and a
//! flatten that was interrupted goes on where it stopped.

use std::rc::Rc;

use weir_device::{DeviceError, ErrorKind};

use crate::ids::ObjectSeq;
use crate::volume::LogVolume;
use crate::volume::shared::{Shared, State};
use crate::volume::verb::compact;

/// What a flatten did.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct FlattenReport {
    /// Payload bytes that were copied.
    pub copied_bytes: u64,
    /// Live bytes of the volume that are still in objects of other volumes.
    pub shared_bytes: u64,
    /// Volumes that it still depends on, by the names they had.
    pub origins: Vec<String>,
    /// Why it still does.
    pub obstacle: Option<String>,
}

/// The collector copies shared objects as long as this lives.
struct Wanted(Rc<Shared>);

impl Drop for Wanted {
    fn drop(&mut self) {
        self.0.state.borrow_mut().collector.flattens = false;
    }
}

impl LogVolume {
    /// Copies what the volume shares with those it is a clone of, and lets go of them where its own snapshots do not
    /// need them. `on_progress` hears of bytes copied and bytes to copy. Clients do not wait for it.
    ///
    /// # Errors
    /// Another flatten of this volume, or the failure that stopped it. What cannot be copied, or is needed by a
    /// snapshot of the volume, is no error: the report says so.
    pub async fn flatten(
        &self,
        on_progress: impl FnMut(u64, u64),
    ) -> Result<FlattenReport, DeviceError> {
        let shared = &self.shared;
        compact::check(shared)?;
        let (before, wanted) = {
            let mut state = shared.state.borrow_mut();
            if state.collector.flattens {
                let message = format!("volume {} is being flattened already", shared.id);
                return Err(DeviceError::new(ErrorKind::Busy, message));
            }
            state.collector.flatten();
            (state.collector.bytes_written, Wanted(Rc::clone(shared)))
        };
        shared.collect.notify_one();
        let unreadable = copy(shared, on_progress).await?;
        drop(wanted);
        compact::checkpoint(shared).await?;
        // The task of clone references takes unused origins out of the manifest; it is done when none is left.
        shared.references.notify_one();
        shared
            .wait_while_open(|state| {
                // A clone that stored nothing has no checkpoint, and gets none: there is nothing to wait for.
                let is_settled = state.head.published.is_some() || has_stored_nothing(state);
                (is_settled && state.unused_origins().is_empty()).then_some(Ok(()))
            })
            .await?;
        let state = shared.state.borrow();
        let shared_bytes = state.head.objects.table.usage().shared_live_bytes;
        let origins: Vec<String> = state.origins.iter().map(|o| o.volume.clone()).collect();
        let obstacle = match (unreadable, origins.is_empty()) {
            (0, true) => None,
            (0, false) if state.head.published.is_none() => Some(
                "it holds nothing, and has no checkpoint of its own yet: write to it, and flatten it again".to_owned(),
            ),
            (0, false) => Some(
                "snapshots of the volume need them still: delete those taken before".to_owned(),
            ),
            (count, _) => Some(format!("{count} objects cannot be read and stay as they are")),
        };
        let copied_bytes = state.collector.bytes_written - before;
        Ok(FlattenReport { copied_bytes, shared_bytes, origins, obstacle })
    }
}

/// Whether no object of this volume's own was ever stored, so that no checkpoint comes.
fn has_stored_nothing(state: &State) -> bool {
    state.writes.pipeline.committed() == ObjectSeq(0)
}

/// Waits until the collector has copied everything; how many objects it could not read.
async fn copy(
    shared: &Shared,
    mut on_progress: impl FnMut(u64, u64),
) -> Result<usize, DeviceError> {
    let mut total = 0;
    shared
        .wait_while_open(|state| {
            if let Err(error) = shared.check_not_closing() {
                return Some(Err(error));
            }
            let to_go = state.head.objects.table.usage().shared_live_bytes;
            total = total.max(to_go);
            on_progress(total - to_go, total);
            let over = to_go == 0 || state.collector.found_nothing();
            (over && state.collector.is_settled()).then(|| Ok(state.collector.unreadable_count()))
        })
        .await
}
