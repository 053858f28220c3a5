//! Volumes that the process before this one served and that this one does not, because they were taken out of the
//! configuration; and volumes that a new configuration took out of a running process, whose store did not take
//! everything in time. Their journals may hold writes that are not in the store, and their manifests name this node as
//! the holder, so that no other node could open them without a takeover. They are opened once more and closed with
//! everything in the store.

use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use weir_device::with_causes;
use weir_log::LogError;
use weir_log::catalog::{self, VolumeName};

use crate::error::NodeError;
use crate::home::open::with_open;
use crate::node::shard::ShardContext;
use crate::serve::core::Core;
use crate::serve::events::EventKind;

/// Pauses between two tries, of [`LOOK`] each.
const PAUSES: u32 = 30;

/// How often it is checked during a pause whether the process stops.
const LOOK: Duration = Duration::from_secs(1);

/// Closes these volumes one after the other, in the background, until each is closed or the process stops.
pub(crate) fn close(core: &Arc<Core>, names: Vec<VolumeName>) -> Result<(), NodeError> {
    for name in &names {
        core.note_left(name, Some("it is not served any more, and is being closed".to_owned()));
    }
    let core = Arc::clone(core);
    let work = core.node.clone().submit(0, move |context| async move {
        let mut names = names;
        while !names.is_empty() {
            let mut again = Vec::new();
            for name in names {
                if core.is_stopping.load(Ordering::Relaxed) {
                    return;
                }
                let _turn = core.left_turn.lock().await;
                // It may be served again meanwhile, and is then closed as what is served is.
                if core.is_left(&name) && !close_one(&context, &core, &name).await {
                    again.push(name);
                }
            }
            names = again;
            for _ in 0..PAUSES {
                if names.is_empty() || core.is_stopping.load(Ordering::Relaxed) {
                    break;
                }
                tokio::time::sleep(LOOK).await;
            }
        }
    });
    // It runs in the background.
    work.map(drop)
}

/// Closes one of them; whether nothing is left to be done.
async fn close_one(context: &Rc<ShardContext>, core: &Core, name: &VolumeName) -> bool {
    let Some(store) = core.store.clone() else {
        // Without a store nothing can be closed. What a journal keeps of a volume the status says by itself.
        core.note_left(name, None);
        return true;
    };
    let closed = async {
        let id = catalog::find(&store, &context.env, name).await?;
        with_open(context, &core.home, store.clone(), id, name, |_| async { Ok(()) }).await
    };
    match closed.await {
        Ok(()) => {
            core.note_left(name, None);
            let why = "it is not served any more";
            core.events.note(EventKind::VolumeClosed, Some(name.as_str()), why);
            true
        }
        // It is gone, or another process has it, here or elsewhere: that one closes it.
        Err(error) if is_not_ours(&error) => {
            core.note_left(name, None);
            true
        }
        Err(error) => {
            let reason = with_causes(&error);
            tracing::error!(volume = %name, reason, "a volume that is not served any more is not all in the store");
            let left = format!(
                "it is not served any more, and the store does not have all of it: {reason}"
            );
            core.note_left(name, Some(left));
            false
        }
    }
}

fn is_not_ours(error: &NodeError) -> bool {
    matches!(error, NodeError::Served { .. } | NodeError::Held { .. })
        || matches!(
            error.of_log(),
            Some(LogError::NoSuchVolume { .. } | LogError::InUse { .. } | LogError::Held { .. })
        )
}

/// Closes a volume whose opening was taken back, if that had got as far as to make this process its holder.
pub(crate) fn close_if_held(core: &Arc<Core>, name: VolumeName) -> Result<(), NodeError> {
    let core = Arc::clone(core);
    let work = core.node.clone().submit(0, move |context| async move {
        match is_held(&context, &core, &name).await {
            // An error means that the process stops.
            Ok(true) => drop(close(&core, vec![name])),
            Ok(false) => {}
            Err(error) => tracing::warn!(
                volume = %name, %error,
                "whether this process holds a volume whose opening was taken back is not known"
            ),
        }
    });
    // It runs in the background.
    work.map(drop)
}

async fn is_held(
    context: &Rc<ShardContext>,
    core: &Core,
    name: &VolumeName,
) -> Result<bool, NodeError> {
    let Some(store) = &core.store else { return Ok(false) };
    let id = match catalog::find(store, &context.env, name).await {
        // It is in no store, or was to be created.
        Err(LogError::NoSuchVolume { .. }) => return Ok(false),
        found => found?,
    };
    if !core.home.data.volume(id).exists() {
        return Ok(false);
    }
    let directory = context.disks.directory(core.home.data.volume(id))?;
    match catalog::journal_in(&directory, id).await? {
        Some(journal) => Ok(catalog::is_held_with(store, &context.env, id, &journal).await?),
        None => Ok(false),
    }
}
