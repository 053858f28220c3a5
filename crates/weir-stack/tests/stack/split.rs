//! A stage that splits, delays, keeps what was read, forgets it when the content is replaced, and passes events on:
//! how little a stage is, and that it keeps the contract.

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::rc::Rc;
use std::task::{Context, Poll};
use std::time::Duration;

use weir_device::{
    Body, ByteRange, Data, Device, DeviceError, DeviceInfo, Event, IoHeader, Leases, Operation,
    RangeLock, RangeMode, Reply,
};
use weir_stack::{Below, Layer, Measured, Stage, StageSpec, StageStatus};

const PIECE: u64 = 7 << 10;

/// Pieces that were read, with what their replies depend on.
type Kept = BTreeMap<u64, (u64, Data, Leases)>;

pub(crate) struct Splitter {
    below: Below,
    kept: RefCell<Kept>,
    seen: Cell<u64>,
    lock: RangeLock,
    pub(crate) hits: Rc<Cell<u64>>,
}

pub(crate) fn splitter(hits: &Rc<Cell<u64>>) -> StageSpec {
    let hits = Rc::clone(hits);
    StageSpec::Other(Box::new(move |below| {
        let (kept, seen, lock) = Default::default();
        Rc::new(Measured::new(Splitter { below, kept, seen, lock, hits })) as Rc<dyn Layer>
    }))
}

/// The pieces of a range: where each begins and how long it is.
fn pieces(range: ByteRange) -> impl Iterator<Item = (u64, u64)> {
    let first = range.start / PIECE;
    (first..range.end.div_ceil(PIECE).max(first + 1)).map(move |piece| {
        let start = range.start.max(piece * PIECE);
        (start, range.end.min((piece + 1) * PIECE) - start)
    })
}

impl Splitter {
    async fn read(&self, io: IoHeader, range: ByteRange) -> Result<Reply, DeviceError> {
        let mut reply = Reply { generation: self.seen.get(), ..Reply::new(Body::Done) };
        let mut all = Data::default();
        for (offset, len) in pieces(range) {
            let kept = self.kept.borrow().get(&offset).filter(|kept| kept.0 == len).cloned();
            if let Some((_, data, leases)) = kept {
                self.hits.set(self.hits.get() + 1);
                reply.leases.join(&leases);
                all.append(data);
                continue;
            }
            tokio::time::sleep(Duration::from_micros(offset % 3)).await;
            let piece = self.below.call(io, Operation::Read { offset, len }).await?;
            reply.leases.join(&piece.leases);
            let (leases, generation) = (piece.leases.clone(), piece.generation);
            reply.generation = reply.generation.min(generation);
            let data = piece.into_data()?;
            // What is of another content fills nothing.
            if generation == self.seen.get() {
                self.kept.borrow_mut().insert(offset, (len, data.clone(), leases));
            }
            all.append(data);
        }
        Ok(Reply { body: Body::Data(all), ..reply })
    }

    fn forget(&self, range: ByteRange) {
        let mut kept = self.kept.borrow_mut();
        kept.retain(|at, (len, ..)| *at >= range.end || *at + *len <= range.start);
    }
}

impl Stage for Splitter {
    fn status(&self) -> StageStatus {
        StageStatus::Other("splitter")
    }
}

impl Device for Splitter {
    fn info(&self) -> DeviceInfo {
        self.below.info()
    }

    async fn call(&self, io: IoHeader, operation: Operation) -> Result<Reply, DeviceError> {
        let range = operation.check_bounds(self.info().size)?;
        if let Operation::Read { .. } = operation {
            let _held = self.lock.lock_under(range, RangeMode::Shared, io.lock)?.await;
            return self.read(io, range).await;
        }
        let _held = self.lock.lock_under(range, RangeMode::Exclusive, io.lock)?.await;
        self.forget(range);
        let Operation::Write { offset: start, data, fua } = operation else {
            return self.below.call(io, operation).await;
        };
        let mut last = Reply::new(Body::Done);
        for (offset, len) in pieces(range) {
            tokio::time::sleep(Duration::from_micros(offset % 3)).await;
            let to_usize = |n: u64| usize::try_from(n).expect("within the data");
            let data = data.slice(to_usize(offset - start), to_usize(len));
            let fua = fua && offset + len == range.end;
            last = self.below.call(io, Operation::Write { offset, data, fua }).await?;
        }
        Ok(last)
    }

    fn poll_event(&self, cx: &mut Context<'_>) -> Poll<Event> {
        let event = self.below.poll_event(cx);
        if let Poll::Ready(Event::ContentReplaced { generation }) = event {
            self.kept.borrow_mut().clear();
            self.seen.set(generation);
        }
        event
    }
}
