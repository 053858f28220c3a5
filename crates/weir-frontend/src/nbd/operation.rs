//! One command as calls on the device.

use std::rc::Rc;

use weir_device::{
    AlignedBuf, BufferPool, Device, DeviceError, ErrorKind, History, IoHeader, Operation,
    SharedBuf, SourceId, VolumeId, WriteFlags, WriteZeroesFlags,
};
use weir_nbd::limits::EXTENTS_MAX;
use weir_nbd::{ChosenContext, Command, Context, ContextStatus, ExtentStatus};

use super::status::{Mixed, in_blocks};

/// Most bytes that one `CACHE` request reads ahead. The protocol leaves the amount to the server; a client that wants a
/// whole volume warm asks in pieces.
const CACHE_BYTES_MAX: u64 = 32 << 20;

/// Bytes per read of a `CACHE` request: large enough to be cheap, small enough to be forgotten.
pub(super) const CACHE_PIECE_BYTES: u64 = 256 << 10;

/// What the operations of one connection share.
pub(super) struct Target<D> {
    pub(super) device: Rc<D>,
    pub(super) source: SourceId,
    pub(super) volume: VolumeId,
    pub(super) pool: BufferPool,
    pub(super) history: Option<Rc<dyn History>>,
    /// What block status is told in.
    pub(super) contexts: Vec<ChosenContext>,
}

/// What a command that succeeded sends back.
pub(super) enum Answer {
    Done,
    Data(AlignedBuf),
    /// Block status in each context, none of them empty.
    Status(Vec<ContextStatus>),
}

fn buffer_len(bytes: u64) -> usize {
    usize::try_from(bytes).expect("payloads are bounded far below the address space")
}

impl<D: Device> Target<D> {
    fn io(&self, operation: Operation, offset: u64, len: u64) -> IoHeader {
        IoHeader { source: self.source, operation, volume: self.volume, offset, len }
    }

    async fn flush(&self) -> Result<(), DeviceError> {
        self.device.flush(self.io(Operation::Flush, 0, 0)).await
    }

    async fn read(&self, offset: u64, len: u64) -> Result<AlignedBuf, DeviceError> {
        let mut buf = self.pool.alloc(buffer_len(len));
        self.device.read(self.io(Operation::Read, offset, len), &mut buf).await?;
        Ok(buf)
    }

    /// Block status of a range in every context; an error in one is an error of all.
    async fn status(
        &self,
        offset: u64,
        length: u64,
        one: bool,
    ) -> Result<Vec<ContextStatus>, DeviceError> {
        let io = self.io(Operation::Extents, offset, length);
        // Together they keep to the limit of a reply.
        let each_max = if one { 1 } else { EXTENTS_MAX / self.contexts.len().max(1) };
        let mut statuses = Vec::with_capacity(self.contexts.len());
        for context in &self.contexts {
            let extents = self.status_in(&context.name, io, each_max).await?;
            let message = "the device reported no extents for a range that is not empty";
            let extents = extents.ok_or_else(|| DeviceError::new(ErrorKind::Bug, message))?;
            statuses.push(ContextStatus { context: context.id, extents });
        }
        Ok(statuses)
    }

    async fn status_in(
        &self,
        context: &str,
        io: IoHeader,
        extents_max: usize,
    ) -> Result<Option<Vec<ExtentStatus>>, DeviceError> {
        match (Context::of(context), &self.history) {
            (Some(Context::Allocation), _) => {
                let ask = async |io, most| self.device.extents(io, most).await;
                in_blocks(io, self.device.size(), extents_max, Mixed::Common, ask).await
            }
            (Some(Context::ChangedSince(state)), Some(history)) => {
                let ask = async |io, most| history.changed(state, io, most).await;
                in_blocks(io, self.device.size(), extents_max, Mixed::Any, ask).await
            }
            _ => {
                let message = format!("the export no longer tells {context}");
                Err(DeviceError::new(ErrorKind::NotFound, message))
            }
        }
    }

    /// Reads a range and throws it away, so that what caches on the way has it.
    async fn warm(&self, offset: u64, len: u64) -> Result<(), DeviceError> {
        let len = len.min(CACHE_BYTES_MAX);
        let mut done = 0;
        while done < len {
            let piece = CACHE_PIECE_BYTES.min(len - done);
            self.read(offset + done, piece).await?;
            done += piece;
        }
        Ok(())
    }
}

/// Runs one command to its end. `payload` is the data of a write, empty for everything else.
pub(super) async fn run<D: Device>(
    target: Rc<Target<D>>,
    command: Command,
    payload: SharedBuf,
) -> Result<Answer, DeviceError> {
    match command {
        Command::Read { offset, length, .. } => {
            target.read(offset, u64::from(length)).await.map(Answer::Data)
        }
        Command::Write { offset, length, fua } => {
            let io = target.io(Operation::Write, offset, u64::from(length));
            target.device.write(io, payload, WriteFlags { fua }).await.map(|()| Answer::Done)
        }
        Command::WriteZeroes { offset, length, fua, no_hole, fast } => {
            let io = target.io(Operation::WriteZeroes, offset, length);
            let flags = WriteZeroesFlags { fua, no_hole, fast };
            target.device.write_zeroes(io, flags).await.map(|()| Answer::Done)
        }
        Command::Trim { offset, length, fua } => {
            target.device.discard(target.io(Operation::Discard, offset, length)).await?;
            if fua {
                target.flush().await?;
            }
            Ok(Answer::Done)
        }
        Command::Flush => target.flush().await.map(|()| Answer::Done),
        Command::Cache { offset, length } => {
            target.warm(offset, length).await.map(|()| Answer::Done)
        }
        Command::BlockStatus { offset, length, one } => {
            target.status(offset, length, one).await.map(Answer::Status)
        }
    }
}
