//! How often one peer may begin TLS: a handshake costs the thread of the listener some hundreds of microseconds,
//! whoever asks for it.

use std::collections::BTreeMap;
use std::time::Duration;

use tokio::time::Instant;
use weir_device::Peer;

/// Handshakes of a peer that are begun at once after a pause: the machines of a host that come back together.
const BURST: u32 = 256;

/// Time between two beyond that: 64 a second take a few percent of a thread.
const INTERVAL: Duration = Duration::from_micros(15_625);

/// Peers that are remembered at most.
const PEERS_MAX: usize = 4096;

/// The rates of all peers.
#[derive(Debug, Default)]
pub(super) struct TlsRate {
    /// When each has made up for all its handshakes.
    due: BTreeMap<Peer, Instant>,
}

impl TlsRate {
    /// How long the next handshake of a peer is to wait.
    pub(super) fn wait(&mut self, peer: &Peer, now: Instant) -> Duration {
        if *peer == Peer::Unknown {
            return Duration::ZERO;
        }
        if self.due.len() >= PEERS_MAX {
            self.due.retain(|_, due| *due > now);
            if self.due.len() >= PEERS_MAX {
                // Thousands of hosts at once: whoever is forgotten has a burst more.
                self.due.pop_first();
            }
        }
        let due = self.due.get(peer).copied().unwrap_or(now).max(now);
        self.due.insert(peer.clone(), due + INTERVAL);
        due.duration_since(now).saturating_sub(INTERVAL * (BURST - 1))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn a_burst_passes_and_then_one_after_the_other() {
        let (mut rate, now) = (TlsRate::default(), Instant::now());
        let (one, other) = (Peer::User(1), Peer::User(2));
        for _ in 0..BURST {
            assert_eq!(rate.wait(&one, now), Duration::ZERO);
        }
        assert_eq!(rate.wait(&one, now), INTERVAL);
        assert_eq!(rate.wait(&one, now), 2 * INTERVAL);
        assert_eq!(rate.wait(&other, now), Duration::ZERO, "each for itself");
        assert_eq!(rate.wait(&Peer::Unknown, now), Duration::ZERO);
        let later = now + INTERVAL * (BURST + 2);
        assert_eq!(rate.wait(&one, later), Duration::ZERO, "a pause makes up for it");
    }

    #[tokio::test(start_paused = true)]
    async fn what_is_remembered_is_bounded() {
        let (mut rate, now) = (TlsRate::default(), Instant::now());
        for user in 0..u32::try_from(2 * PEERS_MAX).expect("few") {
            rate.wait(&Peer::User(user), now);
        }
        assert!(rate.due.len() <= PEERS_MAX);
        for user in 0..u32::try_from(3 * PEERS_MAX).expect("few") {
            rate.wait(&Peer::User(user), now + INTERVAL * user);
        }
        assert!(rate.due.len() <= PEERS_MAX);
    }
}
