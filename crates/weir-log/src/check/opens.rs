//! Whether a volume that is open could be opened again: what every opening reads first is read, and nothing else.

use weir_device::{Env, VolumeId};
use weir_store::Store;

use super::{VIEWS_MAX, damage_of, examine, root_of};
use crate::error::LogError;
use crate::own::manifests;

/// What is damaged or missing that every opening of the volume reads first: the newest version of its manifest, or the
/// root of the checkpoint that this names. In words; nothing where both can be read. Needs no key.
///
/// # Errors
/// What the store says where it does not answer.
pub async fn damage_to_opening(
    store: &Store,
    env: &Env,
    id: VolumeId,
) -> Result<Option<String>, LogError> {
    let mut seen = None;
    for _ in 0..VIEWS_MAX {
        let manifest = match manifests::find_newest(store, env, id).await {
            Ok(Some(manifest)) => manifest,
            // Deleted by another host.
            Ok(None) => return Ok(None),
            Err(error) => return damage_of(error).map(|(_, problem)| Some(problem)),
        };
        // The root that was looked at may have been collected since. Where it is still the newest, it was not.
        if let Some((number, wrong)) = seen.take()
            && number == manifest.number
        {
            return Ok(Some(wrong));
        }
        let Some(root) = manifest.root().map(root_of) else { return Ok(None) };
        let read = env.background(examine(store.clone(), root, None, env.random.next_u64()));
        let (_, wrong) = read.await.ok_or(LogError::ShuttingDown)??;
        let Some(wrong) = wrong else { return Ok(None) };
        seen = Some((manifest.number, format!("{}: {}", root.key(), wrong.problem)));
    }
    // It goes on so fast that it publishes in between each time: that is no damage.
    Ok(None)
}
