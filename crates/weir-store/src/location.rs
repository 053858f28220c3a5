//! From a URL to a place. Parsing is apart from opening so that a configuration can be checked without touching it.

use std::path::PathBuf;

use url::Url;

use crate::StoreError;

/// Where a store is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Location {
    /// A local directory.
    Directory(PathBuf),
    /// Memory of this process; a name makes it shared within the process.
    Memory(Option<String>),
}

impl Location {
    pub(crate) fn parse(text: &str) -> Result<Self, StoreError> {
        let invalid = |reason| StoreError::InvalidUrl { url: text.to_owned(), reason };
        let url = Url::parse(text)
            .map_err(|_| invalid("not a URL; a local directory is file:///absolute/path"))?;
        match url.scheme() {
            "file" => Self::parse_file(&url).map_err(invalid),
            "memory" => Self::parse_memory(&url).map_err(invalid),
            "s3" | "s3a" | "gs" | "az" | "azure" | "abfs" | "abfss" | "http" | "https" => {
                Err(StoreError::UnsupportedUrl {
                    url: redacted(&url),
                    reason: "stores over the network are not in this build; use file:///path",
                })
            }
            _ => Err(StoreError::UnsupportedUrl {
                url: redacted(&url),
                reason: "unknown kind of store; this build knows file:///path and memory://",
            }),
        }
    }

    fn parse_file(url: &Url) -> Result<Self, &'static str> {
        if url.query().is_some() || url.fragment().is_some() {
            return Err("a file URL takes no ? and no #; write them as %3F and %23");
        }
        if !matches!(url.host_str(), None | Some("" | "localhost")) {
            return Err("a file URL names no host; write three slashes: file:///path");
        }
        let path = url.to_file_path().map_err(|()| "a file URL names an absolute path")?;
        // The directory above it would hold the store's temporary files beside everything else.
        if path.parent().is_none() {
            return Err("the root directory is no store");
        }
        Ok(Self::Directory(path))
    }

    fn parse_memory(url: &Url) -> Result<Self, &'static str> {
        if !matches!(url.path(), "" | "/") || url.query().is_some() || url.fragment().is_some() {
            return Err("a memory URL is memory:// or memory://name");
        }
        Ok(Self::Memory(url.host_str().filter(|name| !name.is_empty()).map(str::to_owned)))
    }
}

/// The URL without a password, for messages.
fn redacted(url: &Url) -> String {
    let mut url = url.clone();
    if url.password().is_some() && url.set_password(Some("***")).is_err() {
        return format!("{}:...", url.scheme());
    }
    url.to_string()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn urls_name_places() {
        let directory = |path: &str| Location::Directory(PathBuf::from(path));
        for (url, location) in [
            ("file:///var/lib/weir", directory("/var/lib/weir")),
            ("file:///var/lib/weir/", directory("/var/lib/weir/")),
            ("file://localhost/a%20b", directory("/a b")),
            ("memory://", Location::Memory(None)),
            ("memory:///", Location::Memory(None)),
            ("memory://shared", Location::Memory(Some("shared".to_owned()))),
        ] {
            assert_eq!(Location::parse(url).expect(url), location, "{url}");
        }
    }

    #[test]
    fn a_bad_url_says_what_to_write() {
        for url in [
            "",
            "/a",
            "a",
            "file://host/a",
            "file:///a?b",
            "file:///a#b",
            "file:///",
            "memory://a/b",
        ] {
            let error = Location::parse(url).expect_err(url);
            assert!(matches!(error, StoreError::InvalidUrl { .. }), "{url}: {error}");
        }
    }

    #[test]
    fn a_network_store_is_named_as_missing_and_its_password_is_not_shown() {
        for url in ["s3://bucket/prefix", "gs://b", "az://c/d", "https://h/x", "ftp://h"] {
            let error = Location::parse(url).expect_err(url);
            assert!(matches!(error, StoreError::UnsupportedUrl { .. }), "{url}: {error}");
        }
        let error = Location::parse("s3://user:hunter2@bucket").expect_err("no network stores");
        assert!(!error.to_string().contains("hunter2"), "{error}");
        assert!(error.to_string().contains("not in this build"), "{error}");
    }
}
