//! Who may open a volume that another opening did not close.
//!
//! The journal of the holder's own opening, with its lock obtained, is opened at once: nothing can be lost. Everybody
//! else waits until the renewals of the holder's lease have stood still for its whole length by this node's own clock,
//! whatever was asked for: a holder that renews keeps its volume. After that the volume is taken where nothing is lost
//! with the holder, where that was asked for, or where the volume says so; and what is taken then is a prefix of what
//! was acknowledged. What becomes of a local journal meanwhile is decided in [`crate::recover::judge`].

use std::time::Duration;

use weir_device::{Env, VolumeId};
use weir_journal::JournalId;
use weir_store::{RetryPolicy, Store, StoreError};

use crate::error::LogError;
use crate::format::lease::LeaseRecord;
use crate::format::manifest::{Holder, Manifest, SalvageRecord, Takeover};
use crate::ids::WriteMark;
use crate::limits::{DAMAGED_ATTEMPTS_MAX, LEASE_LOOK_PAUSE_MAX, LEASE_LOOKS_PER_LENGTH};
use crate::own::lease::read_record;
use crate::own::{chain, manifests};
use crate::recover::evidence::{Consent, Decision, JournalView, Wait};
use crate::recover::judge;
use crate::recover::salvage;
use crate::recover::survey::Survey;

/// What is claimed, and with what.
pub(crate) struct Claim<'a> {
    pub(crate) store: &'a Store,
    pub(crate) env: &'a Env,
    pub(crate) volume: VolumeId,
    /// Take it from a holder whose lease ran out, with what the store holds.
    pub(crate) take_over: bool,
    /// Hears of the node that is waited for.
    pub(crate) on_wait: Option<&'a dyn Fn(&str)>,
    /// The local journal, if there is one.
    pub(crate) journal: Option<&'a JournalView>,
    /// What else was allowed.
    pub(crate) consent: Consent,
    /// Length of a lease of which no record can be read.
    pub(crate) length_default: Duration,
}

/// The volume may be opened.
#[derive(Debug)]
pub(crate) struct Admitted {
    /// The newest version.
    pub(crate) manifest: Manifest,
    /// What becomes of the local journal.
    pub(crate) decision: Decision,
    pub(crate) survey: Survey,
    /// The journal that is given up by it, if one is.
    pub(crate) given_up: Option<SalvageRecord>,
}

/// How the wait for a holder ended.
enum Waited {
    /// Its lease was not renewed for its whole length; `dirty` is how much its journal held that no object did, if its
    /// last renewal says.
    StoodStill { dirty: Option<u64> },
    /// The volume was closed, or another opening has it.
    HolderChanged,
}

/// The newest record of a node's lease, as far as it can be read.
struct Seen {
    number: u64,
    record: Option<LeaseRecord>,
}

impl<'a> Claim<'a> {
    /// By somebody who has no journal of the volume, or does not ask what it holds.
    pub(crate) fn without_journal(
        (store, env): (&'a Store, &'a Env),
        volume: VolumeId,
        take_over: bool,
        length_default: Duration,
    ) -> Self {
        let (journal, consent) = (None, Consent::default());
        let on_wait = None;
        Self { store, env, volume, take_over, on_wait, journal, consent, length_default }
    }

    /// Decides what becomes of the local journal, and waits until the volume of `manifest` may be opened so. `sent` is
    /// the last write that a published checkpoint holds.
    ///
    /// # Errors
    /// [`LogError::JournalRefused`] where the journal must not be replayed and something would be lost without it;
    /// [`LogError::InUse`] while the holder renews its lease; [`LogError::Held`] when it does not, and nobody said to
    /// take over.
    pub(crate) async fn admit(
        &self,
        mut manifest: Manifest,
        sent: WriteMark,
    ) -> Result<Admitted, LogError> {
        loop {
            let (decision, survey) = self.decide(&manifest, sent).await?;
            let holder = match (decision.wait(), &manifest.holder) {
                (Wait::Nothing, _) | (_, None) => {
                    let given_up = salvage::given_up(&manifest, self.journal, &decision);
                    return Ok(Admitted { manifest, decision, survey, given_up });
                }
                (Wait::Lease | Wait::LeaseAndConsent, Some(holder)) => holder.clone(),
            };
            if let Some(on_wait) = self.on_wait {
                on_wait(&holder.name);
            }
            let waited = if weir_device::mutant("takeover_without_wait") {
                Waited::StoodStill { dirty: None }
            } else {
                self.wait_for_standstill(&holder, manifest.number).await?
            };
            let newest = manifests::newest(self.store, self.env, self.volume).await?;
            let changed = newest.holder.as_ref() != Some(&holder);
            manifest = newest;
            let dirty = match waited {
                Waited::StoodStill { dirty } if !changed => dirty,
                Waited::StoodStill { .. } | Waited::HolderChanged => continue,
            };
            // The holder may have owned sequences meanwhile.
            let (decision, survey) = self.decide(&manifest, sent).await?;
            let needs_consent = decision.wait() == Wait::LeaseAndConsent;
            if needs_consent && !self.take_over && manifest.takeover != Takeover::Auto {
                return Err(LogError::Held {
                    volume: self.volume,
                    holder: JournalId(holder.journal.0),
                    node: holder.name,
                    may_hold: may_hold(dirty),
                });
            }
            if needs_consent {
                tracing::warn!(
                    volume = %self.volume, holder = holder.name,
                    "taking the volume over with what the store holds"
                );
            }
            let given_up = salvage::given_up(&manifest, self.journal, &decision);
            return Ok(Admitted { manifest, decision, survey, given_up });
        }
    }

    async fn decide(
        &self,
        manifest: &Manifest,
        sent: WriteMark,
    ) -> Result<(Decision, Survey), LogError> {
        let survey = Survey::read((self.store, self.env), manifest, self.journal).await?;
        let decision = match self.journal {
            Some(journal) => judge::decide(journal, &survey.view(manifest, sent), self.consent),
            None => judge::decide_without_journal(manifest),
        };
        match decision {
            Decision::Refuse(refusal) => {
                Err(LogError::JournalRefused { volume: self.volume, refusal })
            }
            other => Ok((other, survey)),
        }
    }

    /// Waits until no renewal of the holder's run has come for the whole length of its lease, or until the volume has
    /// another holder than the one of manifest `version`: one that closes it does not have its lease waited for.
    async fn wait_for_standstill(
        &self,
        holder: &Holder,
        mut version: u64,
    ) -> Result<Waited, LogError> {
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
            tokio::time::sleep(LEASE_LOOK_PAUSE_MAX.min(length / LEASE_LOOKS_PER_LENGTH)).await;
            let looked_at = clock.boottime();
            let now = self.look(holder, Some(&seen)).await?;
            // After the renewals: the last one of a holder that closed the volume meanwhile is no sign that it has it.
            if self.has_other_holder(holder, &mut version).await? {
                return Ok(Waited::HolderChanged);
            }
            if now.number > seen.number {
                if is_of(&now, holder) {
                    return Err(LogError::InUse {
                        volume: self.volume,
                        node: holder.name.clone(),
                        lease_s: length.as_secs(),
                    });
                }
                // The node renews under another run now, so the holder's run will not be renewed again. When it was
                // renewed last is unknown, so the whole length is waited for once more.
                if is_of(&seen, holder) {
                    since = clock.boottime();
                    dirty = None;
                }
                seen = now;
            }
            if looked_at.saturating_sub(since) >= length {
                return Ok(Waited::StoodStill { dirty });
            }
        }
    }

    /// Whether the newest manifest names another holder, or none. It is read only where it is not `version`, the newest
    /// one so far.
    async fn has_other_holder(&self, holder: &Holder, version: &mut u64) -> Result<bool, LogError> {
        let prefix = Manifest::prefix(self.volume);
        let mut random = || self.env.random.next_u64();
        let list = || chain::numbers(self.store, &prefix);
        let listed = self.store.retry(&RetryPolicy::reads(), &mut random, None, list).await?;
        if listed.last() == Some(version) || weir_device::mutant("wait_on_a_closed_volume") {
            return Ok(false);
        }
        let newest = manifests::newest(self.store, self.env, self.volume).await?;
        *version = newest.number;
        Ok(newest.holder.as_ref() != Some(holder))
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
            if record.is_some() || attempt >= DAMAGED_ATTEMPTS_MAX {
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
                "acknowledged writes that are not in the store yet ({bytes} bytes when it last renewed its lease; what \
                 it took after that is not counted)"
            )
        }
        None => "acknowledged writes that are not in the store yet".to_owned(),
    }
}
