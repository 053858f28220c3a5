//! Settings of volumes, and how a volume is opened with them.

use std::path::PathBuf;
use std::time::Duration;

use serde::{Deserialize, Deserializer};
use weir_device::DeviceError;
use weir_log::limits::BATCH_BYTES_MAX;
use weir_log::{BatchLimits, CollectLimits, CollectPolicy, Compression, VolumeOptions};
use weir_stack::{BURST_MAX, BURST_MIN, LimitSettings};

use crate::config::file::FileConfig;
use crate::config::memory::Memory;
use crate::config::remote::RemoteConfig;
use crate::size::{Size, human};

/// How far collection goes on above the share at which it begins unless told otherwise, in percent.
const COLLECT_SPAN_PERCENT: u64 = 5;

/// Smallest journal in bytes.
const JOURNAL_BYTES_MIN: u64 = 64 << 20;

/// A journal is given free in segments, and the one that is written to counts as used: with fewer, it would seem full
/// although next to nothing in it waits for the store.
const SEGMENTS_MIN: u64 = 8;

/// Smallest batch in bytes: every object costs a request.
const BATCH_BYTES_MIN: u64 = 64 << 10;

/// Least `rpo` in seconds. A volume that is written to all the time makes an object for each of these, less what is
/// given for its way: at one second 3.3 to 5.3 million PUTs a month, some 16 to 26 USD; and the way of an object to a
/// store takes a good part of less than that.
const RPO_S_MIN: f64 = 1.0;

/// Least memory for a volume's copies of its journal, in bytes: one batch.
const RESIDENT_BYTES_MIN: u64 = 8 << 20;

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
    /// How old in seconds the oldest acknowledged byte that is not in the store may become.
    #[serde(deserialize_with = "rpo")]
    pub rpo: Option<f64>,
    /// A further upper bound for the time in seconds that a write waits for its object.
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
    /// What it may have of the cache on the local disk at most, in percent.
    #[serde(deserialize_with = "share")]
    pub cache_share: Option<u64>,
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
    /// The export of another server that it is, instead of a volume of the store.
    #[serde(default)]
    pub remote: Option<RemoteConfig>,
    /// The file or the block device that it is, instead of a volume of the store.
    #[serde(default)]
    pub file: Option<FileConfig>,
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
    #[serde(default, deserialize_with = "rpo")]
    pub rpo: Option<f64>,
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
    /// As in [`VolumeSettings`].
    #[serde(default, deserialize_with = "share")]
    pub cache_share: Option<u64>,
    /// File that operations of clients are recorded in.
    #[serde(default)]
    pub trace: Option<PathBuf>,
    /// Names in certificates that may use it; those of all volumes where it is not given.
    #[serde(default)]
    pub allow: Option<Vec<String>>,
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
            remote: None,
            file: None,
            read_only: None,
            journal: None,
            batch: None,
            rpo: None,
            batch_age: None,
            compression: None,
            collect_below: None,
            collect_to: None,
            collect_order: None,
            iops: None,
            bandwidth: None,
            burst: None,
            cache_share: None,
            trace: None,
            allow: None,
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
            rpo: self.rpo,
            batch_age: self.batch_age,
            compression: self.compression,
            collect_below: self.collect_below,
            collect_to: self.collect_to,
            collect_order: self.collect_order,
            iops: self.iops,
            bandwidth: self.bandwidth,
            burst: self.burst,
            cache_share: self.cache_share,
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

/// Checks a number of seconds that a limit lets through at once after a pause.
///
/// # Errors
/// A sentence for the user.
pub fn check_burst(number: f64) -> Result<f64, String> {
    let (least, most) = (BURST_MIN.as_secs_f64(), BURST_MAX.as_secs_f64());
    let range = least..=most;
    range
        .contains(&number)
        .then_some(number)
        .ok_or_else(|| format!("\"{number}\" is no number of seconds from {least} to {most}"))
}

/// Parses a `burst`.
///
/// # Errors
/// A sentence for the user.
pub fn parse_burst(text: &str) -> Result<f64, String> {
    check_burst(text.parse().map_err(|_| format!("{text:?} is no number of seconds"))?)
}

/// Checks an `rpo`.
///
/// # Errors
/// A sentence for the user.
pub fn check_rpo(number: f64) -> Result<f64, String> {
    let range = RPO_S_MIN..=86_400.0;
    range.contains(&number).then_some(number).ok_or_else(|| {
        format!(
            "an rpo of {number} seconds is not within 1 to 86400: every object is a request to the store, and takes \
             its time there"
        )
    })
}

/// Checks a live share.
///
/// # Errors
/// A sentence for the user.
pub fn check_percent(number: u64) -> Result<u64, String> {
    let in_range = (0..=100).contains(&number).then_some(number);
    in_range.ok_or_else(|| format!("\"{number}\" is no percentage from 0 to 100"))
}

/// Reads a share of the cache: `20%` and `20` are 20 percent.
///
/// # Errors
/// A sentence for the user.
pub fn parse_share(text: &str) -> Result<u64, String> {
    let number = text.trim_end_matches('%').trim_end();
    let percent = number.parse().ok().filter(|percent| (1..=100).contains(percent));
    percent.ok_or_else(|| format!("{text:?} is no share: give 1 to 100 percent, as 20%"))
}

/// As text, or as a number of percent.
fn share<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<u64>, D::Error> {
    #[derive(Deserialize)]
    #[serde(untagged)]
    enum Form {
        Percent(i64),
        Text(String),
    }
    let text = match Form::deserialize(deserializer)? {
        Form::Percent(percent) => percent.to_string(),
        Form::Text(text) => text,
    };
    parse_share(&text).map(Some).map_err(serde::de::Error::custom)
}

fn seconds<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<f64>, D::Error> {
    let number = f64::deserialize(deserializer)?;
    check_seconds(number).map(Some).map_err(serde::de::Error::custom)
}

fn rpo<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<f64>, D::Error> {
    let number = f64::deserialize(deserializer)?;
    check_rpo(number).map(Some).map_err(serde::de::Error::custom)
}

fn percent<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<u64>, D::Error> {
    let number = u64::deserialize(deserializer)?;
    check_percent(number).map(Some).map_err(serde::de::Error::custom)
}

impl VolumeSettings {
    /// These settings; those that are not set are taken from `others`.
    #[must_use]
    pub fn or(self, others: Self) -> Self {
        Self {
            journal: self.journal.or(others.journal),
            batch: self.batch.or(others.batch),
            rpo: self.rpo.or(others.rpo),
            batch_age: self.batch_age.or(others.batch_age),
            compression: self.compression.or(others.compression),
            collect_below: self.collect_below.or(others.collect_below),
            collect_to: self.collect_to.or(others.collect_to),
            collect_order: self.collect_order.or(others.collect_order),
            iops: self.iops.or(others.iops),
            bandwidth: self.bandwidth.or(others.bandwidth),
            burst: self.burst.or(others.burst),
            cache_share: self.cache_share.or(others.cache_share),
        }
    }

    /// Checks what the types alone do not rule out.
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

    /// The limits on clients.
    ///
    /// # Errors
    /// A rate of zero, or a burst out of bounds.
    pub fn limit(&self) -> Result<LimitSettings, DeviceError> {
        let bandwidth = self.bandwidth.map(|Size(bytes)| bytes);
        LimitSettings::checked(self.iops, bandwidth, self.burst.map(Duration::from_secs_f64))
    }

    pub(super) fn collect(&self) -> CollectLimits {
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

    /// How old what is not in the store may become. `rpo` is what counts. Where only `batch_age` is given and longer
    /// than the default of `rpo`, that is as long: who asked for long waits does not get more objects than that.
    fn set_ages(&self, limits: &mut BatchLimits) {
        let age = self.batch_age.map(Duration::from_secs_f64);
        limits.rpo = match self.rpo.map(Duration::from_secs_f64) {
            Some(rpo) => rpo,
            None => age.map_or(limits.rpo, |age| limits.rpo.max(age)),
        };
        limits.age = age.unwrap_or(limits.age).min(limits.rpo);
    }

    /// What becomes of `batch_age`, where it is given, for the log.
    #[must_use]
    pub fn batch_age_note(&self) -> Option<String> {
        let age = self.batch_age?;
        let mut limits = BatchLimits::default();
        self.set_ages(&mut limits);
        let (held, rpo) = (limits.age.as_secs_f64(), limits.rpo.as_secs_f64());
        Some(match held < age {
            true => format!(
                "a batch_age of {age} s is longer than the rpo of {rpo} s, which is what counts; take batch_age away"
            ),
            false => format!(
                "batch_age is derived from rpo now, which is {rpo} s; the {held} s that are set are a further upper \
                 bound; set rpo instead"
            ),
        })
    }

    /// The settings as a volume takes them, for one of `volumes` volumes of a node with this much memory.
    #[must_use]
    pub fn options(&self, memory: Memory, volumes: usize) -> VolumeOptions {
        let mut options = VolumeOptions::default();
        if let Some(Size(bytes)) = self.journal {
            let part = (bytes / SEGMENTS_MIN).next_multiple_of(1 << 20);
            options.journal.segment_bytes = part.clamp(1 << 20, options.journal.segment_bytes);
            let segments = bytes.div_ceil(options.journal.segment_bytes);
            options.journal.segments_max = u32::try_from(segments).unwrap_or(u32::MAX);
        }
        if let Some(Size(bytes)) = self.batch {
            options.batch.bytes = bytes;
        }
        self.set_ages(&mut options.batch);
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
