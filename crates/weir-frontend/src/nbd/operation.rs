//! One command as calls on the device.

use std::rc::Rc;

use weir_device::{
    Body, ByteRange, Data, Device, DeviceError, DeviceExt, ErrorKind, FlushScope, History,
    IoHeader, Leases, Operation, SharedBuf, SourceId, VolumeId, WriteZeroesFlags, mutant,
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
    pub(super) history: Option<Rc<dyn History>>,
    /// What block status is told in.
    pub(super) contexts: Vec<ChosenContext>,
}

/// What a command that succeeded sends back.
pub(super) enum Answer {
    Done,
    Data(Data),
    /// Block status in each context, none of them empty.
    Status(Vec<ContextStatus>),
}

/// An answer, and what must hold when it leaves.
pub(super) struct Answered {
    pub(super) answer: Answer,
    pub(super) leases: Leases,
}

impl<D: Device> Target<D> {
    /// Runs one operation, and takes its leases over.
    async fn ask(&self, operation: Operation, leases: &mut Leases) -> Result<Body, DeviceError> {
        let io = IoHeader::of_client(self.source, self.volume);
        let reply = self.device.call(io, operation).await?;
        leases.join(&reply.leases);
        Ok(reply.body)
    }

    /// Block status of a range in every context; an error in one is an error of all.
    async fn status(
        &self,
        range: ByteRange,
        one: bool,
        leases: &mut Leases,
    ) -> Result<Vec<ContextStatus>, DeviceError> {
        // Together they keep to the limit of a reply.
        let each_max = if one { 1 } else { EXTENTS_MAX / self.contexts.len().max(1) };
        let mut statuses = Vec::with_capacity(self.contexts.len());
        for context in &self.contexts {
            let extents = self.status_in(&context.name, range, each_max, leases).await?;
            let message = "the device reported no extents for a range that is not empty";
            let extents = extents.ok_or_else(|| DeviceError::new(ErrorKind::Bug, message))?;
            statuses.push(ContextStatus { context: context.id, extents });
        }
        Ok(statuses)
    }

    async fn status_in(
        &self,
        context: &str,
        range: ByteRange,
        extents_max: usize,
        leases: &mut Leases,
    ) -> Result<Option<Vec<ExtentStatus>>, DeviceError> {
        let size = self.device.size();
        match (Context::of(context), &self.history) {
            (Some(Context::Allocation), _) => {
                let ask = async |range: ByteRange, extents_max| {
                    let (offset, len) = (range.start, range.len());
                    match self.ask(Operation::Extents { offset, len, extents_max }, leases).await? {
                        Body::Extents(extents) => Ok(extents),
                        _ => Err(not_answered("extents")),
                    }
                };
                in_blocks(range, size, extents_max, Mixed::Common, ask).await
            }
            (Some(Context::ChangedSince(state)), Some(history)) => {
                let ask = async |range, most| history.changed(state, range, most).await;
                let mixed = match mutant("changed_block_told_unchanged") {
                    true => Mixed::Common,
                    false => Mixed::Any,
                };
                in_blocks(range, size, extents_max, mixed, ask).await
            }
            _ => {
                let message = format!("the export no longer tells {context}");
                Err(DeviceError::new(ErrorKind::NotFound, message))
            }
        }
    }

    /// Reads a range and throws it away, so that what caches on the way has it.
    async fn warm(&self, offset: u64, len: u64, leases: &mut Leases) -> Result<(), DeviceError> {
        let end = offset + len.min(CACHE_BYTES_MAX);
        let mut at = offset;
        while at < end {
            let len = CACHE_PIECE_BYTES.min(end - at);
            self.ask(Operation::Read { offset: at, len }, leases).await?;
            at += len;
        }
        Ok(())
    }
}

fn not_answered(what: &str) -> DeviceError {
    DeviceError::new(ErrorKind::Bug, format!("the device did not answer with {what}"))
}

/// Runs one command to its end. `payload` is the data of a write, empty for everything else.
pub(super) async fn run<D: Device>(
    target: Rc<Target<D>>,
    command: Command,
    payload: SharedBuf,
) -> Result<Answered, DeviceError> {
    let mut leases = Leases::default();
    let operation = match command {
        Command::Read { offset, length, .. } => Operation::Read { offset, len: length.into() },
        Command::Write { offset, .. } if mutant("write_answered_before_device") => {
            let write = Operation::Write { offset, data: payload, fua: false };
            let asked = std::pin::pin!(target.ask(write, &mut leases));
            // Rule 5: it runs to its end, and the reply is lost.
            let _ = futures_util::FutureExt::now_or_never(asked);
            return Ok(Answered { answer: Answer::Done, leases: Leases::default() });
        }
        Command::Write { offset, fua, .. } => Operation::Write { offset, data: payload, fua },
        Command::WriteZeroes { offset, length: len, fua, no_hole, fast } => {
            let flags = WriteZeroesFlags { fua, no_hole, fast };
            Operation::WriteZeroes { offset, len, flags }
        }
        Command::Trim { offset, length: len, .. } => Operation::Discard { offset, len },
        Command::Flush => Operation::Flush(FlushScope::Local),
        Command::Cache { offset, length } => {
            target.warm(offset, length, &mut leases).await?;
            return Ok(Answered { answer: Answer::Done, leases });
        }
        Command::BlockStatus { offset, length, one } => {
            let range = ByteRange::new(offset, offset + length);
            let answer = target.status(range, one, &mut leases).await.map(Answer::Status)?;
            return Ok(Answered { answer, leases });
        }
    };
    let body = target.ask(operation, &mut leases).await?;
    if let Command::Trim { fua: true, .. } = command
        && !mutant("trim_fua_without_flush")
    {
        target.ask(Operation::Flush(FlushScope::Local), &mut leases).await?;
    }
    let answer = match (body, command) {
        (Body::Data(data), Command::Read { length, .. })
            if data.len() as u64 == u64::from(length) =>
        {
            Answer::Data(data)
        }
        (_, Command::Read { .. }) => return Err(not_answered("as many bytes as were asked for")),
        _ => Answer::Done,
    };
    Ok(Answered { answer, leases })
}
