//! What the tasks and the verbs of an open volume share.
//!
//! Invariants
//!  V1. Writes enter the overlay and the batch in `State::take_durable` only, in the order of the journal.
//!  V3. After a failure nothing more is acknowledged.

use std::cell::{Cell, RefCell};
use std::future::Future;
use std::mem::ManuallyDrop;
use std::pin::pin;
use std::rc::Rc;
use std::time::Duration;

use tokio::sync::{Mutex, Notify, oneshot};
use weir_device::{DeviceError, Env, ErrorKind, Event, Events, VolumeId};
use weir_disk::LockGuard;
use weir_journal::{Epoch, Journal, ManifestSeen, PlacedPiece, WriteNumber};
use weir_seal::DataKey;
use weir_store::Store;

use crate::collect::Collector;
use crate::collect::garbage::Garbage;
use crate::error::LogError;
use crate::format::manifest::{HexId, OriginRecord, Takeover};
use crate::limits::{THROTTLE_DELAY_MAX_MS, THROTTLE_FROM_PERCENT};
use crate::map::head::Head;
use crate::options::VolumeOptions;
use crate::own::lease::LeaseHold;
use crate::own::lost::Lost;
use crate::own::manifests::ManifestWriter;
use crate::read::ReadAhead;
use crate::read::failed::FailedReads;
use crate::read::fetch::Fetcher;
use crate::snapshot::snapshots::Snapshots;
use crate::volume::pressure::Pressures;
use crate::volume::task::Tasks;
use crate::write::state::WriteState;

/// What changes while a volume is open. Each part belongs to a room, which says what may be done with it.
#[derive(Debug)]
pub(crate) struct State {
    pub(crate) stream: VolumeId,
    pub(crate) size: u64,
    /// What lies beyond a smaller size is not given up in the store yet.
    pub(crate) shrinking: bool,
    pub(crate) writes: WriteState,
    pub(crate) head: Head,
    pub(crate) collector: Collector,
    pub(crate) snapshots: Snapshots,
    /// Those of the newest manifest version that counts.
    pub(crate) origins: Vec<OriginRecord>,
    pub(crate) read_ahead: ReadAhead,
    pub(crate) failed_reads: FailedReads,
    pub(crate) lost: Lost,
    pub(crate) failure: Option<DeviceError>,
}

impl State {
    /// V1: takes a durable piece in, in journal order, or a run of them that ends with the write `last`. `true` when a
    /// batch was begun.
    pub(crate) fn take_durable(&mut self, piece: &PlacedPiece, last: WriteNumber) -> bool {
        self.writes.take_durable(piece, last, self.size, &mut self.head.objects)
    }

    /// Whether every acknowledged write is in the committed prefix, and no checkpoint is on its way.
    pub(crate) fn all_committed(&self) -> bool {
        self.writes.is_committed() && self.head.chunks.is_empty()
    }
}

/// What the tasks of a volume share.
pub(crate) struct Shared {
    pub(crate) id: VolumeId,
    pub(crate) epoch: Epoch,
    /// What names this opening in the journal, the manifest and its objects.
    pub(crate) opening: HexId,
    pub(crate) store: Store,
    /// None where the volume is not encrypted.
    pub(crate) key: Option<DataKey>,
    pub(crate) env: Env,
    pub(crate) options: VolumeOptions,
    pub(crate) journal: Journal,
    pub(crate) manifest: Mutex<ManifestWriter>,
    /// The newest version that this opening found or published.
    pub(crate) newest_manifest: Rc<Cell<ManifestSeen>>,
    /// What nothing needs any more, and who reads it yet.
    pub(crate) garbage: Rc<Garbage>,
    /// Keeps the node's lease renewed.
    pub(crate) hold: LeaseHold,
    /// The run of renewals that the manifest names.
    pub(crate) lease_generation: Cell<u64>,
    /// As the manifest says it; while that changes, the stricter of the two.
    pub(crate) takeover: Cell<Takeover>,
    pub(crate) state: RefCell<State>,
    pub(crate) fetcher: Rc<Fetcher>,
    pub(crate) pressures: Pressures,
    // Who is woken by which of these, and when: `task`.
    pub(crate) work: Notify,
    pub(crate) stored: Notify,
    pub(crate) collect: Notify,
    pub(crate) references: Notify,
    pub(crate) progress: Notify,
    pub(crate) stopped: Cell<bool>,
    /// What runs in the background, as long as the volume is open.
    pub(crate) tasks: Rc<Tasks>,
    /// No write is taken any more: the volume is being handed over.
    pub(crate) closing: Cell<bool>,
    /// No write is taken for now: the volume is being set back, or shrunk.
    pub(crate) frozen: Cell<bool>,
    /// Writes that were taken and are not answered yet.
    pub(crate) appends: Cell<u64>,
    /// Writes wait, and none is on its way to the journal once `appends` is 0.
    pub(crate) held: Cell<bool>,
    /// Which content the volume shows: a rollback begins another.
    pub(crate) generation: Cell<u64>,
    /// Events for the owner of the stack.
    pub(crate) events: Events,
    /// Keeps other openings of this host away for as long as anything of this one runs.
    pub(crate) _lock: LockGuard,
}

impl Shared {
    /// V3: the first failure stays; everybody who waits learns of it.
    pub(crate) fn fail(&self, error: impl Into<DeviceError>) {
        let error = error.into();
        let mut state = self.state.borrow_mut();
        let is_fenced = |error: &DeviceError| error.kind() == ErrorKind::Fenced;
        // A fenced volume refuses reads as well, so being fenced replaces another failure.
        let counts = state.failure.as_ref().is_none_or(|was| is_fenced(&error) && !is_fenced(was));
        if counts {
            tracing::error!(volume = %self.id, %error, "the volume refuses further writes");
            self.events.push(match is_fenced(&error) {
                true => Event::ExclusiveLost(error.clone()),
                false => Event::Degraded(error.clone()),
            });
            state.failure = Some(error);
        }
        drop(state);
        // Nothing is committed any more, so nobody may wait for space in the journal.
        self.journal.refuse_appends();
        self.wake_all();
    }

    pub(crate) fn wake_all(&self) {
        self.work.notify_one();
        self.stored.notify_one();
        self.garbage.listed.notify_one();
        self.collect.notify_one();
        self.references.notify_one();
        self.progress.notify_waiters();
    }

    /// Runs a task in the background as long as the volume is open.
    pub(crate) fn spawn(&self, task: impl Future<Output = ()> + 'static) {
        self.tasks.spawn(&self.env, task);
    }

    /// Nothing is begun any more, and nobody waits for what is under way. What runs in the background ends by itself.
    pub(crate) fn stop(&self) {
        self.stopped.set(true);
        self.wake_all();
    }

    pub(crate) fn check_stopped(&self) -> Result<(), DeviceError> {
        if self.stopped.get() {
            return Err(DeviceError::new(ErrorKind::Unavailable, "the volume is closed"));
        }
        Ok(())
    }

    pub(crate) fn check_not_closing(&self) -> Result<(), DeviceError> {
        if self.closing.get() {
            return Err(DeviceError::new(ErrorKind::Unavailable, "the volume is being closed"));
        }
        if self.frozen.get() {
            let message = "the volume is being set back to a snapshot, or shrunk";
            return Err(DeviceError::new(ErrorKind::Unavailable, message));
        }
        Ok(())
    }

    pub(crate) fn check_failure(&self) -> Result<(), DeviceError> {
        self.check_stopped()?;
        match &self.state.borrow().failure {
            Some(failure) => Err(failure.clone()),
            None => Ok(()),
        }
    }

    /// Runs a change of the volume to its end, though the caller may go away: who asked for it wanted the change.
    pub(crate) async fn to_its_end<T: 'static>(
        &self,
        change: impl Future<Output = Result<T, DeviceError>> + 'static,
    ) -> Result<T, DeviceError> {
        let (answer, answered) = oneshot::channel();
        self.spawn(async move {
            let _ = answer.send(change.await);
        });
        answered.await.unwrap_or_else(|_| Err(LogError::ShuttingDown.into()))
    }

    /// Waits until `ready` gives a result, looking again at every progress.
    pub(crate) async fn wait_for<T>(&self, mut ready: impl FnMut(&mut State) -> Option<T>) -> T {
        loop {
            let mut progress = pin!(self.progress.notified());
            progress.as_mut().enable();
            if let Some(result) = ready(&mut self.state.borrow_mut()) {
                return result;
            }
            progress.await;
        }
    }

    /// [`Shared::wait_for`] what only an open volume can bring about: ends with the failure that stopped it, or with
    /// its close. Its background work goes at full speed meanwhile.
    pub(crate) async fn wait_while_open<T>(
        &self,
        ready: impl FnMut(&mut State) -> Option<Result<T, DeviceError>>,
    ) -> Result<T, DeviceError> {
        let _awaited = self.awaited();
        let again = weir_device::mutant("abandoned_wait_counts_for_ever")
            .then(|| ManuallyDrop::new(self.awaited()));
        let waited = self.wait_in_background(ready).await;
        drop(again.map(ManuallyDrop::into_inner));
        waited
    }

    /// The same for background work itself, which nobody waits for.
    pub(crate) async fn wait_in_background<T>(
        &self,
        mut ready: impl FnMut(&mut State) -> Option<Result<T, DeviceError>>,
    ) -> Result<T, DeviceError> {
        self.wait_for(|state| match &state.failure {
            Some(failure) => Some(Err(failure.clone())),
            None => ready(state).or_else(|| self.check_stopped().err().map(Err)),
        })
        .await
    }

    /// A manifest version was not published. Whether it is there all the same nobody knows, so the volume fails.
    pub(crate) fn fail_publishing(&self, error: LogError) -> DeviceError {
        let error = DeviceError::from(error);
        self.fail(error.clone());
        error
    }

    /// Makes the journal know the newest version of the manifest. For changes that no record of the journal holds,
    /// before they are acknowledged and before a write is taken that builds on them: an opening in a store without them
    /// must not go on from the journal as if nothing was missing.
    pub(crate) async fn note_manifest(&self, manifest: &ManifestWriter) -> Result<(), DeviceError> {
        let noted = self.journal.note_manifest(manifest.current().seen()).await;
        // A journal takes nothing once the volume failed or was closed, which says more.
        noted.or_else(|error| self.check_failure().and(Err(LogError::Journal(error).into())))
    }

    /// [`Shared::note_manifest`] for who does not have the manifest.
    pub(crate) async fn note_newest_manifest(&self) -> Result<(), DeviceError> {
        let manifest = self.manifest.lock().await;
        self.note_manifest(&manifest).await
    }

    /// Makes every write acknowledged before the call survive a loss of power. The next renewal of the lease is a
    /// witness of it.
    pub(crate) async fn flush_journal(&self) -> Result<(), LogError> {
        self.journal.flush().await?;
        self.witness_flush();
        Ok(())
    }

    /// The same for background work.
    pub(crate) async fn flush_journal_for_upkeep(&self) -> Result<(), LogError> {
        self.journal.flush_for_upkeep().await?;
        self.witness_flush();
        Ok(())
    }

    fn witness_flush(&self) {
        self.hold.set_flushed(self.journal.flushed_write());
    }

    /// Waits until every write acknowledged before the call is in the committed prefix.
    pub(crate) async fn upload_all(&self) -> Result<(), DeviceError> {
        self.check_failure()?;
        let target = {
            let mut state = self.state.borrow_mut();
            state.writes.close_batch();
            state.writes.acked
        };
        self.work.notify_one();
        self.wait_while_open(|state| (state.writes.committed >= target).then_some(Ok(()))).await
    }

    pub(crate) fn journal_percent_full(&self) -> u64 {
        percent_full(self.journal.used_and_capacity())
    }

    /// Delays writers more the fuller the journal is, so that they slow down before they have to stop.
    pub(crate) async fn throttle(&self) {
        let percent = self.journal_percent_full();
        if percent > THROTTLE_FROM_PERCENT {
            let over = (percent - THROTTLE_FROM_PERCENT).min(100 - THROTTLE_FROM_PERCENT);
            let span = 100 - THROTTLE_FROM_PERCENT;
            let delay_us = THROTTLE_DELAY_MAX_MS * 1000 * over * over / (span * span);
            tokio::time::sleep(Duration::from_micros(delay_us)).await;
        }
    }
}

pub(super) fn percent_full((used, capacity): (u64, u64)) -> u64 {
    used.saturating_mul(100).checked_div(capacity).unwrap_or(0)
}

/// Writes wait as long as this lives.
pub(crate) struct Held<'a>(&'a Shared);

impl<'a> Held<'a> {
    /// Returns once every write that was taken before is in the journal. Refused like a write where the volume is being
    /// closed, set back or shrunk: what is added to the journal then would land on what comes of that. Those wait for
    /// this one in turn ([`Shared::settle`]).
    pub(crate) async fn new(shared: &'a Shared) -> Result<Self, DeviceError> {
        let is_free = |_: &mut State| (!shared.held.get()).then_some(Ok(()));
        shared.wait_while_open(is_free).await?;
        if !weir_device::mutant("zeroes_while_set_back") {
            shared.check_not_closing()?;
        }
        shared.held.set(true);
        let held = Self(shared);
        shared.wait_while_open(|_| (shared.appends.get() == 0).then_some(Ok(()))).await?;
        // Appends whose client has disconnected are not counted in `appends`; they have to be in the journal too.
        shared.journal.drain().await.map_err(LogError::Journal)?;
        Ok(held)
    }
}

impl Drop for Held<'_> {
    fn drop(&mut self) {
        self.0.held.set(false);
        self.0.progress.notify_waiters();
    }
}

/// No writes are taken as long as this lives.
pub(crate) struct Frozen<'a>(&'a Shared);

impl<'a> Frozen<'a> {
    pub(crate) fn new(shared: &'a Shared) -> Self {
        shared.frozen.set(true);
        Self(shared)
    }
}

impl Drop for Frozen<'_> {
    fn drop(&mut self) {
        self.0.frozen.set(false);
        self.0.progress.notify_waiters();
    }
}
