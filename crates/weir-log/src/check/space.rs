//! What the snapshots of a volume take in the store, and what deleting one would give back: by objects, because space
//! comes back an object at a time. Checkpoints of older versions name objects that died since the one before too, so
//! that such a snapshot keeps some that it shows nothing of.
//!
//! Made from the store alone, in one pass: a list of the volume's own objects with their sizes, the object tables of
//! the snapshots, and the map of the newest checkpoint, a few pieces at a time. Memory is some 100 bytes per object.
//! What an open volume wrote since that checkpoint is not known here, so that the sums are those of a moment ago.

use std::collections::{BTreeMap, BTreeSet};
use std::rc::Rc;

use weir_device::{Env, ErrorKind, VolumeId};
use weir_seal::DataKey;
use weir_store::{RetryPolicy, Store};

use crate::error::LogError;
use crate::format::manifest::{HexId, Manifest, Origin};
use crate::ids::ObjectId;
use crate::keys::Keys;
use crate::limits::COMPARED_PIECES_MAX;
use crate::lineage::dependants;
use crate::map::load;
use crate::map::pieces::{PieceIndex, PieceReader};
use crate::own::manifests;

/// Times that the sums are begun anew because the volume went on meanwhile.
const ATTEMPTS_MAX: u32 = 3;

/// What a snapshot takes in the store, in bytes as they are stored there.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SnapshotSpace {
    /// Its name.
    pub name: String,
    /// Objects of the volume that it reaches.
    pub reached_bytes: u64,
    /// Those of them that the volume itself, another snapshot or a clone needs as well.
    pub shared_bytes: u64,
    /// What deleting it gives back: the rest. Nothing while a clone needs it.
    pub reclaimable_bytes: u64,
    /// Clones that need it.
    pub clones: u64,
    /// It was deleted, and goes with the last clone that needs it.
    pub deleting: bool,
}

/// Whom an object is reached by.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Reached {
    ByNobody,
    /// By this one of the snapshots and nobody else.
    By(usize),
    BySeveral,
}

/// What each snapshot of a volume takes, oldest first.
///
/// # Errors
/// What the store says, also where a snapshot or the map is damaged: then nobody knows what is needed, and nothing is
/// deleted either.
pub async fn snapshot_space(
    store: &Store,
    env: &Env,
    (volume, keys): (VolumeId, &Keys),
) -> Result<Vec<SnapshotSpace>, LogError> {
    let mut attempt = 0;
    loop {
        attempt += 1;
        let manifest = manifests::newest(store, env, volume).await?;
        let key = keys.open(volume, manifest.encryption.as_ref()).await?;
        match sum_up(store, env, key.as_ref(), &manifest).await {
            // What a superseded version names may be gone.
            Err(error) if error.kind() == ErrorKind::NotFound && attempt < ATTEMPTS_MAX => {}
            other => return other,
        }
    }
}

async fn sum_up(
    store: &Store,
    env: &Env,
    key: Option<&DataKey>,
    manifest: &Manifest,
) -> Result<Vec<SnapshotSpace>, LogError> {
    let volume = VolumeId(manifest.volume.0);
    let mut objects = own_objects(store, env, volume).await?;
    let notes = dependants::list(store, env, volume).await.map_err(LogError::Store)?;
    let clones = |id: HexId| notes.iter().filter(|note| note.snapshot == Some(id)).count() as u64;
    let mut spaces = Vec::new();
    for (index, record) in manifest.snapshots.iter().enumerate() {
        let mut reached_bytes = 0;
        for id in load::reach(store, env, key, record.root(volume)).await? {
            let Some((bytes, reached)) = objects.get_mut(&id) else { continue };
            reached_bytes += *bytes;
            *reached = match *reached {
                Reached::ByNobody => Reached::By(index),
                Reached::By(other) if other == index => Reached::By(index),
                Reached::By(_) | Reached::BySeveral => Reached::BySeveral,
            };
        }
        spaces.push(SnapshotSpace {
            name: record.name.clone(),
            reached_bytes,
            shared_bytes: reached_bytes,
            reclaimable_bytes: 0,
            clones: clones(record.id),
            deleting: record.deleting,
        });
    }
    if let Some(root) = manifest.root() {
        for id in head_objects(store, env, key, root).await? {
            if let Some((_, reached)) = objects.get_mut(&id) {
                *reached = Reached::BySeveral;
            }
        }
    }
    for (bytes, reached) in objects.into_values() {
        if let Reached::By(index) = reached
            && spaces[index].clones == 0
        {
            spaces[index].shared_bytes -= bytes;
            spaces[index].reclaimable_bytes += bytes;
        }
    }
    Ok(spaces)
}

/// The objects of the volume's own stream, with their sizes. Those of others are not its to delete.
async fn own_objects(
    store: &Store,
    env: &Env,
    volume: VolumeId,
) -> Result<BTreeMap<ObjectId, (u64, Reached)>, LogError> {
    let prefix = ObjectId::prefix(volume);
    let mut random = || env.random.next_u64();
    let list = || store.list(&prefix, None);
    let listed = store.retry(&RetryPolicy::reads(), &mut random, None, list).await;
    let listed = listed.map_err(LogError::Store)?;
    let sized = listed.iter().filter_map(|l| Some((ObjectId::parse_key(&l.key)?, l.size)));
    Ok(sized.map(|(id, size)| (id, (size, Reached::ByNobody))).collect())
}

/// The objects that the volume itself needs: those that its map points at, and those of its checkpoint.
async fn head_objects(
    store: &Store,
    env: &Env,
    key: Option<&DataKey>,
    root: Origin,
) -> Result<BTreeSet<ObjectId>, LogError> {
    let index = Rc::new(PieceIndex::read(store, env, key, root).await?);
    let mut needed: BTreeSet<ObjectId> = load::checkpoint_objects(store, env, key, root).await?;
    let mut reader = PieceReader::new(store, env, Rc::clone(&index));
    let numbers: Vec<u64> = index.numbers().collect();
    for numbers in numbers.chunks(COMPARED_PIECES_MAX) {
        reader.fetch(numbers).await?;
        for number in numbers {
            needed.extend(reader.runs(*number)?.into_iter().filter_map(|(_, object)| object));
        }
    }
    Ok(needed)
}
