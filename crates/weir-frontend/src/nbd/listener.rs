//! Listeners: accept clients, serve each in a task of this thread, stop in an orderly way. How many there may be is
//! decided when they shake hands; see `places.rs`.

use std::cell::Cell;
use std::future::poll_fn;
use std::io;
use std::rc::Rc;
use std::time::Duration;

use tokio::sync::{Notify, mpsc};
use tokio::task::{JoinHandle, JoinSet};
use weir_device::{Accepted, Address, ByteStream, Listener, LocalBoxFuture, Network};

use super::error::NbdError;
use super::export::Exports;
use super::hand_off::{self, ExportDirectory, HandOff, HandedOff};
use super::options::ConnectionOptions;
use super::session::serve_connection;

/// Pause after an `accept` that failed, such as for want of file descriptors.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);

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

/// Where clients come from.
enum Incoming {
    Network(Box<dyn Listener>),
    /// Those that another thread shook hands with.
    HandOff(mpsc::Receiver<HandedOff>),
}

/// A client of either kind.
enum Client {
    Connected(Accepted),
    HandedOff(Box<HandedOff>),
    /// The channel is closed: nobody is there, and nobody can come any more.
    Nobody,
}

impl Incoming {
    async fn accept(&mut self) -> io::Result<Client> {
        match self {
            Self::Network(listener) => {
                poll_fn(|cx| listener.poll_accept(cx)).await.map(Client::Connected)
            }
            Self::HandOff(handed_off) => Ok(match handed_off.recv().await {
                Some(client) => Client::HandedOff(Box::new(client)),
                None => Client::Nobody,
            }),
        }
    }
}

/// Tells the connections of a server to end, in the order in which they began to wait for that: a `watch` channel tells
/// them in a random one, and a simulated server would not replay.
#[derive(Debug, Default)]
struct Stopping {
    is_told: Cell<bool>,
    told: Notify,
}

impl Stopping {
    fn tell(&self) {
        self.is_told.set(true);
        self.told.notify_waiters();
    }
}

/// Whoever drops it wishes to stop.
#[derive(Debug)]
struct StopHandle(Rc<Stopping>);

impl Drop for StopHandle {
    fn drop(&mut self) {
        self.0.tell();
    }
}

/// A running listener. Dropping it stops accepting and ends the connections as [`Server::stop`] does, unattended.
#[derive(Debug)]
pub struct Server {
    stop: StopHandle,
    task: JoinHandle<()>,
    address: Option<Address>,
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

    /// Where it listens, with the port that was chosen for port 0; nowhere for handed-off connections.
    #[must_use]
    pub fn address(&self) -> Option<&Address> {
        self.address.as_ref()
    }

    /// Completes once the channel that [`serve_handed_off`] made is closed, and everybody who came through it has left.
    pub async fn until_unused(&mut self) {
        if let Err(error) = (&mut self.task).await {
            tracing::error!(%error, "an NBD listener ended abnormally");
        }
    }

    /// Accepts nobody any more, finishes what is in flight on every connection, and closes them.
    pub async fn stop(self) {
        self.stop.0.tell();
        if let Err(error) = self.task.await {
            tracing::error!(%error, "an NBD listener ended abnormally");
        }
    }
}

/// Serves `exports` at an address of a network.
///
/// Must be called within a `LocalSet`; connections run on its thread.
///
/// # Errors
/// [`NbdError::Listen`].
pub async fn serve<E: Exports + 'static>(
    network: &dyn Network,
    at: &Address,
    exports: Rc<E>,
    options: ListenerOptions,
) -> Result<Server, NbdError> {
    let failed = |source| NbdError::Listen { address: at.to_string(), source };
    let listener = network.listen(at).await.map_err(failed)?;
    tracing::info!(address = %listener.address(), "serving NBD");
    Ok(start(Incoming::Network(listener), serving(exports, options.connection)))
}

/// Shakes hands with the clients of a listener, and hands each to the thread that serves the export it chose.
///
/// Must be called within a `LocalSet` on the thread of the listener.
pub fn hand_off_clients<R: ExportDirectory + 'static>(
    listener: Box<dyn Listener>,
    directory: Rc<R>,
    options: ListenerOptions,
) -> Server {
    let connection = options.connection;
    let handing_off = move |client, stopped| -> Serving {
        let (directory, mut options) = (Rc::clone(&directory), connection.clone());
        match client {
            Client::Connected(accepted) => {
                let stream = take(accepted, &mut options);
                Some(Box::pin(async move {
                    let stop = until_stopped(stopped);
                    hand_off::hand_off(stream, &*directory, options, stop).await;
                }))
            }
            Client::HandedOff(_) | Client::Nobody => None,
        }
    };
    start(Incoming::Network(listener), handing_off)
}

/// Serves the clients that other threads shook hands with, and hand off here.
///
/// Must be called within a `LocalSet`; connections run on its thread.
pub fn serve_handed_off<E: Exports + 'static>(
    exports: Rc<E>,
    options: ListenerOptions,
) -> (HandOff, Server) {
    // Whoever has a place may come through at once.
    let (channel, handed_off) = {
        let connection = &options.connection;
        hand_off::channel(connection.places.max(), connection.access.clone())
    };
    (channel, start(Incoming::HandOff(handed_off), serving(exports, options.connection)))
}

/// What is done with a client that was let in; `None` when it is gone already.
type Serving = Option<LocalBoxFuture<'static, ()>>;

fn start(
    incoming: Incoming,
    serving: impl Fn(Client, Rc<Stopping>) -> Serving + 'static,
) -> Server {
    let address = match &incoming {
        Incoming::Network(listener) => Some(listener.address()),
        Incoming::HandOff(_) => None,
    };
    let stopped = Rc::new(Stopping::default());
    let stop = StopHandle(Rc::clone(&stopped));
    let clients = Rc::new(Cell::new(0));
    let counter = Rc::clone(&clients);
    let loops = accept_loop(incoming, serving, stopped, counter);
    let task = tokio::task::spawn_local(loops);
    Server { stop, task, address, clients }
}

/// Completes when the server is told to stop, or its handle is gone.
async fn until_stopped(stopped: Rc<Stopping>) {
    while !stopped.is_told.get() {
        stopped.told.notified().await;
    }
}

async fn accept_loop(
    mut incoming: Incoming,
    serving: impl Fn(Client, Rc<Stopping>) -> Serving,
    stopped: Rc<Stopping>,
    clients: Rc<Cell<usize>>,
) {
    let mut connections = JoinSet::new();
    let mut stop = std::pin::pin!(until_stopped(Rc::clone(&stopped)));
    loop {
        clients.set(connections.len());
        tokio::select! {
            biased;
            () = stop.as_mut() => break,
            Some(ended) = connections.join_next() => note_end(ended),
            accepted = incoming.accept() => match accepted {
                Ok(Client::Nobody) => break,
                Ok(client) => if let Some(connection) = serving(client, Rc::clone(&stopped)) {
                    connections.spawn_local(connection);
                },
                Err(error) => {
                    tracing::warn!(%error, "a client could not be accepted");
                    tokio::time::sleep(ACCEPT_PAUSE).await;
                }
            },
        }
    }
    drop(incoming);
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
) -> impl Fn(Client, Rc<Stopping>) -> Serving + 'static {
    move |client, stopped| {
        let (exports, mut options) = (Rc::clone(&exports), options.clone());
        let stop = until_stopped(stopped);
        match client {
            Client::Connected(accepted) => {
                let stream = take(accepted, &mut options);
                // It logs how it ended.
                Some(Box::pin(async move {
                    let _ = serve_connection(stream, exports, options, stop).await;
                }))
            }
            Client::HandedOff(client) => {
                Some(Box::pin(hand_off::serve(*client, exports, options, stop)))
            }
            Client::Nobody => None,
        }
    }
}

/// Takes note of who is there.
fn take(accepted: Accepted, options: &mut ConnectionOptions) -> Box<dyn ByteStream> {
    options.peer = accepted.peer;
    if let Some(name) = accepted.name {
        options.client = format!("{} {name}", options.client);
    }
    accepted.stream
}
