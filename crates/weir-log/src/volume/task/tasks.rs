//! What runs in the background of an open volume.

use std::cell::Cell;
use std::future::Future;
use std::pin::pin;
use std::rc::Rc;

use futures_util::future::select;
use tokio::sync::Notify;
use weir_device::Env;

/// The tasks of one opening. They hold the volume's files, so its close waits for them; one that goes on for too long,
/// since the store does not answer, is dropped where it waits, as a crash would leave it there.
#[derive(Debug, Default)]
pub(crate) struct Tasks {
    running: Cell<usize>,
    is_stopped: Cell<bool>,
    /// The volume stopped, or the last task ended.
    changed: Notify,
}

/// A task counts as long as this lives.
struct Running(Rc<Tasks>);

impl Drop for Running {
    fn drop(&mut self) {
        let Self(tasks) = self;
        tasks.running.set(tasks.running.get() - 1);
        if tasks.running.get() == 0 {
            tasks.changed.notify_waiters();
        }
    }
}

impl Tasks {
    /// Runs `task`, until it ends or is not waited for any longer.
    pub(crate) fn spawn(self: &Rc<Self>, env: &Env, task: impl Future<Output = ()> + 'static) {
        self.running.set(self.running.get() + 1);
        let running = Running(Rc::clone(self));
        env.spawn_local(async move {
            let Running(tasks) = &running;
            {
                // Dropped here, before it counts as ended.
                let task = pin!(task);
                select(task, pin!(tasks.until(|tasks| tasks.is_stopped.get()))).await;
            }
        });
    }

    /// Has every task end where it waits.
    pub(crate) fn stop(&self) {
        self.is_stopped.set(true);
        self.changed.notify_waiters();
    }

    /// Returns once no task runs and holds anything of the volume.
    pub(crate) async fn ended(&self) {
        self.until(|tasks| tasks.running.get() == 0).await;
    }

    async fn until(&self, is_so: impl Fn(&Self) -> bool) {
        loop {
            let mut changed = pin!(self.changed.notified());
            changed.as_mut().enable();
            if is_so(self) {
                return;
            }
            changed.await;
        }
    }
}
