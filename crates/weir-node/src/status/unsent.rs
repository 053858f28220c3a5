//! How much a process that stops still has to put in the store, for whoever waits for its end.

use std::rc::Rc;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use crate::api::types::AtRisk;
use crate::error::NodeError;
use crate::node::shard::ShardContext;
use crate::serve::core::{Core, Entry};
use crate::serve::lock::lock;
use crate::serve::service::Service;
use crate::status::{at_risk, total_risk};

/// How often the number of a volume is brought up to date.
const LOOK_INTERVAL: Duration = Duration::from_millis(250);

/// Bytes of acknowledged writes that are not in the store, of every volume that was served when this was made.
#[derive(Clone, Debug, Default)]
pub struct Unsent(Vec<Arc<Mutex<AtRisk>>>);

impl Unsent {
    /// All of them together.
    #[must_use]
    pub fn bytes(&self) -> u64 {
        self.at_risk().bytes
    }

    /// The same with its age.
    pub(crate) fn at_risk(&self) -> AtRisk {
        total_risk(self.0.iter().map(|unsent| *lock(unsent)))
    }

    pub(crate) fn of(core: &Core) -> Result<Self, NodeError> {
        Self::of_entries(core, &core.entries())
    }

    pub(crate) fn of_entries(core: &Core, entries: &[Arc<Entry>]) -> Result<Self, NodeError> {
        let mut all = Self::default();
        for entry in entries {
            let (id, unsent) = (entry.id, Arc::<Mutex<AtRisk>>::default());
            all.0.push(Arc::clone(&unsent));
            let look = move |context: Rc<ShardContext>| async move {
                let stack = {
                    let hosted = context.hosted.borrow().get(&id).cloned();
                    hosted.map(|hosted| Rc::downgrade(&hosted.stack))
                };
                // The loop ends when the volume is closed.
                while let Some(stack) = stack.as_ref().and_then(std::rc::Weak::upgrade) {
                    let status = stack.log_status();
                    *lock(&unsent) = status.as_ref().map(at_risk).unwrap_or_default();
                    drop(stack);
                    tokio::time::sleep(LOOK_INTERVAL).await;
                }
                *lock(&unsent) = AtRisk::default();
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
