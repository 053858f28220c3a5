//! One suite for every kind of store, bare and decorated: what the rest of Weir relies on.

mod fake_s3;
mod suite;

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use weir_store::{Faults, Put, RetryPolicy, Store, StoreCounters};

use self::suite::{many_objects, suite};

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn memory() {
    suite(&Store::open("memory://").expect("open")).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn local_directory() {
    let directory = tempfile::tempdir().expect("temporary directory");
    let url = format!("file://{}/new/store", directory.path().display());
    suite(&Store::open(&url).expect("open")).await;
    suite_after_reopen(&url).await;
}

async fn suite_after_reopen(url: &str) {
    let store = Store::open(url).expect("open again");
    assert_eq!(store.list("", None).await.expect("list"), [], "nothing but objects is listed");
    suite(&store).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn object_store_in_memory() {
    let inner = Arc::new(object_store::memory::InMemory::new());
    suite(&Store::from_object_store(inner, "test://memory".to_owned())).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn object_store_in_a_directory() {
    let directory = tempfile::tempdir().expect("temporary directory");
    let inner = object_store::local::LocalFileSystem::new_with_prefix(directory.path());
    let inner = Arc::new(inner.expect("open").with_fsync(true));
    suite(&Store::from_object_store(inner, "test://directory".to_owned())).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn s3() {
    let fake = fake_s3::FakeS3::start().await;
    for url in ["s3://bucket", "s3://bucket/a/prefix"] {
        let store = Store::open_with(url, &fake.options()).expect("open");
        suite(&store).await;
        many_objects(&store, 40).await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn decorated_stores_without_faults() {
    let memory = Store::open("memory://").expect("open");
    let directory = tempfile::tempdir().expect("temporary directory");
    let url = format!("file://{}", directory.path().display());
    for store in [memory, Store::open(&url).expect("open")] {
        let faults = Faults::new(0);
        suite(&store.with_faults(faults.clone())).await;
        assert_eq!(faults.counts().iter().map(|(_, count)| count).sum::<u64>(), 0);
    }
}

/// Time passing at the store changes no answer.
#[tokio::test(start_paused = true)]
async fn a_slow_store() {
    let faults = Faults::new(0);
    let latency = Duration::from_millis(1)..=Duration::from_secs(20);
    faults.change(|plan| plan.latency = latency);
    suite(&Store::open("memory://").expect("open").with_faults(faults)).await;
}

#[tokio::test]
async fn a_named_memory_store_is_shared_and_others_are_not() {
    let put = async |url| {
        let store = Store::open(url).expect("open");
        store.put_create("k", vec![]).await.expect("put")
    };
    assert_eq!(put("memory://one").await, Put::Created);
    assert_eq!(put("memory://one").await, Put::Exists);
    assert_eq!(put("memory://two").await, Put::Created);
    assert_eq!(put("memory://").await, Put::Created);
    assert_eq!(put("memory://").await, Put::Created);
}

#[tokio::test]
async fn counters_count_attempts_bytes_and_failures() {
    let store = Store::open("memory://").expect("open");
    store.put_create("k", vec![Bytes::from_static(b"12345")]).await.expect("put");
    store.put_create("k", vec![Bytes::from_static(b"67")]).await.expect("exists");
    store.get_range("k", 1..4).await.expect("get");
    store.get_range("k", 4..8).await.expect_err("short");
    store.get("none").await.expect_err("missing, which is an answer");
    store.list("", None).await.expect("list");
    store.delete("k").await.expect("delete");
    let expected = StoreCounters {
        puts: 2,
        gets: 3,
        lists: 1,
        deletes: 1,
        bytes_up: 5,
        bytes_down: 4,
        failures: 1,
        retries: 0,
        upload_wait_ms: 0,
    };
    assert_eq!(store.counters(), expected);
}

/// The worker threads run these futures.
#[test]
fn futures_are_send() {
    fn check(_: impl Send) {}
    let store = Store::open("memory://").expect("open");
    check(store.put_create("k", vec![]));
    check(store.get_range("k", 0..1));
    check(store.list("", None));
    let policy = RetryPolicy::forever();
    let mut random = || 0;
    check(store.retry(&policy, &mut random, None, || store.put_create("k", vec![])));
    check(weir_store::retry(&policy, &mut || 0, None, || store.delete("k")));
}
