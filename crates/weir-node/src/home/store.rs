//! Opening the store of a home, and drawing the keys of a volume that is created in it.

use weir_log::{Encryption, LogError};
use weir_store::{Access, Store};

use crate::error::NodeError;
use crate::home::{Home, known_stores};
use crate::node::shard::ShardContext;

impl Home {
    /// The store of this home, if it is there, can be reached and, for writing, keeps two writers apart.
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
        // Two probes must not use the same keys, so the generator begins at a random number of the system.
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
}
