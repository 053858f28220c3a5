use std::collections::VecDeque;
use std::pin::Pin;
use std::sync::Mutex;

use futures_util::stream::BoxStream;
use object_store::memory::InMemory;
use object_store::{
    CopyOptions, GetResult, ListResult, MultipartUpload, ObjectMeta, PutMultipartOptions, PutResult,
};
use weir_device::ErrorKind;

use super::*;
use crate::Store;

type Answer<'a, T> = Pin<Box<dyn Future<Output = Result<T, Error>> + Send + 'a>>;

/// A client that answers its next PUTs and GETs with errors prepared for them.
#[derive(Debug, Default)]
struct Scripted {
    inner: InMemory,
    errors: Mutex<VecDeque<Error>>,
}

impl fmt::Display for Scripted {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("scripted")
    }
}

impl Scripted {
    fn next_error(&self) -> Option<Error> {
        self.errors.lock().expect("no panic under the lock").pop_front()
    }
}

fn unused<'a, T>() -> Answer<'a, T> {
    Box::pin(async { unreachable!("the adapter does not call this") })
}

/// The trait is written with `async_trait`; these are its methods as the macro leaves them.
impl ObjectStore for Scripted {
    fn put_opts<'a, 'b, 'r>(
        &'a self,
        location: &'b Path,
        payload: PutPayload,
        options: PutOptions,
    ) -> Answer<'r, PutResult>
    where
        'a: 'r,
        'b: 'r,
    {
        Box::pin(async move {
            match self.next_error() {
                Some(error) => Err(error),
                None => self.inner.put_opts(location, payload, options).await,
            }
        })
    }

    fn get_opts<'a, 'b, 'r>(
        &'a self,
        location: &'b Path,
        options: GetOptions,
    ) -> Answer<'r, GetResult>
    where
        'a: 'r,
        'b: 'r,
    {
        Box::pin(async move {
            match self.next_error() {
                Some(error) => Err(error),
                None => self.inner.get_opts(location, options).await,
            }
        })
    }

    fn put_multipart_opts<'a, 'b, 'r>(
        &'a self,
        _: &'b Path,
        _: PutMultipartOptions,
    ) -> Answer<'r, Box<dyn MultipartUpload>>
    where
        'a: 'r,
        'b: 'r,
    {
        unused()
    }

    fn list_with_delimiter<'a, 'b, 'r>(&'a self, _: Option<&'b Path>) -> Answer<'r, ListResult>
    where
        'a: 'r,
        'b: 'r,
    {
        unused()
    }

    fn copy_opts<'a, 'b, 'c, 'r>(
        &'a self,
        _: &'b Path,
        _: &'c Path,
        _: CopyOptions,
    ) -> Answer<'r, ()>
    where
        'a: 'r,
        'b: 'r,
        'c: 'r,
    {
        unused()
    }

    fn delete_stream(
        &self,
        locations: BoxStream<'static, Result<Path, Error>>,
    ) -> BoxStream<'static, Result<Path, Error>> {
        self.inner.delete_stream(locations)
    }

    fn list(&self, prefix: Option<&Path>) -> BoxStream<'static, Result<ObjectMeta, Error>> {
        self.inner.list(prefix)
    }
}

fn source() -> Box<dyn std::error::Error + Send + Sync> {
    "as the client says".into()
}

fn path() -> String {
    "k".to_owned()
}

fn taken() -> Error {
    Error::AlreadyExists { path: path(), source: source() }
}

fn scripted(errors: impl IntoIterator<Item = Error>) -> Store {
    let client =
        Scripted { errors: Mutex::new(errors.into_iter().collect()), ..Scripted::default() };
    Store::from_object_store(Arc::new(client), "test://scripted".to_owned())
}

async fn put(store: &Store) -> Result<Put, StoreError> {
    store.put_create("k", vec![Bytes::from_static(b"body")]).await
}

/// The client reports a 409 as "already exists". Believed, it would make a writer look for an object that nobody wrote.
#[tokio::test]
async fn a_conflict_that_left_no_object_is_to_be_retried() {
    let store = scripted([taken()]);
    let error = put(&store).await.expect_err("a conflict");
    assert!(matches!(error, StoreError::Conflict { .. }), "{error:?}");
    assert_eq!((error.kind(), error.is_retryable()), (ErrorKind::Retry, true));
    assert_eq!(put(&store).await.expect("put"), Put::Created);
    assert_eq!(put(&store).await.expect("put"), Put::Exists);
}

#[tokio::test]
async fn a_conflict_that_cannot_be_looked_into_is_an_error() {
    let generic = Error::Generic { store: "test", source: source() };
    let error = put(&scripted([taken(), generic])).await.expect_err("unknown");
    assert!(matches!(error, StoreError::Unavailable { .. }), "{error:?}");
}

#[tokio::test]
async fn errors_of_the_client_keep_their_meaning_and_their_cause() {
    let denied = || Error::PermissionDenied { path: path(), source: source() };
    let error = put(&scripted([denied()])).await.expect_err("denied");
    assert!(matches!(error, StoreError::Denied { .. }), "{error:?}");
    let error = scripted([denied()]).get("k").await.expect_err("denied");
    assert!(matches!(error, StoreError::Denied { .. }), "{error:?}");
    let error =
        scripted([Error::Unauthenticated { path: path(), source: source() }]).get("k").await;
    assert!(matches!(error, Err(StoreError::Denied { .. })), "{error:?}");

    let store = scripted([Error::Generic { store: "test", source: source() }]);
    let error = put(&store).await.expect_err("failed");
    assert!(matches!(error, StoreError::Unavailable { .. }), "{error:?}");
    let cause = std::error::Error::source(&error).expect("a cause");
    let below = std::error::Error::source(cause).map(ToString::to_string);
    assert!(format!("{cause} {below:?}").contains("as the client says"), "{cause} {below:?}");
}

/// A failed GET is looked into, and stays failed if the range lies within the object.
#[tokio::test]
async fn a_failed_read_of_an_existing_range_is_no_short_read() {
    let generic = || Error::Generic { store: "test", source: source() };
    let client = Scripted::default();
    client.inner.put(&Path::from("k"), "body".into()).await.expect("put");
    client.errors.lock().expect("no panic under the lock").push_back(generic());
    let store = Store::from_object_store(Arc::new(client), "test://scripted".to_owned());
    let error = store.get_range("k", 1..3).await.expect_err("failed");
    assert!(matches!(error, StoreError::Unavailable { .. }), "{error:?}");
    assert_eq!(store.get_range("k", 1..3).await.expect("get"), b"od"[..]);
}
