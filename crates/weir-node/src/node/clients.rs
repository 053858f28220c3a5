//! What all clients of NBD of a node share: memory for their requests, and places.

use rustix::process::{Resource, getrlimit};
use weir_device::{BufferPool, SourceId};
use weir_frontend::nbd::{
    ConnectionOptions, HANDSHAKES_MAX, Handshakes, IN_FLIGHT_BYTES_MAX, Places, RequestMemory,
};
use weir_net::Refusals;

/// The part of the memory for buffers that clients' requests may take; the rest is for copies of what is in journals.
const REQUESTS_SHARE: u64 = 2;

/// The part of the process's open files that may be clients, as a divisor. One that takes its replies late costs two,
/// as its socket is registered for room by a duplicate, so that all of them can have half of the files; the rest is for
/// volumes, journals and stores.
const DESCRIPTORS_SHARE: usize = 4;

/// The same for handshakes in progress on one listener.
const HANDSHAKE_DESCRIPTORS_SHARE: usize = 8;

/// The part of a shard's memory for buffers that one connection may hold, so that one that takes no replies does not
/// hold them all.
const IN_FLIGHT_SHARE: usize = 8;

/// What every connection may hold at least, in bytes: a little more than the largest write that is received whole.
const IN_FLIGHT_BYTES_MIN: usize = 5 << 20;

/// What all clients of a node share.
#[derive(Clone, Debug)]
pub(crate) struct Clients {
    pub(crate) memory: RequestMemory,
    pub(crate) places: Places,
    pub(crate) refusals: Refusals,
    handshakes_max: usize,
}

impl Clients {
    /// For a node with so much memory for buffers, and as many open files as the process may have.
    pub(crate) fn of(buffer_bytes: u64) -> Self {
        let descriptors = getrlimit(Resource::Nofile).current;
        let descriptors =
            descriptors.map_or(usize::MAX, |most| usize::try_from(most).unwrap_or(usize::MAX));
        Self::within(buffer_bytes, descriptors)
    }

    fn within(buffer_bytes: u64, descriptors: usize) -> Self {
        let bytes = usize::try_from(buffer_bytes / REQUESTS_SHARE).unwrap_or(usize::MAX);
        let memory = RequestMemory::new(bytes);
        let places = Places::new(memory.connections_max().min(descriptors / DESCRIPTORS_SHARE));
        let handshakes_max = HANDSHAKES_MAX.min(descriptors / HANDSHAKE_DESCRIPTORS_SHARE);
        Self { memory, places, refusals: Refusals::default(), handshakes_max }
    }

    /// How clients of one listener, or of the exports of one thread, are served.
    pub(crate) fn options(&self, pool: &BufferPool) -> ConnectionOptions {
        let share = pool.bytes_max() / IN_FLIGHT_SHARE;
        ConnectionOptions {
            in_flight_bytes_max: share.clamp(IN_FLIGHT_BYTES_MIN, IN_FLIGHT_BYTES_MAX),
            pool: pool.clone(),
            memory: self.memory.clone(),
            places: self.places.clone(),
            refusals: self.refusals.clone(),
            handshakes: Handshakes::new(self.handshakes_max),
            ..ConnectionOptions::new(SourceId(1), "nbd")
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn clients_that_take_no_replies_leave_half_of_the_descriptors() {
        let places = |descriptors| Clients::within(256 << 20, descriptors).places.max();
        assert_eq!(places(256), 64, "two descriptors each");
        assert_eq!(places(usize::MAX), RequestMemory::new(128 << 20).connections_max());
    }
}
