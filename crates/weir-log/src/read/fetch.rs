//! Frames from the store: one fetch at a time per frame, whoever asks; verified; kept in the node's frame cache.

use std::cell::{Cell, RefCell};
use std::ops::RangeInclusive;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use futures_util::{StreamExt, stream};
use smallvec::SmallVec;
use tokio::sync::oneshot;
use weir_device::{Data, DeviceError, Env, ErrorKind, Slice, VolumeId};
use weir_seal::{DataKey, SealKey};
use weir_store::{RetryPolicy, Store, StoreError};

use crate::error::LogError;
use crate::format::DecodeError;
use crate::format::blocks::BlockRange;
use crate::format::frame::{self, Codec};
use crate::format::object::ObjectHeader;
use crate::ids::ObjectId;
use crate::limits::{
    COLLECTED_FRAMES_PER_GET_MAX, DAMAGED_ATTEMPTS_MAX, FRAME_BYTES, FRAMES_ALONE_IN_FLIGHT_MAX,
    FRAMES_PER_GET_MAX, FRAMES_READ_ALONG_MAX, HEADER_GUESS_BYTES,
};
use crate::random::splitmix;
use crate::read::block_store::BlockStore;
use crate::read::cache::{FrameCache, FrameKey, FrameResult, Look, ObjectKey};
use crate::read::disk::DiskBlocks;
use crate::read::history::{Histories, Learning, know_history, learn};
use crate::read::parts::{self, InMemory};
use crate::read::table::{FramePlace, FrameTable};

/// Index under which the cache and the fetches know the header of an object.
const HEADER_INDEX: u32 = u32::MAX;

/// Between the seeds of two reads: odd, so that none comes twice.
const SEED_STEP: u64 = 0xd1b5_4a32_d192_ed03;

/// Reads objects for a volume.
pub(crate) struct Fetcher {
    pub(crate) volume: VolumeId,
    histories: Histories,
    key: Option<DataKey>,
    pub(crate) store: Store,
    /// The same for what clients wait for.
    pub(super) reads: Store,
    pub(crate) env: Env,
    pub(super) cache: Arc<dyn FrameCache>,
    /// The local disk behind that.
    pub(crate) disk: DiskBlocks,
    /// How long a read waits for a failing store.
    deadline: Duration,
    /// For the pauses of the next read that is tried again. Asked of the kernel for each read, it costs a call.
    next_seed: Cell<u64>,
    pub(super) in_memory: InMemory,
    /// Whether a request to the store costs less than bytes.
    requests_are_cheap: bool,
    pub(super) learning: RefCell<Learning>,
}

/// A run of frames, or of blocks of one frame, that the caller is the one to fetch. What is not settled in the end is
/// given up.
struct Flight {
    cache: Arc<dyn FrameCache>,
    first: FrameKey,
    /// Number of the last one.
    last: u32,
    settled: bool,
}

impl Flight {
    fn settle(&mut self, frames: Vec<FrameResult>) {
        self.settled = true;
        for (number, frame) in self.numbers().zip(frames) {
            self.cache.settle(self.first.at(number), Some(frame));
        }
    }

    fn numbers(&self) -> RangeInclusive<u32> {
        self.first.number()..=self.last
    }
}

impl Drop for Flight {
    fn drop(&mut self) {
        // What was settled may be on its way anew, for somebody else.
        if !self.settled && !weir_device::mutant("given_up_fetch_stays_coming") {
            for number in self.numbers() {
                self.cache.settle(self.first.at(number), None);
            }
        }
    }
}

impl Fetcher {
    pub(crate) fn new(
        (volume, key): (VolumeId, Option<DataKey>),
        histories: Histories,
        store: Store,
        env: Env,
        BlockStore { memory: cache, disk }: BlockStore,
        deadline: Duration,
    ) -> Rc<Self> {
        let requests_are_cheap = store.requests_are_cheap();
        let disk = DiskBlocks::new(disk, (volume, key.clone()), histories.named());
        let reads = store.measured(&env.pacer);
        let next_seed = Cell::new(env.random.next_u64());
        Rc::new(Self {
            volume,
            histories,
            key,
            store,
            reads,
            env,
            cache,
            disk,
            deadline,
            next_seed,
            in_memory: InMemory::default(),
            requests_are_cheap,
            learning: RefCell::default(),
        })
    }

    /// Whether a part of a frame is read rather than all of it. The cache on the local disk takes whole frames.
    pub(super) fn in_parts(&self) -> bool {
        self.requests_are_cheap && !self.disk.is_there()
    }

    /// Whether blocks may be had without their frames.
    pub(super) fn looks_for_blocks(&self) -> bool {
        self.requests_are_cheap || self.disk.is_there()
    }

    /// What the cache knows an object by, once its history is known ([`know_history`]).
    pub(super) fn key_of(&self, object: ObjectId) -> ObjectKey {
        let history = match object.stream == self.volume {
            true => self.histories.find(object.epoch),
            false if weir_device::mutant("other_streams_without_history") => None,
            false => self.disk.opening(object),
        };
        ObjectKey { id: object, history }
    }

    /// Whether it is not known yet which opening of another stream wrote the object. Nothing of it is looked for in
    /// memory until it is: memory may have objects of that name of a history that was given up.
    pub(super) fn is_of_unknown_history(&self, object: ObjectId) -> bool {
        object.stream != self.volume && self.disk.is_unknown(object)
    }

    pub(super) fn frame_key(&self, object: ObjectId, index: u32) -> FrameKey {
        FrameKey::whole(self.key_of(object), index)
    }

    /// A frame, if the cache has it.
    pub(crate) fn cached(&self, object: ObjectId, index: u32) -> Option<Bytes> {
        if self.is_of_unknown_history(object) {
            return None;
        }
        self.cache.get(&self.frame_key(object, index))
    }

    /// Keeps the frame table of an object that was just written.
    pub(crate) fn keep_frame_table(&self, header: &ObjectHeader) {
        self.keep_table(header, self.key.as_ref().map(|key| header.key(key)));
    }

    fn keep_table(&self, header: &ObjectHeader, key: Option<SealKey>) -> Arc<FrameTable> {
        let table = Arc::new(FrameTable::of(header, key));
        self.cache.keep_table(self.key_of(header.id), Arc::clone(&table));
        table
    }

    /// Fetches frames that [`FrameCache::look`] left to the caller.
    fn fetch(self: &Rc<Self>, keys: &[FrameKey]) {
        let Some(some) = keys.first() else { return };
        let numbers: Vec<u32> = keys.iter().map(FrameKey::number).collect();
        for (first, last) in runs_of(&numbers) {
            let flight = self.flight(some.at(first), last);
            self.env.spawn_local(fetch_run(Rc::clone(self), flight));
        }
    }

    fn flight(&self, first: FrameKey, last: u32) -> Flight {
        Flight { cache: Arc::clone(&self.cache), first, last, settled: false }
    }
}

/// The decoded frames `first..=last` of an object, in order.
///
/// # Errors
/// What the store says once the read deadline is over, or that a frame is damaged.
pub(crate) async fn frames(
    fetcher: &Rc<Fetcher>,
    object: ObjectId,
    first: u32,
    last: u32,
) -> Result<Vec<Bytes>, DeviceError> {
    know_history(fetcher, object).await?;
    let run = Run::look(fetcher, fetcher.frame_key(object, first), last);
    fetcher.fetch(&run.to_fetch);
    run.wait(fetcher).await
}

/// Blocks of one frame, in order: the first one, and the number of the last.
pub(super) async fn blocks(
    fetcher: &Rc<Fetcher>,
    table: &FrameTable,
    first: FrameKey,
    last: u32,
) -> Result<Vec<Bytes>, DeviceError> {
    let run = Run::look(fetcher, first, last);
    if run.to_fetch.len() < run.found.len() {
        fetcher.fetch(&run.to_fetch);
        return run.wait(fetcher).await;
    }
    // Not in a task of its own: if whoever asks goes away, the fetch is given up, and those who wait look again.
    let mut flight = fetcher.flight(first, last);
    match parts::get_here(fetcher, table, first, last).await {
        Some(blocks) => {
            flight.settle(blocks.iter().cloned().map(Ok).collect());
            Ok(blocks)
        }
        None => {
            fetcher.env.spawn_local(fetch_run(Rc::clone(fetcher), flight));
            run.wait(fetcher).await
        }
    }
}

/// A run of frames, or of blocks of one frame: what the cache has of it, and whom to wait for.
struct Run {
    /// Empty where it is waited for.
    found: Vec<Bytes>,
    waiting: SmallVec<[(usize, FrameKey, oneshot::Receiver<FrameResult>); 1]>,
    /// The caller is the one to fetch these.
    to_fetch: SmallVec<[FrameKey; 1]>,
}

impl Run {
    fn look(fetcher: &Fetcher, first: FrameKey, last: u32) -> Self {
        let (mut found, mut waiting, mut to_fetch) = (Vec::new(), SmallVec::new(), SmallVec::new());
        for number in first.number()..=last {
            let (at, key) = (found.len(), first.at(number));
            let (frame, receiver) = match fetcher.cache.look(&key) {
                Look::Found(frame) => (frame, None),
                Look::Coming(receiver) => (Bytes::new(), Some(receiver)),
                Look::Missing(receiver) => {
                    to_fetch.push(key);
                    (Bytes::new(), Some(receiver))
                }
            };
            found.push(frame);
            waiting.extend(receiver.map(|receiver| (at, key, receiver)));
        }
        Self { found, waiting, to_fetch }
    }

    async fn wait(self, fetcher: &Rc<Fetcher>) -> Result<Vec<Bytes>, DeviceError> {
        let Self { mut found, waiting, to_fetch } = self;
        for (at, key, receiver) in waiting {
            found[at] = match receiver.await {
                Ok(frame) => frame?,
                Err(_) if to_fetch.contains(&key) => return Err(LogError::ShuttingDown.into()),
                // Whoever fetched it is gone.
                Err(_) => again(fetcher, key).await?,
            };
        }
        Ok(found)
    }
}

/// A frame, a block, or the header, whoever fetches it; again where its fetch was given up by another volume.
async fn again(fetcher: &Rc<Fetcher>, key: FrameKey) -> FrameResult {
    loop {
        match fetcher.cache.look(&key) {
            Look::Found(frame) => return Ok(frame),
            Look::Coming(receiver) => {
                if let Ok(frame) = receiver.await {
                    return frame;
                }
            }
            Look::Missing(receiver) => {
                fetcher.fetch(&[key]);
                return receiver.await.unwrap_or_else(|_| Err(LogError::ShuttingDown.into()));
            }
        }
    }
}

/// Starts fetching frames that are neither cached nor on their way, without waiting for them.
pub(crate) fn prefetch(fetcher: &Rc<Fetcher>, object: ObjectId, first: u32, last: u32) {
    if fetcher.is_of_unknown_history(object) {
        return;
    }
    let is_missing = |key: &FrameKey| matches!(fetcher.cache.look(key), Look::Missing(_));
    let keys = (first..=last).map(|index| fetcher.frame_key(object, index));
    let to_fetch: Vec<FrameKey> = keys.filter(is_missing).collect();
    fetcher.fetch(&to_fetch);
}

/// Cuts ascending frame indices into consecutive runs of at most [`FRAMES_PER_GET_MAX`].
fn runs_of(indices: &[u32]) -> Vec<(u32, u32)> {
    near_runs_of(indices, 0, FRAMES_PER_GET_MAX)
}

/// Cuts ascending frame indices into what [`crate::read::bulk::pieces`] asks for at once.
pub(crate) fn collected_runs_of(indices: &[u32]) -> Vec<(u32, u32)> {
    near_runs_of(indices, FRAMES_READ_ALONG_MAX, COLLECTED_FRAMES_PER_GET_MAX)
}

/// Cuts ascending frame indices into runs of at most `frames_max`, with holes of at most `along_max` frames.
fn near_runs_of(indices: &[u32], along_max: u32, frames_max: u32) -> Vec<(u32, u32)> {
    let mut runs: Vec<(u32, u32)> = Vec::new();
    for index in indices {
        match runs.last_mut() {
            Some((first, last))
                if *index - *last <= along_max + 1 && *index - *first < frames_max =>
            {
                *last = *index;
            }
            _ => runs.push((*index, *index)),
        }
    }
    runs
}

/// Fetches one run and answers everybody who waits for something in it. Runs to its end whoever goes away.
async fn fetch_run(fetcher: Rc<Fetcher>, mut flight: Flight) {
    let (first, last, numbers) = (flight.first, flight.last, flight.numbers());
    let frames: Option<Vec<FrameResult>> = match get_run(&fetcher, first, last).await {
        Ok(frames) => frames.map(|frames| frames.into_iter().map(Ok).collect()),
        // One damaged frame, or block, must not fail the reads of the others: each is fetched alone.
        Err(error) if error.kind() == ErrorKind::Corrupt && numbers.clone().count() > 1 => {
            let alone = numbers.clone().map(|number| get_one(&fetcher, first.at(number)));
            let alone = stream::iter(alone).buffered(FRAMES_ALONE_IN_FLIGHT_MAX);
            let frames: Vec<Option<FrameResult>> = alone.collect().await;
            frames.into_iter().collect()
        }
        Err(error) => Some(numbers.clone().map(|_| Err(error.clone())).collect()),
    };
    // Without worker threads there is no result: the fetch is given up, and other volumes that wait for it fetch for
    // themselves.
    let Some(frames) = frames else { return };
    let failed = numbers.zip(&frames).find_map(|(at, frame)| Some((at, frame.as_ref().err()?)));
    if let Some((failed, error)) = failed {
        let (object, FrameKey { index: frame, block, .. }) = (first.object.id, first.at(failed));
        if error.kind() == ErrorKind::NotFound {
            // Collected meanwhile, unless the next look finds the same: then the reader says so.
            tracing::debug!(volume = %fetcher.volume, %object, "an object is gone");
        } else {
            let volume = fetcher.volume;
            tracing::error!(%volume, %object, frame, block, %error, "object frames cannot be read");
        }
    }
    flight.settle(frames);
}

/// One frame, or block; nothing where the worker threads are gone.
async fn get_one(fetcher: &Rc<Fetcher>, key: FrameKey) -> Option<FrameResult> {
    let got = get_run(fetcher, key, key.number()).await.transpose()?;
    Some(got.map(|mut frames| frames.remove(0)))
}

/// Nothing where the worker threads are gone.
async fn get_run(
    fetcher: &Rc<Fetcher>,
    first: FrameKey,
    last: u32,
) -> Result<Option<Vec<Bytes>>, DeviceError> {
    let object = first.object.id;
    if first.index == HEADER_INDEX {
        return Ok(get_header_frame(fetcher, object).await?.map(|header| vec![header]));
    }
    if let Some(block) = first.block {
        let table = table_of(fetcher, object).await?;
        let reader = Reader::new(fetcher, object);
        let range = BlockRange { first: block.into(), last };
        // A few blocks cost less than the way to another thread and back.
        let read = || parts::get_blocks(&reader, &table, first.index, range);
        let blocks = reader.retry(read).await?;
        return Ok(Some(parts::split(&blocks)));
    }
    if fetcher.disk.is_there() {
        return get_run_by_disk(fetcher, object, first.index, last).await;
    }
    get_run_of_store(fetcher, object, first.index, last).await
}

/// Frames of an object from the store, in order; nothing where the worker threads are gone.
async fn get_run_of_store(
    fetcher: &Rc<Fetcher>,
    object: ObjectId,
    first: u32,
    last: u32,
) -> Result<Option<Vec<Bytes>>, DeviceError> {
    let table = table_of(fetcher, object).await?;
    let reader = Reader::new(fetcher, object);
    let got = fetcher.env.background(async move {
        let read = || get_frames(&reader, &table, first, last);
        reader.retry(read).await
    });
    let Some(got) = got.await else { return Ok(None) };
    Ok(Some(got?))
}

/// The same, from the local disk as far as it has them. It is given the others.
async fn get_run_by_disk(
    fetcher: &Rc<Fetcher>,
    object: ObjectId,
    first: u32,
    last: u32,
) -> Result<Option<Vec<Bytes>>, DeviceError> {
    learn(fetcher, object).await?;
    let mut frames = fetcher.disk.frames(object, first, last).await;
    let is_missing = |index: &u32| frames[(index - first) as usize].is_none();
    let missing: Vec<u32> = (first..=last).filter(is_missing).collect();
    for (from, to) in runs_of(&missing) {
        let Some(fetched) = get_run_of_store(fetcher, object, from, to).await? else {
            return Ok(None);
        };
        for (index, frame) in (from..).zip(fetched) {
            frames[(index - first) as usize] = Some(frame);
        }
    }
    // Memory keeps them before anything else happens on this thread.
    for index in missing {
        let (memory, key) = (Arc::clone(&fetcher.cache), fetcher.frame_key(object, index));
        fetcher.disk.offer(object, index, move || memory.get(&key));
    }
    Ok(frames.into_iter().collect())
}

/// Where the frames of an object are. Its header is asked for once, however many runs of it are wanted at a time.
pub(super) async fn table_of(
    fetcher: &Rc<Fetcher>,
    object: ObjectId,
) -> Result<Arc<FrameTable>, DeviceError> {
    know_history(fetcher, object).await?;
    if let Some(table) = fetcher.cache.table(&fetcher.key_of(object)) {
        return Ok(table);
    }
    // Boxed: a run waits for its header, which is a run of its own kind.
    let bytes = Box::pin(again(fetcher, fetcher.frame_key(object, HEADER_INDEX))).await?;
    let opened = ObjectHeader::open(&bytes, fetcher.key.as_ref());
    let (header, key) = opened.map_err(|source| LogError::Object { object, source })?;
    Ok(fetcher.keep_table(&header, key))
}

/// The header as it is stored; nothing where the worker threads are gone.
async fn get_header_frame(
    fetcher: &Fetcher,
    object: ObjectId,
) -> Result<Option<Bytes>, DeviceError> {
    let reader = Reader::new(fetcher, object);
    let got = fetcher.env.background(async move {
        let read = async || {
            let bytes = match get_header_bytes(&reader.store, object).await? {
                Ok(bytes) => bytes,
                Err(error) => return Ok(Err(error)),
            };
            let opened = ObjectHeader::open(&bytes, reader.key.as_ref());
            let header = opened.and_then(|(header, _)| checked(header, object));
            // Without the bytes after it, which would stay in the cache with it.
            Ok(header.map(|header| {
                let len = usize::try_from(header.header_len()).unwrap_or(bytes.len());
                Bytes::copy_from_slice(&bytes[..len.min(bytes.len())])
            }))
        };
        reader.retry(read).await
    });
    let Some(got) = got.await else { return Ok(None) };
    Ok(Some(got?))
}

/// Reads an object on a worker, again and again: of the store by its policy, of damaged bytes a few times.
pub(super) struct Reader {
    pub(super) store: Store,
    pub(super) object: ObjectId,
    pub(super) key: Option<DataKey>,
    deadline: Duration,
    seed: u64,
}

impl Reader {
    pub(super) fn new(fetcher: &Fetcher, object: ObjectId) -> Self {
        let (store, key) = (fetcher.reads.clone(), fetcher.key.clone());
        let seed = fetcher.next_seed.get();
        fetcher.next_seed.set(seed.wrapping_add(SEED_STEP));
        Self { store, object, key, deadline: fetcher.deadline, seed }
    }

    /// The same for background work, which asks the store in its own way.
    pub(super) fn at(fetcher: &Fetcher, object: ObjectId, store: Store) -> Self {
        Self { store, ..Self::new(fetcher, object) }
    }

    pub(super) async fn retry<T, F>(&self, mut read: impl FnMut() -> F) -> Result<T, LogError>
    where
        F: Future<Output = Result<Result<T, DecodeError>, StoreError>>,
    {
        let object = self.object;
        let mut random = splitmix(self.seed);
        let policy = RetryPolicy::reads();
        let mut attempt = 0;
        loop {
            attempt += 1;
            let got = if weir_device::mutant("reads_give_up_at_once") {
                read().await
            } else {
                self.store.retry(&policy, &mut random, Some(self.deadline), &mut read).await
            };
            match got? {
                Ok(got) => return Ok(got),
                Err(source) if attempt == DAMAGED_ATTEMPTS_MAX => {
                    return Err(LogError::Object { object, source });
                }
                Err(source) => tracing::warn!(%object, %source, "fetching again"),
            }
        }
    }
}

/// The header of an object, for background work. Its frames are read next: where they are is kept.
///
/// # Errors
/// As [`frames`].
pub(crate) async fn header(
    fetcher: &Fetcher,
    object: ObjectId,
) -> Result<ObjectHeader, DeviceError> {
    let reader = Reader::at(fetcher, object, fetcher.store.clone());
    let got = fetcher.env.background(async move {
        let read = || open_header(&reader.store, object, reader.key.as_ref());
        reader.retry(read).await
    });
    let (header, key) = got.await.ok_or(LogError::ShuttingDown)??;
    fetcher.disk.learn((object.stream, object.epoch), header.opening);
    fetcher.keep_table(&header, key);
    Ok(header)
}

/// The frames that hold payload bytes, as first and last index.
pub(crate) fn frame_span(payload_offset: u32, len: u64) -> (u32, u32) {
    let last = u64::from(payload_offset) + len - 1;
    let last = u32::try_from(last).expect("within one object");
    (payload_offset / FRAME_BYTES, last / FRAME_BYTES)
}

/// The bytes in the frames that `frame_span` named, where they lie.
///
/// # Errors
/// A frame is shorter than a map says.
pub(crate) fn slices_of(
    object: ObjectId,
    frames: &[Bytes],
    payload_offset: u32,
    len: u64,
) -> Result<Data, LogError> {
    let mut skip = (payload_offset % FRAME_BYTES) as usize;
    let mut left = usize::try_from(len).expect("within one object");
    let mut data = Data::default();
    for frame in frames {
        let Some(have) = frame.len().checked_sub(skip) else { break };
        let take = have.min(left);
        data.push(Slice::Cached(frame.slice(skip..skip + take)));
        left -= take;
        skip = 0;
    }
    let end = payload_offset.saturating_add(u32::try_from(len).unwrap_or(u32::MAX));
    if left == 0 { Ok(data) } else { Err(parts::no_bytes(object, end)) }
}

/// One attempt at a run of frames. The outer error is the store's, the inner one says that bytes came but are not what
/// was written.
pub(super) async fn get_frames(
    reader: &Reader,
    table: &FrameTable,
    first: u32,
    last: u32,
) -> Result<Result<Vec<Bytes>, DecodeError>, StoreError> {
    let Reader { store, object, .. } = reader;
    let Some(places) = table.run(first, last) else {
        let error = DecodeError::Field { what: "frame", field: "index", value: last.into() };
        return Ok(Err(error));
    };
    let start = places[0].at;
    let end = places.last().map_or(start, FramePlace::end);
    let body = store.get_range(&object.key(), start..end).await?;
    let mut frames = Vec::with_capacity(places.len());
    for place in &places {
        let FramePlace { index, at, frame: entry, blocks } = *place;
        let from = usize::try_from(at - start).expect("within one GET");
        let Some(stored) = body.get(from..from + entry.stored_len as usize) else {
            let (have, need) = (body.len() as u64, end - start);
            return Ok(Err(DecodeError::Short { what: "frames", have, need }));
        };
        // A raw frame is copied out, so that one cached frame does not keep a whole GET in memory.
        let stored = match entry.codec {
            Codec::Raw if places.len() > 1 && table.key.is_none() => Bytes::copy_from_slice(stored),
            _ => body.slice(from..from + entry.stored_len as usize),
        };
        match frame::decode(object, index, &entry, blocks, table.key.as_ref(), stored) {
            Ok(raw) => frames.push(raw),
            Err(error) => return Ok(Err(error)),
        }
    }
    Ok(Ok(frames))
}

/// The header of an object, checked to be that object's.
pub(crate) async fn get_header(
    store: &Store,
    object: ObjectId,
) -> Result<Result<ObjectHeader, DecodeError>, StoreError> {
    let bytes = match get_header_bytes(store, object).await? {
        Ok(bytes) => bytes,
        Err(error) => return Ok(Err(error)),
    };
    Ok(ObjectHeader::decode(&bytes).and_then(|header| checked(header, object)))
}

/// [`get_header`] with the key of the volume, if it has one; and the key of the object.
pub(crate) async fn open_header(
    store: &Store,
    object: ObjectId,
    key: Option<&DataKey>,
) -> Result<Result<(ObjectHeader, Option<SealKey>), DecodeError>, StoreError> {
    let bytes = match get_header_bytes(store, object).await? {
        Ok(bytes) => bytes,
        Err(error) => return Ok(Err(error)),
    };
    let opened = ObjectHeader::open(&bytes, key);
    Ok(opened.and_then(|(header, key)| Ok((checked(header, object)?, key))))
}

fn checked(header: ObjectHeader, object: ObjectId) -> Result<ObjectHeader, DecodeError> {
    if header.id == object {
        return Ok(header);
    }
    let found = header.id.key();
    Err(DecodeError::Identity { what: "object header", found })
}

async fn get_header_bytes(
    store: &Store,
    object: ObjectId,
) -> Result<Result<Bytes, DecodeError>, StoreError> {
    let key = object.key();
    let (mut bytes, size) = store.get_head(&key, HEADER_GUESS_BYTES).await?;
    let need = match ObjectHeader::peek_len(&bytes) {
        Ok(len) => u64::from(len),
        Err(error) => return Ok(Err(error)),
    };
    if need > size {
        return Ok(Err(DecodeError::Short { what: "object", have: size, need }));
    }
    if need > bytes.len() as u64 {
        bytes = store.get_range(&key, 0..need).await?;
    }
    Ok(Ok(bytes))
}

#[cfg(test)]
mod tests {
    use weir_journal::Epoch;

    use super::*;
    use crate::ids::ObjectSeq;

    #[test]
    fn frames_are_fetched_in_consecutive_runs_of_bounded_length() {
        assert_eq!(runs_of(&[1, 2, 3, 7, 9, 10]), [(1, 3), (7, 7), (9, 10)]);
        let many: Vec<u32> = (0..40).collect();
        assert_eq!(runs_of(&many), [(0, 15), (16, 31), (32, 39)]);
        assert_eq!(runs_of(&[]), []);
        assert_eq!(near_runs_of(&[1, 2, 3, 6, 9, 10], 2, 16), [(1, 10)]);
        assert_eq!(near_runs_of(&[1, 2, 3, 6, 9, 10], 2, 8), [(1, 6), (9, 10)]);
        assert_eq!(near_runs_of(&[1, 5], 2, 16), [(1, 1), (5, 5)]);
    }

    #[test]
    fn bytes_across_the_border_of_two_frames_are_slices_of_both() {
        let frame = |byte| Bytes::from(vec![byte; FRAME_BYTES as usize]);
        let object = ObjectId { stream: VolumeId([1; 16]), seq: ObjectSeq(1), epoch: Epoch(1) };
        let data = slices_of(object, &[frame(1), frame(2)], FRAME_BYTES - 4, 10).unwrap();
        assert_eq!(data.slices().len(), 2);
        assert_eq!(data.to_vec(), [1, 1, 1, 1, 2, 2, 2, 2, 2, 2]);
        assert_eq!(frame_span(FRAME_BYTES - 4, 10), (0, 1));
        let short = Bytes::from_static(b"not all of it");
        for (frames, offset) in [(vec![short.clone()], 10), (vec![short], 14), (vec![], 0)] {
            let error = slices_of(object, &frames, offset, 4).unwrap_err();
            assert_eq!(error.kind(), ErrorKind::Corrupt, "{error}");
        }
    }
}
