//! Limits on uploads: the settings of a node, applied to its store.

use std::num::NonZeroU64;

use weir_store::{Store, UploadRates};

use crate::api::types::Limits;
use crate::error::NodeError;

/// The limits as a store takes them.
///
/// # Errors
/// [`NodeError::ZeroLimit`]: nothing would ever be uploaded.
pub(crate) fn rates(limits: &Limits) -> Result<UploadRates, NodeError> {
    let rate = |limit: Option<u64>| {
        limit.map(|rate| NonZeroU64::new(rate).ok_or(NodeError::ZeroLimit)).transpose()
    };
    Ok(UploadRates {
        bytes_per_second: rate(limits.upload_bytes_per_second)?,
        requests_per_second: rate(limits.upload_requests_per_second)?,
    })
}

/// Sets the limits of `store` at once, also for uploads that wait already.
///
/// # Errors
/// As [`rates`].
pub(crate) fn apply(store: &Store, limits: &Limits) -> Result<(), NodeError> {
    store.limits().set(rates(limits)?);
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn limits_reach_the_store_and_zero_is_none() {
        let store = Store::open("memory://").unwrap();
        let limits = Limits { upload_bytes_per_second: Some(5), ..Limits::default() };
        apply(&store, &limits).unwrap();
        assert_eq!(store.limits().rates().bytes_per_second.map(NonZeroU64::get), Some(5));
        let zero = Limits { upload_requests_per_second: Some(0), ..limits };
        assert!(matches!(apply(&store, &zero), Err(NodeError::ZeroLimit)));
        apply(&store, &Limits::default()).unwrap();
        assert_eq!(store.limits().rates(), UploadRates::default());
    }
}
