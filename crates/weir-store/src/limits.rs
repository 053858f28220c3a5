//! Named limits of this crate, each with where its number comes from.

use std::time::Duration;

/// Longest key, in bytes. S3 allows 1024; half of it leaves room for a prefix in the store's URL.
pub const KEY_BYTES_MAX: usize = 512;

/// Longest part of a key between slashes, in bytes: `NAME_MAX` of Linux file systems.
pub const KEY_SEGMENT_BYTES_MAX: usize = 255;

/// How long one attempt of one operation may take. An 8 MiB object in a minute is 140 KB/s: slower is broken.
pub const ATTEMPT_TIMEOUT: Duration = Duration::from_secs(60);

/// How long the pieces of one operation on a directory wait for leave of the pacer in all: the rest of
/// [`ATTEMPT_TIMEOUT`] is for the operation itself.
pub(crate) const LEAVE_PATIENCE: Duration = Duration::from_secs(20);

/// How long an object waits for leave of the pacer before it is put to another store: many that ask at a time have no
/// order among them.
pub(crate) const OBJECT_PATIENCE: Duration = Duration::from_secs(60);

/// Operations on a directory whose pieces may wait for leave, at a time.
pub(crate) const PACED_AT_A_TIME_MAX: usize = 64;

/// How long one waits for its place among these before it looks whether it needs one still.
pub(crate) const PLACE_PAUSE: Duration = Duration::from_millis(100);

/// Objects of one page of a listing: what S3 returns at most for one request.
pub(crate) const LISTED_PAGE_KEYS: usize = 1000;

/// A temporary file older than this belongs to no living writer: sixty times the attempt timeout.
pub(crate) const TEMPORARY_AGE_MAX: Duration = Duration::from_secs(3600);

/// Names tried for one temporary file. Names carry 64 random bits; a second try is already unheard of.
pub(crate) const TEMPORARY_NAME_TRIES_MAX: u32 = 16;

/// Longest read of a directory that is tried without another thread: copying it takes some 20 us.
pub(crate) const CACHED_READ_BYTES_MAX: u64 = 128 << 10;

/// First pause between attempts: about one round trip to a remote store.
pub(crate) const RETRY_DELAY_FIRST: Duration = Duration::from_millis(100);

/// Longest pause between attempts: a store that comes back is noticed within this time.
pub(crate) const RETRY_DELAY_MAX: Duration = Duration::from_secs(10);

/// A disk that answered no read for so long, although some are on their way, is asked by threads alone.
pub(crate) const READS_STALLED_AFTER: Duration = Duration::from_millis(500);

/// How long a read by the thread that asks may take. Another one then tries, with the time of an attempt.
pub(crate) const HERE_PATIENCE: Duration = Duration::from_secs(2);

/// Files of objects that one store in a directory holds open for the next read: 8 GiB of full objects.
pub(crate) const HELD_FILES_MAX: usize = 1024;

/// Held files that are looked at for one to close, where there is no room for another.
pub(crate) const HELD_FILES_TRIED: usize = 8;

/// A file that is not read for so long is closed.
pub(crate) const HELD_FILES_INTERVAL: Duration = Duration::from_secs(5);

/// How long reads are retried by default before the reader gets an error.
pub(crate) const READ_DEADLINE: Duration = Duration::from_secs(120);

/// One warning per this interval from an operation that keeps failing.
pub(crate) const RETRY_WARNING_INTERVAL: Duration = Duration::from_secs(60);

/// Time after which an operation that keeps failing is warned of for the first time: longer than what a store needs to
/// restart a part of itself, shorter than what makes a user look.
pub(crate) const RETRY_WARNING_FIRST: Duration = Duration::from_secs(10);

/// How old keys read from a shared credentials file may be: rotated keys are taken up within this time.
pub(crate) const CREDENTIALS_FILE_AGE_MAX: Duration = Duration::from_secs(30);

/// How long connecting may take; the rest of [`ATTEMPT_TIMEOUT`] is for the request itself.
pub(crate) const CONNECT_TIMEOUT: Duration = Duration::from_secs(10);

/// Threads that carry the requests of all stores over the network: one can encrypt about 1 GB/s.
pub(crate) const HTTP_THREADS: usize = 2;

/// Longest prefix in a store's URL, in bytes: with the longest key below it, the 1024 bytes of a key in S3.
pub(crate) const PREFIX_BYTES_MAX: usize = 1024 - KEY_BYTES_MAX;

/// Of the body of an error reply, this much is looked at. S3 sends some hundred bytes of XML.
pub(crate) const ERROR_BODY_BYTES_MAX: usize = 64 << 10;

/// Of a store's own message, this much is shown.
pub(crate) const ERROR_MESSAGE_CHARS_MAX: usize = 300;

/// PUTs of at most this many bytes are counted by the upload limits and do not wait for them: manifests and leases,
/// which hold everything else up.
pub const UNDELAYED_PUT_BYTES_MAX: u64 = 64 << 10;

/// From how many bytes on a body goes with a checksum in place of a signature of its own, where the store heeds it:
/// SHA-256 of 8 MiB takes 4 to 5 ms of CPU time, and as much in the store.
pub(crate) const CHECKSUM_BYTES_MIN: usize = 64 << 10;

/// How long the first large body waits to learn whether the store heeds checksums.
pub(crate) const CHECKSUM_DEADLINE: Duration = Duration::from_secs(5);

/// Writers that race for one key in a probe.
pub(crate) const PROBE_WRITERS: usize = 16;

/// Keys they race for, one after the other. A store that takes no care is caught in the first; one that only has a gap
/// between looking and creating let several of 16 win in every round that was tried.
pub(crate) const PROBE_ROUNDS: usize = 6;

/// Objects that a probe looks for in a listing.
pub(crate) const PROBE_LISTED: usize = 20;

/// How long a probe retries one operation before it counts as failed.
pub(crate) const PROBE_DEADLINE: Duration = Duration::from_secs(30);

/// Longest pause of an upload before its limit is looked at again.
pub(crate) const UPLOAD_PAUSE_MAX: Duration = Duration::from_secs(3600);

/// Longest record of a probe, in bytes; it has a few hundred.
pub(crate) const PROBE_RECORD_BYTES_MAX: u64 = 64 << 10;

/// How long a verb that only looks waits for a store that does not answer: as long as somebody at a terminal.
pub(crate) const LOOK_DEADLINE: Duration = Duration::from_secs(30);
