//! Collecting on demand: until a wanted share of a volume's objects lives, and the rest is deleted.

use std::rc::Rc;
use std::time::Duration;

use weir_device::{DeviceError, ErrorKind};

use crate::ids::ObjectSeq;
use crate::volume::LogVolume;
use crate::volume::shared::{Shared, State};

/// How long a compaction waits for its last deletions; what is left goes later.
const DELETION_PATIENCE: Duration = Duration::from_secs(60);

/// Bytes copied per byte that the objects had at the start, at most: clients that overwrite as fast as is copied must
/// not keep a compaction going for ever.
const COPIES_MAX: u64 = 4;

/// What a compaction did.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CompactReport {
    /// Objects that the collector wrote.
    pub copied_objects: u64,
    /// Payload bytes in them.
    pub copied_bytes: u64,
    /// Payload bytes of the objects that were given up.
    pub reclaimed_bytes: u64,
    /// Live share before, in percent.
    pub live_percent_before: u64,
    /// Live share after, in percent.
    pub live_percent_after: u64,
    /// Objects that nothing needs and that are not deleted yet.
    pub pending_deletions: u64,
    /// Why the wanted share was not reached.
    pub obstacle: Option<String>,
}

/// The wanted live share is set in the collector as long as this lives.
struct Wanted(Rc<Shared>);

impl Drop for Wanted {
    fn drop(&mut self) {
        self.0.state.borrow_mut().collector.wanted_percent = None;
    }
}

impl LogVolume {
    /// Collects until `percent` of the objects' payload lives, and waits until what is not needed any more is deleted.
    /// `on_progress` hears of bytes given up and bytes to give up. Clients do not wait for it.
    ///
    /// # Errors
    /// A share outside of 1 to 100, another compaction of this volume, or the failure that stopped it. A share that
    /// cannot be reached is no error: the report says why.
    pub async fn compact(
        &self,
        percent: u64,
        on_progress: impl FnMut(u64, u64),
    ) -> Result<CompactReport, DeviceError> {
        let shared = &self.shared;
        check(shared)?;
        if !(1..=100).contains(&percent) {
            let message = format!("{percent} is no live share: give 1 to 100 percent");
            return Err(DeviceError::new(ErrorKind::Invalid, message));
        }
        let wanted = {
            let mut state = shared.state.borrow_mut();
            if state.collector.wanted_percent.is_some() {
                let message = format!("volume {} is being compacted already", shared.id);
                return Err(DeviceError::new(ErrorKind::Busy, message));
            }
            state.collector.want(percent);
            Wanted(Rc::clone(shared))
        };
        let before = self.status();
        let live_percent_before = shared.live_percent();
        shared.collect.notify_one();
        let obstacle = collect(shared, percent, on_progress).await?;
        drop(wanted);
        let live_percent_after = shared.live_percent();
        checkpoint(shared).await?;
        wait_for_deletions(shared).await;
        let after = self.status();
        Ok(CompactReport {
            copied_objects: after.collected_objects - before.collected_objects,
            copied_bytes: after.collected_bytes - before.collected_bytes,
            reclaimed_bytes: after.reclaimed_bytes.saturating_sub(before.reclaimed_bytes),
            live_percent_before,
            live_percent_after,
            pending_deletions: after.pending_deletions,
            obstacle,
        })
    }
}

/// Whether work on the volume that clients do not ask for may begin.
pub(crate) fn check(shared: &Shared) -> Result<(), DeviceError> {
    shared.check_failure()?;
    shared.check_owned()?;
    shared.check_not_closing()
}

/// Waits until the wanted share lives; otherwise says why it cannot be reached.
async fn collect(
    shared: &Shared,
    percent: u64,
    mut on_progress: impl FnMut(u64, u64),
) -> Result<Option<String>, DeviceError> {
    let (used, copied) = {
        let state = shared.state.borrow();
        (state.head.objects.table.usage().collectable_bytes, state.collector.bytes_written)
    };
    let copies_max = copied.saturating_add(used.saturating_mul(COPIES_MAX));
    let mut total = 0;
    shared
        .wait_while_open(|state| {
            if let Err(error) = shared.check_not_closing() {
                return Some(Err(error));
            }
            let usage = state.head.objects.table.usage();
            let to_go = usage
                .collectable_bytes
                .saturating_sub(usage.collectable_live_bytes * 100 / percent);
            total = total.max(to_go);
            on_progress(total - to_go, total);
            let live = state.collector.settled_percent(&state.head.objects)?;
            if live >= percent {
                return Some(Ok(None));
            }
            if state.collector.bytes_written >= copies_max {
                let why = "clients overwrite as fast as the collector copies";
                return Some(Ok(Some(format!("{live} % live, not {percent} %: {why}"))));
            }
            let unreadable = state.collector.unreadable_count();
            state.collector.found_nothing().then(|| {
                let why = match unreadable {
                    0 => "nothing more can be collected".to_owned(),
                    count => format!("{count} objects cannot be read and stay as they are"),
                };
                Ok(Some(format!("{live} % live, not {percent} %: {why}")))
            })
        })
        .await
}

/// Waits, for a while, until the store has deleted what is listed; what is left goes with the next ones. What
/// replicators copy is not waited for: that can take as long as they do.
pub(crate) async fn wait_for_deletions(shared: &Shared) {
    let garbage = &shared.garbage;
    let done = |_: &mut State| (garbage.pending() == 0 || garbage.held_back.get()).then_some(());
    let _awaited = shared.awaited();
    let gone = shared.wait_for(done);
    let _ = tokio::time::timeout(DELETION_PATIENCE, gone).await;
}

/// Has a checkpoint made and published of all that is committed now: it lists what died.
pub(crate) async fn checkpoint(shared: &Shared) -> Result<(), DeviceError> {
    {
        let mut state = shared.state.borrow_mut();
        if state.writes.pipeline.committed() == ObjectSeq(0) {
            return Ok(());
        }
        state.head.checkpoint.wanted = true;
    }
    shared.stored.notify_one();
    let is_published =
        |state: &State| !state.head.checkpoint.wanted && !state.head.checkpoint.under_way;
    shared.wait_while_open(|state| is_published(state).then_some(Ok(()))).await
}
