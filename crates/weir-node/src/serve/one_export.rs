//! The export of one stack: a volume, or one of its snapshots.

use std::rc::Rc;
use std::sync::Arc;

use weir_device::{DeviceError, DeviceExt, History, VolumeId};
use weir_frontend::nbd::{ConnectionOptions, Export, ExportInfo, Exports, Given};
use weir_stack::Stack;

use crate::home::given::GivenRecord;
use crate::node::gate::Gate;
use crate::node::hosted::Hosted;
use crate::node::shard::ShardContext;

/// How a client of an export on this thread is served.
pub(crate) fn connection_options(context: &ShardContext) -> ConnectionOptions {
    context.clients.options(&context.env.buffers)
}

/// The one export that connections are handed off to.
pub(crate) struct OneExport {
    /// Its name and properties; its size is that of the device.
    pub(crate) info: ExportInfo,
    pub(crate) stack: Rc<Stack>,
    pub(crate) volume: VolumeId,
    pub(crate) history: Option<Rc<dyn History>>,
    /// Where the tag given with exclusive access is kept, if it lasts.
    pub(crate) record: Option<GivenRecord>,
    /// Keeps clients out while a verb changes what they would see; a snapshot needs none.
    pub(crate) gate: Option<Arc<Gate>>,
}

impl OneExport {
    /// The export of a volume.
    pub(crate) fn of(hosted: &Hosted) -> Self {
        Self {
            info: ExportInfo {
                name: hosted.name.to_string(),
                description: describe(hosted.id),
                size: hosted.stack.size(),
                read_only: hosted.read_only,
                // Told by the thread that shakes hands.
                instance: None,
                volume: None,
                earlier: [].into(),
            },
            stack: Rc::clone(&hosted.stack),
            volume: hosted.id,
            history: None,
            record: hosted.record.clone(),
            gate: Some(Arc::clone(&hosted.gate)),
        }
    }
}

impl Exports for OneExport {
    type Device = Stack;

    fn find(&self, name: &str) -> Option<Export<Stack>> {
        let is_closed = self.gate.as_ref().is_some_and(|gate| gate.is_closed());
        (name == self.info.name && !is_closed).then(|| Export {
            name: self.info.name.clone(),
            description: self.info.description.clone(),
            device: Rc::clone(&self.stack),
            volume: self.volume,
            read_only: self.info.read_only,
            history: self.history.clone(),
        })
    }

    async fn keep_given(&self, given: Option<Given>) -> Result<(), DeviceError> {
        match &self.record {
            Some(record) => record.keep(given).await,
            None => Ok(()),
        }
    }

    fn list(&self) -> Vec<String> {
        vec![self.info.name.clone()]
    }
}

/// The description of an export, for people.
pub(crate) fn describe(id: VolumeId) -> String {
    format!("Weir volume {id}")
}
