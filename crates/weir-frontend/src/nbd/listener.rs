//! Listeners: accept clients up to a limit, serve each in a task of this thread, stop in an orderly way.

use std::io;
use std::net::SocketAddr;
use std::os::unix::fs::FileTypeExt;
use std::path::{Path, PathBuf};
use std::rc::Rc;
use std::time::Duration;

use rustix::net::sockopt;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::{TcpListener, TcpStream, UnixListener, UnixStream};
use tokio::sync::watch;
use tokio::task::{JoinHandle, JoinSet};

use super::{ConnectionOptions, Exports, NbdError, serve_connection};

/// Clients that one listener serves at a time. Each may hold `in_flight_bytes_max`; more wait in the backlog.
pub const CONNECTIONS_MAX: usize = 64;

/// Pause after an `accept` that failed, such as for want of file descriptors.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);

/// Silence on a TCP connection after which the kernel asks whether the client is still there, the time between questions
/// and how many go unanswered before it is given up: a host that vanished is noticed within two minutes.
const KEEPALIVE_IDLE: Duration = Duration::from_secs(60);
const KEEPALIVE_INTERVAL: Duration = Duration::from_secs(15);
const KEEPALIVE_QUESTIONS: u32 = 4;

/// How a listener serves its clients.
#[derive(Clone, Debug)]
pub struct ListenerOptions {
    /// How each connection is served; its `client` gets the peer's address appended.
    pub connection: ConnectionOptions,
    /// Clients at a time; further ones wait.
    pub connections_max: usize,
}

impl ListenerOptions {
    /// The defaults for `connection`.
    #[must_use]
    pub fn new(connection: ConnectionOptions) -> Self {
        Self { connection, connections_max: CONNECTIONS_MAX }
    }
}

enum Socket {
    Unix(UnixListener),
    Tcp(TcpListener),
}

/// A stream of either kind, with the peer's name.
enum Accepted {
    Unix(UnixStream),
    Tcp(TcpStream, SocketAddr),
}

impl Socket {
    async fn accept(&self) -> io::Result<Accepted> {
        match self {
            Self::Unix(listener) => listener.accept().await.map(|(s, _)| Accepted::Unix(s)),
            Self::Tcp(listener) => listener.accept().await.map(|(s, a)| Accepted::Tcp(s, a)),
        }
    }
}

fn prepare(stream: &TcpStream) -> io::Result<()> {
    // Replies are gathered already; waiting for more would only delay them.
    stream.set_nodelay(true)?;
    sockopt::set_socket_keepalive(stream, true)?;
    sockopt::set_tcp_keepidle(stream, KEEPALIVE_IDLE)?;
    sockopt::set_tcp_keepintvl(stream, KEEPALIVE_INTERVAL)?;
    sockopt::set_tcp_keepcnt(stream, KEEPALIVE_QUESTIONS)?;
    Ok(())
}

/// A running listener. Dropping it stops accepting and ends the connections as [`Server::stop`] does, unattended.
#[derive(Debug)]
pub struct Server {
    stop: watch::Sender<bool>,
    task: JoinHandle<()>,
    address: Option<SocketAddr>,
    path: Option<PathBuf>,
}

impl Server {
    /// The TCP address in use, with the port that was chosen for port 0.
    #[must_use]
    pub fn address(&self) -> Option<SocketAddr> {
        self.address
    }

    /// Accepts nobody any more, finishes what is in flight on every connection, and closes them.
    pub async fn stop(self) {
        self.stop.send_replace(true);
        if let Err(error) = self.task.await {
            tracing::error!(%error, "an NBD listener ended abnormally");
        }
        if let Some(path) = &self.path
            && let Err(error) = tokio::fs::remove_file(path).await
        {
            tracing::warn!(path = %path.display(), %error, "the socket file could not be removed");
        }
    }
}

/// Serves `exports` on a unix socket. A socket file that nobody listens on any more is replaced.
///
/// Must be called within a `LocalSet`; connections run on its thread.
///
/// # Errors
/// [`NbdError::ListenUnix`].
pub async fn serve_unix<E: Exports + 'static>(
    path: &Path,
    exports: Rc<E>,
    options: ListenerOptions,
) -> Result<Server, NbdError> {
    let failed = |source| NbdError::ListenUnix { path: path.to_owned(), source };
    let listener = match UnixListener::bind(path) {
        Err(error) if error.kind() == io::ErrorKind::AddrInUse => {
            if !is_dead_socket(path).await {
                return Err(failed(error));
            }
            tokio::fs::remove_file(path).await.map_err(failed)?;
            UnixListener::bind(path).map_err(failed)?
        }
        bound => bound.map_err(failed)?,
    };
    tracing::info!(path = %path.display(), "serving NBD");
    Ok(start(Socket::Unix(listener), None, Some(path.to_owned()), exports, options))
}

/// Whether `path` is a socket that nobody listens on. Connecting to a plain file is refused as well, so its type is
/// looked at first: nobody's data is taken for a left-over.
async fn is_dead_socket(path: &Path) -> bool {
    let is_socket = tokio::fs::symlink_metadata(path)
        .await
        .is_ok_and(|metadata| metadata.file_type().is_socket());
    let connected = UnixStream::connect(path).await;
    is_socket && connected.is_err_and(|error| error.kind() == io::ErrorKind::ConnectionRefused)
}

/// Serves `exports` on a TCP address.
///
/// Must be called within a `LocalSet`; connections run on its thread.
///
/// # Errors
/// [`NbdError::ListenTcp`].
pub async fn serve_tcp<E: Exports + 'static>(
    address: &str,
    exports: Rc<E>,
    options: ListenerOptions,
) -> Result<Server, NbdError> {
    let failed = |source| NbdError::ListenTcp { address: address.to_owned(), source };
    let listener = TcpListener::bind(address).await.map_err(failed)?;
    let bound = listener.local_addr().map_err(failed)?;
    tracing::info!(address = %bound, "serving NBD");
    Ok(start(Socket::Tcp(listener), Some(bound), None, exports, options))
}

fn start<E: Exports + 'static>(
    socket: Socket,
    address: Option<SocketAddr>,
    path: Option<PathBuf>,
    exports: Rc<E>,
    options: ListenerOptions,
) -> Server {
    let (stop, stopped) = watch::channel(false);
    let task = tokio::task::spawn_local(accept_loop(socket, exports, options, stopped));
    Server { stop, task, address, path }
}

/// Completes when the server is told to stop, or its handle is gone.
async fn until_stopped(mut stopped: watch::Receiver<bool>) {
    // An error means that the handle was dropped, which is a wish to stop too.
    let _ = stopped.wait_for(|stop| *stop).await;
}

async fn accept_loop<E: Exports + 'static>(
    socket: Socket,
    exports: Rc<E>,
    options: ListenerOptions,
    stopped: watch::Receiver<bool>,
) {
    let mut connections = JoinSet::new();
    let mut stop = std::pin::pin!(until_stopped(stopped.clone()));
    loop {
        let has_room = connections.len() < options.connections_max.max(1);
        tokio::select! {
            biased;
            () = stop.as_mut() => break,
            Some(ended) = connections.join_next() => note_end(ended),
            accepted = socket.accept(), if has_room => match accepted {
                Ok(stream) => {
                    let options = options.connection.clone();
                    let stopped = stopped.clone();
                    spawn(&mut connections, stream, Rc::clone(&exports), options, stopped);
                }
                Err(error) => {
                    tracing::warn!(%error, "a client could not be accepted");
                    tokio::time::sleep(ACCEPT_PAUSE).await;
                }
            },
        }
    }
    drop(socket);
    while let Some(ended) = connections.join_next().await {
        note_end(ended);
    }
}

fn note_end(ended: Result<(), tokio::task::JoinError>) {
    if let Err(error) = ended {
        tracing::error!(%error, "a connection ended abnormally");
    }
}

fn spawn<E: Exports + 'static>(
    connections: &mut JoinSet<()>,
    accepted: Accepted,
    exports: Rc<E>,
    mut options: ConnectionOptions,
    stopped: watch::Receiver<bool>,
) {
    match accepted {
        Accepted::Unix(stream) => {
            connections.spawn_local(serve(stream, exports, options, stopped));
        }
        Accepted::Tcp(stream, address) => {
            options.client = format!("{} {address}", options.client);
            if let Err(error) = prepare(&stream) {
                tracing::warn!(client = options.client, %error, "a client left at once");
                return;
            }
            connections.spawn_local(serve(stream, exports, options, stopped));
        }
    }
}

async fn serve<S, E>(
    stream: S,
    exports: Rc<E>,
    options: ConnectionOptions,
    stopped: watch::Receiver<bool>,
) where
    S: AsyncRead + AsyncWrite + Unpin + 'static,
    E: Exports,
{
    // `serve_connection` logs how it ended.
    let _ = serve_connection(stream, exports, options, until_stopped(stopped)).await;
}
