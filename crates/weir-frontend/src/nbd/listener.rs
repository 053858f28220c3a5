//! Listeners: accept clients, serve each in a task of this thread, stop in an orderly way. How many there may be is
//! decided when they shake hands; see `places.rs`.

use std::cell::Cell;
use std::io;
use std::net::SocketAddr;
use std::os::unix::fs::FileTypeExt;
use std::path::{Path, PathBuf};
use std::rc::Rc;
use std::time::Duration;

use rustix::net::sockopt;
use tokio::net::{TcpListener, TcpStream, UnixListener, UnixStream};
use tokio::sync::{mpsc, watch};
use tokio::task::{JoinHandle, JoinSet};
use weir_device::LocalBoxFuture;

use super::guest::{self, Door, Guest, Routes};
use super::{ConnectionOptions, Exports, NbdError, Peer, serve_connection};

/// Pause after an `accept` that failed, such as for want of file descriptors.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);

/// Silence on a TCP connection after which the kernel asks whether the client is still there, the time between asking
/// and how many go unanswered before it is given up: a host that vanished is noticed within two minutes.
const KEEPALIVE_IDLE: Duration = Duration::from_secs(60);
const KEEPALIVE_INTERVAL: Duration = Duration::from_secs(15);
const KEEPALIVE_QUESTIONS: u32 = 4;

/// How a listener serves its clients.
#[derive(Clone, Debug)]
pub struct ListenerOptions {
    /// How each connection is served; its `client` gets the peer's address appended.
    pub connection: ConnectionOptions,
}

impl ListenerOptions {
    /// The defaults for `connection`.
    #[must_use]
    pub fn new(connection: ConnectionOptions) -> Self {
        Self { connection }
    }
}

/// A socket that listens already, whoever made it.
#[derive(Debug)]
pub enum Listening {
    /// A unix socket.
    Unix(std::os::unix::net::UnixListener),
    /// A TCP socket.
    Tcp(std::net::TcpListener),
}

enum Socket {
    Unix(UnixListener),
    Tcp(TcpListener),
    /// Clients that another thread shook hands with.
    Door(mpsc::Receiver<Guest>),
}

/// A client of any kind, with the peer's name where it has one.
enum Accepted {
    Unix(UnixStream),
    Tcp(TcpStream, SocketAddr),
    Guest(Box<Guest>),
    /// The door is closed: nobody is there, and nobody can come any more.
    Nobody,
}

impl Socket {
    async fn accept(&mut self) -> io::Result<Accepted> {
        match self {
            Self::Unix(listener) => listener.accept().await.map(|(s, _)| Accepted::Unix(s)),
            Self::Tcp(listener) => listener.accept().await.map(|(s, a)| Accepted::Tcp(s, a)),
            Self::Door(guests) => match guests.recv().await {
                Some(guest) => Ok(Accepted::Guest(Box::new(guest))),
                None => Ok(Accepted::Nobody),
            },
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
    clients: Rc<Cell<usize>>,
}

impl Server {
    /// Clients being served now.
    #[must_use]
    pub fn clients(&self) -> usize {
        self.clients.get()
    }

    /// The same count, to be asked later.
    #[must_use]
    pub fn clients_counter(&self) -> Rc<Cell<usize>> {
        Rc::clone(&self.clients)
    }

    /// The TCP address in use, with the port that was chosen for port 0.
    #[must_use]
    pub fn address(&self) -> Option<SocketAddr> {
        self.address
    }

    /// Completes once the door that [`open_door`] made is closed, and everybody who came through it has left.
    pub async fn deserted(&mut self) {
        if let Err(error) = (&mut self.task).await {
            tracing::error!(%error, "an NBD listener ended abnormally");
        }
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
    let serving = serving(exports, options.connection.clone());
    let server = start(Socket::Unix(listener), serving);
    Ok(Server { path: Some(path.to_owned()), ..server })
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
    let serving = serving(exports, options.connection.clone());
    let server = start(Socket::Tcp(listener), serving);
    Ok(Server { address: Some(bound), ..server })
}

/// Shakes hands with the clients of a socket, and hands each to the thread that serves the export it chose.
///
/// Must be called within a `LocalSet` on a thread whose runtime does I/O.
///
/// # Errors
/// When the runtime does not take the socket.
pub fn receive<R: Routes + 'static>(
    listening: Listening,
    routes: Rc<R>,
    options: ListenerOptions,
) -> io::Result<Server> {
    let (socket, address) = match listening {
        Listening::Unix(listener) => {
            listener.set_nonblocking(true)?;
            (Socket::Unix(UnixListener::from_std(listener)?), None)
        }
        Listening::Tcp(listener) => {
            listener.set_nonblocking(true)?;
            let address = listener.local_addr()?;
            (Socket::Tcp(TcpListener::from_std(listener)?), Some(address))
        }
    };
    let connection = options.connection;
    let receiving = move |accepted, stopped| -> Option<LocalBoxFuture<'static, ()>> {
        let (routes, mut options) = (Rc::clone(&routes), connection.clone());
        match accepted {
            Accepted::Unix(stream) => {
                options.peer = user_of(&stream);
                Some(Box::pin(async move {
                    guest::hand_over(stream, &*routes, options, until_stopped(stopped)).await;
                }))
            }
            Accepted::Tcp(stream, address) => {
                name_and_prepare(&stream, address, &mut options)?;
                Some(Box::pin(async move {
                    guest::hand_over(stream, &*routes, options, until_stopped(stopped)).await;
                }))
            }
            Accepted::Guest(_) | Accepted::Nobody => None,
        }
    };
    let server = start(socket, receiving);
    Ok(Server { address, ..server })
}

/// Serves the clients that come through a door: other threads shook hands with them.
///
/// Must be called within a `LocalSet`; connections run on its thread.
pub fn open_door<E: Exports + 'static>(exports: Rc<E>, options: ListenerOptions) -> (Door, Server) {
    // Whoever has a place may come through at once.
    let (door, guests) = guest::door(options.connection.places.max());
    let serving = serving(exports, options.connection.clone());
    (door, start(Socket::Door(guests), serving))
}

/// What is done with a client that was let in; `None` when it is gone already.
type Serving = Option<LocalBoxFuture<'static, ()>>;

fn start(
    socket: Socket,
    serving: impl Fn(Accepted, watch::Receiver<bool>) -> Serving + 'static,
) -> Server {
    let (stop, stopped) = watch::channel(false);
    let clients = Rc::new(Cell::new(0));
    let counter = Rc::clone(&clients);
    let loops = accept_loop(socket, serving, stopped, counter);
    let task = tokio::task::spawn_local(loops);
    Server { stop, task, address: None, path: None, clients }
}

/// Completes when the server is told to stop, or its handle is gone.
async fn until_stopped(mut stopped: watch::Receiver<bool>) {
    // An error means that the handle was dropped, which is a wish to stop too.
    let _ = stopped.wait_for(|stop| *stop).await;
}

async fn accept_loop(
    mut socket: Socket,
    serving: impl Fn(Accepted, watch::Receiver<bool>) -> Serving,
    stopped: watch::Receiver<bool>,
    clients: Rc<Cell<usize>>,
) {
    let mut connections = JoinSet::new();
    let mut stop = std::pin::pin!(until_stopped(stopped.clone()));
    loop {
        clients.set(connections.len());
        tokio::select! {
            biased;
            () = stop.as_mut() => break,
            Some(ended) = connections.join_next() => note_end(ended),
            accepted = socket.accept() => match accepted {
                Ok(Accepted::Nobody) => break,
                Ok(accepted) => if let Some(connection) = serving(accepted, stopped.clone()) {
                    connections.spawn_local(connection);
                },
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
    clients.set(0);
}

fn note_end(ended: Result<(), tokio::task::JoinError>) {
    if let Err(error) = ended {
        tracing::error!(%error, "a connection ended abnormally");
    }
}

/// Serves `exports` on this thread.
fn serving<E: Exports + 'static>(
    exports: Rc<E>,
    options: ConnectionOptions,
) -> impl Fn(Accepted, watch::Receiver<bool>) -> Serving + 'static {
    move |accepted, stopped| {
        let (exports, mut options) = (Rc::clone(&exports), options.clone());
        let stop = until_stopped(stopped);
        // `serve_connection` logs how it ended.
        match accepted {
            Accepted::Unix(stream) => {
                options.peer = user_of(&stream);
                Some(Box::pin(async move {
                    let _ = serve_connection(stream, exports, options, stop).await;
                }))
            }
            Accepted::Tcp(stream, address) => {
                name_and_prepare(&stream, address, &mut options)?;
                Some(Box::pin(async move {
                    let _ = serve_connection(stream, exports, options, stop).await;
                }))
            }
            Accepted::Guest(guest) => Some(Box::pin(guest::serve(*guest, exports, options, stop))),
            Accepted::Nobody => None,
        }
    }
}

/// The user at the other end of a unix socket.
fn user_of(stream: &UnixStream) -> Peer {
    stream.peer_cred().map_or(Peer::Unknown, |credentials| Peer::User(credentials.uid()))
}

/// Names a TCP client after its address; `None` when it left at once.
fn name_and_prepare(
    stream: &TcpStream,
    address: SocketAddr,
    options: &mut ConnectionOptions,
) -> Option<()> {
    options.client = format!("{} {address}", options.client);
    options.peer = Peer::host(address.ip());
    if let Err(error) = prepare(stream) {
        tracing::warn!(client = options.client, %error, "a client left at once");
        return None;
    }
    Some(())
}
