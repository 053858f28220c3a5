//! The way of a write, from its acknowledgement to the committed prefix.
//!
//! The journal reports a durable piece; it becomes visible in the overlay and joins the open batch. A full batch is
//! closed, gathered from the journal, named with the next sequence number and put into the store; the objects are then
//! committed in their order. `state` holds what that changes; the volume's tasks do the I/O.
//!
//! What the room keeps true
//!  W1. Overlay and batch take pieces in the order of the journal, so that every prefix of the objects is a prefix of
//!      the acknowledged writes.
//!  W2. Sequence numbers have no gaps, and an object is committed only after every object before it (P1 and P2 in
//!      `pipeline`).
//!  W3. The journal is released only up to the last write of the committed prefix.

pub(crate) mod batch;
pub(crate) mod overlay;
pub(crate) mod pipeline;
pub(crate) mod put;
pub(crate) mod state;
pub(crate) mod unsent;
