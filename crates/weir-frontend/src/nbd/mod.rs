//! NBD: a thin driver between a byte stream, the codec of `weir-nbd` and a device.
//!
//! One connection is one task. It reads many requests with one system call into a window, runs them concurrently in a
//! slab of reusable slots, and sends many replies with one system call. Nothing is allocated per request once the slots
//! exist, and nothing is buffered for a client that does not read: its requests wait in its own socket.

mod answer;
mod connection;
mod error;
mod hand_off;
mod handshake;
mod listener;
mod memory;
mod operation;
mod outgoing;
mod places;
mod slots;
mod status;
mod watch;
mod window;

use std::future::Future;
use std::rc::Rc;
use std::time::Duration;

use tokio::io::{AsyncRead, AsyncWrite, AsyncWriteExt};
use weir_device::{BufferPool, Device, History, Peer, SourceId, VolumeId};

use self::places::Admittance;

pub use answer::error_code;
pub use error::NbdError;
pub use hand_off::{ExportDirectory, HandOff, HandedOff, WeakHandOff};
pub use listener::{ListenerOptions, Server, hand_off_clients, serve, serve_handed_off};
pub use memory::RequestMemory;
pub use places::{HANDSHAKES_MAX, Handshakes, NoPlace, Places};
pub use weir_nbd::ExportInfo;

/// Requests that one connection has in flight at most: what the clients in use ask for at their deepest.
pub const IN_FLIGHT_MAX: usize = 128;

/// Bytes of buffers that one connection holds at most: two of the largest payloads.
pub const IN_FLIGHT_BYTES_MAX: usize = 64 << 20;

/// Memory for the requests of all clients where nothing else is said.
const REQUEST_BYTES_DEFAULT: usize = 4 * IN_FLIGHT_BYTES_MAX;

/// Time that a client has for its whole handshake, what is looked up for it included.
pub const HANDSHAKE_TIMEOUT: Duration = Duration::from_secs(30);

/// Time that a client has for each of its messages in the handshake.
pub const HANDSHAKE_SILENCE: Duration = Duration::from_secs(10);

/// Time for what clients have in flight when the server stops: to end, and for its replies to be taken.
pub const LINGER: Duration = Duration::from_secs(10);

/// A device under a name that clients ask for.
pub struct Export<D> {
    /// Canonical name.
    pub name: String,
    /// A line for a person, possibly empty.
    pub description: String,
    /// What is served.
    pub device: Rc<D>,
    /// The volume that requests address, for their I/O headers.
    pub volume: VolumeId,
    /// Whether writes are refused.
    pub read_only: bool,
    /// What it can be compared with: each of its earlier states is a metadata context.
    pub history: Option<Rc<dyn History>>,
}

impl<D> std::fmt::Debug for Export<D> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Export").field("name", &self.name).field("volume", &self.volume).finish()
    }
}

/// The devices that a front end serves. Asked anew for every connection, so that they may come and go.
pub trait Exports {
    /// What is served.
    type Device: Device + 'static;

    /// The export of that name. The empty name is the default export, if there is one.
    fn find(&self, name: &str) -> Option<Export<Self::Device>>;

    /// Names of all exports that clients may see.
    fn list(&self) -> Vec<String>;
}

/// How one connection is served.
#[derive(Clone, Debug)]
pub struct ConnectionOptions {
    /// Who the client is, for the I/O headers of its requests.
    pub source: SourceId,
    /// Who the client is, for the log.
    pub client: String,
    /// Requests in flight at most; a request is in flight until its reply was sent.
    pub in_flight_max: usize,
    /// Bytes of buffers in flight at most. One request may exceed it when it is alone.
    pub in_flight_bytes_max: usize,
    /// Time for the whole handshake.
    pub handshake_timeout: Duration,
    /// Time for what is in flight, and its replies, after the server was told to stop.
    pub linger: Duration,
    /// Where buffers come from.
    pub pool: BufferPool,
    /// What all clients of the process may hold together.
    pub memory: RequestMemory,
    /// The places for all clients of the process.
    pub places: Places,
    /// The handshakes in progress on the same listener.
    pub handshakes: Handshakes,
    /// Who the client is, for limits.
    pub peer: Peer,
}

impl ConnectionOptions {
    /// The defaults, for a client of this name.
    #[must_use]
    pub fn new(source: SourceId, client: impl Into<String>) -> Self {
        let memory = RequestMemory::new(REQUEST_BYTES_DEFAULT);
        Self {
            source,
            client: client.into(),
            in_flight_max: IN_FLIGHT_MAX,
            in_flight_bytes_max: IN_FLIGHT_BYTES_MAX,
            handshake_timeout: HANDSHAKE_TIMEOUT,
            linger: LINGER,
            pool: BufferPool::new(IN_FLIGHT_BYTES_MAX),
            places: Places::new(memory.connections_max()),
            memory,
            handshakes: Handshakes::new(HANDSHAKES_MAX),
            peer: Peer::Unknown,
        }
    }
}

/// Serves one client until it leaves, breaks the protocol, or `shutdown` completes.
///
/// Operations that were started run to their end before this returns, whatever becomes of the client; after `shutdown`
/// their replies are sent as well, as long as `linger` lasts. What has not ended then gets no reply and, as when the
/// returned future is dropped, is left to rule 5 of the device contract.
///
/// # Errors
/// [`NbdError`] when the connection ended otherwise than by the client's wish or by `shutdown`.
pub async fn serve_connection<S, E>(
    mut stream: S,
    exports: Rc<E>,
    options: ConnectionOptions,
    shutdown: impl Future<Output = ()>,
) -> Result<(), NbdError>
where
    S: AsyncRead + AsyncWrite + Unpin + 'static,
    E: Exports,
{
    let mut shutdown = std::pin::pin!(shutdown);
    let mut window = window::Window::new();
    let catalog =
        handshake::ExportsCatalog { exports: &*exports, admittance: Admittance::of(&options) };
    let shaken = tokio::select! {
        biased;
        () = shutdown.as_mut() => Ok(None),
        shaken = handshake::run(&mut stream, &mut window, &catalog, &options) => shaken,
    };
    match shaken {
        Ok(Some(chosen)) => {
            // Until the client has left.
            let _place = catalog.admittance.place();
            transmit(stream, window, chosen, options, shutdown).await
        }
        Ok(None) => end(stream, &options, Ok(())).await,
        Err(error) => end(stream, &options, Err(error)).await,
    }
}

/// Serves a client that has chosen its export; see [`serve_connection`].
async fn transmit<S, D>(
    mut stream: S,
    window: window::Window,
    chosen: handshake::Chosen<Export<D>>,
    options: ConnectionOptions,
    shutdown: std::pin::Pin<&mut impl Future<Output = ()>>,
) -> Result<(), NbdError>
where
    S: AsyncRead + AsyncWrite + Unpin,
    D: Device,
{
    tracing::info!(client = options.client, export = chosen.info.name, "client connected");
    let result = connection::run(&mut stream, window, chosen, &options, shutdown).await;
    end(stream, &options, result).await
}

async fn end<S: AsyncWrite + Unpin>(
    mut stream: S,
    options: &ConnectionOptions,
    result: Result<(), NbdError>,
) -> Result<(), NbdError> {
    // The client may be gone already; there is nobody to tell.
    let _ = stream.shutdown().await;
    match &result {
        Ok(()) => tracing::info!(client = options.client, "client disconnected"),
        Err(error) => tracing::warn!(client = options.client, %error, "client connection ended"),
    }
    result
}
