//! Images as their users name them, and the calls that only they need: zeroes without writing them, and what is a hole.
//! Blocking, and always run on a helper thread.

use std::os::fd::AsFd;
use std::path::Path;
use std::sync::Arc;

use rustix::fs::{FallocateFlags, FileType, FlockOperation, Mode, OFlags, SeekFrom};
use rustix::io::Errno;
use weir_device::mutant;

use crate::engine::metadata::{MetadataJob, direct_alignment, failed, length};
use crate::engine::open_file::{Descriptor, OpenFile};
use crate::engine::uring::IMAGE_ENTRIES_MAX;
use crate::engine::whose;
use crate::error::{DiskError, DiskOperation};
use crate::image::ImageMode;
use crate::modes::Zeroing;

/// An image, and what was found out about it.
pub(crate) struct OpenImage {
    pub(crate) file: OpenFile,
    pub(crate) size: u64,
    pub(crate) zero_bytes: u64,
    pub(crate) can_zero: bool,
    pub(crate) created: bool,
}

/// Opens an image and locks it.
pub(crate) fn open(path: &Path, mode: ImageMode) -> Result<OpenImage, DiskError> {
    let shown: Arc<str> = Arc::from(path.to_string_lossy());
    let error = |operation| failed(operation, &shown);
    // Looked at before it is opened: opening a named pipe waits, and opening a tape rewinds it.
    let is_device = match rustix::fs::stat(path).map(|stat| FileType::from_raw_mode(stat.st_mode)) {
        Ok(FileType::RegularFile) => Some(false),
        Ok(FileType::BlockDevice) => Some(true),
        Ok(_) => return Err(DiskError::NoImage { path: shown }),
        Err(Errno::NOENT) if mode.create.is_some() && !mode.read_only => None,
        Err(errno) => return Err(error(DiskOperation::Open)(errno)),
    };
    let mut flags = OFlags::CLOEXEC;
    flags |= if mode.read_only { OFlags::RDONLY } else { OFlags::RDWR };
    flags.set(OFlags::DIRECT, mode.direct);
    // The kernel refuses a device that is mounted, or in use by another device.
    flags.set(OFlags::EXCL, is_device == Some(true));
    let created = is_device.is_none();
    if created {
        flags |= OFlags::CREATE | OFlags::EXCL;
    }
    let opened = rustix::fs::open(path, flags, Mode::RUSR | Mode::WUSR);
    let fd = opened.map_err(|errno| match errno {
        Errno::INVAL if mode.direct => DiskError::NoDirectIo { path: Arc::clone(&shown) },
        errno => error(if created { DiskOperation::Create } else { DiskOperation::Open })(errno),
    })?;
    let lock = match mode.read_only {
        true => FlockOperation::NonBlockingLockShared,
        false => FlockOperation::NonBlockingLockExclusive,
    };
    match rustix::fs::flock(&fd, lock) {
        Ok(()) => {}
        Err(Errno::WOULDBLOCK) => return Err(DiskError::ImageInUse { path: shown }),
        Err(errno) => return Err(error(DiskOperation::Lock)(errno)),
    }
    let is_device = is_device.unwrap_or(false);
    let block = match is_device {
        true => {
            let asked = rustix::fs::ioctl_blksszget(&fd);
            u64::from(asked.map_err(error(DiskOperation::Open))?)
        }
        false => 1,
    };
    let alignment = match (mode.direct, is_device) {
        (false, _) => 1,
        (true, true) => usize::try_from(block).unwrap_or(usize::MAX),
        (true, false) => {
            let none = || DiskError::NoDirectIo { path: Arc::clone(&shown) };
            direct_alignment(&fd).ok_or_else(none)?
        }
    };
    let mut file = whose::opened(Descriptor::Own(fd), Arc::clone(&shown), alignment);
    if file.blocks_callers {
        // The last one who lets go of it may be the thread of a volume, and to close it asks its file system.
        file.fd = file.fd.apart(&file.path);
    }
    file.entries_max = IMAGE_ENTRIES_MAX;
    let mut size = length(&file)?;
    if let (0, Some(wanted), false) = (size, mode.create, is_device || mode.read_only) {
        give_length(&file, path, wanted, created)?;
        size = wanted;
    }
    let zero_bytes = block.max(alignment as u64);
    let can_zero = mode.direct || !is_device;
    Ok(OpenImage { file, size, zero_bytes, can_zero, created })
}

/// Makes a file as long as it is to be, durably, and the name as well where it is new.
fn give_length(file: &OpenFile, path: &Path, len: u64, created: bool) -> Result<(), DiskError> {
    let error = |errno| failed(DiskOperation::Create, &file.path)(errno);
    let given = rustix::fs::ftruncate(&file.fd, len).and_then(|()| sync(&file.fd));
    if let Err(errno) = given {
        if created {
            // Nothing is in it yet; whoever tries again finds what was there before.
            let _ = rustix::fs::unlink(path);
        }
        return Err(error(errno));
    }
    let parent = match path.parent() {
        Some(parent) if !parent.as_os_str().is_empty() => parent,
        _ => Path::new("."),
    };
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
    let parent = rustix::fs::open(parent, flags, Mode::empty()).map_err(error)?;
    if created {
        let adopted = crate::owner::adopt(&file.fd, &parent);
        adopted.map_err(|e| error(e.raw_os_error().map_or(Errno::IO, Errno::from_raw_os_error)))?;
    }
    if mutant("name_of_new_image_not_synced") {
        return Ok(());
    }
    sync(&parent).map_err(error)
}

fn sync(fd: impl AsFd) -> Result<(), Errno> {
    #[cfg(test)]
    tests::note_synced(fd.as_fd());
    rustix::fs::fsync(fd)
}

/// Zeroes a range without writing it; false where the file system or the device cannot.
pub(crate) fn zero_job(
    file: Arc<OpenFile>,
    (offset, len): (u64, u64),
    how: Zeroing,
) -> MetadataJob<impl FnOnce() -> Result<bool, DiskError> + Send + 'static> {
    let path = Arc::clone(&file.path);
    let job = move || {
        let flags = FallocateFlags::KEEP_SIZE
            | match how {
                Zeroing::Provisioned => FallocateFlags::ZERO_RANGE,
                Zeroing::Hole => FallocateFlags::PUNCH_HOLE,
            };
        loop {
            return match rustix::fs::fallocate(&file.fd, flags, offset, len) {
                Ok(()) => Ok(true),
                Err(Errno::INTR) => continue,
                Err(Errno::OPNOTSUPP | Errno::NOSYS | Errno::NODEV) => Ok(false),
                Err(errno) => Err(file.error(DiskOperation::Write, Some(offset), errno)),
            };
        }
    };
    MetadataJob { operation: DiskOperation::Write, path, job }
}

/// Closes a copy of the descriptor, which asks the file system what the close of the last one asks.
pub(crate) fn copy_closed_job(
    file: Arc<OpenFile>,
) -> MetadataJob<impl FnOnce() -> Result<(), DiskError> + Send + 'static> {
    let path = Arc::clone(&file.path);
    let job = move || {
        let copy = rustix::io::fcntl_dupfd_cloexec(&file.fd, 0);
        copy.map(drop).map_err(|errno| file.error(DiskOperation::Open, None, errno))
    };
    MetadataJob { operation: DiskOperation::Open, path, job }
}

/// A run of bytes that may hold data, or that is a hole, and its end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Run {
    /// Whether it may hold data. A hole reads as zeroes.
    pub is_data: bool,
    /// One past its last byte.
    pub end: u64,
}

/// The runs from `offset` to `end`, `runs_max` at most.
pub(crate) fn runs_job(
    file: Arc<OpenFile>,
    (offset, end): (u64, u64),
    runs_max: usize,
) -> MetadataJob<impl FnOnce() -> Result<Vec<Run>, DiskError> + Send + 'static> {
    let path = Arc::clone(&file.path);
    let job = move || {
        // A file that was made shorter has no hole where its bytes were.
        let present = length(&file)?;
        if present < end {
            let wanted = usize::try_from(end - offset).unwrap_or(usize::MAX);
            let there = usize::try_from(present.saturating_sub(offset)).unwrap_or(0);
            return Err(file.short(DiskOperation::Read, offset, wanted, there));
        }
        let mut runs = Vec::new();
        let mut at = offset;
        while at < end && runs.len() < runs_max {
            let run = run_at(&file, at, end)?;
            at = run.end;
            runs.push(run);
        }
        Ok(runs)
    };
    MetadataJob { operation: DiskOperation::Length, path, job }
}

fn run_at(file: &OpenFile, at: u64, end: u64) -> Result<Run, DiskError> {
    let seek = |to| rustix::fs::seek(&file.fd, to);
    let data = match seek(SeekFrom::Data(at)) {
        Ok(data) => data.min(end),
        // Nothing but a hole from here on.
        Err(Errno::NXIO) => end,
        // It cannot say, as a device cannot.
        Err(Errno::INVAL | Errno::OPNOTSUPP | Errno::SPIPE) => {
            return Ok(Run { is_data: true, end });
        }
        Err(errno) => return Err(file.error(DiskOperation::Length, Some(at), errno)),
    };
    if data > at {
        return Ok(Run { is_data: false, end: data });
    }
    let hole = seek(SeekFrom::Hole(at));
    let hole = hole.map_err(|errno| file.error(DiskOperation::Length, Some(at), errno))?;
    // The end of the file is a hole; it never is before what was just found to be data, but for a file that shrinks.
    Ok(Run { is_data: true, end: hole.min(end).max(at + 1) })
}

#[cfg(test)]
mod tests {
    use std::cell::RefCell;
    use std::os::fd::BorrowedFd;

    use super::*;

    thread_local! {
        /// The inodes that were synced on this thread, in order.
        static SYNCED: RefCell<Vec<u64>> = const { RefCell::new(Vec::new()) };
    }

    pub(super) fn note_synced(fd: BorrowedFd<'_>) {
        let inode = rustix::fs::fstat(fd).expect("it is open").st_ino;
        SYNCED.with_borrow_mut(|synced| synced.push(inode));
    }

    #[test]
    fn a_new_image_and_its_name_are_durable_before_anybody_has_it() {
        let directory = tempfile::TempDir::new().expect("a directory");
        let path = directory.path().join("disk.img");
        let inode = |path: &Path| rustix::fs::stat(path).expect("it is there").st_ino;
        let mode = ImageMode { create: Some(4096), direct: false, read_only: false };
        let opened = |mode| {
            let image = open(&path, mode).expect("it opens");
            (image.created, image.size, SYNCED.take())
        };
        let both = || vec![inode(&path), inode(directory.path())];
        assert_eq!(opened(mode), (true, 4096, both()));
        assert_eq!(opened(mode), (false, 4096, vec![]), "nothing is new about it");
        // What a process left that ended in between has neither a length nor a durable name.
        std::fs::write(&path, b"").expect("cut off");
        assert_eq!(opened(mode), (false, 4096, both()));
    }
}
