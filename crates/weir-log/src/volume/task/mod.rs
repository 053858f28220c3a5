//! The tasks of an open volume. Each waits for one notification, in one place. Who is woken by what, and when:
//!
//! * `Shared::work` wakes the uploader (`upload`): a batch was begun or closed, the journal is half full or failed, a
//!   checkpoint was encoded, an object was stored or committed, the collector found nothing more.
//! * `Shared::stored` wakes the committer (`commit`): an object was stored, a checkpoint is wanted or was published.
//! * `Garbage::listed` wakes the deleter (`delete`): a manifest version that lists garbage counts, a read that it waits
//!   for ended, the lease is held again.
//! * `Shared::collect` wakes the collector (`collect`): a commit, a rollback or the end of a snapshot left too little
//!   of the objects alive; a compaction or a flatten began.
//! * `Shared::references` wakes the task that looks after clones (`references`): a checkpoint was published, a snapshot
//!   was given up, a flatten has copied all it can, it is known what snapshots reach.
//! * `Shared::progress` wakes everybody who waits for a state (verbs, the task of the lease, writes that wait): the
//!   prefix grew, a checkpoint was published, something was deleted or moved, writes may go on.
//!
//! They run in [`Tasks`], which ends them with the volume.
//!
//! A failure and the close of the volume notify all of them (`Shared::wake_all`), and every task looks at both before
//! anything else. `progress` wakes those who wait at that moment (`notify_waiters`), so whoever waits for it registers
//! before looking; the others keep one notification for the next wait (`notify_one`).

pub(super) mod collect;
pub(super) mod commit;
pub(super) mod delete;
pub(super) mod pins;
pub(super) mod references;
mod tasks;
pub(super) mod upload;

pub(crate) use tasks::Tasks;
