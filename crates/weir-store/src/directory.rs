//! A store in a local directory: one file per object, at the path that its key spells.
//!
//! Not `object_store::local::LocalFileSystem`, although that can sync files: it does not sync the directory when it
//! finds a name taken, when it lists or when it deletes. Then a PUT whose first attempt was killed between link and
//! sync is answered "exists", the journal lets go of the data, and a power cut takes the object away.
//!
//! Invariants
//!  D1. A name appears only by linking a complete, synced file to it; nothing ever writes to a named file.
//!  D2. A directory is synced after a name was added, after a name was found taken, after a name was removed, and
//!      after its names were read for a listing, each before the answer.
//!  D3. The path from the root to a directory is synced before the first object in it is linked there: whoever sees
//!      an object need not ask for the path.
//!  D4. After a failed sync of a directory nothing is answered that rests on D2 or D3: the kernel reports such a
//!      failure once and forgets it.
//!  D5. The root is the directory that was opened: a file system that went away is an error, not an empty store.
//!  D6. A file loses bytes only when it has no name left. A reader that holds it open by then answers "not found" and
//!      not with what it has left. So files may be held open from one read to the next (`held.rs`).

#![allow(
    clippy::disallowed_methods,
    reason = "this module is a store, and its medium is the local file system"
)]

mod files;
mod held;

use std::collections::BTreeSet;
use std::fmt;
use std::fs::{self, DirBuilder, File};
use std::io::{self, ErrorKind};
use std::ops::Range;
use std::os::unix::fs::{DirBuilderExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use bytes::Bytes;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::time::Instant;
use weir_device::{BufferPool, FileReads, mutant};
use weir_pacer::{Pace, Pacer, Request, RequestKind};

use self::files::{
    FileError, TEMPORARY_DIRECTORY, create_exclusively, discards, empty, is_local,
    is_read_in_pieces, open_cached, random_token, read_at, read_cached, remove_stale, write_parts,
};
use self::held::{HeldFiles, ObjectFile};
use crate::backend::{Backend, Got, Listed, Put, Reply, ReplyHere, Room, clamp};
use crate::limits::{
    CACHED_READ_BYTES_MAX, LEAVE_PATIENCE, PACED_AT_A_TIME_MAX, PLACE_PAUSE, READS_STALLED_AFTER,
    TEMPORARY_NAME_TRIES_MAX,
};
use crate::{Place, StoreError};

/// A directory that holds objects.
pub(crate) struct Directory {
    state: Arc<State>,
    /// One deletion at a time. They come many at once, each syncs its directory, and nobody waits for them: eight at a
    /// time, a sync of anything else on the disk takes 11 ms where it takes 0.3 alone and 0.9 beside one. To share the
    /// sync brings nothing where the file system discards: then the deletion itself is what holds up others.
    deletion: Arc<tokio::sync::Mutex<()>>,
    /// Operations whose pieces may wait for leave on a thread, at a time: the runtime has 512 threads that may block,
    /// and clients' reads need some.
    places: Arc<Semaphore>,
    /// In the background.
    pace: Option<Pace>,
    /// Where reads of clients are measured.
    clients: Option<Pacer>,
}

struct State {
    url: Arc<str>,
    root: PathBuf,
    /// Device and inode of the root, for D5.
    identity: (u64, u64),
    /// The file system discards what is freed.
    discards: bool,
    /// What the file system has in memory is there without waiting for anything.
    is_local: bool,
    held: HeldFiles,
    reading: Mutex<Reading>,
    /// Directories whose path is known to survive power loss, for D3.
    durable: Mutex<BTreeSet<PathBuf>>,
    /// The failure of D4, once it happened.
    failed: Mutex<Option<StoreError>>,
    /// Makes the names of temporary files ours.
    token: u64,
    temporaries: AtomicU64,
    /// What was synced, in order: syncing has no other effect that a test could see.
    #[cfg(test)]
    synced: Mutex<Vec<PathBuf>>,
}

/// Whether the disk answers clients' reads.
#[derive(Debug, Default)]
struct Reading {
    running: usize,
    /// When the disk answered one of them, or the first of them began.
    moved: Option<Instant>,
}

/// A read of a client that goes to the disk.
struct AskedDisk<'a>(&'a Mutex<Reading>);

impl AskedDisk<'_> {
    /// The read came back. One that is given up says nothing of the disk.
    fn answered(self) {
        lock(self.0).moved = Some(Instant::now());
    }
}

impl Drop for AskedDisk<'_> {
    fn drop(&mut self) {
        lock(self.0).running -= 1;
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Directory {
    /// Opens `root`, creating it and what is missing above it.
    pub(crate) fn open(url: Arc<str>, root: PathBuf) -> Result<Self, StoreError> {
        let failed = |path: &Path, error| error_at(Place::new(&url, ""), path, "opening", error);
        let missing = root.ancestors().take_while(|path| !path.exists());
        let missing: Vec<_> = missing.map(Path::to_owned).collect();
        for path in missing.iter().rev() {
            make_directory(path).map_err(|error| failed(path, error))?;
        }
        let metadata = fs::metadata(&root).map_err(|error| failed(&root, error))?;
        if !metadata.is_dir() {
            return Err(failed(&root, io::Error::from(ErrorKind::NotADirectory)));
        }
        let token = random_token().map_err(|error| failed(Path::new("/dev/urandom"), error))?;
        let state = State {
            url: Arc::clone(&url),
            identity: (metadata.dev(), metadata.ino()),
            discards: discards(metadata.dev()),
            is_local: is_local(&root).map_err(|error| failed(&root, error))?,
            held: HeldFiles::new(),
            reading: Mutex::default(),
            durable: Mutex::default(),
            failed: Mutex::default(),
            token,
            temporaries: AtomicU64::new(0),
            #[cfg(test)]
            synced: Mutex::default(),
            root,
        };
        state.sync_root(&missing)?;
        remove_stale(&state.root.join(TEMPORARY_DIRECTORY));
        let places = Arc::new(Semaphore::new(PACED_AT_A_TIME_MAX));
        let (state, deletion) = (Arc::new(state), Arc::default());
        Ok(Self { state, deletion, places, pace: None, clients: None })
    }

    fn again(&self) -> Self {
        let (state, deletion) = (Arc::clone(&self.state), Arc::clone(&self.deletion));
        let (places, pace) = (Arc::clone(&self.places), self.pace.clone());
        Self { state, deletion, places, pace, clients: self.clients.clone() }
    }

    /// A place among the operations whose pieces may wait, kept until the operation has ended. One that nothing bounds
    /// needs none.
    async fn place(&self, pace: Option<&Pace>) -> Option<OwnedSemaphorePermit> {
        let pace = pace?;
        while pace.is_bounded() {
            let place = Arc::clone(&self.places).acquire_owned();
            // Somebody may come to wait for it meanwhile.
            let pauses = if mutant("awaited_work_waits_for_place") { 600 } else { 1 };
            if let Ok(place) = tokio::time::timeout(PLACE_PAUSE * pauses, place).await {
                return place.ok();
            }
        }
        None
    }

    /// The pace of one operation, whose time is limited.
    fn pace_of_one(&self) -> Option<Pace> {
        self.pace.as_ref().map(|pace| pace.for_at_most(LEAVE_PATIENCE))
    }

    /// Runs file operations on tokio's blocking threads. They run to their end even if the answer is dropped.
    async fn run<T: Send + 'static>(
        &self,
        key: &str,
        work: impl FnOnce(&State, &str) -> Result<T, StoreError> + Send + 'static,
    ) -> Result<T, StoreError> {
        let (state, owned) = (Arc::clone(&self.state), key.to_owned());
        let task = tokio::task::spawn_blocking(move || work(&state, &owned));
        match task.await {
            Ok(result) => result,
            Err(error) if error.is_panic() => std::panic::resume_unwind(error.into_panic()),
            Err(error) => {
                let place = Place::new(&self.state.url, key);
                Err(StoreError::Unavailable { place, source: Arc::new(error) })
            }
        }
    }
}

impl State {
    fn ask_disk(&self) -> AskedDisk<'_> {
        let mut reading = lock(&self.reading);
        if reading.running == 0 {
            reading.moved = Some(Instant::now());
        }
        reading.running += 1;
        AskedDisk(&self.reading)
    }

    /// No read of a client has ended for a while, though some are on their way. Whatever else asks this disk may wait
    /// in the kernel, which no thread of a volume must do.
    fn is_stalled(&self) -> bool {
        let reading = lock(&self.reading);
        let is_late = reading.moved.is_some_and(|moved| moved.elapsed() >= READS_STALLED_AFTER);
        reading.running > 0 && is_late && !mutant("stalled_disk_is_asked")
    }

    fn put(&self, key: &str, parts: &[Bytes], pace: Option<&Pace>) -> Result<Put, StoreError> {
        self.check_usable(key)?;
        // Whatever stood there before, in a store that was set back for one, is another object.
        if !mutant("held_file_survives_put") {
            self.held.forget(key);
        }
        let target = self.root.join(key);
        let directory = target.parent().unwrap_or(&self.root);
        let made = self.make_path(key, directory)?;
        // Saves writing the object again; the link below decides.
        if target.symlink_metadata().is_ok() {
            self.sync_path(key, made)?;
            return self.exists(key, &target, directory);
        }
        let (temporary, mut file) = self.create_temporary(key)?;
        let linked = write_parts(&mut file, parts, pace)
            .and_then(|()| self.sync(&file, &temporary))
            .map_err(|error| self.error(key, &temporary, "writing", error))
            // After the file's own sync, which leaves a journaling file system little to do for these.
            .and_then(|()| self.sync_path(key, made))
            .and_then(|()| match fs::hard_link(&temporary, &target) {
                Ok(()) => Ok(Put::Created),
                Err(error) if error.kind() == ErrorKind::AlreadyExists => Ok(Put::Exists),
                Err(error) => {
                    // Somebody may have removed the directory from outside: make it anew the next time.
                    lock(&self.durable).clear();
                    Err(self.error(key, &target, "creating", error))
                }
            });
        // A file that stays behind is removed when the store is opened next.
        let _ = fs::remove_file(&temporary);
        match linked? {
            Put::Exists => self.exists(key, &target, directory),
            Put::Created => self.sync_directory(key, directory).map(|()| Put::Created),
        }
    }

    /// The answer for a name that is taken: durable, even if whoever took it was killed before syncing.
    fn exists(&self, key: &str, target: &Path, directory: &Path) -> Result<Put, StoreError> {
        if target.is_dir() {
            let reason = "in a local directory store, other keys continue this one with a slash";
            return Err(StoreError::InvalidKey { place: Place::new(&self.url, key), reason });
        }
        self.sync_directory(key, directory).map(|()| Put::Exists)
    }

    fn get(
        &self,
        key: &str,
        range: Option<Range<u64>>,
        pace: Option<&Pace>,
    ) -> Result<Got, StoreError> {
        let path = self.root.join(key);
        let failed = |error| self.error(key, &path, "reading", error);
        let not_found = || {
            // D5: say "not found" only about the store that was opened.
            self.check_root(key)?;
            Err(StoreError::NotFound { place: Place::new(&self.url, key) })
        };
        let read = |file: &_, range| read_at(file, range, pace);
        let len = |range: &Range<u64>| range.end.saturating_sub(range.start);
        let may_hold = range.as_ref().is_some_and(|range| !is_read_in_pieces(len(range), pace));
        if let Some(held) = may_hold.then(|| self.held.get(key)).flatten() {
            if let Ok(Some(got)) = read_object(&held, range.clone(), read) {
                return Ok(got);
            }
            // It is gone, or cannot be read any more: what stands at the path may be.
            self.held.forget(key);
        }
        let file = match File::open(&path) {
            Ok(file) => file,
            Err(error) if is_absence(&error) => return not_found(),
            Err(error) => return Err(failed(error)),
        };
        let Some(file) = ObjectFile::of(file).map_err(failed)?.map(Arc::new) else {
            return not_found();
        };
        let got = read_object(&file, range, read).map_err(failed)?;
        if may_hold && got.is_some() {
            self.held.keep(key, &file);
        }
        got.map_or_else(not_found, Ok)
    }

    /// What [`State::get`] would return, if that is in memory.
    fn get_cached(&self, key: &str, range: &Range<u64>) -> Option<Got> {
        let is_long = range.end.saturating_sub(range.start) > CACHED_READ_BYTES_MAX;
        if !self.is_local || is_long || self.is_stalled() {
            return None;
        }
        if let Some(held) = self.held.get(key) {
            let got = read_object(&held, Some(range.clone()), read_cached).ok()?;
            if got.is_some() {
                return got;
            }
            self.held.forget(key);
        }
        let file = open_cached(&self.root.join(key)).ok()?;
        let file = Arc::new(ObjectFile::of(file).ok()??);
        let got = read_object(&file, Some(range.clone()), read_cached);
        // Held also where its bytes are on the disk: they are asked for next.
        if !matches!(got, Ok(None)) {
            self.held.keep(key, &file);
        }
        got.ok()?
    }

    fn list(&self, prefix: &str, after: Option<&str>) -> Result<Vec<Listed>, StoreError> {
        self.check_usable(prefix)?;
        let mut found = Vec::new();
        let mut pending = vec![prefix.to_owned()];
        while let Some(prefix) = pending.pop() {
            self.list_directory(&prefix, after, &mut found, &mut pending)?;
        }
        self.check_usable(prefix)?;
        found.sort_unstable_by(|a, b| a.key.cmp(&b.key));
        Ok(found)
    }

    fn list_directory(
        &self,
        prefix: &str,
        after: Option<&str>,
        found: &mut Vec<Listed>,
        pending: &mut Vec<String>,
    ) -> Result<(), StoreError> {
        let directory = self.root.join(prefix);
        let failed = |error| self.error(prefix, &directory, "listing", error);
        let entries = match fs::read_dir(&directory) {
            Ok(entries) => entries,
            Err(error) if is_absence(&error) => return Ok(()),
            Err(error) => return Err(failed(error)),
        };
        for entry in entries {
            let entry = entry.map_err(failed)?;
            let name = entry.file_name();
            // Names that are no keys are not ours; `.tmp` is one of them.
            let Some(name) = name.to_str().filter(|name| is_segment(prefix, name)) else {
                continue;
            };
            let key = format!("{prefix}{name}");
            let file_type = match entry.file_type() {
                Ok(file_type) => file_type,
                // Deleted since its name was read.
                Err(error) if is_absence(&error) => continue,
                Err(error) => return Err(failed(error)),
            };
            if file_type.is_dir() {
                let below = key + "/";
                let passed = |after: &str| after > below.as_str() && !after.starts_with(&below);
                if !after.is_some_and(passed) {
                    pending.push(below);
                }
            } else if file_type.is_file() && after.is_none_or(|after| key.as_str() > after) {
                match entry.metadata() {
                    Ok(metadata) => found.push(Listed { key, size: metadata.len() }),
                    Err(error) if is_absence(&error) => {}
                    Err(error) => return Err(failed(error)),
                }
            }
        }
        self.sync_directory(prefix, &directory)
    }

    /// Takes the name of an object away. Where its blocks should be given back in steps, the file that has them: held
    /// open, it keeps them when its name goes.
    fn delete(&self, key: &str, in_steps: bool) -> Result<Option<File>, StoreError> {
        let open = || File::options().write(true).open(self.root.join(key)).ok();
        let file = (self.discards && in_steps).then(open).flatten();
        self.remove(key)?;
        Ok(file)
    }

    fn remove(&self, key: &str) -> Result<(), StoreError> {
        self.check_usable(key)?;
        let path = self.root.join(key);
        self.held.forget(key);
        match fs::remove_file(&path) {
            Ok(()) => {}
            Err(error) if is_absence(&error) || path.is_dir() => {}
            Err(error) => return Err(self.error(key, &path, "deleting", error)),
        }
        // Also when it was gone: whoever removed it may have been killed before syncing.
        let directory = path.parent().unwrap_or(&self.root);
        if directory.is_dir() { self.sync_directory(key, directory) } else { Ok(()) }
    }

    /// A new temporary file, in a directory that listings skip.
    fn create_temporary(&self, key: &str) -> Result<(PathBuf, File), StoreError> {
        let directory = self.root.join(TEMPORARY_DIRECTORY);
        for _ in 0..TEMPORARY_NAME_TRIES_MAX {
            let number = self.temporaries.fetch_add(1, Ordering::Relaxed);
            let path = directory.join(format!("{:016x}-{number}", self.token));
            match create_exclusively(&path) {
                Ok(file) => return Ok((path, file)),
                Err(error) if error.kind() == ErrorKind::AlreadyExists => {}
                Err(error) if error.kind() == ErrorKind::NotFound => make_directory(&directory)
                    .map_err(|error| self.error(key, &directory, "creating", error))?,
                Err(error) => return Err(self.error(key, &path, "creating", error)),
            }
        }
        let error = io::Error::from(ErrorKind::AlreadyExists);
        Err(self.error(key, &directory, "creating a file in", error))
    }

    /// Makes `directory` and everything between it and the root; those whose names are not known to be synced.
    fn make_path(&self, key: &str, directory: &Path) -> Result<Vec<PathBuf>, StoreError> {
        if directory == self.root || lock(&self.durable).contains(directory) {
            return Ok(Vec::new());
        }
        let mut made = self.make_path(key, directory.parent().unwrap_or(&self.root))?;
        make_directory(directory).map_err(|error| {
            lock(&self.durable).clear();
            if error.kind() == ErrorKind::AlreadyExists {
                let reason = "in a local directory store, no key continues another with a slash";
                return StoreError::InvalidKey { place: Place::new(&self.url, key), reason };
            }
            self.error(key, directory, "creating directory", error)
        })?;
        made.push(directory.to_owned());
        Ok(made)
    }

    /// D3: syncs the names of those directories.
    fn sync_path(&self, key: &str, made: Vec<PathBuf>) -> Result<(), StoreError> {
        for directory in made {
            self.sync_directory(key, directory.parent().unwrap_or(&self.root))?;
            lock(&self.durable).insert(directory);
        }
        Ok(())
    }

    fn sync_directory(&self, key: &str, directory: &Path) -> Result<(), StoreError> {
        let opened = File::open(directory)
            .map_err(|error| self.error(key, directory, "opening directory", error))?;
        self.sync(&opened, directory).map_err(|error| {
            let error = StoreError::SyncFailed {
                place: Place::new(&self.url, key),
                path: directory.to_owned(),
                source: Arc::new(error),
            };
            lock(&self.failed).get_or_insert(error).clone()
        })
    }

    /// Makes a file, or the names in a directory, survive power loss.
    fn sync(&self, file: &File, _path: &Path) -> io::Result<()> {
        #[cfg(test)]
        lock(&self.synced).push(_path.to_owned());
        file.sync_all()
    }

    /// Syncs the root and the names of the directories that were made for it.
    fn sync_root(&self, made: &[PathBuf]) -> Result<(), StoreError> {
        self.sync_directory("", &self.root)?;
        for path in made {
            self.sync_directory("", path.parent().unwrap_or(path))?;
        }
        Ok(())
    }

    /// D4 and D5.
    fn check_usable(&self, key: &str) -> Result<(), StoreError> {
        match &*lock(&self.failed) {
            Some(error) => Err(error.clone()),
            None => self.check_root(key),
        }
    }

    fn check_root(&self, key: &str) -> Result<(), StoreError> {
        let failed = |error| self.error(key, &self.root, "finding", error);
        let metadata = fs::metadata(&self.root).map_err(failed)?;
        if (metadata.dev(), metadata.ino()) == self.identity {
            return Ok(());
        }
        Err(failed(io::Error::other("another directory has taken its place since it was opened")))
    }

    fn error(&self, key: &str, path: &Path, action: &'static str, error: io::Error) -> StoreError {
        error_at(Place::new(&self.url, key), path, action, error)
    }
}

fn error_at(place: Place, path: &Path, action: &'static str, error: io::Error) -> StoreError {
    let kind = error.kind();
    let path = path.to_owned();
    let file = FileError { action, path: path.clone(), source: error };
    let (path, source) = (Some(path), Arc::new(file));
    match kind {
        ErrorKind::PermissionDenied => StoreError::Denied { place, path, source },
        ErrorKind::StorageFull | ErrorKind::QuotaExceeded => {
            StoreError::NoSpace { place, path, source }
        }
        ErrorKind::ReadOnlyFilesystem => StoreError::ReadOnly { place, path, source },
        _ => StoreError::Unavailable { place, source },
    }
}

/// Reads `range` of an open file, or nothing if it is no object any more, or not the one that was opened.
fn read_object(
    file: &ObjectFile,
    range: Option<Range<u64>>,
    read: impl FnOnce(&File, Range<u64>) -> io::Result<Bytes>,
) -> io::Result<Option<Got>> {
    let bytes = read(&file.file, clamp(range, file.bytes));
    if !file.is_intact()? {
        return Ok(None);
    }
    Ok(Some(Got { bytes: bytes?, object_bytes: file.bytes }))
}

/// Creates a directory that may exist already.
fn make_directory(path: &Path) -> io::Result<()> {
    match DirBuilder::new().mode(0o700).create(path) {
        Err(error) if error.kind() == ErrorKind::AlreadyExists && path.is_dir() => Ok(()),
        Err(error) => Err(error),
        Ok(()) => weir_disk::adopt_directory(path),
    }
}

/// Whether the error says that there is nothing at the path: also where a part of it is a file.
fn is_absence(error: &io::Error) -> bool {
    matches!(error.kind(), ErrorKind::NotFound | ErrorKind::NotADirectory)
}

/// Whether a directory entry can be part of a key. `lost+found` at the root belongs to the file system.
fn is_segment(prefix: &str, name: &str) -> bool {
    crate::key::is_legal_segment(name) && !(prefix.is_empty() && name == "lost+found")
}

impl Backend for Directory {
    fn put_create<'a>(&'a self, key: &'a str, parts: Vec<Bytes>) -> Reply<'a, Put> {
        let pace = self.pace_of_one();
        Box::pin(async move {
            let place = self.place(pace.as_ref()).await;
            let (place, _early) = match mutant("place_ends_with_the_answer") {
                true => (None, place),
                false => (place, None),
            };
            self.run(key, move |state, key| {
                let _place = place;
                state.put(key, &parts, pace.as_ref())
            })
            .await
        })
    }

    fn get<'a>(&'a self, key: &'a str, range: Option<Range<u64>>) -> Reply<'a, Got> {
        let pace = self.pace_of_one();
        Box::pin(async move {
            let cached = range.as_ref().filter(|_| pace.is_none());
            if let Some(got) = cached.and_then(|range| self.state.get_cached(key, range)) {
                return Ok(got);
            }
            let bytes = range.as_ref().map_or(0, |range| range.end.saturating_sub(range.start));
            let clients = self.clients.clone();
            let place = self.place(pace.as_ref()).await;
            self.run(key, move |state, key| {
                let _place = place;
                let request = clients.map(|pacer| pacer.request(RequestKind::Read, bytes));
                let asked = pace.is_none().then(|| state.ask_disk());
                let got = state.get(key, range, pace.as_ref());
                asked.into_iter().for_each(AskedDisk::answered);
                let got = got?;
                request.into_iter().for_each(Request::ended);
                Ok(got)
            })
            .await
        })
    }

    fn get_now(&self, key: &str, range: &Range<u64>) -> Option<Got> {
        self.state.get_cached(key, range)
    }

    fn get_here<'a>(
        &'a self,
        key: &'a str,
        range: Range<u64>,
        files: &'a dyn FileReads,
        buffers: &'a BufferPool,
    ) -> ReplyHere<'a> {
        Box::pin(async move {
            let state = &self.state;
            if !state.is_local || self.pace.is_some() || state.is_stalled() {
                return None;
            }
            let held = state.held.get(key)?;
            let bytes = range.end.checked_sub(range.start).filter(|_| range.end <= held.bytes)?;
            let buf = buffers.alloc(usize::try_from(bytes).ok()?);
            let reading = files.read(&held.file, buf, range.start)?;
            let request = self.clients.as_ref();
            let request = request.map(|pacer| pacer.request(RequestKind::Read, bytes));
            let asked = state.ask_disk();
            let (buf, read) = reading.await;
            asked.answered();
            if let Err(error) = read {
                return Some(Err(state.error(key, &state.root.join(key), "reading", error)));
            }
            if !mutant("ring_answers_deleted") && !held.is_intact().ok()? {
                return None;
            }
            request.into_iter().for_each(Request::ended);
            // Out of the pool, whose memory whoever keeps these bytes must not keep.
            Some(Ok(Bytes::copy_from_slice(&buf)))
        })
    }

    fn requests_are_cheap(&self) -> bool {
        true
    }

    fn list<'a>(&'a self, prefix: &'a str, after: Option<&'a str>) -> Reply<'a, Vec<Listed>> {
        let after = after.map(str::to_owned);
        Box::pin(self.run(prefix, move |state, prefix| state.list(prefix, after.as_deref())))
    }

    fn delete<'a>(&'a self, key: &'a str) -> Reply<'a, ()> {
        Box::pin(async move {
            let pace = self.pace_of_one();
            let turn = match mutant("deletion_waits_in_its_turn") {
                true => Some(self.deletion.lock().await),
                false => None,
            };
            // Before its turn, which others wait for.
            if let Some(pace) = &pace {
                pace.leave(0, 1).await.used();
            }
            let in_steps = pace.is_some();
            let file = {
                let _turn = match turn {
                    Some(turn) => turn,
                    None => self.deletion.lock().await,
                };
                self.run(key, move |state, key| state.delete(key, in_steps)).await?
            };
            let Some(file) = file else { return Ok(()) };
            let place = self.place(pace.as_ref()).await;
            self.run(key, move |_, _| {
                let _place = place;
                // What is left goes when it is closed.
                let _ = empty(&file, pace.as_ref());
                Ok(())
            })
            .await
        })
    }

    fn at_pace(&self, pace: &Pace) -> Option<Arc<dyn Backend>> {
        Some(Arc::new(Self { pace: Some(pace.clone()), clients: None, ..self.again() }))
    }

    fn measured(&self, pacer: &Pacer) -> Option<Arc<dyn Backend>> {
        Some(Arc::new(Self { pace: None, clients: Some(pacer.clone()), ..self.again() }))
    }

    /// Of the directory that was opened (D5), whichever path led there.
    fn location(&self) -> String {
        let (device, inode) = self.state.identity;
        format!("directory {device}:{inode}")
    }

    fn device(&self) -> Option<u64> {
        Some(self.state.identity.0)
    }

    fn room(&self) -> Reply<'_, Option<Room>> {
        Box::pin(self.run("", |state, _| {
            let found = rustix::fs::statvfs(&state.root);
            // Whoever cannot be asked is found out by writing.
            Ok(found.ok().map(|found| Room {
                free: found.f_bavail.saturating_mul(found.f_frsize),
                total: found.f_blocks.saturating_mul(found.f_frsize),
            }))
        }))
    }
}

impl fmt::Debug for Directory {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Directory").field("root", &self.state.root).finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests;
