//! What was acknowledged and is not in the committed prefix yet: how much, and since when.

use std::collections::VecDeque;
use std::time::Duration;

use tokio::time::Instant;

use crate::ids::WriteMark;
use crate::write::batch::Batch;

/// A closed batch on its way.
#[derive(Debug)]
struct Waiting {
    last: WriteMark,
    bytes: u64,
    opened_at: Instant,
    closed_at: Instant,
}

/// The closed batches on their way, oldest first.
#[derive(Debug)]
pub(crate) struct Unsent {
    /// How old a write may be when it comes into the store.
    rpo: Duration,
    waiting: VecDeque<Waiting>,
    /// Their bytes together.
    waiting_bytes: u64,
    /// Batches that came into the store later than that.
    missed: u64,
    closed_bytes: u64,
    /// The last write that an earlier opening took in. Nothing says how old these are.
    replayed_through: Option<WriteMark>,
    /// How long the slowest of the latest batches was on its way, from its close to its commit.
    slowest: Duration,
}

/// What a batch is given for its way beyond the time that the slowest of the latest ones took: as long again, and this.
const LEAD_TIME_MARGIN: Duration = Duration::from_millis(200);

/// Bytes and ages of what is not in the store.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct UnsentStatus {
    pub(crate) bytes: u64,
    pub(crate) oldest_age: Option<Duration>,
    pub(crate) closed_age: Option<Duration>,
}

impl Unsent {
    pub(crate) fn new(rpo: Duration) -> Self {
        Self {
            rpo,
            waiting: VecDeque::new(),
            waiting_bytes: 0,
            missed: 0,
            closed_bytes: 0,
            replayed_through: None,
            slowest: Duration::ZERO,
        }
    }

    /// All that waits now was acknowledged by an earlier opening.
    pub(crate) fn on_replayed(&mut self) {
        self.replayed_through = self.waiting.back().map(|waiting| waiting.last);
    }

    pub(crate) fn on_close(&mut self, batch: &Batch) {
        self.closed_bytes += batch.payload_bytes;
        self.waiting_bytes += batch.payload_bytes;
        self.waiting.push_back(Waiting {
            last: batch.last,
            bytes: batch.payload_bytes,
            opened_at: batch.opened_at,
            closed_at: Instant::now(),
        });
    }

    /// Only the first part of a closed batch is sent; the rest stays unsent, and is a batch of its own.
    pub(crate) fn on_cut(&mut self, part: &Batch) {
        let Some(index) = self.waiting.iter().position(|waiting| waiting.last > part.last) else {
            return;
        };
        let whole = &mut self.waiting[index];
        let rest = whole.bytes.saturating_sub(part.payload_bytes);
        self.waiting_bytes = self.waiting_bytes - whole.bytes + rest + part.payload_bytes;
        whole.bytes = rest;
        let (opened_at, closed_at) = (whole.opened_at, whole.closed_at);
        let waiting = Waiting { last: part.last, bytes: part.payload_bytes, opened_at, closed_at };
        self.waiting.insert(index, waiting);
    }

    pub(crate) fn on_commit(&mut self, committed: WriteMark) {
        while let Some(waiting) = self.waiting.pop_front_if(|waiting| waiting.last <= committed) {
            self.waiting_bytes -= waiting.bytes;
            // A slow one counts for the next dozen or two.
            self.slowest = waiting.closed_at.elapsed().max(self.slowest * 9 / 10);
            let since = match weir_device::mutant("rpo_counted_from_close") {
                true => waiting.closed_at,
                false => waiting.opened_at,
            };
            self.missed += u64::from(since.elapsed() > self.rpo);
        }
    }

    /// Bytes of all batches that were ever closed.
    pub(crate) fn closed_bytes(&self) -> u64 {
        self.closed_bytes
    }

    /// Batches that came into the store later than the rpo.
    pub(crate) fn missed(&self) -> u64 {
        self.missed
    }

    /// Whether the oldest closed batch on its way is of an earlier opening: it may be of any age.
    pub(crate) fn is_age_unknown(&self) -> bool {
        let oldest = self.waiting.front();
        oldest.is_some_and(|oldest| Some(oldest.last) <= self.replayed_through)
    }

    /// How long before it is to be in the store a batch should be closed.
    pub(crate) fn lead_time(&self) -> Duration {
        self.slowest * 2 + LEAD_TIME_MARGIN
    }

    /// Age of the oldest write of a closed batch on its way.
    pub(crate) fn closed_oldest_age(&self) -> Option<Duration> {
        self.waiting.front().map(|waiting| waiting.opened_at.elapsed())
    }

    /// Bytes of closed batches that are not in the committed prefix.
    pub(crate) fn waiting_bytes(&self) -> u64 {
        self.waiting_bytes
    }

    pub(crate) fn status(&self, open: Option<&Batch>) -> UnsentStatus {
        let closed = self.waiting.front();
        let oldest = closed.map(|waiting| waiting.opened_at);
        UnsentStatus {
            bytes: self.waiting_bytes() + open.map_or(0, |batch| batch.payload_bytes),
            oldest_age: oldest.or(open.map(|batch| batch.opened_at)).map(|at| at.elapsed()),
            closed_age: closed.map(|waiting| waiting.closed_at.elapsed()),
        }
    }
}

#[cfg(test)]
mod tests {
    use weir_journal::{Epoch, JournalPos, PieceKind, PlacedPiece, RecordSeq, WriteNumber};

    use super::*;

    fn batch(write: u64) -> Batch {
        let piece = PlacedPiece {
            epoch: Epoch(1),
            record: RecordSeq(write),
            write: WriteNumber(write),
            offset: 0,
            len: 100,
            kind: PieceKind::Data,
            position: JournalPos(0),
        };
        Batch::begin(&piece, piece.write, 1000)
    }

    #[tokio::test(start_paused = true)]
    async fn bytes_and_ages_last_until_the_commit() {
        let mut unsent = Unsent::new(Duration::from_secs(60));
        assert_eq!(unsent.status(None), UnsentStatus::default());
        let first = batch(1);
        tokio::time::advance(Duration::from_secs(3)).await;
        unsent.on_close(&first);
        tokio::time::advance(Duration::from_secs(2)).await;
        let second = batch(2);
        let status = unsent.status(Some(&second));
        assert_eq!(status.bytes, 200);
        assert_eq!(status.oldest_age, Some(Duration::from_secs(5)));
        assert_eq!(status.closed_age, Some(Duration::from_secs(2)));
        unsent.on_commit(first.last);
        let status = unsent.status(Some(&second));
        assert_eq!((status.bytes, status.oldest_age), (100, Some(Duration::ZERO)));
        assert_eq!(status.closed_age, None);
    }

    #[tokio::test(start_paused = true)]
    async fn the_parts_of_a_batch_have_its_bytes() {
        let mut unsent = Unsent::new(Duration::from_secs(60));
        let mut whole = batch(3);
        whole.payload_bytes = 300;
        unsent.on_close(&whole);
        let part = batch(1);
        unsent.on_cut(&part);
        assert_eq!(unsent.waiting_bytes(), 300);
        unsent.on_commit(part.last);
        assert_eq!(unsent.waiting_bytes(), 200);
        unsent.on_commit(whole.last);
        assert_eq!(unsent.waiting_bytes(), 0);
    }

    #[tokio::test(start_paused = true)]
    async fn a_batch_that_comes_later_than_the_rpo_counts_as_missed() {
        let mut unsent = Unsent::new(Duration::from_secs(10));
        let (first, second) = (batch(1), batch(2));
        tokio::time::advance(Duration::from_secs(10)).await;
        unsent.on_close(&first);
        unsent.on_commit(first.last);
        assert_eq!(unsent.missed(), 0, "just in time");
        unsent.on_close(&second);
        tokio::time::advance(Duration::from_millis(1)).await;
        assert_eq!(unsent.missed(), 0, "it is not there yet");
        unsent.on_commit(second.last);
        assert_eq!(unsent.missed(), 1);
    }

    #[tokio::test(start_paused = true)]
    async fn the_age_of_what_was_replayed_is_unknown_until_it_is_in_the_store() {
        let mut unsent = Unsent::new(Duration::from_secs(10));
        unsent.on_replayed();
        assert!(!unsent.is_age_unknown(), "nothing was");
        let (replayed, new) = (batch(1), batch(2));
        unsent.on_close(&replayed);
        unsent.on_replayed();
        unsent.on_close(&new);
        assert!(unsent.is_age_unknown());
        unsent.on_commit(replayed.last);
        assert!(!unsent.is_age_unknown());
    }
}
