//! What a front end serves.

use std::future::Future;
use std::rc::Rc;

use weir_device::{Device, DeviceError, History, VolumeId};
use weir_nbd::Instance;

use super::access::Given;

/// A device under a name that clients ask for.
pub struct Export<D> {
    /// Canonical name.
    pub name: String,
    /// A line for a person, possibly empty.
    pub description: String,
    /// What is served.
    pub device: Rc<D>,
    /// The volume that requests address, for their I/O headers.
    pub volume: VolumeId,
    /// Whether writes are refused.
    pub read_only: bool,
    /// What it can be compared with: each of its earlier states is a metadata context.
    pub history: Option<Rc<dyn History>>,
}

impl<D> std::fmt::Debug for Export<D> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Export").field("name", &self.name).field("volume", &self.volume).finish()
    }
}

/// The devices that a front end serves. Asked anew for every connection, so that they may come and go.
pub trait Exports {
    /// What is served.
    type Device: Device + 'static;

    /// The export of that name. The empty name is the default export, if there is one.
    fn find(&self, name: &str) -> Option<Export<Self::Device>>;

    /// Names this opening of the exports, for clients that connect again: what was acknowledged under it and not
    /// flushed is there as long as it is the same. Nothing where that is not known.
    fn instance(&self) -> Option<Instance> {
        None
    }

    /// Writes down, where it lasts as long as the content does, which session was given which tag of an export, or that
    /// none was. Where it is not written down a session has another tag after a restart of the server.
    ///
    /// # Errors
    /// It could not be written down, and what was before may be still.
    fn keep_given(&self, _given: Option<Given>) -> impl Future<Output = Result<(), DeviceError>> {
        std::future::ready(Ok(()))
    }

    /// Names of all exports that clients may see.
    fn list(&self) -> Vec<String>;
}
