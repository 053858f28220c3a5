//! What is known of the objects that the store of an open volume lost while the volume goes on.

use std::collections::BTreeSet;

use crate::ids::ObjectId;

/// The lost objects, and whether a checkpoint was made since that stands on none of them.
#[derive(Debug, Default)]
pub(crate) struct Lost {
    known: BTreeSet<ObjectId>,
    /// The newest checkpoint may have something in lost objects or end in front of them, and no other one is begun.
    wants_checkpoint: bool,
    /// Somebody sees to it that one is made.
    is_made: bool,
}

impl Lost {
    /// Those of lost objects that nothing was done about yet.
    pub(crate) fn new_of(&self, gone: &BTreeSet<ObjectId>) -> BTreeSet<ObjectId> {
        gone - &self.known
    }

    /// What can be done about these is done.
    pub(crate) fn add(&mut self, gone: &BTreeSet<ObjectId>) {
        self.known.extend(gone);
    }

    /// A checkpoint is to be made that stands on no lost object. Whether somebody sees to it already.
    pub(crate) fn want_checkpoint(&mut self) -> bool {
        self.wants_checkpoint = true;
        std::mem::replace(&mut self.is_made, true)
    }

    /// Whether one is to be made, and is not begun.
    pub(crate) fn wants_checkpoint(&self) -> bool {
        self.wants_checkpoint && !weir_device::mutant("settled_on_a_lost_checkpoint")
    }

    /// One was begun, for whatever reason.
    pub(crate) fn on_checkpoint_begun(&mut self) {
        self.wants_checkpoint = false;
    }

    /// Whether who sees to it has to make one, or is done.
    pub(crate) fn makes_another(&mut self) -> bool {
        self.is_made = self.wants_checkpoint;
        self.is_made
    }
}
