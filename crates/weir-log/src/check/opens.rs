//! Whether a volume that is open could be opened again: what every opening reads first is read, and nothing else.

use weir_device::{Env, VolumeId, with_causes};
use weir_journal::ManifestSeen;
use weir_store::Store;

use super::{VIEWS_MAX, damage_of, examine, root_of};
use crate::catalog::{self, VolumeName};
use crate::error::LogError;
use crate::format::manifest::Manifest;
use crate::keys::Keys;
use crate::own::manifests;

/// An open volume, as the opening that comes next will look for it.
#[derive(Clone, Copy, Debug)]
pub struct Reopening<'a> {
    /// The volume.
    pub id: VolumeId,
    /// What it is looked for by.
    pub name: &'a VolumeName,
    /// The version of its manifest that the store is known to have had.
    pub known: Option<ManifestSeen>,
    /// Where the next opening has its keys from, where that is known. A place that cannot be looked at is not asked.
    pub keys: Option<&'a Keys>,
}

/// Why a volume could not be opened again.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Obstacle {
    /// The newest version of its manifest is damaged, or the root of the checkpoint that this names is damaged or
    /// missing. The process that serves the volume can write them anew.
    Damage(String),
    /// The store is not as this process knows it: it lacks the name or the manifest, or was set back.
    OtherStore(String),
    /// The key does not open it.
    Key(String),
}

impl Obstacle {
    /// The store has another volume under the name.
    #[must_use]
    pub fn other_volume() -> Self {
        Self::OtherStore("the store has another volume of that name".to_owned())
    }
}

/// What keeps an open volume from being opened again, if anything does: what every opening reads first is read.
///
/// # Errors
/// What the store says where it does not answer.
pub async fn obstacle_to_opening(
    store: &Store,
    env: &Env,
    volume: Reopening<'_>,
) -> Result<Option<Obstacle>, LogError> {
    let Reopening { id, name, known, keys } = volume;
    match catalog::find(store, env, name).await {
        Ok(found) if found == id => {}
        Ok(_) => return Ok(Some(Obstacle::other_volume())),
        Err(LogError::NoSuchVolume { .. }) => {
            return Ok(other_store("the store has no volume of that name any more".to_owned()));
        }
        Err(error) => return damage_of(error).map(|(_, problem)| other_store(problem)),
    }
    let mut seen = None;
    for _ in 0..VIEWS_MAX {
        let manifest = match manifests::find_newest(store, env, id).await {
            Ok(Some(manifest)) => manifest,
            Ok(None) => {
                return Ok(other_store("the store has no manifest of it any more".to_owned()));
            }
            Err(error) => {
                return damage_of(error).map(|(_, problem)| Some(Obstacle::Damage(problem)));
            }
        };
        if let Some(why) = known.and_then(|known| set_back(&manifest, known)) {
            return Ok(other_store(why));
        }
        if let Some(keys) = keys.filter(|keys| keys.can_be_looked_at())
            && let Err(error) = keys.open(id, manifest.encryption.as_ref()).await
        {
            return Ok(Some(Obstacle::Key(with_causes(&error))));
        }
        // The root that was looked at may have been collected since. Where it is still the newest, it was not.
        if let Some((number, wrong)) = seen.take()
            && number == manifest.number
        {
            return Ok(Some(Obstacle::Damage(wrong)));
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

fn other_store(why: String) -> Option<Obstacle> {
    Some(Obstacle::OtherStore(why))
}

/// Versions of the manifest only ever follow each other, so that a store which lacks one that it had was set back, or
/// is another one.
fn set_back(newest: &Manifest, known: ManifestSeen) -> Option<String> {
    let is_same = newest.number > known.number || newest.seen() == known;
    (!is_same && !weir_device::mutant("reopening_in_a_store_set_back")).then(|| {
        format!(
            "the store has version {} of its manifest as the newest one, and lacks version {} that it had: it was set \
             back, or is another one",
            newest.number, known.number
        )
    })
}
