//! The configuration file `weir.toml`: every setting of a node. Each is a flag and an environment variable too.

mod changes;
mod file;
mod memory;
mod remote;
mod volume;

use std::path::{Path, PathBuf};

use serde::{Deserialize, Deserializer};
use weir_log::catalog::VolumeName;
use weir_net::tls::MinVersion;

pub use self::file::FileConfig;
pub use self::memory::{MEMORY_BYTES_DEFAULT, Memory};
pub use self::remote::{Remote, RemoteConfig};
pub use self::volume::{
    CollectOrder, CompressionKind, ReplicateTo, VolumeConfig, VolumeSettings, check_burst,
    check_percent, check_rpo, check_seconds, parse_burst, parse_share,
};
use crate::error::NodeError;
use crate::serve::cache_setting::CacheSetting;
use crate::size::Size;

/// All settings that a file can have. What it does not set is left to flags, variables and defaults.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Config {
    /// Journals, sockets and the embedded store.
    pub data_dir: Option<PathBuf>,
    /// URL of the store.
    pub store: Option<String>,
    /// Use a store that does not keep two writers apart.
    pub single_writer: Option<bool>,
    /// `text` or `json`.
    pub log_format: Option<LogFormat>,
    /// Refuse writes of clients, on all volumes.
    pub read_only: Option<bool>,
    /// Memory for buffers; maps come on top.
    pub memory: Option<Size>,
    /// Cache of objects on the local disk: `auto`, `off` or a size.
    pub cache: Option<CacheSetting>,
    /// Bytes that are written to it in a day at most.
    pub cache_wear: Option<Size>,
    /// Threads that volumes live on.
    pub shards: Option<usize>,
    /// Length of the node's lease in seconds.
    #[serde(deserialize_with = "lease_seconds")]
    pub lease: Option<f64>,
    /// File with the keys of encrypted volumes.
    pub key_file: Option<PathBuf>,
    /// Command that prints them.
    pub key_command: Option<String>,
    /// Whether volumes that are created are encrypted.
    pub encrypt: Option<bool>,
    /// Where NBD clients connect.
    pub nbd: NbdConfig,
    /// Certificates, and who may use the volumes.
    pub tls: TlsConfig,
    /// The API over TCP.
    pub api: ApiConfig,
    /// Limits on uploads.
    pub limits: LimitsConfig,
    /// Settings of volumes that have none of their own.
    pub defaults: VolumeSettings,
    /// The volumes to be served; all volumes of the store if none is named.
    pub volumes: Vec<VolumeConfig>,
}

/// Form of log lines.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum LogFormat {
    /// For people.
    Text,
    /// One JSON object per line.
    Json,
}

/// Where NBD clients connect.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct NbdConfig {
    /// A unix socket.
    pub socket: Option<PathBuf>,
    /// Permissions of that socket, in octal digits.
    pub mode: Option<String>,
    /// The group that it belongs to.
    pub group: Option<String>,
    /// A TCP address, as `127.0.0.1:10809`.
    pub listen: Option<String>,
    /// Take clients without TLS as well, also at an address that other machines reach.
    pub insecure: Option<bool>,
}

/// Certificates, and who may use the volumes.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct TlsConfig {
    /// Directory with `ca-cert.pem`, `server-cert.pem`, `server-key.pem`, and `ca-crl.pem` if there is one.
    pub certificates: Option<PathBuf>,
    /// Names in certificates that may use the volumes that have no list of their own; everybody with a certificate,
    /// where there is none.
    pub allow: Option<Vec<String>>,
    /// The oldest version that is spoken, with clients, callers of the API and other servers: `1.2` or `1.3`.
    pub min_version: Option<MinVersion>,
}

/// The API over TCP.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct ApiConfig {
    /// A TCP address, as `127.0.0.1:10808`.
    pub listen: Option<String>,
    /// File with the token that callers over TCP must send.
    pub token_file: Option<PathBuf>,
    /// Names in certificates that may use it without a token, where it is served under TLS.
    pub allow: Option<Vec<String>>,
    /// Allow an address that other machines reach, without encryption.
    pub insecure: Option<bool>,
}

/// Limits on uploads to the store.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct LimitsConfig {
    /// Bytes per second.
    pub upload_bandwidth: Option<Size>,
    /// Requests per second.
    pub upload_requests: Option<u64>,
}

/// Least that may be written to a cache in a day: with less it is of no use.
const WEAR_BYTES_MIN: u64 = 1 << 30;

/// Checks how much may be written to the cache in a day.
///
/// # Errors
/// A sentence for the user.
pub fn check_wear(bytes: u64) -> Result<u64, String> {
    (bytes >= WEAR_BYTES_MIN).then_some(bytes).ok_or_else(|| {
        format!(
            "{bytes} bytes a day are too few for a cache: give it at least {}",
            Size(WEAR_BYTES_MIN)
        )
    })
}

/// Checks the length of a lease.
///
/// # Errors
/// A sentence for the user.
pub fn check_lease_seconds(number: f64) -> Result<f64, String> {
    let range = 1.0..=3600.0;
    range
        .contains(&number)
        .then_some(number)
        .ok_or_else(|| format!("\"{number}\" is no number of seconds from 1 to 3600"))
}

fn lease_seconds<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<f64>, D::Error> {
    let number = f64::deserialize(deserializer)?;
    check_lease_seconds(number).map(Some).map_err(serde::de::Error::custom)
}

/// The file, the line that is wrong in it, and its setting where the message does not name that.
fn place_of(error: &toml::de::Error, text: &str, file: &str) -> String {
    let Some(span) = error.span() else { return file.to_owned() };
    let number = text[..span.start].matches('\n').count() + 1;
    let setting = text.lines().nth(number - 1).and_then(|line| line.split_once('='));
    let setting = setting.map(|(name, _)| name.trim());
    let setting = setting.filter(|name| !error.message().contains(&format!("`{name}`")));
    let setting = setting.map_or(String::new(), |name| format!(", {name}"));
    format!("{file}, line {number}{setting}")
}

impl Config {
    /// Reads a file.
    ///
    /// # Errors
    /// [`NodeError::Config`] naming the file, the line and the setting.
    pub fn read(path: &Path) -> Result<Self, NodeError> {
        let place = path.display().to_string();
        let text = std::fs::read_to_string(path)
            .map_err(|source| NodeError::io("reading", place.clone(), source))?;
        Self::parse(&text, &place)
    }

    /// Parses the text of a file; `place` names it in errors.
    ///
    /// # Errors
    /// As [`Config::read`].
    pub fn parse(text: &str, place: &str) -> Result<Self, NodeError> {
        let config: Self = toml::from_str(text).map_err(|error| {
            let place = place_of(&error, text, place);
            let help = nearest(error.message());
            NodeError::Config { place, message: error.message().to_owned(), help }
        })?;
        config.check().map_err(|(message, help)| NodeError::Config {
            place: place.to_owned(),
            message,
            help,
        })?;
        Ok(config)
    }

    /// Checks what the types alone do not rule out.
    fn check(&self) -> Result<(), (String, Option<String>)> {
        if let Some(Size(bytes)) = self.memory {
            Memory::new(bytes).map_err(|message| (message, None))?;
        }
        if let Some(Size(bytes)) = self.cache_wear {
            check_wear(bytes).map_err(|message| (message, None))?;
        }
        if self.shards == Some(0) {
            return Err(("shards must be at least 1".to_owned(), None));
        }
        if self.key_file.is_some() && self.key_command.is_some() {
            let help = "keep one of them: each gives all the keys there are".to_owned();
            return Err(("both key_file and key_command are set".to_owned(), Some(help)));
        }
        self.defaults.check().map_err(|(message, help)| (message, Some(help)))?;
        for (index, volume) in self.volumes.iter().enumerate() {
            VolumeName::new(&volume.name).map_err(|error| (error.to_string(), None))?;
            if self.volumes[..index].iter().any(|other| other.name == volume.name) {
                return Err((format!("volume {:?} is listed twice", volume.name), None));
            }
            let of_volume = |(message, help): (String, String)| {
                (format!("volume {:?}: {message}", volume.name), Some(help))
            };
            volume.settings().or(self.defaults).check().map_err(of_volume)?;
            if volume.remote.is_some() && volume.file.is_some() {
                let help = "keep one of them: each says where all bytes are".to_owned();
                return Err(of_volume(("both remote and file are set".to_owned(), help)));
            }
            if let Some(remote) = &volume.remote {
                remote.checked().map_err(of_volume)?;
            }
            if let Some(file) = &volume.file {
                file.checked().map_err(of_volume)?;
            }
        }
        Ok(())
    }
}

/// The names in an error message of serde: first the unknown one, then those that are allowed.
fn quoted(message: &str) -> Vec<&str> {
    message.split('`').skip(1).step_by(2).collect()
}

/// The allowed name that is closest to an unknown one.
fn nearest(message: &str) -> Option<String> {
    if !message.contains("unknown field") && !message.contains("unknown variant") {
        return None;
    }
    let names = quoted(message);
    let (wrong, known) = names.split_first()?;
    let distance = |name: &&&str| strsim::damerau_levenshtein(name, wrong);
    let nearest = known.iter().min_by_key(distance)?;
    if distance(&nearest) <= (wrong.len() / 2).max(2) {
        return Some(format!("did you mean `{nearest}`?"));
    }
    Some(format!("known here are {}", known.join(", ")))
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use weir_log::CollectLimits;

    use super::*;

    fn error(text: &str) -> (String, String) {
        let error = Config::parse(text, "weir.toml").unwrap_err();
        (error.to_string(), error.help().unwrap_or_default())
    }

    #[test]
    fn a_full_file_is_understood() {
        let text = include_str!("../../../../deploy/weir.toml");
        let config = Config::parse(text, "weir.toml").unwrap();
        assert_eq!(config, Config::default(), "the shipped file says only what it comments out");
        let uncommented: String = text
            .lines()
            .map(|line| match line.strip_prefix("#:") {
                Some(setting) => format!("{setting}\n"),
                None => format!("{line}\n"),
            })
            .collect();
        let config = Config::parse(&uncommented, "weir.toml").unwrap();
        assert_eq!(config.memory, Some(Size(512 << 20)));
        assert_eq!(config.volumes.len(), 4);
        assert_eq!(config.volumes[1].settings().journal, Some(Size(4 << 30)));
        assert_eq!((config.defaults.rpo, config.volumes[1].rpo), (Some(60.0), Some(600.0)));
        assert_eq!(config.defaults.collect(), CollectLimits::default());
        assert_eq!(config.volumes[1].settings().collect_order, Some(CollectOrder::CostBenefit));
        assert_eq!(config.lease, Some(60.0));
        assert_eq!(config.cache_wear, Some(Size(500 << 30)));
        assert_eq!(config.volumes[1].settings().cache_share, Some(20));
        let limit = config.volumes[1].settings().limit().unwrap();
        assert_eq!((limit.iops.map(u64::from), limit.burst), (Some(500), Duration::from_secs(2)));
        assert_eq!(config.volumes[1].trace, Some("/var/lib/weir/archive.csv".into()));
        assert_eq!(config.limits.upload_bandwidth, Some(Size(100 << 20)));
    }

    #[test]
    fn unknown_settings_are_refused_with_the_nearest_known_one() {
        for (text, place, help) in [
            ("stor = \"x\"", "line 1: unknown field `stor`", "did you mean `store`?"),
            ("\n[ndb]\n", "line 2: unknown field `ndb`", "did you mean `nbd`?"),
            ("[nbd]\nsockett = \"x\"", "line 2: unknown field `sockett`", "did you mean `socket`?"),
            ("[defaults]\njornal = 1", "unknown field `jornal`", "did you mean `journal`?"),
            (
                "[[volumes]]\nname = \"a\"\nsise = 1",
                "line 3: unknown field",
                "did you mean `size`?",
            ),
            ("[defaults]\ncompression = \"lz5\"", "unknown variant `lz5`", "did you mean `lz4`?"),
            ("xxxxxxxxxxxxxxxxxxx = 1", "unknown field", "known here are data_dir, store"),
        ] {
            let (message, advice) = error(text);
            assert!(message.contains(place), "{text}: {message}");
            assert!(advice.contains(help), "{text}: {advice}");
        }
    }

    #[test]
    fn wrong_values_are_named() {
        for (text, reason) in [
            ("memory = \"10M\"", "at least 64M"),
            ("memory = \"lots\"", "is no size"),
            ("memory = -1", "is no size"),
            ("shards = 0", "at least 1"),
            ("cache_wear = \"1M\"", "1048576 bytes a day are too few for a cache"),
            ("[defaults]\ncache_share = 0", "\"0\" is no share: give 1 to 100 percent"),
            ("[[volumes]]\nname = \"a\"\ncache_share = \"101%\"", "\"101%\" is no share"),
            ("lease = 0.5", "seconds from 1 to 3600"),
            ("read_only = 1", "line 1, read_only: invalid type"),
            ("[defaults]\nbatch_age = 0.0", "seconds from 0.01"),
            ("[defaults]\nrpo = 0.5", "an rpo of 0.5 seconds is not within 1 to 86400"),
            ("[[volumes]]\nname = \"a\"\nrpo = 90000.0", "an rpo of 90000 seconds is not within"),
            ("[defaults]\ncollect_below = 101", "no percentage from 0 to 100"),
            ("[defaults]\ncollect_to = 69", "end at 69 % live and begin below 70 %"),
            (
                "[defaults]\ncollect_to = 80\n[[volumes]]\nname = \"a\"\ncollect_below = 81",
                "volume \"a\": collection would end at 80 % live and begin below 81 %",
            ),
            ("[defaults]\niops = 0", "a limit of 0 operations per second"),
            ("[[volumes]]\nname = \"a\"\nbandwidth = 0", "at least 1 byte"),
            ("[defaults]\nburst = 4000.0", "a burst of 4000 s"),
            ("[[volumes]]\nsize = 1", "missing field `name`"),
            ("[[volumes]]\nname = \"a\"\nremote.uri = \"a\"", "volume \"a\": \"a\" is no address"),
            ("[[volumes]]\nname = \"a\"\nremote.resend = true", "missing field `uri`"),
            ("[[volumes]]\nname = \"a\"\nfile.path = \"a.raw\"", "does not begin with /"),
            ("[[volumes]]\nname = \"a\"\nfile.direct = true", "missing field `path`"),
            (
                "[[volumes]]\nname = \"a\"\nfile.path = \"/a\"\nremote.uri = \"nbd://a/b\"",
                "both remote and file are set",
            ),
            ("[[volumes]]\nname = \"a/b\"", "only letters, digits"),
            ("[[volumes]]\nname = \"a\"\n[[volumes]]\nname = \"a\"", "listed twice"),
            ("key_file = \"a\"\nkey_command = \"b\"", "both key_file and key_command"),
            ("store = ", "line 1"),
        ] {
            let (message, _) = error(text);
            assert!(message.contains(reason), "{text}: {message}");
        }
    }

    #[test]
    fn collection_ends_a_little_above_where_it_begins_unless_told_otherwise() {
        let collect = |below, to| {
            let settings = VolumeSettings {
                collect_below: below,
                collect_to: to,
                ..VolumeSettings::default()
            };
            let limits = settings.options(Memory::default(), 1).collect;
            (settings.check().is_ok(), limits.start_percent, limits.stop_percent)
        };
        assert_eq!(collect(None, None), (true, 70, 75));
        assert_eq!(collect(Some(90), None), (true, 90, 95));
        assert_eq!(collect(Some(98), None), (true, 98, 100));
        assert_eq!(collect(Some(0), None), (true, 0, 5));
        assert_eq!(collect(None, Some(85)), (true, 70, 85));
        assert_eq!(collect(None, Some(50)), (false, 70, 50));
        let (message, help) = error("[defaults]\njournal = \"1K\"");
        assert!(message.contains("a journal of 1.0 KiB is too small"), "{message}");
        assert_eq!(help, "set journal to 64M or more");
        let (_, help) = error("[defaults]\nbatch = \"1K\"");
        assert_eq!(help, "set batch to 64K or more");
        let (message, help) = error("[defaults]\nbatch = \"41M\"");
        assert!(message.contains("does not fit an object"), "{message}");
        assert_eq!(help, "set batch to 40M or less");
        let (message, help) = error("[defaults]\ncollect_to = 50");
        assert!(message.contains("collection would end at 50 %"), "{message}");
        assert_eq!(help, "set collect_to to 70 or more, or collect_below to 50 or less");
    }

    #[test]
    fn rpo_counts_and_batch_age_only_bounds_further() {
        let ages = |rpo, batch_age| {
            let settings = VolumeSettings { rpo, batch_age, ..VolumeSettings::default() };
            let limits = settings.options(Memory::default(), 1).batch;
            (limits.rpo.as_secs_f64(), limits.age.as_secs_f64())
        };
        assert_eq!(ages(None, None), (60.0, 5.0));
        assert_eq!(ages(Some(600.0), None), (600.0, 5.0));
        assert_eq!(ages(Some(2.0), None), (2.0, 2.0));
        assert_eq!(ages(None, Some(0.2)), (60.0, 0.2));
        assert_eq!(ages(None, Some(3600.0)), (3600.0, 3600.0));
        assert_eq!(ages(Some(10.0), Some(1.0)), (10.0, 1.0));
        assert_eq!(ages(Some(10.0), Some(3600.0)), (10.0, 10.0));
        let note = |rpo, batch_age| {
            let settings = VolumeSettings { rpo, batch_age, ..VolumeSettings::default() };
            settings.batch_age_note()
        };
        assert_eq!(note(Some(10.0), None), None);
        let derived = note(None, Some(0.2)).unwrap();
        assert!(derived.contains("derived from rpo now, which is 60 s; the 0.2 s"), "{derived}");
        let contradicts = note(Some(10.0), Some(3600.0)).unwrap();
        assert!(contradicts.contains("3600 s is longer than the rpo of 10 s"), "{contradicts}");
    }

    #[test]
    fn flags_go_before_the_file_and_the_file_before_defaults() {
        let journal = |size| VolumeSettings { journal: Some(Size(size)), ..Default::default() };
        let both = VolumeSettings { batch: Some(Size(1)), ..journal(1 << 30) };
        assert_eq!(journal(1 << 20).or(both).journal, Some(Size(1 << 20)));
        assert_eq!(journal(1 << 20).or(both).batch, Some(Size(1)));
        let options = both.options(Memory::default(), 1);
        assert_eq!((options.journal.segments_max, options.journal.segment_bytes), (16, 64 << 20));
        for (bytes, segments, of) in [(64 << 20, 8, 8 << 20), (100 << 20, 8, 13 << 20)] {
            let small = journal(bytes).options(Memory::default(), 1).journal;
            assert_eq!((small.segments_max, small.segment_bytes), (segments, of));
        }
        assert_eq!(options.batch.bytes, 1);
        assert_eq!(options.journal.resident_bytes_max, 64 << 20);
        assert_eq!(both.options(Memory::default(), 8).journal.resident_bytes_max, 16 << 20);
        assert_eq!(both.options(Memory::default(), 99).journal.resident_bytes_max, 8 << 20);
    }
}
