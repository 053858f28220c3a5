//! A line of `weir volume list`.

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;
use weir_log::catalog::{VolumeName, VolumeSummary};

use crate::api::types::{ServedVolume, Takeover, VolumeState};

/// A volume of the store, served or not; or one that is served and is in no store.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Listed {
    /// Name of the volume.
    pub name: String,
    /// Its identity, 32 hex digits; empty where it cannot be read.
    pub id: String,
    /// Its size; 0 where it cannot be read.
    pub size_bytes: u64,
    /// Whether it is whole.
    pub state: VolumeState,
    /// Node that has it open for writing or did not close it, if any.
    pub holder: Option<String>,
    /// Whether that node renewed its lease within the lease's length, by the clocks of both hosts: it has the volume
    /// open, or was stopped just now. Not where this data directory shows that no process has it open any more.
    #[serde(default)]
    pub holder_renews: bool,
    /// What happens when the holder's lease runs out.
    pub takeover: Takeover,
    /// The process on this machine that serves it, from this data directory.
    pub process: Option<u32>,
    /// Where it serves it.
    pub uri: Option<String>,
    /// It is a replica in which nothing is complete yet.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub empty_replica: bool,
    /// What has its bytes, where that is no store: `file`, `remote` or `memory`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub kind: Option<String>,
    /// Why it cannot be read, if it cannot.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub error: Option<String>,
}

impl Listed {
    /// A line of a listing.
    #[must_use]
    pub fn new(summary: VolumeSummary, process: Option<u32>, uri: Option<String>) -> Self {
        Self {
            name: summary.name.to_string(),
            id: summary.id,
            size_bytes: summary.size_bytes,
            state: summary.state.into(),
            holder: summary.holder,
            holder_renews: summary.is_renewed,
            takeover: summary.takeover.into(),
            process,
            uri,
            empty_replica: summary.is_empty_replica,
            kind: None,
            error: None,
        }
    }

    /// The line of a volume that a process serves and that is in no store.
    pub(crate) fn of_served(process: Option<u32>, served: &ServedVolume) -> Self {
        Self {
            id: served.id.clone(),
            size_bytes: served.size_bytes,
            process,
            uri: Some(served.uri.clone()),
            kind: served.layers.last().map(|layer| layer.kind.clone()),
            ..Self::bare(&served.name, VolumeState::Active)
        }
    }

    /// The line of a volume that cannot be read, and why.
    #[must_use]
    pub fn unreadable(name: &VolumeName, error: String) -> Self {
        Self { error: Some(error), ..Self::bare(name.as_str(), VolumeState::Unreadable) }
    }

    /// One of which nothing else is known.
    fn bare(name: &str, state: VolumeState) -> Self {
        Self {
            name: name.to_owned(),
            id: String::new(),
            size_bytes: 0,
            state,
            holder: None,
            holder_renews: false,
            takeover: Takeover::default(),
            process: None,
            uri: None,
            empty_replica: false,
            kind: None,
            error: None,
        }
    }
}
