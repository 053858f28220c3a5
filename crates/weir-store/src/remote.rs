//! Stores behind the `object_store` crate: cloud stores, and whatever else implements its trait.
//!
//! Its retries are off in everything we build on it: a retried create that had already landed would come back as
//! somebody else's, and the policy is ours.

use std::fmt;
use std::ops::Range;
use std::sync::Arc;

use bytes::Bytes;
use futures_util::TryStreamExt;
use object_store::path::Path;
use object_store::{
    Error, GetOptions, GetRange, ObjectStore, ObjectStoreExt, PutMode, PutOptions, PutPayload,
};

use crate::backend::{Backend, Got, Listed, Put, Reply};
use crate::{Cause, Place, StoreError};

/// An implementation of `object_store::ObjectStore`.
pub(crate) struct Remote {
    url: Arc<str>,
    inner: Arc<dyn ObjectStore>,
}

impl Remote {
    pub(crate) fn new(url: Arc<str>, inner: Arc<dyn ObjectStore>) -> Self {
        Self { url, inner }
    }

    fn path(&self, key: &str) -> Result<Path, StoreError> {
        Path::parse(key).map_err(|_| StoreError::InvalidKey {
            place: Place::new(&self.url, key),
            reason: "the store's client refuses this key",
        })
    }

    async fn put(&self, key: &str, parts: Vec<Bytes>) -> Result<Put, StoreError> {
        let path = self.path(key)?;
        let payload: PutPayload = parts.into_iter().collect();
        let options = PutOptions { mode: PutMode::Create, ..PutOptions::default() };
        match self.inner.put_opts(&path, payload, options).await {
            Ok(_) => Ok(Put::Created),
            // The client reports the 412 of a taken key and the 409 of a race alike. Only the first left an object.
            Err(Error::AlreadyExists { .. } | Error::Precondition { .. }) => {
                match self.inner.head(&path).await {
                    Ok(_) => Ok(Put::Exists),
                    Err(Error::NotFound { .. }) => {
                        Err(StoreError::Conflict { place: Place::new(&self.url, key) })
                    }
                    Err(error) => Err(self.error(key, error)),
                }
            }
            Err(error) => Err(self.error(key, error)),
        }
    }

    async fn read(&self, key: &str, range: Option<Range<u64>>) -> Result<Got, StoreError> {
        let path = self.path(key)?;
        let start = range.as_ref().map_or(0, |range| range.start);
        let options = GetOptions { range: range.map(GetRange::Bounded), ..GetOptions::default() };
        let result = match self.inner.get_opts(&path, options).await {
            Ok(result) => result,
            Err(error @ Error::Generic { .. }) => {
                // A range that starts at or past the end is an error here, and one that has no name of its own.
                return match self.inner.head(&path).await {
                    Ok(meta) if start >= meta.size => {
                        Ok(Got { bytes: Bytes::new(), object_bytes: meta.size })
                    }
                    _ => Err(self.error(key, error)),
                };
            }
            Err(error) => return Err(self.error(key, error)),
        };
        let (object_bytes, returned) = (result.meta.size, result.range.clone());
        let bytes = result.bytes().await.map_err(|error| self.error(key, error))?;
        // Bytes of another place than asked for count as none.
        let bytes = if returned.start == start { bytes } else { Bytes::new() };
        Ok(Got { bytes, object_bytes })
    }

    async fn listing(&self, prefix: &str, after: Option<&str>) -> Result<Vec<Listed>, StoreError> {
        let directory = match prefix.strip_suffix('/') {
            Some(directory) => Some(self.path(directory)?),
            None => None,
        };
        let stream = match after {
            Some(after) => self.inner.list_with_offset(directory.as_ref(), &self.path(after)?),
            None => self.inner.list(directory.as_ref()),
        };
        let found: Vec<_> = stream
            .map_ok(|meta| Listed { key: meta.location.as_ref().to_owned(), size: meta.size })
            .try_collect()
            .await
            .map_err(|error| self.error(prefix, error))?;
        let wanted = |listed: &Listed| {
            listed.key.starts_with(prefix) && after.is_none_or(|after| listed.key.as_str() > after)
        };
        let mut found: Vec<_> = found.into_iter().filter(wanted).collect();
        found.sort_unstable_by(|a, b| a.key.cmp(&b.key));
        Ok(found)
    }

    fn error(&self, key: &str, error: Error) -> StoreError {
        let place = Place::new(&self.url, key);
        match error {
            Error::NotFound { .. } => StoreError::NotFound { place },
            Error::AlreadyExists { .. } | Error::Precondition { .. } => {
                StoreError::Conflict { place }
            }
            Error::PermissionDenied { .. } | Error::Unauthenticated { .. } => {
                StoreError::Denied { place, path: None, source: cause(error) }
            }
            Error::InvalidPath { .. } => {
                StoreError::InvalidKey { place, reason: "the store's client refuses this key" }
            }
            _ => StoreError::Unavailable { place, source: cause(error) },
        }
    }
}

fn cause(error: Error) -> Cause {
    Arc::new(error)
}

impl Backend for Remote {
    fn put_create<'a>(&'a self, key: &'a str, parts: Vec<Bytes>) -> Reply<'a, Put> {
        Box::pin(self.put(key, parts))
    }

    fn get<'a>(&'a self, key: &'a str, range: Option<Range<u64>>) -> Reply<'a, Got> {
        Box::pin(self.read(key, range))
    }

    fn list<'a>(&'a self, prefix: &'a str, after: Option<&'a str>) -> Reply<'a, Vec<Listed>> {
        Box::pin(self.listing(prefix, after))
    }

    fn delete<'a>(&'a self, key: &'a str) -> Reply<'a, ()> {
        Box::pin(async move {
            match self.inner.delete(&self.path(key)?).await {
                Ok(()) | Err(Error::NotFound { .. }) => Ok(()),
                Err(error) => Err(self.error(key, error)),
            }
        })
    }
}

impl fmt::Debug for Remote {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Remote").field("url", &self.url).finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests;
