//! Objects of an earlier opening that landed late: at a sequence that another opening owns by then, and below its
//! checkpoint, where no opening looks for what it has to roll forward.
//!
//! They come from PUTs that were on their way when their process was killed, and from an owner that goes on until it
//! learns that it was superseded. Nothing reads them; without this only `weir volume repair` would delete them.

use futures_util::future::try_join_all;
use weir_device::{Env, VolumeId};
use weir_journal::Epoch;
use weir_store::{RetryPolicy, Store};

use crate::error::LogError;
use crate::format::manifest::Manifest;
use crate::ids::{ObjectId, ObjectSeq};
use crate::limits::STRAY_LOOKS;

/// The objects up to `through` that belong to an epoch before the one that owns their sequence. Looks at one page of
/// the listing from each of the newest sequences on at which the owner changed: what is missed, because it lands later
/// still or lies far behind that sequence, is found by the next openings or by `weir volume check`.
pub(crate) async fn find(
    store: &Store,
    env: &Env,
    manifest: &Manifest,
    through: ObjectSeq,
) -> Result<Vec<ObjectId>, LogError> {
    let volume = VolumeId(manifest.volume.0);
    let prefix = &ObjectId::prefix(volume);
    let looks = changes_of_owner(manifest, through).into_iter().map(async |first| {
        let before = ObjectId {
            stream: volume,
            seq: ObjectSeq(first.saturating_sub(1)),
            epoch: Epoch(u64::MAX),
        };
        let after = before.key();
        let mut random = || env.random.next_u64();
        let list = || store.list_page(prefix, Some(&after));
        store.retry(&RetryPolicy::reads(), &mut random, None, list).await
    });
    let pages = try_join_all(looks).await?;
    let listed = pages.iter().flatten().filter_map(|listed| ObjectId::parse_key(&listed.key));
    let is_stray = |id: &ObjectId| {
        let owner = manifest.owning_entry(id.seq);
        id.seq <= through && owner.is_some_and(|owner| id.epoch < Epoch(owner.epoch))
    };
    let mut strays: Vec<ObjectId> = listed.filter(is_stray).collect();
    strays.sort_unstable();
    strays.dedup();
    if let Some(first) = strays.first() {
        tracing::info!(%volume, count = strays.len(), %first, "objects of earlier openings that came late go");
    }
    Ok(strays)
}

/// The newest sequences up to `through` at which the owner changed.
fn changes_of_owner(manifest: &Manifest, through: ObjectSeq) -> Vec<u64> {
    let owners = manifest.epochs.iter().filter_map(|entry| entry.first_sequence);
    let mut firsts: Vec<u64> = owners.skip(1).filter(|first| *first <= through.0).collect();
    firsts.dedup();
    firsts.split_off(firsts.len().saturating_sub(STRAY_LOOKS))
}
