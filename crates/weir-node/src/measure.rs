//! How many operations a volume served, how long they took, and how many failed.
//!
//! Plain cells on the volume's thread: counting takes no lock and allocates nothing. Other threads get a copy by
//! message.

use std::cell::Cell;
use std::future::Future;
use std::rc::Rc;

use tokio::time::Instant;
use weir_device::{
    ByteRange, Device, DeviceError, Extent, IoHeader, Segment, SharedBuf, WriteFlags,
    WriteZeroesFlags,
};

use crate::endpoint::Endpoint;

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
    /// All of them, in the order of [`Measured::operations`].
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
struct Counters {
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

/// Counts what passes through to an endpoint.
#[derive(Debug)]
pub struct Measured<D = Endpoint> {
    endpoint: D,
    counters: [Counters; 4],
}

impl<D: Device> Measured<D> {
    /// Counts from zero.
    #[must_use]
    pub fn new(endpoint: D) -> Rc<Self> {
        Rc::new(Self { endpoint, counters: Default::default() })
    }

    /// What is below.
    #[must_use]
    pub fn endpoint(&self) -> &D {
        &self.endpoint
    }

    /// A copy of the counters, in the order of [`Kind::ALL`].
    #[must_use]
    pub fn operations(&self) -> [Counted; 4] {
        std::array::from_fn(|kind| {
            let counters = &self.counters[kind];
            Counted {
                bytes: counters.bytes.get(),
                errors: counters.errors.get(),
                nanoseconds: counters.nanoseconds.get(),
                buckets: std::array::from_fn(|bucket| counters.buckets[bucket].get()),
            }
        })
    }

    async fn count<T>(
        &self,
        kind: Kind,
        bytes: u64,
        operation: impl Future<Output = Result<T, DeviceError>>,
    ) -> Result<T, DeviceError> {
        let begun = Instant::now();
        let result = operation.await;
        self.note(kind, bytes, begun.elapsed().as_nanos(), result.is_ok());
        result
    }

    fn note(&self, kind: Kind, bytes: u64, nanoseconds: u128, is_ok: bool) {
        let counters = &self.counters[kind as usize];
        let nanoseconds = u64::try_from(nanoseconds).unwrap_or(u64::MAX);
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

impl<D: Device> Device for Measured<D> {
    fn size(&self) -> u64 {
        self.endpoint.size()
    }

    async fn read(&self, io: IoHeader, buf: &mut [u8]) -> Result<(), DeviceError> {
        self.count(Kind::Read, io.len, self.endpoint.read(io, buf)).await
    }

    async fn write(
        &self,
        io: IoHeader,
        data: SharedBuf,
        flags: WriteFlags,
    ) -> Result<(), DeviceError> {
        self.count(Kind::Write, io.len, self.endpoint.write(io, data, flags)).await
    }

    async fn write_batch(
        &self,
        io: IoHeader,
        segments: Vec<Segment>,
        flags: WriteFlags,
    ) -> Result<(), DeviceError> {
        let bytes = segments.iter().map(|segment| segment.data.len() as u64).sum();
        self.count(Kind::Write, bytes, self.endpoint.write_batch(io, segments, flags)).await
    }

    async fn write_zeroes(&self, io: IoHeader, flags: WriteZeroesFlags) -> Result<(), DeviceError> {
        self.count(Kind::Discard, io.len, self.endpoint.write_zeroes(io, flags)).await
    }

    async fn discard(&self, io: IoHeader) -> Result<(), DeviceError> {
        self.count(Kind::Discard, io.len, self.endpoint.discard(io)).await
    }

    async fn flush(&self, io: IoHeader) -> Result<(), DeviceError> {
        self.count(Kind::Flush, 0, self.endpoint.flush(io)).await
    }

    async fn extents(&self, io: IoHeader, extents_max: usize) -> Result<Vec<Extent>, DeviceError> {
        self.endpoint.extents(io, extents_max).await
    }

    fn check_reply(&self) -> Result<(), DeviceError> {
        self.endpoint.check_reply()
    }

    fn on_resize(&self, size: u64) {
        self.endpoint.on_resize(size);
    }

    fn invalidate(&self, range: ByteRange) {
        self.endpoint.invalidate(range);
    }
}

#[cfg(test)]
mod tests {
    use weir_device::{ErrorKind, MemoryDevice, Operation};

    use super::*;

    fn memory() -> Rc<Measured> {
        Measured::new(Endpoint::Memory(Rc::new(MemoryDevice::new(300_001))))
    }

    #[tokio::test]
    async fn a_measured_device_conforms() {
        for seed in 0..3 {
            weir_device::conformance::run(&*memory(), seed, 200).await;
        }
    }

    #[tokio::test]
    async fn operations_bytes_and_errors_are_counted_by_kind() {
        let device = memory();
        let mut buf = [0; 100];
        let io = |operation, offset| IoHeader::internal(operation, offset, 100);
        device.read(io(Operation::Read, 0), &mut buf).await.unwrap();
        device.read(io(Operation::Read, 300_000), &mut buf).await.unwrap_err();
        device.discard(io(Operation::Discard, 0)).await.unwrap();
        let [read, write, discard, flush] = device.operations();
        assert_eq!((read.count(), read.bytes, read.errors), (2, 100, 1));
        assert_eq!((discard.count(), discard.bytes, discard.errors), (1, 100, 0));
        assert_eq!((write, flush), (Counted::default(), Counted::default()));
    }

    /// Superseded between an operation and its reply.
    struct Superseded(MemoryDevice);

    impl Device for Superseded {
        fn size(&self) -> u64 {
            self.0.size()
        }
        async fn read(&self, io: IoHeader, buf: &mut [u8]) -> Result<(), DeviceError> {
            self.0.read(io, buf).await
        }
        async fn write(
            &self,
            io: IoHeader,
            data: SharedBuf,
            flags: WriteFlags,
        ) -> Result<(), DeviceError> {
            self.0.write(io, data, flags).await
        }
        async fn write_zeroes(
            &self,
            io: IoHeader,
            flags: WriteZeroesFlags,
        ) -> Result<(), DeviceError> {
            self.0.write_zeroes(io, flags).await
        }
        async fn discard(&self, io: IoHeader) -> Result<(), DeviceError> {
            self.0.discard(io).await
        }
        async fn flush(&self, io: IoHeader) -> Result<(), DeviceError> {
            self.0.flush(io).await
        }
        async fn extents(&self, io: IoHeader, max: usize) -> Result<Vec<Extent>, DeviceError> {
            self.0.extents(io, max).await
        }
        fn check_reply(&self) -> Result<(), DeviceError> {
            Err(DeviceError::new(ErrorKind::Fenced, "superseded"))
        }
    }

    #[test]
    fn no_reply_leaves_once_the_device_below_was_superseded() {
        let device = Measured::new(Superseded(MemoryDevice::new(1)));
        assert_eq!(device.check_reply().unwrap_err().kind(), ErrorKind::Fenced);
        memory().check_reply().unwrap();
    }

    #[test]
    fn a_time_falls_into_the_bucket_that_it_does_not_exceed() {
        let device = memory();
        for (nanoseconds, bucket) in [(0, 0), (20_000, 0), (20_001, 1), (30_000_000_001, BUCKETS)] {
            let before = device.operations()[0].buckets[bucket];
            device.note(Kind::Read, 0, nanoseconds, true);
            assert_eq!(device.operations()[0].buckets[bucket], before + 1, "{nanoseconds}");
        }
    }
}
