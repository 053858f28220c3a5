//! How connections are served, and their limits.

use std::time::Duration;

use weir_device::{BufferPool, Peer, SourceId};
use weir_net::{Refusals, origin, shown, shown_error};

use super::access::Access;
use super::attachments::Attachments;
use super::error::NbdError;
use super::identity::Sources;
use super::keep::Keeper;
use super::memory::RequestMemory;
use super::places::{HANDSHAKES_MAX, Handshakes, Places};
use super::security::Security;

/// Requests that one connection has in flight at most: what the clients in use ask for at their deepest.
pub const IN_FLIGHT_MAX: usize = 128;

/// Bytes of buffers that one connection holds at most: two of the largest payloads.
pub const IN_FLIGHT_BYTES_MAX: usize = 64 << 20;

/// Memory for the requests of all clients where nothing else is said.
const REQUEST_BYTES_DEFAULT: usize = 4 * IN_FLIGHT_BYTES_MAX;

/// Time that a client has for its whole handshake, what is looked up for it included.
pub const HANDSHAKE_TIMEOUT: Duration = Duration::from_secs(30);

/// Time that a client has for each of its messages in the handshake.
pub const HANDSHAKE_SILENCE: Duration = Duration::from_secs(10);

/// Time for what clients have in flight when the server stops: to end, and for its replies to be taken.
pub const LINGER: Duration = Duration::from_secs(10);

/// How one connection is served.
#[derive(Clone, Debug)]
pub struct ConnectionOptions {
    /// Who the client is, for the I/O headers of its requests.
    pub source: SourceId,
    /// Who the client is, for the log.
    pub client: String,
    /// Requests in flight at most; a request is in flight until its reply was sent.
    pub in_flight_max: usize,
    /// Bytes of buffers in flight at most. One request may exceed it when it is alone.
    pub in_flight_bytes_max: usize,
    /// Time for the whole handshake.
    pub handshake_timeout: Duration,
    /// Time for what is in flight, and its replies, after the server was told to stop.
    pub linger: Duration,
    /// Where buffers come from.
    pub pool: BufferPool,
    /// What all clients of the process may hold together.
    pub memory: RequestMemory,
    /// The places for all clients of the process.
    pub places: Places,
    /// The handshakes in progress on the same listener.
    pub handshakes: Handshakes,
    /// Who the client is, for limits.
    pub peer: Peer,
    /// The numbers of identities, where the client's thread shakes hands and another serves it: `source` is set there.
    pub sources: Sources,
    /// Which connections are one client's.
    pub attachments: Attachments,
    /// Who may write.
    pub access: Access,
    /// What was logged lately of clients that were refused, or broke off.
    pub refusals: Refusals,
    /// Whether clients speak TLS, where one thread shakes hands and another serves.
    pub security: Security,
    /// Where connections go that another process is to go on with, if any may.
    pub keeper: Option<Keeper>,
}

impl ConnectionOptions {
    /// The defaults, for a client of this name.
    #[must_use]
    pub fn new(source: SourceId, client: impl Into<String>) -> Self {
        let memory = RequestMemory::new(REQUEST_BYTES_DEFAULT);
        Self {
            source,
            client: client.into(),
            in_flight_max: IN_FLIGHT_MAX,
            in_flight_bytes_max: IN_FLIGHT_BYTES_MAX,
            handshake_timeout: HANDSHAKE_TIMEOUT,
            linger: LINGER,
            pool: BufferPool::new(IN_FLIGHT_BYTES_MAX),
            places: Places::new(memory.connections_max()),
            memory,
            handshakes: Handshakes::new(HANDSHAKES_MAX),
            peer: Peer::Unknown,
            sources: Sources::default(),
            attachments: Attachments::default(),
            access: Access::default(),
            refusals: Refusals::default(),
            security: Security::Clear,
            keeper: None,
        }
    }

    /// Logs how a connection ended against the wish of one side.
    pub(super) fn note_ended(&self, error: &NbdError) {
        self.refusals.note(origin(&self.peer), error, |left_out| {
            let error = shown_error(error);
            tracing::warn!(client = self.client, %error, left_out, "client connection ended");
        });
    }

    /// Logs that a client did not get what it was offered.
    pub(super) fn note_turned_away(&self, export: &str, reason: &'static str) {
        self.refusals.note(origin(&self.peer), reason, |left_out| {
            let export = shown(export);
            tracing::warn!(
                client = self.client,
                export,
                left_out,
                reason,
                "a client was turned away"
            );
        });
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The name of a client has its port, and is another one for each of its connections.
    #[test]
    fn connections_of_one_host_are_of_one_client_in_the_log() {
        let refusals = Refusals::default();
        let of = |client, host: [u8; 4]| ConnectionOptions {
            peer: Peer::host(host.into()),
            refusals: refusals.clone(),
            ..ConnectionOptions::new(SourceId(1), client)
        };
        let one = of("192.0.2.1:1000", [192, 0, 2, 1]);
        one.note_turned_away("demo", "it is not offered");
        one.note_ended(&NbdError::Truncated);
        for reason in ["it is not offered".to_owned(), NbdError::Truncated.to_string()] {
            let note = |of: &ConnectionOptions| {
                let mut is_said = false;
                refusals.note(origin(&of.peer), &reason, |_| is_said = true);
                is_said
            };
            assert!(!note(&of("192.0.2.1:1001", [192, 0, 2, 1])), "{reason}");
            assert!(note(&of("192.0.2.2:1000", [192, 0, 2, 2])), "{reason}");
        }
    }
}
