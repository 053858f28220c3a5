//! The cache of a process that begins to serve.

use std::sync::Arc;
use std::time::Duration;

use crate::serve::cache_setting::CacheSetting;
use crate::serve::core::Core;

/// How long a start waits for the cache: opening one of a TiB reads more than a GiB.
const OPEN_TIME_MAX: Duration = Duration::from_secs(10);

/// Opens the cache for the volumes that are served next. One whose disk does not answer does not keep them waiting: it
/// is used from the moment on that it is open.
pub(super) async fn open_for_start(core: &Arc<Core>, setting: CacheSetting) {
    let opening = Arc::clone(core);
    let opening = async move {
        let place = (&opening.home, opening.store_shares_disk);
        opening.cache.open(&opening.node, setting, place).await;
    };
    let opening = core.node.workers.spawn(opening);
    if tokio::time::timeout(OPEN_TIME_MAX, opening).await.is_err() {
        let why = "its disk has not answered yet, and it is used once it does";
        tracing::warn!(why, "serving without a cache on the local disk");
        core.cache.note_late(why, setting);
    }
}
