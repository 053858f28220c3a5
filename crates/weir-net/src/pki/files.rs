//! Files of an authority: each is replaced as a whole, and keys are their owner's alone.

use std::fs::{DirBuilder, File, OpenOptions};
use std::io::{self, Write};
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::path::Path;

use super::error::PkiError;

/// Makes a directory that only its owner may enter, where there is none.
pub(super) fn make_private_directory(path: &Path) -> Result<(), PkiError> {
    let made = DirBuilder::new().recursive(true).mode(0o700).create(path);
    made.map_err(|source| PkiError::io(path, source))
}

/// Waits until no other process changes the authority.
pub(super) fn lock(directory: &Path) -> Result<File, PkiError> {
    let path = directory.join("lock");
    let failed = |source| PkiError::io(&path, source);
    let file = OpenOptions::new().create(true).truncate(false).write(true).mode(0o600).open(&path);
    let file = file.map_err(failed)?;
    rustix::fs::flock(&file, rustix::fs::FlockOperation::LockExclusive)
        .map_err(|error| failed(error.into()))?;
    Ok(file)
}

pub(super) fn read(path: &Path) -> Result<String, PkiError> {
    std::fs::read_to_string(path).map_err(|source| PkiError::io(path, source))
}

/// Removes a file, if it is there.
pub(super) fn remove(path: &Path) -> Result<(), PkiError> {
    match std::fs::remove_file(path) {
        Err(source) if source.kind() != io::ErrorKind::NotFound => Err(PkiError::io(path, source)),
        _ => Ok(()),
    }
}

/// Writes what everybody may read.
pub(super) fn write(path: &Path, text: &str) -> Result<(), PkiError> {
    replace(path, text, 0o644).map_err(|source| PkiError::io(path, source))
}

/// Writes what only its owner may read.
pub(super) fn write_private(path: &Path, text: &str) -> Result<(), PkiError> {
    replace(path, text, 0o600).map_err(|source| PkiError::io(path, source))
}

/// Whoever reads the file finds what was there or what is there now, also after a loss of power.
fn replace(path: &Path, text: &str, mode: u32) -> io::Result<()> {
    let beside = path.with_extension("new");
    // One that a process left behind may have another mode.
    match std::fs::remove_file(&beside) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
        _ => {}
    }
    let mut file = OpenOptions::new().create_new(true).write(true).mode(mode).open(&beside)?;
    file.write_all(text.as_bytes())?;
    file.sync_all()?;
    std::fs::rename(&beside, path)?;
    let parent = path.parent().unwrap_or(Path::new("."));
    File::open(parent)?.sync_all()
}
