//! Words of the command line that stand for values of requests.

use weir_log::catalog::VolumeName;

use crate::size::Size;

/// A name of a volume.
pub(super) fn volume_name(text: &str) -> Result<String, String> {
    VolumeName::new(text).map(|name| name.to_string()).map_err(|error| error.to_string())
}

/// A size, as bytes.
pub(super) fn size_bytes(text: &str) -> Result<u64, String> {
    text.parse().map(|Size(bytes)| bytes)
}
