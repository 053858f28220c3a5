//! The head of an open volume: its newest map, and the checkpoints of it.

use std::collections::VecDeque;

use crate::format::manifest::CheckpointRef;
use crate::format::object::ObjectHeader;
use crate::map::checkpoint::{CheckpointChunk, CheckpointState};
use crate::map::objects::{ApplyCursor, ObjectMap};
use crate::options::{CheckpointLimits, MapLimits};

/// Encoded bytes per extent of the map, to estimate what a checkpoint would write.
const ENCODED_EXTENT_BYTES: u64 = 12;

/// Owned by the map's room; the committer changes it.
#[derive(Debug)]
pub(crate) struct Head {
    pub(crate) objects: ObjectMap,
    pub(crate) checkpoint: CheckpointState,
    /// Sequence that the checkpoint under way is as of.
    pub(crate) checkpoint_as_of: u64,
    /// Checkpoint payloads that have no object yet, oldest first.
    pub(crate) chunks: VecDeque<CheckpointChunk>,
    /// The newest checkpoint that counts.
    pub(crate) published: Option<CheckpointRef>,
    /// Checkpoints published by this opening.
    pub(crate) checkpoints_published: u64,
}

impl Head {
    /// As loaded.
    pub(crate) fn new(
        objects: ObjectMap,
        checkpoint: CheckpointState,
        published: Option<CheckpointRef>,
    ) -> Self {
        Self {
            objects,
            checkpoint,
            checkpoint_as_of: 0,
            chunks: VecDeque::new(),
            published,
            checkpoints_published: 0,
        }
    }

    /// Applies a part of an object; a checkpoint under way keeps what it has still to write. `true` when it is done.
    pub(crate) fn apply_step(
        &mut self,
        header: &ObjectHeader,
        cursor: &mut ApplyCursor,
        limits: &MapLimits,
    ) -> bool {
        let Self { objects, checkpoint, .. } = self;
        objects.apply_step(header, cursor, limits, |map, offset, len| {
            checkpoint.before_change(map, offset, len);
        })
    }

    /// Whether a checkpoint is to be begun, because one is wanted or because enough was committed since the last.
    pub(crate) fn checkpoint_is_due(&self, limits: &CheckpointLimits) -> bool {
        let since = &self.checkpoint;
        let map_bytes = self.objects.map.extents() * ENCODED_EXTENT_BYTES;
        let worth_it = since.bytes_since >= map_bytes.saturating_mul(limits.data_per_map_byte);
        let due = since.objects_since >= limits.objects_max
            || (since.objects_since >= limits.objects_min && worth_it);
        (due && !since.under_way) || self.checkpoint_is_wanted()
    }

    /// Whether somebody waits for a checkpoint that is not begun.
    pub(crate) fn checkpoint_is_wanted(&self) -> bool {
        self.checkpoint.wanted && !self.checkpoint.under_way
    }

    /// Encodes a part of the checkpoint under way. `true` when it is done.
    pub(crate) fn encode_step(&mut self) -> bool {
        self.checkpoint.encode_step(&self.objects.map)
    }

    /// The checkpoint under way is encoded: its objects wait for the uploader.
    pub(crate) fn on_encoded(&mut self, chunk_bytes: u64) {
        self.chunks.extend(self.checkpoint.finish().pack(chunk_bytes));
    }

    /// A manifest version that names the checkpoint counts.
    pub(crate) fn on_published(&mut self, checkpoint: CheckpointRef) {
        self.checkpoint.on_published();
        self.published = Some(checkpoint);
        self.checkpoints_published += 1;
    }
}
