//! A shard: one OS thread with a tokio `current_thread` runtime, on which volumes live with everything they own.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::fmt;
use std::future::Future;
use std::rc::Rc;
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::Duration;

use tokio::runtime::Handle;
use tokio::sync::{mpsc, oneshot};
use tokio::task::LocalSet;
use weir_device::{BufferPool, Env, LocalBoxFuture, Pacer, VolumeId};
use weir_disk::{Disks, EngineChoice};
use weir_log::{BlockStore, FrameCache};

use crate::error::NodeError;
use crate::node::clients::Clients;
use crate::node::env;
use crate::node::hosted::Hosted;
use crate::node::leases::Leases;

/// Time after which memory that nobody needed goes back to the kernel. Touched for the first time, it costs a burst of
/// small writes an eighth of its CPU time: bursts that follow each other within a minute find what the last one had.
const TRIM_INTERVAL: Duration = Duration::from_secs(60);

/// Time that jobs have to end when the node shuts down. Volumes were closed before; a job that still runs waits for a
/// store that does not answer (to open a snapshot, for a replica), and holds nothing that was acknowledged.
const JOBS_TIME: Duration = Duration::from_secs(5);

/// What lives on a shard's thread besides volumes.
pub struct ShardContext {
    /// Local files, through this thread's own engine.
    pub disks: Disks,
    /// Clocks, randomness, tasks.
    pub env: Env,
    /// Blocks of objects: the one thing that all shards share.
    pub blocks: BlockStore,
    /// What the clients of all shards share.
    pub(crate) clients: Clients,
    /// How this node is called in messages to others.
    pub node_name: Arc<str>,
    /// The volumes served on this thread.
    pub(crate) hosted: RefCell<BTreeMap<VolumeId, Rc<Hosted>>>,
    /// The leases of this process, one per store.
    pub(crate) leases: Arc<Leases>,
}

impl fmt::Debug for ShardContext {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ShardContext").field("disks", &self.disks).finish_non_exhaustive()
    }
}

/// What every shard of a node gets.
#[derive(Clone)]
pub(crate) struct Shared {
    pub(crate) clients: Clients,
    pub(crate) engine: EngineChoice,
    pub(crate) workers: Handle,
    pub(crate) boot_id: [u8; 16],
    pub(crate) pacer: Pacer,
    pub(crate) cache: Arc<dyn FrameCache>,
    pub(crate) node_name: Arc<str>,
    pub(crate) leases: Arc<Leases>,
}

type Job = Box<dyn FnOnce(Rc<ShardContext>) -> LocalBoxFuture<'static, ()> + Send>;

enum Message {
    Job(Job),
    /// No more jobs: the thread ends after those that run.
    End,
}

/// A running shard thread. Dropping it waits until nothing runs on it any more.
#[derive(Debug)]
pub(crate) struct Shard {
    handle: ShardHandle,
    thread: Option<JoinHandle<()>>,
}

/// The way to a shard, for as long as it runs.
#[derive(Clone, Debug)]
pub(crate) struct ShardHandle(mpsc::UnboundedSender<Message>);

impl fmt::Debug for Message {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Message")
    }
}

impl Shard {
    /// Starts a thread and returns once its disk engine runs.
    pub(crate) fn start(
        index: usize,
        shared: Shared,
        buffers: BufferPool,
    ) -> Result<Self, NodeError> {
        let (jobs, receiver) = mpsc::unbounded_channel();
        let (ready, started) = std::sync::mpsc::channel();
        let thread = std::thread::Builder::new()
            .name(format!("shard-{index}"))
            .spawn(move || run(shared, buffers, receiver, &ready))
            .map_err(|source| NodeError::io("starting", "a shard thread", source))?;
        match started.recv() {
            Ok(Ok(())) => Ok(Self { handle: ShardHandle(jobs), thread: Some(thread) }),
            Ok(Err(error)) => Err(error),
            Err(_) => Err(NodeError::ShuttingDown),
        }
    }

    /// The way to it.
    pub(crate) fn handle(&self) -> ShardHandle {
        self.handle.clone()
    }
}

impl ShardHandle {
    /// Starts `job` on the shard's thread; what it returns comes through the channel. The job runs to its end even if
    /// the channel is dropped.
    pub(crate) fn submit<T, F, Work>(&self, job: F) -> Result<oneshot::Receiver<T>, NodeError>
    where
        T: Send + 'static,
        F: FnOnce(Rc<ShardContext>) -> Work + Send + 'static,
        Work: Future<Output = T> + 'static,
    {
        let (sender, receiver) = oneshot::channel();
        let boxed: Job = Box::new(move |context| {
            Box::pin(async move {
                // The caller may be gone; the work was done all the same.
                let _ = sender.send(job(context).await);
            })
        });
        self.0.send(Message::Job(boxed)).map_err(|_| NodeError::ShuttingDown)?;
        Ok(receiver)
    }
}

impl Shard {
    /// Has it end once what runs on it is done, or has taken too long.
    pub(crate) fn end(&self) {
        // The thread may have ended by itself.
        let _ = self.handle.0.send(Message::End);
    }
}

impl Drop for Shard {
    fn drop(&mut self) {
        self.end();
        if let Some(thread) = self.thread.take() {
            // A panic on the thread was reported where it happened.
            let _ = thread.join();
        }
    }
}

fn run(
    shared: Shared,
    buffers: BufferPool,
    mut jobs: mpsc::UnboundedReceiver<Message>,
    ready: &std::sync::mpsc::Sender<Result<(), NodeError>>,
) {
    let runtime = match tokio::runtime::Builder::new_current_thread().enable_all().build() {
        Ok(runtime) => runtime,
        Err(source) => {
            let error = NodeError::io("starting", "the runtime of a shard", source);
            // The receiver is gone only if the node is shutting down.
            let _ = ready.send(Err(error));
            return;
        }
    };
    LocalSet::new().block_on(&runtime, async move {
        let workers = shared.workers.clone();
        let context = match Disks::new(shared.engine) {
            Ok(disks) => Rc::new(ShardContext {
                env: env::real(
                    shared.workers,
                    shared.boot_id,
                    buffers.clone(),
                    disks.file_reads(),
                    shared.pacer,
                ),
                disks,
                blocks: BlockStore { memory: shared.cache, disk: Rc::default() },
                clients: shared.clients,
                node_name: shared.node_name,
                hosted: RefCell::default(),
                leases: shared.leases,
            }),
            Err(error) => {
                let _ = ready.send(Err(NodeError::Disk(error)));
                return;
            }
        };
        let _ = ready.send(Ok(()));
        tokio::task::spawn_local(async move {
            loop {
                tokio::time::sleep(TRIM_INTERVAL).await;
                let unneeded = buffers.trim();
                workers.spawn_blocking(move || drop(unneeded));
            }
        });
        let mut running = tokio::task::JoinSet::new();
        loop {
            tokio::select! {
                biased;
                job = jobs.recv() => match job {
                    Some(Message::Job(job)) => {
                        running.spawn_local(job(Rc::clone(&context)));
                    }
                    Some(Message::End) | None => break,
                },
                Some(_) = running.join_next() => {}
            }
        }
        let rest = async { while running.join_next().await.is_some() {} };
        if tokio::time::timeout(JOBS_TIME, rest).await.is_err() {
            tracing::warn!("ending beside work that still waits for a store");
        }
    });
}
