//! Whose the files are that root makes in the directory of somebody else.
//!
//! A service runs as a user of its own. What an administrator's command makes beside its files would keep it from
//! starting: it could not even read them. So what root makes belongs to the owner of the directory that it lies in.

use std::io;
use std::os::fd::AsFd;
use std::path::Path;

use rustix::fs::{AtFlags, Gid, Mode, OFlags, Uid};
use rustix::io::Errno;

/// The owner of a directory, if this process is root and the directory is not root's.
fn owner_of(directory: impl AsFd) -> io::Result<Option<(Uid, Gid)>> {
    if !rustix::process::geteuid().is_root() {
        return Ok(None);
    }
    let stat = rustix::fs::fstat(directory)?;
    let is_others = stat.st_uid != Uid::ROOT.as_raw();
    Ok(is_others.then(|| (Uid::from_raw(stat.st_uid), Gid::from_raw(stat.st_gid))))
}

/// Where root may give nothing away, as in a container, it is root that reads it as well.
fn given(result: rustix::io::Result<()>) -> io::Result<()> {
    match result {
        Err(Errno::PERM | Errno::INVAL) => Ok(()),
        result => Ok(result?),
    }
}

/// Gives a file or directory that root made to the owner of the directory that it was made in. Does nothing where that
/// is root, where this process is not, and where somebody else has it already.
///
/// # Errors
/// When the operating system does not tell or change the owner.
pub fn adopt(made: impl AsFd, directory: impl AsFd) -> io::Result<()> {
    let Some((user, group)) = owner_of(directory)? else { return Ok(()) };
    if rustix::fs::fstat(&made)?.st_uid != Uid::ROOT.as_raw() {
        return Ok(());
    }
    given(rustix::fs::fchown(made, Some(user), Some(group)))
}

fn open_directory(path: &Path) -> io::Result<std::os::fd::OwnedFd> {
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    Ok(rustix::fs::open(path, flags, Mode::empty())?)
}

fn parent_of(path: &Path) -> io::Result<std::os::fd::OwnedFd> {
    let parent = path.parent().filter(|parent| *parent != Path::new("")).unwrap_or(Path::new("."));
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
    Ok(rustix::fs::open(parent, flags, Mode::empty())?)
}

/// [`adopt`] for the file `made` at `path`.
///
/// # Errors
/// As there.
pub fn adopt_file(made: impl AsFd, path: &Path) -> io::Result<()> {
    if !rustix::process::geteuid().is_root() {
        return Ok(());
    }
    adopt(made, parent_of(path)?)
}

/// [`adopt`] for the directory at `path`.
///
/// # Errors
/// As there.
pub fn adopt_directory(path: &Path) -> io::Result<()> {
    if !rustix::process::geteuid().is_root() {
        return Ok(());
    }
    adopt(open_directory(path)?, parent_of(path)?)
}

/// [`adopt`] for the socket at `path`, which was just made.
///
/// # Errors
/// As there.
pub fn adopt_socket(path: &Path) -> io::Result<()> {
    let (Some(name), true) = (path.file_name(), rustix::process::geteuid().is_root()) else {
        return Ok(());
    };
    let directory = parent_of(path)?;
    let Some((user, group)) = owner_of(&directory)? else { return Ok(()) };
    // A socket has no other way to its file than its name.
    let flags = AtFlags::SYMLINK_NOFOLLOW;
    given(rustix::fs::chownat(&directory, name, Some(user), Some(group), flags))
}

#[cfg(test)]
mod tests {
    use std::fs::File;
    use std::os::unix::fs::MetadataExt;

    use super::*;

    #[test]
    fn what_root_makes_belongs_to_the_owner_of_its_directory() {
        let top = tempfile::tempdir().unwrap();
        let others = top.path().join("others");
        std::fs::create_dir(&others).unwrap();
        let (file, below) = (others.join("file"), others.join("below"));
        let made = File::create(&file).unwrap();
        std::fs::create_dir(&below).unwrap();
        let owner = |path: &Path| std::fs::symlink_metadata(path).unwrap().uid();
        let before = owner(&file);
        adopt_file(&made, &file).unwrap();
        adopt_directory(&below).unwrap();
        assert_eq!((owner(&file), owner(&below)), (before, before), "it is the same user's");
        if !rustix::process::geteuid().is_root() {
            return;
        }
        let (user, group) = (Uid::from_raw(65534), Gid::from_raw(65534));
        if rustix::fs::chown(&others, Some(user), Some(group)).is_err() {
            return;
        }
        adopt_file(&made, &file).unwrap();
        adopt_directory(&below).unwrap();
        let socket = others.join("socket");
        let _listening = std::os::unix::net::UnixListener::bind(&socket).unwrap();
        adopt_socket(&socket).unwrap();
        for path in [&file, &below, &socket] {
            assert_eq!(owner(path), 65534, "{}", path.display());
        }
    }
}
