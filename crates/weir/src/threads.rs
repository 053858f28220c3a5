//! The threads of a verb.

use tokio::runtime::{Builder, Runtime};
use weir_node::{Node, NodeConfig};

use crate::failure::Failure;

/// What the main thread waits with.
pub(crate) fn runtime() -> Result<Runtime, Failure> {
    let started = Builder::new_current_thread().enable_all().build();
    started.map_err(|error| Failure::new(format!("starting the runtime: {error}")))
}

/// Starts a node, runs `verb` on it to its end, and ends the node, whatever came of the verb.
pub(crate) fn on_node<T>(
    config: NodeConfig,
    verb: impl AsyncFnOnce(&Node) -> Result<T, Failure>,
) -> Result<T, Failure> {
    let runtime = runtime()?;
    let node = Node::start(config)?;
    let result = runtime.block_on(verb(&node));
    node.shut_down();
    result
}
