//! The memory that requests and replies of clients may take, in one process.
//!
//! Every buffer is drawn from it before it is allocated or read off a socket; whoever gets none is not read from, so
//! that its client waits. Clients that take no replies, or stop in the middle of a request, keep what they hold for as
//! long as they are suffered. So that they cannot keep the others from working:
//!
//! - a connection may always hold [`OWN_BYTES`]: half of the memory is set aside for them, which bounds how many
//!   connections there can be;
//! - of the rest it may hold much (a quarter) only while half of it is free. Then a small part each is left, which many
//!   connections can have before nothing is free;
//! - a request that has to be whole and is alone on its connection may take more, down to a quarter that stays free;
//! - while a client waits that took its replies lately, nobody gets anything of the rest who did not.
//!
//! Requests that another node forwards have a reserve: two nodes that serve each other's volumes would otherwise wait
//! for each other, each with its memory full of requests of its own clients. A forwarded request is not forwarded
//! again, so that whatever holds a part of the reserve ends without memory of another node.

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

/// What a connection may hold whatever the others do, in bytes: a few small requests.
pub(super) const OWN_BYTES: usize = 32 << 10;

/// Connections that any memory has room for.
const CONNECTIONS_MIN: usize = 64;

/// A connection holds at most the shared memory divided by this while half of it is free.
const MUCH_DIVISOR: usize = 4;

/// A connection holds at most the shared memory divided by this while less is free, or this many bytes.
const LITTLE_DIVISOR: usize = 512;
const LITTLE_BYTES_MIN: usize = 16 << 10;

/// The reserve for requests that other nodes forward is one part of so many, while there are such connections.
const RESERVE_DIVISOR: usize = 8;

/// The memory for requests of all clients of a process. Cheap to clone; used from any thread.
#[derive(Clone)]
pub struct RequestMemory(Arc<Shared>);

struct Shared {
    bytes_max: usize,
    connections: AtomicUsize,
    /// What connections hold beyond their own parts.
    shared_bytes: AtomicUsize,
    /// Connections of other nodes.
    forwarding: AtomicUsize,
    /// What they hold of the reserve.
    reserve_bytes: AtomicUsize,
    /// Connections that hold nothing and got nothing.
    waiting: AtomicUsize,
    /// Of them, those whose clients took replies lately.
    good_waiting: AtomicUsize,
}

impl RequestMemory {
    /// Memory of so many bytes.
    #[must_use]
    pub fn new(bytes_max: usize) -> Self {
        let (connections, shared_bytes, forwarding, reserve_bytes) = Default::default();
        let (waiting, good_waiting) = Default::default();
        Self(Arc::new(Shared {
            bytes_max,
            connections,
            shared_bytes,
            forwarding,
            reserve_bytes,
            waiting,
            good_waiting,
        }))
    }

    /// Connections whose own parts are within half of the memory.
    #[must_use]
    pub fn connections_max(&self) -> usize {
        (self.0.bytes_max / 2 / OWN_BYTES).max(CONNECTIONS_MIN)
    }

    /// Bytes that connections hold beyond their own parts.
    #[must_use]
    pub fn shared_bytes(&self) -> usize {
        self.0.shared_bytes.load(Ordering::Relaxed)
    }

    /// The part of a new connection, of another node or not.
    pub(super) fn share(&self, is_forwarding: bool) -> Share {
        self.0.connections.fetch_add(1, Ordering::Relaxed);
        if is_forwarding {
            self.0.forwarding.fetch_add(1, Ordering::Relaxed);
        }
        Share {
            memory: self.clone(),
            held: 0,
            reserve_bytes: 0,
            is_forwarding,
            window_bytes: 0,
            is_waiting: false,
            is_good: false,
        }
    }

    /// The reserve for forwarded requests, while there may be some.
    fn reserve_max(&self) -> usize {
        match self.0.forwarding.load(Ordering::Relaxed) {
            0 => 0,
            _ => self.0.bytes_max / RESERVE_DIVISOR,
        }
    }

    /// Takes `bytes` of the reserve, if there are so many.
    fn take_of_reserve(&self, bytes: usize) -> bool {
        let most = self.reserve_max();
        let after = |before: usize| before.checked_add(bytes).filter(|total| *total <= most);
        let reserve = &self.0.reserve_bytes;
        reserve.fetch_update(Ordering::Relaxed, Ordering::Relaxed, after).is_ok()
    }

    fn shared_max(&self) -> usize {
        let own = self.0.connections.load(Ordering::Relaxed).saturating_mul(OWN_BYTES);
        let rest = self.0.bytes_max.saturating_sub(own.min(self.0.bytes_max / 2));
        rest.saturating_sub(self.reserve_max())
    }

    /// Takes `bytes` of the shared memory if `allows` what is free afterwards of how much there is.
    fn take(&self, bytes: usize, allows: impl Fn(usize, usize) -> bool) -> bool {
        let most = self.shared_max();
        let after = |before: usize| {
            let total = before.checked_add(bytes).filter(|total| *total <= most)?;
            allows(most - total, most).then_some(total)
        };
        let shared = &self.0.shared_bytes;
        shared.fetch_update(Ordering::Relaxed, Ordering::Relaxed, after).is_ok()
    }

    fn give_back(&self, bytes: usize) {
        let before = self.0.shared_bytes.fetch_sub(bytes, Ordering::Relaxed);
        assert!(before >= bytes, "only what was taken is given back");
    }
}

impl fmt::Debug for RequestMemory {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "RequestMemory({} bytes)", self.0.bytes_max)
    }
}

fn count(counter: &AtomicUsize, is_one_more: bool) {
    match is_one_more {
        true => counter.fetch_add(1, Ordering::Relaxed),
        false => counter.fetch_sub(1, Ordering::Relaxed),
    };
}

fn beyond_own(held: usize) -> usize {
    held.saturating_sub(OWN_BYTES)
}

/// What one connection holds. Dropping it gives everything back.
pub(super) struct Share {
    memory: RequestMemory,
    held: usize,
    /// What of that is of the reserve.
    reserve_bytes: usize,
    /// The client is another node.
    is_forwarding: bool,
    window_bytes: usize,
    is_waiting: bool,
    /// The client took its replies lately.
    is_good: bool,
}

impl Share {
    /// Takes `bytes` for a request; whether it may.
    pub(super) fn take(&mut self, bytes: usize) -> bool {
        let after = beyond_own(self.held + bytes);
        let is_alone = self.held == 0;
        let allows = |free: usize, most: usize| {
            let has_little = after <= (most / LITTLE_DIVISOR).max(LITTLE_BYTES_MIN);
            let has_much = free >= most / 2 && after <= most / MUCH_DIVISOR;
            has_little || has_much || (is_alone && free >= most / MUCH_DIVISOR)
        };
        let more = after - beyond_own(self.held);
        let others_first = !self.is_good && self.memory.0.good_waiting.load(Ordering::Relaxed) > 0;
        let mut is_taken = more == 0 || (!others_first && self.memory.take(more, allows));
        if !is_taken && self.is_forwarding && self.memory.take_of_reserve(more) {
            self.reserve_bytes += more;
            is_taken = true;
        }
        self.set_waiting(is_alone && !is_taken);
        if is_taken {
            self.held += bytes;
        }
        is_taken
    }

    fn set_waiting(&mut self, is_waiting: bool) {
        if self.is_waiting != is_waiting {
            self.is_waiting = is_waiting;
            count(&self.memory.0.waiting, is_waiting);
            if self.is_good {
                count(&self.memory.0.good_waiting, is_waiting);
            }
        }
    }

    /// Whether the client took replies lately.
    pub(super) fn is_good(&self) -> bool {
        self.is_good
    }

    /// Takes note whether the client takes its replies.
    pub(super) fn set_good(&mut self, is_good: bool) {
        if self.is_good != is_good {
            self.is_good = is_good;
            if self.is_waiting {
                count(&self.memory.0.good_waiting, is_good);
            }
        }
    }

    /// Whether a connection that holds nothing waits for memory.
    pub(super) fn others_wait(&self) -> bool {
        self.memory.0.waiting.load(Ordering::Relaxed) > usize::from(self.is_waiting)
    }

    /// Takes `bytes`, which are few and cannot wait.
    pub(super) fn take_in_any_case(&mut self, bytes: usize) {
        let more = beyond_own(self.held + bytes) - beyond_own(self.held);
        self.memory.0.shared_bytes.fetch_add(more, Ordering::Relaxed);
        self.held += bytes;
    }

    /// Gives back `bytes` of what was taken.
    pub(super) fn give_back(&mut self, bytes: usize) {
        assert!(bytes <= self.held, "only what was taken is given back");
        let before = beyond_own(self.held);
        self.held -= bytes;
        let given_back = before - beyond_own(self.held);
        let of_reserve = given_back.min(self.reserve_bytes);
        self.reserve_bytes -= of_reserve;
        self.memory.0.reserve_bytes.fetch_sub(of_reserve, Ordering::Relaxed);
        self.memory.give_back(given_back - of_reserve);
    }

    /// Takes `bytes` for a larger window, which is for speed only; whether it may.
    pub(super) fn take_window(&mut self, bytes: usize) -> bool {
        let is_taken = self.memory.take(bytes, |free, most| free >= most / 2);
        if is_taken {
            self.window_bytes += bytes;
        }
        is_taken
    }

    /// Gives back what was taken for windows.
    pub(super) fn give_back_windows(&mut self) {
        self.memory.give_back(std::mem::take(&mut self.window_bytes));
    }
}

impl Drop for Share {
    fn drop(&mut self) {
        self.give_back(self.held);
        self.give_back_windows();
        self.set_waiting(false);
        self.memory.0.connections.fetch_sub(1, Ordering::Relaxed);
        if self.is_forwarding {
            self.memory.0.forwarding.fetch_sub(1, Ordering::Relaxed);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MIB: usize = 1 << 20;

    #[test]
    fn everybody_has_a_part_of_its_own_whatever_others_hold() {
        let memory = RequestMemory::new(32 * MIB);
        assert_eq!(memory.connections_max(), 512);
        let mut shares: Vec<Share> = (0..512).map(|_| memory.share(false)).collect();
        for share in &mut shares {
            while share.take(8 << 10) {}
        }
        assert!(memory.shared_bytes() <= 16 * MIB, "{}", memory.shared_bytes());
        for share in &shares {
            assert!(share.held >= OWN_BYTES);
        }
        drop(shares);
        assert_eq!(memory.shared_bytes(), 0);
    }

    #[test]
    fn stuck_connections_leave_something_to_the_next() {
        let memory = RequestMemory::new(32 * MIB);
        let mut stuck: Vec<Share> = (0..120).map(|_| memory.share(false)).collect();
        for share in &mut stuck {
            while share.take(MIB) || share.take(64 << 10) || share.take(4 << 10) {}
        }
        let mut good = memory.share(false);
        let mut requests = 0;
        while good.take(5 << 10) {
            requests += 1;
        }
        assert!(requests >= 12, "{requests} requests of 4 KiB side by side");
        drop(stuck);
        good.give_back(requests * (5 << 10));
        assert!(good.take(7 * MIB), "a quarter of what is shared");
        assert!(!good.take(2 * MIB));
    }

    #[test]
    fn a_request_that_must_be_whole_is_let_through_where_a_quarter_stays_free() {
        let memory = RequestMemory::new(32 * MIB);
        let mut shares: Vec<Share> = (0..10).map(|_| memory.share(false)).collect();
        let whole = shares.iter_mut().filter_map(|share| share.take(4 * MIB).then_some(())).count();
        assert_eq!(whole, 5, "while a quarter of what is shared stays free");
        shares.remove(0);
        assert!(!shares[8].take(8 * MIB));
        assert!(shares[8].take(4 * MIB), "one has left");
    }

    #[test]
    fn who_took_its_replies_comes_before_who_did_not() {
        let memory = RequestMemory::new(32 * MIB);
        let [mut holder, mut stuck, mut good] = [0; 3].map(|_| memory.share(false));
        assert!(holder.take(16 * MIB) && !stuck.take(20 * MIB), "it waits");
        good.set_good(true);
        assert!(!good.take(20 * MIB) && good.others_wait() && holder.others_wait());
        holder.give_back(16 * MIB);
        assert!(!stuck.take(20 * MIB), "it is not its turn");
        assert!(good.take(20 * MIB));
        good.give_back(20 * MIB);
        assert!(stuck.take(20 * MIB), "nobody waits any more");
        stuck.give_back(20 * MIB);
        assert!(holder.take(16 * MIB) && !good.take(20 * MIB));
        good.set_good(false);
        holder.give_back(16 * MIB);
        assert!(stuck.take(20 * MIB), "the other one is not good any more");
        drop((holder, stuck, good));
        let counters = [&memory.0.waiting, &memory.0.good_waiting, &memory.0.shared_bytes];
        assert!(counters.iter().all(|counter| counter.load(Ordering::Relaxed) == 0));
    }

    #[test]
    fn what_another_node_forwards_finds_memory_however_much_its_own_clients_hold() {
        let memory = RequestMemory::new(32 * MIB);
        let mut node = memory.share(true);
        let mut own: Vec<Share> = (0..400).map(|_| memory.share(false)).collect();
        for share in &mut own {
            while share.take(MIB) || share.take(8 << 10) {}
        }
        let mut late = memory.share(false);
        late.take(OWN_BYTES);
        assert!(!late.take(MIB), "nothing is left");
        assert!(node.take(MIB) && node.take(MIB));
        let mut other_node = memory.share(true);
        assert!(other_node.take(MIB) && other_node.take(MIB));
        assert!(!other_node.take(MIB), "the reserve is bounded");
        node.give_back(2 * MIB);
        assert!(other_node.take(MIB));
        drop((node, other_node, own, late));
        let counters = [&memory.0.shared_bytes, &memory.0.reserve_bytes, &memory.0.forwarding];
        assert!(counters.iter().all(|counter| counter.load(Ordering::Relaxed) == 0));
    }

    #[test]
    fn windows_are_given_only_while_half_is_free() {
        let memory = RequestMemory::new(32 * MIB);
        let mut shares: Vec<Share> = (0..200).map(|_| memory.share(false)).collect();
        let windows =
            shares.iter_mut().filter_map(|s| s.take_window(256 << 10).then_some(())).count();
        assert!((40..=64).contains(&windows), "{windows}");
        for share in &mut shares {
            share.give_back_windows();
        }
        assert_eq!(memory.shared_bytes(), 0);
    }
}
