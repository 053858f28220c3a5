//! The sessions that stay, and what is said of each.

use std::sync::{Arc, Mutex};

use weir_device::{DetachedStream, VolumeId};
use weir_frontend::nbd::{Keeper, Kept, KeptState};

use crate::serve::lock::lock;

/// Most sessions that are handed over; others end.
pub(crate) const SESSIONS_MAX: usize = 2000;

/// The session of a client, on its way to another process.
#[derive(Debug)]
pub struct KeptSession {
    pub(crate) stream: Box<dyn DetachedStream>,
    pub(crate) record: SessionRecord,
}

/// What is said of a session.
#[derive(Clone, Debug)]
pub(crate) struct SessionRecord {
    /// The volume, and the opening of it that the session was served by.
    pub(crate) volume: VolumeId,
    pub(crate) epoch: u64,
    pub(crate) state: KeptState,
}

/// The sessions of a process that stay.
#[derive(Clone, Debug, Default)]
pub(crate) struct Sessions {
    keeper: Keeper,
    kept: Arc<Mutex<Vec<KeptSession>>>,
}

impl Sessions {
    /// From now on they stay where they can.
    pub(crate) fn begin(&self) {
        self.keeper.begin();
    }

    /// Takes the connections of one volume.
    pub(crate) fn of_volume(&self) -> Keeper {
        self.keeper.of_export()
    }

    /// The opening of this epoch was closed in order (S1).
    pub(crate) fn closed(&self, keeper: &Keeper, volume: VolumeId, epoch: u64) {
        let sessions = keeper.take().into_iter().map(|Kept { stream, state }| KeptSession {
            stream,
            record: SessionRecord { volume, epoch, state },
        });
        lock(&self.kept).extend(sessions);
    }

    /// Those that stay, so far.
    pub(crate) fn take(&self) -> Vec<KeptSession> {
        std::mem::take(&mut *lock(&self.kept))
    }
}
