//! The exports of a process as a client finds them in its handshake: the volumes, and their snapshots, each of which is
//! opened when a client asks for it.

use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::oneshot;
use weir_device::{DeviceExt, VolumeId, mutant};
use weir_frontend::nbd::{
    ExportDirectory, ExportInfo, HandOff, Identity, ListenerOptions, NotOffered, serve_handed_off,
};
use weir_log::VolumeOptions;
use weir_log::catalog::{self, VolumeName};
use weir_net::shown;
use weir_stack::{EndpointSpec, Stack, StackSpec, ViewArgs};

use crate::error::NodeError;
use crate::serve::core::{Core, Entry};
use crate::serve::events::EventKind;
use crate::serve::lock::lock;
use crate::serve::one_export::{OneExport, connection_options, describe};
use crate::serve::spec::EndpointKind;
use crate::serve::views::{View, split};

/// What a client is told that may not have an export.
const NOT_ALLOWED: &str =
    "the name in your certificate is not among those that may use this export";

/// The exports of a process.
pub(crate) struct Exported(pub(crate) Arc<Core>);

impl Exported {
    fn entry(&self, name: &str) -> Option<Arc<Entry>> {
        let volumes = lock(&self.0.volumes);
        // The default export, which has no name, is the volume if there is only one.
        match name {
            "" if volumes.len() == 1 => volumes.values().next().cloned(),
            name => volumes.get(name).cloned(),
        }
    }

    /// Whether a client may use an export: a volume, or a snapshot of it.
    fn allows(&self, export: &str, client: &Identity) -> bool {
        let volume = export.split_once('@').map_or(export, |(volume, _)| volume);
        match (self.entry(volume), VolumeName::new(volume)) {
            (Some(entry), _) => lock(&entry.allowed).allows(client),
            // A snapshot may be served of a volume that is not open just now.
            (None, Ok(name)) => self.0.spec_of(&name).allowed.allows(client),
            (None, Err(_)) => true,
        }
    }

    async fn volume(&self, name: &str) -> Option<(ExportInfo, HandOff)> {
        let entry = self.entry(name)?;
        // While a verb changes what clients see, the handshake waits, within the time limit of handshakes.
        entry.gate.opened().await;
        let info = ExportInfo {
            name: entry.name.to_string(),
            description: describe(entry.id),
            size: entry.gate.size(),
            read_only: entry.read_only,
            instance: Some(entry.instance),
            // Others are given an identity for as long as they are served.
            volume: (entry.spec.endpoint == EndpointKind::Log).then_some(entry.id.0),
            earlier: [].into(),
        };
        Some((info, entry.hand_off.clone()))
    }
}

impl ExportDirectory for Exported {
    async fn find(
        &self,
        name: &str,
        client: &Identity,
    ) -> Result<(ExportInfo, HandOff), NotOffered> {
        if !self.allows(name, client) {
            let told = "the client is not on the list of those allowed";
            self.0.node.clients.refusals.note(client, told, |left_out| {
                let (client, export) = (shown(&client.to_string()), shown(name));
                tracing::warn!(client, export, left_out, "{told}");
            });
            return Err(NotOffered::Refused(NOT_ALLOWED));
        }
        let found = match name.contains('@') {
            true => find(&self.0, name).await,
            false => self.volume(name).await,
        };
        found.ok_or(NotOffered::Unknown)
    }

    async fn list(&self, client: &Identity) -> Vec<String> {
        let mut names: Vec<String> = lock(&self.0.volumes).keys().cloned().collect();
        names.extend(list(&self.0).await);
        names.retain(|name| self.allows(name, client));
        names.sort_unstable();
        names
    }
}

/// The export of a snapshot, which is opened if it is not open yet. `None` if there is no such snapshot or it cannot be
/// opened; the log says why.
async fn find(core: &Arc<Core>, export: &str) -> Option<(ExportInfo, HandOff)> {
    let (volume, snapshot) = split(export)?;
    let slot = core.views.slot(export);
    let mut view = slot.lock().await;
    // Looked at under the lock: a detach closes the gate of the volume first, and then waits for this lock.
    while let Some(entry) = core.entry(volume.as_str()).filter(|entry| entry.gate.is_closed()) {
        drop(view);
        entry.gate.opened().await;
        view = slot.lock().await;
    }
    if !core.offers(volume.as_str()) {
        return None;
    }
    // Where the volume of that name is in no store, the snapshot is one of another volume, of other bytes.
    // While it is served it alone decides, whatever the settings have named so meanwhile.
    let is_of_another = match core.entry(volume.as_str()) {
        Some(entry) => entry.is_elsewhere(),
        None => core.is_named_elsewhere(&volume),
    };
    if is_of_another && !mutant("snapshot_of_another_volume_served") {
        tracing::warn!(
            export,
            "the volume served under this name is not the one that has this snapshot"
        );
        return None;
    }
    if let Some((open, hand_off)) = view.as_ref().and_then(|v| Some((v, v.hand_off.upgrade()?))) {
        return Some((open.info.clone(), hand_off));
    }
    match open(core, export, volume, snapshot).await {
        Ok((opened, hand_off)) => {
            let info = opened.info.clone();
            *view = Some(opened);
            Some((info, hand_off))
        }
        Err(error) => {
            tracing::warn!(export, %error, "a snapshot cannot be served");
            None
        }
    }
}

/// The names of the exports of all snapshots of the volumes that are served.
async fn list(core: &Core) -> Vec<String> {
    let mut names = Vec::new();
    for entry in core.entries() {
        let snapshots =
            core.on_volume(&entry, |hosted| async move { Ok(hosted.stack.snapshots()) });
        // A volume that is being closed offers none, and neither is a deleted snapshot offered that clones still need.
        for snapshot in snapshots.await.unwrap_or_default().iter().filter(|s| !s.deleting) {
            names.push(format!("{}@{}", entry.name, snapshot.name));
        }
    }
    names
}

async fn open(
    core: &Arc<Core>,
    export: &str,
    volume: VolumeName,
    snapshot: VolumeName,
) -> Result<(View, HandOff), NodeError> {
    let Some(store) = core.store.clone() else {
        let name = volume.to_string();
        return Err(NodeError::InMemory { name, reason: "has no snapshots" });
    };
    let shard = core.entry(volume.as_str()).map_or(0, |entry| entry.shard);
    let (ready, started) = oneshot::channel();
    let (stop, stopped) = oneshot::channel::<()>();
    let (name, events) = (export.to_owned(), Arc::clone(core));
    let ended = core.node.submit(shard, move |context| async move {
        let env = &context.env;
        let id = catalog::find(&store, env, &volume).await?;
        let args = ViewArgs {
            store,
            id,
            keys: events.home.keys.clone(),
            blocks: context.blocks.clone(),
            read_deadline: VolumeOptions::default().read_deadline,
        };
        let spec = StackSpec::plain(EndpointSpec::Snapshot(args, snapshot));
        let (stack, _) = Stack::open(env, spec).await?;
        let (info, exports) = export_of(&name, id, &stack);
        let options = ListenerOptions::new(connection_options(&context));
        let (hand_off, mut server) = serve_handed_off(Rc::new(exports), options);
        events.events.note(EventKind::SnapshotOpened, Some(volume.as_str()), name.clone());
        // The caller may be gone.
        drop(ready.send((info, hand_off)));
        tokio::select! {
            biased;
            // The sender is dropped when another opening has replaced this one, which then has no clients.
            Ok(()) = stopped => server.stop().await,
            () = server.until_unused() => {}
        }
        stack.close(Duration::ZERO).await?;
        events.events.note(EventKind::SnapshotClosed, Some(volume.as_str()), name);
        Ok(())
    })?;
    match started.await {
        Ok((info, hand_off)) => {
            let weak = hand_off.downgrade();
            Ok((View { info, hand_off: weak, stop, ended }, hand_off))
        }
        // It ended before it was ready, and says why.
        Err(_) => match ended.await {
            Ok(Err(error)) => Err(error),
            Ok(Ok(())) | Err(_) => Err(NodeError::ShuttingDown),
        },
    }
}

fn export_of(name: &str, volume: VolumeId, stack: &Rc<Stack>) -> (ExportInfo, OneExport) {
    let history = stack.history();
    let earlier = history.as_ref().map(|history| history.earlier()).unwrap_or_default();
    let info = ExportInfo {
        name: name.to_owned(),
        description: format!("Weir snapshot {name}"),
        size: stack.size(),
        read_only: true,
        instance: None,
        volume: None,
        earlier: earlier.into(),
    };
    let stack = Rc::clone(stack);
    (info.clone(), OneExport { info, stack, volume, history, record: None, gate: None })
}
