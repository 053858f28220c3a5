//! Keeping clients out of a volume while a verb changes what they would see.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use tokio::sync::watch;

/// What clients need to know of a volume before they are let in, whichever thread they come from.
#[derive(Debug)]
pub(crate) struct Gate {
    closed: watch::Sender<bool>,
    size: AtomicU64,
}

impl Gate {
    /// An open gate of a volume of `size` bytes.
    pub(crate) fn new(size: u64) -> Arc<Self> {
        Arc::new(Self { closed: watch::Sender::new(false), size: AtomicU64::new(size) })
    }

    /// Size of the volume in bytes, as the last verb that changed it left it.
    pub(crate) fn size(&self) -> u64 {
        self.size.load(Ordering::Relaxed)
    }

    /// A verb changed the size, or may have.
    pub(crate) fn set_size(&self, size: u64) {
        self.size.store(size, Ordering::Relaxed);
    }

    /// Keeps clients out until the result is dropped; `None` while another verb does.
    pub(crate) fn close(self: &Arc<Self>) -> Option<KeptOut> {
        let is_ours = self.closed.send_if_modified(|closed| !std::mem::replace(closed, true));
        is_ours.then(|| KeptOut(Arc::clone(self)))
    }

    /// Whether clients are kept out.
    pub(crate) fn is_closed(&self) -> bool {
        *self.closed.borrow()
    }

    /// Returns once clients are let in.
    pub(crate) async fn opened(&self) {
        // An error would mean that the sender was dropped; it is a field of `self`.
        let _ = self.closed.subscribe().wait_for(|closed| !closed).await;
    }
}

/// Clients are kept out as long as this lives.
#[derive(Debug)]
pub(crate) struct KeptOut(Arc<Gate>);

impl Drop for KeptOut {
    fn drop(&mut self) {
        self.0.closed.send_replace(false);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn one_verb_at_a_time_keeps_clients_out_and_no_longer_than_it_lasts() {
        let gate = Gate::new(7);
        gate.opened().await;
        let kept_out = gate.close().expect("nobody else does");
        assert!(gate.is_closed() && gate.close().is_none());
        let waiting = tokio::spawn({
            let gate = Arc::clone(&gate);
            async move { gate.opened().await }
        });
        tokio::task::yield_now().await;
        assert!(!waiting.is_finished());
        // A verb that is given up, or panics, drops what it holds.
        drop(kept_out);
        waiting.await.expect("let in");
        assert!(!gate.is_closed() && gate.close().is_some());
    }
}
