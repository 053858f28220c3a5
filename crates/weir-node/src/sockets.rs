//! Listening sockets: unix sockets that are replaced only when nobody listens on them, TCP on loopback.

use std::io;
use std::os::unix::fs::{FileTypeExt, MetadataExt, PermissionsExt};
use std::os::unix::net::UnixStream as StdUnixStream;
use std::path::{Path, PathBuf};

use tokio::net::UnixListener;

use crate::error::NodeError;

/// Longest path of a unix socket in bytes: `sun_path` has 108 with the closing zero.
const SOCKET_PATH_BYTES_MAX: usize = 107;

/// A listening unix socket. The file goes when this is dropped, unless somebody has replaced it.
#[derive(Debug)]
pub(crate) struct BoundSocket {
    path: PathBuf,
    inode: (u64, u64),
}

fn identity(path: &Path) -> io::Result<(u64, u64)> {
    let metadata = std::fs::symlink_metadata(path)?;
    Ok((metadata.dev(), metadata.ino()))
}

impl Drop for BoundSocket {
    fn drop(&mut self) {
        if identity(&self.path).is_ok_and(|found| found == self.inode) {
            // A socket that stays behind is replaced by the next process that wants its place.
            let _ = std::fs::remove_file(&self.path);
        }
    }
}

/// Listens on `path` with the permissions `mode`. An abandoned socket there is replaced; anything else is an error.
pub(crate) fn bind_unix(path: &Path, mode: u32) -> Result<(UnixListener, BoundSocket), NodeError> {
    clear_place(path)?;
    let shown = path.display().to_string();
    let failed = |source| NodeError::io("listening on", shown.clone(), source);
    let listener = UnixListener::bind(path).map_err(failed)?;
    let bound = BoundSocket { path: path.to_owned(), inode: identity(path).map_err(failed)? };
    std::fs::set_permissions(path, std::fs::Permissions::from_mode(mode)).map_err(failed)?;
    Ok((listener, bound))
}

/// Makes sure that a socket can be made at `path`: removes an abandoned one, and refuses anything else.
pub(crate) fn clear_place(path: &Path) -> Result<(), NodeError> {
    let shown = &path.display().to_string();
    let length = path.as_os_str().len();
    if length > SOCKET_PATH_BYTES_MAX {
        let (path, limit) = (shown.clone(), SOCKET_PATH_BYTES_MAX);
        return Err(NodeError::SocketPath { path, length, limit });
    }
    let in_use = |reason| NodeError::SocketInUse { path: shown.clone(), reason };
    let metadata = match std::fs::symlink_metadata(path) {
        Ok(metadata) => metadata,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
        Err(source) => return Err(NodeError::io("looking at", shown.clone(), source)),
    };
    if !metadata.file_type().is_socket() {
        return Err(in_use("it is not a socket"));
    }
    match StdUnixStream::connect(path) {
        Ok(_) => Err(in_use("another process listens on it")),
        Err(error) if error.kind() == io::ErrorKind::ConnectionRefused => {
            std::fs::remove_file(path)
                .map_err(|source| NodeError::io("replacing", shown.clone(), source))
        }
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
        // Full of waiting connections: somebody listens.
        Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
            Err(in_use("another process listens on it"))
        }
        Err(source) => Err(NodeError::io("trying", shown.clone(), source)),
    }
}

/// Refuses a TCP address that other machines reach, unless `insecure`.
pub(crate) async fn check_tcp(address: &str, insecure: bool) -> Result<(), NodeError> {
    let failed = |source| NodeError::io("listening on", address, source);
    let mut resolved = tokio::net::lookup_host(address).await.map_err(failed)?;
    if !insecure && !resolved.all(|found| found.ip().is_loopback()) {
        return Err(NodeError::NotLoopback { address: address.to_owned() });
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn an_abandoned_socket_is_replaced_and_a_living_one_is_not() {
        let base = tempfile::tempdir().unwrap();
        let path = base.path().join("s");
        drop(std::os::unix::net::UnixListener::bind(&path).unwrap());
        let (listener, bound) = bind_unix(&path, 0o600).unwrap();
        assert_eq!(std::fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o600);
        let error = bind_unix(&path, 0o600).unwrap_err();
        assert!(error.to_string().contains("another process listens"), "{error}");
        drop((listener, bound));
        assert!(!path.exists());
    }

    #[tokio::test]
    async fn a_socket_that_was_replaced_is_left_alone() {
        let base = tempfile::tempdir().unwrap();
        let path = base.path().join("s");
        let (listener, bound) = bind_unix(&path, 0o600).unwrap();
        std::fs::rename(&path, base.path().join("old")).unwrap();
        std::fs::write(&path, "somebody else's").unwrap();
        drop((listener, bound));
        assert!(path.exists());
    }

    #[tokio::test]
    async fn files_and_long_paths_are_refused() {
        let base = tempfile::tempdir().unwrap();
        let path = base.path().join("file");
        std::fs::write(&path, "x").unwrap();
        assert!(matches!(bind_unix(&path, 0o600), Err(NodeError::SocketInUse { .. })));
        assert_eq!(std::fs::read(&path).unwrap(), b"x");
        let long = base.path().join("x".repeat(108));
        assert!(matches!(bind_unix(&long, 0o600), Err(NodeError::SocketPath { .. })));
    }

    #[tokio::test]
    async fn tcp_stays_on_loopback_unless_told_otherwise() {
        check_tcp("127.0.0.1:0", false).await.unwrap();
        check_tcp("[::1]:10809", false).await.unwrap();
        check_tcp("localhost:10809", false).await.unwrap();
        for address in ["0.0.0.0:0", "[::]:0", "192.0.2.1:10809"] {
            let error = check_tcp(address, false).await.unwrap_err();
            assert!(matches!(error, NodeError::NotLoopback { .. }), "{address}: {error}");
            check_tcp(address, true).await.unwrap();
        }
        assert!(check_tcp("nonsense", false).await.is_err());
    }
}
