//! How much volumes that are closed still have to put in the store, for whoever waits for their end.

use std::rc::Rc;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use tokio::sync::oneshot;
use weir_device::VolumeId;
use weir_stack::{Stack, StageStatus};

use crate::api::types::AtRisk;
use crate::error::NodeError;
use crate::node::NodeHandle;
use crate::node::shard::ShardContext;
use crate::serve::lock::lock;

/// How often the number of a volume is brought up to date.
const LOOK_INTERVAL: Duration = Duration::from_millis(250);

/// What a volume still has to send: to the store; of an export of another server, what that did not flush.
fn to_go(stack: &Stack) -> AtRisk {
    if let Some(log) = stack.log_status() {
        return log.into();
    }
    let layers = stack.layers().into_iter();
    let bytes = layers.filter_map(|layer| match layer.stage {
        StageStatus::Remote(remote) => Some(remote.unflushed_bytes),
        _ => None,
    });
    AtRisk { bytes: bytes.sum(), ..AtRisk::default() }
}

/// Bytes of acknowledged writes that are not in the store, of the volumes that are looked at.
#[derive(Clone, Debug, Default)]
pub struct Unsent(Vec<Arc<Mutex<AtRisk>>>);

impl Unsent {
    /// All of them together.
    #[must_use]
    pub fn at_risk(&self) -> AtRisk {
        self.0.iter().map(|unsent| *lock(unsent)).sum()
    }

    /// Looks at one more volume, on its thread, until it is closed. What is returned is told once the volume was found:
    /// one whose close begins earlier may not be.
    pub(crate) fn look_at(
        &mut self,
        node: &NodeHandle,
        (shard, id): (usize, VolumeId),
    ) -> Result<oneshot::Receiver<()>, NodeError> {
        let (told, found) = oneshot::channel();
        let unsent = Arc::<Mutex<AtRisk>>::default();
        self.0.push(Arc::clone(&unsent));
        let look = move |context: Rc<ShardContext>| async move {
            let stack = {
                let hosted = context.hosted.borrow().get(&id).cloned();
                hosted.map(|hosted| Rc::downgrade(&hosted.stack))
            };
            // Not everybody waits for it.
            let _ = told.send(());
            // The loop ends when the volume is closed.
            while let Some(stack) = stack.as_ref().and_then(std::rc::Weak::upgrade) {
                *lock(&unsent) = to_go(&stack);
                drop(stack);
                tokio::time::sleep(LOOK_INTERVAL).await;
            }
            *lock(&unsent) = AtRisk::default();
        };
        node.submit(shard, look)?;
        Ok(found)
    }
}
