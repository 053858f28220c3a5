//! What an open volume may do as long as its node holds its lease, and what becomes of it when a deadline is missed.
//!
//! With `takeover = auto` a missed deadline ends the opening: another node may own the volume from then on. With
//! `manual` I/O goes on, because only a person hands the volume to another node; but nothing is deleted and no remote
//! flush succeeds until the lease is held again *and* a manifest version of ours, published under it, shows that nobody
//! took the volume meanwhile. The store must also have what the next opening would read ([`crate::volume::lost`]).

use std::pin::pin;
use std::rc::{Rc, Weak};

use weir_device::{DeviceError, ErrorKind, Lease};
use weir_store::{RetryPolicy, Store, StoreError};

use crate::error::LogError;
use crate::format::manifest::Takeover;
use crate::own::lease::Run;
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
        shared
            .publish_unless_lost(&mut manifest, committed, true, |m| {
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
