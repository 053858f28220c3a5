//! The object map: which byte of the volume is in which object, kept in memory, saved in checkpoints, and loaded again.
//!
//! What the room keeps true
//!  * The map describes the committed prefix and nothing newer, and only applying an object changes it (O1 in
//!    `objects`).
//!  * The table counts how much of each object still lives, and reports an object dead exactly once (T1 and T2 in
//!    `table`).
//!  * A checkpoint shows the map as of one sequence number, though the map goes on changing while it is written.

pub(crate) mod checkpoint;
pub(crate) mod head;
pub(crate) mod load;
pub(crate) mod lost;
pub(crate) mod objects;
pub(crate) mod pieces;
pub(crate) mod table;
