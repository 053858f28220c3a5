//! What a store must be able to do, in the fewest operations.
//!
//! A trait of our own instead of `object_store::ObjectStore`: four operations are what a fault decorator has to wrap
//! and what an in-memory store for a hundred thousand simulated runs has to pay for.

use std::fmt::Debug;
use std::future::Future;
use std::ops::Range;
use std::pin::Pin;
use std::sync::Arc;

use bytes::Bytes;
use weir_device::{BufferPool, FileReads, LocalBoxFuture};
use weir_pacer::{Pace, Pacer};

use crate::StoreError;

/// How a create-only PUT ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Put {
    /// The object is there now, by this call, and survives power loss.
    Created,
    /// An object of this key was there already, and survives power loss. It may be our own, from an attempt whose reply
    /// was lost: the caller tells by reading it.
    Exists,
}

/// An object in a listing.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Listed {
    /// Key, relative to the root of the store.
    pub key: String,
    /// Size in bytes.
    pub size: u64,
}

/// What a read returned, not yet checked against what was asked for.
#[derive(Clone, Debug)]
pub(crate) struct Got {
    pub(crate) bytes: Bytes,
    /// Size of the whole object as the store states it.
    pub(crate) object_bytes: u64,
}

/// A started read of the thread that asks: nothing where it cannot read.
pub(crate) type ReplyHere<'a> = LocalBoxFuture<'a, Option<Result<Bytes, StoreError>>>;

/// A started operation.
pub(crate) type Reply<'a, T> = Pin<Box<dyn Future<Output = Result<T, StoreError>> + Send + 'a>>;

/// One place that holds objects. Keys and prefixes were validated by the caller.
pub(crate) trait Backend: Debug + Send + Sync {
    /// Creates an object, durably, unless the key is taken.
    fn put_create<'a>(&'a self, key: &'a str, parts: Vec<Bytes>) -> Reply<'a, Put>;

    /// Reads the part of `range` (everything, if `None`) that the object has; nothing, if it lies past the end.
    fn get<'a>(&'a self, key: &'a str, range: Option<Range<u64>>) -> Reply<'a, Got>;

    /// What [`Backend::get`] would return of `range`, if that is in memory: at once, on the thread that asks.
    fn get_now(&self, _key: &str, _range: &Range<u64>) -> Option<Got> {
        None
    }

    /// What [`Backend::get`] would return of `range`, read without another thread, by `files`: nothing
    /// where that cannot be, or where the object is not what it was.
    fn get_here<'a>(
        &'a self,
        _key: &'a str,
        _range: Range<u64>,
        _files: &'a dyn FileReads,
        _buffers: &'a BufferPool,
    ) -> ReplyHere<'a> {
        Box::pin(std::future::ready(None))
    }

    /// Whether one request more costs less than 64 KiB more of one: where no network lies between.
    fn requests_are_cheap(&self) -> bool {
        false
    }

    /// All objects below `prefix` with keys greater than `after`, sorted.
    fn list<'a>(&'a self, prefix: &'a str, after: Option<&'a str>) -> Reply<'a, Vec<Listed>>;

    /// The first of them, at least `LISTED_PAGE_KEYS` if there are as many, with one request where the service lists
    /// in pages.
    fn list_page<'a>(&'a self, prefix: &'a str, after: Option<&'a str>) -> Reply<'a, Vec<Listed>> {
        self.list(prefix, after)
    }

    /// Removes an object, durably. One that does not exist is removed already.
    fn delete<'a>(&'a self, key: &'a str) -> Reply<'a, ()>;

    /// The same, where it asks for leave for each piece that it moves; `None` where whoever uses it asks for an object
    /// at a time.
    fn at_pace(&self, _: &Pace) -> Option<Arc<dyn Backend>> {
        None
    }

    /// The same, where reads that ask the disk are measured as clients' requests; `None` where there is no disk to
    /// share.
    fn measured(&self, _: &Pacer) -> Option<Arc<dyn Backend>> {
        None
    }

    /// Finds out, with two PUTs and two DELETEs below the unused `prefix`, whether the store refuses a body that was
    /// damaged on its way and came with a checksum. If so, large bodies go like that from then on, in place of the
    /// signature of every byte. `None` where bodies are never sent so.
    fn try_checksums<'a>(&'a self, _prefix: &'a str) -> Reply<'a, Option<bool>> {
        Box::pin(async { Ok(None) })
    }

    /// What tells this store from a copy of it elsewhere: service, bucket and prefix.
    fn identity(&self) -> String {
        String::new()
    }

    /// Where the objects are: the same for every spelling of one URL, never the same for two stores. One service under
    /// two host names has two.
    fn location(&self) -> String;

    /// Number of the device of a local file system that the objects are on.
    fn device(&self) -> Option<u64> {
        None
    }

    /// How much room a local file system has for objects; `None` where nobody can say.
    fn room(&self) -> Reply<'_, Option<Room>> {
        Box::pin(async { Ok(None) })
    }
}

/// The room of a file system, in bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Room {
    pub(crate) free: u64,
    pub(crate) total: u64,
}

/// The part of `range` that an object of `size` bytes has.
pub(crate) fn clamp(range: Option<Range<u64>>, size: u64) -> Range<u64> {
    let range = range.unwrap_or(0..size);
    let start = range.start.min(size);
    start..range.end.clamp(start, size)
}
