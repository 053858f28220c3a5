//! Giving a volume that is closed another name.
//!
//! Rules
//!  N1. The name in the manifest stands for the volume before, between and after all steps: whether a clone that was
//!      never opened is still wanted is told by it ([`crate::lineage::dependants`]).
//!  N2. What was cut off leaves the volume with both names, and is ended by doing it again.

use weir_device::{Env, VolumeId};
use weir_store::Store;

use crate::catalog::change_closed;
use crate::catalog::names::{Verb, VolumeName, find, point};
use crate::error::LogError;
use crate::format::manifest::VolumeState;
use crate::format::name::NameRecord;
use crate::own::manifests;

/// Gives the volume `from`, which nobody has open, the name `to`.
///
/// # Errors
/// [`LogError::NoSuchVolume`]; [`LogError::Exists`] where `to` stands for another volume; [`LogError::Replica`],
/// [`LogError::Deleted`]; [`LogError::InUse`] or [`LogError::Held`] while a node has it open or did not close it; or
/// what the store says, after which the volume may have both names.
pub async fn rename(
    store: &Store,
    env: &Env,
    from: &VolumeName,
    to: &VolumeName,
) -> Result<VolumeId, LogError> {
    let volume = find(store, env, from).await?;
    if from == to {
        return Ok(volume);
    }
    if manifests::newest(store, env, volume).await?.state == VolumeState::Replica {
        return Err(LogError::Replica { name: from.to_string() });
    }
    // Whether it is closed is asked before anything is changed.
    change_closed(store, env, from, |_| {}).await?;
    if weir_device::mutant("rename_retires_first") {
        retire(store, env, from, volume).await?;
    }
    point(store, env, to, None, volume).await?;
    let renamed = change_closed(store, env, to, |manifest| manifest.name = to.to_string()).await;
    if let Err(
        error @ (LogError::Deleted { .. } | LogError::InUse { .. } | LogError::Held { .. }),
    ) = renamed
    {
        // Somebody was first, and it is known that the manifest keeps the old name.
        retire(store, env, to, volume).await?;
        return Err(error);
    }
    renamed?;
    retire(store, env, from, volume).await?;
    Ok(volume)
}

/// Has a name stand for nothing any more, unless it stands for something else already.
async fn retire(
    store: &Store,
    env: &Env,
    name: &VolumeName,
    volume: VolumeId,
) -> Result<(), LogError> {
    let verb = Verb { store, env };
    loop {
        match verb.newest_name(name).await? {
            Some(NameRecord { number, volume: Some(id), .. }) if VolumeId(id.0) == volume => {
                if verb.publish_name(name, number + 1, None).await? {
                    return Ok(());
                }
            }
            _ => return Ok(()),
        }
    }
}
