//! Whether there is to be a cache on the local disk, and how large.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Deserializer};
use weir_cache::engine::CACHE_BYTES_MIN;

use crate::size::Size;

/// Whether a node has a cache on its local disk.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum CacheSetting {
    /// Where the store is not a directory of the same disk, and a tenth of what is free is at least 1 GiB.
    #[default]
    Auto,
    /// None.
    Off,
    /// Of so many bytes.
    Bytes(u64),
}

impl FromStr for CacheSetting {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match text {
            "auto" => Ok(Self::Auto),
            "off" => Ok(Self::Off),
            _ => match text.parse() {
                Ok(Size(bytes)) if bytes >= CACHE_BYTES_MIN => Ok(Self::Bytes(bytes)),
                Ok(Size(bytes)) => Err(format!(
                    "a cache of {bytes} bytes is too small: give it at least {}",
                    Size(CACHE_BYTES_MIN)
                )),
                Err(_) => Err(format!("\"{text}\" is neither \"auto\", \"off\" nor a size as 20G")),
            },
        }
    }
}

/// As it is read back.
impl fmt::Display for CacheSetting {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Auto => f.write_str("auto"),
            Self::Off => f.write_str("off"),
            Self::Bytes(bytes) => match bytes {
                bytes if bytes % (1 << 30) == 0 => write!(f, "{}G", bytes >> 30),
                bytes if bytes % (1 << 20) == 0 => write!(f, "{}M", bytes >> 20),
                bytes => write!(f, "{bytes}"),
            },
        }
    }
}

impl<'de> Deserialize<'de> for CacheSetting {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = String::deserialize(deserializer)?;
        text.parse().map_err(serde::de::Error::custom)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_cache_is_asked_for_by_size_or_word() {
        let parse = |text: &str| text.parse::<CacheSetting>();
        assert_eq!(parse("auto"), Ok(CacheSetting::Auto));
        assert_eq!(parse("off"), Ok(CacheSetting::Off));
        assert_eq!(parse("20G"), Ok(CacheSetting::Bytes(20 << 30)));
        for text in ["auto", "off", "20G", "96M", "100000001"] {
            assert_eq!(parse(text).map(|setting| setting.to_string()), Ok(text.to_owned()));
        }
        assert!(parse("1M").unwrap_err().contains("at least 8"));
        assert!(parse("on").unwrap_err().contains("neither \"auto\", \"off\" nor a size"));
    }
}
