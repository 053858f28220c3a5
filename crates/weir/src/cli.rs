//! Every command and flag. Help, man pages and completions come from here.

use std::ffi::OsString;
use std::path::PathBuf;
use std::time::Duration;

use clap::{Args, Parser, Subcommand, ValueEnum};
use weir_log::catalog::VolumeName;
use weir_log::{Compression, Takeover, VolumeOptions};
use weir_node::{EngineChoice, LeaseSettings, NodeConfig};

use crate::size::Size;

/// Virtual disks on a local SSD over shared object storage.
#[derive(Debug, Parser)]
#[command(name = "weir", version, propagate_version = true, after_help = AFTER_HELP)]
#[command(disable_help_subcommand = true, subcommand_required = true)]
pub(crate) struct Cli {
    /// What every command takes.
    #[command(flatten)]
    pub(crate) global: Global,
    /// What to do.
    #[command(subcommand)]
    pub(crate) command: Command,
}

const AFTER_HELP: &str = "\
Exit codes: 0 success, 1 failure, 2 wrong usage; `weir up NAME -- COMMAND` hands on COMMAND's.
Every flag can be given in the environment: --data-dir is WEIR_DATA_DIR.";

/// Flags of every command.
#[derive(Args, Debug)]
pub(crate) struct Global {
    /// Journals, sockets and the embedded store [default: /var/lib/weir for root, else
    /// $XDG_DATA_HOME/weir]
    #[arg(long, value_name = "DIR", env = "WEIR_DATA_DIR", global = true, hide_env_values = true)]
    pub(crate) data_dir: Option<PathBuf>,
    /// Where volumes are stored: file:///directory or s3://bucket/prefix [default: store/ in the data directory]
    #[arg(long, value_name = "URL", env = "WEIR_STORE", global = true, hide_env_values = true)]
    pub(crate) store: Option<String>,
    /// Use a store that does not keep two writers apart; never more than one process may write to it
    #[arg(long, env = "WEIR_SINGLE_WRITER", global = true, hide_env_values = true)]
    pub(crate) single_writer: bool,
    /// Form of log lines on standard error
    #[arg(
        long,
        value_name = "FORM",
        env = "WEIR_LOG_FORMAT",
        global = true,
        default_value = "text"
    )]
    pub(crate) log_format: LogFormat,
    /// How local files are reached
    #[arg(long, value_name = "ENGINE", env = "WEIR_DISK_ENGINE", global = true, hide = true)]
    #[arg(default_value = "auto")]
    pub(crate) disk_engine: DiskEngine,
    /// Length of this node's lease in seconds: how long other nodes wait before they take a volume over that it did
    /// not close
    #[arg(long, value_name = "SECONDS", env = "WEIR_LEASE", global = true, hide_env_values = true)]
    #[arg(default_value_t = 60.0, value_parser = lease_seconds, hide_short_help = true)]
    pub(crate) lease: f64,
}

impl Global {
    /// The threads of a command that works on one volume.
    pub(crate) fn node_config(&self) -> NodeConfig {
        NodeConfig {
            shards: Some(1),
            engine: self.disk_engine.into(),
            lease: LeaseSettings::of_length(Duration::from_secs_f64(self.lease)),
        }
    }
}

fn lease_seconds(text: &str) -> Result<f64, String> {
    let number = text.parse::<f64>().ok().filter(|n| (1.0..=3600.0).contains(n));
    number.ok_or_else(|| format!("{text:?} is no number of seconds from 1 to 3600"))
}

/// What happens when the lease of a volume's holder runs out.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum TakeoverKind {
    /// A person decides, with --take-over; without the store, I/O goes on
    Manual,
    /// Another node takes the volume by itself; without the store, I/O stops in time
    Auto,
}

impl From<TakeoverKind> for Takeover {
    fn from(kind: TakeoverKind) -> Self {
        match kind {
            TakeoverKind::Manual => Self::Manual,
            TakeoverKind::Auto => Self::Auto,
        }
    }
}

/// Form of log lines.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum LogFormat {
    /// For people.
    Text,
    /// One JSON object per line.
    Json,
}

/// How local files are reached.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum DiskEngine {
    /// io_uring where the kernel allows it.
    Auto,
    /// io_uring or an error.
    Uring,
    /// Threads with blocking calls.
    Threads,
}

impl From<DiskEngine> for EngineChoice {
    fn from(engine: DiskEngine) -> Self {
        match engine {
            DiskEngine::Auto => Self::Auto,
            DiskEngine::Uring => Self::Uring,
            DiskEngine::Threads => Self::Threads,
        }
    }
}

/// The verbs.
#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    /// Serve a volume over NBD until interrupted, or while COMMAND runs
    Up(Box<Up>),
    /// Create, list, show, delete and flush volumes
    #[command(subcommand)]
    Volume(VolumeCommand),
    /// Look at stores
    #[command(subcommand)]
    Store(StoreCommand),
    /// Print a completion script for a shell
    Completion {
        /// The shell
        shell: clap_complete::Shell,
    },
    /// Print the manual page, or write one page per command into DIR
    Man {
        /// Directory for the pages; created if missing
        dir: Option<PathBuf>,
    },
}

/// `weir up`.
#[derive(Args, Debug)]
pub(crate) struct Up {
    /// Name of the volume
    #[arg(value_parser = volume_name)]
    pub(crate) name: VolumeName,
    /// Create the volume with this size if there is none of that name: bytes, or 10G
    #[arg(long, value_name = "SIZE", env = "WEIR_SIZE", hide_env_values = true)]
    pub(crate) size: Option<Size>,
    /// Unix socket to serve on [default: nbd/NAME.sock in the data directory]
    #[arg(long, value_name = "PATH", env = "WEIR_NBD_SOCKET", conflicts_with = "nbd_listen")]
    #[arg(hide_env_values = true)]
    pub(crate) nbd_socket: Option<PathBuf>,
    /// TCP address to serve on, as 127.0.0.1:10809
    #[arg(long, value_name = "ADDR", env = "WEIR_NBD_LISTEN", hide_env_values = true)]
    pub(crate) nbd_listen: Option<String>,
    /// Let --nbd-listen take an address that other machines reach, without encryption
    #[arg(long, env = "WEIR_INSECURE", hide_env_values = true)]
    pub(crate) insecure: bool,
    /// Refuse writes
    #[arg(long, env = "WEIR_READ_ONLY", hide_env_values = true)]
    pub(crate) read_only: bool,
    /// Open a volume whose journal is damaged or whose objects are missing, without what is lost
    #[arg(long, env = "WEIR_ACCEPT_LOSS", hide_env_values = true)]
    pub(crate) accept_loss: bool,
    /// Take the volume from a node that did not close it, with what the store holds
    #[arg(long, env = "WEIR_TAKE_OVER", hide_env_values = true)]
    pub(crate) take_over: bool,
    /// Give up writes in a local journal that the volume has gone on without
    #[arg(long, env = "WEIR_DISCARD_JOURNAL", hide_env_values = true)]
    pub(crate) discard_journal: bool,
    /// How bytes are kept
    #[command(flatten)]
    pub(crate) tuning: Tuning,
    /// What keeps the bytes: memory is for measuring the front end, and forgets everything
    #[arg(long, value_name = "KIND", hide = true, default_value = "log")]
    pub(crate) endpoint: EndpointKind,
    /// Run this with the URI in WEIR_URI, and stop when it ends
    #[arg(last = true, value_name = "COMMAND")]
    pub(crate) command: Vec<OsString>,
}

/// Settings of the log volume. None of them changes what is promised.
#[derive(Args, Debug)]
pub(crate) struct Tuning {
    /// Largest local journal; it grows by 64 MiB as it is needed
    #[arg(long, value_name = "SIZE", env = "WEIR_JOURNAL", default_value = "1G")]
    #[arg(hide_env_values = true)]
    journal: Size,
    /// Bytes that make an object
    #[arg(long, value_name = "SIZE", env = "WEIR_BATCH", default_value = "8M")]
    #[arg(hide_env_values = true)]
    batch: Size,
    /// Longest time in seconds that a write waits for its object
    #[arg(long, value_name = "SECONDS", env = "WEIR_BATCH_AGE", default_value_t = 5.0)]
    #[arg(hide_env_values = true, value_parser = seconds)]
    batch_age: f64,
    /// How objects are compressed, where it helps
    #[arg(long, value_name = "KIND", env = "WEIR_COMPRESSION", default_value = "lz4")]
    #[arg(hide_env_values = true)]
    compression: CompressionKind,
}

/// How objects are compressed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum CompressionKind {
    /// Fast.
    Lz4,
    /// Smaller.
    Zstd,
    /// Not at all.
    None,
}

impl Tuning {
    /// The settings as the volume takes them.
    pub(crate) fn volume_options(&self) -> VolumeOptions {
        let mut options = VolumeOptions::default();
        let segments = self.journal.0.div_ceil(options.journal.segment_bytes);
        options.journal.segments_max = u32::try_from(segments).unwrap_or(u32::MAX);
        options.batch.bytes = self.batch.0;
        options.batch.age = Duration::from_secs_f64(self.batch_age);
        options.batch.age_small = options.batch.age_small.max(options.batch.age);
        options.compression = match self.compression {
            CompressionKind::Lz4 => Compression::Lz4,
            CompressionKind::Zstd => Compression::Zstd,
            CompressionKind::None => Compression::None,
        };
        options
    }
}

fn seconds(text: &str) -> Result<f64, String> {
    let number = text.parse::<f64>().ok().filter(|n| (0.01..=86_400.0).contains(n));
    number.ok_or_else(|| format!("{text:?} is no number of seconds from 0.01 to 86400"))
}

fn volume_name(text: &str) -> Result<VolumeName, String> {
    VolumeName::new(text).map_err(|error| error.to_string())
}

/// What keeps the bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum EndpointKind {
    /// A log volume.
    Log,
    /// Memory of this process.
    Memory,
}

/// `weir volume`.
#[derive(Debug, Subcommand)]
pub(crate) enum VolumeCommand {
    /// Create a volume
    Create {
        /// Name: 1 to 64 letters, digits, `.`, `_` and `-`, beginning with a letter or digit
        #[arg(value_parser = volume_name)]
        name: VolumeName,
        /// Size in bytes, or with K, M, G, T, as 10G
        #[arg(long, value_name = "SIZE", env = "WEIR_SIZE", hide_env_values = true)]
        size: Size,
        /// What happens when the lease of the node that holds it runs out
        #[arg(long, value_name = "KIND", env = "WEIR_TAKEOVER", default_value = "manual")]
        #[arg(hide_env_values = true)]
        takeover: TakeoverKind,
        /// Form of the output
        #[command(flatten)]
        output: Output,
    },
    /// Change a setting of a volume that nobody has open
    Set {
        /// Name of the volume
        #[arg(value_parser = volume_name)]
        name: VolumeName,
        /// What happens when the lease of the node that holds it runs out
        #[arg(long, value_name = "KIND", env = "WEIR_TAKEOVER", hide_env_values = true)]
        takeover: TakeoverKind,
    },
    /// List the volumes of the store
    List {
        /// Form of the output
        #[command(flatten)]
        output: Output,
    },
    /// Show one volume
    Show {
        /// Name of the volume
        #[arg(value_parser = volume_name)]
        name: VolumeName,
        /// Form of the output
        #[command(flatten)]
        output: Output,
    },
    /// Delete a volume and everything in it
    Delete {
        /// Name of the volume
        #[arg(value_parser = volume_name)]
        name: VolumeName,
        /// Delete it although a node did not close it
        #[arg(long, env = "WEIR_TAKE_OVER", hide_env_values = true)]
        take_over: bool,
        /// Do not ask
        #[arg(long, env = "WEIR_YES", hide_env_values = true)]
        yes: bool,
    },
    /// Make acknowledged writes survive: power loss, or with --remote the loss of the local disk
    Flush {
        /// Name of the volume
        #[arg(value_parser = volume_name)]
        name: VolumeName,
        /// To the store
        #[arg(long, env = "WEIR_REMOTE", hide_env_values = true)]
        remote: bool,
        /// Return when it is done
        #[arg(long, env = "WEIR_WAIT", hide_env_values = true)]
        wait: bool,
    },
}

/// `weir store`.
#[derive(Debug, Subcommand)]
pub(crate) enum StoreCommand {
    /// Try out whether a store keeps what volumes rest on; the exit code says whether it may be used
    Probe {
        /// The store, as s3://bucket/prefix
        url: String,
        /// Form of the output
        #[command(flatten)]
        output: Output,
    },
}

/// Form of a listing.
#[derive(Args, Clone, Copy, Debug)]
pub(crate) struct Output {
    /// Form of the output
    #[arg(long, value_name = "FORM", env = "WEIR_OUTPUT", default_value = "table")]
    #[arg(hide_env_values = true)]
    pub(crate) output: OutputForm,
}

/// Form of a listing.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum OutputForm {
    /// For people.
    Table,
    /// For programs; stable.
    Json,
}
