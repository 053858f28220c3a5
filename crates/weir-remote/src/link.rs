//! One connection: requests go out in the order in which they are handed to it, answers come in any order.

use std::collections::BTreeMap;
use std::io;
use std::pin::Pin;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::time::Instant;
use weir_device::{AlignedBuf, BufferPool, ByteStream, Data};
use weir_nbd::{Command, Cookie, Failure, ProtocolError, ReplyStep, Requests, Session};
use weir_net::Outgoing;

use crate::error::RemoteError;
use crate::ticket::Ticket;

/// Requests in flight on one connection at most: as many as a server of ours runs for one client.
const IN_FLIGHT_MAX: usize = 128;

/// Received at a time. The data of large reads goes past this, into the memory of its reader.
const RECEIVE_BYTES: usize = 64 << 10;

/// Receives in one turn at most; other tasks of the thread have theirs then.
const RECEIVES_MAX: usize = 16;

/// Bytes that were received and not understood yet.
#[derive(Debug, Default)]
struct Input {
    bytes: Vec<u8>,
    start: usize,
    end: usize,
}

impl Input {
    fn unread(&self) -> &[u8] {
        &self.bytes[self.start..self.end]
    }

    fn take(&mut self, count: usize) {
        self.start += count;
        if self.start == self.end {
            (self.start, self.end) = (0, 0);
        }
    }

    /// Room behind what is there, for so many bytes at least.
    fn room(&mut self, wanted: usize) -> &mut [u8] {
        let wanted = wanted.max(RECEIVE_BYTES / 2);
        if self.bytes.len() - self.end < wanted {
            self.bytes.copy_within(self.start..self.end, 0);
            (self.start, self.end) = (0, self.end - self.start);
            let needed = (self.end + wanted).max(RECEIVE_BYTES);
            if self.bytes.len() < needed {
                self.bytes.resize(needed, 0);
            }
        }
        &mut self.bytes[self.end..]
    }
}

/// The data of a read that comes next.
#[derive(Clone, Copy, Debug)]
struct Coming {
    cookie: Cookie,
    at: usize,
    left: usize,
}

/// A request that was answered.
pub(crate) struct Ended {
    pub(crate) ticket: Ticket,
    pub(crate) result: Result<(), Failure>,
}

/// One connection. See the head of this file.
pub(crate) struct Link {
    stream: Box<dyn ByteStream>,
    requests: Requests,
    outgoing: Outgoing,
    /// The header of a request while it is made.
    head: Vec<u8>,
    input: Input,
    coming: Option<Coming>,
    /// What must be received before the next step can be told.
    missing: usize,
    in_flight: BTreeMap<Cookie, Ticket>,
    buffers: BufferPool,
    /// When something was received last, or the first request went out after a time without any.
    heard: Instant,
}

fn to_usize(length: u32) -> usize {
    usize::try_from(length).unwrap_or(usize::MAX)
}

impl Link {
    pub(crate) fn new(
        stream: Box<dyn ByteStream>,
        session: Session,
        received: Vec<u8>,
        buffers: BufferPool,
    ) -> Self {
        let input = Input { start: 0, end: received.len(), bytes: received };
        Self {
            stream,
            requests: Requests::new(session),
            outgoing: Outgoing::default(),
            head: Vec::new(),
            input,
            coming: None,
            missing: 0,
            in_flight: BTreeMap::new(),
            buffers,
            heard: Instant::now(),
        }
    }

    pub(crate) fn len(&self) -> usize {
        self.in_flight.len()
    }

    pub(crate) fn is_idle(&self) -> bool {
        self.in_flight.is_empty()
    }

    pub(crate) fn has_room(&self) -> bool {
        self.in_flight.len() < IN_FLIGHT_MAX
    }

    /// The requests that were not answered, with the connection's end.
    pub(crate) fn into_unanswered(self) -> impl Iterator<Item = Ticket> {
        self.in_flight.into_values()
    }

    /// How long a request waits on this connection on which nothing is heard; nothing if none waits.
    pub(crate) fn silence(&self, now: Instant) -> Duration {
        match self.is_idle() {
            true => Duration::ZERO,
            false => now.saturating_duration_since(self.heard),
        }
    }

    /// Tells the callers of requests that wait past their deadlines. The requests stay in flight: they may be carried
    /// out still.
    pub(crate) fn overdue(&mut self, now: Instant) -> impl Iterator<Item = &mut Ticket> {
        self.in_flight.values_mut().filter(move |ticket| ticket.is_overdue(now))
    }

    /// Queues a request.
    ///
    /// # Errors
    /// The server does not offer it; the ticket comes back.
    pub(crate) fn send(&mut self, ticket: Ticket) -> Result<(), (Box<Ticket>, ProtocolError)> {
        self.head.clear();
        let cookie = match self.requests.request(ticket.command, &mut self.head) {
            Ok(cookie) => cookie,
            Err(error) => return Err((Box::new(ticket), error)),
        };
        if self.is_idle() {
            self.heard = Instant::now();
        }
        let payload = ticket.payload.clone();
        self.outgoing.push(payload.into(), 0, |out| out.extend_from_slice(&self.head));
        self.in_flight.insert(cookie, ticket);
        Ok(())
    }

    /// Queues the client's goodbye: nothing is sent after it.
    pub(crate) fn say_goodbye(&mut self) {
        self.head.clear();
        if self.requests.goodbye(&mut self.head).is_ok() {
            let nothing = Data::default();
            self.outgoing.push(nothing, 0, |out| out.extend_from_slice(&self.head));
        }
    }

    /// Sends what is queued; ready once all of it was taken.
    pub(crate) fn poll_send(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        while !self.outgoing.is_empty() {
            let mut slices = Outgoing::no_slices();
            let count = self.outgoing.slices(&mut slices);
            let written = Pin::new(&mut self.stream).poll_write_vectored(cx, &slices[..count]);
            match ready!(written)? {
                0 => return Poll::Ready(Err(io::ErrorKind::WriteZero.into())),
                bytes => self.outgoing.sent(bytes),
            };
        }
        Pin::new(&mut self.stream).poll_flush(cx)
    }

    /// Sends and receives what can be at once, and hands answers to `ended`. Ready only when the connection is of no
    /// use any more.
    pub(crate) fn poll(
        &mut self,
        cx: &mut Context<'_>,
        ended: &mut impl FnMut(Ended) -> Result<(), RemoteError>,
    ) -> Poll<RemoteError> {
        if let Poll::Ready(Err(source)) = self.poll_send(cx) {
            return Poll::Ready(RemoteError::Connection { source });
        }
        for _ in 0..RECEIVES_MAX {
            if let Err(error) = self.understand(ended) {
                return Poll::Ready(error);
            }
            match ready!(self.poll_receive(cx)) {
                Ok(0) => return Poll::Ready(RemoteError::Ended),
                Ok(_) => self.heard = Instant::now(),
                Err(source) => return Poll::Ready(RemoteError::Connection { source }),
            }
        }
        cx.waker().wake_by_ref();
        match self.understand(ended) {
            Ok(()) => Poll::Pending,
            Err(error) => Poll::Ready(error),
        }
    }

    /// Takes the answers out of what was received.
    fn understand(
        &mut self,
        ended: &mut impl FnMut(Ended) -> Result<(), RemoteError>,
    ) -> Result<(), RemoteError> {
        loop {
            if let Some(coming) = self.coming {
                let count = coming.left.min(self.input.unread().len());
                if let Some(target) = target(&mut self.in_flight, coming) {
                    target[..count].copy_from_slice(&self.input.unread()[..count]);
                }
                self.input.take(count);
                self.took(count);
                if self.coming.is_some() {
                    return Ok(());
                }
            }
            let progress = self.requests.advance(self.input.unread())?;
            self.input.take(progress.consumed);
            match progress.step {
                ReplyStep::NeedMore(bytes) => {
                    self.missing = bytes;
                    return Ok(());
                }
                ReplyStep::Again => {}
                ReplyStep::Data { cookie, at, length } => {
                    let (at, left) = (to_usize(at), to_usize(length));
                    self.allocate(cookie);
                    self.coming = Some(Coming { cookie, at, left });
                }
                ReplyStep::Zeroes { cookie, at, length } => {
                    self.allocate(cookie);
                    let (at, left) = (to_usize(at), to_usize(length));
                    if let Some(part) = target(&mut self.in_flight, Coming { cookie, at, left }) {
                        part.fill(0);
                    }
                }
                ReplyStep::Status { cookie, status } => {
                    if let Some(ticket) = self.in_flight.get_mut(&cookie) {
                        ticket.add_status(status);
                    }
                }
                ReplyStep::Done { cookie, result, .. } => {
                    if let Some(ticket) = self.in_flight.remove(&cookie) {
                        ended(Ended { ticket, result })?;
                    }
                }
            }
        }
    }

    /// Memory for what a read brings, once it begins to come.
    fn allocate(&mut self, cookie: Cookie) {
        let Some(ticket) = self.in_flight.get_mut(&cookie) else { return };
        let Command::Read { length, .. } = ticket.command else { return };
        let buffers = &self.buffers;
        ticket.data.get_or_insert_with(|| buffers.alloc(to_usize(length)));
    }

    fn took(&mut self, count: usize) {
        if let Some(coming) = &mut self.coming {
            coming.at += count;
            coming.left -= count;
            if coming.left == 0 {
                self.coming = None;
            }
        }
    }

    /// Receives into the memory of a read where its data comes next, else into the input; how many bytes.
    fn poll_receive(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<usize>> {
        let large = self.coming.filter(|coming| coming.left >= RECEIVE_BYTES / 2);
        if let Some(coming) = large
            && let Some(part) = target(&mut self.in_flight, coming)
        {
            let mut room = ReadBuf::new(part);
            ready!(Pin::new(&mut self.stream).poll_read(cx, &mut room))?;
            let count = room.filled().len();
            self.took(count);
            return Poll::Ready(Ok(count));
        }
        let mut room = ReadBuf::new(self.input.room(self.missing));
        ready!(Pin::new(&mut self.stream).poll_read(cx, &mut room))?;
        let count = room.filled().len();
        self.input.end += count;
        Poll::Ready(Ok(count))
    }
}

/// Where the data of a read goes.
fn target(in_flight: &mut BTreeMap<Cookie, Ticket>, coming: Coming) -> Option<&mut [u8]> {
    let data: &mut AlignedBuf = in_flight.get_mut(&coming.cookie)?.data.as_mut()?;
    data.get_mut(coming.at..coming.at + coming.left)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn input_keeps_what_is_unread_when_it_makes_room() {
        let mut input = Input { bytes: vec![1, 2, 3, 4], start: 1, end: 4 };
        input.take(1);
        assert_eq!(input.unread(), [3, 4]);
        assert!(input.room(100_000).len() >= 100_000);
        assert_eq!(input.unread(), [3, 4]);
        input.take(2);
        assert_eq!((input.start, input.end), (0, 0));
    }
}
