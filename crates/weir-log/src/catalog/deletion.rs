//! Deleting a volume that nobody has open: the manifest says so first, then the objects go and what belongs to them,
//! then the name.

use std::cell::Cell;
use std::time::Duration;

use weir_device::{Env, VolumeId};
use weir_disk::Directory;
use weir_journal::{Journal, JournalError};
use weir_store::{RetryPolicy, Store, StoreError};

use crate::catalog::names::{Verb, VolumeName};
use crate::error::LogError;
use crate::format::dependant::Dependant;
use crate::format::manifest::{Manifest, VolumeState};
use crate::format::name::NameRecord;
use crate::format::replica::ReplicaNote;
use crate::ids::{ObjectId, WriteMark};
use crate::limits::LEASE_LENGTH;
use crate::lineage::clones::note_of;
use crate::lineage::dependants;
use crate::own::chain::{self, Retention};
use crate::own::manifests::{self, ManifestWriter};
use crate::own::takeover::Claim;
use crate::recover::args::JOURNAL_FILE;
use crate::recover::evidence::JournalHere;
use crate::recover::judge;

/// Longest time without a look at whether another process went on with a deletion.
const DELETING_UNSEEN_MAX: Duration = Duration::from_secs(1);

/// What allows a volume to be deleted that was not closed; by default nothing.
#[derive(Clone, Debug, Default)]
pub struct DeleteConsent {
    /// Somebody asked for it; the holder's lease must have run out all the same.
    pub take_over: bool,
    /// This journal is here, and the lock of its directory is held: nobody has the volume open with it. It allows
    /// nothing where the volume is held with another opening or another file, as where this one is a copy: then another
    /// process has it open or did not close it, whatever its host is called.
    pub ours: Option<JournalHere>,
}

/// The journal of `volume` in `directory`, if there is a whole one; a damaged or foreign one proves nothing.
///
/// # Errors
/// When the directory or the file cannot be read.
pub async fn journal_in(
    directory: &Directory,
    volume: VolumeId,
) -> Result<Option<JournalHere>, LogError> {
    if !directory.list().await?.iter().any(|name| name == JOURNAL_FILE) {
        return Ok(None);
    }
    match Journal::identify(directory, JOURNAL_FILE).await {
        Ok(found) if found.identity.volume == volume => Ok(Some(found.into())),
        Ok(_) => Ok(None),
        Err(JournalError::Disk(error)) => Err(error.into()),
        Err(error) => {
            tracing::warn!(%volume, %error, "the local journal does not say whose it is");
            Ok(None)
        }
    }
}

/// Whether a volume was ever open with this journal, as its manifest knows: files beside one that it does not know are
/// of another volume, such as the source of a replica, which has the same identity, or of another history.
///
/// # Errors
/// What the store says.
pub async fn is_journal_of(
    store: &Store,
    env: &Env,
    volume: VolumeId,
    journal: &JournalHere,
) -> Result<bool, LogError> {
    let manifest = manifests::newest(store, env, volume).await?;
    if manifest.replica.is_some() {
        // The openings that it names are its source's.
        return Ok(false);
    }
    let held = judge::is_held_with(&journal.0, &manifest);
    Ok(held || manifest.epochs.iter().any(|entry| journal.0.is_ours(entry)))
}

/// Whether a volume is held with this journal: the opening that nobody closed is one with it.
///
/// # Errors
/// What the store says.
pub async fn is_held_with(
    store: &Store,
    env: &Env,
    volume: VolumeId,
    journal: &JournalHere,
) -> Result<bool, LogError> {
    Ok(judge::is_held_with(&journal.0, &manifests::newest(store, env, volume).await?))
}

/// The name that a volume had when it was deleted, where this store says that it was.
///
/// # Errors
/// What the store says.
pub async fn deleted_name(
    store: &Store,
    env: &Env,
    volume: VolumeId,
) -> Result<Option<String>, LogError> {
    let manifest = manifests::find_newest(store, env, volume).await?;
    Ok(manifest.filter(|m| m.state == VolumeState::Deleted).map(|m| m.name))
}

/// Whether clones need a volume, as of now: one may be made right after.
///
/// # Errors
/// [`LogError::Dependants`] with their names.
pub async fn refuse_if_needed(
    store: &Store,
    env: &Env,
    name: &VolumeName,
    id: VolumeId,
) -> Result<(), LogError> {
    let clones = dependants::names(store, env, id).await?;
    if clones.is_empty() {
        return Ok(());
    }
    Err(LogError::Dependants { name: name.to_string(), clones: clones.join(", ") })
}

/// Publishes that a volume is deleted, unless clones need it; the version that says so.
async fn mark_deleted(
    store: &Store,
    env: &Env,
    name: &VolumeName,
    manifest: &Manifest,
) -> Result<u64, LogError> {
    let (id, policy) = (VolumeId(manifest.volume.0), RetryPolicy::reads());
    let retention = Retention::default();
    let mut writer = ManifestWriter::new(store.clone(), id, manifest.clone(), retention);
    let before = manifest.state;
    if before == VolumeState::Deleted {
        // Another process marked the volume as deleted and may be about to undo that or to delete objects. Publishing
        // the next version settles which of the two goes on. Objects may be gone already, so the volume stays deleted
        // whatever clones are found.
        writer.publish(env, &policy, |_| {}).await?;
        refuse_if_needed(store, env, name, id).await?;
        return Ok(writer.current().number);
    }
    refuse_if_needed(store, env, name, id).await?;
    writer.publish(env, &policy, |m| m.state = VolumeState::Deleted).await?;
    // As of that version nobody makes another clone; one may have been made just before.
    let refused = refuse_if_needed(store, env, name, id).await;
    if refused.is_err() {
        // This writer has deleted nothing yet, and the version counts only if nobody else has gone on from ours.
        writer.publish(env, &policy, |m| m.state = before).await?;
    }
    refused.map(|()| writer.current().number)
}

/// A deletion under way. Keys are deleted only for as long as nobody has gone on from its version of the manifest: a
/// process may sleep in the middle of it, another one end it, and a replica be put in the volume's place with the same
/// keys.
struct Deletion<'a> {
    verb: Verb<'a>,
    id: VolumeId,
    version: u64,
    /// When its version was still the newest, by the host's clock.
    seen: Cell<Duration>,
    is_over: Cell<bool>,
}

impl Deletion<'_> {
    async fn delete(&self, key: &str) -> Result<(), LogError> {
        self.verb.retry(|| self.attempt(key)).await?;
        if self.is_over.get() {
            let what = "another process went on with its deletion, or put a replica in its place; this one stopped";
            return Err(LogError::Inconsistent { volume: self.id, what: what.to_owned() });
        }
        Ok(())
    }

    /// An attempt may come long after the one before, so each of them looks.
    async fn attempt(&self, key: &str) -> Result<(), StoreError> {
        let (store, clock) = (self.verb.store, &self.verb.env.clock);
        let now = clock.boottime();
        if now.saturating_sub(self.seen.get()) >= DELETING_UNSEEN_MAX
            && !weir_device::mutant("deletion_does_not_look_up")
        {
            let numbers = chain::numbers(store, &Manifest::prefix(self.id)).await?;
            self.is_over.set(numbers.iter().any(|number| *number > self.version));
            self.seen.set(now);
        }
        if self.is_over.get() { Ok(()) } else { store.delete(key).await }
    }
}

/// Deletes what a deleted volume has besides its objects: notes of clones and replicators, and the versions of its
/// manifest. The newest two stay, so that a writer that slept finds that its own does not count (see `chain`), and the
/// id stays taken.
async fn delete_rest(deletion: &Deletion<'_>) -> Result<(), LogError> {
    let Deletion { verb, id, .. } = *deletion;
    let prefix = Manifest::prefix(id);
    let numbers = verb.retry(|| chain::numbers(verb.store, &prefix)).await?;
    let old = numbers.iter().rev().skip(2).map(|number| chain::key(&prefix, *number));
    let mut keys: Vec<String> = old.collect();
    for notes in [Dependant::prefix(id), ReplicaNote::prefix(id)] {
        let listed = verb.retry(|| verb.store.list(&notes, None)).await?;
        keys.extend(listed.into_iter().map(|note| note.key));
    }
    for key in keys {
        deletion.delete(&key).await?;
    }
    Ok(())
}

/// Deletes a volume that nobody has open: the manifest says so first, then the objects go and what belongs to them,
/// then the name. A deletion that was interrupted goes on when it is asked for again. `progress` hears of objects gone
/// and objects in all.
///
/// # Errors
/// [`LogError::InUse`] while a node has it open; [`LogError::Held`] where one did not close it, unless `consent` says
/// to go on; [`LogError::Dependants`] while clones need it; [`LogError::NoSuchVolume`].
pub async fn delete(
    store: &Store,
    env: &Env,
    name: &VolumeName,
    consent: DeleteConsent,
    mut progress: impl FnMut(u64, u64),
) -> Result<(), LogError> {
    let verb = Verb { store, env };
    let gone = || LogError::NoSuchVolume { name: name.to_string(), store: store.url().to_owned() };
    let Some(NameRecord { number, volume: Some(id), .. }) = verb.newest_name(name).await? else {
        return Err(gone());
    };
    let id = VolumeId(id.0);
    let manifest = manifests::newest(store, env, id).await?;
    let DeleteConsent { take_over, ours } = consent;
    let is_ours = ours.is_some_and(|ours| judge::is_held_with(&ours.0, &manifest));
    let manifest = if is_ours {
        manifest
    } else {
        let claim = Claim::without_journal((store, env), id, take_over, LEASE_LENGTH);
        claim.admit(manifest, WriteMark::default()).await?.manifest
    };
    let seen = Cell::new(env.clock.boottime());
    let version = mark_deleted(store, env, name, &manifest).await?;
    let deletion = Deletion { verb, id, version, seen, is_over: Cell::new(false) };
    let verb = &deletion.verb;
    for origin in &manifest.origins {
        dependants::remove(store, env, &note_of(origin, id)).await?;
    }
    let prefix = ObjectId::prefix(id);
    let objects = verb.retry(|| store.list(&prefix, None)).await?;
    let total = objects.len() as u64;
    for (done, object) in (1..).zip(&objects) {
        deletion.delete(&object.key).await?;
        progress(done, total);
    }
    delete_rest(&deletion).await?;
    verb.publish_name(name, number + 1, None).await?;
    Ok(())
}
