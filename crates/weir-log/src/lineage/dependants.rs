//! Who depends on a volume: the notes that clones leave with every volume whose objects their maps may name, and
//! replicas of clones with every stream of their store that theirs may name.
//!
//! Invariants
//!  D1. A clone's note is there before the manifest version that it read its snapshot in is read again, and that before
//!      its own manifest is created.
//!  D2. A snapshot is given up only once a listing shows no note that needs it, made after a version counts in which
//!      it is being deleted. With D1 no clone of it is created after such a listing.
//!  D3. A note goes only when its clone's manifest does not name that origin any more, or is deleted, or can never be
//!      created.

use std::time::Duration;

use bytes::Bytes;
use weir_device::{Env, VolumeId};
use weir_store::{Put, RetryPolicy, Store, StoreError};

use crate::catalog::names::{self, VolumeName};
use crate::error::LogError;
use crate::format::dependant::{DEPENDANT_FORMAT, Dependant, DependantRecord};
use crate::format::json::read_whole;
use crate::format::manifest::{Manifest, OriginRecord, VolumeState};
use crate::lineage::clones::note_of;
use crate::own::chain::Retention;
use crate::own::manifests::{self, ManifestWriter};

/// Age from which on a clone that was never finished is given up: far longer than making one takes, and than two hosts'
/// clocks differ.
const UNFINISHED_AGE_MIN: Duration = Duration::from_secs(3600);

/// All notes left with a volume.
pub(crate) async fn list(
    store: &Store,
    env: &Env,
    stream: VolumeId,
) -> Result<Vec<Dependant>, StoreError> {
    let prefix = Dependant::prefix(stream);
    let mut random = || env.random.next_u64();
    let list = || store.list(&prefix, None);
    let listed = store.retry(&RetryPolicy::reads(), &mut random, None, list).await?;
    let notes = listed.iter().filter_map(|l| Dependant::parse_key(&l.key));
    let is_seen =
        |note: &Dependant| note.snapshot.is_some() || !weir_device::mutant("replica_notes_ignored");
    Ok(notes.filter(is_seen).collect())
}

/// Leaves the note of a clone. One that is there already is our own, of an attempt whose reply was lost: ids are used
/// once.
pub(crate) async fn put(
    store: &Store,
    env: &Env,
    (origin, clone): (&OriginRecord, VolumeId),
    name: &VolumeName,
) -> Result<(), StoreError> {
    let record = DependantRecord {
        format: DEPENDANT_FORMAT,
        stream: origin.stream,
        snapshot: origin.id,
        clone: clone.into(),
        name: name.to_string(),
        written_at: env.clock.wall().as_secs(),
        checksum: String::new(),
    };
    let note = note_of(origin, clone);
    put_new(store, env, &note, Bytes::from(record.encode())).await.map(drop)
}

/// Leaves the note of a replica; whether it was not there yet.
pub(crate) async fn put_of_replica(
    store: &Store,
    env: &Env,
    stream: VolumeId,
    replica: VolumeId,
) -> Result<bool, StoreError> {
    let note = Dependant { stream, snapshot: None, clone: replica };
    Ok(put_new(store, env, &note, Bytes::from_static(b"{}\n")).await? == Put::Created)
}

async fn put_new(
    store: &Store,
    env: &Env,
    note: &Dependant,
    body: Bytes,
) -> Result<Put, StoreError> {
    let (key, mut random) = (note.key(), || env.random.next_u64());
    let put = || store.put_create(&key, vec![body.clone()]);
    store.retry(&RetryPolicy::reads(), &mut random, None, put).await
}

/// Takes a note away (D3 is the caller's).
pub(crate) async fn remove(store: &Store, env: &Env, note: &Dependant) -> Result<(), StoreError> {
    let (key, mut random) = (note.key(), || env.random.next_u64());
    store.retry(&RetryPolicy::reads(), &mut random, None, || store.delete(&key)).await
}

/// What has become of the clone that left a note.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Standing {
    /// It needs what the note says; its name.
    Needed(String),
    /// It may be in the making.
    Unfinished,
    /// It does not need it (any more): D3.
    Void,
}

/// Finds out what has become of a clone. One that was not finished in an hour is given up: its first manifest, or its
/// next, is then ours, and nobody can create it any more.
pub(crate) async fn standing(
    store: &Store,
    env: &Env,
    note: &Dependant,
) -> Result<Standing, LogError> {
    let Some(snapshot) = note.snapshot else { return of_replica(store, env, note.clone).await };
    let manifest = match manifests::find_newest(store, env, note.clone).await? {
        Some(manifest) => manifest,
        None if !is_old(read(store, env, note).await?, env.clock.wall()) => {
            return Ok(Standing::Unfinished);
        }
        None => return give_up(store, env, names::blank(note.clone, "")).await,
    };
    if manifest.state == VolumeState::Deleted {
        return Ok(Standing::Void);
    }
    let stream = note.stream.into();
    if !manifest.origins.iter().any(|o| o.stream == stream && o.id == snapshot) {
        return Ok(Standing::Void);
    }
    if manifest.epochs.is_empty() && is_old(Some(manifest.written_at), env.clock.wall()) {
        let name = VolumeName::new(&manifest.name)?;
        // Only a name that was read and stands for something else proves that nobody ever opened the clone: one that
        // cannot be read may be its own.
        let is_named = match names::find(store, env, &name).await {
            Ok(id) => id == note.clone,
            Err(LogError::NoSuchVolume { .. }) => false,
            Err(_) if weir_device::mutant("unread_name_is_none") => false,
            Err(error) => return Err(error),
        };
        if !is_named {
            return give_up(store, env, manifest).await;
        }
    }
    Ok(Standing::Needed(manifest.name))
}

/// Finds out what has become of a replica that left a note. What it was promoted to reads its objects.
async fn of_replica(store: &Store, env: &Env, replica: VolumeId) -> Result<Standing, LogError> {
    let Some(mut manifest) = manifests::find_newest(store, env, replica).await? else {
        return Ok(Standing::Unfinished);
    };
    let promoted_to = manifest.replica.as_ref().and_then(|replica| replica.promoted_to);
    if manifest.state != VolumeState::Deleted
        && let Some(volume) = promoted_to
        && let Some(promoted) = manifests::find_newest(store, env, VolumeId(volume.0)).await?
    {
        manifest = promoted;
    }
    Ok(match manifest.state {
        VolumeState::Deleted => Standing::Void,
        _ => Standing::Needed(manifest.name),
    })
}

/// Whether what was written then is given up at `now`. Of what does not say when it was written, never.
fn is_old(written_at: Option<u64>, now: Duration) -> bool {
    let age = written_at.map(|at| now.as_secs().saturating_sub(at));
    age.is_some_and(|age| age >= UNFINISHED_AGE_MIN.as_secs())
}

/// When a note was written; nothing where it cannot be told.
async fn read(store: &Store, env: &Env, note: &Dependant) -> Result<Option<u64>, LogError> {
    let (key, mut random) = (note.key(), || env.random.next_u64());
    let got = store.retry(&RetryPolicy::reads(), &mut random, None, || store.get(&key)).await;
    let bytes = match got {
        Err(StoreError::NotFound { .. }) => return Ok(None),
        got => got?,
    };
    let record = read_whole(&bytes, DependantRecord::is_intact);
    Ok(record.map(|record| record.written_at))
}

/// Makes sure that a clone that was not finished never is.
async fn give_up(store: &Store, env: &Env, manifest: Manifest) -> Result<Standing, LogError> {
    let (id, retention) = (VolumeId(manifest.volume.0), Retention::default());
    let mut writer = ManifestWriter::new(store.clone(), id, manifest, retention);
    let deleted = |m: &mut Manifest| m.state = VolumeState::Deleted;
    match writer.publish(env, &RetryPolicy::reads(), deleted).await {
        Ok(()) => {
            tracing::warn!(clone = %id, "a clone that was never finished is given up");
            Ok(Standing::Void)
        }
        // Somebody finishes it after all.
        Err(LogError::Fenced { .. }) => Ok(Standing::Unfinished),
        Err(error) => Err(error),
    }
}

/// The names of the clones that need anything of a volume.
pub(crate) async fn names(
    store: &Store,
    env: &Env,
    stream: VolumeId,
) -> Result<Vec<String>, LogError> {
    let mut names = Vec::new();
    for note in list(store, env, stream).await? {
        match standing(store, env, &note).await? {
            Standing::Needed(name) => names.push(name),
            Standing::Unfinished => names.push(format!("{} (being made)", note.clone)),
            Standing::Void => {}
        }
    }
    names.sort_unstable();
    names.dedup();
    Ok(names)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_says_that_it_is_old_is_given_up() {
        let now = Duration::from_secs(10_000);
        assert!(!is_old(None, now), "a note that cannot be read");
        assert!(!is_old(Some(10_000), now) && !is_old(Some(20_000), now));
        let old = 10_000 - UNFINISHED_AGE_MIN.as_secs();
        assert!(is_old(Some(old), now) && !is_old(Some(old + 1), now));
    }
}
