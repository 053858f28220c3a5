//! What a process leaves to the one that takes its place, and what that one makes of it.

use weir_device::{VolumeId, mutant, with_causes};
use weir_log::catalog::VolumeName;

use crate::error::NodeError;
use crate::serve::attach::{self, Wanted};
use crate::serve::by_hand::Left;
use crate::serve::core::{Core, Entry};
use crate::serve::failed::{Failure, place_of};
use crate::serve::lock::lock;
use crate::serve::sessions::kept::KeptSession;
use crate::serve::spec::EndpointKind;

/// A volume that the process before this one served.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HandedOver {
    /// Its name.
    pub name: VolumeName,
    /// What it was.
    pub was: Was,
}

/// What a volume was to the process before this one.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Was {
    /// Served as its settings said, or being closed.
    Served,
    /// Attached by hand.
    Attached {
        /// Whether writes of clients were refused.
        read_only: bool,
    },
    /// Detached by hand, though its settings name it.
    Detached {
        /// Its identity, where it is known: another volume may have the name by now.
        volume: Option<VolumeId>,
    },
    /// Detached by a verb that was to rename or delete it next.
    Going {
        /// Its identity.
        volume: VolumeId,
    },
    /// In no store, and failed: what its clients were told to be written may be lost. The list names it once more as
    /// what it was otherwise.
    Failed {
        /// Names where its bytes are: a CRC32C.
        place: u32,
        /// What went wrong, in words.
        why: String,
    },
}

/// What a process leaves to the next one beside its volumes.
#[derive(Debug)]
pub struct Parting {
    /// Its listening sockets.
    pub sockets: Vec<std::os::fd::OwnedFd>,
    /// The sessions of its clients.
    pub sessions: Vec<KeptSession>,
    /// The volumes in no store that had failed, or whose close failed.
    pub failed: Vec<HandedOver>,
}

impl HandedOver {
    /// A volume whose close failed, if the next process has to know that.
    pub(crate) fn failed(entry: &Entry, error: &NodeError) -> Option<Self> {
        let place = place_of(&entry.spec.endpoint).filter(|_| !mutant("failure_not_handed_on"))?;
        let was = Was::Failed { place, why: with_causes(error) };
        Some(Self { name: entry.name.clone(), was })
    }
}

/// What is to be served by a process that comes after one that left these.
pub(crate) async fn wanted_after(core: &Core, left: &[HandedOver]) -> Result<Wanted, NodeError> {
    for HandedOver { name, was } in left {
        match was {
            Was::Served => {}
            Was::Attached { .. } => core.note_by_hand_before(name, Left::Attached),
            Was::Detached { volume } => core.note_by_hand_before(name, Left::Detached(*volume)),
            Was::Going { volume } => core.note_by_hand_before(name, Left::Going(*volume)),
            Was::Failed { place, why } => {
                let failure = Failure { name: name.clone(), why: why.clone() };
                core.failed_before.note(*place, failure);
            }
        }
    }
    let mut wanted = attach::wanted(core).await?;
    for (name, why) in &wanted.left_out {
        tracing::warn!(volume = %name, why, "a volume is left out");
    }
    for HandedOver { name, was } in left {
        let Was::Attached { read_only } = *was else { continue };
        if !wanted.specs.iter().any(|spec| spec.name == *name) {
            wanted.specs.push(core.spec_of(name));
        }
        let its = wanted.specs.iter_mut().filter(|spec| spec.name == *name);
        its.for_each(|spec| spec.read_only |= read_only && !mutant("read_only_not_handed_on"));
    }
    core.failed_before.keep(&wanted.specs);
    Ok(wanted)
}

/// The volumes that the next process is to serve or to close. Those in no store whose close fails come with
/// [`Parting`].
pub(crate) fn handed_over(core: &Core) -> Vec<HandedOver> {
    // Attached by hand, or otherwise than the settings say.
    let is_otherwise = |entry: &Entry| {
        core.is_attached(&entry.name) || entry.spec.read_only != core.spec_of(&entry.name).read_only
    };
    let was = |entry: &Entry| match is_otherwise(entry) && !mutant("attached_not_handed_on") {
        true => Was::Attached { read_only: entry.spec.read_only },
        false => Was::Served,
    };
    let entries = core.entries().into_iter();
    let served = entries.map(|entry| HandedOver { name: entry.name.clone(), was: was(&entry) });
    let names = core.not_served().into_keys().chain(core.left().into_keys());
    // The close of one that is being detached may be cut short. One in no store is waited for.
    let closing: Vec<String> = {
        let closing = lock(&core.closing);
        let of_stores = closing.iter().filter(|(_, one)| one.endpoint == EndpointKind::Log);
        of_stores.map(|(name, _)| name.clone()).collect()
    };
    let names = names.chain(closing);
    let others = names.filter_map(|name| VolumeName::new(&name).ok());
    let others = others.map(|name| HandedOver { name, was: Was::Served });
    let detached = core.detached_by_hand().into_iter();
    let detached = detached.filter_map(|(name, left)| match left {
        Left::Attached => None,
        Left::Detached(volume) => Some(HandedOver { name, was: Was::Detached { volume } }),
        Left::Going(volume) => Some(HandedOver { name, was: Was::Going { volume } }),
    });
    let failed = core.failed_before.all().into_iter();
    let failed = failed
        .map(|(place, Failure { name, why })| HandedOver { name, was: Was::Failed { place, why } });
    served.chain(others).chain(detached).chain(failed).collect()
}
