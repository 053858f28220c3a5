//! How much a process that stops still has to put in the store, for whoever waits for its end.

use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use crate::error::NodeError;
use crate::node::shard::ShardContext;
use crate::serve::core::Core;
use crate::serve::service::Service;

/// How often the number of a volume is brought up to date.
const LOOK_INTERVAL: Duration = Duration::from_millis(250);

/// Bytes of acknowledged writes that are not in the store, of every volume that was served when this was made.
#[derive(Clone, Debug, Default)]
pub struct Unsent(Vec<Arc<AtomicU64>>);

impl Unsent {
    /// All of them together.
    #[must_use]
    pub fn bytes(&self) -> u64 {
        self.0.iter().map(|bytes| bytes.load(Ordering::Relaxed)).sum()
    }

    pub(crate) fn of(core: &Core) -> Result<Self, NodeError> {
        let mut all = Self::default();
        for entry in core.entries() {
            let (id, bytes) = (entry.id, Arc::<AtomicU64>::default());
            all.0.push(Arc::clone(&bytes));
            let look = move |context: Rc<ShardContext>| async move {
                let stack = {
                    let hosted = context.hosted.borrow().get(&id).cloned();
                    hosted.map(|hosted| Rc::downgrade(&hosted.stack))
                };
                // The loop ends when the volume is closed.
                while let Some(stack) = stack.as_ref().and_then(std::rc::Weak::upgrade) {
                    let unsent = stack.log_status().map_or(0, |status| status.unsent_bytes);
                    bytes.store(unsent, Ordering::Relaxed);
                    drop(stack);
                    tokio::time::sleep(LOOK_INTERVAL).await;
                }
                bytes.store(0, Ordering::Relaxed);
            };
            drop(core.node.submit(entry.shard, look)?);
        }
        Ok(all)
    }
}

impl Service {
    /// The bytes of the volumes served now that are not in the store, also while these are being closed.
    ///
    /// # Errors
    /// [`NodeError::ShuttingDown`].
    pub fn unsent(&self) -> Result<Unsent, NodeError> {
        Unsent::of(self.core())
    }
}
