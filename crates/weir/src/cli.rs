//! Every command and flag. Help, man pages and completions come from here.

use std::ffi::OsString;
use std::path::PathBuf;

use clap::{Args, Parser, Subcommand, ValueEnum};
use weir_disk::EngineChoice;

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
    /// Where volumes are stored: file:///directory [default: store/ in the data directory]
    #[arg(long, value_name = "URL", env = "WEIR_STORE", global = true, hide_env_values = true)]
    pub(crate) store: Option<String>,
    /// Form of log lines on standard error
    #[arg(long, value_name = "FORM", env = "WEIR_LOG_FORMAT", global = true, default_value = "text")]
    pub(crate) log_format: LogFormat,
    /// How local files are reached
    #[arg(long, value_name = "ENGINE", env = "WEIR_DISK_ENGINE", global = true, hide = true)]
    #[arg(default_value = "auto")]
    pub(crate) disk_engine: DiskEngine,
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
    pub(crate) name: String,
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
    /// What keeps the bytes: memory is for measuring the front end, and forgets everything
    #[arg(long, value_name = "KIND", hide = true, default_value = "log")]
    pub(crate) endpoint: EndpointKind,
    /// Run this with the URI in WEIR_URI, and stop when it ends
    #[arg(last = true, value_name = "COMMAND")]
    pub(crate) command: Vec<OsString>,
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
        /// Name: 1 to 64 letters, digits, `.`, `_` and `-`, not beginning with `.` or `-`
        name: String,
        /// Size in bytes, or with K, M, G, T, as 10G
        #[arg(long, value_name = "SIZE", env = "WEIR_SIZE", hide_env_values = true)]
        size: Size,
        /// Form of the output
        #[command(flatten)]
        output: Output,
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
        name: String,
        /// Form of the output
        #[command(flatten)]
        output: Output,
    },
    /// Delete a volume and everything in it
    Delete {
        /// Name of the volume
        name: String,
        /// Do not ask
        #[arg(long, env = "WEIR_YES", hide_env_values = true)]
        yes: bool,
    },
    /// Make acknowledged writes survive: power loss, or with --remote the loss of the local disk
    Flush {
        /// Name of the volume
        name: String,
        /// To the store
        #[arg(long, env = "WEIR_REMOTE", hide_env_values = true)]
        remote: bool,
        /// Return when it is done
        #[arg(long, env = "WEIR_WAIT", hide_env_values = true)]
        wait: bool,
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
