//! The committed prefix: objects are applied to the map in order, journal space is released, checkpoints are begun and
//! published.

use std::pin::pin;
use std::rc::Rc;
use std::sync::Arc;

use crate::format::manifest::CheckpointRef;
use crate::format::object::{ObjectHeader, ObjectKind};
use crate::ids::{ObjectId, ObjectSeq};
use crate::map::objects::ApplyCursor;
use crate::map::table::Dead;
use crate::volume::shared::{Shared, State};

/// The committer task of a volume.
pub(crate) async fn run(shared: Rc<Shared>) {
    loop {
        let mut stored = pin!(shared.stored.notified());
        stored.as_mut().enable();
        if shared.stopped.get() || shared.state.borrow().failure.is_some() {
            return;
        }
        let next = shared.state.borrow_mut().writes.pipeline.take_next();
        match next {
            Some(header) => commit(&shared, &header).await,
            None if shared.state.borrow().head.checkpoint_is_wanted() => begin_checkpoint(&shared),
            None => stored.await,
        }
    }
}

async fn commit(shared: &Rc<Shared>, header: &Arc<ObjectHeader>) {
    if header.kind != ObjectKind::Checkpoint {
        shared.fetcher.keep_frame_table(header);
        let mut cursor = ApplyCursor::default();
        let limits = &shared.options.map;
        while !shared.state.borrow_mut().head.apply_step(header, &mut cursor, limits) {
            // Reads go on meanwhile: what is half applied is still covered by the overlay.
            tokio::task::yield_now().await;
        }
    }
    let begin = {
        let mut guard = shared.state.borrow_mut();
        let state = &mut *guard;
        state.writes.pipeline.on_applied(header.id.seq);
        if header.kind == ObjectKind::Data {
            state.writes.on_committed(header.id.seq, header.last_write);
        }
        if header.kind != ObjectKind::Checkpoint {
            state.head.checkpoint.objects_since += 1;
            state.head.checkpoint.bytes_since += header.payload_len();
            state.collector.on_committed(header, &state.head.objects, &shared.options.collect);
        }
        state.head.checkpoint_is_due(&shared.options.checkpoint)
    };
    if header.kind == ObjectKind::Data {
        let through = header.last_write.write;
        let mut state = shared.state.borrow_mut();
        if state.writes.keeps_journal {
            state.writes.kept_through = Some(through);
        } else {
            drop(state);
            shared.journal.release(through);
        }
    }
    let published_early = weir_device::mutant("publish_before_stored")
        || weir_device::mutant("publish_outside_prefix");
    if header.root.is_some() && !published_early {
        publish_root(shared, header.id);
    }
    if begin {
        begin_checkpoint(shared);
    }
    shared.wake_collector();
    shared.progress.notify_waiters();
    shared.work.notify_one();
}

/// Begins a checkpoint as of the committed sequence. Call between two objects.
pub(crate) fn begin_checkpoint(shared: &Rc<Shared>) {
    {
        let mut guard = shared.state.borrow_mut();
        let state = &mut *guard;
        let (as_of, committed) = (state.writes.pipeline.committed(), state.writes.committed);
        state.head.checkpoint_as_of = as_of.0;
        state.lost.on_checkpoint_begun();
        let pieces = shared.options.map.table_piece_entries;
        // As long as nobody knows what snapshots reach, a version lists nothing.
        let dead = if state.snapshots.pins_known() { Dead::Hidden } else { Dead::Named };
        let (objects, size) = (&mut state.head.objects, state.size);
        state.head.checkpoint.begin(objects, (pieces, dead), as_of, committed, size);
        state.begin_snapshots(&shared.env, dead);
    }
    shared.spawn(encode_checkpoint(Rc::clone(shared)));
}

async fn encode_checkpoint(shared: Rc<Shared>) {
    loop {
        let done = {
            let head = &mut shared.state.borrow_mut().head;
            head.encode_step()
        };
        if done {
            break;
        }
        tokio::task::yield_now().await;
        if shared.stopped.get() {
            return;
        }
    }
    {
        let head = &mut shared.state.borrow_mut().head;
        head.on_encoded(shared.options.batch.bytes);
    }
    shared.work.notify_one();
}

/// Publishes the checkpoint under way, whose root is in `root`, in the background.
pub(crate) fn publish_root(shared: &Rc<Shared>, root: ObjectId) {
    let as_of = shared.state.borrow().head.checkpoint_as_of;
    let checkpoint = CheckpointRef { sequence: root.seq.0, epoch: root.epoch.0, as_of };
    shared.spawn(publish(Rc::clone(shared), checkpoint));
}

/// A checkpoint counts once its root is in the committed prefix and a manifest version names it.
pub(crate) async fn publish(shared: Rc<Shared>, checkpoint: CheckpointRef) {
    let as_of = ObjectSeq(checkpoint.as_of);
    let may_go = |state: &mut State| state.snapshots.pins_are_settled().then_some(Ok(()));
    if shared.wait_in_background(may_go).await.is_err() {
        return;
    }
    let (published, old, garbage) = {
        let mut manifest = shared.manifest.lock().await;
        if shared.state.borrow().failure.is_some() {
            return;
        }
        let (snapshots, garbage, size) = {
            let mut state = shared.state.borrow_mut();
            let snapshots = state.snapshots_of(checkpoint);
            // A size that shrinks is said once the discard is stored.
            let early = weir_device::mutant("shrink_published_early");
            let waits = state.shrinking && !early;
            let size = if waits { manifest.current().size } else { state.size };
            (snapshots, state.garbage_as_of(&shared.garbage, as_of), size)
        };
        let names = shared.garbage.names_with(&garbage);
        if weir_device::mutant("delete_before_listed") {
            shared.delete_keys(garbage.iter().map(ObjectId::key).collect());
        }
        // The next opening does not look at what the checkpoint covers, so that is asked for before.
        let is_asked = !weir_device::mutant("checkpoint_in_store_set_back");
        let published = shared
            .publish_unless_lost(&mut manifest, ObjectSeq(checkpoint.sequence), is_asked, |m| {
                m.checkpoint = Some(checkpoint);
                m.size = size;
                m.snapshots.extend(snapshots);
                m.pending_deletions = names;
            })
            .await;
        if published.is_ok() {
            let listed = &mut shared.state.borrow_mut().snapshots.listed;
            listed.clone_from(&manifest.current().snapshots);
        }
        (published, manifest.take_prunable(), garbage)
    };
    if let Err(error) = published {
        shared.fail(error);
        return;
    }
    {
        let mut state = shared.state.borrow_mut();
        state.head.on_published(checkpoint);
        state.writes.on_published(as_of);
        shared.garbage.on_listed(garbage);
        shared.garbage.listed.notify_one();
    }
    shared.delete_keys(old);
    shared.references.notify_one();
    shared.progress.notify_waiters();
    // A checkpoint may have become due while this one was under way.
    if !weir_device::mutant("checkpoint_end_wakes_nobody") {
        shared.stored.notify_one();
    }
}
