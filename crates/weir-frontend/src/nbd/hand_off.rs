//! A client between two threads: the one that listens shakes hands with it, the one that owns the volume serves it.

use std::cell::RefCell;
use std::future::Future;
use std::rc::Rc;

use tokio::sync::mpsc;
use weir_device::{ByteStream, DetachedStream};
use weir_nbd::{Catalog, ExportInfo, Session, Wanted};

use super::error::NbdError;
use super::export::Exports;
use super::handshake::{self, Chosen, Prepared};
use super::options::ConnectionOptions;
use super::places::{Admittance, Place};
use super::session::transmit;
use super::window::Window;

/// A connection whose client has chosen its export, on its way to the thread that serves it. What the client sent since
/// comes with it.
#[derive(Debug)]
pub struct HandedOff {
    stream: Box<dyn DetachedStream>,
    unread: Vec<u8>,
    session: Session,
    info: ExportInfo,
    client: String,
    /// Until it has left.
    place: Option<Place>,
    /// The channel that it came through stays open as long as it is there.
    channel: HandOff,
}

/// The channel to the thread that serves an export. It may be used from any thread. It closes when nobody has it any
/// more, neither at hand nor as a connection that came through it.
#[derive(Clone, Debug)]
pub struct HandOff(mpsc::Sender<HandedOff>);

/// Leads to a channel that is open, and does not keep it open.
#[derive(Clone, Debug)]
pub struct WeakHandOff(mpsc::WeakSender<HandedOff>);

impl HandOff {
    /// The way to this channel for as long as somebody else has it.
    #[must_use]
    pub fn downgrade(&self) -> WeakHandOff {
        WeakHandOff(self.0.downgrade())
    }
}

impl WeakHandOff {
    /// The channel, if it is open.
    #[must_use]
    pub fn upgrade(&self) -> Option<HandOff> {
        self.0.upgrade().map(HandOff)
    }
}

/// A channel in which `waiting_max` connections may wait to be taken.
pub(super) fn channel(waiting_max: usize) -> (HandOff, mpsc::Receiver<HandedOff>) {
    let (sender, receiver) = mpsc::channel(waiting_max);
    (HandOff(sender), receiver)
}

/// The exports of a process, wherever they are served.
pub trait ExportDirectory {
    /// The export of that name and the channel to it. The empty name is the default export, if there is one. It may
    /// take its time, within that of the handshake.
    fn find(&self, name: &str) -> impl Future<Output = Option<(ExportInfo, HandOff)>>;

    /// Names of all exports that clients may see.
    fn list(&self) -> impl Future<Output = Vec<String>>;
}

/// What one client asked for last.
struct DirectoryCatalog<'a, R> {
    directory: &'a R,
    admittance: Admittance<'a>,
    found: RefCell<Option<(ExportInfo, HandOff)>>,
    listed: RefCell<Vec<String>>,
}

impl<R: ExportDirectory> Catalog for DirectoryCatalog<'_, R> {
    type Handle = HandOff;

    fn find(&self, _: &str) -> Option<(ExportInfo, HandOff)> {
        self.found.borrow().clone()
    }

    fn list(&self) -> Vec<String> {
        self.listed.take()
    }

    fn admit(&self, _: &HandOff) -> Result<(), &'static str> {
        self.admittance.take_place()
    }
}

impl<R: ExportDirectory> Prepared for DirectoryCatalog<'_, R> {
    async fn prepare(&self, wanted: Wanted<'_>) {
        match wanted {
            Wanted::Export(name) => {
                let found = self.directory.find(name).await;
                // Only now: clients ask for the same name again and again, and its channel stays open meanwhile.
                self.found.replace(found);
            }
            Wanted::List => {
                let listed = self.directory.list().await;
                self.listed.replace(listed);
            }
        }
    }
}

/// Shakes hands, and hands the connection to the thread that serves the export that its client chose.
pub(super) async fn hand_off<R: ExportDirectory>(
    mut stream: Box<dyn ByteStream>,
    directory: &R,
    options: ConnectionOptions,
    shutdown: impl Future<Output = ()>,
) {
    let mut window = Window::new();
    let admittance = Admittance::of(&options.places, &options.peer, &options.client);
    let (found, listed) = Default::default();
    let catalog = DirectoryCatalog { directory, admittance, found, listed };
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
    let place = catalog.admittance.place();
    drop(catalog);
    let Chosen { session, info, handle: channel } = chosen;
    let stream = match stream.detach() {
        Ok(stream) => stream,
        Err(error) => {
            tracing::warn!(client = options.client, %error, "a client could not be handed over");
            return;
        }
    };
    let unread = window.unread().to_vec();
    let sender = channel.0.clone();
    let client = options.client;
    let handed_off = HandedOff { stream, unread, session, info, client, place, channel };
    if let Err(error) = sender.try_send(handed_off) {
        let (reason, refused) = match error {
            mpsc::error::TrySendError::Full(refused) => ("too many clients wait for it", refused),
            mpsc::error::TrySendError::Closed(refused) => ("it is being closed", refused),
        };
        let (client, export) = (refused.client, refused.info.name);
        tracing::warn!(client, export, reason, "a client was turned away");
    }
}

/// Serves a client whose connection was handed off.
pub(super) async fn serve<E: Exports>(
    handed_off: HandedOff,
    exports: Rc<E>,
    mut options: ConnectionOptions,
    shutdown: impl Future<Output = ()>,
) {
    let HandedOff { stream, unread, session, info, client, place: _place, channel: _channel } =
        handed_off;
    options.client = client;
    // It may have gone while the client was on its way.
    let Some(handle) = exports.find(&info.name) else {
        let (client, export) = (options.client, info.name);
        tracing::warn!(client, export, "a client was turned away: the export was closed meanwhile");
        return;
    };
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
    match stream.attach() {
        // It logs how it ended.
        Ok(stream) => drop(transmit(stream, window, chosen, options, shutdown).await),
        Err(error) => {
            tracing::warn!(client = options.client, %error, "a client could not be taken over");
        }
    }
}
