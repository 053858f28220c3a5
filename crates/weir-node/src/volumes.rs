//! Volumes of a store, whether or not a process serves them: the verbs, and how a volume is opened.
//!
//! A verb that changes an open volume goes through the process that holds it; every other one works on the store alone.

use std::rc::Rc;

use serde::Serialize;
use weir_device::{Device, IoHeader, Operation, VolumeId};
use weir_disk::{Directory, DiskError, LockGuard};
use weir_log::catalog::{self, DeleteConsent, VolumeDetails, VolumeName, VolumeSummary};
use weir_log::{
    JOURNAL_FILE, LOCK_FILE, LogError, LogVolume, OpenArgs, OpenReport, Takeover, VolumeOptions,
};
use weir_store::{Access, Store, StoreOptions};

use crate::control::{Client, FlushScope, ProcessId, Status};
use crate::data_directory::DataDirectory;
use crate::error::NodeError;
use crate::node::Node;
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
}

/// What an opening may give up, each only when it was asked to.
#[derive(Clone, Copy, Debug, Default)]
pub struct Consent {
    /// Open without acknowledged writes that cannot be recovered.
    pub accept_loss: bool,
    /// Take the volume from a node that did not close it.
    pub take_over: bool,
    /// Give up a local journal that the volume has gone on without.
    pub discard_journal: bool,
}

/// A volume in a listing.
#[derive(Clone, Debug, Serialize)]
pub struct Listed {
    /// What the store knows.
    #[serde(flatten)]
    pub summary: VolumeSummary,
    /// The process on this machine that serves it, from this data directory.
    pub process: Option<ProcessId>,
    /// Where it serves it.
    pub uri: Option<String>,
}

/// A volume with everything that is known of it.
#[derive(Clone, Debug, Serialize)]
pub struct Shown {
    /// What the store knows.
    #[serde(flatten)]
    pub details: VolumeDetails,
    /// The process on this machine that serves it, from this data directory.
    pub process: Option<ProcessId>,
    /// What that process says.
    pub serving: Option<Status>,
}

impl Home {
    /// The store of this home, if it is there, lets us in and, for writing, keeps writers apart. The embedded one is
    /// created with its data directory.
    pub(crate) async fn open_store(
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

    /// The process that serves volume `id` from this data directory, if one does.
    pub(crate) async fn holder(
        &self,
        name: &str,
        id: VolumeId,
    ) -> Result<Option<Client>, NodeError> {
        Client::connect(&self.data.control_socket(id), name).await
    }

    /// Fails if a process serves the volume, with its id and where it serves.
    pub(crate) async fn refuse_if_served(&self, name: &str, id: VolumeId) -> Result<(), NodeError> {
        let Some(client) = self.holder(name, id).await? else { return Ok(()) };
        let process = client.process();
        let place = match client.status().await {
            Ok(status) => format!(" at {}", status.uri),
            // Stopped or hung; its id is known all the same.
            Err(_) => String::new(),
        };
        Err(NodeError::Served { name: name.to_owned(), process, place })
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
        let lease = context.leases.get(&context.env, &self.data, &store)?;
        let args = OpenArgs {
            store,
            id,
            directory: context.disks.directory(self.data.volume(id))?,
            env: context.env.clone(),
            options,
            cache: std::sync::Arc::clone(&context.cache),
            lease,
            accept_loss: consent.accept_loss,
            take_over: consent.take_over,
            discard_journal: consent.discard_journal,
        };
        LogVolume::open(args).await.map_err(|error| locked(error.into(), name))
    }
}

/// A lock that another process holds means that it serves the volume.
fn locked(error: NodeError, name: &VolumeName) -> NodeError {
    let held = match &error {
        NodeError::Disk(held @ DiskError::Locked { .. })
        | NodeError::Log(LogError::Disk(held @ DiskError::Locked { .. })) => held,
        _ => return error,
    };
    let process = match held {
        DiskError::Locked { holder_pid, .. } => holder_pid.and_then(|id| i32::try_from(id).ok()),
        _ => None,
    };
    NodeError::Served { name: name.to_string(), process: ProcessId(process), place: String::new() }
}

async fn lock(directory: &Directory, name: &VolumeName) -> Result<LockGuard, NodeError> {
    directory.lock(LOCK_FILE).await.map_err(|error| locked(error.into(), name))
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
    ) -> Result<VolumeDetails, NodeError> {
        self.run(0, move |context| async move {
            home.data.prepare()?;
            let store = home.open_store(&context, Access::Write).await?;
            catalog::create_as(&store, &context.env, &name, size, takeover).await?;
            Ok(catalog::show(&store, &context.env, &name).await?)
        })
        .await?
    }

    /// Sets what happens when the lease of a volume's holder runs out. The volume must be closed.
    ///
    /// # Errors
    /// When a node has it open or did not close it, or what the store says.
    pub async fn set_takeover(
        &self,
        home: Home,
        name: VolumeName,
        takeover: Takeover,
    ) -> Result<(), NodeError> {
        self.run(0, move |context| async move {
            let store = home.open_store(&context, Access::Write).await?;
            let id = catalog::find(&store, &context.env, &name).await?;
            home.refuse_if_served(name.as_str(), id).await?;
            Ok(catalog::set_takeover(&store, &context.env, &name, takeover).await?)
        })
        .await?
    }

    /// Lists the volumes of the store.
    ///
    /// # Errors
    /// What the store says.
    pub async fn list_volumes(&self, home: Home) -> Result<Vec<Listed>, NodeError> {
        self.run(0, move |context| async move {
            let store = home.open_store(&context, Access::Read).await?;
            let mut volumes = Vec::new();
            for summary in catalog::list(&store, &context.env).await? {
                let serving = serving(&home, &summary).await?;
                let (process, status) = serving.map_or((None, None), |(p, s)| (Some(p), s));
                volumes.push(Listed { summary, process, uri: status.map(|s| s.uri) });
            }
            Ok(volumes)
        })
        .await?
    }

    /// Shows a volume.
    ///
    /// # Errors
    /// When there is none of that name, or what the store says.
    pub async fn show_volume(&self, home: Home, name: VolumeName) -> Result<Shown, NodeError> {
        self.run(0, move |context| async move {
            let store = home.open_store(&context, Access::Read).await?;
            let details = catalog::show(&store, &context.env, &name).await?;
            let serving = serving(&home, &details.summary).await?;
            let (process, serving) = serving.map_or((None, None), |(p, s)| (Some(p), s));
            Ok(Shown { details, process, serving })
        })
        .await?
    }

    /// Deletes a volume that nobody has open. `on_progress` hears of objects gone and objects in all.
    ///
    /// # Errors
    /// [`NodeError::Served`] while a process serves it, or what the store says.
    pub async fn delete_volume(
        &self,
        home: Home,
        name: VolumeName,
        take_over: bool,
        on_progress: impl FnMut(u64, u64) + Send + 'static,
    ) -> Result<(), NodeError> {
        self.run(0, move |context| async move {
            let store = home.open_store(&context, Access::Write).await?;
            let details = catalog::show(&store, &context.env, &name).await?;
            let id = volume_id(&details.summary)?;
            home.refuse_if_served(name.as_str(), id).await?;
            let directory = context.disks.directory(home.data.volume(id))?;
            let _lock = lock(&directory, &name).await?;
            // A node that ended without closing holds the volume only by name if this is its own directory.
            let files = directory.list().await?;
            let ours = details.summary.holder.as_deref() == Some(&*context.node_name)
                && files.iter().any(|file| file == JOURNAL_FILE);
            let consent = match (ours, take_over) {
                (true, _) => DeleteConsent::Ours,
                (false, true) => DeleteConsent::TakeOver,
                (false, false) => DeleteConsent::None,
            };
            catalog::delete(&store, &context.env, &name, consent, on_progress).await?;
            for file in files.iter().filter(|file| *file != LOCK_FILE) {
                directory.remove(file).await?;
            }
            remove_directory(&home.data.volume(id))
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
        on_progress: impl FnMut(u64) + Send + 'static,
    ) -> Result<(), NodeError> {
        self.run(0, move |context| async move {
            let store = home.open_store(&context, Access::Write).await?;
            let id = catalog::find(&store, &context.env, &name).await?;
            if let Some(client) = home.holder(name.as_str(), id).await? {
                return client.flush(scope, wait, on_progress).await;
            }
            let options = VolumeOptions::default();
            let (volume, _report) =
                home.open_volume(&context, store, id, &name, options, Consent::default()).await?;
            let flushed = flush(&volume, scope).await;
            volume.close().await?;
            flushed
        })
        .await?
    }
}

/// Makes what a volume has acknowledged survive.
pub(crate) async fn flush(volume: &LogVolume, scope: FlushScope) -> Result<(), NodeError> {
    match scope {
        FlushScope::LocalDisk => volume.flush(IoHeader::internal(Operation::Flush, 0, 0)).await?,
        FlushScope::Store => volume.flush_remote().await?,
    }
    Ok(())
}

/// The process that serves a volume, and what it says if it answers.
async fn serving(
    home: &Home,
    summary: &VolumeSummary,
) -> Result<Option<(ProcessId, Option<Status>)>, NodeError> {
    let id = volume_id(summary)?;
    let Some(client) = home.holder(summary.name.as_str(), id).await? else { return Ok(None) };
    let process = client.process();
    Ok(Some((process, client.status().await.ok())))
}

fn volume_id(summary: &VolumeSummary) -> Result<VolumeId, NodeError> {
    VolumeId::parse(&summary.id).ok_or_else(|| NodeError::Identity {
        name: summary.name.to_string(),
        id: summary.id.clone(),
    })
}

fn remove_directory(path: &std::path::Path) -> Result<(), NodeError> {
    std::fs::remove_dir_all(path)
        .map_err(|source| NodeError::io("removing", path.display().to_string(), source))
}
