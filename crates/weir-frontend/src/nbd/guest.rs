//! A client between two threads: the one that listens shakes hands with it, the one that owns the volume serves it.

use std::cell::RefCell;
use std::future::Future;
use std::io;
use std::rc::Rc;

use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::{TcpStream, UnixStream};
use tokio::sync::mpsc;
use weir_nbd::{Catalog, ExportInfo, Session, Wanted};

use super::handshake::{self, Chosen, Prepared};
use super::places::{Entrance, Place};
use super::window::Window;
use super::{ConnectionOptions, Exports, NbdError, transmit};

/// A client that has chosen its export. What it sent since comes with it.
#[derive(Debug)]
pub struct Guest {
    stream: Stream,
    unread: Vec<u8>,
    session: Session,
    info: ExportInfo,
    client: String,
    /// Until it has left.
    place: Option<Place>,
    /// The door that it came through stays open as long as it is there.
    door: Door,
}

#[derive(Debug)]
enum Stream {
    Unix(std::os::unix::net::UnixStream),
    Tcp(std::net::TcpStream),
}

/// The way to the thread that serves an export. It may be used from any thread. The door closes when nobody has it any
/// more, neither at hand nor as a client that came through it.
#[derive(Clone, Debug)]
pub struct Door(mpsc::Sender<Guest>);

/// Leads to a door that is open, and does not keep it open.
#[derive(Clone, Debug)]
pub struct WeakDoor(mpsc::WeakSender<Guest>);

impl Door {
    /// The way to this door for as long as somebody else has it.
    #[must_use]
    pub fn downgrade(&self) -> WeakDoor {
        WeakDoor(self.0.downgrade())
    }
}

impl WeakDoor {
    /// The door, if it is open.
    #[must_use]
    pub fn upgrade(&self) -> Option<Door> {
        self.0.upgrade().map(Door)
    }
}

/// A door through which `guests_max` may wait to be let in.
pub(super) fn door(guests_max: usize) -> (Door, mpsc::Receiver<Guest>) {
    let (sender, receiver) = mpsc::channel(guests_max);
    (Door(sender), receiver)
}

/// The exports of a process, wherever they are served.
pub trait Routes {
    /// The export of that name and the way to it. The empty name is the default export, if there is one. It may take
    /// its time, within that of the handshake.
    fn find(&self, name: &str) -> impl Future<Output = Option<(ExportInfo, Door)>>;

    /// Names of all exports that clients may see.
    fn list(&self) -> impl Future<Output = Vec<String>>;
}

/// What one client asked for last.
struct RoutesCatalog<'a, R> {
    routes: &'a R,
    entrance: Entrance<'a>,
    found: RefCell<Option<(ExportInfo, Door)>>,
    listed: RefCell<Vec<String>>,
}

impl<R: Routes> Catalog for RoutesCatalog<'_, R> {
    type Handle = Door;

    fn find(&self, _: &str) -> Option<(ExportInfo, Door)> {
        self.found.borrow().clone()
    }

    fn list(&self) -> Vec<String> {
        self.listed.take()
    }

    fn admit(&self, _: &Door) -> Result<(), &'static str> {
        self.entrance.enter()
    }
}

impl<R: Routes> Prepared for RoutesCatalog<'_, R> {
    async fn prepare(&self, wanted: Wanted<'_>) {
        match wanted {
            Wanted::Export(name) => {
                let found = self.routes.find(name).await;
                // Only now: clients ask for the same name again and again, and its door stays open meanwhile.
                self.found.replace(found);
            }
            Wanted::List => {
                let listed = self.routes.list().await;
                self.listed.replace(listed);
            }
        }
    }
}

/// A stream that can leave its thread.
pub(super) trait Movable: AsyncRead + AsyncWrite + Unpin {
    fn leave(self) -> io::Result<MovableStream>;
}

/// Opaque to everybody but this module.
pub(super) struct MovableStream(Stream);

impl Movable for UnixStream {
    fn leave(self) -> io::Result<MovableStream> {
        self.into_std().map(Stream::Unix).map(MovableStream)
    }
}

impl Movable for TcpStream {
    fn leave(self) -> io::Result<MovableStream> {
        self.into_std().map(Stream::Tcp).map(MovableStream)
    }
}

/// Shakes hands, and sends the client through the door that it chose.
pub(super) async fn hand_over<S: Movable, R: Routes>(
    mut stream: S,
    routes: &R,
    options: ConnectionOptions,
    shutdown: impl Future<Output = ()>,
) {
    let mut window = Window::new();
    let entrance = Entrance::of(&options);
    let (found, listed) = Default::default();
    let catalog = RoutesCatalog { routes, entrance, found, listed };
    let shaken = tokio::select! {
        biased;
        () = shutdown => return,
        shaken = handshake::run(&mut stream, &mut window, &catalog, &options) => shaken,
    };
    let chosen = match shaken {
        Ok(Some(chosen)) => chosen,
        Ok(None) => return,
        // Said once for many of them.
        Err(NbdError::HandshakesFull) => return,
        Err(error) => {
            tracing::warn!(client = options.client, %error, "client connection ended");
            return;
        }
    };
    let place = catalog.entrance.leave();
    drop(catalog);
    let Chosen { session, info, handle: door } = chosen;
    let stream = match stream.leave() {
        Ok(MovableStream(stream)) => stream,
        Err(error) => {
            tracing::warn!(client = options.client, %error, "a client could not be handed over");
            return;
        }
    };
    let unread = window.unread().to_vec();
    let through = door.clone();
    let guest = Guest { stream, unread, session, info, client: options.client, place, door };
    if let Err(error) = through.0.try_send(guest) {
        let (reason, guest) = match error {
            mpsc::error::TrySendError::Full(guest) => ("too many clients wait for it", guest),
            mpsc::error::TrySendError::Closed(guest) => ("it is being closed", guest),
        };
        let (client, export) = (guest.client, guest.info.name);
        tracing::warn!(client, export, reason, "a client was turned away");
    }
}

/// Serves a client that came through the door.
pub(super) async fn serve<E: Exports>(
    guest: Guest,
    exports: Rc<E>,
    mut options: ConnectionOptions,
    shutdown: impl Future<Output = ()>,
) {
    let Guest { stream, unread, session, info, client, place: _place, door: _door } = guest;
    options.client = client;
    // It may have gone while the client was on its way.
    let Some(handle) = exports.find(&info.name) else { return };
    if weir_device::DeviceExt::size(&*handle.device) != info.size {
        let (export, told) = (info.name, info.size);
        tracing::warn!(
            client = options.client,
            export,
            told,
            "a client was turned away: the size changed while it shook hands"
        );
        return;
    }
    let window = Window::of(&unread);
    let chosen = Chosen { session, info, handle };
    let shutdown = std::pin::pin!(shutdown);
    let failed = |source| NbdError::Connection { source };
    let ended = match stream {
        Stream::Unix(stream) => match UnixStream::from_std(stream).map_err(failed) {
            Ok(stream) => transmit(stream, window, chosen, options, shutdown).await,
            Err(error) => not_taken(error),
        },
        Stream::Tcp(stream) => match TcpStream::from_std(stream).map_err(failed) {
            Ok(stream) => transmit(stream, window, chosen, options, shutdown).await,
            Err(error) => not_taken(error),
        },
    };
    // Both have logged how it ended.
    drop(ended);
}

fn not_taken(error: NbdError) -> Result<(), NbdError> {
    tracing::warn!(%error, "a client could not be taken over");
    Err(error)
}
