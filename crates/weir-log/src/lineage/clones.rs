//! Making a clone: a volume of its own that begins as a snapshot, and shares its objects.
//!
//! Nothing is read but the parent's manifest, and nothing is copied. See `dependants` for why the order of the
//! steps keeps every object that the clone may need.

use weir_device::{Env, VolumeId};
use weir_store::{RetryPolicy, Store};

use crate::catalog::names::{self, Verb, VolumeName, blank};
use crate::error::LogError;
use crate::format::dependant::Dependant;
use crate::format::manifest::{Manifest, OriginRecord, SnapshotRecord, Takeover, VolumeState};
use crate::lineage::dependants;
use crate::own::chain::Retention;
use crate::own::manifests::{self, ManifestWriter};

/// Creates the volume `name` as a clone of a snapshot. It costs a few small objects, whatever the size.
///
/// # Errors
/// [`LogError::NoSuchVolume`], [`LogError::NoSuchSnapshot`], [`LogError::Exists`] when the name is taken, or what the
/// store says. After an error of the store the clone may be there.
pub async fn create_clone(
    store: &Store,
    env: &Env,
    from: (&VolumeName, &VolumeName),
    name: &VolumeName,
    takeover: Takeover,
) -> Result<VolumeId, LogError> {
    create_in_state(store, env, from, name, (takeover, VolumeState::Active)).await
}

/// [`create_clone`] of a volume that is to be filled first: it opens only for that until
/// [`crate::catalog::set_incomplete`] says that it is whole.
///
/// # Errors
/// As there.
pub async fn create_incomplete_clone(
    store: &Store,
    env: &Env,
    from: (&VolumeName, &VolumeName),
    name: &VolumeName,
    takeover: Takeover,
) -> Result<VolumeId, LogError> {
    create_in_state(store, env, from, name, (takeover, VolumeState::Incomplete)).await
}

async fn create_in_state(
    store: &Store,
    env: &Env,
    (parent, snapshot): (&VolumeName, &VolumeName),
    name: &VolumeName,
    how: (Takeover, VolumeState),
) -> Result<VolumeId, LogError> {
    let verb = Verb { store, env };
    let next = verb.next_free(name).await?;
    let stream = names::find(store, env, parent).await?;
    let seen = manifests::newest(store, env, stream).await?;
    let origins = origins_of(&seen, find(&seen, parent, snapshot)?, parent);
    let id = VolumeId(verb.nonce().0);
    let notes: Vec<Dependant> = origins.iter().map(|origin| note_of(origin, id)).collect();
    for origin in &origins {
        dependants::put(store, env, (origin, id), name).await?;
    }
    let created = finish(&verb, (stream, parent, snapshot), (id, name, next, how), &seen);
    let created = created.await;
    if let Err(error) = &created
        && is_certain(error)
    {
        for note in &notes {
            if let Err(error) = dependants::remove(store, env, note).await {
                tracing::warn!(%error, note = note.key(), "a note of a clone that is none stays for an hour");
            }
        }
    }
    created.map(|()| id)
}

/// Whether it is known that the clone is not there and never will be.
fn is_certain(error: &LogError) -> bool {
    let nothing_there = matches!(error, LogError::NoSuchSnapshot { .. } | LogError::Deleted { .. });
    nothing_there || matches!(error, LogError::Exists { .. })
}

/// D1: the notes are there; now the parent is looked at again, and the clone created.
async fn finish(
    verb: &Verb<'_>,
    (stream, parent, snapshot): (VolumeId, &VolumeName, &VolumeName),
    (id, name, next, (takeover, state)): (VolumeId, &VolumeName, u64, (Takeover, VolumeState)),
    seen: &Manifest,
) -> Result<(), LogError> {
    let Verb { store, env } = *verb;
    let now = if weir_device::mutant("clone_without_second_look") {
        seen.clone()
    } else {
        manifests::newest(store, env, stream).await?
    };
    let wanted = find(seen, parent, snapshot)?;
    let found = find(&now, parent, snapshot)?;
    if found.id != wanted.id {
        let (snapshot, volume) = (snapshot.to_string(), parent.to_string());
        return Err(LogError::NoSuchSnapshot { snapshot, volume });
    }
    // What the parent has let go of since, the snapshot does not need either.
    let origins = origins_of(&now, found, parent);
    let manifest = Manifest {
        size: found.size,
        state,
        takeover,
        // It reads what its parent wrote.
        encryption: now.encryption.clone(),
        object_version: now.object_version,
        origin: Some(found.root(stream)),
        lineage: origins.iter().map(|origin| origin.stream).collect(),
        origins,
        ..blank(id, name.as_str())
    };
    let retention = Retention::default();
    let mut writer = ManifestWriter::new(store.clone(), id, manifest, retention);
    writer.publish(env, &RetryPolicy::reads(), |_| {}).await?;
    if verb.publish_name(name, next, Some(id)).await? {
        return Ok(());
    }
    // The clone has no name, so nobody could delete it later. It must not keep objects of its parent.
    writer.publish(env, &RetryPolicy::reads(), |m| m.state = VolumeState::Deleted).await?;
    Err(verb.name_is_taken(name))
}

/// The snapshot, of a volume that clones can be made of.
fn find<'a>(
    manifest: &'a Manifest,
    parent: &VolumeName,
    snapshot: &VolumeName,
) -> Result<&'a SnapshotRecord, LogError> {
    let volume = VolumeId(manifest.volume.0);
    match manifest.state {
        VolumeState::Active => {}
        VolumeState::Replica => return Err(LogError::Replica { name: manifest.name.clone() }),
        VolumeState::Incomplete => return Err(LogError::Incomplete { volume }),
        VolumeState::Deleted => return Err(LogError::Deleted { volume }),
    }
    manifest.snapshot(snapshot.as_str()).ok_or_else(|| LogError::NoSuchSnapshot {
        snapshot: snapshot.to_string(),
        volume: parent.to_string(),
    })
}

/// The snapshots that a clone's map may name objects of, nearest first.
fn origins_of(
    manifest: &Manifest,
    snapshot: &SnapshotRecord,
    parent: &VolumeName,
) -> Vec<OriginRecord> {
    let nearest = OriginRecord {
        stream: manifest.volume,
        volume: parent.to_string(),
        snapshot: snapshot.name.clone(),
        id: snapshot.id,
    };
    std::iter::once(nearest).chain(manifest.origins.iter().cloned()).collect()
}

/// The note about an origin.
pub(crate) fn note_of(origin: &OriginRecord, clone: VolumeId) -> Dependant {
    Dependant { stream: VolumeId(origin.stream.0), snapshot: Some(origin.id), clone }
}
