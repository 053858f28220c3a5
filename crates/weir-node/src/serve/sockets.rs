//! Listening sockets: unix sockets that are replaced only when nobody listens on them, TCP on loopback.

use std::fs::File;
use std::io;
use std::net::{SocketAddr, TcpListener, ToSocketAddrs};
use std::os::fd::{AsFd, AsRawFd, OwnedFd, RawFd};
use std::os::unix::fs::{FileTypeExt, MetadataExt, PermissionsExt};
use std::os::unix::net::{UnixDatagram, UnixListener, UnixStream as StdUnixStream};
use std::path::{Path, PathBuf};

use weir_net::Listening;

use crate::error::NodeError;
use crate::serve::nbd_place::NbdAddress;
use crate::serve::sessions::kept::KeptSession;
use crate::serve::sessions::pass;

/// Longest path of a unix socket in bytes: `sun_path` has 108 with the closing zero.
const SOCKET_PATH_BYTES_MAX: usize = 107;

/// First descriptor that a process hands over to its successor, as systemd has it.
pub const HANDED_OVER_FIRST: RawFd = 3;

/// Most descriptors that a process can hand over.
pub const HANDED_OVER_MAX: usize = 64;

/// Only the owner sends verbs to a serving process.
pub(crate) const API_MODE: Option<u32> = Some(0o600);

/// A listening unix socket. The file goes when this is dropped, unless somebody has replaced it.
#[derive(Debug)]
pub(crate) struct BoundSocket {
    path: PathBuf,
    inode: (u64, u64),
}

impl BoundSocket {
    /// Leaves the file where it is: another process goes on listening.
    pub(crate) fn leave(self) {
        std::mem::forget(self);
    }
}

fn identity(path: &Path) -> io::Result<(u64, u64)> {
    let metadata = std::fs::symlink_metadata(path)?;
    Ok((metadata.dev(), metadata.ino()))
}

impl Drop for BoundSocket {
    fn drop(&mut self) {
        if identity(&self.path).is_ok_and(|found| found == self.inode) {
            // A socket file that cannot be removed is replaced by the next process that listens there.
            let _ = std::fs::remove_file(&self.path);
        }
    }
}

/// Listens on `path` with the permissions `mode`, if any are given. An abandoned socket there is replaced; anything
/// else is an error.
pub(crate) fn bind_unix(
    path: &Path,
    mode: Option<u32>,
) -> Result<(UnixListener, BoundSocket), NodeError> {
    clear_place(path)?;
    let shown = path.display().to_string();
    let failed = |source| NodeError::io("listening on", shown.clone(), source);
    let listener = UnixListener::bind(path).map_err(failed)?;
    let bound = BoundSocket { path: path.to_owned(), inode: identity(path).map_err(failed)? };
    weir_disk::adopt_socket(path).map_err(failed)?;
    if let Some(mode) = mode {
        std::fs::set_permissions(path, std::fs::Permissions::from_mode(mode)).map_err(failed)?;
    }
    Ok((listener, bound))
}

/// Gives a socket to a group, if one is named.
pub(crate) fn give_to_group(path: &Path, group: Option<u32>) -> Result<(), NodeError> {
    let Some(group) = group else { return Ok(()) };
    let given = std::os::unix::fs::lchown(path, None, Some(group));
    given.map_err(|source| NodeError::io("giving to its group", path.display().to_string(), source))
}

/// Fails if another process listens on one of the addresses already; called before anything is opened or created.
pub(crate) async fn check_free(
    addresses: &[NbdAddress],
    inherited: &Inherited,
    has_tls: bool,
) -> Result<(), NodeError> {
    for address in addresses {
        match address {
            NbdAddress::Unix(path) => {
                let failed = |e| NodeError::io("listening on", path.display().to_string(), e);
                let path = std::path::absolute(path).map_err(failed)?;
                if !inherited.has_unix(&path) {
                    clear_place(&path)?;
                }
            }
            NbdAddress::Tcp { address, insecure } => {
                let resolved = check_tcp(address, has_tls || *insecure).await?;
                if !inherited.has_tcp(&resolved) {
                    let tried = TcpListener::bind(&resolved[..]);
                    tried.map_err(|source| NodeError::io("listening on", address, source))?;
                }
            }
        }
    }
    Ok(())
}

/// Sockets that listened before this process began: systemd's, or those of the process that it replaces.
#[derive(Debug, Default)]
pub struct Inherited {
    unix: Vec<UnixListener>,
    tcp: Vec<TcpListener>,
    /// Sessions of clients.
    sessions: Vec<KeptSession>,
}

/// The first descriptor that files and sockets of this process may have.
fn first_own() -> RawFd {
    HANDED_OVER_FIRST + RawFd::try_from(HANDED_OVER_MAX).expect("a small number")
}

/// Moves a listening socket to a descriptor above those that are handed over.
fn moved<T: From<OwnedFd> + AsFd>(listener: T) -> Result<T, NodeError> {
    let copy = rustix::io::fcntl_dupfd_cloexec(&listener, first_own());
    let failed = |error| NodeError::io("moving", "a listening socket", io::Error::from(error));
    copy.map(T::from).map_err(failed)
}

/// Occupies every free descriptor of those that may be handed over, for as long as the process lives. Otherwise a
/// thread that ends while the program is replaced might close a socket that was just given the number of its file.
fn reserve_handed_over() -> Result<(), NodeError> {
    loop {
        let held = File::open("/dev/null")
            .map_err(|error| NodeError::io("opening", "/dev/null", error))?;
        if held.as_raw_fd() >= first_own() {
            return Ok(());
        }
        std::mem::forget(held);
    }
}

/// Whether the sessions of clients may come in a socket. Its other end was made with it, by the process before this
/// one: a socket that has a name takes from everybody who may write there, and who sends a session says whose it is.
fn may_be_channel(socket: &UnixDatagram) -> bool {
    let ends = [socket.local_addr(), socket.peer_addr()];
    let is_unnamed =
        |end: &io::Result<_>| end.as_ref().is_ok_and(std::os::unix::net::SocketAddr::is_unnamed);
    ends.iter().all(is_unnamed)
}

/// Says that a socket is passed over: who gave it to this process believes that something comes of it.
fn passed_over(index: usize) {
    let socket = format!("socket {index} of LISTEN_FDS");
    tracing::warn!(socket, "a datagram socket in which no sessions of clients come is not used");
}

impl Inherited {
    /// Takes them from `LISTEN_FDS`, if it is meant for this process, and reserves the descriptors that it hands over
    /// itself: [`HANDED_OVER_MAX`] from [`HANDED_OVER_FIRST`] on. Call once, before threads are started: it takes the
    /// variables out of the environment.
    ///
    /// # Errors
    /// When one of them is neither a listening socket nor a datagram socket of this host, or the process may not have
    /// that many open files.
    pub fn from_environment() -> Result<Self, NodeError> {
        let mut listed = listenfd::ListenFd::from_env();
        let (mut inherited, mut channel) = (Self::default(), None);
        for index in 0..listed.len() {
            let failed =
                |source| NodeError::io("taking", format!("socket {index} of LISTEN_FDS"), source);
            if let Ok(Some(listener)) = listed.take_unix_listener(index) {
                inherited.unix.push(moved(listener)?);
            } else if let Ok(Some(socket)) = listed.take_unix_datagram(index) {
                // The sessions come last.
                let other = match may_be_channel(&socket) {
                    true => channel.replace((index, moved(socket)?)).map(|(before, _)| before),
                    false => Some(index),
                };
                other.into_iter().for_each(passed_over);
            } else if let Some(listener) = listed.take_tcp_listener(index).map_err(failed)? {
                inherited.tcp.push(moved(listener)?);
            }
        }
        reserve_handed_over()?;
        // Only now: the sockets in it get the lowest free descriptors.
        match channel.map_or(Ok(Vec::new()), |(_, channel)| pass::take(&channel)) {
            Ok(sessions) => inherited.sessions = sessions,
            // Their clients connect anew.
            Err(error) => tracing::warn!(%error, "sessions of clients are not taken over"),
        }
        Ok(inherited)
    }

    /// The sessions of clients that came with them.
    pub(crate) fn take_sessions(&mut self) -> Vec<KeptSession> {
        std::mem::take(&mut self.sessions)
    }

    /// Whether there are no sockets, or none are left.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.unix.is_empty() && self.tcp.is_empty()
    }

    fn unix_at(&self, path: &Path) -> Option<usize> {
        self.unix.iter().position(|listener| {
            listener.local_addr().is_ok_and(|address| address.as_pathname() == Some(path))
        })
    }

    fn tcp_at(&self, addresses: &[SocketAddr]) -> Option<usize> {
        self.tcp.iter().position(|listener| {
            listener.local_addr().is_ok_and(|address| addresses.contains(&address))
        })
    }

    /// Whether one listens at `path`.
    fn has_unix(&self, path: &Path) -> bool {
        self.unix_at(path).is_some()
    }

    /// Whether one listens at one of `addresses`.
    fn has_tcp(&self, addresses: &[SocketAddr]) -> bool {
        self.tcp_at(addresses).is_some()
    }

    /// The one that listens at `path`.
    pub(crate) fn take_unix(&mut self, path: &Path) -> Option<UnixListener> {
        self.unix_at(path).map(|index| self.unix.remove(index))
    }

    /// The one that listens at one of `addresses`.
    pub(crate) fn take_tcp(&mut self, addresses: &[SocketAddr]) -> Option<TcpListener> {
        self.tcp_at(addresses).map(|index| self.tcp.remove(index))
    }

    /// All that are left.
    pub(crate) fn rest(self) -> Vec<Listening> {
        let unix = self.unix.into_iter().map(Listening::Unix);
        unix.chain(self.tcp.into_iter().map(Listening::Tcp)).collect()
    }
}

/// Whether all sockets of a service with so many addresses can be handed over to its successor.
pub(crate) fn check_count(addresses: usize) -> Result<(), NodeError> {
    // The API has two more.
    if addresses + 2 <= HANDED_OVER_MAX {
        return Ok(());
    }
    let subject = format!("{addresses} addresses");
    let most = format!("at most {} can be handed over to the next program", HANDED_OVER_MAX - 2);
    Err(NodeError::io("listening on", subject, io::Error::other(most)))
}

/// Whether a path is short enough for a socket.
pub(crate) fn check_length(path: &Path) -> Result<(), NodeError> {
    let length = path.as_os_str().len();
    if length > SOCKET_PATH_BYTES_MAX {
        let (path, limit) = (path.display().to_string(), SOCKET_PATH_BYTES_MAX);
        return Err(NodeError::SocketPath { path, length, limit });
    }
    Ok(())
}

/// Makes sure that a socket can be made at `path`: removes an abandoned one, and refuses anything else.
pub(crate) fn clear_place(path: &Path) -> Result<(), NodeError> {
    check_length(path)?;
    let shown = &path.display().to_string();
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
        // Its queue of connections is full, so a process listens.
        Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
            Err(in_use("another process listens on it"))
        }
        Err(source) => Err(NodeError::io("trying", shown.clone(), source)),
    }
}

/// The addresses that the text of a TCP address stands for.
pub(crate) async fn resolve(address: &str) -> Result<Vec<SocketAddr>, NodeError> {
    let failed = |source| NodeError::io("listening on", address, source);
    Ok(tokio::net::lookup_host(address).await.map_err(failed)?.collect())
}

/// [`resolve`], blocking.
pub(crate) fn resolve_now(address: &str) -> Result<Vec<SocketAddr>, NodeError> {
    let failed = |source| NodeError::io("listening on", address, source);
    Ok(address.to_socket_addrs().map_err(failed)?.collect())
}

/// Refuses a TCP address that other machines reach, unless `insecure`.
pub(crate) fn check_loopback(
    address: &str,
    resolved: &[SocketAddr],
    insecure: bool,
) -> Result<(), NodeError> {
    if !insecure && !resolved.iter().all(|found| found.ip().is_loopback()) {
        return Err(NodeError::NotLoopback { address: address.to_owned() });
    }
    Ok(())
}

/// [`resolve`] for NBD; an address that other machines reach is refused, unless `insecure`.
pub(crate) async fn check_tcp(address: &str, insecure: bool) -> Result<Vec<SocketAddr>, NodeError> {
    let resolved = resolve(address).await?;
    check_loopback(address, &resolved, insecure)?;
    Ok(resolved)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn an_abandoned_socket_is_replaced_and_a_living_one_is_not() {
        let base = tempfile::tempdir().unwrap();
        let path = base.path().join("s");
        drop(std::os::unix::net::UnixListener::bind(&path).unwrap());
        let (listener, bound) = bind_unix(&path, Some(0o600)).unwrap();
        assert_eq!(std::fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o600);
        let error = bind_unix(&path, Some(0o600)).unwrap_err();
        assert!(error.to_string().contains("another process listens"), "{error}");
        drop((listener, bound));
        assert!(!path.exists());
    }

    #[tokio::test]
    async fn a_socket_that_was_replaced_is_left_alone() {
        let base = tempfile::tempdir().unwrap();
        let path = base.path().join("s");
        let (listener, bound) = bind_unix(&path, Some(0o600)).unwrap();
        std::fs::rename(&path, base.path().join("old")).unwrap();
        std::fs::write(&path, "somebody else's").unwrap();
        drop((listener, bound));
        assert!(path.exists());
    }

    #[test]
    fn sessions_come_in_one_of_a_pair_of_sockets_and_in_no_socket_that_has_a_name() {
        let base = tempfile::tempdir().unwrap();
        let path = base.path().join("s");
        let (channel, sender) = UnixDatagram::pair().unwrap();
        drop(sender);
        assert!(may_be_channel(&channel));
        let named = UnixDatagram::bind(&path).unwrap();
        assert!(!may_be_channel(&named));
        assert!(!may_be_channel(&UnixDatagram::unbound().unwrap()), "nobody has the other end");
        let connected = UnixDatagram::unbound().unwrap();
        connected.connect(&path).unwrap();
        assert!(!may_be_channel(&connected));
    }

    #[test]
    fn as_many_addresses_as_can_be_handed_over() {
        assert!(check_count(62).is_ok());
        let error = check_count(63).unwrap_err().to_string();
        assert!(error.contains("63 addresses: at most 62 can be handed over"), "{error}");
    }

    #[tokio::test]
    async fn files_and_long_paths_are_refused() {
        let base = tempfile::tempdir().unwrap();
        let path = base.path().join("file");
        std::fs::write(&path, "x").unwrap();
        assert!(matches!(bind_unix(&path, Some(0o600)), Err(NodeError::SocketInUse { .. })));
        assert_eq!(std::fs::read(&path).unwrap(), b"x");
        let long = base.path().join("x".repeat(108));
        assert!(matches!(bind_unix(&long, Some(0o600)), Err(NodeError::SocketPath { .. })));
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
