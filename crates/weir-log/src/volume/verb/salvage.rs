//! Keeping the first map of a takeover as a snapshot, and making a volume of what was given up.

use std::rc::Rc;

use serde::Serialize;
use weir_device::{DeviceError, DeviceExt, Env, ErrorKind, SharedBuf, VolumeId, WriteZeroesFlags};
use weir_disk::{Directory, LockGuard};
use weir_journal::{PieceKind, Recovered, RecoveredPiece};
use weir_store::{RetryPolicy, Store};

use crate::catalog::names::VolumeName;
use crate::error::LogError;
use crate::format::manifest::{HexId, Manifest, SalvageRecord};
use crate::ids::WriteMark;
use crate::keys::Keys;
use crate::options::VolumeOptions;
use crate::own::manifests;
use crate::recover::args::LOCK_FILE;
use crate::recover::local::Local;
use crate::recover::salvage::{count_missing, is_of, mark_of};
use crate::volume::LogVolume;
use crate::volume::shared::Shared;
use crate::volume::verb::snapshot;

/// Takes the snapshot that the opening of epoch `taken_at` owes; its name.
async fn take_first_map(shared: &Rc<Shared>, taken_at: u64) -> Result<VolumeName, LogError> {
    let mut name = VolumeName::new(&format!("takeover-{taken_at}"))?;
    let mut number = 1;
    loop {
        match snapshot::take(shared, &name).await {
            Ok(_) => {
                tracing::warn!(
                    volume = %shared.id, snapshot = %name,
                    "what the volume held when it was taken is kept as a snapshot: should the other journal come back, \
                     weir volume salvage makes a volume of that and of what only that journal holds"
                );
                return Ok(name);
            }
            // An opening before this one came as far as this.
            Err(error) if error.kind() == ErrorKind::Exists && is_owed(shared, &name, taken_at) => {
                return Ok(name);
            }
            // Somebody else's, who chose the name, or of the volume that this one was promoted from.
            Err(error) if error.kind() == ErrorKind::Exists => {
                number += 1;
                name = VolumeName::new(&format!("takeover-{taken_at}-{number}"))?;
            }
            Err(source) => return Err(LogError::NotKept { volume: shared.id, source }),
        }
    }
}

/// Whether the snapshot of that name was taken by the opening that owed it, or by a later one that had taken no write
/// either.
fn is_owed(shared: &Shared, name: &VolumeName, taken_at: u64) -> bool {
    let state = shared.state.borrow();
    let mut listed = state.snapshots.listed.iter();
    let found = listed.find(|snapshot| snapshot.name == name.as_str());
    found.is_some_and(|s| s.stream.is_none() && s.checkpoint.epoch >= taken_at)
        || weir_device::mutant("first_map_by_name")
}

/// G1: takes the snapshots that are owed. Nothing was written since they became due.
pub(crate) async fn keep_first_maps(shared: &Rc<Shared>) -> Result<(), LogError> {
    loop {
        let due = {
            let manifest = shared.manifest.lock().await;
            let mut records = manifest.current().salvage.iter();
            records.find(|record| record.snapshot.is_none()).map(|record| record.taken_at)
        };
        let Some(taken_at) = due else { return Ok(()) };
        let name = take_first_map(shared, taken_at).await?;
        let mut manifest = shared.manifest.lock().await;
        let id = manifest.current().snapshot(name.as_str()).map(|snapshot| snapshot.id);
        let change = |m: &mut Manifest| {
            let records = m.salvage.iter_mut();
            records.filter(|record| record.taken_at == taken_at).for_each(|r| r.snapshot = id);
            // Deleted in the same moment: then nothing is owed any more.
            m.salvage.retain(|record| record.taken_at != taken_at || id.is_some());
        };
        manifest.publish(&shared.env, &RetryPolicy::reads(), change).await?;
    }
}

/// Deletes, in the background, the snapshots whose journals are settled.
pub(crate) fn delete_unneeded(volume: &LogVolume, unneeded: &[HexId]) {
    let listed = volume.shared.state.borrow().snapshots.listed.clone();
    let names = listed.into_iter().filter(|s| unneeded.contains(&s.id) && !s.deleting);
    for name in names.filter_map(|snapshot| VolumeName::new(&snapshot.name).ok()) {
        let shared = Rc::clone(&volume.shared);
        volume.shared.spawn(async move {
            if let Err(error) = snapshot::delete(&shared, &name).await {
                tracing::warn!(volume = %shared.id, snapshot = %name, %error, "a snapshot stays");
            }
        });
    }
}

/// What a salvage finds.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct SalvageReport {
    /// The local journal, 32 hex digits.
    pub journal: String,
    /// The opening that it is of, 32 hex digits, if it says.
    pub opening: Option<String>,
    /// Epoch of that opening.
    pub epoch: u64,
    /// The snapshot of what the volume held when it was taken over, or when a copy of the journal was adopted.
    pub snapshot: String,
    /// Written blocks that the journal holds and the snapshot does not: a write has one for each 4 KiB, at least one.
    pub blocks: u64,
    /// Bytes of them.
    pub bytes: u64,
    /// Written blocks behind the snapshot that the journal does not hold either: it had given them up, and the store
    /// lost them since, or it is damaged. The new volume shows there what was written before.
    pub missing_blocks: u64,
    /// Of the bytes, what is damaged in the journal.
    pub damaged_bytes: u64,
    /// Where that lies on the volume, in the order of the writes. Reads of the new volume fail there, where no later
    /// write covers it.
    pub damaged: Vec<DamagedWrite>,
}

/// A part of a write that is damaged in the journal.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct DamagedWrite {
    /// First byte on the volume.
    pub offset: u64,
    /// Bytes.
    pub bytes: u64,
}

/// What a salvage needs.
#[derive(Clone, Debug)]
pub struct SalvageArgs {
    /// The store of the volume.
    pub store: Store,
    /// Time, randomness, tasks.
    pub env: Env,
    /// The volume.
    pub id: VolumeId,
    /// Directory with its old journal.
    pub directory: Directory,
    /// Where the keys of encrypted volumes come from.
    pub keys: Keys,
    /// Sizes of the journal.
    pub options: VolumeOptions,
    /// Go on without what is damaged in the journal.
    pub accept_loss: bool,
}

/// A journal that its volume went on without, with the snapshot that it goes on from. Holds the lock of its directory.
pub struct Salvage {
    recovered: Box<Recovered>,
    record: SalvageRecord,
    snapshot: VolumeName,
    accept_loss: bool,
    _lock: LockGuard,
}

impl Salvage {
    /// Finds both. Changes nothing.
    ///
    /// # Errors
    /// [`LogError::NothingToSalvage`] where there is no journal, or none that a takeover or an adoption gave up; what
    /// journal and store say.
    pub async fn find(args: &SalvageArgs) -> Result<Self, LogError> {
        let nothing =
            |why: &str| LogError::NothingToSalvage { volume: args.id, why: why.to_owned() };
        let lock = args.directory.lock(LOCK_FILE).await?;
        let manifest = manifests::newest(&args.store, &args.env, args.id).await?;
        let key = args.keys.open(args.id, manifest.encryption.as_ref()).await?;
        let (directory, config) = (&args.directory, args.options.journal);
        let local =
            Local::recover(directory, (args.id, key.as_ref()), config, args.accept_loss, &args.env);
        let local = local.await?;
        let Some(view) = local.view() else { return Err(nothing("there is no local journal")) };
        let record = manifest.salvage.iter().find(|record| is_of(record, &view)).copied();
        let Some(record) = record else {
            return Err(nothing(
                "no takeover and no adoption of a copied journal went on without the local journal's opening",
            ));
        };
        let kept = manifest.snapshots.iter().find(|s| record.snapshot == Some(s.id) && !s.deleting);
        let Some(kept) = kept else {
            return Err(nothing("the snapshot of what was taken over is not there (any more)"));
        };
        let snapshot = VolumeName::new(&kept.name)?;
        let Local::Recovered(recovered) = local else {
            return Err(nothing("there is no local journal"));
        };
        let accept_loss = args.accept_loss;
        Ok(Self { recovered, record, snapshot, accept_loss, _lock: lock })
    }

    /// Name of the snapshot to make a clone of.
    #[must_use]
    pub fn snapshot(&self) -> &VolumeName {
        &self.snapshot
    }

    fn pieces(&self) -> impl Iterator<Item = &RecoveredPiece> {
        let after = WriteMark::from(self.record.after_write);
        self.recovered.pieces.iter().filter(move |found| mark_of(found) > after)
    }

    /// G3 holds as long as the store keeps what it took: the journal had forgotten nothing that the snapshot lacks.
    fn missing_blocks(&self) -> u64 {
        let held = WriteMark::from(self.record.after_write).write;
        let numbers = self.pieces().map(|found| found.piece.write);
        let missing = count_missing(held, numbers, self.recovered.journal.status().last_write);
        if weir_device::mutant("salvage_over_missing_blocks") { 0 } else { missing }
    }

    /// What there is to salvage.
    #[must_use]
    pub fn report(&self) -> SalvageReport {
        let mut damaged: Vec<DamagedWrite> = Vec::new();
        for RecoveredPiece { piece, .. } in self.pieces().filter(|found| found.poisoned) {
            match damaged.last_mut() {
                Some(last) if last.offset + last.bytes == piece.offset => last.bytes += piece.len,
                _ => damaged.push(DamagedWrite { offset: piece.offset, bytes: piece.len }),
            }
        }
        SalvageReport {
            journal: self.recovered.identity.journal.to_string(),
            opening: self.recovered.opening.map(|opening| opening.to_string()),
            epoch: self.recovered.epoch.0,
            snapshot: self.snapshot.to_string(),
            blocks: self.pieces().count() as u64,
            bytes: self.pieces().map(|found| found.piece.len).sum(),
            missing_blocks: self.missing_blocks(),
            damaged_bytes: damaged.iter().map(|lost| lost.bytes).sum(),
            damaged,
        }
    }

    /// # Errors
    /// [`LogError::NothingToSalvage`] where a part of it is damaged or missing and that was not accepted.
    pub fn check_whole(&self) -> Result<(), LogError> {
        let SalvageReport { damaged_bytes, missing_blocks, .. } = self.report();
        let why = match (damaged_bytes, missing_blocks) {
            _ if self.accept_loss => return Ok(()),
            (0, 0) => return Ok(()),
            (damaged, 0) => format!(
                "{damaged} bytes of it are damaged in the journal; --accept-loss makes a volume of which they cannot \
                 be read"
            ),
            (_, missing) => format!(
                "{missing} written blocks are neither in the snapshot {} nor in the journal: the store lost the \
                 objects that had them, or the journal is damaged; --accept-loss makes a volume without them, which is \
                 no state that the volume ever had",
                self.snapshot
            ),
        };
        Err(LogError::NothingToSalvage { volume: self.recovered.identity.volume, why })
    }

    /// Writes what the journal holds to `volume`, a clone of the snapshot, in its order. `on_progress` hears of the
    /// bytes written and of all. What is damaged in the journal cannot be read of the volume either.
    ///
    /// # Errors
    /// What journal and volume say. The journal is as it was.
    pub async fn replay(
        &self,
        volume: &LogVolume,
        mut on_progress: impl FnMut(u64, u64),
    ) -> Result<(), DeviceError> {
        let (mut done, all) = (0, self.report().bytes);
        for found in self.pieces() {
            let piece = &found.piece;
            if found.poisoned && !weir_device::mutant("salvage_shows_what_was_before") {
                volume.poison(piece.offset, piece.len).await?;
            } else if !found.poisoned {
                self.replay_piece(volume, found).await?;
            }
            done += piece.len;
            on_progress(done, all);
        }
        Ok(())
    }

    async fn replay_piece(
        &self,
        volume: &LogVolume,
        found: &RecoveredPiece,
    ) -> Result<(), DeviceError> {
        let piece = &found.piece;
        match piece.kind {
            PieceKind::Data => {
                let len = usize::try_from(piece.len).expect("a piece fits a record");
                let mut bytes = vec![0; len];
                let pin = self.recovered.journal.pin(piece.position);
                let read = self.recovered.journal.read(piece.position, &mut bytes).await;
                drop(pin);
                read.map_err(LogError::Journal)?;
                let data = SharedBuf::copy_of(&bytes);
                volume.write(piece.offset, data).await
            }
            PieceKind::Zero => {
                let flags = WriteZeroesFlags { no_hole: true, ..WriteZeroesFlags::default() };
                volume.write_zeroes(piece.offset, piece.len, flags).await
            }
            PieceKind::Discard => volume.discard(piece.offset, piece.len).await,
            PieceKind::Poison => volume.poison(piece.offset, piece.len).await,
        }
    }
}

impl std::fmt::Debug for Salvage {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Salvage({:?})", self.report())
    }
}
