//! Closing a volume, and what it says of itself.

use std::time::Duration;

use serde::Serialize;
use weir_device::{DeviceError, with_causes};
use weir_journal::ManifestSeen;

use crate::error::LogError;
use crate::format::manifest::{ClosedRecord, Manifest, Takeover};
use crate::volume::LogVolume;
use crate::volume::shared::{Shared, State};
use crate::volume::task::commit;

/// How long a close waits for the tasks of the volume to end by themselves.
const TASKS_END_MAX: Duration = Duration::from_secs(5);

/// How a close ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Closed {
    /// Everything is in the store; any node can open the volume without its journal.
    Clean,
    /// The store did not take everything in time; the rest is safe in the local journal, and goes on at the next
    /// opening here.
    LocalOnly,
}

/// A volume at a glance. Counts and bytes.
#[derive(Clone, Debug, Serialize)]
pub struct VolumeStatus {
    /// Size of the volume in bytes.
    pub size_bytes: u64,
    /// Epoch of this opening.
    pub epoch: u64,
    /// The newest version of the manifest that this opening found or published.
    #[serde(skip)]
    pub manifest: ManifestSeen,
    /// Writes acknowledged, by number.
    pub acked_write: u64,
    /// Writes in the committed prefix, by number.
    pub committed_write: u64,
    /// Last object of the committed prefix.
    pub committed_sequence: u64,
    /// Sequence that the newest published checkpoint is as of.
    pub checkpoint_as_of: Option<u64>,
    /// Bytes of the journal that no object holds yet.
    pub journal_used_bytes: u64,
    /// Bytes that the journal can hold.
    pub journal_capacity_bytes: u64,
    /// Payload copies of the journal in memory, in bytes.
    pub journal_resident_bytes: u64,
    /// Records that were written to the journal since it was opened: group commits.
    pub journal_records: u64,
    /// Times that the journal was made to survive a loss of power.
    pub journal_fsyncs: u64,
    /// Acknowledged payload bytes that are not in the committed prefix of the store yet.
    pub unsent_bytes: u64,
    /// Age of the oldest of them in milliseconds, since this opening took them in.
    pub unsent_age_ms: Option<u64>,
    /// Whether the oldest are of an earlier opening: nothing says how old they are, but that it is no less than that.
    pub unsent_age_is_least: bool,
    /// How old the oldest acknowledged byte that is not in the store may become, in milliseconds.
    pub rpo_ms: u64,
    /// Batches that came into the store later than that, of this opening.
    pub rpo_missed: u64,
    /// How much presses the uploads, in thousandths: at 1000 they go as if clients waited for them.
    pub upload_pressure: u64,
    /// Reads beyond memory that the cache on the local disk answered, and those that it did not.
    pub cache_hits: u64,
    /// See there.
    pub cache_misses: u64,
    /// How long the oldest object has waited to be stored, in milliseconds.
    pub object_wait_ms: Option<u64>,
    /// Object PUTs in flight.
    pub puts_in_flight: u64,
    /// Objects written by this opening.
    pub objects_written: u64,
    /// Checkpoints published by this opening.
    pub checkpoints_published: u64,
    /// Entries of the object map.
    pub map_extents: u64,
    /// Memory of object map and overlay, in bytes.
    pub map_bytes: u64,
    /// Entries of the overlay.
    pub overlay_extents: u64,
    /// Bytes of objects that are live.
    pub live_bytes: u64,
    /// Of them, those in objects of volumes that this one is a clone of.
    pub shared_bytes: u64,
    /// Payload bytes of the objects that have live bytes.
    pub used_bytes: u64,
    /// Payload bytes of all objects that are not deleted yet.
    pub object_bytes: u64,
    /// Payload bytes of client writes in objects, merged, since this opening.
    pub data_bytes: u64,
    /// Objects written by the collector of this opening.
    pub collected_objects: u64,
    /// Payload bytes in them.
    pub collected_bytes: u64,
    /// Objects deleted by this opening.
    pub deleted_objects: u64,
    /// Payload bytes of objects that this opening gave up for deletion.
    pub reclaimed_bytes: u64,
    /// Objects that nothing needs any more and that are not deleted yet.
    pub pending_deletions: u64,
    /// Whether objects of clients' data wait for the collector, which is behind.
    pub waits_for_collector: bool,
    /// Whether the node holds the lease that the manifest names.
    pub lease_held: bool,
    /// What happens when that lease runs out.
    pub takeover: Takeover,
    /// Why the volume takes no writes, if it does not.
    pub failure: Option<String>,
    /// What the uploader struggles with, if it does.
    pub upload_note: Option<String>,
    /// What the last PUT to the store failed with, of whichever volume it was; nothing if it succeeded.
    pub put_error: Option<PutError>,
    /// What the newest read failed with that found bytes lost or damaged, and in how many other ranges reads did, until
    /// all of these bytes were read or replaced. Bytes that a checkpoint found to be lost count as well.
    pub read_failure: Option<String>,
    /// Why what snapshots need is not known, so that nothing is deleted from the store until the volume is opened anew.
    pub snapshot_failure: Option<String>,
    /// The journal's file, while it cannot grow for want of space on its file system.
    pub journal_no_space: Option<String>,
    /// Milliseconds for which the disk of the journal has not answered the oldest write or sync that is under way.
    pub journal_wait_ms: Option<u64>,
}

/// What a PUT failed with.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct PutError {
    /// Whether it may pass by itself: no space, for one, does not.
    pub passes: bool,
    /// The error, with its causes.
    pub text: String,
}

impl LogVolume {
    /// The volume at a glance.
    #[must_use]
    pub fn status(&self) -> VolumeStatus {
        let shared = &self.shared;
        let journal = shared.journal.status();
        let state = shared.state.borrow();
        let usage = state.head.objects.table.usage();
        // Ages grow though nothing happens.
        shared.press(&state);
        let unsent = state.writes.unsent.status(state.writes.batch.as_ref());
        let milliseconds = |age: Duration| u64::try_from(age.as_millis()).unwrap_or(u64::MAX);
        let map_bytes = state.head.objects.map.heap_bytes() + state.writes.overlay.heap_bytes();
        VolumeStatus {
            size_bytes: state.size,
            epoch: shared.epoch.0,
            manifest: shared.newest_manifest.get(),
            acked_write: state.writes.acked.write.0,
            committed_write: state.writes.committed.write.0,
            committed_sequence: state.writes.pipeline.committed().0,
            checkpoint_as_of: state.head.published.map(|c| c.as_of),
            journal_used_bytes: journal.bytes_used,
            journal_capacity_bytes: journal.bytes_capacity,
            journal_resident_bytes: journal.resident_bytes as u64,
            journal_records: journal.records,
            journal_fsyncs: journal.fsyncs,
            unsent_bytes: unsent.bytes,
            unsent_age_ms: unsent.oldest_age.map(milliseconds),
            unsent_age_is_least: state.writes.unsent.is_age_unknown(),
            rpo_ms: milliseconds(shared.options.batch.rpo),
            rpo_missed: state.writes.unsent.missed(),
            upload_pressure: shared.pressures.upload_thousandths(),
            cache_hits: shared.fetcher.disk.counts().0,
            cache_misses: shared.fetcher.disk.counts().1,
            object_wait_ms: unsent.closed_age.map(milliseconds),
            puts_in_flight: state.writes.pipeline.in_flight() as u64,
            objects_written: state.writes.objects_written,
            checkpoints_published: state.head.checkpoints_published,
            map_extents: state.head.objects.map.extents(),
            map_bytes: map_bytes as u64,
            overlay_extents: state.writes.overlay.extents(),
            live_bytes: usage.live_bytes,
            shared_bytes: usage.shared_live_bytes,
            used_bytes: usage.used_bytes,
            object_bytes: usage.payload_bytes,
            data_bytes: state.collector.data_bytes,
            collected_objects: state.collector.objects_written,
            collected_bytes: state.collector.bytes_written,
            deleted_objects: shared.garbage.deleted(),
            reclaimed_bytes: state.head.objects.table.reclaimed_bytes(),
            pending_deletions: shared.garbage.pending(),
            waits_for_collector: state.collector.holds_data(),
            lease_held: shared.holds_lease(),
            takeover: shared.takeover.get(),
            failure: match (&state.failure, journal.poisoned) {
                (Some(failure), _) => Some(failure.to_string()),
                (None, poisoned) => poisoned.map(|cause| format!("its journal failed: {cause}")),
            },
            journal_no_space: journal.no_space,
            journal_wait_ms: journal.disk_wait.map(milliseconds),
            upload_note: state.writes.upload_note.clone(),
            read_failure: state.failed_reads.reason(&state.writes.overlay, &state.head.objects),
            snapshot_failure: state.snapshots.trouble().map(str::to_owned),
            put_error: shared
                .store
                .put_error()
                .map(|error| PutError { passes: error.is_retryable(), text: with_causes(&error) }),
        }
    }

    /// Closes the volume: everything acknowledged goes to the store, a checkpoint is published and the volume is
    /// marked as free. Where the store does not take it within the deadline, the journal keeps it.
    ///
    /// # Errors
    /// The failure that stopped the volume, or what the journal says; nothing acknowledged is lost by it.
    pub async fn close(&self) -> Result<Closed, DeviceError> {
        self.close_within(self.shared.options.close_deadline).await
    }

    /// [`LogVolume::close`] with another deadline for the store. With none at all the close is quick, and the next
    /// opening here goes on from the journal.
    ///
    /// # Errors
    /// As [`LogVolume::close`]. This opening has ended even then.
    pub async fn close_within(&self, deadline: Duration) -> Result<Closed, DeviceError> {
        let shared = &self.shared;
        let closed = self.hand_over_within(deadline).await;
        // However that went: nothing is uploaded or confirmed any more, so nobody may wait for it. Once the close has
        // answered and the volume is dropped, its files can be opened again at once.
        shared.stop();
        // What is being deleted is deleted, where the store answers: else it stays until the next opening.
        if !weir_device::mutant("close_leaves_tasks") {
            let _ = tokio::time::timeout(TASKS_END_MAX, shared.tasks.ended()).await;
            shared.tasks.stop();
            shared.tasks.ended().await;
        }
        let ended = shared.journal.close().await.map_err(LogError::Journal);
        let closed = closed?;
        ended?;
        Ok(closed)
    }

    async fn hand_over_within(&self, deadline: Duration) -> Result<Closed, DeviceError> {
        let shared = &self.shared;
        shared.check_failure()?;
        shared.closing.set(true);
        if let Err(error) = shared.flush_journal().await {
            self.send_what_was_flushed(deadline).await;
            // Whoever waits learns of this, and not of the close.
            let error = DeviceError::from(error);
            shared.fail(error.clone());
            return Err(error);
        }
        match tokio::time::timeout(deadline, self.hand_over()).await {
            Ok(result) => result.map(|()| Closed::Clean),
            Err(_) => Ok(Closed::LocalOnly),
        }
    }

    /// The journal failed: waits until what was flushed before is in the store, within the deadline. The uploader sends
    /// it, and has the volume fail when it has done so and there was more.
    async fn send_what_was_flushed(&self, deadline: Duration) {
        let shared = &self.shared;
        shared.work.notify_one();
        let is_sent =
            |state: &mut State| (state.writes.committed >= state.writes.acked).then_some(Ok(()));
        let _ = tokio::time::timeout(deadline, shared.wait_while_open(is_sent)).await;
    }

    async fn hand_over(&self) -> Result<(), DeviceError> {
        let shared = &self.shared;
        // A shrink or a rollback that began before adds to the journal without being a write of a client, and changes
        // the size first: a checkpoint in the middle of it would have one without the other. None begins any more.
        shared.wait_while_open(|_| (!shared.frozen.get()).then_some(Ok(()))).await?;
        shared.settle().await?;
        let newest = {
            let state = shared.state.borrow();
            let up_to_date = state.head.checkpoint.objects_since == 0;
            up_to_date && state.head.published.is_some()
        };
        if !newest && shared.state.borrow().writes.pipeline.committed().0 > 0 {
            commit::begin_checkpoint(shared);
        }
        loop {
            shared.settle().await?;
            self.publish_closed().await?;
            // Where the store was found to have lost a part of the checkpoint, another one comes first.
            if shared.state.borrow().lost.is_settled() {
                return Ok(());
            }
        }
    }

    async fn publish_closed(&self) -> Result<(), DeviceError> {
        let shared = &self.shared;
        let mut manifest = shared.manifest.lock().await;
        let (write, committed) = {
            let writes = &shared.state.borrow().writes;
            (writes.acked.write.0, writes.pipeline.committed())
        };
        let closed = ClosedRecord { opening: shared.opening, write };
        let is_asked = !weir_device::mutant("close_asks_for_nothing");
        let change = |m: &mut Manifest| {
            m.holder = None;
            m.closed = Some(closed);
        };
        Ok(shared.publish_unless_lost(&mut manifest, committed, is_asked, change).await?)
    }
}

impl State {
    /// Whether nothing acknowledged is on its way to the store, and no checkpoint or snapshot is under way.
    pub(crate) fn is_settled(&self) -> bool {
        let is_quiet = self.all_committed() && !self.head.checkpoint.under_way;
        is_quiet && self.snapshots.are_taken() && self.lost.is_settled()
    }
}

impl Shared {
    /// Waits until no write is on its way, everything acknowledged is in the store, and no checkpoint or snapshot is
    /// under way. For whoever has seen to it that no further write is taken.
    pub(crate) async fn settle(&self) -> Result<(), DeviceError> {
        // A write that was taken before may be answered yet, and a repair may be writing zeroes; neither must miss the
        // last object.
        let is_quiet = || {
            let held = self.held.get() && !weir_device::mutant("settled_in_the_middle_of_zeroes");
            self.appends.get() == 0 && !held
        };
        self.wait_while_open(|_| is_quiet().then_some(Ok(()))).await?;
        // Nor must those whose client went away without an answer.
        if !weir_device::mutant("settled_without_drain") {
            self.journal.drain().await.map_err(LogError::Journal)?;
        }
        self.upload_all().await?;
        self.wait_while_open(|state| state.is_settled().then_some(Ok(()))).await
    }

    /// The same, and that nobody is about to publish a manifest who began before: what is published then says what the
    /// volume was. Nothing can begin between the end of this and what the caller does before it waits for anything.
    pub(crate) async fn settle_alone(&self) -> Result<(), DeviceError> {
        loop {
            self.settle().await?;
            drop(self.manifest.lock().await);
            // Waiting for the lock took its time, in which a checkpoint may have begun.
            if self.state.borrow().is_settled() || weir_device::mutant("rollback_looks_once") {
                return Ok(());
            }
        }
    }
}
