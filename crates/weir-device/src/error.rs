//! Errors of devices: what happened, and above all what the caller should do about it.

use std::borrow::Cow;
use std::error::Error;
use std::fmt;
use std::sync::Arc;

/// What a caller can do about an error. Small, closed, prescriptive; front ends map it to their protocol in one table.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum ErrorKind {
    /// Try the same call again later.
    Retry,
    /// Too much is in flight; wait for something to finish.
    Busy,
    /// The caller's request is wrong and will stay wrong.
    Invalid,
    /// Another writer owns the volume now; this one must stop.
    Fenced,
    /// Stored bytes fail their checksum or cannot be decoded.
    Corrupt,
    /// The device can no longer keep its promises and refuses writes until it is reopened.
    Poisoned,
    /// No space left where the bytes must go.
    NoSpace,
    /// The device does not take writes.
    ReadOnly,
    /// The named thing does not exist.
    NotFound,
    /// The named thing exists already.
    Exists,
    /// The medium or service did not answer or failed.
    Unavailable,
    /// Known, but not offered here.
    Unsupported,
    /// A defect of Weir itself.
    Bug,
}

/// An error of a device. Cheap to clone: one failed group commit answers many writers.
#[derive(Clone)]
pub struct DeviceError {
    kind: ErrorKind,
    message: Cow<'static, str>,
    source: Option<Arc<dyn Error + Send + Sync>>,
}

impl DeviceError {
    /// An error with its own message.
    pub fn new(kind: ErrorKind, message: impl Into<Cow<'static, str>>) -> Self {
        Self { kind, message: message.into(), source: None }
    }

    /// An error of a lower crate, with the kind it has and its own message as the text.
    pub fn from_source(kind: ErrorKind, source: impl Error + Send + Sync + 'static) -> Self {
        Self { kind, message: Cow::Owned(source.to_string()), source: Some(Arc::new(source)) }
    }

    /// What the caller can do.
    #[must_use]
    pub fn kind(&self) -> ErrorKind {
        self.kind
    }
}

impl fmt::Display for DeviceError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.message)
    }
}

impl fmt::Debug for DeviceError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?}: {}", self.kind, self.message)
    }
}

impl Error for DeviceError {
    fn source(&self) -> Option<&(dyn Error + 'static)> {
        // The message of `from_source` is the source's own, so the chain goes on below it.
        self.source.as_ref().and_then(|s| s.source())
    }
}

/// An error and what caused it, in one line; a cause that repeats what was said is left out.
#[must_use]
pub fn with_causes(error: &dyn Error) -> String {
    let mut text = error.to_string();
    let mut next = error.source();
    while let Some(cause) = next {
        let more = cause.to_string();
        if !text.contains(&more) {
            text = format!("{text}: {more}");
        }
        next = cause.source();
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[derive(Debug)]
    struct Because(&'static str, Option<Box<Because>>);

    impl fmt::Display for Because {
        fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
            f.write_str(self.0)
        }
    }

    impl Error for Because {
        fn source(&self) -> Option<&(dyn Error + 'static)> {
            self.1.as_ref().map(|cause| &**cause as &(dyn Error + 'static))
        }
    }

    #[test]
    fn causes_are_told_in_order_and_none_twice() {
        let chain = |texts: &[&'static str]| {
            let link = |below, text: &&'static str| Some(Box::new(Because(text, below)));
            texts.iter().rev().fold(None, link).expect("not empty")
        };
        assert_eq!(with_causes(&*chain(&["a write"])), "a write");
        let told = with_causes(&*chain(&["a write", "the disk", "disk", "sector 7"]));
        assert_eq!(told, "a write: the disk: sector 7");
        let error = DeviceError::from_source(ErrorKind::Corrupt, *chain(&["a read", "a checksum"]));
        assert_eq!(with_causes(&error), "a read: a checksum");
        assert_eq!(format!("{error:?}"), "Corrupt: a read");
    }
}
