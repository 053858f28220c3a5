//! What is done to a volume as a whole, through its stack.

use std::rc::Rc;
use std::time::Duration;

use tokio::sync::oneshot;
use tokio::time::{Instant, timeout, timeout_at};
use weir_device::{
    ByteRange, DeviceError, DeviceExt, ErrorKind, FlushScope, LocalBoxFuture, Operation, mutant,
};
use weir_log::catalog::VolumeName;
use weir_log::{
    Closed, CompactReport, FlattenReport, GivenUp, ObjectId, RepairReport, Salvage, SnapshotRecord,
    SnapshotView, Takeover, VolumeStatus, WarmReport,
};

use crate::endpoint::Endpoint;
use crate::gate::Quiesced;
use crate::stack::Stack;

/// How long operations are kept waiting by a verb unless told otherwise: clients bear it, their own time limits are
/// longer.
pub const QUIESCE_MAX: Duration = Duration::from_secs(20);

/// Least time for stages to write what they hold when the stack is closed: what stays in them is lost.
const CLOSE_DRAIN_MIN: Duration = Duration::from_secs(30);

/// Time for a stage to end what it does beside its calls.
const CLOSE_STAGE_MAX: Duration = Duration::from_secs(5);

fn in_time(what: &str, within: Duration) -> DeviceError {
    let message = format!("{what} within {} s; nothing was changed", within.as_secs_f64());
    DeviceError::new(ErrorKind::Busy, message)
}

impl Stack {
    /// Runs a change to its end though its caller goes away.
    async fn to_its_end<T: 'static>(
        &self,
        change: impl Future<Output = Result<T, DeviceError>> + 'static,
    ) -> Result<T, DeviceError> {
        let (answer, answered) = oneshot::channel();
        self.env.spawn_local(async move {
            // Whoever asked may be gone.
            let _ = answer.send(change.await);
        });
        let gone = || DeviceError::new(ErrorKind::Unavailable, "the process is shutting down");
        answered.await.unwrap_or_else(|_| Err(gone()))
    }

    /// Makes every write that was acknowledged before survive: through every stage.
    ///
    /// # Errors
    /// What a layer says.
    pub async fn flush(&self, scope: FlushScope) -> Result<(), DeviceError> {
        if mutant("flush_skips_stage") {
            return self.endpoint.flush(scope).await;
        }
        self.internal(Operation::Flush(scope)).await.map(drop)
    }

    /// Keeps new operations waiting, and returns once those in flight have ended. `within` bounds both: the wait, and
    /// how long the stack stays at rest, whatever becomes of the one who asked.
    ///
    /// # Errors
    /// [`ErrorKind::Busy`] where operations in flight take longer; everything goes on then.
    pub async fn quiesce(&self, within: Duration) -> Result<Quiesced, DeviceError> {
        let deadline = Instant::now() + within;
        let hold = Rc::new(self.gate.hold());
        if timeout_at(deadline, self.gate.idle()).await.is_err() {
            hold.release();
            return Err(in_time("operations in flight did not end", within));
        }
        let (is_over, over) = oneshot::channel();
        let held = Rc::downgrade(&hold);
        self.env.spawn_local(async move {
            if timeout_at(deadline, over).await.is_err()
                && let Some(hold) = held.upgrade()
            {
                tracing::warn!("a quiesce reached its deadline, and operations go on");
                hold.release();
            }
        });
        Ok(Quiesced { hold, deadline, is_over: Some(is_over) })
    }

    /// Has the stages write what they hold, the topmost first.
    ///
    /// # Errors
    /// Of the first stage that cannot.
    pub async fn drain(&self) -> Result<(), DeviceError> {
        for layer in self.stages() {
            let drained = layer.stage().drain().await;
            if !mutant("drain_error_ignored") {
                drained?;
            }
        }
        Ok(())
    }

    /// K3: nothing is dirty in a stage, and nothing can become so. What there is to write is written before clients
    /// wait, but for what they write meanwhile.
    async fn drained(&self, within: Duration) -> Result<Quiesced, DeviceError> {
        self.drain().await?;
        // So that the endpoint has little left to send while clients wait.
        self.endpoint.flush(FlushScope::Store).await?;
        let quiesced = self.quiesce(within).await?;
        match timeout_at(quiesced.deadline(), self.drain()).await {
            Ok(drained) => drained.map(|()| quiesced),
            Err(_) => Err(in_time("the stages could not write what they hold", within)),
        }
    }

    /// Takes a snapshot of the volume: every write acknowledged before the call is in it, and what it shows is a prefix
    /// of all acknowledged writes. Clients wait only where a stage acknowledges writes before the endpoint does, and no
    /// longer than `within`. Goes on though its caller goes away.
    ///
    /// # Errors
    /// What the log volume says; [`ErrorKind::Busy`] where it takes longer: there is no snapshot then.
    pub async fn snapshot(
        self: &Rc<Self>,
        name: &VolumeName,
        within: Duration,
    ) -> Result<SnapshotRecord, DeviceError> {
        let (stack, name) = (Rc::clone(self), name.clone());
        self.to_its_end(async move { stack.take_snapshot(&name, within).await }).await
    }

    async fn take_snapshot(
        &self,
        name: &VolumeName,
        within: Duration,
    ) -> Result<SnapshotRecord, DeviceError> {
        let _one = self.verbs.lock().await;
        let log = self.log()?;
        if !self.holds_writes() || mutant("snapshot_without_drain") {
            return log.snapshot(name).await;
        }
        let quiesced = self.drained(within).await?;
        let mut taking = std::pin::pin!(log.snapshot(name));
        if let Ok(taken) = timeout_at(quiesced.deadline(), &mut taking).await {
            return taken;
        }
        // What is written from here on may come to the endpoint in another order than it was acknowledged in, and into
        // the snapshot, which would be no state that the volume ever had.
        drop(quiesced);
        taking.await?;
        log.delete_snapshot(name).await?;
        Err(in_time("the store did not take the snapshot", within))
    }

    /// Deletes a snapshot.
    ///
    /// # Errors
    /// As [`LogVolume::delete_snapshot`](weir_log::LogVolume::delete_snapshot).
    pub async fn delete_snapshot(&self, name: &VolumeName) -> Result<(), DeviceError> {
        self.log()?.delete_snapshot(name).await
    }

    /// Sets the volume back to a snapshot. Operations wait meanwhile; the caller sees to it that no client has cached
    /// what is given up. Goes on though its caller goes away.
    ///
    /// # Errors
    /// As [`LogVolume::rollback`](weir_log::LogVolume::rollback); [`ErrorKind::Busy`] where operations in flight or the
    /// stages take longer than `within`, with nothing changed.
    pub async fn rollback(
        self: &Rc<Self>,
        name: &VolumeName,
        within: Duration,
    ) -> Result<(), DeviceError> {
        let (stack, name) = (Rc::clone(self), name.clone());
        let change = async move {
            stack.at_rest(within, async |stack| stack.log()?.rollback(&name).await).await
        };
        self.to_its_end(change).await
    }

    /// Gives the volume another size. Where it shrinks, operations wait, and the caller sees to it that no client
    /// relies on what is given up. Goes on though its caller goes away.
    ///
    /// # Errors
    /// As [`LogVolume::resize`](weir_log::LogVolume::resize) and [`LogVolume::shrink`](weir_log::LogVolume::shrink).
    pub async fn resize(
        self: &Rc<Self>,
        size: u64,
        may_shrink: bool,
        within: Duration,
    ) -> Result<(), DeviceError> {
        let stack = Rc::clone(self);
        let change = async move {
            if may_shrink && size < stack.size() {
                stack.at_rest(within, async |stack| stack.log()?.shrink(size).await).await
            } else {
                let resized = stack.log()?.resize(size).await;
                stack.take_events();
                resized
            }
        };
        self.to_its_end(change).await
    }

    /// Changes the content with nothing dirty and nothing in flight, and has the stages hear of it before anything goes
    /// on (K2).
    async fn at_rest(
        &self,
        within: Duration,
        change: impl AsyncFnOnce(&Self) -> Result<(), DeviceError>,
    ) -> Result<(), DeviceError> {
        let _one = self.verbs.lock().await;
        self.log()?;
        if self.stages().is_empty() {
            let changed = change(self).await;
            self.take_events();
            return changed;
        }
        let mut quiesced = self.drained(within).await?;
        // Once it has begun it must not be seen in the middle, however long it takes.
        let is_at_rest = match mutant("rest_ends_at_deadline") {
            true => quiesced.holds(),
            false => quiesced.keep(),
        };
        if !is_at_rest {
            return Err(in_time("the stages could not write what they hold", within));
        }
        let changed = change(self).await;
        self.take_events();
        drop(quiesced);
        changed
    }

    /// Collects the objects of a log volume until `percent` of them lives.
    ///
    /// # Errors
    /// As [`LogVolume::compact`](weir_log::LogVolume::compact).
    pub async fn compact(
        &self,
        percent: u64,
        on_progress: impl FnMut(u64, u64),
    ) -> Result<CompactReport, DeviceError> {
        self.log()?.compact(percent, on_progress).await
    }

    /// Copies what a clone shares with the volumes that it descends from.
    ///
    /// # Errors
    /// As [`LogVolume::flatten`](weir_log::LogVolume::flatten).
    pub async fn flatten(
        &self,
        on_progress: impl FnMut(u64, u64),
    ) -> Result<FlattenReport, DeviceError> {
        self.log()?.flatten(on_progress).await
    }

    /// Brings what a range of the volume, or of a snapshot of it, has in the store to the cache on the local disk.
    ///
    /// # Errors
    /// As [`LogVolume::warm`](weir_log::LogVolume::warm).
    pub async fn warm(
        &self,
        snapshot: Option<&SnapshotView>,
        range: ByteRange,
        on_progress: impl Fn(u64, u64),
    ) -> Result<WarmReport, DeviceError> {
        self.log()?.warm(snapshot, range, on_progress).await
    }

    /// Gives up what cannot be read of objects, after what the stages hold was written: it may replace what is damaged.
    ///
    /// # Errors
    /// As [`LogVolume::repair`](weir_log::LogVolume::repair).
    pub async fn repair(
        &self,
        objects: &[ObjectId],
        given_up: GivenUp,
        on_progress: impl FnMut(u64),
    ) -> Result<RepairReport, DeviceError> {
        let log = self.log()?;
        self.drain().await?;
        log.repair(objects, given_up, on_progress).await
    }

    /// Has everything acknowledged so far in the published checkpoint, after what the stages hold was written.
    ///
    /// # Errors
    /// As [`LogVolume::publish`](weir_log::LogVolume::publish).
    pub async fn publish(&self) -> Result<(), DeviceError> {
        let log = self.log()?;
        self.drain().await?;
        log.publish().await
    }

    /// Writes what a salvage found.
    ///
    /// # Errors
    /// As [`Salvage::replay`].
    pub async fn replay(
        &self,
        salvage: &Salvage,
        on_progress: impl FnMut(u64, u64),
    ) -> Result<(), DeviceError> {
        salvage.replay(self.log()?, on_progress).await
    }

    /// Sets what happens when the lease runs out.
    ///
    /// # Errors
    /// As [`LogVolume::set_takeover`](weir_log::LogVolume::set_takeover).
    pub async fn set_takeover(&self, takeover: Takeover) -> Result<(), DeviceError> {
        self.log()?.set_takeover(takeover).await
    }

    /// The snapshots, oldest first; none of what is no log volume.
    #[must_use]
    pub fn snapshots(&self) -> Vec<SnapshotRecord> {
        self.log().map(|log| log.snapshots()).unwrap_or_default()
    }

    /// The log volume at a glance, if one is at the bottom.
    #[must_use]
    pub fn log_status(&self) -> Option<VolumeStatus> {
        self.log().ok().map(|log| log.status())
    }

    /// Panics if an invariant of the log volume does not hold: for tests and the simulation.
    pub fn check_invariants(&self) {
        if let Ok(log) = self.log() {
            log.check_invariants();
        }
    }

    /// Closes the volume: the stages write what they hold, and the endpoint is closed, within the deadline for the
    /// store. What stages hold has at least half a minute, since it is nowhere else.
    ///
    /// # Errors
    /// What the endpoint says, or that a stage still holds what it acknowledged. The stack is closed even then.
    // Boxed, so that it is compiled once and not in each crate that awaits it.
    #[inline(never)]
    pub fn close<'a>(
        &'a self,
        deadline: Duration,
    ) -> LocalBoxFuture<'a, Result<Closed, DeviceError>> {
        Box::pin(async move {
            let began = Instant::now();
            self.gate.shut();
            // What was not let through is waited for by nobody: the time is for what was acknowledged.
            self.stages().iter().for_each(|layer| layer.stage().shut());
            let drained = self.drain_to_close(deadline).await;
            for layer in self.stages() {
                match timeout(CLOSE_STAGE_MAX, layer.stage().close()).await {
                    Ok(Ok(())) => {}
                    Ok(Err(error)) => tracing::warn!(%error, "a stage did not end in order"),
                    Err(_) => tracing::warn!("a stage did not end in time"),
                }
            }
            let closed = match &self.endpoint {
                Endpoint::Log(volume) => {
                    volume.close_within(deadline.saturating_sub(began.elapsed())).await
                }
                Endpoint::Remote(volume) => {
                    let left = deadline.saturating_sub(began.elapsed());
                    volume.close(left).await.map(|()| Closed::Clean)
                }
                Endpoint::File(volume) => volume.close().await.map(|()| Closed::Clean),
                Endpoint::View(_) | Endpoint::Memory(_) | Endpoint::Snapshot(_) => {
                    Ok(Closed::Clean)
                }
            };
            self.take_events();
            self.is_closed.set(true);
            self.end_pump();
            if !mutant("close_hides_undrained") {
                drained?;
            }
            closed
        })
    }

    async fn drain_to_close(&self, deadline: Duration) -> Result<(), DeviceError> {
        if !self.holds_writes() || mutant("close_with_dirty_bytes") {
            return Ok(());
        }
        let draining = async {
            // At once: what is in flight may take as long as there is.
            self.drain().await?;
            // It may become dirty.
            self.gate.idle().await;
            self.drain().await
        };
        let drained = timeout(deadline.max(CLOSE_DRAIN_MIN), draining).await;
        // What is in flight still was not acknowledged, and is not any more: a stage may take it all the same.
        self.gate.cut();
        let why = match drained {
            Ok(Ok(())) => None,
            Ok(Err(error)) => Some(error),
            // Nothing that was acknowledged is lost.
            Err(_) if self.dirty_bytes() == 0 => None,
            Err(_) => Some(DeviceError::new(ErrorKind::Unavailable, "it took too long")),
        };
        match (self.dirty_bytes(), why) {
            (0, None) => Ok(()),
            (dirty, why) => {
                let why = why.map_or(String::new(), |why| format!(": {why}"));
                let message = format!(
                    "{dirty} acknowledged bytes did not come from a stage to the endpoint{why}"
                );
                Err(DeviceError::new(ErrorKind::Unavailable, message))
            }
        }
    }
}
