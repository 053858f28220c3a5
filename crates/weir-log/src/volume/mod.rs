//! An open log volume: its state. `device` has the operations of its device.
//!
//! A write goes `LogVolume::call` -> `Journal::append` -> (record on disk) -> `Sink::on_durable` -> overlay and batch
//! -> acknowledgement; later `upload` seals the batch into an object, and `commit` applies it to the object map.
//!
//! Invariants
//!  V1. The overlay and the batch change only in `State::take_durable`, in the order of the journal.
//!  V2. The object map describes the committed prefix and nothing newer.
//!  V3. After a failure nothing more is acknowledged.

pub(crate) mod close;
pub(crate) mod device;
pub(crate) mod resize;

use std::cell::{Cell, RefCell};
use std::collections::VecDeque;
use std::fmt;
use std::future::Future;
use std::pin::pin;
use std::rc::{Rc, Weak};
use std::time::Duration;

use tokio::sync::{Mutex, Notify, oneshot};
use tokio::time::Instant;
use weir_device::{DeviceError, Env, ErrorKind, Event, Events, LocalBoxFuture, VolumeId};
use weir_disk::LockGuard;
use weir_journal::{
    Epoch, Journal, JournalPos, PieceKind, PlacedPiece, RecordSeq, RecordSink, WriteNumber,
};
use weir_seal::DataKey;
use weir_store::Store;

use crate::collect::Collector;
use crate::collect::garbage::Garbage;
use crate::error::LogError;
use crate::format::manifest::{CheckpointRef, HexId, OriginRecord, Takeover};
use crate::ids::WriteMark;
use crate::limits::{THROTTLE_DELAY_MAX_MS, THROTTLE_FROM_PERCENT};
use crate::map::checkpoint::{CheckpointChunk, CheckpointState};
use crate::map::objects::ObjectMap;
use crate::options::VolumeOptions;
use crate::own::lease::LeaseHold;
use crate::own::manifests::ManifestWriter;
use crate::read::ReadAhead;
use crate::read::fetch::Fetcher;
use crate::snapshot::snapshots::Snapshots;
use crate::volume::device::Owned;
use crate::write::batch::Batch;
use crate::write::overlay::Overlay;
use crate::write::pipeline::Pipeline;
use crate::write::unsent::Unsent;
use crate::write::upload::SEAL_FROM_PERCENT;

/// Longest run of pieces that is taken in as one, in bytes: a batch ends between runs, and should not end far too late.
const RUN_BYTES_MAX: u64 = 256 << 10;

/// What changes while a volume is open.
#[derive(Debug)]
pub(crate) struct State {
    pub(crate) stream: VolumeId,
    pub(crate) size: u64,
    /// What lies beyond a smaller size is not given up in the store yet.
    pub(crate) shrinking: bool,
    pub(crate) overlay: Overlay,
    pub(crate) objects: ObjectMap,
    pub(crate) batch: Option<Batch>,
    /// Sealed batches that have no object yet, oldest first.
    pub(crate) sealed: VecDeque<Batch>,
    /// Checkpoint payloads that have no object yet, oldest first.
    pub(crate) chunks: VecDeque<CheckpointChunk>,
    pub(crate) pipeline: Pipeline,
    /// What is acknowledged and not in the committed prefix, for those who ask.
    pub(crate) unsent: Unsent,
    /// A batch is being read back from the journal; its object has no number yet.
    pub(crate) gathering: bool,
    /// The last write that the overlay has seen.
    pub(crate) acked: WriteMark,
    /// The last write of the committed prefix.
    pub(crate) committed: WriteMark,
    /// An object came into the store while the lease was not held. Nothing of the journal is released before it is
    /// known that nobody took the volume over without that object.
    pub(crate) keeps_journal: bool,
    /// The last write that is kept for that, by its number: also one of an earlier opening that was replayed.
    pub(crate) kept_through: Option<WriteNumber>,
    pub(crate) checkpoint: CheckpointState,
    /// Sequence that the checkpoint under way is as of.
    pub(crate) checkpoint_as_of: u64,
    pub(crate) published: Option<CheckpointRef>,
    pub(crate) garbage: Garbage,
    pub(crate) collector: Collector,
    pub(crate) snapshots: Snapshots,
    /// Those of the newest manifest version that counts.
    pub(crate) origins: Vec<OriginRecord>,
    pub(crate) failure: Option<DeviceError>,
    pub(crate) last_object_small: bool,
    pub(crate) read_ahead: ReadAhead,
    pub(crate) upload_note: Option<String>,
    /// When it was last said that the store has no room.
    pub(crate) no_room_said: Option<Instant>,
    pub(crate) objects_written: u64,
    pub(crate) checkpoints_published: u64,
}

impl State {
    /// V1: takes a durable piece in, in journal order, or a run of them that ends with the write `last`. `true` when a
    /// batch was begun.
    pub(crate) fn take_durable(&mut self, piece: &PlacedPiece, last: WriteNumber) -> bool {
        self.overlay.insert(piece);
        if weir_device::mutant("one_map") {
            self.objects.map.remove(piece.offset, piece.len, |_| {});
        }
        self.acked = WriteMark { epoch: piece.epoch, write: last };
        let begun = self.batch.is_none();
        match &mut self.batch {
            Some(batch) => batch.push(piece, last),
            None => self.batch = Some(Batch::begin(piece, last, self.size)),
        }
        begun
    }

    /// Ends a batch that is full, at the end of a record: a client's write that fits into one goes into one object, so
    /// that every prefix of the objects has all of it or nothing. `true` when it was.
    pub(crate) fn seal_full(&mut self, options: &VolumeOptions) -> bool {
        let full = self.batch.as_ref().is_some_and(|batch| batch.is_full(&options.batch));
        if full {
            self.seal();
        }
        full
    }

    /// Ends the open batch, if there is one.
    pub(crate) fn seal(&mut self) {
        if let Some(batch) = self.batch.take() {
            self.last_object_small = false;
            self.unsent.on_seal(&batch);
            self.sealed.push_back(batch);
        }
    }

    /// Whether every acknowledged write is in the committed prefix.
    pub(crate) fn all_committed(&self) -> bool {
        self.batch.is_none()
            && self.sealed.is_empty()
            && !self.gathering
            && self.pipeline.is_idle()
            && self.chunks.is_empty()
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
    /// Keeps the node's lease renewed.
    pub(crate) hold: LeaseHold,
    /// The run of renewals that the manifest names.
    pub(crate) lease_generation: Cell<u64>,
    /// As the manifest says it; while that changes, the stricter of the two.
    pub(crate) takeover: Cell<Takeover>,
    pub(crate) state: RefCell<State>,
    pub(crate) fetcher: Rc<Fetcher>,
    /// Work for the uploader: something was sealed, a PUT ended, or the volume stops.
    pub(crate) work: Notify,
    /// Work for the committer: an object is in the store, or the volume stops.
    pub(crate) stored: Notify,
    /// Work for the deleter: a version that lists garbage counts, or the volume stops.
    pub(crate) listed: Notify,
    /// Work for the collector: too little of the objects lives, or the volume stops.
    pub(crate) collect: Notify,
    /// A look is due at clones and origins, or the volume stops.
    pub(crate) ties: Notify,
    /// Somebody who waits should look again: the prefix grew, a checkpoint was published, the volume failed.
    pub(crate) progress: Notify,
    pub(crate) stopped: Cell<bool>,
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
    /// News for whoever owns the stack.
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
        // Only this one says that reads are refused too.
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
        self.listed.notify_one();
        self.collect.notify_one();
        self.ties.notify_one();
        self.progress.notify_waiters();
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
        self.env.spawn_local(async move {
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
    /// its close.
    pub(crate) async fn wait_while_open<T>(
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
        self.hold.set_flushed(self.journal.flushed_write());
        Ok(())
    }

    /// Waits until every write acknowledged before the call is in the committed prefix.
    pub(crate) async fn upload_all(&self) -> Result<(), DeviceError> {
        self.check_failure()?;
        let target = {
            let mut state = self.state.borrow_mut();
            state.seal();
            state.acked
        };
        self.work.notify_one();
        self.wait_while_open(|state| (state.committed >= target).then_some(Ok(()))).await
    }

    pub(crate) fn journal_percent_full(&self) -> u64 {
        percent_full(self.journal.used_and_capacity())
    }

    /// Slows writers as the journal fills, so that they do not run into a wall.
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

fn percent_full((used, capacity): (u64, u64)) -> u64 {
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
        // Those whose client went away without an answer.
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

/// The first piece, with those behind it that go on where it ends, on the volume and in the journal; the number of the
/// last of them; and what is left. Large writes come as many pieces, and each run of them is one change of every map.
fn next_run(pieces: &[PlacedPiece]) -> Option<(PlacedPiece, WriteNumber, &[PlacedPiece])> {
    let (first, mut rest) = pieces.split_first()?;
    let (mut run, mut last) = (*first, first.write);
    while let Some((next, behind)) = rest.split_first() {
        let goes_on = run.kind == PieceKind::Data
            && next.kind == PieceKind::Data
            && next.offset == run.offset + run.len
            && next.position == run.position.plus(run.len)
            && run.len + next.len <= RUN_BYTES_MAX;
        if !goes_on {
            break;
        }
        run.len += next.len;
        last = next.write;
        rest = behind;
    }
    Some((run, last, rest))
}

/// Connects the journal to the volume without keeping the volume alive.
struct Sink(Weak<Shared>);

impl RecordSink for Sink {
    fn on_durable(&self, _record: RecordSeq, pieces: &[PlacedPiece]) {
        let Some(shared) = self.0.upgrade() else { return };
        let mut wake = false;
        {
            let mut state = shared.state.borrow_mut();
            let mut rest = pieces;
            while let Some((run, last, behind)) = next_run(rest) {
                wake |= state.take_durable(&run, last);
                if weir_device::mutant("batch_ends_in_record") {
                    state.seal_full(&shared.options);
                }
                rest = behind;
            }
            wake |= state.seal_full(&shared.options);
        }
        let (used, capacity) = shared.journal.used_and_capacity();
        shared.hold.set_dirty(used);
        if wake || percent_full((used, capacity)) >= SEAL_FROM_PERCENT {
            shared.work.notify_one();
        }
    }

    fn forget(&self, start: JournalPos, end: JournalPos) -> LocalBoxFuture<'_, ()> {
        let shared = self.0.upgrade();
        Box::pin(async move {
            let Some(shared) = shared else { return };
            if weir_device::mutant("overlay_not_forgotten") {
                return;
            }
            let budget = shared.options.map.map_step_budget;
            let mut from = 0;
            loop {
                let next = {
                    let mut state = shared.state.borrow_mut();
                    state.overlay.forget_step(start, end, from, budget)
                };
                match next {
                    Some(offset) => from = offset,
                    None => return,
                }
                tokio::task::yield_now().await;
            }
        })
    }

    fn on_failed(&self) {
        if let Some(shared) = self.0.upgrade() {
            // What was flushed goes to the store now: it lies on a disk that fails.
            shared.work.notify_one();
        }
    }
}

/// A log volume that is open for reading and writing (LSVD section 3).
///
/// Acknowledged writes survive a crash of the process without a flush, flushed ones survive power loss, and after the
/// loss of the local disk the volume shows a prefix of the acknowledged writes.
pub struct LogVolume {
    pub(crate) shared: Rc<Shared>,
    /// What its replies depend on.
    pub(crate) owned: Rc<Owned>,
}

impl LogVolume {
    /// Connects the journal and starts the tasks of a volume that recovery has put together.
    pub(crate) fn start(shared: Rc<Shared>) -> Rc<Self> {
        shared.journal.set_sink(Rc::new(Sink(Rc::downgrade(&shared))));
        let env = shared.env.clone();
        env.spawn_local(crate::write::upload::run(Rc::clone(&shared)));
        env.spawn_local(crate::write::commit::run(Rc::clone(&shared)));
        env.spawn_local(crate::own::ownership::run(Rc::clone(&shared)));
        env.spawn_local(crate::collect::garbage::run(Rc::clone(&shared)));
        env.spawn_local(crate::collect::run(Rc::clone(&shared)));
        env.spawn_local(crate::lineage::references::run(Rc::clone(&shared)));
        if !shared.state.borrow().snapshots.listed.is_empty() {
            env.spawn_local(crate::snapshot::snapshots::learn_pins(Rc::clone(&shared)));
        }
        let owned = Rc::new(Owned(Rc::downgrade(&shared)));
        Rc::new(Self { shared, owned })
    }

    /// The volume's identity.
    #[must_use]
    pub fn id(&self) -> VolumeId {
        self.shared.id
    }

    /// Waits until every write acknowledged before the call is in the committed prefix of the store.
    ///
    /// # Errors
    /// The failure that stopped the volume, if there is one.
    pub async fn flush_remote(&self) -> Result<(), DeviceError> {
        self.shared.upload_all().await?;
        // Whoever hears of it may throw the local disk away: the objects must be those of the owner.
        self.shared.wait_for_lease().await
    }

    /// Panics if a numbered invariant does not hold. Walks the whole map: for tests and the simulation.
    pub fn check_invariants(&self) {
        self.shared.state.borrow().objects.check_invariants();
    }
}

impl fmt::Debug for LogVolume {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "LogVolume({})", self.shared.id)
    }
}

impl Drop for LogVolume {
    fn drop(&mut self) {
        self.shared.stopped.set(true);
        self.shared.wake_all();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pieces_that_go_on_where_another_ends_are_one_run() {
        let piece = |write: u64, offset, len, kind, position| PlacedPiece {
            epoch: Epoch(1),
            record: RecordSeq(1),
            write: WriteNumber(write),
            offset,
            len,
            kind,
            position: JournalPos(position),
        };
        let data = PieceKind::Data;
        let many = RUN_BYTES_MAX / 4096;
        let mut pieces = vec![
            piece(1, 0, 4096, data, 8192),
            piece(2, 4096, 100, data, 12_288),
            // A gap in the journal, one on the volume, and a piece without bytes.
            piece(3, 4196, 100, data, 20_000),
            piece(4, 5000, 100, data, 20_100),
            piece(5, 5100, 100, PieceKind::Zero, 20_200),
            piece(6, 5200, 100, PieceKind::Zero, 20_300),
        ];
        pieces.extend((0..many + 1).map(|n| piece(7 + n, n * 4096, 4096, data, 40_960 + n * 4096)));
        let mut rest = &pieces[..];
        let mut runs = Vec::new();
        while let Some((run, last, behind)) = next_run(rest) {
            runs.push((run.write.0, last.0, run.offset, run.len));
            rest = behind;
        }
        assert_eq!(
            runs,
            [
                (1, 2, 0, 4196),
                (3, 3, 4196, 100),
                (4, 4, 5000, 100),
                (5, 5, 5100, 100),
                (6, 6, 5200, 100),
                (7, 6 + many, 0, RUN_BYTES_MAX),
                (7 + many, 7 + many, RUN_BYTES_MAX, 4096),
            ]
        );
    }
}
