//! What can be wrong with a trace.

use std::io;

/// An error of a trace.
#[derive(Debug, thiserror::Error)]
pub enum TraceError {
    /// It cannot be read.
    #[error("reading {path}: {source}")]
    Io {
        /// The file.
        path: String,
        /// Why not.
        #[source]
        source: io::Error,
    },
    /// Nothing in it tells what it is.
    #[error("{path} is in no format that can be guessed; name it with --format: {known}")]
    Unknown {
        /// The file.
        path: String,
        /// Names of the formats.
        known: String,
    },
    /// A line or a record is not as its format says.
    #[error("{path}, {unit} {number}, is no request in the format {format}: {text:?}")]
    Malformed {
        /// The file.
        path: String,
        /// `line` or `record`.
        unit: &'static str,
        /// Its number, from 1.
        number: u64,
        /// Name of the format.
        format: &'static str,
        /// The beginning of it.
        text: String,
    },
    /// A line or a record would read or write more than disks are asked for at once.
    #[error(
        "{path}, {unit} {number}, would be a request of {bytes} bytes in the format {format}, above 1 GiB: the trace \
         may be in another format, and --format names it"
    )]
    TooLong {
        /// The file.
        path: String,
        /// `line` or `record`.
        unit: &'static str,
        /// Its number, from 1.
        number: u64,
        /// Name of the format.
        format: &'static str,
        /// What would be its length.
        bytes: u64,
    },
}
