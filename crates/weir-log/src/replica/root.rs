//! Moving one root: what it reaches, what the replica lacks of that, the manifest, and what goes.

use std::collections::BTreeSet;
use std::rc::Rc;

use futures_util::StreamExt;
use futures_util::stream;
use weir_device::{ErrorKind, VolumeId};

use super::copy::{self, Listing, NotCopied};
use super::{ReplicateArgs, Replicator, check_source};
use crate::collect::garbage;
use crate::error::LogError;
use crate::format::manifest::{Manifest, Origin};
use crate::format::replica::{REPLICA_NOTE_FORMAT, ReplicaNote};
use crate::ids::ObjectId;
use crate::limits::{REPLICA_COPIES_MAX, REPLICA_NOTE_INTERVAL};
use crate::lineage::dependants;
use crate::map::load;
use crate::own::manifests;

/// Times that a root is chosen anew because it was superseded while our note was on its way.
const CHOICES_MAX: u32 = 16;

/// A root on its way.
struct Plan {
    /// The version of the source's manifest that it is from.
    source: Manifest,
    /// Everything that it and its snapshots reach.
    reached: BTreeSet<ObjectId>,
    /// What the replica's store has of the streams that it names.
    there: Listing,
    missing: Listing,
}

/// What came of one attempt.
enum Attempt {
    Done(bool),
    /// The source, as of this version of its manifest, does not have what was to be copied.
    Gone(ObjectId, u64),
    /// The source is to be looked at once more.
    Again,
}

/// What came of looking at a root.
enum Planned {
    Ready(Box<Plan>),
    Gone(ObjectId),
    Again,
}

impl Replicator {
    /// Moves the source's newest root to the replica; `false` if the replica has it already, or there is none yet.
    /// Killed anywhere, the next call goes on with what is there.
    ///
    /// # Errors
    /// What source or replica say; the replica shows its last complete root then, and the next call goes on.
    /// [`LogError::Fenced`] and [`LogError::Promoted`] are for good.
    pub async fn move_root(&mut self) -> Result<bool, LogError> {
        let mut failed: Option<u64> = None;
        loop {
            match self.attempt().await? {
                Attempt::Done(moved) => return Ok(moved),
                Attempt::Again => {}
                Attempt::Gone(object, version) => {
                    // Missing twice in a root that nobody has superseded by now: it is lost, not collected. The first
                    // time alone may have been a store's mistake.
                    if failed == Some(version) && self.is_newest(version).await? {
                        let what = format!(
                            "{object} is missing in {}; run weir volume check there",
                            self.args.source.url()
                        );
                        return Err(LogError::Inconsistent { volume: self.args.volume, what });
                    }
                    tracing::info!(%object, "deleted at the source meanwhile: beginning anew");
                    self.status.restarts += 1;
                    failed = Some(version);
                }
            }
        }
    }

    /// Whether the source has published no version after this one.
    async fn is_newest(&self, version: u64) -> Result<bool, LogError> {
        if weir_device::mutant("collected_objects_taken_for_lost") {
            return Ok(true);
        }
        let ReplicateArgs { source, env, volume, .. } = &self.args;
        Ok(manifests::newest(source, env, *volume).await?.number == version)
    }

    async fn attempt(&mut self) -> Result<Attempt, LogError> {
        let Some(source) = self.choose().await? else { return Ok(Attempt::Done(false)) };
        let plan = match self.plan(source.clone()).await? {
            Planned::Ready(plan) => plan,
            Planned::Gone(gone) => return Ok(Attempt::Gone(gone, source.number)),
            Planned::Again => return Ok(Attempt::Again),
        };
        if weir_device::mutant("replica_root_before_objects") {
            self.publish_root(&plan).await?;
        }
        if let Some(gone) = self.copy_missing(&plan).await? {
            return Ok(Attempt::Gone(gone, source.number));
        }
        let unneeded = self.publish_root(&plan).await?;
        self.delete(unneeded).await;
        self.status.roots_moved += 1;
        if let Err(error) = self.note(None).await {
            tracing::warn!(%error, "the note at the source stays, and holds back deletions for a while");
        }
        self.measure(&source).await?;
        self.told();
        Ok(Attempt::Done(true))
    }

    /// The version of the source's manifest to move, which the source knows of: from here on it keeps what that version
    /// reaches, for a while.
    async fn choose(&mut self) -> Result<Option<Manifest>, LogError> {
        let volume = self.args.volume;
        let mut chosen: Option<Manifest> = None;
        for _ in 0..CHOICES_MAX {
            let (store, env) = (&self.args.source, &self.args.env);
            let source = manifests::newest(store, env, volume).await?;
            check_source(volume, &source)?;
            if source.number < self.record().manifest {
                let what = format!(
                    "its manifest in {} is older than the replica: was that store set back to a backup? Replicate into \
                     another store",
                    store.url()
                );
                return Err(LogError::Inconsistent { volume, what });
            }
            // Nothing that a version reaches was listed for deletion before a version without it.
            let same = |chosen: &Manifest| {
                chosen.root() == source.root() && chosen.snapshots == source.snapshots
            };
            if chosen.as_ref().is_some_and(same) {
                chosen = Some(source);
                break;
            }
            if !self.lacks(&source) {
                return Ok(None);
            }
            self.note(Some(&source)).await?;
            chosen = Some(source);
        }
        Ok(chosen)
    }

    /// Leaves a note at the source: what is being copied, or that nothing is.
    async fn note(&mut self, copying: Option<&Manifest>) -> Result<(), LogError> {
        let record = self.record();
        let own = |manifest: &Manifest| {
            let roots = manifest.checkpoint.iter().chain(
                manifest.snapshots.iter().filter(|s| s.stream.is_none()).map(|s| &s.checkpoint),
            );
            roots.map(|root| root.sequence).max().unwrap_or(0)
        };
        let note = ReplicaNote {
            format: REPLICA_NOTE_FORMAT,
            number: 0,
            volume: self.args.volume.into(),
            replica: record.id,
            store: self.args.target.url().to_owned(),
            copying_through: copying.map(own),
            manifest: record.manifest,
            root_written_at: record.written_at,
            written_at: self.args.env.clock.wall().as_secs(),
            checksum: String::new(),
        };
        Ok(self.notes.write(&self.args.env, note).await?)
    }

    /// Everything that a version reaches; or an object that the source does not have any more.
    async fn reach(
        &mut self,
        source: &Manifest,
    ) -> Result<Result<BTreeSet<ObjectId>, ObjectId>, LogError> {
        let (volume, source_store, key) = (self.args.volume, &self.args.source, self.key.as_ref());
        let snapshots = source.snapshots.iter().map(|s| (Some(s.id), s.root(volume)));
        let roots: Vec<_> = snapshots.chain(source.root().map(|root| (None, root))).collect();
        self.reached.retain(|id, _| roots.iter().any(|(known, _)| known.as_ref() == Some(id)));
        let mut reached = BTreeSet::new();
        for (snapshot, root) in roots {
            let known = snapshot.and_then(|id| self.reached.get(&id)).cloned();
            let of_root = match known {
                Some(known) => known,
                None => match load::live(source_store, &self.args.env, key, root).await {
                    Ok(objects) => Rc::new(objects.into_iter().collect()),
                    Err(error) if error.kind() == ErrorKind::NotFound => {
                        return Ok(Err(object_of(root)));
                    }
                    Err(error) => return Err(error),
                },
            };
            reached.extend(of_root.iter().copied());
            if let Some(id) = snapshot {
                self.reached.insert(id, of_root);
            }
        }
        Ok(Ok(reached))
    }

    /// What the root needs, and what the replica lacks of it.
    async fn plan(&mut self, source: Manifest) -> Result<Planned, LogError> {
        let volume = self.args.volume;
        let reached = match self.reach(&source).await? {
            Ok(reached) => reached,
            Err(gone) => return Ok(Planned::Gone(gone)),
        };
        let streams: BTreeSet<VolumeId> =
            reached.iter().map(|object| object.stream).chain([volume]).collect();
        if self.depend(&streams).await? {
            // The source may have let go of them before our note was there.
            return Ok(Planned::Again);
        }
        let env = &self.args.env;
        let at_source = copy::list(&self.args.source, env, &streams).await?;
        let there = copy::list(&self.args.target, env, &streams).await?;
        let mut missing = Listing::new();
        for object in &reached {
            let Some(bytes) = at_source.get(object) else { return Ok(Planned::Gone(*object)) };
            match there.get(object) {
                None => drop(missing.insert(*object, *bytes)),
                Some(here) if here == bytes => {}
                Some(here) => {
                    let what = format!(
                        "{object} has {here} bytes in {} and {bytes} at the source; delete it there, and it is copied \
                         again",
                        self.args.target.url()
                    );
                    return Err(LogError::Inconsistent { volume, what });
                }
            }
        }
        Ok(Planned::Ready(Box::new(Plan { source, reached, there, missing })))
    }

    /// Objects of other streams at the replica's store must not be deleted by a replica of theirs: it looks for this
    /// note there, and for dependants at the source. Whether a note was not there yet.
    async fn depend(&self, streams: &BTreeSet<VolumeId>) -> Result<bool, LogError> {
        let mut new = false;
        let (store, env, volume) = (&self.args.target, &self.args.env, self.args.volume);
        for stream in streams.iter().filter(|stream| **stream != volume) {
            new |= dependants::put_of_replica(store, env, *stream, volume).await?;
        }
        Ok(new)
    }

    /// Copies what the replica lacks; an object that is gone at the source, if one is.
    async fn copy_missing(&mut self, plan: &Plan) -> Result<Option<ObjectId>, LogError> {
        self.status.objects_to_copy = plan.missing.len() as u64;
        self.status.bytes_to_copy = plan.missing.values().sum();
        (self.status.objects_copied, self.status.bytes_copied) = (0, 0);
        self.told();
        let env = self.args.env.clone();
        let copies = plan.missing.keys().map(|id| {
            let (source, target) = (self.args.source.clone(), self.args.target.clone());
            let (env, id) = (env.clone(), *id);
            // The future is made only when its turn comes, so that not all copies begin at once.
            async move {
                let seed = env.random.next_u64();
                let copied = env.background(copy::copy(source, target, id, seed)).await;
                copied.unwrap_or(Err(NotCopied::Failed(LogError::ShuttingDown)))
            }
        });
        let copies: Vec<_> = copies.collect();
        let mut copies = stream::iter(copies).buffer_unordered(REPLICA_COPIES_MAX);
        let mut noted = env.clock.boottime();
        while let Some(copied) = copies.next().await {
            let bytes = match copied {
                Ok(bytes) => bytes,
                Err(NotCopied::Gone(id)) => return Ok(Some(id)),
                Err(NotCopied::Failed(error)) => return Err(error),
            };
            self.status.objects_copied += 1;
            self.status.bytes_copied += bytes;
            self.status.sent_objects += 1;
            self.status.sent_bytes += bytes;
            self.told();
            // The note is renewed only while copies succeed, so that a replicator that is stuck does not hold back
            // deletions at the source for ever.
            let now = env.clock.boottime();
            if now.saturating_sub(noted) >= REPLICA_NOTE_INTERVAL {
                self.note(Some(&plan.source)).await?;
                noted = now;
            }
        }
        Ok(None)
    }

    /// R1: everything is there. Publishes the root; what the replica does not need any more.
    async fn publish_root(&mut self, plan: &Plan) -> Result<Vec<ObjectId>, LogError> {
        let source = &plan.source;
        let unneeded = if self.has_dependants().await? {
            // The roots of dependants may name objects that ours does not.
            Vec::new()
        } else {
            self.unneeded(plan)
        };
        let names: Vec<_> = unneeded.iter().map(garbage::name_of).collect();
        let (number, written_at) = (source.number, source.written_at);
        self.publish(|m| {
            m.size = source.size;
            m.epochs.clone_from(&source.epochs);
            m.checkpoint = source.checkpoint;
            m.origin = source.origin;
            m.lineage.clone_from(&source.lineage);
            m.encryption.clone_from(&source.encryption);
            m.object_version = source.object_version;
            m.snapshots.clone_from(&source.snapshots);
            m.pending_deletions.clone_from(&names);
            if let Some(replica) = &mut m.replica {
                (replica.manifest, replica.written_at) = (number, written_at);
            }
        })
        .await?;
        self.status.as_of = source.root().map(|root| root.checkpoint.as_of);
        Ok(unneeded)
    }

    /// R2: what the replica has of its own stream and neither root nor snapshots reach.
    fn unneeded(&self, plan: &Plan) -> Vec<ObjectId> {
        let own = plan.there.keys().filter(|object| object.stream == self.args.volume);
        if weir_device::mutant("replica_deletes_by_sequence") {
            // All that is older than what was copied for this root.
            let first = plan.missing.keys().map(|object| object.seq).min();
            return own.filter(|object| Some(object.seq) < first).copied().collect();
        }
        own.filter(|object| !plan.reached.contains(object)).copied().collect()
    }

    /// Whether others need objects of this stream: at the source, or at the replica's store.
    async fn has_dependants(&self) -> Result<bool, LogError> {
        for store in [&self.args.source, &self.args.target] {
            if !dependants::list(store, &self.args.env, self.args.volume).await?.is_empty() {
                return Ok(true);
            }
        }
        Ok(false)
    }

    /// R2: after the version that does not need them counts. What stays is found by the next run.
    async fn delete(&mut self, unneeded: Vec<ObjectId>) {
        let deletions = unneeded.into_iter().map(|object| {
            let (env, store, key) = (self.args.env.clone(), self.args.target.clone(), object.key());
            async move {
                let deleted = env.background(async move { store.delete(&key).await }).await;
                deleted.is_some_and(|deleted| deleted.is_ok())
            }
        });
        let deletions: Vec<_> = deletions.collect();
        let mut deletions = stream::iter(deletions).buffer_unordered(REPLICA_COPIES_MAX);
        let mut deleted = 0;
        while let Some(gone) = deletions.next().await {
            deleted += u64::from(gone);
        }
        drop(deletions);
        self.status.deleted_objects += deleted;
    }
}

fn object_of(Origin { stream, checkpoint }: Origin) -> ObjectId {
    ObjectId {
        stream: VolumeId(stream.0),
        seq: crate::ids::ObjectSeq(checkpoint.sequence),
        epoch: weir_journal::Epoch(checkpoint.epoch),
    }
}
