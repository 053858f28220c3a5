//! Volumes of a store, whether or not a process serves them: the verbs, and how a volume is opened.
//!
//! A verb that changes an open volume goes through the process that holds it; every other one works on the store alone.

use std::rc::Rc;

use weir_device::{VolumeId, with_causes};
use weir_disk::{Directory, LeaveRoom, LockGuard};
use weir_log::catalog::{self, VolumeName, VolumeSummary};
use weir_log::{
    Encryption, Keys, LOCK_FILE, LogError, OnWait, OpenArgs, OpenReport, VolumeOptions,
};
use weir_stack::{EndpointSpec, Stack, StackSpec, StageSpec};
use weir_store::{Access, Store, StoreOptions};

use crate::api::types::{Limits, Listed, Shown};
use crate::data_directory::DataDirectory;
use crate::error::{NodeError, ProcessId};
use crate::known_stores;
use crate::node::Node;
use crate::opened;
use crate::processes::{Process, locked};
use crate::shard::ShardContext;

/// Where volumes live: their objects in a store, their journals in a data directory.
#[derive(Clone, Debug)]
pub struct Home {
    /// Journals, sockets.
    pub data: DataDirectory,
    /// URL of the store.
    pub store_url: String,
    /// How the store is reached.
    pub store_options: StoreOptions,
    /// Where the keys of encrypted volumes come from.
    pub keys: Keys,
    /// Whether volumes that are created are encrypted.
    pub encrypt: bool,
}

/// What an opening may give up, each only when it was asked to.
#[derive(Clone, Copy, Debug, Default)]
pub struct Consent {
    /// Open without acknowledged writes that cannot be recovered.
    pub accept_loss: bool,
    /// Take the volume from a node that did not close it.
    pub take_over: bool,
    /// Give up a local journal that must not be replayed.
    pub discard_journal: bool,
    /// Go on with a local journal that is a copy of another file.
    pub adopt_journal: bool,
    /// Open a volume that is only partly filled, to go on filling it.
    pub incomplete: bool,
}

impl Home {
    /// The store of this home, if it is there, lets us in and, for writing, keeps writers apart.
    pub(crate) async fn open_store(
        &self,
        context: &ShardContext,
        access: Access,
    ) -> Result<Store, NodeError> {
        known_stores::check_there(self)?;
        self.admit_to_store(context, access).await
    }

    /// The same for writing, for whoever may make the first volume in it: a directory that is not there is created.
    pub(crate) async fn open_or_make_store(
        &self,
        context: &ShardContext,
    ) -> Result<Store, NodeError> {
        known_stores::check_not_gone(self)?;
        self.admit_to_store(context, Access::Write).await
    }

    async fn admit_to_store(
        &self,
        context: &ShardContext,
        access: Access,
    ) -> Result<Store, NodeError> {
        let store = Store::open_with(&self.store_url, &self.store_options)?;
        // The keys of a probe must not come twice: the system's random numbers, not those of a seed.
        let mut random = {
            let mut state = context.env.random.next_u64();
            move || {
                state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
                state.rotate_left(32)
            }
        };
        store.admit(access, &mut random).await?;
        Ok(store)
    }

    /// How a volume that is created now is encrypted, if it is to be.
    pub(crate) async fn encryption(
        &self,
        context: &ShardContext,
    ) -> Result<Option<Encryption>, NodeError> {
        if !self.encrypt {
            return Ok(None);
        }
        let drawn = self.keys.encryption(&context.env).await;
        Ok(Some(drawn.map_err(LogError::Key)?))
    }

    /// Opens a volume for writing and recovers what its last opening left.
    pub(crate) async fn open_volume(
        &self,
        context: &ShardContext,
        store: Store,
        id: VolumeId,
        name: &VolumeName,
        options: VolumeOptions,
        consent: Consent,
    ) -> Result<(Rc<Stack>, OpenReport), NodeError> {
        let (nobody, options) = (Rc::new(|_: &str| {}), (options, Vec::new()));
        self.open_volume_telling(context, (store, id, name), options, consent, nobody).await
    }

    /// The same; `on_wait` hears of a node that is waited for.
    pub(crate) async fn open_volume_telling(
        &self,
        context: &ShardContext,
        (store, id, name): (Store, VolumeId, &VolumeName),
        (options, stages): (VolumeOptions, Vec<StageSpec>),
        consent: Consent,
        on_wait: OnWait,
    ) -> Result<(Rc<Stack>, OpenReport), NodeError> {
        let lease = context.leases.get(&context.env, &self.data, &store)?;
        let directory = context.disks.directory(self.data.volume(id))?;
        let beside_store = store.device().is_some() && store.device() == directory.device();
        let args = OpenArgs {
            store: store.clone(),
            id,
            directory: directory.leaving_room(LeaveRoom::of_process(beside_store)),
            env: context.env.clone(),
            options,
            cache: std::sync::Arc::clone(&context.cache),
            keys: self.keys.clone(),
            lease,
            accept_loss: consent.accept_loss,
            take_over: consent.take_over,
            discard_journal: consent.discard_journal,
            adopt_journal: consent.adopt_journal,
            incomplete: consent.incomplete,
            on_wait: Some(on_wait),
        };
        let spec = StackSpec { endpoint: EndpointSpec::Log(Box::new(args)), stages };
        match Stack::open(&context.env, spec).await {
            Ok(opened) => {
                opened::note(&self.data, id, name);
                Ok(opened)
            }
            Err(error) => Err(match locked(error.into(), name) {
                // Whoever holds the lock may say where it serves.
                error @ NodeError::Held { .. } => {
                    self.who_has_locked(&store, name, id, error).await
                }
                error => error.of_volume(name, id),
            }),
        }
    }
}

pub(crate) async fn lock(directory: &Directory, name: &VolumeName) -> Result<LockGuard, NodeError> {
    directory.lock(LOCK_FILE).await.map_err(|error| locked(error.into(), name))
}

/// Lists the volumes of the store.
pub(crate) async fn list(context: &ShardContext, home: &Home) -> Result<Vec<Listed>, NodeError> {
    if known_stores::is_to_come(home)? {
        let directory = home.data.path().display();
        tracing::warn!(
            "no volume was made in {directory} yet: if there should be some, --data-dir names another place"
        );
        return Ok(Vec::new());
    }
    let store = home.open_store(context, Access::Read).await?;
    let listing = catalog::list(&store, &context.env).await?;
    let processes = home.processes().await?;
    let mut volumes = Vec::new();
    for summary in listing.volumes {
        let id = volume_id(&summary)?;
        let process = processes.iter().find(|process| process.holds(&store, id));
        let uri = process.and_then(|process| process.volume(id)).map(|volume| volume.uri.clone());
        volumes.push(Listed::new(summary, process.and_then(Process::number), uri));
    }
    let unreadable = listing.unreadable.into_iter();
    volumes.extend(unreadable.map(|(name, error)| Listed::unreadable(&name, with_causes(&error))));
    volumes.sort_by(|a, b| a.name.cmp(&b.name));
    Ok(volumes)
}

/// Shows a volume.
pub(crate) async fn show(
    context: &ShardContext,
    home: &Home,
    name: &VolumeName,
) -> Result<Shown, NodeError> {
    let store = home.open_store(context, Access::Read).await?;
    let details = catalog::show(&store, &context.env, name).await?;
    let id = volume_id(&details.summary)?;
    let holder = home.holder(&store, id).await?;
    let process = holder.as_ref().and_then(Process::number);
    let serving = holder.as_ref().and_then(|process| process.volume(id)).cloned();
    let mut shown = Shown::new(details, process.zip(serving));
    // One that does not answer is named all the same.
    shown.process = process;
    Ok(shown)
}

impl Node {
    /// Shows a volume.
    ///
    /// # Errors
    /// When there is none of that name, or what the store says.
    pub async fn show_volume(&self, home: Home, name: VolumeName) -> Result<Shown, NodeError> {
        self.run(0, move |context| async move { show(&context, &home, &name).await }).await?
    }

    /// The processes that serve volumes from this data directory.
    ///
    /// # Errors
    /// When it cannot be told.
    pub async fn processes(&self, home: Home) -> Result<Vec<Process>, NodeError> {
        self.run(0, move |_| async move { home.processes().await }).await?
    }

    /// Changes the limits on uploads of every process that serves volumes from this data directory, at once and until
    /// that process ends; what they are then.
    ///
    /// # Errors
    /// [`NodeError::NothingServed`], [`NodeError::ZeroLimit`], or that a process does not answer.
    pub async fn change_limits(
        &self,
        home: Home,
        change: impl Fn(Limits) -> Limits + Send + 'static,
    ) -> Result<Vec<(ProcessId, Limits)>, NodeError> {
        self.run(0, move |_| async move {
            let mut changed = Vec::new();
            for Process { id, status, mut client, .. } in home.processes().await? {
                let limits = change(status?.limits);
                changed.push((id, client.put("/v1/limits", &limits).await?));
            }
            if changed.is_empty() {
                let data_dir = home.data.path().display().to_string();
                return Err(NodeError::NothingServed { data_dir });
            }
            Ok(changed)
        })
        .await?
    }
}

/// Opens a volume for one piece of work, and closes it again.
pub(crate) async fn with_open<T, Work>(
    context: &ShardContext,
    home: &Home,
    store: Store,
    id: VolumeId,
    name: &VolumeName,
    work: impl FnOnce(Rc<Stack>) -> Work,
) -> Result<T, NodeError>
where
    Work: Future<Output = Result<T, NodeError>>,
{
    home.data.prepare()?;
    let (options, consent) = (VolumeOptions::default(), Consent::default());
    let deadline = options.close_deadline;
    let opened = home.open_volume(context, store, id, name, options, consent).await?;
    let (stack, _report) = opened;
    let worked = work(Rc::clone(&stack)).await;
    opened::note_closed(&home.data, id, stack.close(deadline).await?);
    worked
}

pub(crate) fn volume_id(summary: &VolumeSummary) -> Result<VolumeId, NodeError> {
    VolumeId::parse(&summary.id).ok_or_else(|| NodeError::Identity {
        name: summary.name.to_string(),
        id: summary.id.clone(),
    })
}
