//! What each command does.
//!
//! Those that are one verb each have no file here: `weir_node::verbs` has what they do, and `cli::verbs` runs them.

pub(crate) mod cache;
mod check;
pub(crate) mod limits;
pub(crate) mod manual;
pub(crate) mod pki;
mod reload;
pub(crate) mod replicate;
pub(crate) mod serve;
pub(crate) mod snapshot;
pub(crate) mod status;
pub(crate) mod store;
pub(crate) mod trace;
pub(crate) mod up;
pub(crate) mod volume;
