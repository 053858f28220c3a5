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
#[derive(Debug, Default)]
pub(crate) struct Unsent {
    waiting: VecDeque<Waiting>,
    /// How long the slowest of the latest batches was on its way, from its close to its commit.
    slowest: Duration,
}

/// What a batch is given for its way beyond the time that the slowest of the latest ones took: as long again, and this.
const WAY_MARGIN: Duration = Duration::from_millis(200);

/// Bytes and ages of what is not in the store.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct UnsentStatus {
    pub(crate) bytes: u64,
    pub(crate) oldest_age: Option<Duration>,
    pub(crate) closed_age: Option<Duration>,
}

impl Unsent {
    pub(crate) fn on_close(&mut self, batch: &Batch) {
        self.waiting.push_back(Waiting {
            last: batch.last,
            bytes: batch.payload_bytes,
            opened_at: batch.opened_at,
            closed_at: Instant::now(),
        });
    }

    /// Of a closed batch, the newest but for those behind it, only a part is on its way: the other part stays unsent.
    pub(crate) fn on_cut(&mut self, part: &Batch) {
        let Some(index) = self.waiting.iter().position(|waiting| waiting.last > part.last) else {
            return;
        };
        let whole = &mut self.waiting[index];
        whole.bytes = whole.bytes.saturating_sub(part.payload_bytes);
        let (opened_at, closed_at) = (whole.opened_at, whole.closed_at);
        let waiting = Waiting { last: part.last, bytes: part.payload_bytes, opened_at, closed_at };
        self.waiting.insert(index, waiting);
    }

    pub(crate) fn on_commit(&mut self, committed: WriteMark) {
        while let Some(waiting) = self.waiting.pop_front_if(|waiting| waiting.last <= committed) {
            // A slow one counts for the next dozen or two.
            self.slowest = waiting.closed_at.elapsed().max(self.slowest * 9 / 10);
        }
    }

    /// How long before it is to be in the store a batch should be closed.
    pub(crate) fn way(&self) -> Duration {
        self.slowest * 2 + WAY_MARGIN
    }

    /// Age of the oldest write of a closed batch on its way.
    pub(crate) fn closed_oldest_age(&self) -> Option<Duration> {
        self.waiting.front().map(|waiting| waiting.opened_at.elapsed())
    }

    pub(crate) fn status(&self, open: Option<&Batch>) -> UnsentStatus {
        let closed = self.waiting.front();
        let oldest = closed.map(|waiting| waiting.opened_at);
        let bytes = self.waiting.iter().map(|waiting| waiting.bytes).sum::<u64>();
        UnsentStatus {
            bytes: bytes + open.map_or(0, |batch| batch.payload_bytes),
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
        let mut unsent = Unsent::default();
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
}
