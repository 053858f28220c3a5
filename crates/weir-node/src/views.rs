//! Snapshots as exports of their own, `volume@snapshot`: opened when a client asks for one, closed when the last client
//! has left, and not deleted by this process in between.

use std::collections::BTreeMap;
use std::rc::Rc;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use tokio::sync::{OwnedMutexGuard, oneshot};
use weir_device::{DeviceExt, VolumeId};
use weir_frontend::nbd::{ExportInfo, HandOff, ListenerOptions, WeakHandOff, serve_handed_off};
use weir_log::VolumeOptions;
use weir_log::catalog::{self, VolumeName};
use weir_stack::{EndpointSpec, Stack, StackSpec, ViewArgs};

use crate::error::NodeError;
use crate::host::{OneExport, connection_options};
use crate::service::Core;

/// A snapshot that is open, or is about to be opened or deleted: whoever does so holds the lock.
type Slot = Arc<tokio::sync::Mutex<Option<View>>>;

/// A snapshot that was opened.
#[derive(Debug)]
pub(crate) struct View {
    info: ExportInfo,
    hand_off: WeakHandOff,
    stop: oneshot::Sender<()>,
    ended: oneshot::Receiver<Result<(), NodeError>>,
}

/// The snapshots of a process that are open for clients, by the names of their exports.
#[derive(Debug, Default)]
pub(crate) struct Views(Mutex<BTreeMap<String, Slot>>);

/// A snapshot that nobody opens as long as this lives.
#[derive(Debug)]
pub(crate) struct Unopened(#[expect(dead_code, reason = "held")] OwnedMutexGuard<Option<View>>);

/// The volume and the snapshot that the name of an export means.
pub(crate) fn split(name: &str) -> Option<(VolumeName, VolumeName)> {
    let (volume, snapshot) = name.split_once('@')?;
    Some((VolumeName::new(volume).ok()?, VolumeName::new(snapshot).ok()?))
}

impl Views {
    fn slot(&self, name: &str) -> Slot {
        let mut slots = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        // What is closed, and in nobody's hands, is forgotten.
        slots.retain(|_, slot| Arc::strong_count(slot) > 1 || is_open(slot));
        Arc::clone(slots.entry(name.to_owned()).or_default())
    }

    /// Keeps a snapshot closed, to delete it.
    ///
    /// # Errors
    /// [`NodeError::SnapshotOpen`] while clients are connected to it.
    pub(crate) async fn keep_closed(&self, export: &str) -> Result<Unopened, NodeError> {
        let held = self.slot(export).lock_owned().await;
        match &*held {
            Some(view) if view.hand_off.upgrade().is_some() => {
                Err(NodeError::SnapshotOpen { export: export.to_owned() })
            }
            _ => Ok(Unopened(held)),
        }
    }

    /// The snapshots of a volume that clients are connected to.
    pub(crate) fn open_of(&self, volume: &str) -> Vec<String> {
        let slots = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let of_volume = |name: &str| split(name).is_some_and(|(v, _)| v.as_str() == volume);
        let open = slots.iter().filter(|(name, slot)| of_volume(name) && is_open(slot));
        open.map(|(name, _)| name.clone()).collect()
    }

    /// Sends the clients of all snapshots of a volume away.
    pub(crate) async fn close_of(&self, volume: &str) {
        let of_volume = |name: &str| split(name).is_some_and(|(v, _)| v.as_str() == volume);
        let slots = {
            let mut slots = self.0.lock().unwrap_or_else(PoisonError::into_inner);
            let (gone, kept) =
                std::mem::take(&mut *slots).into_iter().partition(|(name, _)| of_volume(name));
            *slots = kept;
            gone
        };
        end_all(slots).await;
    }

    /// Sends all clients away.
    pub(crate) async fn close(&self) {
        let slots = std::mem::take(&mut *self.0.lock().unwrap_or_else(PoisonError::into_inner));
        end_all(slots).await;
    }
}

async fn end_all(slots: BTreeMap<String, Slot>) {
    let ends = slots.into_values().map(|slot| async move {
        if let Some(View { stop, ended, .. }) = slot.lock().await.take() {
            // It may have ended by itself.
            let _ = stop.send(());
            let _ = ended.await;
        }
    });
    futures_util::future::join_all(ends).await;
}

fn is_open(slot: &Slot) -> bool {
    // One that is being opened is in somebody's hands.
    slot.try_lock().is_ok_and(|view| view.as_ref().is_some_and(|v| v.hand_off.upgrade().is_some()))
}

/// The export of a snapshot, opened if it is not open yet. Nothing where there is no such snapshot, or it cannot be
/// opened; the log says why.
pub(crate) async fn find(core: &Arc<Core>, export: &str) -> Option<(ExportInfo, HandOff)> {
    let (volume, snapshot) = split(export)?;
    if !core.offers(volume.as_str()) {
        return None;
    }
    let slot = core.views.slot(export);
    let mut view = slot.lock().await;
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
pub(crate) async fn list(core: &Core) -> Vec<String> {
    let mut names = Vec::new();
    for entry in core.entries() {
        let snapshots =
            crate::status::on_volume(
                core,
                &entry,
                |hosted| async move { Ok(hosted.stack.snapshots()) },
            );
        // One that is being closed has none to offer, and what only clones keep is none any more.
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
            cache: Arc::clone(&context.cache),
            read_deadline: VolumeOptions::default().read_deadline,
        };
        let spec = StackSpec::plain(EndpointSpec::Snapshot(args, snapshot));
        let (stack, _) = Stack::open(env, spec).await?;
        let (info, exports) = export_of(&name, id, &stack);
        let options = ListenerOptions::new(connection_options(&context));
        let (hand_off, mut server) = serve_handed_off(Rc::new(exports), options);
        events.events.note("snapshot_opened", Some(volume.as_str()), name.clone());
        // Whoever asked may be gone, and the channel with it.
        drop(ready.send((info, hand_off)));
        tokio::select! {
            biased;
            // A dropped handle means that another opening has taken its place, when nobody is here any more.
            Ok(()) = stopped => server.stop().await,
            () = server.until_unused() => {}
        }
        stack.close(Duration::ZERO).await?;
        events.events.note("snapshot_closed", Some(volume.as_str()), name);
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
        earlier: earlier.into(),
    };
    let stack = Rc::clone(stack);
    (info.clone(), OneExport { info, stack, volume, history, gate: None })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_name_of_an_export_is_a_volume_and_a_snapshot() {
        let name = |text| VolumeName::new(text).unwrap();
        assert_eq!(split("demo@monday"), Some((name("demo"), name("monday"))));
        for other in ["demo", "demo@", "@monday", "demo@a@b", "../x@y", "demo@a/b"] {
            assert_eq!(split(other), None, "{other}");
        }
    }
}
