//! Volumes in no store that failed in the process before this one.
//!
//! Nothing but the process that saw one fail knows that what its clients were told to be written may be lost: the file
//! or server would take writes and flushes as if nothing had been. So the next process does not serve it, and says why,
//! until somebody detaches or attaches it, or the settings say that its bytes are elsewhere.

use std::collections::BTreeMap;
use std::sync::Mutex;

use crc_fast::CrcAlgorithm;
use weir_device::ErrorKind;
use weir_log::catalog::VolumeName;
use weir_stack::{Stack, StageStatus};

use crate::error::NodeError;
use crate::serve::lock::lock;
use crate::serve::spec::{Closing, EndpointKind, VolumeSpec};

/// Where the bytes of such a volume are, and why it failed.
#[derive(Clone, Debug)]
pub(crate) struct Failure {
    pub(crate) place: u32,
    pub(crate) why: String,
}

/// Those that nobody has attached or detached since.
#[derive(Debug, Default)]
pub(crate) struct FailedBefore(Mutex<BTreeMap<VolumeName, Failure>>);

/// Names where the bytes of a volume in no store are; `None` for one that has no such place.
pub(crate) fn place_of(endpoint: &EndpointKind) -> Option<u32> {
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

impl FailedBefore {
    /// Notes what the process before says of a volume.
    pub(crate) fn note(&self, name: VolumeName, failure: Failure) {
        lock(&self.0).insert(name, failure);
    }

    /// Checks that a volume is none of them, where its bytes are by now.
    pub(crate) fn check(&self, spec: &VolumeSpec) -> Result<(), NodeError> {
        let (place, failed) = (place_of(&spec.endpoint), lock(&self.0));
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

    /// Forgets one: somebody decided about it. Whether it was one.
    pub(crate) fn forget(&self, name: &VolumeName) -> bool {
        lock(&self.0).remove(name).is_some()
    }

    /// Forgets those that are not to be served any more.
    pub(crate) fn keep(&self, is_wanted: impl Fn(&VolumeName) -> bool) {
        lock(&self.0).retain(|name, _| is_wanted(name));
    }

    /// All of them.
    pub(crate) fn all(&self) -> BTreeMap<VolumeName, Failure> {
        lock(&self.0).clone()
    }

    /// Whether there is one, so that the process has failed with it.
    pub(crate) fn is_any(&self) -> bool {
        !lock(&self.0).is_empty()
    }
}
