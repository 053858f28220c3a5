//! `s3://` stores against a service that says what real ones say.

mod fake_s3;

use std::time::Duration;

use bytes::Bytes;
use fake_s3::{Answer, FakeS3};
use weir_device::ErrorKind;
use weir_store::{
    Access, Put, Refusal, RetryPolicy, RetryScope, S3Options, Store, StoreError, StoreOptions,
};

fn open(fake: &FakeS3) -> Store {
    Store::open_with("s3://bucket/some/prefix", &fake.options()).expect("open")
}

async fn put(store: &Store, key: &str) -> Result<Put, StoreError> {
    store.put_create(key, vec![Bytes::from_static(b"bo"), Bytes::from_static(b"dy")]).await
}

fn refusal(error: &StoreError) -> &Refusal {
    match error {
        StoreError::Refused { refusal, .. } => refusal,
        other => panic!("{other:?}"),
    }
}

#[tokio::test]
async fn keys_lie_below_the_prefix_and_puts_are_conditional() {
    let fake = FakeS3::start().await;
    let store = open(&fake);
    assert_eq!(put(&store, "a/b").await.expect("put"), Put::Created);
    assert_eq!(put(&store, "a/b").await.expect("put"), Put::Exists);
    assert_eq!(fake.keys(), ["some/prefix/a/b"]);
    let requests = fake.requests();
    assert_eq!(requests.len(), 2, "one request for each PUT");
    for request in requests {
        assert_eq!(request.path, "/bucket/some/prefix/a/b");
        assert_eq!(request.headers.get("if-none-match").map(String::as_str), Some("*"));
        assert!(!request.headers.contains_key("x-amz-storage-class"));
        assert_eq!(request.body, b"body");
    }
    let listed = store.list("", None).await.expect("list");
    assert_eq!(listed.iter().map(|object| object.key.as_str()).collect::<Vec<_>>(), ["a/b"]);
}

#[tokio::test]
async fn long_listings_come_in_pages_and_start_where_they_should() {
    let fake = FakeS3::start().await;
    let store = open(&fake);
    for number in 0..30 {
        put(&store, &format!("log/{number:04}")).await.expect("put");
    }
    put(&Store::open_with("s3://bucket/some", &fake.options()).expect("open"), "prefixed/x")
        .await
        .expect("put");
    assert_eq!(store.list("log/", None).await.expect("list").len(), 30);
    let before = fake.requests().len();
    let tail = store.list("log/", Some("log/0026")).await.expect("list");
    assert_eq!(tail.len(), 3);
    assert_eq!(fake.requests().len(), before + 1, "the store was asked to start there");
    assert_eq!(store.list("", None).await.expect("list").len(), 30, "nothing of a neighbour");
}

#[tokio::test]
async fn lasting_refusals_are_told_apart_and_say_the_way_out() {
    for (status, code, expected, way_out) in [
        (403, "InvalidAccessKeyId", Refusal::UnknownKey, "AWS_ACCESS_KEY_ID"),
        (403, "SignatureDoesNotMatch", Refusal::WrongSecret, "AWS_SECRET_ACCESS_KEY"),
        (400, "ExpiredToken", Refusal::ExpiredToken, "new credentials"),
        (403, "AccessDenied", Refusal::NotPermitted, "permissions"),
        (400, "AuthorizationHeaderMalformed", Refusal::OtherRegion { region: None }, "AWS_REGION"),
        (400, "InvalidStorageClass", Refusal::StorageClass, "STORAGE_CLASS"),
    ] {
        let fake = FakeS3::start().await;
        let store = open(&fake);
        fake.prepare(std::iter::repeat_n(Answer::error(status, code), 4));
        let errors = [
            put(&store, "k").await.expect_err(code),
            store.get("k").await.expect_err(code),
            store.list("", None).await.expect_err(code),
            store.delete("k").await.expect_err(code),
        ];
        for error in errors {
            assert_eq!(refusal(&error), &expected, "{code}");
            assert!(error.to_string().contains(way_out), "{error}");
            assert!(error.is_standing() && !error.is_retryable() && !error.is_hopeless());
            assert_eq!(error.kind(), ErrorKind::Unavailable);
            let source = std::error::Error::source(&error).expect("what the store said");
            assert!(source.to_string().contains(code), "{source}");
            assert!(!format!("{error} {source} {error:?}").contains("hunter2"), "a secret");
        }
    }
}

#[tokio::test]
async fn a_wrong_clock_is_named_with_the_stores() {
    let fake = FakeS3::start().await;
    fake.prepare([Answer::error(403, "RequestTimeTooSkewed")]);
    let error = open(&fake).get("k").await.expect_err("skewed");
    assert!(error.to_string().contains("21 Nov 2026"), "{error}");
}

/// Taken for a missing object, it would look like an empty store, or like a volume that lost its data.
#[tokio::test]
async fn a_missing_bucket_is_not_a_missing_object() {
    let fake = FakeS3::start().await;
    let store = Store::open_with("s3://other-bucket/p", &fake.options()).expect("open");
    for error in [
        put(&store, "k").await.expect_err("no bucket"),
        store.get("k").await.expect_err("no bucket"),
        store.get_range("k", 0..1).await.expect_err("no bucket"),
        store.list("", None).await.expect_err("no bucket"),
        store.delete("k").await.expect_err("no bucket"),
    ] {
        assert!(matches!(refusal(&error), Refusal::NoBucket { .. }), "{error}");
        assert!(error.to_string().contains(&fake.endpoint()), "{error}");
    }
    let missing = open(&fake).get("k").await.expect_err("no object");
    assert!(matches!(missing, StoreError::NotFound { .. }), "{missing}");
}

#[tokio::test]
async fn a_404_that_is_not_from_a_store_makes_nothing_vanish() {
    let fake = FakeS3::start().await;
    let page = Answer { status: 404, body: b"404 page not found".to_vec(), ..Answer::default() };
    fake.prepare([page.clone(), page]);
    let store = open(&fake);
    for error in [
        store.get("k").await.expect_err("no answer of a store"),
        store.delete("k").await.expect_err("no answer of a store"),
    ] {
        assert!(matches!(error, StoreError::Unavailable { .. }), "{error:?}");
    }
}

#[tokio::test]
async fn what_passes_is_retryable_and_nothing_below_us_retries() {
    let fake = FakeS3::start().await;
    let store = open(&fake);
    fake.prepare([
        Answer::error(503, "SlowDown"),
        Answer::error(409, "ConditionalRequestConflict"),
        Answer::error(500, "InternalError"),
    ]);
    let error = put(&store, "k").await.expect_err("busy");
    assert!(matches!(error, StoreError::Throttled { .. }), "{error:?}");
    let error = put(&store, "k").await.expect_err("a race");
    assert!(matches!(error, StoreError::Conflict { .. }), "{error:?}");
    let error = put(&store, "k").await.expect_err("an error");
    assert!(matches!(error, StoreError::Unavailable { .. }), "{error:?}");
    assert!(error.is_retryable());
    assert_eq!(fake.requests().len(), 3);
    assert_eq!(put(&store, "k").await.expect("put"), Put::Created);
}

#[tokio::test]
async fn a_lost_reply_shows_as_an_object_that_exists() {
    let fake = FakeS3::start().await;
    let store = open(&fake);
    fake.prepare([Answer { after_doing: true, ..Answer::error(500, "InternalError") }]);
    put(&store, "k").await.expect_err("the reply is lost");
    assert_eq!(put(&store, "k").await.expect("put"), Put::Exists);
}

#[tokio::test]
async fn a_body_that_breaks_off_is_no_object() {
    let fake = FakeS3::start().await;
    let store = open(&fake);
    put(&store, "k").await.expect("put");
    let cut = || Answer { cut_after: Some(3), ..Answer::default() };
    fake.prepare([cut(), cut()]);
    for error in [
        store.get("k").await.expect_err("cut off"),
        store.get_range("k", 0..4).await.expect_err("cut off"),
    ] {
        assert!(error.is_retryable(), "{error:?}");
    }
    assert_eq!(store.get("k").await.expect("whole"), b"body"[..]);
}

#[tokio::test]
async fn nobody_listening_is_an_error_that_passes() {
    let fake = FakeS3::start().await;
    let mut options = fake.options();
    options.s3.endpoint = Some("http://127.0.0.1:9".to_owned());
    let store = Store::open_with("s3://bucket", &options).expect("open");
    let error = store.get("k").await.expect_err("nobody");
    assert!(matches!(error, StoreError::Unavailable { .. }) && error.is_retryable(), "{error:?}");
}

#[tokio::test]
async fn a_served_volume_waits_for_a_bucket_and_an_opening_does_not() {
    let fake = FakeS3::start().await;
    let store = Store::open_with("s3://other-bucket", &fake.options()).expect("open");
    let error = store.admit(Access::Read, &mut || 1).await.expect_err("no bucket");
    assert!(matches!(refusal(&error), Refusal::NoBucket { .. }), "{error}");
    assert_eq!(fake.requests().len(), 1, "told at once");

    let store = open(&fake);
    fake.prepare(std::iter::repeat_n(Answer::error(404, "NoSuchBucket"), 3));
    let quick = Duration::from_millis(1);
    assert_eq!(RetryPolicy::reads().scope, RetryScope::Waiting);
    let policy = RetryPolicy { first_delay: quick, max_delay: quick, ..RetryPolicy::reads() };
    let put =
        store.retry(&policy, &mut || 0, None, || put(&store, "k")).await.expect("it came back");
    assert_eq!(put, Put::Created);
}

#[tokio::test]
async fn the_first_opening_probes_the_store() {
    let fake = FakeS3::start().await;
    let store = open(&fake);
    let mut number = 0;
    let mut random = || {
        number += 1;
        number
    };
    store.admit(Access::Write, &mut random).await.expect("a good store");
    let keys = fake.keys();
    assert_eq!(keys.len(), 1, "{keys:?}");
    assert!(keys[0].starts_with("some/prefix/weir-probe/v1-"), "{keys:?}");
    let requests = fake.requests().len();
    open(&fake).admit(Access::Write, &mut random).await.expect("remembered");
    assert_eq!(fake.requests().len(), requests + 2, "a listing and a GET");
}

/// What says that the body is the one that was sent: the request's `x-amz-content-sha256`, and its CRC.
fn proof(fake: &FakeS3, key: &str) -> (String, Option<String>) {
    let path = format!("/bucket/some/prefix/{key}");
    let request = fake.requests().into_iter().rfind(|request| request.path == path).expect("a PUT");
    let signed = request.headers["x-amz-content-sha256"].clone();
    (signed, request.headers.get("x-amz-checksum-crc64nvme").cloned())
}

#[tokio::test]
async fn large_bodies_are_signed_unless_the_store_heeds_their_checksums() {
    let large = Bytes::from(vec![7; 64 << 10]);
    for heeds in [false, true] {
        let fake = FakeS3::start().await;
        if heeds {
            fake.heed_checksums();
        }
        let store = open(&fake);
        store.put_create("small", vec![Bytes::from_static(b"body")]).await.expect("put");
        assert_eq!(fake.requests().len(), 1, "nothing is asked for it");
        store.put_create("large", vec![large.clone()]).await.expect("put");
        store.put_create("second", vec![large.clone()]).await.expect("put");
        assert_eq!(fake.requests().len(), 1 + 4 + 2, "it is asked once");
        assert_eq!(fake.keys().len(), 3, "{:?}", fake.keys());
        assert_eq!(proof(&fake, "small").1, None);
        let (signed, checksum) = proof(&fake, "large");
        let expected = heeds.then(|| fake_s3::crc64(&large));
        assert_eq!((signed == "UNSIGNED-PAYLOAD", checksum), (heeds, expected));
        assert_eq!(signed.len(), if heeds { 16 } else { 64 });
        assert_eq!(store.get("large").await.expect("get"), large);
    }
}

#[tokio::test]
async fn a_store_that_is_busy_is_asked_again_whether_it_heeds_checksums() {
    let fake = FakeS3::start().await;
    fake.heed_checksums();
    let store = open(&fake);
    // The PUTs of a whole and of a damaged body.
    let busy = || Answer::error(503, "SlowDown");
    fake.prepare([busy(), busy()]);
    for (key, with_checksum) in [("first", false), ("second", true)] {
        store.put_create(key, vec![Bytes::from(vec![7; 64 << 10])]).await.expect("put");
        assert_eq!(proof(&fake, key).1.is_some(), with_checksum, "{key}");
    }
}

/// As the policy of a bucket may say.
#[tokio::test]
async fn a_store_that_takes_no_unsigned_body_gets_signatures() {
    let fake = FakeS3::start().await;
    fake.heed_checksums();
    fake.refuse_unsigned();
    let store = open(&fake);
    store.put_create("k", vec![Bytes::from(vec![7; 64 << 10])]).await.expect("put");
    assert_eq!(proof(&fake, "k").1, None);
    assert_eq!(fake.keys().len(), 1, "{:?}", fake.keys());
}

/// Backblaze and others answer 501 to a condition.
#[tokio::test]
async fn a_store_without_conditions_serves_a_single_writer_only() {
    let fake = FakeS3::start().await;
    fake.know_no_conditions();
    let store = open(&fake);
    let error = put(&store, "k").await.expect_err("no conditions");
    assert_eq!(refusal(&error), &Refusal::NoConditions);
    let error = store.admit(Access::Write, &mut || 1).await.expect_err("unsafe");
    assert!(matches!(error, StoreError::Unsafe { .. }), "{error:?}");
    let options = StoreOptions { single_writer: true, ..fake.options() };
    let alone = Store::open_with("s3://bucket/alone", &options).expect("open");
    assert_eq!(put(&alone, "k").await.expect("put"), Put::Created);
    assert_eq!(put(&alone, "k").await.expect("put"), Put::Exists);
}

#[tokio::test]
async fn the_storage_class_is_sent_and_archives_are_refused() {
    let fake = FakeS3::start().await;
    let with = |class: &str| {
        let s3 = S3Options { storage_class: Some(class.to_owned()), ..fake.options().s3 };
        Store::open_with("s3://bucket", &StoreOptions { s3, ..StoreOptions::default() })
    };
    put(&with("STANDARD_IA").expect("open"), "k").await.expect("put");
    let sent = fake.requests()[0].headers.get("x-amz-storage-class").cloned();
    assert_eq!(sent.as_deref(), Some("STANDARD_IA"));
    for class in ["GLACIER", "no class"] {
        let error = with(class).expect_err(class);
        assert!(matches!(error, StoreError::InvalidOption { .. }), "{error:?}");
    }
}

#[test]
fn settings_that_make_no_sense_are_refused_before_anything_is_asked() {
    let secret = Some(weir_store::Secret::new("hunter2"));
    let good = S3Options {
        endpoint: Some("https://s3.example.org".to_owned()),
        access_key_id: Some("key".to_owned()),
        secret_access_key: secret.clone(),
        ..S3Options::default()
    };
    let endpoint = |url: &str| S3Options { endpoint: Some(url.to_owned()), ..good.clone() };
    for (s3, way_out) in [
        (endpoint("s3.example.org"), "https://"),
        (endpoint("ftp://s3.example.org"), "https://"),
        (endpoint("http://s3.example.org"), "AWS_ALLOW_HTTP"),
        (endpoint("https://u:hunter2@s3.example.org"), "AWS_ACCESS_KEY_ID"),
        (S3Options { ca_file: Some("/nonexistent/ca.pem".into()), ..good.clone() }, "/nonexistent"),
        (S3Options { access_key_id: None, ..good.clone() }, "AWS_ACCESS_KEY_ID"),
        (S3Options { secret_access_key: None, ..good.clone() }, "AWS_SECRET_ACCESS_KEY"),
    ] {
        let options = StoreOptions { s3, ..StoreOptions::default() };
        let error = Store::open_with("s3://bucket", &options).expect_err(way_out);
        let text = error.to_string();
        assert!(text.contains(way_out), "{text}");
        assert!(!text.contains("hunter2") && !format!("{error:?}").contains("hunter2"), "{text}");
        assert_eq!(error.kind(), ErrorKind::Invalid);
    }
    for s3 in [
        good.clone(),
        endpoint("http://127.0.0.1:9000"),
        endpoint("http://localhost:9000"),
        endpoint("http://[::1]:9000"),
        S3Options { allow_http: true, ..endpoint("http://s3.example.org") },
        S3Options { path_style: Some(false), ..good.clone() },
        S3Options { endpoint: None, ..good },
    ] {
        let options = StoreOptions { s3, ..StoreOptions::default() };
        Store::open_with("s3://bucket", &options).expect("good settings");
    }
}
