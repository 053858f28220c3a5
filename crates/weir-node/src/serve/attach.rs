//! Which volumes a process serves while it runs: those of its start, those that verbs attach and detach, and those of a
//! configuration that was loaded anew.
//!
//! Rules
//!  A1. One change of a volume at a time: a second one is refused with an error that says so. An opening is taken back
//!      by a detach.
//!  A2. A volume is offered once it is open, and not offered any more before it is closed.
//!  A3. A change runs to its end, even if its caller goes away. The exception is an opening when the process stops, or
//!      that is taken back: nothing was acknowledged yet.
//!  A4. What verbs attached and detached stays so ([`crate::serve::by_hand`]).

use std::collections::BTreeSet;
use std::pin::pin;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use futures_util::future::BoxFuture;
use futures_util::future::{Either, join_all, select};
use rustix::process::{Resource, getrlimit};
use tokio::sync::oneshot;
use weir_device::{mutant, with_causes};
use weir_log::catalog::{self, VolumeName};
use weir_log::{LogError, VolumeState};

use crate::config::ReplicateTo;
use crate::error::NodeError;
use crate::serve::by_hand::Left;
use crate::serve::close::Close;
use crate::serve::core::{Core, Entry};
use crate::serve::events::EventKind;
use crate::serve::host;
use crate::serve::left;
use crate::serve::lock::lock;
use crate::serve::replica::{self, End, Following};
use crate::serve::running::{Change, Opening, Running};
use crate::serve::spec::{Closing, EndpointKind, Stopped, VolumeSet, VolumeSpec};
use crate::serve::unsent::Unsent;

/// Open files that a process needs for itself and its first clients, and for each volume while it is opened.
const DESCRIPTORS_BASE: u64 = 192;
const DESCRIPTORS_PER_VOLUME: u64 = 4;

/// Pause before a volume is opened again that another node was seen to have.
const HELD_PAUSE: Duration = Duration::from_secs(10);

/// Pause before a volume is opened again that another process of this machine has open.
const LOCKED_PAUSE: Duration = Duration::from_millis(200);

/// How long others wait for such a volume.
const LOCKED_PATIENCE: Duration = Duration::from_secs(3);

/// How long others wait for the opening of a file.
const FILE_PATIENCE: Duration = Duration::from_secs(5);

/// Volumes that are not served, and why.
pub(crate) type Failed = Vec<(VolumeName, NodeError)>;

/// What is to be served.
#[derive(Debug)]
pub(crate) struct Wanted {
    pub(crate) specs: Vec<VolumeSpec>,
    /// Those of which the store has nothing that can be read.
    pub(crate) unreadable: Failed,
    /// Those that the settings would have served and verbs left otherwise, and what became of them.
    pub(crate) left_out: Vec<(VolumeName, String)>,
}

/// Which volumes to serve, as the settings and verbs have it.
pub(crate) async fn wanted(core: &Core) -> Result<Wanted, NodeError> {
    let (mut specs, mut unreadable) = named(core).await?;
    let mut left_out = Vec::new();
    let names = specs.iter().map(|spec| &spec.name).chain(unreadable.iter().map(|one| &one.0));
    let names: BTreeSet<VolumeName> = names.cloned().collect();
    core.forget_what_is_gone(&names);
    let detached = core.detached_by_hand().into_iter();
    for (name, detached) in detached.filter(|(name, _)| names.contains(name)) {
        if let Some(why) = core.why_left_out(&name, detached).await? {
            specs.retain(|spec| spec.name != name);
            unreadable.retain(|(other, _)| *other != name);
            left_out.push((name, why));
        }
    }
    Ok(Wanted { specs, unreadable, left_out })
}

/// What the settings name, and of it that of which the store has nothing that can be read.
async fn named(core: &Core) -> Result<(Vec<VolumeSpec>, Failed), NodeError> {
    let template = match &*lock(&core.volume_set) {
        VolumeSet::Listed(specs) => return Ok((specs.clone(), Vec::new())),
        VolumeSet::All(template) => template.clone(),
    };
    let store = core.store.clone().expect("opened for all volumes of it");
    let list = |context: std::rc::Rc<crate::node::shard::ShardContext>| async move {
        catalog::list(&store, &context.env).await
    };
    let listing = core.node.run(0, list).await??;
    let spec = |name| VolumeSpec { name, ..(*template).clone() };
    // A volume that is being filled is not served yet, and a replica is written by its replicator.
    let whole = listing
        .volumes
        .into_iter()
        .filter(|s| !matches!(s.state, VolumeState::Incomplete | VolumeState::Replica));
    let unreadable = listing.unreadable.into_iter().map(|(name, error)| (name, error.into()));
    Ok((whole.map(|summary| spec(summary.name)).collect(), unreadable.collect()))
}

/// Opens every volume of `specs` on its shard. `failed` are those that cannot be opened, as is known already. One that
/// another node holds is opened in the background, if another volume is served. It is an error if none could be opened,
/// unless `none_will_do`.
pub(crate) async fn open_all(
    core: &Arc<Core>,
    specs: Vec<VolumeSpec>,
    mut failed: Failed,
    none_will_do: bool,
) -> Result<(), NodeError> {
    warn_of_descriptors(specs.len() as u64);
    let opening = specs.into_iter().enumerate().map(|(index, spec)| {
        let shard = index % core.node.shard_count();
        open_past_verbs(core, spec, shard)
    });
    let mut held = Vec::new();
    for (name, opened) in join_all(opening).await {
        match opened {
            Begun::Ended(Ok(())) => {}
            Begun::Ended(Err(error)) => failed.push((name, error)),
            Begun::Waits { whom, opened, opening } => held.push((name, whom, opened, opening)),
        }
    }
    for (name, whom, opened, opening) in held {
        if lock(&core.running).is_empty() && !none_will_do {
            // Nothing else is served, so it is waited for.
            tracing::warn!(volume = %name, "a volume waits for {whom}");
            if let Err(error) = opened.await {
                failed.push((name, error));
            }
            continue;
        }
        let_wait(core, (name, opening), &whom, opened);
    }
    if lock(&core.running).is_empty() && !failed.is_empty() && !none_will_do {
        return Err(failed.remove(0).1);
    }
    for (name, error) in failed {
        core.note_failed(&name, &error);
    }
    Ok(())
}

/// What the opening of a volume has come to.
pub(super) enum Begun {
    Ended(Result<(), NodeError>),
    /// It waits for another node, or for what keeps its bytes; `opened` is its result.
    Waits {
        whom: String,
        opened: BoxFuture<'static, Result<(), NodeError>>,
        opening: Arc<Opening>,
    },
}

/// As [`open_or_wait`], without a limit. Where another process of this machine has the volume open, as a verb may for a
/// moment that came while nobody served it, that is waited for.
async fn open_past_verbs(core: &Arc<Core>, spec: VolumeSpec, shard: usize) -> (VolumeName, Begun) {
    let until = Instant::now() + LOCKED_PATIENCE;
    loop {
        let (name, begun) = open_or_wait(core, spec.clone(), shard, Duration::MAX).await;
        let (process, error) = match begun {
            Begun::Ended(Err(error @ NodeError::Held { process, .. })) => (process, error),
            begun => return (name, begun),
        };
        if Instant::now() >= until {
            let whom = format!("process {process}, which has it open");
            let opening = Opening::begin(core, &name);
            let opened = Box::pin(std::future::ready(Err(error)));
            return (name, Begun::Waits { whom, opened, opening });
        }
        tokio::time::sleep(LOCKED_PAUSE).await;
    }
}

/// Whom an opening waits for that another node's does.
fn of_node(node: &str) -> String {
    format!("node {node:?}, which has not closed it")
}

/// Opens a volume and offers it, or says who is waited for: also where that takes longer than `limit`, or than
/// [`FILE_PATIENCE`] with a file.
pub(super) async fn open_or_wait(
    core: &Arc<Core>,
    spec: VolumeSpec,
    shard: usize,
    limit: Duration,
) -> (VolumeName, Begun) {
    let name = spec.name.clone();
    let (late, limit) = match &spec.endpoint {
        EndpointKind::File(file) => {
            let late = format!("its file {}, which does not answer", file.path.display());
            (late, limit.min(FILE_PATIENCE))
        }
        _ => ("what keeps its bytes, which has not answered yet".to_owned(), limit),
    };
    let (waits, held) = oneshot::channel();
    let opening = Opening::begin(core, &name);
    let begun = open(Arc::clone(core), spec, shard, Some(waits), Arc::clone(&opening));
    let mut opened = core.in_background(begun);
    let first = async {
        match select(&mut opened, held).await {
            Either::Left((opened, _)) => Ok(opened),
            Either::Right((Ok(node), _)) => Err(node),
            Either::Right((Err(_), opened)) => Ok(opened.await),
        }
    };
    let begun = match tokio::time::timeout(limit, first).await {
        Ok(Ok(opened)) => Begun::Ended(opened),
        Ok(Err(node)) => Begun::Waits { whom: of_node(&node), opened, opening },
        Err(_) => Begun::Waits { whom: late, opened, opening },
    };
    (name, begun)
}

/// Lets an opening that waits for somebody go on in the background.
pub(super) fn let_wait(
    core: &Arc<Core>,
    (name, opening): (VolumeName, Arc<Opening>),
    whom: &str,
    opened: BoxFuture<'static, Result<(), NodeError>>,
) {
    tracing::warn!(volume = %name, "a volume waits for {whom}, and delays only itself");
    core.note_waits(&name, whom);
    core.node.workers.spawn(open_once_free(Arc::clone(core), (name, opening), opened));
}

/// Serves a volume of another node once that node has closed it, as long as it is to be served. `opened` is the first
/// attempt; it ends with an error when the other node is seen to renew its lease.
async fn open_once_free(
    core: Arc<Core>,
    (name, opening): (VolumeName, Arc<Opening>),
    mut opened: BoxFuture<'static, Result<(), NodeError>>,
) {
    let mut stopping = core.stopping.subscribe();
    loop {
        let pause = match opened.await {
            // A verb that attaches it meanwhile reports its own result.
            Err(
                NodeError::ShuttingDown | NodeError::Changing { .. } | NodeError::TakenBack { .. },
            ) => return,
            Ok(()) => {
                // It may have ended just before it was noted.
                if core.entry(name.as_str()).is_some() {
                    core.note_not_served(&name, None);
                }
                return;
            }
            Err(error) => match (&error, error.of_log()) {
                (_, Some(LogError::InUse { node, .. })) => {
                    core.note_waits(&name, &of_node(node));
                    HELD_PAUSE
                }
                // A verb of this machine has it.
                (NodeError::Held { .. }, _) => LOCKED_PAUSE,
                _ => return core.note_failed(&name, &error),
            },
        };
        let stopped = pin!(stopping.wait_for(|is_stopping| *is_stopping));
        let taken_back = pin!(opening.taken_back());
        let given_up = select(stopped, taken_back);
        if tokio::time::timeout(pause, given_up).await.is_ok() {
            return;
        }
        // It is not noted any more if the configuration no longer names it, or if it was attached meanwhile.
        if !core.is_noted_not_served(&name) {
            return;
        }
        let shard = core.least_used_shard();
        // It was there. One that was deleted meanwhile is not created anew.
        let spec = VolumeSpec { size: None, ..core.spec_of(&name) };
        let again = open(Arc::clone(&core), spec, shard, None, Arc::clone(&opening));
        opened = core.in_background(again);
    }
}

/// Warns if the process may not have as many files open as this number of volumes needs.
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

/// Opens a volume and offers it (A2). `waits` is told the name of a node that the opening waits for.
async fn open(
    core: Arc<Core>,
    spec: VolumeSpec,
    shard: usize,
    waits: Option<oneshot::Sender<String>>,
    opening: Arc<Opening>,
) -> Result<(), NodeError> {
    let name = spec.name.clone();
    let _change = Change::begin(&core.changing, &name)?;
    if core.entry(name.as_str()).is_some() {
        return Ok(());
    }
    if !opening.is_by_hand() {
        check_left_to_settings(&core, &spec)?;
    }
    take_from_left(&core, &name).await;
    let (ready, mut started) = oneshot::channel();
    let (stop, stopped) = oneshot::channel();
    let (home, store) = (core.home.clone(), core.store.clone());
    let (replica, is_named_elsewhere) = (spec.replica.clone(), core.is_named_elsewhere(&name));
    let (tls, sessions) = (core.tls.clone(), core.sessions.clone());
    let ends = host::Ends { ready, waits, stop: stopped, tls, sessions, is_named_elsewhere };
    let mut ended = core.node.submit(shard, {
        let spec = spec.clone();
        move |context| host::host(context, home, store, spec, ends)
    })?;
    let begun = tokio::select! {
        biased;
        begun = &mut started => begun,
        () = opening.taken_back() => {
            // Dropping `started` ends it.
            drop(started);
            let _ = ended.await;
            return Err(NodeError::TakenBack { name: name.to_string() });
        }
    };
    let Ok(hosting) = begun else {
        // It ended before it was ready, and says why.
        return match (&mut ended).await {
            Ok(Err(error)) => Err(error),
            Ok(Ok(_)) | Err(_) => Err(NodeError::ShuttingDown),
        };
    };
    let size = hosting.gate.size();
    let (replica, following) = match replica {
        Some(to) => Some(keep_replica(&core, &name, shard, to)?).unzip(),
        None => (None, None),
    };
    let allowed = spec.allowed.clone();
    let entry = Entry {
        name: name.clone(),
        id: hosting.id,
        shard,
        gate: hosting.gate,
        spec,
        read_only: hosting.read_only,
        is_replica: hosting.is_replica,
        created: hosting.created,
        place: hosting.place,
        report: hosting.report,
        replica,
        hand_off: hosting.hand_off,
        instance: hosting.instance,
        allowed: Mutex::new(allowed),
    };
    offer(&core, entry, Running { stop, ended, following }, &opening).await?;
    core.note_not_served(&name, None);
    core.events.note(EventKind::VolumeOpened, Some(name.as_str()), format!("{size} bytes"));
    Ok(())
}

/// Checks that the settings alone may have a volume served.
fn check_left_to_settings(core: &Core, spec: &VolumeSpec) -> Result<(), NodeError> {
    // A verb may have detached it since the settings were read.
    if core.is_detached_by_hand(&spec.name) && !mutant("reload_undoes_detach") {
        return Err(NodeError::TakenBack { name: spec.name.to_string() });
    }
    core.failed_before.check(spec)
}

/// Waits for the close of a volume that was left out and is wanted again, and sees to it that no other one begins.
async fn take_from_left(core: &Core, name: &VolumeName) {
    if core.is_left(name) {
        let _turn = core.left_turn.lock().await;
        core.note_left(name, None);
    }
}

/// Offers what is open, unless it is not wanted any more.
async fn offer(
    core: &Core,
    entry: Entry,
    mut running: Running,
    opening: &Opening,
) -> Result<(), NodeError> {
    let name = entry.name.to_string();
    if opening.is_by_hand() {
        core.note_by_hand(&entry.name, Left::Attached);
    }
    {
        let mut all = lock(&core.running);
        if core.is_stopping.load(Ordering::Relaxed) {
            // Dropping `running` ends it.
            return Err(NodeError::ShuttingDown);
        }
        if !opening.is_taken_back() {
            core.failed_before.forget(&entry.spec.endpoint);
            core.cache.limit_share(entry.id, entry.spec.stages.cache_share);
            all.insert(name.clone(), running);
            let entry = Arc::new(entry);
            lock(&core.volumes).insert(name, Arc::clone(&entry));
            // A reload that came since its settings were read may have found it in no table. Where newer settings do
            // not name it any more, what they say of volumes that they do not name is not said of it.
            if core.is_told_of(&entry.name) {
                core.let_in_as_settings_say(&entry);
            }
            return Ok(());
        }
    }
    if let Some(following) = running.take_following() {
        following.wait().await;
    }
    // Whoever took it back looks whether this node still holds it.
    let _ = running.stop(Closing::ToStore).await;
    Err(NodeError::TakenBack { name })
}

/// Keeps a replica of a volume, and notes when that has ended for good.
fn keep_replica(
    core: &Arc<Core>,
    name: &VolumeName,
    shard: usize,
    to: ReplicateTo,
) -> Result<(Following, End), NodeError> {
    let on_end = {
        let (core, name) = (Arc::clone(core), name.clone());
        move |why| core.events.note(EventKind::ReplicaEnded, Some(name.as_str()), why)
    };
    replica::keep(&core.node, &core.home, core.limits(), (name, shard), to, on_end)
}

/// Serves a volume from now on, as the settings say but for what `change` does to that. It is no error if it is served
/// so already.
///
/// # Errors
/// Why it cannot be opened; [`NodeError::ServedOtherwise`] or [`NodeError::OtherSize`].
pub(crate) async fn attach(
    core: &Arc<Core>,
    name: &VolumeName,
    change: impl FnOnce(&mut VolumeSpec),
) -> Result<(), NodeError> {
    let (opening, spec) = Opening::begin_by_hand(core, name, change);
    let (shard, asked) = (core.least_used_shard(), spec.clone());
    core.in_background(open(Arc::clone(core), spec, shard, None, opening)).await?;
    if let Some(entry) = core.entry(name.as_str()) {
        check_served_as(&entry, &asked)?;
    }
    tracing::info!(volume = %name, "volume attached");
    Ok(())
}

/// Checks that what is served, by this opening or by one before it, is what was asked for.
fn check_served_as(entry: &Entry, asked: &VolumeSpec) -> Result<(), NodeError> {
    let (name, found) = (entry.name.to_string(), entry.gate.size());
    let is_another = entry.is_elsewhere() != (asked.endpoint != EndpointKind::Log);
    if is_another && !mutant("attached_is_another_kind") {
        let reason = match entry.is_elsewhere() {
            true => {
                "is served here under that name: detach it first, to have that of the store served"
            }
            false => "one of the store is served here under that name: detach that one first",
        };
        return Err(NodeError::InMemory { name, reason });
    }
    // As it was asked for: a device may take no writes for reasons of its own.
    let read_only = entry.spec.read_only;
    if read_only != asked.read_only {
        return Err(NodeError::ServedOtherwise { name, read_only });
    }
    match asked.size.filter(|wanted| asked.size_must_match && *wanted != found) {
        Some(wanted) => Err(NodeError::OtherSize { name, found, wanted, can_grow: true }),
        None => Ok(()),
    }
}

/// How a volume is detached.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Detaching {
    /// Its clients are disconnected.
    pub(crate) disconnect: bool,
    /// Whether everything in it goes to the store, so that any node may open it.
    pub(crate) closing: Closing,
    /// Who asked for it.
    pub(crate) asked: Asked,
}

/// Who asks for a volume to be detached.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Asked {
    /// The settings, which do not name it any more.
    BySettings,
    /// A verb, and no more.
    ByHand,
    /// A verb that renames or deletes it next.
    ToGo,
}

/// Stops serving a volume.
///
/// # Errors
/// [`NodeError::NotServedHere`]; [`NodeError::Connected`] or [`NodeError::SnapshotOpen`] where it or one of its
/// snapshots has clients and they are not to be disconnected; what a close says.
pub(crate) async fn detach(
    core: &Arc<Core>,
    name: VolumeName,
    how: Detaching,
) -> Result<Stopped, NodeError> {
    let (done, outcome) = oneshot::channel();
    let detaching = detach_now(Arc::clone(core), name, how);
    core.node.workers.spawn(async move {
        // Whoever asked may be gone.
        drop(done.send(detaching.await));
    });
    outcome.await.unwrap_or(Err(NodeError::ShuttingDown))
}

/// Takes the opening of a volume back for a verb, if there is one that has not ended, or has one in no store served no
/// more that failed in the process before this one: whether it is not served then.
///
/// # Errors
/// [`NodeError::ShuttingDown`].
pub(crate) async fn take_back(core: &Arc<Core>, name: &VolumeName) -> Result<bool, NodeError> {
    let taken = core.take_back(|one, _| one == name).await;
    let is_served = core.entry(name.as_str()).is_some();
    let had_failed = !is_served && core.failed_before.forget(&core.spec_of(name).endpoint);
    if is_served || (taken.is_empty() && !had_failed) {
        return Ok(false);
    }
    core.note_by_hand(name, Left::Detached(None));
    core.note_not_served(name, None);
    if !taken.is_empty() {
        left::close_if_held(core, name.clone())?;
    }
    Ok(true)
}

async fn detach_now(
    core: Arc<Core>,
    name: VolumeName,
    how: Detaching,
) -> Result<Stopped, NodeError> {
    let disconnect = how.disconnect;
    let _change = Change::begin(&core.changing, &name)?;
    let not_served = || NodeError::NotServedHere { name: name.to_string() };
    let entry = core.entry(name.as_str()).ok_or_else(not_served)?;
    if !disconnect {
        core.on_volume(&entry, |hosted| async move { Ok(hosted.clients_stay().await) }).await?;
        core.views.clients_stay(name.as_str()).await;
    }
    // From here on a client whose handshake has begun finds it closed.
    let Some(kept_out) = entry.gate.close() else {
        return Err(NodeError::Changing { name: name.to_string() });
    };
    let clients = core.client_count(&entry).await?;
    if clients > 0 && !disconnect {
        return Err(NodeError::Connected { name: name.to_string(), clients });
    }
    // Its snapshots go with it. One that is being opened is waited for; the next one finds the gate closed.
    let export = core.views.wait_open_of(name.as_str()).await.pop();
    if let Some(export) = export.filter(|_| !disconnect) {
        return Err(NodeError::SnapshotOpen { export });
    }
    let mut unsent = Unsent::default();
    // An error means that the process stops.
    let _ = unsent.look_at(&core.node, (entry.shard, entry.id))?.await;
    let closing = Close::begin(&core, &entry, unsent).ok_or_else(not_served)?;
    match how.asked {
        Asked::BySettings => {}
        Asked::ByHand => core.note_by_hand(&name, Left::Detached(Some(entry.id))),
        Asked::ToGo => core.note_by_hand(&name, Left::Going(entry.id)),
    }
    lock(&core.volumes).remove(name.as_str());
    let closed = closing.end(how.closing).await;
    drop(kept_out);
    match &closed {
        Ok(stopped) => {
            let became = match (stopped, &entry.spec.endpoint) {
                (Stopped::LocalOnly, _) => "the journal keeps what the store does not have",
                (Stopped::Clean, EndpointKind::Log) => "everything is in the store",
                (Stopped::Clean, EndpointKind::Memory) => "what was in memory is gone",
                (Stopped::Clean, EndpointKind::File(_)) => "its file has everything",
                (Stopped::Clean, EndpointKind::Remote(_)) => "its server has everything",
            };
            match (stopped, how.closing) {
                (Stopped::LocalOnly, Closing::ToStore) => tracing::warn!(
                    volume = %name, how = became,
                    "volume detached: weir volume flush takes the rest to the store once that answers"
                ),
                _ => tracing::info!(volume = %name, how = became, "volume detached"),
            }
            core.note_not_served(&name, None);
            core.events.note(EventKind::VolumeDetached, Some(name.as_str()), became);
        }
        Err(error) if entry.is_elsewhere() => core.note_lost(&name, error),
        Err(error) => core.note_failed(&name, error),
    }
    closed
}

impl Core {
    /// Runs a change to its end though its caller goes away, until the process stops (A3).
    pub(super) fn in_background<T: Send + 'static>(
        self: &Arc<Self>,
        change: impl Future<Output = Result<T, NodeError>> + Send + 'static,
    ) -> BoxFuture<'static, Result<T, NodeError>> {
        let (done, outcome) = oneshot::channel();
        let stopping = self.stopping.subscribe();
        self.node.workers.spawn(async move {
            let mut stopping = stopping;
            tokio::select! {
                biased;
                // An error means that the core was dropped, so the process stops.
                _ = stopping.wait_for(|is_stopping| *is_stopping) => {}
                // Whoever asked may be gone.
                changed = change => drop(done.send(changed)),
            }
        });
        Box::pin(async move { outcome.await.unwrap_or(Err(NodeError::ShuttingDown)) })
    }

    /// The shard with the fewest volumes.
    pub(super) fn least_used_shard(&self) -> usize {
        let mut counts = vec![0_usize; self.node.shard_count()];
        self.entries().iter().for_each(|entry| counts[entry.shard] += 1);
        let fewest = counts.iter().enumerate().min_by_key(|(_, count)| **count);
        fewest.map_or(0, |(shard, _)| shard)
    }

    fn note_waits(&self, name: &VolumeName, whom: &str) {
        let why = format!("it is being opened: waiting for {whom}");
        self.note_not_served(name, Some(why));
    }

    /// A volume in no store was closed, and not all of it is known to be where it belongs. Nothing of it is left here
    /// that could be tried again; whoever asked may be gone, so that it is told here.
    fn note_lost(&self, name: &VolumeName, error: &NodeError) {
        let reason = with_causes(error);
        tracing::error!(volume = %name, reason, "a volume was closed, and its newest writes may be lost");
        let message = format!("it was closed, and its newest writes may be lost: {reason}");
        self.events.note(EventKind::VolumeFailed, Some(name.as_str()), message);
        self.note_not_served(name, None);
    }

    pub(super) fn note_failed(&self, name: &VolumeName, error: &NodeError) {
        // Whoever took it back or changes it says what becomes of it.
        if matches!(error, NodeError::Changing { .. } | NodeError::TakenBack { .. }) {
            return;
        }
        let reason = with_causes(error);
        self.events.note(EventKind::VolumeFailed, Some(name.as_str()), reason.clone());
        tracing::error!(volume = %name, reason, "a volume is not served");
        self.note_not_served(name, Some(reason));
    }
}
