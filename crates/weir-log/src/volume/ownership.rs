//! What an open volume may do as long as its node holds its lease, and what becomes of it when a deadline is missed.
//!
//! With `takeover = auto` a missed deadline ends the opening: another node may own the volume from then on. With
//! `manual` I/O goes on, because only a person hands the volume to another node; but nothing is deleted and no remote
//! flush succeeds until the lease is held again *and* a manifest version of ours, published under it, shows that nobody
//! took the volume meanwhile. The store must also have all objects then that the next opening would read: else it was
//! set back, and the volume stops. Each checkpoint asks for the same, since no opening looks at what it covers.

use std::collections::BTreeSet;
use std::pin::pin;
use std::rc::{Rc, Weak};

use futures_util::future::LocalBoxFuture;
use weir_device::{DeviceError, ErrorKind, Lease};
use weir_store::{RetryPolicy, Store, StoreError};

use crate::error::LogError;
use crate::format::manifest::{HexId, Manifest, Takeover};
use crate::ids::{ObjectId, ObjectSeq};
use crate::map::load::objects_after;
use crate::own::lease::Run;
use crate::volume::reads;
use crate::volume::shared::Shared;

impl Shared {
    /// Whether the lease that the manifest names is held at this moment.
    pub(crate) fn holds_lease(&self) -> bool {
        self.hold.is_held(self.lease_generation.get(), &*self.env.clock)
    }

    /// Whether an answer may be given at this moment. Asked when a request comes and when its reply goes.
    pub(crate) fn check_owned(&self) -> Result<(), DeviceError> {
        // Another node may own the volume by now: reads are refused as well.
        self.check_stopped()?;
        match &self.state.borrow().failure {
            Some(failure) if failure.kind() == ErrorKind::Fenced => return Err(failure.clone()),
            _ => {}
        }
        let missed = self.takeover.get() == Takeover::Auto && !self.holds_lease();
        if !missed || weir_device::mutant("no_deadline_check_on_reply") {
            return Ok(());
        }
        self.fail(LogError::LeaseMissed { volume: self.id, ours: self.epoch });
        self.check_failure()
    }

    /// Waits until the lease is held, so that a success can be reported on which others act.
    pub(crate) async fn wait_for_lease(&self) -> Result<(), DeviceError> {
        if weir_device::mutant("remote_flush_without_lease") {
            return Ok(());
        }
        loop {
            let changed = self.hold.changed();
            let mut progress = pin!(self.progress.notified());
            progress.as_mut().enable();
            self.check_failure()?;
            self.check_owned()?;
            if self.holds_lease() {
                return Ok(());
            }
            tokio::select! {
                biased;
                () = progress => {}
                () = changed => {}
            }
        }
    }

    /// What the store has of the volume from the checkpoint of `manifest` on to `through`: the next opening reads it.
    pub(crate) fn objects_to(&self, manifest: &Manifest, through: ObjectSeq) -> Expected {
        let first = manifest.checkpoint.map_or(0, |checkpoint| checkpoint.as_of) + 1;
        let root = ObjectSeq(manifest.checkpoint.map_or(0, |checkpoint| checkpoint.sequence));
        let id = |seq| {
            let epoch = manifest.owner_of(seq)?;
            Some(ObjectId { stream: self.id, seq, epoch })
        };
        let objects = (first..=through.0).filter_map(|seq| id(ObjectSeq(seq))).collect();
        Expected { node: manifest.holder.as_ref().map(|holder| holder.node), root, objects }
    }

    /// What shows that the store was set back to a backup of this opening, or is another copy that lags behind: it has
    /// the newest version of the manifest, and lacks objects, with the newest renewal of the lease; or the lease is not
    /// held, so that the store may have been away.
    ///
    /// Where the renewal is there, it may have lost them otherwise, or a moment ago. The volume stops as well if the
    /// journal still has all writes from the first of them on: the next opening takes them from there. It goes on if
    /// not: this opening has the map of what comes behind them, and the next one would end in front of them. The status
    /// names the bytes that are lost then.
    pub(crate) fn what_is_lost<'a>(
        self: &'a Rc<Self>,
        expected: &'a Expected,
    ) -> LocalBoxFuture<'a, Result<Option<String>, StoreError>> {
        Box::pin(async move {
            let Some(first) = expected.objects.first() else { return Ok(None) };
            let before = (self.id, ObjectSeq(first.seq.0 - 1));
            let policy = RetryPolicy::forever();
            let there = objects_after(&self.store, &self.env, before, &policy).await?;
            let void = |id: &ObjectId| there.iter().any(|there| there.seq == id.seq);
            let is_there = |id: &ObjectId| {
                there.contains(id) || (weir_device::mutant("void_object_hides_lost") && void(id))
            };
            let gone: Vec<_> = expected.objects.iter().filter(|id| !is_there(id)).collect();
            let Some(id) = gone.first() else { return Ok(None) };
            if weir_device::mutant("set_back_store_is_confirmed") {
                return Ok(None);
            }
            if self.is_renewed(expected).await? && !self.keep_in_journal(&gone, expected.root) {
                let (object, count) = (id.key(), gone.len());
                tracing::error!(volume = %self.id, object, count, "the store lost objects");
                let gone = gone.into_iter().copied().collect();
                self.spawn(reads::note_lost(Rc::clone(self), gone));
                return Ok(None);
            }
            Ok(Some(format!("{}, which it had taken, is not there", id.key())))
        })
    }

    /// Whether the next opening does without these objects, since the journal has all writes from the first of them on.
    /// Then it keeps them: the volume is about to stop. What the checkpoint that ends with `root` consists of is in no
    /// journal, and the next opening needs it. A newer one, and what the collector copied behind it, are made again.
    fn keep_in_journal(&self, gone: &[&ObjectId], root: ObjectSeq) -> bool {
        let mut state = self.state.borrow_mut();
        let before = gone.first().and_then(|id| state.writes.last_write_before(id.seq));
        let is_needed = |id: &&ObjectId| id.seq <= root && !state.writes.is_data(id.seq);
        let holds = before.is_some_and(|last| self.journal.holds_from() <= last.next())
            && !gone.iter().any(is_needed)
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

    /// Deletes objects of the store, in the background and one by one, as long as the lease is held. What is left over
    /// is found again.
    pub(crate) fn delete_keys(self: &Rc<Self>, keys: Vec<String>) {
        if keys.is_empty() {
            return;
        }
        let shared = Rc::clone(self);
        self.spawn(async move {
            for key in keys {
                match shared.delete_key(shared.store.clone(), key).await {
                    None => return,
                    Some(Ok(())) => {}
                    Some(Err(error)) => {
                        tracing::warn!(volume = %shared.id, %error, "a void object or an old manifest stays");
                    }
                }
            }
        });
    }

    /// Deletes a key of the store. Attempts end with the lease that is held now, renewed or not; `None` where none is,
    /// or the volume has stopped.
    pub(crate) async fn delete_key(
        &self,
        store: Store,
        key: String,
    ) -> Option<Result<(), StoreError>> {
        let mut left = self.hold.left(&*self.env.clock).filter(|_| self.holds_lease());
        if weir_device::mutant("delete_without_lease") {
            left = Some(RetryPolicy::reads().deadline?);
        }
        let left = left.filter(|_| !self.stopped.get())?;
        let seed = self.env.random.next_u64();
        let deleted = self.env.background(async move {
            let mut random = crate::random::splitmix(seed);
            let delete = || store.delete(&key);
            store.retry(&RetryPolicy::reads(), &mut random, Some(left), delete).await
        });
        deleted.await
    }
}

/// What a version of the manifest stands on in the store.
pub(crate) struct Expected {
    /// Whose lease the version before it names.
    node: Option<HexId>,
    /// Last object of its checkpoint.
    root: ObjectSeq,
    objects: BTreeSet<ObjectId>,
}

/// That the volume still belongs to this opening. Does not keep the volume open.
pub(crate) struct Owned(pub(crate) Weak<Shared>);

impl Lease for Owned {
    fn check(&self) -> Result<(), DeviceError> {
        match self.0.upgrade() {
            Some(shared) => shared.check_owned(),
            None => Err(DeviceError::new(ErrorKind::Unavailable, "the volume is closed")),
        }
    }
}

/// The task that follows the lease of the node, until the volume stops.
pub(crate) async fn run(shared: Rc<Shared>) {
    loop {
        let changed = shared.hold.changed();
        let mut progress = pin!(shared.progress.notified());
        progress.as_mut().enable();
        if shared.stopped.get() || shared.state.borrow().failure.is_some() {
            return;
        }
        if shared.takeover.get() == Takeover::Auto {
            if shared.check_owned().is_err() {
                return;
            }
        } else if let Some(run) = shared.hold.current(&*shared.env.clock)
            && run.generation != shared.lease_generation.get()
        {
            if shared.closing.get() {
                return;
            }
            confirm(&shared, run).await;
            continue;
        }
        // The deadline of an idle volume passes without anybody asking.
        let left = shared.hold.left(&*shared.env.clock);
        let deadline = async {
            match left {
                Some(left) => tokio::time::sleep(left).await,
                None => std::future::pending().await,
            }
        };
        tokio::select! {
            biased;
            () = progress => {}
            () = changed => {}
            () = deadline => {}
        }
    }
}

/// Nobody took the volume, so everything that was stored meanwhile is in its prefix for whoever comes.
fn release_kept(shared: &Shared) {
    let kept = {
        let mut state = shared.state.borrow_mut();
        state.writes.keeps_journal = false;
        state.writes.kept_through.take()
    };
    if let Some(through) = kept {
        shared.journal.release(through);
    }
}

/// Puts the volume under a new run of the lease. If another node took it meanwhile, or the store was set back, this is
/// where that shows.
async fn confirm(shared: &Rc<Shared>, run: Run) {
    let confirmed = async {
        let mut manifest = shared.manifest.lock().await;
        let committed = shared.state.borrow().writes.pipeline.committed();
        let expected = shared.objects_to(manifest.current(), committed);
        let lost = || shared.what_is_lost(&expected);
        manifest
            .publish_unless(&lost, &shared.env, &RetryPolicy::forever(), |m| {
                if let Some(holder) = &mut m.holder {
                    holder.node = run.identity.node;
                    holder.incarnation = run.identity.incarnation;
                }
            })
            .await
    };
    match confirmed.await {
        Ok(()) => {
            tracing::info!(volume = %shared.id, "still ours after a missed lease deadline");
            shared.lease_generation.set(run.generation);
            release_kept(shared);
            shared.progress.notify_waiters();
            // Nothing was deleted without the lease.
            shared.garbage.listed.notify_one();
        }
        Err(error) => shared.fail(error),
    }
}
