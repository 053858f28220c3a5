//! The lanes: tasks that write one record each at a time, and acknowledge in order what is on disk.

use std::rc::Rc;
use std::task::Waker;

use weir_device::{SharedBuf, mutant};
use weir_pacer::RequestKind;

use crate::ids::RecordSeq;
use crate::inner::Inner;

/// Writes records until the journal ends. There are as many lanes as records may be in flight.
pub(crate) async fn lane(inner: Rc<Inner>) {
    loop {
        let outgoing = inner.state.borrow_mut().start_record();
        let Some(outgoing) = outgoing else {
            let stuck = !inner.state.borrow().queue.is_empty();
            if inner.is_stopping() {
                return;
            }
            if stuck {
                // The segment may have run out.
                inner.ring_work.notify_one();
            }
            inner.work.notified().await;
            continue;
        };
        wake_after_start(&inner);
        if mutant("ack_before_write") {
            let mut woken = Vec::new();
            inner.state.borrow_mut().complete_record(outgoing.record, &mut woken);
            woken.into_iter().for_each(Waker::wake);
        }
        let bytes = outgoing.buffers.iter().map(|buffer| buffer.len() as u64).sum();
        let request = inner.env.pacer.request(RequestKind::Write, bytes);
        let waiting = inner.disk_waits.begin(&*inner.env.clock);
        let (buffers, result) = inner.file.write_at(outgoing.buffers, outgoing.file_offset).await;
        drop(waiting);
        match result {
            Ok(()) => {
                request.ended();
                on_written(&inner, outgoing.record, buffers);
            }
            Err(cause) => inner.poison(cause),
        }
    }
}

/// A record was taken: the preparer may have to act, and a second lane may find enough to start.
fn wake_after_start(inner: &Inner) {
    let state = inner.state.borrow();
    let more = state.may_start();
    let ring = state.ring.has_work();
    drop(state);
    if more {
        inner.work.notify_one();
    }
    if ring {
        inner.ring_work.notify_one();
    }
}

/// A record is on disk: acknowledges it and what waited for it, in order.
fn on_written(inner: &Inner, record: RecordSeq, buffers: Vec<SharedBuf>) {
    // Kept from one record to the next for its memory.
    let mut woken = inner.woken.take();
    inner.state.borrow_mut().record_written(record, buffers, &mut woken);
    woken.drain(..).for_each(Waker::wake);
    loop {
        let durable = inner.state.borrow_mut().next_durable();
        let Some((record, pieces)) = durable else { break };
        let sink = inner.sink.borrow().clone();
        if let Some(sink) = sink {
            sink.on_durable(record, &pieces);
        }
        inner.state.borrow_mut().acknowledge(record, pieces, &mut woken);
        woken.drain(..).for_each(Waker::wake);
    }
    inner.woken.replace(woken);
    inner.progress.notify_waiters();
}
