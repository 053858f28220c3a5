//! A shard: one OS thread with a tokio `current_thread` runtime, on which volumes live with everything they own.

use std::future::Future;
use std::rc::Rc;
use std::thread::JoinHandle;

use tokio::runtime::Handle;
use tokio::sync::{mpsc, oneshot};
use tokio::task::LocalSet;
use weir_device::{Env, LocalBoxFuture};
use weir_disk::{Disks, EngineChoice};

use crate::env;
use crate::error::NodeError;

/// What lives on a shard's thread besides volumes.
#[derive(Debug)]
pub struct ShardContext {
    /// Local files, through this thread's own engine.
    pub disks: Disks,
    /// Clocks, randomness, tasks.
    pub env: Env,
}

type Job = Box<dyn FnOnce(Rc<ShardContext>) -> LocalBoxFuture<'static, ()> + Send>;

/// A running shard thread. Dropping it lets the thread end once nothing runs on it.
#[derive(Debug)]
pub(crate) struct Shard {
    jobs: Option<mpsc::UnboundedSender<Job>>,
    thread: Option<JoinHandle<()>>,
}

impl Shard {
    /// Starts a thread and returns once its disk engine runs.
    pub(crate) fn start(
        index: usize,
        engine: EngineChoice,
        workers: Handle,
        boot_id: [u8; 16],
    ) -> Result<Self, NodeError> {
        let (jobs, receiver) = mpsc::unbounded_channel();
        let (ready, started) = std::sync::mpsc::channel();
        let thread = std::thread::Builder::new()
            .name(format!("shard-{index}"))
            .spawn(move || run(engine, workers, boot_id, receiver, &ready))
            .map_err(|source| NodeError::io("starting", "a shard thread", source))?;
        match started.recv() {
            Ok(Ok(())) => Ok(Self { jobs: Some(jobs), thread: Some(thread) }),
            Ok(Err(error)) => Err(error),
            Err(_) => Err(NodeError::ShuttingDown),
        }
    }

    /// Runs `job` on the shard's thread and returns what it returned. The job runs to its end even if the returned
    /// future is dropped.
    pub(crate) async fn run<T, F, Work>(&self, job: F) -> Result<T, NodeError>
    where
        T: Send + 'static,
        F: FnOnce(Rc<ShardContext>) -> Work + Send + 'static,
        Work: Future<Output = T> + 'static,
    {
        let (sender, receiver) = oneshot::channel();
        let boxed: Job = Box::new(move |context| {
            Box::pin(async move {
                // A caller that went away wanted the work done, not the answer.
                let _ = sender.send(job(context).await);
            })
        });
        let jobs = self.jobs.as_ref().ok_or(NodeError::ShuttingDown)?;
        jobs.send(boxed).map_err(|_| NodeError::ShuttingDown)?;
        receiver.await.map_err(|_| NodeError::ShuttingDown)
    }
}

impl Drop for Shard {
    fn drop(&mut self) {
        // Without senders the thread ends after its last job.
        self.jobs = None;
        if let Some(thread) = self.thread.take() {
            // A panic on the thread was reported where it happened.
            let _ = thread.join();
        }
    }
}

fn run(
    engine: EngineChoice,
    workers: Handle,
    boot_id: [u8; 16],
    mut jobs: mpsc::UnboundedReceiver<Job>,
    ready: &std::sync::mpsc::Sender<Result<(), NodeError>>,
) {
    let runtime = match tokio::runtime::Builder::new_current_thread().enable_all().build() {
        Ok(runtime) => runtime,
        Err(source) => {
            let error = NodeError::io("starting", "the runtime of a shard", source);
            // Nobody waits for it only if the node is going away.
            let _ = ready.send(Err(error));
            return;
        }
    };
    LocalSet::new().block_on(&runtime, async move {
        let context = match Disks::new(engine) {
            Ok(disks) => Rc::new(ShardContext { disks, env: env::real(workers, boot_id) }),
            Err(error) => {
                let _ = ready.send(Err(NodeError::Disk(error)));
                return;
            }
        };
        let _ = ready.send(Ok(()));
        let mut running = tokio::task::JoinSet::new();
        loop {
            tokio::select! {
                biased;
                job = jobs.recv() => match job {
                    Some(job) => {
                        running.spawn_local(job(Rc::clone(&context)));
                    }
                    None => break,
                },
                Some(_) = running.join_next() => {}
            }
        }
        while running.join_next().await.is_some() {}
    });
}
