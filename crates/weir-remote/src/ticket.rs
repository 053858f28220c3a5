//! One request, from the call that makes it to the answer.

use std::rc::Rc;

use tokio::sync::oneshot;
use tokio::time::Instant;
use weir_device::{AlignedBuf, ByteRange, DeviceError, RangeGuard, SharedBuf};
use weir_nbd::{Command, ContextStatus, ExtentStatus};

use crate::answer::Answer;

/// What the call that made a request waits for.
pub(crate) type Answered = oneshot::Receiver<Result<Answer, DeviceError>>;

/// Why a request is made.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Purpose {
    /// A call asks for it.
    Call,
    /// It was acknowledged before by a server that may have lost it since.
    Again,
}

/// A request that was not answered yet.
#[derive(Debug)]
pub(crate) struct Ticket {
    /// Its place among all requests of the volume.
    pub(crate) order: u64,
    pub(crate) command: Command,
    /// The data of a write.
    pub(crate) payload: SharedBuf,
    pub(crate) purpose: Purpose,
    /// When the caller is told that there is no answer.
    pub(crate) deadline: Option<Instant>,
    /// Whether it was sent on a connection that is lost: it may have been carried out.
    pub(crate) was_sent: bool,
    /// Held until nothing of the request can happen any more.
    pub(crate) guard: Option<Rc<RangeGuard>>,
    /// Nothing once the caller was told.
    sender: Option<oneshot::Sender<Result<Answer, DeviceError>>>,
    /// What was read so far.
    pub(crate) data: Option<AlignedBuf>,
    pub(crate) status: Vec<ExtentStatus>,
}

impl Ticket {
    pub(crate) fn new(
        order: u64,
        command: Command,
        payload: SharedBuf,
        purpose: Purpose,
    ) -> (Self, Answered) {
        let (sender, answered) = oneshot::channel();
        let ticket = Self {
            order,
            command,
            payload,
            purpose,
            deadline: None,
            was_sent: false,
            guard: None,
            sender: Some(sender),
            data: None,
            status: Vec::new(),
        };
        (ticket, answered)
    }

    /// The range that it changes, if it changes any.
    pub(crate) fn changes(&self) -> Option<ByteRange> {
        match self.command {
            Command::Write { offset, length, .. } => ByteRange::at(offset, length.into()),
            Command::WriteZeroes { offset, length, .. } | Command::Trim { offset, length, .. } => {
                ByteRange::at(offset, length)
            }
            Command::Read { .. }
            | Command::Flush
            | Command::Cache { .. }
            | Command::BlockStatus { .. } => None,
        }
    }

    /// Whether the caller was told of a failure already.
    pub(crate) fn is_given_up(&self) -> bool {
        self.sender.is_none()
    }

    pub(crate) fn is_overdue(&self, now: Instant) -> bool {
        !self.is_given_up() && self.deadline.is_some_and(|deadline| deadline <= now)
    }

    /// Tells the caller. What the request does is not changed by it.
    pub(crate) fn tell(&mut self, result: Result<Answer, DeviceError>) {
        if let Some(sender) = self.sender.take() {
            // A caller that went away wanted it done, not the answer.
            let _ = sender.send(result);
        }
    }

    /// Takes block status that was told.
    pub(crate) fn add_status(&mut self, status: ContextStatus) {
        self.status = status.extents;
    }

    /// It succeeded.
    pub(crate) fn answer(&mut self) -> Answer {
        match (self.command, self.data.take()) {
            (Command::Read { .. }, Some(data)) => Answer::Data(data),
            (Command::BlockStatus { .. }, _) => Answer::Status(std::mem::take(&mut self.status)),
            _ => Answer::Done,
        }
    }

    /// It will be sent again: what came of it is forgotten.
    pub(crate) fn begin_anew(&mut self) {
        self.was_sent = true;
        self.data = None;
        self.status = Vec::new();
    }
}
