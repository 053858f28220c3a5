//! Objects that nothing reaches any more, from their death to their deletion.
//!
//! An object may go only when the published checkpoint is as of its own sequence and of the one that took its last live
//! byte, and when a manifest version of ours lists it as pending. Deletions go on after a crash where they stopped.
//!
//! Invariants
//!  G1. What is deleted is listed in the newest manifest version that counts, which is ours.
//!  G2. What is listed is reached neither by the checkpoint of the same version nor by any object after it.

use std::collections::BTreeSet;
use std::pin::pin;
use std::rc::Rc;

use futures_util::StreamExt;
use futures_util::stream;
use weir_device::VolumeId;
use weir_store::RetryPolicy;

use crate::format::manifest::Manifest;
use crate::ids::{ObjectId, ObjectSeq};
use crate::upload::splitmix;
use crate::volume::{Shared, State};

/// Deletions in flight: they hide each other's latency, and are cheap for a store.
const DELETES_IN_FLIGHT_MAX: usize = 4;

/// What waits for its deletion.
#[derive(Debug, Default)]
pub(crate) struct Garbage {
    /// Objects that were found beyond the prefix, or left over from a checkpoint that was never published: listed with
    /// the next version.
    pub(crate) found: BTreeSet<ObjectId>,
    /// Listed, and not known to be gone.
    pending: BTreeSet<ObjectId>,
    /// Objects deleted by this opening.
    pub(crate) deleted: u64,
}

/// How a manifest names an object of the volume's own stream.
pub(crate) fn name_of(id: &ObjectId) -> String {
    let key = id.key();
    key.rsplit('/').next().expect("a key has parts").to_owned()
}

impl Garbage {
    /// Goes on where the last opening stopped: `manifest` made us the holder.
    pub(crate) fn new(manifest: &Manifest, found: Vec<ObjectId>) -> Self {
        let found = found.into_iter().collect();
        let pending = if weir_device::mutant("garbage_forgotten_at_opening") {
            BTreeSet::new()
        } else {
            Self::listed(manifest)
        };
        Self { found, pending, deleted: 0 }
    }

    /// The objects that a manifest lists.
    pub(crate) fn listed(manifest: &Manifest) -> BTreeSet<ObjectId> {
        let prefix = ObjectId::prefix(VolumeId(manifest.volume.0));
        let parse = |name: &String| ObjectId::parse_key(&format!("{prefix}{name}"));
        manifest.pending_deletions.iter().filter_map(parse).collect()
    }

    /// Objects that are listed and not known to be gone.
    pub(crate) fn pending(&self) -> u64 {
        self.pending.len() as u64
    }

    /// All that the next manifest version lists.
    pub(crate) fn names(&self) -> Vec<String> {
        self.pending.iter().map(name_of).collect()
    }
}

impl State {
    /// A checkpoint as of `as_of` is about to be published: what may go once it is.
    pub(crate) fn garbage_as_of(&mut self, stream: VolumeId, as_of: ObjectSeq) -> Vec<ObjectId> {
        let mut garbage = self.objects.table.dead(as_of);
        if weir_device::mutant("delete_dead_after_checkpoint") {
            garbage = self.objects.table.dead(ObjectSeq(u64::MAX));
        }
        // Objects of other streams are not ours to delete.
        garbage.retain(|id| id.stream == stream);
        let superseded = self.checkpoint.take_superseded(as_of).into_iter();
        garbage.extend(superseded.map(|(seq, epoch)| ObjectId { stream, seq, epoch }));
        garbage.extend(std::mem::take(&mut self.garbage.found));
        garbage
    }

    /// The version that lists `garbage` counts.
    pub(crate) fn on_garbage_listed(&mut self, garbage: Vec<ObjectId>, as_of: ObjectSeq) {
        self.objects.table.free_dead_of(as_of);
        self.garbage.pending.extend(garbage);
    }
}

/// The deleter task of a volume.
pub(crate) async fn run(shared: Rc<Shared>) {
    loop {
        let mut listed = pin!(shared.listed.notified());
        listed.as_mut().enable();
        if shared.stopped.get() || shared.state.borrow().failure.is_some() {
            return;
        }
        let pending: Vec<ObjectId> =
            shared.state.borrow().garbage.pending.iter().copied().collect();
        let deletions = pending.into_iter().map(|id| delete(&shared, id));
        let mut deletions = stream::iter(deletions).buffer_unordered(DELETES_IN_FLIGHT_MAX);
        while deletions.next().await.is_some() {}
        drop(deletions);
        shared.progress.notify_waiters();
        // What could not be deleted is tried again with what is listed next.
        listed.await;
    }
}

async fn delete(shared: &Rc<Shared>, id: ObjectId) {
    // G1: without its lease a volume does not know whether the newest version is still its own.
    if shared.stopped.get() || !shared.holds_lease() {
        return;
    }
    let (store, seed) = (shared.store.clone(), shared.env.random.next_u64());
    let deleted = shared.env.background(async move {
        let mut random = splitmix(seed);
        let key = id.key();
        store.retry(&RetryPolicy::reads(), &mut random, None, || store.delete(&key)).await
    });
    match deleted.await {
        Some(Ok(())) => {
            let mut state = shared.state.borrow_mut();
            state.garbage.pending.remove(&id);
            state.garbage.deleted += 1;
        }
        Some(Err(error)) => {
            tracing::warn!(volume = %shared.id, object = %id, %error, "an object that nothing needs stays for now");
        }
        None => {}
    }
}
