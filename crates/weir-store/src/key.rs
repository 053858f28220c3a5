//! Which keys are legal: the same ones in every kind of store, so that a volume can move between them.

use std::sync::Arc;

use crate::limits::{KEY_BYTES_MAX, KEY_SEGMENT_BYTES_MAX};
use crate::{Place, StoreError};

/// Checks the key of one object.
pub(crate) fn check_key(url: &Arc<str>, key: &str) -> Result<(), StoreError> {
    problem_of(key).map_or(Ok(()), |reason| {
        Err(StoreError::InvalidKey { place: Place::new(url, key), reason })
    })
}

/// Checks the prefix of a listing: nothing, or a directory with its slash.
pub(crate) fn check_prefix(url: &Arc<str>, prefix: &str) -> Result<(), StoreError> {
    let reason = match prefix.strip_suffix('/') {
        None if prefix.is_empty() => return Ok(()),
        None => Some("a prefix ends in a slash"),
        Some(directory) => problem_of(directory),
    };
    reason.map_or(Ok(()), |reason| {
        Err(StoreError::InvalidKey { place: Place::new(url, prefix), reason })
    })
}

/// Whether `segment` can be part of a key.
pub(crate) fn is_legal_segment(segment: &str) -> bool {
    problem_of_segment(segment).is_none()
}

fn problem_of(key: &str) -> Option<&'static str> {
    if key.is_empty() {
        return Some("a key is not empty");
    }
    if key.len() > KEY_BYTES_MAX {
        return Some("a key has at most 512 bytes");
    }
    key.split('/').find_map(problem_of_segment)
}

fn problem_of_segment(segment: &str) -> Option<&'static str> {
    if segment.is_empty() {
        return Some("a key has no empty part between slashes");
    }
    if segment.len() > KEY_SEGMENT_BYTES_MAX {
        return Some("a part of a key has at most 255 bytes");
    }
    if segment.starts_with('.') {
        return Some("no part of a key starts with a dot");
    }
    let legal = |byte: u8| byte.is_ascii_alphanumeric() || b"-_.=@+".contains(&byte);
    (!segment.bytes().all(legal)).then_some("a key is made of letters, digits and -_.=@+")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_that_some_store_cannot_hold_are_refused() {
        let url: Arc<str> = "memory://".into();
        let long = "a".repeat(256);
        let longer = vec!["a".repeat(200); 3].join("/");
        for bad in [
            "", "/a", "a/", "a//b", ".a", "a/..", "a/.", "a b", "a%", "a\u{e9}", "a\\b", &long,
            &longer,
        ] {
            let error = check_key(&url, bad).expect_err(bad);
            assert!(matches!(error, StoreError::InvalidKey { .. }), "{bad}: {error}");
        }
        for good in ["a", "a/b.json", "v=1/0000-ff", "A@b+c_d", &"a".repeat(255)] {
            check_key(&url, good).expect(good);
        }
    }

    #[test]
    fn prefixes_are_directories() {
        let url: Arc<str> = "memory://".into();
        for good in ["", "a/", "a/b/"] {
            check_prefix(&url, good).expect(good);
        }
        for bad in ["a", "/", "a//", "./", "a/b"] {
            check_prefix(&url, bad).expect_err(bad);
        }
    }
}
