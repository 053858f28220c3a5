//! The threads of a node: shards for volumes, workers for what burns CPU or waits for the store.

pub(crate) mod clients;
pub(crate) mod env;
pub(crate) mod gate;
pub(crate) mod hosted;
pub(crate) mod leases;
pub(crate) mod shard;

use std::future::Future;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use tokio::runtime::{Handle, Runtime};
use tokio::sync::{OwnedSemaphorePermit, Semaphore, oneshot};
use weir_device::{BufferPool, Pacer};
use weir_disk::EngineChoice;
use weir_log::{LeaseSettings, MemoryFrameCache};

use crate::error::NodeError;
use crate::node::clients::Clients;
use crate::node::leases::Leases;
use crate::node::shard::{Shard, ShardContext, ShardHandle, Shared};

/// Most shards unless told otherwise. One keeps up with what one NBD client can ask; four serve a busy host.
const SHARDS_DEFAULT_MAX: usize = 4;
/// Most worker threads. They compress and wait for the store; more than this would crowd out the shards.
const WORKERS_MAX: usize = 8;
/// Time that the worker threads have to end what they do when the node shuts down.
const WORKERS_TIME: Duration = Duration::from_secs(1);
/// Time that the shards have to end what they do when the node shuts down, more than each gives its work. A shard that
/// needs longer waits for a disk that does not answer: that of a cache, of which nothing is to be saved.
const SHARDS_TIME: Duration = Duration::from_secs(10);
/// Decoded frames kept in memory, in bytes: three eighths of the 512 MiB that a node may use for buffers.
pub(crate) const FRAME_CACHE_BYTES_DEFAULT: u64 = 192 << 20;

/// Memory for buffers, in bytes: half of those 512 MiB.
const BUFFER_BYTES_DEFAULT: u64 = 256 << 20;

/// Jobs that have a thread of their own at once, also those whose callers have left: each takes memory, a thread and
/// file descriptors, and one that waits for a store that does not answer keeps them.
const ASIDE_MAX: usize = 4;

/// Verbs of the API under way at once, also those whose callers have left: more than it has connections, so that only
/// callers who do not wait meet it.
const VERBS_MAX: usize = 512;

/// How many threads a node has, and how they reach the disk.
#[derive(Clone, Copy, Debug, Default)]
pub struct NodeConfig {
    /// Shards; the smaller of the number of CPUs and four where `None`.
    pub shards: Option<usize>,
    /// The disk engine.
    pub engine: EngineChoice,
    /// Memory for decoded frames of objects in bytes, shared by all volumes; 192 MiB where `None`.
    pub cache_bytes: Option<u64>,
    /// Memory for buffers in bytes, divided among the shards; 256 MiB where `None`. Unused ones are kept within it: a
    /// journal lets a whole segment of copies go at once, and the next writes need as much again.
    pub buffer_bytes: Option<u64>,
    /// How the node's leases are kept.
    pub lease: LeaseSettings,
}

/// The threads of a node. Dropping it waits for what runs on the shards, then stops the workers.
#[derive(Debug)]
pub struct Node {
    shards: Vec<Shard>,
    handle: NodeHandle,
    // Dropped after the shards, which use it.
    workers: Runtime,
}

/// The way to the threads of a node, for as long as they run.
#[derive(Clone)]
pub(crate) struct NodeHandle {
    shards: Arc<[ShardHandle]>,
    pub(crate) workers: Handle,
    pub(crate) cache: Arc<MemoryFrameCache>,
    buffers: Arc<[BufferPool]>,
    pub(crate) node_name: Arc<str>,
    pub(crate) clients: Clients,
    shared: Shared,
    aside: Arc<Semaphore>,
    verbs: Arc<Semaphore>,
}

impl std::fmt::Debug for NodeHandle {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "NodeHandle({})", self.node_name)
    }
}

impl NodeHandle {
    /// Bytes of buffers that nobody holds.
    pub(crate) fn unused_buffer_bytes(&self) -> u64 {
        self.buffers.iter().map(|pool| pool.kept_bytes() as u64).sum()
    }

    /// What all background work of the node asks for leave.
    pub(crate) fn pacer(&self) -> &Pacer {
        &self.shared.pacer
    }

    /// See [`Node::run`].
    pub(crate) async fn run<T, F, Work>(&self, shard: usize, job: F) -> Result<T, NodeError>
    where
        T: Send + 'static,
        F: FnOnce(Rc<ShardContext>) -> Work + Send + 'static,
        Work: Future<Output = T> + 'static,
    {
        self.submit(shard, job)?.await.map_err(|_| NodeError::ShuttingDown)
    }

    /// [`Node::run`] without waiting: what the job returns comes through the channel.
    pub(crate) fn submit<T, F, Work>(
        &self,
        shard: usize,
        job: F,
    ) -> Result<oneshot::Receiver<T>, NodeError>
    where
        T: Send + 'static,
        F: FnOnce(Rc<ShardContext>) -> Work + Send + 'static,
        Work: Future<Output = T> + 'static,
    {
        self.shards[shard % self.shards.len()].submit(job)
    }

    /// Number of shards.
    pub(crate) fn shard_count(&self) -> usize {
        self.shards.len()
    }

    /// Runs `job` on a thread of its own, which ends with it: for work that would block the clients of a shard.
    ///
    /// # Errors
    /// When the thread cannot be started; [`NodeError::TooMuch`] while as many run as may.
    pub(crate) fn aside<F, Work>(&self, job: F) -> Result<(), NodeError>
    where
        F: FnOnce(Rc<ShardContext>) -> Work + Send + 'static,
        Work: Future<Output = ()> + 'static,
    {
        let place = place_of(&self.aside, ASIDE_MAX, "checks")?;
        let buffers = self.buffers[0].clone();
        let shard = Shard::start(self.shards.len(), self.shared.clone(), buffers)?;
        let ended = shard.handle().submit(job)?;
        self.workers.spawn(async move {
            // An error means that its thread ended, which is the end that is waited for, too.
            let _ = ended.await;
            // Joining the thread is short now, but it blocks.
            drop(tokio::task::spawn_blocking(move || drop(shard)).await);
            drop(place);
        });
        Ok(())
    }

    /// A place among the verbs of the API that are under way.
    ///
    /// # Errors
    /// [`NodeError::TooMuch`] while there is none.
    pub(crate) fn verb_place(&self) -> Result<OwnedSemaphorePermit, NodeError> {
        place_of(&self.verbs, VERBS_MAX, "requests")
    }
}

fn place_of(
    places: &Arc<Semaphore>,
    limit: usize,
    what: &'static str,
) -> Result<OwnedSemaphorePermit, NodeError> {
    Arc::clone(places).try_acquire_owned().map_err(|_| NodeError::TooMuch { limit, what })
}

/// Drops something on a thread of its own; whether that was done in time. Otherwise the thread goes on.
fn end_within(what: impl Send + 'static, limit: Duration) -> bool {
    let (ended, end) = std::sync::mpsc::channel::<()>();
    let ending = move || {
        drop(what);
        drop(ended);
    };
    if weir_device::mutant("node_waits_for_its_disks") {
        ending();
        return true;
    }
    // Without a thread it was dropped here.
    let _ = std::thread::Builder::new().name("ending".into()).spawn(ending);
    end.recv_timeout(limit) != Err(std::sync::mpsc::RecvTimeoutError::Timeout)
}

impl Node {
    /// Starts the threads. Blocks until they run.
    ///
    /// # Errors
    /// When a thread or its disk engine cannot be started.
    pub fn start(config: NodeConfig) -> Result<Self, NodeError> {
        let cpus = std::thread::available_parallelism().map_or(1, usize::from);
        let workers = tokio::runtime::Builder::new_multi_thread()
            .worker_threads(cpus.min(WORKERS_MAX))
            .thread_name("worker")
            .enable_all()
            .build()
            .map_err(|source| NodeError::io("starting", "worker threads", source))?;
        let count = config.shards.unwrap_or_else(|| cpus.min(SHARDS_DEFAULT_MAX)).max(1);
        let cache_bytes = config.cache_bytes.unwrap_or(FRAME_CACHE_BYTES_DEFAULT);
        let cache = Arc::new(MemoryFrameCache::new(cache_bytes));
        let node_name: Arc<str> = env::read_node_name()?.into();
        let all_buffer_bytes = config.buffer_bytes.unwrap_or(BUFFER_BYTES_DEFAULT);
        let clients = Clients::of(all_buffer_bytes);
        let shared = Shared {
            clients: clients.clone(),
            engine: config.engine,
            workers: workers.handle().clone(),
            boot_id: env::read_boot_id()?,
            pacer: Pacer::default(),
            cache: Arc::clone(&cache) as _,
            leases: Arc::new(Leases::new(config.lease, Arc::clone(&node_name))),
            node_name,
        };
        let buffer_bytes = usize::try_from(all_buffer_bytes / count as u64).unwrap_or(usize::MAX);
        let buffers: Arc<[_]> = (0..count).map(|_| BufferPool::new(buffer_bytes)).collect();
        let shards = buffers
            .iter()
            .enumerate()
            .map(|(index, buffers)| Shard::start(index, shared.clone(), buffers.clone()))
            .collect::<Result<Vec<_>, _>>()?;
        let handle = NodeHandle {
            shards: shards.iter().map(Shard::handle).collect(),
            workers: workers.handle().clone(),
            cache,
            buffers,
            clients,
            node_name: Arc::clone(&shared.node_name),
            shared,
            aside: Arc::new(Semaphore::new(ASIDE_MAX)),
            verbs: Arc::new(Semaphore::new(VERBS_MAX)),
        };
        Ok(Self { shards, handle, workers })
    }

    /// Number of shards.
    #[must_use]
    pub fn shard_count(&self) -> usize {
        self.shards.len()
    }

    /// Runs `job` on the thread of shard `shard` (modulo their number) and returns what it returned. The job runs to
    /// its end even if the returned future is dropped.
    ///
    /// # Errors
    /// [`NodeError::ShuttingDown`] when the thread is gone.
    pub async fn run<T, F, Work>(&self, shard: usize, job: F) -> Result<T, NodeError>
    where
        T: Send + 'static,
        F: FnOnce(Rc<ShardContext>) -> Work + Send + 'static,
        Work: Future<Output = T> + 'static,
    {
        self.handle.run(shard, job).await
    }

    /// The way to its threads.
    pub(crate) fn handle(&self) -> NodeHandle {
        self.handle.clone()
    }

    /// Ends the node without waiting for background work that the store does not answer, nor for a disk that does not.
    /// Whether all of it ended: threads that did not are left to the end of the process.
    pub fn shut_down(self) -> bool {
        // All at once: each waits for work on it that a store does not answer.
        self.shards.iter().for_each(Shard::end);
        let have_ended = end_within(self.shards, SHARDS_TIME);
        if !have_ended {
            tracing::warn!("ending beside requests to a disk that does not answer");
        }
        self.workers.shutdown_timeout(WORKERS_TIME);
        have_ended
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_does_not_end_is_left() {
        /// Ends once somebody says so.
        struct Hangs(std::sync::mpsc::Receiver<()>);
        impl Drop for Hangs {
            fn drop(&mut self) {
                // Or once the test has failed.
                let _ = self.0.recv_timeout(Duration::from_secs(10));
            }
        }
        let (end, told) = std::sync::mpsc::channel();
        assert!(!end_within(Hangs(told), Duration::from_millis(50)));
        drop(end);
        let (end, told) = std::sync::mpsc::channel();
        drop(end);
        assert!(end_within(Hangs(told), Duration::MAX));
    }

    #[test]
    fn jobs_aside_have_a_limit_though_nobody_waits_for_them() {
        let config =
            NodeConfig { shards: Some(1), engine: EngineChoice::Threads, ..NodeConfig::default() };
        let node = Node::start(config).unwrap();
        let runtime = tokio::runtime::Builder::new_current_thread().enable_time().build().unwrap();
        runtime.block_on(async {
            let handle = node.handle();
            let begin = || {
                let (end, ended) = oneshot::channel::<()>();
                handle.aside(move |_| async move { drop(ended.await) }).map(|()| end)
            };
            let mut ends: Vec<_> = (0..ASIDE_MAX).map(|_| begin().unwrap()).collect();
            let refused = begin().unwrap_err();
            assert!(matches!(refused, NodeError::TooMuch { limit: ASIDE_MAX, .. }), "{refused}");
            ends.pop().unwrap().send(()).unwrap();
            let patience = std::time::Instant::now() + Duration::from_secs(10);
            while let Err(error) = begin() {
                assert!(std::time::Instant::now() < patience, "{error}");
                tokio::time::sleep(Duration::from_millis(10)).await;
            }
            let places: Vec<_> = (0..VERBS_MAX).map(|_| handle.verb_place().unwrap()).collect();
            assert!(handle.verb_place().is_err());
            drop(places);
            drop(handle.verb_place().unwrap());
        });
        node.shut_down();
    }

    #[test]
    fn jobs_run_on_their_shard_and_reach_the_workers() {
        let config =
            NodeConfig { shards: Some(2), engine: EngineChoice::Threads, ..NodeConfig::default() };
        let node = Node::start(config).unwrap();
        assert_eq!(node.shard_count(), 2);
        let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
        let name = |shard| {
            let node = &node;
            async move {
                let job = |context: Rc<ShardContext>| async move {
                    let name = || std::thread::current().name().map(str::to_owned);
                    (name(), context.env.background(async move { name() }).await.flatten())
                };
                node.run(shard, job).await.unwrap()
            }
        };
        for shard in 0..3 {
            let (own, background) = runtime.block_on(name(shard));
            assert_eq!(own.as_deref(), Some(format!("shard-{}", shard % 2).as_str()));
            assert_eq!(background.as_deref(), Some("worker"));
        }
        node.shut_down();
    }
}
