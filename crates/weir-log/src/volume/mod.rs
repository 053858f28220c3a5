//! An open log volume: puts the rooms together, runs the tasks, and offers the verbs.
//!
//! The other rooms own their parts of the state and decide; here the parts meet, I/O is started, and whoever waits is
//! woken. No other room imports this one.
//!
//! A write goes `LogVolume::call` (`device`) -> `Journal::append` -> (record on disk) -> `Sink::on_durable` -> overlay
//! and batch -> acknowledgement; later `task::upload` makes the batch an object, and `task::commit` applies it to the
//! object map.
//!
//! Invariants
//!  V1. Writes enter the overlay and the batch in `State::take_durable` only, in the order of the journal.
//!  V2. The object map describes the committed prefix and nothing newer.
//!  V3. After a failure nothing more is acknowledged.
//!
//! Order of borrows: the volume's state first, then the journal, then the garbage. The journal borrows nothing of its
//! own while it calls `Sink`, so that `Sink` may borrow the state. Two drops borrow: a `weir_journal::Pin` the journal,
//! and a `ReadPin` the garbage. Both may be dropped while the state is borrowed.

mod device;
mod load;
mod lost;
mod ownership;
mod pressure;
mod reads;
mod shared;
mod task;
pub(crate) mod verb;

use std::fmt;
use std::rc::{Rc, Weak};

use weir_device::{DeviceError, LocalBoxFuture, VolumeId};
use weir_journal::{JournalPos, PieceKind, PlacedPiece, RecordSeq, RecordSink, WriteNumber};

use crate::volume::ownership::Owned;
use crate::volume::shared::{Shared, percent_full};
use task::upload::CLOSE_FROM_PERCENT;

/// Longest run of pieces that is taken in as one, in bytes: a batch ends between runs, and should not end far too late.
const RUN_BYTES_MAX: u64 = 256 << 10;

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
                    state.writes.close_full_batch(&shared.options.batch);
                }
                rest = behind;
            }
            wake |= state.writes.close_full_batch(&shared.options.batch);
            shared.press(&state);
        }
        let (used, capacity) = shared.journal.used_and_capacity();
        shared.hold.set_dirty(used);
        if wake || percent_full((used, capacity)) >= CLOSE_FROM_PERCENT {
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
                    state.writes.overlay.forget_step(start, end, from, budget)
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

    fn on_no_space(&self) {
        if let Some(shared) = self.0.upgrade() {
            // What is open is closed now: no further record may come that would wake anybody.
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
        shared.spawn(task::upload::run(Rc::clone(&shared)));
        shared.spawn(task::commit::run(Rc::clone(&shared)));
        shared.spawn(ownership::run(Rc::clone(&shared)));
        shared.spawn(task::delete::run(Rc::clone(&shared)));
        shared.spawn(task::collect::run(Rc::clone(&shared)));
        shared.spawn(task::references::run(Rc::clone(&shared)));
        if !shared.state.borrow().snapshots.listed.is_empty() {
            shared.spawn(task::pins::learn_pins(Rc::clone(&shared)));
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
        self.shared.state.borrow().head.objects.check_invariants();
    }
}

impl fmt::Debug for LogVolume {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "LogVolume({})", self.shared.id)
    }
}

impl Drop for LogVolume {
    fn drop(&mut self) {
        self.shared.stop();
        // Whoever drops a volume without closing it waits for nothing of it, so nothing may go on with its lock and
        // lease. Where it was closed, there are no tasks.
        if !weir_device::mutant("close_leaves_tasks") {
            self.shared.tasks.stop();
        }
    }
}

#[cfg(test)]
mod tests {
    use weir_journal::Epoch;

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
