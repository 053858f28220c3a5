//! Volumes in no store that failed in the process before this one.
//!
//! Nothing but the process that saw one fail knows that what its clients were told to be written may be lost: the file
//! or server would take writes and flushes as if nothing had been. So the next process does not serve it, and says why,
//! until somebody detaches or attaches it. It goes by where the bytes are: another name for the volume, or another way
//! to write the path, decides nothing.

use std::collections::BTreeMap;
use std::path::{Component, Path, PathBuf};
use std::sync::Mutex;

use crc_fast::CrcAlgorithm;
use weir_device::{ErrorKind, mutant};
use weir_log::catalog::VolumeName;
use weir_stack::{Stack, StageStatus};

use crate::error::NodeError;
use crate::serve::lock::lock;
use crate::serve::spec::{Closing, EndpointKind, VolumeSpec};

/// The volume that had its bytes at some place, and why it failed.
#[derive(Clone, Debug)]
pub(crate) struct Failure {
    pub(crate) name: VolumeName,
    pub(crate) why: String,
}

/// Those that nobody has attached or detached since, by their places.
#[derive(Debug, Default)]
pub(crate) struct FailedBefore(Mutex<BTreeMap<u32, Failure>>);

/// Names where the bytes of a volume in no store are; `None` for one that has no such place.
pub(crate) fn place_of(endpoint: &EndpointKind) -> Option<u32> {
    let place = match endpoint {
        EndpointKind::File(_) if mutant("place_of_file_as_written") => format!("{endpoint:?}"),
        EndpointKind::File(file) => format!("file {}", plain(&file.path).display()),
        EndpointKind::Remote(remote) => format!("server {}", remote.url),
        EndpointKind::Log | EndpointKind::Memory => return None,
    };
    let sum = crc_fast::checksum(CrcAlgorithm::Crc32Iscsi, place.as_bytes());
    Some(u32::try_from(sum).expect("a CRC of 32 bits"))
}

/// The path without what means nothing in it, such as `./` and `x/../`, as far as it says so itself: to ask the file
/// system might never end.
fn plain(path: &Path) -> PathBuf {
    let mut plain = PathBuf::new();
    for component in path.components() {
        match (component, plain.components().next_back()) {
            (Component::ParentDir, Some(Component::Normal(_))) => {
                plain.pop();
            }
            (Component::ParentDir, Some(Component::RootDir)) => {}
            _ => plain.push(component),
        }
    }
    plain
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

impl FailedBefore {
    /// Notes what the process before says of a volume.
    pub(crate) fn note(&self, place: u32, failure: Failure) {
        lock(&self.0).insert(place, failure);
    }

    /// Checks that the bytes of a volume are not those of one of them.
    pub(crate) fn check(&self, spec: &VolumeSpec) -> Result<(), NodeError> {
        let Some(place) = place_of(&spec.endpoint) else { return Ok(()) };
        let failed = lock(&self.0);
        let Some(Failure { name, why }) = failed.get(&place) else { return Ok(()) };
        if *name != spec.name && mutant("failed_by_name") {
            return Ok(());
        }
        let message = format!(
            "it failed before the program was replaced, and what was written to it may be lost: {why}; check what is \
             on it, then weir volume attach {} serves it",
            spec.name
        );
        Err(NodeError::Remote { kind: ErrorKind::Poisoned, message, help: None })
    }

    /// Forgets the one of these bytes: somebody decided about it. Whether there was one.
    pub(crate) fn forget(&self, endpoint: &EndpointKind) -> bool {
        place_of(endpoint).is_some_and(|place| lock(&self.0).remove(&place).is_some())
    }

    /// Forgets those whose bytes are not to be served any more.
    pub(crate) fn keep(&self, wanted: &[VolumeSpec]) {
        let is_wanted = |place: u32| wanted.iter().any(|s| place_of(&s.endpoint) == Some(place));
        lock(&self.0).retain(|place, _| is_wanted(*place));
    }

    /// All of them, by their places.
    pub(crate) fn all(&self) -> BTreeMap<u32, Failure> {
        lock(&self.0).clone()
    }

    /// Whether there is one, so that the process has failed with it.
    pub(crate) fn is_any(&self) -> bool {
        !lock(&self.0).is_empty()
    }
}
