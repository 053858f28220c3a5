//! Reading and publishing the versions of a volume's manifest.
//!
//! A change is a new version of the chain (see `own::chain`); one that does not count means that another writer is
//! there, and fences us.

use std::cell::Cell;
use std::rc::Rc;

use bytes::Bytes;
use weir_device::{Env, VolumeId};
use weir_journal::ManifestSeen;
use weir_store::{RetryPolicy, Store, StoreError};

use crate::error::LogError;
use crate::format::json::{format_of, read_whole};
use crate::format::manifest::{HexId, MANIFEST_FORMAT, Manifest};
use crate::own::chain::{self, CreateRules, Created, Lost, Pruner, Retention};

/// Reads a record. What does not decode is read again: it may have been damaged on its way only.
pub(crate) async fn read_undamaged<T, F>(mut once: impl FnMut() -> F) -> Result<T, LogError>
where
    F: Future<Output = Result<T, LogError>>,
{
    let mut attempt = 0;
    loop {
        attempt += 1;
        match once().await {
            Err(error @ LogError::Store(_)) => return Err(error),
            Err(_) if attempt < crate::limits::DAMAGED_ATTEMPTS_MAX => {}
            other => return other,
        }
    }
}

async fn read_version(store: &Store, volume: VolumeId, number: u64) -> Result<Manifest, LogError> {
    read_undamaged(|| read_version_once(store, volume, number)).await
}

async fn read_version_once(
    store: &Store,
    volume: VolumeId,
    number: u64,
) -> Result<Manifest, LogError> {
    let key = chain::key(&Manifest::prefix(volume), number);
    let bytes = store.get(&key).await?;
    let json = |source| LogError::Json {
        key: key.clone(),
        store: store.url().to_owned(),
        what: "a manifest",
        source,
    };
    let value: serde_json::Value = serde_json::from_slice(&bytes).map_err(json)?;
    let found = format_of(&value);
    if found > MANIFEST_FORMAT {
        return Err(LogError::FormatTooNew { volume, key, found, known: MANIFEST_FORMAT });
    }
    let manifest: Manifest = serde_json::from_value(value).map_err(json)?;
    if !manifest.is_intact() {
        let what = format!("{key} in {} fails its checksum", store.url());
        return Err(LogError::Inconsistent { volume, what });
    }
    if manifest.volume != HexId::from(volume) || manifest.number != number {
        let what = format!("{key} is the manifest of another volume or number");
        return Err(LogError::Inconsistent { volume, what });
    }
    Ok(manifest)
}

/// The newest version of a volume's manifest. Lists again when the version it found is gone (pruned meanwhile).
///
/// # Errors
/// [`LogError::Inconsistent`] when the volume has none, or what the store says.
pub(crate) async fn newest(
    store: &Store,
    env: &Env,
    volume: VolumeId,
) -> Result<Manifest, LogError> {
    find_newest(store, env, volume).await?.ok_or_else(|| {
        let what = format!("no manifest in {}", store.url());
        LogError::Inconsistent { volume, what }
    })
}

/// [`newest`], or nothing where there is none.
///
/// # Errors
/// As there.
pub(crate) async fn find_newest(
    store: &Store,
    env: &Env,
    volume: VolumeId,
) -> Result<Option<Manifest>, LogError> {
    let mut random = || env.random.next_u64();
    let policy = RetryPolicy::reads();
    let prefix = Manifest::prefix(volume);
    for _ in 0..crate::limits::NEWEST_ATTEMPTS_MAX {
        let list = || chain::numbers(store, &prefix);
        let listed = store.retry(&policy, &mut random, None, list).await?;
        let Some(number) = listed.last().copied() else { return Ok(None) };
        match retry_log(store, &policy, &mut random, || read_version(store, volume, number)).await {
            Err(LogError::Store(StoreError::NotFound { .. })) => {}
            other => return other.map(Some),
        }
    }
    let what = "its manifest keeps disappearing".to_owned();
    Err(LogError::Inconsistent { volume, what })
}

/// Retries a read whose error may be the store's, keeping errors of other kinds.
pub(crate) async fn retry_log<T, F>(
    store: &Store,
    policy: &RetryPolicy,
    random: &mut impl FnMut() -> u64,
    mut attempt: impl FnMut() -> F,
) -> Result<T, LogError>
where
    F: Future<Output = Result<T, LogError>>,
{
    let wrapped = || {
        let run = attempt();
        async move {
            match run.await {
                Err(LogError::Store(error)) => Err(error),
                other => Ok(other),
            }
        }
    };
    store.retry(policy, random, None, wrapped).await?
}

/// The one writer of a volume's manifest, as this opening sees it.
#[derive(Debug)]
pub(crate) struct ManifestWriter {
    store: Store,
    volume: VolumeId,
    current: Manifest,
    /// Which version that is, for who does not have the writer.
    newest: Rc<Cell<ManifestSeen>>,
    fenced: bool,
    /// What showed that the store was set back, if it did.
    set_back: Option<String>,
    retention: Retention,
    pruner: Pruner,
    prunable: Vec<u64>,
}

impl ManifestWriter {
    /// Goes on from `current`, the newest version.
    pub(crate) fn new(
        store: Store,
        volume: VolumeId,
        current: Manifest,
        retention: Retention,
    ) -> Self {
        let pruner = Pruner::default();
        let (newest, prunable) = (Rc::new(Cell::new(current.seen())), Vec::new());
        Self {
            store,
            volume,
            current,
            newest,
            fenced: false,
            set_back: None,
            retention,
            pruner,
            prunable,
        }
    }

    /// The newest version published or read by this writer.
    pub(crate) fn current(&self) -> &Manifest {
        &self.current
    }

    /// Which version is the newest one, now and later.
    pub(crate) fn newest(&self) -> Rc<Cell<ManifestSeen>> {
        Rc::clone(&self.newest)
    }

    fn fence(&mut self, evidence: String) -> LogError {
        self.fenced = true;
        LogError::Fenced { volume: self.volume, ours: self.current.newest_epoch(), evidence }
    }

    fn set_back(&mut self, evidence: String) -> LogError {
        self.set_back = Some(evidence.clone());
        let (volume, ours) = (self.volume, self.current.newest_epoch());
        let store = self.store.url().to_owned();
        LogError::StoreSetBack { volume, ours, store, evidence }
    }

    /// Publishes the current version as changed by `change`, retrying the store as `policy` says.
    ///
    /// # Errors
    /// [`LogError::Fenced`] for good once another writer showed itself; what the store says, if `policy` ends. After an
    /// error the version may or may not be there: only a writer that reads the newest version again can go on.
    pub(crate) async fn publish(
        &mut self,
        env: &Env,
        policy: &RetryPolicy,
        change: impl FnOnce(&mut Manifest),
    ) -> Result<(), LogError> {
        self.publish_unless(&chain::nothing_lost, env, policy, change).await
    }

    /// [`Self::publish`], unless the store lost something that the version stands on.
    ///
    /// # Errors
    /// As there; [`LogError::StoreSetBack`] if it did, and nobody else writes the volume.
    pub(crate) async fn publish_unless(
        &mut self,
        lost: Lost<'_>,
        env: &Env,
        policy: &RetryPolicy,
        change: impl FnOnce(&mut Manifest),
    ) -> Result<(), LogError> {
        let mut next = self.current.clone();
        change(&mut next);
        Box::pin(self.publish_next(lost, env, policy, next)).await
    }

    /// Publishes `next`. Apart from [`Self::publish`], so that it is compiled once and not per change.
    async fn publish_next(
        &mut self,
        lost: Lost<'_>,
        env: &Env,
        policy: &RetryPolicy,
        mut next: Manifest,
    ) -> Result<(), LogError> {
        if let Some(evidence) = self.set_back.clone() {
            return Err(self.set_back(evidence));
        }
        if self.fenced {
            return Err(self.fence("seen earlier".into()));
        }
        next.number += 1;
        next.format = next.format_needed();
        let mut nonce = [0; 16];
        env.random.fill(&mut nonce);
        next.nonce = HexId(nonce);
        next.written_at = env.clock.wall().as_secs();
        let body = Bytes::from(next.encode());
        let prefix = Manifest::prefix(self.volume);
        let mut random = || env.random.next_u64();
        let is_whole = |bytes: &[u8]| read_whole(bytes, Manifest::is_intact).is_some();
        let without_list = weir_device::mutant("create_without_list");
        let rules = CreateRules { asks_for_last: true, lost, is_whole, without_list };
        let (store, number) = (&self.store, next.number);
        let created = chain::create(store, policy, &mut random, &prefix, number, &body, rules);
        match created.await? {
            Created::Refused(evidence) => Err(self.fence(evidence)),
            Created::Lost(evidence) => Err(self.set_back(evidence)),
            Created::Counts(listed) => {
                let now = env.clock.boottime();
                self.prunable = self.pruner.on_listing(&listed, now, &self.retention);
                if self.prunable.is_empty() {
                    self.look_for_old(env, &listed, next.written_at).await;
                }
                self.current = next;
                self.newest.set(self.current.seen());
                Ok(())
            }
        }
    }

    /// Versions of earlier openings may be old already: the record of the newest one that could go says so.
    async fn look_for_old(&mut self, env: &Env, listed: &[u64], wall_s: u64) {
        let Some(number) = self.pruner.worth_reading(listed, &self.retention) else { return };
        // Only once per opening and only if it is easy: pruning can wait.
        let Ok(there) = read_version(&self.store, self.volume, number).await else { return };
        if there.written_at + self.retention.age_min.as_secs() <= wall_s {
            self.pruner.note_old(number);
            let now = env.clock.boottime();
            self.prunable = self.pruner.on_listing(listed, now, &self.retention);
        }
    }

    /// Keys of old versions that may be deleted, if this writer still owns the volume.
    pub(crate) fn take_prunable(&mut self) -> Vec<String> {
        let prefix = Manifest::prefix(self.volume);
        std::mem::take(&mut self.prunable).into_iter().map(|n| chain::key(&prefix, n)).collect()
    }
}
