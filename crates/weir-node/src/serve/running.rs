//! What ends a volume that is served, and the rule that a volume is changed by one verb at a time.

use std::collections::BTreeSet;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use tokio::sync::{oneshot, watch};
use tokio::time::Instant;
use weir_device::{VolumeId, mutant};
use weir_log::catalog::VolumeName;

use crate::error::NodeError;
use crate::serve::core::Core;
use crate::serve::lock::lock;
use crate::serve::replica::End;
use crate::serve::spec::{Closing, EndpointKind, Stopped, VolumeSpec};
use crate::serve::unsent::Unsent;

/// Time for handshakes, replication and clients of snapshots to end before the volumes are closed: all of them may
/// wait for a store that does not answer.
pub(crate) const ANCILLARY_TIME: Duration = Duration::from_secs(5);

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

/// A volume that a detach or the end of the process closes.
#[derive(Debug)]
pub(crate) struct BeingClosed {
    pub(crate) id: VolumeId,
    /// For a stop in the middle of a detach, which takes it.
    pub(crate) ended: Option<Ended>,
    /// What is still to go.
    pub(crate) unsent: Unsent,
    /// What has its bytes, and so what is waited for.
    pub(crate) endpoint: EndpointKind,
    pub(crate) since: Instant,
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

/// Where an opening is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Course {
    GoesOn,
    TakenBack,
    Ended,
}

/// An opening as those see it who may take it back.
#[derive(Debug)]
pub(crate) struct Begun {
    name: VolumeName,
    /// It goes on in the background, because the configuration names the volume.
    is_configured: bool,
    /// How a verb has it opened.
    asked: Option<VolumeSpec>,
    course: watch::Sender<Course>,
}

/// The openings that have begun and not ended.
pub(crate) type Openings = Mutex<Vec<Arc<Begun>>>;

/// An opening, which can be taken back as long as this lives.
#[derive(Debug)]
pub(crate) struct Opening(Arc<Core>, Arc<Begun>);

impl Opening {
    /// Begins one for the settings.
    pub(crate) fn begin(core: &Arc<Core>, name: &VolumeName) -> Arc<Self> {
        let course = watch::Sender::new(Course::GoesOn);
        let begun =
            Arc::new(Begun { name: name.clone(), is_configured: true, asked: None, course });
        lock(&core.openings).push(Arc::clone(&begun));
        Arc::new(Self(Arc::clone(core), begun))
    }

    /// Begins one for a verb: as the settings say, but for what `change` does to that.
    pub(crate) fn begin_by_hand(
        core: &Arc<Core>,
        name: &VolumeName,
        change: impl FnOnce(&mut VolumeSpec),
    ) -> (Arc<Self>, VolumeSpec) {
        // Under the lock: a reload that changes what the settings say comes before it, or finds this opening.
        let mut openings = lock(&core.openings);
        let mut spec = core.spec_of(name);
        change(&mut spec);
        let (asked, course) = (Some(spec.clone()), watch::Sender::new(Course::GoesOn));
        let begun = Arc::new(Begun { name: name.clone(), is_configured: false, asked, course });
        openings.push(Arc::clone(&begun));
        (Arc::new(Self(Arc::clone(core), begun)), spec)
    }

    /// A verb began it, not the settings.
    pub(crate) fn is_by_hand(&self) -> bool {
        !self.1.is_configured
    }

    pub(crate) fn is_taken_back(&self) -> bool {
        *self.1.course.borrow() != Course::GoesOn
    }

    /// Returns once it is taken back.
    pub(crate) async fn taken_back(&self) {
        // An error would mean that the sender was dropped; it is a field of `self`.
        let _ = self.1.course.subscribe().wait_for(|course| *course != Course::GoesOn).await;
    }
}

impl Drop for Opening {
    fn drop(&mut self) {
        lock(&self.0.openings).retain(|begun| !Arc::ptr_eq(begun, &self.1));
        self.1.course.send_replace(Course::Ended);
    }
}

impl Core {
    /// The volumes that verbs have opened otherwise than the settings say by now, and that are not open yet.
    pub(crate) fn opened_otherwise(&self) -> Vec<VolumeName> {
        let openings = lock(&self.openings);
        let is_otherwise = |one: &&Arc<Begun>| {
            let asked = one.asked.as_ref();
            asked.is_some_and(|asked| !self.spec_of(&one.name).serves_like(asked))
        };
        let otherwise = openings.iter().filter(is_otherwise);
        otherwise
            .map(|one| one.name.clone())
            .filter(|_| !mutant("reload_misses_openings"))
            .collect()
    }

    /// Takes openings back that `is_meant` is true of, and waits until they have ended; the names of their volumes. One
    /// that ended before it could be taken back may have left its volume served.
    pub(crate) async fn take_back(
        &self,
        is_meant: impl Fn(&VolumeName, bool) -> bool,
    ) -> Vec<VolumeName> {
        let meant: Vec<Arc<Begun>> = {
            let openings = lock(&self.openings);
            let meant = openings.iter().filter(|one| is_meant(&one.name, one.is_configured));
            meant.cloned().collect()
        };
        for one in &meant {
            one.course.send_replace(Course::TakenBack);
        }
        for one in &meant {
            // An error would mean that the sender was dropped; it is a field of `one`.
            let _ = one.course.subscribe().wait_for(|course| *course == Course::Ended).await;
        }
        meant.iter().map(|one| one.name.clone()).collect()
    }
}
