//! The volumes of a store: their names, and what can be done with them while nobody has them open.

pub(crate) mod deletion;
pub(crate) mod names;
mod rename;

use std::collections::BTreeMap;
use std::time::Duration;

use serde::Serialize;
use weir_device::{Env, ErrorKind, VolumeId};
use weir_store::{RetryPolicy, Store, StoreError};

use crate::catalog::names::{NAMES, Verb, blank, parse_name_key};
use crate::error::LogError;
use crate::format::lease::LeaseRecord;
use crate::format::manifest::{Encryption, Manifest, SnapshotRecord, Takeover, VolumeState};
use crate::ids::{ObjectId, WriteMark};
use crate::keys::{KeyError, Keys};
use crate::limits::LEASE_LENGTH;
use crate::own::chain::{self, Retention};
use crate::own::lease::read_record;
use crate::own::manifests::{self, ManifestWriter};
use crate::own::takeover::Claim;

/// One line of a listing.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct VolumeSummary {
    /// Name.
    pub name: VolumeName,
    /// Identity, 32 hex digits.
    pub id: String,
    /// Size in bytes.
    pub size_bytes: u64,
    /// Node that has it open for writing or did not close it, if any.
    pub holder: Option<String>,
    /// Whether that node renewed its lease within its length, by the clocks of both hosts: it has the volume open, or
    /// was stopped just now. For messages only; whoever acts on it watches the lease for its whole length.
    pub is_renewed: bool,
    /// What happens when the holder's lease runs out.
    pub takeover: Takeover,
    /// Whether it is whole.
    pub state: VolumeState,
    /// It is a replica in which nothing is complete yet: there is nothing to promote or to read.
    pub is_empty_replica: bool,
}

/// Everything a store knows of a volume without opening it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct VolumeDetails {
    /// As in a listing.
    #[serde(flatten)]
    pub summary: VolumeSummary,
    /// Openings so far.
    pub epoch: u64,
    /// Sequence that the published checkpoint is as of.
    pub checkpoint_as_of: Option<u64>,
    /// Objects in the store.
    pub objects: u64,
    /// Their bytes.
    pub object_bytes: u64,
    /// Number of the newest manifest.
    pub manifest: u64,
    /// Of a clone: the snapshots whose objects it may need, as they were called, nearest first.
    pub origins: Vec<String>,
    /// How it is encrypted, if it is.
    pub encryption: Option<Encryption>,
}

pub use crate::catalog::deletion::{
    DeleteConsent, delete, deleted_name, is_held_with, is_journal_of, journal_in, refuse_if_needed,
};
pub use crate::catalog::names::{VolumeName, check_size, find, is_lost};
pub use crate::catalog::rename::rename;
pub use crate::lineage::clones::{create_clone, create_incomplete_clone};
pub use crate::recover::evidence::JournalHere;
pub use crate::recover::salvage::went_on_without;

/// [`create_as`] of a volume that only a person hands to another node.
///
/// # Errors
/// As there.
pub async fn create(
    store: &Store,
    env: &Env,
    name: &VolumeName,
    size: u64,
) -> Result<VolumeId, LogError> {
    create_as(store, env, name, size, Takeover::Manual, None).await
}

/// Creates a volume of `size` bytes, encrypted if a key for it was drawn. It costs two small objects until something is
/// written.
///
/// # Errors
/// [`LogError::Exists`] when the name is taken, [`LogError::Size`], or what the store says.
pub async fn create_as(
    store: &Store,
    env: &Env,
    name: &VolumeName,
    size: u64,
    takeover: Takeover,
    encryption: Option<Encryption>,
) -> Result<VolumeId, LogError> {
    create_in_state(store, env, name, (size, takeover, VolumeState::Active, encryption)).await
}

/// [`create_as`] of a volume that is to be filled first: until [`set_incomplete`] says that it is whole, it opens only
/// for that.
///
/// # Errors
/// As there.
pub async fn create_incomplete(
    store: &Store,
    env: &Env,
    name: &VolumeName,
    size: u64,
    takeover: Takeover,
    encryption: Option<Encryption>,
) -> Result<VolumeId, LogError> {
    create_in_state(store, env, name, (size, takeover, VolumeState::Incomplete, encryption)).await
}

async fn create_in_state(
    store: &Store,
    env: &Env,
    name: &VolumeName,
    (size, takeover, state, encryption): (u64, Takeover, VolumeState, Option<Encryption>),
) -> Result<VolumeId, LogError> {
    check_size(size)?;
    let verb = Verb { store, env };
    let next = verb.next_free(name).await?;
    let id = VolumeId(verb.nonce().0);
    let manifest = Manifest { size, state, takeover, encryption, ..blank(id, name.as_str()) };
    // The manifest first: a name never points at nothing. One without a name is an orphan, and harmless.
    ManifestWriter::new(store.clone(), id, manifest, Retention::default())
        .publish(env, &RetryPolicy::reads(), |_| {})
        .await?;
    if !verb.publish_name(name, next, Some(id)).await? {
        return Err(verb.name_is_taken(name));
    }
    Ok(id)
}

/// Whether no volume was ever named in the store: names outlive their volumes.
///
/// # Errors
/// What the store says.
pub async fn is_blank(store: &Store, env: &Env) -> Result<bool, LogError> {
    let mut random = || env.random.next_u64();
    let list = || store.list_page(NAMES, None);
    Ok(store.retry(&RetryPolicy::reads(), &mut random, None, list).await?.is_empty())
}

/// The volumes of a store.
#[derive(Debug, Default)]
pub struct Listing {
    /// Those that can be told of, by name.
    pub volumes: Vec<VolumeSummary>,
    /// Names whose record or manifest cannot be read, and why: damaged, or of a newer format.
    pub unreadable: Vec<(VolumeName, LogError)>,
}

/// All volumes of a store, by name.
///
/// # Errors
/// What the store says. What is wrong with one volume alone is in the listing.
pub async fn list(store: &Store, env: &Env) -> Result<Listing, LogError> {
    let verb = Verb { store, env };
    let listed = verb.retry(|| store.list(NAMES, None)).await?;
    let mut newest: BTreeMap<VolumeName, u64> = BTreeMap::new();
    for (name, number) in listed.iter().filter_map(|l| parse_name_key(&l.key)) {
        let entry = newest.entry(name).or_insert(number);
        *entry = (*entry).max(number);
    }
    let mut listing = Listing::default();
    for (name, number) in newest {
        match summary(&verb, &name, number).await {
            Ok(Some(summary)) => listing.volumes.push(summary),
            Ok(None) => {}
            Err(error) if is_of_one_volume(&error) => listing.unreadable.push((name, error)),
            Err(error) => return Err(error),
        }
    }
    Ok(listing)
}

/// The volume of a name as of its record `number`; none where it stands for nothing any more.
async fn summary(
    verb: &Verb<'_>,
    name: &VolumeName,
    number: u64,
) -> Result<Option<VolumeSummary>, LogError> {
    let Some(id) = verb.read_name(name, number).await?.volume else { return Ok(None) };
    let manifest = manifests::newest(verb.store, verb.env, VolumeId(id.0)).await?;
    Ok(Some(summary_of(verb, name.clone(), &manifest).await))
}

/// Whether others of the same store may be read all the same.
fn is_of_one_volume(error: &LogError) -> bool {
    match error {
        // After a listing that was allowed, a record that may not be read is one of another owner.
        LogError::Store(StoreError::Denied { .. } | StoreError::NotFound { .. }) => true,
        error => matches!(error.kind(), ErrorKind::Corrupt | ErrorKind::Unsupported),
    }
}

async fn summary_of(verb: &Verb<'_>, name: VolumeName, manifest: &Manifest) -> VolumeSummary {
    VolumeSummary {
        name,
        is_renewed: is_renewed(verb, manifest).await,
        id: manifest.volume.into(),
        size_bytes: manifest.size,
        holder: manifest.holder.as_ref().map(|h| h.name.clone()),
        takeover: manifest.takeover,
        state: manifest.state,
        is_empty_replica: manifest.state == VolumeState::Replica && manifest.root().is_none(),
    }
}

/// Whether the holder renewed its lease not longer ago than the lease's length. A lease that cannot be read says
/// nothing.
async fn is_renewed(verb: &Verb<'_>, manifest: &Manifest) -> bool {
    let Some(holder) = &manifest.holder else { return false };
    let prefix = LeaseRecord::prefix(holder.node);
    let Ok(numbers) = verb.retry(|| chain::numbers(verb.store, &prefix)).await else {
        return false;
    };
    let Some(number) = numbers.last() else { return false };
    let key = chain::key(&prefix, *number);
    let read = verb.retry(|| read_record(verb.store, &key)).await;
    let Ok(Some(record)) = read else { return false };
    let written = Duration::from_secs(record.written_at);
    let length = Duration::from_millis(record.length_ms);
    record.identity() == holder.lease() && verb.env.clock.wall().abs_diff(written) <= length
}

/// How a volume is encrypted, if it is.
///
/// # Errors
/// [`LogError::NoSuchVolume`], or what the store says.
pub async fn encryption(
    store: &Store,
    env: &Env,
    name: &VolumeName,
) -> Result<Option<Encryption>, LogError> {
    let id = find(store, env, name).await?;
    Ok(manifests::newest(store, env, id).await?.encryption)
}

/// What the store knows of a volume.
///
/// # Errors
/// [`LogError::NoSuchVolume`], or what the store says.
pub async fn show(store: &Store, env: &Env, name: &VolumeName) -> Result<VolumeDetails, LogError> {
    let id = find(store, env, name).await?;
    let manifest = manifests::newest(store, env, id).await?;
    let verb = Verb { store, env };
    let prefix = ObjectId::prefix(id);
    let objects = verb.retry(|| store.list(&prefix, None)).await?;
    Ok(VolumeDetails {
        epoch: manifest.newest_epoch().0,
        checkpoint_as_of: manifest.checkpoint.map(|c| c.as_of),
        objects: objects.len() as u64,
        object_bytes: objects.iter().map(|o| o.size).sum(),
        manifest: manifest.number,
        origins: manifest.origins.iter().map(|o| format!("{}@{}", o.volume, o.snapshot)).collect(),
        encryption: manifest.encryption.clone(),
        summary: summary_of(&verb, name.clone(), &manifest).await,
    })
}

/// The snapshots of a volume, oldest first.
///
/// # Errors
/// [`LogError::NoSuchVolume`], or what the store says.
pub async fn snapshots(
    store: &Store,
    env: &Env,
    name: &VolumeName,
) -> Result<Vec<SnapshotRecord>, LogError> {
    let id = find(store, env, name).await?;
    Ok(manifests::newest(store, env, id).await?.snapshots)
}

/// Sets what happens when the holder's lease runs out, of a volume that is closed.
///
/// # Errors
/// [`LogError::InUse`] or [`LogError::Held`] while a node has it open or did not close it;
/// [`LogError::NoSuchVolume`].
pub async fn set_takeover(
    store: &Store,
    env: &Env,
    name: &VolumeName,
    takeover: Takeover,
) -> Result<(), LogError> {
    change_closed(store, env, name, |manifest| manifest.takeover = takeover).await
}

/// Says of a volume that is closed whether it is only partly filled.
///
/// # Errors
/// As [`set_takeover`]; [`LogError::Deleted`].
pub async fn set_incomplete(
    store: &Store,
    env: &Env,
    name: &VolumeName,
    incomplete: bool,
) -> Result<(), LogError> {
    let state = if incomplete { VolumeState::Incomplete } else { VolumeState::Active };
    change_closed(store, env, name, |manifest| manifest.state = state).await
}

/// The keys of a change of keys.
#[derive(Clone, Copy, Debug)]
pub struct RekeyKeys<'a> {
    /// They open the volume now.
    pub old: &'a Keys,
    /// The first of them is to wrap its data key.
    pub new: &'a Keys,
}

/// Wraps the key of a volume that is closed with the first of the `new` keys, out of what the `old` ones open. Nothing
/// else changes, and nothing is written where that is the key it is wrapped with already. Answers how it is now.
///
/// # Errors
/// As [`set_takeover`]; [`LogError::Key`].
pub async fn rekey(
    store: &Store,
    env: &Env,
    name: &VolumeName,
    keys: RekeyKeys<'_>,
) -> Result<Encryption, LogError> {
    let volume = find(store, env, name).await?;
    let manifest = manifests::newest(store, env, volume).await?;
    let Some(key) = keys.old.open(volume, manifest.encryption.as_ref()).await? else {
        return Err(KeyError::NotEncrypted { volume }.into());
    };
    let wrapped = keys.new.wrap(env, &key).await?;
    change_closed(store, env, name, |manifest| match &mut manifest.encryption {
        Some(now) if now.wrapped_with == wrapped.wrapped_with => {}
        now => *now = Some(wrapped.clone()),
    })
    .await?;
    Ok(wrapped)
}

/// Publishes a change to the manifest of a volume that nobody has open, unless it is so already.
async fn change_closed(
    store: &Store,
    env: &Env,
    name: &VolumeName,
    change: impl Fn(&mut Manifest),
) -> Result<(), LogError> {
    let volume = find(store, env, name).await?;
    let manifest = manifests::newest(store, env, volume).await?;
    if manifest.state == VolumeState::Deleted {
        return Err(LogError::Deleted { volume });
    }
    let claim = Claim::without_journal((store, env), volume, false, LEASE_LENGTH);
    let manifest = claim.admit(manifest, WriteMark::default()).await?.manifest;
    if let Some(holder) = manifest.holder {
        let (node, holder) = (holder.name, weir_journal::JournalId(holder.journal.0));
        let may_hold = "acknowledged writes that are not in the store yet".to_owned();
        return Err(LogError::Held { volume, holder, node, may_hold });
    }
    let mut changed = manifest.clone();
    change(&mut changed);
    if changed == manifest {
        return Ok(());
    }
    let retention = Retention::default();
    let mut writer = ManifestWriter::new(store.clone(), volume, manifest, retention);
    writer.publish(env, &RetryPolicy::reads(), |m| change(m)).await
}
