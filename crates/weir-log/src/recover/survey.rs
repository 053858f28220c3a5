//! What the store says about whose journal a local journal is, read before anything is written.

use std::collections::BTreeSet;

use futures_util::{StreamExt, stream};
use weir_device::{Env, VolumeId};
use weir_journal::{Epoch, WriteNumber};
use weir_store::{RetryPolicy, Store, StoreError};

use crate::error::LogError;
use crate::format::lease::LeaseRecord;
use crate::format::manifest::{Holder, Manifest};
use crate::ids::{ObjectSeq, WriteMark};
use crate::limits::{DAMAGED_ATTEMPTS_MAX, LEASE_WITNESS_LOOKS_MAX, LEASE_WITNESS_READS_MAX};
use crate::map::load::objects_after;
use crate::own::chain;
use crate::own::lease::read_record;
use crate::random::splitmix;
use crate::recover::evidence::{JournalView, StoreView, Witness, WitnessKind};

/// Evidence beside the manifest.
#[derive(Debug, Default)]
pub(crate) struct Survey {
    witnesses: Vec<Witness>,
    /// Sequence and epoch of every object behind the published checkpoint.
    listed: BTreeSet<(u64, u64)>,
}

impl Survey {
    /// Reads what there is about `manifest`, and about a local journal.
    ///
    /// # Errors
    /// What the store says.
    pub(crate) async fn read(
        (store, env): (&Store, &Env),
        manifest: &Manifest,
        journal: Option<&JournalView>,
    ) -> Result<Self, LogError> {
        let mut survey = Self { listed: list(store, env, manifest).await?, ..Self::default() };
        if let Some(closed) = manifest.closed {
            let write = WriteNumber(closed.write);
            survey.witnesses.push(Witness {
                opening: closed.opening,
                write,
                who: WitnessKind::Close,
            });
        }
        if let (Some(holder), Some(journal)) = (&manifest.holder, journal) {
            let volume = VolumeId(manifest.volume.0);
            survey.witnesses.extend(renewals(store, env, volume, holder, journal).await?);
        }
        Ok(survey)
    }

    /// What to decide by.
    pub(crate) fn view<'a>(&'a self, manifest: &'a Manifest, sent: WriteMark) -> StoreView<'a> {
        StoreView { manifest, witnesses: &self.witnesses, listed: &self.listed, sent }
    }

    /// The newest epoch that an object has. It may be of another history, whose objects stayed when the store was set
    /// back.
    pub(crate) fn newest_epoch(&self) -> Epoch {
        Epoch(self.listed.iter().map(|(_, epoch)| *epoch).max().unwrap_or(0))
    }
}

async fn list(
    store: &Store,
    env: &Env,
    manifest: &Manifest,
) -> Result<BTreeSet<(u64, u64)>, LogError> {
    let stream = VolumeId(manifest.volume.0);
    let as_of = ObjectSeq(manifest.checkpoint.map_or(0, |checkpoint| checkpoint.as_of));
    let objects = objects_after(store, env, (stream, as_of), &RetryPolicy::reads()).await?;
    Ok(objects.into_iter().map(|id| (id.seq.0, id.epoch.0)).collect())
}

/// The newest renewal of the holder's node that saw an opening of this journal. Renewals of a process that began
/// meanwhile, and has not opened this volume yet, may stand before it.
async fn renewals(
    store: &Store,
    env: &Env,
    volume: VolumeId,
    holder: &Holder,
    journal: &JournalView,
) -> Result<Option<Witness>, LogError> {
    if !journal.has_openings() {
        return Ok(None);
    }
    let policy = RetryPolicy::reads();
    let mut random = || env.random.next_u64();
    let prefix = LeaseRecord::prefix(holder.node);
    let list = || chain::numbers(store, &prefix);
    let numbers = store.retry(&policy, &mut random, None, list).await?;
    let reads = numbers.iter().rev().take(LEASE_WITNESS_LOOKS_MAX).map(|number| {
        let (key, store, seed) = (chain::key(&prefix, *number), store, env.random.next_u64());
        async move {
            let (policy, mut random) = (RetryPolicy::reads(), splitmix(seed));
            // An older renewal saw less: this one is passed over only where it is damaged in the store itself.
            for _ in 0..DAMAGED_ATTEMPTS_MAX {
                match store.retry(&policy, &mut random, None, || read_record(store, &key)).await {
                    Err(StoreError::NotFound { .. }) => return Ok(None),
                    Ok(None) if !weir_device::mutant("damaged_witness_passed_over") => {}
                    read => return read,
                }
            }
            tracing::warn!(key, "a renewal of the lease is damaged");
            Ok(None)
        }
    });
    let mut reads = stream::iter(reads).buffered(LEASE_WITNESS_READS_MAX);
    while let Some(record) = reads.next().await {
        let record = record?;
        let seen = record.iter().flat_map(|record| &record.volumes);
        let seen = seen.filter(|seen| seen.volume.0 == volume.0);
        let mut flushed = seen.filter_map(|seen| seen.flushed);
        if let Some(flushed) = flushed.find(|flushed| journal.knows(flushed.opening)) {
            let (opening, write) = (flushed.opening, WriteNumber(flushed.write));
            return Ok(Some(Witness { opening, write, who: WitnessKind::Lease }));
        }
    }
    Ok(None)
}
