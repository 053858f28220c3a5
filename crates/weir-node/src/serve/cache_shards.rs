//! The cache on the threads of a node. None of them asks its disk for anything, which may not answer: helper threads
//! do, that nothing else needs.

use std::rc::Rc;

use weir_cache::engine::{Cache, CacheSize, Found};

use crate::error::NodeError;
use crate::home::Home;
use crate::node::NodeHandle;
use crate::node::shard::ShardContext;

/// Ends its use on all shards but the first.
pub(super) async fn detach_others(node: &NodeHandle) {
    for shard in 1..node.shard_count() {
        // An error means that the thread ended, and its use with it.
        let _ = node.run(shard, |context| async move { context.blocks.disk.detach() }).await;
    }
}

/// Ends its use on all shards, on the first one last.
pub(super) async fn close_on_all(node: &NodeHandle, home: &Home) {
    detach_others(node).await;
    let path = home.data.cache();
    let closed = node.run(0, |context: Rc<ShardContext>| async move {
        let directory = context.disks.directory_apart(path).await?;
        context.blocks.disk.close(&directory).await?;
        Ok::<_, NodeError>(())
    });
    if let Err(error) = closed.await.and_then(|closed| closed) {
        tracing::warn!(%error, "the cache is read anew at the next start");
    }
}

/// Ends its use on all shards without a word to its disk, which does not answer: the next opening reads it anew.
pub(super) async fn abandon_on_all(node: &NodeHandle) {
    detach_others(node).await;
    // An error means that the thread ended, and its use with it.
    let _ = node.run(0, |context| async move { context.blocks.disk.abandon() }).await;
}

/// Opens the cache on the first shard, in the place of the one that it has, and lets the others use it.
pub(super) async fn open_on_all(
    node: &NodeHandle,
    home: &Home,
    size: CacheSize,
) -> Result<(Cache, Found), NodeError> {
    let path = home.data.cache();
    let open = move |context: Rc<ShardContext>| async move {
        let directory = context.disks.directory_apart(&path).await?;
        let disk = Rc::clone(&context.blocks.disk);
        let (cache, found) = disk.replace(&directory, &context.env, size).await?;
        if matches!(found, Found::Unknown(_)) {
            let status = cache.clone();
            context.env.spawn_local(async move {
                let begun = tokio::time::Instant::now();
                disk.recover().await;
                let status = status.status();
                if status.recovery.is_none() {
                    let (bytes, took) = (status.bytes, begun.elapsed());
                    tracing::info!(bytes, ?took, "all of the cache on the local disk is known");
                }
            });
        }
        Ok::<_, NodeError>((cache, found))
    };
    let (cache, found) = node.run(0, open).await??;
    for shard in 1..node.shard_count() {
        let (path, cache) = (home.data.cache(), cache.clone());
        let attached = move |context: Rc<ShardContext>| async move {
            let directory = context.disks.directory_apart(path).await?;
            context.blocks.disk.attach(&cache, &directory, &context.env).await?;
            Ok::<_, NodeError>(())
        };
        if let Err(error) = node.run(shard, attached).await.and_then(|attached| attached) {
            close_on_all(node, home).await;
            return Err(error);
        }
    }
    Ok((cache, found))
}
