//! Sizes as people write them: bytes, or a whole number with K, M, G, T, P or E, powers of 1024.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Deserializer};

/// Largest size that a volume can have, in bytes: offsets stay within the signed 64 bits that clients use.
pub const SIZE_BYTES_MAX: u64 = weir_log::limits::VOLUME_BYTES_MAX;

const SUFFIXES: [char; 6] = ['K', 'M', 'G', 'T', 'P', 'E'];

/// A size of a volume in bytes, at least 1.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Size(pub u64);

impl FromStr for Size {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let form = || {
            format!("{text:?} is no size: write bytes, or a whole number with K, M, G or T, as 10G")
        };
        let digits = text.trim_end_matches(|c: char| !c.is_ascii_digit());
        let suffix = &text[digits.len()..];
        let unit: u128 = if suffix.is_empty() {
            1
        } else {
            let found = SUFFIXES
                .iter()
                .position(|c| suffix.eq_ignore_ascii_case(c.encode_utf8(&mut [0; 4])));
            1 << (10 * (found.ok_or_else(form)? + 1))
        };
        if digits.is_empty() || !digits.bytes().all(|b| b.is_ascii_digit()) {
            return Err(form());
        }
        let number = digits.parse::<u128>().unwrap_or(u128::MAX);
        match u64::try_from(number.saturating_mul(unit)) {
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
    fn sizes_are_bytes_or_powers_of_1024() {
        for (text, bytes) in [
            ("1", 1),
            ("512", 512),
            ("4K", 4096),
            ("4k", 4096),
            ("10G", 10 << 30),
            ("16T", 16 << 40),
            ("7E", 7 << 60),
            ("9223372036854771712", SIZE_BYTES_MAX),
        ] {
            assert_eq!(text.parse(), Ok(Size(bytes)), "{text}");
        }
    }

    #[test]
    fn other_sizes_are_refused_with_the_reason() {
        for text in ["", "G", "1.5G", "-1", "1 G", "10GB", "0x10", "1_000", "\u{664}"] {
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
