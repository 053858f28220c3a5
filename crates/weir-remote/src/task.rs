//! The task that has the connections of a remote volume: makes them, carries requests, and makes them anew.

use std::future::{Future, poll_fn};
use std::pin::{Pin, pin};
use std::rc::Rc;
use std::task::{Context, Poll};
use std::time::Duration;

use tokio::time::{Instant, Sleep, sleep, timeout};
use weir_device::{Env, mutant};
use weir_nbd::{
    ALLOCATION_CONTEXT, Attached, Attachment, ClientWish, ReplyStyle, TransmissionFlags,
};

use crate::error::RemoteError;
use crate::exported::{Exported, Found, RemoteArgs};
use crate::handshake::{Greeted, shake_hands};
use crate::link::Link;
use crate::session::Session;
use crate::ticket::Ticket;

/// Time for one connection, TLS and handshake included.
const CONNECT: Duration = Duration::from_secs(15);

/// Time between two tries, from the second on; it doubles up to the longest.
const PAUSE_MIN: Duration = Duration::from_millis(50);
const PAUSE_MAX: Duration = Duration::from_secs(2);

/// A connection that lasts so long is a good one: after it the next is tried without a pause.
const GOOD: Duration = Duration::from_secs(5);

/// Time for what is queued and the goodbye to leave when the volume is closed.
const GOODBYE: Duration = Duration::from_secs(1);

/// Looks at deadlines so many times within one.
const LOOKS: u32 = 16;

/// Connections that are ready, and what was found on them.
pub(crate) struct Connected {
    pub(crate) links: Vec<Link>,
    pub(crate) found: Found,
}

async fn greet(
    env: &Env,
    args: &RemoteArgs,
    attachment: Attachment,
) -> Result<Greeted, RemoteError> {
    let connecting = async {
        let url = &args.url;
        let security = url.security.with(args.tls.as_ref())?;
        let connected = env.network.connect(&url.address).await;
        let stream = connected.map_err(|source| RemoteError::Connect { source })?;
        let wish = ClientWish {
            export: url.export.clone(),
            tls: false,
            attachment: Some(attachment),
            style_max: ReplyStyle::Extended,
            contexts: vec![ALLOCATION_CONTEXT.to_owned()],
        };
        let shaken = shake_hands(stream, wish, security).await;
        shaken.map_err(RemoteError::of_attachment)
    };
    let seconds = CONNECT.as_secs();
    timeout(CONNECT, connecting).await.unwrap_or(Err(RemoteError::Silent { seconds }))
}

/// Connects as many times as is wished and makes sense.
pub(crate) async fn connect(
    env: &Env,
    args: &RemoteArgs,
    attachment: Attachment,
) -> Result<Connected, RemoteError> {
    let link = |greeted: Greeted| {
        let session = greeted.agreement.session;
        Link::new(greeted.stream, session, greeted.received, env.buffers.clone())
    };
    let first = greet(env, args, attachment).await?;
    let attached = first.agreement.attached;
    let exported = Exported::of(&first.agreement)?;
    let server = first.server.as_ref().map(|server| server.holder.name.clone());
    let mut links = vec![link(first)];
    // A flush covers only its own connection otherwise, and reads of another one may not see what was written.
    if exported.offers(TransmissionFlags::CAN_MULTI_CONN) {
        for _ in 1..args.connections {
            let next = greet(env, args, attachment).await?;
            if !is_same(next.agreement.attached, attached) {
                // It began anew in between.
                return Err(RemoteError::Ended);
            }
            links.push(link(next));
        }
    }
    Ok(Connected { links, found: Found { exported, attached, server } })
}

/// Whether two connections are to the same opening, with nobody else between them.
fn is_same(one: Option<Attached>, other: Option<Attached>) -> bool {
    let told = |attached: Attached| (attached.instance, attached.exclusive.map(|given| given.tag));
    one.map(told) == other.map(told)
}

/// Wakes the task while requests wait, so that their deadlines are seen.
struct Looks {
    every: Duration,
    timer: Pin<Box<Sleep>>,
    is_set: bool,
}

impl Looks {
    fn new(deadline: Duration) -> Self {
        let every = (deadline / LOOKS).max(Duration::from_millis(1));
        Self { every, timer: Box::pin(sleep(every)), is_set: false }
    }

    /// Ready when it is time to look.
    fn poll(&mut self, cx: &mut Context<'_>, has_requests: bool) -> Poll<()> {
        if !has_requests {
            self.is_set = false;
            return Poll::Pending;
        }
        if !self.is_set {
            self.timer.as_mut().reset(Instant::now() + self.every);
            self.is_set = true;
        }
        let look = self.timer.as_mut().poll(cx);
        if look.is_ready() {
            self.is_set = false;
        }
        look
    }
}

/// How carrying requests ended.
enum Carried {
    /// All that goes first was answered.
    First,
    /// The volume is closed, and nothing is under way.
    Closed,
    /// The connections are of no use any more.
    Lost(RemoteError),
}

/// The task. See the head of this file.
pub(crate) struct Task {
    session: Rc<Session>,
    links: Vec<Link>,
    looks: Looks,
    /// Of the connections that there are, or are being made.
    attachment: Attachment,
    connected_at: Instant,
    /// Before the next try.
    pause: Duration,
}

impl Task {
    pub(crate) fn new(session: Rc<Session>, connected: Connected, attachment: Attachment) -> Self {
        let looks = Looks::new(session.args.deadline);
        let (connected_at, pause) = (Instant::now(), Duration::ZERO);
        let links = Vec::new();
        let mut task = Self { session, links, looks, attachment, connected_at, pause };
        task.take(connected);
        task
    }

    fn take(&mut self, connected: Connected) {
        self.links = connected.links;
        self.session.connected(connected.found, self.links.len());
    }

    /// Runs until the volume is closed.
    pub(crate) async fn run(mut self) {
        loop {
            let mut carried = self.carry(true).await;
            if matches!(carried, Carried::First) {
                self.session.set_ready();
                carried = self.carry(false).await;
            }
            let Carried::Lost(why) = carried else { break };
            self.lost(&why);
            if !self.reconnect().await {
                break;
            }
        }
        self.say_goodbye().await;
        self.session.over();
    }

    fn lost(&mut self, why: &RemoteError) {
        let url = &self.session.shown;
        tracing::warn!(%url, %why, "the connection to the server is lost; connecting again");
        let links = self.links.drain(..);
        let unanswered: Vec<Ticket> = links.flat_map(Link::into_unanswered).collect();
        self.session.disconnected(unanswered, why);
    }

    /// Connects until it succeeds. Whether it did; not if the volume is closed.
    async fn reconnect(&mut self) -> bool {
        let began = Instant::now();
        // Connections that succeed and end at once are not made without a pause either.
        if self.connected_at.elapsed() >= GOOD {
            self.pause = Duration::ZERO;
        }
        let session = Rc::clone(&self.session);
        loop {
            if !mutant("same_generation") {
                self.attachment.generation += 1;
            }
            self.attachment.known = session.tag();
            let (attachment, pause) = (self.attachment, self.pause);
            let trying = async {
                sleep(pause).await;
                connect(&session.env, &session.args, attachment).await
            };
            match self.while_looking(trying).await {
                None => return false,
                Some(Ok(connected)) => {
                    if let Some(why) = session.is_not_the_same(&connected.found) {
                        session.superseded(&why);
                        return false;
                    }
                    let seconds = began.elapsed().as_secs_f64();
                    tracing::info!(url = %session.shown, seconds, "connected again");
                    self.take(connected);
                    self.connected_at = Instant::now();
                    return true;
                }
                Some(Err(RemoteError::NotExclusive { reason })) => {
                    self.session.superseded(&reason);
                    return false;
                }
                Some(Err(error)) => {
                    tracing::debug!(url = %session.shown, %error, "connecting failed");
                    session.note_trouble(&error);
                }
            }
            let longest = (self.pause * 2).clamp(PAUSE_MIN, PAUSE_MAX);
            // Not all clients of a server that comes back at once.
            let share = u32::from(session.env.random.next_u64().to_le_bytes()[0]);
            self.pause = longest / 2 + longest / 2 * share / 256;
        }
    }

    /// Waits for something and looks at the deadlines of requests meanwhile; nothing if the volume is closed first.
    async fn while_looking<T>(&mut self, waited: impl Future<Output = T>) -> Option<T> {
        let mut waited = pin!(waited);
        poll_fn(|cx| {
            self.session.note_waker(cx);
            if self.session.is_closing() {
                return Poll::Ready(None);
            }
            while self.looks.poll(cx, self.session.has_waiting()).is_ready() {
                self.session.give_up_overdue(Instant::now());
            }
            waited.as_mut().poll(cx).map(Some)
        })
        .await
    }

    /// Carries requests; those that go first only, if `first`.
    async fn carry(&mut self, first: bool) -> Carried {
        poll_fn(|cx| {
            self.session.note_waker(cx);
            self.poll_carry(cx, first)
        })
        .await
    }

    fn poll_carry(&mut self, cx: &mut Context<'_>, first: bool) -> Poll<Carried> {
        let session = Rc::clone(&self.session);
        loop {
            self.hand_out();
            for link in &mut self.links {
                if let Poll::Ready(why) = link.poll(cx, &mut |ended| session.ended(ended)) {
                    return Poll::Ready(Carried::Lost(why));
                }
            }
            let in_flight = self.links.iter().map(Link::len).sum();
            session.set_in_flight(in_flight);
            if first && in_flight == 0 && session.has_no_first() {
                return Poll::Ready(Carried::First);
            }
            let has_requests = in_flight > 0 || session.has_waiting();
            if session.is_closing() && (!has_requests || session.is_abandoned()) {
                return Poll::Ready(Carried::Closed);
            }
            if self.looks.poll(cx, has_requests).is_ready() {
                if let Some(why) = self.look() {
                    return Poll::Ready(Carried::Lost(why));
                }
                continue;
            }
            // Answers made room for requests that wait.
            if !(self.links.iter().any(Link::has_room) && session.has_next()) {
                return Poll::Pending;
            }
        }
    }

    /// Gives requests to the connections that have the fewest.
    fn hand_out(&mut self) {
        loop {
            let free = self.links.iter_mut().filter(|link| link.has_room());
            let Some(link) = free.min_by_key(|link| link.len()) else { return };
            let Some(ticket) = self.session.next() else { return };
            if let Err((ticket, _)) = link.send(ticket) {
                self.session.not_offered(*ticket);
            }
        }
    }

    /// Deadlines, and silence.
    fn look(&mut self) -> Option<RemoteError> {
        let now = Instant::now();
        self.session.give_up_overdue(now);
        for link in &mut self.links {
            for ticket in link.overdue(now) {
                self.session.give_up(ticket);
            }
        }
        let silence = self.links.iter().map(|link| link.silence(now)).max().unwrap_or_default();
        let most = self.session.silence_max();
        (silence >= most).then_some(RemoteError::Silent { seconds: silence.as_secs() })
    }

    async fn say_goodbye(&mut self) {
        self.links.iter_mut().for_each(Link::say_goodbye);
        let leaving = poll_fn(|cx| {
            for link in &mut self.links {
                if link.poll_send(cx).is_pending() {
                    return Poll::Pending;
                }
            }
            Poll::Ready(())
        });
        // A server that does not take it sees the connection end.
        let _ = timeout(GOODBYE, leaving).await;
        self.links.clear();
    }
}
