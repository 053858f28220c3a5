//! The trait that every endpoint and every stage implements, and its contract.

use std::future::Future;
use std::pin::Pin;
use std::rc::Rc;
use std::task::{Context, Poll};

use crate::{
    DeviceError, Event, Extent, FlushScope, IoHeader, Operation, Reply, SharedBuf, WriteZeroesFlags,
};

/// A future that stays on the volume's thread.
pub type LocalBoxFuture<'a, T> = Pin<Box<dyn Future<Output = T> + 'a>>;

/// What a device is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DeviceInfo {
    /// Size in bytes. May change while the device is open: an event says so.
    pub size: u64,
    /// Bytes below which its medium cannot address. Every length is legal all the same (rule 3).
    pub block_bytes_min: u32,
    /// Bytes of an access that costs it least.
    pub block_bytes_preferred: u32,
    /// A random access costs a seek, or a round trip to another host.
    pub is_slow_to_seek: bool,
    /// Whether this is the only writer of what it shows.
    pub is_exclusive: bool,
    /// Whether it takes no writes at all.
    pub is_read_only: bool,
}

impl DeviceInfo {
    /// A device in memory or on a local SSD that one writer has.
    #[must_use]
    pub fn local(size: u64) -> Self {
        Self {
            size,
            block_bytes_min: 1,
            block_bytes_preferred: 4096,
            is_slow_to_seek: false,
            is_exclusive: true,
            is_read_only: false,
        }
    }
}

/// A byte-addressed device. Devices stack: a *stage* is a device over another, an *endpoint* stores.
///
/// # Contract
/// 1. After a write returns, every later read sees it. Overlapping calls in flight have no order.
/// 2. After a flush returns, every write that returned before the flush was issued survives power loss
///    ([`FlushScope::Local`]) or the loss of the host ([`FlushScope::Store`]). `fua` on a write is that write followed
///    by a local flush.
/// 3. Any offset and length within the size is legal. Nothing is rounded, and nothing is read to be rewritten unless
///    the endpoint's own medium forces it. A range beyond the size is [`ErrorKind::Invalid`](crate::ErrorKind), and
///    touches nothing.
/// 4. An error never lies: a failed write may or may not be visible, but it is never acknowledged. A device that can
///    no longer keep rule 2 (a failed `fsync`, say) refuses all further writes with
///    [`ErrorKind::Poisoned`](crate::ErrorKind).
/// 5. A call owns everything that it needs. Dropping its future at any moment is safe and loses the reply only: the
///    operation then runs to its end or, where it waited for its turn, not at all, and a later write to the same bytes
///    that returns is not undone by it. A write that crosses pages, bands or
///    rules is several writes: on an error any of them may be visible.
///
/// No call blocks the thread. Calls wait (they do not fail) while the device is short of space that it will get back by
/// itself, such as a full journal.
///
/// Calls are dispatched statically, so that a steady state makes no heap allocation; [`DynDevice`] is the object-safe
/// form of the same trait.
pub trait Device {
    /// What the device is. Cheap: asked for every request.
    fn info(&self) -> DeviceInfo;

    /// Runs an operation. A stage is one `match` over it, and hands on what it does not care for.
    fn call(
        &self,
        io: IoHeader,
        operation: Operation,
    ) -> impl Future<Output = Result<Reply, DeviceError>>;

    /// The next thing that happened to the device. A stage asks the device below, does what it must, and passes it on.
    /// One task asks at a time: the owner of the stack.
    fn poll_event(&self, _cx: &mut Context<'_>) -> Poll<Event> {
        Poll::Pending
    }
}

/// The object-safe form of [`Device`], for stacks that are put together at run time. Every call is one allocation.
pub trait DynDevice {
    /// [`Device::info`].
    fn dyn_info(&self) -> DeviceInfo;
    /// [`Device::call`].
    fn dyn_call(
        &self,
        io: IoHeader,
        operation: Operation,
    ) -> LocalBoxFuture<'_, Result<Reply, DeviceError>>;
    /// [`Device::poll_event`].
    fn dyn_poll_event(&self, cx: &mut Context<'_>) -> Poll<Event>;
}

impl<D: Device> DynDevice for D {
    fn dyn_info(&self) -> DeviceInfo {
        self.info()
    }
    fn dyn_call(
        &self,
        io: IoHeader,
        operation: Operation,
    ) -> LocalBoxFuture<'_, Result<Reply, DeviceError>> {
        Box::pin(self.call(io, operation))
    }
    fn dyn_poll_event(&self, cx: &mut Context<'_>) -> Poll<Event> {
        self.poll_event(cx)
    }
}

impl Device for Rc<dyn DynDevice> {
    fn info(&self) -> DeviceInfo {
        (**self).dyn_info()
    }
    fn call(
        &self,
        io: IoHeader,
        operation: Operation,
    ) -> impl Future<Output = Result<Reply, DeviceError>> {
        (**self).dyn_call(io, operation)
    }
    fn poll_event(&self, cx: &mut Context<'_>) -> Poll<Event> {
        (**self).dyn_poll_event(cx)
    }
}

/// Calls by name, for the inside of the process: they use what comes back at once, so the leases are checked here.
pub trait DeviceExt: Device {
    /// Size in bytes.
    fn size(&self) -> u64 {
        self.info().size
    }

    /// Runs an operation whose reply is used here and now.
    fn internal(&self, operation: Operation) -> impl Future<Output = Result<Reply, DeviceError>> {
        async move {
            let reply = self.call(IoHeader::internal(), operation).await?;
            reply.leases.check()?;
            Ok(reply)
        }
    }

    /// Fills `buf` with the bytes from `offset`.
    fn read(&self, offset: u64, buf: &mut [u8]) -> impl Future<Output = Result<(), DeviceError>> {
        async move {
            let len = buf.len() as u64;
            let reply = self.internal(Operation::Read { offset, len }).await?;
            reply.into_data()?.copy_to(buf);
            Ok(())
        }
    }

    /// Writes `data` at `offset`.
    fn write(&self, offset: u64, data: SharedBuf) -> impl Future<Output = Result<(), DeviceError>> {
        let write = Operation::Write { offset, data, fua: false };
        async move { self.internal(write).await.map(|_| ()) }
    }

    /// Makes a range read as zeroes.
    fn write_zeroes(
        &self,
        offset: u64,
        len: u64,
        flags: WriteZeroesFlags,
    ) -> impl Future<Output = Result<(), DeviceError>> {
        let zeroes = Operation::WriteZeroes { offset, len, flags };
        async move { self.internal(zeroes).await.map(|_| ()) }
    }

    /// Gives a range up.
    fn discard(&self, offset: u64, len: u64) -> impl Future<Output = Result<(), DeviceError>> {
        async move { self.internal(Operation::Discard { offset, len }).await.map(|_| ()) }
    }

    /// Rule 2.
    fn flush(&self, scope: FlushScope) -> impl Future<Output = Result<(), DeviceError>> {
        async move { self.internal(Operation::Flush(scope)).await.map(|_| ()) }
    }

    /// What a range holds, in at most `extents_max` extents.
    fn extents(
        &self,
        offset: u64,
        len: u64,
        extents_max: usize,
    ) -> impl Future<Output = Result<Vec<Extent>, DeviceError>> {
        async move {
            self.internal(Operation::Extents { offset, len, extents_max }).await?.into_extents()
        }
    }
}

impl<D: Device + ?Sized> DeviceExt for D {}
