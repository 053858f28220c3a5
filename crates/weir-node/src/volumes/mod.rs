//! What is done with the volumes of a store, whether or not a process serves them.
//!
//! A verb that changes an open volume goes through the process that holds it; every other one works on the store alone.

pub(crate) mod copy_record;
pub(crate) mod deletion;
pub(crate) mod list;
pub(crate) mod marks;
pub(crate) mod replicate;
pub(crate) mod salvage;
pub(crate) mod snapshots;
pub(crate) mod unserved;

use weir_device::VolumeId;
use weir_log::catalog::VolumeSummary;

use crate::error::NodeError;

/// The identity of a volume as the store gives it.
pub(crate) fn volume_id(summary: &VolumeSummary) -> Result<VolumeId, NodeError> {
    VolumeId::parse(&summary.id).ok_or_else(|| NodeError::Identity {
        name: summary.name.to_string(),
        id: summary.id.clone(),
    })
}
