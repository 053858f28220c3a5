//! Whether a store keeps the promises that volumes rest on: found out once, remembered in the store itself.
//!
//! Everything about one writer rests on one operation, the create-only PUT. Stores that claim to speak S3 exist that
//! ignore its condition, or look first and create then, so that several racing writers are told that they won. No
//! documentation says so; only trying does.

mod checks;
mod record;

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use serde::{Deserialize, Serialize};
use tracing::{debug, warn};
use weir_device::with_causes;

use self::checks::Checker;
pub use self::record::{ProbeRecord, ProbeRecordError};
use crate::limits::{LOOK_DEADLINE, PROBE_RECORD_BYTES_MAX};
use crate::{Put, RetryPolicy, Store, StoreError};

/// Below this prefix a probe works and leaves its record.
const PREFIX: &str = "weir-probe/";

/// Time for the deletion of an object that only showed that the store takes one.
const TAKEN_DELETE_MAX: Duration = Duration::from_secs(1);

/// What an opening is going to do with a store.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Access {
    /// Only look: it has to be there, and let us in.
    Read,
    /// Write as well: it has to keep writers apart.
    Write,
}

/// What a store is good for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Verdict {
    /// Everything.
    Usable,
    /// It keeps what it is given, and does not tell racing writers apart: for one process alone.
    SingleWriter,
    /// Nothing: it would lose data.
    Unusable,
}

/// One thing that was tried.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct ProbeCheck {
    /// Its name, stable.
    pub name: &'static str,
    /// Whether the store does it right.
    pub passed: bool,
    /// What was tried, or what went wrong.
    pub detail: String,
    /// How long it took, in milliseconds.
    pub time_ms: u64,
}

/// What a probe found.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct ProbeReport {
    /// URL of the store.
    pub url: String,
    /// What it is good for.
    pub verdict: Verdict,
    /// Everything that was tried, in order.
    pub checks: Vec<ProbeCheck>,
    /// Objects of the probe that could not be deleted again.
    pub left_behind: u64,
}

impl ProbeReport {
    /// What the store does wrong, in one line; `None`, if nothing.
    #[must_use]
    pub fn finding(&self) -> Option<String> {
        let failed = self.checks.iter().filter(|check| !check.passed);
        let found: Vec<_> = failed.map(|check| check.detail.as_str()).collect();
        (!found.is_empty()).then(|| found.join("; "))
    }
}

impl Store {
    /// Tries the store out: some hundred small requests below a random key, which are deleted again. Takes seconds.
    /// `random` makes the keys and the pauses between attempts.
    ///
    /// # Errors
    /// When the store cannot be asked: it fails, or refuses us. What it does wrong is no error but in the report.
    pub async fn probe(
        &self,
        random: &mut (impl FnMut() -> u64 + Send),
    ) -> Result<ProbeReport, StoreError> {
        let root = format!("{PREFIX}run-{:016x}{:016x}/", random(), random());
        self.retry(&RetryPolicy::opening(), random, None, || self.list(&root, None)).await?;
        let mut checker = Checker::new(self, root, random());
        let outcome = checker.run().await;
        let left_behind = checker.clean_up().await;
        outcome?;
        let checks = checker.into_checks();
        let verdict = verdict_of(&checks);
        Ok(ProbeReport { url: self.url().to_owned(), verdict, checks, left_behind })
    }

    /// Keeps the result of a probe in the store, so that openings need not repeat it. Unless the store is good for
    /// nothing: then what is there is removed. Stores of this program need no record.
    ///
    /// # Errors
    /// When the store fails.
    pub async fn remember(
        &self,
        report: &ProbeReport,
        random: &mut (impl FnMut() -> u64 + Send),
    ) -> Result<(), StoreError> {
        if self.is_own() {
            return Ok(());
        }
        let record = ProbeRecord::new(self.identity(), report.verdict, report.finding());
        let key = self.record_key();
        let policy = RetryPolicy::opening();
        match self.record(random).await? {
            Some(there) if there == record => return Ok(()),
            // A record that nobody can read is in the way as well.
            _ => self.retry(&policy, random, None, || self.delete(&key)).await?,
        }
        if report.verdict == Verdict::Unusable {
            return Ok(());
        }
        let body = bytes::Bytes::from(record.encode());
        let put = || self.put_create(&key, vec![body.clone()]);
        match self.retry(&policy, random, None, put).await? {
            // Or somebody else found the same at the same time.
            Put::Created | Put::Exists => Ok(()),
        }
    }

    /// What stands at the beginning of every use of a store over the network: whether it is there, lets us in, and,
    /// for writing, keeps writers apart. The last is probed the first time and remembered in the store. Stores of this
    /// program (`file://`, `memory://`) are admitted without a look.
    ///
    /// What may pass is retried for two minutes, for a look at most half a minute; wrong credentials or a missing
    /// bucket are told at once.
    ///
    /// # Errors
    /// [`StoreError::Refused`] with the way out; [`StoreError::Unsafe`] if the store must not be used like this; what
    /// else the store says.
    pub async fn admit(
        &self,
        access: Access,
        random: &mut (impl FnMut() -> u64 + Send),
    ) -> Result<(), StoreError> {
        if self.is_own() {
            return Ok(());
        }
        let deadline = (access == Access::Read).then_some(LOOK_DEADLINE);
        let there = self.is_remembered(random, deadline).await?;
        if access == Access::Read {
            return Ok(());
        }
        let record = if there { self.record(random).await? } else { None };
        let (verdict, finding) = match record {
            Some(record) => (record.verdict, record.finding),
            None => {
                let report = self.probe(random).await?;
                self.remember(&report, random).await?;
                (report.verdict, report.finding())
            }
        };
        self.judge(verdict, finding.as_deref().unwrap_or("it failed its probe"))
    }

    /// Checks that the store takes an object now: puts one that means nothing, for `limit` at most, and deletes it
    /// again. It stays where deletions are denied or take longer than a second.
    ///
    /// # Errors
    /// What the store says; [`StoreError::GaveUp`] with what it said last.
    pub async fn takes_objects(
        &self,
        random: &mut impl FnMut() -> u64,
        limit: Duration,
    ) -> Result<(), StoreError> {
        let key = format!("{PREFIX}taken-{:016x}{:016x}", random(), random());
        let put = || self.put_create(&key, vec![bytes::Bytes::from_static(b"taken")]);
        self.retry(&RetryPolicy::opening(), random, Some(limit), put).await?;
        // Whoever asked goes on without it.
        let deleted = tokio::time::timeout(TAKEN_DELETE_MAX, self.delete(&key)).await;
        if !matches!(deleted, Ok(Ok(()))) {
            debug!(key, "an object that means nothing stays in the store");
        }
        Ok(())
    }

    /// Whether a store with this verdict may be written to as it is configured.
    ///
    /// # Errors
    /// [`StoreError::Unsafe`] if not.
    fn judge(&self, verdict: Verdict, finding: &str) -> Result<(), StoreError> {
        let reason = match verdict {
            Verdict::Usable => return Ok(()),
            Verdict::SingleWriter if self.is_single_writer() => {
                let url = self.url();
                warn!(
                    url,
                    finding, "this store does not keep two writers apart; see that there is one"
                );
                return Ok(());
            }
            Verdict::SingleWriter => format!(
                "it does not keep two writers of one volume apart ({finding}): use another store, or pass \
                 --single-writer if never more than one process writes to it; `weir store probe` looks again"
            ),
            Verdict::Unusable => format!("it would lose data ({finding}): use another store"),
        };
        Err(StoreError::Unsafe { url: self.url().into(), reason })
    }

    /// Whether a probe left a record. Also the first request of an opening: a listing, since only that tells a missing
    /// object from a missing bucket in every store.
    async fn is_remembered(
        &self,
        random: &mut (impl FnMut() -> u64 + Send),
        deadline: Option<Duration>,
    ) -> Result<bool, StoreError> {
        let said = AtomicBool::new(false);
        let list = async || {
            let listed = self.list(PREFIX, None).await;
            // Somebody may be sitting there, and wonder what takes so long.
            if let Err(error) = &listed
                && error.is_retryable()
                && !said.swap(true, Ordering::Relaxed)
            {
                let error = with_causes(error);
                warn!(error, "the store does not answer yet; trying again");
            }
            listed
        };
        let listed = self.retry(&RetryPolicy::opening(), random, deadline, list).await?;
        let key = self.record_key();
        Ok(listed.iter().any(|object| object.key == key))
    }

    /// The record of the last probe, if there is one, of this very store, that can be believed.
    async fn record(
        &self,
        random: &mut (impl FnMut() -> u64 + Send),
    ) -> Result<Option<ProbeRecord>, StoreError> {
        let key = self.record_key();
        let get = || self.get_head(&key, PROBE_RECORD_BYTES_MAX);
        let bytes = match self.retry(&RetryPolicy::opening(), random, None, get).await {
            Err(StoreError::NotFound { .. }) => return Ok(None),
            got => got?.0,
        };
        Ok(ProbeRecord::decode(&bytes).ok().filter(|record| record.store == self.identity()))
    }

    /// Carries the store's identity: a copy of the bucket on another service is another store.
    fn record_key(&self) -> String {
        format!("{PREFIX}v1-{:016x}.json", record::fingerprint(&self.identity()))
    }
}

/// Where the one who is about to create the object `key`, and nobody else, may try something out.
pub(crate) fn unused_prefix(key: &str) -> String {
    format!("{PREFIX}run-{:032x}/", record::fingerprint(key))
}

fn verdict_of(checks: &[ProbeCheck]) -> Verdict {
    let failed = |check: &&ProbeCheck| !check.passed;
    let about_writers = |check: &ProbeCheck| matches!(check.name, checks::CREATE | checks::RACE);
    match checks.iter().find(failed) {
        None => Verdict::Usable,
        Some(_) if checks.iter().filter(failed).all(about_writers) => Verdict::SingleWriter,
        Some(_) => Verdict::Unusable,
    }
}

#[cfg(test)]
mod tests;
