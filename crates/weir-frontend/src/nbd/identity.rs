//! Who a client is, and the number that stands for it in the I/O headers of its requests.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use weir_device::{Peer, SourceId};

/// Who a client is, as far as it has proved it.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub enum Identity {
    /// The name in the certificate that it has shown.
    Certificate(String),
    /// A user of this host, by its number, as the system knows it of a unix socket.
    User(u32),
    /// It has proved nothing: a connection over TCP in the clear.
    #[default]
    Anonymous,
}

impl Identity {
    /// Of a client that has shown no certificate.
    #[must_use]
    pub fn of_peer(peer: &Peer) -> Self {
        match peer {
            Peer::User(number) => Self::User(*number),
            Peer::Host(_) | Peer::Unknown => Self::Anonymous,
        }
    }
}

impl fmt::Display for Identity {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Certificate(name) => f.write_str(name),
            Self::User(number) => write!(f, "uid:{number}"),
            Self::Anonymous => f.write_str("anonymous"),
        }
    }
}

/// The numbers of all identities that a process has met. They count from one, and stay as long as the process lives:
/// there are no more than certificates that were issued, and users. Cheap to clone; used from any thread.
#[derive(Clone, Debug, Default)]
pub struct Sources(Arc<Mutex<BTreeMap<Identity, SourceId>>>);

impl Sources {
    fn lock(&self) -> MutexGuard<'_, BTreeMap<Identity, SourceId>> {
        // What is behind it is whole between two statements.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The number of an identity.
    #[must_use]
    pub fn of(&self, identity: &Identity) -> SourceId {
        let mut known = self.lock();
        let next = SourceId(known.len() as u64 + 1);
        *known.entry(identity.clone()).or_insert(next)
    }

    /// Whose number it is.
    #[must_use]
    pub fn identity(&self, source: SourceId) -> Option<Identity> {
        self.lock()
            .iter()
            .find(|(_, number)| **number == source)
            .map(|(identity, _)| identity.clone())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_identity_keeps_its_number() {
        let sources = Sources::default();
        let alice = Identity::Certificate("alice".to_owned());
        let of_alice = sources.of(&alice);
        let of_root = sources.clone().of(&Identity::of_peer(&Peer::User(0)));
        assert_ne!(of_alice, of_root);
        assert_eq!(sources.of(&alice), of_alice);
        assert_eq!(sources.identity(of_root), Some(Identity::User(0)));
        assert_eq!(sources.identity(SourceId(9)), None);
        // A certificate cannot pass for a user of this host.
        let pretender = Identity::Certificate("uid:0".to_owned());
        assert_ne!(sources.of(&pretender), of_root);
    }
}
