//! Errors of stores: each names the store and the key, and says whether another attempt can help.

use std::error::Error;
use std::fmt;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use weir_device::{ErrorKind, with_causes};

use crate::Refusal;

/// The cause of an error. Shared, so that one failed GET can answer every reader that waited for it.
pub type Cause = Arc<dyn Error + Send + Sync>;

/// Where an operation happened.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Place {
    /// URL of the store.
    pub url: Arc<str>,
    /// Key of the object, or prefix of a listing.
    pub key: String,
}

impl Place {
    /// A place in a store.
    pub fn new(url: &Arc<str>, key: impl Into<String>) -> Self {
        Self { url: Arc::clone(url), key: key.into() }
    }
}

impl fmt::Display for Place {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "store {}: {}", self.url, if self.key.is_empty() { "(root)" } else { &self.key })
    }
}

/// An error of a store.
#[derive(Clone, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum StoreError {
    /// The URL names no store.
    #[error("store URL {url}: {reason}")]
    InvalidUrl {
        /// The URL as given.
        url: String,
        /// What is wrong with it.
        reason: &'static str,
    },
    /// The URL names a kind of store that this build cannot open.
    #[error("store URL {url}: {reason}")]
    UnsupportedUrl {
        /// The URL as given.
        url: String,
        /// What is missing.
        reason: &'static str,
    },
    /// A setting makes no sense, or is missing.
    #[error("{option}: {reason}")]
    InvalidOption {
        /// The setting, as its variable in the environment is called.
        option: &'static str,
        /// What is wrong with it, and what to write.
        reason: String,
    },
    /// Threads for requests could not be started.
    #[error("starting threads for requests to stores: {source}")]
    NoThreads {
        /// What the system said.
        #[source]
        source: Cause,
    },
    /// The probe found that the store breaks a promise that volumes rest on.
    #[error("store {url}: {reason}")]
    Unsafe {
        /// URL of the store.
        url: Arc<str>,
        /// What it does, and the way out.
        reason: String,
    },
    /// The key, or the prefix of a listing, cannot be used in every kind of store.
    #[error("{place}: {reason}")]
    InvalidKey {
        /// Where.
        place: Place,
        /// What is wrong with it.
        reason: &'static str,
    },
    /// The range ends before it starts.
    #[error("{place}: range {start}..{end} ends before it starts")]
    InvalidRange {
        /// Where.
        place: Place,
        /// First byte asked for.
        start: u64,
        /// End of the range asked for, exclusive.
        end: u64,
    },
    /// No object of this key.
    #[error("{place}: no such object")]
    NotFound {
        /// Where.
        place: Place,
    },
    /// A read returned another number of bytes than it should have.
    #[error(
        "{place}: asked for {expected} bytes at {start}, got {got}; the object has {object_bytes} bytes"
    )]
    Short {
        /// Where.
        place: Place,
        /// First byte asked for.
        start: u64,
        /// Bytes asked for.
        expected: u64,
        /// Bytes returned.
        got: u64,
        /// Size of the object as the store states it.
        object_bytes: u64,
    },
    /// The store could not decide between concurrent creates of this key (HTTP 409).
    #[error("{place}: concurrent creates conflicted, neither is known to have won")]
    Conflict {
        /// Where.
        place: Place,
    },
    /// The store asks for fewer requests (HTTP 429, 503 SlowDown).
    #[error("{place}: the store asks to slow down")]
    Throttled {
        /// Where.
        place: Place,
        /// What the store said.
        #[source]
        source: Cause,
    },
    /// The store failed or could not be reached. A PUT may have happened.
    #[error("{place}: the store failed or could not be reached")]
    Unavailable {
        /// Where.
        place: Place,
        /// What happened.
        #[source]
        source: Cause,
    },
    /// No answer in time. A PUT may have happened, or may still happen.
    #[error("{place}: no answer within {} s", .after.as_secs_f64())]
    Timeout {
        /// Where.
        place: Place,
        /// How long the attempt waited.
        after: Duration,
    },
    /// The store refuses the request: credentials, permissions.
    #[error("{place}: access denied{}", at_path(.path.as_ref()))]
    Denied {
        /// Where.
        place: Place,
        /// The file or directory, in a local directory store.
        path: Option<PathBuf>,
        /// What the store said.
        #[source]
        source: Cause,
    },
    /// The store refuses what it would grant others, until somebody puts it right.
    #[error("{place}: {refusal}")]
    Refused {
        /// Where.
        place: Place,
        /// Why, and the way out.
        refusal: Refusal,
        /// What the store said.
        #[source]
        source: Cause,
    },
    /// The store is full, or a quota is used up.
    #[error("{place}: no space left{}", at_path(.path.as_ref()))]
    NoSpace {
        /// Where.
        place: Place,
        /// The file or directory, in a local directory store.
        path: Option<PathBuf>,
        /// What the store said.
        #[source]
        source: Cause,
    },
    /// The store takes no writes.
    #[error("{place}: the file system is read-only{}", at_path(.path.as_ref()))]
    ReadOnly {
        /// Where.
        place: Place,
        /// The file or directory, in a local directory store.
        path: Option<PathBuf>,
        /// What the store said.
        #[source]
        source: Cause,
    },
    /// Syncing a directory failed once: nothing that is visible below it can be trusted to survive power loss.
    #[error(
        "{place}: syncing directory {path} failed, so what it shows may be lost with the power; \
         check the file system, then restart"
    )]
    SyncFailed {
        /// Where.
        place: Place,
        /// The directory.
        path: PathBuf,
        /// What the kernel said.
        #[source]
        source: Cause,
    },
    /// The deadline passed after one or more attempts.
    #[error("{}", gave_up(.store.as_deref(), *.attempts, *.elapsed, .source.as_deref()))]
    GaveUp {
        /// URL of the store, where the attempts were those of one.
        store: Option<Arc<str>>,
        /// Attempts made.
        attempts: u64,
        /// Time since the first attempt began.
        elapsed: Duration,
        /// The last error; none, if the first attempt was still running.
        #[source]
        source: Option<Box<StoreError>>,
    },
}

/// An attempt that ended has an error that names the store; where none has, nothing else does. The error is part of the
/// text, as that alone may be all that somebody gets to see.
fn gave_up(
    store: Option<&str>,
    attempts: u64,
    elapsed: Duration,
    last: Option<&StoreError>,
) -> String {
    let seconds = elapsed.as_secs_f64();
    let why = last.map(|error| format!(": {}", with_causes(error))).unwrap_or_default();
    match (store, attempts) {
        (Some(store), _) if last.is_none() => {
            format!("store {store} did not answer in {seconds:.1} s")
        }
        (_, 1) => format!("gave up after 1 attempt in {seconds:.1} s{why}"),
        _ => format!("gave up after {attempts} attempts in {seconds:.1} s{why}"),
    }
}

fn at_path(path: Option<&PathBuf>) -> String {
    path.map(|path| format!(" at {}", path.display())).unwrap_or_default()
}

impl StoreError {
    /// What the caller can do.
    #[must_use]
    pub fn kind(&self) -> ErrorKind {
        match self {
            Self::InvalidUrl { .. }
            | Self::InvalidOption { .. }
            | Self::InvalidKey { .. }
            | Self::InvalidRange { .. } => ErrorKind::Invalid,
            Self::UnsupportedUrl { .. } | Self::Unsafe { .. } => ErrorKind::Unsupported,
            Self::NotFound { .. } => ErrorKind::NotFound,
            Self::Short { .. } if self.is_retryable() => ErrorKind::Retry,
            Self::Short { .. } => ErrorKind::Corrupt,
            Self::Conflict { .. } | Self::Throttled { .. } => ErrorKind::Retry,
            Self::Unavailable { .. }
            | Self::Timeout { .. }
            | Self::Denied { .. }
            | Self::Refused { .. }
            | Self::NoThreads { .. } => ErrorKind::Unavailable,
            Self::NoSpace { .. } => ErrorKind::NoSpace,
            Self::ReadOnly { .. } => ErrorKind::ReadOnly,
            Self::SyncFailed { .. } => ErrorKind::Poisoned,
            // Whoever gave up must not start again at once: the last error was retried long enough.
            Self::GaveUp { source, .. } => match source.as_ref().map(|source| source.kind()) {
                None | Some(ErrorKind::Retry) => ErrorKind::Unavailable,
                Some(kind) => kind,
            },
        }
    }

    /// Whether another attempt of the same operation may succeed without anybody doing anything.
    #[must_use]
    pub fn is_retryable(&self) -> bool {
        match self {
            Self::Conflict { .. }
            | Self::Throttled { .. }
            | Self::Unavailable { .. }
            | Self::Timeout { .. } => true,
            // A body that was cut off comes whole the next time; an object that is too small stays so.
            Self::Short { start, expected, object_bytes, .. } => {
                start.saturating_add(*expected) <= *object_bytes
            }
            _ => false,
        }
    }

    /// Whether the store refuses us for a reason that lasts until somebody puts it right: credentials, the bucket, the
    /// clock. Whoever opens a store ends with such an error; a volume that is served waits.
    #[must_use]
    pub fn is_standing(&self) -> bool {
        matches!(self, Self::Refused { .. })
    }

    /// Whether the request itself is wrong, so that no attempt at any time can succeed.
    #[must_use]
    pub fn is_hopeless(&self) -> bool {
        matches!(
            self,
            Self::InvalidUrl { .. }
                | Self::UnsupportedUrl { .. }
                | Self::InvalidOption { .. }
                | Self::Unsafe { .. }
                | Self::InvalidKey { .. }
                | Self::InvalidRange { .. }
                | Self::SyncFailed { .. }
        )
    }
}
