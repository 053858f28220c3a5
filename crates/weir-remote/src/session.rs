//! What the calls of a remote volume and the task with its connections share.
//!
//! Invariants
//!  S1. A change is sent under a lock of its range, which is held until nothing of it can happen any more: two changes
//!      of a byte are never under way together, so that they can be sent again in any order.
//!  S2. While the volume is not ready no request of a call is sent: what was acknowledged and may be lost is sent
//!      first, so that no read shows less than an earlier one.
//!  S3. Where bytes that were acknowledged may be lost and cannot be sent again, no change and no flush succeeds any
//!      more, and no read of those bytes.
//!  S4. Nothing is answered any more once the export is not what it was: the content was replaced, another volume
//!      answers, or, where exclusive access was asked for, another client may have written.

use std::cell::RefCell;
use std::collections::VecDeque;
use std::rc::Rc;
use std::task::{Context, Waker};
use std::time::Duration;

use tokio::sync::{Mutex, Notify};
use tokio::time::Instant;
use weir_device::{
    ByteRange, DeviceError, Env, ErrorKind, Event, Events, RangeGuard, RangeLock, SharedBuf, mutant,
};
use weir_nbd::{Command, Instance, Tag};

use crate::answer::Answer;
use crate::error::{RemoteError, failed};
use crate::exported::{Exported, Found, RemoteArgs};
use crate::link::Ended;
use crate::status::RemoteStatus;
use crate::ticket::{Answered, Purpose, Ticket};
use crate::unflushed::{Content, Unflushed};

/// A connection that is silent for one part in so many of a deadline is made anew, so that there is time left.
const SILENCES: u32 = 3;

/// What changes.
pub(crate) struct State {
    pub(crate) exported: Exported,
    server: Option<String>,
    connections: usize,
    /// S2.
    pub(crate) is_ready: bool,
    is_closing: bool,
    /// What was not answered when the volume was closed is not waited for.
    is_abandoned: bool,
    /// The task has ended: nothing is sent any more.
    is_over: bool,
    /// Requests of calls that were not sent.
    waiting: VecDeque<Ticket>,
    /// Requests that go first, while the volume is not ready.
    first: VecDeque<Ticket>,
    in_flight: usize,
    pub(crate) unflushed: Unflushed,
    /// Which opening of the export answers, or answered last, if the server says so.
    instance: Option<Instance>,
    /// The opening that has all that was acknowledged.
    whole_at: Option<Instance>,
    /// What comes with exclusive access: the tag to show the next time.
    tag: Option<Tag>,
    /// The identity of the volume, if the server tells it.
    volume: Option<[u8; 16]>,
    /// S3, S4.
    pub(crate) lost: Option<DeviceError>,
    /// S4.
    is_superseded: bool,
    times_lost: u64,
    trouble: Option<String>,
    orders: u64,
    /// Whether a flush was asked for because much is not flushed.
    pub(crate) is_flushing: bool,
    /// The number of the last flush that ended, and how.
    pub(crate) flushed: Option<(u64, Result<(), DeviceError>)>,
}

/// See the head of this file.
pub(crate) struct Session {
    pub(crate) env: Env,
    pub(crate) args: RemoteArgs,
    pub(crate) shown: String,
    pub(crate) locks: RangeLock,
    pub(crate) events: Events,
    pub(crate) state: RefCell<State>,
    task: RefCell<Option<Waker>>,
    /// Told when what is not flushed became less, or cannot any more.
    pub(crate) less_unflushed: Notify,
    /// Told when the task has ended.
    ended: Notify,
    /// One flush at a time: the others wait, and the next one is for all of them.
    pub(crate) flush_turn: Mutex<()>,
}

impl Session {
    pub(crate) fn new(env: Env, args: RemoteArgs, exported: Exported) -> Self {
        let state = State {
            exported,
            server: None,
            connections: 0,
            is_ready: false,
            is_closing: false,
            is_abandoned: false,
            is_over: false,
            waiting: VecDeque::new(),
            first: VecDeque::new(),
            in_flight: 0,
            unflushed: Unflushed::default(),
            instance: None,
            whole_at: None,
            tag: None,
            volume: None,
            lost: None,
            is_superseded: false,
            times_lost: 0,
            trouble: None,
            orders: 0,
            is_flushing: false,
            flushed: None,
        };
        let shown = args.url.to_string();
        Self {
            env,
            args,
            shown,
            locks: RangeLock::default(),
            events: Events::default(),
            state: RefCell::new(state),
            task: RefCell::default(),
            less_unflushed: Notify::new(),
            ended: Notify::new(),
            flush_turn: Mutex::new(()),
        }
    }

    pub(crate) fn error(&self, kind: ErrorKind, message: &str) -> DeviceError {
        DeviceError::new(kind, format!("{}: {message}", self.shown))
    }

    /// What the server offers now.
    pub(crate) fn exported<T>(&self, look: impl FnOnce(&Exported) -> T) -> T {
        look(&self.state.borrow().exported)
    }

    // Of the calls.

    /// Hands a request to the task.
    pub(crate) fn submit(
        &self,
        command: Command,
        payload: SharedBuf,
        guard: Option<Rc<RangeGuard>>,
    ) -> Answered {
        let mut state = self.state.borrow_mut();
        let order = state.next_order();
        let (mut ticket, answered) = Ticket::new(order, command, payload, Purpose::Call);
        ticket.deadline = Some(Instant::now() + self.args.deadline);
        ticket.guard = guard;
        let refused = state.refuses(&ticket).or_else(|| {
            state.is_over.then(|| self.error(ErrorKind::Unavailable, "the volume is closed"))
        });
        match refused {
            Some(error) => ticket.tell(Err(error)),
            None => state.waiting.push_back(ticket),
        }
        drop(state);
        self.wake();
        answered
    }

    /// The answer to a request.
    pub(crate) async fn answer(&self, answered: Answered) -> Result<Answer, DeviceError> {
        let gone = |_| Err(self.error(ErrorKind::Unavailable, "the volume was closed"));
        answered.await.unwrap_or_else(gone)
    }

    /// Nothing is submitted any more; the task ends once everything was answered.
    pub(crate) fn close(&self) {
        self.state.borrow_mut().is_closing = true;
        self.wake();
    }

    /// What was not answered is not waited for any more.
    pub(crate) fn abandon(&self) {
        self.state.borrow_mut().is_abandoned = true;
        self.wake();
    }

    pub(crate) fn is_abandoned(&self) -> bool {
        self.state.borrow().is_abandoned
    }

    pub(crate) fn status(&self) -> RemoteStatus {
        let state = self.state.borrow();
        RemoteStatus {
            url: self.shown.clone(),
            is_connected: state.is_ready,
            is_exclusive: self.args.exclusive && !state.is_superseded,
            connections: state.connections,
            server: state.server.clone(),
            lost: state.times_lost,
            trouble: state.trouble.clone(),
            requests: state.waiting.len() + state.in_flight,
            unflushed_bytes: state.unflushed.bytes(),
            refuses_writes: state.lost.as_ref().map(ToString::to_string),
        }
    }

    // Of the task.

    /// Has the task woken by what calls do.
    pub(crate) fn note_waker(&self, cx: &Context<'_>) {
        let mut task = self.task.borrow_mut();
        match &mut *task {
            Some(waker) => waker.clone_from(cx.waker()),
            none => *none = Some(cx.waker().clone()),
        }
    }

    fn wake(&self) {
        if let Some(waker) = &*self.task.borrow() {
            waker.wake_by_ref();
        }
    }

    pub(crate) fn is_closing(&self) -> bool {
        self.state.borrow().is_closing
    }

    pub(crate) fn set_in_flight(&self, in_flight: usize) {
        self.state.borrow_mut().in_flight = in_flight;
    }

    /// The next request to send (S2).
    pub(crate) fn next(&self) -> Option<Ticket> {
        let mut state = self.state.borrow_mut();
        match state.is_ready || mutant("ready_before_sent_again") {
            true => state.waiting.pop_front().or_else(|| state.first.pop_front()),
            false => state.first.pop_front(),
        }
    }

    /// Whether there is a request that may be sent now.
    pub(crate) fn has_next(&self) -> bool {
        let state = self.state.borrow();
        match state.is_ready {
            true => !state.waiting.is_empty(),
            false => !state.first.is_empty(),
        }
    }

    /// Silence on a connection on which requests wait, after which it is made anew. Where changes cannot be sent again
    /// that would fail them, which is not done before their deadline.
    pub(crate) fn silence_max(&self) -> Duration {
        match self.sends_again() {
            true => self.args.deadline / SILENCES,
            false => self.args.deadline,
        }
    }

    /// Whether changes are sent again on new connections. A server that tells its opening keeps old connections from
    /// carrying out anything once a new one is there.
    fn sends_again(&self) -> bool {
        self.args.resend || self.state.borrow().instance.is_some()
    }

    /// Whether requests wait to be sent.
    pub(crate) fn has_waiting(&self) -> bool {
        let state = self.state.borrow();
        !state.waiting.is_empty() || !state.first.is_empty()
    }

    /// Whether all that goes first was sent.
    pub(crate) fn has_no_first(&self) -> bool {
        self.state.borrow().first.is_empty()
    }

    /// New connections are there: what the server offers now, and what has to be sent first (S2).
    pub(crate) fn connected(&self, found: Found, connections: usize) {
        let Found { exported, attached, server } = found;
        let instance = attached.map(|attached| attached.instance);
        let mut state = self.state.borrow_mut();
        if exported.size != state.exported.size {
            let (before, now) = (state.exported.size, exported.size);
            tracing::warn!(url = %self.shown, before, now, "the export has another size, in bytes, than before");
            self.events.push(Event::Resized(exported.size));
        }
        let is_same = instance.is_some() && instance == state.whole_at
            || mutant("another_opening_taken_for_same");
        (state.exported, state.connections, state.server) = (exported, connections, server);
        state.instance = instance;
        if mutant("whole_before_sent_again") {
            state.whole_at = instance;
        }
        state.volume = attached.and_then(|attached| attached.volume).or(state.volume);
        state.tag = attached.and_then(|attached| attached.exclusive).map(|given| given.tag);
        state.first.clear();
        drop(state);
        if !self.sends_again() {
            self.give_up_sent();
        } else if !is_same && !mutant("not_sent_again") {
            self.send_again();
        }
    }

    /// Whether nobody else writes.
    pub(crate) fn is_exclusive(&self) -> bool {
        self.args.exclusive && !self.state.borrow().is_superseded
    }

    /// The tag of the exclusive access, if there is one.
    pub(crate) fn tag(&self) -> Option<Tag> {
        self.state.borrow().tag
    }

    /// Why what answers now is not what answered on the last connection, if it is not. A log volume of another Weir is
    /// known by its identity, and may have been made smaller; of any other export a smaller size is all that tells a
    /// disk that was exchanged, or cut off, from the one that has what was flushed.
    pub(crate) fn is_not_the_same(&self, found: &Found) -> Option<String> {
        let (known, now) = (self.state.borrow().volume, found.attached.and_then(|a| a.volume));
        if known.is_some() && now.is_some() && known != now {
            return Some("another volume answers under its name".to_owned());
        }
        let (before, size) = (self.exported(|exported| exported.size), found.exported.size);
        if size < before && (known.is_none() || known != now) {
            let less = format!("the export has {size} bytes now, and had {before} before");
            return Some(format!("{less}: another disk answers, or it was cut off"));
        }
        let given = found.attached.and_then(|attached| attached.exclusive);
        let is_alone = self.tag().is_none()
            || given.is_some_and(|given| given.is_unchanged)
            || mutant("exclusive_loss_ignored");
        let others = "another client may have written to the export meanwhile";
        (!is_alone).then(|| others.to_owned())
    }

    /// S4. What was not flushed is not sent again: it would be written over what the other client
    /// wrote.
    pub(crate) fn superseded(&self, why: &str) {
        let bytes = self.state.borrow().unflushed.bytes();
        let what = match self.args.exclusive {
            true => "exclusive access is lost",
            false => "the export is not what it was",
        };
        let unsent = match bytes {
            0 => String::new(),
            bytes => format!("; {bytes} bytes that were acknowledged and not flushed are not sent"),
        };
        let message = format!(
            "{what}: {why}{unsent}. Detach the volume and attach it again, or start weir up anew, to use \
             what the export holds now"
        );
        let error = self.error(ErrorKind::Fenced, &message);
        tracing::error!(%error, "the remote volume answers nothing any more");
        self.events.push(Event::ExclusiveLost(error.clone()));
        let mut state = self.state.borrow_mut();
        (state.lost, state.is_superseded) = (Some(error.clone()), true);
        state.first.clear();
        for mut ticket in std::mem::take(&mut state.waiting) {
            ticket.tell(Err(error.clone()));
        }
        drop(state);
        self.less_unflushed.notify_waiters();
    }

    /// What was acknowledged and not flushed goes first.
    fn send_again(&self) {
        let mut state = self.state.borrow_mut();
        if state.lost.is_some() {
            return;
        }
        for (command, payload) in again(&state) {
            let order = state.next_order();
            let (ticket, _) = Ticket::new(order, command, payload, Purpose::Again);
            state.first.push_back(ticket);
        }
    }

    /// The server told its opening before, and does not any more: nothing can be sent again.
    fn give_up_sent(&self) {
        let why = "another server answers than before, which does not tell its openings apart";
        if self.has_unflushed() {
            self.lose(why);
        }
        let mut state = self.state.borrow_mut();
        state.waiting.retain_mut(|ticket| {
            let is_unsure = ticket.was_sent && ticket.changes().is_some();
            if is_unsure {
                ticket.tell(Err(self.not_known(why)));
            }
            !is_unsure
        });
    }

    fn not_known(&self, why: &str) -> DeviceError {
        let what = "whether the write was carried out is not known";
        self.error(ErrorKind::Unavailable, &format!("{why}; {what}"))
    }

    /// S2: requests of calls are sent from here on.
    pub(crate) fn set_ready(&self) {
        let mut state = self.state.borrow_mut();
        state.is_ready = true;
        // Only now: what goes first may have been cut off in the middle.
        state.whole_at = state.instance;
        drop(state);
        self.wake();
    }

    pub(crate) fn note_trouble(&self, error: &RemoteError) {
        self.state.borrow_mut().trouble = Some(error.to_string());
    }

    /// A request was answered.
    ///
    /// # Errors
    /// The server takes no requests any more.
    pub(crate) fn ended(&self, ended: Ended) -> Result<(), RemoteError> {
        let Ended { mut ticket, result } = ended;
        match result {
            Ok(()) => {
                if ticket.purpose == Purpose::Call {
                    self.acknowledged(&ticket);
                }
                let answer = ticket.answer();
                ticket.tell(Ok(answer));
                Ok(())
            }
            Err(failure) if failure.code == weir_nbd::ErrorCode::Shutdown => {
                // It was not carried out, and can be sent again in any case.
                ticket.begin_anew();
                ticket.was_sent = false;
                if ticket.purpose == Purpose::Call && !ticket.is_given_up() {
                    self.state.borrow_mut().waiting.push_front(ticket);
                }
                Err(RemoteError::ShuttingDown)
            }
            Err(failure) => {
                let error = failed(&self.shown, described(&ticket.command), &failure);
                let is_flush = ticket.command == Command::Flush;
                if ticket.purpose == Purpose::Again || (is_flush && self.has_unflushed()) {
                    let what = "what it acknowledged may be lost: it could not be made durable";
                    self.lose(&format!("{what}: {error}"));
                }
                ticket.tell(Err(error));
                Ok(())
            }
        }
    }

    fn has_unflushed(&self) -> bool {
        !self.state.borrow().unflushed.is_empty()
    }

    /// Takes note of a change that the server acknowledged.
    fn acknowledged(&self, ticket: &Ticket) {
        let Some(range) = ticket.changes() else { return };
        let sends_again = self.sends_again();
        let unflushed = &mut self.state.borrow_mut().unflushed;
        let content = match ticket.command {
            Command::Write { fua: true, .. } | Command::WriteZeroes { fua: true, .. } => {
                if !mutant("forced_change_undone") {
                    unflushed.forget(range);
                }
                return;
            }
            _ if !sends_again => Content::Unknown,
            Command::WriteZeroes { no_hole, .. } => Content::Zeroes { no_hole },
            _ => Content::Data(ticket.payload.clone()),
        };
        unflushed.record(range, content);
    }

    /// The server does not take a request at all.
    pub(crate) fn not_offered(&self, mut ticket: Ticket) {
        let what = described(&ticket.command);
        let (kind, message) = match self.exported(Exported::is_read_only) {
            true => (ErrorKind::ReadOnly, "the export is read-only".to_owned()),
            false => (ErrorKind::Unsupported, format!("the server does not take {what}")),
        };
        if ticket.purpose == Purpose::Again {
            self.lose(&message);
        }
        ticket.tell(Err(self.error(kind, &message)));
    }

    /// S3.
    fn lose(&self, why: &str) {
        let mut state = self.state.borrow_mut();
        if state.lost.is_some() {
            return;
        }
        let bytes = state.unflushed.bytes();
        let message = format!(
            "{bytes} bytes that were acknowledged since the last flush may be lost: {why}. Detach the volume and \
             attach it again, or start weir up anew, once its content was checked"
        );
        let error = self.error(ErrorKind::Poisoned, &message);
        tracing::error!(%error, "the remote volume takes no writes any more");
        self.events.push(Event::Degraded(error.clone()));
        state.lost = Some(error);
        state.first.clear();
        let waiting = std::mem::take(&mut state.waiting);
        for mut ticket in waiting {
            match state.refuses(&ticket) {
                Some(error) => ticket.tell(Err(error)),
                None => state.waiting.push_back(ticket),
            }
        }
        drop(state);
        self.less_unflushed.notify_waiters();
    }

    /// The connections are gone, and these requests were not answered.
    pub(crate) fn disconnected(&self, unanswered: Vec<Ticket>, why: &RemoteError) {
        {
            let mut state = self.state.borrow_mut();
            (state.is_ready, state.in_flight, state.connections) = (false, 0, 0);
            state.times_lost += 1;
            state.trouble = Some(why.to_string());
        }
        let sends_again = self.sends_again();
        if !sends_again && self.has_unflushed() {
            self.lose(&why.to_string());
        }
        let mut state = self.state.borrow_mut();
        let mut again: Vec<Ticket> = Vec::with_capacity(unanswered.len());
        for mut ticket in unanswered {
            let is_change = ticket.changes().is_some();
            // Whoever was told that it failed may have gone on without it.
            if ticket.purpose == Purpose::Again || ticket.is_given_up() {
                continue;
            }
            if is_change && mutant("unanswered_writes_acknowledged") {
                ticket.tell(Ok(Answer::Done));
                continue;
            }
            if let Some(error) = state.refuses(&ticket) {
                ticket.tell(Err(error));
            } else if is_change && !sends_again {
                ticket.tell(Err(self.not_known(&why.to_string())));
            } else {
                ticket.begin_anew();
                again.push(ticket);
            }
        }
        again.extend(std::mem::take(&mut state.waiting));
        again.sort_by_key(|ticket| ticket.order);
        state.waiting = again.into();
    }

    /// Tells the callers of requests that were not sent in time.
    pub(crate) fn give_up_overdue(&self, now: Instant) {
        let mut state = self.state.borrow_mut();
        let overdue = self.overdue_error(&state);
        state.waiting.retain_mut(|ticket| {
            let is_overdue = ticket.is_overdue(now);
            if is_overdue {
                ticket.tell(Err(overdue.clone()));
            }
            !is_overdue
        });
    }

    /// Tells the caller of a request that was sent and not answered in time.
    pub(crate) fn give_up(&self, ticket: &mut Ticket) {
        let overdue = self.overdue_error(&self.state.borrow());
        ticket.tell(Err(overdue));
    }

    pub(crate) fn overdue_error(&self, state: &State) -> DeviceError {
        let seconds = self.args.deadline.as_secs_f64();
        let why = match (&state.trouble, state.is_ready) {
            (Some(trouble), false) => format!(" ({trouble})"),
            _ => String::new(),
        };
        self.error(ErrorKind::Unavailable, &format!("no answer within {seconds} s{why}"))
    }

    /// Nothing is sent any more.
    pub(crate) fn over(&self) {
        let mut state = self.state.borrow_mut();
        (state.is_over, state.is_ready, state.connections) = (true, false, 0);
        let closed = self.error(ErrorKind::Unavailable, "the volume was closed");
        for mut ticket in std::mem::take(&mut state.waiting) {
            ticket.tell(Err(closed.clone()));
        }
        state.first.clear();
        drop(state);
        self.less_unflushed.notify_waiters();
        self.ended.notify_waiters();
    }

    /// Returns once the task has ended.
    pub(crate) async fn until_over(&self) {
        loop {
            let mut ended = std::pin::pin!(self.ended.notified());
            ended.as_mut().enable();
            if self.state.borrow().is_over {
                return;
            }
            ended.await;
        }
    }
}

impl State {
    fn next_order(&mut self) -> u64 {
        self.orders += 1;
        self.orders
    }

    /// S3, S4.
    fn refuses(&self, ticket: &Ticket) -> Option<DeviceError> {
        let lost = self.lost.as_ref().filter(|_| !mutant("loss_forgotten"))?;
        let is_touched = match ticket.command {
            _ if self.is_superseded => true,
            Command::Read { offset, length, .. } => {
                let read = ByteRange::at(offset, length.into());
                read.is_some_and(|range| self.unflushed.overlaps(range))
            }
            // What is lost must not be told as a hole.
            Command::BlockStatus { offset, length, .. } => {
                let asked = ByteRange::at(offset, length);
                asked.is_some_and(|range| self.unflushed.overlaps(range))
            }
            Command::Cache { .. } => false,
            _ => true,
        };
        is_touched.then(|| lost.clone())
    }
}

/// Requests that make what was acknowledged and not flushed what it was.
fn again(state: &State) -> Vec<(Command, SharedBuf)> {
    let mut found = Vec::new();
    let payload_max = state.exported.blocks.payload_max;
    for (range, content) in state.unflushed.pieces() {
        match content {
            Content::Unknown => {}
            Content::Zeroes { no_hole } => {
                let (offset, length, no_hole) = (range.start, range.len(), *no_hole);
                let (fua, fast) = (false, false);
                let command = Command::WriteZeroes { offset, length, fua, no_hole, fast };
                found.push((command, SharedBuf::default()));
            }
            Content::Data(data) => {
                for piece in range.pieces(payload_max) {
                    let to_usize = |bytes: u64| usize::try_from(bytes).expect("within the data");
                    let (at, len) = (to_usize(piece.start - range.start), to_usize(piece.len()));
                    let length = u32::try_from(len).expect("no more than a payload");
                    let command = Command::Write { offset: piece.start, length, fua: false };
                    found.push((command, data.slice(at, len)));
                }
            }
        }
    }
    found
}

fn described(command: &Command) -> &'static str {
    match command {
        Command::Read { .. } => "a read",
        Command::Write { .. } => "a write",
        Command::WriteZeroes { .. } => "a write of zeroes",
        Command::Trim { .. } => "a discard",
        Command::Flush => "a flush",
        Command::Cache { .. } => "a request to read ahead",
        Command::BlockStatus { .. } => "a request for block status",
    }
}
