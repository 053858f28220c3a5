//! One volume on its thread: opened, served to clients and verbs, and closed in order.

use std::cell::{Cell, OnceCell};
use std::future::poll_fn;
use std::path::Path;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::oneshot;
use tokio::time::Instant;
use weir_device::{AlignedBuf, Device, DeviceExt, Event, VolumeId};
use weir_disk::{Image, ImageMode};
use weir_frontend::nbd::{
    Access, Attachments, HandOff, Instance, ListenerOptions, serve_handed_off,
};
use weir_log::catalog;
use weir_log::{Closed, LogError, OpenReport, Takeover};
use weir_net::tls::Tls;
use weir_remote::RemoteArgs;
use weir_stack::{EndpointSpec, Stack, StackSpec, StageSpec, ViewArgs};
use weir_store::Store;

use crate::api::types::AtRisk;
use crate::config::{FileConfig, Remote};
use crate::error::NodeError;
use crate::home::given::GivenRecord;
use crate::home::{Home, known_stores, opened};
use crate::node::gate::Gate;
use crate::node::hosted::Hosted;
use crate::node::shard::ShardContext;
use crate::serve::failed::refusal_to_hand_on;
use crate::serve::one_export::{OneExport, connection_options};
use crate::serve::sessions::kept::Sessions;
use crate::serve::spec::{Closing, EndpointKind, Stopped, VolumeSpec};

/// How images in other formats than raw begin.
const FORMATS: &[(&[u8], &str)] =
    &[(b"QFI\xfb", "qcow2"), (b"KDMV", "vmdk"), (b"vhdxfile", "vhdx"), (b"conectix", "vpc")];

/// What is known of a volume once it can be served.
#[derive(Clone, Debug)]
pub(crate) struct Hosting {
    pub(crate) id: VolumeId,
    pub(crate) gate: Arc<Gate>,
    pub(crate) created: bool,
    /// Whether writes are refused: as the settings say, or because the device takes none.
    pub(crate) read_only: bool,
    /// Whether it is the state of a replica, which has the identity of its source and no journal.
    pub(crate) is_replica: bool,
    pub(crate) place: String,
    pub(crate) report: OpenReport,
    /// The channel for its clients.
    pub(crate) hand_off: HandOff,
    /// Names this opening.
    pub(crate) instance: Instance,
}

struct Opened {
    stack: Rc<Stack>,
    id: VolumeId,
    created: bool,
    place: String,
    report: OpenReport,
}

/// The channels between the thread of a volume and the task that opens and closes it.
pub(crate) struct Ends {
    /// Told once the volume can be served.
    pub(crate) ready: oneshot::Sender<Hosting>,
    /// Told the name of another node when the opening begins to wait for what that node does.
    pub(crate) waits: Option<oneshot::Sender<String>>,
    /// Says when and how to close.
    pub(crate) stop: oneshot::Receiver<Closing>,
    /// The certificates of the process, for other servers.
    pub(crate) tls: Option<Tls>,
    /// Where the sessions go that stay when the program is replaced.
    pub(crate) sessions: Sessions,
    /// Whether the settings give the name to a volume in no store.
    pub(crate) is_named_elsewhere: bool,
}

/// Opens a volume and serves those who are handed off to it until it is told to stop.
pub(crate) async fn host(
    context: Rc<ShardContext>,
    home: Home,
    store: Option<Store>,
    spec: VolumeSpec,
    ends: Ends,
) -> Result<Stopped, NodeError> {
    let Ends { mut ready, waits, stop, tls, sessions, is_named_elsewhere } = ends;
    let asked = (waits, tls, is_named_elsewhere);
    let opening = open(&context, &home, store.as_ref(), &spec, asked);
    let opened = tokio::select! {
        biased;
        // The receiver is gone only if the process stops. Nothing was acknowledged, and an opening can be ended
        // anywhere.
        () = ready.closed() => return Ok(Stopped::Clean),
        opened = opening => opened?,
    };
    let mut options = ListenerOptions::new(connection_options(&context));
    let (keeper, epoch) = (sessions.of_volume(), opened.report.epoch);
    options.connection.keeper = opened.stack.is_log().then(|| keeper.clone());
    let access = options.connection.access.clone();
    let attachments = options.connection.attachments.clone();
    let record = restore_access(&home, &spec, &opened, &access).await?;
    let read_only = is_read_only(&spec, &opened.stack);
    let hosted = Rc::new(Hosted {
        id: opened.id,
        name: spec.name.clone(),
        stack: Rc::clone(&opened.stack),
        read_only,
        clients: OnceCell::new(),
        gate: Gate::new(opened.stack.size()),
        access,
        record,
    });
    let (hand_off, server) = serve_handed_off(Rc::new(OneExport::of(&hosted)), options);
    hosted.clients.get_or_init(|| server.clients_counter());
    context.hosted.borrow_mut().insert(opened.id, Rc::clone(&hosted));
    let listening = tokio::task::spawn_local(hear_events(Rc::clone(&hosted), attachments));
    let hosting = Hosting {
        id: opened.id,
        gate: Arc::clone(&hosted.gate),
        created: opened.created,
        read_only,
        is_replica: opened.stack.view().is_some(),
        place: opened.place,
        report: opened.report,
        hand_off,
        instance: new_instance(&context),
    };
    let closing = match ready.send(hosting) {
        // A dropped sender means that it is to stop as well.
        Ok(()) => stop.await.unwrap_or(Closing::ToStore),
        // The receiver is gone only if the process stops; then the volume is closed at once.
        Err(_) => Closing::Quick,
    };
    let began = Instant::now();
    server.stop().await;
    context.hosted.borrow_mut().remove(&hosted.id);
    // The time that the clients took to end is part of the time for the close.
    let deadline = match closing {
        Closing::ToStore => spec.options.close_deadline.saturating_sub(began.elapsed()),
        Closing::Quick => Duration::ZERO,
    };
    listening.abort();
    // The task holds the volume, and with it the lock of its directory.
    let _ = listening.await;
    let stopped = close_as(&home, (opened.id, &opened.stack), (closing, deadline)).await?;
    sessions.closed(&keeper, opened.id, epoch);
    Ok(stopped)
}

fn new_instance(context: &ShardContext) -> Instance {
    let mut instance = Instance::default();
    context.env.random.fill(&mut instance);
    instance
}

/// Opens what keeps the bytes.
async fn open(
    context: &ShardContext,
    home: &Home,
    store: Option<&Store>,
    spec: &VolumeSpec,
    (waits, tls, is_named): (Option<oneshot::Sender<String>>, Option<Tls>, bool),
) -> Result<Opened, NodeError> {
    match (store, &spec.endpoint) {
        (Some(store), EndpointKind::Log) => {
            open_log(context, home, store, spec, (waits, is_named)).await
        }
        (None, EndpointKind::Log) => Err(NodeError::NoStoreHere { name: spec.name.to_string() }),
        (_, EndpointKind::Remote(remote)) => open_remote(context, spec, remote, tls).await,
        (_, EndpointKind::File(file)) => open_file(context, spec, file).await,
        (_, EndpointKind::Memory) => open_memory(context, spec).await,
    }
}

/// What is known from before of who may write; the record that keeps it. Only a log volume knows whether it was opened
/// elsewhere in between. After an error the volume is closed.
async fn restore_access(
    home: &Home,
    spec: &VolumeSpec,
    opened: &Opened,
    access: &Access,
) -> Result<Option<GivenRecord>, NodeError> {
    if matches!(spec.endpoint, EndpointKind::Remote(_)) {
        access.forwards(spec.name.as_str());
    }
    if !opened.stack.is_log() {
        return Ok(None);
    }
    let record = GivenRecord::new(home.data.given(opened.id), opened.report.epoch);
    match record.restore(&opened.report, spec.consent) {
        Ok(given) => {
            access.restore(spec.name.as_str(), given);
            Ok(Some(record))
        }
        Err(error) => {
            close(home, (opened.id, &opened.stack), spec.options.close_deadline).await?;
            Err(error)
        }
    }
}

/// Whether writes are refused: as the settings say, or because the device takes none.
fn is_read_only(spec: &VolumeSpec, stack: &Stack) -> bool {
    let is_so_below = stack.info().is_read_only;
    if is_so_below && !spec.read_only && matches!(spec.endpoint, EndpointKind::Remote(_)) {
        tracing::warn!(
            volume = %spec.name,
            "the server gives it read-only: it may be so there, or another client has exclusive access; once that is \
             over, detach the volume and attach it again"
        );
    }
    spec.read_only || is_so_below
}

/// Passes the events of a volume on to those who serve it, and logs them.
async fn hear_events(hosted: Rc<Hosted>, attachments: Attachments) {
    loop {
        match poll_fn(|cx| hosted.stack.poll_event(cx)).await {
            Event::Resized(size) => {
                hosted.gate.set_size(size);
                // Other nodes learn of it when they connect anew.
                attachments.renew(hosted.name.as_str());
            }
            Event::ContentReplaced { generation } => {
                tracing::info!(volume = %hosted.name, generation, "the content was replaced");
            }
            Event::ExclusiveLost(error) => {
                // An export of another server may have come back as another disk, or have been written by others.
                let what = match hosted.stack.is_log() {
                    true => "the volume stopped, and answers nothing any more",
                    false => "the volume answers nothing until it is detached and attached again",
                };
                tracing::error!(volume = %hosted.name, %error, "{what}");
            }
            Event::Degraded(error) => {
                tracing::warn!(volume = %hosted.name, %error, "the volume is degraded");
            }
        }
    }
}

async fn open_log(
    context: &ShardContext,
    home: &Home,
    store: &Store,
    spec: &VolumeSpec,
    (waits, is_named): (Option<oneshot::Sender<String>>, bool),
) -> Result<Opened, NodeError> {
    let name = &spec.name;
    let (id, created) = find_or_create(context, home, store, spec, is_named).await?;
    let settings = spec.options.clone();
    let read_deadline = settings.read_deadline;
    let waits = Cell::new(waits);
    let on_wait = Rc::new(move |node: &str| {
        // Only the first wait is reported.
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
        // Tried first: a replica has the identity of its source, which this host may serve as well.
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
            let (name, can_grow) = (name.to_string(), true);
            Err(NodeError::OtherSize { name, found, wanted, can_grow })
        }
        _ => Ok(opened),
    }
}

/// Opens the newest state of a replica, to be copied.
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
        blocks: context.blocks.clone(),
        read_deadline,
    };
    let spec = StackSpec { endpoint: EndpointSpec::Replica(args), stages };
    let (stack, report) = Stack::open(&context.env, spec).await?;
    let place = format!("a replica in {}", home.store_url);
    // Its sockets are in this directory.
    context.disks.directory(home.data.volume(id))?;
    // A copy goes on where it stopped if this opening is the next one after that of its record. The numbers of roots
    // are doubled, so that none is the next one: no copy goes on with the bytes of another root.
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
    is_named: bool,
) -> Result<(VolumeId, bool), NodeError> {
    match (catalog::find(store, &context.env, &spec.name).await, spec.size) {
        (Ok(id), _) => Ok((id, false)),
        (Err(LogError::NoSuchVolume { .. }), Some(size)) => {
            home.refuse_taken_by_others(is_named, &spec.name).await?;
            known_stores::check_not_emptied(context, home, store).await?;
            known_stores::check_not_lost(context, home, store, &spec.name).await?;
            check_room(home, spec.options.journal.segment_bytes)?;
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

/// Checks that the journal of a new volume has room, before the volume is created: one that cannot be opened would
/// stay.
fn check_room(home: &Home, needed: u64) -> Result<(), NodeError> {
    let directory = home.data.path();
    // What cannot be measured is found when the journal is written.
    let Ok(room) = rustix::fs::statvfs(directory) else { return Ok(()) };
    let free = room.f_bavail.saturating_mul(room.f_frsize);
    if free >= needed {
        return Ok(());
    }
    Err(NodeError::NoJournalRoom { directory: directory.display().to_string(), free, needed })
}

async fn open_memory(context: &ShardContext, spec: &VolumeSpec) -> Result<Opened, NodeError> {
    let size = spec.size.ok_or_else(|| NodeError::SizeNeeded {
        name: spec.name.to_string(),
        store: "memory".to_owned(),
    })?;
    let stages = spec.stages.describe(&spec.name);
    let described = StackSpec { endpoint: EndpointSpec::Memory(size), stages };
    let place = "in memory, nothing survives".to_owned();
    open_elsewhere(context, spec, described, (place, true)).await
}

/// Connects to the export of another server.
async fn open_remote(
    context: &ShardContext,
    spec: &VolumeSpec,
    remote: &Remote,
    tls: Option<Tls>,
) -> Result<Opened, NodeError> {
    let Remote { url, connections, deadline, resend, exclusive } = remote.clone();
    let place = format!("at {url}");
    let args = RemoteArgs { url, tls, connections, deadline, resend, exclusive };
    let stages = spec.stages.describe(&spec.name);
    let described = StackSpec { endpoint: EndpointSpec::Remote(Box::new(args)), stages };
    open_elsewhere(context, spec, described, (place, false)).await
}

/// Opens a file or a block device, and makes the file if it has a size.
async fn open_file(
    context: &ShardContext,
    spec: &VolumeSpec,
    file: &FileConfig,
) -> Result<Opened, NodeError> {
    let FileConfig { path, direct } = file;
    let mode = ImageMode { read_only: spec.read_only, direct: *direct, create: spec.size };
    let image = context.disks.image(path, mode).await?;
    warn_of_formats(&image, path).await;
    let place = format!("in {}", path.display());
    let created = image.created;
    let stages = spec.stages.describe(&spec.name);
    let described =
        StackSpec { endpoint: EndpointSpec::File(Box::new(image), spec.read_only), stages };
    open_elsewhere(context, spec, described, (place, created)).await
}

/// An image in another format than raw is served byte by byte all the same: whoever writes it destroys it.
async fn warn_of_formats(image: &Image, path: &Path) {
    let block = usize::try_from(image.zero_bytes).unwrap_or(usize::MAX).clamp(16, 4096);
    if image.size < block as u64 {
        return;
    }
    let (head, read) = image.file.read_at(AlignedBuf::zeroed(block), 0).await;
    // What cannot be read is said when a client asks for it.
    let Ok(()) = read else { return };
    for (magic, format) in FORMATS {
        if head.starts_with(magic) {
            let path = path.display();
            tracing::warn!(%path, format, "the file looks like an image of this format, and is served as raw bytes");
        }
    }
}

/// Opens a volume that is in no store: it is given an identity for as long as it is served.
async fn open_elsewhere(
    context: &ShardContext,
    spec: &VolumeSpec,
    described: StackSpec,
    (place, created): (String, bool),
) -> Result<Opened, NodeError> {
    let (stack, report) = Stack::open(&context.env, described).await?;
    let found = stack.size();
    if let Some(wanted) = spec.size.filter(|wanted| spec.size_must_match && *wanted != found) {
        stack.close(Duration::ZERO).await?;
        let (name, can_grow) = (spec.name.to_string(), false);
        return Err(NodeError::OtherSize { name, found, wanted, can_grow });
    }
    if let Some(wanted) = spec.size.filter(|wanted| *wanted != found) {
        let volume = &spec.name;
        tracing::warn!(%volume, found, wanted, "the volume has another size, in bytes, than the settings say");
    }
    let mut id = [0; 16];
    context.env.random.fill(&mut id);
    Ok(Opened { stack, id: VolumeId(id), created, place, report })
}

/// Closes it; for the next process it is an error as well that it takes no writes any more.
async fn close_as(
    home: &Home,
    (id, stack): (VolumeId, &Stack),
    (closing, deadline): (Closing, Duration),
) -> Result<Stopped, NodeError> {
    let refusal = refusal_to_hand_on(closing, stack);
    let stopped = close(home, (id, stack), deadline).await?;
    refusal.map_or(Ok(stopped), Err)
}

async fn close(
    home: &Home,
    (id, stack): (VolumeId, &Stack),
    deadline: Duration,
) -> Result<Stopped, NodeError> {
    let closed = stack.close(deadline).await?;
    if stack.is_log() {
        let unsent = stack.log_status().map(AtRisk::from).unwrap_or_default();
        opened::note_closed(&home.data, id, closed, unsent);
    }
    match closed {
        Closed::Clean => Ok(Stopped::Clean),
        Closed::LocalOnly => Ok(Stopped::LocalOnly),
    }
}
