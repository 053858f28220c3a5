//! The threads of a command.

use std::time::Duration;

use tokio::runtime::{Builder, Runtime};
use weir_node::{Node, NodeConfig};

use crate::terminal::failure::Failure;

/// The runtime on which the main thread waits.
pub(crate) fn runtime() -> Result<Runtime, Failure> {
    // An idle thread would be one more that can receive signals.
    let keep_alive = Duration::from_millis(1);
    let started = Builder::new_current_thread().enable_all().thread_keep_alive(keep_alive).build();
    started.map_err(|error| Failure::new(format!("starting the runtime: {error}")))
}

/// Starts a node, runs `verb` on it to its end, and ends the node, also after an error.
pub(crate) fn on_node<T>(
    config: NodeConfig,
    verb: impl AsyncFnOnce(&Node) -> Result<T, Failure>,
) -> Result<T, Failure> {
    let runtime = runtime()?;
    let node = Node::start(config)?;
    on_started(&runtime, node, verb)
}

/// [`on_node`] with a node and a runtime that run already.
pub(crate) fn on_started<T>(
    runtime: &Runtime,
    node: Node,
    verb: impl AsyncFnOnce(&Node) -> Result<T, Failure>,
) -> Result<T, Failure> {
    ended_after(runtime, node, verb).0
}

/// The same, and whether all threads of the node have ended.
pub(crate) fn ended_after<T>(
    runtime: &Runtime,
    node: Node,
    verb: impl AsyncFnOnce(&Node) -> Result<T, Failure>,
) -> (Result<T, Failure>, bool) {
    let result = runtime.block_on(verb(&node));
    (result, node.shut_down())
}
