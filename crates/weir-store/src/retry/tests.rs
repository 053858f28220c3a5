use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use super::*;
use crate::Place;

fn place() -> Place {
    Place::new(&Arc::from("memory://"), "k")
}

fn unavailable() -> StoreError {
    StoreError::Unavailable { place: place(), source: Arc::new(std::fmt::Error) }
}

fn denied() -> StoreError {
    StoreError::Denied { place: place(), path: None, source: Arc::new(std::fmt::Error) }
}

/// An operation that fails `failures` times, and counts its attempts.
async fn failing(count: &AtomicU64, failures: u64, error: StoreError) -> Result<u64, StoreError> {
    let attempt = count.fetch_add(1, Ordering::Relaxed) + 1;
    if attempt > failures { Ok(attempt) } else { Err(error) }
}

#[tokio::test(start_paused = true)]
async fn pauses_double_up_to_the_limit() {
    let policy = RetryPolicy::forever();
    let count = AtomicU64::new(0);
    let started = Instant::now();
    // The largest random number that falls on the bound itself is bound modulo bound + 1.
    let pauses_ms = [100_u64, 200, 400, 800, 1600, 3200, 6400, 10_000, 10_000];
    let mut pauses = pauses_ms.iter().map(|ms| ms * 1_000_000);
    let mut random = || pauses.next().expect("one number per pause");
    let attempts = retry(&policy, &mut random, None, || failing(&count, 9, unavailable())).await;
    assert_eq!(attempts.expect("the tenth attempt succeeds"), 10);
    assert_eq!(started.elapsed(), Duration::from_millis(pauses_ms.iter().sum()));
}

#[test]
fn pauses_are_spread_over_the_whole_range() {
    let policy = RetryPolicy::reads();
    let bound_ns = 100_000_000;
    assert_eq!(pause_after(&policy, 1, 0), Duration::ZERO);
    assert_eq!(pause_after(&policy, 1, bound_ns), Duration::from_millis(100));
    assert_eq!(pause_after(&policy, 1, bound_ns + 1), Duration::ZERO);
    for attempts in [1, 2, 7, 8, 40, u64::MAX] {
        for random in [0, 1, u64::MAX / 3, u64::MAX] {
            assert!(pause_after(&policy, attempts, random) <= policy.max_delay);
        }
    }
    let none = RetryPolicy { max_delay: Duration::ZERO, ..policy };
    assert_eq!(pause_after(&none, 3, u64::MAX), Duration::ZERO);
}

#[tokio::test(start_paused = true)]
async fn reads_give_up_at_the_deadline_and_keep_the_cause() {
    let count = AtomicU64::new(0);
    let started = Instant::now();
    let mut random = || 0x1234_5678_9abc_def0;
    let operation = || failing(&count, u64::MAX, unavailable());
    let error = retry(&RetryPolicy::reads(), &mut random, None, operation)
        .await
        .expect_err("it never works");
    let StoreError::GaveUp { attempts, elapsed, source, .. } = &error else { panic!("{error}") };
    assert_eq!(*attempts, count.load(Ordering::Relaxed));
    assert!(*attempts > 5, "{attempts}");
    assert_eq!(*elapsed, started.elapsed());
    assert!(*elapsed <= Duration::from_secs(120) && *elapsed >= Duration::from_secs(110));
    let last = source.as_deref().expect("an attempt failed");
    assert!(matches!(last, StoreError::Unavailable { .. }));
    assert!(
        error.to_string().ends_with(&format!(": {}", weir_device::with_causes(last))),
        "{error}"
    );
    assert_eq!(error.kind(), weir_device::ErrorKind::Unavailable);
}

#[tokio::test(start_paused = true)]
async fn what_failed_before_is_told_when_the_deadline_ends_a_hanging_attempt() {
    let count = AtomicU64::new(0);
    let operation = async || match count.fetch_add(1, Ordering::Relaxed) {
        0 => Err(unavailable()),
        _ => std::future::pending::<Result<(), _>>().await,
    };
    let deadline = Some(Duration::from_secs(5));
    let ended = retry(&RetryPolicy::reads(), &mut || 0, deadline, operation).await;
    let Err(StoreError::GaveUp { attempts: 2, source, .. }) = ended else { panic!("{ended:?}") };
    assert!(matches!(source.as_deref(), Some(StoreError::Unavailable { .. })), "{source:?}");
}

#[tokio::test(start_paused = true)]
async fn the_deadline_of_the_call_wins_and_cuts_off_a_hanging_attempt() {
    let started = Instant::now();
    let deadline = Some(Duration::from_secs(5));
    let result: Result<(), _> =
        retry(&RetryPolicy::reads(), &mut || 0, deadline, std::future::pending).await;
    let error = result.expect_err("it hangs");
    assert!(matches!(error, StoreError::GaveUp { attempts: 1, source: None, .. }), "{error}");
    assert_eq!(error.to_string(), "gave up after 1 attempt in 5.0 s");
    assert_eq!(started.elapsed(), Duration::from_secs(5));
}

#[tokio::test(start_paused = true)]
async fn a_store_that_does_not_answer_is_named() {
    let store = crate::Store::open("memory://").expect("a store");
    let deadline = Some(Duration::from_secs(30));
    let hangs = std::future::pending::<Result<(), _>>;
    let ended = store.retry(&RetryPolicy::reads(), &mut || 0, deadline, hangs).await;
    let error = ended.expect_err("it hangs").to_string();
    assert_eq!(error, format!("store {} did not answer in 30.0 s", store.url()));
}

#[tokio::test(start_paused = true)]
async fn reads_do_not_retry_what_does_not_pass_by_itself() {
    for error in [denied(), StoreError::NotFound { place: place() }] {
        let count = AtomicU64::new(0);
        let operation = || failing(&count, 1, error.clone());
        let result = retry(&RetryPolicy::reads(), &mut || 0, None, operation).await;
        assert_eq!(result.expect_err("not retried").kind(), error.kind());
        assert_eq!(count.load(Ordering::Relaxed), 1);
    }
}

#[tokio::test(start_paused = true)]
async fn puts_outlast_refused_credentials_but_not_a_wrong_request() {
    let count = AtomicU64::new(0);
    let mut random = || u64::MAX;
    let policy = RetryPolicy::forever();
    let operation = || failing(&count, 5000, denied());
    assert_eq!(retry(&policy, &mut random, None, operation).await.expect("in the end"), 5001);

    let count = AtomicU64::new(0);
    let wrong = StoreError::InvalidKey { place: place(), reason: "" };
    let operation = || failing(&count, 1, wrong.clone());
    retry(&policy, &mut random, None, operation).await.expect_err("wrong for ever");
    assert_eq!(count.load(Ordering::Relaxed), 1);
}
