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
    /// How often something is being sent again at the moment.
    sending: usize,
}

impl Lost {
    /// Those of the objects that nothing was done about yet, of all that are gone up to `through`.
    pub(crate) fn new_of(
        &mut self,
        gone: &BTreeSet<ObjectId>,
        through: &ObjectId,
    ) -> BTreeSet<ObjectId> {
        // What is there again may be lost again, and what a checkpoint covers is not asked for any more.
        self.known.retain(|id| gone.contains(id) || id > through);
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

    /// Whether none is to be made that is not begun, and nothing is being sent again.
    pub(crate) fn is_settled(&self) -> bool {
        !self.wants_checkpoint && self.sending == 0
            || weir_device::mutant("settled_on_a_lost_checkpoint")
    }

    /// Something is about to be sent again.
    pub(crate) fn on_send(&mut self) {
        self.sending += 1;
    }

    /// It was sent, or cannot be.
    pub(crate) fn on_sent(&mut self) {
        self.sending -= 1;
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
