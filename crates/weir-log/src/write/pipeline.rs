//! Object sequence numbers: given in order, completed in any order, committed as a prefix.
//!
//! Invariants
//!  P1. Sequence numbers are handed out without gaps.
//!  P2. An object is committed only when it and every object before it are in the store.

use std::collections::BTreeMap;
use std::sync::Arc;

use crate::format::object::ObjectHeader;
use crate::ids::ObjectSeq;

/// Objects between the hand-out of their number and their commit.
#[derive(Debug)]
pub(crate) struct Pipeline {
    next: ObjectSeq,
    committed: ObjectSeq,
    stored: BTreeMap<ObjectSeq, Arc<ObjectHeader>>,
    in_flight: usize,
}

impl Pipeline {
    /// Goes on after `committed`.
    pub(crate) fn after(committed: ObjectSeq) -> Self {
        Self { next: committed.next(), committed, stored: BTreeMap::new(), in_flight: 0 }
    }

    /// Hands out the next number; its object is now in flight.
    pub(crate) fn assign(&mut self) -> ObjectSeq {
        let seq = self.next;
        self.next = seq.next();
        self.in_flight += 1;
        seq
    }

    /// The object's PUT succeeded.
    pub(crate) fn on_stored(&mut self, header: Arc<ObjectHeader>) {
        assert!(self.in_flight > 0, "P1: an object is stored once");
        self.in_flight -= 1;
        let old = self.stored.insert(header.id.seq, header);
        assert!(old.is_none(), "P1: an object is stored once");
    }

    /// Takes the next object of the prefix, if it is stored. The caller applies it and then calls `on_applied`.
    pub(crate) fn take_next(&mut self) -> Option<Arc<ObjectHeader>> {
        self.stored.remove(&self.committed.next())
    }

    /// The object taken last is applied to the map: the prefix includes it.
    pub(crate) fn on_applied(&mut self, seq: ObjectSeq) {
        assert_eq!(seq, self.committed.next(), "P2: the prefix grows by one object at a time");
        self.committed = seq;
    }

    /// The newest number handed out; that of the committed object where none was.
    pub(crate) fn last_assigned(&self) -> ObjectSeq {
        ObjectSeq(self.next.0 - 1)
    }

    pub(crate) fn committed(&self) -> ObjectSeq {
        self.committed
    }

    pub(crate) fn in_flight(&self) -> usize {
        self.in_flight
    }

    /// Whether every number handed out is committed.
    pub(crate) fn is_idle(&self) -> bool {
        self.committed.next() == self.next
    }
}
