//! Replication of a volume to another store, from root to root, and what becomes of a replica when it is needed.
//!
//! A root is a published checkpoint: everything that it and the snapshots of the same manifest version reach is copied,
//! then the replica's manifest names them. What lived and died between two roots is never sent. The objects keep their
//! keys, and a replica at any moment is the volume as of one checkpoint.
//!
//! Invariants
//!  R1. A manifest of the replica names a root only when everything that root and snapshots reach is in its store.
//!  R2. Only what neither root nor snapshots of the newest replica manifest reach is deleted, after it counts.
//!  R3. Roots never go back: an object that was given up at the replica is never needed there again.
//!  R4. Nothing is moved to a replica that was promoted: its manifest ends with the version that says so, and the
//!      volume it became has a stream of its own, which nobody else writes.

mod copy;
mod notes;
mod promote;
mod root;

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::rc::Rc;

use serde::Serialize;
use weir_device::{Env, VolumeId};
use weir_seal::DataKey;
use weir_store::{RetryPolicy, Store};

pub(crate) use self::notes::NoteWatch;
use self::notes::NoteWriter;
pub use self::promote::promote;
use crate::catalog::names::{self, VolumeName};
use crate::error::LogError;
use crate::format::manifest::{
    HexId, Holder, Manifest, Origin, PLAIN_FORMAT, ReplicaRecord, Takeover, VolumeState,
};
use crate::ids::{ObjectId, WriteMark};
use crate::keys::Keys;
use crate::limits::{LEASE_LENGTH, LEASE_PATIENCE, RESOLVE_ATTEMPTS_MAX};
use crate::own::chain::Retention;
use crate::own::lease::{LeaseHold, NodeLease, Run};
use crate::own::manifests::{self, ManifestWriter};
use crate::own::takeover::Claim;

/// What a replicator needs.
pub struct ReplicateArgs {
    /// The store of the volume.
    pub source: Store,
    /// The store of the replica.
    pub target: Store,
    /// The volume.
    pub volume: VolumeId,
    /// Its name, at the replica too.
    pub name: VolumeName,
    /// Time, randomness, tasks.
    pub env: Env,
    /// Where the keys of encrypted volumes come from: the map of one says what is to be copied.
    pub keys: Keys,
    /// A lease in the replica's store.
    pub lease: NodeLease,
    /// Hears of every step.
    pub on_progress: Rc<dyn Fn(&ReplicaStatus)>,
}

impl fmt::Debug for ReplicateArgs {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "ReplicateArgs({} from {} to {})",
            self.name,
            self.source.url(),
            self.target.url()
        )
    }
}

/// How far a replica has come. Counts and bytes.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct ReplicaStatus {
    /// Sequence that the replica's root is as of; none before the first is complete.
    pub as_of: Option<u64>,
    /// Sequence that the source's newest root is as of.
    pub source_as_of: Option<u64>,
    /// Bytes of objects that the source wrote after the replica's root.
    pub lag_bytes: u64,
    /// Age of the replica's root in seconds, by the clocks of source and replicator; 0 where nothing was written since.
    pub lag_seconds: u64,
    /// Objects of the root that is being moved.
    pub objects_to_copy: u64,
    /// Of these, those that are there by now.
    pub objects_copied: u64,
    /// Bytes of the objects of the root that is being moved.
    pub bytes_to_copy: u64,
    /// Of these, those that are there by now.
    pub bytes_copied: u64,
    /// Roots that this process completed.
    pub roots_moved: u64,
    /// Times that it began anew because the source had deleted what it was copying.
    pub restarts: u64,
    /// Objects that this process sent.
    pub sent_objects: u64,
    /// Bytes that this process sent.
    pub sent_bytes: u64,
    /// Objects that this process deleted at the replica.
    pub deleted_objects: u64,
}

/// Moves roots to a replica. It holds the replica's manifest, so there is one of it at a time.
pub struct Replicator {
    args: ReplicateArgs,
    /// The volume's, if it is encrypted.
    key: Option<DataKey>,
    hold: LeaseHold,
    run: Run,
    writer: ManifestWriter,
    /// A publication failed, and nobody knows whether its version is there, or will be.
    is_unsure: bool,
    notes: NoteWriter,
    status: ReplicaStatus,
    /// What snapshots reach, by their identity: they never change.
    reached: BTreeMap<HexId, Rc<BTreeSet<ObjectId>>>,
}

impl fmt::Debug for Replicator {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Replicator({:?})", self.args)
    }
}

/// The root that a replica shows.
///
/// # Errors
/// [`LogError::NoReplica`] where it is no replica, or nothing is complete yet.
pub(crate) fn root_of(store: &Store, manifest: &Manifest) -> Result<Origin, LogError> {
    let reason = match manifest.state {
        VolumeState::Replica => match manifest.root() {
            Some(root) => return Ok(root),
            None => "nothing is complete in it yet; let weir replicate come to an end first",
        },
        VolumeState::Deleted => "it was deleted",
        VolumeState::Active | VolumeState::Incomplete => "it is a volume",
    };
    let (name, store) = (manifest.name.clone(), store.url().to_owned());
    Err(LogError::NoReplica { name, store, reason: reason.to_owned() })
}

fn check_source(volume: VolumeId, manifest: &Manifest) -> Result<(), LogError> {
    match manifest.state {
        VolumeState::Deleted => Err(LogError::Deleted { volume }),
        VolumeState::Incomplete => Err(LogError::Incomplete { volume }),
        VolumeState::Active | VolumeState::Replica => Ok(()),
    }
}

/// What the replica's store has is a replica that can go on.
fn check_target(args: &ReplicateArgs, manifest: &Manifest) -> Result<(), LogError> {
    let (volume, store) = (args.volume, args.target.url().to_owned());
    let promoted = manifest.replica.as_ref().and_then(|replica| replica.promoted_to);
    if let Some(to) = promoted {
        return Err(LogError::Promoted { volume, store, to: VolumeId(to.0) });
    }
    let name = manifest.name.clone();
    let reason = match manifest.state {
        VolumeState::Replica => return Ok(()),
        VolumeState::Deleted => {
            "it was deleted there, and its identity is never used again; use another store"
        }
        VolumeState::Active | VolumeState::Incomplete => "it is the volume itself",
    };
    Err(LogError::NoReplica { name, store, reason: reason.to_owned() })
}

impl Replicator {
    /// Makes the replica, or goes on with it. Waits for a whole lease where another replicator did not end.
    ///
    /// # Errors
    /// [`LogError::InUse`] while another one works, [`LogError::Promoted`], [`LogError::NoReplica`],
    /// [`LogError::Exists`] where its name stands for another volume there; what the stores say.
    pub async fn begin(args: ReplicateArgs) -> Result<Self, LogError> {
        let (source, target, env) = (&args.source, &args.target, &args.env);
        let volume = args.volume;
        let from = manifests::newest(source, env, volume).await?;
        check_source(volume, &from)?;
        let key = args.keys.open(volume, from.encryption.as_ref()).await?;
        let hold = args.lease.hold(volume);
        let (writer, run) = claim(&args, &hold, &from).await?;
        // Free, or ours: only a promotion makes the name stand for another volume.
        if let Err(error) = names::point(target, env, &args.name, None, volume).await {
            give_back(writer, env).await;
            return Err(error);
        }
        let current = writer.current();
        let id = current.replica.as_ref().map_or(HexId(volume.0), |replica| replica.id);
        let notes = NoteWriter::new(source, env, volume, id).await?;
        let status = ReplicaStatus {
            as_of: current.root().map(|root| root.checkpoint.as_of),
            ..ReplicaStatus::default()
        };
        let mut replicator = Self {
            key,
            hold,
            run,
            writer,
            is_unsure: false,
            notes,
            status,
            reached: BTreeMap::new(),
            args,
        };
        replicator.measure(&from).await?;
        Ok(replicator)
    }

    /// How far the replica has come.
    #[must_use]
    pub fn status(&self) -> &ReplicaStatus {
        &self.status
    }

    /// The replica's store.
    #[must_use]
    pub fn target(&self) -> &Store {
        &self.args.target
    }

    fn record(&self) -> &ReplicaRecord {
        self.writer.current().replica.as_ref().expect("a replica's manifest says what it is")
    }

    fn told(&self) {
        (self.args.on_progress)(&self.status);
    }

    /// Looks at the source, and renews what says that this replica is ours; call it now and then while nothing is
    /// moved. Whether the source has a root that the replica lacks.
    ///
    /// # Errors
    /// As [`Replicator::move_root`].
    pub async fn look(&mut self) -> Result<bool, LogError> {
        let (store, env, volume) = (&self.args.source, &self.args.env, self.args.volume);
        let source = manifests::newest(store, env, volume).await?;
        check_source(volume, &source)?;
        if !self.hold.is_held(self.run.generation, &*self.args.env.clock) {
            self.publish(|_| {}).await?;
        }
        self.measure(&source).await?;
        self.told();
        Ok(self.lacks(&source))
    }

    /// Whether the source shows what the replica does not.
    fn lacks(&self, source: &Manifest) -> bool {
        let here = self.writer.current();
        source.root().is_some()
            && (here.root() != source.root()
                || here.snapshots != source.snapshots
                || here.size != source.size)
    }

    /// What the source wrote since the replica's root.
    async fn measure(&mut self, source: &Manifest) -> Result<(), LogError> {
        let (env, here) = (&self.args.env, self.writer.current());
        self.status.source_as_of = source.root().map(|root| root.checkpoint.as_of);
        let after = here.checkpoint.map_or(0, |checkpoint| checkpoint.sequence);
        let last = ObjectId {
            stream: self.args.volume,
            seq: crate::ids::ObjectSeq(after),
            epoch: weir_journal::Epoch(u64::MAX),
        };
        let (prefix, after) = (ObjectId::prefix(self.args.volume), last.key());
        let mut random = || env.random.next_u64();
        let list = || self.args.source.list(&prefix, Some(&after));
        let listed = self.args.source.retry(&RetryPolicy::reads(), &mut random, None, list).await?;
        let lag_bytes = listed.iter().map(|object| object.size).sum();
        let age = env.clock.wall().as_secs().saturating_sub(self.record().written_at);
        let behind = lag_bytes > 0 && self.status.as_of.is_some();
        self.status.lag_bytes = lag_bytes;
        self.status.lag_seconds = if behind { age } else { 0 };
        Ok(())
    }

    /// Publishes a version of the replica's manifest that we hold.
    async fn publish(&mut self, change: impl Fn(&mut Manifest)) -> Result<(), LogError> {
        let trusts_itself = weir_device::mutant("replicator_trusts_itself");
        let mut attempt = 0;
        loop {
            attempt += 1;
            if self.is_unsure && !trusts_itself {
                self.look_at_target().await?;
            }
            match self.publish_once(&change).await {
                Ok(()) => return Ok(()),
                // A version of our own, given up by an earlier attempt, may have come late.
                Err(LogError::Fenced { .. })
                    if attempt < RESOLVE_ATTEMPTS_MAX && !trusts_itself =>
                {
                    self.look_at_target().await?;
                }
                Err(error) => return Err(error),
            }
        }
    }

    /// Goes on from the newest version of the replica's manifest, as long as that is ours.
    async fn look_at_target(&mut self) -> Result<(), LogError> {
        let (target, env, volume) = (&self.args.target, &self.args.env, self.args.volume);
        let newest = manifests::newest(target, env, volume).await?;
        check_target(&self.args, &newest)?;
        // A node is one process at a time, and this process has one replicator of a volume.
        if newest.holder.as_ref().is_none_or(|holder| holder.node != self.run.identity.node) {
            let evidence = format!("version {} has another holder", newest.number);
            return Err(LogError::Fenced { volume, ours: newest.newest_epoch(), evidence });
        }
        self.writer = ManifestWriter::new(target.clone(), volume, newest, Retention::default());
        self.is_unsure = false;
        Ok(())
    }

    async fn publish_once(&mut self, change: &impl Fn(&mut Manifest)) -> Result<(), LogError> {
        let env = &self.args.env;
        let run = self.hold.acquire(&*env.clock, LEASE_PATIENCE).await?;
        let holder = holder_of(&self.hold, run);
        let changed = |m: &mut Manifest| {
            m.holder = Some(holder.clone());
            change(m);
        };
        match self.writer.publish(env, &RetryPolicy::reads(), changed).await {
            Ok(()) => {
                self.run = run;
                for key in self.writer.take_prunable() {
                    // What stays is found again.
                    let _ = self.args.target.delete(&key).await;
                }
                Ok(())
            }
            Err(error) => {
                self.is_unsure = true;
                Err(error)
            }
        }
    }

    /// Lets go of the replica, so that another replicator need not wait.
    ///
    /// # Errors
    /// What the replica's store says; others wait for a lease then.
    pub async fn end(mut self) -> Result<(), LogError> {
        self.publish(|_| {}).await?;
        let policy = RetryPolicy::reads();
        self.writer.publish(&self.args.env, &policy, |m| m.holder = None).await
    }
}

/// Lets go of a replica that cannot be used; whoever comes next waits otherwise.
async fn give_back(mut writer: ManifestWriter, env: &Env) {
    let freed = writer.publish(env, &RetryPolicy::reads(), |m| m.holder = None).await;
    if let Err(error) = freed {
        tracing::warn!(%error, "the replica stays held until the lease of this process is over");
    }
}

fn holder_of(hold: &LeaseHold, run: Run) -> Holder {
    Holder {
        name: hold.name().to_owned(),
        node: run.identity.node,
        incarnation: run.identity.incarnation,
        // A replica has no journal: nothing is acknowledged by it.
        journal: HexId([0; 16]),
    }
}

/// Makes us the holder of the replica.
async fn claim(
    args: &ReplicateArgs,
    hold: &LeaseHold,
    from: &Manifest,
) -> Result<(ManifestWriter, Run), LogError> {
    let (store, env, volume) = (&args.target, &args.env, args.volume);
    let mut attempt = 0;
    loop {
        attempt += 1;
        let run = hold.acquire(&*env.clock, LEASE_PATIENCE).await?;
        let current = match manifests::find_newest(store, env, volume).await? {
            Some(there) => {
                check_target(args, &there)?;
                // A node is one process at a time: what it held before died with the process.
                let ours = |holder: &Holder| holder.node == run.identity.node;
                let there = if there.holder.as_ref().is_some_and(ours) {
                    there
                } else {
                    let claim = Claim::without_journal((store, env), volume, true, LEASE_LENGTH);
                    claim.admit(there, WriteMark::default()).await?.manifest
                };
                check_target(args, &there)?;
                there
            }
            None => {
                // A name that is taken is found before anything is written.
                check_name(args).await?;
                blank(args, from)
            }
        };
        let mut writer = ManifestWriter::new(store.clone(), volume, current, Retention::default());
        let holder = holder_of(hold, run);
        match writer.publish(env, &RetryPolicy::reads(), |m| m.holder = Some(holder)).await {
            Ok(()) => return Ok((writer, run)),
            // Another one began at the same time: now it is seen.
            Err(LogError::Fenced { .. }) if attempt < RESOLVE_ATTEMPTS_MAX => {}
            Err(error) => return Err(error),
        }
    }
}

async fn check_name(args: &ReplicateArgs) -> Result<(), LogError> {
    match names::find(&args.target, &args.env, &args.name).await {
        Ok(id) if id != args.volume => {
            let (name, store) = (args.name.to_string(), args.target.url().to_owned());
            Err(LogError::Exists { name, store })
        }
        Ok(_) | Err(LogError::NoSuchVolume { .. }) => Ok(()),
        Err(error) => Err(error),
    }
}

/// The manifest of a replica that has nothing yet.
fn blank(args: &ReplicateArgs, from: &Manifest) -> Manifest {
    let mut id = [0; 16];
    args.env.random.fill(&mut id);
    let source = args.source.url().to_owned();
    let replica =
        ReplicaRecord { id: HexId(id), source, manifest: 0, written_at: 0, promoted_to: None };
    Manifest {
        format: PLAIN_FORMAT,
        number: 0,
        nonce: HexId([0; 16]),
        volume: args.volume.into(),
        name: args.name.to_string(),
        size: from.size,
        state: VolumeState::Replica,
        written_at: 0,
        epochs: Vec::new(),
        // There is nothing to lose: whoever comes next goes on.
        takeover: Takeover::Auto,
        holder: None,
        checkpoint: None,
        origin: None,
        replica: Some(replica),
        lineage: from.lineage.clone(),
        // What it needs of other streams it has itself.
        origins: Vec::new(),
        snapshots: Vec::new(),
        pending_deletions: Vec::new(),
        encryption: from.encryption.clone(),
        object_version: from.object_version,
        closed: None,
        salvage: Vec::new(),
        checksum: String::new(),
    }
}
