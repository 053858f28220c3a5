//! Connections to other processes as arguments: what lets a front end, a client and a whole node run over a simulated
//! network.

use std::fmt;
use std::io;
use std::net::IpAddr;
use std::os::fd::OwnedFd;
use std::path::PathBuf;
use std::task::{Context, Poll};

use tokio::io::{AsyncRead, AsyncWrite};

use crate::device::LocalBoxFuture;

/// Where somebody listens.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Address {
    /// A unix socket, by its file.
    Unix(PathBuf),
    /// Host and port, as `host:port`.
    Tcp(String),
}

impl fmt::Display for Address {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Unix(path) => write!(f, "{}", path.display()),
            Self::Tcp(address) => f.write_str(address),
        }
    }
}

/// Who is at the other end, as far as limits are concerned.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub enum Peer {
    /// A host, by its address.
    Host(IpAddr),
    /// A user of this host, by its number.
    User(u32),
    /// It cannot be told.
    #[default]
    Unknown,
}

impl Peer {
    /// The host behind an address, in whatever form it was given.
    #[must_use]
    pub fn host(address: IpAddr) -> Self {
        Self::Host(address.to_canonical())
    }
}

/// A connection: bytes in both directions, in order. Dropping it ends it.
///
/// It is read and written with readiness: a poll that returns `Pending` wakes the task when it is worth another try,
/// and one that returns bytes may return fewer than asked for. [`AsyncWrite::poll_write_vectored`] gathers.
pub trait ByteStream: AsyncRead + AsyncWrite + Unpin {
    /// Takes the connection off the runtime of this thread, so that another thread can go on with it. No byte is lost:
    /// what was received and not read yet comes with it.
    ///
    /// # Errors
    /// When the runtime does not let it go; the connection has ended then.
    fn detach(self: Box<Self>) -> io::Result<Box<dyn DetachedStream>>;
}

/// A connection on its way to another thread. Dropping it ends it.
pub trait DetachedStream: Send + fmt::Debug {
    /// Goes on with the connection on this thread.
    ///
    /// # Errors
    /// When the runtime of this thread does not take it; the connection has ended then.
    fn attach(self: Box<Self>) -> io::Result<Box<dyn ByteStream>>;

    /// The socket that it is, where another process can go on with that alone.
    ///
    /// # Errors
    /// The connection itself, where more than a socket belongs to it, or none: this process must go on with it.
    fn into_socket(self: Box<Self>) -> Result<OwnedFd, Box<dyn DetachedStream>>;
}

/// A connection that a listener took.
pub struct Accepted {
    /// The connection.
    pub stream: Box<dyn ByteStream>,
    /// Who is there, for limits.
    pub peer: Peer,
    /// The address that it came from, for the log, where it has one.
    pub name: Option<String>,
}

impl fmt::Debug for Accepted {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Accepted").field("peer", &self.peer).field("name", &self.name).finish()
    }
}

/// Somebody who listens. Dropping it ends that: whoever connects afterwards is refused.
pub trait Listener {
    /// The next connection. Errors are those of one connection, or pass: the listener goes on.
    fn poll_accept(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<Accepted>>;

    /// Where it listens, with the port that was chosen for port 0.
    fn address(&self) -> Address;
}

/// Makes connections.
pub trait Network {
    /// Listens.
    fn listen<'a>(&'a self, at: &'a Address) -> LocalBoxFuture<'a, io::Result<Box<dyn Listener>>>;

    /// Connects to somebody who listens.
    fn connect<'a>(
        &'a self,
        to: &'a Address,
    ) -> LocalBoxFuture<'a, io::Result<Box<dyn ByteStream>>>;
}

/// No network: nothing can be listened on or connected to.
#[derive(Clone, Copy, Debug, Default)]
pub struct NoNetwork;

impl Network for NoNetwork {
    fn listen<'a>(&'a self, _: &'a Address) -> LocalBoxFuture<'a, io::Result<Box<dyn Listener>>> {
        Box::pin(async { Err(io::ErrorKind::NetworkUnreachable.into()) })
    }

    fn connect<'a>(
        &'a self,
        _: &'a Address,
    ) -> LocalBoxFuture<'a, io::Result<Box<dyn ByteStream>>> {
        Box::pin(async { Err(io::ErrorKind::NetworkUnreachable.into()) })
    }
}
