//! Snapshots: what an open volume knows of its own, reading one without the volume, and what differs between two.
//!
//! What the room keeps true
//!  * An object goes only when neither the head nor any snapshot reaches it.
//!  * A comparison reports every byte that differs; it may report some that do not.

pub(crate) mod changes;
pub(crate) mod history;
pub(crate) mod snapshots;
pub(crate) mod view;
