//! The journal as the volume holds it.

use std::fmt;
use std::future::Future;
use std::pin::Pin as TaskPin;
use std::rc::Rc;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use weir_device::{Env, SharedBuf, VolumeId, mutant};
use weir_disk::{Directory, File};
use weir_seal::DataKey;

use crate::config::JournalConfig;
use crate::error::JournalError;
use crate::group_commit::Payload;
use crate::ids::{
    Announced, Epoch, Identity, JournalPos, ManifestSeen, OpeningId, RecordSeq, WriteNumber,
};
use crate::inner::{Inner, RecordSink};
use crate::limits::{ANNOUNCED_MAX, RECORDS_IN_FLIGHT_MAX};
use crate::recover::{self, AcceptLoss, Identified, Recovered};
use crate::state::{JournalState, Phase, Ticket};
use crate::{flush, prepare, read, write};

/// How a journal is doing.
#[derive(Clone, Debug)]
pub struct JournalStatus {
    /// Bytes the file's segments may take together.
    pub bytes_capacity: u64,
    /// Bytes that cannot be written over yet.
    pub bytes_used: u64,
    /// Segments in the file.
    pub segments: u32,
    /// Segments that recovery would read.
    pub segments_listed: u64,
    /// Last record acknowledged.
    pub acked_through: RecordSeq,
    /// Last record known to survive power loss.
    pub flushed_through: RecordSeq,
    /// Last write that a successful sync of this opening covers; 0 before [`Journal::begin_epoch`].
    pub flushed_write: WriteNumber,
    /// Memory held by copies of payloads.
    pub resident_bytes: usize,
    /// Payload pieces that can be read.
    pub pieces: u64,
    /// Bytes of payload that wait for a record.
    pub queued_bytes: u64,
    /// Last write acknowledged.
    pub last_write: WriteNumber,
    /// Why no writes are taken any more.
    pub poisoned: Option<String>,
    /// The file, while it has to grow and cannot for want of space on its file system.
    pub no_space: Option<String>,
    /// For how long the disk has not answered the oldest write or sync that is under way.
    pub disk_wait: Option<Duration>,
    /// Syncs since the journal was opened.
    pub fsyncs: u64,
    /// Records since the journal was opened.
    pub records: u64,
    /// Bytes of records since the journal was opened.
    pub bytes_written: u64,
}

/// A ring of records on local disk. Cheap to clone; belongs to one thread.
#[derive(Clone)]
pub struct Journal {
    handle: Rc<Handle>,
}

/// Ends the tasks when the last [`Journal`] is gone.
struct Handle {
    inner: Rc<Inner>,
}

impl Drop for Handle {
    fn drop(&mut self) {
        self.inner.state.borrow_mut().phase = Phase::Stopping;
        self.inner.wake_all();
    }
}

impl fmt::Debug for Journal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let inner = self.inner();
        write!(f, "Journal({}", inner.file_name)?;
        if let Ok(state) = inner.state.try_borrow() {
            write!(f, ", {:?}, queue {} bytes", state.ring, state.queue.bytes())?;
        }
        f.write_str(")")
    }
}

impl Journal {
    pub(crate) fn new(file: File, env: Env, state: JournalState) -> Self {
        Self { handle: Rc::new(Handle { inner: Rc::new(Inner::new(file, env, state)) }) }
    }

    pub(crate) fn inner(&self) -> &Rc<Inner> {
        &self.handle.inner
    }

    /// Makes a journal with one empty segment; with the key of its volume, if that is encrypted. Takes no appends
    /// before [`Journal::begin_epoch`].
    ///
    /// # Errors
    /// If a file of this name exists, or the disk refuses. What was made of the file is removed again.
    pub async fn create(
        directory: &Directory,
        name: &str,
        identity: Identity,
        key: Option<&DataKey>,
        config: JournalConfig,
        env: &Env,
    ) -> Result<Recovered, JournalError> {
        recover::create(directory, name, identity, key, config, env).await
    }

    /// Opens an existing journal and reads what it holds. Changes nothing on disk (but the length of a truncated file
    /// whose loss was accepted). Takes no appends before [`Journal::begin_epoch`].
    ///
    /// # Errors
    /// If it is not the journal of `expected_volume` and of its key, or damage lost acknowledged writes and
    /// `accept_loss` does not say that this is known.
    pub async fn recover(
        directory: &Directory,
        name: &str,
        expected_volume: VolumeId,
        key: Option<&DataKey>,
        config: JournalConfig,
        accept_loss: AcceptLoss,
        env: &Env,
    ) -> Result<Recovered, JournalError> {
        let expected = (expected_volume, key);
        recover::recover(directory, name, expected, config, accept_loss, env).await
    }

    /// Whose the journal of this name is: what its superblock says, and nothing else of it is read.
    ///
    /// # Errors
    /// If it has no superblock that can be read.
    pub async fn identify(directory: &Directory, name: &str) -> Result<Identified, JournalError> {
        recover::identify(directory, name).await
    }

    /// Says who hears of durable records and of positions to forget.
    pub fn set_sink(&self, sink: Rc<dyn RecordSink>) {
        *self.inner().sink.borrow_mut() = Some(sink);
    }

    /// The epoch of the superblock.
    #[must_use]
    pub fn epoch(&self) -> Epoch {
        self.inner().state.borrow().epoch()
    }

    /// Numbers the writes of the epoch to come: above `last`, the last write that the object stream holds, and above
    /// those that the journal holds. One that holds none goes on right behind `last`, whatever it held once: a gap
    /// between the stream and the journal means that objects are missing. Call it before [`Journal::begin_epoch`].
    pub fn continue_after(&self, last: WriteNumber) {
        self.inner().state.borrow_mut().continue_after(last);
    }

    /// Openings that may be published and were not in force yet, the oldest first: announced by those that tried
    /// before, or by this one.
    #[must_use]
    pub fn announced(&self) -> Vec<Announced> {
        self.inner().state.borrow().announced().to_vec()
    }

    /// Says which version of the manifest the opening goes on from, in the place of what was known: whoever opens has
    /// compared the two. Durable with [`Journal::begin_epoch`], before which it is called.
    pub fn set_manifest(&self, seen: ManifestSeen) {
        self.inner().state.borrow_mut().set_manifest(seen);
    }

    /// Says that the store has this version of the manifest. That, or a newer one that is known, is durable when it
    /// returns.
    ///
    /// # Errors
    /// If the journal takes no appends, or the disk fails (which poisons the journal).
    pub async fn note_manifest(&self, seen: ManifestSeen) -> Result<(), JournalError> {
        let inner = self.inner();
        let _alone = inner.superblocks.lock().await;
        if let Some(refusal) = inner.state.borrow().refusal() {
            return Err(refusal);
        }
        let superblock = inner.state.borrow_mut().note_manifest(seen);
        prepare::write_superblock(inner, &superblock).await
    }

    /// Last write that a successful sync of this opening covers; 0 before [`Journal::begin_epoch`].
    #[must_use]
    pub fn flushed_write(&self) -> WriteNumber {
        self.inner().state.borrow().flushed_write
    }

    /// Whether a write or a sync failed.
    #[must_use]
    pub fn is_poisoned(&self) -> bool {
        self.inner().state.borrow().poisoned.is_some()
    }

    /// Says that `opening` is about to be published with `epoch`. Durable in both copies of the superblock when it
    /// returns, also where a program wrote them that did not know openings. Kept until [`Journal::begin_epoch`]: a
    /// publication that takes effect late is still one of this journal. An opening that was announced before keeps the
    /// higher of its epochs.
    ///
    /// # Errors
    /// [`JournalError::AnnouncementsFull`]: the newest of [`Journal::announced`] has to be published instead. If the
    /// epoch is not higher than the journal's, or the disk fails (which poisons the journal).
    pub async fn announce(&self, opening: OpeningId, epoch: Epoch) -> Result<(), JournalError> {
        let inner = self.inner();
        self.check_new_epoch(epoch)?;
        let superblock = inner.state.borrow_mut().announce(opening, epoch);
        let Some(superblock) = superblock else {
            let file = Arc::clone(&inner.file_name);
            return Err(JournalError::AnnouncementsFull { file, count: ANNOUNCED_MAX });
        };
        if mutant("announcement_not_durable") {
            return Ok(());
        }
        prepare::write_superblock(inner, &superblock).await
    }

    /// Whether an epoch after the journal's can be announced or begun.
    fn check_new_epoch(&self, epoch: Epoch) -> Result<(), JournalError> {
        let inner = self.inner();
        let current = self.epoch();
        let file = Arc::clone(&inner.file_name);
        if epoch <= current {
            return Err(JournalError::EpochNotHigher { file, current, asked: epoch });
        }
        inner.check_poison()?;
        if inner.state.borrow().phase != Phase::Recovered {
            return Err(JournalError::Closed { file });
        }
        Ok(())
    }

    /// Begins an epoch under its opening: everything recovered is made durable, then the superblock, which names this
    /// file and announces nothing any more. Appends are taken once this has returned.
    ///
    /// # Errors
    /// If the epoch is not higher than the journal's, or the disk fails (which poisons the journal).
    ///
    /// # Panics
    /// If the opening is all zero, which stands for none.
    pub async fn begin_epoch(&self, epoch: Epoch, opening: OpeningId) -> Result<(), JournalError> {
        assert!(opening.0 != [0; 16], "an opening has a name");
        let inner = self.inner();
        self.check_new_epoch(epoch)?;
        // What survived so far must not vanish under an epoch that builds on it.
        flush::sync_now(inner).await?;
        let boot_id = inner.env.clock.boot_id();
        let drop_released = inner.state.borrow().ring.closing_plan();
        let mut salt = [0; 16];
        if inner.state.borrow().seals.is_some() {
            inner.env.random.fill(&mut salt);
        }
        let opening = (epoch, opening);
        let superblock =
            inner.state.borrow_mut().begin_epoch(opening, boot_id, salt, &drop_released);
        if !mutant("epoch_not_durable") {
            prepare::write_superblock(inner, &superblock).await?;
        }
        inner.state.borrow_mut().published(&drop_released);
        inner.state.borrow_mut().phase = Phase::Open;
        for _ in 0..RECORDS_IN_FLIGHT_MAX {
            inner.spawn(write::lane);
        }
        inner.spawn(flush::syncer);
        inner.spawn(prepare::preparer);
        Ok(())
    }

    /// Writes `len` bytes from `offset` of the volume. Queued at the call, in the order of calls, and carried out even
    /// if the answer is dropped; answered when it and everything before it are on disk. Waits while the ring is full.
    ///
    /// # Panics
    /// If a data payload is not `len` bytes long.
    pub fn append(
        &self,
        offset: u64,
        payload: Payload,
        len: u64,
    ) -> impl Future<Output = Result<(), JournalError>> + use<> {
        let inner = Rc::clone(self.inner());
        let mut state = inner.state.borrow_mut();
        if len == 0 {
            drop(state);
            return Append { inner, ticket: None, refusal: None };
        }
        if let Some(refusal) = state.refusal() {
            drop(state);
            return Append { inner, ticket: None, refusal: Some(refusal) };
        }
        let ticket = state.enqueue(offset, payload, len);
        let start = state.may_start();
        drop(state);
        if start {
            inner.work.notify_one();
        }
        Append { inner, ticket: Some(ticket), refusal: None }
    }

    /// Waits until less than `queue_bytes_max` waits for a record. For those who would otherwise take in more.
    pub async fn room(&self) {
        let inner = self.inner();
        loop {
            let progress = inner.progress.notified();
            if inner.state.borrow().has_room() {
                return;
            }
            progress.await;
        }
    }

    /// Makes every append that was answered before this call survive power loss.
    ///
    /// # Errors
    /// If the journal is or becomes poisoned: then nothing is known about what was not flushed before.
    pub async fn flush(&self) -> Result<(), JournalError> {
        flush::flush(self.inner(), true).await
    }

    /// [`Journal::flush`] for background work, which the pacer does not take for a client.
    ///
    /// # Errors
    /// As there.
    pub async fn flush_for_upkeep(&self) -> Result<(), JournalError> {
        flush::flush(self.inner(), false).await
    }

    /// Says that every write up to `through` is in the committed prefix of the object stream: what holds nothing else
    /// may be written over.
    ///
    /// # Panics
    /// If `through` was never written.
    pub fn release(&self, through: WriteNumber) {
        self.inner().state.borrow_mut().release(through);
        self.inner().ring_work.notify_one();
    }

    /// The first write that a recovery finds, if all of it is intact: what was released stays until the rest of its
    /// segment was. The next write where there is none.
    pub fn holds_from(&self) -> WriteNumber {
        self.inner().state.borrow().holds_from()
    }

    /// Keeps the segment of `position` from being written over while the pin lives.
    ///
    /// # Panics
    /// If the position is gone: whoever was told to forget it must not pin it.
    #[must_use]
    pub fn pin(&self, position: JournalPos) -> Pin {
        let inner = Rc::clone(self.inner());
        let segment = {
            let mut state = inner.state.borrow_mut();
            let segment = state.ring.segment_of(position);
            state.ring.pin(segment);
            segment
        };
        Pin { inner, segment }
    }

    /// Reads bytes of one piece, or of several that lie one behind the other, verified before any is handed out. The
    /// caller holds a pin.
    ///
    /// # Errors
    /// [`JournalError::Corrupt`] if a checksum does not match; the disk's error if it cannot be read.
    pub async fn read(&self, position: JournalPos, buf: &mut [u8]) -> Result<(), JournalError> {
        read::read(self.inner(), position, buf).await
    }

    /// The same for `len` bytes without a copy: the parts that memory or disk holds them in, in order.
    ///
    /// # Errors
    /// As [`Journal::read`].
    pub async fn read_parts(
        &self,
        position: JournalPos,
        len: usize,
    ) -> Result<Vec<SharedBuf>, JournalError> {
        read::read_parts(self.inner(), position, len).await
    }

    /// The parts of several ranges, given in the order of their positions, each with the errors of [`Journal::read`] on
    /// its own. Those that lie near to each other are read together, 1 MiB at the most, and up to eight reads are under
    /// way at once.
    pub async fn read_ranges(
        &self,
        ranges: &[(JournalPos, u64)],
    ) -> Vec<Result<Vec<SharedBuf>, JournalError>> {
        read::read_ranges(self.inner(), ranges).await
    }

    /// Bytes that cannot be written over yet, and bytes the file's segments may take together: where the file cannot
    /// grow for want of space, those that it has. Both are the same once writers wait for a segment.
    #[must_use]
    pub fn used_and_capacity(&self) -> (u64, u64) {
        self.inner().state.borrow().used_and_capacity()
    }

    /// The bytes from `position` on to the end of their piece, if memory has a copy of them. The caller holds a pin, or
    /// nothing there is released yet.
    #[must_use]
    pub fn resident(&self, position: JournalPos) -> Option<SharedBuf> {
        read::resident(self.inner(), position)
    }

    /// How full the ring is, from 0 to 1: what cannot be written over yet, in whole segments at its tail.
    #[must_use]
    pub fn fill(&self) -> f64 {
        let (used, capacity) = self.used_and_capacity();
        // Sizes of journals are far below 2^52 bytes.
        (used as f64 / capacity as f64).min(1.0)
    }

    /// How the journal is doing.
    #[must_use]
    pub fn status(&self) -> JournalStatus {
        let state = self.inner().state.borrow();
        let (bytes_used, bytes_capacity) = state.used_and_capacity();
        JournalStatus {
            bytes_capacity,
            bytes_used,
            segments: state.ring.physical_count(),
            segments_listed: state.ring.listed_count(),
            acked_through: state.acked_through,
            flushed_through: state.flushed_through,
            flushed_write: state.flushed_write,
            resident_bytes: state.pieces.resident_bytes(),
            pieces: state.pieces.pieces(),
            queued_bytes: state.queue.bytes(),
            last_write: state.acked_write,
            poisoned: state.poisoned.as_ref().map(ToString::to_string),
            no_space: state.no_space.then(|| self.inner().file_name.to_string()),
            disk_wait: self.inner().disk_waits.longest(&*self.inner().env.clock),
            fsyncs: state.counters.fsyncs,
            records: state.counters.records,
            bytes_written: state.counters.bytes_written,
        }
    }

    /// Takes no more appends, finishes and flushes the ones there are, and marks the file as closed cleanly. Appends
    /// that wait for a full ring are refused. The tasks of the journal have ended when this returns.
    ///
    /// # Errors
    /// If the journal is or becomes poisoned.
    pub async fn close(&self) -> Result<(), JournalError> {
        let inner = self.inner();
        let opened = {
            let mut state = inner.state.borrow_mut();
            let opened = state.phase == Phase::Open;
            if opened {
                state.phase = Phase::Draining;
            }
            opened
        };
        if !opened {
            return inner.check_poison();
        }
        let done = |state: &JournalState| {
            state.is_drained() || state.is_stuck() || state.poisoned.is_some()
        };
        wait_until(inner, done).await;
        if inner.state.borrow().is_stuck() {
            let woken = inner.state.borrow_mut().refuse_waiting();
            woken.into_iter().for_each(std::task::Waker::wake);
        }
        let flushed = flush::flush(inner, false).await;
        inner.state.borrow_mut().phase = Phase::Stopping;
        inner.wake_all();
        wait_until(inner, |state| state.tasks == 0).await;
        flushed?;
        let _alone = inner.superblocks.lock().await;
        let superblock = inner.state.borrow_mut().clean_superblock();
        prepare::write_superblock(inner, &superblock).await
    }

    /// Waits until every append made before is in a record on disk, those included whose caller went away without its
    /// answer. Appends that wait for space wait for a release.
    ///
    /// # Errors
    /// If the journal is or becomes poisoned.
    pub async fn drain(&self) -> Result<(), JournalError> {
        let inner = self.inner();
        wait_until(inner, |state| state.is_drained() || state.poisoned.is_some()).await;
        inner.check_poison()
    }

    /// Takes no more appends and refuses those that are not wholly in records yet: their volume failed, and releases
    /// nothing any more that they could wait for. What is in records goes on to its end.
    pub fn refuse_appends(&self) {
        let inner = self.inner();
        let woken = {
            let mut state = inner.state.borrow_mut();
            if state.phase == Phase::Open {
                state.phase = Phase::Draining;
            }
            state.refuse_waiting()
        };
        woken.into_iter().for_each(std::task::Waker::wake);
        inner.wake_all();
    }

    /// O(n) check of the accounting, for tests and the simulation.
    pub fn check_invariants(&self) {
        let state = self.inner().state.borrow();
        state.ring.check_invariants();
        state.pieces.check_invariants();
        assert!(state.flushed_through <= state.acked_through, "J3");
    }
}

async fn wait_until(inner: &Inner, mut condition: impl FnMut(&JournalState) -> bool) {
    loop {
        let progress = inner.progress.notified();
        if condition(&inner.state.borrow()) {
            return;
        }
        progress.await;
    }
}

/// The answer to an append.
struct Append {
    inner: Rc<Inner>,
    /// `None` if there is nothing to wait for.
    ticket: Option<Ticket>,
    refusal: Option<JournalError>,
}

impl Future for Append {
    type Output = Result<(), JournalError>;

    fn poll(mut self: TaskPin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        if let Some(refusal) = self.refusal.take() {
            return Poll::Ready(Err(refusal));
        }
        let Some(ticket) = self.ticket else {
            return Poll::Ready(Ok(()));
        };
        let mut state = self.inner.state.borrow_mut();
        if state.is_acknowledged(ticket) {
            return Poll::Ready(Ok(()));
        }
        if let Some(cause) = &state.poisoned {
            let file = Arc::clone(&self.inner.file_name);
            return Poll::Ready(Err(JournalError::Poisoned { file, cause: cause.clone() }));
        }
        if state.is_refused(ticket) {
            let file = Arc::clone(&self.inner.file_name);
            return Poll::Ready(Err(JournalError::Closed { file }));
        }
        state.wait_for(ticket, context.waker());
        Poll::Pending
    }
}

/// Keeps a segment from being written over.
///
/// Its drop borrows the journal: a volume may drop it while it borrows its own state, and must not drop it out of a
/// call of the journal that has the journal borrowed. The journal calls its sink without borrowing anything.
pub struct Pin {
    inner: Rc<Inner>,
    segment: u64,
}

impl Drop for Pin {
    fn drop(&mut self) {
        self.inner.state.borrow_mut().ring.unpin(self.segment);
        self.inner.ring_work.notify_one();
    }
}

impl fmt::Debug for Pin {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Pin(segment {})", self.segment)
    }
}
