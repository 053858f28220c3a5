//! What is asked for.

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use super::Takeover;

/// What is asked for by `POST /v1/volumes`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct CreateVolume {
    /// Its name.
    pub name: String,
    /// Its size.
    pub size_bytes: u64,
    /// What happens when the lease of the node that holds it runs out.
    #[serde(default)]
    pub takeover: Takeover,
}

/// What is asked for by `POST /v1/volumes/{name}/attach`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields, default)]
pub struct AttachVolume {
    /// Creates the volume with this size if it is missing; one that is there must have it.
    pub size_bytes: Option<u64>,
    /// Whether writes of clients are refused.
    pub read_only: bool,
    /// Take it from a node that did not close it and whose lease ran out, without what only that node has.
    pub take_over: bool,
}

/// What is asked for by `POST /v1/volumes/{name}/detach`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields, default)]
pub struct DetachVolume {
    /// Whether clients are disconnected; without this it is refused while there are any.
    pub disconnect: bool,
}

/// What is asked for by `POST /v1/volumes/{name}/resize`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct ResizeVolume {
    /// The new size.
    pub size_bytes: u64,
    /// Whether a smaller size gives up what lies beyond it; without this it is refused. Needs a volume without clients.
    #[serde(default)]
    pub shrink: bool,
}

/// What is asked for by `POST /v1/volumes/{name}/snapshots`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct ChangeSnapshots {
    /// What to do.
    pub action: SnapshotAction,
    /// Name of the snapshot: 1 to 64 letters, digits, `.`, `_` and `-`, beginning with a letter or digit.
    pub snapshot: String,
}

/// What is done with a snapshot.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum SnapshotAction {
    /// Take it.
    Take,
    /// Delete it.
    Delete,
    /// Set the volume back to it, and give up what was written since.
    RollBack,
}

/// What is asked for by `POST /v1/volumes/{name}/compact`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct CompactVolume {
    /// Live share at which it ends, 1 to 100.
    pub percent: u64,
}

/// What is asked for by `POST /v1/volumes/{name}/repair`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct RepairVolume {
    /// Keys of objects that a check named. Each is looked at once more.
    pub objects: Vec<String>,
    /// Whether lost bytes read as zeroes from then on; otherwise reads of them fail until they are written again.
    #[serde(default)]
    pub zero: bool,
}

/// What is asked for by `POST /v1/volumes/{name}/clones`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct CloneVolume {
    /// The snapshot that the clone begins as.
    pub snapshot: String,
    /// Name of the clone.
    pub name: String,
    /// What happens when the lease of the node that holds the clone runs out.
    #[serde(default)]
    pub takeover: Takeover,
}

/// What is asked for by `POST /v1/volumes/{name}/takeover`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct SetTakeover {
    /// What happens when the lease of the node that holds it runs out.
    pub takeover: Takeover,
}

/// What is asked for by `POST /v1/volumes/{name}/flush`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields, default)]
pub struct FlushVolume {
    /// To the store, not only to the local disk.
    pub remote: bool,
    /// Answer when it is done, not when it is begun.
    pub wait: bool,
}
