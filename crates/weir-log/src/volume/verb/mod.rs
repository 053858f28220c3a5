//! What is done with a whole volume: opening and closing it, snapshots, and so on.

pub(crate) mod close;
pub(crate) mod compact;
pub(crate) mod flatten;
pub(crate) mod open;
mod publish;
pub(crate) mod repair;
mod resize;
pub(crate) mod salvage;
mod snapshot;
mod takeover;
mod warm;
