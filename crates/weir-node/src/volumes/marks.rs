//! Volumes that are being filled by an import or a copy: marked in the store, so that nobody takes them for whole.

use weir_device::LocalBoxFuture;
use weir_log::Takeover;
use weir_log::catalog::{self, VolumeName};
use weir_store::Access;

use crate::api::types::Shown;
use crate::error::NodeError;
use crate::home::{Home, known_stores};
use crate::node::Node;
use crate::node::shard::ShardContext;

/// What is said where another volume is served under the name of one in the store.
const AMBIGUOUS: &str = "is served here under the name of one that is: detach it first, so that it is clear which one \
                         is to be filled";

/// How a volume is marked that is filled by an import or a copy.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mark {
    /// Create it, to be filled.
    New {
        /// Its size in bytes.
        size: u64,
        /// What happens when the lease of its holder runs out.
        takeover: Takeover,
    },
    /// It is there, and is filled anew.
    Incomplete,
    /// It is filled.
    Complete,
}

/// Creates a volume that is to be filled, or says of one that nobody has open whether it is filled.
async fn mark_as(
    context: &ShardContext,
    home: &Home,
    name: &VolumeName,
    mark: Mark,
) -> Result<Shown, NodeError> {
    home.data.prepare()?;
    match mark {
        Mark::New { .. } => home.refuse_taken(None, name).await?,
        Mark::Incomplete => home.refuse_ambiguous(name, AMBIGUOUS).await?,
        Mark::Complete => {}
    }
    let store = match mark {
        Mark::New { .. } => home.open_or_make_store(context).await?,
        Mark::Incomplete | Mark::Complete => home.open_store(context, Access::Write).await?,
    };
    let env = &context.env;
    match mark {
        Mark::New { size, takeover } => {
            known_stores::check_not_emptied(context, home, &store).await?;
            known_stores::check_not_lost(context, home, &store, name).await?;
            let encryption = home.encryption(context).await?;
            catalog::create_incomplete(&store, env, name, size, takeover, encryption).await?;
        }
        Mark::Incomplete => catalog::set_incomplete(&store, env, name, true).await?,
        Mark::Complete => catalog::set_incomplete(&store, env, name, false).await?,
    }
    Ok(Shown::new(catalog::show(&store, env, name).await?, None))
}

impl Node {
    /// Marks a volume that nobody has open as one that is being filled, or as filled.
    ///
    /// # Errors
    /// When the name is taken, somebody has the volume open, or what the store says.
    #[inline(never)]
    pub fn mark_volume<'a>(
        &'a self,
        home: Home,
        name: VolumeName,
        mark: Mark,
    ) -> LocalBoxFuture<'a, Result<Shown, NodeError>> {
        Box::pin(async move {
            self.run(0, move |context| async move { mark_as(&context, &home, &name, mark).await })
                .await?
        })
    }
}
