//! Listing and showing the volumes of a store, with the processes that serve them.

use weir_device::{LocalBoxFuture, VolumeId, with_causes};
use weir_log::catalog::{self, VolumeName};
use weir_log::{LOCK_FILE, LogError};
use weir_store::{Access, Store};

use crate::api::types::{Listed, Shown};
use crate::error::NodeError;
use crate::home::processes::Process;
use crate::home::{Home, known_stores};
use crate::node::Node;
use crate::node::shard::ShardContext;
use crate::volumes::{unserved, volume_id};

/// Lists the volumes of the store, and those that a process serves from this data directory and that are in none.
pub(crate) async fn list(context: &ShardContext, home: &Home) -> Result<Vec<Listed>, NodeError> {
    let processes = home.processes().await?;
    let elsewhere = processes.iter().flat_map(|process| {
        let served = process.all_without_store();
        served.map(|volume| Listed::of_served(process.number(), volume))
    });
    let mut volumes: Vec<Listed> = elsewhere.collect();
    if known_stores::is_to_come(home)? {
        if volumes.is_empty() {
            let directory = home.data.path().display();
            tracing::warn!(
                "no volume was made in {directory} yet: if there should be some, --data-dir names another place"
            );
        }
        return Ok(volumes);
    }
    let store = match home.open_store(context, Access::Read).await {
        Err(NodeError::NoStore { .. }) if !volumes.is_empty() => return Ok(volumes),
        opened => opened?,
    };
    let listing = catalog::list(&store, &context.env).await?;
    for mut summary in listing.volumes {
        let id = volume_id(&summary)?;
        let process = processes.iter().find(|process| process.holds(&store, id));
        let uri = process.and_then(|process| process.volume(id)).map(|volume| volume.uri.clone());
        if process.is_none() && summary.is_renewed {
            summary.is_renewed = !was_left_here(context, home, &store, id).await?;
        }
        volumes.push(Listed::new(summary, process.and_then(Process::number), uri));
    }
    let unreadable = listing.unreadable.into_iter();
    volumes.extend(unreadable.map(|(name, error)| Listed::unreadable(&name, with_causes(&error))));
    volumes.sort_by(|a, b| a.name.cmp(&b.name));
    Ok(volumes)
}

/// Whether the opening that holds a volume was that of a process which ended without closing it: its journal is here,
/// and nobody has that open.
async fn was_left_here(
    context: &ShardContext,
    home: &Home,
    store: &Store,
    id: VolumeId,
) -> Result<bool, NodeError> {
    let path = home.data.volume(id);
    if !path.exists() || unserved::holder(&path.join(LOCK_FILE)).is_some() {
        return Ok(false);
    }
    let directory = context.disks.directory(path)?;
    match catalog::journal_in(&directory, id).await? {
        Some(journal) => Ok(catalog::is_held_with(store, &context.env, id, &journal).await?),
        None => Ok(false),
    }
}

/// Shows a volume.
pub(crate) async fn show(
    context: &ShardContext,
    home: &Home,
    name: &VolumeName,
) -> Result<Shown, NodeError> {
    let store = match home.open_store(context, Access::Read).await {
        Err(error @ NodeError::NoStore { .. }) => {
            return served_without_store(home, name).await?.ok_or(error);
        }
        opened => opened?,
    };
    let mut details = match catalog::show(&store, &context.env, name).await {
        Err(error @ LogError::NoSuchVolume { .. }) => {
            return served_without_store(home, name).await?.ok_or(error.into());
        }
        found => found?,
    };
    let id = volume_id(&details.summary)?;
    let holder = home.holder_of_one(&store, id, name).await?;
    if holder.is_none() && details.summary.is_renewed {
        details.summary.is_renewed = !was_left_here(context, home, &store, id).await?;
    }
    let process = holder.as_ref().and_then(Process::number);
    let serving = holder.as_ref().and_then(|process| process.volume(id)).cloned();
    let mut shown = Shown::new(details, process.zip(serving));
    // A process that does not answer is named as well.
    shown.process = process;
    Ok(shown)
}

/// A volume that a process of this data directory serves and that is in no store: a remote one, or a file.
async fn served_without_store(home: &Home, name: &VolumeName) -> Result<Option<Shown>, NodeError> {
    let holder = home.holder_without_store(name).await?;
    Ok(holder.and_then(|process| {
        let serving = process.without_store(name)?.clone();
        Some(Shown::of_served(process.number(), serving))
    }))
}

impl Node {
    /// Shows a volume.
    ///
    /// # Errors
    /// When there is none of that name, or what the store says.
    #[inline(never)]
    pub fn show_volume<'a>(
        &'a self,
        home: Home,
        name: VolumeName,
    ) -> LocalBoxFuture<'a, Result<Shown, NodeError>> {
        Box::pin(async move {
            self.run(0, move |context| async move { show(&context, &home, &name).await }).await?
        })
    }
}
