//! The trait that every endpoint and every stage implements, and its contract.

use std::future::Future;
use std::pin::Pin;

use crate::{ByteRange, DeviceError, ErrorKind, IoHeader, SharedBuf};

/// A future that stays on the volume's thread.
pub type LocalBoxFuture<'a, T> = Pin<Box<dyn Future<Output = T> + 'a>>;

/// How a write is to be made.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct WriteFlags {
    /// Answer only when the write would survive power loss ("forced unit access"): the write followed by a flush.
    pub fua: bool,
}

/// How zeroes are to be written.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct WriteZeroesFlags {
    /// As in [`WriteFlags`].
    pub fua: bool,
    /// Keep the range provisioned: `extents` reports it as [`ExtentState::Zero`], not as a hole. A device that keeps
    /// space for nothing may report what is large as a hole all the same.
    pub no_hole: bool,
    /// Fail with [`ErrorKind::Unsupported`] rather than write zeroes slower than a discard would be.
    pub fast: bool,
}

/// What a range of a device holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum ExtentState {
    /// Bytes that were written.
    Data,
    /// Known to read as zeroes, provisioned.
    Zero,
    /// Never written or discarded; reads as zeroes.
    Hole,
}

/// A run of bytes in one state, as [`Device::extents`] reports it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Extent {
    /// Length in bytes.
    pub len: u64,
    /// What it holds.
    pub state: ExtentState,
}

/// One piece of a batched write.
#[derive(Clone, Debug)]
pub struct Segment {
    /// First byte on the device.
    pub offset: u64,
    /// What to write there.
    pub data: SharedBuf,
}

/// A byte-addressed device. Devices stack: a *stage* is a device over another, an *endpoint* stores.
///
/// # Contract
/// 1. After `write` returns, every later `read` sees it. Overlapping calls in flight have no order.
/// 2. After `flush` returns, every write that returned before the flush was issued survives power loss.
///    `fua` on a write is that write followed by a flush.
/// 3. Any offset and length within `size` is legal. Nothing is rounded, and nothing is read to be rewritten unless
///    the endpoint's own medium forces it. A range beyond `size` is [`ErrorKind::Invalid`], and touches nothing.
/// 4. An error never lies: a failed write may or may not be visible, but it is never acknowledged. A device that can
///    no longer keep rule 2 (a failed `fsync`, say) refuses all further writes with [`ErrorKind::Poisoned`].
/// 5. A started operation belongs to the device and runs to its end; dropping its future drops the reply only.
///    A write that crosses pages, bands or rules is several writes: on an error any of them may be visible.
///
/// Every call carries an [`IoHeader`] whose `offset` and `len` address the call; `len` of a read or a write equals its
/// buffer's length. No call blocks the thread. Calls wait (they do not fail) while the device is short of space that
/// it will get back by itself, such as a full journal.
///
/// The methods are dispatched statically, so that a steady state makes no heap allocation; [`DynDevice`] is the
/// object-safe form of the same trait.
pub trait Device {
    /// Size in bytes. May grow while the device is open.
    fn size(&self) -> u64;

    /// Fills `buf` with the bytes from `io.offset`.
    fn read(&self, io: IoHeader, buf: &mut [u8]) -> impl Future<Output = Result<(), DeviceError>>;

    /// Writes `data` at `io.offset`.
    fn write(
        &self,
        io: IoHeader,
        data: SharedBuf,
        flags: WriteFlags,
    ) -> impl Future<Output = Result<(), DeviceError>>;

    /// Writes many segments, in order. Not atomic. `io` spans from the first to the last byte addressed.
    fn write_batch(
        &self,
        io: IoHeader,
        segments: Vec<Segment>,
        flags: WriteFlags,
    ) -> impl Future<Output = Result<(), DeviceError>> {
        async move {
            let last = segments.len().saturating_sub(1);
            for (index, segment) in segments.into_iter().enumerate() {
                let io = io.with_range(segment.offset, segment.data.len() as u64);
                let flags = WriteFlags { fua: flags.fua && index == last };
                self.write(io, segment.data, flags).await?;
            }
            Ok(())
        }
    }

    /// Makes a range read as zeroes.
    fn write_zeroes(
        &self,
        io: IoHeader,
        flags: WriteZeroesFlags,
    ) -> impl Future<Output = Result<(), DeviceError>>;

    /// Gives a range up: it reads as zeroes and takes no space. Costs time by the extents it frees, not its length.
    fn discard(&self, io: IoHeader) -> impl Future<Output = Result<(), DeviceError>>;

    /// Rule 2. Covers every client of the device, not only the caller.
    fn flush(&self, io: IoHeader) -> impl Future<Output = Result<(), DeviceError>>;

    /// Reports what the range holds, as at most `extents_max` consecutive extents from `io.offset`. The reported
    /// length may fall short of the range, but is never zero for a non-empty one.
    fn extents(
        &self,
        io: IoHeader,
        extents_max: usize,
    ) -> impl Future<Output = Result<Vec<Extent>, DeviceError>>;

    /// Whether a reply may leave at this moment: asked when it is handed to the socket, after the call itself
    /// succeeded. An endpoint that may be superseded without knowing refuses with [`ErrorKind::Fenced`]; a stage asks
    /// the device below. Cheap, and does not block.
    fn check_reply(&self) -> Result<(), DeviceError> {
        Ok(())
    }

    /// The device below changed its size; a stage passes it on to what it keeps.
    fn on_resize(&self, _size: u64) {}

    /// Forget what is kept of a range without writing it back: the content below was replaced (a rollback).
    fn invalidate(&self, _range: ByteRange) {}
}

/// The object-safe form of [`Device`], for stacks that are put together at run time. Every call is one allocation.
pub trait DynDevice {
    /// [`Device::size`].
    fn dyn_size(&self) -> u64;
    /// [`Device::read`].
    fn dyn_read<'a>(
        &'a self,
        io: IoHeader,
        buf: &'a mut [u8],
    ) -> LocalBoxFuture<'a, Result<(), DeviceError>>;
    /// [`Device::write`].
    fn dyn_write(
        &self,
        io: IoHeader,
        data: SharedBuf,
        flags: WriteFlags,
    ) -> LocalBoxFuture<'_, Result<(), DeviceError>>;
    /// [`Device::write_batch`].
    fn dyn_write_batch(
        &self,
        io: IoHeader,
        segments: Vec<Segment>,
        flags: WriteFlags,
    ) -> LocalBoxFuture<'_, Result<(), DeviceError>>;
    /// [`Device::write_zeroes`].
    fn dyn_write_zeroes(
        &self,
        io: IoHeader,
        flags: WriteZeroesFlags,
    ) -> LocalBoxFuture<'_, Result<(), DeviceError>>;
    /// [`Device::discard`].
    fn dyn_discard(&self, io: IoHeader) -> LocalBoxFuture<'_, Result<(), DeviceError>>;
    /// [`Device::flush`].
    fn dyn_flush(&self, io: IoHeader) -> LocalBoxFuture<'_, Result<(), DeviceError>>;
    /// [`Device::extents`].
    fn dyn_extents(
        &self,
        io: IoHeader,
        extents_max: usize,
    ) -> LocalBoxFuture<'_, Result<Vec<Extent>, DeviceError>>;
    /// [`Device::check_reply`].
    fn dyn_check_reply(&self) -> Result<(), DeviceError>;
    /// [`Device::on_resize`].
    fn dyn_on_resize(&self, size: u64);
    /// [`Device::invalidate`].
    fn dyn_invalidate(&self, range: ByteRange);
}

impl<D: Device> DynDevice for D {
    fn dyn_size(&self) -> u64 {
        self.size()
    }
    fn dyn_read<'a>(
        &'a self,
        io: IoHeader,
        buf: &'a mut [u8],
    ) -> LocalBoxFuture<'a, Result<(), DeviceError>> {
        Box::pin(self.read(io, buf))
    }
    fn dyn_write(
        &self,
        io: IoHeader,
        data: SharedBuf,
        flags: WriteFlags,
    ) -> LocalBoxFuture<'_, Result<(), DeviceError>> {
        Box::pin(self.write(io, data, flags))
    }
    fn dyn_write_batch(
        &self,
        io: IoHeader,
        segments: Vec<Segment>,
        flags: WriteFlags,
    ) -> LocalBoxFuture<'_, Result<(), DeviceError>> {
        Box::pin(self.write_batch(io, segments, flags))
    }
    fn dyn_write_zeroes(
        &self,
        io: IoHeader,
        flags: WriteZeroesFlags,
    ) -> LocalBoxFuture<'_, Result<(), DeviceError>> {
        Box::pin(self.write_zeroes(io, flags))
    }
    fn dyn_discard(&self, io: IoHeader) -> LocalBoxFuture<'_, Result<(), DeviceError>> {
        Box::pin(self.discard(io))
    }
    fn dyn_flush(&self, io: IoHeader) -> LocalBoxFuture<'_, Result<(), DeviceError>> {
        Box::pin(self.flush(io))
    }
    fn dyn_extents(
        &self,
        io: IoHeader,
        extents_max: usize,
    ) -> LocalBoxFuture<'_, Result<Vec<Extent>, DeviceError>> {
        Box::pin(self.extents(io, extents_max))
    }
    fn dyn_check_reply(&self) -> Result<(), DeviceError> {
        self.check_reply()
    }
    fn dyn_on_resize(&self, size: u64) {
        self.on_resize(size);
    }
    fn dyn_invalidate(&self, range: ByteRange) {
        self.invalidate(range);
    }
}

/// The addressed range, if it lies within `size` (rule 3).
///
/// # Errors
/// [`ErrorKind::Invalid`] naming the range and the size.
pub fn check_bounds(io: &IoHeader, size: u64) -> Result<ByteRange, DeviceError> {
    match io.range() {
        Some(range) if range.end <= size => Ok(range),
        _ => Err(DeviceError::new(
            ErrorKind::Invalid,
            format!(
                "{:?} of {} bytes at {} goes past the end of the device ({size} bytes)",
                io.operation, io.len, io.offset
            ),
        )),
    }
}

#[cfg(test)]
mod tests {
    use std::cell::RefCell;

    use super::*;
    use crate::{Operation, SourceId, VolumeId};

    /// Keeps the writes that it is given, and takes nothing else.
    #[derive(Default)]
    struct Writes(RefCell<Vec<Written>>, RefCell<Vec<String>>);

    /// Offset and length of the header, the bytes, and whether they are to be durable.
    type Written = (u64, u64, Vec<u8>, bool);

    impl Device for Writes {
        fn size(&self) -> u64 {
            1 << 20
        }
        async fn read(&self, _: IoHeader, _: &mut [u8]) -> Result<(), DeviceError> {
            unreachable!("nobody reads")
        }
        async fn write(
            &self,
            io: IoHeader,
            data: SharedBuf,
            flags: WriteFlags,
        ) -> Result<(), DeviceError> {
            self.0.borrow_mut().push((io.offset, io.len, data.to_vec(), flags.fua));
            Ok(())
        }
        async fn write_zeroes(&self, _: IoHeader, _: WriteZeroesFlags) -> Result<(), DeviceError> {
            unreachable!("nobody zeroes")
        }
        async fn discard(&self, _: IoHeader) -> Result<(), DeviceError> {
            unreachable!("nobody discards")
        }
        async fn flush(&self, _: IoHeader) -> Result<(), DeviceError> {
            unreachable!("nobody flushes")
        }
        async fn extents(&self, _: IoHeader, _: usize) -> Result<Vec<Extent>, DeviceError> {
            unreachable!("nobody asks")
        }
        fn check_reply(&self) -> Result<(), DeviceError> {
            Err(DeviceError::new(ErrorKind::Fenced, "superseded"))
        }
        fn on_resize(&self, size: u64) {
            self.1.borrow_mut().push(format!("{size} bytes"));
        }
        fn invalidate(&self, range: ByteRange) {
            self.1.borrow_mut().push(format!("{}..{}", range.start, range.end));
        }
    }

    #[test]
    fn what_is_told_to_a_stack_reaches_the_device() {
        let device = Writes::default();
        let stack: &dyn DynDevice = &device;
        assert_eq!(stack.dyn_check_reply().expect_err("fenced").kind(), ErrorKind::Fenced);
        stack.dyn_on_resize(7);
        stack.dyn_invalidate(ByteRange { start: 3, end: 5 });
        assert_eq!(*device.1.borrow(), ["7 bytes", "3..5"]);
    }

    #[tokio::test]
    async fn a_batch_is_written_in_order_and_its_last_write_makes_all_of_it_durable() {
        for fua in [false, true] {
            let device = Writes::default();
            let segments = [(10, b"ab".as_slice()), (50, b"c"), (20, b"def")];
            let io = IoHeader {
                source: SourceId(1),
                operation: Operation::Write,
                volume: VolumeId([0; 16]),
                offset: 10,
                len: 41,
            };
            let batch = segments
                .iter()
                .map(|(offset, data)| Segment { offset: *offset, data: SharedBuf::copy_of(data) });
            device.write_batch(io, batch.collect(), WriteFlags { fua }).await.unwrap();
            let expected = [
                (10, 2, b"ab".to_vec(), false),
                (50, 1, b"c".to_vec(), false),
                (20, 3, b"def".to_vec(), fua),
            ];
            assert_eq!(*device.0.borrow(), expected);
        }
    }
}
