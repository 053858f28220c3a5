//! A directory of a local disk: opening, creating, listing, removing and locking files, each
//! durable when it returns.

use std::path::Path;
use std::sync::Arc;

use rustix::fs::{Mode, OFlags};
use rustix::io::Errno;

use crate::engine::Engine;
use crate::engine::metadata::{self, MetadataJob, OpenDirectory, failed};
use crate::engine::open_file::Descriptor;
use crate::error::{DiskError, DiskOperation};
use crate::file::File;
use crate::modes::{DirectIo, OpenMode};
use crate::room::LeaveRoom;
use crate::sim::handles::{SimDirectory, SimLock};

/// A directory. Cheap to clone. Names are plain file names, never paths.
#[derive(Clone, Debug)]
pub struct Directory {
    inner: Inner,
    /// How the files opened in it grow.
    rule: Option<LeaveRoom>,
}

#[derive(Clone, Debug)]
enum Inner {
    Real(RealDirectory),
    Sim(SimDirectory),
}

/// A directory of the operating system.
#[derive(Clone, Debug)]
pub(crate) struct RealDirectory {
    open: Arc<OpenDirectory>,
    engine: Engine,
    direct: DirectIo,
}

/// Holds a lock; dropping it releases the lock, of a directory apart a little later.
#[derive(Debug)]
#[must_use = "dropping the guard releases the lock"]
pub struct LockGuard {
    held: Held,
}

impl LockGuard {
    /// Returns once the lock is released: another process may have it then.
    pub async fn release(self) {
        let Held::Real { fd, engine } = self.held else { return };
        // Nothing comes back where the thread ended, and the lock is released then as well.
        let _ = engine.helpers().run(move || fd.close_here()).await;
    }
}

#[derive(Debug)]
enum Held {
    Real { fd: Descriptor, engine: Engine },
    Sim { _lock: SimLock },
}

impl Directory {
    pub(crate) fn real(directory: RealDirectory) -> Self {
        Self { inner: Inner::Real(directory), rule: None }
    }

    pub(crate) fn simulated(directory: SimDirectory) -> Self {
        Self { inner: Inner::Sim(directory), rule: None }
    }

    /// The same directory; files that are opened in it from now on leave room on their file system when they grow.
    #[must_use]
    pub fn leaving_room(self, rule: LeaveRoom) -> Self {
        Self { rule: Some(rule), ..self }
    }

    /// Number of the device that its file system is on; `None` on a simulated disk.
    #[must_use]
    pub fn device(&self) -> Option<u64> {
        match &self.inner {
            Inner::Real(real) => rustix::fs::fstat(&real.open.fd).ok().map(|stat| stat.st_dev),
            Inner::Sim(_) => None,
        }
    }

    /// Path, for messages.
    #[must_use]
    pub fn display(&self) -> String {
        match &self.inner {
            Inner::Real(directory) => directory.open.path.to_string(),
            Inner::Sim(directory) => directory.display(),
        }
    }

    /// Opens a file for reading and writing, past the page cache where possible.
    pub async fn open(&self, name: &str, mode: OpenMode) -> Result<File, DiskError> {
        self.check_name(name)?;
        let file = match &self.inner {
            Inner::Real(real) => {
                let (name, direct) = (name.to_owned(), real.direct);
                let file = real
                    .run(DiskOperation::Open, move |open| open.open_file(&name, mode, direct))
                    .await?;
                File::real(file, real.engine.clone())
            }
            Inner::Sim(sim) => File::simulated(sim.open(name, mode).await?),
        };
        match &self.rule {
            Some(rule) => file.leaving_room(rule.clone()).await,
            None => Ok(file),
        }
    }

    /// Opens a directory below this one; creates it (mode 0700, durably) where it is missing.
    pub async fn subdirectory(&self, name: &str) -> Result<Directory, DiskError> {
        self.check_name(name)?;
        match &self.inner {
            Inner::Real(real) => {
                let name = name.to_owned();
                let open =
                    real.run(DiskOperation::Open, move |open| open.subdirectory(&name)).await?;
                let open = Arc::new(open);
                Ok(Self::real(RealDirectory { open, ..real.clone() }))
            }
            Inner::Sim(sim) => Ok(Self::simulated(sim.subdirectory(name).await?)),
        }
    }

    /// Names of the files and directories in this directory, sorted.
    pub async fn list(&self) -> Result<Vec<String>, DiskError> {
        match &self.inner {
            Inner::Real(real) => real.run(DiskOperation::List, |open| open.list()).await,
            Inner::Sim(sim) => sim.list().await,
        }
    }

    /// Removes a file, durably. A file that is not there is an error.
    pub async fn remove(&self, name: &str) -> Result<(), DiskError> {
        self.check_name(name)?;
        match &self.inner {
            Inner::Real(real) => {
                let name = name.to_owned();
                real.run(DiskOperation::Remove, move |open| open.remove(&name)).await
            }
            Inner::Sim(sim) => sim.remove(name).await,
        }
    }

    /// Locks the file `name`, which is created where it is missing, against other processes and
    /// other handles. Does not wait: a lock that is held elsewhere is [`DiskError::Locked`]. The
    /// operating system releases it when the process ends, however it ends.
    pub async fn lock(&self, name: &str) -> Result<LockGuard, DiskError> {
        self.check_name(name)?;
        let held = match &self.inner {
            Inner::Real(real) => {
                let name = name.to_owned();
                let fd = real.run(DiskOperation::Lock, move |open| open.lock(&name)).await?;
                Held::Real { fd, engine: real.engine.clone() }
            }
            Inner::Sim(sim) => Held::Sim { _lock: sim.lock(name).await? },
        };
        Ok(LockGuard { held })
    }

    fn check_name(&self, name: &str) -> Result<(), DiskError> {
        let plain = !name.is_empty() && name != "." && name != ".." && !name.contains(['/', '\0']);
        if plain {
            return Ok(());
        }
        Err(DiskError::Name { directory: Arc::from(self.display()), name: name.to_owned() })
    }
}

impl RealDirectory {
    /// Opens `path`, creating what is missing of it. Blocks.
    pub(crate) fn open(path: &Path, engine: Engine, direct: DirectIo) -> Result<Self, DiskError> {
        let open = Arc::new(open_or_create(path, false)?);
        Ok(Self { open, engine, direct })
    }

    /// The same on a helper thread of `engine`. What is opened in it is closed on threads of their own.
    pub(crate) async fn open_apart(
        path: &Path,
        engine: Engine,
        direct: DirectIo,
    ) -> Result<Self, DiskError> {
        let (shown, path) = (Arc::from(path.to_string_lossy()), path.to_owned());
        let job = move || open_or_create(&path, true);
        let job = MetadataJob { operation: DiskOperation::Open, path: shown, job };
        let open = Arc::new(metadata::run(&engine, job).await?);
        Ok(Self { open, engine, direct })
    }

    async fn run<T: Send + 'static>(
        &self,
        operation: DiskOperation,
        job: impl FnOnce(&OpenDirectory) -> Result<T, DiskError> + Send + 'static,
    ) -> Result<T, DiskError> {
        let (open, path) = (Arc::clone(&self.open), Arc::clone(&self.open.path));
        let job = move || job(&open);
        metadata::run(&self.engine, MetadataJob { operation, path, job }).await
    }
}

/// Opens a directory; where it is missing, creates it below its parent, which is handled the same
/// way.
fn open_or_create(path: &Path, is_apart: bool) -> Result<OpenDirectory, DiskError> {
    let shown: Arc<str> = Arc::from(path.to_string_lossy());
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
    match rustix::fs::open(path, flags, Mode::empty()) {
        Ok(fd) => {
            let fd = Descriptor::new(fd, is_apart.then_some(&shown));
            return Ok(OpenDirectory { fd, path: shown, is_apart });
        }
        Err(Errno::NOENT) => {}
        Err(errno) => return Err(failed(DiskOperation::Open, &shown)(errno)),
    }
    let not_found = || failed(DiskOperation::Create, &shown)(Errno::NOENT);
    let name = path.file_name().and_then(|name| name.to_str()).ok_or_else(not_found)?;
    let parent = match path.parent() {
        Some(parent) if parent.as_os_str().is_empty() => Path::new("."),
        Some(parent) => parent,
        None => return Err(not_found()),
    };
    let mut created = open_or_create(parent, is_apart)?.subdirectory(name)?;
    created.path = shown;
    Ok(created)
}
