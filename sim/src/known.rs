//! What is known of what was made of the volume: snapshots, clones, a replica.

use std::cell::{Cell, RefCell};
use std::time::Duration;

use weir_device::VolumeId;
use weir_disk::sim::SimDisk;
use weir_log::catalog::VolumeName;
use weir_store::{Faults, Store};

use crate::dice::Dice;
use crate::oracle::{Moment, Oracle};
use crate::sizes::SizesSeen;

/// A snapshot that was asked for.
pub(crate) struct Known {
    pub(crate) name: VolumeName,
    /// Where it was asked for.
    pub(crate) host: usize,
    /// When it was asked for.
    pub(crate) begun: Moment,
    /// It was answered: it must be there.
    pub(crate) taken: bool,
    /// How often it was to be deleted: it may be gone.
    pub(crate) deletions: u64,
    /// What it may show, as of the end of the call; once it was seen, what it does show.
    pub(crate) oracle: Option<Oracle>,
    pub(crate) seen: Option<Vec<u8>>,
    /// The sizes that the volume may have had when it was asked for.
    pub(crate) sizes: SizesSeen,
    /// Its size, once it was seen.
    pub(crate) size: u64,
}

impl Known {
    /// What it shows, if that is known and it is to stay.
    pub(crate) fn shown(&self) -> Option<Vec<u8>> {
        self.seen.clone().filter(|_| self.deletions == 0)
    }

    /// Whether it can be gone back to: what it shows is known.
    pub(crate) fn is_seen(&self) -> bool {
        self.seen.is_some() && self.deletions == 0
    }
}

/// A clone that was asked for.
pub(crate) struct KnownClone {
    pub(crate) name: VolumeName,
    /// Known once it was opened.
    pub(crate) id: Option<VolumeId>,
    /// The clone that it was made of a snapshot of, and those that this one was made of.
    pub(crate) ancestors: Vec<VolumeName>,
    pub(crate) disk: SimDisk,
    /// It was answered: it must be there.
    pub(crate) made: bool,
    /// It may be gone.
    pub(crate) deleting: bool,
    pub(crate) content: Vec<u8>,
    /// A write that was not answered: its bytes may be there or not.
    pub(crate) unanswered: Option<(usize, Vec<u8>)>,
    /// A close did not wait for the store: a PUT may land whatever is deleted meanwhile.
    pub(crate) puts_left: bool,
    /// Its snapshots, and what they show.
    pub(crate) snapshots: Vec<(VolumeName, Vec<u8>)>,
}

/// What is known of the replica.
pub(crate) struct Replica {
    pub(crate) faults: Faults,
    /// Below the faults.
    pub(crate) bare_store: Store,
    pub(crate) store: Store,
    /// It showed everything up to here.
    pub(crate) floor: Cell<Moment>,
    /// It has a root.
    pub(crate) seen: Cell<bool>,
    /// A replicator did not come to its end.
    pub(crate) killed: Cell<bool>,
    /// What it showed last.
    pub(crate) bytes: RefCell<Vec<u8>>,
}

impl Replica {
    pub(crate) fn new(dice: &mut Dice, attempt_timeout: Duration) -> Self {
        let faults = Faults::new(dice.next());
        let bare_store = Store::open("memory://").expect("a store in memory");
        let store =
            bare_store.clone().with_faults(faults.clone()).with_attempt_timeout(attempt_timeout);
        let (floor, seen, killed, bytes) = Default::default();
        Self { faults, bare_store, store, floor, seen, killed, bytes }
    }
}
