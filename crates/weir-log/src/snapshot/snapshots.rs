//! Snapshots: names for checkpoints (LSVD section 3.5).
//!
//! A snapshot reaches the objects that its checkpoint's table names and those that the checkpoint itself is in.
//! Reachability alone decides what may be deleted: an object goes when neither the head nor any snapshot reaches it.
//!
//! Invariants
//!  S1. What a snapshot reaches is pinned from the moment its sequence is chosen until a manifest version without the
//!      snapshot counts.
//!  S2. Nothing is listed for deletion before the pins of every snapshot are known.

use crate::catalog::names::VolumeName;
use crate::format::manifest::SnapshotRecord;

/// Most snapshots of a volume: the manifest lists them all, in some 300 bytes each.
pub const SNAPSHOTS_MAX: usize = 4096;

/// What an open volume knows of its snapshots.
#[derive(Debug, Default)]
pub(crate) struct Snapshots {
    /// Those of the newest manifest version that counts.
    pub(crate) listed: Vec<SnapshotRecord>,
    /// Names that wait for the next checkpoint.
    pub(crate) wanted: Vec<VolumeName>,
    /// Those that the checkpoint under way becomes.
    pub(crate) taking: Vec<SnapshotRecord>,
    pub(crate) pins: Pins,
}

/// What is known of the objects that snapshots reach (S2).
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) enum Pins {
    /// Their checkpoints are being read. No checkpoint is published meanwhile, so that it can list what it supersedes.
    #[default]
    Unknown,
    Known,
    /// A checkpoint of a snapshot is damaged, in these words: nothing is deleted.
    Lost(String),
}

impl Snapshots {
    /// Of a volume whose manifest lists these.
    pub(crate) fn new(listed: Vec<SnapshotRecord>) -> Self {
        let pins = if listed.is_empty() { Pins::Known } else { Pins::Unknown };
        Self { pins, listed, ..Self::default() }
    }

    pub(crate) fn pins_known(&self) -> bool {
        self.pins == Pins::Known || weir_device::mutant("pins_not_awaited")
    }

    /// Whether a checkpoint may be published.
    pub(crate) fn pins_are_settled(&self) -> bool {
        self.pins_known() || self.trouble().is_some()
    }

    /// Why it is not known, and will not be, what they reach.
    pub(crate) fn trouble(&self) -> Option<&str> {
        match &self.pins {
            Pins::Lost(why) => Some(why),
            Pins::Unknown | Pins::Known => None,
        }
    }

    /// Whether every snapshot that was asked for is taken.
    pub(crate) fn are_taken(&self) -> bool {
        self.wanted.is_empty() && self.taking.is_empty()
    }

    pub(crate) fn find(&self, name: &str) -> Option<&SnapshotRecord> {
        self.listed.iter().find(|s| s.name == name && !s.deleting)
    }

    pub(crate) fn is_taken(&self, name: &str) -> bool {
        let on_the_way = self.taking.iter().map(|s| s.name.as_str());
        let mut wanted = self.wanted.iter().map(VolumeName::as_str).chain(on_the_way);
        self.find(name).is_some() || wanted.any(|n| n == name)
    }
}
