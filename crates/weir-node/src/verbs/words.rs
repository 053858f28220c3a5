//! Words of the command line that stand for values of requests.

use std::time::Duration;

use weir_log::catalog::VolumeName;

use crate::config::{check_seconds, parse_share};
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

/// A number of operations.
pub(super) fn count(text: &str) -> Result<u64, String> {
    let count = text.parse().ok().filter(|count| *count > 0);
    count.ok_or_else(|| {
        format!("{text:?} is no number from 1 on; no limit is there where the flag is left away")
    })
}

/// A share, as percent; `70%` is `70`.
pub(super) fn percent(text: &str) -> Result<u64, String> {
    parse_share(text)
}

/// A size, as bytes.
pub(super) fn size_bytes(text: &str) -> Result<u64, String> {
    text.parse().map(|Size(bytes)| bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_no_number_is_said_in_words() {
        assert_eq!((count("500"), percent("70"), percent("70 %")), (Ok(500), Ok(70), Ok(70)));
        for wrong in [count("0"), count("none"), percent("0"), percent("101"), percent("x%")] {
            let message = wrong.unwrap_err();
            assert!(message.contains(" is no ") && !message.contains("digit"), "{message}");
        }
    }
}
