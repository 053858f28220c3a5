//! Trying again: exponential backoff with full jitter, in tokio's time, so that the simulation controls it.
//!
//! The clients of stores do not retry (see `remote`), so every attempt passes through here and is seen.

use std::future::Future;
use std::sync::Arc;
use std::time::Duration;

use tokio::time::Instant;
use tracing::{debug, info, warn};
use weir_device::with_causes;

use crate::StoreError;
use crate::limits::{
    READ_DEADLINE, RETRY_DELAY_FIRST, RETRY_DELAY_MAX, RETRY_WARNING_FIRST, RETRY_WARNING_INTERVAL,
};

/// Which errors are worth another attempt.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RetryScope {
    /// Those that may pass by themselves ([`StoreError::is_retryable`]).
    Transient,
    /// Those, and the store's lasting refusals ([`StoreError::is_standing`]): credentials may be renewed, a bucket may
    /// come back.
    Waiting,
    /// All but those of a request that is wrong ([`StoreError::is_hopeless`]): also a full store or refused
    /// credentials, which somebody may put right while we wait.
    Everything,
}

/// When to try again, and when to stop.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RetryPolicy {
    /// Upper bound of the first pause; it doubles with each further one.
    pub first_delay: Duration,
    /// Upper bound of all pauses.
    pub max_delay: Duration,
    /// How long to go on, unless the call gives a deadline of its own; for ever, if `None`.
    pub deadline: Option<Duration>,
    /// Which errors are retried.
    pub scope: RetryScope,
}

impl RetryPolicy {
    /// For the first request to a store: what may pass is retried, what somebody has to put right is told at once. Two
    /// minutes.
    #[must_use]
    pub fn opening() -> Self {
        Self { scope: RetryScope::Transient, ..Self::reads() }
    }

    /// For reads: somebody waits for them, so they end in an error some time. Two minutes.
    #[must_use]
    pub fn reads() -> Self {
        Self {
            first_delay: RETRY_DELAY_FIRST,
            max_delay: RETRY_DELAY_MAX,
            deadline: Some(READ_DEADLINE),
            scope: RetryScope::Waiting,
        }
    }

    /// For PUTs of acknowledged data: there is nowhere else to go with it, so it is tried for ever.
    #[must_use]
    pub fn forever() -> Self {
        Self { deadline: None, scope: RetryScope::Everything, ..Self::reads() }
    }

    fn covers(&self, error: &StoreError) -> bool {
        match self.scope {
            RetryScope::Transient => error.is_retryable(),
            RetryScope::Waiting => error.is_retryable() || error.is_standing(),
            RetryScope::Everything => !error.is_hopeless(),
        }
    }
}

/// Runs `operation` until it succeeds, fails with an error that `policy` does not cover, or the deadline (`deadline` if
/// given, else the policy's) has passed; the attempt that is running then is abandoned.
///
/// # Errors
/// The first error that is not covered, or [`StoreError::GaveUp`] with the last one.
pub async fn retry<T, Attempt>(
    policy: &RetryPolicy,
    random: &mut impl FnMut() -> u64,
    deadline: Option<Duration>,
    operation: impl FnMut() -> Attempt,
) -> Result<T, StoreError>
where
    Attempt: Future<Output = Result<T, StoreError>>,
{
    retry_noting(None, policy, random, deadline, operation, || ()).await
}

/// [`retry`], of what is asked of `store`, calling `note` before every attempt but the first.
pub(crate) async fn retry_noting<T, Attempt>(
    store: Option<&Arc<str>>,
    policy: &RetryPolicy,
    random: &mut impl FnMut() -> u64,
    deadline: Option<Duration>,
    mut operation: impl FnMut() -> Attempt,
    note: impl Fn(),
) -> Result<T, StoreError>
where
    Attempt: Future<Output = Result<T, StoreError>>,
{
    let started = Instant::now();
    let end = deadline.or(policy.deadline).and_then(|after| started.checked_add(after));
    let mut attempts = 0;
    let mut last: Option<StoreError> = None;
    let mut warnings = Warnings::default();
    let gave_up = |attempts, last: Option<StoreError>| StoreError::GaveUp {
        store: store.cloned(),
        attempts,
        elapsed: started.elapsed(),
        source: last.map(Box::new),
    };
    loop {
        attempts += 1;
        let result = match end {
            None => operation().await,
            Some(end) => match tokio::time::timeout_at(end, operation()).await {
                Ok(result) => result,
                Err(_) => return Err(gave_up(attempts, last)),
            },
        };
        let error = match result {
            Ok(value) => {
                warnings.end(attempts, started);
                return Ok(value);
            }
            Err(error) if policy.covers(&error) => error,
            Err(error) => return Err(error),
        };
        let pause = pause_after(policy, attempts, random());
        let now = Instant::now();
        if end.is_some_and(|end| now + pause >= end) {
            return Err(gave_up(attempts, Some(error)));
        }
        warnings.note(&error, attempts, pause, started, now);
        last = Some(error);
        tokio::time::sleep(pause).await;
        note();
    }
}

/// Full jitter: anything from nothing to the bound, so that clients that failed together do not return together.
fn pause_after(policy: &RetryPolicy, attempts: u64, random: u64) -> Duration {
    let doublings = u32::try_from(attempts.saturating_sub(1)).unwrap_or(u32::MAX);
    let factor = 2_u32.checked_pow(doublings).unwrap_or(u32::MAX);
    let bound = policy.first_delay.saturating_mul(factor).min(policy.max_delay);
    let bound_ns = u64::try_from(bound.as_nanos()).unwrap_or(u64::MAX - 1);
    Duration::from_nanos(random % bound_ns.saturating_add(1).max(1))
}

/// Says after some seconds that an operation still fails, and then once a minute; at once, if it will not pass by
/// itself. Says as well when that is over.
#[derive(Default)]
struct Warnings {
    last: Option<Instant>,
}

impl Warnings {
    fn end(&self, attempts: u64, started: Instant) {
        if self.last.is_some() {
            let failed_ms = u64::try_from(started.elapsed().as_millis()).unwrap_or(u64::MAX);
            info!(attempts, failed_ms, "the store answers again");
        }
    }

    fn note(
        &mut self,
        error: &StoreError,
        attempts: u64,
        pause: Duration,
        started: Instant,
        now: Instant,
    ) {
        let due = match self.last {
            None => !error.is_retryable() || now - started >= RETRY_WARNING_FIRST,
            Some(last) => now - last >= RETRY_WARNING_INTERVAL,
        };
        let failing_ms = u64::try_from((now - started).as_millis()).unwrap_or(u64::MAX);
        let error = with_causes(error);
        if due {
            self.last = Some(now);
            warn!(error, attempts, failing_ms, "the store keeps failing; trying again");
        } else {
            debug!(error, attempts, ?pause, "the store failed; trying again");
        }
    }
}

#[cfg(test)]
mod tests;
