//! Connections that stay when their process is replaced: each is left between two requests, with all that the next
//! process needs to go on with it.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use weir_device::{DetachedStream, Peer};
use weir_nbd::Session;
use weir_net::tls::PeerCertificate;

use super::identity::Identity;

/// A connection that another process is to go on with.
#[derive(Debug)]
pub struct Kept {
    /// The connection.
    pub stream: Box<dyn DetachedStream>,
    /// The rest of it.
    pub state: KeptState,
}

/// What belongs to a connection beside its socket.
#[derive(Clone, Debug)]
pub struct KeptState {
    /// Name of the export that the client chose.
    pub export: String,
    /// What was agreed on.
    pub session: Session,
    /// The size that the client was told.
    pub size: u64,
    /// The client's name in the log.
    pub client: String,
    /// Who is there, for limits.
    pub peer: Peer,
    /// The certificate that the client has shown.
    pub certificate: Option<PeerCertificate>,
    /// What was received, and is not a request that was taken.
    pub unread: Vec<u8>,
}

impl KeptState {
    /// Who the client has proved to be.
    #[must_use]
    pub fn identity(&self) -> Identity {
        match &self.certificate {
            Some(certificate) => Identity::Certificate(certificate.holder.name.clone()),
            None => Identity::of_peer(&self.peer),
        }
    }
}

/// What another process needs to go on with a connection.
#[derive(Debug)]
pub(super) struct Left {
    pub(super) session: Session,
    /// What was received and not taken.
    pub(super) unread: Vec<u8>,
}

/// Takes the connections of an export when its server stops, instead of ending them, once it was told to. Clones are
/// the same; any thread may use them.
#[derive(Clone, Debug, Default)]
pub struct Keeper {
    keeps: Arc<AtomicBool>,
    kept: Arc<Mutex<Vec<Kept>>>,
}

impl Keeper {
    /// One that begins to keep when this one does, and has what it keeps for itself.
    #[must_use]
    pub fn of_export(&self) -> Self {
        Self { keeps: Arc::clone(&self.keeps), kept: Arc::default() }
    }

    /// From now on connections that their servers end are kept.
    pub fn begin(&self) {
        self.keeps.store(true, Ordering::Release);
    }

    pub(super) fn keeps(&self) -> bool {
        self.keeps.load(Ordering::Acquire)
    }

    fn lock(&self) -> MutexGuard<'_, Vec<Kept>> {
        // What is behind it is whole between two statements.
        self.kept.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn keep(&self, kept: Kept) {
        self.lock().push(kept);
    }

    /// What was kept so far.
    #[must_use]
    pub fn take(&self) -> Vec<Kept> {
        std::mem::take(&mut *self.lock())
    }
}
