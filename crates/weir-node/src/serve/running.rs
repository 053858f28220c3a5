//! What ends a volume that is served, and the rule that a volume is changed by one verb at a time.

use std::collections::BTreeSet;
use std::sync::Mutex;

use tokio::sync::oneshot;
use weir_log::catalog::VolumeName;

use crate::error::NodeError;
use crate::serve::lock::lock;
use crate::serve::replica::End;
use crate::serve::spec::{Closing, Stopped};

/// How a volume ended, once it has.
pub(crate) type Ended = oneshot::Receiver<Result<Stopped, NodeError>>;

/// What ends a volume on its shard.
#[derive(Debug)]
pub(crate) struct Running {
    pub(crate) stop: oneshot::Sender<Closing>,
    pub(crate) ended: Ended,
    /// Ends the keeping of its replica.
    pub(crate) following: Option<End>,
}

impl Running {
    /// Takes what ends the keeping of its replica, to end that first.
    pub(crate) fn take_following(&mut self) -> Option<End> {
        self.following.take()
    }

    /// Begins to close it. The result comes through the channel.
    pub(crate) fn stop(self, closing: Closing) -> Ended {
        // It may have ended by itself.
        let _ = self.stop.send(closing);
        self.ended
    }
}

/// The volumes that are being attached or detached.
pub(crate) type Changing = Mutex<BTreeSet<String>>;

/// This volume is being changed as long as this lives (A1).
pub(crate) struct Change<'a>(&'a Changing, String);

impl<'a> Change<'a> {
    pub(crate) fn begin(changing: &'a Changing, name: &VolumeName) -> Result<Self, NodeError> {
        let name = name.to_string();
        match lock(changing).insert(name.clone()) {
            true => Ok(Self(changing, name)),
            false => Err(NodeError::Changing { name }),
        }
    }
}

impl Drop for Change<'_> {
    fn drop(&mut self) {
        lock(self.0).remove(&self.1);
    }
}
