//! A volume that is served, as jobs on its thread find it.

use std::cell::{Cell, OnceCell};
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use tokio::time::Instant;
use weir_device::{DeviceExt, FlushScope, VolumeId, mutant};
use weir_frontend::nbd::Access;
use weir_log::catalog::VolumeName;
use weir_stack::Stack;

use crate::error::NodeError;
use crate::home::given::GivenRecord;
use crate::node::gate::Gate;

/// How long a verb that must be alone waits for clients that are going, and how often it looks.
pub(crate) const CLIENTS_GO_MAX: Duration = Duration::from_secs(1);
pub(crate) const CLIENTS_GO_LOOK: Duration = Duration::from_millis(10);

/// A volume on its thread.
#[derive(Debug)]
pub(crate) struct Hosted {
    pub(crate) id: VolumeId,
    pub(crate) name: VolumeName,
    pub(crate) stack: Rc<Stack>,
    pub(crate) read_only: bool,
    pub(crate) clients: OnceCell<Rc<Cell<usize>>>,
    pub(crate) gate: Arc<Gate>,
    /// Who may write.
    pub(crate) access: Access,
    /// Where the tag given with exclusive access is kept, if it lasts.
    pub(crate) record: Option<GivenRecord>,
}

impl Hosted {
    /// Clients connected now.
    pub(crate) fn client_count(&self) -> usize {
        self.clients.get().map_or(0, |counter| counter.get())
    }

    /// Waits, a second at most, for clients that are going: one that has closed its connection is counted until this
    /// node has seen it. Then how many there are.
    pub(crate) async fn clients_stay(&self) -> usize {
        let patience = Instant::now() + CLIENTS_GO_MAX;
        while self.client_count() > 0 && Instant::now() < patience {
            tokio::time::sleep(CLIENTS_GO_LOOK).await;
        }
        self.client_count()
    }

    /// Runs `work` while the volume has no clients: none is let in until it has ended, even if the caller goes away.
    /// Fails where there are clients.
    pub(crate) async fn without_clients(
        self: &Rc<Self>,
        work: impl Future<Output = Result<(), NodeError>> + 'static,
    ) -> Result<(), NodeError> {
        let name = || self.name.to_string();
        self.clients_stay().await;
        let Some(kept_out) = self.gate.close() else {
            return Err(NodeError::Changing { name: name() });
        };
        // A client that is on its way is counted here already, or finds the gate closed: `OneExport::find`.
        let clients = self.client_count();
        if clients > 0 {
            return Err(NodeError::Connected { name: name(), clients });
        }
        // What the work makes of the content is news to every client, also after a restart in the middle of it.
        self.access.forget(self.name.as_str());
        if let Some(record) = &self.record {
            let keep = async |given| record.keep(given).await;
            self.access.settle(self.name.as_str(), keep).await?;
        }
        let hosted = Rc::clone(self);
        let working = tokio::task::spawn_local(async move {
            let kept_out = (!mutant("verb_lets_clients_in")).then_some(kept_out);
            let worked = work.await;
            // Also after an error, and before any client is let in.
            hosted.gate.set_size(hosted.stack.size());
            drop(kept_out);
            worked
        });
        working.await.map_err(|_| NodeError::ShuttingDown)?
    }

    /// Makes acknowledged writes survive.
    pub(crate) async fn flush(&self, remote: bool) -> Result<(), NodeError> {
        let scope = if remote { FlushScope::Store } else { FlushScope::Local };
        Ok(self.stack.flush(scope).await?)
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use tokio::runtime::{Builder, Handle};
    use tokio::sync::oneshot;
    use tokio::task::{LocalSet, spawn_local, yield_now};
    use weir_device::BufferPool;
    use weir_stack::{EndpointSpec, StackSpec};

    use super::*;
    use crate::node::env;

    pub(crate) fn run(test: impl Future<Output = ()>) {
        let runtime = Builder::new_current_thread().enable_all().build().unwrap();
        LocalSet::new().block_on(&runtime, test);
    }

    /// A stack of this thread that keeps nothing.
    pub(crate) async fn in_memory() -> Rc<Stack> {
        let env = env::real(
            Handle::current(),
            [1; 16],
            BufferPool::new(1 << 20),
            std::rc::Rc::new(weir_device::NoFileReads),
            weir_device::Pacer::default(),
        );
        Stack::open(&env, StackSpec::plain(EndpointSpec::Memory(4096))).await.unwrap().0
    }

    #[test]
    fn clients_are_kept_out_until_the_work_has_ended_though_nobody_waits_for_it() {
        run(async {
            let hosted = Rc::new(Hosted {
                id: VolumeId([1; 16]),
                name: VolumeName::new("demo").unwrap(),
                stack: in_memory().await,
                read_only: false,
                clients: OnceCell::new(),
                gate: Gate::new(1),
                access: Access::default(),
                record: None,
            });
            let (end, ended) = oneshot::channel();
            let asked = {
                let hosted = Rc::clone(&hosted);
                let work = async move {
                    ended.await.unwrap();
                    Ok(())
                };
                spawn_local(async move { hosted.without_clients(work).await })
            };
            for _ in 0..10 {
                yield_now().await;
            }
            assert!(hosted.gate.is_closed());
            let second = hosted.without_clients(async { Ok(()) }).await;
            assert!(matches!(second, Err(NodeError::Changing { .. })), "{second:?}");
            asked.abort();
            assert!(asked.await.is_err() && hosted.gate.is_closed());
            end.send(()).unwrap();
            hosted.gate.opened().await;
            assert_eq!(hosted.gate.size(), 4096, "as the work left it");
        });
    }
}
