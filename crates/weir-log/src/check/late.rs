//! Objects of an earlier opening that were stored late: their sequence belongs to another opening by then and is
//! covered by its checkpoint, so that rolling forward never meets them.
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
use crate::limits::LATE_OBJECT_LOOKS;

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
    let is_late = |id: &ObjectId| {
        let owner = manifest.owning_entry(id.seq);
        id.seq <= through && owner.is_some_and(|owner| id.epoch < Epoch(owner.epoch))
    };
    let mut late: Vec<ObjectId> = listed.filter(is_late).collect();
    late.sort_unstable();
    late.dedup();
    if let Some(first) = late.first() {
        tracing::info!(%volume, count = late.len(), %first, "objects of earlier openings that came late go");
    }
    Ok(late)
}

/// The newest sequences up to `through` at which the owner changed.
fn changes_of_owner(manifest: &Manifest, through: ObjectSeq) -> Vec<u64> {
    let owners = manifest.epochs.iter().filter_map(|entry| entry.first_sequence);
    let mut firsts: Vec<u64> = owners.skip(1).filter(|first| *first <= through.0).collect();
    firsts.dedup();
    firsts.split_off(firsts.len().saturating_sub(LATE_OBJECT_LOOKS))
}
