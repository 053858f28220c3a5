//! The write path's part of an open volume: what is acknowledged, and how far it is on its way to the store.

use std::collections::VecDeque;
use std::time::Duration;

use tokio::time::Instant;
use weir_journal::{PlacedPiece, WriteNumber};
use weir_pacer::Pressure;

use crate::ids::{ObjectSeq, WriteMark};
use crate::map::objects::ObjectMap;
use crate::write::batch::{Batch, BatchLimits};
use crate::write::overlay::Overlay;
use crate::write::pipeline::Pipeline;
use crate::write::unsent::Unsent;

/// Owned by the write path; the tasks that upload and commit change it.
#[derive(Debug)]
pub(crate) struct WriteState {
    pub(crate) overlay: Overlay,
    pub(crate) batch: Option<Batch>,
    /// Closed batches that have no object yet, oldest first.
    pub(crate) closed: VecDeque<Batch>,
    pub(crate) pipeline: Pipeline,
    /// What is acknowledged and not in the committed prefix, for those who ask.
    pub(crate) unsent: Unsent,
    /// A batch is being read back from the journal; its object has no number yet.
    pub(crate) gathering: bool,
    /// The last write that the overlay has seen.
    pub(crate) acked: WriteMark,
    /// The last write of the committed prefix.
    pub(crate) committed: WriteMark,
    /// The data objects of the prefix with their last writes, ascending, from the last one that the published
    /// checkpoint covers on.
    ends: VecDeque<(ObjectSeq, WriteNumber)>,
    /// An object came into the store while the lease was not held. Nothing of the journal is released before it is
    /// known that nobody took the volume over without that object.
    pub(crate) keeps_journal: bool,
    /// The last write that is kept for that, by its number: also one of an earlier opening that was replayed.
    pub(crate) kept_through: Option<WriteNumber>,
    last_object_small: bool,
    /// Why uploads do not succeed at the moment.
    pub(crate) upload_note: Option<String>,
    /// When it was last said that the store has no room.
    pub(crate) no_room_said: Option<Instant>,
    /// Data objects committed by this opening.
    pub(crate) objects_written: u64,
}

/// What the uploader finds when it looks for the next batch.
#[derive(Debug)]
pub(crate) enum NextBatch {
    /// To be gathered and sent.
    Ready(Batch),
    /// There is no batch to send before that time; without a time, none before another write comes.
    NotBefore(Option<Instant>),
}

impl WriteState {
    /// After a prefix that ends with the write `committed`.
    pub(crate) fn new(pipeline: Pipeline, committed: WriteMark, rpo: Duration) -> Self {
        let ends = VecDeque::from([(pipeline.committed(), committed.write)]);
        Self {
            overlay: Overlay::new(),
            batch: None,
            closed: VecDeque::new(),
            pipeline,
            unsent: Unsent::new(rpo),
            gathering: false,
            acked: committed,
            committed,
            ends,
            keeps_journal: false,
            kept_through: None,
            last_object_small: false,
            upload_note: None,
            no_room_said: None,
            objects_written: 0,
        }
    }

    /// A data object became part of the prefix, which ends with the write `last` now.
    pub(crate) fn on_committed(&mut self, seq: ObjectSeq, last: WriteMark) {
        self.objects_written += 1;
        self.committed = last;
        self.ends.push_back((seq, last.write));
        self.unsent.on_commit(last);
    }

    /// A checkpoint that covers the objects up to `as_of` was published.
    pub(crate) fn on_published(&mut self, as_of: ObjectSeq) {
        while self.ends.get(1).is_some_and(|(seq, _)| *seq <= as_of) {
            self.ends.pop_front();
        }
    }

    /// The last write of the prefix in front of object `seq`, for objects behind the published checkpoint that this
    /// opening committed.
    pub(crate) fn last_write_before(&self, seq: ObjectSeq) -> Option<WriteNumber> {
        let before = self.ends.iter().rev().find(|(end, _)| *end < seq);
        before.map(|(_, write)| *write)
    }

    /// W1: takes a durable piece in, in journal order, or a run of them that ends with the write `last`. `true` when a
    /// batch was begun.
    pub(crate) fn take_durable(
        &mut self,
        piece: &PlacedPiece,
        last: WriteNumber,
        volume_size: u64,
        objects: &mut ObjectMap,
    ) -> bool {
        self.overlay.insert(piece);
        if weir_device::mutant("one_map") {
            objects.map.remove(piece.offset, piece.len, |_| {});
        }
        self.acked = WriteMark { epoch: piece.epoch, write: last };
        let begun = self.batch.is_none();
        match &mut self.batch {
            Some(batch) => batch.push(piece, last),
            None => self.batch = Some(Batch::begin(piece, last, volume_size)),
        }
        begun
    }

    /// Closes a batch that is full, at the end of a record: a client's write that fits into one goes into one object,
    /// so that every prefix of the objects has all of it or nothing. `true` when it was.
    pub(crate) fn close_full_batch(&mut self, limits: &BatchLimits) -> bool {
        let full = self.batch.as_ref().is_some_and(|batch| batch.is_full(limits));
        if full {
            self.close_batch();
        }
        full
    }

    /// Closes the open batch, if there is one: it takes no further write, and waits for its upload.
    pub(crate) fn close_batch(&mut self) {
        if let Some(batch) = self.batch.take() {
            self.last_object_small = false;
            self.unsent.on_close(&batch);
            self.closed.push_back(batch);
        }
    }

    /// W1: what the journal held is taken in. All of it is closed, full or not: it was acknowledged by an earlier
    /// opening, nothing says how long ago, so it goes to the store at once.
    pub(crate) fn close_replayed(&mut self) {
        self.close_batch();
        self.unsent.on_replayed();
    }

    /// The batch to upload next. The open one is closed for that once it is old enough, or at once where the journal
    /// is `nearly_full` and nothing is on its way that could free a part of it, or `failed`.
    pub(crate) fn next_batch(
        &mut self,
        limits: &BatchLimits,
        nearly_full: bool,
        failed: bool,
    ) -> NextBatch {
        let mut due = None;
        if self.closed.is_empty()
            && let Some(batch) = &self.batch
        {
            let at = batch.due_at(limits, self.last_object_small, self.unsent.lead_time());
            let pressed = self.pipeline.in_flight() == 0 && nearly_full;
            if pressed || Instant::now() >= at || failed {
                let small = batch.payload_bytes < limits.small_bytes;
                self.close_batch();
                self.last_object_small = small && !pressed;
            } else {
                due = Some(at);
            }
        }
        match self.closed.pop_front() {
            Some(batch) => {
                self.gathering = true;
                NextBatch::Ready(batch)
            }
            None => NextBatch::NotBefore(due),
        }
    }

    /// How much the age of what is closed presses, in thousandths: nothing up to half of the time that it may be away
    /// from the store, fully from three quarters on, and where the age is unknown.
    pub(crate) fn age_pressure(&self, limits: &BatchLimits) -> u32 {
        if self.unsent.is_age_unknown() {
            return Pressure::FULL;
        }
        let Some(age) = self.unsent.closed_oldest_age() else { return 0 };
        let micros = |time: Duration| u64::try_from(time.as_micros()).unwrap_or(u64::MAX);
        Pressure::between(micros(age), micros(limits.rpo / 2), micros(limits.rpo / 4 * 3))
    }

    /// Whether every acknowledged write is in the committed prefix, and no object is on its way.
    pub(crate) fn is_committed(&self) -> bool {
        self.batch.is_none() && self.closed.is_empty() && !self.gathering && self.pipeline.is_idle()
    }
}

#[cfg(test)]
mod tests {
    use weir_journal::Epoch;

    use super::*;

    #[test]
    fn what_is_behind_the_published_checkpoint_is_known_with_the_writes_before_it() {
        let mark = |write| WriteMark { epoch: Epoch(1), write: WriteNumber(write) };
        let pipeline = Pipeline::after(ObjectSeq(3));
        let mut state = WriteState::new(pipeline, mark(30), Duration::from_secs(1));
        state.on_committed(ObjectSeq(4), mark(40));
        state.on_committed(ObjectSeq(6), mark(60));
        let before = |state: &WriteState, seqs: [u64; 4]| {
            seqs.map(|seq| state.last_write_before(ObjectSeq(seq)).map(|last| last.0))
        };
        assert_eq!(before(&state, [3, 4, 5, 6]), [None, Some(30), Some(40), Some(40)]);
        state.on_published(ObjectSeq(5));
        assert_eq!(before(&state, [4, 5, 6, 7]), [None, Some(40), Some(40), Some(60)]);
    }
}
