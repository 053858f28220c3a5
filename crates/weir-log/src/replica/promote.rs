//! Making a volume of a replica.
//!
//! Order, each step durable before the next: the replica's manifest says what it becomes, which ends replication for
//! good; the manifest of the new volume, which begins with the replica's root; the name. Asked for again after a crash,
//! it goes on where it stopped.

use weir_device::{Env, VolumeId};
use weir_store::{RetryPolicy, Store};

use super::root_of;
use crate::catalog::names::{self, VolumeName};
use crate::error::LogError;
use crate::format::manifest::{HexId, Manifest, SnapshotRecord, Takeover, VolumeState};
use crate::limits::RESOLVE_ATTEMPTS_MAX;
use crate::own::chain::Retention;
use crate::own::manifests::{self, ManifestWriter};

/// Makes a volume of the replica `name`, with its snapshots: its identity. The volume has a stream of its own, so that
/// the source, wherever it wakes, cannot write into it; it reads what it has not written itself from the replica's
/// objects. A replicator that still runs is told at its next step.
///
/// # Errors
/// [`LogError::NoReplica`], [`LogError::NoSuchVolume`], or what the store says: ask for it again then.
pub async fn promote(store: &Store, env: &Env, name: &VolumeName) -> Result<VolumeId, LogError> {
    let replica = names::find(store, env, name).await?;
    let manifest = manifests::newest(store, env, replica).await?;
    if is_promoted(store, env, &manifest).await? {
        return Ok(replica);
    }
    let (manifest, id) = end_replication(store, env, manifest).await?;
    if weir_device::mutant("promote_without_new_stream") {
        let retention = Retention::default();
        let mut writer = ManifestWriter::new(store.clone(), replica, manifest, retention);
        let activate = |m: &mut Manifest| m.state = VolumeState::Active;
        writer.publish(env, &RetryPolicy::reads(), activate).await?;
        return Ok(replica);
    }
    let volume = promoted(store, &manifest, id)?;
    let retention = Retention::default();
    match ManifestWriter::new(store.clone(), id, volume, retention)
        .publish(env, &RetryPolicy::reads(), |_| {})
        .await
    {
        // Another promotion of the same replica made it, or we did before a crash.
        Ok(()) | Err(LogError::Fenced { .. }) => {}
        Err(error) => return Err(error),
    }
    names::point(store, env, name, Some(replica), id).await?;
    tracing::info!(%replica, volume = %id, "promoted");
    Ok(id)
}

/// Whether this volume is what a replica was promoted to.
async fn is_promoted(store: &Store, env: &Env, manifest: &Manifest) -> Result<bool, LogError> {
    if manifest.state == VolumeState::Replica {
        return Ok(false);
    }
    if weir_device::mutant("promote_without_new_stream") {
        return Ok(manifest.replica.as_ref().is_some_and(|r| r.promoted_to.is_some()));
    }
    let Some(parent) = manifest.lineage.first() else { return Ok(false) };
    let parent = manifests::find_newest(store, env, VolumeId(parent.0)).await?;
    let promoted_to = parent.and_then(|parent| parent.replica).and_then(|r| r.promoted_to);
    Ok(promoted_to == Some(manifest.volume))
}

/// The last version of the replica's manifest, and what it becomes by it.
async fn end_replication(
    store: &Store,
    env: &Env,
    mut manifest: Manifest,
) -> Result<(Manifest, VolumeId), LogError> {
    let volume = VolumeId(manifest.volume.0);
    let mut attempt = 0;
    loop {
        attempt += 1;
        root_of(store, &manifest)?;
        let promoted_to = manifest.replica.as_ref().and_then(|replica| replica.promoted_to);
        if let Some(to) = promoted_to {
            return Ok((manifest, VolumeId(to.0)));
        }
        let mut id = [0; 16];
        env.random.fill(&mut id);
        let retention = Retention::default();
        let mut writer = ManifestWriter::new(store.clone(), volume, manifest, retention);
        let end = |m: &mut Manifest| {
            m.holder = None;
            if let Some(replica) = &mut m.replica {
                replica.promoted_to = Some(HexId(id));
            }
        };
        match writer.publish(env, &RetryPolicy::reads(), end).await {
            Ok(()) => return Ok((writer.current().clone(), VolumeId(id))),
            // The replicator was quicker: its next root is as good.
            Err(LogError::Fenced { .. }) if attempt < RESOLVE_ATTEMPTS_MAX => {
                manifest = manifests::newest(store, env, volume).await?;
            }
            Err(error) => return Err(error),
        }
    }
}

/// The first manifest of the volume.
fn promoted(store: &Store, replica: &Manifest, id: VolumeId) -> Result<Manifest, LogError> {
    let snapshot = |s: &SnapshotRecord| SnapshotRecord {
        stream: Some(s.stream.unwrap_or(replica.volume)),
        ..s.clone()
    };
    Ok(Manifest {
        number: 0,
        volume: id.into(),
        state: VolumeState::Active,
        epochs: Vec::new(),
        takeover: Takeover::Manual,
        holder: None,
        checkpoint: None,
        origin: Some(root_of(store, replica)?),
        replica: None,
        lineage: [replica.volume].iter().chain(&replica.lineage).copied().collect(),
        snapshots: replica.snapshots.iter().map(snapshot).collect(),
        pending_deletions: Vec::new(),
        ..replica.clone()
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn snapshots_are_looked_for_in_the_streams_that_have_them() {
        let text = include_str!("../../testdata/v1/replica.json");
        let mut replica: Manifest = serde_json::from_str(text).expect("a manifest");
        let snapshot = replica.snapshots.pop().expect("it has one");
        let (elsewhere, own) = (HexId([9; 16]), replica.volume);
        replica.snapshots = [Some(elsewhere), None]
            .map(|stream| SnapshotRecord { stream, ..snapshot.clone() })
            .to_vec();
        let store = Store::open("memory://").expect("a store");
        let volume = promoted(&store, &replica, VolumeId([1; 16])).expect("it has a root");
        let streams: Vec<_> = volume.snapshots.iter().map(|s| s.stream).collect();
        assert_eq!(streams, [Some(elsewhere), Some(own)]);
    }
}
