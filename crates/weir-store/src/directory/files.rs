//! File operations of the local directory store that know nothing of keys.

use std::fs::{self, File, OpenOptions};
use std::io::{self, IoSlice, Read, Write};
use std::ops::Range;
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::thread;
use std::time::{Duration, Instant, SystemTime};

use bytes::Bytes;
use tracing::info;
use weir_device::{BUFFER_ALIGN, BufferPool};

use crate::backend::Pace;
use crate::limits::TEMPORARY_AGE_MAX;

/// Where files live until they are complete. No key starts with a dot.
pub(super) const TEMPORARY_DIRECTORY: &str = ".tmp";

/// Parts handed to one `writev`: `IOV_MAX` of Linux.
const PARTS_PER_CALL_MAX: usize = 1024;

/// From how many bytes on a file is written past the page cache: below, one call through it is cheaper.
const DIRECT_BYTES_MIN: usize = 256 << 10;

/// From how many bytes on a range is read past the page cache. Clients ask for less at a time, and may ask again; who
/// asks for more (the collector, a check, a replicator) does so once. Through the cache the kernel reads so far ahead
/// that a write of 16 KiB and its sync beside it take 5.8 ms, and 15.9 at the 90th percentile; past it 1.4 and 2.0.
const DIRECT_READ_BYTES_MIN: usize = 2 << 20;

/// Bytes of one write or read past the page cache: at this size the measured disk streams, and the buffer stays in a
/// CPU cache.
const PIECE_BYTES: usize = 1 << 20;

/// The same where others are to get in between: a client's write waits for the piece before it.
const SHORT_PIECE_BYTES: usize = 64 << 10;

/// Longest gap after a piece or a deletion: a disk that is slow anyway must not make an object late.
const GAP_MAX: Duration = Duration::from_millis(20);

impl Pace {
    fn piece_bytes(self) -> usize {
        match self {
            Self::Full => PIECE_BYTES,
            Self::Short | Self::WithGaps => SHORT_PIECE_BYTES,
        }
    }

    /// Runs what moves one piece, or deletes a file.
    pub(super) fn run<T, E>(self, run: impl FnOnce() -> Result<T, E>) -> Result<T, E> {
        let started = Instant::now();
        let done = run()?;
        if self == Self::WithGaps {
            thread::sleep(started.elapsed().min(GAP_MAX));
        }
        Ok(done)
    }
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
    OpenOptions::new().write(true).create_new(true).mode(0o600).open(path)
}

/// 64 bits that no other opening of the store has.
pub(super) fn random_token() -> io::Result<u64> {
    let mut bytes = [0; 8];
    File::open("/dev/urandom")?.read_exact(&mut bytes)?;
    Ok(u64::from_le_bytes(bytes))
}

/// Writes all parts: past the page cache where they are many bytes and the file system can, which costs a fraction of
/// the CPU time and leaves the cache to those who read; through it, many parts per call, elsewhere.
pub(super) fn write_parts(
    file: &mut File,
    parts: &[Bytes],
    pool: &BufferPool,
    pace: Pace,
) -> io::Result<()> {
    let len: usize = parts.iter().map(Bytes::len).sum();
    if len >= DIRECT_BYTES_MIN && set_direct(file, true).is_ok() {
        let written = write_direct(file, parts, len, (pool, pace));
        set_direct(file, false)?;
        match written {
            // Not every file system that takes the flag takes the writes.
            Err(error) if error.kind() == io::ErrorKind::InvalidInput => file.set_len(0)?,
            written => return written,
        }
    }
    write_buffered(file, parts)
}

fn set_direct(file: &File, direct: bool) -> io::Result<()> {
    let mut flags = rustix::fs::fcntl_getfl(file)?;
    flags.set(rustix::fs::OFlags::DIRECT, direct);
    Ok(rustix::fs::fcntl_setfl(file, flags)?)
}

/// Writes `len` bytes of parts through one aligned buffer. What it writes beyond them, to fill the last block, is cut
/// off again.
fn write_direct(
    file: &File,
    parts: &[Bytes],
    len: usize,
    (pool, pace): (&BufferPool, Pace),
) -> io::Result<()> {
    let mut buf = pool.alloc(pace.piece_bytes().min(len.next_multiple_of(BUFFER_ALIGN)));
    let (mut filled, mut offset) = (0, 0);
    for part in parts {
        let mut rest = &part[..];
        while !rest.is_empty() {
            let take = rest.len().min(buf.len() - filled);
            buf[filled..filled + take].copy_from_slice(&rest[..take]);
            filled += take;
            rest = &rest[take..];
            if filled == buf.len() {
                pace.run(|| file.write_all_at(&buf, offset))?;
                offset += filled as u64;
                filled = 0;
            }
        }
    }
    let padded = filled.next_multiple_of(BUFFER_ALIGN);
    buf[filled..padded].fill(0);
    file.write_all_at(&buf[..padded], offset)?;
    file.set_len(len as u64)
}

fn write_buffered(file: &mut File, parts: &[Bytes]) -> io::Result<()> {
    for some in parts.chunks(PARTS_PER_CALL_MAX) {
        let mut slices: Vec<_> = some.iter().map(|part| IoSlice::new(part)).collect();
        let mut rest = &mut slices[..];
        // Drops empty slices at the front, so that a call never writes nothing on purpose.
        IoSlice::advance_slices(&mut rest, 0);
        while !rest.is_empty() {
            match file.write_vectored(rest) {
                Ok(0) => return Err(io::ErrorKind::WriteZero.into()),
                Ok(written) => IoSlice::advance_slices(&mut rest, written),
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
        }
    }
    Ok(())
}

/// Reads `range`, which lies within the file.
pub(super) fn read_at(
    file: &File,
    range: Range<u64>,
    pool: &BufferPool,
    pace: Pace,
) -> io::Result<Bytes> {
    let len = usize::try_from(range.end - range.start).map_err(|_| io::ErrorKind::FileTooLarge)?;
    if len >= DIRECT_READ_BYTES_MIN && set_direct(file, true).is_ok() {
        match read_direct(file, range.start, len, (pool, pace)) {
            // Not every file system that takes the flag takes the reads.
            Err(error) if error.kind() == io::ErrorKind::InvalidInput => set_direct(file, false)?,
            read => return read,
        }
    }
    let mut bytes = vec![0; len];
    file.read_exact_at(&mut bytes, range.start)?;
    Ok(Bytes::from(bytes))
}

/// Reads `len` bytes from `start` on, with the rest of the blocks that they begin and end in.
fn read_direct(
    file: &File,
    start: u64,
    len: usize,
    (pool, pace): (&BufferPool, Pace),
) -> io::Result<Bytes> {
    let skipped = usize::try_from(start % BUFFER_ALIGN as u64).expect("below a block");
    let mut buf = pool.alloc((skipped + len).next_multiple_of(BUFFER_ALIGN));
    let mut done = 0;
    while done < skipped + len {
        // A read that ends within a block has come to the end of the file.
        if !done.is_multiple_of(BUFFER_ALIGN) {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        let end = buf.len().min(done + pace.piece_bytes());
        let at = start - skipped as u64 + done as u64;
        match pace.run(|| file.read_at(&mut buf[done..end], at)) {
            Ok(0) => return Err(io::ErrorKind::UnexpectedEof.into()),
            Ok(read) => done += read,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
    Ok(Bytes::from_owner(buf.freeze()).slice(skipped..skipped + len))
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
    use super::*;

    /// The repository's own disk, at each pace; and a temporary directory, which in memory may refuse `O_DIRECT`.
    fn places() -> [(tempfile::TempDir, Pace); 4] {
        let own = |pace| (tempfile::tempdir_in(".").unwrap(), pace);
        let elsewhere = (tempfile::tempdir().unwrap(), Pace::Full);
        [elsewhere, own(Pace::Full), own(Pace::Short), own(Pace::WithGaps)]
    }

    /// Parts of odd lengths around the sizes where something changes.
    fn parts_of(len: usize) -> Vec<Bytes> {
        let bytes: Vec<u8> = (0..len).map(|i| (i % 251).to_le_bytes()[0]).collect();
        bytes.chunks(100_003).map(Bytes::copy_from_slice).collect()
    }

    #[test]
    fn a_file_holds_exactly_its_parts_whatever_their_lengths() {
        let pool = BufferPool::new(0);
        for (directory, pace) in places() {
            let lens = [0, 1, DIRECT_BYTES_MIN - 1, DIRECT_BYTES_MIN, DIRECT_BYTES_MIN + 1];
            let large = [0, 1, 4095, 4096].map(|more| 3 * PIECE_BYTES + more);
            for len in lens.into_iter().chain(large) {
                let path = directory.path().join(format!("{len}"));
                let parts = parts_of(len);
                let mut file = create_exclusively(&path).unwrap();
                write_parts(&mut file, &parts, &pool, pace).unwrap();
                assert_eq!(fs::read(&path).unwrap(), parts.concat(), "{len} bytes");
            }
        }
    }

    #[test]
    fn a_large_range_begins_and_ends_anywhere() {
        let pool = BufferPool::new(0);
        let len = 3 * DIRECT_READ_BYTES_MIN + 1234;
        let bytes = parts_of(len).concat();
        for (directory, pace) in places() {
            let path = directory.path().join("object");
            fs::write(&path, &bytes).unwrap();
            for start in [0, 1, 4095, 4096, 5000] {
                for end in [start + DIRECT_READ_BYTES_MIN, len - 1000, len - 1, len] {
                    let file = File::open(&path).unwrap();
                    let read = read_at(&file, start as u64..end as u64, &pool, pace).unwrap();
                    assert!(read == bytes[start..end], "{start}..{end}");
                }
            }
            let file = File::open(&path).unwrap();
            let error = read_at(&file, 100..len as u64 + 1, &pool, pace).unwrap_err();
            assert_eq!(error.kind(), io::ErrorKind::UnexpectedEof, "a file that was cut short");
        }
    }
}
