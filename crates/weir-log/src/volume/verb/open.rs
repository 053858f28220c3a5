//! Opening a volume: who may, what its journal holds, what the store holds, and how they are joined (recovery).
//!
//! Order, each step durable before the next: the journal announces our opening; the manifest gets its epoch and name;
//! the store is listed and the prefix found; the manifest gets our first sequence; the journal's superblock gets our
//! epoch and opening; the first write is acknowledged. After a crash between any two of them the journal knows each
//! opening that the manifest can name.

use std::cell::{Cell, RefCell};
use std::rc::Rc;
use std::time::Duration;

use tokio::sync::{Mutex, Notify};
use weir_device::{ErrorKind, Events, VolumeId};
use weir_disk::LockGuard;
use weir_journal::{Epoch, Journal, PieceKind, PlacedPiece, Recovered};
use weir_seal::DataKey;

use crate::check::late;
use crate::collect::Collector;
use crate::collect::garbage::Garbage;
use crate::error::LogError;
use crate::format::manifest::{CheckpointRef, Manifest, VolumeState};
use crate::ids::{ObjectId, WriteMark};
use crate::limits::{LEASE_PATIENCE, OPENINGS_FENCED_MAX};
use crate::map::head::Head;
use crate::map::load::{self, Awaited, Loaded};
use crate::options::VolumeOptions;
use crate::own::lease::{LeaseHold, Run};
use crate::own::lost::Lost;
use crate::own::manifests::{self, ManifestWriter};
use crate::own::takeover::{Admitted, Claim};
use crate::read::ReadAhead;
use crate::read::failed::FailedReads;
use crate::read::fetch::Fetcher;
use crate::read::history::Histories;
use crate::recover::args::{LOCK_FILE, OpenArgs};
use crate::recover::begin::{self, Begun};
use crate::recover::evidence::{Consent, Decision, JournalView, StoreView};
use crate::recover::judge;
use crate::recover::local::{Local, LocalJournal};
use crate::recover::salvage;
use crate::snapshot::snapshots::Snapshots;
use crate::volume::LogVolume;
use crate::volume::pressure::Pressures;
use crate::volume::shared::{Shared, State};
use crate::volume::verb::salvage as kept;
use crate::write::pipeline::Pipeline;
use crate::write::state::WriteState;

/// What recovery did, for the log and for tests.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct OpenReport {
    /// Our epoch.
    pub epoch: u64,
    /// Last object of the prefix.
    pub committed_sequence: u64,
    /// Pieces of writes replayed from the journal: a write has one for each 4 KiB, at least one.
    pub replayed_writes: u64,
    /// Bytes replayed from the journal.
    pub replayed_bytes: u64,
    /// Ranges that are lost to damage in the journal.
    pub poisoned_ranges: u64,
    /// Objects beyond the prefix.
    pub void_objects: u64,
    /// The object that the prefix ends in front of though the store has later ones, where no journal is known to have
    /// what they hold: that is given up. The object was on its way when the last opening ended, or the store lost it.
    pub given_up_from: Option<Awaited>,
    /// Whether a new journal was made (the first opening, a takeover, or a lost disk).
    pub new_journal: bool,
}

impl LogVolume {
    /// Opens a volume for reading and writing and recovers what the last opening left. Where another node, or another
    /// journal, holds it, this waits for the whole length of the holder's lease.
    ///
    /// A manifest version that an earlier opening of ours had on its way when it ended may land now and take the place
    /// of our own. Nothing was acknowledged yet, so it begins again with what is there then, a few times. Not where the
    /// operator agreed to a loss: that was said of what was there before.
    ///
    /// # Errors
    /// See [`LogError`]; each names what is in the way and what to do.
    pub async fn open(args: OpenArgs) -> Result<(Rc<Self>, OpenReport), LogError> {
        let agreed =
            args.take_over || args.accept_loss || args.discard_journal || args.adopt_journal;
        let again = if agreed { 0 } else { OPENINGS_FENCED_MAX };
        for _ in 0..again {
            match Self::open_once(args.clone()).await {
                Err(error @ LogError::Fenced { .. }) => {
                    tracing::info!(volume = %args.id, %error, "the opening begins again");
                }
                other => return other,
            }
        }
        Self::open_once(args).await
    }

    async fn open_once(args: OpenArgs) -> Result<(Rc<Self>, OpenReport), LogError> {
        let lock = args.directory.lock(LOCK_FILE).await?;
        let hold = args.lease.hold(args.id);
        let manifest = manifests::newest(&args.store, &args.env, args.id).await?;
        check_state(&args, &manifest)?;
        // Before anything is written. No version of the manifest brings another data key.
        let key = args.keys.open(args.id, manifest.encryption.as_ref()).await?;
        // These three mostly read, and each can take a second, so they run at the same time.
        let (local, loaded, run) = futures_util::join!(
            Local::read(&args, key.as_ref()),
            load::head(&args.store, &args.env, key.as_ref(), &manifest),
            hold.acquire(&*args.env.clock, LEASE_PATIENCE),
        );
        let local = local?;
        run?;
        // Each phase of an opening leaves a line: bench/recovery prints them with their times.
        tracing::debug!(volume = %args.id, "journal and checkpoint read");
        let view = local.view();
        let first = (manifest.checkpoint, loaded);
        let claimed = claim_and_load(&args, key.as_ref(), view.as_ref(), manifest, first);
        let (admitted, loaded) = Box::pin(claimed).await?;
        let claimed = Claimed { lock, hold, key, local, view, admitted, loaded };
        Box::pin(Self::begin(args, claimed)).await
    }

    /// What follows once the volume may be opened.
    async fn begin(args: OpenArgs, claimed: Claimed) -> Result<(Rc<Self>, OpenReport), LogError> {
        let Claimed { lock, hold, key, local, view, admitted, mut loaded } = claimed;
        let Admitted { manifest, decision, survey, given_up } = admitted;
        let journal = local.settle(&args, key.as_ref(), &decision).await?;
        // The lease may have run out meanwhile, and another run begun.
        let run = hold.acquire(&*args.env.clock, LEASE_PATIENCE).await?;
        let retention = args.options.manifests;
        let mut writer = ManifestWriter::new(args.store.clone(), args.id, manifest, retention);
        let (local, lease) = ((&journal, view.as_ref()), (&hold, run));
        let begun = begin::announce_and_publish(&args, &mut writer, local, &survey, lease).await?;
        let epoch = begun.epoch;
        let current = writer.current().clone();
        roll_forward(&args, key.as_ref(), &current, &mut loaded).await?;
        let since_checkpoint = loaded.checkpoint.objects_since;
        let (sequence, committed) = (loaded.committed_seq.0, loaded.committed);
        tracing::debug!(volume = %args.id, sequence, %committed, since_checkpoint, "rolled forward");
        let store = survey.view(&current, loaded.committed);
        if let (Some(view), Decision::Replay(_)) = (&view, &decision) {
            check_not_set_back(&args, view, &store, loaded.committed)?;
        }
        check_nothing_missing(&args, &journal, &loaded)?;
        if let (Some(view), Decision::ReuseEmpty(_)) = (&view, &decision) {
            check_nothing_forgotten(&args, view, &store, &loaded)?;
        }
        let mut report = report_of(epoch, &loaded, journal.is_new);
        report.given_up_from = given_up_behind_a_gap(&args, &decision, &loaded, &current);
        if weir_device::mutant("delete_before_publication") {
            for id in &loaded.void {
                args.store.delete(&id.key()).await?;
            }
        }
        if !weir_device::mutant("sequences_not_owned") {
            let pieces = &journal.recovered.pieces;
            let through = salvage::whole_through(loaded.committed, pieces, &decision);
            let given_up = (given_up, through);
            begin::own_sequences(&args, &mut writer, epoch, &loaded, given_up).await?;
        }
        // Whatever numbers the prefix knows are not used again: what is in it was another journal's, or what this one
        // lost, where that was accepted.
        journal.recovered.journal.continue_after(loaded.committed.write);
        journal.recovered.journal.set_manifest(writer.current().seen());
        journal.recovered.journal.begin_epoch(epoch, begun.opening).await?;
        tracing::debug!(volume = %args.id, epoch = epoch.0, "epoch begun");
        // A size that grew is in the manifest before any object says so.
        let size = loaded.size.unwrap_or(0).max(current.size);
        let found = loaded.take_void().into_iter().chain(loaded.dead.drain(..)).collect();
        let garbage = Garbage::new(&current, found);
        let mut state = state_of(args.id, loaded, size, current, args.options.batch.rpo);
        let released = replay(&mut state, &journal.recovered, &args.options, &mut report);
        if let Some(write) = released {
            journal.recovered.journal.release(write);
        }
        hold.set_dirty(journal.recovered.journal.status().bytes_used);
        hold.set_flushed(journal.recovered.journal.flushed_write());
        hold.set_opening(begun.opening.into());
        let unneeded = begun.unneeded.clone();
        let journal = journal.recovered.journal;
        let parts = Parts { key, begun, journal, writer, state, garbage, lock, hold, run };
        let shared = shared_of(args, parts);
        if shared.check_owned().is_err() {
            return Err(LogError::LeaseMissed { volume: shared.id, ours: epoch });
        }
        tracing::info!(volume = %shared.id, ?report, "volume opened");
        let volume = Self::start(shared);
        kept::keep_first_maps(&volume.shared).await?;
        kept::delete_unneeded(&volume, &unneeded);
        Ok((volume, report))
    }
}

/// A volume that may be opened, and what was read for that.
struct Claimed {
    lock: LockGuard,
    hold: LeaseHold,
    key: Option<DataKey>,
    local: Local,
    view: Option<JournalView>,
    admitted: Admitted,
    loaded: Loaded,
}

/// What is known before the journal is replayed.
fn report_of(epoch: Epoch, loaded: &Loaded, new_journal: bool) -> OpenReport {
    OpenReport {
        epoch: epoch.0,
        committed_sequence: loaded.committed_seq.0,
        void_objects: loaded.void.len() as u64,
        new_journal,
        ..OpenReport::default()
    }
}

/// Without the journal that had them the objects behind a missing one are no part of the volume any more, though they
/// are in the store: a loss that the store may be to blame for is not left unsaid.
fn given_up_behind_a_gap(
    args: &OpenArgs,
    decision: &Decision,
    loaded: &Loaded,
    manifest: &Manifest,
) -> Option<Awaited> {
    // A journal that is replayed because somebody agreed to a loss may end before what is behind the gap.
    let agreed = args.accept_loss || args.adopt_journal;
    if matches!(decision, Decision::Replay(_)) && !agreed {
        return None;
    }
    let awaited = loaded.awaited(manifest)?;
    let Awaited { object, behind } = awaited;
    tracing::warn!(
        volume = %args.id, missing = %object, behind,
        "the opening goes on in front of an object that is not in the store, and gives up those behind it, but for \
         what the journal has: it was on its way when the last opening ended, or the store lost it"
    );
    Some(awaited)
}

fn check_state(args: &OpenArgs, manifest: &Manifest) -> Result<(), LogError> {
    match manifest.state {
        VolumeState::Deleted => Err(LogError::Deleted { volume: args.id }),
        VolumeState::Incomplete if !args.incomplete => {
            Err(LogError::Incomplete { volume: args.id })
        }
        VolumeState::Replica => Err(LogError::Replica { name: manifest.name.clone() }),
        VolumeState::Incomplete | VolumeState::Active => Ok(()),
    }
}

/// Claims the volume and loads the checkpoint that its manifest names, unless `first` is that one already.
async fn claim_and_load(
    args: &OpenArgs,
    key: Option<&DataKey>,
    journal: Option<&JournalView>,
    manifest: Manifest,
    first: (Option<CheckpointRef>, Result<Loaded, LogError>),
) -> Result<(Admitted, Loaded), LogError> {
    let claim = Claim {
        store: &args.store,
        env: &args.env,
        volume: args.id,
        take_over: args.take_over,
        on_wait: args.on_wait.as_deref(),
        journal,
        consent: Consent {
            discard_journal: args.discard_journal,
            adopt_journal: args.adopt_journal,
            accept_loss: args.accept_loss,
        },
        length_default: args.lease.settings().length,
    };
    let (checkpoint, mut loaded) = first;
    let sent = loaded.as_ref().map(|loaded| loaded.committed).unwrap_or_default();
    let mut admitted = claim.admit(manifest, sent).await?;
    let mut is_newest = admitted.manifest.checkpoint == checkpoint;
    loop {
        check_state(args, &admitted.manifest)?;
        if !is_newest {
            loaded = load::head(&args.store, &args.env, key, &admitted.manifest).await;
        }
        let error = match loaded {
            Ok(loaded) => return Ok((admitted, loaded)),
            Err(error) => error,
        };
        // A holder that was only away for a while may have published another checkpoint and deleted this one.
        let newest = manifests::newest(&args.store, &args.env, args.id).await?;
        if error.kind() != ErrorKind::NotFound || newest.number == admitted.manifest.number {
            return Err(error);
        }
        admitted = claim.admit(newest, sent).await?;
        (is_newest, loaded) = (false, Err(error));
    }
}

/// Checks that a journal that is replayed knows every write of its own that the committed prefix holds; one that does
/// not was set back to a backup.
fn check_not_set_back(
    args: &OpenArgs,
    journal: &JournalView,
    store: &StoreView<'_>,
    committed: WriteMark,
) -> Result<(), LogError> {
    if args.accept_loss {
        return Ok(());
    }
    judge::check_prefix(journal, store, committed)
        .map_err(|refusal| LogError::JournalRefused { volume: args.id, refusal })
}

/// The journal was allowed to forget only what objects hold: if it begins after the prefix ends, objects are missing.
/// Write numbers go on from opening to opening, whatever the journal (`continue_after`).
fn check_nothing_missing(
    args: &OpenArgs,
    journal: &LocalJournal,
    loaded: &Loaded,
) -> Result<(), LogError> {
    if journal.is_new {
        return Ok(());
    }
    let sent = loaded.committed.write.0;
    let first_kept = match journal.recovered.pieces.first() {
        Some(first) => first.piece.write.0,
        None => journal.recovered.journal.status().last_write.0 + 1,
    };
    if first_kept <= sent + 1 {
        return Ok(());
    }
    let missing = objects_missing(args, loaded, first_kept);
    if !args.accept_loss {
        return Err(missing);
    }
    tracing::warn!(%missing, "it is opened without what is missing, as the loss was accepted");
    Ok(())
}

/// The same for a journal that holds nothing, of an opening that the store need not know: what it held is in objects,
/// and a store that was set back lacks them.
fn check_nothing_forgotten(
    args: &OpenArgs,
    journal: &JournalView,
    store: &StoreView<'_>,
    loaded: &Loaded,
) -> Result<(), LogError> {
    let consent = args.accept_loss || weir_device::mutant("empty_journal_forgets");
    match judge::sent_last(journal, store) {
        Some(last) if last > loaded.committed.write && !consent => {
            Err(objects_missing(args, loaded, last.0 + 1))
        }
        _ => Ok(()),
    }
}

fn objects_missing(args: &OpenArgs, loaded: &Loaded, first_kept: u64) -> LogError {
    let (missing, behind) = loaded.gap();
    LogError::ObjectsMissing {
        volume: args.id,
        committed: loaded.committed.to_string(),
        first_kept,
        missing: format!("{}{:016x}-*", ObjectId::prefix(args.id), missing.0),
        behind: behind.count() as u64,
        store: args.store.url().to_owned(),
    }
}

fn mark_of(piece: &PlacedPiece) -> WriteMark {
    WriteMark { epoch: piece.epoch, write: piece.write }
}

fn state_of(
    stream: VolumeId,
    loaded: Loaded,
    size: u64,
    manifest: Manifest,
    rpo: Duration,
) -> State {
    let pipeline = Pipeline::after(loaded.committed_seq);
    State {
        stream,
        size,
        shrinking: false,
        writes: WriteState::new(pipeline, loaded.committed, rpo),
        head: Head::new(loaded.objects, loaded.checkpoint, manifest.checkpoint),
        collector: Collector::default(),
        snapshots: Snapshots::new(manifest.snapshots),
        origins: manifest.origins,
        read_ahead: ReadAhead::default(),
        failed_reads: FailedReads::default(),
        lost: Lost::default(),
        failure: None,
    }
}

/// Loads what the store has after the checkpoint, and looks for what landed late before it.
async fn roll_forward(
    args: &OpenArgs,
    key: Option<&DataKey>,
    current: &Manifest,
    loaded: &mut Loaded,
) -> Result<(), LogError> {
    let (store, env, volume) = (&args.store, &args.env, (args.id, key));
    let late = late::find(store, env, current, loaded.committed_seq);
    let rolled = load::roll_forward(store, env, volume, current, loaded, &args.options.map);
    let (rolled, late) = futures_util::join!(rolled, late);
    rolled?;
    loaded.void.extend(late?);
    Ok(())
}

/// Puts what the journal holds and the prefix does not back into overlay and batches, in order, and closes these: how
/// old it is nobody knows. What the prefix holds already is dropped: the journal may have lost newer writes of the same
/// range that were uploaded before the power went. Returns the last dropped write: the journal may forget up to it.
fn replay(
    state: &mut State,
    recovered: &Recovered,
    options: &VolumeOptions,
    report: &mut OpenReport,
) -> Option<weir_journal::WriteNumber> {
    let mut released = None;
    let mut record = None;
    for entry in &recovered.pieces {
        let mut piece = entry.piece;
        if mark_of(&piece) <= state.writes.committed && !weir_device::mutant("replay_everything") {
            released = Some(piece.write);
            continue;
        }
        if entry.poisoned {
            piece.kind = PieceKind::Poison;
            report.poisoned_ranges += 1;
        }
        report.replayed_writes += 1;
        report.replayed_bytes += piece.len;
        if record.replace(piece.record) != Some(piece.record) {
            state.writes.close_full_batch(&options.batch);
        }
        state.take_durable(&piece, piece.write);
    }
    // The uploader looks for closed batches before it waits for the first time.
    state.writes.close_replayed();
    released
}

/// What recovery has put together for the volume that it opens.
struct Parts {
    key: Option<DataKey>,
    begun: Begun,
    journal: Journal,
    writer: ManifestWriter,
    state: State,
    garbage: Garbage,
    lock: LockGuard,
    hold: LeaseHold,
    run: Run,
}

fn shared_of(args: OpenArgs, parts: Parts) -> Rc<Shared> {
    let Parts { key, begun, journal, writer, state, garbage, lock, hold, run } = parts;
    let takeover = writer.current().takeover;
    let deadline = args.options.read_deadline;
    let (store, env) = (args.store.clone(), args.env.clone());
    let volume = (args.id, key.clone());
    let histories = Histories::of(writer.current());
    let fetcher = Fetcher::new(volume, histories, store, env, args.blocks, deadline);
    Rc::new(Shared {
        id: args.id,
        epoch: begun.epoch,
        opening: begun.opening.into(),
        store: args.store,
        key,
        env: args.env,
        options: args.options,
        journal,
        newest_manifest: writer.newest(),
        manifest: Mutex::new(writer),
        garbage: Rc::new(garbage),
        hold,
        lease_generation: Cell::new(run.generation),
        takeover: Cell::new(takeover),
        state: RefCell::new(state),
        fetcher,
        pressures: Pressures::default(),
        work: Notify::new(),
        stored: Notify::new(),
        collect: Notify::new(),
        references: Notify::new(),
        progress: Notify::new(),
        stopped: Cell::new(false),
        tasks: Rc::default(),
        closing: Cell::new(false),
        frozen: Cell::new(false),
        appends: Cell::new(0),
        held: Cell::new(false),
        generation: Cell::new(0),
        events: Events::default(),
        _lock: lock,
    })
}
