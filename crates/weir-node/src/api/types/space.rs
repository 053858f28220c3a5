//! What snapshots take.

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

/// What a snapshot takes in the store, in bytes as they are stored there. By objects, because space comes back an
/// object at a time; as of the newest checkpoint.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct SnapshotSpace {
    /// Its name.
    pub name: String,
    /// Objects of the volume that it reaches.
    pub reached_bytes: u64,
    /// Those of them that the volume itself, another snapshot or a clone needs as well.
    pub shared_bytes: u64,
    /// What deleting it gives back: the rest.
    pub reclaimable_bytes: u64,
    /// Clones that need it.
    pub clones: u64,
    /// It was deleted, and goes with the last clone that needs it.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub deleting: bool,
}
