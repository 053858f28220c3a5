//! One volume on its thread: opened, served to clients and verbs, and closed in order.

use std::cell::{Cell, OnceCell};
use std::future::poll_fn;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::oneshot;
use tokio::time::Instant;
use weir_device::{Device, DeviceExt, Event, FlushScope, History, VolumeId};
use weir_frontend::nbd::{
    ConnectionOptions, Export, ExportInfo, Exports, HandOff, ListenerOptions, serve_handed_off,
};
use weir_log::catalog::{self, VolumeName};
use weir_log::{Closed, LogError, OpenReport, Takeover, VolumeOptions};
use weir_stack::{EndpointSpec, Stack, StackSpec, StageSpec, ViewArgs};
use weir_store::Store;

use crate::error::NodeError;
use crate::gate::Gate;
use crate::known_stores;
use crate::opened;
use crate::replicas::ReplicateTo;
use crate::shard::ShardContext;
use crate::stages::Stages;
use crate::volumes::{Consent, Home};

/// What keeps the bytes of a volume.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum EndpointKind {
    /// A log volume.
    Log,
    /// Memory of this process.
    Memory,
}

/// A volume that is to be served, and how.
#[derive(Clone, Debug)]
pub struct VolumeSpec {
    /// Name of the volume.
    pub name: VolumeName,
    /// Its size in bytes: creates it where it is missing.
    pub size: Option<u64>,
    /// Whether another size than that is an error: a volume that was resized since is served all the same otherwise.
    pub size_must_match: bool,
    /// Refuse writes of clients.
    pub read_only: bool,
    /// What the opening may give up.
    pub consent: Consent,
    /// Settings of the log volume.
    pub options: VolumeOptions,
    /// What keeps the bytes.
    pub endpoint: EndpointKind,
    /// What stands between its clients and that.
    pub stages: Stages,
    /// The replica that is kept of it while it is served.
    pub replica: Option<ReplicateTo>,
}

/// How long a verb that must be alone waits for clients that are going, and how often it looks.
const CLIENTS_GO_MAX: Duration = Duration::from_secs(1);
const CLIENTS_GO_LOOK: Duration = Duration::from_millis(10);

/// How a volume that was served ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stopped {
    /// Everything is in the store.
    Clean,
    /// The store did not take everything in time; the journal keeps the rest for the next start here.
    LocalOnly,
}

/// How a volume is to be closed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Closing {
    /// Everything goes to the store first, so that any node can open the volume.
    ToStore,
    /// What is not in the store stays in the journal: quick, for a process that comes back at once.
    Quick,
}

/// A volume as jobs on its thread find it.
#[derive(Debug)]
pub(crate) struct Hosted {
    pub(crate) id: VolumeId,
    pub(crate) name: VolumeName,
    pub(crate) stack: Rc<Stack>,
    pub(crate) read_only: bool,
    pub(crate) clients: OnceCell<Rc<Cell<usize>>>,
    pub(crate) gate: Arc<Gate>,
}

impl VolumeSpec {
    /// Whether a volume that is served by the other one is served as this one says.
    pub(crate) fn serves_like(&self, other: &Self) -> bool {
        self.read_only == other.read_only
            && self.endpoint == other.endpoint
            && self.replica == other.replica
            && self.stages == other.stages
            && format!("{:?}", self.options) == format!("{:?}", other.options)
    }
}

impl Hosted {
    /// Clients connected now.
    pub(crate) fn client_count(&self) -> usize {
        self.clients.get().map_or(0, |counter| counter.get())
    }

    /// Waits, a second at most, for clients that are going: one that has closed its connection is counted until this
    /// node has seen it. Then how many there are.
    pub(crate) async fn clients_stay(&self) -> usize {
        let patience = Instant::now() + CLIENTS_GO_MAX;
        while self.client_count() > 0 && Instant::now() < patience {
            tokio::time::sleep(CLIENTS_GO_LOOK).await;
        }
        self.client_count()
    }

    /// Does what clients must not see happen: there are none, and none is let in until `work` has ended, even if
    /// whoever waits for it goes away.
    pub(crate) async fn without_clients(
        self: &Rc<Self>,
        work: impl Future<Output = Result<(), NodeError>> + 'static,
    ) -> Result<(), NodeError> {
        let name = || self.name.to_string();
        self.clients_stay().await;
        let Some(kept_out) = self.gate.close() else {
            return Err(NodeError::Changing { name: name() });
        };
        // A client that is on its way is counted here already, or finds the gate closed: `OneExport::find`.
        let clients = self.client_count();
        if clients > 0 {
            return Err(NodeError::Connected { name: name(), clients });
        }
        let hosted = Rc::clone(self);
        let working = tokio::task::spawn_local(async move {
            let kept_out = kept_out;
            let worked = work.await;
            // Whatever came of it, and before anybody is let in.
            hosted.gate.set_size(hosted.stack.size());
            drop(kept_out);
            worked
        });
        working.await.map_err(|_| NodeError::ShuttingDown)?
    }

    /// Makes acknowledged writes survive.
    pub(crate) async fn flush(&self, remote: bool) -> Result<(), NodeError> {
        let scope = if remote { FlushScope::Store } else { FlushScope::Local };
        Ok(self.stack.flush(scope).await?)
    }
}

/// What is known of a volume once it can be served.
#[derive(Clone, Debug)]
pub(crate) struct Hosting {
    pub(crate) id: VolumeId,
    pub(crate) gate: Arc<Gate>,
    pub(crate) created: bool,
    pub(crate) place: String,
    pub(crate) report: OpenReport,
    /// The channel for its clients.
    pub(crate) hand_off: HandOff,
}

struct Opened {
    stack: Rc<Stack>,
    id: VolumeId,
    created: bool,
    place: String,
    report: OpenReport,
}

/// How the thread of a volume and those who asked for it hear of each other.
pub(crate) struct Ends {
    /// Told once the volume can be served.
    pub(crate) ready: oneshot::Sender<Hosting>,
    /// Told the name of another node when the opening begins to wait for what that node does.
    pub(crate) waits: Option<oneshot::Sender<String>>,
    /// Says when and how to close.
    pub(crate) stop: oneshot::Receiver<Closing>,
}

/// Opens a volume and serves those who are handed off to it until it is told to stop.
pub(crate) async fn host(
    context: Rc<ShardContext>,
    home: Home,
    store: Option<Store>,
    spec: VolumeSpec,
    ends: Ends,
) -> Result<Stopped, NodeError> {
    let Ends { mut ready, waits, stop } = ends;
    let opened = match (&store, spec.endpoint) {
        (Some(store), EndpointKind::Log) => {
            let opening = open_log(&context, &home, store, &spec, waits);
            tokio::select! {
                biased;
                // Nobody waits only if the process stops. Nothing was acknowledged, and opening can be ended anywhere.
                () = ready.closed() => return Ok(Stopped::Clean),
                opened = opening => opened?,
            }
        }
        _ => open_memory(&context, &spec).await?,
    };
    let hosted = Rc::new(Hosted {
        id: opened.id,
        name: spec.name.clone(),
        stack: Rc::clone(&opened.stack),
        read_only: spec.read_only,
        clients: OnceCell::new(),
        gate: Gate::new(opened.stack.size()),
    });
    let options = ListenerOptions::new(connection_options(&context));
    let (hand_off, server) = serve_handed_off(Rc::new(OneExport::of(&hosted)), options);
    hosted.clients.get_or_init(|| server.clients_counter());
    context.hosted.borrow_mut().insert(opened.id, Rc::clone(&hosted));
    let listening = tokio::task::spawn_local(hear_events(Rc::clone(&hosted)));
    let hosting = Hosting {
        id: opened.id,
        gate: Arc::clone(&hosted.gate),
        created: opened.created,
        place: opened.place,
        report: opened.report,
        hand_off,
    };
    let closing = match ready.send(hosting) {
        // A dropped handle is a wish to stop as well.
        Ok(()) => stop.await.unwrap_or(Closing::ToStore),
        // Nobody waits only if the process is going away; then it stops at once.
        Err(_) => Closing::Quick,
    };
    let began = Instant::now();
    server.stop().await;
    context.hosted.borrow_mut().remove(&hosted.id);
    // The time that clients took is part of what a close may take.
    let deadline = match closing {
        Closing::ToStore => spec.options.close_deadline.saturating_sub(began.elapsed()),
        Closing::Quick => Duration::ZERO,
    };
    listening.abort();
    // It holds the volume, and with it the lock of its directory.
    let _ = listening.await;
    close(&home, (opened.id, &opened.stack), deadline).await
}

/// Has those who serve the volume know what happens to it.
async fn hear_events(hosted: Rc<Hosted>) {
    loop {
        match poll_fn(|cx| hosted.stack.poll_event(cx)).await {
            Event::Resized(size) => hosted.gate.set_size(size),
            Event::ContentReplaced { generation } => {
                tracing::info!(volume = %hosted.name, generation, "the content was replaced");
            }
            Event::ExclusiveLost(error) => {
                tracing::error!(volume = %hosted.name, %error, "the volume belongs to another owner");
            }
            Event::Degraded(error) => {
                tracing::warn!(volume = %hosted.name, %error, "the volume is degraded");
            }
        }
    }
}

/// How a client of an export on this thread is served.
pub(crate) fn connection_options(context: &ShardContext) -> ConnectionOptions {
    context.clients.options(&context.env.buffers)
}

async fn open_log(
    context: &ShardContext,
    home: &Home,
    store: &Store,
    spec: &VolumeSpec,
    waits: Option<oneshot::Sender<String>>,
) -> Result<Opened, NodeError> {
    let name = &spec.name;
    let (id, created) = find_or_create(context, home, store, spec).await?;
    let settings = spec.options.clone();
    let read_deadline = settings.read_deadline;
    let waits = Cell::new(waits);
    let on_wait = Rc::new(move |node: &str| {
        // The first time is enough.
        if let Some(waits) = waits.take() {
            let _ = waits.send(node.to_owned());
        }
    });
    let opening = home.open_volume_telling(
        context,
        (store.clone(), id, name),
        (settings, spec.stages.describe(name)),
        spec.consent,
        on_wait,
    );
    if spec.read_only {
        // It has the identity of its source, which this very host may serve.
        match open_replica(context, home, (store, id, read_deadline), spec.stages.describe(name))
            .await
        {
            Err(NodeError::Log(LogError::NoReplica { .. })) => {}
            opened => return opened,
        }
    }
    let (stack, report) = opening.await?;
    known_stores::note(home)?;
    let found = stack.size();
    let opened = Opened { stack, id, created, place: format!("in {}", home.store_url), report };
    match spec.size {
        // Its real size is known only now: a volume may have been resized after it was listed.
        Some(wanted) if wanted != found && spec.size_must_match => {
            close(home, (id, &opened.stack), spec.options.close_deadline).await?;
            Err(NodeError::OtherSize { name: name.to_string(), found, wanted })
        }
        _ => Ok(opened),
    }
}

/// What a replica shows now: for copies of it.
async fn open_replica(
    context: &ShardContext,
    home: &Home,
    (store, id, read_deadline): (&Store, VolumeId, Duration),
    stages: Vec<StageSpec>,
) -> Result<Opened, NodeError> {
    let args = ViewArgs {
        store: store.clone(),
        id,
        keys: home.keys.clone(),
        cache: Arc::clone(&context.cache),
        read_deadline,
    };
    let spec = StackSpec { endpoint: EndpointSpec::Replica(args), stages };
    let (stack, report) = Stack::open(&context.env, spec).await?;
    let place = format!("a replica in {}", home.store_url);
    // Its sockets lie there.
    context.disks.directory(home.data.volume(id))?;
    // No copy goes on where one of another root stopped: these numbers never follow one another.
    let sequence = stack.view().map_or(0, |view| view.record().checkpoint.sequence);
    let report = OpenReport { epoch: sequence * 2, ..report };
    Ok(Opened { stack, id, created: false, place, report })
}

/// The volume of that name, and whether it was created just now.
async fn find_or_create(
    context: &ShardContext,
    home: &Home,
    store: &Store,
    spec: &VolumeSpec,
) -> Result<(VolumeId, bool), NodeError> {
    match (catalog::find(store, &context.env, &spec.name).await, spec.size) {
        (Ok(id), _) => Ok((id, false)),
        (Err(LogError::NoSuchVolume { .. }), Some(size)) => {
            known_stores::check_not_emptied(context, home, store).await?;
            let (env, name, takeover) = (&context.env, &spec.name, Takeover::Manual);
            let encryption = home.encryption(context).await?;
            let id = catalog::create_as(store, env, name, size, takeover, encryption).await?;
            Ok((id, true))
        }
        (Err(LogError::NoSuchVolume { name, store }), None) => {
            Err(NodeError::SizeNeeded { name, store })
        }
        (Err(error), _) => Err(error.into()),
    }
}

async fn open_memory(context: &ShardContext, spec: &VolumeSpec) -> Result<Opened, NodeError> {
    let size = spec.size.ok_or_else(|| NodeError::SizeNeeded {
        name: spec.name.to_string(),
        store: "memory".to_owned(),
    })?;
    let mut id = [0; 16];
    context.env.random.fill(&mut id);
    let stages = spec.stages.describe(&spec.name);
    let described = StackSpec { endpoint: EndpointSpec::Memory(size), stages };
    let (stack, report) = Stack::open(&context.env, described).await?;
    let place = "in memory, nothing survives".to_owned();
    Ok(Opened { stack, id: VolumeId(id), created: true, place, report })
}

async fn close(
    home: &Home,
    (id, stack): (VolumeId, &Stack),
    deadline: Duration,
) -> Result<Stopped, NodeError> {
    let closed = stack.close(deadline).await?;
    if stack.is_log() {
        opened::note_closed(&home.data, id, closed);
    }
    match closed {
        Closed::Clean => Ok(Stopped::Clean),
        Closed::LocalOnly => Ok(Stopped::LocalOnly),
    }
}

/// The one export that connections are handed off to.
pub(crate) struct OneExport {
    /// What it is; the size is asked of the device.
    pub(crate) info: ExportInfo,
    pub(crate) stack: Rc<Stack>,
    pub(crate) volume: VolumeId,
    pub(crate) history: Option<Rc<dyn History>>,
    /// Keeps clients out at times.
    pub(crate) gate: Option<Arc<Gate>>,
}

impl OneExport {
    /// Of a volume.
    fn of(hosted: &Hosted) -> Self {
        Self {
            info: ExportInfo {
                name: hosted.name.to_string(),
                description: describe(hosted.id),
                size: hosted.stack.size(),
                read_only: hosted.read_only,
                earlier: [].into(),
            },
            stack: Rc::clone(&hosted.stack),
            volume: hosted.id,
            history: None,
            gate: Some(Arc::clone(&hosted.gate)),
        }
    }
}

impl Exports for OneExport {
    type Device = Stack;

    fn find(&self, name: &str) -> Option<Export<Stack>> {
        let is_closed = self.gate.as_ref().is_some_and(|gate| gate.is_closed());
        (name == self.info.name && !is_closed).then(|| Export {
            name: self.info.name.clone(),
            description: self.info.description.clone(),
            device: Rc::clone(&self.stack),
            volume: self.volume,
            read_only: self.info.read_only,
            history: self.history.clone(),
        })
    }

    fn list(&self) -> Vec<String> {
        vec![self.info.name.clone()]
    }
}

/// A line on an export, for people.
pub(crate) fn describe(id: VolumeId) -> String {
    format!("Weir volume {id}")
}
