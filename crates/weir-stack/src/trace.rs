//! Records the headers of operations, for `weir trace sim`: when, what, where, how long. Never the bytes.
//!
//! Invariants
//!  T1. No operation waits for the sink, or fails because of it. What does not fit in the buffer is left out.
//!  T2. What is left out is counted, and the trace says in a comment how much is missing at that place.

use std::cell::{Cell, RefCell};
use std::fmt;
use std::rc::Rc;
use std::task::{Context, Poll};
use std::time::Duration;

use tokio::sync::Notify;
use weir_device::{
    Device, DeviceError, DeviceInfo, Env, Event, IoHeader, LocalBoxFuture, Operation, Reply,
    mutant, with_causes,
};
use weir_trace::{Op, Request};

use crate::layer::Stage;
use crate::measured::Kind;
use crate::status::StageStatus;

/// Bytes of records that wait for the sink at most, some 6,000 records.
const BUFFER_BYTES: usize = 256 << 10;

/// Longest record: the label of at most 255 bytes, three numbers, an operation, commas.
const RECORD_BYTES_MAX: usize = 384;

/// Records are gathered for so long before they are written.
const GATHER_TIME: Duration = Duration::from_millis(100);

/// Bytes of a trace unless told otherwise.
const TRACE_BYTES_DEFAULT: u64 = 1 << 30;

/// Where records go.
pub trait TraceSink {
    /// Appends whole lines. Where it fails, nothing of them may be left.
    fn append<'a>(&'a self, lines: &'a [u8]) -> LocalBoxFuture<'a, Result<(), DeviceError>>;
}

/// What is recorded, and where.
#[derive(Clone)]
pub struct TraceSpec {
    /// Where the records go.
    pub sink: Rc<dyn TraceSink>,
    /// What the trace calls the device: the name of the volume.
    pub label: String,
    /// The kinds that are recorded. Nothing is recorded of what reports extents.
    pub kinds: Vec<Kind>,
    /// Bytes after which nothing is recorded any more.
    pub bytes_max: u64,
}

impl TraceSpec {
    /// Everything, up to 1 GiB.
    #[must_use]
    pub fn new(sink: Rc<dyn TraceSink>, label: String) -> Self {
        Self { sink, label, kinds: Kind::ALL.to_vec(), bytes_max: TRACE_BYTES_DEFAULT }
    }
}

impl fmt::Debug for TraceSpec {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "TraceSpec({}, {:?})", self.label, self.kinds)
    }
}

/// How a trace does.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct TraceStatus {
    /// Requests that are in the trace.
    pub recorded: u64,
    /// Requests that are missing.
    pub dropped: u64,
    /// Whether the trace has reached its size.
    pub is_full: bool,
    /// What the last write to the sink failed with; nothing if it succeeded.
    pub error: Option<String>,
}

/// Records on their way to the sink.
pub struct TraceLog {
    spec: TraceSpec,
    env: Env,
    lines: RefCell<Vec<u8>>,
    /// Records in `lines`.
    pending: Cell<u64>,
    /// Requests that were left out since the last comment.
    unsaid: Cell<u64>,
    bytes: Cell<u64>,
    status: RefCell<TraceStatus>,
    work: Notify,
    is_writing: Cell<bool>,
    written: Notify,
    is_closed: Cell<bool>,
}

impl fmt::Debug for TraceLog {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "TraceLog({:?})", self.spec)
    }
}

fn add(cell: &Cell<u64>, more: u64) {
    cell.set(cell.get() + more);
}

impl TraceLog {
    /// Begins a trace: its heading goes to the sink with the first records.
    #[must_use]
    pub fn begin(env: &Env, spec: TraceSpec) -> Rc<Self> {
        let mut lines = Vec::with_capacity(BUFFER_BYTES);
        lines.extend_from_slice(weir_trace::CSV_HEADING.as_bytes());
        let log = Rc::new(Self {
            spec,
            env: env.clone(),
            lines: RefCell::new(lines),
            pending: Cell::new(0),
            unsaid: Cell::new(0),
            bytes: Cell::new(0),
            status: RefCell::default(),
            work: Notify::new(),
            is_writing: Cell::new(false),
            written: Notify::new(),
            is_closed: Cell::new(false),
        });
        let writer = Rc::clone(&log);
        env.spawn_local(async move { writer.write().await });
        log
    }

    /// How it does.
    #[must_use]
    pub fn status(&self) -> TraceStatus {
        self.status.borrow().clone()
    }

    /// One request.
    fn record(&self, op: Op, offset: u64, len: u64) {
        let time = self.env.clock.wall().as_micros();
        let time_us = u64::try_from(time).unwrap_or(u64::MAX);
        let mut lines = self.lines.borrow_mut();
        let is_full = self.bytes.get() + lines.len() as u64 >= self.spec.bytes_max;
        if is_full || self.is_closed.get() || lines.len() + RECORD_BYTES_MAX > BUFFER_BYTES {
            let mut status = self.status.borrow_mut();
            status.is_full |= is_full;
            status.dropped += 1;
            add(&self.unsaid, 1);
            return;
        }
        let request = Request { time_us, op, device: 0, offset, len };
        weir_trace::write_csv(&mut lines, &request, &self.spec.label);
        add(&self.pending, 1);
        drop(lines);
        self.work.notify_one();
    }

    fn record_all(&self, operation: &Operation) {
        let op = match Kind::of(operation.kind()) {
            Some(kind) if !self.spec.kinds.contains(&kind) => return,
            Some(Kind::Read) => Op::Read,
            Some(Kind::Write) => Op::Write,
            Some(Kind::Discard) => Op::Discard,
            Some(Kind::Flush) => Op::Flush,
            None => return,
        };
        if let Operation::Batch { segments, .. } = operation {
            for segment in segments {
                let op = match segment.change {
                    weir_device::Change::Data(_) => Op::Write,
                    _ => Op::Discard,
                };
                self.record(op, segment.offset, segment.len());
            }
            return;
        }
        let (offset, len) = operation.span();
        self.record(op, offset, len);
    }

    /// Writes what has gathered until the trace is closed.
    async fn write(&self) {
        let mut lines = Vec::with_capacity(BUFFER_BYTES);
        while !self.is_closed.get() || self.pending.get() > 0 {
            if !self.is_closed.get() {
                self.work.notified().await;
            }
            if !self.is_closed.get() {
                tokio::time::sleep(GATHER_TIME).await;
            }
            self.write_gathered(&mut lines).await;
        }
    }

    async fn write_gathered(&self, lines: &mut Vec<u8>) {
        self.is_writing.set(true);
        std::mem::swap(lines, &mut *self.lines.borrow_mut());
        let count = self.pending.take();
        let missing = self.unsaid.take();
        if missing > 0 {
            // T2: they came while these records were in the buffer, or were lost before them.
            lines.extend_from_slice(format!("# {missing} requests are missing\n").as_bytes());
        }
        let appended = match lines.is_empty() {
            true => Ok(()),
            false => self.spec.sink.append(lines).await,
        };
        let mut status = self.status.borrow_mut();
        match appended {
            Ok(()) => {
                add(&self.bytes, lines.len() as u64);
                status.recorded += count;
                status.error = None;
            }
            Err(error) => {
                status.dropped += count;
                if !mutant("trace_gap_unsaid") {
                    add(&self.unsaid, count + missing);
                }
                let text = with_causes(&error);
                if status.error.as_ref() != Some(&text) {
                    tracing::warn!(volume = self.spec.label, error = text, "the trace has gaps");
                }
                status.error = Some(text);
            }
        }
        drop(status);
        lines.clear();
        self.is_writing.set(false);
        self.written.notify_waiters();
    }

    /// Writes what is left. Nothing is recorded any more.
    async fn close(&self) {
        self.is_closed.set(true);
        self.work.notify_one();
        while self.is_writing.get() || self.pending.get() > 0 {
            self.written.notified().await;
        }
    }
}

/// Records what passes.
#[derive(Debug)]
pub struct Trace<D> {
    below: D,
    log: Rc<TraceLog>,
}

impl<D: Device> Trace<D> {
    /// A trace of what goes to a device.
    #[must_use]
    pub fn new(below: D, log: Rc<TraceLog>) -> Self {
        Self { below, log }
    }
}

impl<D> Drop for Trace<D> {
    fn drop(&mut self) {
        // The task that writes ends.
        self.log.is_closed.set(true);
        self.log.work.notify_one();
    }
}

impl<D: Device> Stage for Trace<D> {
    fn status(&self) -> StageStatus {
        StageStatus::Trace(self.log.status())
    }

    fn close(&self) -> LocalBoxFuture<'_, Result<(), DeviceError>> {
        Box::pin(async move {
            self.log.close().await;
            Ok(())
        })
    }
}

impl<D: Device> Device for Trace<D> {
    fn info(&self) -> DeviceInfo {
        self.below.info()
    }

    async fn call(&self, io: IoHeader, operation: Operation) -> Result<Reply, DeviceError> {
        self.log.record_all(&operation);
        self.below.call(io, operation).await
    }

    fn poll_event(&self, cx: &mut Context<'_>) -> Poll<Event> {
        self.below.poll_event(cx)
    }
}

#[cfg(test)]
mod tests;
