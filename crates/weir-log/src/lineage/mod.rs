//! Clones: making them, and the notes that keep the objects that they share.
//!
//! What the room keeps true
//!  * An object of a volume stays as long as the note of a clone stands that may need it (D1 and what follows in
//!    `dependants`).

pub(crate) mod clones;
pub(crate) mod dependants;
