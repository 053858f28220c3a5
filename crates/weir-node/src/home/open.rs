//! Opening a volume of a home for writing, to serve it or for one piece of work.

use std::rc::Rc;
use std::time::Duration;

use weir_device::VolumeId;
use weir_disk::{Directory, LeaveRoom, LockGuard};
use weir_log::catalog::VolumeName;
use weir_log::{Closed, LOCK_FILE, OnWait, OpenArgs, OpenReport, VolumeOptions};
use weir_stack::{EndpointSpec, Stack, StackError, StackSpec, StageSpec};
use weir_store::Store;

use crate::api::types::AtRisk;
use crate::error::NodeError;
use crate::home::processes::locked;
use crate::home::{Consent, Home, opened};
use crate::node::shard::ShardContext;

impl From<StackError> for NodeError {
    fn from(error: StackError) -> Self {
        match error {
            StackError::Log(error) => Self::Log(error),
            StackError::Device(error) => Self::Device(error),
        }
    }
}

impl Home {
    /// Opens a volume for writing and recovers what its last opening left.
    pub(crate) async fn open_volume(
        &self,
        context: &ShardContext,
        store: Store,
        id: VolumeId,
        name: &VolumeName,
        options: VolumeOptions,
        consent: Consent,
    ) -> Result<(Rc<Stack>, OpenReport), NodeError> {
        let (nobody, options) = (Rc::new(|_: &str| {}), (options, Vec::new()));
        self.open_volume_telling(context, (store, id, name), options, consent, nobody).await
    }

    /// The same; `on_wait` is called with the name of a node that the opening waits for.
    pub(crate) async fn open_volume_telling(
        &self,
        context: &ShardContext,
        (store, id, name): (Store, VolumeId, &VolumeName),
        (options, stages): (VolumeOptions, Vec<StageSpec>),
        consent: Consent,
        on_wait: OnWait,
    ) -> Result<(Rc<Stack>, OpenReport), NodeError> {
        let lease = context.leases.get(&context.env, &self.data, &store)?;
        let directory = context.disks.directory(self.data.volume(id))?;
        let beside_store = store.device().is_some() && store.device() == directory.device();
        let args = OpenArgs {
            store: store.clone(),
            id,
            directory: directory.leaving_room(LeaveRoom::of_process(beside_store)),
            env: context.env.clone(),
            options,
            blocks: context.blocks.clone(),
            keys: self.keys.clone(),
            lease,
            accept_loss: consent.accept_loss,
            take_over: consent.take_over,
            discard_journal: consent.discard_journal,
            adopt_journal: consent.adopt_journal,
            incomplete: consent.incomplete,
            on_wait: Some(on_wait),
        };
        let spec = StackSpec { endpoint: EndpointSpec::Log(Box::new(args)), stages };
        match Stack::open(&context.env, spec).await {
            Ok(opened) => {
                opened::note(self, &store, id, name);
                Ok(opened)
            }
            Err(error) => Err(match locked(error.into(), name) {
                // Whoever holds the lock may say where it serves.
                error @ NodeError::Held { .. } => {
                    self.who_has_locked(&store, name, id, error).await
                }
                error => error.of_volume(name, id),
            }),
        }
    }
}

/// Locks the local files of a volume.
pub(crate) async fn lock(directory: &Directory, name: &VolumeName) -> Result<LockGuard, NodeError> {
    directory.lock(LOCK_FILE).await.map_err(|error| locked(error.into(), name))
}

/// Opens a volume for one piece of work, and closes it again. Where the work is done and the store did not take
/// everything in time, that is the error.
pub(crate) async fn with_open<T, Work>(
    context: &ShardContext,
    home: &Home,
    store: Store,
    id: VolumeId,
    name: &VolumeName,
    work: impl FnOnce(Rc<Stack>) -> Work,
) -> Result<T, NodeError>
where
    Work: Future<Output = Result<T, NodeError>>,
{
    home.data.prepare()?;
    let (options, consent) = (VolumeOptions::default(), Consent::default());
    let deadline = options.close_deadline;
    let opened = home.open_volume(context, store, id, name, options, consent).await?;
    let (stack, _report) = opened;
    let worked = work(Rc::clone(&stack)).await;
    let closed = close(home, (id, name), &stack, deadline).await;
    worked.and_then(|done| closed.map(|()| done))
}

async fn close(
    home: &Home,
    (id, name): (VolumeId, &VolumeName),
    stack: &Stack,
    deadline: Duration,
) -> Result<(), NodeError> {
    let closed = stack.close(deadline).await?;
    let unsent = stack.log_status().map(AtRisk::from).unwrap_or_default();
    opened::note_closed(&home.data, id, closed, unsent);
    match closed {
        Closed::Clean => Ok(()),
        Closed::LocalOnly => Err(NodeError::KeptInJournal { name: name.to_string() }),
    }
}

#[cfg(test)]
mod tests {
    use weir_device::{DeviceExt, SharedBuf};
    use weir_log::catalog;

    use super::*;
    use crate::data_directory::DataDirectory;
    use crate::node::{Node, NodeConfig};

    #[test]
    fn work_is_not_done_while_only_the_journal_has_it() {
        let directory = tempfile::tempdir().unwrap();
        let data = DataDirectory::at(directory.path()).unwrap();
        let home = Home::embedded(data);
        let node = Node::start(NodeConfig { shards: Some(1), ..NodeConfig::default() }).unwrap();
        let tested = node.run(0, |context| async move {
            home.data.prepare().unwrap();
            let name = VolumeName::new("demo").unwrap();
            let (store, env) = (home.open_or_make_store(&context).await.unwrap(), &context.env);
            let created = catalog::create(&store, env, &name, 1 << 20).await;
            let id = created.unwrap();
            let (options, consent) = (VolumeOptions::default(), Consent::default());
            let opening =
                home.open_volume(&context, store.clone(), id, &name, options, consent).await;
            let (stack, _) = opening.unwrap();
            stack.write(0, SharedBuf::copy_of(&[7; 4096])).await.unwrap();
            // The store is given no time at all.
            let closed = close(&home, (id, &name), &stack, Duration::ZERO).await;
            assert!(matches!(closed, Err(NodeError::KeptInJournal { .. })), "{closed:?}");
            drop(stack);
            with_open(&context, &home, store, id, &name, |_| async { Ok(()) }).await.unwrap();
            assert_eq!(opened::noted(&home.data, id), None, "everything is in the store");
        });
        let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
        runtime.block_on(tested).unwrap();
        node.shut_down();
    }
}
