//! Calls that open, list, lock and measure files: blocking, rare, and always run on a helper
//! thread.

use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use rustix::fs::{AtFlags, FileType, FlockOperation, Mode, OFlags, SeekFrom, StatxFlags};
use rustix::io::Errno;
use weir_device::BUFFER_ALIGN;

use crate::engine::open_file::{Descriptor, OpenFile};
use crate::engine::under_way::Call;
use crate::engine::{Engine, whose};
use crate::error::{DiskError, DiskOperation};
use crate::modes::{DirectIo, OpenMode};

/// Alignment assumed where the kernel does not tell: enough for every device in use.
const ALIGNMENT_UNKNOWN: usize = BUFFER_ALIGN;

/// Longest process id in a lock file, in bytes: ten digits and a line end, with room to spare.
const PID_BYTES_MAX: usize = 16;

/// A blocking call with the path and operation to name if it cannot even be started.
pub(crate) struct MetadataJob<F> {
    pub(crate) operation: DiskOperation,
    pub(crate) path: Arc<str>,
    pub(crate) job: F,
}

/// Runs a job on a helper thread of the engine.
pub(crate) async fn run<T, F>(engine: &Engine, job: MetadataJob<F>) -> Result<T, DiskError>
where
    T: Send + 'static,
    F: FnOnce() -> Result<T, DiskError> + Send + 'static,
{
    let MetadataJob { operation, path, job } = job;
    let asked = Arc::clone(&path);
    let job = move || {
        let _call = Call::begin(&asked);
        job()
    };
    match engine.helpers().run(job).await {
        Some(result) => result,
        None => Err(DiskError::Stopped { operation, path }),
    }
}

/// A directory as the helper threads see it.
#[derive(Debug)]
pub(crate) struct OpenDirectory {
    pub(crate) fd: Descriptor,
    pub(crate) path: Arc<str>,
    /// Its file system may not answer: what is opened in it is closed on threads of their own.
    pub(crate) is_apart: bool,
}

impl OpenDirectory {
    fn descriptor(&self, fd: OwnedFd) -> Descriptor {
        Descriptor::new(fd, self.is_apart.then_some(&self.path))
    }

    fn child_path(&self, name: &str) -> Arc<str> {
        Arc::from(format!("{}/{name}", self.path.trim_end_matches('/')))
    }

    fn sync(&self) -> Result<(), DiskError> {
        rustix::fs::fsync(&self.fd).map_err(failed(DiskOperation::Sync, &self.path))
    }

    /// Opens or creates a file.
    pub(crate) fn open_file(
        &self,
        name: &str,
        mode: OpenMode,
        direct: DirectIo,
    ) -> Result<OpenFile, DiskError> {
        let path = self.child_path(name);
        let (operation, create) = match mode {
            OpenMode::Existing => (DiskOperation::Open, OFlags::empty()),
            OpenMode::CreateNew => (DiskOperation::Create, OFlags::CREATE | OFlags::EXCL),
        };
        let flags = OFlags::RDWR | OFlags::CLOEXEC;
        let permissions = Mode::RUSR | Mode::WUSR;
        let open = |flags| rustix::fs::openat(&self.fd, name, flags, permissions);
        let fd = open(flags | create).map_err(failed(operation, &path))?;
        // Opened a second time for direct I/O: where that is refused the first descriptor is the
        // fallback, and a file that was just created is not created twice.
        let opened = match direct {
            DirectIo::WherePossible => direct_descriptor(open(flags | OFlags::DIRECT)),
            DirectIo::Never => None,
        };
        let file = match opened {
            Some((fd, alignment)) => whose::opened(self.descriptor(fd), path, alignment),
            None => {
                if direct == DirectIo::WherePossible {
                    warn_of_buffered_files(&path);
                }
                whose::opened(self.descriptor(fd), path, 1)
            }
        };
        if mode == OpenMode::CreateNew {
            self.adopt(&file.fd, &file.path)?;
            rustix::fs::fsync(&file.fd).map_err(failed(DiskOperation::Sync, &file.path))?;
            self.sync()?;
        }
        Ok(file)
    }

    /// Opens a directory below this one; creates it durably where it is missing.
    pub(crate) fn subdirectory(&self, name: &str) -> Result<OpenDirectory, DiskError> {
        let path = self.child_path(name);
        match rustix::fs::mkdirat(&self.fd, name, Mode::RWXU) {
            Ok(()) | Err(Errno::EXIST) => {}
            Err(errno) => return Err(failed(DiskOperation::Create, &path)(errno)),
        }
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let fd = rustix::fs::openat(&self.fd, name, flags, Mode::empty())
            .map_err(failed(DiskOperation::Open, &path))?;
        self.adopt(&fd, &path)?;
        // Also when it was there: whoever made it may have died before it was durable.
        self.sync()?;
        Ok(OpenDirectory { fd: self.descriptor(fd), path, is_apart: self.is_apart })
    }

    /// Gives what root made here to the owner of the directory.
    fn adopt(&self, made: impl AsFd, path: &Arc<str>) -> Result<(), DiskError> {
        let errno = |error: std::io::Error| {
            error.raw_os_error().map_or(Errno::IO, Errno::from_raw_os_error)
        };
        let adopted = crate::owner::adopt(made, &self.fd).map_err(errno);
        adopted.map_err(failed(DiskOperation::Create, path))
    }

    /// Names in the directory, sorted.
    pub(crate) fn list(&self) -> Result<Vec<String>, DiskError> {
        let error = || failed(DiskOperation::List, &self.path);
        let mut names = Vec::new();
        for entry in rustix::fs::Dir::read_from(&self.fd).map_err(error())? {
            let name = entry.map_err(error())?.file_name().to_string_lossy().into_owned();
            if name != "." && name != ".." {
                names.push(name);
            }
        }
        names.sort();
        Ok(names)
    }

    /// Removes a file durably.
    pub(crate) fn remove(&self, name: &str) -> Result<(), DiskError> {
        let path = self.child_path(name);
        rustix::fs::unlinkat(&self.fd, name, AtFlags::empty())
            .map_err(failed(DiskOperation::Remove, &path))?;
        self.sync()
    }

    /// Takes the lock file `name` and writes this process's id into it.
    pub(crate) fn lock(&self, name: &str) -> Result<Descriptor, DiskError> {
        let path = self.child_path(name);
        let error = || failed(DiskOperation::Lock, &path);
        let flags = OFlags::RDWR | OFlags::CREATE | OFlags::CLOEXEC;
        let fd =
            rustix::fs::openat(&self.fd, name, flags, Mode::RUSR | Mode::WUSR).map_err(error())?;
        let fd = self.descriptor(fd);
        self.adopt(&fd, &path)?;
        match rustix::fs::flock(&fd, FlockOperation::NonBlockingLockExclusive) {
            Ok(()) => {}
            Err(Errno::WOULDBLOCK) => {
                return Err(DiskError::Locked { path, holder_pid: read_pid(&fd) });
            }
            Err(errno) => return Err(error()(errno)),
        }
        rustix::fs::ftruncate(&fd, 0).map_err(error())?;
        let pid = format!("{}\n", std::process::id());
        rustix::io::pwrite(&fd, pid.as_bytes(), 0).map_err(error())?;
        Ok(fd)
    }
}

/// Asks a file for its length.
pub(crate) fn length_job(
    file: Arc<OpenFile>,
) -> MetadataJob<impl FnOnce() -> Result<u64, DiskError> + Send + 'static> {
    let path = Arc::clone(&file.path);
    MetadataJob { operation: DiskOperation::Length, path, job: move || length(&file) }
}

/// Asks how much is free on the file system of a file.
pub(crate) fn free_job(
    file: Arc<OpenFile>,
) -> MetadataJob<impl FnOnce() -> Result<u64, DiskError> + Send + 'static> {
    let path = Arc::clone(&file.path);
    let job = move || {
        let found = rustix::fs::fstatvfs(&file.fd);
        let found = found.map_err(failed(DiskOperation::Length, &file.path))?;
        Ok(found.f_bavail.saturating_mul(found.f_frsize))
    };
    MetadataJob { operation: DiskOperation::Length, path, job }
}

pub(crate) fn length(file: &OpenFile) -> Result<u64, DiskError> {
    let error = || failed(DiskOperation::Length, &file.path);
    let stat = rustix::fs::fstat(&file.fd).map_err(error())?;
    if FileType::from_raw_mode(stat.st_mode) == FileType::BlockDevice {
        return rustix::fs::seek(&file.fd, SeekFrom::End(0)).map_err(error());
    }
    Ok(u64::try_from(stat.st_size).expect("the kernel gives no negative lengths"))
}

/// A descriptor for direct I/O with its alignment, or `None` where the file has to go through the
/// page cache.
fn direct_descriptor(opened: Result<OwnedFd, Errno>) -> Option<(OwnedFd, usize)> {
    let fd = opened.ok()?;
    let alignment = direct_alignment(&fd)?;
    Some((fd, alignment))
}

/// The alignment that direct I/O on `fd` needs; `None` where it is not possible.
pub(crate) fn direct_alignment(fd: &OwnedFd) -> Option<usize> {
    let Ok(stat) = rustix::fs::statx(fd, c"", AtFlags::EMPTY_PATH, StatxFlags::DIOALIGN) else {
        return Some(ALIGNMENT_UNKNOWN);
    };
    if stat.stx_mask & StatxFlags::DIOALIGN.bits() == 0 {
        return Some(ALIGNMENT_UNKNOWN);
    }
    let alignment = usize::try_from(stat.stx_dio_offset_align.max(stat.stx_dio_mem_align)).ok()?;
    // 0 means that this file has no direct I/O; more than our buffers have means that we cannot do
    // it.
    (alignment.is_power_of_two() && alignment <= BUFFER_ALIGN).then_some(alignment)
}

/// One warning per process: every file of such a file system would say the same.
fn warn_of_buffered_files(path: &str) {
    static WARNED: AtomicBool = AtomicBool::new(false);
    if !WARNED.swap(true, Ordering::Relaxed) {
        tracing::warn!(path, "no direct I/O on this file system: files go through the page cache");
    }
}

/// The process that the file names, if there is one.
fn read_pid(fd: &Descriptor) -> Option<u32> {
    let mut bytes = [0; PID_BYTES_MAX];
    let len = rustix::io::pread(fd, &mut bytes[..], 0).ok()?;
    let pid = std::str::from_utf8(&bytes[..len]).ok()?.trim().parse().ok()?;
    // Where the disk hangs, whoever has the lock could not write its own: what is there is of a process before it.
    std::path::Path::new(&format!("/proc/{pid}")).exists().then_some(pid)
}

/// Turns an errno into an error of `operation` on `path`.
pub(crate) fn failed(operation: DiskOperation, path: &Arc<str>) -> impl FnOnce(Errno) -> DiskError {
    let path = Arc::clone(path);
    move |source| DiskError::Io { operation, path, offset: None, source }
}
