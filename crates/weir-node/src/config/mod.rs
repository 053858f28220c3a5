//! The configuration file `weir.toml`: every setting of a node. Each is a flag and an environment variable too.

use std::path::{Path, PathBuf};
use std::time::Duration;

use serde::{Deserialize, Deserializer};
use weir_device::DeviceError;
use weir_log::catalog::VolumeName;
use weir_log::limits::BATCH_BYTES_MAX;
use weir_log::{CollectLimits, CollectPolicy, Compression, VolumeOptions};
use weir_stack::LimitSettings;

use crate::error::NodeError;
use crate::size::{Size, human};

/// Memory of a node for buffers unless told otherwise, in bytes.
pub const MEMORY_BYTES_DEFAULT: u64 = 512 << 20;

/// Least memory for buffers, in bytes: below it a few clients alone would take all of it.
const MEMORY_BYTES_MIN: u64 = 64 << 20;

/// How far collection goes on above the share at which it begins unless told otherwise, in percent.
const COLLECT_SPAN_PERCENT: u64 = 5;

/// Smallest journal in bytes: it grows by as much.
const JOURNAL_BYTES_MIN: u64 = 64 << 20;

/// Smallest batch in bytes: an object costs a request.
const BATCH_BYTES_MIN: u64 = 64 << 10;

/// Least memory for a volume's copies of its journal, in bytes: one batch.
const RESIDENT_BYTES_MIN: u64 = 8 << 20;

/// Everything that a file can say. What it does not say is left to flags, variables and defaults.
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
    /// Where clients of NBD come in.
    pub nbd: NbdConfig,
    /// Where verbs come in from elsewhere.
    pub api: ApiConfig,
    /// Limits on uploads.
    pub limits: LimitsConfig,
    /// Settings of volumes that do not say otherwise.
    pub defaults: VolumeSettings,
    /// The volumes to be served; all of the store where there are none.
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

/// Where clients of NBD come in.
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
    /// Take an address that other machines reach, without encryption.
    pub insecure: Option<bool>,
}

/// Where verbs come in from elsewhere.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct ApiConfig {
    /// A TCP address, as `127.0.0.1:10808`.
    pub listen: Option<String>,
    /// File with the token that callers over TCP must send.
    pub token_file: Option<PathBuf>,
    /// Take an address that other machines reach, without encryption.
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

/// How objects are compressed, where it helps.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum CompressionKind {
    /// Fast.
    Lz4,
    /// Smaller.
    Zstd,
    /// Not at all.
    None,
}

/// Which objects are collected first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum CollectOrder {
    /// Those of which the least lives.
    Greedy,
    /// Old ones before young ones of which a little less lives.
    CostBenefit,
}

/// Settings of a volume. None of them changes what is promised.
#[derive(Clone, Copy, Debug, Default, PartialEq, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct VolumeSettings {
    /// Largest local journal.
    pub journal: Option<Size>,
    /// Bytes that make an object.
    pub batch: Option<Size>,
    /// Longest time in seconds that a write waits for its object.
    #[serde(deserialize_with = "seconds")]
    pub batch_age: Option<f64>,
    /// How objects are compressed.
    pub compression: Option<CompressionKind>,
    /// Live share of the objects, in percent, below which they are collected. 0: never.
    #[serde(deserialize_with = "percent")]
    pub collect_below: Option<u64>,
    /// Live share, in percent, at which that ends.
    #[serde(deserialize_with = "percent")]
    pub collect_to: Option<u64>,
    /// Which objects are collected first.
    pub collect_order: Option<CollectOrder>,
    /// Operations per second of clients at most.
    pub iops: Option<u64>,
    /// Bytes per second that clients read and write at most.
    pub bandwidth: Option<Size>,
    /// Seconds' worth of that which pass at once after a pause.
    #[serde(deserialize_with = "seconds")]
    pub burst: Option<f64>,
}

/// Least time in seconds between two states of a replica.
const REPLICA_AGE_S: f64 = 60.0;

/// Where the replica of a served volume is kept.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ReplicateTo {
    /// URL of its store.
    pub store_url: String,
    /// Least time between two states that are sent.
    pub age: Duration,
}

/// A volume to be served.
#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct VolumeConfig {
    /// Its name.
    pub name: String,
    /// Creates it with this size where it is missing.
    #[serde(default)]
    pub size: Option<Size>,
    /// Refuse writes of clients.
    #[serde(default)]
    pub read_only: Option<bool>,
    /// As in [`VolumeSettings`].
    #[serde(default)]
    pub journal: Option<Size>,
    /// As in [`VolumeSettings`].
    #[serde(default)]
    pub batch: Option<Size>,
    /// As in [`VolumeSettings`].
    #[serde(default, deserialize_with = "seconds")]
    pub batch_age: Option<f64>,
    /// As in [`VolumeSettings`].
    #[serde(default)]
    pub compression: Option<CompressionKind>,
    /// As in [`VolumeSettings`].
    #[serde(default, deserialize_with = "percent")]
    pub collect_below: Option<u64>,
    /// As in [`VolumeSettings`].
    #[serde(default, deserialize_with = "percent")]
    pub collect_to: Option<u64>,
    /// As in [`VolumeSettings`].
    #[serde(default)]
    pub collect_order: Option<CollectOrder>,
    /// As in [`VolumeSettings`].
    #[serde(default)]
    pub iops: Option<u64>,
    /// As in [`VolumeSettings`].
    #[serde(default)]
    pub bandwidth: Option<Size>,
    /// As in [`VolumeSettings`].
    #[serde(default, deserialize_with = "seconds")]
    pub burst: Option<f64>,
    /// File that operations of clients are recorded in.
    #[serde(default)]
    pub trace: Option<PathBuf>,
    /// URL of the store of a replica that is kept while the volume is served.
    #[serde(default)]
    pub replicate_to: Option<String>,
    /// Least time in seconds between two states that are sent there; 60 where it is not given.
    #[serde(default, deserialize_with = "seconds")]
    pub replicate_age: Option<f64>,
}

impl VolumeConfig {
    /// A volume by its name alone.
    #[must_use]
    pub fn named(name: String, size: Option<Size>) -> Self {
        Self {
            name,
            size,
            read_only: None,
            journal: None,
            batch: None,
            batch_age: None,
            compression: None,
            collect_below: None,
            collect_to: None,
            collect_order: None,
            iops: None,
            bandwidth: None,
            burst: None,
            trace: None,
            replicate_to: None,
            replicate_age: None,
        }
    }

    /// The replica that is kept of it.
    #[must_use]
    pub fn replica(&self) -> Option<ReplicateTo> {
        let age = Duration::from_secs_f64(self.replicate_age.unwrap_or(REPLICA_AGE_S));
        self.replicate_to.clone().map(|store_url| ReplicateTo { store_url, age })
    }

    /// Its settings.
    #[must_use]
    pub fn settings(&self) -> VolumeSettings {
        VolumeSettings {
            journal: self.journal,
            batch: self.batch,
            batch_age: self.batch_age,
            compression: self.compression,
            collect_below: self.collect_below,
            collect_to: self.collect_to,
            collect_order: self.collect_order,
            iops: self.iops,
            bandwidth: self.bandwidth,
            burst: self.burst,
        }
    }
}

/// Checks a number of seconds that a write may wait.
///
/// # Errors
/// A sentence for the user.
pub fn check_seconds(number: f64) -> Result<f64, String> {
    let range = 0.01..=86_400.0;
    range
        .contains(&number)
        .then_some(number)
        .ok_or_else(|| format!("\"{number}\" is no number of seconds from 0.01 to 86400"))
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

/// Checks a live share.
///
/// # Errors
/// A sentence for the user.
pub fn check_percent(number: u64) -> Result<u64, String> {
    let in_range = (0..=100).contains(&number).then_some(number);
    in_range.ok_or_else(|| format!("\"{number}\" is no percentage from 0 to 100"))
}

fn lease_seconds<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<f64>, D::Error> {
    let number = f64::deserialize(deserializer)?;
    check_lease_seconds(number).map(Some).map_err(serde::de::Error::custom)
}

fn seconds<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<f64>, D::Error> {
    let number = f64::deserialize(deserializer)?;
    check_seconds(number).map(Some).map_err(serde::de::Error::custom)
}

fn percent<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<u64>, D::Error> {
    let number = u64::deserialize(deserializer)?;
    check_percent(number).map(Some).map_err(serde::de::Error::custom)
}

impl VolumeSettings {
    /// These settings, and where they are silent, `others`.
    #[must_use]
    pub fn or(self, others: Self) -> Self {
        Self {
            journal: self.journal.or(others.journal),
            batch: self.batch.or(others.batch),
            batch_age: self.batch_age.or(others.batch_age),
            compression: self.compression.or(others.compression),
            collect_below: self.collect_below.or(others.collect_below),
            collect_to: self.collect_to.or(others.collect_to),
            collect_order: self.collect_order.or(others.collect_order),
            iops: self.iops.or(others.iops),
            bandwidth: self.bandwidth.or(others.bandwidth),
            burst: self.burst.or(others.burst),
        }
    }

    /// Checks what types alone do not tell.
    ///
    /// # Errors
    /// A sentence for the user, and what to do.
    pub fn check(&self) -> Result<(), (String, String)> {
        let too_small = |what: &str, size: Option<Size>, least: u64| {
            let Size(bytes) = size.filter(|size| size.0 < least)?;
            let least = match least >> 20 {
                0 => format!("{}K", least >> 10),
                mebibytes => format!("{mebibytes}M"),
            };
            let given = human(bytes);
            Some((
                format!("a {what} of {given} is too small"),
                format!("set {what} to {least} or more"),
            ))
        };
        let journal = too_small("journal", self.journal, JOURNAL_BYTES_MIN);
        if let Some(refused) = journal.or(too_small("batch", self.batch, BATCH_BYTES_MIN)) {
            return Err(refused);
        }
        if let Some(Size(bytes)) = self.batch.filter(|size| size.0 > BATCH_BYTES_MAX) {
            let most = BATCH_BYTES_MAX >> 20;
            return Err((
                format!("a batch of {bytes} bytes does not fit an object"),
                format!("set batch to {most}M or less"),
            ));
        }
        if let Err(error) = self.limit() {
            return Err((error.to_string(), "see iops, bandwidth and burst".to_owned()));
        }
        let CollectLimits { start_percent: below, stop_percent: to, .. } = self.collect();
        if to >= below {
            return Ok(());
        }
        Err((
            format!("collection would end at {to} % live and begin below {below} %"),
            format!("set collect_to to {below} or more, or collect_below to {to} or less"),
        ))
    }

    /// What clients may ask for.
    ///
    /// # Errors
    /// A rate of zero, or a burst out of bounds.
    pub fn limit(&self) -> Result<LimitSettings, DeviceError> {
        let bandwidth = self.bandwidth.map(|Size(bytes)| bytes);
        LimitSettings::checked(self.iops, bandwidth, self.burst.map(Duration::from_secs_f64))
    }

    fn collect(&self) -> CollectLimits {
        let mut limits = CollectLimits::default();
        if let Some(below) = self.collect_below {
            limits.start_percent = below;
            limits.stop_percent = (below + COLLECT_SPAN_PERCENT).min(100);
        }
        limits.stop_percent = self.collect_to.unwrap_or(limits.stop_percent);
        limits.policy = match self.collect_order {
            Some(CollectOrder::Greedy) => CollectPolicy::Greedy,
            Some(CollectOrder::CostBenefit) => CollectPolicy::CostBenefit,
            None => limits.policy,
        };
        limits
    }

    /// The settings as a volume takes them, for one of `volumes` volumes of a node with this much memory.
    #[must_use]
    pub fn options(&self, memory: Memory, volumes: usize) -> VolumeOptions {
        let mut options = VolumeOptions::default();
        if let Some(Size(bytes)) = self.journal {
            let segments = bytes.div_ceil(options.journal.segment_bytes);
            options.journal.segments_max = u32::try_from(segments).unwrap_or(u32::MAX);
        }
        if let Some(Size(bytes)) = self.batch {
            options.batch.bytes = bytes;
        }
        if let Some(seconds) = self.batch_age {
            options.batch.age = Duration::from_secs_f64(seconds);
            options.batch.age_small = options.batch.age_small.max(options.batch.age);
        }
        options.compression = match self.compression {
            Some(CompressionKind::Lz4) => Compression::Lz4,
            Some(CompressionKind::Zstd) => Compression::Zstd,
            Some(CompressionKind::None) => Compression::None,
            None => options.compression,
        };
        options.collect = self.collect();
        let share = memory.journals_bytes() / volumes.max(1) as u64;
        let most = options.journal.resident_bytes_max;
        let share = usize::try_from(share.max(RESIDENT_BYTES_MIN)).unwrap_or(usize::MAX);
        options.journal.resident_bytes_max = share.min(most);
        options
    }
}

/// How the memory for buffers is divided: three eighths hold decoded frames, a quarter copies of what is in journals, a
/// quarter requests of clients, and the rest is for objects on their way and for what the allocator cannot give back.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Memory(u64);

impl Default for Memory {
    fn default() -> Self {
        Self(MEMORY_BYTES_DEFAULT)
    }
}

impl Memory {
    /// `bytes` in all.
    ///
    /// # Errors
    /// A sentence for the user when that is too little.
    pub fn new(bytes: u64) -> Result<Self, String> {
        if bytes < MEMORY_BYTES_MIN {
            return Err(format!("a node needs at least 64M of memory, not {bytes} bytes"));
        }
        Ok(Self(bytes))
    }

    /// For decoded frames.
    #[must_use]
    pub fn frames_bytes(self) -> u64 {
        self.0 / 8 * 3
    }

    /// For buffers: copies of what is in journals, requests, objects on their way, and as many unused ones as are left.
    #[must_use]
    pub fn buffers_bytes(self) -> u64 {
        self.0 / 2
    }

    fn journals_bytes(self) -> u64 {
        self.0 / 4
    }
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

    /// Understands the text of a file; `place` names it in errors.
    ///
    /// # Errors
    /// As [`Config::read`].
    pub fn parse(text: &str, place: &str) -> Result<Self, NodeError> {
        let config: Self = toml::from_str(text).map_err(|error| {
            let line = error.span().map(|span| text[..span.start].matches('\n').count() + 1);
            let place = line.map_or(place.to_owned(), |line| format!("{place}, line {line}"));
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

    /// What types alone do not tell.
    fn check(&self) -> Result<(), (String, Option<String>)> {
        if let Some(Size(bytes)) = self.memory {
            Memory::new(bytes).map_err(|message| (message, None))?;
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
            let settings = volume.settings().or(self.defaults);
            settings.check().map_err(|(message, help)| {
                (format!("volume {:?}: {message}", volume.name), Some(help))
            })?;
        }
        Ok(())
    }
}

/// The names in a message of serde's: the unknown one first, then those that would be known.
fn quoted(message: &str) -> Vec<&str> {
    message.split('`').skip(1).step_by(2).collect()
}

/// What somebody meant who wrote an unknown name.
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
        assert_eq!(config.volumes.len(), 2);
        assert_eq!(config.volumes[1].settings().journal, Some(Size(4 << 30)));
        assert_eq!(config.defaults.batch_age, Some(5.0));
        assert_eq!(config.defaults.collect(), CollectLimits::default());
        assert_eq!(config.volumes[1].settings().collect_order, Some(CollectOrder::CostBenefit));
        assert_eq!(config.lease, Some(60.0));
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
            ("lease = 0.5", "seconds from 1 to 3600"),
            ("read_only = 1", "line 1"),
            ("[defaults]\nbatch_age = 0.0", "seconds from 0.01"),
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
    fn flags_go_before_the_file_and_the_file_before_defaults() {
        let journal = |size| VolumeSettings { journal: Some(Size(size)), ..Default::default() };
        let both = VolumeSettings { batch: Some(Size(1)), ..journal(1 << 30) };
        assert_eq!(journal(1 << 20).or(both).journal, Some(Size(1 << 20)));
        assert_eq!(journal(1 << 20).or(both).batch, Some(Size(1)));
        let options = both.options(Memory::default(), 1);
        assert_eq!(options.journal.segments_max, 16);
        assert_eq!(options.batch.bytes, 1);
        assert_eq!(options.journal.resident_bytes_max, 64 << 20);
        assert_eq!(both.options(Memory::default(), 8).journal.resident_bytes_max, 16 << 20);
        assert_eq!(both.options(Memory::default(), 99).journal.resident_bytes_max, 8 << 20);
    }
}
