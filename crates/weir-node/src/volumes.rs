//! Volumes of a store, whether or not a process serves them: the verbs, and how a volume is opened.
//!
//! A verb that changes an open volume goes through the process that holds it; every other one works on the store alone.

use std::rc::Rc;
use std::time::Duration;

use weir_device::{DeviceExt, VolumeId, with_causes};
use weir_disk::{Directory, LeaveRoom, LockGuard};
use weir_log::catalog::{self, VolumeName, VolumeSummary};
use weir_log::{
    CheckOptions, CheckStep, Encryption, Keys, LOCK_FILE, LogError, LogVolume, OnWait, OpenArgs,
    OpenReport, Takeover, VolumeOptions,
};
use weir_store::{Access, Store, StoreOptions};

use crate::api::progress::Reporter;
use crate::api::types::{
    CheckReport, CompactReport, CompactVolume, FlushVolume, Limits, Listed, Report, ResizeVolume,
    SetTakeover, Shown,
};
use crate::data_directory::DataDirectory;
use crate::error::{NodeError, ProcessId};
use crate::host::Hosted;
use crate::known_stores;
use crate::node::Node;
use crate::opened;
use crate::processes::{Process, locked};
use crate::shard::ShardContext;

/// How often a flush looks at what is still to go.
const LOOK_INTERVAL: Duration = Duration::from_millis(250);

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

/// What acknowledged writes are to survive.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FlushScope {
    /// Power loss.
    LocalDisk,
    /// The loss of the local disk.
    Store,
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
    ) -> Result<(Rc<LogVolume>, OpenReport), NodeError> {
        let nobody = Rc::new(|_: &str| {});
        self.open_volume_telling(context, (store, id, name), options, consent, nobody).await
    }

    /// The same; `on_wait` hears of a node that is waited for.
    pub(crate) async fn open_volume_telling(
        &self,
        context: &ShardContext,
        (store, id, name): (Store, VolumeId, &VolumeName),
        options: VolumeOptions,
        consent: Consent,
        on_wait: OnWait,
    ) -> Result<(Rc<LogVolume>, OpenReport), NodeError> {
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
        match LogVolume::open(args).await {
            Ok(opened) => {
                opened::note(&self.data, id, name);
                Ok(opened)
            }
            Err(error) => Err(match locked(error.into(), name) {
                // Whoever holds the lock may say where it serves.
                error @ NodeError::Held { .. } => {
                    self.who_has_locked(&store, name, id, error).await
                }
                error => error,
            }),
        }
    }
}

pub(crate) async fn lock(directory: &Directory, name: &VolumeName) -> Result<LockGuard, NodeError> {
    directory.lock(LOCK_FILE).await.map_err(|error| locked(error.into(), name))
}

/// Creates a volume.
pub(crate) async fn create(
    context: &ShardContext,
    home: &Home,
    name: &VolumeName,
    size: u64,
    takeover: Takeover,
) -> Result<Shown, NodeError> {
    home.data.prepare()?;
    let store = home.open_or_make_store(context).await?;
    known_stores::check_not_emptied(context, home, &store).await?;
    let encryption = home.encryption(context).await?;
    catalog::create_as(&store, &context.env, name, size, takeover, encryption).await?;
    Ok(Shown::new(catalog::show(&store, &context.env, name).await?, None))
}

/// Lists the volumes of the store.
pub(crate) async fn list(context: &ShardContext, home: &Home) -> Result<Vec<Listed>, NodeError> {
    if known_stores::is_to_come(home)? {
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

/// Sets what happens when the lease runs out, of a volume that nobody has open.
pub(crate) async fn set_takeover(
    context: &ShardContext,
    home: &Home,
    name: &VolumeName,
    takeover: Takeover,
) -> Result<(), NodeError> {
    let store = home.open_store(context, Access::Write).await?;
    let id = catalog::find(&store, &context.env, name).await?;
    home.refuse_if_served(&store, name, id).await?;
    Ok(catalog::set_takeover(&store, &context.env, name, takeover).await?)
}

/// Wraps the key of a volume that nobody has open with the first of the `new` keys.
async fn rekey(
    context: &ShardContext,
    home: &Home,
    name: &VolumeName,
    new: &Keys,
) -> Result<Shown, NodeError> {
    let store = home.open_store(context, Access::Write).await?;
    let id = catalog::find(&store, &context.env, name).await?;
    home.refuse_if_served(&store, name, id).await?;
    catalog::rekey(&store, &context.env, name, (&home.keys, new)).await?;
    Ok(Shown::new(catalog::show(&store, &context.env, name).await?, None))
}

/// Checks a volume.
pub(crate) async fn check(
    context: &ShardContext,
    home: &Home,
    name: &VolumeName,
    options: &CheckOptions,
    on_step: impl FnMut(CheckStep),
) -> Result<weir_log::CheckReport, NodeError> {
    let store = home.open_store(context, Access::Read).await?;
    let id = catalog::find(&store, &context.env, name).await?;
    Ok(weir_log::check(&store, &context.env, (id, &home.keys), options, on_step).await?)
}

/// Resizes a served volume; its size from then on.
pub(crate) async fn resize_hosted(
    hosted: Rc<Hosted>,
    asked: ResizeVolume,
) -> Result<u64, NodeError> {
    let name = hosted.name.to_string();
    let Some(volume) = hosted.log().cloned() else {
        return Err(NodeError::InMemory { name, reason: "keeps its size" });
    };
    if asked.shrink && asked.size_bytes < volume.size() {
        let shrunk = Rc::clone(&volume);
        let shrink = async move { resize(&shrunk, asked).await.map(drop) };
        hosted.without_clients(shrink).await?;
    } else {
        let resized = resize(&volume, asked).await;
        hosted.gate.set_size(volume.size());
        resized?;
    }
    Ok(volume.size())
}

async fn resize(volume: &LogVolume, asked: ResizeVolume) -> Result<u64, NodeError> {
    let ResizeVolume { size_bytes, shrink } = asked;
    if shrink && size_bytes < volume.size() {
        volume.shrink(size_bytes).await?;
    } else {
        volume.resize(size_bytes).await?;
    }
    Ok(volume.size())
}

/// Flushes a volume on its own thread; `reporter` hears of the bytes still to go.
pub(crate) async fn flush_reporting(
    hosted: &Hosted,
    remote: bool,
    reporter: &Reporter,
) -> Result<(), NodeError> {
    let mut flush = std::pin::pin!(hosted.flush(remote));
    loop {
        let to_go = hosted.log().map_or(0, |volume| volume.status().unsent_bytes);
        reporter.send_replace((0, to_go));
        tokio::select! {
            biased;
            flushed = &mut flush => return flushed,
            () = tokio::time::sleep(LOOK_INTERVAL) => {}
        }
    }
}

impl Node {
    /// Creates a volume.
    ///
    /// # Errors
    /// When the name is taken, or what the store says.
    pub async fn create_volume(
        &self,
        home: Home,
        name: VolumeName,
        size: u64,
        takeover: Takeover,
    ) -> Result<Shown, NodeError> {
        self.run(
            0,
            move |context| async move { create(&context, &home, &name, size, takeover).await },
        )
        .await?
    }

    /// Sets what happens when the lease of a volume's holder runs out: through the process that serves it from this
    /// data directory, otherwise of a volume that is closed.
    ///
    /// # Errors
    /// When another node has it open or did not close it, or what the store says.
    pub async fn set_takeover(
        &self,
        home: Home,
        name: VolumeName,
        takeover: Takeover,
    ) -> Result<(), NodeError> {
        self.run(0, move |context| async move {
            let store = home.open_store(&context, Access::Write).await?;
            let id = catalog::find(&store, &context.env, &name).await?;
            if let Some(mut process) = home.holder(&store, id).await? {
                let path = format!("/v1/volumes/{name}/takeover");
                let body = SetTakeover { takeover: takeover.into() };
                return process.client.work(&path, &body, |_, _| {}).await.map(drop);
            }
            Ok(catalog::set_takeover(&store, &context.env, &name, takeover).await?)
        })
        .await?
    }

    /// Wraps the key of a volume that nobody has open with the first key of `new`, or of the home's own keys. What it
    /// holds stays as it is.
    ///
    /// # Errors
    /// When it is not encrypted, a key is missing or wrong, somebody has it open, or what the store says.
    pub async fn rekey_volume(
        &self,
        home: Home,
        name: VolumeName,
        new: Option<Keys>,
    ) -> Result<Shown, NodeError> {
        self.run(0, move |context| async move {
            let new = new.unwrap_or_else(|| home.keys.clone());
            rekey(&context, &home, &name, &new).await
        })
        .await?
    }

    /// Lists the volumes of the store.
    ///
    /// # Errors
    /// What the store says.
    pub async fn list_volumes(&self, home: Home) -> Result<Vec<Listed>, NodeError> {
        self.run(0, move |context| async move { list(&context, &home).await }).await?
    }

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

    /// Flushes a volume: through the process that serves it, otherwise by opening it and closing it again.
    /// `on_progress` hears of the bytes still to go.
    ///
    /// # Errors
    /// When there is none of that name, or why it could not be flushed.
    pub async fn flush_volume(
        &self,
        home: Home,
        name: VolumeName,
        scope: FlushScope,
        wait: bool,
        mut on_progress: impl FnMut(u64) + Send + 'static,
    ) -> Result<(), NodeError> {
        let remote = scope == FlushScope::Store;
        self.run(0, move |context| async move {
            let store = home.open_store(&context, Access::Write).await?;
            let id = catalog::find(&store, &context.env, &name).await?;
            if let Some(mut process) = home.holder(&store, id).await? {
                let path = format!("/v1/volumes/{name}/flush");
                let body = FlushVolume { remote, wait };
                let on_progress = |_, to_go| on_progress(to_go);
                return process.client.work(&path, &body, on_progress).await.map(drop);
            }
            // Opening and closing a volume leaves everything in the store.
            with_open(&context, &home, store, id, &name, |volume| async move {
                if remote {
                    volume.flush_remote().await?;
                }
                Ok(())
            })
            .await
        })
        .await?
    }

    /// Grows a volume: through the process that serves it, otherwise by opening it and closing it again.
    ///
    /// # Errors
    /// When there is none of that name, it would shrink, or why it could not be opened.
    pub async fn resize_volume(
        &self,
        home: Home,
        name: VolumeName,
        asked: ResizeVolume,
    ) -> Result<(), NodeError> {
        self.run(0, move |context| async move {
            let store = home.open_store(&context, Access::Write).await?;
            let id = catalog::find(&store, &context.env, &name).await?;
            if let Some(mut process) = home.holder(&store, id).await? {
                let path = format!("/v1/volumes/{name}/resize");
                return process.client.work(&path, &asked, |_, _| {}).await.map(drop);
            }
            with_open(&context, &home, store, id, &name, async |volume| {
                resize(&volume, asked).await.map(drop)
            })
            .await
        })
        .await?
    }

    /// Collects the objects of a volume until `percent` of them lives: through the process that serves it, otherwise by
    /// opening it and closing it again. `on_progress` hears of bytes given up and bytes to give up.
    ///
    /// # Errors
    /// When there is none of that name, or why it could not be opened. A share that is not reached is in the report.
    pub async fn compact_volume(
        &self,
        home: Home,
        name: VolumeName,
        percent: u64,
        mut on_progress: impl FnMut(u64, u64) + Send + 'static,
    ) -> Result<CompactReport, NodeError> {
        self.run(0, move |context| async move {
            let store = home.open_store(&context, Access::Write).await?;
            let id = catalog::find(&store, &context.env, &name).await?;
            let mut report = None;
            if let Some(mut process) = home.holder(&store, id).await? {
                let path = format!("/v1/volumes/{name}/compact");
                let body = CompactVolume { percent };
                if let Some(Report::Compact(compacted)) =
                    process.client.work(&path, &body, on_progress).await?
                {
                    report = Some(compacted);
                }
            } else {
                with_open(&context, &home, store, id, &name, async |volume| {
                    report = Some(volume.compact(percent, &mut on_progress).await?.into());
                    Ok(())
                })
                .await?;
            }
            Ok(report.unwrap_or_default())
        })
        .await?
    }

    /// Reads everything a volume has in the store. `on_step` hears of each object.
    ///
    /// # Errors
    /// When there is none of that name, or the store does not answer. Damage is no error, but in the report.
    pub async fn check_volume(
        &self,
        home: Home,
        name: VolumeName,
        options: CheckOptions,
        on_step: impl FnMut(CheckStep) + Send + 'static,
    ) -> Result<CheckReport, NodeError> {
        let checked = self.run(0, move |context| async move {
            check(&context, &home, &name, &options, on_step).await
        });
        Ok(checked.await??.into())
    }
}

/// Opens a volume for one piece of work, and closes it again.
pub(crate) async fn with_open<Work>(
    context: &ShardContext,
    home: &Home,
    store: Store,
    id: VolumeId,
    name: &VolumeName,
    work: impl FnOnce(Rc<LogVolume>) -> Work,
) -> Result<(), NodeError>
where
    Work: Future<Output = Result<(), NodeError>>,
{
    home.data.prepare()?;
    let (options, consent) = (VolumeOptions::default(), Consent::default());
    let opened = home.open_volume(context, store, id, name, options, consent).await?;
    let (volume, _report) = opened;
    let worked = work(Rc::clone(&volume)).await;
    opened::note_closed(&home.data, id, volume.close().await?);
    worked
}

pub(crate) fn volume_id(summary: &VolumeSummary) -> Result<VolumeId, NodeError> {
    VolumeId::parse(&summary.id).ok_or_else(|| NodeError::Identity {
        name: summary.name.to_string(),
        id: summary.id.clone(),
    })
}
