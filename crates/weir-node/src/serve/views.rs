//! Snapshots that are open as exports of their own, `volume@snapshot`. One is opened when a client asks for it, closed
//! when its last client has left, and not deleted by this process in between.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};

use tokio::sync::{OwnedMutexGuard, oneshot};
use tokio::time::Instant;
use weir_device::mutant;
use weir_frontend::nbd::{ExportInfo, WeakHandOff};
use weir_log::catalog::VolumeName;

use crate::error::NodeError;
use crate::node::hosted::{CLIENTS_GO_LOOK, CLIENTS_GO_MAX};

/// A snapshot that is open, or is about to be opened or deleted. Whoever opens or deletes it holds the lock.
type Slot = Arc<tokio::sync::Mutex<Option<View>>>;

/// A snapshot that was opened.
#[derive(Debug)]
pub(crate) struct View {
    pub(crate) info: ExportInfo,
    pub(crate) hand_off: WeakHandOff,
    pub(crate) stop: oneshot::Sender<()>,
    pub(crate) ended: oneshot::Receiver<Result<(), NodeError>>,
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
    pub(crate) fn slot(&self, name: &str) -> Slot {
        let mut slots = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        // A slot is removed once it is closed and nobody else has a reference to it.
        slots.retain(|_, slot| Arc::strong_count(slot) > 1 || is_open(slot));
        Arc::clone(slots.entry(name.to_owned()).or_default())
    }

    /// Keeps a snapshot closed, to delete it.
    ///
    /// # Errors
    /// [`NodeError::SnapshotOpen`] while clients are connected to it.
    pub(crate) async fn keep_closed(&self, export: &str) -> Result<Unopened, NodeError> {
        let held = self.slot(export).lock_owned().await;
        let is_open = held.as_ref().is_some_and(|view| view.hand_off.upgrade().is_some());
        match &*held {
            Some(_) if is_open && !mutant("snapshot_deleted_under_client") => {
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

    /// Waits, a second at most, for clients of its snapshots that are going, as for those of the volume itself.
    pub(crate) async fn clients_stay(&self, volume: &str) {
        let patience = Instant::now() + CLIENTS_GO_MAX;
        while !self.open_of(volume).is_empty() && Instant::now() < patience {
            tokio::time::sleep(CLIENTS_GO_LOOK).await;
        }
    }

    /// [`Self::open_of`], and those that are being opened, once they are open.
    pub(crate) async fn wait_open_of(&self, volume: &str) -> Vec<String> {
        let slots = {
            let slots = self.0.lock().unwrap_or_else(PoisonError::into_inner);
            let of_volume = |name: &str| split(name).is_some_and(|(v, _)| v.as_str() == volume);
            let slots = slots.iter().filter(|(name, _)| of_volume(name));
            slots.map(|(_, slot)| Arc::clone(slot)).collect::<Vec<_>>()
        };
        for slot in slots {
            drop(slot.lock().await);
        }
        self.open_of(volume)
    }

    /// Disconnects the clients of all snapshots of a volume.
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

    /// Disconnects all clients.
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
    // One that is being opened is locked, and counts as not open; somebody has a reference to it.
    slot.try_lock().is_ok_and(|view| view.as_ref().is_some_and(|v| v.hand_off.upgrade().is_some()))
}

#[cfg(test)]
mod tests {
    use std::rc::Rc;

    use weir_device::{SourceId, VolumeId};
    use weir_frontend::nbd::{ConnectionOptions, ListenerOptions, serve_handed_off};

    use super::*;
    use crate::node::hosted::tests::{in_memory, run};
    use crate::serve::one_export::OneExport;

    #[test]
    fn a_snapshot_is_kept_closed_only_once_its_clients_have_left() {
        run(async {
            let info = ExportInfo {
                name: "demo@one".to_owned(),
                description: String::new(),
                size: 4096,
                read_only: true,
                instance: None,
                volume: None,
                earlier: [].into(),
            };
            let (stack, volume) = (in_memory().await, VolumeId([1; 16]));
            let exports = OneExport {
                info: info.clone(),
                stack,
                volume,
                history: None,
                record: None,
                gate: None,
            };
            let options = ListenerOptions::new(ConnectionOptions::new(SourceId(1), "test"));
            let (channel, _server) = serve_handed_off(Rc::new(exports), options);
            let ((stop, _stopped), (_end, ended)) = (oneshot::channel(), oneshot::channel());
            let views = Views::default();
            let view = View { info, hand_off: channel.downgrade(), stop, ended };
            *views.slot("demo@one").lock().await = Some(view);
            assert_eq!(views.open_of("demo"), ["demo@one"]);
            let refused = views.keep_closed("demo@one").await;
            assert!(matches!(refused, Err(NodeError::SnapshotOpen { .. })), "{refused:?}");
            // The last client had it.
            drop(channel);
            views.keep_closed("demo@one").await.unwrap();
            assert!(views.open_of("demo").is_empty());
        });
    }

    #[test]
    fn the_name_of_an_export_is_a_volume_and_a_snapshot() {
        let name = |text| VolumeName::new(text).unwrap();
        assert_eq!(split("demo@monday"), Some((name("demo"), name("monday"))));
        for other in ["demo", "demo@", "@monday", "demo@a@b", "../x@y", "demo@a/b"] {
            assert_eq!(split(other), None, "{other}");
        }
    }
}
