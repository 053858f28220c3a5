//! Replication on a node's thread: one volume, followed until it is told to stop.

use std::rc::Rc;
use std::time::Duration;

use tokio::sync::watch;
use tokio::time::Instant;
use weir_device::{ErrorKind, LocalBoxFuture, VolumeId, mutant, with_causes};
use weir_log::LogError;
use weir_log::catalog::{self, VolumeName};
use weir_log::replica::{ReplicaStatus, ReplicateArgs, Replicator};
use weir_store::{Access, Store, StoreOptions};

use crate::api::types::Limits;
use crate::error::NodeError;
use crate::home::{Home, known_stores, limits};
use crate::node::Node;
use crate::node::shard::ShardContext;

/// How often a replicator that waits looks for a new root of its source, and renews its hold on the replica.
const LOOK_INTERVAL: Duration = Duration::from_secs(5);

/// First pause after a failure; it doubles with each further one.
const PAUSE_MIN: Duration = Duration::from_secs(1);

/// Longest pause after a failure.
const PAUSE_MAX: Duration = Duration::from_secs(60);

/// How long the end waits for the store of the replica to take the note that nobody holds it any more.
const END_PATIENCE: Duration = Duration::from_secs(3);

/// Prefix of the variables that say how the store of a replica is reached.
pub const TARGET_VARIABLES: &str = "WEIR_TARGET_";

/// What is to be replicated where.
#[derive(Clone, Debug)]
pub struct Replication {
    /// The volume.
    pub name: VolumeName,
    /// URL of the replica's store.
    pub target_url: String,
    /// How that store is reached.
    pub target_options: StoreOptions,
    /// Limits on what is sent there.
    pub limits: Limits,
    /// Go on until told to stop; otherwise end with the newest root moved.
    pub follow: bool,
    /// Least time between two roots: what is overwritten meanwhile is never sent.
    pub age: Duration,
}

/// How far a replicator is.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ReplicationProgress {
    /// How far the replica has come.
    pub status: ReplicaStatus,
    /// Why it waits and tries again, if it does.
    pub trouble: Option<String>,
}

impl Node {
    /// Replicates a volume: once, or until `stop` says so. `progress` shows every step.
    ///
    /// # Errors
    /// What ends it for good: another replicator, a promotion, a source that was deleted; once, also what the stores
    /// say. While it follows, it waits for stores that fail.
    #[inline(never)]
    pub fn replicate<'a>(
        &'a self,
        home: Home,
        replication: Replication,
        progress: watch::Sender<ReplicationProgress>,
        stop: watch::Receiver<bool>,
    ) -> LocalBoxFuture<'a, Result<ReplicaStatus, NodeError>> {
        Box::pin(async move {
            self.run(0, move |context| async move {
                run(&context, &home, &replication, Rc::new(progress), stop).await
            })
            .await?
        })
    }
}

/// Whether trying again cannot help.
fn is_final(error: &NodeError) -> bool {
    match error {
        NodeError::Log(error) => {
            matches!(
                error.kind(),
                ErrorKind::Fenced | ErrorKind::Invalid | ErrorKind::Exists | ErrorKind::Unsupported
            ) || matches!(error, LogError::Deleted { .. })
        }
        NodeError::Store(error) => error.is_hopeless(),
        // Of the local disk: the notes in the data directory, for which it can be full.
        NodeError::Io { .. } => false,
        NodeError::ReplicaInUse { .. } | NodeError::StoreGone { .. } => false,
        _ => true,
    }
}

pub(crate) async fn run(
    context: &ShardContext,
    home: &Home,
    replication: &Replication,
    progress: Rc<watch::Sender<ReplicationProgress>>,
    mut stop: watch::Receiver<bool>,
) -> Result<ReplicaStatus, NodeError> {
    home.data.prepare()?;
    let mut replicator = None;
    let following = follow(context, home, replication, &progress, &mut replicator);
    let ended = tokio::select! {
        biased;
        // A dropped sender means that it is to stop as well.
        _ = stop.wait_for(|stop| *stop) => Ok(()),
        ended = following => ended,
    };
    let Some(replicator) = replicator else { return ended.map(|()| ReplicaStatus::default()) };
    let status = replicator.status().clone();
    if !ended.as_ref().is_err_and(is_final) {
        match tokio::time::timeout(END_PATIENCE, replicator.end()).await {
            Ok(Ok(())) => {}
            // It was interrupted in a step, and may not know whether its last version was published.
            Ok(Err(error)) => tracing::debug!(%error, "the replica stays held for a while"),
            Err(_) => {
                tracing::warn!("the replica's store does not answer; it stays held for a while")
            }
        }
    }
    ended.map(|()| status)
}

async fn begin(
    context: &ShardContext,
    home: &Home,
    replication: &Replication,
    progress: &Rc<watch::Sender<ReplicationProgress>>,
) -> Result<Replicator, NodeError> {
    let source = home.open_store(context, Access::Read).await?;
    // Before a store is made for the replica of what may not exist.
    let volume = catalog::find(&source, &context.env, &replication.name).await?;
    let there = Home {
        store_url: replication.target_url.clone(),
        store_options: replication.target_options.clone(),
        data: home.data.clone(),
        keys: home.keys.clone(),
        encrypt: home.encrypt,
    };
    let target = there.open_or_make_store(context).await?;
    known_stores::check_not_emptied(context, &there, &target).await?;
    limits::apply(&target, &replication.limits)?;
    let args = args(context, home, (source, target), (replication, volume), progress)?;
    let replicator = Replicator::begin(args).await.map_err(|error| match error {
        LogError::InUse { node, lease_s, .. } => {
            NodeError::ReplicaInUse { name: replication.name.to_string(), node, lease_s }
        }
        error => error.into(),
    })?;
    // Where its file system is not mounted the next time, no other replica is begun below the mount point.
    if !mutant("replica_store_not_noted")
        && let Err(error) = known_stores::note(&there)
    {
        let error = with_causes(&error);
        tracing::warn!(volume = %replication.name, error, "the replica's store is not noted");
    }
    Ok(replicator)
}

fn args(
    context: &ShardContext,
    home: &Home,
    (source, target): (Store, Store),
    (replication, volume): (&Replication, VolumeId),
    progress: &Rc<watch::Sender<ReplicationProgress>>,
) -> Result<ReplicateArgs, NodeError> {
    let lease = context.leases.get(&context.env, &home.data, &target)?;
    let progress = Rc::clone(progress);
    Ok(ReplicateArgs {
        source,
        target,
        volume,
        name: replication.name.clone(),
        env: context.env.clone(),
        keys: home.keys.clone(),
        lease,
        on_progress: Rc::new(move |status| {
            progress.send_modify(|progress| {
                progress.status = status.clone();
                progress.trouble = None;
            });
        }),
    })
}

/// Moves roots, and waits between them and for stores that fail.
async fn follow(
    context: &ShardContext,
    home: &Home,
    replication: &Replication,
    progress: &Rc<watch::Sender<ReplicationProgress>>,
    replicator: &mut Option<Replicator>,
) -> Result<(), NodeError> {
    let mut moved_at: Option<Instant> = None;
    let mut pause = PAUSE_MIN;
    loop {
        let due = moved_at.is_none_or(|at| at.elapsed() >= replication.age);
        let target = replicator.as_ref().map(|replicator| replicator.target().clone());
        let step = async {
            let Some(replicator) = replicator else {
                *replicator = Some(begin(context, home, replication, progress).await?);
                return Ok(Step::Begun);
            };
            if replicator.look().await? && due {
                replicator.move_root().await?;
                return Ok(Step::Moved);
            }
            Ok(Step::Looked)
        };
        match watched(Box::pin(step), target.as_ref(), progress).await {
            Ok(step) => {
                pause = PAUSE_MIN;
                match step {
                    Step::Begun => {
                        progress.send_modify(|progress| progress.trouble = None);
                        continue;
                    }
                    Step::Moved => moved_at = Some(Instant::now()),
                    Step::Looked => {}
                }
                if !replication.follow {
                    return Ok(());
                }
                tokio::time::sleep(LOOK_INTERVAL.min(replication.age.max(PAUSE_MIN))).await;
            }
            Err(error) if !replication.follow || is_final(&error) => return Err(error),
            Err(error) => {
                let trouble = with_causes(&error);
                tracing::warn!(volume = %replication.name, trouble, "replication waits");
                progress.send_modify(|progress| progress.trouble = Some(trouble));
                tokio::time::sleep(pause).await;
                pause = (pause * 2).min(PAUSE_MAX);
            }
        }
    }
}

const NOT_BEGUN: &str = "it has not begun: one of its stores does not answer yet, or the lease of another process that \
                         kept the replica has to run out";

/// What a step of [`follow`] did.
enum Step {
    Begun,
    Looked,
    Moved,
}

/// Waits for the end of a step. What is asked of a store is tried again for minutes before it counts as failed; that
/// the replica's store takes nothing is said before, also where a step needs nothing of it. Without a target yet, it
/// is not known what is waited for.
async fn watched(
    mut step: impl Future<Output = Result<Step, NodeError>> + Unpin,
    target: Option<&Store>,
    progress: &watch::Sender<ReplicationProgress>,
) -> Result<Step, NodeError> {
    loop {
        let ended = tokio::time::timeout(LOOK_INTERVAL, &mut step).await;
        let error = match (target, &ended) {
            // All that the replica needs has been taken, so an error is one of before.
            (_, Ok(Ok(Step::Begun | Step::Moved))) => None,
            (Some(target), _) => target.put_error().map(|error| with_causes(&error)),
            (None, Err(_)) => Some(NOT_BEGUN.to_owned()),
            (None, Ok(_)) => None,
        };
        if let Some(error) = error.filter(|_| !mutant("replica_waits_unsaid")) {
            progress.send_modify(|progress| progress.trouble = Some(error));
        }
        if let Ok(ended) = ended {
            return ended;
        }
    }
}
