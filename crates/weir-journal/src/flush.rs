//! The barrier: a flush is answered when a sync that started after its records were complete has succeeded.
//!
//! One task makes the syncs, so flushes that wait while one runs are merged into the next, and none joins one that
//! started before its records were complete. "Nothing to do" means that no record completed since the start of the
//! last good sync, which is the same comparison.

use std::rc::Rc;

use weir_device::mutant;
use weir_pacer::RequestKind;

use crate::error::JournalError;
use crate::inner::Inner;

/// Answered when every record acknowledged before the call survives power loss. `is_client`: a client waits for that.
pub(crate) async fn flush(inner: &Rc<Inner>, is_client: bool) -> Result<(), JournalError> {
    let target = inner.state.borrow().acked_through;
    loop {
        let flushed = inner.flushed.notified();
        inner.check_poison()?;
        {
            let mut state = inner.state.borrow_mut();
            if state.flushed_through >= target {
                return Ok(());
            }
            state.flush_wanted = state.flush_wanted.max(target);
            state.client_flushes |= is_client || mutant("upkeep_syncs_as_client");
        }
        inner.flush_work.notify_one();
        flushed.await;
    }
}

/// Syncs whenever a flush waits, until the journal ends.
pub(crate) async fn syncer(inner: Rc<Inner>) {
    loop {
        let (wanted, is_client, poisoned) = {
            let mut state = inner.state.borrow_mut();
            let wanted = state.flush_wanted > state.flushed_through;
            // One that the last sync had covered by then is no reason for another.
            let is_client = std::mem::take(&mut state.client_flushes) && wanted;
            (wanted, is_client, state.poisoned.is_some())
        };
        if inner.is_stopping() || poisoned {
            return;
        }
        if wanted {
            let request = is_client.then(|| inner.env.pacer.request(RequestKind::Sync, 0));
            // A failure has poisoned the journal and answered everyone.
            if sync_now(&inner).await.is_ok()
                && let Some(request) = request
            {
                request.ended();
            }
        } else {
            inner.flush_work.notified().await;
        }
    }
}

/// One sync of the file; what was acknowledged when it started is durable when it returns. The pacer is told by whoever
/// makes it for a client: for the upkeep of the journal nobody waits.
pub(crate) async fn sync_now(inner: &Rc<Inner>) -> Result<(), JournalError> {
    let acked_at_start = inner.state.borrow().acked();
    let waiting = inner.disk_waits.begin(&*inner.env.clock);
    let result = if mutant("skip_fdatasync") { Ok(()) } else { inner.file.sync().await };
    drop(waiting);
    match result {
        Ok(()) => {
            let mut state = inner.state.borrow_mut();
            state.counters.fsyncs += 1;
            // A sync that succeeds after a failed one proves nothing.
            if state.poisoned.is_none() {
                state.synced(acked_at_start);
            }
        }
        Err(cause) => inner.poison(cause),
    }
    inner.flushed.notify_waiters();
    inner.check_poison()
}
