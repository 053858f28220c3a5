//! How many operations passed, how long they took, and how many failed: of a whole stack, and of each of its layers.
//!
//! Plain cells on the volume's thread: counting takes no lock and allocates nothing. Other threads get a copy by
//! message.

use std::cell::Cell;
use std::task::{Context, Poll};
use std::time::Duration;

use tokio::time::Instant;
use weir_device::{
    Device, DeviceError, DeviceInfo, Event, IoHeader, Operation, OperationKind, Reply,
};

/// Upper bounds of the latency buckets in microseconds; what takes longer is counted in one more.
pub const BUCKETS_US: [u64; BUCKETS] = [
    20, 50, 100, 200, 500, 1_000, 2_000, 5_000, 10_000, 20_000, 50_000, 100_000, 200_000, 500_000,
    1_000_000, 5_000_000, 30_000_000,
];
const BUCKETS: usize = 17;

/// What is counted apart.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// Reads.
    Read,
    /// Writes.
    Write,
    /// Discards and writes of zeroes.
    Discard,
    /// Flushes.
    Flush,
}

impl Kind {
    /// What an operation is counted as, if it is.
    #[must_use]
    pub fn of(operation: OperationKind) -> Option<Self> {
        match operation {
            OperationKind::Read => Some(Self::Read),
            OperationKind::Write | OperationKind::Batch => Some(Self::Write),
            OperationKind::WriteZeroes | OperationKind::Discard => Some(Self::Discard),
            OperationKind::Flush => Some(Self::Flush),
            OperationKind::Extents => None,
        }
    }

    /// All of them, in the order of [`Counters::copy`].
    pub const ALL: [Self; 4] = [Self::Read, Self::Write, Self::Discard, Self::Flush];

    /// As it stands in metrics and in the API.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Read => "read",
            Self::Write => "write",
            Self::Discard => "discard",
            Self::Flush => "flush",
        }
    }
}

/// The counters of one kind of operation.
#[derive(Debug, Default)]
struct OfKind {
    bytes: Cell<u64>,
    errors: Cell<u64>,
    nanoseconds: Cell<u64>,
    buckets: [Cell<u64>; BUCKETS + 1],
}

fn add(cell: &Cell<u64>, more: u64) {
    cell.set(cell.get().wrapping_add(more));
}

/// A copy of the counters of one kind of operation.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counted {
    /// Bytes read, written or given up by operations that succeeded.
    pub bytes: u64,
    /// Operations that failed.
    pub errors: u64,
    /// Time that all of them took together.
    pub nanoseconds: u64,
    /// Operations by the bucket of [`BUCKETS_US`] that they fall into; the last is for everything longer.
    pub buckets: [u64; BUCKETS + 1],
}

impl Counted {
    /// Operations, failed ones included.
    #[must_use]
    pub fn count(&self) -> u64 {
        self.buckets.iter().sum()
    }
}

/// Counters of all kinds of operations.
#[derive(Debug, Default)]
pub struct Counters([OfKind; 4]);

impl Counters {
    /// A copy, in the order of [`Kind::ALL`].
    #[must_use]
    pub fn copy(&self) -> [Counted; 4] {
        std::array::from_fn(|kind| {
            let counters = &self.0[kind];
            Counted {
                bytes: counters.bytes.get(),
                errors: counters.errors.get(),
                nanoseconds: counters.nanoseconds.get(),
                buckets: std::array::from_fn(|bucket| counters.buckets[bucket].get()),
            }
        })
    }

    /// Runs an operation and counts it.
    pub(crate) async fn count(
        &self,
        operation: Operation,
        run: impl AsyncFnOnce(Operation) -> Result<Reply, DeviceError>,
    ) -> Result<Reply, DeviceError> {
        let (kind, bytes) = (Kind::of(operation.kind()), operation.bytes());
        let begun = Instant::now();
        let result = run(operation).await;
        if let Some(kind) = kind {
            self.note(kind, bytes, begun.elapsed(), result.is_ok());
        }
        result
    }

    fn note(&self, kind: Kind, bytes: u64, took: Duration, is_ok: bool) {
        let counters = &self.0[kind as usize];
        let nanoseconds = u64::try_from(took.as_nanos()).unwrap_or(u64::MAX);
        // Bounds are inclusive, as Prometheus reads them.
        let bucket = BUCKETS_US.partition_point(|bound| bound * 1000 < nanoseconds);
        add(&counters.buckets[bucket], 1);
        add(&counters.nanoseconds, nanoseconds);
        if is_ok {
            add(&counters.bytes, bytes);
        } else {
            add(&counters.errors, 1);
        }
    }
}

/// A device whose calls are counted.
#[derive(Debug)]
pub struct Measured<D> {
    inner: D,
    counters: Counters,
}

impl<D: Device> Measured<D> {
    /// Counts from zero.
    #[must_use]
    pub fn new(inner: D) -> Self {
        Self { inner, counters: Counters::default() }
    }

    /// The device.
    #[must_use]
    pub fn inner(&self) -> &D {
        &self.inner
    }

    /// A copy of the counters, in the order of [`Kind::ALL`].
    #[must_use]
    pub fn operations(&self) -> [Counted; 4] {
        self.counters.copy()
    }
}

impl<D: Device> Device for Measured<D> {
    fn info(&self) -> DeviceInfo {
        self.inner.info()
    }

    async fn call(&self, io: IoHeader, operation: Operation) -> Result<Reply, DeviceError> {
        self.counters.count(operation, async |operation| self.inner.call(io, operation).await).await
    }

    fn poll_event(&self, cx: &mut Context<'_>) -> Poll<Event> {
        self.inner.poll_event(cx)
    }
}

#[cfg(test)]
mod tests {
    use std::rc::Rc;

    use weir_device::{
        Body, DeviceExt, ErrorKind, Events, FlushScope, Lease, Leases, MemoryDevice,
    };

    use super::*;

    fn memory() -> Measured<MemoryDevice> {
        Measured::new(MemoryDevice::new(300_001))
    }

    #[tokio::test]
    async fn a_measured_device_conforms() {
        for seed in 0..3 {
            weir_device::conformance::run(&memory(), seed, 200).await;
        }
    }

    #[tokio::test]
    async fn operations_bytes_and_errors_are_counted_by_kind() {
        let device = memory();
        let mut buf = [0; 100];
        device.read(0, &mut buf).await.unwrap();
        device.read(300_000, &mut buf).await.unwrap_err();
        device.discard(0, 100).await.unwrap();
        let [read, write, discard, flush] = device.operations();
        assert_eq!((read.count(), read.bytes, read.errors), (2, 100, 1));
        assert_eq!((discard.count(), discard.bytes, discard.errors), (1, 100, 0));
        assert_eq!((write, flush), (Counted::default(), Counted::default()));
    }

    /// Superseded between an operation and its reply, and says so.
    #[derive(Default)]
    struct Superseded(Events);

    impl Lease for Superseded {
        fn check(&self) -> Result<(), DeviceError> {
            Err(DeviceError::new(ErrorKind::Fenced, "superseded"))
        }
    }

    impl Device for Superseded {
        fn info(&self) -> DeviceInfo {
            DeviceInfo::local(1)
        }
        async fn call(&self, _: IoHeader, _: Operation) -> Result<Reply, DeviceError> {
            self.0.push(Event::Resized(7));
            let leases = Leases::of(Rc::new(Self::default()));
            Ok(Reply { leases, generation: 5, ..Reply::new(Body::Done) })
        }
        fn poll_event(&self, cx: &mut Context<'_>) -> Poll<Event> {
            self.0.poll(cx)
        }
    }

    #[tokio::test]
    async fn what_the_device_below_says_is_passed_on() {
        let device = Measured::new(Superseded::default());
        let flush = Operation::Flush(FlushScope::Local);
        let reply = device.call(IoHeader::internal(), flush).await.unwrap();
        assert_eq!(reply.leases.check().unwrap_err().kind(), ErrorKind::Fenced);
        assert_eq!(reply.generation, 5);
        let event = std::future::poll_fn(|cx| device.poll_event(cx)).await;
        assert!(matches!(event, Event::Resized(7)));
    }

    #[test]
    fn a_time_falls_into_the_bucket_that_it_does_not_exceed() {
        let device = memory();
        for (nanoseconds, bucket) in [(0, 0), (20_000, 0), (20_001, 1), (30_000_000_001, BUCKETS)] {
            let before = device.operations()[0].buckets[bucket];
            device.counters.note(Kind::Read, 0, Duration::from_nanos(nanoseconds), true);
            assert_eq!(device.operations()[0].buckets[bucket], before + 1, "{nanoseconds}");
        }
    }
}
