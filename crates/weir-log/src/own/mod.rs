//! Who may write to a volume: chains of versions, manifests, leases, and taking a volume over.
//!
//! What the room keeps true
//!  * A version counts only when a listing made after its creation shows it as the highest one, with its predecessor
//!    present (`chain`).
//!  * A deadline of ours passes before anybody else may act on the lease having ended (L1 in `lease`).
//!  * Nothing is deleted, and no remote flush succeeds, while the lease is not held (`volume::ownership`).

pub(crate) mod chain;
pub(crate) mod lease;
pub(crate) mod lost;
pub(crate) mod manifests;
pub(crate) mod takeover;
