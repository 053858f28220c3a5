//! Where blocks of objects are kept for the next read.

use std::fmt;
use std::rc::Rc;
use std::sync::Arc;

use weir_cache::engine::ThreadCache;

use crate::read::cache::FrameCache;

/// The block store of a node, as one of its threads has it: memory, and the local disk behind it.
#[derive(Clone)]
pub struct BlockStore {
    /// Decoded frames and blocks, shared by all threads.
    pub memory: Arc<dyn FrameCache>,
    /// The thread's way to the band cache, if the node has one.
    pub disk: Rc<ThreadCache>,
}

impl<C: FrameCache + 'static> From<Arc<C>> for BlockStore {
    /// Memory alone.
    fn from(memory: Arc<C>) -> Self {
        Self { memory, disk: Rc::default() }
    }
}

impl fmt::Debug for BlockStore {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("BlockStore")
    }
}
