//! `weir trace` and its verbs.

use std::path::PathBuf;
use std::str::FromStr;

use clap::{Args, Subcommand, ValueEnum};
use weir_cache::policy::Weights;
use weir_cache::replay::Policy;
use weir_log::limits::BATCH_BYTES_MAX;
use weir_node::size::Size;
use weir_trace::Format;

use crate::cli::known::Known;
use crate::terminal::form::Output;

/// `weir trace`.
#[derive(Debug, Subcommand)]
pub(crate) enum TraceCommand {
    /// Say what the writes of a trace would come to as objects: bytes, extents of the map, and what merging spares.
    /// Every disk of the trace is a volume; nothing is stored
    Sim(SimArgs),
    /// Say what a cache on the local disk would have of a trace: hits, evictions and how sequential the cache lies, by
    /// size and policy. All disks of a trace share one cache, empty at first; nothing is stored
    Cache(CacheArgs),
}

/// What every verb of `weir trace` takes.
#[derive(Debug, Args)]
pub(crate) struct MemoryLimit {
    /// Most memory that it takes, within 15 percent: it stops with an error where it needs more
    #[arg(long, value_name = "SIZE", env = "WEIR_MEMORY_LIMIT", hide_env_values = true)]
    #[arg(default_value = "4G")]
    pub(crate) memory_limit: Size,
}

/// `weir trace sim`.
#[derive(Debug, Args)]
pub(crate) struct SimArgs {
    /// The trace, plain or compressed with zstd; - for standard input
    #[arg(required_unless_present = "generate")]
    pub(crate) file: Option<PathBuf>,
    /// A generated trace with known answers in place of a file
    #[arg(long, value_name = "SHAPE", env = "WEIR_GENERATE", hide_env_values = true)]
    #[arg(conflicts_with = "file")]
    pub(crate) generate: Option<TraceShape>,
    /// csv, msr, alibaba, tencent, systor, spc, blkparse, fio, lis, vscsi1 or vscsi2 [default: guessed, but never
    /// alibaba]
    #[arg(long, value_name = "FORMAT", env = "WEIR_FORMAT", hide_env_values = true)]
    pub(crate) format: Option<Format>,
    /// Bytes that make an object; may be given again, and with commas
    #[arg(long, value_name = "SIZE", env = "WEIR_BATCH", hide_env_values = true)]
    #[arg(value_delimiter = ',', default_value = "8M,32M", value_parser = batch)]
    pub(crate) batch: Vec<Size>,
    /// Most memory
    #[command(flatten)]
    pub(crate) memory: MemoryLimit,
    /// Form of the output
    #[command(flatten)]
    pub(crate) output: Output,
}

/// `weir trace cache`.
#[derive(Debug, Args)]
pub(crate) struct CacheArgs {
    /// The traces, plain or compressed with zstd; - for standard input
    #[arg(required = true, value_name = "FILE")]
    pub(crate) files: Vec<PathBuf>,
    /// csv, msr, alibaba, tencent, systor, spc, blkparse, fio, lis, vscsi1 or vscsi2 [default: guessed, but never
    /// alibaba]
    #[arg(long, value_name = "FORMAT", env = "WEIR_FORMAT", hide_env_values = true)]
    pub(crate) format: Option<Format>,
    /// Sizes of the cache, in bytes or in percent of the bands of 256 KiB that a trace touches; may be given again, and
    /// with commas
    #[arg(long, value_name = "SIZE", env = "WEIR_SIZE", hide_env_values = true)]
    #[arg(value_delimiter = ',', default_value = "2%,5%,10%,20%,40%")]
    pub(crate) size: Vec<CacheSize>,
    /// Policies of replacement: six-factor, six-factor-alone, lru, arc, s3-fifo, and block-lru for a cache without
    /// bands, as a reference; with commas [default: all of them]
    #[arg(long, value_name = "POLICY", env = "WEIR_POLICY", hide_env_values = true)]
    #[arg(value_delimiter = ',', hide_possible_values = true)]
    #[arg(value_parser = Known::new(Policy::ALL.map(Policy::name), policy))]
    pub(crate) policy: Vec<Policy>,
    /// Weights of the six factors: recency, dirtiness, sequentiality now and after, nearness now, distance after
    /// [default: 1,1,1,1,0.5,0.5]
    #[arg(long, value_name = "WEIGHTS", env = "WEIR_WEIGHTS", hide_env_values = true)]
    #[arg(value_parser = weights)]
    pub(crate) weights: Option<Weights>,
    /// Find the weights that have the most hits in the mean over all traces and sizes, and say them; it takes some
    /// hundred times as long. Test them on other traces, with --weights
    #[arg(long, conflicts_with = "policy", env = "WEIR_TUNE", hide_env_values = true)]
    pub(crate) tune: bool,
    /// Most memory
    #[command(flatten)]
    pub(crate) memory: MemoryLimit,
    /// Form of the output
    #[command(flatten)]
    pub(crate) output: Output,
}

/// How large a cache is.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum CacheSize {
    /// In bytes.
    Bytes(u64),
    /// In percent of what a trace touches.
    Percent(f64),
}

impl FromStr for CacheSize {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let Some(percent) = text.strip_suffix('%') else {
            return text.parse().map(|Size(bytes)| Self::Bytes(bytes));
        };
        match percent.trim_end().parse::<f64>() {
            Ok(percent) if percent > 0.0 && percent <= 100.0 => Ok(Self::Percent(percent)),
            _ => Err(format!("{text:?} is no share: write more than 0% and at most 100%, as 10%")),
        }
    }
}

fn policy(text: &str) -> Result<Policy, String> {
    let found = Policy::ALL.into_iter().find(|policy| policy.name() == text);
    let names = || Policy::ALL.map(Policy::name).join(", ");
    found.ok_or_else(|| format!("there is no policy {text:?}: there are {}", names()))
}

fn weights(text: &str) -> Result<Weights, String> {
    let numbers: Result<Vec<f64>, _> =
        text.split(',').map(|weight| weight.trim().parse()).collect();
    let weights = numbers.ok().and_then(|numbers| <[f64; Weights::COUNT]>::try_from(numbers).ok());
    weights
        .filter(|weights| weights.iter().all(|weight| (0.0..=1000.0).contains(weight)))
        .map(Weights::from)
        .ok_or_else(|| {
            format!("{text:?} is no list of six numbers from 0 to 1000, as 1,1,1,1,0.5,0.5")
        })
}

/// A generated trace.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum TraceShape {
    /// 4 KiB blocks, few of them written most of the time
    Zipf,
    /// Records of 16 KiB, written again around holes of 4 KiB
    Holes,
}

fn batch(text: &str) -> Result<Size, String> {
    let Size(bytes) = text.parse::<Size>()?;
    match bytes {
        1..=BATCH_BYTES_MAX => Ok(Size(bytes)),
        _ => Err(format!("{text:?} is no batch: 40M is the largest")),
    }
}
