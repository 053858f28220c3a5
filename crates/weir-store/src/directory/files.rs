//! File operations of the local directory store that know nothing of keys.

use std::fs::{self, File, OpenOptions};
use std::io::{self, IoSlice, Read, Write};
use std::ops::Range;
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::time::SystemTime;

use bytes::Bytes;
use tracing::info;

use crate::limits::TEMPORARY_AGE_MAX;

/// Where files live until they are complete. No key starts with a dot.
pub(super) const TEMPORARY_DIRECTORY: &str = ".tmp";

/// Parts handed to one `writev`: `IOV_MAX` of Linux.
const PARTS_PER_CALL_MAX: usize = 1024;

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

/// Writes all parts, many per call.
pub(super) fn write_parts(file: &mut File, parts: &[Bytes]) -> io::Result<()> {
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
pub(super) fn read_at(file: &File, range: Range<u64>) -> io::Result<Bytes> {
    let len = usize::try_from(range.end - range.start).map_err(|_| io::ErrorKind::FileTooLarge)?;
    let mut bytes = vec![0; len];
    file.read_exact_at(&mut bytes, range.start)?;
    Ok(Bytes::from(bytes))
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
