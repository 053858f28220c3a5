//! Who may open a volume that another opening did not close.
//!
//! The same journal, with its lock obtained, is opened at once: nothing can be lost. Everybody else waits until the
//! renewals of the holder's lease have stood still for its whole length by this node's own clock, whatever was asked
//! for: a holder that renews keeps its volume. After that the volume is taken where that was asked for or where the
//! volume says so, and what is taken is a prefix of what was acknowledged.

use std::time::Duration;

use weir_device::{Env, VolumeId};
use weir_journal::JournalId;
use weir_store::{RetryPolicy, Store, StoreError};

use crate::chain;
use crate::error::LogError;
use crate::format::lease::LeaseRecord;
use crate::format::manifest::{Holder, Manifest, Takeover};
use crate::lease::read_record;
use crate::limits::{LEASE_LOOKS_PER_LENGTH, RESOLVE_ATTEMPTS_MAX};
use crate::manifests;

/// What others need to know of a volume that is held.
pub(crate) struct Claim<'a> {
    pub(crate) store: &'a Store,
    pub(crate) env: &'a Env,
    pub(crate) volume: VolumeId,
    /// Take it from a holder whose lease ran out, with what the store holds.
    pub(crate) take_over: bool,
    /// The local journal, if there is one: it needs no claim.
    pub(crate) ours: Option<JournalId>,
    /// Length of a lease of which no record can be read.
    pub(crate) length_default: Duration,
}

/// The newest record of a node's lease, as far as it can be read.
struct Seen {
    number: u64,
    record: Option<LeaseRecord>,
}

impl Claim<'_> {
    /// Waits until the volume of `manifest` may be opened; the newest manifest by then.
    ///
    /// # Errors
    /// [`LogError::InUse`] while the holder renews its lease; [`LogError::Held`] when it does not, and nobody said to
    /// take over.
    pub(crate) async fn admit(&self, mut manifest: Manifest) -> Result<Manifest, LogError> {
        loop {
            let Some(holder) = manifest.holder.clone() else { return Ok(manifest) };
            if self.ours.is_some_and(|ours| ours.0 == holder.journal.0) {
                return Ok(manifest);
            }
            let dirty = if weir_device::mutant("takeover_without_wait") {
                None
            } else {
                self.wait_for_standstill(&holder).await?
            };
            let newest = manifests::newest(self.store, self.env, self.volume).await?;
            let changed = newest.holder.as_ref() != Some(&holder);
            manifest = newest;
            if changed {
                continue;
            }
            if self.take_over || manifest.takeover == Takeover::Auto {
                tracing::warn!(
                    volume = %self.volume, holder = holder.name,
                    "taking the volume over with what the store holds"
                );
                return Ok(manifest);
            }
            return Err(LogError::Held {
                volume: self.volume,
                holder: JournalId(holder.journal.0),
                node: holder.name,
                may_hold: may_hold(dirty),
            });
        }
    }

    /// Waits until no renewal of the holder's run has come for the whole length of its lease; how much its journal held
    /// that no object did, if its last renewal says.
    async fn wait_for_standstill(&self, holder: &Holder) -> Result<Option<u64>, LogError> {
        let clock = &self.env.clock;
        let mut seen = self.look(holder, None).await?;
        // Counted from when it was seen: the holder's own deadline is earlier (L1 of `lease`).
        let mut since = clock.boottime();
        let mut length = self.length_of(&seen);
        let mut dirty = self.dirty_of(&seen, holder);
        tracing::warn!(
            volume = %self.volume, holder = holder.name, seconds = length.as_secs_f64(),
            "the volume was not closed by its holder; waiting until its lease has run out"
        );
        if weir_device::mutant("wait_half_a_lease") {
            length /= 4;
        }
        loop {
            tokio::time::sleep(length / LEASE_LOOKS_PER_LENGTH).await;
            let looked_at = clock.boottime();
            let now = self.look(holder, Some(&seen)).await?;
            if now.number > seen.number {
                if is_of(&now, holder) {
                    return Err(LogError::InUse {
                        volume: self.volume,
                        node: holder.name.clone(),
                        lease_s: length.as_secs(),
                    });
                }
                // Its node goes on without it, so it will never renew again. What it renewed last is unknown, so the
                // time begins anew, once.
                if is_of(&seen, holder) {
                    since = clock.boottime();
                    dirty = None;
                }
                seen = now;
            }
            if looked_at.saturating_sub(since) >= length {
                return Ok(dirty);
            }
        }
    }

    fn length_of(&self, seen: &Seen) -> Duration {
        let stated = seen.record.as_ref().map(|record| Duration::from_millis(record.length_ms));
        stated.unwrap_or(self.length_default)
    }

    fn dirty_of(&self, seen: &Seen, holder: &Holder) -> Option<u64> {
        let record = seen.record.as_ref().filter(|record| record.identity() == holder.lease())?;
        let volume = record.volumes.iter().find(|v| v.volume.0 == self.volume.0)?;
        Some(volume.dirty_bytes)
    }

    /// The newest renewal of the holder's node. Its record is read only where it is not the one seen before.
    async fn look(&self, holder: &Holder, before: Option<&Seen>) -> Result<Seen, LogError> {
        let policy = RetryPolicy::reads();
        let mut random = || self.env.random.next_u64();
        let prefix = LeaseRecord::prefix(holder.node);
        let mut attempt = 0;
        loop {
            attempt += 1;
            let list = || chain::numbers(self.store, &prefix);
            let listed = self.store.retry(&policy, &mut random, None, list).await?;
            let number = listed.last().copied().unwrap_or(0);
            if number == 0 || before.is_some_and(|before| before.number == number) {
                return Ok(Seen { number, record: None });
            }
            let key = chain::key(&prefix, number);
            let read = || read_record(self.store, &key);
            let record = match self.store.retry(&policy, &mut random, None, read).await {
                Err(StoreError::NotFound { .. }) => None,
                read => read?,
            };
            // Damaged on its way, or pruned meanwhile: list again. A number without its record tells enough: somebody
            // renews.
            if record.is_some() || attempt >= RESOLVE_ATTEMPTS_MAX {
                return Ok(Seen { number, record });
            }
        }
    }
}

/// Whether it is a renewal of the holder's run. One that cannot be read is taken for one.
fn is_of(seen: &Seen, holder: &Holder) -> bool {
    if weir_device::mutant("wait_on_own_renewals") {
        return true;
    }
    seen.record.as_ref().is_none_or(|record| record.identity() == holder.lease())
}

fn may_hold(dirty_bytes: Option<u64>) -> String {
    match dirty_bytes {
        Some(bytes) => {
            format!(
                "acknowledged writes that are not in the store yet ({bytes} bytes at its last renewal)"
            )
        }
        None => "acknowledged writes that are not in the store yet".to_owned(),
    }
}
