//! Stores behind the `object_store` crate: cloud stores, and whatever else implements its trait.
//!
//! Its retries are off in everything we build on it: a retried create that had already landed would come back as
//! somebody else's, and the policy is ours.

use std::fmt;
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use bytes::Bytes;
use futures_util::{StreamExt, TryStreamExt};
use object_store::path::Path;
use object_store::{
    Attributes, Error, GetOptions, GetRange, ObjectStore, ObjectStoreExt, PutMode, PutOptions,
    PutPayload, PutResult,
};

use crate::backend::{Backend, Got, Listed, Put, Reply};
use crate::http::{Answered, Note, damaged, noted};
use crate::limits::{CHECKSUM_BYTES_MIN, LISTED_PAGE_KEYS};
use crate::{Cause, Place, Refusal, StoreError};

/// How a store words its answers.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum Dialect {
    /// S3: a missing object is 404 with `NoSuchKey`, and nothing else is.
    S3,
    /// Anything else.
    #[default]
    Other,
}

/// What a client of the `object_store` crate does not know about the store.
#[derive(Debug, Default)]
pub(crate) struct RemoteOptions {
    /// What all keys begin with: nothing, or a directory with its slash.
    pub(crate) prefix: String,
    pub(crate) dialect: Dialect,
    /// Name of the service in messages.
    pub(crate) endpoint: String,
    /// The bucket, and what else tells it from others of that service.
    pub(crate) bucket: String,
    /// Of every object created.
    pub(crate) attributes: Attributes,
    /// Look for an object before creating it: enough where one process alone writes, and all there is if the store
    /// knows no conditions.
    pub(crate) look_first: bool,
}

/// An implementation of `object_store::ObjectStore`.
pub(crate) struct Remote {
    url: Arc<str>,
    inner: Arc<dyn ObjectStore>,
    with_checksums: Option<WithChecksums>,
    options: RemoteOptions,
}

/// The same store through a client that sends a checksum of each body, and no signature of it.
struct WithChecksums {
    inner: Arc<dyn ObjectStore>,
    /// The store was seen to heed them.
    heeded: AtomicBool,
}

impl Remote {
    pub(crate) fn new(url: Arc<str>, inner: Arc<dyn ObjectStore>, options: RemoteOptions) -> Self {
        Self { url, inner, with_checksums: None, options }
    }

    /// Lets large bodies go through `inner`, which sends a checksum of each, once the store is known to heed it.
    pub(crate) fn with_checksums(mut self, inner: Arc<dyn ObjectStore>) -> Self {
        self.with_checksums = Some(WithChecksums { inner, heeded: AtomicBool::new(false) });
        self
    }

    /// Who sends a body of `bytes`.
    fn client(&self, bytes: usize) -> &dyn ObjectStore {
        match &self.with_checksums {
            Some(other) if bytes >= CHECKSUM_BYTES_MIN && other.heeded.load(Ordering::Relaxed) => {
                &*other.inner
            }
            _ => &*self.inner,
        }
    }

    fn path(&self, key: &str) -> Result<Path, StoreError> {
        Path::parse(format!("{}{key}", self.options.prefix)).map_err(|_| StoreError::InvalidKey {
            place: Place::new(&self.url, key),
            reason: "the store's client refuses this key",
        })
    }

    async fn put(&self, key: &str, parts: Vec<Bytes>) -> Result<Put, StoreError> {
        let path = self.path(key)?;
        if self.options.look_first && self.is_there(key, &path).await? {
            return Ok(Put::Exists);
        }
        let payload: PutPayload = parts.into_iter().collect();
        let (result, note) = self.send(&path, payload.clone(), PutMode::Create).await;
        let (result, note) = match (note.status, self.options.look_first) {
            // We looked, and nobody else writes.
            (Some(501), true) => self.send(&path, payload, PutMode::Overwrite).await,
            _ => (result, note),
        };
        let error = match result {
            Ok(_) => return Ok(Put::Created),
            Err(error) => error,
        };
        match note.status {
            Some(304 | 412) => Ok(Put::Exists),
            // Azure's word for a key that is taken. That of S3 is about a race that nobody is known to have won.
            Some(409) if note.code.ends_with("AlreadyExists") => Ok(Put::Exists),
            Some(501) => Err(self.refused(key, Refusal::NoConditions, error, &note)),
            // A client whose answers are not noted reports both alike. Only the first left an object.
            None if is_conflict(&error) => {
                if self.is_there(key, &path).await? {
                    return Ok(Put::Exists);
                }
                Err(StoreError::Conflict { place: Place::new(&self.url, key) })
            }
            _ => Err(self.error(key, error, &note)),
        }
    }

    async fn send(
        &self,
        path: &Path,
        payload: PutPayload,
        mode: PutMode,
    ) -> (Result<PutResult, Error>, Note) {
        let attributes = self.options.attributes.clone();
        let options = PutOptions { mode, attributes, ..PutOptions::default() };
        noted(self.client(payload.content_length()).put_opts(path, payload, options)).await
    }

    /// A whole body must be taken, and one that was damaged behind the client's back refused as such. Where the store
    /// answers anything else, bodies are signed.
    async fn heeds_checksums(&self, prefix: &str) -> Result<Option<bool>, StoreError> {
        let Some(other) = &self.with_checksums else { return Ok(None) };
        let [whole, spoilt] = ["whole", "spoilt"].map(|name| format!("{prefix}{name}"));
        let body = PutPayload::from_static(b"a body whose checksum goes with it");
        let taken = noted(other.inner.put(&self.path(&whole)?, body.clone())).await;
        let refused = noted(damaged(other.inner.put(&self.path(&spoilt)?, body))).await;
        // Either may be there, whatever was answered.
        self.remove(&whole).await?;
        self.remove(&spoilt).await?;
        let heeded = self.answer(&whole, taken)?.is_none()
            && self.answer(&spoilt, refused)?.is_some_and(|status| status == 400);
        other.heeded.store(heeded, Ordering::Relaxed);
        Ok(Some(heeded))
    }

    /// The status of an answer that is an error and stays one, or the error that may pass.
    fn answer(
        &self,
        key: &str,
        (result, note): (Result<PutResult, Error>, Note),
    ) -> Result<Option<u16>, StoreError> {
        match (result, note.status) {
            (Ok(_), _) => Ok(None),
            (Err(_), Some(status)) if (400..500).contains(&status) && status != 429 => {
                Ok(Some(status))
            }
            (Err(error), _) => Err(self.error(key, error, &note)),
        }
    }

    async fn is_there(&self, key: &str, path: &Path) -> Result<bool, StoreError> {
        match noted(self.inner.head(path)).await {
            (Ok(_), _) => Ok(true),
            // It has no body that could say what is missing, object or bucket; the PUT that follows does.
            (Err(Error::NotFound { .. }), _) => Ok(false),
            (Err(error), note) => Err(self.error(key, error, &note)),
        }
    }

    async fn read(&self, key: &str, range: Option<Range<u64>>) -> Result<Got, StoreError> {
        let path = self.path(key)?;
        let start = range.as_ref().map_or(0, |range| range.start);
        let options = GetOptions { range: range.map(GetRange::Bounded), ..GetOptions::default() };
        let (result, note) = noted(self.inner.get_opts(&path, options)).await;
        let result = match result {
            Ok(result) => result,
            // A range that starts at or past the end is an error here, and one that has no name of its own.
            Err(error @ Error::Generic { .. }) if matches!(note.status, None | Some(416)) => {
                return match self.inner.head(&path).await {
                    Ok(meta) if start >= meta.size => {
                        Ok(Got { bytes: Bytes::new(), object_bytes: meta.size })
                    }
                    _ => Err(self.error(key, error, &note)),
                };
            }
            Err(error) => return Err(self.error(key, error, &note)),
        };
        let (object_bytes, returned) = (result.meta.size, result.range.clone());
        let bytes = result.bytes().await.map_err(|error| self.error(key, error, &note))?;
        // Bytes of another place than asked for count as none.
        let bytes = if returned.start == start { bytes } else { Bytes::new() };
        Ok(Got { bytes, object_bytes })
    }

    /// What is there, or the first `max` of it.
    async fn listing(
        &self,
        prefix: &str,
        after: Option<&str>,
        max: usize,
    ) -> Result<Vec<Listed>, StoreError> {
        let whole = format!("{}{prefix}", self.options.prefix);
        let directory = whole.strip_suffix('/').map(Path::parse).transpose();
        let directory = directory.map_err(|_| StoreError::InvalidKey {
            place: Place::new(&self.url, prefix),
            reason: "the store's client refuses this prefix",
        })?;
        let stream = match after {
            Some(after) => self.inner.list_with_offset(directory.as_ref(), &self.path(after)?),
            None => self.inner.list(directory.as_ref()),
        };
        let (found, note) = noted(stream.take(max).try_collect::<Vec<_>>()).await;
        let found = found.map_err(|error| self.error(prefix, error, &note))?;
        let wanted = |meta: object_store::ObjectMeta| {
            let key = meta.location.as_ref().strip_prefix(&self.options.prefix)?;
            let wanted = key.starts_with(prefix) && after.is_none_or(|after| key > after);
            wanted.then(|| Listed { key: key.to_owned(), size: meta.size })
        };
        let mut found: Vec<_> = found.into_iter().filter_map(wanted).collect();
        found.sort_unstable_by(|a, b| a.key.cmp(&b.key));
        Ok(found)
    }

    async fn remove(&self, key: &str) -> Result<(), StoreError> {
        let (result, note) = noted(self.inner.delete(&self.path(key)?)).await;
        match result.map_err(|error| self.error(key, error, &note)) {
            Ok(()) | Err(StoreError::NotFound { .. }) => Ok(()),
            Err(error) => Err(error),
        }
    }

    fn refused(&self, key: &str, refusal: Refusal, error: Error, note: &Note) -> StoreError {
        let place = Place::new(&self.url, key);
        StoreError::Refused { place, refusal, source: cause(error, note) }
    }

    /// What a failed operation means, by the store's own words where they were heard.
    fn error(&self, key: &str, error: Error, note: &Note) -> StoreError {
        if let Some(refusal) = Refusal::of(note, &self.options.endpoint) {
            return self.refused(key, refusal, error, note);
        }
        let place = Place::new(&self.url, key);
        match (note.status, note.code.as_str()) {
            (Some(429), _) | (_, "SlowDown" | "ServerBusy" | "TooManyRequests") => {
                return StoreError::Throttled { place, source: cause(error, note) };
            }
            (Some(507), _)
            | (_, "QuotaExceeded" | "XMinioStorageFull" | "ServiceQuotaExceeded") => {
                return StoreError::NoSpace { place, path: None, source: cause(error, note) };
            }
            // A proxy that answers 404 for everything must not make volumes vanish.
            (Some(404), code) if self.options.dialect == Dialect::S3 && code != "NoSuchKey" => {
                return StoreError::Unavailable { place, source: cause(error, note) };
            }
            _ => {}
        }
        match error {
            Error::NotFound { .. } => StoreError::NotFound { place },
            Error::AlreadyExists { .. } | Error::Precondition { .. } => {
                StoreError::Conflict { place }
            }
            Error::PermissionDenied { .. } | Error::Unauthenticated { .. } => {
                StoreError::Denied { place, path: None, source: cause(error, note) }
            }
            Error::InvalidPath { .. } => {
                StoreError::InvalidKey { place, reason: "the store's client refuses this key" }
            }
            _ => StoreError::Unavailable { place, source: cause(error, note) },
        }
    }
}

fn is_conflict(error: &Error) -> bool {
    matches!(error, Error::AlreadyExists { .. } | Error::Precondition { .. })
}

/// The store's answer where there was one, else what the client says: that nobody answered, and why.
fn cause(error: Error, note: &Note) -> Cause {
    match Answered::of(note) {
        Some(answered) => Arc::new(answered),
        None => Arc::new(error),
    }
}

impl Backend for Remote {
    fn put_create<'a>(&'a self, key: &'a str, parts: Vec<Bytes>) -> Reply<'a, Put> {
        Box::pin(self.put(key, parts))
    }

    fn get<'a>(&'a self, key: &'a str, range: Option<Range<u64>>) -> Reply<'a, Got> {
        Box::pin(self.read(key, range))
    }

    fn list<'a>(&'a self, prefix: &'a str, after: Option<&'a str>) -> Reply<'a, Vec<Listed>> {
        Box::pin(self.listing(prefix, after, usize::MAX))
    }

    fn list_page<'a>(&'a self, prefix: &'a str, after: Option<&'a str>) -> Reply<'a, Vec<Listed>> {
        Box::pin(self.listing(prefix, after, LISTED_PAGE_KEYS))
    }

    fn delete<'a>(&'a self, key: &'a str) -> Reply<'a, ()> {
        Box::pin(self.remove(key))
    }

    fn try_checksums<'a>(&'a self, prefix: &'a str) -> Reply<'a, Option<bool>> {
        Box::pin(self.heeds_checksums(prefix))
    }

    fn identity(&self) -> String {
        format!("{} {}", self.options.endpoint, self.url)
    }

    fn location(&self) -> String {
        let RemoteOptions { endpoint, bucket, prefix, .. } = &self.options;
        format!("{endpoint} {bucket} {prefix}")
    }
}

impl fmt::Debug for Remote {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Remote").field("url", &self.url).finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests;
