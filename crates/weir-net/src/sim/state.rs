//! What a simulated network knows: who listens, and what is under way on each connection.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::io;
use std::task::Waker;
use std::time::Duration;

use tokio::time::Instant;
use weir_device::Address;

use super::random::SimRandom;
use super::{SimNetworkCounters, SimNetworkOptions};

/// Ends of a connection, and its directions: the direction of an end is the one that it reads.
const ENDS: usize = 2;

/// Who is to be woken once the lock is released.
#[derive(Default)]
#[must_use]
pub(super) struct Woken(Vec<Waker>);

impl Woken {
    pub(super) fn wake(self) {
        for waker in self.0 {
            waker.wake();
        }
    }

    fn add(&mut self, waker: &mut Option<Waker>) {
        self.0.extend(waker.take());
    }
}

/// Bytes that were written at once, and when they arrive.
struct Chunk {
    written: Instant,
    arrives: Instant,
    bytes: Vec<u8>,
    /// How many of them were read.
    taken: usize,
}

/// One direction of a connection.
struct Pipe {
    chunks: VecDeque<Chunk>,
    /// Bytes in them that were not read.
    held: usize,
    last_arrival: Instant,
    /// When the reader learns that nothing more comes.
    ends: Option<Instant>,
    /// When what was read last had been written.
    read_written: Option<Instant>,
    /// Bytes that are read before the connection is lost.
    reset_after: Option<usize>,
    reader: Option<Waker>,
    writer: Option<Waker>,
}

impl Pipe {
    fn new(now: Instant) -> Self {
        Self {
            chunks: VecDeque::new(),
            held: 0,
            last_arrival: now,
            ends: None,
            read_written: None,
            reset_after: None,
            reader: None,
            writer: None,
        }
    }
}

pub(super) struct Connection {
    pipes: [Pipe; ENDS],
    has_end: [bool; ENDS],
    /// Both ends are told, and nothing else happens any more.
    broken: Option<io::ErrorKind>,
    silent_since: Option<Instant>,
    stalled_until: Option<Instant>,
    watchers: Vec<Waker>,
}

impl Connection {
    fn new(now: Instant) -> Self {
        Self {
            pipes: [Pipe::new(now), Pipe::new(now)],
            has_end: [true; ENDS],
            broken: None,
            silent_since: None,
            stalled_until: None,
            watchers: Vec::new(),
        }
    }

    fn wake_all(&mut self, woken: &mut Woken) {
        for pipe in &mut self.pipes {
            woken.add(&mut pipe.reader);
            woken.add(&mut pipe.writer);
        }
    }

    fn break_off(&mut self, kind: io::ErrorKind) -> Woken {
        let mut woken = Woken::default();
        if self.broken.is_none() {
            self.broken = Some(kind);
            self.wake_all(&mut woken);
            for pipe in &mut self.pipes {
                pipe.chunks.clear();
                pipe.held = 0;
            }
        }
        woken
    }
}

/// Connections that wait to be accepted, and who waits for them.
pub(super) struct Backlog {
    number: u64,
    waiting: VecDeque<u64>,
    waker: Option<Waker>,
}

/// What an end has to do before it can go on.
pub(super) enum Outcome<T> {
    Done(T),
    /// Wait for its waker, and no longer than until then.
    Wait(Option<Instant>),
}

pub(super) struct State {
    random: SimRandom,
    pub(super) options: SimNetworkOptions,
    listeners: BTreeMap<Address, Backlog>,
    pub(super) refused: BTreeSet<Address>,
    pub(super) connections: BTreeMap<u64, Connection>,
    numbers: u64,
    pub(super) counters: SimNetworkCounters,
}

impl State {
    pub(super) fn new(seed: u64, options: SimNetworkOptions) -> Self {
        Self {
            random: SimRandom::new(seed),
            options,
            listeners: BTreeMap::new(),
            refused: BTreeSet::new(),
            connections: BTreeMap::new(),
            numbers: 0,
            counters: SimNetworkCounters::default(),
        }
    }

    fn number(&mut self) -> u64 {
        self.numbers += 1;
        self.numbers
    }

    /// A delay of one way.
    pub(super) fn delay(&mut self) -> Duration {
        let micros = |time: Duration| u64::try_from(time.as_micros()).unwrap_or(u64::MAX - 1);
        let (least, most) =
            (micros(*self.options.delay.start()), micros(*self.options.delay.end()));
        Duration::from_micros(self.random.within(least..=most.max(least)))
    }

    /// A length up to `most`, now and then shorter than that.
    fn length(&mut self, most: usize) -> usize {
        if most > 1 && self.random.one_in(self.options.short_one_in) {
            self.counters.short += 1;
            let most = u64::try_from(most).unwrap_or(u64::MAX);
            return usize::try_from(self.random.within(1..=most - 1)).unwrap_or(1);
        }
        most
    }

    // --- listening and connecting --------------------------------------------------------------------------------

    pub(super) fn listen(&mut self, at: &Address) -> io::Result<u64> {
        if self.listeners.contains_key(at) {
            return Err(io::ErrorKind::AddrInUse.into());
        }
        let number = self.number();
        let backlog = Backlog { number, waiting: VecDeque::new(), waker: None };
        self.listeners.insert(at.clone(), backlog);
        Ok(number)
    }

    /// Connects; the number of the connection.
    pub(super) fn connect(&mut self, to: &Address) -> (io::Result<u64>, Woken) {
        let mut woken = Woken::default();
        let backlog_max = self.options.backlog_max;
        let takes = self.listeners.get(to).is_some_and(|b| b.waiting.len() < backlog_max);
        if !takes || self.refused.contains(to) {
            self.counters.refused += 1;
            return (Err(io::ErrorKind::ConnectionRefused.into()), woken);
        }
        let id = self.number();
        self.connections.insert(id, Connection::new(Instant::now()));
        self.counters.connections += 1;
        if let Some(backlog) = self.listeners.get_mut(to) {
            backlog.waiting.push_back(id);
            woken.add(&mut backlog.waker);
        }
        (Ok(id), woken)
    }

    /// The next connection of a listener; else its waker is kept.
    pub(super) fn accept(&mut self, at: &Address, waker: &Waker) -> Option<u64> {
        let backlog = self.listeners.get_mut(at)?;
        let next = backlog.waiting.pop_front();
        if next.is_none() {
            backlog.waker = Some(waker.clone());
        }
        next
    }

    /// A listener is dropped: who waits for it is turned away.
    pub(super) fn unlisten(&mut self, at: &Address, number: u64) -> Vec<u64> {
        match self.listeners.get(at) {
            Some(backlog) if backlog.number == number => {}
            _ => return Vec::new(),
        }
        self.listeners.remove(at).map(|backlog| backlog.waiting.into()).unwrap_or_default()
    }

    // --- bytes ---------------------------------------------------------------------------------------------------

    /// Whether a connection is broken by now: a silent one is after a while. Else when it will be.
    fn check(&mut self, id: u64, woken: &mut Woken) -> io::Result<Option<Instant>> {
        let keepalive = self.options.keepalive;
        let connection = self.connections.get_mut(&id).ok_or(io::ErrorKind::NotConnected)?;
        if let Some(kind) = connection.broken {
            return Err(kind.into());
        }
        let gives_up = connection.silent_since.map(|since| since + keepalive);
        if gives_up.is_some_and(|at| at <= Instant::now()) {
            self.counters.timeouts += 1;
            woken.0.extend(connection.break_off(io::ErrorKind::TimedOut).0);
            return Err(io::ErrorKind::TimedOut.into());
        }
        Ok(gives_up)
    }

    /// Reads at an end into `space`.
    pub(super) fn read(
        &mut self,
        id: u64,
        end: usize,
        space: &mut [u8],
        waker: &Waker,
    ) -> (Outcome<io::Result<usize>>, Woken) {
        let mut woken = Woken::default();
        let gives_up = match self.check(id, &mut woken) {
            Ok(gives_up) => gives_up,
            Err(error) => return (Outcome::Done(Err(error)), woken),
        };
        let now = Instant::now();
        let mut limit = space.len().min(self.options.read_bytes_max.max(1));
        let Some(connection) = self.connections.get_mut(&id) else {
            return (Outcome::Done(Err(io::ErrorKind::NotConnected.into())), woken);
        };
        let stalled = connection.stalled_until.filter(|until| *until > now);
        let pipe = &mut connection.pipes[end];
        let first = pipe.chunks.front().map(|chunk| chunk.arrives).or(pipe.ends);
        let due = first.map(|at| stalled.map_or(at, |until| until.max(at)));
        let is_due = gives_up.is_none() && due.is_some_and(|at| at <= now);
        if !is_due {
            pipe.reader = Some(waker.clone());
            return (Outcome::Wait(gives_up.or(due)), woken);
        }
        // What was written at different moments is read apart, so that each read knows its own.
        let written = pipe.chunks.front().map(|chunk| chunk.written);
        let is_next = |chunk: &&Chunk| chunk.arrives <= now && Some(chunk.written) == written;
        let arrived = pipe.chunks.iter().take_while(is_next);
        let arrived: usize = arrived.map(|chunk| chunk.bytes.len() - chunk.taken).sum();
        if pipe.chunks.is_empty() || limit == 0 {
            return (Outcome::Done(Ok(0)), woken);
        }
        limit = limit.min(arrived).min(pipe.reset_after.unwrap_or(usize::MAX));
        let bytes = self.length(limit);
        self.take(id, end, &mut space[..bytes])
    }

    /// Takes what has arrived off a direction.
    fn take(
        &mut self,
        id: u64,
        end: usize,
        space: &mut [u8],
    ) -> (Outcome<io::Result<usize>>, Woken) {
        let mut woken = Woken::default();
        let Some(connection) = self.connections.get_mut(&id) else {
            return (Outcome::Done(Err(io::ErrorKind::NotConnected.into())), woken);
        };
        let pipe = &mut connection.pipes[end];
        let mut filled = 0;
        while filled < space.len()
            && let Some(chunk) = pipe.chunks.front_mut()
        {
            pipe.read_written = Some(chunk.written);
            let here = (chunk.bytes.len() - chunk.taken).min(space.len() - filled);
            space[filled..filled + here]
                .copy_from_slice(&chunk.bytes[chunk.taken..chunk.taken + here]);
            (filled, chunk.taken) = (filled + here, chunk.taken + here);
            if chunk.taken == chunk.bytes.len() {
                pipe.chunks.pop_front();
            }
        }
        pipe.held -= filled;
        woken.add(&mut pipe.writer);
        if let Some(left) = &mut pipe.reset_after {
            *left -= filled;
            if *left == 0 {
                woken.0.extend(self.reset(id).0);
            }
        }
        (Outcome::Done(Ok(filled)), woken)
    }

    /// Writes at an end: what of `bufs` it took.
    pub(super) fn write(
        &mut self,
        id: u64,
        end: usize,
        bufs: &[io::IoSlice<'_>],
        waker: &Waker,
    ) -> (Outcome<io::Result<usize>>, Woken) {
        let mut woken = Woken::default();
        let gives_up = match self.check(id, &mut woken) {
            Ok(gives_up) => gives_up,
            Err(error) => return (Outcome::Done(Err(error)), woken),
        };
        let total: usize = bufs.iter().map(|buf| buf.len()).sum();
        let room_max = self.options.buffer_bytes.max(1);
        let Some(connection) = self.connections.get_mut(&id) else {
            return (Outcome::Done(Err(io::ErrorKind::NotConnected.into())), woken);
        };
        let other = 1 - end;
        let has_reader = connection.has_end[other];
        let pipe = &mut connection.pipes[other];
        if pipe.ends.is_some() || (!has_reader && gives_up.is_none()) {
            return (Outcome::Done(Err(io::ErrorKind::BrokenPipe.into())), woken);
        }
        let room = room_max.saturating_sub(pipe.held);
        if room == 0 && total > 0 {
            pipe.writer = Some(waker.clone());
            self.counters.full += 1;
            return (Outcome::Wait(gives_up), woken);
        }
        let bytes = self.length(total.min(room));
        let delay = self.delay();
        let pace = self.options.bytes_per_second;
        let Some(connection) = self.connections.get_mut(&id) else {
            return (Outcome::Done(Err(io::ErrorKind::NotConnected.into())), woken);
        };
        let pipe = &mut connection.pipes[other];
        let now = Instant::now();
        let time = pace.map_or(Duration::ZERO, |pace| {
            let nanos =
                u128::try_from(bytes).unwrap_or(0) * 1_000_000_000 / u128::from(pace.max(1));
            Duration::from_nanos(u64::try_from(nanos).unwrap_or(u64::MAX))
        });
        pipe.last_arrival = pipe.last_arrival.max(now + delay) + time;
        let arrives = if delay.is_zero() && time.is_zero() { now } else { pipe.last_arrival };
        let mut copy = Vec::with_capacity(bytes);
        for buf in bufs {
            let here = (bytes - copy.len()).min(buf.len());
            copy.extend_from_slice(&buf[..here]);
        }
        if bytes > 0 {
            pipe.held += bytes;
            pipe.chunks.push_back(Chunk { written: now, arrives, bytes: copy, taken: 0 });
            woken.add(&mut pipe.reader);
        }
        (Outcome::Done(Ok(bytes)), woken)
    }

    /// An end writes nothing any more.
    pub(super) fn finish(&mut self, id: u64, end: usize) -> Woken {
        let (delay, mut woken) = (self.delay(), Woken::default());
        let Some(connection) = self.connections.get_mut(&id) else { return woken };
        let pipe = &mut connection.pipes[1 - end];
        if pipe.ends.is_none() {
            pipe.ends = Some(pipe.last_arrival.max(Instant::now() + delay));
            woken.add(&mut pipe.reader);
        }
        woken
    }

    // --- ends ----------------------------------------------------------------------------------------------------

    /// An end is dropped.
    pub(super) fn drop_end(&mut self, id: u64, end: usize) -> Woken {
        let mut woken = self.finish(id, end);
        let is_reset = self.random.one_in(2);
        let Some(connection) = self.connections.get_mut(&id) else { return woken };
        connection.has_end[end] = false;
        woken.0.append(&mut connection.watchers);
        let is_told = connection.silent_since.is_none() && connection.broken.is_none();
        if is_told && is_reset && connection.pipes[end].held > 0 && connection.has_end[1 - end] {
            self.counters.resets_by_drop += 1;
            woken.0.extend(connection.break_off(io::ErrorKind::ConnectionReset).0);
        }
        if is_told {
            woken.add(&mut connection.pipes[1 - end].writer);
        }
        if connection.has_end == [false; ENDS] {
            self.connections.remove(&id);
        }
        woken
    }

    pub(super) fn has_end(&self, id: u64, end: usize) -> bool {
        self.connections.get(&id).is_some_and(|connection| connection.has_end[end])
    }

    pub(super) fn read_written(&self, id: u64, end: usize) -> Option<Instant> {
        self.connections.get(&id).and_then(|connection| connection.pipes[end].read_written)
    }

    pub(super) fn watch(&mut self, id: u64, waker: &Waker) {
        if let Some(connection) = self.connections.get_mut(&id)
            && !connection.watchers.iter().any(|known| known.will_wake(waker))
        {
            connection.watchers.push(waker.clone());
        }
    }

    // --- bad days ------------------------------------------------------------------------------------------------

    pub(super) fn reset(&mut self, id: u64) -> Woken {
        let Some(connection) = self.connections.get_mut(&id) else { return Woken::default() };
        if connection.broken.is_none() {
            self.counters.resets += 1;
        }
        connection.break_off(io::ErrorKind::ConnectionReset)
    }

    pub(super) fn reset_after(&mut self, id: u64, to: usize, bytes: usize) -> Woken {
        if bytes == 0 {
            return self.reset(id);
        }
        if let Some(connection) = self.connections.get_mut(&id) {
            let pipe = &mut connection.pipes[to];
            pipe.reset_after = Some(pipe.reset_after.unwrap_or(usize::MAX).min(bytes));
        }
        Woken::default()
    }

    pub(super) fn silence(&mut self, id: u64) -> Woken {
        let mut woken = Woken::default();
        if let Some(connection) = self.connections.get_mut(&id) {
            connection.silent_since.get_or_insert_with(Instant::now);
            // They have another time to wait for.
            connection.wake_all(&mut woken);
        }
        woken
    }

    pub(super) fn stall(&mut self, id: u64, time: Duration) {
        if let Some(connection) = self.connections.get_mut(&id) {
            let until = Instant::now() + time;
            connection.stalled_until = connection.stalled_until.max(Some(until));
        }
    }
}
