//! The node at the far end: it serves the medium with the product's own front end, is killed, and comes back.

use std::cell::{Cell, RefCell};
use std::future::poll_fn;
use std::rc::Rc;

use tokio::task::{JoinHandle, JoinSet};
use weir_device::{Address, DeviceError, Network, SourceId, VolumeId};
use weir_frontend::nbd::{ConnectionOptions, Export, Exports, Given, Instance, serve_connection};
use weir_net::sim::SimNetwork;

use super::medium::Medium;

/// Where it listens.
pub(super) const AT: &str = "server:10809";

struct Shelf {
    medium: Rc<Medium>,
    instance: Option<Instance>,
    given: Rc<Cell<Option<Given>>>,
}

impl Exports for Shelf {
    type Device = Medium;

    fn find(&self, name: &str) -> Option<Export<Medium>> {
        (name == "disk").then(|| Export {
            name: name.to_owned(),
            description: String::new(),
            device: Rc::clone(&self.medium),
            volume: VolumeId([9; 16]),
            read_only: false,
            history: None,
        })
    }

    fn instance(&self) -> Option<Instance> {
        self.instance
    }

    async fn keep_given(&self, given: Option<Given>) -> Result<(), DeviceError> {
        self.given.set(given);
        Ok(())
    }

    fn list(&self) -> Vec<String> {
        vec!["disk".to_owned()]
    }
}

pub(super) struct Server {
    network: SimNetwork,
    medium: Rc<Medium>,
    tells_openings: bool,
    openings: Cell<u64>,
    /// What it has written down of exclusive access.
    given: Rc<Cell<Option<Given>>>,
    task: RefCell<Option<JoinHandle<()>>>,
}

impl Server {
    pub(super) fn new(network: SimNetwork, medium: Rc<Medium>, tells_openings: bool) -> Self {
        let (openings, given, task) = Default::default();
        Self { network, medium, tells_openings, openings, given, task }
    }

    pub(super) fn is_up(&self) -> bool {
        self.task.borrow().is_some()
    }

    pub(super) async fn begin(&self) {
        let at = Address::Tcp(AT.to_owned());
        let mut listener = self.network.listen(&at).await.expect("nobody else listens");
        self.openings.set(self.openings.get() + 1);
        let mut instance = [0; 16];
        // Far from each other, as random ones are: tags are counted from them.
        instance[8..].copy_from_slice(&self.openings.get().to_le_bytes());
        let instance = self.tells_openings.then_some(instance);
        let (medium, given) = (Rc::clone(&self.medium), Rc::clone(&self.given));
        let options = ConnectionOptions::new(SourceId(1), "node");
        options.access.restore("disk", given.get());
        let exports = Rc::new(Shelf { medium, instance, given });
        let task = tokio::task::spawn_local(async move {
            let mut connections = JoinSet::new();
            loop {
                let Ok(accepted) = poll_fn(|cx| listener.poll_accept(cx)).await else { continue };
                let (exports, options) = (Rc::clone(&exports), options.clone());
                let forever = std::future::pending::<()>();
                let stream = accepted.stream;
                connections.spawn_local(serve_connection(stream, exports, options, forever));
            }
        });
        self.task.replace(Some(task));
    }

    /// Ends as by `kill -9`: what it had in flight is carried out or not, and nothing is any more.
    pub(super) async fn kill(&self) {
        let Some(task) = self.task.take() else { return };
        task.abort();
        // It was cancelled.
        let _ = task.await;
    }
}
