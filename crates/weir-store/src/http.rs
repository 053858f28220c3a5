//! The HTTP below the clients of cloud stores: where it runs, and what a store's last answer said.
//!
//! The clients turn answers into errors of few kinds and many words. What we have to know (was it 409 or 412? the
//! bucket or the object that is missing? a clock that is wrong?) is in the status and the error code of the answer, so
//! these are noted as they pass by, for the operation that is running in this task.

use std::cell::RefCell;
use std::fmt;
use std::future::Future;
use std::pin::Pin;
use std::sync::{Arc, OnceLock};

use bytes::BytesMut;
use futures_util::StreamExt;
use object_store::client::{
    HttpClient, HttpConnector, HttpError, HttpRequest, HttpResponse, HttpService,
    SpawnedReqwestConnector,
};
use object_store::{
    ClientOptions, CredentialProvider, HeaderMap, HeaderValue, Result as ClientResult, RetryConfig,
};
use tokio::runtime::{Handle, Runtime};

use crate::limits::{CONNECT_TIMEOUT, ERROR_BODY_BYTES_MAX, ERROR_MESSAGE_CHARS_MAX, HTTP_THREADS};
use crate::{Cause, StoreError};

/// What the store answered last.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Note {
    /// HTTP status; none, if there was no answer.
    pub(crate) status: Option<u16>,
    /// The error code in its body, as `NoSuchKey`; empty, if there was none.
    pub(crate) code: String,
    /// What it says about it, without what it repeats of the request.
    pub(crate) message: String,
    /// The region that the bucket is in, where the store says so.
    pub(crate) region: Option<String>,
    /// The store's clock.
    pub(crate) date: Option<String>,
    /// There were no credentials to ask with.
    pub(crate) no_credentials: bool,
}

tokio::task_local! {
    static NOTE: RefCell<Note>;
    static DAMAGE: ();
}

fn note(change: impl FnOnce(&mut Note)) {
    // Outside an operation nobody wants to know.
    let _ = NOTE.try_with(|note| change(&mut note.borrow_mut()));
}

/// Runs `operation` and says what the store answered last while it ran.
pub(crate) async fn noted<T>(operation: impl Future<Output = T>) -> (T, Note) {
    let whole = async {
        let result = operation.await;
        (result, NOTE.with(RefCell::take))
    };
    NOTE.scope(RefCell::default(), whole).await
}

/// Runs `operation` with the bodies of its requests damaged on their way: all zeroes.
pub(crate) async fn damaged<T>(operation: impl Future<Output = T>) -> T {
    DAMAGE.scope((), operation).await
}

/// Makes clients whose requests run on `runtime` and whose answers are noted.
#[derive(Debug)]
pub(crate) struct Connector {
    pub(crate) runtime: Handle,
}

impl HttpConnector for Connector {
    fn connect(&self, options: &ClientOptions) -> ClientResult<HttpClient> {
        let inner = SpawnedReqwestConnector::new(self.runtime.clone()).connect(options)?;
        Ok(HttpClient::new(Recorder { inner }))
    }
}

#[derive(Debug)]
struct Recorder {
    inner: HttpClient,
}

impl Recorder {
    async fn call(&self, request: HttpRequest) -> Result<HttpResponse, HttpError> {
        note(|note| *note = Note::default());
        let request = match DAMAGE.try_with(|()| ()) {
            Ok(()) => request.map(|body| vec![0; body.content_length()].into()),
            Err(_) => request,
        };
        let response = self.inner.execute(request).await?;
        let status = response.status();
        note(|note| note.status = Some(status.as_u16()));
        if status.is_success() {
            return Ok(response);
        }
        let (parts, body) = response.into_parts();
        let mut stream = body.bytes_stream();
        let mut text = BytesMut::new();
        while let Some(chunk) = stream.next().await {
            text.extend_from_slice(&chunk?);
            if text.len() > ERROR_BODY_BYTES_MAX {
                break;
            }
        }
        note(|note| read_answer(note, &parts.headers, &text));
        Ok(HttpResponse::from_parts(parts, text.freeze().into()))
    }
}

fn read_answer(note: &mut Note, headers: &HeaderMap, body: &[u8]) {
    let header = |name: &str| Some(headers.get(name)?.to_str().ok()?.to_owned());
    let body = String::from_utf8_lossy(body);
    let element = |name: &str| {
        let (_, rest) = body.split_once(&format!("<{name}>"))?;
        rest.split_once("</").map(|(value, _)| value.trim().to_owned())
    };
    note.code = element("Code").or_else(|| header("x-ms-error-code")).unwrap_or_default();
    note.message = element("Message").map(|message| one_line(&message)).unwrap_or_default();
    note.region = header("x-amz-bucket-region").or_else(|| element("Region"));
    note.date = header("date");
}

fn one_line(text: &str) -> String {
    let words: Vec<_> = text.split_whitespace().collect();
    words.join(" ").chars().take(ERROR_MESSAGE_CHARS_MAX).collect()
}

/// An answer that was an error, as it is shown. Not the whole body: some services repeat the request in it, with its
/// session token.
#[derive(Debug, thiserror::Error)]
#[error("the store answered {status}{}", self.details())]
pub(crate) struct Answered {
    status: u16,
    code: String,
    message: String,
}

impl Answered {
    /// The answer that is in `note`, unless there was none or it was none of an error.
    pub(crate) fn of(note: &Note) -> Option<Self> {
        let status = note.status.filter(|status| *status >= 300)?;
        Some(Self { status, code: note.code.clone(), message: note.message.clone() })
    }

    fn details(&self) -> String {
        match (self.code.as_str(), self.message.as_str()) {
            ("", _) => String::new(),
            (code, "") => format!(" {code}"),
            (code, message) => format!(" {code}: {message}"),
        }
    }
}

/// The trait is written with `async_trait`; this is its method as the macro leaves it.
impl HttpService for Recorder {
    fn call<'a, 'r>(
        &'a self,
        request: HttpRequest,
    ) -> Pin<Box<dyn Future<Output = Result<HttpResponse, HttpError>> + Send + 'r>>
    where
        'a: 'r,
        Self: 'r,
    {
        Box::pin(Recorder::call(self, request))
    }
}

/// Credentials whose absence is noted.
pub(crate) struct Watched<T>(pub(crate) Arc<dyn CredentialProvider<Credential = T>>);

impl<T> fmt::Debug for Watched<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Watched")
    }
}

impl<T: Send + Sync> CredentialProvider for Watched<T> {
    type Credential = T;

    fn get_credential<'a, 'r>(
        &'a self,
    ) -> Pin<Box<dyn Future<Output = ClientResult<Arc<T>>> + Send + 'r>>
    where
        'a: 'r,
        Self: 'r,
    {
        Box::pin(async {
            let credential = self.0.get_credential().await;
            // A service that hands out credentials is no store: forget what it answered.
            let no_credentials = credential.is_err();
            note(|note| *note = Note { no_credentials, ..Note::default() });
            credential
        })
    }
}

/// One attempt per call: the retries are ours.
pub(crate) fn no_retries() -> RetryConfig {
    RetryConfig { max_retries: 0, ..RetryConfig::default() }
}

/// What all clients have in common. The limit of a whole attempt is ours, too.
pub(crate) fn client_options() -> ClientOptions {
    let agent = concat!("weir/", env!("CARGO_PKG_VERSION"));
    ClientOptions::new()
        .with_user_agent(HeaderValue::from_static(agent))
        .with_timeout_disabled()
        .with_connect_timeout(CONNECT_TIMEOUT)
}

/// Where requests run unless the caller has a place for them.
pub(crate) fn runtime() -> Result<Handle, StoreError> {
    static SHARED: OnceLock<Result<Runtime, Cause>> = OnceLock::new();
    let shared = SHARED.get_or_init(|| {
        tokio::runtime::Builder::new_multi_thread()
            .worker_threads(HTTP_THREADS)
            .thread_name("store-http")
            .enable_all()
            .build()
            .map_err(|error| Arc::new(error) as Cause)
    });
    match shared {
        Ok(runtime) => Ok(runtime.handle().clone()),
        Err(source) => Err(StoreError::NoThreads { source: Arc::clone(source) }),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn codes_are_found_in_bodies_and_headers() {
        let mut note = Note::default();
        let mut headers = HeaderMap::new();
        headers.insert("date", HeaderValue::from_static("Sat, 21 Nov 2026 03:00:00 GMT"));
        let body = b"<?xml?>\n<Error><Code>AuthorizationHeaderMalformed</Code><Message>wrong\n region\
            </Message><CanonicalRequest>a-token</CanonicalRequest><Region>eu-west-1</Region></Error>";
        read_answer(&mut note, &headers, body);
        assert_eq!(note.code, "AuthorizationHeaderMalformed");
        assert_eq!(note.region.as_deref(), Some("eu-west-1"));
        assert_eq!(note.date.as_deref(), Some("Sat, 21 Nov 2026 03:00:00 GMT"));
        assert!(Answered::of(&note).is_none(), "no status yet");
        note.status = Some(400);
        let shown = Answered::of(&note).expect("an error").to_string();
        assert_eq!(shown, "the store answered 400 AuthorizationHeaderMalformed: wrong region");
        read_answer(&mut note, &HeaderMap::new(), b"404 page not found");
        assert_eq!((note.code.as_str(), note.region), ("", None));
    }

    #[tokio::test]
    async fn notes_belong_to_the_operation_that_runs() {
        let one = noted(async {
            note(|note| note.status = Some(1));
            tokio::task::yield_now().await;
        });
        let other = noted(async {
            tokio::task::yield_now().await;
            note(|note| note.status = Some(2));
        });
        let ((_, one), (_, other)) = futures_util::join!(one, other);
        assert_eq!((one.status, other.status), (Some(1), Some(2)));
        note(|_| panic!("nobody listens"));
    }
}
