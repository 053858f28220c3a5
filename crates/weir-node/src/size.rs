//! Sizes as people write them: bytes, or a number with a unit. `K`, `M`, `G` and so on are powers of 1024, as for
//! `qemu-img` and `truncate`, and so are `KiB`, `MiB` and `GiB`; `KB`, `MB` and `GB` are powers of 1000. What is
//! printed is read back.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Deserializer};

/// Largest size that a volume can have, in bytes: offsets stay within the signed 64 bits that clients use.
pub const SIZE_BYTES_MAX: u64 = weir_log::limits::VOLUME_BYTES_MAX;

const SUFFIXES: [char; 6] = ['K', 'M', 'G', 'T', 'P', 'E'];

/// Digits after the point that are read: more would be lost in rounding.
const DECIMALS_MAX: usize = 9;

/// A size of a volume in bytes, at least 1.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Size(pub u64);

/// Bytes of a unit; none for one that is unknown.
fn unit(suffix: &str) -> Option<u128> {
    let suffix = suffix.to_ascii_uppercase();
    if matches!(suffix.as_str(), "" | "B") {
        return Some(1);
    }
    let mut rest = suffix.chars();
    let first = rest.next()?;
    let power = u32::try_from(SUFFIXES.iter().position(|c| *c == first)?).ok()? + 1;
    match rest.as_str() {
        "" | "I" | "IB" => Some(1024_u128.pow(power)),
        "B" => Some(1000_u128.pow(power)),
        _ => None,
    }
}

/// The number of so many units, as bytes, rounded down; none for what is no number.
fn bytes(number: &str, unit: u128) -> Option<u128> {
    let (whole, decimals) = match number.split_once('.') {
        Some((whole, decimals)) => (whole, Some(decimals)),
        None => (number, None),
    };
    let is_number = |text: &str| !text.is_empty() && text.bytes().all(|b| b.is_ascii_digit());
    if !is_number(whole) {
        return None;
    }
    let whole = whole.parse::<u128>().unwrap_or(u128::MAX).saturating_mul(unit);
    let Some(decimals) = decimals else { return Some(whole) };
    if !is_number(decimals) || decimals.len() > DECIMALS_MAX || unit == 1 {
        return None;
    }
    let scale = 10_u128.pow(u32::try_from(decimals.len()).ok()?);
    Some(whole.saturating_add(decimals.parse::<u128>().ok()? * unit / scale))
}

impl FromStr for Size {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let form = || {
            format!(
                "{text:?} is no size: write bytes, or a number with K, M, G, T or P (powers of 1024, as KiB) or KB, \
                 MB, GB or TB (powers of 1000), as 10G"
            )
        };
        let number = text.trim_end_matches(|c: char| !c.is_ascii_digit());
        let unit = unit(text[number.len()..].trim_start_matches(' ')).ok_or_else(form)?;
        match u64::try_from(bytes(number, unit).ok_or_else(form)?) {
            Ok(0) => Err("it must be at least 1 byte".to_owned()),
            Ok(bytes) if bytes <= SIZE_BYTES_MAX => Ok(Self(bytes)),
            _ => Err(format!(
                "{text} is too large: a volume has at most {SIZE_BYTES_MAX} bytes (8 EiB less 4 KiB)"
            )),
        }
    }
}

/// As text, or as a number of bytes.
impl<'de> Deserialize<'de> for Size {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        #[derive(Deserialize)]
        #[serde(untagged)]
        enum Form {
            Bytes(i64),
            Text(String),
        }
        let text = match Form::deserialize(deserializer)? {
            Form::Bytes(bytes) => bytes.to_string(),
            Form::Text(text) => text,
        };
        text.parse().map_err(serde::de::Error::custom)
    }
}

impl fmt::Display for Size {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&human(self.0))
    }
}

/// So many of something for people: `1 client`, `2 clients`.
pub fn counted(count: impl fmt::Display + PartialEq + From<u8>, one: &str) -> String {
    let end = if count == 1.into() { "" } else { "s" };
    format!("{count} {one}{end}")
}

/// Bytes for people: `512 B`, `10.0 GiB`.
pub fn human(bytes: u64) -> String {
    let mut whole = bytes;
    let mut rest = 0;
    let mut unit = None;
    for suffix in SUFFIXES {
        if whole < 1024 {
            break;
        }
        rest = whole % 1024;
        whole /= 1024;
        unit = Some(suffix);
    }
    match unit {
        None => format!("{bytes} B"),
        Some(suffix) => format!("{whole}.{} {suffix}iB", rest * 10 / 1024),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_are_read_in_every_usual_spelling() {
        for (text, bytes) in [
            ("1", 1),
            ("512", 512),
            ("512 B", 512),
            ("4K", 4096),
            ("4k", 4096),
            ("4KiB", 4096),
            ("4Ki", 4096),
            ("4KB", 4000),
            ("4 kB", 4000),
            ("10G", 10 << 30),
            ("10GiB", 10 << 30),
            ("10.0 GiB", 10 << 30),
            ("10GB", 10_000_000_000),
            ("1.5G", 3 << 29),
            ("0.1KB", 100),
            ("16T", 16 << 40),
            ("7E", 7 << 60),
            ("9223372036854771712", SIZE_BYTES_MAX),
        ] {
            assert_eq!(text.parse(), Ok(Size(bytes)), "{text}");
        }
    }

    #[test]
    fn what_is_printed_is_read_back() {
        for bytes in [1, 1023, 1024, 1536, 64 << 20, 10 << 30, 3 << 39] {
            assert_eq!(Size(bytes).to_string().parse(), Ok(Size(bytes)));
        }
    }

    #[test]
    fn other_sizes_are_refused_with_the_reason() {
        let wrong =
            ["", "G", "-1", "1  X", "10BG", "10GG", "0x10", "1_000", "\u{664}", "1.", ".5G"];
        for text in wrong.into_iter().chain(["1.5", "1.5.5G", "1.0000000001G", "10 G iB"]) {
            let error = text.parse::<Size>().unwrap_err();
            assert!(error.contains("no size"), "{text}: {error}");
        }
        for text in
            ["8E", "16E", "18446744073709551616", "99999999999999999999999999999999999999999T"]
        {
            let error = text.parse::<Size>().unwrap_err();
            assert!(error.contains("at most 9223372036854771712 bytes"), "{text}: {error}");
        }
        for text in ["0", "0G", "00"] {
            assert_eq!(text.parse::<Size>(), Err("it must be at least 1 byte".to_owned()));
        }
    }

    #[test]
    fn bytes_are_shown_for_people() {
        for (bytes, text) in [
            (0, "0 B"),
            (1023, "1023 B"),
            (1024, "1.0 KiB"),
            (10 << 30, "10.0 GiB"),
            (1536, "1.5 KiB"),
        ] {
            assert_eq!(human(bytes), text);
        }
        assert_eq!(Size(u64::MAX).to_string(), "15.9 EiB");
    }
}
