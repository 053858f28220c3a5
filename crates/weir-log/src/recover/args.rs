//! What an opening is given.

use std::rc::Rc;

use weir_device::{Env, VolumeId};
use weir_disk::Directory;
use weir_store::Store;

use crate::keys::Keys;
use crate::options::VolumeOptions;
use crate::own::lease::NodeLease;
use crate::read::block_store::BlockStore;

/// File name of the journal in the volume's directory.
pub const JOURNAL_FILE: &str = "journal";

/// File name of the lock in the volume's directory.
pub const LOCK_FILE: &str = "lock";

/// Everything an opening needs.
#[derive(Clone)]
pub struct OpenArgs {
    /// The store of the volume's objects.
    pub store: Store,
    /// The volume.
    pub id: VolumeId,
    /// Directory of this volume's local files.
    pub directory: Directory,
    /// Time, randomness, tasks.
    pub env: Env,
    /// Settings.
    pub options: VolumeOptions,
    /// The node's block store.
    pub blocks: BlockStore,
    /// Where the keys of encrypted volumes come from.
    pub keys: Keys,
    /// The lease of this node in the store.
    pub lease: NodeLease,
    /// Go on although the journal or the store lost acknowledged writes.
    pub accept_loss: bool,
    /// Go on although another journal may hold acknowledged writes.
    pub take_over: bool,
    /// Give up what a local journal holds that must not be replayed.
    pub discard_journal: bool,
    /// The local journal is a copy of another file, and the one to go on with.
    pub adopt_journal: bool,
    /// Open a volume that is only partly filled, to go on filling it.
    pub incomplete: bool,
    /// Called with the name of another node when the opening begins to wait for what that node does.
    pub on_wait: Option<OnWait>,
}

/// Hears the name of a node that is waited for.
pub type OnWait = Rc<dyn Fn(&str)>;

impl std::fmt::Debug for OpenArgs {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "OpenArgs({} in {})", self.id, self.store.url())
    }
}
