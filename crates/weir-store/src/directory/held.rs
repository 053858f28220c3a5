//! Files of objects that are held open for the next read: to open one costs as much as to read 4 KiB of it.

use std::collections::{BTreeMap, VecDeque};
use std::fs::File;
use std::io;
use std::os::unix::fs::MetadataExt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};

use weir_device::mutant;

use crate::limits::{HELD_FILES_INTERVAL, HELD_FILES_MAX, HELD_FILES_TRIED};

/// The file of an object. Nothing ever writes to it (D1), so that its length is what it was when it was opened, as long
/// as it has a name.
#[derive(Debug)]
pub(super) struct ObjectFile {
    pub(super) file: Arc<File>,
    pub(super) bytes: u64,
}

impl ObjectFile {
    /// Nothing if it is no file.
    pub(super) fn of(file: File) -> io::Result<Option<Self>> {
        let metadata = file.metadata()?;
        Ok(metadata.is_file().then(|| Self { bytes: metadata.len(), file: Arc::new(file) }))
    }

    /// Whether it is the object still that was opened: somebody else may delete it, or copy one into the store. Asked
    /// after a read, it answers for what was read (D6).
    pub(super) fn is_intact(&self) -> io::Result<bool> {
        let metadata = self.file.metadata()?;
        let is_deleted = metadata.nlink() == 0 && !mutant("deleted_file_answered");
        Ok(!is_deleted && (metadata.nlink() == 0 || metadata.len() == self.bytes))
    }
}

#[derive(Debug)]
struct Held {
    file: Arc<ObjectFile>,
    /// It was asked for since the last look.
    used: bool,
}

#[derive(Debug, Default)]
struct Files {
    by_key: BTreeMap<Box<str>, Held>,
    /// The keys in the order in which they go, if they were not asked for meanwhile; some are gone already.
    queue: VecDeque<Box<str>>,
    /// Somebody looks through them in a while.
    watched: bool,
}

impl Files {
    /// Takes out one that was not asked for since it was queued. Nothing where the next few all were.
    fn make_room(&mut self) -> Option<Held> {
        for _ in 0..self.queue.len().min(HELD_FILES_TRIED) {
            let key = self.queue.pop_front()?;
            let Some(held) = self.by_key.get_mut(&key) else { continue };
            if !std::mem::take(&mut held.used) {
                return self.by_key.remove(&key);
            }
            self.queue.push_back(key);
        }
        None
    }
}

/// On a thread that may wait: the last one to close a file that has no name gives its bytes back.
fn close(gone: impl Send + 'static, runtime: &tokio::runtime::Handle) {
    runtime.spawn_blocking(move || drop(gone));
}

/// At most [`HELD_FILES_MAX`], each until it was not asked for during [`HELD_FILES_INTERVAL`]: a file that another
/// process deletes keeps its room until then, and a file system cannot be unmounted before.
#[derive(Debug)]
pub(super) struct HeldFiles {
    files: Arc<Mutex<Files>>,
    max: usize,
}

fn lock(files: &Mutex<Files>) -> MutexGuard<'_, Files> {
    files.lock().unwrap_or_else(PoisonError::into_inner)
}

impl HeldFiles {
    /// A sixteenth of what the process may open at most: its clients need the others.
    pub(super) fn new() -> Self {
        let limit = rustix::process::getrlimit(rustix::process::Resource::Nofile).current;
        let share = limit.map_or(HELD_FILES_MAX, |limit| usize::try_from(limit / 16).unwrap_or(0));
        Self { files: Arc::default(), max: share.min(HELD_FILES_MAX) }
    }

    pub(super) fn get(&self, key: &str) -> Option<Arc<ObjectFile>> {
        let mut files = lock(&self.files);
        let held = files.by_key.get_mut(key)?;
        held.used = true;
        Some(Arc::clone(&held.file))
    }

    /// Holds a file, where there is room. Without a runtime, which would close it one day, none is held.
    pub(super) fn keep(&self, key: &str, file: &Arc<ObjectFile>) {
        let Ok(runtime) = tokio::runtime::Handle::try_current() else { return };
        let mut files = lock(&self.files);
        let gone = match files.by_key.len() < self.max {
            true => None,
            false => match files.make_room() {
                Some(gone) => Some(gone),
                None => return,
            },
        };
        let held = Held { file: Arc::clone(file), used: true };
        if files.by_key.insert(key.into(), held).is_none() {
            files.queue.push_back(key.into());
        }
        let is_watched = std::mem::replace(&mut files.watched, true);
        drop(files);
        if let Some(gone) = gone {
            close(gone, &runtime);
        }
        if !is_watched {
            let watch = Watch(Arc::downgrade(&self.files));
            runtime.spawn(async move {
                loop {
                    tokio::time::sleep(HELD_FILES_INTERVAL).await;
                    if !watch.look() {
                        return;
                    }
                }
            });
        }
    }

    /// Lets go of a file that is about to be deleted.
    pub(super) fn forget(&self, key: &str) {
        lock(&self.files).by_key.remove(key);
    }
}

/// Whoever looks through the files. Where it goes away with its runtime, the next file that is kept begins another.
struct Watch(Weak<Mutex<Files>>);

impl Watch {
    /// Lets go of what was not asked for since the last look; whether anything is left.
    fn look(&self) -> bool {
        let Some(files) = self.0.upgrade() else { return false };
        let mut files = lock(&files);
        let Files { by_key, queue, .. } = &mut *files;
        let gone = by_key.extract_if(.., |_, held| !std::mem::take(&mut held.used));
        let gone: Vec<Held> = gone.map(|(_, held)| held).collect();
        if queue.len() > by_key.len() {
            *queue = by_key.keys().cloned().collect();
        }
        let is_empty = by_key.is_empty();
        drop(files);
        if let Ok(runtime) = tokio::runtime::Handle::try_current() {
            close(gone, &runtime);
        }
        !is_empty
    }
}

impl Drop for Watch {
    fn drop(&mut self) {
        if let Some(files) = self.0.upgrade() {
            let mut files = lock(&files);
            files.watched = mutant("held_files_watched_once");
            // Nobody would close them.
            files.by_key.clear();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn object(directory: &std::path::Path, name: &str) -> Arc<ObjectFile> {
        let path = directory.join(name);
        std::fs::write(&path, b"water").unwrap();
        Arc::new(ObjectFile::of(File::open(path).unwrap()).unwrap().unwrap())
    }

    #[tokio::test(start_paused = true)]
    async fn a_file_is_held_while_it_is_asked_for_and_no_longer() {
        let directory = tempfile::tempdir().unwrap();
        let held = HeldFiles { files: Arc::default(), max: 2 };
        for name in ["a", "b", "c"] {
            held.keep(name, &object(directory.path(), name));
        }
        assert!(held.get("a").is_some() && held.get("b").is_some());
        assert!(held.get("c").is_none(), "the others have a second chance");
        held.forget("b");
        assert!(held.get("b").is_none());
        tokio::time::sleep(HELD_FILES_INTERVAL * 3 / 2).await;
        assert!(held.get("a").is_some(), "it was asked for in the first interval");
        tokio::time::sleep(HELD_FILES_INTERVAL).await;
        assert!(held.get("a").is_some(), "and in the second");
        tokio::time::sleep(HELD_FILES_INTERVAL * 2).await;
        assert!(held.get("a").is_none());
        held.keep("d", &object(directory.path(), "d"));
        tokio::time::sleep(HELD_FILES_INTERVAL * 3).await;
        assert!(held.get("d").is_none(), "whoever looks through them came back");
    }

    #[tokio::test]
    async fn what_was_not_asked_for_makes_room_for_what_is() {
        let directory = tempfile::tempdir().unwrap();
        let held = HeldFiles { files: Arc::default(), max: 2 };
        let keep = |name| held.keep(name, &object(directory.path(), name));
        ["a", "b"].into_iter().for_each(keep);
        // Each of the two has its second chance first.
        ["c", "c"].into_iter().for_each(keep);
        assert!(held.get("c").is_some() && held.get("a").is_none());
        assert!(held.get("b").is_some());
        ["d", "d"].into_iter().for_each(keep);
        assert_eq!(["b", "c", "d"].iter().filter(|name| held.get(name).is_some()).count(), 2);
        assert!(held.get("d").is_some());
    }

    #[test]
    fn none_is_held_where_nobody_would_close_it() {
        let directory = tempfile::tempdir().unwrap();
        let held = HeldFiles { files: Arc::default(), max: 2 };
        let file = object(directory.path(), "a");
        held.keep("a", &file);
        assert!(held.get("a").is_none());
        let runtime =
            || tokio::runtime::Builder::new_current_thread().enable_time().build().unwrap();
        let first = runtime();
        first.block_on(async { held.keep("a", &file) });
        assert!(held.get("a").is_some());
        drop(first);
        assert!(held.get("a").is_none(), "its runtime went away");
        let second = runtime();
        second.block_on(async { held.keep("a", &file) });
        assert!(held.get("a").is_some());
    }
}
