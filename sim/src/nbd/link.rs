//! One connection of a client, from its handshake to its end.

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::future::Future;
use std::rc::Rc;
use std::time::Duration;

use tokio::io::{AsyncReadExt, AsyncWriteExt, ReadHalf, WriteHalf};
use tokio::sync::{Notify, oneshot};
use tokio::time::{Instant, timeout};
use weir_device::{Address, Body, ByteStream, Data, Extent, ExtentState, SharedBuf};
use weir_nbd::{
    ALLOCATION_CONTEXT, Agreement, AllocationFlags, ClientHandshake, ClientStep, ClientWish,
    Command, Cookie, ExtentStatus, Failure, ReplyStep, ReplyStyle, Requests, Session,
};
use weir_net::sim::{ConnectionId, Side};

use super::server::EXPORT;
use crate::content::WriteId;
use crate::dice::Dice;
use crate::world::World;

/// What an answer brings back.
type Answer = Result<Body, Failure>;

/// Time for a handshake: more than the server takes to give one up.
const HANDSHAKE: Duration = Duration::from_secs(90);

/// Bytes received at once.
const RECEIVED_MAX: usize = 64 << 10;

/// The connection was lost before an answer.
#[derive(Debug)]
pub(super) struct Lost;

/// An answer, and when it left the server.
pub(super) struct Answered {
    pub(super) answer: Answer,
    pub(super) left: Option<Instant>,
}

type Stream = Box<dyn ByteStream>;

/// A request that waits for its answer.
struct Waiting {
    command: Command,
    data: Vec<u8>,
    extents: Vec<ExtentStatus>,
    answer: oneshot::Sender<Answered>,
}

/// A connection to the server.
pub(crate) struct Link {
    pub(super) id: ConnectionId,
    pub(super) session: Session,
    /// What it was told of the volume.
    pub(super) size: u64,
    requests: RefCell<Requests>,
    waiting: RefCell<BTreeMap<Cookie, Waiting>>,
    out: RefCell<Vec<u8>>,
    /// There is something to send, or to be noticed.
    wake: Notify,
    silence: Notify,
    is_silent: Cell<bool>,
    /// It asks for nothing more, and ends when everything was answered.
    is_leaving: Cell<bool>,
    is_abandoned: Cell<bool>,
    is_over: Cell<bool>,
    /// Something was answered.
    is_served: Cell<bool>,
    /// The server may give up what it has in flight.
    lingers: Cell<bool>,
    /// When what was received last had left the server.
    arrived_left: Cell<Option<Instant>>,
    /// Pause before each look at what was received.
    pub(super) slow: Cell<Option<Duration>>,
    /// Writes that were not answered.
    lost: RefCell<Vec<WriteId>>,
    /// The server has let go of it; whether with everything at its end.
    is_settled: Cell<Option<bool>>,
}

/// Connects and shakes hands. The error names the connection, if there was one.
pub(super) async fn connect(
    world: &Rc<World>,
    at: &Address,
    style: ReplyStyle,
    dice: Dice,
) -> Result<(Rc<Link>, impl Future<Output = String> + use<>), (Option<ConnectionId>, String)> {
    let connected = world.network.connect_numbered(at).await;
    let (id, mut stream) = connected.map_err(|error| (None, error.to_string()))?;
    let shaken = timeout(HANDSHAKE, shake_hands(&mut stream, style)).await;
    let (Agreement { session, size, .. }, received) = match shaken {
        Ok(Ok(agreed)) => agreed,
        Ok(Err(error)) => return Err((Some(id), error)),
        Err(_) => return Err((Some(id), "the handshake does not come to its end".to_owned())),
    };
    let link = Rc::new(Link {
        id,
        requests: RefCell::new(Requests::new(session.clone())),
        session,
        size,
        waiting: RefCell::default(),
        out: RefCell::default(),
        wake: Notify::new(),
        silence: Notify::new(),
        is_silent: Cell::new(false),
        is_leaving: Cell::new(false),
        is_abandoned: Cell::new(false),
        is_over: Cell::new(false),
        is_served: Cell::new(false),
        lingers: Cell::new(false),
        arrived_left: Cell::new(None),
        slow: Cell::new(None),
        lost: RefCell::default(),
        is_settled: Cell::new(None),
    });
    let driver = drive(Rc::clone(world), Rc::clone(&link), stream, received, dice);
    Ok((link, driver))
}

async fn shake_hands(
    stream: &mut Stream,
    style: ReplyStyle,
) -> Result<(Agreement, Vec<u8>), String> {
    let contexts = vec![ALLOCATION_CONTEXT.to_owned()];
    let wish = ClientWish {
        export: EXPORT.to_owned(),
        tls: false,
        attachment: None,
        style_max: style,
        contexts,
    };
    let mut handshake = ClientHandshake::new(wish);
    let (mut received, mut out) = (Vec::new(), Vec::new());
    loop {
        let progress = handshake.advance(&received, &mut out).map_err(|e| e.to_string())?;
        received.drain(..progress.consumed);
        stream.write_all(&out).await.map_err(|e| e.to_string())?;
        out.clear();
        match progress.step {
            ClientStep::Again | ClientStep::StartTls => {}
            ClientStep::Transmit(agreement) => return Ok((agreement, received)),
            ClientStep::NeedMore(_) => {
                let bytes = stream.read_buf(&mut received).await.map_err(|e| e.to_string())?;
                if bytes == 0 {
                    return Err("the server hung up".to_owned());
                }
            }
        }
    }
}

/// Moves bytes until the connection is over; why it is.
async fn drive(
    world: Rc<World>,
    link: Rc<Link>,
    stream: Stream,
    received: Vec<u8>,
    mut dice: Dice,
) -> String {
    let (mut reading, mut writing) = tokio::io::split(stream);
    let ended = {
        let send = Box::pin(send(&link, &mut writing));
        let receive = Box::pin(receive(&world, &link, &mut reading, received, &mut dice));
        let abandoned = Box::pin(async {
            while !link.is_abandoned.get() {
                link.silence.notified().await;
            }
        });
        tokio::select! {
            biased;
            ended = receive => ended,
            error = send => error,
            () = abandoned => "given up".to_owned(),
        }
    };
    link.is_over.set(true);
    // Those who wait learn that nothing comes any more.
    link.waiting.borrow_mut().clear();
    ended
}

/// Sends what there is to send; ends with an error only.
async fn send(link: &Link, writing: &mut WriteHalf<Stream>) -> String {
    loop {
        let bytes = std::mem::take(&mut *link.out.borrow_mut());
        if bytes.is_empty() {
            link.wake.notified().await;
            continue;
        }
        if let Err(error) = writing.write_all(&bytes).await {
            return error.to_string();
        }
    }
}

/// What is done next with what was received.
enum Next {
    Receive,
    Again,
    /// Bytes of a read: which, where in it, how many.
    Fill(Cookie, usize, usize),
}

/// Receives answers until nothing more comes.
async fn receive(
    world: &World,
    link: &Link,
    reading: &mut ReadHalf<Stream>,
    mut received: Vec<u8>,
    dice: &mut Dice,
) -> String {
    let mut buf = vec![0; RECEIVED_MAX];
    let mut filling: Option<(Cookie, usize, usize)> = None;
    loop {
        if let Some((cookie, at, left)) = filling.take() {
            let here = left.min(received.len());
            link.fill(cookie, at, &received[..here]);
            received.drain(..here);
            filling = (here < left).then_some((cookie, at + here, left - here));
        }
        if filling.is_none() {
            let advanced = link.requests.borrow_mut().advance(&received);
            let progress = match advanced {
                Ok(progress) => progress,
                Err(error) => return format!("the server broke the protocol: {error}"),
            };
            received.drain(..progress.consumed);
            match link.on_step(progress.step) {
                Next::Receive => {}
                Next::Again => continue,
                Next::Fill(cookie, at, length) => {
                    filling = Some((cookie, at, length));
                    continue;
                }
            }
        }
        if let Some(pause) = link.slow.get()
            && dice.percent(50)
        {
            tokio::time::sleep(pause).await;
        }
        match reading.read(&mut buf).await {
            Ok(0) => return "the server hung up".to_owned(),
            Ok(bytes) => {
                link.arrived_left.set(world.network.read_written_at(link.id, Side::Client));
                received.extend_from_slice(&buf[..bytes]);
            }
            Err(error) => return error.to_string(),
        }
    }
}

fn to_usize(length: u32) -> usize {
    usize::try_from(length).expect("small")
}

impl Link {
    /// Asks, and waits for the answer.
    pub(super) async fn ask(&self, command: Command, payload: &[u8]) -> Result<Answered, Lost> {
        if self.is_over() {
            return Err(Lost);
        }
        let (answer, answered) = oneshot::channel();
        {
            let mut out = self.out.borrow_mut();
            let cookie = self.requests.borrow_mut().request(command, &mut out);
            let cookie = cookie.expect("the server offers everything");
            out.extend_from_slice(payload);
            let length = match command {
                Command::Read { length, .. } => to_usize(length),
                _ => 0,
            };
            let (data, extents) = (vec![0xdb; length], Vec::new());
            self.waiting.borrow_mut().insert(cookie, Waiting { command, data, extents, answer });
        }
        self.wake.notify_one();
        answered.await.map_err(|_| Lost)
    }

    fn on_step(&self, step: ReplyStep) -> Next {
        let mut waiting = self.waiting.borrow_mut();
        match step {
            ReplyStep::NeedMore(_) => return Next::Receive,
            ReplyStep::Again => {}
            ReplyStep::Data { cookie, at, length } => {
                return Next::Fill(cookie, to_usize(at), to_usize(length));
            }
            ReplyStep::Zeroes { cookie, at, length } => {
                if let Some(waiting) = waiting.get_mut(&cookie) {
                    waiting.data[to_usize(at)..to_usize(at) + to_usize(length)].fill(0);
                }
            }
            ReplyStep::Status { cookie, status } => {
                if let Some(waiting) = waiting.get_mut(&cookie) {
                    waiting.extents = status.extents;
                }
            }
            ReplyStep::Done { cookie, result, .. } => {
                self.is_served.set(true);
                let Some(waiting) = waiting.remove(&cookie) else { return Next::Again };
                let Waiting { command, data, extents, answer } = waiting;
                let body = match command {
                    Command::Read { .. } => Body::Data(Data::from(SharedBuf::copy_of(&data))),
                    Command::BlockStatus { length, .. } => Body::Extents(told(&extents, length)),
                    _ => Body::Done,
                };
                // Whoever asked may be gone.
                let left = self.arrived_left.get();
                let _ = answer.send(Answered { answer: result.map(|()| body), left });
            }
        }
        Next::Again
    }

    fn fill(&self, cookie: Cookie, at: usize, bytes: &[u8]) {
        if let Some(waiting) = self.waiting.borrow_mut().get_mut(&cookie) {
            waiting.data[at..at + bytes.len()].copy_from_slice(bytes);
        }
    }

    /// Says goodbye.
    pub(super) fn leave(&self) {
        if !self.is_over() {
            self.is_leaving.set(true);
            let said = self.requests.borrow().goodbye(&mut self.out.borrow_mut());
            said.expect("a goodbye has no length");
            self.wake.notify_one();
        }
    }

    /// Drops the connection at once.
    pub(super) fn abandon(&self) {
        self.is_abandoned.set(true);
        self.silence.notify_waiters();
    }

    /// Nothing arrives any more, and nobody was told.
    pub(super) fn fall_silent(&self) {
        self.is_silent.set(true);
        self.silence.notify_waiters();
    }

    pub(super) async fn until_silent(&self) {
        while !self.is_silent.get() {
            self.silence.notified().await;
        }
    }

    pub(super) fn is_silent(&self) -> bool {
        self.is_silent.get()
    }

    /// Whether nothing can be asked for any more.
    pub(super) fn is_over(&self) -> bool {
        self.is_over.get() || self.is_leaving.get() || self.is_abandoned.get()
    }

    /// The server may give up what it has in flight.
    pub(super) fn may_linger(&self) {
        self.lingers.set(true);
    }

    /// Whether it may have.
    pub(super) fn lingers(&self) -> bool {
        self.lingers.get()
    }

    /// Whether anything was answered.
    pub(super) fn is_served(&self) -> bool {
        self.is_served.get()
    }

    /// Whether the client ended it.
    pub(super) fn has_left(&self) -> bool {
        self.is_leaving.get() || self.is_abandoned.get()
    }

    /// A write was not answered, and will not be.
    pub(super) fn lose(&self, world: &World, id: WriteId) {
        match self.is_settled.get() {
            Some(true) => world.oracle.borrow_mut().end_unanswered(id),
            Some(false) => {}
            None => self.lost.borrow_mut().push(id),
        }
    }

    /// The server has let go of it, and everything that it began there `has_ended`, or nobody knows.
    pub(super) fn settle(&self, world: &World, has_ended: bool) {
        self.is_settled.set(Some(has_ended));
        for id in self.lost.take() {
            world.note("lost write settled", [id.0.into(), u64::from(has_ended), 0]);
            if has_ended {
                world.oracle.borrow_mut().end_unanswered(id);
            }
        }
    }

    /// Whether nothing of it is left.
    pub(super) fn is_forgotten(&self) -> bool {
        self.is_settled.get().is_some()
    }
}

/// Block status as extents, as far as they lie within what was asked for.
fn told(extents: &[ExtentStatus], length: u64) -> Vec<Extent> {
    let (hole, zero) = (u64::from(AllocationFlags::HOLE.0), u64::from(AllocationFlags::ZERO.0));
    let (mut left, mut told) = (length, Vec::new());
    for extent in extents {
        let state = match extent.flags {
            flags if flags & zero == 0 => ExtentState::Data,
            flags if flags & hole == 0 => ExtentState::Zero,
            _ => ExtentState::Hole,
        };
        let len = extent.length.min(left);
        if len > 0 {
            told.push(Extent { len, state });
        }
        left -= len;
    }
    told
}
