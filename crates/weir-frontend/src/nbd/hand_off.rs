//! A client between two threads: the one that listens shakes hands with it, the one that owns the volume serves it.

use std::cell::RefCell;
use std::future::Future;
use std::rc::Rc;

use tokio::sync::mpsc;
use weir_device::{ByteStream, DetachedStream, Peer, SourceId, mutant};
use weir_nbd::{
    Admission, Attachment, Catalog, Exclusive, ExportInfo, NotAttached, NotOffered,
    ServerHandshake, Session, TransmissionFlags, Wanted,
};
use weir_net::tls::Tls;

use super::access::Access;
use super::error::NbdError;
use super::export::Exports;
use super::handshake::{self, Chosen, Prepared, Shaken};
use super::identity::{Identity, Sources};
use super::keep::{Kept, KeptState, Left};
use super::options::ConnectionOptions;
use super::places::{Admittance, Places, Taken};
use super::security::{Standing, until_ended};
use super::session::transmit;
use super::window::Window;

/// A connection whose client has chosen its export, on its way to the thread that serves it. What the client sent since
/// comes with it.
#[derive(Debug)]
pub struct HandedOff {
    stream: Box<dyn DetachedStream>,
    unread: Vec<u8>,
    session: Session,
    attachment: Option<Attachment>,
    info: ExportInfo,
    client: String,
    source: SourceId,
    peer: Peer,
    standing: Option<Standing>,
    /// Until it has left.
    taken: Taken,
    /// The channel that it came through stays open as long as it is there.
    channel: HandOff,
}

/// The channel to the thread that serves an export. It may be used from any thread. It closes when nobody has it any
/// more, neither at hand nor as a connection that came through it.
#[derive(Clone, Debug)]
pub struct HandOff {
    sender: mpsc::Sender<HandedOff>,
    /// Who may write the export.
    access: Access,
}

/// Leads to a channel that is open, and does not keep it open.
#[derive(Clone, Debug)]
pub struct WeakHandOff {
    sender: mpsc::WeakSender<HandedOff>,
    access: Access,
}

impl HandOff {
    /// The way to this channel for as long as somebody else has it.
    #[must_use]
    pub fn downgrade(&self) -> WeakHandOff {
        WeakHandOff { sender: self.sender.downgrade(), access: self.access.clone() }
    }
}

impl WeakHandOff {
    /// The channel, if it is open.
    #[must_use]
    pub fn upgrade(&self) -> Option<HandOff> {
        let sender = self.sender.upgrade()?;
        Some(HandOff { sender, access: self.access.clone() })
    }
}

/// A channel in which `waiting_max` connections may wait to be taken.
pub(super) fn channel(waiting_max: usize, access: Access) -> (HandOff, mpsc::Receiver<HandedOff>) {
    let (sender, receiver) = mpsc::channel(waiting_max);
    (HandOff { sender, access }, receiver)
}

/// The exports of a process, wherever they are served.
pub trait ExportDirectory {
    /// The export of that name and the channel to it, if it is for this client. The empty name is the default export,
    /// if there is one. It may take its time, within that of the handshake.
    fn find(
        &self,
        name: &str,
        client: &Identity,
    ) -> impl Future<Output = Result<(ExportInfo, HandOff), NotOffered>>;

    /// Names of all exports that this client may use.
    fn list(&self, client: &Identity) -> impl Future<Output = Vec<String>>;
}

/// What one client asked for last.
struct DirectoryCatalog<'a, R> {
    directory: &'a R,
    admittance: Admittance<'a>,
    /// Who asks.
    client: RefCell<Identity>,
    found: RefCell<Result<(ExportInfo, HandOff), NotOffered>>,
    listed: RefCell<Vec<String>>,
}

impl<R: ExportDirectory> Catalog for DirectoryCatalog<'_, R> {
    type Handle = HandOff;

    fn find(&self, _: &str) -> Result<(ExportInfo, HandOff), NotOffered> {
        self.found.borrow().clone()
    }

    fn list(&self) -> Vec<String> {
        self.listed.take()
    }

    fn attach(
        &self,
        (info, channel): (&ExportInfo, &HandOff),
        attachment: &Attachment,
    ) -> Result<Option<Exclusive>, NotAttached> {
        self.admittance.attach(&channel.access, (info, &self.named()), attachment)
    }

    fn admit(
        &self,
        (info, channel): (&ExportInfo, &HandOff),
        attachment: Option<&Attachment>,
    ) -> Result<Admission, &'static str> {
        self.admittance.admit(&channel.access, (info, &self.named()), attachment)
    }
}

impl<R> DirectoryCatalog<'_, R> {
    /// The client as people know it: who it has proved to be, where it has.
    fn named(&self) -> String {
        match &*self.client.borrow() {
            Identity::Anonymous => self.admittance.client().to_owned(),
            identity => format!("{} {identity}", self.admittance.client()),
        }
    }
}

impl<R: ExportDirectory> Prepared for DirectoryCatalog<'_, R> {
    async fn prepare(&self, wanted: Wanted<'_>) {
        let client = self.client.borrow().clone();
        match wanted {
            Wanted::Export(name) => {
                let found = self.directory.find(name, &client).await;
                // Only now: clients ask for the same name again and again, and its channel stays open meanwhile.
                *self.found.borrow_mut() = found;
            }
            Wanted::List => {
                let listed = self.directory.list(&client).await;
                self.listed.replace(listed);
            }
        }
    }
}

/// Shakes hands, and hands the connection to the thread that serves the export that its client chose.
pub(super) async fn hand_off<R: ExportDirectory>(
    stream: Box<dyn ByteStream>,
    directory: &R,
    mut options: ConnectionOptions,
    shutdown: impl Future<Output = ()>,
) {
    let mut window = Window::new();
    let admittance = Admittance::of(&options.places, &options.peer, &options.client);
    let catalog = DirectoryCatalog {
        directory,
        admittance,
        client: RefCell::new(Identity::of_peer(&options.peer)),
        found: RefCell::new(Err(NotOffered::Unknown)),
        listed: RefCell::default(),
    };
    let handshake = shake_hands(stream, &mut window, &catalog, &options);
    let shaken = tokio::select! {
        biased;
        () = shutdown => return,
        shaken = handshake::within_time(&options, handshake) => shaken,
    };
    let (stream, chosen, standing) = match shaken {
        Ok(Some(ready)) => ready,
        Ok(None) => return,
        // Said once for many of them.
        Err(NbdError::HandshakesFull) => return,
        Err(error) => {
            options.note_ended(&error);
            return;
        }
    };
    let taken = catalog.admittance.taken();
    let identity = catalog.client.take();
    drop(catalog);
    options.client = named(options.client, &identity);
    let (source, client) = (options.sources.of(&identity), options.client.clone());
    let Chosen { session, attachment, info, handle: channel } = chosen;
    let stream = match stream.detach() {
        Ok(stream) => stream,
        Err(error) => {
            tracing::warn!(client, %error, "a client could not be handed over");
            return;
        }
    };
    let unread = window.unread().to_vec();
    let handed_off = HandedOff {
        stream,
        unread,
        session,
        attachment,
        info,
        client,
        source,
        peer: options.peer.clone(),
        standing,
        taken,
        channel,
    };
    if let Err((export, reason)) = send(handed_off) {
        options.note_turned_away(&export, reason);
    }
}

/// Sends it through the channel that it is for; the name of the export and the reason if that takes nobody.
fn send(handed_off: HandedOff) -> Result<(), (String, &'static str)> {
    let sender = handed_off.channel.sender.clone();
    sender.try_send(handed_off).map_err(|error| match error {
        mpsc::error::TrySendError::Full(refused) => {
            (refused.info.name, "too many clients wait for it")
        }
        mpsc::error::TrySendError::Closed(refused) => (refused.info.name, "it is being closed"),
    })
}

/// Goes on with a connection that another process kept: hands it to the thread that serves its export now.
///
/// # Errors
/// A sentence why it cannot be gone on with; it has ended then.
pub fn go_on(
    kept: Kept,
    (info, channel): (ExportInfo, HandOff),
    (places, sources): (&Places, &Sources),
    tls: Option<&Tls>,
) -> Result<(), &'static str> {
    let Kept { stream, state } = kept;
    let source = sources.of(&state.identity());
    let KeptState { session, size, client, peer, certificate, unread, .. } = state;
    let is_read_only = session.flags.contains(TransmissionFlags::READ_ONLY);
    if info.size < size {
        return Err("the export is smaller now");
    }
    if info.read_only && !is_read_only {
        return Err("the export takes no writes any more");
    }
    let standing = match (certificate, tls) {
        (None, _) => None,
        (Some(certificate), Some(tls))
            if !tls.speaks_with(&certificate) && !mutant("old_tls_goes_on") =>
        {
            return Err("clients must speak a newer version of TLS now");
        }
        (Some(certificate), Some(tls)) => Some(Standing { tls: tls.clone(), certificate }),
        (Some(_), None) => return Err("there are no certificates any more"),
    };
    let admittance = Admittance::of(places, &peer, &client);
    // Who was told that it may not write takes nobody's right to.
    let asked = ExportInfo { read_only: is_read_only, ..info.clone() };
    match admittance.admit(&channel.access, (&asked, &client), None)? {
        Admission::AsOffered => {}
        Admission::ReadOnly => return Err("another client has exclusive access"),
    }
    let taken = admittance.taken();
    let attachment = None;
    let handed_off = HandedOff {
        stream,
        unread,
        session,
        attachment,
        info,
        client,
        source,
        peer,
        standing,
        taken,
        channel,
    };
    send(handed_off).map_err(|(_, reason)| reason)
}

/// A connection whose client has chosen its export, and what it stands on.
type Ready = (Box<dyn ByteStream>, Chosen<HandOff>, Option<Standing>);

/// Shakes hands, with TLS where the client asks for it and is offered it. `None` if the client said goodbye.
async fn shake_hands<R: ExportDirectory>(
    mut stream: Box<dyn ByteStream>,
    window: &mut Window,
    catalog: &DirectoryCatalog<'_, R>,
    options: &ConnectionOptions,
) -> Result<Option<Ready>, NbdError> {
    let mut handshake = ServerHandshake::new(options.security.offer());
    let (mut out, mut standing) = (Vec::new(), None);
    handshake.greet(&mut out);
    loop {
        let shaken = handshake::shake_hands(&mut handshake, &mut stream, window, catalog, &mut out);
        match shaken.await? {
            Shaken::Chosen(chosen) => return Ok(Some((stream, chosen, standing))),
            Shaken::Goodbye => return Ok(None),
            Shaken::StartTls => {
                if !window.unread().is_empty() {
                    return Err(NbdError::SentBeforeTls);
                }
                options.handshakes.tls_turn(&options.peer).await;
                let tls = options.security.tls().expect("it was offered");
                let secured = handshake::in_time(tls.accept(stream)).await??;
                stream = secured.stream;
                let name = secured.peer.holder.name.clone();
                catalog.client.replace(Identity::Certificate(name));
                // What was found for whoever it was in the clear is not for it.
                *catalog.found.borrow_mut() = Err(NotOffered::Unknown);
                standing = Some(Standing { tls: tls.clone(), certificate: secured.peer });
            }
        }
    }
}

/// The client's name in the log, with who it is.
fn named(client: String, identity: &Identity) -> String {
    match identity {
        Identity::Certificate(name) => format!("{client} {name}"),
        Identity::User(_) | Identity::Anonymous => client,
    }
}

/// Serves a client whose connection was handed off.
pub(super) async fn serve<E: Exports>(
    handed_off: HandedOff,
    exports: Rc<E>,
    mut options: ConnectionOptions,
    shutdown: impl Future<Output = ()>,
) {
    let HandedOff { stream, unread, session, attachment, info, client, source, .. } = handed_off;
    let (peer, standing) = (handed_off.peer, handed_off.standing);
    // Until it has left.
    let (taken, _channel) = (handed_off.taken, handed_off.channel);
    let _taken = (!mutant("rights_end_at_hand_off")).then_some(taken);
    (options.client, options.source, options.peer) = (client.clone(), source, peer.clone());
    // It may have gone while the client was on its way.
    let Some(handle) = exports.find(&info.name) else {
        options.note_turned_away(&info.name, "the export was closed meanwhile");
        return;
    };
    if weir_device::DeviceExt::size(&*handle.device) != info.size {
        options.note_turned_away(&info.name, "the size changed while it shook hands");
        return;
    }
    let window = Window::of(&unread);
    let (export, size) = (info.name.clone(), info.size);
    let chosen = Chosen { session, attachment, info, handle };
    let stream = match stream.attach() {
        Ok(stream) => stream,
        Err(error) => {
            tracing::warn!(client = options.client, %error, "a client could not be taken over");
            return;
        }
    };
    let keeper = options.keeper.clone();
    let served = {
        let shutdown = std::pin::pin!(until_ended(shutdown, standing.as_ref(), &client));
        // It logs how it ended.
        transmit(stream, window, chosen, &*exports, options, shutdown).await
    };
    let (Ok(Some((stream, Left { session, unread }))), Some(keeper)) = (served, keeper) else {
        return;
    };
    let certificate = standing.map(|standing| standing.certificate);
    match stream.detach() {
        Ok(stream) => {
            let state = KeptState { export, session, size, client, peer, certificate, unread };
            keeper.keep(Kept { stream, state });
        }
        Err(error) => tracing::warn!(client, %error, "a client could not be handed over"),
    }
}
