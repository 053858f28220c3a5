//! File operations of the local directory store that know nothing of keys.

use std::collections::VecDeque;
use std::fs::{self, File, OpenOptions};
use std::io::{self, ErrorKind, IoSlice, Read, Write};
use std::ops::Range;
use std::os::fd::AsRawFd;
use std::os::unix::fs::{FileExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::time::SystemTime;

use bytes::Bytes;
use rustix::fs::{Mode, OFlags, ResolveFlags};
use tracing::info;
use weir_device::mutant;
use weir_pacer::{Leave, Pace};

use crate::limits::TEMPORARY_AGE_MAX;

/// Where files live until they are complete. No key starts with a dot.
pub(super) const TEMPORARY_DIRECTORY: &str = ".tmp";

/// Parts handed to one `writev`: `IOV_MAX` of Linux.
const PARTS_PER_CALL_MAX: usize = 1024;

/// From how many bytes on a file is written in pieces; a smaller one is one itself.
const WRITE_PIECES_FROM_BYTES: usize = 256 << 10;

/// From how many bytes on a range is read in pieces, without reading ahead. Clients ask for less at a time, and may go
/// on behind it; who asks for more (a check, a replicator), or waits for leave (the collector), asks for all it wants.
/// The kernel reads so far ahead that a write of 16 KiB and its sync beside it take 5.8 ms, and 15.9 at the 90th
/// percentile.
const READ_PIECES_FROM_BYTES: usize = 2 << 20;

/// Bytes that the disk is given or asked for at a time: at this size the measured disk streams.
const PIECE_BYTES: usize = 1 << 20;

/// The same, where others are to get in between: a client's write waits for the piece before it.
const SHORT_PIECE_BYTES: usize = 64 << 10;

/// Bytes that are written to the page cache by one call. The kernel takes memory in pieces as large as the call, and
/// large pieces are what was free for longest: where a VM gives free memory back to its host, they are fetched from
/// there again, which took half of the CPU time of a volume that was written to at full speed.
const CALL_BYTES: usize = 64 << 10;

/// Bytes of a deleted file that are given back at a time where the file system discards. A disk that discards 8 MiB
/// answers nobody for 1.1 to 2.5 ms; in such steps a write of 16 KiB beside it takes 0.22 to 0.26 ms at the 99th
/// percentile instead of 1.06, and the deletion 3.4 to 4.0 ms instead of 2.2.
const DISCARD_BYTES: u64 = 1 << 20;

/// Magic numbers of ext4, XFS and Btrfs.
const LOCAL_FILE_SYSTEMS: [rustix::fs::FsWord; 3] = [0xef53, 0x5846_5342, 0x9123_683e];

/// Bytes of the next piece.
fn piece_bytes(pace: Option<&Pace>) -> usize {
    if pace.is_some_and(Pace::is_bounded) { SHORT_PIECE_BYTES } else { PIECE_BYTES }
}

/// Runs what moves one piece, or deletes a file, once it has leave. What fails gives it back.
pub(super) fn at_pace<T, E>(
    pace: Option<&Pace>,
    bytes: u64,
    operations: u64,
    run: impl FnOnce() -> Result<T, E>,
) -> Result<T, E> {
    let leave = pace.map(|pace| pace.leave_blocking(bytes, operations));
    let done = run();
    // Dropped, it comes back.
    if done.is_ok() || mutant("failed_pieces_use_leave") {
        leave.into_iter().for_each(Leave::used);
    }
    done
}

/// What happened to which file.
#[derive(Debug, thiserror::Error)]
#[error("{action} {path}")]
pub(super) struct FileError {
    pub(super) action: &'static str,
    pub(super) path: PathBuf,
    #[source]
    pub(super) source: io::Error,
}

/// A new file that only its owner may read.
pub(super) fn create_exclusively(path: &Path) -> io::Result<File> {
    let file = OpenOptions::new().write(true).create_new(true).mode(0o600).open(path)?;
    weir_disk::adopt_file(&file, path)?;
    Ok(file)
}

/// 64 bits that no other opening of the store has.
pub(super) fn random_token() -> io::Result<u64> {
    let mut bytes = [0; 8];
    File::open("/dev/urandom")?.read_exact(&mut bytes)?;
    Ok(u64::from_le_bytes(bytes))
}

/// Writes all parts to a new file, through the page cache: what was written lately is what the collector reads next.
/// The disk gets them piece by piece as they are written, and not all at once when the file is synced.
pub(super) fn write_parts(file: &mut File, parts: &[Bytes], pace: Option<&Pace>) -> io::Result<()> {
    let len: usize = parts.iter().map(Bytes::len).sum();
    if len < WRITE_PIECES_FROM_BYTES {
        return at_pace(pace, len as u64, 0, || write_all(file, parts));
    }
    reserve(file, len)?;
    let mut rest: VecDeque<Bytes> = parts.iter().filter(|p| !p.is_empty()).cloned().collect();
    let mut written = 0..0;
    while !rest.is_empty() {
        let piece_bytes = piece_bytes(pace);
        let mut piece: VecDeque<Bytes> = cut_piece(&mut rest, piece_bytes).into();
        let bytes = piece.iter().map(Bytes::len).sum::<usize>() as u64;
        let before = written.clone();
        written = before.end..before.end + bytes;
        at_pace(pace, bytes, 0, || {
            while !piece.is_empty() {
                write_all(file, &cut_piece(&mut piece, CALL_BYTES))?;
            }
            sync_range(file, &written, libc::SYNC_FILE_RANGE_WRITE)?;
            // The next large piece is copied while the disk has this one.
            let awaited = if piece_bytes == PIECE_BYTES { &before } else { &written };
            sync_range(file, awaited, libc::SYNC_FILE_RANGE_WAIT_BEFORE)
        })?;
    }
    Ok(())
}

/// Allocates the blocks of a file in one go, where the file system can: half of the CPU time of writing it.
fn reserve(file: &File, len: usize) -> io::Result<()> {
    match rustix::fs::fallocate(file, rustix::fs::FallocateFlags::empty(), 0, len as u64) {
        Err(rustix::io::Errno::OPNOTSUPP | rustix::io::Errno::NOSYS) => Ok(()),
        reserved => Ok(reserved?),
    }
}

/// Begins or awaits the writing of a range to the disk; what survives power loss is up to the sync that follows. An
/// error here is not told again by that sync.
#[allow(unsafe_code, reason = "rustix has no sync_file_range")]
fn sync_range(file: &File, range: &Range<u64>, flags: libc::c_uint) -> io::Result<()> {
    if range.is_empty() {
        return Ok(());
    }
    let signed = |offset: u64| libc::off64_t::try_from(offset).map_err(|_| ErrorKind::FileTooLarge);
    let (start, len) = (signed(range.start)?, signed(range.end - range.start)?);
    // SAFETY: the call gets a descriptor that is open, and no memory.
    if unsafe { libc::sync_file_range(file.as_raw_fd(), start, len, flags) } == 0 {
        return Ok(());
    }
    match io::Error::last_os_error() {
        // The sync does all of it then.
        error if error.kind() == ErrorKind::Unsupported => Ok(()),
        error => Err(error),
    }
}

/// Takes the first `bytes` off the parts, or all if they have less.
fn cut_piece(parts: &mut VecDeque<Bytes>, bytes: usize) -> Vec<Bytes> {
    let (mut piece, mut missing) = (Vec::new(), bytes);
    while missing > 0
        && let Some(part) = parts.front_mut()
    {
        let some = part.split_to(missing.min(part.len()));
        if part.is_empty() {
            parts.pop_front();
        }
        missing -= some.len();
        piece.push(some);
    }
    piece
}

/// Many parts per call.
fn write_all(file: &mut File, parts: &[Bytes]) -> io::Result<()> {
    for some in parts.chunks(PARTS_PER_CALL_MAX) {
        let mut slices: Vec<_> = some.iter().map(|part| IoSlice::new(part)).collect();
        let mut rest = &mut slices[..];
        // Drops empty slices at the front, so that a call never writes nothing on purpose.
        IoSlice::advance_slices(&mut rest, 0);
        while !rest.is_empty() {
            match file.write_vectored(rest) {
                Ok(0) => return Err(ErrorKind::WriteZero.into()),
                Ok(written) => IoSlice::advance_slices(&mut rest, written),
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
        }
    }
    Ok(())
}

/// Whether a range of so many bytes is read in pieces. That tells the kernel not to read ahead for the open file, so it
/// has to be one that clients do not read with.
pub(super) fn is_read_in_pieces(bytes: u64, pace: Option<&Pace>) -> bool {
    let is_paced = pace.is_some() && !mutant("paced_reads_in_one_piece");
    is_paced || bytes >= READ_PIECES_FROM_BYTES as u64
}

/// Reads `range`, which lies within the file.
pub(super) fn read_at(file: &File, range: Range<u64>, pace: Option<&Pace>) -> io::Result<Bytes> {
    let len = usize::try_from(range.end - range.start).map_err(|_| ErrorKind::FileTooLarge)?;
    if !is_read_in_pieces(len as u64, pace) {
        return read_whole(file, range.start, len);
    }
    let mut bytes = vec![0; len];
    // Advice, no more.
    let _ = rustix::fs::fadvise(file, 0, None, rustix::fs::Advice::Random);
    let (mut rest, mut offset) = (&mut bytes[..], range.start);
    while !rest.is_empty() {
        let (piece, behind) = rest.split_at_mut(piece_bytes(pace).min(rest.len()));
        let piece_len = piece.len() as u64;
        at_pace(pace, piece_len, 0, || file.read_exact_at(piece, offset))?;
        offset += piece_len;
        rest = behind;
    }
    Ok(Bytes::from(bytes))
}

/// Opens a file of ours, if the kernel can do so without asking a disk. To note when it was read would be a write.
pub(super) fn open_cached(path: &Path) -> io::Result<File> {
    let flags = OFlags::RDONLY | OFlags::CLOEXEC | OFlags::NOATIME;
    let resolve = ResolveFlags::CACHED;
    Ok(File::from(rustix::fs::openat2(rustix::fs::CWD, path, flags, Mode::empty(), resolve)?))
}

/// Reads `range`, which lies within the file, if all of it is in memory.
pub(super) fn read_cached(file: &File, range: Range<u64>) -> io::Result<Bytes> {
    let len = usize::try_from(range.end - range.start).map_err(|_| ErrorKind::FileTooLarge)?;
    let mut bytes = Vec::with_capacity(len);
    let read = read_into(file, &mut bytes, len, range.start, libc::RWF_NOWAIT)?;
    if read == len { Ok(Bytes::from(bytes)) } else { Err(ErrorKind::WouldBlock.into()) }
}

fn read_whole(file: &File, start: u64, len: usize) -> io::Result<Bytes> {
    let mut bytes = Vec::with_capacity(len);
    while bytes.len() < len {
        let at = start + bytes.len() as u64;
        match read_into(file, &mut bytes, len, at, 0) {
            Ok(0) => return Err(ErrorKind::UnexpectedEof.into()),
            Err(error) if error.kind() != ErrorKind::Interrupted => return Err(error),
            Ok(_) | Err(_) => {}
        }
    }
    Ok(Bytes::from(bytes))
}

/// Reads from `offset` on into the memory behind what `bytes` has, until it has `len`; fewer where the file, or the
/// system, gives no more. That memory was not zeroed: for 64 KiB that takes as long as to copy them.
#[allow(
    unsafe_code,
    reason = "neither std nor rustix reads into memory that was not zeroed and takes flags"
)]
fn read_into(
    file: &File,
    bytes: &mut Vec<u8>,
    len: usize,
    offset: u64,
    flags: libc::c_int,
) -> io::Result<usize> {
    let missing = len.saturating_sub(bytes.len());
    let spare = bytes.spare_capacity_mut();
    let missing = missing.min(spare.len());
    let offset = libc::off64_t::try_from(offset).map_err(|_| ErrorKind::FileTooLarge)?;
    let into = libc::iovec { iov_base: spare.as_mut_ptr().cast(), iov_len: missing };
    // SAFETY: the call gets a descriptor that is open, and one vector, of memory that is ours alone while it runs and
    // at least as long as the vector says.
    let read = unsafe { libc::preadv2(file.as_raw_fd(), &raw const into, 1, offset, flags) };
    let Ok(read) = usize::try_from(read) else { return Err(io::Error::last_os_error()) };
    // SAFETY: the system filled so many bytes behind those that were there, within the capacity.
    unsafe { bytes.set_len(bytes.len() + read) };
    Ok(read)
}

/// Whether the file system at `path` is one of this host, where what is in memory is there without waiting.
pub(super) fn is_local(path: &Path) -> io::Result<bool> {
    let kind = rustix::fs::statfs(path)?.f_type;
    Ok(LOCAL_FILE_SYSTEMS.contains(&kind))
}

/// Whether nobody can open the file any more.
pub(super) fn has_no_name(file: &File) -> io::Result<bool> {
    Ok(file.metadata()?.nlink() == 0)
}

/// Gives back the blocks of a file that has no name any more, step by step. One that has another name, as a copy by
/// hard links gives it, stays as it is.
pub(super) fn empty(file: &File, pace: Option<&Pace>) -> io::Result<()> {
    let mut len = file.metadata()?.len();
    while len > 0 && has_no_name(file)? {
        len = len.saturating_sub(DISCARD_BYTES);
        at_pace(pace, 0, 1, || {
            file.set_len(len)?;
            file.sync_data()
        })?;
    }
    Ok(())
}

/// Whether the file system on `device` is mounted so that it discards what is freed at once.
pub(super) fn discards(device: u64) -> bool {
    let number = format!("{}:{}", rustix::fs::major(device), rustix::fs::minor(device));
    let mounts = fs::read_to_string("/proc/self/mountinfo").unwrap_or_default();
    let is_ours = |line: &&str| line.split(' ').nth(2) == Some(&number);
    // The last field has the options of the file system.
    let options =
        |line: &str| line.rsplit(' ').next().map(|all| all.split(',').any(|o| o == "discard"));
    mounts.lines().find(is_ours).and_then(options).unwrap_or(false)
}

/// Removes the temporary files of writers that were killed. A writer so slow that it still lives finds its file gone
/// when it links it, and starts again. Failing to clean up is no reason not to open the store.
pub(super) fn remove_stale(directory: &Path) {
    let Ok(entries) = fs::read_dir(directory) else { return };
    let mut now = None;
    for entry in entries.flatten() {
        let now = match now {
            Some(now) => now,
            None => match file_system_time(directory) {
                Ok(time) => *now.insert(time),
                Err(_) => return,
            },
        };
        let Ok(modified) = entry.metadata().and_then(|metadata| metadata.modified()) else {
            continue;
        };
        let path = entry.path();
        if now.duration_since(modified).is_ok_and(|age| age > TEMPORARY_AGE_MAX)
            && fs::remove_file(&path).is_ok()
        {
            info!(path = %path.display(), "removed what a killed writer left behind");
        }
    }
}

/// The time by the clock that dates files, which on a network file system is another machine's.
fn file_system_time(directory: &Path) -> io::Result<SystemTime> {
    let path = directory.join(format!("{:016x}-clock", random_token()?));
    let modified = create_exclusively(&path)?.metadata()?.modified();
    fs::remove_file(&path)?;
    modified
}

#[cfg(test)]
mod tests {
    use weir_pacer::{Class, Pacer, Pressure, RequestKind};

    use super::*;

    /// A pace beside clients, none of whom comes back in the time of a test, and one that nothing bounds.
    fn paces() -> [Option<Pace>; 3] {
        let pace = |pacer: &Pacer| Some(Pace::new(pacer, Class::Copy, &Pressure::default()));
        let (alone, beside) = (Pacer::default(), Pacer::default());
        beside.request(RequestKind::Write, 4096).ended();
        [None, pace(&alone), pace(&beside)]
    }

    /// The repository's own disk, at each pace; and a temporary directory, which may be in memory.
    fn places() -> Vec<(tempfile::TempDir, Option<Pace>)> {
        let own = paces().map(|pace| (tempfile::tempdir_in(".").unwrap(), pace));
        let elsewhere = (tempfile::tempdir().unwrap(), None);
        own.into_iter().chain([elsewhere]).collect()
    }

    #[test]
    fn a_piece_that_fails_takes_no_leave() {
        let pacer = Pacer::default();
        let pace = Pace::new(&pacer, Class::Upload, &Pressure::default());
        let failed = at_pace(Some(&pace), 5, 1, || Err::<(), _>(ErrorKind::StorageFull));
        assert_eq!(failed, Err(ErrorKind::StorageFull));
        assert_eq!(
            (pacer.given(Class::Upload).bytes, pacer.given(Class::Upload).operations),
            (0, 0)
        );
        assert_eq!(at_pace(Some(&pace), 7, 1, || Ok::<_, ErrorKind>(3)), Ok(3));
        assert_eq!(
            (pacer.given(Class::Upload).bytes, pacer.given(Class::Upload).operations),
            (7, 1)
        );
    }

    #[test]
    fn a_file_is_emptied_once_it_has_no_name() {
        for (directory, pace) in places() {
            let [path, other] = ["object", "copy"].map(|name| directory.path().join(name));
            let bytes = parts_of(3 * PIECE_BYTES + 1).concat();
            fs::write(&path, &bytes).unwrap();
            let file = OpenOptions::new().write(true).open(&path).unwrap();
            empty(&file, pace.as_ref()).unwrap();
            fs::hard_link(&path, &other).unwrap();
            fs::remove_file(&path).unwrap();
            empty(&file, pace.as_ref()).unwrap();
            assert!(fs::read(&other).unwrap() == bytes, "it had a name");
            fs::remove_file(&other).unwrap();
            empty(&file, pace.as_ref()).unwrap();
            assert_eq!(file.metadata().unwrap().len(), 0);
        }
    }

    /// Parts of odd lengths around the sizes where something changes.
    fn parts_of(len: usize) -> Vec<Bytes> {
        let bytes: Vec<u8> = (0..len).map(|i| (i % 251).to_le_bytes()[0]).collect();
        bytes.chunks(100_003).map(Bytes::copy_from_slice).collect()
    }

    #[test]
    fn a_file_holds_exactly_its_parts_whatever_their_lengths() {
        for (directory, pace) in places() {
            let from = WRITE_PIECES_FROM_BYTES;
            let lens = [0, 1, from - 1, from, from + 1];
            let large = [0, 1, 4095, 4096].map(|more| 3 * PIECE_BYTES + more);
            for len in lens.into_iter().chain(large) {
                let path = directory.path().join(format!("{len}"));
                let parts = parts_of(len);
                let mut file = create_exclusively(&path).unwrap();
                write_parts(&mut file, &parts, pace.as_ref()).unwrap();
                assert_eq!(fs::read(&path).unwrap(), parts.concat(), "{len} bytes");
            }
        }
    }

    #[test]
    fn who_waits_for_leave_reads_in_pieces() {
        let directory = tempfile::tempdir_in(".").unwrap();
        let path = directory.path().join("object");
        fs::write(&path, vec![7; PIECE_BYTES + 100]).unwrap();
        let pacer = Pacer::default();
        let pace = Pace::new(&pacer, Class::Copy, &Pressure::default());
        let file = File::open(&path).unwrap();
        let (piece, end) = (PIECE_BYTES as u64, PIECE_BYTES as u64 + 101);
        assert!(end < READ_PIECES_FROM_BYTES as u64);
        read_at(&file, 0..end, Some(&pace)).unwrap_err();
        assert_eq!(pacer.given(Class::Copy).bytes, piece, "the second piece ends behind the file");
        assert!(!is_read_in_pieces(4096, None), "a client's read may go on behind it");
    }

    #[test]
    fn a_large_range_begins_and_ends_anywhere() {
        let len = 3 * READ_PIECES_FROM_BYTES + 1234;
        let bytes = parts_of(len).concat();
        for (directory, pace) in places() {
            let path = directory.path().join("object");
            fs::write(&path, &bytes).unwrap();
            for start in [0, 1, 4095, 4096, 5000] {
                for end in [start + READ_PIECES_FROM_BYTES, len - 1000, len - 1, len] {
                    let file = File::open(&path).unwrap();
                    let read = read_at(&file, start as u64..end as u64, pace.as_ref()).unwrap();
                    assert!(read == bytes[start..end], "{start}..{end}");
                }
            }
            let file = File::open(&path).unwrap();
            let error = read_at(&file, 100..len as u64 + 1, pace.as_ref()).unwrap_err();
            assert_eq!(error.kind(), io::ErrorKind::UnexpectedEof, "a file that was cut short");
        }
    }
}
