//! What work that takes its time comes to.

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;
use weir_log::ObjectId;

/// What a check found.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct CheckReport {
    /// Objects read, from header to checksums.
    pub objects: u64,
    /// Bytes of them.
    pub bytes: u64,
    /// Objects that belong to no reading of the volume: a crash or a takeover left them, and the next opening deletes
    /// them.
    pub void_objects: u64,
    /// Objects that nothing needs any more and that the volume is about to delete.
    pub pending_objects: u64,
    /// Objects that were not read because an earlier run found them whole.
    #[serde(default)]
    pub known_objects: u64,
    /// Objects that nothing needs and nobody will delete.
    pub orphans: u64,
    /// Their keys in the store.
    #[serde(default)]
    pub orphan_keys: Vec<String>,
    /// In the log of a volume that was not closed: the key of the first object that is not there though later ones
    /// are. It is on its way, or missing.
    #[serde(default)]
    pub awaited: Option<String>,
    /// Why only the checksums of an encrypted volume were checked: its key was not at hand.
    #[serde(default)]
    pub without_key: Option<String>,
    /// Why this is no whole volume, though nothing of it may be damaged: an import that was cut off, an empty replica.
    #[serde(default)]
    pub incomplete: Option<String>,
    /// What is damaged or missing; nothing when the volume is whole.
    pub damage: Vec<Damage>,
}

impl From<weir_log::CheckReport> for CheckReport {
    fn from(report: weir_log::CheckReport) -> Self {
        let range = |(offset, len)| DamagedRange { offset, len };
        let damage = report.damage.into_iter().map(|damage| Damage {
            place: damage.place,
            problem: damage.problem,
            lost_bytes: damage.lost_bytes,
            ranges: damage.ranges.into_iter().map(range).collect(),
            more_ranges: damage.more_ranges,
        });
        Self {
            objects: report.objects,
            bytes: report.bytes,
            void_objects: report.void_objects,
            pending_objects: report.pending_objects,
            known_objects: report.known_objects,
            orphans: report.orphans.len() as u64,
            awaited: report.awaited.map(|awaited| awaited.object.key()),
            orphan_keys: report.orphans.iter().map(ObjectId::key).collect(),
            without_key: report.without_key,
            incomplete: report.incomplete.map(str::to_owned),
            damage: damage.collect(),
        }
    }
}

/// What a compaction did.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct CompactReport {
    /// Objects that the collector wrote.
    pub copied_objects: u64,
    /// Payload bytes in them.
    pub copied_bytes: u64,
    /// Payload bytes of the objects that were given up.
    pub reclaimed_bytes: u64,
    /// Live share before, in percent.
    pub live_percent_before: u64,
    /// Live share after, in percent.
    pub live_percent_after: u64,
    /// Objects that nothing needs and that are not deleted yet.
    pub pending_deletions: u64,
    /// Why the wanted share was not reached; none when it was.
    pub obstacle: Option<String>,
}

impl From<weir_log::CompactReport> for CompactReport {
    fn from(report: weir_log::CompactReport) -> Self {
        Self {
            copied_objects: report.copied_objects,
            copied_bytes: report.copied_bytes,
            reclaimed_bytes: report.reclaimed_bytes,
            live_percent_before: report.live_percent_before,
            live_percent_after: report.live_percent_after,
            pending_deletions: report.pending_deletions,
            obstacle: report.obstacle,
        }
    }
}

/// What a repair did.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct RepairReport {
    /// Bytes of the volume that the local journal still had and that are in the store again.
    pub saved_bytes: u64,
    /// Bytes of the volume that were given up.
    pub lost_bytes: u64,
    /// Ranges of the volume that were given up.
    pub lost_ranges: u64,
    /// Damaged objects of the map that were written anew from memory; nothing is lost by them.
    pub rewritten_objects: u64,
    /// Objects that nobody needs, given up for deletion.
    pub removed_objects: u64,
    /// Objects that can be read after all: nothing was done about them.
    pub whole_objects: u64,
    /// Damaged objects that snapshots need: they stay until those snapshots are deleted.
    pub snapshot_objects: u64,
    /// Damaged objects of the volume that this one was cloned from, which it needs to be opened until something was
    /// written to it.
    #[serde(default)]
    pub origin_objects: u64,
    /// Objects given up that the store has not deleted yet.
    pub pending_deletions: u64,
}

impl RepairReport {
    /// Goes on with the report of the next part of a repair.
    pub(crate) fn add(&mut self, next: &Self) {
        self.saved_bytes += next.saved_bytes;
        self.lost_bytes += next.lost_bytes;
        self.lost_ranges += next.lost_ranges;
        self.rewritten_objects += next.rewritten_objects;
        self.removed_objects += next.removed_objects;
        self.whole_objects += next.whole_objects;
        self.snapshot_objects += next.snapshot_objects;
        self.origin_objects += next.origin_objects;
        self.pending_deletions = next.pending_deletions;
    }
}

impl From<weir_log::RepairReport> for RepairReport {
    fn from(report: weir_log::RepairReport) -> Self {
        Self {
            saved_bytes: report.saved_bytes,
            lost_bytes: report.lost_bytes,
            lost_ranges: report.lost_ranges,
            rewritten_objects: report.rewritten_objects,
            removed_objects: report.removed_objects,
            whole_objects: report.whole_objects,
            snapshot_objects: report.snapshot_objects,
            origin_objects: report.origin_objects,
            pending_deletions: report.pending_deletions,
        }
    }
}

/// What a flatten did.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct FlattenReport {
    /// Payload bytes that were copied.
    pub flattened_bytes: u64,
    /// Live bytes of the volume that are still in objects of other volumes.
    pub shared_bytes: u64,
    /// Volumes that it still depends on, by the names they had.
    pub origins: Vec<String>,
    /// Why it still does; none when it does not.
    pub obstacle: Option<String>,
}

impl From<weir_log::FlattenReport> for FlattenReport {
    fn from(report: weir_log::FlattenReport) -> Self {
        Self {
            flattened_bytes: report.copied_bytes,
            shared_bytes: report.shared_bytes,
            origins: report.origins,
            obstacle: report.obstacle,
        }
    }
}

/// What a warming did. Bytes are those of frames of 64 KiB, which is what the cache takes in.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(default)]
pub struct WarmReport {
    /// Bytes that came into the cache.
    pub warmed_bytes: u64,
    /// Bytes that were there already.
    pub there_bytes: u64,
    /// Bytes of the volume that the journal has, on the local disk as well.
    pub journal_bytes: u64,
    /// Bytes that are not in the cache in the end.
    pub left_bytes: u64,
    /// Why they are not; none when all are.
    pub obstacle: Option<String>,
    /// Objects that were read from the store.
    pub objects: u64,
    /// Reads of the store, those of objects' headers as well.
    pub requests: u64,
}

impl From<weir_log::WarmReport> for WarmReport {
    fn from(report: weir_log::WarmReport) -> Self {
        Self {
            warmed_bytes: report.warmed_bytes,
            there_bytes: report.there_bytes,
            journal_bytes: report.journal_bytes,
            left_bytes: report.left_bytes,
            obstacle: report.obstacle,
            objects: report.objects,
            requests: report.requests,
        }
    }
}

/// One thing that is damaged or missing.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Damage {
    /// Its key in the store.
    pub place: String,
    /// What is wrong with it.
    pub problem: String,
    /// Bytes of the volume that cannot be read because of it.
    pub lost_bytes: u64,
    /// Where on the volume, the first of them.
    pub ranges: Vec<DamagedRange>,
    /// Ranges that are not listed.
    pub more_ranges: u64,
}

/// Bytes of a volume that cannot be read.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct DamagedRange {
    /// First byte.
    pub offset: u64,
    /// How many.
    pub len: u64,
}
