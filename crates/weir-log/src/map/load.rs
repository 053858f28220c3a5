//! Loading the object map: the published checkpoint, then the objects after it up to the end of the gap-free run.

use std::collections::{BTreeMap, BTreeSet};

use bytes::Bytes;
use futures_util::StreamExt;
use futures_util::stream;
use weir_device::{Env, VolumeId};
use weir_extent::PIECE_BYTES;
use weir_journal::Epoch;
use weir_seal::DataKey;
use weir_store::{RetryPolicy, Store, StoreError};

use crate::error::LogError;
use crate::format::checkpoint::{CheckpointRoot, PieceRef, decode_page, decode_table};
use crate::format::manifest::{CheckpointRef, HexId, Manifest, Origin};
use crate::format::object::{ObjectHeader, ObjectKind};
use crate::format::{DecodeError, frame};
use crate::ids::{ObjectId, ObjectSeq, WriteMark};
use crate::limits::{LOADING_BYTES, RECOVERY_GETS_MAX, ROLLING_BYTES};
use crate::map::checkpoint::{CheckpointState, PieceKind, References};
use crate::map::objects::{ApplyCursor, ObjectMap};
use crate::options::MapLimits;
use crate::own::manifests::retry_log;
use crate::random::splitmix;
use crate::read::fetch::open_header;

/// The map as of one sequence, and what is known around it.
#[derive(Debug)]
pub(crate) struct Loaded {
    /// The stream that the checkpoint is in.
    stream: VolumeId,
    pub(crate) objects: ObjectMap,
    pub(crate) checkpoint: CheckpointState,
    /// The map is as of this object.
    pub(crate) committed_seq: ObjectSeq,
    /// Last write that the map holds.
    pub(crate) committed: WriteMark,
    /// Size of the volume as of that object, if any object or checkpoint says.
    pub(crate) size: Option<u64>,
    /// Objects beyond the prefix or of superseded epochs, and those of checkpoints that were never published.
    pub(crate) void: Vec<ObjectId>,
    /// Own objects that were dead in the checkpoint: most are gone already, or snapshots hold them.
    pub(crate) dead: Vec<ObjectId>,
}

/// An object that the log lacks though it has later ones: it is on its way to the store, or missing. Who has the
/// volume open knows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Awaited {
    /// The object.
    pub object: ObjectId,
    /// Objects of the log that come after it.
    pub behind: u64,
}

impl Loaded {
    /// Whether the map, or the checkpoint that it was loaded from, is in this object or points at it.
    pub(crate) fn needs(&self, object: &ObjectId) -> bool {
        let named = self.objects.table.find(object).is_some();
        named || (object.stream == self.stream && self.checkpoint.needs(object))
    }

    /// Where the store lost an object, the checkpoint may lie beyond the gap, and openings since use its sequences
    /// again. The next checkpoint has nothing in such objects.
    fn leave_what_is_beyond(&mut self, manifest: &Manifest) {
        let through = self.committed_seq;
        let is_ours =
            |id: &ObjectId| id.seq <= through && manifest.owner_of(id.seq) == Some(id.epoch);
        let beyond = self.checkpoint.objects(self.stream).filter(|id| !is_ours(id));
        let beyond: Vec<ObjectSeq> = beyond.map(|id| id.seq).collect();
        if !weir_device::mutant("checkpoint_beyond_a_gap_stays") {
            self.checkpoint.rewrite(beyond);
        }
    }

    /// The first sequence behind the prefix, and the objects behind that: it is on its way, or missing, where there are
    /// any.
    pub(crate) fn gap(&self) -> (ObjectSeq, impl Iterator<Item = &ObjectId>) {
        let first = self.committed_seq.next();
        (first, self.void.iter().filter(move |id| id.seq > first))
    }

    /// The object that the log of the openings in this manifest lacks though it has later ones, if there is one.
    pub(crate) fn awaited(&self, manifest: &Manifest) -> Option<Awaited> {
        let (seq, behind) = self.gap();
        let behind = behind.filter(|id| manifest.owner_of(id.seq) == Some(id.epoch)).count() as u64;
        let epoch = manifest.owner_of(seq).filter(|_| behind > 0)?;
        let stream = VolumeId(manifest.volume.0);
        Some(Awaited { object: ObjectId { stream, seq, epoch }, behind })
    }

    /// What is void, but for what the checkpoint is in: that goes once there is another one.
    pub(crate) fn take_void(&mut self) -> Vec<ObjectId> {
        let Self { void, checkpoint, .. } = self;
        void.drain(..).filter(|id| !checkpoint.needs(id)).collect()
    }
}

/// The payload of a checkpoint object, decoded.
struct Payload(Vec<Bytes>);

impl Payload {
    /// Payload bytes `offset..offset + len`.
    fn slice(&self, offset: u32, len: u32) -> Option<Vec<u8>> {
        let (mut skip, mut need) = (offset as usize, len as usize);
        let mut out = Vec::with_capacity(need.min(self.0.iter().map(Bytes::len).sum()));
        for frame in &self.0 {
            if skip >= frame.len() {
                skip -= frame.len();
                continue;
            }
            let take = need.min(frame.len() - skip);
            out.extend_from_slice(&frame[skip..skip + take]);
            need -= take;
            skip = 0;
            if need == 0 {
                break;
            }
        }
        (need == 0).then_some(out)
    }

    fn len(&self) -> u64 {
        self.0.iter().map(|f| f.len() as u64).sum()
    }
}

/// Reads a whole object and decodes its frames. Damage may be of one reading only, so it is tried again by the caller.
async fn read_object(
    store: &Store,
    id: ObjectId,
    key: Option<&DataKey>,
) -> Result<(ObjectHeader, Payload), LogError> {
    let bytes = store.get(&id.key()).await?;
    let decoded = || -> Result<(ObjectHeader, Payload), DecodeError> {
        let (header, key) = ObjectHeader::open(&bytes, key)?;
        if header.id != id {
            let found = header.id.key();
            return Err(DecodeError::Identity { what: "object header", found });
        }
        let mut frames = Vec::with_capacity(header.frames.len());
        for ((index, entry), blocks) in header.frames.iter().enumerate().zip(header.all_blocks()) {
            let (at, len) = header.frame_place(index);
            let to_usize = |v: u64| usize::try_from(v).expect("the object is in memory");
            let Some(stored) = bytes.get(to_usize(at)..to_usize(at + len)) else {
                let (have, need) = (bytes.len() as u64, at + len);
                return Err(DecodeError::Short { what: "object", have, need });
            };
            let index = u32::try_from(index).expect("few frames");
            let stored = bytes.slice_ref(stored);
            frames.push(frame::decode(&id, index, entry, blocks, key.as_ref(), stored)?);
        }
        Ok((header, Payload(frames)))
    };
    decoded().map_err(|source| LogError::Object { object: id, source })
}

/// Reads with retries: of the store by its policy, of damaged bytes a few times.
async fn read_object_retrying(
    store: Store,
    id: ObjectId,
    key: Option<DataKey>,
    seed: u64,
) -> Result<(ObjectHeader, Payload), LogError> {
    let mut random = splitmix(seed);
    let policy = RetryPolicy::reads();
    let mut attempt = 0;
    loop {
        attempt += 1;
        match retry_log(&store, &policy, &mut random, || read_object(&store, id, key.as_ref()))
            .await
        {
            Err(LogError::Object { .. }) if attempt < crate::limits::DAMAGED_ATTEMPTS_MAX => {}
            other => return other,
        }
    }
}

/// A checkpoint being loaded.
pub(crate) struct Loader<'a> {
    store: &'a Store,
    env: &'a Env,
    volume: VolumeId,
    key: Option<DataKey>,
    payloads: BTreeMap<ObjectSeq, Payload>,
    references: References,
}

impl<'a> Loader<'a> {
    /// One that has read nothing yet.
    pub(crate) fn new(
        store: &'a Store,
        env: &'a Env,
        volume: VolumeId,
        key: Option<DataKey>,
    ) -> Self {
        let (payloads, references) = (BTreeMap::new(), References::default());
        Self { store, env, volume, key, payloads, references }
    }

    /// Fetches the objects that `refs` name and that are not here yet, several at a time, on the workers.
    pub(crate) async fn fetch(&mut self, refs: &[PieceRef]) -> Result<(), LogError> {
        let wanted: BTreeSet<(ObjectSeq, Epoch)> = refs
            .iter()
            .filter(|r| !self.payloads.contains_key(&r.seq))
            .map(|r| (r.seq, r.epoch))
            .collect();
        let reads = wanted.into_iter().map(|(seq, epoch)| {
            let id = ObjectId { stream: self.volume, seq, epoch };
            let seed = self.env.random.next_u64();
            let (store, key) = (self.store.clone(), self.key.clone());
            let read = self.env.background(read_object_retrying(store, id, key, seed));
            async move { (seq, read.await) }
        });
        let mut reads = stream::iter(reads).buffered(RECOVERY_GETS_MAX);
        let mut fetched = Vec::new();
        while let Some((seq, read)) = reads.next().await {
            let (_, payload) = read.ok_or(LogError::ShuttingDown)??;
            fetched.push((seq, payload));
        }
        drop(reads);
        self.payloads.extend(fetched);
        Ok(())
    }

    /// The objects that what was followed is in, and its root.
    fn objects_with(&self, root: ObjectId) -> impl Iterator<Item = ObjectId> + use<> {
        let objects = self.references.objects_with(root);
        let stream = self.volume;
        objects.into_iter().map(move |(seq, epoch)| ObjectId { stream, seq, epoch })
    }

    /// Frees what was fetched and need not be kept.
    pub(crate) fn retain(&mut self, keep: impl Fn(ObjectSeq) -> bool) {
        self.payloads.retain(|seq, _| keep(*seq));
    }

    pub(crate) fn bytes_of(&self, piece: &PieceRef) -> Result<Vec<u8>, LogError> {
        bytes_of(self.volume, &self.payloads, piece)
    }

    pub(crate) fn object_error(&self, piece: &PieceRef, source: DecodeError) -> LogError {
        object_error(self.volume, piece, source)
    }

    /// Follows index pages to the pieces they name.
    pub(crate) async fn follow(
        &mut self,
        kind: PieceKind,
        pages: &[PieceRef],
    ) -> Result<Vec<PieceRef>, LogError> {
        self.fetch(pages).await?;
        let mut pieces = Vec::new();
        for page in pages {
            self.references.add_page(kind, *page);
            let bytes = self.bytes_of(page)?;
            pieces.extend(decode_page(&bytes).map_err(|e| self.object_error(page, e))?);
        }
        for piece in &pieces {
            self.references.add_piece(kind, *piece);
        }
        Ok(pieces)
    }
}

fn bytes_of(
    volume: VolumeId,
    payloads: &BTreeMap<ObjectSeq, Payload>,
    piece: &PieceRef,
) -> Result<Vec<u8>, LogError> {
    let payload = payloads.get(&piece.seq);
    payload.and_then(|p| p.slice(piece.offset, piece.len)).ok_or_else(|| {
        let (what, field, value) = ("checkpoint piece", "offset", piece.offset.into());
        object_error(volume, piece, DecodeError::Field { what, field, value })
    })
}

fn object_error(volume: VolumeId, piece: &PieceRef, source: DecodeError) -> LogError {
    let object = ObjectId { stream: volume, seq: piece.seq, epoch: piece.epoch };
    LogError::Object { object, source }
}

/// Reads the root of a checkpoint.
pub(crate) async fn open_root<'a>(
    store: &'a Store,
    env: &'a Env,
    volume: VolumeId,
    key: Option<&DataKey>,
    named: CheckpointRef,
) -> Result<(Loader<'a>, CheckpointRoot, ObjectId), LogError> {
    let id = ObjectId { stream: volume, seq: ObjectSeq(named.sequence), epoch: Epoch(named.epoch) };
    let seed = env.random.next_u64();
    let read = env.background(read_object_retrying(store.clone(), id, key.cloned(), seed));
    let (header, payload) = read.await.ok_or(LogError::ShuttingDown)??;
    let fail = |source| LogError::Object { object: id, source };
    let no_root = DecodeError::Field { what: "object header", field: "root", value: 0 };
    let (offset, len) = header.root.ok_or_else(|| fail(no_root.clone()))?;
    let bytes = payload.slice(offset, len).ok_or_else(|| fail(no_root.clone()))?;
    let root = CheckpointRoot::decode(&bytes).map_err(fail)?;
    if root.as_of.0 != named.as_of {
        let found = format!("a map as of {}", root.as_of);
        return Err(fail(DecodeError::Identity { what: "checkpoint root", found }));
    }
    let mut loader = Loader::new(store, env, volume, key.cloned());
    loader.payloads.insert(id.seq, payload);
    Ok((loader, root, id))
}

/// The objects that a checkpoint's table names and those that it is in.
pub(crate) async fn reach(
    store: &Store,
    env: &Env,
    key: Option<&DataKey>,
    named: Origin,
) -> Result<Vec<ObjectId>, LogError> {
    let (volume, named) = (VolumeId(named.stream.0), named.checkpoint);
    let (mut loader, root, id) = open_root(store, env, volume, key, named).await?;
    let tables = loader.follow(PieceKind::Table, &root.table_pages).await?;
    loader.follow(PieceKind::Map, &root.map_pages).await?;
    loader.fetch(&tables).await?;
    let mut reached: Vec<ObjectId> = loader.objects_with(id).collect();
    for piece in &tables {
        let records = decode_table(&loader.bytes_of(piece)?);
        let records = records.map_err(|e| loader.object_error(piece, e))?;
        reached.extend(records.iter().filter(|r| !r.is_free()).map(|r| r.id));
    }
    Ok(reached)
}

/// The objects that a checkpoint is in.
pub(crate) async fn checkpoint_objects(
    store: &Store,
    env: &Env,
    key: Option<&DataKey>,
    named: Origin,
) -> Result<BTreeSet<ObjectId>, LogError> {
    let (volume, named) = (VolumeId(named.stream.0), named.checkpoint);
    let (mut loader, root, id) = open_root(store, env, volume, key, named).await?;
    loader.follow(PieceKind::Table, &root.table_pages).await?;
    loader.follow(PieceKind::Map, &root.map_pages).await?;
    Ok(loader.objects_with(id).collect())
}

/// The objects that the map of a checkpoint points at and those that it is in. Its table may name more: what was dead
/// by then goes once it is published.
pub(crate) async fn live(
    store: &Store,
    env: &Env,
    key: Option<&DataKey>,
    root: Origin,
) -> Result<Vec<ObjectId>, LogError> {
    let stream = VolumeId(root.stream.0);
    let loaded = checkpoint(store, env, stream, key, root).await?;
    let named = loaded.objects.table.objects();
    Ok(named.chain(loaded.checkpoint.objects(stream)).collect())
}

/// Loads what the objects of a volume are to be applied to: the newest checkpoint that its manifest names, the one of
/// another stream that it begins with, or the empty map.
pub(crate) async fn head(
    store: &Store,
    env: &Env,
    key: Option<&DataKey>,
    manifest: &Manifest,
) -> Result<Loaded, LogError> {
    let volume = VolumeId(manifest.volume.0);
    match manifest.root() {
        Some(root) if root.stream == manifest.volume => {
            checkpoint(store, env, volume, key, root).await
        }
        Some(root) => from_origin(store, env, key, manifest, root).await,
        None => Ok(Loaded {
            stream: volume,
            objects: ObjectMap::of(volume),
            checkpoint: CheckpointState::default(),
            committed_seq: ObjectSeq(0),
            committed: WriteMark::default(),
            size: None,
            void: Vec::new(),
            dead: Vec::new(),
        }),
    }
}

/// The map that a clone or a promoted replica begins with: all of it is new to the volume, whose first checkpoint is
/// whole.
async fn from_origin(
    store: &Store,
    env: &Env,
    key: Option<&DataKey>,
    manifest: &Manifest,
    root: Origin,
) -> Result<Loaded, LogError> {
    let volume = VolumeId(manifest.volume.0);
    let loaded = checkpoint(store, env, volume, key, root).await;
    let mut loaded = loaded.map_err(|source| LogError::Origin {
        volume,
        origin: match manifest.origins.first() {
            Some(origin) => format!("{}@{}", origin.volume, origin.snapshot),
            None => format!("volume {}", VolumeId(root.stream.0)),
        },
        source: Box::new(source),
    })?;
    for piece in loaded.checkpoint.map_pieces() {
        loaded.objects.map.mark_dirty(piece);
    }
    loaded.objects.table.mark_all_changed();
    Ok(Loaded {
        stream: volume,
        checkpoint: CheckpointState::default(),
        committed_seq: ObjectSeq(0),
        committed: WriteMark::default(),
        dead: Vec::new(),
        ..loaded
    })
}

/// Loads a checkpoint, in whatever stream it is, as the map of a volume.
pub(crate) async fn checkpoint(
    store: &Store,
    env: &Env,
    volume: VolumeId,
    key: Option<&DataKey>,
    root: Origin,
) -> Result<Loaded, LogError> {
    let (stream, named) = (VolumeId(root.stream.0), root.checkpoint);
    // Before anything is fetched: a node opens all its volumes at once.
    let _room = env.buffers.room(LOADING_BYTES).await;
    let mut objects = ObjectMap::of(volume);
    let (mut loader, root, id) = open_root(store, env, stream, key, named).await?;
    let fail = |source| LogError::Object { object: id, source };
    let tables = loader.follow(PieceKind::Table, &root.table_pages).await?;
    let pieces = loader.follow(PieceKind::Map, &root.map_pages).await?;
    loader.fetch(&tables).await?;
    for piece in &tables {
        let records = decode_table(&loader.bytes_of(piece)?);
        for record in records.map_err(|e| loader.object_error(piece, e))? {
            objects.table.add_loaded(record);
        }
    }
    if objects.table.len() != root.table_entries {
        let (field, value) = ("table_entries", objects.table.len());
        return Err(fail(DecodeError::Field { what: "checkpoint root", field, value }));
    }
    let mut objects = load_map(&mut loader, objects, pieces).await?;
    let dead = objects.table.free_dead();
    tracing::debug!(%volume, extents = objects.map.extents(), "map loaded");
    let references = std::mem::take(&mut loader.references);
    let names = references.objects_with(id);
    let bytes = |seq: &ObjectSeq| loader.payloads.get(seq).map_or(0, Payload::len);
    let checkpoint_objects = names.into_iter().map(|name| (name, bytes(&name.0))).collect();
    Ok(Loaded {
        stream,
        objects,
        checkpoint: CheckpointState::loaded(references, checkpoint_objects),
        committed_seq: root.as_of,
        committed: root.committed,
        size: Some(root.volume_size),
        void: Vec::new(),
        dead,
    })
}

/// Decodes the pieces of the map on a worker: ten million extents take a third of a second, and the volume's thread has
/// the journal to scan meanwhile.
async fn load_map(
    loader: &mut Loader<'_>,
    mut objects: ObjectMap,
    pieces: Vec<PieceRef>,
) -> Result<ObjectMap, LogError> {
    loader.fetch(&pieces).await?;
    let (volume, payloads) = (loader.volume, std::mem::take(&mut loader.payloads));
    let decoding = loader.env.background(async move {
        let decoded = decode_map(volume, &payloads, &mut objects, &pieces);
        (decoded, payloads, objects)
    });
    let (decoded, payloads, objects) = decoding.await.ok_or(LogError::ShuttingDown)?;
    loader.payloads = payloads;
    decoded.map(|()| objects)
}

fn decode_map(
    volume: VolumeId,
    payloads: &BTreeMap<ObjectSeq, Payload>,
    objects: &mut ObjectMap,
    pieces: &[PieceRef],
) -> Result<(), LogError> {
    for piece in pieces {
        let bad = |field| {
            let source = DecodeError::Field { what: "map piece", field, value: piece.number };
            object_error(volume, piece, source)
        };
        let bytes = bytes_of(volume, payloads, piece)?;
        if piece.number > weir_extent::ADDRESS_END / PIECE_BYTES {
            return Err(bad("number"));
        }
        objects.map.decode_piece(piece.number, &bytes).map_err(|_| bad("encoding"))?;
        objects
            .count_live(piece.number * PIECE_BYTES, PIECE_BYTES)
            .map_err(|_| bad("object place"))?;
    }
    // What was just loaded is what the store has: none of it needs writing again.
    objects.map.take_dirty_ranges();
    Ok(())
}

/// The objects of a stream that the store has after a sequence, whatever their epochs.
pub(crate) async fn objects_after(
    store: &Store,
    env: &Env,
    (stream, seq): (VolumeId, ObjectSeq),
    policy: &RetryPolicy,
) -> Result<BTreeSet<ObjectId>, StoreError> {
    let mut random = || env.random.next_u64();
    let prefix = ObjectId::prefix(stream);
    let after = ObjectId { stream, seq, epoch: Epoch(u64::MAX) }.key();
    let list = || store.list(&prefix, Some(&after));
    let listed = store.retry(policy, &mut random, None, list).await?;
    Ok(listed.iter().filter_map(|found| ObjectId::parse_key(&found.key)).collect())
}

/// Rolls forward over the objects after the checkpoint, to the end of the gap-free run of objects that belong to the
/// epoch owning their sequence. What lies beyond is void.
pub(crate) async fn roll_forward(
    store: &Store,
    env: &Env,
    (volume, key): (VolumeId, Option<&DataKey>),
    manifest: &Manifest,
    loaded: &mut Loaded,
    limits: &MapLimits,
) -> Result<(), LogError> {
    let mut there =
        objects_after(store, env, (volume, loaded.committed_seq), &RetryPolicy::reads()).await?;
    let mut run = Vec::new();
    let mut seq = loaded.committed_seq.next();
    loop {
        let owner = manifest.owning_entry(seq);
        let mut id = owner.map(|e| ObjectId { stream: volume, seq, epoch: Epoch(e.epoch) });
        if weir_device::mutant("superseded_epoch_accepted") {
            id = there.iter().find(|i| i.seq == seq).copied();
        }
        if weir_device::mutant("object_beyond_gap") && id.is_none_or(|id| !there.contains(&id)) {
            id = there.iter().find(|i| i.seq >= seq).copied();
        }
        let Some(id) = id else { break };
        if !there.remove(&id) {
            break;
        }
        run.push((id, owner.and_then(|e| e.opening)));
        seq = id.seq.next();
    }
    let void = take_run((store, env), key, run, loaded, limits).await?;
    loaded.void.extend(void.into_iter().chain(there));
    loaded.leave_what_is_beyond(manifest);
    Ok(())
}

/// Applies a run of objects, each with the opening that owns its sequence. Those that are not part of the prefix: from
/// the first one on that is of another opening, because what comes behind it is beyond a gap.
async fn take_run(
    (store, env): (&Store, &Env),
    key: Option<&DataKey>,
    run: Vec<(ObjectId, Option<HexId>)>,
    loaded: &mut Loaded,
    limits: &MapLimits,
) -> Result<Vec<ObjectId>, LogError> {
    let headers = run.iter().map(|(id, _)| {
        let seed = env.random.next_u64();
        let read = env.background(read_header(store.clone(), *id, key.cloned(), seed));
        async move { read.await.ok_or(LogError::ShuttingDown)? }
    });
    // Before they are fetched: a node opens all its volumes at once.
    let _room = env.buffers.room(ROLLING_BYTES).await;
    let mut headers = stream::iter(headers).buffered(RECOVERY_GETS_MAX);
    for (taken, (id, opening)) in run.iter().enumerate() {
        let header = headers.next().await.expect("one for each of the run")?;
        if header.opening != *opening && !weir_device::mutant("object_of_other_opening_accepted") {
            tracing::warn!(object = %id, "an object of another opening is void");
            return Ok(run[taken..].iter().map(|(id, _)| *id).collect());
        }
        take_object(loaded, &header, limits).await;
    }
    Ok(Vec::new())
}

async fn read_header(
    store: Store,
    id: ObjectId,
    key: Option<DataKey>,
    seed: u64,
) -> Result<ObjectHeader, LogError> {
    let mut random = splitmix(seed);
    let policy = RetryPolicy::reads();
    let mut attempt = 0;
    loop {
        attempt += 1;
        let read = || open_header(&store, id, key.as_ref());
        let got: Result<_, StoreError> = store.retry(&policy, &mut random, None, read).await;
        match got? {
            Ok((header, _)) => return Ok(header),
            Err(source) if attempt == crate::limits::DAMAGED_ATTEMPTS_MAX => {
                return Err(LogError::Object { object: id, source });
            }
            Err(_) => {}
        }
    }
}

/// Applies one object of the run. Others run meanwhile: one extent can be the whole of a huge volume.
async fn take_object(loaded: &mut Loaded, header: &ObjectHeader, limits: &MapLimits) {
    if header.kind == ObjectKind::Checkpoint {
        if !loaded.checkpoint.needs(&header.id) {
            // Of a checkpoint that was never published.
            loaded.void.push(header.id);
        }
    } else {
        let mut cursor = ApplyCursor::default();
        while !loaded.objects.apply_step(header, &mut cursor, limits, |_, _, _| {}) {
            tokio::task::yield_now().await;
        }
        loaded.checkpoint.objects_since += 1;
        loaded.checkpoint.bytes_since += header.payload_len();
    }
    // What moves bytes, or is a part of a checkpoint, may say a size that no manifest came to say: of a shrink or a
    // rollback that was cut off.
    if header.kind == ObjectKind::Data || weir_device::mutant("size_of_any_object") {
        loaded.size = Some(header.volume_size);
    }
    if header.kind == ObjectKind::Data {
        loaded.committed = header.last_write;
    }
    loaded.committed_seq = header.id.seq;
}
