//! A network that exists in memory only and misbehaves from a seed, within what a network may do.
//!
//! - Bytes arrive in order, after a delay, at the pace that is set, and in other pieces than they were sent in: reads
//!   and writes may be short. Each direction of a connection holds so many bytes; a writer waits for more room.
//! - A connection can be lost at once ([`SimNetwork::reset`]) or in the middle of a message: after so many more bytes
//!   in one direction were read ([`SimNetwork::reset_after`]). Whoever is there is told; what was under way is gone.
//! - A connection can fall silent ([`SimNetwork::silence`]): nothing arrives at either end any more, and nobody is
//!   told, not even of the other end's close, until the keepalive time is over.
//! - A connection can stall for a while ([`SimNetwork::stall`]).
//! - Connections can be refused ([`SimNetwork::refuse`]). Where nobody listens they are.
//! - An end that is dropped with bytes that it has not read resets its connection, or closes it, as the dice say.
//!
//! Time is tokio's: run it on a paused clock. The same seed and the same calls give the same bytes.

mod listener;
mod random;
mod state;
mod stream;
#[cfg(test)]
mod tests;

use std::fmt;
use std::future::poll_fn;
use std::io;
use std::ops::RangeInclusive;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::Poll;
use std::time::Duration;

use tokio::time::Instant;
use weir_device::{Address, ByteStream, Listener, LocalBoxFuture, Network};

use self::listener::SimListener;
use self::state::State;
use self::stream::{End, SimStream};

/// How a simulated network behaves. All of it can change while it runs, see [`SimNetwork::change_options`].
#[derive(Clone, Debug)]
pub struct SimNetworkOptions {
    /// Time from one end to the other. Tokio's timers have a resolution of one millisecond; without any delay no timer
    /// is used.
    pub delay: RangeInclusive<Duration>,
    /// Bytes in a second and direction of a connection.
    pub bytes_per_second: Option<u64>,
    /// Bytes that one direction of a connection holds.
    pub buffer_bytes: usize,
    /// Bytes that one read returns at most.
    pub read_bytes_max: usize,
    /// One read or write in so many is shorter than it could be; 0 is none.
    pub short_one_in: u64,
    /// Time after which a silent connection is given up at either end.
    pub keepalive: Duration,
    /// Connections that wait to be accepted by one listener at most.
    pub backlog_max: usize,
}

impl Default for SimNetworkOptions {
    fn default() -> Self {
        Self {
            delay: Duration::ZERO..=Duration::ZERO,
            bytes_per_second: None,
            buffer_bytes: 64 << 10,
            read_bytes_max: 64 << 10,
            short_one_in: 0,
            keepalive: Duration::from_secs(120),
            backlog_max: 128,
        }
    }
}

/// A connection of a simulated network.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct ConnectionId(pub(crate) u64);

/// One of the two ends of a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Side {
    /// The one that connected.
    Client,
    /// The one that listened.
    Server,
}

impl Side {
    fn index(self) -> usize {
        match self {
            Self::Client => 0,
            Self::Server => 1,
        }
    }
}

/// What happened on a simulated network.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SimNetworkCounters {
    /// Connections that came about.
    pub connections: u64,
    /// Connections that were refused.
    pub refused: u64,
    /// Connections that were reset by [`SimNetwork::reset`] and [`SimNetwork::reset_after`].
    pub resets: u64,
    /// Connections that were reset because an end was dropped with bytes that it had not read.
    pub resets_by_drop: u64,
    /// Connections that fell silent and were given up.
    pub timeouts: u64,
    /// Reads and writes that were shorter than they could have been.
    pub short: u64,
    /// Writes that found no room.
    pub full: u64,
}

/// A simulated network. Cheap to clone; clones are the same network.
#[derive(Clone)]
pub struct SimNetwork(Arc<Mutex<State>>);

impl SimNetwork {
    /// A network whose delays and lengths follow from `seed`.
    #[must_use]
    pub fn new(seed: u64, options: SimNetworkOptions) -> Self {
        Self(Arc::new(Mutex::new(State::new(seed, options))))
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        // What is behind it is whole between two statements.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Changes how the network behaves from here on.
    pub fn change_options(&self, change: impl FnOnce(&mut SimNetworkOptions)) {
        change(&mut self.lock().options);
    }

    /// What happened so far.
    #[must_use]
    pub fn counters(&self) -> SimNetworkCounters {
        self.lock().counters
    }

    /// Connections of which an end is left, oldest first.
    #[must_use]
    pub fn connections(&self) -> Vec<ConnectionId> {
        self.lock().connections.keys().copied().map(ConnectionId).collect()
    }

    /// Refuses connections to `at`, or no longer.
    pub fn refuse(&self, at: &Address, refuse: bool) {
        let mut state = self.lock();
        match refuse {
            true => state.refused.insert(at.clone()),
            false => state.refused.remove(at),
        };
    }

    /// Loses a connection: both ends are told, and what was under way is gone.
    pub fn reset(&self, connection: ConnectionId) {
        let woken = self.lock().reset(connection.0);
        woken.wake();
    }

    /// Loses a connection once `to` has read so many more bytes.
    pub fn reset_after(&self, connection: ConnectionId, to: Side, bytes: usize) {
        let woken = self.lock().reset_after(connection.0, to.index(), bytes);
        woken.wake();
    }

    /// Nothing arrives at either end of a connection any more.
    pub fn silence(&self, connection: ConnectionId) {
        let woken = self.lock().silence(connection.0);
        woken.wake();
    }

    /// Nothing arrives at either end of a connection for a while.
    pub fn stall(&self, connection: ConnectionId, time: Duration) {
        self.lock().stall(connection.0, time);
    }

    /// Whether that end of a connection has not been dropped.
    #[must_use]
    pub fn has_end(&self, connection: ConnectionId, side: Side) -> bool {
        self.lock().has_end(connection.0, side.index())
    }

    /// When the bytes that `side` read last had been written at the other end. A read never returns bytes of different
    /// moments.
    #[must_use]
    pub fn read_written_at(&self, connection: ConnectionId, side: Side) -> Option<Instant> {
        self.lock().read_written(connection.0, side.index())
    }

    /// Completes once that end of a connection was dropped.
    pub async fn dropped(&self, connection: ConnectionId, side: Side) {
        poll_fn(|cx| {
            let mut state = self.lock();
            if !state.has_end(connection.0, side.index()) {
                return Poll::Ready(());
            }
            state.watch(connection.0, cx.waker());
            Poll::Pending
        })
        .await;
    }

    /// [`Network::connect`], and which connection it is.
    ///
    /// # Errors
    /// `ConnectionRefused`.
    pub async fn connect_numbered(
        &self,
        to: &Address,
    ) -> io::Result<(ConnectionId, Box<dyn ByteStream>)> {
        let delay = self.lock().delay();
        pause(delay).await;
        let id = {
            let (connected, woken) = self.lock().connect(to);
            woken.wake();
            connected?
        };
        let end = End { network: self.clone(), id, side: Side::Client };
        let delay = self.lock().delay();
        pause(delay).await;
        Ok((ConnectionId(id), Box::new(SimStream::new(end))))
    }
}

async fn pause(time: Duration) {
    if !time.is_zero() {
        tokio::time::sleep(time).await;
    }
}

impl fmt::Debug for SimNetwork {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SimNetwork").field("counters", &self.counters()).finish_non_exhaustive()
    }
}

impl Network for SimNetwork {
    fn listen<'a>(&'a self, at: &'a Address) -> LocalBoxFuture<'a, io::Result<Box<dyn Listener>>> {
        Box::pin(async move {
            let number = self.lock().listen(at)?;
            let listener = SimListener::new(self.clone(), at.clone(), number);
            Ok(Box::new(listener) as Box<dyn Listener>)
        })
    }

    fn connect<'a>(
        &'a self,
        to: &'a Address,
    ) -> LocalBoxFuture<'a, io::Result<Box<dyn ByteStream>>> {
        Box::pin(async move { Ok(self.connect_numbered(to).await?.1) })
    }
}
