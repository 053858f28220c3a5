//! The transmission phase of one connection, as one hand-polled loop over receiving, running and sending.
//!
//! Invariants
//!  C1. A request is in flight from the moment its header is taken until its reply was sent or there is nobody to send
//!      it to. Requests in flight are at most `in_flight_max`.
//!  C2. Buffers in flight are at most `in_flight_bytes_max`, except for one request that is alone.
//!  C3. Nothing is received while a whole request waits for C1 or C2: the client is held back by its own socket.
//!  C4. A started operation is polled to its end, whatever becomes of the client.
//!  C5. A write runs only when its whole payload has arrived.
//!  C6. The device allows every successful reply twice: when it is queued, and again right before bytes go to the
//!      socket. One that may not leave any more ends the connection; its client asks again and is told why.

use std::future::Future;
use std::io;
use std::pin::Pin;
use std::rc::Rc;
use std::task::{Context, Poll};

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::time::Sleep;
use weir_device::{
    AlignedBuf, BUFFER_ALIGN, BufferPool, Device, DeviceError, ErrorKind, SharedBuf,
};
use weir_nbd::{
    Command, ContextStatus, Decoded, Refusal, ReplyTo, RequestHeader, Session, Verdict,
    decode_request,
};

use super::answer::error_code;
use super::handshake::Chosen;
use super::operation::{self, Answer, CACHE_PIECE_BYTES, Target};
use super::outgoing::Outgoing;
use super::slots::Slots;
use super::window::{DIRECT_BYTES_MIN, Window};
use super::{ConnectionOptions, Export, NbdError};

/// Rounds of receiving, running and sending before other tasks of the thread get their turn.
const ROUNDS_MAX: usize = 16;

/// Most bytes received into the window where a payload that goes into its own buffer is likely next: a few headers.
const HEADER_READ_BYTES: usize = 4096;

/// Memory that a queued reply without data stands for, in bytes: its header and, at worst, its message.
const REPLY_BYTES: usize = 512;

/// The head of one chunk of a block status, in bytes.
const STATUS_HEAD_BYTES: usize = 40;

/// Device errors of one connection that are logged one by one; the rest are counted, so that a failing device does not
/// fill the log as well.
const LOGGED_ERRORS_MAX: u64 = 32;

/// What the next received bytes are.
enum Receiving {
    Header,
    /// The payload of a write, received into its own buffer.
    Payload {
        ticket: Ticket,
        buf: AlignedBuf,
        filled: usize,
    },
    /// The payload of a refused request, thrown away.
    Skip {
        left: usize,
    },
}

/// What must be known of an operation when it completes.
struct Ticket {
    reply_to: ReplyTo,
    command: Command,
    cost_bytes: usize,
}

/// What can be done about the next request.
enum Taken {
    /// Something was taken off the window.
    Yes,
    /// More bytes must arrive first.
    NeedsBytes,
    /// Something in flight must finish first.
    HeldBack,
}

struct Connection<'a, F, M> {
    options: &'a ConnectionOptions,
    session: Session,
    export: &'a str,
    pool: BufferPool,
    window: Window,
    receiving: Receiving,
    slots: Slots<F, Ticket>,
    /// Operations that completed in one round; kept for its memory.
    completed: Vec<(Ticket, Result<Answer, DeviceError>)>,
    outgoing: Outgoing,
    /// Makes the future of an operation.
    operate: M,
    bytes_in_flight: usize,
    /// Whether requests are still taken.
    is_taking: bool,
    /// Whether replies still have a reader.
    is_sending: bool,
    needs_flush: bool,
    /// Successful replies may be among those that are queued (C6).
    has_successes: bool,
    /// Whether payloads lately had buffers of their own.
    expects_payload: bool,
    errors_count: u64,
    result: Result<(), NbdError>,
}

/// Serves requests until the client leaves, breaks the protocol, or `shutdown` completes.
pub(super) async fn run<S, D>(
    stream: &mut S,
    window: Window,
    chosen: Chosen<Export<D>>,
    options: &ConnectionOptions,
    mut shutdown: Pin<&mut impl Future<Output = ()>>,
) -> Result<(), NbdError>
where
    S: AsyncRead + AsyncWrite + Unpin,
    D: Device,
{
    let export = chosen.handle;
    let target = Rc::new(Target {
        device: Rc::clone(&export.device),
        source: options.source,
        volume: export.volume,
        pool: options.pool.clone(),
        history: export.history.clone(),
        contexts: chosen.session.contexts.clone(),
    });
    let mut connection = Connection {
        options,
        session: chosen.session,
        export: &export.name,
        pool: options.pool.clone(),
        window,
        receiving: Receiving::Header,
        slots: Slots::new(options.in_flight_max.max(1)),
        completed: Vec::new(),
        outgoing: Outgoing::default(),
        operate: |command, payload| operation::run(Rc::clone(&target), command, payload),
        bytes_in_flight: 0,
        is_taking: true,
        is_sending: true,
        needs_flush: false,
        has_successes: false,
        expects_payload: false,
        errors_count: 0,
        result: Ok(()),
    };
    let mut is_shut_down = false;
    let mut linger: Option<Pin<Box<Sleep>>> = None;
    std::future::poll_fn(|cx| {
        if !is_shut_down && shutdown.as_mut().poll(cx).is_ready() {
            is_shut_down = true;
            connection.stop_taking(Ok(()));
            linger = Some(Box::pin(tokio::time::sleep(options.linger)));
        }
        if linger.as_mut().is_some_and(|sleep| sleep.as_mut().poll(cx).is_ready()) {
            linger = None;
            connection.stop_sending();
        }
        connection.poll(stream, &*export.device, cx)
    })
    .await;
    connection.log_errors_count();
    connection.result
}

/// Memory behind a buffer of `len` bytes.
fn buffer_bytes(len: usize) -> usize {
    len.max(BUFFER_ALIGN).checked_next_power_of_two().unwrap_or(len)
}

/// Memory that a command holds while it runs, payload and answer together.
fn cost_bytes(command: &Command) -> usize {
    let to_usize = |bytes: u64| usize::try_from(bytes).unwrap_or(usize::MAX);
    match command {
        Command::Write { length, .. } | Command::Read { length, .. } => {
            buffer_bytes(to_usize(u64::from(*length)))
        }
        Command::Cache { length, .. } => buffer_bytes(to_usize(CACHE_PIECE_BYTES.min(*length))),
        Command::BlockStatus { .. } => to_usize(command.reply_payload_bytes_max()) + REPLY_BYTES,
        Command::WriteZeroes { .. } | Command::Trim { .. } | Command::Flush => REPLY_BYTES,
    }
}

/// Memory that a queued block status stands for, beside [`REPLY_BYTES`].
fn status_bytes(statuses: &[ContextStatus]) -> usize {
    statuses.iter().map(|status| STATUS_HEAD_BYTES + 16 * status.extents.len()).sum()
}

impl<F, M> Connection<'_, F, M>
where
    F: Future<Output = Result<Answer, DeviceError>>,
    M: FnMut(Command, SharedBuf) -> F,
{
    fn poll<S: AsyncRead + AsyncWrite + Unpin>(
        &mut self,
        stream: &mut S,
        device: &impl Device,
        cx: &mut Context<'_>,
    ) -> Poll<()> {
        self.slots.register(cx.waker());
        for _ in 0..ROUNDS_MAX {
            let mut has_progress = self.complete(device);
            let taken = self.take_requests(device);
            if self.is_taking && matches!(taken, Taken::NeedsBytes) {
                has_progress |= self.poll_receive(stream, cx);
            }
            has_progress |= self.poll_send(stream, device, cx);
            if self.is_over() {
                return Poll::Ready(());
            }
            if !has_progress {
                return Poll::Pending;
            }
        }
        cx.waker().wake_by_ref();
        Poll::Pending
    }

    fn is_over(&self) -> bool {
        let is_quiet = self.slots.active() == 0 && self.outgoing.is_empty() && !self.needs_flush;
        !self.is_taking && is_quiet
    }

    fn in_flight(&self) -> usize {
        self.slots.active() + self.outgoing.len()
    }

    /// Whether C1 and C2 allow another request.
    fn admits(&self, cost_bytes: usize) -> bool {
        let in_flight = self.in_flight();
        in_flight == 0
            || (in_flight < self.options.in_flight_max
                && self.bytes_in_flight.saturating_add(cost_bytes)
                    <= self.options.in_flight_bytes_max)
    }

    /// Takes every request that has arrived and may run; why it stopped.
    fn take_requests(&mut self, device: &impl Device) -> Taken {
        while self.is_taking {
            let taken = match &self.receiving {
                Receiving::Header => self.take_header(device),
                Receiving::Payload { .. } => self.take_payload(device),
                Receiving::Skip { .. } => self.skip(),
            };
            match taken {
                Ok(Taken::Yes) => {}
                Ok(stopped) => return stopped,
                Err(error) => self.stop_taking(Err(error)),
            }
        }
        Taken::NeedsBytes
    }

    fn take_header(&mut self, device: &impl Device) -> Result<Taken, NbdError> {
        let unread = self.window.unread();
        let (header, header_bytes) = match decode_request(self.session.style, unread)? {
            Decoded::NeedMore(_) => return Ok(Taken::NeedsBytes),
            Decoded::Message { message, consumed } => (message, consumed),
        };
        match self.session.judge(&header, device.size())? {
            Verdict::Disconnect => {
                self.stop_taking(Ok(()));
                Ok(Taken::Yes)
            }
            Verdict::Refuse { refusal, payload_bytes } => {
                if !self.admits(REPLY_BYTES) {
                    return Ok(Taken::HeldBack);
                }
                self.window.consume(header_bytes);
                self.refuse(&header, refusal);
                self.receiving = Receiving::Skip { left: to_usize(payload_bytes) };
                Ok(Taken::Yes)
            }
            Verdict::Run { command, payload_bytes } => {
                let ticket = Ticket {
                    reply_to: self.session.reply_to(&header),
                    command,
                    cost_bytes: cost_bytes(&command),
                };
                let payload_bytes = to_usize(payload_bytes);
                Ok(self.take_command(ticket, header_bytes, payload_bytes, device))
            }
        }
    }

    fn take_command(
        &mut self,
        ticket: Ticket,
        header_bytes: usize,
        payload_bytes: usize,
        device: &impl Device,
    ) -> Taken {
        if !self.admits(ticket.cost_bytes) {
            return Taken::HeldBack;
        }
        if payload_bytes == 0 {
            self.window.consume(header_bytes);
            self.start(ticket, SharedBuf::default(), device);
            return Taken::Yes;
        }
        if payload_bytes >= DIRECT_BYTES_MIN {
            self.window.consume(header_bytes);
            self.bytes_in_flight += ticket.cost_bytes;
            let buf = self.pool.alloc(payload_bytes);
            self.receiving = Receiving::Payload { ticket, buf, filled: 0 };
            self.expects_payload = true;
            return Taken::Yes;
        }
        self.expects_payload = false;
        let Some(payload) = self.window.unread()[header_bytes..].get(..payload_bytes) else {
            return Taken::NeedsBytes;
        };
        let mut buf = self.pool.alloc(payload_bytes);
        buf.copy_from_slice(payload);
        self.window.consume(header_bytes + payload_bytes);
        self.start(ticket, buf.freeze(), device);
        Taken::Yes
    }

    /// Moves what the window has of a payload into its buffer, and starts the write when it is whole (C5).
    fn take_payload(&mut self, device: &impl Device) -> Result<Taken, NbdError> {
        let Receiving::Payload { buf, filled, .. } = &mut self.receiving else {
            unreachable!("called for a payload only")
        };
        let unread = self.window.unread();
        let here = unread.len().min(buf.len() - *filled);
        buf[*filled..*filled + here].copy_from_slice(&unread[..here]);
        *filled += here;
        let is_whole = *filled == buf.len();
        self.window.consume(here);
        if !is_whole {
            return Ok(Taken::NeedsBytes);
        }
        if let Receiving::Payload { ticket, buf, .. } =
            std::mem::replace(&mut self.receiving, Receiving::Header)
        {
            self.bytes_in_flight -= ticket.cost_bytes;
            self.start(ticket, buf.freeze(), device);
        }
        Ok(Taken::Yes)
    }

    fn skip(&mut self) -> Result<Taken, NbdError> {
        let Receiving::Skip { left } = &mut self.receiving else {
            unreachable!("called for a payload to skip only")
        };
        let here = self.window.unread().len().min(*left);
        *left -= here;
        let is_done = *left == 0;
        self.window.consume(here);
        if !is_done {
            return Ok(Taken::NeedsBytes);
        }
        self.receiving = Receiving::Header;
        Ok(Taken::Yes)
    }

    fn refuse(&mut self, header: &RequestHeader, refusal: Refusal) {
        tracing::debug!(
            client = self.options.client,
            export = self.export,
            command = header.command.0,
            flags = header.flags.0,
            offset = header.offset,
            len = header.length,
            reason = refusal.reason,
            "request refused"
        );
        let reply_to = self.session.reply_to(header);
        self.bytes_in_flight += REPLY_BYTES;
        self.outgoing
            .push(None, REPLY_BYTES, |out| reply_to.error(out, refusal.code, refusal.reason));
    }

    fn start(&mut self, ticket: Ticket, payload: SharedBuf, device: &impl Device) {
        self.bytes_in_flight += ticket.cost_bytes;
        let future = (self.operate)(ticket.command, payload);
        if let Some((ticket, outcome)) = self.slots.start(future, ticket) {
            self.on_completed(ticket, outcome, device);
        }
    }

    /// Polls the operations that can go on, and queues the replies of those that completed.
    fn complete(&mut self, device: &impl Device) -> bool {
        let mut completed = std::mem::take(&mut self.completed);
        let polled = self.slots.poll_woken(|ticket, outcome| completed.push((ticket, outcome)));
        for (ticket, outcome) in completed.drain(..) {
            self.on_completed(ticket, outcome, device);
        }
        self.completed = completed;
        polled
    }

    fn on_completed(
        &mut self,
        ticket: Ticket,
        outcome: Result<Answer, DeviceError>,
        device: &impl Device,
    ) {
        self.bytes_in_flight -= ticket.cost_bytes;
        let Ticket { reply_to, command, .. } = ticket;
        // C6.
        let outcome = outcome.and_then(|answer| device.check_reply().map(|()| answer));
        if let Err(error) = &outcome {
            self.log_error(&command, error);
        }
        if !self.is_sending {
            return;
        }
        self.has_successes |= outcome.is_ok();
        let cost_bytes = REPLY_BYTES
            + match &outcome {
                Ok(Answer::Data(buf)) => buf.capacity(),
                Ok(Answer::Status(statuses)) => status_bytes(statuses),
                Ok(Answer::Done) | Err(_) => 0,
            };
        self.bytes_in_flight += cost_bytes;
        match outcome {
            Ok(Answer::Data(buf)) => {
                let length = u32::try_from(buf.len()).expect("a read is at most 32 MiB");
                let data = (length > 0).then_some(buf);
                self.outgoing.push(data, cost_bytes, |out| reply_to.read_head(out, length));
            }
            Ok(Answer::Status(statuses)) => {
                self.outgoing.push(None, cost_bytes, |out| reply_to.block_status(out, &statuses));
            }
            Ok(Answer::Done) => self.outgoing.push(None, cost_bytes, |out| reply_to.success(out)),
            Err(error) => {
                let code = error_code(error.kind(), &command);
                let message = error.to_string();
                self.outgoing.push(None, cost_bytes, |out| reply_to.error(out, code, &message));
            }
        }
    }

    fn log_error(&mut self, command: &Command, error: &DeviceError) {
        if error.kind() == ErrorKind::Unsupported {
            // An answer that clients ask for, to find out what is fast.
            return tracing::debug!(export = self.export, ?command, %error, "not offered");
        }
        self.errors_count += 1;
        if self.errors_count <= LOGGED_ERRORS_MAX {
            let client = &self.options.client;
            tracing::warn!(client, export = self.export, ?command, kind = ?error.kind(), %error,
                "request failed");
        }
    }

    fn log_errors_count(&self) {
        if self.errors_count > LOGGED_ERRORS_MAX {
            let client = &self.options.client;
            tracing::warn!(
                client,
                export = self.export,
                count = self.errors_count,
                "requests failed on this connection, not all of them logged"
            );
        }
    }

    /// Receives once; whether anything happened.
    fn poll_receive<S: AsyncRead + Unpin>(&mut self, stream: &mut S, cx: &mut Context<'_>) -> bool {
        let space = match &mut self.receiving {
            Receiving::Payload { buf, filled, .. } => &mut buf[*filled..],
            Receiving::Header if self.expects_payload => self.window.space(HEADER_READ_BYTES),
            Receiving::Header | Receiving::Skip { .. } => self.window.space(usize::MAX),
        };
        let mut into = ReadBuf::new(space);
        let received = match Pin::new(stream).poll_read(cx, &mut into) {
            Poll::Pending => return false,
            Poll::Ready(received) => received.map(|()| into.filled().len()),
        };
        match received {
            Ok(0) => self.on_end_of_stream(),
            Ok(bytes) => match &mut self.receiving {
                Receiving::Payload { filled, .. } => *filled += bytes,
                Receiving::Header | Receiving::Skip { .. } => self.window.received(bytes),
            },
            Err(source) => {
                self.stop_taking(Err(NbdError::Connection { source }));
                self.stop_sending();
            }
        }
        true
    }

    fn on_end_of_stream(&mut self) {
        let is_between =
            matches!(self.receiving, Receiving::Header) && self.window.unread().is_empty();
        self.stop_taking(if is_between { Ok(()) } else { Err(NbdError::Truncated) });
    }

    /// Sends what is queued; whether anything happened.
    fn poll_send<S: AsyncWrite + Unpin>(
        &mut self,
        stream: &mut S,
        device: &impl Device,
        cx: &mut Context<'_>,
    ) -> bool {
        let mut has_progress = false;
        while !self.outgoing.is_empty() {
            // C6: the client may have read nothing for a while.
            if self.has_successes
                && let Err(error) = device.check_reply()
            {
                tracing::warn!(client = self.options.client, export = self.export, %error,
                    "replies that were not sent in time are dropped with their connection");
                self.stop_taking(Err(NbdError::Stale));
                self.stop_sending();
                return true;
            }
            let mut slices = Outgoing::no_slices();
            let count = self.outgoing.slices(&mut slices);
            let pinned = Pin::new(&mut *stream);
            let sent = match &slices[..count] {
                [one] => pinned.poll_write(cx, one),
                many => pinned.poll_write_vectored(cx, many),
            };
            match sent {
                Poll::Pending => return has_progress,
                Poll::Ready(Ok(bytes)) if bytes > 0 => {
                    self.bytes_in_flight -= self.outgoing.sent(bytes);
                    self.needs_flush = true;
                }
                Poll::Ready(Ok(_)) => self.on_send_failed(io::ErrorKind::WriteZero.into()),
                Poll::Ready(Err(source)) => self.on_send_failed(source),
            }
            has_progress = true;
        }
        self.has_successes = false;
        if self.needs_flush {
            match Pin::new(stream).poll_flush(cx) {
                Poll::Pending => return has_progress,
                Poll::Ready(Ok(())) => self.needs_flush = false,
                Poll::Ready(Err(source)) => self.on_send_failed(source),
            }
        }
        has_progress
    }

    fn on_send_failed(&mut self, source: io::Error) {
        self.stop_taking(Err(NbdError::Connection { source }));
        self.stop_sending();
    }

    /// Takes no further requests. The first reason to stop is the connection's result.
    fn stop_taking(&mut self, result: Result<(), NbdError>) {
        if self.is_taking {
            self.is_taking = false;
            self.result = result;
        }
        // A payload that is not whole is never written (C5).
        if let Receiving::Payload { ticket, .. } =
            std::mem::replace(&mut self.receiving, Receiving::Header)
        {
            self.bytes_in_flight -= ticket.cost_bytes;
        }
    }

    /// Drops every reply from here on: nobody reads them.
    fn stop_sending(&mut self) {
        self.is_sending = false;
        self.needs_flush = false;
        self.bytes_in_flight -= self.outgoing.clear();
    }
}

fn to_usize(bytes: u32) -> usize {
    usize::try_from(bytes).expect("a payload fits the address space")
}
