//! Limits on uploads: where the settings of a node meet the store.

use weir_store::Store;

use crate::api::types::Limits;
use crate::error::NodeError;

/// Sets the limits of `store`, at once.
///
/// # Errors
/// [`NodeError::NoLimits`] if a limit is asked for that this store does not keep.
pub(crate) fn apply(_store: &Store, limits: &Limits) -> Result<(), NodeError> {
    if *limits == Limits::default() {
        return Ok(());
    }
    Err(NodeError::NoLimits)
}
