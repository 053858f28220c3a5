//! A store in memory, for tests and the simulation: a sorted map, so that a listing is a range.
//!
//! Not `object_store::memory::InMemory`, whose locks, metadata and boxed streams cost more per operation than the
//! simulation has to spend.

use std::collections::BTreeMap;
use std::fmt;
use std::ops::{Bound, Range};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};

use bytes::{Bytes, BytesMut};

use crate::backend::{Backend, Got, Listed, Put, Reply, clamp};
use crate::{Place, StoreError};

type Objects = Arc<Mutex<BTreeMap<String, Bytes>>>;

/// Objects in the memory of this process.
pub(crate) struct Memory {
    url: Arc<str>,
    objects: Objects,
}

/// A panic elsewhere cannot leave the map half changed: each lock spans one call into it.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Memory {
    /// A store of its own, or the one that this process shares under `name`.
    pub(crate) fn open(url: Arc<str>, name: Option<&str>) -> Self {
        static SHARED: OnceLock<Mutex<BTreeMap<String, Objects>>> = OnceLock::new();
        let objects = name.map_or_else(Objects::default, |name| {
            let mut shared = lock(SHARED.get_or_init(Mutex::default));
            Arc::clone(shared.entry(name.to_owned()).or_default())
        });
        Self { url, objects }
    }

    fn put_now(&self, key: &str, parts: Vec<Bytes>) -> Put {
        let mut objects = lock(&self.objects);
        if objects.contains_key(key) {
            return Put::Exists;
        }
        objects.insert(key.to_owned(), joined(parts));
        Put::Created
    }

    fn read(&self, key: &str, range: Option<Range<u64>>) -> Result<Got, StoreError> {
        let body = lock(&self.objects).get(key).cloned();
        let body =
            body.ok_or_else(|| StoreError::NotFound { place: Place::new(&self.url, key) })?;
        let object_bytes = to_u64(body.len());
        let range = clamp(range, object_bytes);
        Ok(Got { bytes: body.slice(to_usize(range.start)..to_usize(range.end)), object_bytes })
    }

    fn list_now(&self, prefix: &str, after: Option<&str>) -> Vec<Listed> {
        let from = match after {
            Some(after) if after >= prefix => Bound::Excluded(after),
            _ => Bound::Included(prefix),
        };
        lock(&self.objects)
            .range::<str, _>((from, Bound::Unbounded))
            .take_while(|(key, _)| key.starts_with(prefix))
            .map(|(key, body)| Listed { key: key.clone(), size: to_u64(body.len()) })
            .collect()
    }
}

fn joined(mut parts: Vec<Bytes>) -> Bytes {
    if parts.len() == 1 {
        return parts.swap_remove(0);
    }
    let mut body = BytesMut::with_capacity(parts.iter().map(Bytes::len).sum());
    parts.iter().for_each(|part| body.extend_from_slice(part));
    body.freeze()
}

fn to_u64(len: usize) -> u64 {
    u64::try_from(len).expect("a length fits 64 bits")
}

fn to_usize(len: u64) -> usize {
    usize::try_from(len).expect("an offset within an object in memory fits the address space")
}

impl Backend for Memory {
    fn put_create<'a>(&'a self, key: &'a str, parts: Vec<Bytes>) -> Reply<'a, Put> {
        Box::pin(async move { Ok(self.put_now(key, parts)) })
    }

    fn get<'a>(&'a self, key: &'a str, range: Option<Range<u64>>) -> Reply<'a, Got> {
        Box::pin(async move { self.read(key, range) })
    }

    fn get_now(&self, key: &str, range: &Range<u64>) -> Option<Got> {
        self.read(key, Some(range.clone())).ok()
    }

    fn requests_are_cheap(&self) -> bool {
        true
    }

    fn list<'a>(&'a self, prefix: &'a str, after: Option<&'a str>) -> Reply<'a, Vec<Listed>> {
        Box::pin(async move { Ok(self.list_now(prefix, after)) })
    }

    fn delete<'a>(&'a self, key: &'a str) -> Reply<'a, ()> {
        Box::pin(async move {
            lock(&self.objects).remove(key);
            Ok(())
        })
    }

    fn location(&self) -> String {
        format!("memory {:p}", Arc::as_ptr(&self.objects))
    }
}

impl fmt::Debug for Memory {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Memory").field("url", &self.url).finish_non_exhaustive()
    }
}
