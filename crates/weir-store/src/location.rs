//! From a URL to a place. Parsing is apart from opening so that a configuration can be checked without touching it.

use std::path::PathBuf;

use url::Url;

use crate::StoreError;
use crate::key::is_legal_segment;
use crate::limits::PREFIX_BYTES_MAX;

/// Where a store is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Location {
    /// A local directory.
    Directory(PathBuf),
    /// Memory of this process; a name makes it shared within the process.
    Memory(Option<String>),
    /// A bucket of a store that speaks S3.
    S3(Bucket),
    /// A bucket of Google Cloud Storage.
    #[cfg(feature = "gcs")]
    Gcs(Bucket),
    /// A container of Azure Blob Storage.
    #[cfg(feature = "azure")]
    Azure(Bucket),
}

/// A part of a bucket.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Bucket {
    pub(crate) name: String,
    /// What all keys begin with: nothing, or a directory with its slash.
    pub(crate) prefix: String,
}

impl Location {
    pub(crate) fn parse(text: &str) -> Result<Self, StoreError> {
        let url = Url::parse(text).map_err(|_| StoreError::InvalidUrl {
            url: text.to_owned(),
            reason: "not a URL; a local directory is file:///absolute/path, a bucket s3://bucket/prefix",
        })?;
        let invalid = |reason| StoreError::InvalidUrl { url: redacted(&url), reason };
        let unsupported = |reason| StoreError::UnsupportedUrl { url: redacted(&url), reason };
        match url.scheme() {
            "file" => Self::parse_file(&url).map_err(invalid),
            "memory" => Self::parse_memory(&url).map_err(invalid),
            "s3" => parse_bucket(&url).map(Self::S3).map_err(invalid),
            #[cfg(feature = "gcs")]
            "gs" => parse_bucket(&url).map(Self::Gcs).map_err(invalid),
            #[cfg(feature = "azure")]
            "az" => parse_bucket(&url).map(Self::Azure).map_err(invalid),
            #[cfg(not(feature = "gcs"))]
            "gs" => Err(unsupported("gs:// is not in this build; build it with --features gcs")),
            #[cfg(not(feature = "azure"))]
            "az" => Err(unsupported("az:// is not in this build; build it with --features azure")),
            "s3a" | "s3n" => Err(unsupported("write s3://bucket/prefix")),
            "azure" | "abfs" | "abfss" | "adl" => Err(unsupported("write az://container/prefix")),
            "http" | "https" => Err(unsupported(
                "an address names no bucket; write s3://bucket/prefix, and the address as AWS_ENDPOINT_URL",
            )),
            _ => Err(unsupported(
                "unknown kind of store; there are file:///path, s3://bucket/prefix and memory://",
            )),
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

fn parse_bucket(url: &Url) -> Result<Bucket, &'static str> {
    if !url.username().is_empty() || url.password().is_some() {
        return Err(
            "credentials do not belong in a URL; set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY",
        );
    }
    if url.query().is_some() || url.fragment().is_some() {
        return Err("the URL of a bucket takes no ? and no #; endpoint and region are settings");
    }
    if url.port().is_some() {
        return Err(
            "the URL of a bucket has no port; the address of the service is AWS_ENDPOINT_URL",
        );
    }
    let name = url.host_str().unwrap_or_default();
    if name.is_empty() {
        return Err("it names no bucket; write s3://bucket or s3://bucket/prefix");
    }
    let legal = |byte: u8| byte.is_ascii_alphanumeric() || b"-._".contains(&byte);
    if !(3..=63).contains(&name.len()) || !name.bytes().all(legal) {
        return Err("a bucket's name has 3 to 63 letters, digits, dots and hyphens");
    }
    let path = url.path().trim_matches('/');
    if path.len() >= PREFIX_BYTES_MAX {
        return Err("the prefix is too long; it has at most 511 bytes");
    }
    if path.is_empty() {
        return Ok(Bucket { name: name.to_owned(), prefix: String::new() });
    }
    if !path.split('/').all(is_legal_segment) {
        return Err(
            "a prefix is made of letters, digits and -_.=@+ between single slashes, and no part begins with \
                    a dot",
        );
    }
    Ok(Bucket { name: name.to_owned(), prefix: format!("{path}/") })
}

/// The URL without what may be a secret, for messages.
fn redacted(url: &Url) -> String {
    let mut url = url.clone();
    if url.username().is_empty() && url.password().is_none() {
        return url.to_string();
    }
    if url.set_password(None).and_then(|()| url.set_username("***")).is_err() {
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
    fn a_bucket_has_a_name_and_perhaps_a_prefix() {
        for (url, name, prefix) in [
            ("s3://bucket", "bucket", ""),
            ("s3://bucket/", "bucket", ""),
            ("s3://my.bucket-1/a/b=1", "my.bucket-1", "a/b=1/"),
            ("s3://bucket/a/", "bucket", "a/"),
        ] {
            let bucket = Bucket { name: name.to_owned(), prefix: prefix.to_owned() };
            assert_eq!(Location::parse(url).expect(url), Location::S3(bucket), "{url}");
        }
        let long = format!("s3://bucket/{}", ["a"; 300].join("/"));
        for url in [
            "s3:bucket",
            "s3:///prefix",
            "s3://b",
            "s3://bucket?x=1",
            "s3://bucket/a//b",
            "s3://bucket/a b",
            "s3://bucket:9000/a",
            "s3://bucket/.hidden",
            "s3://buck!et",
            &long,
        ] {
            let error = Location::parse(url).expect_err(url);
            assert!(matches!(error, StoreError::InvalidUrl { .. }), "{url}: {error}");
        }
    }

    #[test]
    fn other_kinds_are_named_with_the_way_out_and_no_secret_is_shown() {
        for (url, way_out) in [
            ("s3a://bucket/prefix", "s3://bucket/prefix"),
            ("https://host/x", "AWS_ENDPOINT_URL"),
            ("ftp://h", "file:///path"),
            #[cfg(not(feature = "gcs"))]
            ("gs://bucket", "--features gcs"),
            #[cfg(not(feature = "azure"))]
            ("az://container", "--features azure"),
        ] {
            let error = Location::parse(url).expect_err(url);
            assert!(matches!(error, StoreError::UnsupportedUrl { .. }), "{url}: {error}");
            assert!(error.to_string().contains(way_out), "{error}");
        }
        for url in ["s3://user:hunter2@bucket", "s3://hunter2@bucket", "ftp://u:hunter2@h"] {
            let error = Location::parse(url).expect_err("credentials in the URL");
            assert!(!error.to_string().contains("hunter2"), "{error}");
        }
    }
}
