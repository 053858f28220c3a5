//! How large a cache is: what is asked for, and what its file system has. All of it asks that file system, which may
//! not answer: on threads that may be kept.

use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::Path;

use weir_cache::engine::{BLOCKS_FILE, CACHE_BYTES_MIN, CacheSize};

use crate::cache_error::CacheCommandError;
use crate::error::NodeError;
use crate::home::Home;
use crate::serve::cache_setting::CacheSetting;
use crate::size::Size;

/// Part of the free space that a cache gets unless told otherwise, as a divisor.
const FREE_DIVISOR: u64 = 10;

/// Bounds of that, in bytes: less is not worth it, and more takes more memory than somebody who was not asked may want
/// to give (76 MiB).
const DEFAULT_BYTES_MIN: u64 = 1 << 30;
const DEFAULT_BYTES_MAX: u64 = 64 << 30;

/// What a cache of a given size leaves free for journals at least, where they are on the same file system: the first
/// segments of a few.
const LEFT_FREE_BYTES: u64 = 256 << 20;

/// Why no cache is opened.
#[derive(Debug)]
pub(super) struct NoCache {
    pub(super) why: String,
    /// There should be one: it is more than a size that is not worth it.
    pub(super) is_trouble: bool,
}

impl NoCache {
    fn settled(why: impl Into<String>) -> Self {
        Self { why: why.into(), is_trouble: false }
    }
}

impl From<NodeError> for NoCache {
    fn from(error: NodeError) -> Self {
        Self { why: error.to_string(), is_trouble: true }
    }
}

/// Bytes of the cache to open, or why there is none.
pub(super) fn size_of(
    setting: CacheSetting,
    home: &Home,
    shares_disk: bool,
) -> Result<CacheSize, NoCache> {
    match setting {
        CacheSetting::Off => Err(NoCache::settled("it is turned off")),
        CacheSetting::Bytes(bytes) => {
            room(home)?.check(bytes)?;
            Ok(CacheSize::Exactly(bytes))
        }
        CacheSetting::Auto if shares_disk => Err(NoCache::settled("the store is on the same disk")),
        CacheSetting::Auto => {
            let default = default_bytes(room(home)?.free);
            // One that is there keeps its size, also where it is of no use: what is free changes with it.
            match (default, file_bytes(home)?) {
                (_, Some(bytes)) if bytes > 0 => Ok(CacheSize::KeepOr(bytes.max(CACHE_BYTES_MIN))),
                (bytes, _) if bytes >= DEFAULT_BYTES_MIN => Ok(CacheSize::KeepOr(bytes)),
                (bytes, _) => Err(NoCache::settled(too_little(bytes))),
            }
        }
    }
}

/// Why a default of so many bytes is none.
fn too_little(bytes: u64) -> String {
    format!("a tenth of what is free, {}, is too little: give it a size", Size(bytes))
}

/// What the kernel says of the file of the cache; nothing where there is none.
pub(crate) fn file(home: &Home) -> Result<Option<std::fs::Metadata>, NodeError> {
    let path = home.data.cache().join(BLOCKS_FILE);
    match std::fs::metadata(&path) {
        Ok(found) => Ok(Some(found)),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
        Err(error) => Err(NodeError::io("looking for", path.display().to_string(), error)),
    }
}

/// Length of the file of the cache, if there is one.
pub(super) fn file_bytes(home: &Home) -> Result<Option<u64>, NodeError> {
    Ok(file(home)?.map(|found| found.len()))
}

/// What there is room for.
struct Room {
    directory: String,
    /// Bytes that are free, and those of the cache that is there, which would make room.
    free: u64,
    /// Bytes of the cache that is there.
    there: u64,
    /// Bytes that are left to journals.
    left: u64,
}

impl Room {
    fn check(&self, bytes: u64) -> Result<(), NodeError> {
        if bytes.saturating_add(self.left) <= self.free {
            return Ok(());
        }
        let Self { directory, free, there, left } = self;
        let (directory, free, there, left) = (directory.clone(), *free, *there, *left);
        Err(CacheCommandError::NoRoom { directory, bytes, left, free, there }.into())
    }
}

/// What the file system of the cache has.
fn room(home: &Home) -> Result<Room, NodeError> {
    let there = file(home)?.map_or(0, |found| found.blocks() * 512);
    // The directory of the cache may be on another file system. Before the first cache it need not be there.
    let (own, above) = (home.data.cache(), home.data.path());
    let path = if own.exists() { own.as_path() } else { above };
    let found = rustix::fs::statvfs(path).map_err(|error| {
        NodeError::io("asking for the free space of", path.display().to_string(), error.into())
    })?;
    let device = |path: &Path| std::fs::metadata(path).ok().map(|found| found.dev());
    let has_journals = device(path) == device(above);
    Ok(Room {
        directory: path.display().to_string(),
        free: found.f_bavail * found.f_frsize + there,
        there,
        left: if has_journals { LEFT_FREE_BYTES } else { 0 },
    })
}

/// A tenth of what is free, within bounds.
fn default_bytes(free: u64) -> u64 {
    ((free / FREE_DIVISOR) >> 20 << 20).min(DEFAULT_BYTES_MAX)
}

/// Bytes of a cache that is given this size now, whatever size it has. Nothing is done for an error.
pub(crate) fn bytes_now(
    setting: CacheSetting,
    home: &Home,
    shares_disk: bool,
) -> Result<u64, NodeError> {
    let room = room(home)?;
    let default = default_bytes(room.free);
    let bytes = match setting {
        CacheSetting::Bytes(bytes) => bytes,
        CacheSetting::Auto if shares_disk => {
            let why = "the store is on the same disk, where \"auto\" is none";
            return Err(CacheCommandError::None { why: why.to_owned() }.into());
        }
        CacheSetting::Auto if default < DEFAULT_BYTES_MIN => {
            return Err(CacheCommandError::None { why: too_little(default) }.into());
        }
        CacheSetting::Auto | CacheSetting::Off => default,
    };
    room.check(bytes)?;
    Ok(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::data_directory::DataDirectory;

    fn said(left: u64, there: u64, bytes: u64) -> String {
        let room = Room { directory: "/d".to_owned(), free: 466 << 20, there, left };
        room.check(bytes).map_or_else(|error| error.to_string(), |()| "fits".to_owned())
    }

    #[test]
    fn a_file_that_cannot_be_looked_at_is_trouble_and_a_size_that_is_not_worth_it_is_not() {
        let place = tempfile::tempdir().unwrap();
        let home = Home::embedded(DataDirectory::at(place.path()).unwrap());
        let none = |shares_disk| size_of(CacheSetting::Auto, &home, shares_disk).unwrap_err();
        std::fs::create_dir(home.data.cache()).unwrap();
        let path = home.data.cache().join(BLOCKS_FILE);
        // A link to itself.
        std::os::unix::fs::symlink(&path, &path).unwrap();
        assert!(none(false).is_trouble && !none(true).is_trouble);
        std::fs::remove_file(&path).unwrap();
        std::fs::write(&path, [0; 5000]).unwrap();
        let kept = size_of(CacheSetting::Auto, &home, false).unwrap();
        assert_eq!(kept, CacheSize::KeepOr(CACHE_BYTES_MIN), "what is there keeps its size");
        let settled = size_of(CacheSetting::Off, &home, false).unwrap_err();
        assert!(!settled.is_trouble, "{}", settled.why);
    }

    #[test]
    fn why_there_is_no_room_is_said_with_the_rule() {
        let bytes = 300 << 20;
        assert_eq!(said(0, 0, bytes), "fits");
        let told = said(LEFT_FREE_BYTES, 0, bytes);
        let rule = "leaves less than 256.0 MiB to journals: the file system of /d has 466.0 MiB";
        assert!(told.contains(rule) && !told.contains("that is there"), "{told}");
        let told = said(LEFT_FREE_BYTES, 100 << 20, bytes);
        assert!(told.ends_with("with the 100.0 MiB of the cache that is there"), "{told}");
        let told = said(0, 0, 500 << 20);
        assert!(told.contains("has no room") && !told.contains("journals"), "{told}");
    }
}
