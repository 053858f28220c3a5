//! Journals in the data directory that no process serves and that were not closed in order, or that a process has open
//! without serving them: they may hold the only copy of acknowledged writes.

use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::rc::Rc;

use weir_device::{LocalBoxFuture, VolumeId};
use weir_journal::Journal;
use weir_log::catalog::VolumeName;
use weir_log::{JOURNAL_FILE, LOCK_FILE};

use crate::api::types::AtRisk;
use crate::error::NodeError;
use crate::home::processes::Process;
use crate::home::{Home, opened};
use crate::node::Node;
use crate::node::shard::ShardContext;
use crate::serve::kept;

/// Where the volume is that is served under the name of another one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Beside {
    /// In a store.
    InStore,
    /// In none.
    Elsewhere,
}

/// Such a journal.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Unserved {
    /// The volume's identity, as the name of its directory.
    pub volume: VolumeId,
    /// Its name when it was opened, where that was noted.
    pub name: Option<VolumeName>,
    /// URL of the store that it was opened out of, where that was noted.
    pub store: Option<String>,
    /// The journal.
    pub journal: PathBuf,
    /// What the store lacks of it, where it was closed in order; not known where its process was killed.
    pub unsent: Option<AtRisk>,
    /// What is wrong with it, where it cannot be read.
    pub trouble: Option<String>,
    /// Whether a process serves another volume of this name, and whether that one is in no store.
    pub beside: Option<Beside>,
    /// The process that has the lock of the volume's files: it opens or closes the volume, or a verb works on it.
    pub holder: Option<u32>,
}

impl Unserved {
    /// What is in the journal alone, and the command that takes it to the store, where that is known.
    #[must_use]
    pub fn left(&self) -> Option<String> {
        let (name, unsent, store) =
            (self.name.as_ref()?, self.unsent.as_ref(), self.store.as_deref());
        match self.beside {
            Some(beside) => Some(kept::reason_beside(name, unsent, store, beside)),
            None => Some(kept::reason(name, Some(unsent?), store)),
        }
    }
}

impl Node {
    /// The journals of this data directory that none of `processes` serves, and that were not closed in order or are
    /// held by a process all the same: an opening can wait for its store. While a process does not answer, those
    /// without a known holder are left out: it may serve them.
    ///
    /// # Errors
    /// When the data directory cannot be listed.
    #[inline(never)]
    pub fn unserved<'a>(
        &'a self,
        home: Home,
        processes: &'a [Process],
    ) -> LocalBoxFuture<'a, Result<Vec<Unserved>, NodeError>> {
        Box::pin(async move {
            let served: Vec<VolumeId> = processes.iter().flat_map(Process::volumes).collect();
            let silent = processes.iter().any(|process| process.status.is_err());
            let found = self
                .run(0, move |context| async move { not_closed(&context, &home).await })
                .await??;
            let is_known = |one: &Unserved| one.holder.is_some() || !silent;
            let mut found: Vec<Unserved> = found
                .into_iter()
                .filter(|one| is_known(one) && !served.contains(&one.volume))
                .collect();
            for one in &mut found {
                one.beside = beside(one, processes);
            }
            Ok(found)
        })
    }
}

/// Whether commands with its name mean another volume, which one of `processes` serves.
fn beside(one: &Unserved, processes: &[Process]) -> Option<Beside> {
    let name = one.name.as_ref()?;
    processes.iter().find_map(|process| {
        if process.without_store(name).is_some() {
            return Some(Beside::Elsewhere);
        }
        let status = process.status.as_ref().ok()?;
        let is_same_store = one.store.as_ref().is_none_or(|store| *store == status.store);
        let mut others = process.volumes().filter(|id| *id != one.volume);
        let has_name = |id| process.volume(id).is_some_and(|other| other.name == name.as_str());
        (is_same_store && others.any(has_name)).then_some(Beside::InStore)
    })
}

/// Every journal here that was not closed with everything in the store.
pub(crate) async fn not_closed(
    context: &Rc<ShardContext>,
    home: &Home,
) -> Result<Vec<Unserved>, NodeError> {
    let mut unserved = Vec::new();
    for volume in home.data.volumes()? {
        let path = home.data.volume(volume);
        let journal = path.join(JOURNAL_FILE);
        if !journal.is_file() {
            continue;
        }
        let holder = holder(&path.join(LOCK_FILE));
        let directory = context.disks.directory(path)?;
        let name = opened::noted(&home.data, volume);
        let trouble = match Journal::identify(&directory, JOURNAL_FILE).await {
            // A journal is closed in order even if the store did not take everything; then the note is still there.
            Ok(found) if found.is_closed && holder.is_none() && name.is_none() => continue,
            Ok(_) => None,
            Err(error) => Some(error.to_string()),
        };
        let store = opened::noted_store(&home.data, volume);
        let unsent = opened::noted_unsent(&home.data, volume);
        unserved.push(Unserved {
            volume,
            name,
            store,
            journal,
            unsent,
            trouble,
            beside: None,
            holder,
        });
    }
    Ok(unserved)
}

/// The process that has a lock file locked, if the system says so. The lock is not tried: that would refuse an opening
/// which comes at the same moment.
pub(crate) fn holder(lock: &Path) -> Option<u32> {
    let inode = std::fs::metadata(lock).ok()?.ino();
    let process = std::fs::read_to_string(lock).ok()?.trim().parse().ok()?;
    let locks = std::fs::read_to_string("/proc/locks").ok()?;
    is_locked(&locks, inode, process).then_some(process)
}

/// Whether `locks`, the kernel's list, has one of that process on that file. The device is not compared: some file
/// systems give another number there.
fn is_locked(locks: &str, inode: u64, process: u32) -> bool {
    locks.lines().any(|line| {
        let fields: Vec<&str> = line.split_whitespace().collect();
        let [_, "FLOCK", _, _, by, file, ..] = fields[..] else { return false };
        let of_file = file.rsplit(':').next().and_then(|number| number.parse().ok());
        by.parse() == Ok(process) && of_file == Some(inode)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_lock_is_that_of_its_process_on_its_file() {
        let locks = "1: POSIX  ADVISORY  WRITE 12 fd:00:77 0 EOF\n\
                     2: FLOCK  ADVISORY  WRITE 12 fd:00:78 0 EOF\n\
                     2: -> FLOCK  ADVISORY  WRITE 13 fd:00:78 0 EOF\n";
        assert!(is_locked(locks, 78, 12));
        for (inode, process) in [(77, 12), (78, 13), (8, 12), (78, 1), (79, 12)] {
            assert!(!is_locked(locks, inode, process), "{inode} by {process}");
        }
    }

    #[test]
    fn the_holder_of_a_lock_is_found_while_it_has_it() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("lock");
        std::fs::write(&path, format!("{}\n", std::process::id())).unwrap();
        assert_eq!(holder(&path), None, "the file of a process that ended stays");
        let file = std::fs::File::open(&path).unwrap();
        file.lock().unwrap();
        assert_eq!(holder(&path), Some(std::process::id()));
        drop(file);
        assert_eq!(holder(&path), None);
    }
}
