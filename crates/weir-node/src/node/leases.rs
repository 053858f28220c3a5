//! The leases of this process: one per store, all under one identity that no other process uses at the same time.
//!
//! The identity lies in the data directory, so that a node that was restarted goes on with its chain of renewals. The
//! first identity whose lock is free is taken; a process that is stopped keeps its lock, one that was killed does not.

use std::collections::BTreeMap;
use std::fs::File;
use std::io::{self, Read, Seek, Write};
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};

use rustix::fs::FlockOperation;
use rustix::io::Errno;
use weir_device::{Env, VolumeId};
use weir_log::{LeaseSettings, NodeLease};
use weir_store::Store;

use crate::data_directory::DataDirectory;
use crate::error::NodeError;

/// Processes that use one data directory at the same time at most.
const PROCESSES_MAX: u32 = 1024;

/// The leases of a process.
pub(crate) struct Leases {
    settings: LeaseSettings,
    name: Arc<str>,
    known: Mutex<Known>,
}

#[derive(Default)]
struct Known {
    identities: BTreeMap<PathBuf, Identity>,
    /// By data directory and location of the store. There is one lease for each: two chains of renewals under one
    /// identity would fence each other.
    leases: BTreeMap<(PathBuf, String), NodeLease>,
}

struct Identity {
    id: [u8; 16],
    _locked: File,
}

impl Leases {
    pub(crate) fn new(settings: LeaseSettings, name: Arc<str>) -> Self {
        Self { settings, name, known: Mutex::default() }
    }

    /// The lease in `store`; the first call starts its task on this thread. Blocks for a few file operations.
    pub(crate) fn get(
        &self,
        env: &Env,
        data: &DataDirectory,
        store: &Store,
    ) -> Result<NodeLease, NodeError> {
        let mut known = self.known.lock().unwrap_or_else(PoisonError::into_inner);
        let key = (data.path().to_owned(), store.location());
        if let Some(lease) = known.leases.get(&key) {
            return Ok(lease.clone());
        }
        let id = match known.identities.get(data.path()) {
            Some(identity) => identity.id,
            None => {
                let identity = take_identity(&data.nodes(), env)?;
                let id = identity.id;
                known.identities.insert(data.path().to_owned(), identity);
                id
            }
        };
        let lease = NodeLease::start(store.clone(), env, id, &self.name, self.settings);
        known.leases.insert(key, lease.clone());
        Ok(lease)
    }
}

impl Leases {
    /// The lease in `store`, if volumes of it were opened here.
    pub(crate) fn find(&self, data: &DataDirectory, store: &Store) -> Option<NodeLease> {
        let known = self.known.lock().unwrap_or_else(PoisonError::into_inner);
        known.leases.get(&(data.path().to_owned(), store.location())).cloned()
    }
}

fn take_identity(directory: &Path, env: &Env) -> Result<Identity, NodeError> {
    let failed = |path: &Path| {
        let path = path.display().to_string();
        move |source| NodeError::io("taking the node's identity in", path, source)
    };
    let made = std::fs::DirBuilder::new().recursive(true).mode(0o700).create(directory);
    made.and_then(|()| weir_disk::adopt_directory(directory)).map_err(failed(directory))?;
    for number in 0..PROCESSES_MAX {
        let path = directory.join(number.to_string());
        if let Some(identity) = try_identity(&path, env).map_err(failed(&path))? {
            return Ok(identity);
        }
    }
    let busy = io::Error::new(io::ErrorKind::ResourceBusy, "all identities are in use");
    Err(failed(directory)(busy))
}

/// `None` while another process uses it.
fn try_identity(path: &Path, env: &Env) -> io::Result<Option<Identity>> {
    let mut options = File::options();
    options.read(true).write(true).create(true).truncate(false).mode(0o600);
    let mut file = options.open(path)?;
    weir_disk::adopt_file(&file, path)?;
    match rustix::fs::flock(&file, FlockOperation::NonBlockingLockExclusive) {
        Ok(()) => {}
        Err(Errno::WOULDBLOCK) => return Ok(None),
        Err(error) => return Err(error.into()),
    }
    let mut text = String::new();
    // A file that is not text holds no identity.
    let there = file.read_to_string(&mut text).ok().and_then(|_| VolumeId::parse(text.trim()));
    let id = match there {
        Some(id) => id.0,
        None => {
            let mut id = [0; 16];
            env.random.fill(&mut id);
            file.set_len(0)?;
            file.rewind()?;
            writeln!(file, "{}", VolumeId(id))?;
            file.sync_data()?;
            id
        }
    };
    Ok(Some(Identity { id, _locked: file }))
}

#[cfg(test)]
mod tests {
    use super::*;
    use tokio::runtime::Handle;
    use weir_device::BufferPool;

    #[tokio::test]
    async fn processes_at_the_same_time_have_identities_of_their_own_that_last() {
        let env = crate::node::env::real(
            Handle::current(),
            [1; 16],
            BufferPool::new(0),
            std::rc::Rc::new(weir_device::NoFileReads),
            weir_device::Pacer::default(),
        );
        let base = tempfile::tempdir().unwrap();
        let directory = base.path().join("nodes");
        let first = take_identity(&directory, &env).unwrap();
        let second = take_identity(&directory, &env).unwrap();
        assert_ne!(first.id, second.id);
        let id = first.id;
        drop(first);
        // The child of another test has a copy of the lock between its fork and its exec.
        let lasts = (0..500).any(|_| {
            std::thread::sleep(std::time::Duration::from_millis(10));
            take_identity(&directory, &env).unwrap().id == id
        });
        assert!(lasts, "it is taken up again");
        std::fs::write(directory.join("0"), "garbage").unwrap();
        assert_ne!(take_identity(&directory, &env).unwrap().id, id);
    }
}
