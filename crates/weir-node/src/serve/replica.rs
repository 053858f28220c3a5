//! The replica that is kept of a volume while it is served.

use std::rc::Rc;

use tokio::sync::{oneshot, watch};
use weir_device::with_causes;
use weir_log::catalog::VolumeName;
use weir_store::StoreOptions;

use crate::api::types::{Limits, ReplicaState};
use crate::config::ReplicateTo;
use crate::error::NodeError;
use crate::home::Home;
use crate::node::NodeHandle;
use crate::volumes::replicate::{Replication, ReplicationProgress, TARGET_VARIABLES, run};

/// The replica of a served volume, as every thread may see it.
#[derive(Debug)]
pub(crate) struct Following {
    store_url: String,
    progress: watch::Receiver<ReplicationProgress>,
}

impl Following {
    pub(crate) fn status(&self) -> ReplicaState {
        let progress = self.progress.borrow();
        ReplicaState {
            store: self.store_url.clone(),
            as_of: progress.status.as_of,
            lag_bytes: progress.status.lag_bytes,
            lag_seconds: progress.status.lag_seconds,
            sent_bytes: progress.status.sent_bytes,
            trouble: progress.trouble.clone(),
        }
    }
}

/// Ends the keeping of a replica.
#[derive(Debug)]
pub(crate) struct End {
    stop: watch::Sender<bool>,
    ended: oneshot::Receiver<()>,
}

impl End {
    /// Returns once nothing is sent any more.
    pub(crate) async fn wait(self) {
        self.stop.send_replace(true);
        // It may have ended by itself.
        let _ = self.ended.await;
    }
}

/// What the status says of a replica that an error ended.
fn kept_no_more(name: &VolumeName, trouble: &str) -> String {
    format!(
        "it is not kept any more, until the volume is attached again (weir volume detach {name}, then weir volume \
         attach {name}): {trouble}"
    )
}

/// Keeps a replica of a volume that is served on `shard`. `on_end` is called with the reason if an error ends it for
/// good.
pub(crate) fn keep(
    node: &NodeHandle,
    home: &Home,
    limits: Limits,
    (name, shard): (&VolumeName, usize),
    to: ReplicateTo,
    on_end: impl FnOnce(String) + Send + 'static,
) -> Result<(Following, End), NodeError> {
    let (sender, progress) = watch::channel(ReplicationProgress::default());
    let (stop, stopped) = watch::channel(false);
    let replication = Replication {
        name: name.clone(),
        target_url: to.store_url.clone(),
        target_options: StoreOptions::from_environment_for(TARGET_VARIABLES)?,
        limits,
        follow: true,
        age: to.age,
    };
    let home = home.clone();
    let ended = node.submit(shard, move |context| async move {
        let (name, progress) = (replication.name.clone(), Rc::new(sender));
        let ended = run(&context, &home, &replication, Rc::clone(&progress), stopped).await;
        if let Err(error) = ended {
            let trouble = with_causes(&error);
            tracing::error!(volume = %name, trouble, "the replica is not kept any more");
            on_end(trouble.clone());
            progress.send_modify(|progress| progress.trouble = Some(kept_no_more(&name, &trouble)));
        }
    })?;
    Ok((Following { store_url: to.store_url, progress }, End { stop, ended }))
}
