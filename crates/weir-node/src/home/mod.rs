//! Where volumes live: a store, a data directory, and what this machine knows of both.

pub(crate) mod cache_file;
pub(crate) mod given;
pub(crate) mod keys;
pub(crate) mod known_stores;
pub(crate) mod limits;
pub(crate) mod names;
pub(crate) mod open;
pub(crate) mod opened;
pub(crate) mod probe;
pub(crate) mod processes;
mod store;

use weir_log::Keys;
use weir_store::StoreOptions;

use crate::data_directory::DataDirectory;

/// Where volumes live: their objects in a store, their journals in a data directory.
#[derive(Clone, Debug)]
pub struct Home {
    /// Journals, sockets.
    pub data: DataDirectory,
    /// URL of the store.
    pub store_url: String,
    /// How the store is reached.
    pub store_options: StoreOptions,
    /// Where the keys of encrypted volumes come from.
    pub keys: Keys,
    /// Whether volumes that are created are encrypted.
    pub encrypt: bool,
}

impl Home {
    /// Volumes whose store is embedded in their data directory, with nothing encrypted.
    pub fn embedded(data: DataDirectory) -> Self {
        Self {
            store_url: data.store_url(),
            data,
            store_options: StoreOptions::default(),
            keys: Keys::default(),
            encrypt: false,
        }
    }
}

/// What an opening may give up, each only when it was asked to.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Consent {
    /// Open without acknowledged writes that cannot be recovered.
    pub accept_loss: bool,
    /// Take the volume from a node that did not close it.
    pub take_over: bool,
    /// Give up a local journal that must not be replayed.
    pub discard_journal: bool,
    /// Go on with a local journal that is a copy of another file.
    pub adopt_journal: bool,
    /// Open a volume that is only partly filled, to go on filling it.
    pub incomplete: bool,
}
