//! A process that serves volumes: opened, offered over NBD by their names, reached by verbs, and closed in order.
//!
//! Every volume lives on one shard; a listener does the handshakes, and hands each client off to the thread of the
//! volume that it chose. State that is shared between threads is used when a client connects or a verb comes, never by
//! an operation on a volume.

use std::collections::BTreeMap;
use std::rc::Rc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};

use futures_util::future::join_all;
use tokio::sync::{oneshot, watch as watch_channel};
use tokio::time::Instant;
use weir_device::{LocalBoxFuture, VolumeId, mutant};
use weir_frontend::nbd::{ConnectionOptions, ListenerOptions, Security, Sources, hand_off_clients};
use weir_log::OpenReport;
use weir_log::catalog::VolumeName;
use weir_net::tls::{ReadAnew, Tls, TlsStatus};
use weir_net::{Listening, listen_on};
use weir_store::{Access, Store};

use crate::api::server::{ApiServer, TcpApi};
use crate::api::types::Limits;
use crate::error::{NodeError, ProcessId};
use crate::home::probe::Probes;
use crate::home::{Home, processes};
use crate::node::Node;
use crate::node::shard::ShardContext;
use crate::serve::attach;
use crate::serve::cache::NodeCache;
use crate::serve::cache_setting::CacheSetting;
use crate::serve::cache_start::open_for_start;
use crate::serve::close::told_of_wait;
use crate::serve::core::{Core, Entry};
use crate::serve::events::{EventKind, Events};
use crate::serve::exports::Exported;
use crate::serve::handed_over::{self, HandedOver, Parting, Was, wanted_after};
use crate::serve::left;
use crate::serve::lock::lock;
use crate::serve::nbd_place::{NbdAccess, NbdAddress, NbdPlace};
use crate::serve::one_export::connection_options;
use crate::serve::reload::{self, Reloaded};
use crate::serve::replica::End;
use crate::serve::running::{ANCILLARY_TIME, BeingClosed, Changing, Ended, Running};
use crate::serve::sessions::kept::Sessions;
use crate::serve::sessions::resume::resume;
use crate::serve::sockets::{self, BoundSocket, Inherited};
use crate::serve::spec::{Closing, EndpointKind, Stopped, VolumeSet, VolumeSpec};
use crate::serve::unsent::Unsent;
use crate::serve::views::Views;
use crate::status::{certificates, watch};

/// Where verbs reach the process.
#[derive(Clone, Debug)]
pub enum ApiPlace {
    /// `api.sock` in the data directory: there is one such process per data directory.
    Node,
    /// The socket of the one volume that is served.
    Volume,
}

/// What is to be served, and how.
#[derive(Debug)]
pub struct ServiceOptions {
    /// Where volumes live.
    pub home: Home,
    /// Which of them.
    pub volumes: VolumeSet,
    /// How a volume is served that is attached later and that `volumes` does not name. The name in it is not used.
    pub template: Box<VolumeSpec>,
    /// Where they are offered; the default socket in the data directory where this is empty.
    pub nbd: Vec<NbdAddress>,
    /// Who may connect to those that are unix sockets.
    pub nbd_access: NbdAccess,
    /// The socket of the API.
    pub api: ApiPlace,
    /// The TCP address of the API, if there is one.
    pub api_tcp: Option<TcpApi>,
    /// Certificates: with them, clients over TCP must speak TLS, unless their address is one for those who do not.
    pub tls: Option<Tls>,
    /// Limits on uploads.
    pub limits: Limits,
    /// The cache on the local disk.
    pub cache: CacheSetting,
    /// Bytes that are written to it in a day at most.
    pub cache_wear: Option<u64>,
    /// Sockets that were inherited, and listen already.
    pub inherited: Inherited,
    /// Volumes that the process before this one served. Those that were attached to it are served on, those that were
    /// detached from it are not served; others that are not served any more are closed.
    pub left: Vec<HandedOver>,
}

/// A volume that is being served.
#[derive(Clone, Debug)]
pub struct ServedInfo {
    /// Name of the volume.
    pub name: VolumeName,
    /// Its identity.
    pub id: VolumeId,
    /// Its size in bytes.
    pub size: u64,
    /// Whether it was created just now.
    pub created: bool,
    /// Where its bytes go, for people.
    pub place: String,
    /// Where clients find it.
    pub uri: String,
    /// What recovery did.
    pub report: OpenReport,
}

/// A listener on a shard, to be ended.
#[derive(Debug)]
struct ListenerHandle {
    stop: oneshot::Sender<()>,
    ended: oneshot::Receiver<()>,
}

/// A process that serves. Dropping it stops it without waiting for the end.
#[derive(Debug)]
pub struct Service {
    pub(super) core: Arc<Core>,
    listeners: Vec<ListenerHandle>,
    api: Vec<ApiServer>,
    sockets: Vec<BoundSocket>,
    watch: tokio::task::JoinHandle<()>,
    /// Copies of the listening sockets, for a process that comes after this one.
    handles: Vec<std::os::fd::OwnedFd>,
    /// The volumes in no store that its end could not close in order.
    failed: Vec<HandedOver>,
}

impl Drop for Service {
    fn drop(&mut self) {
        self.watch.abort();
    }
}

/// Logs what is wrong with certificates that are taken all the same.
fn warn_of_certificates(tls: &Tls) {
    for told in certificates::warnings(tls) {
        tracing::warn!(directory = %tls.directory().display(), "{told}");
    }
}

impl Node {
    /// Opens volumes and serves them; returns once clients can connect.
    ///
    /// # Errors
    /// When an address cannot be listened on, or none of the volumes can be found, created or opened. If some of them
    /// can, the others are in [`Service::not_served`].
    #[inline(never)]
    pub fn serve<'a>(
        &'a self,
        mut options: ServiceOptions,
    ) -> LocalBoxFuture<'a, Result<Service, NodeError>> {
        Box::pin(async move {
            let home = options.home.clone();
            options.check_certificates()?;
            for warning in options.warnings() {
                tracing::warn!("{warning}");
            }
            home.data.prepare()?;
            let mut sockets = Vec::new();
            let mut listeners = Vec::new();
            if matches!(options.api, ApiPlace::Node) {
                // First of all: a second process in this data directory fails here.
                let path = home.data.api_socket();
                let listener = api_socket(&path, &mut options.inherited, &mut sockets);
                listeners.push(listener.map_err(|error| second_node(error, &home))?);
            }
            sockets::check_free(&options.nbd, &options.inherited, options.tls.is_some()).await?;
            let core = self.core(&options).await?;
            core.set_limits(options.limits)?;
            core.cache.limit_wear(options.cache_wear);
            let core = Arc::new(core);
            if core.store.is_some() {
                open_for_start(&core, options.cache).await;
            }
            let wanted = wanted_after(&core, &options.left).await?;
            // A process that took over goes on even if no volume can be opened: clients and verbs ask it what is wrong.
            let takes_over = !options.left.is_empty();
            attach::open_all(&core, wanted.specs, wanted.unreadable, takes_over).await?;
            let left = std::mem::take(&mut options.left).into_iter();
            let left = left
                .filter(|one| !matches!(one.was, Was::Detached { .. } | Was::Going { .. }))
                .map(|one| one.name);
            let left = left.filter(|name| !core.offers(name.as_str())).collect();
            left::close(&core, left)?;
            // Before anybody new is let in.
            let is_insecure =
                |at: &NbdAddress| matches!(at, NbdAddress::Tcp { insecure: true, .. });
            let needs_tls = core.tls.is_some() && !options.nbd.iter().any(is_insecure);
            resume(&core, options.inherited.take_sessions(), needs_tls).await;
            let watch = core.node.workers.spawn(watch::run(Arc::clone(&core)));
            let mut service = Service {
                core,
                listeners: Vec::new(),
                api: Vec::new(),
                sockets,
                watch,
                handles: Vec::new(),
                failed: Vec::new(),
            };
            match service.listen(options, listeners).await {
                Ok(()) => Ok(service),
                Err(error) => {
                    // Nobody new could connect, but sessions of the program before may have gone on.
                    if let Err(error) = service.stop(Closing::ToStore).await {
                        tracing::error!(%error, "not all volumes could be closed in order");
                    }
                    Err(error)
                }
            }
        })
    }

    /// The store of the volumes that are to be served, which is made if one of them may be created.
    async fn store(&self, options: &ServiceOptions) -> Result<Store, NodeError> {
        let home = options.home.clone();
        let missed = is_missed(&options.volumes).map(|spec| spec.name.to_string());
        let open = |context: Rc<ShardContext>| async move {
            let Some(name) = missed else { return home.open_or_make_store(&context).await };
            match home.open_store(&context, Access::Write).await {
                // The store in the data directory is there as soon as a volume is.
                Err(NodeError::NoStore { store, .. }) if store == home.data.store_url() => {
                    Err(NodeError::SizeNeeded { name, store })
                }
                opened => opened,
            }
        };
        self.run(0, open).await?
    }

    async fn core(&self, options: &ServiceOptions) -> Result<Core, NodeError> {
        let store =
            if options.volumes.needs_store() { Some(self.store(options).await?) } else { None };
        let home = options.home.clone();
        Ok(Core {
            store_shares_disk: store.is_some() && home.data.shares_disk_with(&home.store_url),
            home,
            store,
            node: self.handle(),
            cache: NodeCache::default(),
            probes: Probes::default(),
            tls: options.tls.clone(),
            sources: Sources::default(),
            events: Events::default(),
            started: Instant::now(),
            is_stopping: AtomicBool::new(false),
            stopping: watch_channel::Sender::new(false),
            volume_set: Mutex::new(options.volumes.clone()),
            by_hand: Mutex::default(),
            is_single: matches!(options.api, ApiPlace::Volume),
            template: Mutex::new(options.template.clone()),
            volumes: Mutex::default(),
            running: Mutex::default(),
            closing: Mutex::default(),
            openings: Mutex::default(),
            changing: Changing::default(),
            not_served: Mutex::default(),
            failed_before: Default::default(),
            left: Mutex::default(),
            left_turn: tokio::sync::Mutex::default(),
            kept_turn: Arc::default(),
            views: Views::default(),
            nbd_places: Mutex::default(),
            limits: Mutex::default(),
            sessions: Sessions::default(),
            not_loaded: Mutex::default(),
        })
    }
}

/// The volume that is missing, where no volume can be created because none has a size: then no store is made either, so
/// that a mistyped URL does not look like a store without volumes from then on.
fn is_missed(volumes: &VolumeSet) -> Option<&VolumeSpec> {
    match volumes {
        VolumeSet::Listed(specs) if specs.iter().all(|spec| spec.size.is_none()) => {
            specs.iter().find(|spec| spec.endpoint == EndpointKind::Log)
        }
        _ => None,
    }
}

/// The error for an API socket that another process listens on: it serves from the same data directory.
fn second_node(error: NodeError, home: &Home) -> NodeError {
    match error {
        NodeError::SocketInUse { path, .. } => {
            let stream = std::os::unix::net::UnixStream::connect(&path).ok();
            let peer =
                stream.and_then(|stream| rustix::net::sockopt::socket_peercred(&stream).ok());
            let process = ProcessId(peer.map(|peer| peer.pid.as_raw_nonzero().get()));
            let data_dir = home.data.path().display().to_string();
            let is_dead = |id| matches!(processes::state_of(id), Some('Z' | 'X'));
            let fate = match process.0.is_some_and(is_dead) {
                true => (
                    ", which was killed and whose disk does not answer",
                    "no signal ends it before that disk answers, or the machine is booted anew",
                ),
                false => ("", "end that process with SIGTERM first, or choose another --data-dir"),
            };
            NodeError::SecondNode { data_dir, process, fate }
        }
        other => other,
    }
}

/// The socket of the API: an inherited one, or a new one.
fn api_socket(
    path: &std::path::Path,
    inherited: &mut Inherited,
    sockets: &mut Vec<BoundSocket>,
) -> Result<std::os::unix::net::UnixListener, NodeError> {
    if let Some(listener) = inherited.take_unix(path) {
        return Ok(listener);
    }
    let (listener, bound) = sockets::bind_unix(path, sockets::API_MODE)?;
    sockets.push(bound);
    Ok(listener)
}

impl Service {
    /// The volumes that are served.
    #[must_use]
    pub fn served(&self) -> Vec<ServedInfo> {
        let info = |entry: Arc<Entry>| ServedInfo {
            name: entry.name.clone(),
            id: entry.id,
            size: entry.gate.size(),
            created: entry.created,
            place: entry.place.clone(),
            uri: self.core.uri(entry.name.as_str()),
            report: entry.report.clone(),
        };
        self.core.entries().into_iter().map(info).collect()
    }

    /// Serves what `volumes` names, and nothing else, without touching those that are served already. A volume that is
    /// not named any more is closed with everything in the store, unless it has clients. One that was attached or
    /// detached by hand stays so, unless what `volumes` says of it is new. What `volumes` does not name is served as
    /// `template` says when it is attached from now on; the name in it is not used.
    ///
    /// # Errors
    /// When the store cannot list its volumes. Errors of single volumes are in the report.
    #[inline(never)]
    pub fn reload<'a>(
        &'a self,
        volumes: VolumeSet,
        template: Box<VolumeSpec>,
    ) -> LocalBoxFuture<'a, Result<Reloaded, NodeError>> {
        self.take_settings(volumes, template);
        self.follow_settings()
    }

    /// The first part of [`Service::reload`]: whom the settings let in counts from now on. It waits for nothing.
    pub fn take_settings(&self, volumes: VolumeSet, template: Box<VolumeSpec>) {
        reload::take_settings(&self.core, volumes, template);
    }

    /// The second part: opens and closes volumes as the settings say that were taken last. One at a time. It waits for
    /// a minute at most for what is closed, and for as much for what is opened; both go on after that.
    ///
    /// # Errors
    /// Those of a reload.
    #[inline(never)]
    pub fn follow_settings<'a>(&'a self) -> LocalBoxFuture<'a, Result<Reloaded, NodeError>> {
        Box::pin(async move { reload::follow_settings(&self.core).await })
    }

    /// The certificates, where there are any: to be read anew on a thread that may block.
    #[must_use]
    pub fn certificates(&self) -> Option<Tls> {
        self.core.tls.clone()
    }

    /// Uses certificates that were read anew from now on; whose they are.
    ///
    /// # Errors
    /// Why they may not take the place of those in use, which stay in use.
    pub fn take_certificates(&self, read: ReadAnew) -> Result<TlsStatus, NodeError> {
        let tls = self.core.tls.as_ref().expect("they were read");
        tls.take(read)?;
        warn_of_certificates(tls);
        Ok(tls.status())
    }

    /// Has the status say why the certificates were not loaded, until some are.
    pub fn note_certificates(&self, trouble: Option<String>) {
        lock(&self.core.not_loaded).certificates = trouble;
    }

    /// Has the status say why the configuration was not loaded, until one is.
    pub fn note_reload(&self, trouble: Option<String>) {
        lock(&self.core.not_loaded).configuration = trouble;
    }

    /// Has the status say why the volumes that it names are not known, until they are.
    pub fn note_volumes(&self, trouble: Option<String>) {
        lock(&self.core.not_loaded).volumes = trouble;
    }

    /// Whether the next process may go on with these certificates: what keeps a reload from taking them keeps this
    /// process from being replaced.
    ///
    /// # Errors
    /// Those of a reload.
    pub fn check_next_certificates(&self, next: &Tls) -> Result<(), NodeError> {
        let Some(tls) = &self.core.tls else { return Ok(()) };
        next.check_after(tls).map_err(NodeError::from)
    }

    /// Whether the store is on the disk of the journals, so that the loss of that disk takes both.
    #[must_use]
    pub fn store_shares_disk(&self) -> bool {
        self.core.store_shares_disk
    }

    /// The bytes of the volumes served now that are not in the store, also while these are being closed.
    ///
    /// # Errors
    /// [`NodeError::ShuttingDown`].
    pub fn unsent(&self) -> Result<Unsent, NodeError> {
        let mut unsent = Unsent::default();
        for entry in self.core.entries().into_iter().filter(|entry| !entry.is_elsewhere()) {
            // Those who are told begin the stop later than this is sent.
            drop(unsent.look_at(&self.core.node, (entry.shard, entry.id))?);
        }
        Ok(unsent)
    }

    /// The volumes that should be served and are not, with the reason.
    #[must_use]
    pub fn not_served(&self) -> BTreeMap<String, String> {
        self.core.not_served()
    }

    /// The volumes that the next process is to serve or to close. Those in no store whose close fails come with
    /// [`Parting`].
    #[must_use]
    pub fn handed_over(&self) -> Vec<HandedOver> {
        handed_over::handed_over(&self.core)
    }

    /// Where NBD clients find the process.
    #[must_use]
    pub fn nbd_uris(&self) -> Vec<String> {
        self.core.nbd_uris()
    }

    /// Where the API is reached over TCP.
    #[must_use]
    pub fn api_urls(&self) -> Vec<&str> {
        self.api.iter().filter_map(ApiServer::url).collect()
    }

    async fn listen(
        &mut self,
        mut options: ServiceOptions,
        mut api: Vec<std::os::unix::net::UnixListener>,
    ) -> Result<(), NodeError> {
        let data = options.home.data.clone();
        if let (ApiPlace::Volume, Some(entry)) = (&options.api, self.core.entries().first()) {
            let path = data.control_socket(entry.id);
            api.push(api_socket(&path, &mut options.inherited, &mut self.sockets)?);
        }
        if options.nbd.is_empty() && options.inherited.is_empty() {
            options.nbd.push(NbdAddress::Unix(match (&options.api, self.core.entries().first()) {
                (ApiPlace::Volume, Some(entry)) => data.nbd_socket(entry.name.as_str()),
                _ => data.node_nbd_socket(),
            }));
        }
        for address in &options.nbd {
            let listening = self.bind(address, options.nbd_access, &mut options.inherited).await?;
            let insecure = matches!(address, NbdAddress::Tcp { insecure: true, .. });
            self.receive(listening, insecure).await?;
        }
        // Inherited sockets that no setting names are for NBD clients.
        for listening in options.inherited.rest() {
            self.receive(listening, false).await?;
        }
        for listener in api {
            self.keep(&listener)?;
            self.api.push(ApiServer::unix(Arc::clone(&self.core), listener)?);
        }
        if let Some(tcp) = options.api_tcp {
            self.api.push(ApiServer::tcp(Arc::clone(&self.core), tcp).await?);
        }
        Ok(())
    }

    /// Keeps a copy of a listening socket for the next process.
    fn keep(&mut self, socket: &impl std::os::fd::AsFd) -> Result<(), NodeError> {
        let copy = socket.as_fd().try_clone_to_owned();
        self.handles.push(copy.map_err(|e| NodeError::io("copying", "a listening socket", e))?);
        Ok(())
    }

    async fn bind(
        &mut self,
        address: &NbdAddress,
        access: NbdAccess,
        inherited: &mut Inherited,
    ) -> Result<Listening, NodeError> {
        match address {
            NbdAddress::Unix(path) => {
                let failed = |e| NodeError::io("listening on", path.display().to_string(), e);
                let path = std::path::absolute(path).map_err(failed)?;
                if let Some(listener) = inherited.take_unix(&path) {
                    return Ok(Listening::Unix(listener));
                }
                let (listener, bound) = sockets::bind_unix(&path, access.mode)?;
                sockets::give_to_group(&path, access.group)?;
                self.sockets.push(bound);
                Ok(Listening::Unix(listener))
            }
            NbdAddress::Tcp { address, insecure } => {
                let may_be_reached = *insecure || self.core.tls.is_some();
                let resolved = sockets::check_tcp(address, may_be_reached).await?;
                if let Some(listener) = inherited.take_tcp(&resolved) {
                    return Ok(Listening::Tcp(listener));
                }
                std::net::TcpListener::bind(&resolved[..])
                    .map(Listening::Tcp)
                    .map_err(|source| NodeError::io("listening on", address, source))
            }
        }
    }

    /// What clients of a socket must do: over TCP, TLS, unless that is not asked of them there.
    fn security(&self, listening: &Listening, insecure: bool) -> Security {
        match (&self.core.tls, listening) {
            (None, _) => Security::Clear,
            (Some(tls), Listening::Tcp(_)) if !insecure => Security::Required(tls.clone()),
            (Some(tls), _) if tls.check_serves().is_ok() => Security::Optional(tls.clone()),
            (Some(_), _) => Security::Clear,
        }
    }

    /// Accepts clients on a socket.
    async fn receive(&mut self, listening: Listening, insecure: bool) -> Result<(), NodeError> {
        let security = self.security(&listening, insecure);
        let unknown = |e| NodeError::io("asking for the name of", "a listening socket", e);
        let place = match &listening {
            Listening::Unix(listener) => {
                self.keep(listener)?;
                let address = listener.local_addr().map_err(unknown)?;
                NbdPlace::Unix(address.as_pathname().unwrap_or("".as_ref()).to_owned())
            }
            Listening::Tcp(listener) => {
                self.keep(listener)?;
                let address = listener.local_addr().map_err(unknown)?.to_string();
                NbdPlace::Tcp { address, tls: matches!(security, Security::Required(_)) }
            }
        };
        let (ready, started) = oneshot::channel();
        let (stop, stopped) = oneshot::channel::<()>();
        let core = Arc::clone(&self.core);
        let ended = self.core.node.submit(0, move |context| async move {
            let connection = ConnectionOptions {
                security,
                sources: core.sources.clone(),
                ..connection_options(&context)
            };
            let options = ListenerOptions::new(connection);
            match listen_on(listening) {
                Ok(listener) => {
                    let server = hand_off_clients(listener, Rc::new(Exported(core)), options);
                    // If the receiver is gone, the sender of `stopped` is as well, and the next line returns at once.
                    let _ = ready.send(Ok(()));
                    let _ = stopped.await;
                    server.stop().await;
                }
                Err(error) => drop(ready.send(Err(error))),
            }
        })?;
        let failed = |e| NodeError::io("listening on", "a socket for NBD", e);
        started.await.map_err(|_| NodeError::ShuttingDown)?.map_err(failed)?;
        self.listeners.push(ListenerHandle { stop, ended });
        lock(&self.core.nbd_places).push(place);
        Ok(())
    }

    /// Accepts no more clients, finishes what they have in flight, and closes the volumes.
    ///
    /// # Errors
    /// When a volume could not be flushed or closed; the others are closed all the same.
    #[inline(never)]
    pub fn stop(mut self, closing: Closing) -> LocalBoxFuture<'static, Result<Stopped, NodeError>> {
        Box::pin(async move { self.end(closing).await })
    }

    /// [`Service::stop`] for a next process: socket files stay, and the listening sockets are returned, with the
    /// sessions that the next process can go on with, if it takes any.
    ///
    /// A volume that could not be closed (it was fenced, its disk failed) is logged, and the others are handed over all
    /// the same: the next process says what is wrong with it. What is wrong with one in no store is known to this
    /// process alone, and is in what is returned.
    #[inline(never)]
    pub fn hand_over(mut self, takes_sessions: bool) -> LocalBoxFuture<'static, Parting> {
        Box::pin(async move {
            if takes_sessions {
                self.core.sessions.begin();
            }
            if let Err(error) = self.end(Closing::Quick).await {
                tracing::warn!(%error, "handing over without a clean end of all volumes");
            }
            for socket in self.sockets.drain(..) {
                socket.leave();
            }
            let sockets = std::mem::take(&mut self.handles);
            let failed = std::mem::take(&mut self.failed);
            Parting { sockets, sessions: self.core.sessions.take(), failed }
        })
    }

    /// Closes what is served, and waits for that and for the closes that detaches began.
    async fn close_all(
        &self,
        closing: Closing,
        running: BTreeMap<String, Running>,
        detaching: Vec<(String, Option<Ended>)>,
    ) -> Vec<(String, Result<Stopped, NodeError>)> {
        let core = &*self.core;
        let mut ending: Vec<LocalBoxFuture<'_, _>> = Vec::new();
        for (name, running) in running {
            let mut unsent = Unsent::default();
            let entry = core.entry(&name);
            let found = entry.as_ref().map(|one| unsent.look_at(&core.node, (one.shard, one.id)));
            if let Some(entry) = entry.filter(|_| !mutant("close_at_stop_not_seen")) {
                core.note_closing(&entry, None, unsent);
            }
            let ended = async move {
                // An error means that its thread has ended.
                if let Some(Ok(found)) = found {
                    let _ = found.await;
                }
                running.stop(closing).await
            };
            ending.push(Box::pin(async move {
                let result = told_of_wait(core, &name, ended).await;
                lock(&core.closing).remove(&name);
                (name, result)
            }));
        }
        for (name, ended) in detaching {
            // The detach says in the log what it waits for.
            let Some(ended) = ended else { continue };
            ending.push(Box::pin(async move {
                (name, ended.await.unwrap_or(Err(NodeError::ShuttingDown)))
            }));
        }
        join_all(ending).await
    }

    async fn end(&mut self, closing: Closing) -> Result<Stopped, NodeError> {
        let (mut running, detaching) = {
            let mut running = lock(&self.core.running);
            // Under the lock: a volume that is opened at this moment is in the table already, or is not offered at all.
            self.core.is_stopping.store(true, Ordering::Relaxed);
            let mut detaching = lock(&self.core.closing);
            // The next process is told of volumes of a store, whose journals keep all, and is not kept waiting by them.
            // Of others nothing but this process has what was acknowledged.
            let is_waited_for = |one: &BeingClosed| {
                let is_elsewhere = one.endpoint != EndpointKind::Log;
                closing == Closing::ToStore
                    || (is_elsewhere && !mutant("replacement_cuts_closes_short"))
            };
            let detaching = detaching.iter_mut().filter(|(_, one)| is_waited_for(one));
            let detaching = detaching.map(|(name, one)| (name.clone(), one.ended.take()));
            let detaching: Vec<_> = detaching.collect();
            (std::mem::take(&mut *running), detaching)
        };
        self.core.stopping.send_replace(true);
        self.core.events.note(EventKind::NodeStopping, None, "closing all volumes");
        let listeners = std::mem::take(&mut self.listeners);
        let followings: Vec<_> = running.values_mut().filter_map(Running::take_following).collect();
        let core = Arc::clone(&self.core);
        let ancillary = async move {
            for ListenerHandle { stop, ended } in listeners {
                // They may have ended by themselves.
                let _ = stop.send(());
                let _ = ended.await;
            }
            join_all(followings.into_iter().map(End::wait)).await;
            core.views.close().await;
        };
        if tokio::time::timeout(ANCILLARY_TIME, ancillary).await.is_err() {
            tracing::warn!(
                "closing the volumes while handshakes, replicas or snapshots still wait for a store"
            );
        }
        let (mut stopped, mut first_error) = (Stopped::Clean, None);
        for (name, result) in self.close_all(closing, running, detaching).await {
            let entry = lock(&self.core.volumes).remove(&name);
            match result {
                Ok(Stopped::Clean) => {
                    self.core.events.note(EventKind::VolumeClosed, Some(&name), "clean");
                }
                Ok(Stopped::LocalOnly) => stopped = Stopped::LocalOnly,
                Err(error) => {
                    tracing::error!(volume = %name, %error, "a volume could not be closed");
                    self.failed.extend(entry.and_then(|entry| HandedOver::failed(&entry, &error)));
                    first_error = first_error.or(Some(error));
                }
            }
        }
        if !self.core.left().is_empty() {
            // What the configuration no longer names and is not closed yet keeps the rest in its journal, too.
            stopped = Stopped::LocalOnly;
        }
        for api in self.api.drain(..) {
            api.stop().await;
        }
        self.core.cache.close(&self.core.node, &self.core.home).await;
        first_error.filter(|_| !mutant("stop_hides_failed_close")).map_or(Ok(stopped), Err)
    }
}
