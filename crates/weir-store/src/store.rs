//! The store as the rest of Weir sees it: validated keys, checked lengths, one attempt with a timeout, counters.

use std::error::Error;
use std::fmt;
use std::future::Future;
use std::ops::Range;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use bytes::Bytes;
use tokio::sync::OnceCell;
use tokio::time::Instant;
use tracing::debug;
use weir_device::{BufferPool, FileReads, mutant, with_causes};
use weir_pacer::{Leave, Pace, Pacer};

use crate::backend::{Backend, Got, Listed, Put, Room};
use crate::counters::Counters;
use crate::directory::Directory;
use crate::key::{check_key, check_prefix};
use crate::limits::{
    ATTEMPT_TIMEOUT, CHECKSUM_BYTES_MIN, CHECKSUM_DEADLINE, HERE_PATIENCE, LISTED_PAGE_KEYS,
    OBJECT_PATIENCE,
};
use crate::location::Location;
use crate::memory::Memory;
use crate::options::process_variable;
use crate::probe;
use crate::remote::{Remote, RemoteOptions};
use crate::retry::retry_noting;
use crate::s3;
use crate::{Faults, Place, RetryPolicy, StoreCounters, StoreError, StoreOptions, UploadLimits};

/// The part of a local file system that is kept for checkpoints, manifests and the collector: a divisor, and at most so
/// many bytes.
const RESERVE_DIVISOR: u64 = 16;
const RESERVE_BYTES_MAX: u64 = 64 << 20;

/// A store of objects. Cheap to clone; clones share counters.
///
/// Every method is **one attempt**; [`Store::retry`] makes more of it. Dropping a future abandons the answer: a PUT or
/// DELETE that had begun may still happen, now or later.
#[derive(Clone)]
pub struct Store {
    inner: Arc<Inner>,
    /// The one of `inner`, or the same in the background.
    backend: Arc<dyn Backend>,
    /// In the background.
    pace: Option<Pace>,
    /// There the backend asks for leave itself, piece by piece.
    is_paced_below: bool,
}

struct Inner {
    url: Arc<str>,
    backend: Arc<dyn Backend>,
    counters: Counters,
    /// What the last PUT failed with, if it failed.
    put_error: Mutex<Option<(StoreError, u64)>>,
    /// Whether the store heeds checksums of bodies has been found out.
    checksums_tried: OnceCell<()>,
    attempt_timeout: Duration,
    limits: UploadLimits,
    /// How the store keeps its promises was tested with this program, and needs no probe.
    is_own: bool,
    single_writer: bool,
}

impl Store {
    /// Opens the store at `url` with the settings of the environment; see [`Store::open_with`].
    ///
    /// # Errors
    /// As [`Store::open_with`]; a variable of the environment that makes no sense.
    pub fn open(url: &str) -> Result<Self, StoreError> {
        match Location::parse(url)? {
            Location::Directory(_) | Location::Memory(_) => {
                Self::open_with(url, &StoreOptions::default())
            }
            _ => Self::open_with(url, &StoreOptions::from_environment()?),
        }
    }

    /// Opens the store at `url`: `file:///directory` (created, with mode 0700, if missing), `memory://` (a new one),
    /// `memory://name` (shared within this process), `s3://bucket/prefix`, and with the features of this crate
    /// `gs://bucket/prefix` and `az://container/prefix`. Blocks for a few file operations. Asks a store over the
    /// network nothing: [`Store::admit`] does.
    ///
    /// # Errors
    /// A URL that names no store of this build, a directory that cannot be created or synced, settings that make no
    /// sense.
    pub fn open_with(url: &str, options: &StoreOptions) -> Result<Self, StoreError> {
        let shared: Arc<str> = url.into();
        let name = Arc::clone(&shared);
        let (backend, is_own): (Arc<dyn Backend>, bool) = match Location::parse(url)? {
            Location::Directory(path) => (Arc::new(Directory::open(name, path)?), true),
            Location::Memory(at) => (Arc::new(Memory::open(name, at.as_deref())), true),
            Location::S3(bucket) => {
                (Arc::new(s3::open(name, &bucket, options, &process_variable)?), false)
            }
            #[cfg(feature = "gcs")]
            Location::Gcs(bucket) => {
                (Arc::new(crate::cloud::open_gcs(name, &bucket, options)?), false)
            }
            #[cfg(feature = "azure")]
            Location::Azure(bucket) => {
                (Arc::new(crate::cloud::open_azure(name, &bucket, options)?), false)
            }
        };
        Ok(Self::of(Inner {
            url: shared,
            backend,
            counters: Counters::default(),
            put_error: Mutex::default(),
            checksums_tried: OnceCell::new(),
            attempt_timeout: ATTEMPT_TIMEOUT,
            limits: options.limits.clone(),
            is_own,
            single_writer: options.single_writer,
        }))
    }

    /// Whether [`Store::open_with`] would understand `url` and `options`. Creates nothing and asks no store.
    ///
    /// # Errors
    /// A URL that names no store of this build, settings that make no sense.
    pub fn check(url: &str, options: &StoreOptions) -> Result<(), StoreError> {
        match Location::parse(url)? {
            Location::Directory(_) | Location::Memory(_) => Ok(()),
            _ => Self::open_with(url, options).map(drop),
        }
    }

    /// A store on another implementation. `url` is its name in messages and must hold no secret. The client's own
    /// retries must be off.
    pub fn from_object_store(inner: Arc<dyn object_store::ObjectStore>, url: String) -> Self {
        let url: Arc<str> = url.into();
        let options = RemoteOptions { endpoint: url.to_string(), ..RemoteOptions::default() };
        Self::of(Inner {
            url: Arc::clone(&url),
            backend: Arc::new(Remote::new(url, inner, options)),
            counters: Counters::default(),
            put_error: Mutex::default(),
            checksums_tried: OnceCell::new(),
            attempt_timeout: ATTEMPT_TIMEOUT,
            limits: UploadLimits::default(),
            is_own: false,
            single_writer: false,
        })
    }

    /// The same store with faults injected below the checks. Its counters start at zero.
    #[must_use]
    pub fn with_faults(self, faults: Faults) -> Self {
        let backend = faults.wrap(Arc::clone(&self.inner.url), Arc::clone(&self.inner.backend));
        Self::of(Inner { backend, ..self.inner.again() })
    }

    /// The same store with another limit on one attempt. Its counters start at zero.
    #[must_use]
    pub fn with_attempt_timeout(self, attempt_timeout: Duration) -> Self {
        Self::of(Inner { attempt_timeout, ..self.inner.again() })
    }

    /// The same store for work in the background: what it moves waits for leave of the pacer, in a directory piece by
    /// piece; elsewhere what it writes does, an object at a time. Counters are shared.
    #[must_use]
    pub fn at_pace(&self, pace: Pace) -> Self {
        let inner = Arc::clone(&self.inner);
        let paced = self.inner.backend.at_pace(&pace);
        let is_paced_below = paced.is_some();
        let backend = paced.unwrap_or_else(|| Arc::clone(&self.inner.backend));
        Self { inner, backend, pace: Some(pace), is_paced_below }
    }

    /// The same store for reads that clients wait for. In a directory those that ask the disk tell the pacer what
    /// clients feel; what is in memory says nothing of the disk, and a network nothing of this host.
    #[must_use]
    pub fn measured(&self, pacer: &Pacer) -> Self {
        let backend = self.inner.backend.measured(pacer);
        let backend = backend.unwrap_or_else(|| Arc::clone(&self.inner.backend));
        Self { inner: Arc::clone(&self.inner), backend, pace: None, is_paced_below: false }
    }

    fn of(inner: Inner) -> Self {
        let backend = Arc::clone(&inner.backend);
        Self { inner: Arc::new(inner), backend, pace: None, is_paced_below: false }
    }

    /// Waits until so many bytes may be moved, for a while at most.
    async fn leave(&self, bytes: u64) -> Option<Leave> {
        let asks = !self.is_paced_below && !mutant("objects_go_without_leave");
        let pace = self.pace.as_ref().filter(|_| asks)?;
        Some(pace.for_at_most(OBJECT_PATIENCE).leave(bytes, 0).await)
    }

    /// A store over the network, as far as anybody can tell.
    #[cfg(test)]
    pub(crate) fn on(backend: Arc<dyn Backend>, single_writer: bool) -> Self {
        let memory = Self::open("memory://").expect("a store in memory");
        Self::of(Inner { backend, is_own: false, single_writer, ..memory.inner.again() })
    }

    /// Limits of uploads: to read them, and to change them while the store is used.
    #[must_use]
    pub fn limits(&self) -> &UploadLimits {
        &self.inner.limits
    }

    pub(crate) fn is_own(&self) -> bool {
        self.inner.is_own
    }

    pub(crate) fn is_single_writer(&self) -> bool {
        self.inner.single_writer
    }

    /// What tells this store from a copy of it elsewhere.
    pub(crate) fn identity(&self) -> String {
        self.backend.identity()
    }

    /// Where its objects are: the same for every spelling of one URL (links, slashes, letter case of the host), and
    /// never the same for two stores. One service under two host names has two. Short, ASCII, and without secrets.
    #[must_use]
    pub fn location(&self) -> String {
        self.backend.location()
    }

    /// Number of the device of the local file system that a store in a directory is on, as `stat` tells it.
    #[must_use]
    pub fn device(&self) -> Option<u64> {
        self.backend.device()
    }

    /// Whether there is room for `bytes` more of objects, besides the reserve: the last sixteenth of the file system
    /// that a store in a directory is on, 64 MiB at most. What frees room needs some first: checkpoints and manifests
    /// take it from the reserve, and copies of the collector from half of it (`reserve_percent` of 50). Whoever sends
    /// other data asks before it does. Other stores always have room, as far as anybody knows.
    ///
    /// # Errors
    /// What is missing, in a sentence for people.
    pub async fn has_room(&self, bytes: u64, reserve_percent: u64) -> Result<(), String> {
        let Ok(Some(Room { free, total })) = self.backend.room().await else { return Ok(()) };
        let reserve = (total / RESERVE_DIVISOR).min(RESERVE_BYTES_MAX) / 100 * reserve_percent;
        let needed = bytes.saturating_add(reserve);
        if free >= needed {
            return Ok(());
        }
        let (url, free, needed) = (self.url(), free >> 20, needed.div_ceil(1 << 20));
        Err(format!(
            "the file system of the store {url} is full: {free} MiB are free, and {needed} MiB are needed for more \
             data, so that there is room for what deletes; delete snapshots or volumes, or give it more room"
        ))
    }

    /// The URL it was opened with.
    #[must_use]
    pub fn url(&self) -> &str {
        &self.inner.url
    }

    /// Creates the object `key` out of `parts`, unless the key is taken. Durable once it returns. Waits for the limits
    /// of uploads first, however long that takes, unless it is small.
    ///
    /// # Errors
    /// After an error the object may be there, or appear later, unless the error says that the request was wrong.
    pub async fn put_create(&self, key: &str, parts: Vec<Bytes>) -> Result<Put, StoreError> {
        let inner = &*self.inner;
        check_key(&inner.url, key)?;
        let bytes = parts.iter().map(|part| to_u64(part.len())).sum();
        if bytes >= to_u64(CHECKSUM_BYTES_MIN) {
            inner.try_checksums(key).await;
        }
        // Before the attempt begins, whose time is limited.
        let leave = self.leave(bytes).await;
        let waiting = Instant::now();
        let is_awaited = || self.pace.as_ref().is_none_or(Pace::is_awaited);
        inner.limits.admit(bytes, is_awaited).await;
        inner.counters.upload_wait_ms.add(to_millis(waiting.elapsed()));
        inner.counters.puts.add(1);
        let put = inner.attempt(key, self.backend.put_create(key, parts)).await;
        inner.note_put(bytes, put.as_ref().err());
        let put = put?;
        // After an error it comes back.
        leave.into_iter().for_each(Leave::used);
        if put == Put::Created {
            inner.counters.bytes_up.add(bytes);
        }
        Ok(put)
    }

    /// Reads the whole object.
    ///
    /// # Errors
    /// [`StoreError::NotFound`]; [`StoreError::Short`] if the body has another length than the object.
    pub async fn get(&self, key: &str) -> Result<Bytes, StoreError> {
        let got = self.read(key, None).await?;
        self.checked(key, 0..got.object_bytes, got)
    }

    /// Reads exactly `range`. An empty range returns no bytes and asks the store nothing.
    ///
    /// # Errors
    /// [`StoreError::NotFound`]; [`StoreError::Short`] if anything but exactly that many bytes came, which is worth
    /// a retry only if the object is long enough.
    pub async fn get_range(&self, key: &str, range: Range<u64>) -> Result<Bytes, StoreError> {
        if range.is_empty() {
            check_key(&self.inner.url, key)?;
            let place = Place::new(&self.inner.url, key);
            let Range { start, end } = range;
            return if start == end {
                Ok(Bytes::new())
            } else {
                Err(StoreError::InvalidRange { place, start, end })
            };
        }
        let got = self.read(key, Some(range.clone())).await?;
        self.checked(key, range, got)
    }

    /// What [`Store::get_range`] would return, if the store has it in memory: at once, on the thread that asks. `key`
    /// must be one that names an object. Nothing where it would have to wait, whatever for, or where anything is wrong.
    #[must_use]
    pub fn get_now(&self, key: &str, range: Range<u64>) -> Option<Bytes> {
        let got = self.backend.get_now(key, &range)?;
        self.checked_now(&range, got.bytes)
    }

    /// What [`Store::get_range`] would return, where the thread that asks can read it from a disk by itself. Nothing
    /// where it cannot, or where anything is wrong: [`Store::get_range`] finds out what.
    pub async fn get_here(
        &self,
        key: &str,
        range: Range<u64>,
        files: &dyn FileReads,
        buffers: &BufferPool,
    ) -> Option<Bytes> {
        let reading = self.backend.get_here(key, range.clone(), files, buffers);
        let failure = match tokio::time::timeout(HERE_PATIENCE, reading).await {
            Ok(Some(Ok(bytes))) => return self.checked_now(&range, bytes),
            Ok(None) => return None,
            Ok(Some(Err(error))) => with_causes(&error),
            Err(_) => format!("no answer in {} s", HERE_PATIENCE.as_secs()),
        };
        self.inner.counters.gets.add(1);
        self.inner.counters.failures.add(1);
        debug!(key, failure, "a read failed; another thread tries");
        None
    }

    fn checked_now(&self, range: &Range<u64>, got: Bytes) -> Option<Bytes> {
        let bytes = to_u64(got.len());
        if bytes != range.end.checked_sub(range.start)? && !mutant("trust_short_get") {
            return None;
        }
        self.inner.counters.gets.add(1);
        self.inner.counters.bytes_down.add(bytes);
        Some(got)
    }

    /// Whether one request more costs less than 64 KiB more of one.
    #[must_use]
    pub fn requests_are_cheap(&self) -> bool {
        self.backend.requests_are_cheap()
    }

    /// Reads the first `bytes_max` bytes, or the whole object if it is shorter, and says how long the object is.
    ///
    /// # Errors
    /// [`StoreError::NotFound`]; [`StoreError::Short`] if fewer bytes came than the object has.
    pub async fn get_head(&self, key: &str, bytes_max: u64) -> Result<(Bytes, u64), StoreError> {
        // A store refuses an empty range, and the size is wanted.
        let got = self.read(key, Some(0..bytes_max.max(1))).await?;
        let object_bytes = got.object_bytes;
        let expected = bytes_max.max(1).min(object_bytes);
        let mut bytes = self.checked(key, 0..expected, got)?;
        if bytes_max == 0 {
            bytes.clear();
        }
        Ok((bytes, object_bytes))
    }

    /// Lists all objects below the directory `prefix` (empty, or ending in a slash), those after the key `after` if one
    /// is given, sorted by key. What a listing shows survives power loss.
    ///
    /// # Errors
    /// When the store fails. A directory that does not exist is empty.
    pub async fn list(&self, prefix: &str, after: Option<&str>) -> Result<Vec<Listed>, StoreError> {
        let inner = &*self.inner;
        check_prefix(&inner.url, prefix)?;
        if let Some(after) = after {
            check_key(&inner.url, after)?;
        }
        inner.counters.lists.add(1);
        inner.attempt(prefix, self.backend.list(prefix, after)).await
    }

    /// As [`Store::list`], but at most the first thousand objects: a single request where the service lists
    /// in pages.
    ///
    /// # Errors
    /// When the store fails.
    pub async fn list_page(
        &self,
        prefix: &str,
        after: Option<&str>,
    ) -> Result<Vec<Listed>, StoreError> {
        let inner = &*self.inner;
        check_prefix(&inner.url, prefix)?;
        if let Some(after) = after {
            check_key(&inner.url, after)?;
        }
        inner.counters.lists.add(1);
        let mut listed = inner.attempt(prefix, self.backend.list_page(prefix, after)).await?;
        listed.truncate(LISTED_PAGE_KEYS);
        Ok(listed)
    }

    /// Deletes the object, if it is there.
    ///
    /// # Errors
    /// When the store fails; the object may be gone all the same.
    pub async fn delete(&self, key: &str) -> Result<(), StoreError> {
        let inner = &*self.inner;
        check_key(&inner.url, key)?;
        inner.counters.deletes.add(1);
        inner.attempt(key, self.backend.delete(key)).await
    }

    /// Runs `operation` until it succeeds or `policy` says to stop, as [`crate::retry()`] does, and counts the retries.
    ///
    /// # Errors
    /// The first error that is not retried, or [`StoreError::GaveUp`] at the deadline.
    pub async fn retry<T, Attempt>(
        &self,
        policy: &RetryPolicy,
        random: &mut impl FnMut() -> u64,
        deadline: Option<Duration>,
        operation: impl FnMut() -> Attempt,
    ) -> Result<T, StoreError>
    where
        Attempt: Future<Output = Result<T, StoreError>>,
    {
        let counted = || self.inner.counters.retries.add(1);
        let store = Some(&self.inner.url);
        retry_noting(store, policy, random, deadline, operation, counted).await
    }

    /// What was done so far.
    #[must_use]
    pub fn counters(&self) -> StoreCounters {
        self.inner.counters.snapshot()
    }

    /// What the last PUT that ended failed with; nothing if it succeeded. Where there was no space for a body, a
    /// smaller one that found some says nothing.
    #[must_use]
    pub fn put_error(&self) -> Option<StoreError> {
        let noted = self.inner.put_error.lock().unwrap_or_else(PoisonError::into_inner);
        noted.as_ref().map(|(error, _)| error.clone())
    }

    async fn read(&self, key: &str, range: Option<Range<u64>>) -> Result<Got, StoreError> {
        let inner = &*self.inner;
        check_key(&inner.url, key)?;
        inner.counters.gets.add(1);
        let got = inner.attempt(key, self.backend.get(key, range)).await?;
        inner.counters.bytes_down.add(to_u64(got.bytes.len()));
        Ok(got)
    }

    /// Believes no store about how much it returned: clients of object stores do not compare the length of a body with
    /// the range they asked for, and a connection that breaks can end a body early.
    fn checked(&self, key: &str, asked: Range<u64>, got: Got) -> Result<Bytes, StoreError> {
        let (expected, received) = (asked.end - asked.start, to_u64(got.bytes.len()));
        if expected == received || mutant("trust_short_get") {
            return Ok(got.bytes);
        }
        self.inner.counters.failures.add(1);
        Err(StoreError::Short {
            place: Place::new(&self.inner.url, key),
            start: asked.start,
            expected,
            got: received,
            object_bytes: got.object_bytes,
        })
    }
}

impl Inner {
    /// Keeps what a PUT of so many bytes failed with.
    fn note_put(&self, bytes: u64, failed: Option<&StoreError>) {
        let mut noted = self.put_error.lock().unwrap_or_else(PoisonError::into_inner);
        match (failed, &*noted) {
            (Some(error), _) => *noted = Some((error.clone(), bytes)),
            (None, Some((StoreError::NoSpace { .. }, wanted))) if bytes < *wanted => {}
            (None, _) => *noted = None,
        }
    }

    /// The same, counting from zero.
    fn again(&self) -> Self {
        Self {
            url: Arc::clone(&self.url),
            backend: Arc::clone(&self.backend),
            counters: Counters::default(),
            put_error: Mutex::default(),
            checksums_tried: OnceCell::new(),
            limits: self.limits.clone(),
            ..*self
        }
    }

    /// Before the first large body, which is that of `key`: whether the store heeds a checksum in place of a signature
    /// of every byte. Where it cannot say so now, this body is signed, and the next large one asks again.
    async fn try_checksums(&self, key: &str) {
        let ask = || async {
            let prefix = probe::unused_prefix(key);
            let asked = self.backend.try_checksums(&prefix);
            let Some(heeded) = tokio::time::timeout(CHECKSUM_DEADLINE, asked).await?? else {
                return Ok(());
            };
            self.counters.puts.add(2);
            self.counters.deletes.add(2);
            debug!(url = &*self.url, heeded, "whether the store heeds checksums of bodies");
            Ok::<_, Box<dyn Error>>(())
        };
        if let Err(error) = self.checksums_tried.get_or_try_init(ask).await {
            debug!(%error, "the store cannot be asked whether it heeds checksums of bodies");
        }
    }

    async fn attempt<T>(
        &self,
        key: &str,
        operation: impl Future<Output = Result<T, StoreError>>,
    ) -> Result<T, StoreError> {
        let result = tokio::time::timeout(self.attempt_timeout, operation).await;
        let result = result.unwrap_or_else(|_| {
            let place = Place::new(&self.url, key);
            Err(StoreError::Timeout { place, after: self.attempt_timeout })
        });
        if result.as_ref().is_err_and(|error| !matches!(error, StoreError::NotFound { .. })) {
            self.counters.failures.add(1);
        }
        result
    }
}

impl fmt::Debug for Store {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Store").field("backend", &self.backend).finish_non_exhaustive()
    }
}

fn to_millis(duration: Duration) -> u64 {
    u64::try_from(duration.as_millis()).unwrap_or(u64::MAX)
}

fn to_u64(len: usize) -> u64 {
    u64::try_from(len).expect("a length fits 64 bits")
}
