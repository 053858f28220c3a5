//! One command as calls on the device.

use std::rc::Rc;

use weir_device::{
    AlignedBuf, BufferPool, Device, DeviceError, Extent, IoHeader, Operation, SharedBuf, SourceId,
    VolumeId, WriteFlags, WriteZeroesFlags,
};
use weir_nbd::Command;
use weir_nbd::limits::EXTENTS_MAX;

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
}

/// What a command that succeeded sends back.
pub(super) enum Answer {
    Done,
    Data(AlignedBuf),
    Extents(Vec<Extent>),
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
        Command::Read { offset, length } => {
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
            let io = target.io(Operation::Extents, offset, length);
            let extents_max = if one { 1 } else { EXTENTS_MAX };
            target.device.extents(io, extents_max).await.map(Answer::Extents)
        }
    }
}
