//! Saving what the journal still has of damaged or missing objects, giving up the rest, and deleting what nobody needs.
//!
//! Invariants
//!  R1. Only what cannot be read at the moment of the repair is given up: each object is looked at once more.
//!  R2. A range is given up where the map still points at the damaged bytes, and nowhere else: what a client writes
//!      meanwhile stays. The log says so, as it says what the collector moves, so recovery and replicas follow.
//!  R3. The journal's copy of a damaged range is used only if it is what the object held. So the overlay is looked at
//!      first, then everything acknowledged so far is committed, and a copy is used only where the map still points at
//!      the damaged bytes after that.
//!  R4. Nothing that a snapshot reaches is deleted, and what a snapshot shows does not change.

use std::collections::{BTreeMap, BTreeSet};
use std::rc::Rc;

use bytes::Bytes;
use weir_device::DeviceError;
use weir_journal::{JournalPos, Payload, Pin};
use weir_pacer::Class;

use crate::check::examine;
use crate::collect::runs::{self, Described, Run};
use crate::error::LogError;
use crate::format::object::ExtentKind;
use crate::ids::{ObjectId, ObjectSeq};
use crate::map::objects::{ObjectPlace, ObjectRun};
use crate::volume::LogVolume;
use crate::volume::reads;
use crate::volume::shared::{Held, Shared, State};
use crate::volume::task::collect;
use crate::volume::task::upload;
use crate::volume::verb::compact;
use crate::write::overlay::OverlayPlace;

/// Bytes of the volume whose runs are looked at without a pause.
const LOOK_BYTES: u64 = 64 << 20;

/// What bytes are once they are given up.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum GivenUp {
    /// Reads fail until they are written again.
    #[default]
    Error,
    /// They read as zeroes.
    Zero,
}

/// What a repair did.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RepairReport {
    /// Bytes of the volume that the local journal still had and that are in the store again.
    pub saved_bytes: u64,
    /// Bytes of the volume that were given up; with [`GivenUp::Zero`] also those that had been given up before.
    pub lost_bytes: u64,
    /// Ranges of the volume that they are in.
    pub lost_ranges: u64,
    /// Damaged objects of the map's checkpoint that were written anew from memory. Nothing is lost by them.
    pub rewritten_objects: u64,
    /// Objects that nobody needs, given up for deletion.
    pub removed_objects: u64,
    /// Objects that are whole after all, and needed: nothing was done about them.
    pub whole_objects: u64,
    /// Damaged objects that snapshots need, or may need: they stay damaged until the snapshots are deleted.
    pub snapshot_objects: u64,
    /// Damaged objects of the volume that this one was cloned from, which it needs to be opened as long as it has no
    /// checkpoint of its own: it makes one once something was written to it.
    pub origin_objects: u64,
    /// Objects given up that the store has not deleted yet.
    pub pending_deletions: u64,
}

/// What is to be done about the objects of a repair.
#[derive(Debug, Default)]
struct Plan {
    report: RepairReport,
    /// Unreadable payload ranges of objects that the map points at.
    unreadable: BTreeMap<ObjectId, Vec<(u64, u64)>>,
    /// Damaged objects of the newest checkpoint.
    rewrite: Vec<ObjectSeq>,
    remove: Vec<ObjectId>,
}

impl LogVolume {
    /// Gives up what cannot be read of these objects, which a check named, and deletes those of them that nobody needs.
    /// Clients go on meanwhile. Returns once that is published and, but for what the report counts, deleted.
    /// `on_progress` hears of objects looked at.
    ///
    /// # Errors
    /// What the store says where it does not answer, with nothing changed; or the failure that stopped the volume.
    pub async fn repair(
        &self,
        objects: &[ObjectId],
        given_up: GivenUp,
        mut on_progress: impl FnMut(u64),
    ) -> Result<RepairReport, DeviceError> {
        let shared = &self.shared;
        compact::check(shared)?;
        let known = |state: &mut State| state.snapshots.pins_are_settled().then_some(Ok(()));
        shared.wait_while_open(known).await?;
        let mut plan = Plan::default();
        for object in objects {
            plan.look_at(shared, *object).await?;
            on_progress(1);
        }
        compact::check(shared)?;
        let Plan { mut report, unreadable, rewrite, remove } = plan;
        let found = in_journal(shared, &find_lost(shared, &unreadable).await);
        report.saved_bytes = send_again(shared, found).await?;
        let lost = find_lost(shared, &unreadable).await;
        report.lost_ranges = lost.len() as u64;
        report.lost_bytes = lost.iter().map(|run| run.len).sum();
        give_up(shared, &lost, given_up).await?;
        // What can be read of a damaged object goes elsewhere, so that nothing needs it any more.
        let damaged: Vec<ObjectId> = unreadable.into_keys().collect();
        collect::evacuate(shared, &damaged).await?;
        if given_up == GivenUp::Zero {
            zero_what_was_given_up(shared, &mut report).await?;
        }
        {
            let mut state = shared.state.borrow_mut();
            state.head.checkpoint.rewrite(rewrite);
            shared.garbage.add_found(remove);
        }
        compact::checkpoint(shared).await?;
        compact::wait_for_deletions(shared).await;
        if shared.state.borrow().head.published.is_some() {
            report.origin_objects = 0;
        }
        reads::again(shared).await;
        if report != RepairReport::default() {
            tracing::warn!(volume = %shared.id, ?report, "repaired");
        }
        report.pending_deletions = shared.garbage.pending();
        shared.wait_for_lease().await?;
        Ok(report)
    }
}

impl Plan {
    /// R1: looks at an object, and says what is to be done about it.
    async fn look_at(&mut self, shared: &Shared, object: ObjectId) -> Result<(), DeviceError> {
        let seed = shared.env.random.next_u64();
        let read = shared
            .env
            .background(examine(shared.store.clone(), object, shared.key.clone(), seed))
            .await;
        let (_, wrong) = read.ok_or(LogError::ShuttingDown)??;
        let state = shared.state.borrow();
        let ours = object.stream == state.stream;
        let points_at_it = state.head.objects.table.find(&object).is_some();
        let in_checkpoint = ours && state.head.checkpoint.knows(&object);
        let report = &mut self.report;
        match wrong {
            Some(wrong) if points_at_it => {
                self.unreadable.insert(object, wrong.payload);
                report.snapshot_objects += u64::from(state.head.objects.table.is_pinned(&object));
            }
            Some(_) if in_checkpoint => {
                self.rewrite.push(object.seq);
                report.rewritten_objects += 1;
            }
            // Where the checkpoint of a snapshot is damaged, what snapshots reach is not known, and this may be it.
            Some(_)
                if state.head.objects.table.is_pinned(&object) || !state.snapshots.pins_known() =>
            {
                report.snapshot_objects += 1;
            }
            _ if ours && state.is_orphan(&object) => {
                self.remove.push(object);
                report.removed_objects += 1;
            }
            Some(_) if !ours && state.head.published.is_none() => report.origin_objects += 1,
            Some(_) => {}
            None => report.whole_objects += 1,
        }
        Ok(())
    }
}

impl State {
    /// R4: whether neither the head nor any snapshot, nor anything under way, needs an object of this stream.
    fn is_orphan(&self, object: &ObjectId) -> bool {
        if weir_device::mutant("repair_removes_what_is_named") {
            return true;
        }
        let published = self.head.published.map_or(0, |checkpoint| checkpoint.as_of);
        object.seq.0 <= published
            && self.snapshots.pins_known()
            && self.head.objects.table.find(object).is_none()
            && !self.head.objects.table.is_pinned(object)
            && !self.head.checkpoint.knows(object)
    }
}

/// Shows every run of the map to `look`, with pauses. Takes time by what the map holds, not by the volume's size.
async fn each_run(shared: &Shared, mut look: impl FnMut(&State, ObjectRun)) {
    let mut at = 0;
    loop {
        {
            let state = shared.state.borrow();
            let rest = state.size.saturating_sub(at);
            let Some(next) = state.head.objects.runs(at, rest).next() else { return };
            let len = LOOK_BYTES.min(rest - (next.offset - at));
            for run in state.head.objects.runs(next.offset, len) {
                look(&state, run);
            }
            at = next.offset + len;
        }
        tokio::task::yield_now().await;
    }
}

/// Where the map points at bytes that cannot be read.
async fn find_lost(shared: &Shared, unreadable: &BTreeMap<ObjectId, Vec<(u64, u64)>>) -> Vec<Run> {
    let mut lost = Vec::new();
    if unreadable.is_empty() {
        return lost;
    }
    let look = |state: &State, run: ObjectRun| {
        let ObjectPlace::Object { index, payload_offset } = run.place else { return };
        let object = state.head.objects.object(index);
        let start = u64::from(payload_offset);
        for (from, to) in unreadable.get(&object).into_iter().flatten() {
            let all = weir_device::mutant("repair_gives_up_all");
            let (from, to) = if all { (&0, &u64::MAX) } else { (from, to) };
            let (from, to) = (start.max(*from), (start + run.len).min(*to));
            if from < to {
                let offset = run.offset + (from - start);
                let payload_offset = u32::try_from(from).expect("within the object");
                lost.push(Run { offset, len: to - from, object, payload_offset });
            }
        }
    };
    each_run(shared, look).await;
    lost
}

/// Writes zeroes where reads fail because an earlier repair, or damage in a journal, lost what was there. No object is
/// left that a conditional change could name, so writes wait meanwhile: what a client wrote there before stays (R2).
async fn zero_what_was_given_up(
    shared: &Rc<Shared>,
    report: &mut RepairReport,
) -> Result<(), DeviceError> {
    // Damage that is in the journal yet.
    shared.upload_all().await?;
    {
        let _held = Held::new(shared).await?;
        let mut ranges = Vec::new();
        let look = |state: &State, run: ObjectRun| {
            if run.place != ObjectPlace::Poison {
                return;
            }
            let mut at = run.offset;
            for newer in state.writes.overlay.runs(run.offset, run.len) {
                if newer.place != OverlayPlace::Poison {
                    ranges.push((at, newer.offset - at));
                    at = newer.offset + newer.len;
                }
            }
            ranges.push((at, run.offset + run.len - at));
        };
        each_run(shared, look).await;
        for (offset, len) in ranges.into_iter().filter(|(_, len)| *len > 0) {
            let zeroed = shared.journal.append(offset, Payload::Zero, len).await;
            zeroed.map_err(LogError::Journal)?;
            report.lost_ranges += 1;
            report.lost_bytes += len;
        }
    }
    shared.upload_all().await
}

/// A run of bytes that are lost in the store, and where the journal has them.
pub(crate) struct InJournal {
    run: Run,
    position: JournalPos,
    pin: Pin,
}

/// R3: what the journal still has of objects that are gone.
pub(crate) async fn find_in_journal(shared: &Shared, gone: &BTreeSet<ObjectId>) -> Vec<InJournal> {
    let unreadable = gone.iter().map(|id| (*id, vec![(0, u64::MAX)])).collect();
    in_journal(shared, &find_lost(shared, &unreadable).await)
}

fn in_journal(shared: &Shared, lost: &[Run]) -> Vec<InJournal> {
    let mut found = Vec::new();
    let state = shared.state.borrow();
    for run in lost {
        for there in state.writes.overlay.runs(run.offset, run.len) {
            if let OverlayPlace::Journal(position) = there.place {
                let skipped = u32::try_from(there.offset - run.offset).expect("within an object");
                let (offset, len) = (there.offset, there.len);
                let payload_offset = run.payload_offset + skipped;
                let run = Run { offset, len, payload_offset, ..*run };
                found.push(InJournal { run, position, pin: shared.journal.pin(position) });
            }
        }
    }
    found
}

/// R3: puts what the journal has into objects again; how many bytes that is.
pub(crate) async fn send_again(
    shared: &Rc<Shared>,
    found: Vec<InJournal>,
) -> Result<u64, DeviceError> {
    if found.is_empty() {
        return Ok(0);
    }
    shared.upload_all().await?;
    let mut saved_bytes = 0;
    let (runs, places): (Vec<Run>, Vec<_>) =
        found.into_iter().map(|InJournal { run, position, pin }| (run, (position, pin))).unzip();
    let mut places = places.into_iter();
    for runs in runs::cut(&runs, shared.options.batch.bytes) {
        let (mut saved, mut payload) = (Vec::new(), Vec::new());
        for (run, (position, pin)) in runs.iter().zip(places.by_ref()) {
            let mut bytes = vec![0; usize::try_from(run.len).expect("within an object")];
            let read = shared.journal.read(position, &mut bytes).await;
            drop(pin);
            match read {
                Ok(()) => {
                    saved_bytes += run.len;
                    saved.push(*run);
                    payload.push(Bytes::from(bytes));
                }
                Err(error) => {
                    tracing::warn!(volume = %shared.id, %error, "the journal cannot save a damaged range");
                }
            }
        }
        commit(shared, runs::describe(&saved), payload).await?;
    }
    Ok(saved_bytes)
}

/// R2: says of these runs that they are given up.
async fn give_up(shared: &Rc<Shared>, lost: &[Run], given_up: GivenUp) -> Result<(), DeviceError> {
    let kind = match given_up {
        GivenUp::Error => ExtentKind::Poison,
        GivenUp::Zero => ExtentKind::Zero,
    };
    for runs in runs::cut(lost, u64::MAX) {
        let mut described = runs::describe(runs);
        for extent in &mut described.extents {
            extent.kind = kind;
        }
        commit(shared, described, Vec::new()).await?;
    }
    Ok(())
}

/// Sends an object that moves or gives up what it names, and waits until it is in the committed prefix.
async fn commit(
    shared: &Rc<Shared>,
    described: Described,
    payload: Vec<Bytes>,
) -> Result<(), DeviceError> {
    if described.extents.is_empty() {
        return Ok(());
    }
    let spec = upload::moving_object(shared, described);
    let seq = spec.id.seq;
    upload::send(
        shared,
        shared.background_store(Class::Copy),
        spec,
        || payload,
        upload::Wanted::All,
    );
    let is_committed = |state: &mut State| state.writes.pipeline.committed() >= seq;
    shared.wait_while_open(|state| is_committed(state).then_some(Ok(()))).await
}
