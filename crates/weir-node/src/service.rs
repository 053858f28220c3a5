//! A process that serves volumes: opened, offered over NBD by their names, reached by verbs, and closed in order.
//!
//! Every volume lives on one shard; a listener shakes hands with clients and sends each through the door of the volume
//! that it chose. What is shared between threads here is looked at when a client connects or a verb comes, never by an
//! operation on a volume.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::rc::Rc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use futures_util::future::join_all;
use rustix::process::{Resource, getrlimit};
use tokio::sync::oneshot;
use tokio::time::Instant;
use weir_device::{VolumeId, with_causes};
use weir_frontend::nbd::{Door, ExportInfo, ListenerOptions, Listening, Routes, receive};
use weir_log::catalog::{self, VolumeName};
use weir_log::{OpenReport, VolumeState};
use weir_store::Store;

use crate::api::server::{ApiServer, TcpApi};
use crate::api::types::Limits;
use crate::error::{NodeError, ProcessId};
use crate::events::Events;
use crate::gate::Gate;
use crate::host::{self, Closing, EndpointKind, Stopped, VolumeSpec, connection_options, describe};
use crate::known_stores;
use crate::left;
use crate::nbd_place::NbdPlace;
use crate::node::{Node, NodeHandle};
use crate::replicas::{self, Following};
use crate::sockets::{self, BoundSocket, Inherited};
use crate::views::{self, Views};
use crate::volumes::Home;
use crate::watch;

/// Where volumes are offered over NBD.
#[derive(Clone, Debug)]
pub enum NbdAddress {
    /// A unix socket.
    Unix(PathBuf),
    /// A TCP address.
    Tcp {
        /// `host:port`.
        address: String,
        /// Take an address that other machines reach.
        insecure: bool,
    },
}

/// Which volumes are served.
#[derive(Clone, Debug)]
pub enum VolumeSet {
    /// These.
    Listed(Vec<VolumeSpec>),
    /// Every volume of the store, as this one says but for the name.
    All(Box<VolumeSpec>),
}

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
    /// Which.
    pub volumes: VolumeSet,
    /// Where they are offered; the default socket in the data directory where this is empty.
    pub nbd: Vec<NbdAddress>,
    /// Where verbs come in.
    pub api: ApiPlace,
    /// Where verbs come in from elsewhere, if they may.
    pub api_tcp: Option<TcpApi>,
    /// Limits on uploads.
    pub limits: Limits,
    /// Sockets that listen already.
    pub inherited: Inherited,
    /// Volumes that the process before this one served. Those of them that are not served any more are closed.
    pub left: Vec<VolumeName>,
}

impl ServiceOptions {
    /// Looks at what can be looked at without opening or creating anything.
    ///
    /// # Errors
    /// What would be an error when serving.
    pub fn check(&self) -> Result<(), NodeError> {
        Store::check(&self.home.store_url, &self.home.store_options)?;
        known_stores::check_not_gone(&self.home)?;
        crate::limits::rates(&self.limits)?;
        sockets::check_count(self.nbd.len())?;
        for address in &self.nbd {
            match address {
                NbdAddress::Unix(path) => sockets::check_length(path)?,
                NbdAddress::Tcp { address, insecure } => {
                    sockets::check_loopback(address, &sockets::resolve_now(address)?, *insecure)?;
                }
            }
        }
        sockets::check_length(&self.home.data.api_socket())?;
        self.api_tcp.as_ref().map_or(Ok(()), TcpApi::check)
    }
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

/// A volume as every thread may know it.
#[derive(Debug)]
pub(crate) struct Entry {
    pub(crate) name: VolumeName,
    pub(crate) id: VolumeId,
    pub(crate) shard: usize,
    pub(crate) gate: Arc<Gate>,
    pub(crate) read_only: bool,
    pub(crate) created: bool,
    pub(crate) place: String,
    pub(crate) report: OpenReport,
    pub(crate) replica: Option<Following>,
    door: Door,
}

/// What the threads of a serving process share.
#[derive(Debug)]
pub(crate) struct Core {
    pub(crate) home: Home,
    /// None while only memory is served.
    pub(crate) store: Option<Store>,
    /// The store is on the disk of the journals.
    pub(crate) store_shares_disk: bool,
    pub(crate) node: NodeHandle,
    pub(crate) events: Events,
    pub(crate) started: Instant,
    pub(crate) is_stopping: AtomicBool,
    volumes: Mutex<BTreeMap<String, Arc<Entry>>>,
    not_served: Mutex<BTreeMap<String, String>>,
    left: Mutex<BTreeMap<String, String>>,
    pub(crate) views: Views,
    nbd_places: Mutex<Vec<NbdPlace>>,
    limits: Mutex<Limits>,
}

/// Open files that a process needs for itself and its first clients, and for each volume while it is opened.
const DESCRIPTORS_BASE: u64 = 192;
const DESCRIPTORS_PER_VOLUME: u64 = 4;

/// Time for handshakes, replication and clients of snapshots to end before the volumes are closed: all of them may
/// wait for a store that is away.
const ANCILLARY_TIME: Duration = Duration::from_secs(5);

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    // What is behind these is whole between two statements.
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Core {
    /// The volumes that are served, by name.
    pub(crate) fn entries(&self) -> Vec<Arc<Entry>> {
        lock(&self.volumes).values().cloned().collect()
    }

    /// The volume of that name, if it is served.
    pub(crate) fn entry(&self, name: &str) -> Option<Arc<Entry>> {
        lock(&self.volumes).get(name).cloned()
    }

    /// Volumes that should be served and are not, and why.
    pub(crate) fn not_served(&self) -> BTreeMap<String, String> {
        lock(&self.not_served).clone()
    }

    /// Volumes that the process before this one served and that are not closed yet, and why.
    pub(crate) fn left(&self) -> BTreeMap<String, String> {
        lock(&self.left).clone()
    }

    /// What is to be known of such a volume; nothing once it is closed.
    pub(crate) fn note_left(&self, name: &VolumeName, what: Option<String>) {
        let mut left = lock(&self.left);
        match what {
            Some(what) => left.insert(name.to_string(), what),
            None => left.remove(name.as_str()),
        };
    }

    /// Whether this process was told to serve the volume, though another node may have it.
    pub(crate) fn offers(&self, name: &str) -> bool {
        lock(&self.volumes).contains_key(name) || lock(&self.not_served).contains_key(name)
    }

    /// Where clients find a volume.
    pub(crate) fn uri(&self, name: &str) -> String {
        lock(&self.nbd_places).first().map_or_else(String::new, |place| place.uri(name))
    }

    /// Where clients find the process.
    pub(crate) fn nbd_uris(&self) -> Vec<String> {
        lock(&self.nbd_places).iter().map(|place| place.uri("")).collect()
    }

    /// Limits on uploads.
    pub(crate) fn limits(&self) -> Limits {
        *lock(&self.limits)
    }

    /// Sets limits on uploads, at once.
    pub(crate) fn set_limits(&self, limits: Limits) -> Result<(), NodeError> {
        if let Some(store) = &self.store {
            crate::limits::apply(store, &limits)?;
        }
        *lock(&self.limits) = limits;
        Ok(())
    }
}

/// The volumes of the process as a client that shakes hands sees them.
struct Volumes(Arc<Core>);

impl Volumes {
    fn entry(&self, name: &str) -> Option<Arc<Entry>> {
        let volumes = lock(&self.0.volumes);
        // One volume is the default as well.
        match name {
            "" if volumes.len() == 1 => volumes.values().next().cloned(),
            name => volumes.get(name).cloned(),
        }
    }

    async fn volume(&self, name: &str) -> Option<(ExportInfo, Door)> {
        let entry = self.entry(name)?;
        // While a verb changes what clients see, a handshake waits, as long as the time for one lasts.
        entry.gate.opened().await;
        let info = ExportInfo {
            name: entry.name.to_string(),
            description: describe(entry.id),
            size: entry.gate.size(),
            read_only: entry.read_only,
            earlier: [].into(),
        };
        Some((info, entry.door.clone()))
    }
}

impl Routes for Volumes {
    async fn find(&self, name: &str) -> Option<(ExportInfo, Door)> {
        match name.contains('@') {
            true => views::find(&self.0, name).await,
            false => self.volume(name).await,
        }
    }

    async fn list(&self) -> Vec<String> {
        let mut names: Vec<String> = lock(&self.0.volumes).keys().cloned().collect();
        names.extend(views::list(&self.0).await);
        names.sort_unstable();
        names
    }
}

/// A volume on its shard, to be ended.
#[derive(Debug)]
struct Running {
    name: VolumeName,
    stop: oneshot::Sender<Closing>,
    ended: oneshot::Receiver<Result<Stopped, NodeError>>,
    /// Its replica is followed until this says so.
    following: Option<replicas::End>,
}

/// A listener on a shard, to be ended.
#[derive(Debug)]
struct Reception {
    stop: oneshot::Sender<()>,
    ended: oneshot::Receiver<()>,
}

/// A process that serves. Dropping it stops it, unattended.
#[derive(Debug)]
pub struct Service {
    core: Arc<Core>,
    running: Vec<Running>,
    receptions: Vec<Reception>,
    api: Vec<ApiServer>,
    sockets: Vec<BoundSocket>,
    watch: tokio::task::JoinHandle<()>,
    /// Copies of the listening sockets, for a process that comes after this one.
    handles: Vec<std::os::fd::OwnedFd>,
}

impl Drop for Service {
    fn drop(&mut self) {
        self.watch.abort();
    }
}

impl Node {
    /// Opens volumes and serves them; returns once clients can connect.
    ///
    /// # Errors
    /// When an address cannot be listened on, or none of the volumes can be found, created or opened. If some of them
    /// can, the others are in [`Service::not_served`].
    pub async fn serve(&self, mut options: ServiceOptions) -> Result<Service, NodeError> {
        let home = options.home.clone();
        home.data.prepare()?;
        let mut sockets = Vec::new();
        let mut listeners = Vec::new();
        if matches!(options.api, ApiPlace::Node) {
            // First of all: it tells a second process of this kind from the first.
            let path = home.data.api_socket();
            let listener = api_socket(&path, &mut options.inherited, &mut sockets);
            listeners.push(listener.map_err(|error| second_node(error, &home))?);
        }
        let core = self.core(&options).await?;
        let (specs, unreadable) = self.specs(&core, &options.volumes).await?;
        core.set_limits(options.limits)?;
        let core = Arc::new(core);
        // A process that took over serves on, whatever became of its volumes: clients and verbs ask it what is wrong.
        let takes_over = !options.left.is_empty();
        let running = open_all(&core, specs, unreadable, takes_over).await?;
        let mut left = std::mem::take(&mut options.left);
        left.retain(|name| !core.offers(name.as_str()));
        left::close(&core, left)?;
        let watch = core.node.workers.spawn(watch::run(Arc::clone(&core)));
        let mut service = Service {
            core,
            running,
            receptions: Vec::new(),
            api: Vec::new(),
            sockets,
            watch,
            handles: Vec::new(),
        };
        match service.listen(options, listeners).await {
            Ok(()) => Ok(service),
            Err(error) => {
                // What could not be reached was not used: nothing is lost by closing it.
                let _ = service.stop(Closing::ToStore).await;
                Err(error)
            }
        }
    }

    async fn core(&self, options: &ServiceOptions) -> Result<Core, NodeError> {
        let needs_store = match &options.volumes {
            VolumeSet::All(_) => true,
            VolumeSet::Listed(specs) => specs.iter().any(|s| s.endpoint == EndpointKind::Log),
        };
        let home = options.home.clone();
        let open = |context: Rc<crate::ShardContext>| async move {
            home.open_or_make_store(&context).await
        };
        let store = if needs_store { Some(self.run(0, open).await??) } else { None };
        let home = options.home.clone();
        Ok(Core {
            store_shares_disk: store.is_some() && home.data.shares_disk_with(&home.store_url),
            home,
            store,
            node: self.handle(),
            events: Events::default(),
            started: Instant::now(),
            is_stopping: AtomicBool::new(false),
            volumes: Mutex::default(),
            not_served: Mutex::default(),
            left: Mutex::default(),
            views: Views::default(),
            nbd_places: Mutex::default(),
            limits: Mutex::default(),
        })
    }

    /// The volumes to open, and those of which the store has nothing that can be read.
    async fn specs(
        &self,
        core: &Core,
        volumes: &VolumeSet,
    ) -> Result<(Vec<VolumeSpec>, Failed), NodeError> {
        let template = match volumes {
            VolumeSet::Listed(specs) => return Ok((specs.clone(), Vec::new())),
            VolumeSet::All(template) => template,
        };
        let store = core.store.clone().expect("opened for all volumes of it");
        let list = |context: Rc<crate::ShardContext>| async move {
            catalog::list(&store, &context.env).await
        };
        let listing = self.run(0, list).await??;
        let spec = |name| VolumeSpec { name, ..(**template).clone() };
        // What is being filled is nobody's yet, and replicas are another's.
        let whole = listing
            .volumes
            .into_iter()
            .filter(|s| !matches!(s.state, VolumeState::Incomplete | VolumeState::Replica));
        let unreadable = listing.unreadable.into_iter().map(|(name, error)| (name, error.into()));
        Ok((whole.map(|summary| spec(summary.name)).collect(), unreadable.collect()))
    }
}

/// A socket that somebody listens on belongs to another process of this kind.
fn second_node(error: NodeError, home: &Home) -> NodeError {
    match error {
        NodeError::SocketInUse { path, .. } => {
            let stream = std::os::unix::net::UnixStream::connect(&path).ok();
            let peer =
                stream.and_then(|stream| rustix::net::sockopt::socket_peercred(&stream).ok());
            let process = ProcessId(peer.map(|peer| peer.pid.as_raw_nonzero().get()));
            let data_dir = home.data.path().display().to_string();
            NodeError::SecondNode { data_dir, process }
        }
        other => other,
    }
}

/// The socket for verbs: one that listens already, or a new one.
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

/// Volumes that are not served, and why.
type Failed = Vec<(VolumeName, NodeError)>;

/// Opens every volume on its shard; those of `failed` are beyond that already. An error only if none could be opened
/// and `none_will_do` is not said.
async fn open_all(
    core: &Arc<Core>,
    specs: Vec<VolumeSpec>,
    mut failed: Failed,
    none_will_do: bool,
) -> Result<Vec<Running>, NodeError> {
    warn_of_descriptors(specs.len() as u64);
    let mut opening = Vec::new();
    for (index, spec) in specs.into_iter().enumerate() {
        let shard = index % core.node.shard_count();
        opening.push(open_one(Arc::clone(core), spec, shard));
    }
    let mut running = Vec::new();
    for (name, opened) in join_all(opening).await {
        match opened {
            Ok(volume) => running.push(volume),
            Err(error) => failed.push((name, error)),
        }
    }
    if running.is_empty() && !failed.is_empty() && !none_will_do {
        return Err(failed.remove(0).1);
    }
    for (name, error) in failed {
        let reason = with_causes(&error);
        core.events.note("volume_failed", Some(name.as_str()), reason.clone());
        tracing::error!(volume = %name, reason, "a volume is not served");
        lock(&core.not_served).insert(name.to_string(), reason);
    }
    Ok(running)
}

/// Says when the process may not have as many files open as so many volumes need.
fn warn_of_descriptors(volumes: u64) {
    let needed = DESCRIPTORS_BASE + volumes * DESCRIPTORS_PER_VOLUME;
    match getrlimit(Resource::Nofile).current {
        Some(most) if most < needed => tracing::warn!(
            most,
            needed,
            "too few open files are allowed for {volumes} volumes: opening them may fail or take long; raise \
             LimitNOFILE of the service, or ulimit -n"
        ),
        _ => {}
    }
}

async fn open_one(
    core: Arc<Core>,
    spec: VolumeSpec,
    shard: usize,
) -> (VolumeName, Result<Running, NodeError>) {
    let name = spec.name.clone();
    let opened = try_open(&core, spec, shard).await;
    (name, opened)
}

async fn try_open(core: &Arc<Core>, spec: VolumeSpec, shard: usize) -> Result<Running, NodeError> {
    let (ready, started) = oneshot::channel();
    let (stop, stopped) = oneshot::channel();
    let (home, store, name) = (core.home.clone(), core.store.clone(), spec.name.clone());
    let (read_only, replica) = (spec.read_only, spec.replica.clone());
    let mut ended = core
        .node
        .submit(shard, move |context| host::host(context, home, store, spec, ready, stopped))?;
    let Ok(hosting) = started.await else {
        // It ended before it was ready, and says why.
        return match (&mut ended).await {
            Ok(Err(error)) => Err(error),
            Ok(Ok(_)) | Err(_) => Err(NodeError::ShuttingDown),
        };
    };
    let size = hosting.gate.size();
    let (replica, following) = match replica {
        Some(to) => Some(replicas::keep(core, &name, shard, to)?).unzip(),
        None => (None, None),
    };
    let entry = Entry {
        name: name.clone(),
        id: hosting.id,
        shard,
        gate: hosting.gate,
        read_only,
        created: hosting.created,
        place: hosting.place,
        report: hosting.report,
        replica,
        door: hosting.door,
    };
    lock(&core.volumes).insert(name.to_string(), Arc::new(entry));
    core.events.note("volume_opened", Some(name.as_str()), format!("{size} bytes"));
    Ok(Running { name, stop, ended, following })
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

    /// Whether the file system of the store answers within `limit`. This process must not be replaced while it does
    /// not.
    pub async fn store_answers(&self, limit: Duration) -> bool {
        known_stores::takes_files(&self.core.home, limit).await
    }

    /// Whether the store is on the disk of the journals, so that the loss of that disk takes both.
    #[must_use]
    pub fn store_shares_disk(&self) -> bool {
        self.core.store_shares_disk
    }

    /// The volumes that should be served and are not, with the reason.
    #[must_use]
    pub fn not_served(&self) -> BTreeMap<String, String> {
        self.core.not_served()
    }

    /// The volumes that a process which comes after this one serves or closes.
    #[must_use]
    pub fn handed_over(&self) -> Vec<String> {
        let served = self.core.entries().into_iter().map(|entry| entry.name.to_string());
        served
            .chain(self.core.not_served().into_keys())
            .chain(self.core.left().into_keys())
            .collect()
    }

    /// Where NBD clients find the process.
    #[must_use]
    pub fn nbd_uris(&self) -> Vec<String> {
        self.core.nbd_uris()
    }

    /// Addresses at which the API is reached over TCP.
    #[must_use]
    pub fn api_addresses(&self) -> Vec<std::net::SocketAddr> {
        self.api.iter().filter_map(ApiServer::address).collect()
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
            let listening = self.bind(address, &mut options.inherited).await?;
            self.receive(listening).await?;
        }
        // What systemd listens on for us and no setting names is for clients.
        for listening in options.inherited.rest() {
            self.receive(listening).await?;
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

    /// Keeps a copy of a listening socket for the process that comes next.
    fn keep(&mut self, socket: &impl std::os::fd::AsFd) -> Result<(), NodeError> {
        let copy = socket.as_fd().try_clone_to_owned();
        self.handles.push(copy.map_err(|e| NodeError::io("copying", "a listening socket", e))?);
        Ok(())
    }

    async fn bind(
        &mut self,
        address: &NbdAddress,
        inherited: &mut Inherited,
    ) -> Result<Listening, NodeError> {
        match address {
            NbdAddress::Unix(path) => {
                let failed = |e| NodeError::io("listening on", path.display().to_string(), e);
                let path = std::path::absolute(path).map_err(failed)?;
                if let Some(listener) = inherited.take_unix(&path) {
                    return Ok(Listening::Unix(listener));
                }
                let (listener, bound) = sockets::bind_unix(&path, sockets::NBD_MODE)?;
                self.sockets.push(bound);
                Ok(Listening::Unix(listener))
            }
            NbdAddress::Tcp { address, insecure } => {
                let resolved = sockets::check_tcp(address, *insecure).await?;
                if let Some(listener) = inherited.take_tcp(&resolved) {
                    return Ok(Listening::Tcp(listener));
                }
                std::net::TcpListener::bind(&resolved[..])
                    .map(Listening::Tcp)
                    .map_err(|source| NodeError::io("listening on", address, source))
            }
        }
    }

    /// Lets clients of a socket in.
    async fn receive(&mut self, listening: Listening) -> Result<(), NodeError> {
        let unknown = |e| NodeError::io("asking for the name of", "a listening socket", e);
        let place = match &listening {
            Listening::Unix(listener) => {
                self.keep(listener)?;
                let address = listener.local_addr().map_err(unknown)?;
                NbdPlace::Unix(address.as_pathname().unwrap_or("".as_ref()).to_owned())
            }
            Listening::Tcp(listener) => {
                self.keep(listener)?;
                NbdPlace::Tcp(listener.local_addr().map_err(unknown)?.to_string())
            }
        };
        let (ready, started) = oneshot::channel();
        let (stop, stopped) = oneshot::channel::<()>();
        let core = Arc::clone(&self.core);
        let ended = self.core.node.submit(0, move |context| async move {
            let options = ListenerOptions::new(connection_options(&context));
            match receive(listening, Rc::new(Volumes(core)), options) {
                Ok(server) => {
                    // The other end waits for this, or is gone; then the next line returns at once.
                    let _ = ready.send(Ok(()));
                    let _ = stopped.await;
                    server.stop().await;
                }
                Err(error) => drop(ready.send(Err(error))),
            }
        })?;
        let failed = |e| NodeError::io("listening on", "a socket for NBD", e);
        started.await.map_err(|_| NodeError::ShuttingDown)?.map_err(failed)?;
        self.receptions.push(Reception { stop, ended });
        lock(&self.core.nbd_places).push(place);
        Ok(())
    }

    /// Lets nobody in any more, finishes what clients have in flight, and closes the volumes.
    ///
    /// # Errors
    /// When a volume could not be flushed or closed; the others are closed all the same.
    pub async fn stop(mut self, closing: Closing) -> Result<Stopped, NodeError> {
        self.end(closing).await
    }

    /// [`Service::stop`] for a process that comes next: socket files stay, and the sockets that listen are returned.
    ///
    /// A volume that could not be closed (it was fenced, its disk failed) is logged, and does not keep the others from
    /// being handed over: the process that comes next says what is wrong with it.
    pub async fn hand_over(mut self) -> Vec<std::os::fd::OwnedFd> {
        if let Err(error) = self.end(Closing::Quick).await {
            tracing::warn!(%error, "handing over without a clean end of all volumes");
        }
        for socket in self.sockets.drain(..) {
            socket.leave();
        }
        std::mem::take(&mut self.handles)
    }

    async fn end(&mut self, closing: Closing) -> Result<Stopped, NodeError> {
        self.core.is_stopping.store(true, Ordering::Relaxed);
        self.core.events.note("node_stopping", None, "closing all volumes");
        let receptions = std::mem::take(&mut self.receptions);
        let followings: Vec<_> =
            self.running.iter_mut().filter_map(|running| running.following.take()).collect();
        let core = Arc::clone(&self.core);
        let ancillary = async move {
            for Reception { stop, ended } in receptions {
                // They may have ended by themselves.
                let _ = stop.send(());
                let _ = ended.await;
            }
            join_all(followings.into_iter().map(replicas::End::wait)).await;
            core.views.close().await;
        };
        if tokio::time::timeout(ANCILLARY_TIME, ancillary).await.is_err() {
            tracing::warn!(
                "closing the volumes while handshakes, replicas or snapshots still wait for a store"
            );
        }
        let mut ending = Vec::new();
        for Running { name, stop, ended, .. } in self.running.drain(..) {
            let _ = stop.send(closing);
            ending.push((name, ended));
        }
        let (mut stopped, mut first_error) = (Stopped::Clean, None);
        for (name, ended) in ending {
            let result = ended.await.unwrap_or(Err(NodeError::ShuttingDown));
            lock(&self.core.volumes).remove(name.as_str());
            match result {
                Ok(Stopped::Clean) => {
                    self.core.events.note("volume_closed", Some(name.as_str()), "clean");
                }
                Ok(Stopped::LocalOnly) => stopped = Stopped::LocalOnly,
                Err(error) => {
                    tracing::error!(volume = %name, %error, "a volume could not be closed");
                    first_error = first_error.or(Some(error));
                }
            }
        }
        for api in self.api.drain(..) {
            api.stop().await;
        }
        first_error.map_or(Ok(stopped), Err)
    }
}
