//! What a process leaves to the one that takes its place, and what that one makes of it.
//!
//! A volume in no store that failed stays failed: nothing but this process knows that what its clients were told to be
//! written may be lost, and the file or server would take writes and flushes as if nothing had been. The next process
//! does not serve it, and says why, until somebody detaches or attaches it, or the settings say that its bytes are
//! elsewhere.

use std::collections::BTreeMap;
use std::sync::Mutex;

use crc_fast::CrcAlgorithm;
use weir_device::{ErrorKind, VolumeId, mutant, with_causes};
use weir_log::catalog::VolumeName;
use weir_stack::{Stack, StageStatus};

use crate::error::NodeError;
use crate::serve::attach::{self, Wanted};
use crate::serve::by_hand::Left;
use crate::serve::core::{Core, Entry};
use crate::serve::lock::lock;
use crate::serve::service::Service;
use crate::serve::sessions::kept::KeptSession;
use crate::serve::spec::{Closing, EndpointKind, VolumeSpec};

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

/// Where the bytes of a volume in no store are, and why it failed.
#[derive(Clone, Debug)]
pub(crate) struct Failure {
    place: u32,
    why: String,
}

/// The volumes in no store that failed in the process before this one, and that nobody has attached since.
pub(crate) type FailedBefore = Mutex<BTreeMap<VolumeName, Failure>>;

/// Names where the bytes of a volume in no store are; `None` for one that has no such place.
fn place_of(endpoint: &EndpointKind) -> Option<u32> {
    let place = match endpoint {
        EndpointKind::File(file) => format!("file {}", file.path.display()),
        EndpointKind::Remote(remote) => format!("server {}", remote.url),
        EndpointKind::Log | EndpointKind::Memory => return None,
    };
    let sum = crc_fast::checksum(CrcAlgorithm::Crc32Iscsi, place.as_bytes());
    Some(u32::try_from(sum).expect("a CRC of 32 bits"))
}

/// Why a volume in no store takes no writes any more, where the next process would not find that out: its close may
/// succeed. Looked at before the close.
pub(crate) fn refusal_to_hand_on(closing: Closing, stack: &Stack) -> Option<NodeError> {
    let layers = if closing == Closing::Quick { stack.layers() } else { Vec::new() };
    let message = layers.into_iter().find_map(|layer| match layer.stage {
        StageStatus::Remote(remote) => remote.refuses_writes,
        StageStatus::File(file) => file.refuses_writes,
        _ => None,
    })?;
    Some(NodeError::Remote { kind: ErrorKind::Poisoned, message, help: None })
}

impl HandedOver {
    /// A volume whose close failed, if the next process has to know that.
    pub(crate) fn failed(entry: &Entry, error: &NodeError) -> Option<Self> {
        let place = place_of(&entry.spec.endpoint).filter(|_| !mutant("failure_not_handed_on"))?;
        let was = Was::Failed { place, why: with_causes(error) };
        Some(Self { name: entry.name.clone(), was })
    }
}

impl Core {
    /// Checks that a volume did not fail where its bytes are in the process before this one.
    pub(crate) fn check_not_failed_before(&self, spec: &VolumeSpec) -> Result<(), NodeError> {
        let place = place_of(&spec.endpoint);
        let failed = lock(&self.failed_before);
        let Some(Failure { why, .. }) = failed.get(&spec.name).filter(|f| Some(f.place) == place)
        else {
            return Ok(());
        };
        let message = format!(
            "it failed before the program was replaced, and what was written to it may be lost: {why}; check what is \
             on it, then weir volume attach {} serves it",
            spec.name
        );
        Err(NodeError::Remote { kind: ErrorKind::Poisoned, message, help: None })
    }

    /// Forgets that a volume failed in the process before this one: somebody decided about it. Whether it had.
    pub(crate) fn forget_failed_before(&self, name: &VolumeName) -> bool {
        lock(&self.failed_before).remove(name).is_some()
    }

    /// Forgets those that are not to be served any more.
    pub(crate) fn keep_failed_before(&self, is_wanted: impl Fn(&VolumeName) -> bool) {
        lock(&self.failed_before).retain(|name, _| is_wanted(name));
    }

    /// Whether there is such a volume, so that the process has failed with it.
    pub(crate) fn has_failed_before(&self) -> bool {
        !lock(&self.failed_before).is_empty()
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
                let failure = Failure { place: *place, why: why.clone() };
                lock(&core.failed_before).insert(name.clone(), failure);
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
    let has_failed = |spec: &&VolumeSpec| core.check_not_failed_before(spec).is_err();
    let failed: Vec<&VolumeName> =
        wanted.specs.iter().filter(has_failed).map(|spec| &spec.name).collect();
    core.keep_failed_before(|name| failed.contains(&name));
    Ok(wanted)
}

impl Service {
    /// The volumes that the next process is to serve or to close. Those in no store whose close fails come with
    /// [`Parting`].
    #[must_use]
    pub fn handed_over(&self) -> Vec<HandedOver> {
        // Attached by hand, or otherwise than the settings say.
        let is_otherwise = |entry: &Entry| {
            self.core.is_attached(&entry.name)
                || entry.spec.read_only != self.core.spec_of(&entry.name).read_only
        };
        let was = |entry: &Entry| match is_otherwise(entry) && !mutant("attached_not_handed_on") {
            true => Was::Attached { read_only: entry.spec.read_only },
            false => Was::Served,
        };
        let entries = self.core.entries().into_iter();
        let served = entries.map(|entry| HandedOver { name: entry.name.clone(), was: was(&entry) });
        let names = self.core.not_served().into_keys().chain(self.core.left().into_keys());
        // The close of one that is being detached may be cut short. One in no store is waited for.
        let closing: Vec<String> = {
            let closing = lock(&self.core.closing);
            let of_stores = closing.iter().filter(|(_, one)| one.endpoint == EndpointKind::Log);
            of_stores.map(|(name, _)| name.clone()).collect()
        };
        let names = names.chain(closing);
        let others = names.filter_map(|name| VolumeName::new(&name).ok());
        let others = others.map(|name| HandedOver { name, was: Was::Served });
        let detached = self.core.detached_by_hand().into_iter();
        let detached = detached.filter_map(|(name, left)| match left {
            Left::Attached => None,
            Left::Detached(volume) => Some(HandedOver { name, was: Was::Detached { volume } }),
            Left::Going(volume) => Some(HandedOver { name, was: Was::Going { volume } }),
        });
        let failed = lock(&self.core.failed_before).clone().into_iter();
        let failed = failed.map(|(name, Failure { place, why })| HandedOver {
            name,
            was: Was::Failed { place, why },
        });
        served.chain(others).chain(detached).chain(failed).collect()
    }
}
