//! How many clients there may be: connected ones in the whole process, and handshakes in progress on one listener.
//!
//! A client that finds no place is told so when it asks for its export, before anything is promised to it. Handshakes
//! cost little and are soon over, so a new one is always begun; where there are too many, the oldest one of the peer
//! with the most is cut off. Whoever is silent, or slow on purpose, thus loses to whoever is not.

use std::cell::RefCell;
use std::collections::{BTreeMap, VecDeque};
use std::fmt;
use std::rc::Rc;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::sync::Notify;
use tokio::time::Instant;
use weir_device::Peer;
use weir_nbd::{Admission, Attachment, Exclusive, ExportInfo, NotAttached};

use super::access::{Access, Rights};
use super::tls_rate::TlsRate;

/// Handshakes in progress on one listener.
pub const HANDSHAKES_MAX: usize = 256;

/// A peer may take one part of so many of all places, and of all handshakes.
const PEER_DIVISOR: usize = 2;

/// Time between two lines in the log about the same kind of refusal.
const LOG_INTERVAL: Duration = Duration::from_secs(10);

/// What is said now and then, and how often it happened meanwhile.
#[derive(Debug, Default)]
struct Rarely {
    last: Option<Instant>,
    count: u64,
}

impl Rarely {
    /// How often it happened since it was said last, if it is to be said now.
    fn happened(&mut self) -> Option<u64> {
        let now = Instant::now();
        self.count += 1;
        if self.last.is_some_and(|last| now.duration_since(last) < LOG_INTERVAL) {
            return None;
        }
        self.last = Some(now);
        Some(std::mem::take(&mut self.count))
    }
}

/// Why a client found no place.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NoPlace {
    /// All are taken.
    Full,
    /// The peer has as many as one may have.
    PeerFull,
}

impl NoPlace {
    /// A sentence for the client.
    #[must_use]
    pub fn reason(self) -> &'static str {
        match self {
            Self::Full => "the server has as many clients as it can take; try again later",
            Self::PeerFull => "this host or user has as many connections as one may have",
        }
    }
}

/// The places for connected clients of a process. Cheap to clone; used from any thread.
#[derive(Clone)]
pub struct Places {
    max: usize,
    state: Arc<Mutex<PlacesState>>,
}

#[derive(Default)]
struct PlacesState {
    taken: usize,
    peers: BTreeMap<Peer, usize>,
    refused: u64,
    said: Rarely,
}

impl Places {
    /// So many places.
    #[must_use]
    pub fn new(max: usize) -> Self {
        Self { max: max.max(1), state: Arc::default() }
    }

    fn lock(&self) -> MutexGuard<'_, PlacesState> {
        // What is behind it is whole between two statements.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// How many there are.
    #[must_use]
    pub fn max(&self) -> usize {
        self.max
    }

    /// How many one peer may take.
    #[must_use]
    pub fn peer_max(&self) -> usize {
        (self.max / PEER_DIVISOR).max(1)
    }

    /// How many are taken.
    #[must_use]
    pub fn taken(&self) -> usize {
        self.lock().taken
    }

    /// Clients that found none so far.
    #[must_use]
    pub fn refused(&self) -> u64 {
        self.lock().refused
    }

    /// Takes a place for a client of `peer`.
    pub(super) fn take(&self, peer: &Peer, client: &str) -> Result<Place, NoPlace> {
        let mut state = self.lock();
        let of_peer = state.peers.get(peer).copied().unwrap_or(0);
        let refusal = match () {
            () if state.taken >= self.max => NoPlace::Full,
            () if of_peer >= self.peer_max() && *peer != Peer::Unknown => NoPlace::PeerFull,
            () => {
                state.taken += 1;
                state.peers.insert(peer.clone(), of_peer + 1);
                return Ok(Place { places: self.clone(), peer: peer.clone() });
            }
        };
        state.refused += 1;
        if let Some(count) = state.said.happened() {
            let (connected, reason) = (state.taken, refusal.reason());
            tracing::warn!(client, count, connected, reason, "clients were refused");
        }
        Err(refusal)
    }
}

impl fmt::Debug for Places {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Places({} of {})", self.taken(), self.max)
    }
}

/// A place that a client has. Dropping it frees it.
pub(super) struct Place {
    places: Places,
    peer: Peer,
}

impl fmt::Debug for Place {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Place({:?})", self.peer)
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        let mut state = self.places.lock();
        state.taken -= 1;
        let of_peer = state.peers.get(&self.peer).copied().unwrap_or(0);
        match of_peer {
            0 | 1 => drop(state.peers.remove(&self.peer)),
            more => drop(state.peers.insert(self.peer.clone(), more - 1)),
        }
    }
}

/// What a connected client has. Dropping it gives that up.
#[derive(Debug)]
pub(super) struct Taken {
    _place: Option<Place>,
    _rights: Rights,
}

/// Gives the client of one handshake its place.
pub(super) struct Admittance<'a> {
    places: &'a Places,
    peer: &'a Peer,
    client: &'a str,
    place: RefCell<Option<Place>>,
    rights: RefCell<Rights>,
}

impl<'a> Admittance<'a> {
    pub(super) fn of(places: &'a Places, peer: &'a Peer, client: &'a str) -> Self {
        let (place, rights) = Default::default();
        Self { places, peer, client, place, rights }
    }

    /// Takes a place; a sentence for the client if there is none.
    fn take_place(&self) -> Result<(), &'static str> {
        let place = self.places.take(self.peer, self.client).map_err(NoPlace::reason)?;
        self.place.replace(Some(place));
        Ok(())
    }

    /// Takes what the client says that it belongs to.
    pub(super) fn attach(
        &self,
        access: &Access,
        (info, client): (&ExportInfo, &str),
        attachment: &Attachment,
    ) -> Result<Option<Exclusive>, NotAttached> {
        access.attach(info, attachment, (client, &mut self.rights.borrow_mut()))
    }

    /// The client's name in the log.
    pub(super) fn client(&self) -> &'a str {
        self.client
    }

    /// Takes a place, and the right to write if the client may; a sentence for the client if there is no place.
    pub(super) fn admit(
        &self,
        access: &Access,
        (info, client): (&ExportInfo, &str),
        attachment: Option<&Attachment>,
    ) -> Result<Admission, &'static str> {
        self.take_place()?;
        access.admit(info, attachment, (client, &mut self.rights.borrow_mut()))
    }

    /// What the client has until it leaves.
    pub(super) fn taken(&self) -> Taken {
        Taken { _place: self.place.take(), _rights: self.rights.take() }
    }
}

/// The handshakes in progress on one listener. Clones share them.
#[derive(Clone)]
pub struct Handshakes {
    max: usize,
    state: Rc<RefCell<HandshakesState>>,
}

#[derive(Default)]
struct HandshakesState {
    /// In the order of their beginning.
    running: VecDeque<Running>,
    next: u64,
    said: Rarely,
    tls: TlsRate,
}

struct Running {
    number: u64,
    peer: Peer,
    cut: Rc<Notify>,
}

impl Handshakes {
    /// At most so many at a time.
    #[must_use]
    pub fn new(max: usize) -> Self {
        Self { max: max.max(1), state: Rc::default() }
    }

    /// Handshakes in progress.
    #[must_use]
    pub fn running(&self) -> usize {
        self.state.borrow().running.len()
    }

    /// Begins one, and cuts another one off if there are too many.
    pub(super) fn begin(&self, peer: &Peer, client: &str) -> Handshaking {
        let mut state = self.state.borrow_mut();
        if let Some(oldest) = self.to_cut(&state, peer) {
            if let Some(running) = state.running.remove(oldest) {
                running.cut.notify_one();
            }
            if let Some(count) = state.said.happened() {
                let most = self.max;
                tracing::warn!(client, count, most, "handshakes were cut off: too many at a time");
            }
        }
        let (number, cut) = (state.next, Rc::new(Notify::new()));
        state.next += 1;
        state.running.push_back(Running { number, peer: peer.clone(), cut: Rc::clone(&cut) });
        Handshaking { handshakes: self.clone(), number, cut }
    }

    /// Waits until the peer may begin TLS.
    pub(super) async fn tls_turn(&self, peer: &Peer) {
        let wait = self.state.borrow_mut().tls.wait(peer, Instant::now());
        if !wait.is_zero() {
            tokio::time::sleep(wait).await;
        }
    }

    fn to_cut(&self, state: &HandshakesState, peer: &Peer) -> Option<usize> {
        let mut counts: BTreeMap<&Peer, usize> = BTreeMap::new();
        for running in &state.running {
            *counts.entry(&running.peer).or_default() += 1;
        }
        let of_peer = counts.get(peer).copied().unwrap_or(0);
        let peer_max = (self.max / PEER_DIVISOR).max(1);
        let loser = if of_peer >= peer_max && *peer != Peer::Unknown {
            peer
        } else if state.running.len() >= self.max {
            counts.iter().max_by_key(|(_, count)| **count).map(|(peer, _)| *peer)?
        } else {
            return None;
        };
        state.running.iter().position(|running| running.peer == *loser)
    }
}

impl fmt::Debug for Handshakes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Handshakes({} of {})", self.running(), self.max)
    }
}

/// A handshake in progress. Dropping it ends it.
pub(super) struct Handshaking {
    handshakes: Handshakes,
    number: u64,
    cut: Rc<Notify>,
}

impl Handshaking {
    /// Completes when it is to be cut off.
    pub(super) async fn cut(&self) {
        self.cut.notified().await;
    }
}

impl Drop for Handshaking {
    fn drop(&mut self) {
        let mut state = self.handshakes.state.borrow_mut();
        // They are in the order of their numbers.
        if let Ok(at) = state.running.binary_search_by_key(&self.number, |r| r.number) {
            state.running.remove(at);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::net::IpAddr;

    use super::*;

    fn host(last: u8) -> Peer {
        Peer::host(IpAddr::from([192, 0, 2, last]))
    }

    #[tokio::test]
    async fn one_peer_leaves_places_to_others() {
        let places = Places::new(10);
        let mut taken: Vec<Place> =
            (0..5).map(|_| places.take(&host(1), "one").expect("half are free")).collect();
        assert_eq!(places.take(&host(1), "one").expect_err("its half"), NoPlace::PeerFull);
        let mapped: IpAddr = "::ffff:192.0.2.1".parse().expect("an address");
        assert!(places.take(&Peer::host(mapped), "the same").is_err());
        for other in 2..7 {
            taken.push(places.take(&host(other), "other").expect("the other half"));
        }
        assert_eq!(places.take(&host(9), "late").expect_err("none left"), NoPlace::Full);
        assert_eq!((places.taken(), places.refused()), (10, 3));
        taken.remove(0);
        taken.push(places.take(&host(1), "one").expect("its own again"));
        taken.clear();
        assert_eq!(places.taken(), 0);
        assert!(places.lock().peers.is_empty(), "nobody is remembered");
    }

    fn is_cut(handshaking: &Handshaking) -> bool {
        let cut = std::pin::pin!(handshaking.cut());
        futures_util::FutureExt::now_or_never(cut).is_some()
    }

    #[tokio::test]
    async fn the_oldest_handshake_of_the_peer_with_the_most_is_cut_off() {
        let handshakes = Handshakes::new(8);
        let begin = |last| handshakes.begin(&host(last), "client");
        let greedy: Vec<Handshaking> = (0..4).map(|_| begin(1)).collect();
        assert!(!greedy.iter().any(is_cut));
        let fifth = begin(1);
        assert!(is_cut(&greedy[0]) && !is_cut(&greedy[1]), "its own oldest one");
        let others: Vec<Handshaking> = (2..6).map(begin).collect();
        assert_eq!(handshakes.running(), 8);
        let late = begin(9);
        assert!(is_cut(&greedy[1]), "of the one that has the most");
        assert!(!is_cut(&late) && !others.iter().any(is_cut) && !is_cut(&fifth));
        drop((greedy, fifth, others, late));
        assert_eq!(handshakes.running(), 0);
    }
}
