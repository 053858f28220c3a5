//! One suite for every kind of store, bare and decorated: what the rest of Weir relies on.

mod fake_s3;

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use weir_device::ErrorKind;
use weir_store::{
    Faults, KEY_BYTES_MAX, Listed, Put, RetryPolicy, Store, StoreCounters, StoreError,
};

/// Keys that sort differently by directory and by byte, and one as long as a key may be.
fn keys() -> Vec<String> {
    let long = format!("{}/{}/z", "l".repeat(255), "m".repeat(254));
    assert_eq!(long.len(), KEY_BYTES_MAX);
    let plain = ["a/b/1", "a/b/2", "a/b-1", "a/b.1", "a/c", "a0", "names/v=1@x+y_z", "b/c/d/e/f/g"];
    plain.into_iter().map(str::to_owned).chain([long]).collect()
}

fn body(seed: usize) -> Vec<Bytes> {
    let parts =
        [vec![], vec![u8::try_from(seed % 251).expect("small"); 100 + seed], b"end".to_vec()];
    parts.into_iter().map(Bytes::from).collect()
}

fn joined(parts: &[Bytes]) -> Vec<u8> {
    parts.concat()
}

async fn suite(store: &Store) {
    empty(store).await;
    create_read_list_delete(store).await;
    ranges(store).await;
    many_parts(store).await;
    illegal_requests(store).await;
    one_winner(store).await;
}

async fn empty(store: &Store) {
    assert_eq!(store.list("", None).await.expect("list"), []);
    assert_eq!(store.list("no/such/directory/", None).await.expect("list"), []);
    for error in [
        store.get("k").await.expect_err("no object"),
        store.get_range("no/such", 0..1).await.expect_err("no object"),
        store.get_head("no/such/directory", 10).await.expect_err("no object"),
    ] {
        assert!(matches!(error, StoreError::NotFound { .. }), "{error}");
        assert_eq!(error.kind(), ErrorKind::NotFound);
    }
    store.delete("k").await.expect("gone already");
    store.delete("no/such/directory/k").await.expect("gone already");
}

async fn create_read_list_delete(store: &Store) {
    let mut model = BTreeMap::new();
    for (seed, key) in keys().into_iter().enumerate() {
        let parts = body(seed);
        let created = store.put_create(&key, parts.clone()).await.expect("put");
        assert_eq!(created, Put::Created, "{key}");
        let again = store.put_create(&key, vec![Bytes::from_static(b"other")]).await.expect("put");
        assert_eq!(again, Put::Exists, "{key}");
        assert_eq!(store.get(&key).await.expect("get"), joined(&parts), "{key}");
        model.insert(key, joined(&parts));
    }
    for prefix in ["", "a/", "a/b/", "b/", "b/c/d/", "a/b/1/", "z/"] {
        check_listing(store, &model, prefix, None).await;
        for after in model.keys().map(String::as_str).chain(["a", "a/b", "a/b/0", "zz", "A"]) {
            check_listing(store, &model, prefix, Some(after)).await;
        }
    }
    for key in model.keys().cloned().collect::<Vec<_>>() {
        store.delete(&key).await.expect("delete");
        store.delete(&key).await.expect("delete twice");
        store.get(&key).await.expect_err("deleted");
        model.remove(&key);
        check_listing(store, &model, "", None).await;
    }
    let reborn = store.put_create("a/b/1", body(3)).await.expect("put");
    assert_eq!(reborn, Put::Created, "a deleted key is free");
    store.delete("a/b/1").await.expect("delete");
}

async fn check_listing(
    store: &Store,
    model: &BTreeMap<String, Vec<u8>>,
    prefix: &str,
    after: Option<&str>,
) {
    let expected: Vec<Listed> = model
        .iter()
        .filter(|(key, _)| {
            key.starts_with(prefix) && after.is_none_or(|after| key.as_str() > after)
        })
        .map(|(key, body)| Listed { key: key.clone(), size: body.len() as u64 })
        .collect();
    let listed = store.list(prefix, after).await.expect("list");
    assert_eq!(listed, expected, "prefix {prefix:?} after {after:?}");
}

async fn ranges(store: &Store) {
    let content: Vec<u8> = (0..1000_u32).map(|i| (i % 251).to_le_bytes()[0]).collect();
    store.put_create("r/o", vec![Bytes::from(content.clone())]).await.expect("put");
    store.put_create("r/empty", vec![]).await.expect("put");
    for range in [0..1_u64, 0..1000, 999..1000, 500..700, 7..7] {
        let index = |at: u64| usize::try_from(at).expect("small");
        let wanted = &content[index(range.start)..index(range.end)];
        assert_eq!(store.get_range("r/o", range).await.expect("range"), wanted);
    }
    for (range, got) in [(0..1001_u64, 1000_u64), (999..1003, 1), (1000..1001, 0), (5000..5001, 0)]
    {
        let error = store.get_range("r/o", range.clone()).await.expect_err("past the end");
        let StoreError::Short { start, expected, got: returned, object_bytes, .. } = &error else {
            panic!("{error}");
        };
        let found = (*start, *expected, *returned, *object_bytes);
        assert_eq!(found, (range.start, range.end - range.start, got, 1000));
        assert_eq!(error.kind(), ErrorKind::Corrupt, "no retry makes an object longer");
    }
    assert_eq!(store.get("r/empty").await.expect("get"), b""[..]);
    let error = store.get_range("r/empty", 0..1).await.expect_err("empty");
    assert!(matches!(error, StoreError::Short { got: 0, object_bytes: 0, .. }), "{error}");
    for (key, bytes_max, wanted) in [
        ("r/o", 10, &content[..10]),
        ("r/o", 1000, &content[..]),
        ("r/o", 4096, &content[..]),
        ("r/o", 0, &[][..]),
        ("r/empty", 4096, &[][..]),
        ("r/empty", 0, &[][..]),
    ] {
        let (head, size) = store.get_head(key, bytes_max).await.expect("head");
        assert_eq!(head, wanted, "{key} {bytes_max}");
        assert_eq!(size, if key == "r/o" { 1000 } else { 0 });
    }
    store.delete("r/o").await.expect("delete");
    store.delete("r/empty").await.expect("delete");
}

/// More parts than one `writev` takes, with empty ones among them.
async fn many_parts(store: &Store) {
    let part = |i: usize| Bytes::from(vec![i.to_le_bytes()[0]; i % 7]);
    let parts: Vec<Bytes> = (0..3000).map(part).collect();
    store.put_create("many", parts.clone()).await.expect("put");
    assert_eq!(store.get("many").await.expect("get"), joined(&parts));
    store.delete("many").await.expect("delete");
}

async fn illegal_requests(store: &Store) {
    for key in ["", "/a", "../a", "a/../b", ".tmp/x", "a b", "a/", "a//b"] {
        let errors = [
            store.put_create(key, vec![]).await.expect_err("illegal"),
            store.get(key).await.expect_err("illegal"),
            store.get_range(key, 0..1).await.expect_err("illegal"),
            store.get_head(key, 1).await.expect_err("illegal"),
            store.delete(key).await.expect_err("illegal"),
        ];
        for error in errors {
            assert!(matches!(error, StoreError::InvalidKey { .. }), "{key:?}: {error}");
            assert_eq!(error.kind(), ErrorKind::Invalid);
        }
    }
    for prefix in ["a", "/", "../", ".tmp/"] {
        let error = store.list(prefix, None).await.expect_err("illegal");
        assert!(matches!(error, StoreError::InvalidKey { .. }), "{prefix:?}: {error}");
    }
    #[expect(clippy::reversed_empty_ranges, reason = "that is what is tested")]
    let error = store.get_range("a", 2..1).await.expect_err("reversed");
    assert!(matches!(error, StoreError::InvalidRange { .. }), "{error}");
}

async fn one_winner(store: &Store) {
    for round in 0..8 {
        let key = format!("race/{round}");
        let racers: Vec<_> = (0..16_u8)
            .map(|racer| {
                let (store, key) = (store.clone(), key.clone());
                tokio::spawn(async move {
                    (racer, store.put_create(&key, vec![Bytes::from(vec![racer; 5000])]).await)
                })
            })
            .collect();
        let mut winners = Vec::new();
        for racer in racers {
            let (racer, put) = racer.await.expect("no panic");
            if put.expect("put") == Put::Created {
                winners.push(racer);
            }
        }
        let [winner] = winners[..] else { panic!("round {round}: winners {winners:?}") };
        assert_eq!(store.get(&key).await.expect("get"), vec![winner; 5000]);
        store.delete(&key).await.expect("delete");
    }
}

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

/// A real service, where `tests/clients/70-s3.sh` has started one: more objects than a page of a listing has.
#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn s3_of_the_environment() {
    let Ok(url) = std::env::var("WEIR_STORE_CONFORMANCE_URL") else { return };
    let store = Store::open(&url).expect("open");
    suite(&store).await;
    many_objects(&store, 1100).await;
}

async fn many_objects(store: &Store, count: usize) {
    let key = |number: usize| format!("many/{number:05}");
    let put = async |number: usize| store.put_create(&key(number), body(number % 7)).await;
    let numbers: Vec<usize> = (0..count).collect();
    for some in numbers.chunks(32) {
        for put in futures_util::future::join_all(some.iter().map(|n| put(*n))).await {
            assert_eq!(put.expect("put"), Put::Created);
        }
    }
    let listed = store.list("many/", None).await.expect("list");
    assert_eq!(listed.iter().map(|o| o.key.clone()).collect::<Vec<_>>(), {
        numbers.iter().map(|n| key(*n)).collect::<Vec<_>>()
    });
    let tail = store.list("many/", Some(&key(count - 3))).await.expect("list");
    assert_eq!(tail.len(), 2);
    for some in numbers.chunks(32) {
        let deletes = some.iter().map(|n| async { store.delete(&key(*n)).await });
        for deleted in futures_util::future::join_all(deletes).await {
            deleted.expect("delete");
        }
    }
    assert_eq!(store.list("", None).await.expect("list"), []);
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
