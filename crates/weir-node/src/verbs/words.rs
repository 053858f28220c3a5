//! Words of the command line that stand for values of requests.

use std::time::Duration;

use weir_log::catalog::VolumeName;

use super::warm::ByteSpan;
use crate::config::{parse_burst, parse_share};
use crate::size::Size;

/// A name of a volume.
pub(super) fn volume_name(text: &str) -> Result<String, String> {
    VolumeName::new(text).map(|name| name.to_string()).map_err(|error| error.to_string())
}

/// A number of seconds that pass at once after a pause, as milliseconds.
pub(super) fn burst(text: &str) -> Result<u64, String> {
    let milliseconds = Duration::from_secs_f64(parse_burst(text)?).as_millis();
    u64::try_from(milliseconds).map_err(|error| error.to_string())
}

/// A number of operations.
pub(super) fn count(text: &str) -> Result<u64, String> {
    let count = text.parse().ok().filter(|count| *count > 0);
    count.ok_or_else(|| format!("{text:?} is neither a number from 1 on nor \"none\""))
}

/// A share, as percent; `70%` is `70`.
pub(super) fn percent(text: &str) -> Result<u64, String> {
    parse_share(text)
}

/// A size, as bytes.
pub(super) fn size_bytes(text: &str) -> Result<u64, String> {
    text.parse().map(|Size(bytes)| bytes)
}

/// Bytes from one place to another, as `1G..2G`; either may be left out.
pub(super) fn byte_span(text: &str) -> Result<ByteSpan, String> {
    let Some((from, to)) = text.split_once("..") else {
        return Err(format!("{text:?} is no range: give it as FROM..TO, as 0..20G or 1T.."));
    };
    let bytes = |text: &str| match text {
        "0" => Ok(0),
        _ => size_bytes(text),
    };
    let from = if from.is_empty() { 0 } else { bytes(from)? };
    let to = if to.is_empty() { None } else { Some(bytes(to)?) };
    match to {
        Some(to) if to <= from => {
            Err(format!("{text:?} is empty: give an end behind its begin, as 1G..2G"))
        }
        _ => Ok(ByteSpan { from, to }),
    }
}

#[cfg(test)]
mod tests {
    use weir_stack::LimitSettings;

    use super::*;
    use crate::config::check_burst;

    #[test]
    fn a_range_has_two_ends_which_may_be_left_out() {
        let span = |text| byte_span(text).map(|ByteSpan { from, to }| (from, to));
        assert_eq!(span("1M..2M"), Ok((1 << 20, Some(2 << 20))));
        assert_eq!((span("0..4K"), span("4K..")), (Ok((0, Some(4096))), Ok((4096, None))));
        assert_eq!((span(".."), span("..7")), (Ok((0, None)), Ok((0, Some(7)))));
        for (wrong, why) in [("5G", "is no range"), ("2M..1M", "is empty"), ("x..1M", "no size")] {
            let error = span(wrong).unwrap_err();
            assert!(error.contains(why), "{error}");
        }
    }

    #[test]
    fn a_burst_has_the_bounds_that_a_limit_takes() {
        assert_eq!((burst("0.01"), burst("3600")), (Ok(10), Ok(3_600_000)));
        for wrong in ["0.009", "3601", "86400", "NaN"] {
            let message = burst(wrong).unwrap_err();
            assert!(message.ends_with("is no number of seconds from 0.01 to 3600"), "{message}");
        }
        assert_eq!(burst("x"), Err("\"x\" is no number of seconds".to_owned()));
        for seconds in [0.01, 3600.0, 3601.0] {
            let limit =
                LimitSettings::checked(Some(1), None, Some(Duration::from_secs_f64(seconds)));
            assert_eq!(check_burst(seconds).is_ok(), limit.is_ok(), "{seconds}");
        }
    }

    #[test]
    fn what_is_no_number_is_said_in_words() {
        assert_eq!((count("500"), percent("70"), percent("70 %")), (Ok(500), Ok(70), Ok(70)));
        for wrong in [count("0"), count("none"), percent("0"), percent("101"), percent("x%")] {
            let message = wrong.unwrap_err();
            assert!(
                (message.contains(" is no ") || message.contains("neither"))
                    && !message.contains("digit"),
                "{message}"
            );
        }
    }
}
