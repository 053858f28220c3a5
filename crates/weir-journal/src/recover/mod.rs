//! Making a journal, and opening one that exists.

pub(crate) mod scan;
mod verdict;

use std::sync::Arc;

use weir_device::{AlignedBuf, Env, SharedBuf, VolumeId, mutant};
use weir_disk::{Directory, DiskError, File, FileIdentity, OpenMode};
use weir_seal::{DataKey, KeyId};

use self::scan::{Scan, Stretch};
use self::verdict::Verdict;
use crate::config::JournalConfig;
use crate::error::JournalError;
use crate::format::record::{Piece, PieceKind, RecordHeader};
use crate::format::superblock::{SLOT_OFFSETS, Superblock};
use crate::format::{DecodeError, to_u64, to_usize};
use crate::group_commit::PlacedPiece;
use crate::ids::{
    Announced, Epoch, Identity, JournalPos, ManifestSeen, OpeningId, RecordSeq, WriteNumber,
};
use crate::journal::Journal;
use crate::limits::{BLOCK_BYTES, BLOCK_LEN, DATA_START, SCAN_BYTES_MAX};
use crate::pieces::{PieceEntry, PieceTable};
use crate::ring::Ring;
use crate::seal::Seals;
use crate::state::{JournalState, Start};

/// Whether damage that lost acknowledged writes is accepted.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum AcceptLoss {
    /// Refuse to open.
    #[default]
    No,
    /// Open without what is lost. The journal remembers that this loss was accepted.
    Yes,
}

/// A journal that was opened or made.
#[derive(Debug)]
pub struct Recovered {
    /// The journal; takes no appends before [`Journal::begin_epoch`].
    pub journal: Journal,
    /// Whose it is.
    pub identity: Identity,
    /// Epoch of the opening that was in force last.
    pub epoch: Epoch,
    /// That opening; `None` if there was none, or it was one of a program that did not name openings.
    pub opening: Option<OpeningId>,
    /// Openings that were announced since, the oldest first.
    pub announced: Vec<Announced>,
    /// The newest version of the manifest that it knows to have been in the store, if it knows one.
    pub manifest: Option<ManifestSeen>,
    /// Whether this is the file that the opening in force wrote to.
    pub file: FileMatch,
    /// Last write that this journal holds or held: no opening of its history has flushed a later one into it, unless
    /// it was set back.
    pub last_flushed: WriteNumber,
    /// What it holds, in the order of write numbers. What the object stream holds already is to be released (again).
    pub pieces: Vec<RecoveredPiece>,
    /// How the recovery went.
    pub report: RecoveryReport,
}

/// What the superblock of a journal says, without a look at what the journal holds.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Identified {
    /// Whose it is.
    pub identity: Identity,
    /// As in [`Recovered`].
    pub epoch: Epoch,
    /// As in [`Recovered`].
    pub opening: Option<OpeningId>,
    /// As in [`Recovered`].
    pub announced: Vec<Announced>,
    /// As in [`Recovered`].
    pub manifest: Option<ManifestSeen>,
    /// Whether it was closed in order; it may be open at this moment.
    pub is_closed: bool,
    /// As in [`Recovered`].
    pub file: FileMatch,
}

/// Whether a file is the one that its superblock names.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FileMatch {
    /// It is.
    Same,
    /// The superblock names none, or nothing names this one.
    Unknown,
    /// It is a copy, or was put in the place of the other one.
    Other,
}

impl FileMatch {
    fn of(named: Option<FileIdentity>, own: Option<FileIdentity>) -> Self {
        match named.zip(own).and_then(|(named, own)| named.is_same(&own)) {
            Some(true) => Self::Same,
            Some(false) => Self::Other,
            None => Self::Unknown,
        }
    }
}

/// A piece found by recovery.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RecoveredPiece {
    /// Where it is.
    pub piece: PlacedPiece,
    /// Its payload does not match its checksum although it was promised: its range must read as an error.
    pub poisoned: bool,
}

/// What is wrong with a part of a journal.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DamageKind {
    /// Whole records cannot be read; it is unknown which ranges they wrote.
    Records,
    /// The payload of one piece does not match its checksum.
    Payload {
        /// First byte on the volume.
        offset: u64,
        /// Bytes on the volume.
        len: u64,
    },
    /// The disk cannot read the place where the next record would be, so it is unknown whether there was one.
    Unreadable,
}

/// A part of a journal that was promised and is lost.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Damage {
    /// What is wrong.
    pub kind: DamageKind,
    /// First record concerned.
    pub first: RecordSeq,
    /// Last record concerned.
    pub last: RecordSeq,
    /// Where it is.
    pub position: JournalPos,
    /// Most bytes of acknowledged writes that can be lost with it.
    pub lost_bytes: u64,
}

/// How a recovery went.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RecoveryReport {
    /// What is lost.
    pub damage: Vec<Damage>,
    /// Records that count.
    pub records: u64,
    /// Bytes read from disk.
    pub bytes_scanned: u64,
    /// Records behind the end: never promised, now gone.
    pub dropped_records: u64,
    /// Bytes of them.
    pub dropped_bytes: u64,
    /// Records left over from older epochs.
    pub stale_records: u64,
    /// The host has rebooted since the journal was opened last.
    pub boot_changed: bool,
    /// The journal was closed cleanly.
    pub clean: bool,
    /// One copy of the superblock could not be read; [`Journal::begin_epoch`] repairs it.
    pub superblock_repaired: bool,
    /// Last record that counts.
    pub last_record: RecordSeq,
    /// Highest write number that counts.
    pub last_write: WriteNumber,
}

/// Makes a journal with one empty segment.
pub(crate) async fn create(
    directory: &Directory,
    name: &str,
    identity: Identity,
    key: Option<&DataKey>,
    config: JournalConfig,
    env: &Env,
) -> Result<Recovered, JournalError> {
    config.check()?;
    let file = directory.open(name, OpenMode::CreateNew).await?;
    let named = match lock(&file).await {
        Ok(named) => named,
        Err(error) => {
            drop(file);
            let _ = directory.remove(name).await;
            return Err(error.into());
        }
    };
    let superblock = Superblock {
        generation: 1,
        identity,
        boot_id: env.clock.boot_id(),
        epoch: Epoch(0),
        opening: None,
        announced: Vec::new(),
        manifest: None,
        file: named,
        first_record: RecordSeq(1),
        first_position: JournalPos(0),
        first_write: WriteNumber(1),
        segment_bytes: config.segment_bytes,
        tail_position: JournalPos(0),
        tail_record: RecordSeq(1),
        tail_write: WriteNumber(1),
        clean_end: None,
        flushed_through: RecordSeq(0),
        loss_accepted_through: RecordSeq(0),
        key: key.map(DataKey::id),
        segments_physical: 1,
        segments: vec![0],
    };
    if let Err(error) = format_file(&file, &superblock).await {
        drop(file);
        // The first error is reported. A file that stays without a superblock is known to be unfinished.
        let _ = directory.remove(name).await;
        return Err(error.into());
    }
    let seals = key.map(|key| Seals::new(key.clone(), identity));
    let start = empty(superblock, named, seals, &config);
    Ok(Recovered {
        journal: open_journal(file, &config, env, start)?,
        identity,
        epoch: Epoch(0),
        opening: None,
        announced: Vec::new(),
        manifest: None,
        file: FileMatch::of(named, named),
        last_flushed: WriteNumber(0),
        pieces: Vec::new(),
        report: RecoveryReport::default(),
    })
}

/// A journal that holds nothing yet, with one segment.
fn empty(
    superblock: Superblock,
    file: Option<FileIdentity>,
    seals: Option<Seals>,
    config: &JournalConfig,
) -> Start {
    Start {
        superblock,
        recovered_from: None,
        file,
        ring: Ring::new(config.segment_bytes, config.segments_max, 1, 0, &[0]),
        pieces: PieceTable::new(config.resident_bytes_max),
        last_record: RecordSeq(0),
        last_write: WriteNumber(0),
        loss_accepted_through: RecordSeq(0),
        seals,
    }
}

/// Waits until nobody can write to the file any more, also no request in flight of a process that is gone; answers
/// which file it is.
async fn lock(file: &File) -> Result<Option<FileIdentity>, DiskError> {
    if !mutant("journal_not_locked") {
        file.lock_exclusive().await?;
    }
    file.identity().await
}

/// The segment first and the superblock last: a file that has one is whole.
async fn format_file(file: &File, superblock: &Superblock) -> Result<(), DiskError> {
    file.extend_zeroed(0, DATA_START + superblock.segment_bytes).await?;
    let block = SharedBuf::copy_of(&superblock.encode());
    for offset in SLOT_OFFSETS {
        file.write_at(vec![block.clone()], offset).await.1?;
        file.sync().await?;
    }
    Ok(())
}

fn open_journal(
    file: File,
    config: &JournalConfig,
    env: &Env,
    start: Start,
) -> Result<Journal, JournalError> {
    let alignment = file.alignment();
    if alignment > BLOCK_LEN {
        return Err(JournalError::Config("the disk needs an alignment of more than 4096 bytes"));
    }
    let name = Arc::from(file.display());
    let state = JournalState::new(name, alignment, config, env.buffers.clone(), start);
    Ok(Journal::new(file, env.clone(), state))
}

/// What the superblock says of whose journal this is.
pub(crate) async fn identify(
    directory: &Directory,
    name: &str,
) -> Result<Identified, JournalError> {
    let file = directory.open(name, OpenMode::Existing).await?;
    let file_name: Arc<str> = Arc::from(file.display());
    let Found { superblock, .. } = read_superblock(&file, &file_name).await?;
    Ok(Identified {
        identity: superblock.identity,
        epoch: superblock.epoch,
        opening: superblock.opening,
        announced: superblock.announced,
        manifest: superblock.manifest,
        // One that no opening ever wrote to holds nothing.
        is_closed: superblock.clean_end.is_some() || superblock.epoch == Epoch(0),
        file: FileMatch::of(superblock.file, file.identity().await?),
    })
}

/// Opens an existing journal and reads what it holds.
pub(crate) async fn recover(
    directory: &Directory,
    name: &str,
    (expected_volume, key): (VolumeId, Option<&DataKey>),
    config: JournalConfig,
    accept: AcceptLoss,
    env: &Env,
) -> Result<Recovered, JournalError> {
    config.check()?;
    let file = directory.open(name, OpenMode::Existing).await?;
    let named = lock(&file).await?;
    let file_name: Arc<str> = Arc::from(file.display());
    let Found { mut superblock, copy, other_differs } = read_superblock(&file, &file_name).await?;
    let identity = superblock.identity;
    check_whose(&file_name, &superblock, expected_volume, key)?;
    if superblock.epoch == Epoch(0) {
        // Made by an opening that was interrupted: a superblock that only the cache holds must not become the name of
        // a holder, or it would be missed after a loss of power.
        file.sync().await?;
    }
    restore_length(&file, &file_name, &mut superblock, accept).await?;
    let ring = Ring::new(
        superblock.segment_bytes,
        config.segments_max_of(superblock.segment_bytes),
        superblock.segments_physical,
        superblock.tail_segment(),
        &superblock.segments,
    );
    let scan = scan_in_turn(&file, &superblock, key.is_some(), &ring, env).await?;
    tracing::debug!(file = %file_name, bytes = scan.bytes_read, records = scan.found.len(), "journal scanned");
    let same_boot = superblock.boot_id == env.clock.boot_id();
    let verdict = verdict::judge(&superblock, same_boot, &scan, accept)
        .map_err(|refusal| refused(&file_name, &refusal.damage))?;
    for damage in &verdict.damage {
        tracing::error!(file = %file_name, ?damage, "journal damage");
    }
    let mut report = RecoveryReport {
        damage: verdict.damage.clone(),
        records: to_u64(verdict.records.len()),
        bytes_scanned: scan.bytes_read,
        dropped_records: verdict.dropped_records,
        dropped_bytes: verdict.dropped_bytes,
        stale_records: verdict.stale_records,
        boot_changed: !same_boot,
        clean: superblock.clean_end.is_some(),
        superblock_repaired: other_differs,
        last_record: verdict.last_record,
        last_write: WriteNumber(0),
    };
    let (epoch, opening) = (superblock.epoch, superblock.opening);
    let (announced, manifest) = (superblock.announced.clone(), superblock.manifest);
    let file_match = FileMatch::of(superblock.file, named);
    let seals = key.map(|key| Seals::new(key.clone(), identity));
    let (mut start, pieces) = take_over(superblock, ring, seals, &config, &scan, &verdict);
    (start.file, start.recovered_from) = (named, Some(copy));
    report.last_write = start.last_write;
    let journal = open_journal(file, &config, env, start)?;
    Ok(Recovered {
        journal,
        identity,
        epoch,
        opening,
        announced,
        manifest,
        file: file_match,
        last_flushed: report.last_write,
        pieces,
        report,
    })
}

/// Another volume's journal is none of ours, and one that is sealed under another key than its volume's cannot be read,
/// and must not be gone on with.
fn check_whose(
    file: &Arc<str>,
    superblock: &Superblock,
    expected: VolumeId,
    key: Option<&DataKey>,
) -> Result<(), JournalError> {
    let found = superblock.identity.volume;
    if found != expected {
        return Err(JournalError::WrongVolume { file: Arc::clone(file), expected, found });
    }
    let expected = key.map(DataKey::id);
    if superblock.key == expected {
        return Ok(());
    }
    let name = |key: Option<KeyId>| key.map_or("no key".to_owned(), |key| format!("key {key}"));
    let (found, expected) = (name(superblock.key), name(expected));
    Err(JournalError::OtherKey { file: Arc::clone(file), found, expected })
}

/// Takes room for the buffers of a scan before they are allocated: a node opens all its volumes at once.
async fn scan_in_turn(
    file: &File,
    superblock: &Superblock,
    sealed: bool,
    ring: &Ring,
    env: &Env,
) -> Result<Scan, DiskError> {
    let _room = env.buffers.room(to_usize(SCAN_BYTES_MAX)).await;
    scan::scan(file, &superblock.identity, sealed, &stretches(superblock, ring)).await
}

/// The newer of the two copies of the superblock.
struct Found {
    superblock: Superblock,
    /// Which one it is.
    copy: usize,
    /// The other one is older or damaged.
    other_differs: bool,
}

/// Reads both copies; an error where neither is whole.
async fn read_superblock(file: &File, file_name: &Arc<str>) -> Result<Found, JournalError> {
    let len = file.len().await?;
    if len < SLOT_OFFSETS[1] + BLOCK_BYTES {
        return Err(too_short(file, file_name, len).await?);
    }
    let mut copies: Vec<Result<Superblock, DecodeError>> = Vec::with_capacity(2);
    let mut first_was_read = true;
    for offset in SLOT_OFFSETS {
        let (block, result) = file.read_at(AlignedBuf::zeroed(BLOCK_LEN), offset).await;
        copies.push(match result {
            Ok(()) => Superblock::decode(&block),
            // The other copy may be readable; if it is not, its error is as good as this one.
            Err(error) if offset == SLOT_OFFSETS[0] => {
                tracing::warn!(file = %file_name, %error, "first superblock cannot be read");
                first_was_read = false;
                Err(DecodeError::Short { have: 0, need: BLOCK_BYTES })
            }
            Err(error) if copies[0].is_err() => return Err(error.into()),
            Err(_) => Err(DecodeError::Short { have: 0, need: BLOCK_BYTES }),
        });
    }
    let second = copies.pop().expect("two copies");
    let first = copies.pop().expect("two copies");
    match (first, second) {
        (Ok(first), Ok(second)) => {
            let other_differs = first.generation != second.generation;
            let is_first = first.generation >= second.generation;
            let (superblock, copy) = if is_first { (first, 0) } else { (second, 1) };
            Ok(Found { superblock, copy, other_differs })
        }
        // The other copy is damaged, or a newer program died before it had written both: its format is not in force.
        (Ok(superblock), Err(_)) => Ok(Found { superblock, copy: 0, other_differs: true }),
        (Err(_), Ok(superblock)) => Ok(Found { superblock, copy: 1, other_differs: true }),
        (Err(DecodeError::Version { found, known }), _)
        | (_, Err(DecodeError::Version { found, known }))
            if found > known =>
        {
            Err(JournalError::NewerVersion { file: Arc::clone(file_name), found, known })
        }
        (Err(DecodeError::RecordsVersion { found, known }), _)
        | (_, Err(DecodeError::RecordsVersion { found, known })) => {
            Err(JournalError::NewerRecords { file: Arc::clone(file_name), found, known })
        }
        // The second copy is written last, before anything is acknowledged: where nothing was ever written, the file
        // was not finished, and the first copy may be torn or missing. Without our magic it is somebody else's file.
        (Err(DecodeError::Zeroes | DecodeError::Checksum { .. }), Err(DecodeError::Zeroes))
            if first_was_read =>
        {
            Err(JournalError::NeverFinished { file: Arc::clone(file_name) })
        }
        (Err(first), Err(second)) => {
            Err(JournalError::NotAJournal { file: Arc::clone(file_name), first, second })
        }
    }
}

/// A file without room for two superblocks: a journal whose making was interrupted if it is empty or zero, else none.
async fn too_short(
    file: &File,
    file_name: &Arc<str>,
    len: u64,
) -> Result<JournalError, JournalError> {
    let file_name = Arc::clone(file_name);
    let readable = to_usize(len) / file.alignment() * file.alignment();
    let (bytes, result) = file.read_at(AlignedBuf::zeroed(readable), 0).await;
    result?;
    if bytes.iter().all(|byte| *byte == 0) {
        return Ok(JournalError::NeverFinished { file: file_name });
    }
    let short = DecodeError::Short { have: len, need: 2 * BLOCK_BYTES };
    Ok(JournalError::NotAJournal { file: file_name, first: short.clone(), second: short })
}

/// A file that lacks listed segments has lost writes; one that lacks only unlisted ones has lost nothing.
async fn restore_length(
    file: &File,
    file_name: &Arc<str>,
    superblock: &mut Superblock,
    accept: AcceptLoss,
) -> Result<(), JournalError> {
    let segment_bytes = superblock.segment_bytes;
    let len = file.len().await?;
    let whole = len.saturating_sub(DATA_START) / segment_bytes;
    if whole >= u64::from(superblock.segments_physical) {
        return Ok(());
    }
    let last_listed = superblock.segments.iter().max().expect("a superblock lists a segment");
    let listed_end = u64::from(*last_listed) + 1;
    if whole < listed_end {
        let needed = DATA_START + listed_end * segment_bytes;
        if accept == AcceptLoss::No {
            let file = Arc::clone(file_name);
            let lost_bytes = needed - len;
            return Err(JournalError::Truncated { file, len, needed, lost_bytes });
        }
        file.extend_zeroed(len / BLOCK_BYTES * BLOCK_BYTES, needed).await?;
    }
    let physical = listed_end.max(whole);
    superblock.segments_physical =
        u32::try_from(physical).expect("not above what the superblock said");
    Ok(())
}

/// What has to be read: every listed segment, up to the end if that is known.
fn stretches(superblock: &Superblock, ring: &Ring) -> Vec<Stretch> {
    let tail = superblock.tail_segment();
    let mut stretches = Vec::with_capacity(superblock.segments.len());
    for logical in tail..tail + to_u64(superblock.segments.len()) {
        let position = ring.start_of(logical);
        let end = ring.start_of(logical + 1);
        let end = superblock.clean_end.map_or(end, |clean| clean.clamp(position, end));
        if end > position {
            let file_offset = ring.file_offset(position).expect("a listed segment is known");
            stretches.push(Stretch { position, file_offset, bytes: end.0 - position.0 });
        }
    }
    stretches
}

fn refused(file: &Arc<str>, damage: &Damage) -> JournalError {
    JournalError::Damaged {
        file: Arc::clone(file),
        first: damage.first,
        last: damage.last,
        position: damage.position,
        lost_bytes: damage.lost_bytes,
        reason: match damage.kind {
            DamageKind::Unreadable => "the disk cannot read where the next record would be",
            DamageKind::Records | DamageKind::Payload { .. } => "they were acknowledged before",
        },
    }
}

/// The place of a payload in the record that begins `within` bytes behind the begin of its segment.
fn entry_of(header: &RecordHeader, piece: &Piece, within: u64) -> PieceEntry {
    let at = within + u64::from(piece.payload);
    PieceEntry {
        at: u32::try_from(at).expect("segments are below 4 GiB"),
        len: u32::try_from(piece.len).expect("the decoder bounds it"),
        crc: piece.payload_crc,
        offset: piece.offset,
        record: header.record,
    }
}

/// The state of an open journal out of what counts.
fn take_over(
    superblock: Superblock,
    mut ring: Ring,
    mut seals: Option<Seals>,
    config: &JournalConfig,
    scan: &Scan,
    verdict: &Verdict,
) -> (Start, Vec<RecoveredPiece>) {
    let mut table = PieceTable::new(config.resident_bytes_max);
    let mut pieces = Vec::new();
    let mut last_write = WriteNumber(superblock.tail_write.0.saturating_sub(1));
    let mut head_segment = superblock.tail_segment();
    for index in &verdict.records {
        let found = &scan.found[*index];
        let header = &found.header;
        let logical = ring.segment_of(header.position);
        ring.note_record(header.position, header.record, header.first_write, header.last_write());
        head_segment = logical;
        last_write = header.last_write();
        let within = header.position.0 - ring.start_of(logical).0;
        let mut entries = Vec::with_capacity(header.pieces.len());
        for (order, piece) in header.pieces.iter().enumerate() {
            let has_payload = piece.kind == PieceKind::Data;
            let payload = u64::from(piece.payload);
            pieces.push(RecoveredPiece {
                piece: PlacedPiece {
                    epoch: header.epoch,
                    record: header.record,
                    write: header.first_write.plus(to_u64(order)),
                    offset: piece.offset,
                    len: piece.len,
                    kind: piece.kind,
                    position: header.position.plus(payload),
                },
                poisoned: found.bad_pieces.contains(&order),
            });
            if has_payload {
                let index = u32::try_from(order).expect("the decoder bounds the table");
                let seal = seals.as_mut().zip(header.salt);
                let seal = seal.map(|(s, salt)| s.found(header.epoch, salt, (index, piece.tag)));
                entries.push((entry_of(header, piece, within), seal));
            }
        }
        // In a record, what was copied comes first whatever its number.
        entries.sort_unstable_by_key(|(entry, _)| entry.at);
        for (entry, seal) in entries {
            table.push(logical, entry, seal, None);
        }
    }
    ring.set_head(verdict.end, head_segment);
    let lost = verdict.damage.iter().filter(|damage| damage.kind == DamageKind::Records);
    let loss_accepted_through = lost.map(|damage| damage.last).max().unwrap_or_default();
    let floor = WriteNumber(superblock.first_write.0.saturating_sub(1));
    let start = Start {
        superblock,
        recovered_from: None,
        file: None,
        ring,
        pieces: table,
        last_record: verdict.last_record,
        last_write: last_write.max(floor),
        loss_accepted_through,
        seals,
    };
    (start, pieces)
}
