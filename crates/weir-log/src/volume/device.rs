//! The device that an open log volume is: every operation of the contract, as a call on its parts.
//!
//! A write goes `LogVolume::call` -> `append_all` -> `Journal::append` -> (record on disk) -> `Sink::on_durable`
//! (this room's head file) -> acknowledgement.

use std::rc::Rc;
use std::task::{Context, Poll};

use smallvec::SmallVec;
use weir_device::{
    Body, Change, Device, DeviceError, DeviceInfo, Event, Extent, FlushScope, IoHeader, Lease,
    Leases, Operation, Reply,
};
use weir_journal::Payload;

use crate::error::LogError;
use crate::volume::LogVolume;
use crate::volume::reads;
use crate::volume::shared::{Shared, State};

/// A change of a range, as the journal takes it.
type Piece = (u64, Payload, u64);

/// A write that was taken and is not answered yet.
struct AppendCount<'a>(&'a Shared);

impl<'a> AppendCount<'a> {
    fn new(shared: &'a Shared) -> Self {
        shared.appends.set(shared.appends.get() + 1);
        Self(shared)
    }
}

impl Drop for AppendCount<'_> {
    fn drop(&mut self) {
        self.0.appends.set(self.0.appends.get() - 1);
        if self.0.closing.get() || self.0.frozen.get() || self.0.held.get() {
            self.0.progress.notify_waiters();
        }
    }
}

impl LogVolume {
    /// Takes changes into the journal, all of them before anything is waited for: they go into as few records as fit,
    /// and one group commit makes them durable where it can.
    async fn append_all(
        &self,
        pieces: impl IntoIterator<Item = Piece>,
        fua: bool,
    ) -> Result<(), DeviceError> {
        let shared = &*self.shared;
        shared.check_failure()?;
        shared.check_owned()?;
        shared.check_not_closing()?;
        while shared.held.get() {
            let is_free = |_: &mut State| (!shared.held.get()).then_some(Ok(()));
            shared.wait_while_open(is_free).await?;
            shared.check_not_closing()?;
        }
        let _counted = AppendCount::new(shared);
        let mut pieces = pieces.into_iter().filter(|(.., len)| *len > 0).peekable();
        if pieces.peek().is_some() {
            shared.throttle().await;
            shared.check_not_closing()?;
            let append = |(offset, payload, len)| shared.journal.append(offset, payload, len);
            // A single write takes no memory here.
            let appended: SmallVec<[_; 1]> = pieces.map(append).collect();
            for append in appended {
                if let Err(error) = append.await {
                    // A volume that failed refuses what waits in its journal: the failure is the reason, not the
                    // refusal.
                    shared.check_failure()?;
                    return Err(LogError::Journal(error).into());
                }
            }
        }
        if fua {
            shared.flush_journal().await?;
        }
        // V3: a volume that was fenced meanwhile acknowledges nothing.
        shared.check_failure()
    }

    /// The bytes of a range are lost: it reads as an error until it is written again.
    pub(crate) async fn poison(&self, offset: u64, len: u64) -> Result<(), DeviceError> {
        self.append_all([(offset, Payload::Poison, len)], false).await
    }

    async fn flush(&self, scope: FlushScope) -> Result<(), DeviceError> {
        match scope {
            FlushScope::Store => self.flush_remote().await,
            FlushScope::Local => {
                self.shared.check_failure()?;
                self.shared.flush_journal().await?;
                self.shared.check_failure()
            }
        }
    }

    fn extents(&self, offset: u64, len: u64, max: usize) -> Result<Vec<Extent>, DeviceError> {
        self.shared.check_owned()?;
        if weir_device::mutant("extents_all_data") {
            return Ok(vec![Extent { len, state: weir_device::ExtentState::Data }]);
        }
        let state = self.shared.state.borrow();
        Ok(crate::read::extents(&state.writes.overlay, &state.head.objects, offset, len, max))
    }

    async fn body_of(&self, operation: Operation) -> Result<Body, DeviceError> {
        match operation {
            Operation::Read { offset, len } => {
                return reads::read(&self.shared, offset, len).await.map(Body::Data);
            }
            Operation::Extents { offset, len, extents_max } => {
                return self.extents(offset, len, extents_max).map(Body::Extents);
            }
            Operation::Write { offset, data, fua } => {
                let len = data.len() as u64;
                self.append_all([(offset, Payload::Data(data), len)], fua).await?;
            }
            Operation::WriteZeroes { offset, len, flags } => {
                let payload = if flags.no_hole { Payload::Zero } else { Payload::Discard };
                let fua = flags.fua && !weir_device::mutant("fua_ignored_on_zeroes");
                self.append_all([(offset, payload, len)], fua).await?;
            }
            Operation::Discard { offset, len } => {
                self.append_all([(offset, Payload::Discard, len)], false).await?;
            }
            Operation::Batch { segments, fua } => {
                let pieces = segments.into_iter().map(|segment| {
                    let (offset, len) = (segment.offset, segment.len());
                    match segment.change {
                        Change::Data(data) => (offset, Payload::Data(data), len),
                        Change::Zeroes(_) => (offset, Payload::Zero, len),
                        Change::Discard(_) => (offset, Payload::Discard, len),
                    }
                });
                self.append_all(pieces, fua).await?;
            }
            Operation::Flush(scope) => self.flush(scope).await?,
        }
        Ok(Body::Done)
    }
}

impl Device for LogVolume {
    fn info(&self) -> DeviceInfo {
        DeviceInfo::local(self.shared.state.borrow().size)
    }

    async fn call(&self, _io: IoHeader, operation: Operation) -> Result<Reply, DeviceError> {
        operation.check_bounds(self.info().size)?;
        // What the content was when the operation began: a rollback in the middle makes the reply one of before.
        let generation = self.shared.generation.get();
        let body = self.body_of(operation).await?;
        let leases = Leases::of(Rc::clone(&self.owned) as Rc<dyn Lease>);
        Ok(Reply { body, leases, generation })
    }

    fn poll_event(&self, cx: &mut Context<'_>) -> Poll<Event> {
        self.shared.events.poll(cx)
    }
}
