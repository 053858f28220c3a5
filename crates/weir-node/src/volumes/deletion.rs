//! Deleting a volume that nobody has open, with its files in this data directory; and what is left here of one that was
//! deleted elsewhere.

use std::path::Path;

use weir_device::{VolumeId, mutant};
use weir_disk::Directory;
use weir_log::catalog::{self, DeleteConsent, VolumeName};
use weir_log::{JOURNAL_FILE, LOCK_FILE, LogError};
use weir_store::{Access, Store};

use crate::error::NodeError;
use crate::home::Home;
use crate::home::open::lock;
use crate::home::opened;
use crate::node::shard::ShardContext;
use crate::size::counted;
use crate::volumes::{salvage, volume_id};

/// Deletes a volume that nobody has open.
pub(crate) async fn delete(
    context: &ShardContext,
    home: &Home,
    name: &VolumeName,
    (take_over, discard_journal): (bool, bool),
    on_progress: impl FnMut(u64, u64),
) -> Result<(), NodeError> {
    let store = home.open_store(context, Access::Write).await?;
    let details = match catalog::show(&store, &context.env, name).await {
        Err(error @ LogError::NoSuchVolume { .. }) => {
            let removed = remove_left(context, home, &store, name, discard_journal).await?;
            return if removed == 0 { Err(error.into()) } else { Ok(()) };
        }
        shown => shown?,
    };
    let id = volume_id(&details.summary)?;
    home.refuse_if_served(&store, name, id).await?;
    match discard_journal {
        true => check_discards(context, home, &store, (name, id)).await?,
        false => salvage::check_salvaged(context, home, &store, (name, id)).await?,
    }
    let directory = context.disks.directory(home.data.volume(id))?;
    let local = match lock(&directory, name).await {
        Ok(_) if opened::is_of_another_store(home, &store, id) => None,
        Ok(lock) => Some(lock),
        // They belong to a volume of another store, and are not deleted.
        Err(_) if home.is_open_elsewhere(&store, id).await? => None,
        Err(error) => return Err(error),
    };
    // A process that ended without closing the volume used either this journal or one of another host.
    let journal = match local {
        Some(_) => catalog::journal_in(&directory, id).await?,
        None => None,
    };
    let consent = DeleteConsent { take_over, ours: journal.clone() };
    let files = directory.list().await?;
    let has_journal = files.iter().any(|file| file == JOURNAL_FILE);
    let are_its = match &journal {
        Some(journal) => catalog::is_journal_of(&store, &context.env, id, journal).await?,
        None => !has_journal,
    };
    catalog::delete(&store, &context.env, name, consent, on_progress).await?;
    if local.is_none() || !are_its {
        let path = home.data.volume(id);
        tracing::warn!(volume = %name, path = %path.display(), "the local files are not of this volume, and stay");
        return Ok(());
    }
    remove_files(&directory, &files, &home.data.volume(id)).await
}

/// Checks that the volume has a journal to give up, where that is asked for: whoever means the journal of a volume in
/// another store, or of a deleted one, must not delete the one that has its name now. If there are journals here of
/// deleted volumes of that name, they are removed, and nothing else.
///
/// # Errors
/// [`NodeError::NothingToDiscard`] where such journals were removed, or it has none.
pub(crate) async fn check_discards(
    context: &ShardContext,
    home: &Home,
    store: &Store,
    (name, id): (&VolumeName, VolumeId),
) -> Result<(), NodeError> {
    // First of all: whoever means those must not delete the volume, also where that has such a journal as well.
    let removed = remove_left(context, home, store, name, true).await?;
    let directory = context.disks.directory(home.data.volume(id))?;
    if (removed == 0 || mutant("discard_means_the_volume"))
        && let Some(journal) = catalog::journal_in(&directory, id).await?
        && catalog::went_on_without(store, &context.env, id, &journal).await?
    {
        return Ok(());
    }
    let why = match removed {
        0 => {
            "there is no journal in this data directory that it went on without, which --discard-journal would give up"
                .to_owned()
        }
        _ => {
            let journals = counted(removed, "journal");
            format!("removed {journals} here, left of what was deleted elsewhere under that name")
        }
    };
    Err(NodeError::NothingToDiscard { name: name.to_string(), removed, why })
}

/// Refuses where the volume of this journal here was deleted. The error has the name that it had then, under which the
/// journal is given up.
pub(crate) async fn refuse_left(
    context: &ShardContext,
    home: &Home,
    store: &Store,
    id: VolumeId,
) -> Result<(), NodeError> {
    match catalog::deleted_name(store, &context.env, id).await? {
        Some(name) => Err(deleted_elsewhere(home, id, name)),
        None => Ok(()),
    }
}

fn deleted_elsewhere(home: &Home, id: VolumeId, name: String) -> NodeError {
    let journal = home.data.volume(id).join(JOURNAL_FILE).display().to_string();
    NodeError::DeletedElsewhere { name, journal }
}

/// Removes the journals here of volumes of this name that were deleted elsewhere; how many. Nothing can be made of them
/// any more, as the rest of their bytes is gone, but what they hold may be the only copy of it.
async fn remove_left(
    context: &ShardContext,
    home: &Home,
    store: &Store,
    name: &VolumeName,
    discard_journal: bool,
) -> Result<usize, NodeError> {
    let mut removed = 0;
    for id in home.data.volumes()? {
        let path = home.data.volume(id);
        let directory = context.disks.directory(path.clone())?;
        // First of all: the journal of another volume may be damaged, which does not matter here.
        let deleted = catalog::deleted_name(store, &context.env, id).await?;
        if deleted.as_deref() != Some(name.as_str()) {
            continue;
        }
        let Some(journal) = catalog::journal_in(&directory, id).await? else { continue };
        if !catalog::is_journal_of(store, &context.env, id, &journal).await?
            || opened::is_of_another_store(home, store, id)
        {
            continue;
        }
        if !discard_journal {
            return Err(deleted_elsewhere(home, id, name.to_string()));
        }
        let _lock = lock(&directory, name).await?;
        let files = directory.list().await?;
        remove_files(&directory, &files, &path).await?;
        removed += 1;
    }
    Ok(removed)
}

/// Removes the files of a volume, the lock's last: it is held meanwhile.
async fn remove_files(
    directory: &Directory,
    files: &[String],
    path: &Path,
) -> Result<(), NodeError> {
    for file in files.iter().filter(|file| *file != LOCK_FILE) {
        directory.remove(file).await?;
    }
    remove_directory(path)
}

fn remove_directory(path: &Path) -> Result<(), NodeError> {
    std::fs::remove_dir_all(path)
        .map_err(|source| NodeError::io("removing", path.display().to_string(), source))
}
