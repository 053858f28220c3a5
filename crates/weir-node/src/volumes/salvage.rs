//! A volume of what a takeover gave up: the snapshot of what it took, and what the old journal here holds.

use weir_device::{Env, FlushScope, LocalBoxFuture, VolumeId};
use weir_disk::DiskError;
use weir_log::catalog::{self, VolumeName};
use weir_log::{
    Closed, LogError, Salvage, SalvageArgs, SalvageReport, Takeover, VolumeOptions, VolumeState,
};
use weir_store::{Access, Store};

use crate::api::types::{AtRisk, Shown};
use crate::error::NodeError;
use crate::home::processes::{Process, locked};
use crate::home::{Consent, Home, known_stores, opened};
use crate::node::Node;
use crate::node::shard::ShardContext;
use crate::volumes::volume_id;

/// What is to be salvaged.
#[derive(Clone, Debug)]
pub struct SalvageWish {
    /// The volume whose journal is here.
    pub name: VolumeName,
    /// The volume to make; `None` only looks.
    pub new: Option<VolumeName>,
    /// What happens when the lease of its holder runs out.
    pub takeover: Takeover,
    /// Go on without what is damaged in the journal.
    pub accept_loss: bool,
}

/// What a salvage found, and made.
#[derive(Clone, Debug, serde::Serialize)]
pub struct Salvaged {
    /// What the journal holds.
    pub found: SalvageReport,
    /// The new volume; `None` if none was asked for.
    pub volume: Option<Shown>,
}

fn args_of(
    context: &ShardContext,
    home: &Home,
    (store, id): (&Store, VolumeId),
    accept_loss: bool,
) -> Result<SalvageArgs, NodeError> {
    Ok(SalvageArgs {
        store: store.clone(),
        env: context.env.clone(),
        id,
        directory: context.disks.directory(home.data.volume(id))?,
        keys: home.keys.clone(),
        options: VolumeOptions::default(),
        accept_loss,
    })
}

/// Checks before a volume is deleted that its journal here holds no writes that are nowhere else. What the volume
/// itself went on with is deleted with it.
pub(crate) async fn check_salvaged(
    context: &ShardContext,
    home: &Home,
    store: &Store,
    (name, id): (&VolumeName, VolumeId),
) -> Result<(), NodeError> {
    let found = match Salvage::find(&args_of(context, home, (store, id), true)?).await {
        Ok(salvage) => salvage.report(),
        Err(LogError::NothingToSalvage { .. }) => return Ok(()),
        // Who takes the lock finds out whether its holder is in the way.
        Err(LogError::Disk(DiskError::Locked { .. })) => return Ok(()),
        Err(error) => return check_unread(context, home, store, (name, id), error).await,
    };
    if found.blocks == 0 {
        return Ok(());
    }
    let (name, blocks, bytes) = (name.to_string(), found.blocks, found.bytes);
    Err(NodeError::NotSalvaged { name, blocks, bytes })
}

/// The same if the journal cannot be read, because its key or the store is missing or it is damaged. Then it is not
/// known what it holds, and it is not given up. To delete a volume whose journal was not set aside no key is needed.
async fn check_unread(
    context: &ShardContext,
    home: &Home,
    store: &Store,
    (name, id): (&VolumeName, VolumeId),
    source: LogError,
) -> Result<(), NodeError> {
    let directory = context.disks.directory(home.data.volume(id))?;
    let Some(journal) = catalog::journal_in(&directory, id).await? else { return Ok(()) };
    if catalog::went_on_without(store, &context.env, id, &journal).await? {
        let (name, source) = (name.to_string(), Box::new(source));
        return Err(NodeError::NotKnownSalvaged { name, source });
    }
    Ok(())
}

/// The volume to fill: a new one, or one that a salvage of the same snapshot did not finish. Every write is replayed
/// again there, in order, so that it makes no difference how far the first attempt came.
async fn new_or_begun(
    store: &Store,
    env: &Env,
    from: (&VolumeName, &VolumeName),
    (new, takeover): (&VolumeName, Takeover),
) -> Result<VolumeId, NodeError> {
    let exists = match catalog::create_incomplete_clone(store, env, from, new, takeover).await {
        Err(error @ LogError::Exists { .. }) => error,
        created => return Ok(created?),
    };
    let there = catalog::show(store, env, new).await?;
    let origin = format!("{}@{}", from.0, from.1);
    if there.summary.state != VolumeState::Incomplete || there.origins.first() != Some(&origin) {
        return Err(exists.into());
    }
    tracing::info!(volume = %new, "a salvage that was not finished is gone on with");
    volume_id(&there.summary)
}

/// The error for a journal that another process has open: what it serves needs no salvage, and no other end.
async fn in_use(
    home: &Home,
    store: &Store,
    (name, id): (&VolumeName, VolumeId),
    error: DiskError,
) -> Result<NodeError, NodeError> {
    if let Some(Process { id: process, status: Ok(_), .. }) = home.holder(store, id).await? {
        let why =
            format!("process {process} serves it, and its journal here is the one it goes on with");
        return Ok(
            NodeError::from(LogError::NothingToSalvage { volume: id, why }).of_volume(name, id)
        );
    }
    Ok(home.who_has_locked(store, name, id, locked(error.into(), name)).await)
}

async fn salvage(
    context: &ShardContext,
    home: &Home,
    wish: &SalvageWish,
    on_progress: impl FnMut(u64, u64),
) -> Result<Salvaged, NodeError> {
    home.data.prepare()?;
    if let Some(new) = &wish.new {
        home.refuse_taken(None, new).await?;
    }
    let store = home.open_store(context, Access::Write).await?;
    if let Some(new) = &wish.new {
        known_stores::check_not_lost(context, home, &store, new).await?;
    }
    let env = &context.env;
    let id = catalog::find(&store, env, &wish.name).await?;
    let args = args_of(context, home, (&store, id), wish.accept_loss)?;
    let salvage = match Salvage::find(&args).await {
        Err(LogError::Disk(error @ DiskError::Locked { .. })) => {
            return Err(in_use(home, &store, (&wish.name, id), error).await?);
        }
        found => found?,
    };
    let found = salvage.report();
    let Some(new) = &wish.new else { return Ok(Salvaged { found, volume: None }) };
    salvage.check_whole()?;
    let from = (&wish.name, salvage.snapshot());
    let id = new_or_begun(&store, env, from, (new, wish.takeover)).await?;
    let consent = Consent { incomplete: true, ..Consent::default() };
    let options = VolumeOptions::default();
    let deadline = options.close_deadline;
    let opened = home.open_volume(context, store.clone(), id, new, options, consent).await?;
    let (stack, _report) = opened;
    let replayed = stack.replay(&salvage, on_progress).await;
    let flushed = match replayed {
        Ok(()) => stack.flush(FlushScope::Store).await,
        failed => failed,
    };
    let closed = stack.close(deadline).await;
    flushed?;
    let closed = closed?;
    let unsent = stack.log_status().map(AtRisk::from).unwrap_or_default();
    opened::note_closed(&home.data, id, closed, unsent);
    if closed == Closed::LocalOnly {
        // The journal keeps the rest, and the same salvage goes on with it.
        return Err(NodeError::from(LogError::Incomplete { volume: id }).of_volume(new, id));
    }
    catalog::set_incomplete(&store, env, new, false).await?;
    let volume = Some(Shown::new(catalog::show(&store, env, new).await?, None));
    Ok(Salvaged { found, volume })
}

impl Node {
    /// Makes a volume of what a takeover gave up; looks only, where no new one is named. `on_progress` hears of bytes
    /// replayed and bytes to replay. A new volume that was not finished stays incomplete; the next call with its name
    /// goes on with it.
    ///
    /// # Errors
    /// When there is nothing to salvage, the name is taken, the journal is damaged and that is not accepted, or what
    /// store and disk say.
    #[inline(never)]
    pub fn salvage_volume<'a>(
        &'a self,
        home: Home,
        wish: SalvageWish,
        on_progress: impl FnMut(u64, u64) + Send + 'static,
    ) -> LocalBoxFuture<'a, Result<Salvaged, NodeError>> {
        Box::pin(async move {
            self.run(
                0,
                move |context| async move { salvage(&context, &home, &wish, on_progress).await },
            )
            .await?
        })
    }
}
