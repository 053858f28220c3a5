//! Flags of the settings that a volume is served with.

use clap::{Args, ValueEnum};
use weir_node::CacheSetting;
use weir_node::config::{self, CompressionKind, VolumeSettings, check_percent};
use weir_node::size::Size;

use crate::cli::words::{rpo, seconds};

/// Settings of the log volume. None of them changes what is promised.
#[derive(Args, Debug, Default)]
#[command(next_help_heading = "Journal, objects and memory")]
pub(crate) struct Tuning {
    /// Largest local journal; it grows by 64 MiB, of a small one an eighth, as it is needed [default: 1G]
    #[arg(long, value_name = "SIZE", env = "WEIR_JOURNAL", hide_env_values = true)]
    journal: Option<Size>,
    /// Bytes that make an object, 40M at most; the write that it ends with is in it whole [default: 8M]
    #[arg(long, value_name = "SIZE", env = "WEIR_BATCH", hide_env_values = true)]
    batch: Option<Size>,
    /// How old in seconds the oldest write that is not in the store may become. A volume that is nearly idle costs a
    /// PUT for each of these: at 60 at most 43,800 a month, some 0.22 USD [default: 60]
    #[arg(long, value_name = "SECONDS", env = "WEIR_RPO")]
    #[arg(hide_env_values = true, value_parser = rpo)]
    rpo: Option<f64>,
    /// Further upper bound in seconds for the time that a write waits for its object; derived from --rpo where it is
    /// not given
    #[arg(long, value_name = "SECONDS", env = "WEIR_BATCH_AGE")]
    #[arg(hide_env_values = true, value_parser = seconds, hide = true)]
    batch_age: Option<f64>,
    /// How objects are compressed, where it helps [default: lz4]
    #[arg(long, value_name = "KIND", env = "WEIR_COMPRESSION", hide_env_values = true)]
    compression: Option<Compression>,
    /// Live share of a volume's objects, in percent, below which what lives is copied together so that the rest can
    /// go; 0 for never [default: 70]
    #[arg(long, value_name = "PERCENT", env = "WEIR_COLLECT_BELOW", hide_env_values = true)]
    #[arg(value_parser = percent, hide_short_help = true)]
    collect_below: Option<u64>,
    /// Live share, in percent, at which that ends [default: 5 more than where it begins]
    #[arg(long, value_name = "PERCENT", env = "WEIR_COLLECT_TO", hide_env_values = true)]
    #[arg(value_parser = percent, hide_short_help = true)]
    collect_to: Option<u64>,
    /// Which objects go first [default: greedy]
    #[arg(long, value_name = "ORDER", env = "WEIR_COLLECT_ORDER", hide_env_values = true)]
    #[arg(hide_short_help = true)]
    collect_order: Option<CollectOrder>,
    /// Operations per second that clients of a volume may ask for at most [default: no limit]
    #[arg(help_heading = "Limits on clients, per volume")]
    #[arg(long, value_name = "COUNT", env = "WEIR_IOPS", hide_env_values = true)]
    #[arg(value_parser = clap::value_parser!(u64).range(1..))]
    iops: Option<u64>,
    /// Bytes per second that clients of a volume may read and write at most [default: no limit]
    #[arg(help_heading = "Limits on clients, per volume")]
    #[arg(long, value_name = "SIZE", env = "WEIR_BANDWIDTH", hide_env_values = true)]
    bandwidth: Option<Size>,
    /// Seconds' worth of that which pass at once after a pause [default: 0.1]
    #[arg(help_heading = "Limits on clients, per volume")]
    #[arg(long, value_name = "SECONDS", env = "WEIR_BURST")]
    #[arg(hide_env_values = true, value_parser = config::parse_burst)]
    burst: Option<f64>,
    /// Memory for buffers; the maps of volumes come on top of it [default: 512M]
    #[arg(long, value_name = "SIZE", env = "WEIR_MEMORY", hide_env_values = true)]
    pub(crate) memory: Option<Size>,
    /// Cache of the store's objects in the data directory, for all volumes together: a size, "off", or "auto": a tenth
    /// of the free space, 64G at most, unless the store is on the same disk [default: auto]
    #[arg(long, value_name = "SIZE", env = "WEIR_CACHE", hide_env_values = true)]
    pub(crate) cache: Option<CacheSetting>,
    /// Bytes that are written to that cache in a day at most, as 500G, for disks that bear only so many writes: beyond
    /// it nothing more is cached for a while, and what is there is served [default: no limit]
    #[arg(long, value_name = "SIZE", env = "WEIR_CACHE_WEAR", hide_env_values = true)]
    #[arg(value_parser = wear, hide_short_help = true)]
    pub(crate) cache_wear: Option<u64>,
    /// Share of that cache that a volume may have at most, as 20%, so that it does not push out others; what a clone
    /// reads of its origin counts as the origin's [default: no limit]
    #[arg(long, value_name = "PERCENT", env = "WEIR_CACHE_SHARE", hide_env_values = true)]
    #[arg(value_parser = config::parse_share, hide_short_help = true)]
    cache_share: Option<u64>,
    /// Bytes per second uploaded to the store at most [default: no limit]
    #[arg(help_heading = "Limits on uploads")]
    #[arg(long, value_name = "SIZE", env = "WEIR_UPLOAD_BANDWIDTH", hide_env_values = true)]
    pub(crate) upload_bandwidth: Option<Size>,
    /// Upload requests per second to the store at most [default: no limit]
    #[arg(help_heading = "Limits on uploads")]
    #[arg(long, value_name = "COUNT", env = "WEIR_UPLOAD_REQUESTS", hide_env_values = true)]
    #[arg(value_parser = clap::value_parser!(u64).range(1..))]
    pub(crate) upload_requests: Option<u64>,
}

/// How objects are compressed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Compression {
    /// Fast; in a directory, unless encrypted, each 4 KiB by itself, so that small reads are fast.
    Lz4,
    /// Smaller; 64 KiB at a time.
    Zstd,
    /// Not at all.
    None,
}

/// Which objects are collected first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum CollectOrder {
    /// Those of which the least lives.
    Greedy,
    /// Old ones before young ones of which a little less lives.
    CostBenefit,
}

impl Tuning {
    /// What the flags say of a volume.
    pub(crate) fn settings(&self) -> VolumeSettings {
        VolumeSettings {
            journal: self.journal,
            batch: self.batch,
            rpo: self.rpo,
            batch_age: self.batch_age,
            compression: self.compression.map(|kind| match kind {
                Compression::Lz4 => CompressionKind::Lz4,
                Compression::Zstd => CompressionKind::Zstd,
                Compression::None => CompressionKind::None,
            }),
            collect_below: self.collect_below,
            collect_to: self.collect_to,
            collect_order: self.collect_order.map(|order| match order {
                CollectOrder::Greedy => config::CollectOrder::Greedy,
                CollectOrder::CostBenefit => config::CollectOrder::CostBenefit,
            }),
            iops: self.iops,
            bandwidth: self.bandwidth,
            burst: self.burst,
            cache_share: self.cache_share,
        }
    }
}

fn wear(text: &str) -> Result<u64, String> {
    let Size(bytes) = text.parse()?;
    config::check_wear(bytes)
}

pub(crate) fn percent(text: &str) -> Result<u64, String> {
    let no_number = || format!("{text:?} is no percentage from 0 to 100");
    check_percent(text.parse().map_err(|_| no_number())?)
}
