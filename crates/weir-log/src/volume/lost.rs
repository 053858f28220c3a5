//! What an open volume does about objects that its store had taken and lost.
//!
//! No opening looks at what a checkpoint covers. So before a version of the manifest names another checkpoint, or puts
//! the volume under another run of the lease, the store is asked for all objects behind the published checkpoint, which
//! the next opening would read.
//!
//! Invariants
//!  L1. The volume stops where the next opening loses nothing by it, since the journal has all writes from the first
//!      lost object on, and where the store was set back to a backup: the newest store may be brought back.
//!  L2. Otherwise it goes on. It alone has the map of what comes behind the lost objects, or of the checkpoint they
//!      were part of: the next opening would end in front of them, or read nothing at all. What the journal still has
//!      of them is sent again, what they had of the checkpoint is written anew with the next one, which is begun soon
//!      and unasked, and the status names the bytes that are lost.

use std::collections::BTreeSet;
use std::rc::Rc;
use std::time::Duration;

use futures_util::future::LocalBoxFuture;
use weir_device::{DeviceError, ErrorKind};
use weir_store::{RetryPolicy, StoreError};

use crate::error::LogError;
use crate::format::manifest::{HexId, Manifest};
use crate::ids::{ObjectId, ObjectSeq};
use crate::map::load::objects_after;
use crate::own::chain;
use crate::own::manifests::ManifestWriter;
use crate::read::failed::RANGES_MAX;
use crate::read::{Source, resolve};
use crate::volume::reads::note_failed;
use crate::volume::shared::{Shared, State};
use crate::volume::verb::repair::{self, InJournal};

/// Time between two checkpoints that are made because objects are lost: where the listings of a store lack new
/// objects, each finds some.
const CHECKPOINT_PAUSE: Duration = Duration::from_secs(5);

/// What a version of the manifest stands on in the store.
struct Expected {
    /// Whose lease the version before it names.
    node: Option<HexId>,
    objects: BTreeSet<ObjectId>,
}

impl Shared {
    /// Publishes a version after which the next opening reads the objects up to `through`, unless they are lost.
    /// `is_asked`: whether that is looked at, which only a deliberate bug leaves out.
    pub(crate) async fn publish_unless_lost(
        self: &Rc<Self>,
        manifest: &mut ManifestWriter,
        through: ObjectSeq,
        is_asked: bool,
        change: impl FnOnce(&mut Manifest),
    ) -> Result<(), LogError> {
        let expected = self.objects_to(manifest.current(), through);
        let lost = || match is_asked {
            true => self.what_is_lost(&expected),
            false => chain::nothing_lost(),
        };
        manifest.publish_unless(&lost, &self.env, &RetryPolicy::forever(), change).await
    }

    /// What the store has of the volume from the checkpoint of `manifest` on to `through`: the next opening reads it.
    fn objects_to(&self, manifest: &Manifest, through: ObjectSeq) -> Expected {
        let first = manifest.checkpoint.map_or(0, |checkpoint| checkpoint.as_of) + 1;
        let id = |seq| {
            let epoch = manifest.owner_of(seq)?;
            Some(ObjectId { stream: self.id, seq, epoch })
        };
        let objects = (first..=through.0).filter_map(|seq| id(ObjectSeq(seq))).collect();
        Expected { node: manifest.holder.as_ref().map(|holder| holder.node), objects }
    }

    /// Looks for lost objects. L1: what shows that the volume has to stop. A store was set back, or is another copy
    /// that lags behind, where it lacks objects and the newest renewal of the lease; or where the lease is not held, so
    /// that it may have been away.
    fn what_is_lost<'a>(
        self: &'a Rc<Self>,
        expected: &'a Expected,
    ) -> LocalBoxFuture<'a, Result<Option<String>, StoreError>> {
        Box::pin(async move {
            let (Some(first), Some(last)) = (expected.objects.first(), expected.objects.last())
            else {
                return Ok(None);
            };
            let before = (self.id, ObjectSeq(first.seq.0 - 1));
            let policy = RetryPolicy::forever();
            let there = objects_after(&self.store, &self.env, before, &policy).await?;
            let void = |id: &ObjectId| there.iter().any(|there| there.seq == id.seq);
            let is_there = |id: &ObjectId| {
                there.contains(id) || (weir_device::mutant("void_object_hides_lost") && void(id))
            };
            let gone = expected.objects.iter().filter(|id| !is_there(id)).copied();
            let gone: BTreeSet<ObjectId> = gone.collect();
            let new = self.state.borrow_mut().lost.new_of(&gone, last);
            let Some(id) = new.first() else { return Ok(None) };
            if weir_device::mutant("set_back_store_is_confirmed") {
                return Ok(None);
            }
            let goes_on = self.are_of_checkpoint(&gone)
                || (!self.keep_in_journal(&gone) && self.is_renewed(expected).await?);
            if goes_on {
                self.go_on_without(new).await;
                return Ok(None);
            }
            self.state.borrow_mut().writes.keeps_journal = true;
            Ok(Some(format!("{}, which it had taken, is not there", id.key())))
        })
    }

    /// Whether the published checkpoint is in any of these objects. It is in no journal, and no opening does without
    /// it. A newer one, and what the collector copied, are made again.
    fn are_of_checkpoint(&self, gone: &BTreeSet<ObjectId>) -> bool {
        let checkpoint = &self.state.borrow().head.checkpoint;
        gone.iter().any(|id| checkpoint.is_published(id))
    }

    /// Whether the next opening does without these objects, since the journal has all writes from the first of them on.
    /// Then it keeps them: the volume is about to stop.
    fn keep_in_journal(&self, gone: &BTreeSet<ObjectId>) -> bool {
        let mut state = self.state.borrow_mut();
        let before = gone.first().and_then(|id| state.writes.last_write_before(id.seq));
        let holds = before.is_some_and(|last| self.journal.holds_from() <= last.next())
            && !weir_device::mutant("checkpoint_over_what_the_journal_holds");
        state.writes.keeps_journal |= holds;
        holds
    }

    /// Whether the lease is held, and the store has its newest renewal.
    async fn is_renewed(&self, expected: &Expected) -> Result<bool, StoreError> {
        let Some(node) = expected.node.filter(|_| self.holds_lease()) else { return Ok(false) };
        Ok(self.hold.is_in(&self.store, node).await?
            && !weir_device::mutant("lost_object_stops_volume"))
    }

    /// L2.
    async fn go_on_without(self: &Rc<Self>, gone: BTreeSet<ObjectId>) {
        if let Some(object) = gone.first() {
            let (object, count) = (object.key(), gone.len());
            tracing::error!(volume = %self.id, object, count, "the store lost objects");
        }
        self.state.borrow_mut().lost.add(&gone);
        let found = repair::find_in_journal(self, &gone).await;
        let is_made = {
            let State { head, lost, .. } = &mut *self.state.borrow_mut();
            let theirs: Vec<ObjectSeq> =
                gone.iter().filter(|id| head.checkpoint.knows(id)).map(|id| id.seq).collect();
            if !weir_device::mutant("lost_checkpoint_is_named_again") {
                head.checkpoint.rewrite(theirs);
            }
            lost.on_send();
            lost.want_checkpoint()
        };
        if !is_made {
            self.spawn(make_checkpoints(Rc::clone(self)));
        }
        // Not waited for: a store without room may take nothing before a checkpoint has something deleted.
        self.spawn(send_again(Rc::clone(self), found, gone));
    }
}

/// L2: sends again what the journal has of lost objects, and notes the rest.
async fn send_again(shared: Rc<Shared>, found: Vec<InJournal>, gone: BTreeSet<ObjectId>) {
    if !found.is_empty() && !weir_device::mutant("lost_objects_are_not_sent_again") {
        match repair::send_again(&shared, found).await {
            Ok(bytes) => {
                tracing::warn!(volume = %shared.id, bytes, "what the store lost was sent again from the journal");
            }
            Err(error) => {
                tracing::warn!(volume = %shared.id, %error, "what the store lost was not sent again from the journal");
            }
        }
    }
    shared.state.borrow_mut().lost.on_sent();
    shared.progress.notify_waiters();
    note_lost(&shared, &gone).await;
}

/// L2: makes the checkpoint that is wanted, and another one for what was found lost meanwhile.
async fn make_checkpoints(shared: Rc<Shared>) {
    loop {
        {
            let State { head, lost, .. } = &mut *shared.state.borrow_mut();
            if !lost.makes_another() {
                return;
            }
            head.checkpoint.wanted = true;
        }
        shared.stored.notify_one();
        let is_over = shared.wait_in_background(|_| None::<Result<(), DeviceError>>);
        if tokio::time::timeout(CHECKPOINT_PAUSE, is_over).await.is_ok() {
            return;
        }
    }
}

/// Remembers what comes from objects that the store lost as reads that failed, so that the status says so before
/// anybody reads it. Of more ranges than are remembered it is enough that there are more.
async fn note_lost(shared: &Rc<Shared>, gone: &BTreeSet<ObjectId>) {
    let mut noted = 0;
    let mut at = 0;
    loop {
        let mut found = Vec::new();
        {
            let state = shared.state.borrow();
            let end = state.size;
            if at >= end || noted > RANGES_MAX || shared.stopped.get() {
                return;
            }
            let mut steps = shared.options.map.map_step_budget;
            resolve(&state.writes.overlay, &state.head.objects, at, end - at, |part| {
                at = part.offset + part.len;
                if let Source::Object { object, .. } = part.source
                    && gone.contains(&object)
                {
                    found.push((part, object));
                }
                steps -= 1;
                steps > 0 && noted + found.len() <= RANGES_MAX
            });
        }
        noted += found.len();
        for (part, object) in found {
            let message = format!("the store lost {}", object.key());
            note_failed(shared, &part, &DeviceError::new(ErrorKind::NotFound, message));
        }
        tokio::task::yield_now().await;
    }
}
