//! Named limits of this crate, each with where its number comes from.

use std::time::Duration;

/// Longest key, in bytes. S3 allows 1024; half of it leaves room for a prefix in the store's URL.
pub const KEY_BYTES_MAX: usize = 512;

/// Longest part of a key between slashes, in bytes: `NAME_MAX` of Linux file systems.
pub const KEY_SEGMENT_BYTES_MAX: usize = 255;

/// How long one attempt of one operation may take. An 8 MiB object in a minute is 140 KB/s: slower is broken.
pub const ATTEMPT_TIMEOUT: Duration = Duration::from_secs(60);

/// A temporary file older than this belongs to no living writer: sixty times the attempt timeout.
pub(crate) const TEMPORARY_AGE_MAX: Duration = Duration::from_secs(3600);

/// Names tried for one temporary file. Names carry 64 random bits; a second try is already unheard of.
pub(crate) const TEMPORARY_NAME_TRIES_MAX: u32 = 16;

/// First pause between attempts: about one round trip to a remote store.
pub(crate) const RETRY_DELAY_FIRST: Duration = Duration::from_millis(100);

/// Longest pause between attempts: a store that comes back is noticed within this time.
pub(crate) const RETRY_DELAY_MAX: Duration = Duration::from_secs(10);

/// How long reads are retried by default before the reader gets an error.
pub(crate) const READ_DEADLINE: Duration = Duration::from_secs(120);

/// One warning per this interval from an operation that keeps failing.
pub(crate) const RETRY_WARNING_INTERVAL: Duration = Duration::from_secs(60);
