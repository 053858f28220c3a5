//! Words of the command line that stand for values of requests.

use std::time::Duration;

use weir_log::catalog::VolumeName;

use crate::config::check_seconds;
use crate::size::Size;

/// A name of a volume.
pub(super) fn volume_name(text: &str) -> Result<String, String> {
    VolumeName::new(text).map(|name| name.to_string()).map_err(|error| error.to_string())
}

/// A number of seconds, as milliseconds.
pub(super) fn milliseconds(text: &str) -> Result<u64, String> {
    let wrong = || format!("{text:?} is no number of seconds from 0.01 to 86400");
    let seconds = check_seconds(text.parse().map_err(|_| wrong())?).map_err(|_| wrong())?;
    u64::try_from(Duration::from_secs_f64(seconds).as_millis()).map_err(|_| wrong())
}

/// A size, as bytes.
pub(super) fn size_bytes(text: &str) -> Result<u64, String> {
    text.parse().map(|Size(bytes)| bytes)
}
