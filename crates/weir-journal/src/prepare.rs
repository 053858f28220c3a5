//! Keeps a segment ready ahead of the head, and moves the tail. Of an open journal nobody else changes what the
//! superblock lists.

use std::rc::Rc;
use std::time::Duration;

use weir_device::{ErrorKind, SharedBuf, mutant};

use crate::error::JournalError;
use crate::flush;
use crate::format::superblock::{SLOT_OFFSETS, Superblock};
use crate::inner::Inner;
use crate::limits::GROWTH_RETRY_SECONDS;
use crate::ring::{Plan, Step};

/// Does what the ring asks for, until the journal ends.
pub(crate) async fn preparer(inner: Rc<Inner>) {
    let mut refused = false;
    loop {
        if inner.is_stopping() || inner.check_poison().is_err() {
            return;
        }
        let step = inner.state.borrow().ring.next_step();
        match step {
            Step::Idle => wait(&inner).await,
            Step::Forget(logical) => forget(&inner, logical).await,
            Step::Grow(physical) => grow(&inner, physical, &mut refused).await,
            Step::Publish(plan) => publish(&inner, plan).await,
        }
        // `close` waits for this task to have nothing left to do.
        inner.progress.notify_waiters();
    }
}

async fn wait(inner: &Inner) {
    let work = inner.ring_work.notified();
    if !inner.state.borrow().ring.growth_blocked() {
        // What it has is enough.
        inner.state.borrow_mut().no_space = false;
        return work.await;
    }
    let retry = Duration::from_secs(GROWTH_RETRY_SECONDS);
    if tokio::time::timeout(retry, work).await.is_err() {
        inner.state.borrow_mut().ring.retry_growth();
    }
}

async fn forget(inner: &Inner, logical: u64) {
    let (start, end) = inner.state.borrow().bounds_of(logical);
    let sink = inner.sink.borrow().clone();
    if let Some(sink) = sink {
        sink.forget(start, end).await;
    }
    inner.state.borrow_mut().ring.forgotten(logical);
}

/// `refused`: the last growth was, and that was said.
async fn grow(inner: &Inner, physical: u32, refused: &mut bool) {
    let (from, to) = {
        let state = inner.state.borrow();
        (state.ring.physical_start(physical), state.ring.physical_start(physical + 1))
    };
    match inner.file.extend_leaving_room(from, to).await {
        Ok(()) => {
            *refused = false;
            let mut state = inner.state.borrow_mut();
            (state.no_space, state.cannot_grow) = (false, false);
            state.ring.grown(physical);
        }
        Err(error) if error.kind() == ErrorKind::NoSpace => {
            // It is tried again whenever something is released.
            if !std::mem::replace(refused, true) {
                tracing::warn!(
                    file = %inner.file_name,
                    %error,
                    "no space for the journal to grow; writers wait until what it holds is uploaded"
                );
            }
            {
                let mut state = inner.state.borrow_mut();
                (state.no_space, state.cannot_grow) = (true, true);
                state.ring.growth_failed();
            }
            let sink = inner.sink.borrow().clone();
            if let Some(sink) = sink {
                sink.on_no_space();
            }
        }
        Err(error) => inner.poison(error),
    }
}

async fn publish(inner: &Rc<Inner>, plan: Plan) {
    let _alone = inner.superblocks.lock().await;
    let superblock = inner.state.borrow_mut().superblock_for(&plan);
    let early = mutant("reuse_before_tail_durable");
    if early {
        inner.state.borrow_mut().published(&plan);
        inner.work.notify_one();
    }
    if write_superblock(inner, &superblock).await.is_err() {
        return;
    }
    if !early {
        inner.state.borrow_mut().published(&plan);
    }
    inner.work.notify_one();
}

/// Makes a superblock durable in both copies, one after the other: at every moment one of them is whole and durable,
/// and afterwards either can be lost. A failure poisons the journal.
///
/// The first one after a recovery goes over the copy that recovery did not go by, which a crash may have left torn; and
/// only once the other is durable, which a crash may have left in the cache of the disk.
pub(crate) async fn write_superblock(
    inner: &Rc<Inner>,
    superblock: &Superblock,
) -> Result<(), JournalError> {
    let block = SharedBuf::copy_of(&superblock.encode());
    let mut copies = SLOT_OFFSETS;
    let recovered_from = inner.state.borrow().recovered_from;
    if let Some(copy) = recovered_from {
        if !mutant("newest_superblock_not_durable") {
            flush::sync_now(inner).await?;
        }
        if copy == 0 && !mutant("newest_superblock_written_first") {
            copies.reverse();
        }
    }
    let copies = if mutant("superblock_once") { &copies[..1] } else { &copies[..] };
    for offset in copies.iter().copied() {
        let (_, result) = inner.file.write_at(vec![block.clone()], offset).await;
        if let Err(cause) = result {
            inner.poison(cause);
            return inner.check_poison();
        }
        flush::sync_now(inner).await?;
    }
    inner.state.borrow_mut().recovered_from = None;
    Ok(())
}
