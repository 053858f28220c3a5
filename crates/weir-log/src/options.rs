//! What can be set on a volume's opening.

use std::time::Duration;

use weir_journal::JournalConfig;
use weir_store::Store;

use crate::format::frame::Compression;
use crate::format::object::{Encoding, ObjectVersion};
use crate::limits::{
    APPLY_STEP_EXTENTS, INDEX_PAGE_ENTRIES, MAP_STEP_BUDGET, PUTS_IN_FLIGHT_MAX, REPLICA_PATIENCE,
    TABLE_PIECE_ENTRIES,
};
use crate::own::chain::Retention;
use crate::write::batch::BatchLimits;

/// When a checkpoint is made.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CheckpointLimits {
    /// Least objects between two checkpoints, while data is small beside the map.
    pub objects_min: u64,
    /// Data bytes between two checkpoints per byte of encoded map, so that checkpoints stay a small share of what is
    /// written.
    pub data_per_map_byte: u64,
    /// Most objects between two checkpoints: bounds the headers that recovery reads.
    pub objects_max: u64,
}

impl Default for CheckpointLimits {
    fn default() -> Self {
        Self { objects_min: 64, data_per_map_byte: 64, objects_max: 1024 }
    }
}

/// When the collector works, and on what.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CollectLimits {
    /// Live share of the objects, in percent, below which it begins. 0: never.
    pub start_percent: u64,
    /// Live share at which it ends.
    pub stop_percent: u64,
    /// Which objects go first.
    pub policy: CollectPolicy,
    /// Fewest holes that one GET must fill before the collector copies neighbours' live bytes into them, in addition to
    /// one hole for each frame that the GET reads. A GET that fills fewer saves less of the map than it costs.
    pub plugs_per_read_min: usize,
}

impl CollectLimits {
    /// Live share, in percent, below which the collector has something to do whatever it did before.
    pub(crate) fn kept_percent(&self) -> u64 {
        self.start_percent.min(self.stop_percent)
    }
}

/// Which objects the collector takes first.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CollectPolicy {
    /// Those of which the least lives.
    Greedy,
    /// Those with the most to win, by dead share and age (the cost-benefit rule of log-structured file systems).
    CostBenefit,
}

impl Default for CollectLimits {
    fn default() -> Self {
        let (start_percent, stop_percent, policy) = (70, 75, CollectPolicy::Greedy);
        Self { start_percent, stop_percent, policy, plugs_per_read_min: 16 }
    }
}

/// What the work on the object map and its checkpoints is cut into. Anything but the default is for tests and
/// simulations, whose volumes are too small to cross it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MapLimits {
    /// Extents of an object that are applied to the map before other work runs.
    pub apply_step_extents: usize,
    /// Units of work of one step of a range operation on a map.
    pub map_step_budget: usize,
    /// Entries per piece of the object table. Checkpoints are numbered by it: the same in every opening of a volume.
    pub table_piece_entries: u64,
    /// References per index page of a checkpoint. Checkpoints are numbered by it as well.
    pub index_page_entries: u64,
}

impl Default for MapLimits {
    fn default() -> Self {
        Self {
            apply_step_extents: APPLY_STEP_EXTENTS,
            map_step_budget: MAP_STEP_BUDGET,
            table_piece_entries: TABLE_PIECE_ENTRIES,
            index_page_entries: INDEX_PAGE_ENTRIES,
        }
    }
}

/// Settings of one opening of a volume. None of them changes what is stored, only when and how.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct VolumeOptions {
    /// When a batch becomes an object.
    pub batch: BatchLimits,
    /// What is tried on the frames of objects.
    pub compression: Compression,
    /// Newest version that objects are written in, where the store has a use for it. Anything but the default is for
    /// tests and simulations, whose stores hold what older programs wrote.
    pub object_version: ObjectVersion,
    /// The local journal.
    pub journal: JournalConfig,
    /// When the map is written.
    pub checkpoint: CheckpointLimits,
    /// When objects that mostly died are copied together.
    pub collect: CollectLimits,
    /// What the work on the object map is cut into.
    pub map: MapLimits,
    /// Object PUTs in flight.
    pub puts_in_flight_max: usize,
    /// How long a read waits for a failing store before it is an error.
    pub read_deadline: Duration,
    /// Which old manifests are kept.
    pub manifests: Retention,
    /// How long what a replicator copies is not deleted without a sign of life from it.
    pub replica_patience: Duration,
    /// How long closing waits for the store before it leaves the rest to the journal.
    pub close_deadline: Duration,
}

impl Default for VolumeOptions {
    fn default() -> Self {
        Self {
            batch: BatchLimits::default(),
            compression: Compression::default(),
            object_version: ObjectVersion::default(),
            journal: JournalConfig::default(),
            checkpoint: CheckpointLimits::default(),
            collect: CollectLimits::default(),
            map: MapLimits::default(),
            puts_in_flight_max: PUTS_IN_FLIGHT_MAX,
            read_deadline: Duration::from_secs(120),
            manifests: Retention::default(),
            replica_patience: REPLICA_PATIENCE,
            close_deadline: Duration::from_secs(30),
        }
    }
}

impl VolumeOptions {
    /// How the objects of a volume are written to a store. Blocks that are compressed one by one take more room, and
    /// they are read one by one only where a request costs less than bytes. Of an encrypted volume their lengths, which
    /// anybody may read, would say too much.
    pub(crate) fn encoding(&self, store: &Store, is_encrypted: bool) -> Encoding {
        let is_cheap = store.requests_are_cheap() || weir_device::mutant("packed_for_any_store");
        let packs = self.compression == Compression::Lz4 && is_cheap && !is_encrypted;
        let version = match packs {
            true => self.object_version,
            false => self.object_version.min(ObjectVersion::V3),
        };
        Encoding { compression: self.compression, version }
    }
}
