//! Flushes: those that calls ask for, and those that keep what is not flushed within bounds.

use std::rc::Rc;

use weir_device::{DeviceError, SharedBuf, mutant};
use weir_nbd::Command;

use crate::session::Session;

/// Memory of what was acknowledged and not flushed at which a flush is asked for.
const UNFLUSHED_BYTES: u64 = 64 << 20;

/// The same at which changes wait for it.
const UNFLUSHED_BYTES_MAX: u64 = 2 * UNFLUSHED_BYTES;

impl Session {
    /// Waits while too much of what was acknowledged is not flushed.
    ///
    /// # Errors
    /// It was not flushed in time.
    pub(crate) async fn room_for_changes(self: &Rc<Self>) -> Result<(), DeviceError> {
        if self.has_room_for_changes() {
            return Ok(());
        }
        let waiting = async {
            loop {
                let mut less = std::pin::pin!(self.less_unflushed.notified());
                less.as_mut().enable();
                if self.has_room_for_changes() {
                    return;
                }
                less.await;
            }
        };
        let waited = tokio::time::timeout(self.args.deadline, waiting).await;
        waited.map_err(|_| self.overdue_error(&self.state.borrow()))
    }

    /// Asks for a flush where much is not flushed. Whether more changes may be made before it ends.
    fn has_room_for_changes(self: &Rc<Self>) -> bool {
        let mut state = self.state.borrow_mut();
        let memory = state.unflushed.memory_bytes();
        if memory < UNFLUSHED_BYTES || state.lost.is_some() {
            return true;
        }
        if !std::mem::replace(&mut state.is_flushing, true) {
            let session = Rc::clone(self);
            self.env.spawn_local(async move {
                // An error is told to the changes that wait, by their deadline, and to whoever flushes.
                let _ = session.flush().await;
                session.state.borrow_mut().is_flushing = false;
                session.less_unflushed.notify_waiters();
            });
        }
        memory < UNFLUSHED_BYTES_MAX
    }

    /// Rule 2: all changes that were answered before are on stable storage of the server.
    pub(crate) async fn flush(&self) -> Result<(), DeviceError> {
        let wanted =
            self.state.borrow().unflushed.flushes() + u64::from(!mutant("flush_joins_earlier"));
        let _turn = self.flush_turn.lock().await;
        let flush = {
            let mut state = self.state.borrow_mut();
            // One that began after this call was made is as good, however it ended.
            if let Some((flush, result)) = &state.flushed
                && *flush >= wanted
            {
                return result.clone();
            }
            let has_nothing = state.exported.is_read_only() && state.unflushed.is_empty();
            if has_nothing && state.lost.is_none() {
                return Ok(());
            }
            state.unflushed.begin_flush()
        };
        let answered = self.submit(Command::Flush, SharedBuf::default(), None);
        let result = self.answer(answered).await.map(drop);
        let mut state = self.state.borrow_mut();
        if result.is_ok() {
            state.unflushed.end_flush(flush);
        }
        state.flushed = Some((flush, result.clone()));
        drop(state);
        self.less_unflushed.notify_waiters();
        result
    }
}
