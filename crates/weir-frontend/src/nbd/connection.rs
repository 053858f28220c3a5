//! The transmission phase of one connection, as one hand-polled loop over receiving, running and sending.
//!
//! Invariants
//!  C1. A request is in flight from the moment its header is taken until its reply was sent or there is nobody to send
//!      it to. Requests in flight are at most `in_flight_max`.
//!  C2. Buffers in flight are at most `in_flight_bytes_max`, except for one request that is alone. Each is drawn from
//!      the memory of all clients before it is allocated.
//!  C3. Nothing is received while a whole request waits for C1 or C2: the client is held back by its own socket.
//!  C4. A started operation is polled to its end, whatever becomes of the client, but for C8.
//!  C5. A write runs only when its whole payload has arrived; one that is too long to be whole runs in pieces, each of
//!      which has.
//!  C6. The leases that a successful reply depends on are checked twice: when it is queued, and again right before
//!      bytes go to the socket. One that may not leave any more ends the connection; its client asks again and is told
//!      why.
//!  C7. A client that is in the middle of something and does not get on is cut off: it holds what others wait for.
//!  C8. A server that stops waits for `linger`, no longer: what is in flight then may wait for a store that is away or
//!      for room in a journal. It is given up without an answer, and its client asks whoever serves next.
//!  C9. What a client does not take at once is copied into buffers of its connection, which are counted by C2: a client
//!      that is stuck holds neither the memory of a cache nor the room of a journal.
//! C10. A connection that another process is to go on with takes no request from then on, and is left between two: what
//!      it took has been answered, and the answers were sent. What it has received beyond that goes with it. If that
//!      does not come about within `linger`, it ends as by C8.

mod cost;
mod large;

use std::future::Future;
use std::io;
use std::pin::Pin;
use std::rc::Rc;
use std::task::{Context, Poll};

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::time::Sleep;
use weir_device::{
    AlignedBuf, BufferPool, Data, Device, DeviceError, DeviceExt, ErrorKind, Leases, SharedBuf,
    mutant,
};
use weir_nbd::{
    Command, Decoded, Refusal, ReplyTo, RequestHeader, Session, Verdict, decode_request,
};
use weir_net::Outgoing;

use self::cost::{REPLY_BYTES, cost_bytes, size_of_future, status_bytes};
use self::large::{LargeRead, LargeWrite, WHOLE_READ_BYTES_MAX, WHOLE_WRITE_BYTES_MAX};
use super::answer::error_code;
use super::error::NbdError;
use super::export::Export;
use super::handshake::Chosen;
use super::keep::Left;
use super::memory::Share;
use super::operation::{self, Answer, Answered, Target};
use super::options::ConnectionOptions;
use super::slots::Slots;
use super::watch::{self, Look, Watch};
use super::window::{DIRECT_BYTES_MIN, WINDOW_BYTES, Window};

/// Rounds of receiving, running and sending before other tasks of the thread get their turn.
const ROUNDS_MAX: usize = 16;

/// Most bytes received into the window where a payload that goes into its own buffer is likely next: a few headers.
const HEADER_READ_BYTES: usize = 4096;

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
    /// The next piece of a write that is too long to be whole.
    Piece,
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
    part: Part,
}

/// What an operation is of its request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Part {
    Whole,
    /// A piece of the read that is being answered in pieces.
    Read,
    /// A piece of the write that arrives in pieces.
    Write,
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
    completed: Vec<(Ticket, Result<Answered, DeviceError>)>,
    outgoing: Outgoing,
    /// Makes the future of an operation.
    operate: M,
    bytes_in_flight: usize,
    /// What is drawn from the memory of all clients.
    share: Share,
    /// It was short the last time.
    is_short: bool,
    /// Memory that an operation takes beside its buffers.
    slot_bytes: usize,
    large_read: Option<LargeRead>,
    large_write: Option<LargeWrite>,
    watch: Watch,
    /// The rest of a request is waited for.
    waits_for_rest: bool,
    /// Whether requests are still taken.
    is_taking: bool,
    /// Whether replies still have a reader.
    is_sending: bool,
    /// What is in flight is given up (C8).
    is_cut: bool,
    /// Another process is to go on with it (C10).
    is_leaving: bool,
    needs_flush: bool,
    /// What the replies that are queued depend on (C6).
    leases: Leases,
    /// Whether payloads lately had buffers of their own.
    expects_payload: bool,
    errors_count: u64,
    result: Result<(), NbdError>,
}

/// Serves requests until the client leaves, breaks the protocol, or `shutdown` completes. Then, if `may_stay` says so,
/// what is needed to go on.
pub(super) async fn run<S, D>(
    stream: &mut S,
    window: Window,
    chosen: Chosen<Export<D>>,
    options: &ConnectionOptions,
    mut shutdown: Pin<&mut impl Future<Output = ()>>,
    may_stay: impl Fn() -> bool,
) -> Result<Option<Left>, NbdError>
where
    S: AsyncRead + AsyncWrite + Unpin,
    D: Device,
{
    let export = chosen.handle;
    let target = Rc::new(Target {
        device: Rc::clone(&export.device),
        source: options.source,
        volume: export.volume,
        history: export.history.clone(),
        contexts: chosen.session.contexts.clone(),
    });
    let operate = |command, payload| operation::run(Rc::clone(&target), command, payload);
    let agreed = (chosen.session, export.name.as_str(), chosen.attachment.is_some());
    let mut connection = Connection::new(options, agreed, window, operate);
    let mut is_shut_down = false;
    let mut linger: Option<Pin<Box<Sleep>>> = None;
    std::future::poll_fn(|cx| {
        if !is_shut_down && shutdown.as_mut().poll(cx).is_ready() {
            is_shut_down = true;
            if mutant("detach_answers_what_it_drops") {
                connection.answer_unwritten();
            }
            match may_stay() {
                true => connection.is_leaving = true,
                false => connection.stop_taking(Ok(())),
            }
            linger = Some(Box::pin(tokio::time::sleep(options.linger)));
        }
        if linger.as_mut().is_some_and(|sleep| sleep.as_mut().poll(cx).is_ready()) {
            linger = None;
            connection.stop_taking(Ok(()));
            connection.stop_sending();
            connection.cut();
        }
        connection.poll(stream, &*export.device, cx)
    })
    .await;
    connection.log_errors_count();
    let is_whole = connection.is_leaving && connection.is_taking && connection.is_sending;
    let Connection { session, window, result, .. } = connection;
    result.map(|()| is_whole.then(|| Left { session, unread: window.unread().to_vec() }))
}

impl<'a, F, M> Connection<'a, F, M>
where
    F: Future<Output = Result<Answered, DeviceError>>,
    M: FnMut(Command, SharedBuf) -> F,
{
    /// A connection that begins, of a client that may have attached to its export.
    fn new(
        options: &'a ConnectionOptions,
        (session, export, is_attached): (Session, &'a str, bool),
        window: Window,
        operate: M,
    ) -> Self {
        Self {
            options,
            session,
            export,
            pool: options.pool.clone(),
            window,
            receiving: Receiving::Header,
            slots: Slots::new(options.in_flight_max.max(1)),
            completed: Vec::new(),
            outgoing: Outgoing::default(),
            slot_bytes: size_of_future(&operate),
            operate,
            bytes_in_flight: 0,
            share: options.memory.share(is_attached),
            is_short: false,
            large_read: None,
            large_write: None,
            watch: Watch::new(),
            waits_for_rest: false,
            is_taking: true,
            is_sending: true,
            is_cut: false,
            is_leaving: false,
            needs_flush: false,
            leases: Leases::default(),
            expects_payload: false,
            errors_count: 0,
            result: Ok(()),
        }
    }

    fn poll<S: AsyncRead + AsyncWrite + Unpin>(
        &mut self,
        stream: &mut S,
        device: &impl Device,
        cx: &mut Context<'_>,
    ) -> Poll<()> {
        self.slots.register(cx.waker());
        for _ in 0..ROUNDS_MAX {
            let mut has_progress = self.complete();
            let taken = self.take_requests(device);
            has_progress |= self.read_pieces();
            let needs_bytes = self.is_taking && matches!(taken, Taken::NeedsBytes);
            if needs_bytes {
                has_progress |= self.poll_receive(stream, cx);
            }
            has_progress |= self.poll_send(stream, cx);
            if self.is_over() {
                return Poll::Ready(());
            }
            self.waits_for_rest = needs_bytes && !self.is_between_requests();
            if !has_progress && !self.look(cx) {
                return Poll::Pending;
            }
        }
        cx.waker().wake_by_ref();
        Poll::Pending
    }

    /// Gives up what is in flight (C8).
    fn cut(&mut self) {
        self.is_cut = true;
        let operations = self.slots.active();
        if operations > 0 {
            let (client, export) = (&self.options.client, self.export);
            tracing::warn!(
                client,
                export,
                operations,
                "stopping without the end of what a client has in flight"
            );
        }
    }

    fn is_over(&self) -> bool {
        if self.is_cut || (mutant("operations_end_with_connection") && !self.is_sending) {
            return true;
        }
        let is_quiet = self.slots.active() == 0 && self.outgoing.is_empty() && !self.needs_flush;
        let takes_more = self.is_taking && !self.is_between_and_leaving();
        !takes_more && is_quiet && self.large_read.is_none() && self.large_write.is_none()
    }

    /// C10.
    fn is_between_and_leaving(&self) -> bool {
        self.is_leaving && matches!(self.receiving, Receiving::Header)
    }

    fn is_between_requests(&self) -> bool {
        matches!(self.receiving, Receiving::Header) && self.window.unread().is_empty()
    }

    /// Looks after the connection when nothing else is to be done; whether something is now.
    fn look(&mut self, cx: &mut Context<'_>) -> bool {
        let state = watch::State {
            is_clients_turn: !self.outgoing.is_empty() || self.waits_for_rest,
            is_quiet: self.in_flight() == 0 && self.is_between_requests(),
            is_short: self.is_short,
            is_wanted: self.share.others_wait(),
        };
        match self.watch.poll(state, cx) {
            Poll::Pending => return false,
            Poll::Ready(Look::Fine) => {}
            Poll::Ready(Look::Stuck) => {
                self.share.set_good(false);
                self.slots.shrink();
            }
            Poll::Ready(Look::Idle) => {
                self.window.shrink();
                self.share.give_back_windows();
                self.outgoing.shrink();
                self.slots.shrink();
                self.completed = Vec::new();
            }
            Poll::Ready(Look::Stalled(time)) => {
                self.stop_taking(Err(NbdError::Stalled { seconds: time.as_secs() }));
                self.stop_sending();
            }
        }
        true
    }

    fn in_flight(&self) -> usize {
        self.slots.active() + self.outgoing.len()
    }

    /// Takes the memory for another request, if C1 and C2 allow it.
    fn admit(&mut self, cost_bytes: usize) -> bool {
        let in_flight = self.in_flight();
        let bytes = self.bytes_in_flight.saturating_add(cost_bytes);
        let is_within = in_flight == 0
            || (in_flight < self.options.in_flight_max
                && bytes <= self.options.in_flight_bytes_max);
        if !is_within {
            return false;
        }
        self.is_short = !self.share.take(cost_bytes + self.slot_bytes);
        if !self.is_short {
            self.bytes_in_flight = bytes;
        }
        !self.is_short
    }

    /// Gives back memory of a request.
    fn release(&mut self, cost_bytes: usize) {
        self.bytes_in_flight -= cost_bytes;
        self.share.give_back(cost_bytes);
    }

    /// Gives back what an operation takes beside its buffers: it ended, or was none.
    fn release_slot(&mut self) {
        self.share.give_back(self.slot_bytes);
    }

    /// Takes every request that has arrived and may run; why it stopped.
    fn take_requests(&mut self, device: &impl Device) -> Taken {
        self.is_short = false;
        while self.is_taking {
            let taken = match &self.receiving {
                Receiving::Header if self.is_leaving => return Taken::HeldBack,
                // Its reply may have to be unbroken.
                Receiving::Header if self.large_read.is_some() => return Taken::HeldBack,
                Receiving::Header => self.take_header(device),
                Receiving::Payload { .. } => self.take_payload(),
                Receiving::Piece => Ok(self.take_piece()),
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
                if !self.admit(REPLY_BYTES) {
                    return Ok(Taken::HeldBack);
                }
                self.release_slot();
                self.window.consume(header_bytes);
                self.refuse(&header, refusal);
                let left = match mutant("refused_payload_taken_for_requests") {
                    true => 0,
                    false => to_usize(payload_bytes),
                };
                self.receiving = Receiving::Skip { left };
                Ok(Taken::Yes)
            }
            Verdict::Run { command, payload_bytes } => {
                let ticket = Ticket {
                    reply_to: self.session.reply_to(&header),
                    command,
                    cost_bytes: cost_bytes(&command),
                    part: Part::Whole,
                };
                let payload_bytes = to_usize(payload_bytes);
                Ok(self.take_command(ticket, header_bytes, payload_bytes))
            }
        }
    }

    fn take_command(&mut self, ticket: Ticket, header_bytes: usize, payload_bytes: usize) -> Taken {
        if payload_bytes > WHOLE_WRITE_BYTES_MAX {
            return self.begin_large_write(&ticket, header_bytes);
        }
        let is_direct = payload_bytes >= DIRECT_BYTES_MIN
            || header_bytes + payload_bytes > self.window.capacity();
        let arrived = self.window.unread().len() - header_bytes;
        if !is_direct && arrived < payload_bytes {
            self.expects_payload = false;
            return Taken::NeedsBytes;
        }
        if let Command::Read { length, .. } = ticket.command
            && length > WHOLE_READ_BYTES_MAX
        {
            return self.begin_large_read(&ticket, header_bytes);
        }
        if !self.admit(ticket.cost_bytes) {
            if self.is_short && self.in_flight() == 0 && payload_bytes == 0 {
                // Memory for a piece of it there always is.
                return self.begin_large_read(&ticket, header_bytes);
            }
            return Taken::HeldBack;
        }
        if payload_bytes == 0 {
            self.window.consume(header_bytes);
            self.start(ticket, SharedBuf::default());
            return Taken::Yes;
        }
        self.expects_payload = is_direct;
        if is_direct {
            self.window.consume(header_bytes);
            let buf = self.pool.alloc(payload_bytes);
            self.receiving = Receiving::Payload { ticket, buf, filled: 0 };
            return Taken::Yes;
        }
        let payload = &self.window.unread()[header_bytes..header_bytes + payload_bytes];
        let mut buf = self.pool.alloc(payload_bytes);
        buf.copy_from_slice(payload);
        self.window.consume(header_bytes + payload_bytes);
        self.start(ticket, buf.freeze());
        Taken::Yes
    }

    /// Moves what the window has of a payload into its buffer, and starts the write when it is whole (C5).
    fn take_payload(&mut self) -> Result<Taken, NbdError> {
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
            if ticket.part == Part::Write {
                self.receiving = self.after_piece();
            }
            self.start(ticket, buf.freeze());
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
        self.outgoing.push(Data::default(), REPLY_BYTES, |out| {
            reply_to.error(out, refusal.code, refusal.reason)
        });
    }

    /// Starts an operation whose memory was taken.
    fn start(&mut self, ticket: Ticket, payload: SharedBuf) {
        if mutant("flush_of_own_writes")
            && ticket.command == Command::Flush
            && self.slots.active() == 0
        {
            let (answer, leases) = (Answer::Done, Leases::default());
            return self.on_completed(ticket, Ok(Answered { answer, leases }));
        }
        let future = (self.operate)(ticket.command, payload);
        if let Some((ticket, outcome)) = self.slots.start(future, ticket) {
            self.on_completed(ticket, outcome);
        }
    }

    /// Polls the operations that can go on, and queues the replies of those that completed.
    fn complete(&mut self) -> bool {
        let mut completed = std::mem::take(&mut self.completed);
        let polled = self.slots.poll_woken(|ticket, outcome| completed.push((ticket, outcome)));
        if mutant("reply_for_wrong_cookie")
            && let [(first, _), (second, _), ..] = &mut completed[..]
        {
            std::mem::swap(&mut first.reply_to, &mut second.reply_to);
        }
        for (ticket, outcome) in completed.drain(..) {
            self.on_completed(ticket, outcome);
        }
        self.completed = completed;
        polled
    }

    fn on_completed(&mut self, ticket: Ticket, outcome: Result<Answered, DeviceError>) {
        self.release_slot();
        // C6.
        let outcome = outcome.and_then(|Answered { answer, leases }| {
            if !mutant("lease_unchecked_on_reply") {
                leases.check()?;
                self.leases.join(&leases);
            }
            Ok(answer)
        });
        if let Err(error) = &outcome {
            self.log_error(&ticket.command, error);
        }
        match ticket.part {
            Part::Whole if self.is_sending => self.reply(ticket, outcome),
            Part::Whole => self.release(ticket.cost_bytes),
            Part::Read => self.on_piece_read(&ticket, outcome),
            Part::Write => self.on_piece_written(&ticket, outcome),
        }
    }

    /// Queues the reply to a whole request; what it does not take of the request's memory is given back.
    fn reply(&mut self, ticket: Ticket, outcome: Result<Answer, DeviceError>) {
        let Ticket { reply_to, command, cost_bytes: taken_bytes, .. } = ticket;
        let cost_bytes = REPLY_BYTES
            + match &outcome {
                Ok(Answer::Data(data)) => BufferPool::bytes_for(data.len()),
                Ok(Answer::Status(statuses)) => status_bytes(statuses),
                Ok(Answer::Done) | Err(_) => 0,
            };
        let cost_bytes = cost_bytes.min(taken_bytes);
        self.release(taken_bytes - cost_bytes);
        match outcome {
            Ok(Answer::Data(data)) => {
                let length = u32::try_from(data.len()).expect("a read is at most 32 MiB");
                self.outgoing.push(data, cost_bytes, |out| reply_to.read_head(out, length));
            }
            Ok(Answer::Status(statuses)) => {
                self.outgoing
                    .push(Data::default(), cost_bytes, |out| reply_to.block_status(out, &statuses));
            }
            Ok(Answer::Done) => {
                self.outgoing.push(Data::default(), cost_bytes, |out| reply_to.success(out));
            }
            Err(error) => {
                let code = error_code(error.kind(), &command);
                let message = error.to_string();
                self.outgoing
                    .push(Data::default(), cost_bytes, |out| reply_to.error(out, code, &message));
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
            Receiving::Header | Receiving::Skip { .. } | Receiving::Piece => {
                self.window.space(usize::MAX)
            }
        };
        let mut into = ReadBuf::new(space);
        let received = match Pin::new(stream).poll_read(cx, &mut into) {
            Poll::Pending => return false,
            Poll::Ready(received) => received.map(|()| into.filled().len()),
        };
        match received {
            Ok(0) => self.on_end_of_stream(),
            Ok(bytes) => self.on_received(bytes),
            Err(source) => {
                self.stop_taking(Err(NbdError::Connection { source }));
                self.stop_sending();
            }
        }
        true
    }

    fn on_received(&mut self, bytes: usize) {
        self.watch.moved(bytes);
        if let Receiving::Payload { filled, .. } = &mut self.receiving {
            *filled += bytes;
            return;
        }
        self.window.received(bytes);
        let more = WINDOW_BYTES - self.window.capacity().min(WINDOW_BYTES);
        if self.window.wants_to_grow() && self.share.take_window(more) {
            self.window.grow();
        }
    }

    fn on_end_of_stream(&mut self) {
        if mutant("write_cut_short_runs")
            && let Receiving::Payload { .. } = &self.receiving
            && let Receiving::Payload { ticket, buf, .. } =
                std::mem::replace(&mut self.receiving, Receiving::Header)
        {
            self.start(ticket, buf.freeze());
        }
        let is_between = self.is_between_requests();
        self.stop_taking(if is_between { Ok(()) } else { Err(NbdError::Truncated) });
    }

    /// Sends what is queued; whether anything happened.
    fn poll_send<S: AsyncWrite + Unpin>(&mut self, stream: &mut S, cx: &mut Context<'_>) -> bool {
        let mut has_progress = false;
        while !self.outgoing.is_empty() {
            // C6: the client may have read nothing for a while.
            if let Err(error) = self.leases.check() {
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
                Poll::Pending => {
                    // C9.
                    self.outgoing.detach(&self.pool);
                    return has_progress;
                }
                Poll::Ready(Ok(bytes)) if bytes > 0 => {
                    self.watch.moved(bytes);
                    let sent_bytes = self.outgoing.sent(bytes);
                    self.release(sent_bytes);
                    self.share.set_good(sent_bytes > 0 || self.share.is_good());
                    self.needs_flush = true;
                }
                Poll::Ready(Ok(_)) => self.on_send_failed(io::ErrorKind::WriteZero.into()),
                Poll::Ready(Err(source)) => self.on_send_failed(source),
            }
            has_progress = true;
        }
        self.leases.clear();
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

    /// A deliberate bug: a write whose payload is still on its way counts as written.
    fn answer_unwritten(&mut self) {
        if let Receiving::Payload { ticket, .. } = &self.receiving
            && ticket.part == Part::Whole
        {
            let reply_to = ticket.reply_to;
            self.outgoing.push(Data::default(), 0, |out| reply_to.success(out));
        } else if matches!(self.receiving, Receiving::Header)
            && let Ok(Decoded::Message { message, .. }) =
                decode_request(self.session.style, self.window.unread())
        {
            let reply_to = self.session.reply_to(&message);
            self.outgoing.push(Data::default(), 0, |out| reply_to.success(out));
        }
    }

    /// Takes no further requests. The first reason to stop is the connection's result.
    fn stop_taking(&mut self, result: Result<(), NbdError>) {
        if self.is_taking {
            self.is_taking = false;
            self.result = result;
        }
        // A payload that is not whole is never written (C5), and nobody waits for the rest of a long one. One that is
        // whole is answered (C1).
        if !matches!(self.receiving, Receiving::Header) {
            self.large_write = None;
        }
        if let Receiving::Payload { ticket, .. } =
            std::mem::replace(&mut self.receiving, Receiving::Header)
        {
            self.release(ticket.cost_bytes);
            self.release_slot();
        }
    }

    /// Drops every reply from here on: nobody reads them.
    fn stop_sending(&mut self) {
        self.is_sending = false;
        self.needs_flush = false;
        let forgotten_bytes = self.outgoing.clear();
        self.release(forgotten_bytes);
        self.large_read = None;
    }
}

fn to_usize(bytes: u32) -> usize {
    usize::try_from(bytes).expect("a payload fits the address space")
}
