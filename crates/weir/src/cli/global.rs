//! Flags of every command.

use std::path::PathBuf;

use clap::{Args, ValueEnum};
use weir_node::EngineChoice;
use weir_node::config::check_lease_seconds;

/// Flags of every command.
#[derive(Args, Debug)]
pub(crate) struct Global {
    /// Journals, sockets and the embedded store [default: /var/lib/weir for root, else
    /// $XDG_DATA_HOME/weir]
    #[arg(help_heading = "Places and output")]
    #[arg(long, value_name = "DIR", env = "WEIR_DATA_DIR", global = true, hide_env_values = true)]
    pub(crate) data_dir: Option<PathBuf>,
    /// File with settings; flags and variables go before it
    #[arg(help_heading = "Places and output")]
    #[arg(long, value_name = "FILE", env = "WEIR_CONFIG", global = true, hide_env_values = true)]
    pub(crate) config: Option<PathBuf>,
    /// Where volumes are stored: file:///directory or s3://bucket/prefix [default: store/ in the data directory]
    #[arg(help_heading = "Places and output")]
    #[arg(long, value_name = "URL", env = "WEIR_STORE", global = true, hide_env_values = true)]
    pub(crate) store: Option<String>,
    /// Use a store that does not keep two writers apart; never more than one process may write to it
    #[arg(help_heading = "Places and output")]
    #[arg(long, env = "WEIR_SINGLE_WRITER", global = true, hide_env_values = true)]
    pub(crate) single_writer: bool,
    /// Form of log lines on standard error [default: text]
    #[arg(help_heading = "Places and output")]
    #[arg(long, value_name = "FORM", env = "WEIR_LOG_FORMAT", global = true)]
    pub(crate) log_format: Option<LogFormat>,
    /// How local files are reached
    #[arg(long, value_name = "ENGINE", env = "WEIR_DISK_ENGINE", global = true, hide = true)]
    #[arg(default_value = "auto")]
    pub(crate) disk_engine: DiskEngine,
    /// File with the keys of encrypted volumes: 64 hex digits each, one per line; the first is for new volumes.
    /// WEIR_KEY holds the same itself
    #[arg(help_heading = "Encryption")]
    #[arg(long, value_name = "FILE", env = "WEIR_KEY_FILE", global = true, hide_env_values = true)]
    #[arg(hide_short_help = true)]
    pub(crate) key_file: Option<PathBuf>,
    /// Command for sh that prints the keys, as of a key service
    #[arg(help_heading = "Encryption")]
    #[arg(long, value_name = "COMMAND", env = "WEIR_KEY_COMMAND", global = true)]
    #[arg(hide_env_values = true, hide_short_help = true, conflicts_with = "key_file")]
    pub(crate) key_command: Option<String>,
    /// Encrypt what this creates
    #[arg(help_heading = "Encryption")]
    #[arg(
        long,
        env = "WEIR_ENCRYPT",
        global = true,
        hide_env_values = true,
        hide_short_help = true
    )]
    pub(crate) encrypt: bool,
    /// Length of this node's lease in seconds: how long other nodes wait before they take a volume over that it did
    /// not close [default: 60]
    #[arg(help_heading = "Leases")]
    #[arg(long, value_name = "SECONDS", env = "WEIR_LEASE", global = true, hide_env_values = true)]
    #[arg(value_parser = lease_seconds, hide_short_help = true)]
    pub(crate) lease: Option<f64>,
}

fn lease_seconds(text: &str) -> Result<f64, String> {
    let no_number = || format!("{text:?} is no number of seconds from 1 to 3600");
    check_lease_seconds(text.parse().map_err(|_| no_number())?).map_err(|_| no_number())
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
