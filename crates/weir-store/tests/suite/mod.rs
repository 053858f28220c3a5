//! What every kind of store must do.

use std::collections::BTreeMap;

use bytes::Bytes;
use weir_device::ErrorKind;
use weir_store::{KEY_BYTES_MAX, Listed, Put, Store, StoreError};

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

pub(crate) async fn suite(store: &Store) {
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

/// Puts, lists and deletes `count` objects: more than a page of a listing has, where `count` is large.
pub(crate) async fn many_objects(store: &Store, count: usize) {
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
